//! Converts pi's messages into the kernel's.
//!
//! Invariants: a message of an unknown role yields `None`; a block of an unknown type is left out; a missing
//! field is empty; the arguments of a call are the JSON text that JavaScript would write.

use std::collections::HashMap;

use greenroom_kernel::entry::{Custom, EntryKind, Shell};
use greenroom_kernel::files::{Touch, Touched};
use greenroom_kernel::message::{
    AssistantMessage, Block, Image, Message, Part, StopReason, ToolCall, ToolResult, ToolStatus, Usage,
};
use greenroom_kernel::plan::call_file;
use greenroom_kernel::size::json::stringify;
use serde_json::Value;

use crate::fields::{count, flag, str_of, text};

/// The file that each call touches, by the call's id; `None` if its tool is not known to touch one.
pub(super) type Tools = HashMap<String, Option<(String, Touch)>>;

/// Returns the entry of a message; `None` if the role is unknown.
pub(super) fn message(message: &Value, tools: &mut Tools) -> Option<EntryKind> {
    let of = |message: Message| EntryKind::message(message);
    match str_of(message, "role")? {
        "user" => Some(of(Message::User(blocks(message)))),
        "assistant" => Some(of(Message::Assistant(assistant(message, tools)))),
        "toolResult" => Some(of(Message::ToolResult(tool_result(message, tools)))),
        "bashExecution" => Some(EntryKind::Shell(shell(message))),
        "custom" | "hookMessage" => Some(custom(message)),
        _ => None,
    }
}

/// Returns the entry of a message that an extension added.
pub(super) fn custom(value: &Value) -> EntryKind {
    EntryKind::Custom(Custom {
        kind: text(value, "customType"),
        content: blocks(value),
        display: flag(value, "display"),
    })
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
        stop_raw: None,
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

/// Converts the usage of an answer. pi's `input` does not include the tokens that were read from or written
/// to the cache, and pi also gives the total. The total determines the context's size: if it differs from the
/// sum of the parts, the input absorbs the difference.
fn usage(usage: &Value) -> Usage {
    let count = |field: &str| count(usage, field);
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
        ..Usage::default()
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

/// Returns the `content` of a message, which is a text or a list of texts and images.
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
