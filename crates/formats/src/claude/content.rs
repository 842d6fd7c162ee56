//! Converts Claude Code's messages, which are those of Anthropic's API, into the kernel's.
//!
//! Invariants: what the program wrote in the user's name is no message; a block of an unknown type is left out; an image
//! that cannot be read is named in its place; the arguments of a call are the JSON text that JavaScript would write.

use greenroom_kernel::files::{Touch, Touched};
use greenroom_kernel::message::{
    AssistantMessage, Block, Image, Part, StopReason, ToolCall, ToolResult, ToolStatus, Usage,
};
use greenroom_kernel::size::json::stringify;
use serde_json::Value;

use crate::calls::Calls;
use crate::fields::{count, filled, flag, is_only_sections, items, str_of, text};

/// The tags of what the program says in the user's name.
const PROGRAM_TAGS: [&str; 8] = [
    "command-name", "command-message", "command-args", "command-contents", "local-command-stdout",
    "local-command-stderr", "local-command-caveat", "session-start-hook",
];

/// The text in place of an image that cannot be read.
const NO_IMAGE: &str = "[an image that could not be read]";

/// Whether a message has content, of whatever kind.
pub(super) fn has_content(message: &Value) -> bool {
    message.get("content").is_some_and(|content| content.is_string() || content.is_array())
}

/// Returns what the user said, without what the program said in the user's name.
pub(super) fn said(message: &Value) -> Vec<Block> {
    let mut blocks = blocks(message);
    blocks.retain(|block| match block {
        Block::Text(text) => !text.trim().is_empty() && !is_noise(text),
        Block::Image(_) | Block::Native(_) | _ => true,
    });
    blocks
}

/// Returns the texts and images in the `content` of a message or of a result.
pub(super) fn blocks(message: &Value) -> Vec<Block> {
    match str_of(message, "content") {
        Some(text) => vec![Block::Text(text.to_owned())],
        None => items(message, "content").filter_map(block).collect(),
    }
}

/// Yields the results in a message of the user.
pub(super) fn results(message: &Value, calls: &Calls) -> impl Iterator<Item = ToolResult> {
    items(message, "content").filter(|item| str_of(item, "type") == Some("tool_result")).map(|item| {
        let status = if flag(item, "is_error") { ToolStatus::Error } else { ToolStatus::Ok };
        calls.result(text(item, "tool_use_id"), blocks(item), status)
    })
}

/// Returns the answer of one line, which may be a part of it.
pub(super) fn answer(message: &Value, calls: &mut Calls) -> AssistantMessage {
    let content: Vec<Part> = match str_of(message, "content") {
        Some(text) => vec![Part::Text(text.to_owned())],
        None => items(message, "content").filter_map(part).collect(),
    };
    for call in content.iter().filter_map(Part::as_tool_call) {
        calls.add(call, touches(call).into_iter().collect());
    }
    let stop_raw = filled(message, "stop_reason").map(str::to_owned);
    let calls_tools = content.iter().any(|part| part.as_tool_call().is_some());
    AssistantMessage {
        provider: "anthropic".into(),
        model: text(message, "model"),
        usage: message.get("usage").filter(|usage| usage.is_object()).map(usage),
        stop: stop(stop_raw.as_deref(), calls_tools),
        stop_raw,
        error: None,
        content,
    }
}

/// Adds another line of the same answer. Each line repeats the usage, and the last one counts.
pub(super) fn extend(answer: &mut AssistantMessage, more: AssistantMessage) {
    answer.content.extend(more.content);
    answer.usage = more.usage.or(answer.usage);
    answer.stop_raw = more.stop_raw.or(answer.stop_raw.take());
    let calls_tools = answer.tool_calls().next().is_some();
    answer.stop = stop(answer.stop_raw.as_deref(), calls_tools);
}

fn stop(raw: Option<&str>, calls_tools: bool) -> StopReason {
    match raw {
        Some("max_tokens" | "model_context_window_exceeded") => StopReason::Length,
        Some("refusal") => StopReason::ContentFilter,
        Some("pause_turn") => StopReason::Paused,
        Some("tool_use") => StopReason::ToolCalls,
        // Most lines were written before the reason came.
        None if calls_tools => StopReason::ToolCalls,
        Some(_) | None => StopReason::Stop,
    }
}

/// Converts the usage of an answer. Its `input_tokens` are those that were neither read from nor written to the cache.
fn usage(usage: &Value) -> Usage {
    let cached_tokens = count(usage, "cache_read_input_tokens");
    let cache_write_tokens = count(usage, "cache_creation_input_tokens");
    let creation = usage.get("cache_creation").unwrap_or(&Value::Null);
    Usage {
        input_tokens: count(usage, "input_tokens")
            .saturating_add(cached_tokens)
            .saturating_add(cache_write_tokens),
        cached_tokens,
        cache_write_tokens,
        cache_write_hour_tokens: count(creation, "ephemeral_1h_input_tokens").min(cache_write_tokens),
        output_tokens: count(usage, "output_tokens"),
        ..Usage::default()
    }
}

fn part(item: &Value) -> Option<Part> {
    match str_of(item, "type")? {
        "text" => Some(Part::Text(text(item, "text"))),
        "thinking" => Some(Part::Reasoning(text(item, "thinking"))),
        "tool_use" => Some(Part::ToolCall(ToolCall {
            id: text(item, "id"),
            name: text(item, "name"),
            arguments: item.get("input").map_or_else(|| "{}".into(), stringify),
        })),
        _ => None,
    }
}

/// Returns the file that a call of one of Claude Code's own tools touches.
fn touches(call: &ToolCall) -> Option<Touched> {
    let (touch, field) = match call.name.as_str() {
        "Read" => (Touch::Read, "file_path"),
        "Edit" | "Write" | "MultiEdit" => (Touch::Modified, "file_path"),
        "NotebookEdit" => (Touch::Modified, "notebook_path"),
        _ => return None,
    };
    let arguments: Value = serde_json::from_str(&call.arguments).ok()?;
    Some(Touched { path: filled(&arguments, field)?.to_owned(), touch })
}

fn block(item: &Value) -> Option<Block> {
    match str_of(item, "type")? {
        "text" => Some(Block::Text(text(item, "text"))),
        "image" => {
            let source = item.get("source").unwrap_or(&Value::Null);
            let image = Image::from_base64(&text(source, "media_type"), &text(source, "data"));
            Some(image.map_or_else(|_| Block::Text(NO_IMAGE.into()), Block::Image))
        }
        _ => None,
    }
}

/// Whether the program wrote the whole text.
fn is_noise(text: &str) -> bool {
    let text = text.trim();
    let is_interruption = text.starts_with("[Request interrupted by user") && text.ends_with(']');
    is_interruption && !text.contains('\n') || is_only_sections(text, &PROGRAM_TAGS)
}
