//! Tests of the whole crate: random sessions, and access to the corpus.

pub(crate) mod corpus;
mod foreign;
mod random;

use std::sync::Arc;

use greenroom_kernel::entry::{Entry, EntryKind};
use greenroom_kernel::message::{Block, Message, Part, ToolResult};

/// Writes a path as one line, for comparisons: `user(hi) answer(text c1) result(c1: out) compaction(summary)`.
pub(crate) fn outline(path: &[Arc<Entry>]) -> String {
    let words: Vec<String> = path.iter().map(|entry| word(&entry.kind)).collect();
    words.join(" ")
}

/// Returns the result that an entry is.
pub(crate) fn result_of(entry: &Entry) -> &ToolResult {
    match entry.kind.as_message().map(|message| &**message) {
        Some(Message::ToolResult(result)) => result,
        other => panic!("not a result: {other:?}"),
    }
}

/// Returns the texts, and the media types of the images.
pub(crate) fn told(content: &[Block]) -> Vec<&str> {
    content
        .iter()
        .map(|block| match block {
            Block::Text(text) => text.as_str(),
            Block::Image(image) => image.media_type.as_str(),
            Block::Native(_) | _ => panic!("{block:?}"),
        })
        .collect()
}

fn word(kind: &EntryKind) -> String {
    if let Some(compaction) = kind.as_compaction() {
        return format!("compaction({})", compaction.summary);
    }
    let Some(message) = kind.as_message() else { return format!("{kind:?}") };
    match &**message {
        Message::User(_) => format!("user({})", message.text()),
        Message::ToolResult(result) => format!("result({}: {})", result.call_id, message.text()),
        Message::Assistant(answer) => {
            let parts: Vec<&str> = answer
                .content
                .iter()
                .map(|part| match part {
                    Part::Text(text) | Part::Reasoning(text) => text,
                    Part::ToolCall(call) => call.id.as_str(),
                    Part::OpaqueReasoning { .. } | Part::OpaqueBlock { .. } | _ => panic!("{part:?}"),
                })
                .collect();
            format!("answer({})", parts.join(" "))
        }
    }
}
