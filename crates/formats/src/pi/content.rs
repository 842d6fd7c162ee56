//! pi's messages as the kernel's.
//!
//! Invariants: a role that is not in the list gives `None`; a block of a kind that is not known is left out; what
//! is missing is empty; the arguments of a call are the JSON text that JavaScript would write.

use std::collections::HashMap;
use std::sync::Arc;

use greenroom_kernel::entry::{Custom, EntryKind, Shell};
use greenroom_kernel::files::{Touch, Touched};
use greenroom_kernel::message::{
    AssistantMessage, Block, Image, Message, Part, StopReason, ToolCall, ToolResult, ToolStatus, Usage,
};
use greenroom_kernel::plan::call_file;
use greenroom_kernel::size::json::stringify;
use serde_json::Value;

use super::str_of;

/// The file that each call is about, by the call's id, where its tool is known to touch one.
pub(super) type Tools = HashMap<String, Option<(String, Touch)>>;

/// A message's entry; `None` if its role is not known.
pub(super) fn message(message: &Value, tools: &mut Tools) -> Option<EntryKind> {
    let of = |message: Message| EntryKind::Message { message: Arc::new(message), inbox: None };
    match str_of(message, "role")? {
        "user" => Some(of(Message::User(blocks(message)))),
        "assistant" => Some(of(Message::Assistant(assistant(message, tools)))),
        "toolResult" => Some(of(Message::ToolResult(tool_result(message, tools)))),
        "bashExecution" => Some(EntryKind::Shell(shell(message))),
        "custom" | "hookMessage" => Some(custom(message)),
        _ => None,
    }
}

/// A message that an extension put in.
pub(super) fn custom(value: &Value) -> EntryKind {
    EntryKind::Custom(Custom {
        kind: text(value, "customType"),
        content: blocks(value),
        display: flag(value, "display"),
    })
}

/// A count of tokens. JavaScript writes whole numbers in several ways.
pub(super) fn tokens(value: &Value) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float that is no count saturates, and there is nothing better to make of it"
    )]
    let whole = |float: f64| float as u64;
    value.as_u64().or_else(|| value.as_f64().map(whole)).unwrap_or(0)
}

fn assistant(message: &Value, tools: &mut Tools) -> AssistantMessage {
    let content: Vec<Part> = match message.get("content") {
        Some(Value::String(text)) => vec![Part::Text(text.clone())],
        Some(Value::Array(items)) => items.iter().filter_map(part).collect(),
        Some(_) | None => Vec::new(),
    };
    let calls = || content.iter().filter_map(Part::as_tool_call);
    tools.extend(calls().map(|call| (call.id.clone(), call_file(&call.name, &call.arguments))));
    AssistantMessage {
        provider: text(message, "provider"),
        model: text(message, "model"),
        usage: message.get("usage").filter(|usage| usage.is_object()).map(usage),
        stop: match str_of(message, "stopReason") {
            Some("length") => StopReason::Length,
            Some("toolUse") => StopReason::ToolCalls,
            Some("error") => StopReason::Error,
            Some("aborted") => StopReason::Aborted,
            Some(_) => StopReason::Stop,
            None if calls().next().is_some() => StopReason::ToolCalls,
            None => StopReason::Stop,
        },
        error: str_of(message, "errorMessage").map(str::to_owned),
        content,
    }
}

fn part(item: &Value) -> Option<Part> {
    match str_of(item, "type")? {
        "text" => Some(Part::Text(text(item, "text"))),
        "thinking" => Some(Part::Reasoning(text(item, "thinking"))),
        "toolCall" => Some(Part::ToolCall(ToolCall {
            id: text(item, "id"),
            name: text(item, "name"),
            arguments: item.get("arguments").map_or_else(|| "{}".into(), stringify),
        })),
        _ => None,
    }
}

/// pi counts the input without what was read from and written to the cache, and gives the total beside the parts.
/// The total is what counts for the context; where they differ, the input makes up for it.
fn usage(usage: &Value) -> Usage {
    let count = |field: &str| usage.get(field).map_or(0, tokens);
    let (cached, written) = (count("cacheRead"), count("cacheWrite"));
    let input = count("input").saturating_add(cached).saturating_add(written);
    let output = count("output");
    let total = match count("totalTokens") {
        0 => input.saturating_add(output),
        given => given,
    };
    let output = output.min(total);
    Usage {
        input_tokens: total - output,
        cached_tokens: cached,
        cache_write_tokens: written,
        output_tokens: output,
        reasoning_tokens: 0,
    }
}

fn tool_result(message: &Value, tools: &Tools) -> ToolResult {
    let call_id = text(message, "toolCallId");
    let status = if flag(message, "isError") { ToolStatus::Error } else { ToolStatus::Ok };
    let file = tools.get(&call_id).cloned().flatten().filter(|_| status == ToolStatus::Ok);
    ToolResult {
        call_id,
        tool_name: text(message, "toolName"),
        content: blocks(message),
        status,
        touched: file.map(|(path, touch)| Touched { path, touch }).into_iter().collect(),
    }
}

fn shell(message: &Value) -> Shell {
    Shell {
        command: text(message, "command"),
        output: text(message, "output"),
        exit_code: message.get("exitCode").and_then(Value::as_i64).and_then(|code| i32::try_from(code).ok()),
        cancelled: flag(message, "cancelled"),
        truncated: flag(message, "truncated"),
        excluded: flag(message, "excludeFromContext"),
    }
}

/// The `content` of a message: a text, or blocks of text and images.
fn blocks(message: &Value) -> Vec<Block> {
    match message.get("content") {
        Some(Value::String(text)) => vec![Block::Text(text.clone())],
        Some(Value::Array(items)) => items.iter().filter_map(block).collect(),
        Some(_) | None => Vec::new(),
    }
}

fn block(item: &Value) -> Option<Block> {
    match str_of(item, "type")? {
        "text" => Some(Block::Text(text(item, "text"))),
        "image" => Some(Block::Image(Image { media_type: text(item, "mimeType"), data: text(item, "data") })),
        _ => None,
    }
}

fn text(value: &Value, field: &str) -> String {
    str_of(value, field).unwrap_or_default().to_owned()
}

fn flag(value: &Value, field: &str) -> bool {
    value.get(field).and_then(Value::as_bool).unwrap_or(false)
}
