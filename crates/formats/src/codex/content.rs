//! Converts Codex' items, which are those of OpenAI's Responses API, into the kernel's messages.
//!
//! Invariants: what the program wrote in the user's name is no message; an item of content of an unknown type is left
//! out; an image that cannot be read is named in its place.

use greenroom_kernel::files::{Touch, Touched};
use greenroom_kernel::message::{Block, Part, ToolCall, ToolStatus, Usage};
use serde_json::Value;

use crate::fields::{count, filled, flag, image_of_url, is_only_sections, items, str_of, text};

/// The tags of what the program says in the user's name.
const PROGRAM_TAGS: [&str; 4] =
    ["environment_context", "user_instructions", "permissions instructions", "turn_aborted"];

/// The text in place of an image that cannot be read.
const NO_IMAGE: &str = "[an image that could not be read]";

/// The lines of a patch that name a file.
const PATCH_LINES: [&str; 4] = ["*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: "];

/// Returns what the user said, without what the program said in the user's name.
pub(super) fn said(item: &Value) -> Vec<Block> {
    let mut blocks = blocks(item.get("content").unwrap_or(&Value::Null));
    blocks.retain(|block| match block {
        Block::Text(text) => !text.trim().is_empty() && !is_only_sections(text, &PROGRAM_TAGS),
        Block::Image(_) | Block::Native(_) | _ => true,
    });
    blocks
}

/// Yields the texts of an answer.
pub(super) fn texts(item: &Value) -> impl Iterator<Item = String> {
    let blocks = blocks(item.get("content").unwrap_or(&Value::Null));
    blocks.into_iter().filter_map(|block| match block {
        Block::Text(text) => Some(text),
        Block::Image(_) | Block::Native(_) | _ => None,
    })
}

/// Returns the readable reasoning of an item: its summary, or else its full text.
pub(super) fn reasoning(item: &Value) -> Option<Part> {
    let texts = |field: &str| -> Vec<String> {
        items(item, field).filter_map(|part| filled(part, "text")).map(str::to_owned).collect()
    };
    let summary = texts("summary");
    let told = if summary.is_empty() { texts("content") } else { summary };
    (!told.is_empty()).then(|| Part::Reasoning(told.join("\n\n")))
}

/// Returns the content and the status of a result.
pub(super) fn output(output: &Value) -> (Vec<Block>, ToolStatus) {
    match output {
        Value::String(text) => match serde_json::from_str::<Value>(text) {
            Ok(inner) if str_of(&inner, "output").is_some() => {
                let metadata = inner.get("metadata").unwrap_or(&Value::Null);
                let code = metadata.get("exit_code").and_then(Value::as_i64);
                (vec![Block::Text(self::text(&inner, "output"))], status(code.is_none_or(|code| code == 0)))
            }
            Ok(_) | Err(_) => (vec![Block::Text(text.clone())], status(!says_failure(text))),
        },
        Value::Object(_) => {
            let failed = output.get("success").is_some() && !flag(output, "success");
            (blocks(output.get("content").unwrap_or(&Value::Null)), status(!failed))
        }
        Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) => (blocks(output), ToolStatus::Ok),
    }
}

/// A count of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Counted {
    /// The usage of one answer.
    pub(super) last: Usage,
    /// All tokens of the session so far.
    total_tokens: u64,
}

/// Reads a count of tokens; `None` if it counts none. The input includes cached tokens, and the output includes reasoning.
pub(super) fn counted(payload: &Value) -> Option<Counted> {
    let info = payload.get("info")?;
    let last = info.get("last_token_usage")?;
    let input_tokens = count(last, "input_tokens");
    let output_tokens = count(last, "output_tokens");
    let last = Usage {
        input_tokens,
        cached_tokens: count(last, "cached_input_tokens").min(input_tokens),
        output_tokens,
        reasoning_tokens: count(last, "reasoning_output_tokens").min(output_tokens),
        ..Usage::default()
    };
    let total_tokens = info.get("total_token_usage").map_or(0, |total| count(total, "total_tokens"));
    (last.total_tokens() > 0).then_some(Counted { last, total_tokens })
}

/// Returns the files that a call touches: those that a patch names.
pub(super) fn touches(call: &ToolCall) -> Vec<Touched> {
    let Ok(arguments) = serde_json::from_str::<Value>(&call.arguments) else { return Vec::new() };
    let command: Vec<&str> = items(&arguments, "command").filter_map(Value::as_str).collect();
    let patch = match (call.name.as_str(), &command[..]) {
        ("apply_patch", _) => filled(&arguments, "input").or_else(|| filled(&arguments, "patch")),
        (_, ["apply_patch", patch]) => Some(*patch),
        _ => None,
    };
    let mut touched: Vec<Touched> = Vec::new();
    for line in patch.unwrap_or_default().lines() {
        let path = PATCH_LINES.iter().find_map(|begin| line.strip_prefix(begin)).map(str::trim);
        if let Some(path) = path.filter(|path| !path.is_empty()) {
            touched.push(Touched { path: path.to_owned(), touch: Touch::Modified });
        }
    }
    touched
}

fn status(is_ok: bool) -> ToolStatus {
    if is_ok { ToolStatus::Ok } else { ToolStatus::Error }
}

/// Whether a result in the form of newer versions begins with an exit code other than 0.
fn says_failure(text: &str) -> bool {
    let code = text.lines().next().and_then(|line| line.strip_prefix("Exit code: "));
    code.and_then(|code| code.trim().parse::<i64>().ok()).is_some_and(|code| code != 0)
}

/// Returns the texts and images of a content, which is a text or a list.
fn blocks(content: &Value) -> Vec<Block> {
    match content {
        Value::String(text) => vec![Block::Text(text.clone())],
        Value::Array(items) => items.iter().filter_map(block).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
    }
}

fn block(item: &Value) -> Option<Block> {
    match str_of(item, "type")? {
        "input_text" | "output_text" | "text" => Some(Block::Text(text(item, "text"))),
        "input_image" => {
            let image = str_of(item, "image_url").and_then(image_of_url);
            Some(image.map_or_else(|| Block::Text(NO_IMAGE.into()), Block::Image))
        }
        _ => None,
    }
}
