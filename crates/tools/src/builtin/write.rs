//! `write`: writes a whole file at once.
//!
//! Invariants: a reader sees the old file or the new one, never a part. The encoding, the byte order mark and
//! the line ends of the old file are kept, unless the new content has its own. The diff is reported to people only,
//! as progress: a line `diff N`, followed by N lines that each begin with `+`, `-` or a blank.

use std::borrow::Cow;
use std::io::Read as _;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use greenroom_kernel::Touch;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use similar::{ChangeTag, TextDiff};
use tokio_util::sync::CancellationToken;

use super::encoding::{self, BOM, Encoding, has_windows_line_ends};
use crate::workspace::{Replacement, WorkspacePath};
use crate::{FunctionTool, Progress, ToolContext, ToolOutput, ToolsError, Workspace};

/// The form of larger files is not examined; in bytes.
const TEXT_BYTES_MAX: u64 = 10 * 1024 * 1024;
/// Larger files are not compared; in bytes.
pub(super) const COMPARED_BYTES_MAX: u64 = 256 * 1024;
/// The maximum number of diff lines that are reported.
const TOLD_LINES_MAX: usize = 400;
/// How many context lines are reported around a change.
const AROUND: usize = 2;
/// The time limit for the comparison; after it, the rest counts as changed.
const COMPARING: Duration = Duration::from_millis(200);

/// Writes a file in the workspace, replacing what was there. Missing folders are made. To change a part of a file,
/// use `edit`.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Write {
    /// The file, relative to the workspace.
    path: String,
    /// All that the file is to contain.
    content: String,
}

pub(super) fn tool(workspace: Workspace) -> FunctionTool {
    let shown = workspace.clone();
    crate::tool("write", move |arguments: Write, context: ToolContext| {
        let workspace = workspace.clone();
        async move {
            let cancel = context.cancel.clone();
            workspace.blocking(&cancel, move |w, cancel| write(w, &arguments, cancel, &context)).await
        }
    })
    .shows_own_files()
    .preview(move |arguments| preview(&shown, arguments, would_change))
}

/// Returns the changes that a call would make, by reading the file off the asynchronous threads.
pub(super) fn preview<A: DeserializeOwned + Send + 'static>(
    workspace: &Workspace,
    arguments: &Value,
    changes: fn(&Workspace, &A) -> Option<String>,
) -> BoxFuture<'static, Option<String>> {
    let (workspace, arguments) = (workspace.clone(), A::deserialize(arguments));
    async move {
        let arguments = arguments.ok()?;
        tokio::task::spawn_blocking(move || changes(&workspace, &arguments)).await.ok()?
    }
    .boxed()
}

fn would_change(workspace: &Workspace, arguments: &Write) -> Option<String> {
    let path = workspace.locate(&arguments.path).ok()?;
    let before = text_of(workspace, &path);
    // The person who approves the call must not take the file for a new one.
    let size = || workspace.open_file(&path).ok()?.0.metadata().ok();
    let replaced = if before.is_none() { size() } else { None };
    let replaced =
        replaced.map(|file| format!("replaces a file of {} bytes, which is not compared:", file.len()));
    let changes = changes(&before.unwrap_or_default(), &arguments.content);
    Some(replaced.into_iter().chain(changes).collect::<Vec<_>>().join("\n"))
}

fn write(
    workspace: &Workspace,
    arguments: &Write,
    cancel: &CancellationToken,
    context: &ToolContext,
) -> Result<ToolOutput, ToolsError> {
    let path = workspace.locate(&arguments.path)?;
    if cancel.is_cancelled() {
        return Err(ToolsError::Cancelled);
    }
    let before = present(workspace, &path);
    let (content, remarks) = match &before {
        Some(before) => before.form(&arguments.content),
        None => (arguments.content.clone().into_bytes(), Vec::new()),
    };
    let replaced = workspace.replace(&path, &Replacement::new(&content), &context.files)?;
    workspace.saw(&context.session, &path, replaced.version);
    if let Some(before) = before.filter(|before| replaced.existed && before.bytes <= COMPARED_BYTES_MAX) {
        tell_changes(&before.text, &arguments.content, &context.progress);
    }
    let (lines, bytes) = (arguments.content.lines().count(), content.len());
    let done = if replaced.existed { "replaced" } else { "created" };
    let shown = path.shown();
    let mut text = format!("{done} `{shown}`: {lines} lines, {bytes} bytes");
    for remark in remarks.into_iter().chain(other_names(replaced.other_names)) {
        text.push_str("; ");
        text.push_str(&remark);
    }
    Ok(workspace.touched(ToolOutput::text(text), &path, Touch::Modified))
}

/// Says that a file had other names, which keep the old content.
pub(super) fn other_names(count: u64) -> Option<String> {
    let (names, keep) = if count == 1 { ("name", "keeps") } else { ("names", "keep") };
    let text = format!("its {count} other {names} (hard links) {keep} the old content");
    (count > 0).then_some(text)
}

/// The text of the file that is replaced.
struct Present {
    encoding: Encoding,
    text: String,
    bytes: u64,
}

impl Present {
    /// Returns the new content in the form of the old one, and what is to be said about that.
    fn form(&self, content: &str) -> (Vec<u8>, Vec<String>) {
        let mut remarks = Vec::new();
        let mut content = Cow::Borrowed(content);
        if self.text.starts_with(BOM) && !content.starts_with(BOM) {
            content = Cow::Owned(format!("{BOM}{content}"));
            remarks.push("its byte order mark was kept".to_owned());
        }
        if has_windows_line_ends(&self.text) && content.contains('\n') && !content.contains("\r\n") {
            content = Cow::Owned(content.replace('\n', "\r\n"));
            remarks.push("its CRLF line ends were kept".to_owned());
        }
        match self.encoding.encode(&content) {
            Ok(bytes) => {
                if self.encoding != Encoding::Utf8 {
                    remarks.push(format!("its encoding, {}, was kept", self.encoding.as_str()));
                }
                (bytes, remarks)
            }
            Err(_) => {
                let old = self.encoding.as_str();
                remarks.push(format!("it is UTF-8 now: {old} does not have all of these characters"));
                (content.into_owned().into_bytes(), remarks)
            }
        }
    }
}

/// Returns the current content of the file, if it is text and not too large.
fn present(workspace: &Workspace, path: &WorkspacePath) -> Option<Present> {
    let (file, _) = workspace.open_file(path).ok()?;
    let mut content = Vec::new();
    file.take(TEXT_BYTES_MAX + 1).read_to_end(&mut content).ok()?;
    let bytes = content.len() as u64;
    let (encoding, text) = encoding::decode(content).filter(|_| bytes <= TEXT_BYTES_MAX)?;
    Some(Present { encoding, text, bytes })
}

/// Returns the text of the file, if it is small enough to be compared.
pub(super) fn text_of(workspace: &Workspace, path: &WorkspacePath) -> Option<String> {
    present(workspace, path).filter(|present| present.bytes <= COMPARED_BYTES_MAX).map(|present| present.text)
}

/// Reports the changed lines: how many lines follow (`diff 5`), and before each group of them the numbers of its first
/// line in the old and the new file (`@@ 12 12`).
pub(super) fn tell_changes(before: &str, after: &str, progress: &Progress) {
    let lines = compared(before, after, |old, new| Some(format!("@@ {old} {new}")));
    if lines.len() <= TOLD_LINES_MAX {
        progress.report(format!("diff {}", lines.len()));
        lines.into_iter().for_each(|line| progress.report(line));
    }
}

/// Returns the changed lines, with some around them.
pub(super) fn changes(before: &str, after: &str) -> Vec<String> {
    let mut is_first = true;
    compared(before, after, |_, _| (!std::mem::take(&mut is_first)).then(|| " ⋮".to_owned()))
}

/// Returns the changed lines. `heading` makes the line before a group of them from the numbers of its first line.
fn compared(
    before: &str,
    after: &str,
    mut heading: impl FnMut(usize, usize) -> Option<String>,
) -> Vec<String> {
    let diff = TextDiff::configure().timeout(COMPARING).diff_lines(before, after);
    let mut lines = Vec::new();
    for group in diff.grouped_ops(AROUND) {
        let first = group.first().map(|first| (first.old_range().start + 1, first.new_range().start + 1));
        lines.extend(first.and_then(|(old, new)| heading(old, new)));
        for change in group.iter().flat_map(|operation| diff.iter_changes(operation)) {
            let mark = match change.tag() {
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
                ChangeTag::Equal => ' ',
            };
            let line = change.value();
            // A carriage return alone is no line end of ours: a person is to see it.
            let line = line.strip_suffix("\r\n").or(line.strip_suffix('\n')).unwrap_or(line);
            lines.push(format!("{mark}{line}"));
        }
    }
    lines
}
