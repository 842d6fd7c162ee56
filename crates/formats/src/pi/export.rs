//! Writes our entries as one of pi's session files, version 3.
//!
//! A compaction's line has additional fields for its savings. An undone compaction and a pin, for which pi
//! has no line, are `custom` lines.
//!
//! Invariants: every entry of the tree is one line, and its parent's line is before it; entries beside the path (inbox
//! items, starts and ends) are left out; reading the file again gives the same messages, the same compactions and the
//! same file lists.

use greenroom_kernel::entry::{Compaction, Custom, Entry, EntryId, EntryKind, PrunedResult, Shell};
use greenroom_kernel::files::FileOps;
use greenroom_kernel::message::{
    AssistantMessage, Block, Message, Part, StopReason, ToolResult, ToolStatus, Usage,
};
use serde_json::{Map, Value, json};

use crate::timestamp;

/// The `customType` of an undone compaction.
pub(super) const UNDONE: &str = "greenroom.compaction_undone";

/// Returns a session as the text of one of pi's session files.
///
/// `created_at_ms` is in Unix milliseconds. `cwd` is the working directory that the header names. `entries` are in the
/// order of their ids.
pub fn export<'a>(
    session_id: &str,
    created_at_ms: u64,
    cwd: &str,
    entries: impl IntoIterator<Item = &'a Entry>,
) -> String {
    let header = json!({
        "type": "session", "version": 3, "id": session_id, "timestamp": timestamp::rfc3339(created_at_ms), "cwd": cwd,
    });
    let mut out = header.to_string();
    out.push('\n');
    for entry in entries.into_iter().filter(|entry| entry.kind.is_on_path()) {
        out.push_str(&line(entry).to_string());
        out.push('\n');
    }
    out
}

/// Returns the id of an entry in the file. pi's ids are eight hexadecimal digits.
fn name(id: EntryId) -> String {
    format!("{:08x}", id.0)
}

fn line(entry: &Entry) -> Value {
    let mut line = Map::new();
    let (kind, fields) = fields(entry);
    line.insert("type".into(), kind.into());
    line.insert("id".into(), name(entry.id).into());
    line.insert("parentId".into(), entry.parent.map(name).into());
    line.insert("timestamp".into(), timestamp::rfc3339(entry.at_ms).into());
    if let Value::Object(fields) = fields {
        line.extend(fields);
    }
    Value::Object(line)
}

/// Returns the line's type and its own fields.
fn fields(entry: &Entry) -> (&'static str, Value) {
    let at_ms = entry.at_ms;
    #[expect(clippy::wildcard_enum_match_arm, reason = "entries beside the path were filtered out")]
    match &entry.kind {
        EntryKind::Message { message, .. } => {
            ("message", json!({ "message": message_value(message, at_ms) }))
        }
        EntryKind::Shell(shell) => ("message", json!({ "message": shell_value(shell, at_ms) })),
        EntryKind::Custom(Custom { kind, content, display }) => {
            ("custom_message", json!({ "customType": kind, "content": blocks(content), "display": display }))
        }
        EntryKind::BranchSummary { from, summary, files } => (
            "branch_summary",
            json!({ "fromId": name(*from), "summary": summary, "details": details(files) }),
        ),
        EntryKind::Compaction(compaction) => ("compaction", compaction_value(entry.id, compaction)),
        EntryKind::ModelChange { provider, model } => {
            ("model_change", json!({ "provider": provider, "modelId": model }))
        }
        EntryKind::Label { target, label } => ("label", json!({ "targetId": name(*target), "label": label })),
        EntryKind::Note { kind, data } => {
            custom(kind, &serde_json::from_str(data).unwrap_or_else(|_| data.clone().into()))
        }
        EntryKind::CompactionUndone { compaction } => {
            custom(UNDONE, &json!({ "compaction": name(*compaction) }))
        }
        EntryKind::Prune(prune) => {
            let result = |pruned: &PrunedResult| json!({ "entry": name(pruned.entry), "text": pruned.text });
            custom("greenroom.prune", &json!(prune.results.iter().map(result).collect::<Vec<_>>()))
        }
        EntryKind::Pin { entry, pinned } => {
            custom("greenroom.pin", &json!({ "entry": name(*entry), "pinned": pinned }))
        }
        EntryKind::HandOff(hand_off) => custom(
            "greenroom.hand_off",
            &json!({ "from": hand_off.from, "to": hand_off.to, "sees": hand_off.sees }),
        ),
        _ => custom("greenroom.record", &Value::Null),
    }
}

fn custom(kind: &str, data: &Value) -> (&'static str, Value) {
    ("custom", json!({ "customType": kind, "data": data }))
}

fn compaction_value(id: EntryId, compaction: &Compaction) -> Value {
    json!({
        "summary": compaction.summary,
        // A compaction that keeps no earlier entry names itself.
        "firstKeptEntryId": name(compaction.first_kept.unwrap_or(id)),
        "tokensBefore": compaction.tokens_before,
        "details": details(&compaction.files),
        "fromHook": compaction.from_hook,
        "tokensAfter": compaction.tokens_after,
        "messagesRemoved": compaction.messages_removed,
        "trigger": compaction.trigger,
        "isSplitTurn": compaction.is_split_turn,
        "durationMs": compaction.duration_ms,
        "model": compaction.model,
        "usage": usage(&compaction.usage),
    })
}

fn details(files: &FileOps) -> Value {
    json!({ "readFiles": files.read().collect::<Vec<_>>(), "modifiedFiles": files.modified().collect::<Vec<_>>() })
}

fn message_value(message: &Message, at_ms: u64) -> Value {
    match message {
        Message::User(content) => json!({ "role": "user", "content": blocks(content), "timestamp": at_ms }),
        Message::Assistant(answer) => assistant(answer, at_ms),
        Message::ToolResult(ToolResult { call_id, tool_name, content, status, .. }) => json!({
            "role": "toolResult", "toolCallId": call_id, "toolName": tool_name, "content": blocks(content),
            "isError": *status != ToolStatus::Ok, "timestamp": at_ms,
        }),
    }
}

fn assistant(answer: &AssistantMessage, at_ms: u64) -> Value {
    let content: Vec<Value> = answer.content.iter().filter_map(part).collect();
    let mut value = json!({
        "role": "assistant", "content": content, "provider": answer.provider, "model": answer.model,
        "stopReason": match answer.stop {
            StopReason::Length => "length",
            StopReason::ToolCalls => "toolUse",
            StopReason::Aborted => "aborted",
            StopReason::Error => "error",
            StopReason::Stop | StopReason::ContentFilter | StopReason::Unknown | _ => "stop",
        },
        "timestamp": at_ms,
    });
    if let Some(reported) = &answer.usage {
        value["usage"] = usage(reported);
    }
    if let Some(error) = &answer.error {
        value["errorMessage"] = error.as_str().into();
    }
    value
}

fn part(part: &Part) -> Option<Value> {
    match part {
        Part::Text(text) => Some(json!({ "type": "text", "text": text })),
        Part::Reasoning(text) => Some(json!({ "type": "thinking", "thinking": text })),
        Part::ToolCall(call) => {
            let arguments: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
            Some(json!({ "type": "toolCall", "id": call.id, "name": call.name, "arguments": arguments }))
        }
        // Another system cannot send opaque reasoning back.
        Part::OpaqueReasoning { .. } | _ => None,
    }
}

/// pi's `input` does not include the tokens that were read from or written to the cache.
fn usage(usage: &Usage) -> Value {
    let cached = usage.cached_tokens.saturating_add(usage.cache_write_tokens);
    json!({
        "input": usage.input_tokens.saturating_sub(cached), "output": usage.output_tokens,
        "cacheRead": usage.cached_tokens, "cacheWrite": usage.cache_write_tokens,
        "totalTokens": usage.total_tokens(),
    })
}

fn shell_value(shell: &Shell, at_ms: u64) -> Value {
    json!({
        "role": "bashExecution", "command": shell.command, "output": shell.output, "exitCode": shell.exit_code,
        "cancelled": shell.cancelled, "truncated": shell.truncated, "excludeFromContext": shell.excluded,
        "timestamp": at_ms,
    })
}

fn blocks(blocks: &[Block]) -> Vec<Value> {
    let value = |block: &Block| match block {
        Block::Text(text) => json!({ "type": "text", "text": text }),
        Block::Image(image) => json!({ "type": "image", "data": image.data, "mimeType": image.media_type }),
        Block::Native(_) | _ => json!({ "type": "text", "text": "" }),
    };
    blocks.iter().map(value).collect()
}
