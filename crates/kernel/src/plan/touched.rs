//! The files that a path touches.
//!
//! Invariants: a failed call has read nothing, and has changed what it declares as changed.

use std::sync::Arc;

use super::FileRule;
use crate::entry::{Entry, EntryKind};
use crate::files::{FileOps, Touch};
use crate::message::{Message, Part, ToolStatus};
use crate::path::ActivePath;

/// Returns the files touched according to these entries.
pub fn touched_files(entries: &[Arc<Entry>]) -> FileOps {
    let mut files = FileOps::default();
    add_files(entries, FileRule::Declared, &mut files);
    files
}

/// Returns the files of the last active compaction and of the replaced entries.
pub(super) fn file_operations(active: &ActivePath<'_>, replaced: &[Arc<Entry>], rule: FileRule) -> FileOps {
    let mut files = match active.compaction() {
        Some(compaction) if !(compaction.from_hook && rule == FileRule::EveryCall) => {
            compaction.files.clone()
        }
        Some(_) | None => FileOps::default(),
    };
    add_files(replaced, rule, &mut files);
    files
}

fn add_files(entries: &[Arc<Entry>], rule: FileRule, files: &mut FileOps) {
    for entry in entries {
        if let EntryKind::Message { message, .. } = &entry.kind {
            message_files(message, rule, files);
        } else if let (EntryKind::BranchSummary { files: branch, .. }, FileRule::Declared) =
            (&entry.kind, rule)
        {
            files.merge(branch);
        }
    }
}

fn message_files(message: &Message, rule: FileRule, files: &mut FileOps) {
    match (message, rule) {
        (Message::ToolResult(result), FileRule::Declared) => {
            for touched in &result.touched {
                // A changed file is changed, even if the call failed later.
                if result.status == ToolStatus::Ok || touched.touch == Touch::Modified {
                    files.record(touched.path.clone(), touched.touch);
                }
            }
        }
        (Message::Assistant(assistant), FileRule::EveryCall) => {
            for part in &assistant.content {
                let Part::ToolCall(call) = part else { continue };
                if let Some((path, touch)) = call_file(&call.name, &call.arguments) {
                    files.record(path, touch);
                }
            }
        }
        (Message::User(_) | Message::Assistant(_), FileRule::Declared)
        | (Message::User(_) | Message::ToolResult(_), FileRule::EveryCall) => {}
    }
}

/// Returns the file that a call of a tool with a well-known name touches.
pub fn call_file(tool: &str, arguments: &str) -> Option<(String, Touch)> {
    let touch = match tool {
        "read" => Touch::Read,
        "write" | "edit" => Touch::Modified,
        _ => return None,
    };
    let arguments: serde_json::Value = serde_json::from_str(arguments).ok()?;
    let path = arguments.get("path")?.as_str().filter(|path| !path.is_empty())?;
    Some((path.to_owned(), touch))
}
