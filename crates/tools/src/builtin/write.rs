//! `write`: writes a whole file at once.
//!
//! Invariants: a reader sees the old file or the new one, never a part. The diff is reported to people only,
//! as progress: a line `diff N`, followed by N lines that each begin with `+`, `-` or a blank.

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

use crate::workspace::WorkspacePath;
use crate::{FunctionTool, Progress, ToolContext, ToolOutput, ToolsError, Workspace};

/// Larger files are not compared; in bytes.
const COMPARED_BYTES_MAX: u64 = 256 * 1024;
/// The most diff lines that are reported.
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
        let (cancel, progress) = (context.cancel, context.progress);
        async move { workspace.blocking(&cancel, move |w, cancel| write(w, &arguments, cancel, &progress)).await }
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
    let before = text_of(workspace, &path).unwrap_or_default();
    Some(changes(&before, &arguments.content).join("\n"))
}

fn write(
    workspace: &Workspace,
    arguments: &Write,
    cancel: &CancellationToken,
    progress: &Progress,
) -> Result<ToolOutput, ToolsError> {
    let path = workspace.locate(&arguments.path)?;
    if cancel.is_cancelled() {
        return Err(ToolsError::Cancelled);
    }
    let before = text_of(workspace, &path);
    let replaced = workspace.replace(&path, arguments.content.as_bytes(), None)?;
    if let Some(before) = before.filter(|_| replaced) {
        tell_changes(&before, &arguments.content, progress);
    }
    let (lines, bytes) = (arguments.content.lines().count(), arguments.content.len());
    let done = if replaced { "replaced" } else { "created" };
    let shown = path.shown();
    let text = format!("{done} `{shown}`: {lines} lines, {bytes} bytes");
    Ok(workspace.touched(ToolOutput::text(text), &path, Touch::Modified))
}

/// Returns the current file content, if it is text and not too large.
pub(super) fn text_of(workspace: &Workspace, path: &WorkspacePath) -> Option<String> {
    let (file, _) = workspace.open_file(path).ok()?;
    let mut text = String::new();
    file.take(COMPARED_BYTES_MAX + 1).read_to_string(&mut text).ok()?;
    (text.len() as u64 <= COMPARED_BYTES_MAX).then_some(text)
}

fn tell_changes(before: &str, after: &str, progress: &Progress) {
    let lines = changes(before, after);
    if lines.len() <= TOLD_LINES_MAX {
        progress.report(format!("diff {}", lines.len()));
        lines.into_iter().for_each(|line| progress.report(line));
    }
}

/// Returns the changed lines, with some around them.
pub(super) fn changes(before: &str, after: &str) -> Vec<String> {
    let diff = TextDiff::configure().timeout(COMPARING).diff_lines(before, after);
    let mut lines = Vec::new();
    for group in diff.grouped_ops(AROUND) {
        if !lines.is_empty() {
            lines.push(" ⋮".to_owned());
        }
        for change in group.iter().flat_map(|operation| diff.iter_changes(operation)) {
            let mark = match change.tag() {
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
                ChangeTag::Equal => ' ',
            };
            lines.push(format!("{mark}{}", change.value().trim_end_matches(['\n', '\r'])));
        }
    }
    lines
}
