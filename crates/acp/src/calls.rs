//! Tool calls as an editor shows them.
//!
//! Invariants: a change of a file is a diff, from which the editor can open the file; a text of a tool stands in a code
//! block that it cannot end.

use std::path::{Path, PathBuf};

use agent_client_protocol::v1::schema::{
    Diff, ToolCall, ToolCallLocation, ToolCallStatus, ToolCallUpdate, ToolCallUpdateFields, ToolKind,
};
use greenroom_kernel::ToolStatus;
use greenroom_terminal::format;
use serde_json::Value;

#[cfg(test)]
mod tests;

/// The maximum length of a title, in columns.
const TITLE_MAX: usize = 200;

/// A larger file is not read for a diff, in bytes.
const FILE_BYTES_MAX: u64 = 256 * 1024;

/// Returns a call before its result. `is_past`: it ran long ago, so files are not as they were before it.
pub(crate) fn call(id: &str, name: &str, arguments: &str, folder: &Path, is_past: bool) -> ToolCall {
    let value: Value = serde_json::from_str(arguments).unwrap_or_default();
    let (path, line) = place(name, &value, folder);
    let location = path.map(|path| ToolCallLocation::new(path).line(line));
    ToolCall::new(id.to_owned(), title(name, arguments))
        .name(name.to_owned())
        .kind(kind(name))
        .status(ToolCallStatus::Pending)
        .content(change(name, &value, folder, is_past).into_iter().map(Into::into).collect())
        .locations(location.into_iter().collect())
        .raw_input(value)
}

/// Returns the title of a call.
pub(crate) fn title(name: &str, arguments: &str) -> String {
    format::call(name, arguments, TITLE_MAX)
}

/// Returns the result of a call.
pub(crate) fn result(id: &str, name: &str, status: ToolStatus, text: &str) -> ToolCallUpdate {
    let mut fields = ToolCallUpdateFields::new().status(ended(status)).raw_output(Value::from(text));
    // Of a change, the diff stays.
    if !(is_change(name) && status == ToolStatus::Ok) {
        fields = fields.content(vec![block(text).into()]);
    }
    ToolCallUpdate::new(id.to_owned(), fields)
}

/// Returns the update of a call that reports these lines.
pub(crate) fn progress(id: &str, lines: &str) -> ToolCallUpdate {
    ToolCallUpdate::new(id.to_owned(), ToolCallUpdateFields::new().content(vec![block(lines).into()]))
}

/// Returns the update of a call that has this status from now on.
pub(crate) fn status(id: &str, status: ToolCallStatus) -> ToolCallUpdate {
    ToolCallUpdate::new(id.to_owned(), ToolCallUpdateFields::new().status(status))
}

fn ended(status: ToolStatus) -> ToolCallStatus {
    match status {
        ToolStatus::Ok => ToolCallStatus::Completed,
        ToolStatus::Error | ToolStatus::Interrupted => ToolCallStatus::Failed,
    }
}

/// Puts a text into a code block.
pub(crate) fn block(text: &str) -> String {
    let text = without_styles(text);
    let longest = text.split(|c| c != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest.max(2) + 1);
    format!("{fence}\n{}\n{fence}", text.trim_end_matches('\n'))
}

/// Returns a text without the sequences by which programs colour it, which an editor would show.
fn without_styles(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        out.push_str(before);
        let end = after.find(|c: char| ('@'..='~').contains(&c)).map_or(after.len(), |at| at + 1);
        rest = &after[end..];
    }
    out + rest
}

pub(crate) fn is_change(name: &str) -> bool {
    matches!(name, "edit" | "write")
}

fn kind(name: &str) -> ToolKind {
    match name {
        "read" | "list" => ToolKind::Read,
        "grep" | "recall" => ToolKind::Search,
        "edit" | "write" => ToolKind::Edit,
        "bash" => ToolKind::Execute,
        "skill" => ToolKind::Think,
        _ => ToolKind::Other,
    }
}

/// Returns the file or folder of a call, and the line at which it begins.
fn place(name: &str, arguments: &Value, folder: &Path) -> (Option<PathBuf>, Option<u32>) {
    if !matches!(name, "read" | "list" | "grep" | "edit" | "write") {
        return (None, None);
    }
    let path = arguments.get("path").and_then(Value::as_str);
    // Without `.` in it.
    let path = path.map(|path| folder.join(path).components().collect());
    let line = arguments.get("offset").and_then(Value::as_u64).and_then(|line| u32::try_from(line).ok());
    (path, line.filter(|_| name == "read"))
}

/// Returns the change that a call makes.
pub(crate) fn change(name: &str, arguments: &Value, folder: &Path, is_past: bool) -> Option<Diff> {
    let text = |key: &str| arguments.get(key).and_then(Value::as_str).map(str::to_owned);
    let path = folder.join(text("path")?);
    match name {
        "write" => {
            let before = if is_past { None } else { content(&path) };
            Some(Diff::new(path, text("content")?).old_text(before))
        }
        "edit" => Some(Diff::new(path, text("new")?).old_text(text("old")?)),
        _ => None,
    }
}

/// Returns the content of a file, if it is a text that can be shown.
fn content(path: &Path) -> Option<String> {
    let known = std::fs::metadata(path).ok()?;
    let is_shown = known.is_file() && known.len() <= FILE_BYTES_MAX;
    is_shown.then(|| std::fs::read_to_string(path).ok()).flatten()
}
