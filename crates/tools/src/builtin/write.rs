//! `write`: a whole file at once.
//!
//! Invariants: a reader sees the old file or the new one, never a part.

use greenroom_kernel::Touch;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::{FunctionTool, ToolContext, ToolOutput, ToolsError, Workspace};

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
    crate::tool("write", move |arguments: Write, context: ToolContext| {
        let workspace = workspace.clone();
        async move { workspace.blocking(&context.cancel, move |w, cancel| write(w, &arguments, cancel)).await }
    })
}

fn write(
    workspace: &Workspace,
    arguments: &Write,
    cancel: &CancellationToken,
) -> Result<ToolOutput, ToolsError> {
    let path = workspace.locate(&arguments.path)?;
    if cancel.is_cancelled() {
        return Err(ToolsError::Cancelled);
    }
    let replaced = workspace.replace(&path, arguments.content.as_bytes(), None)?;
    let (lines, bytes) = (arguments.content.lines().count(), arguments.content.len());
    let done = if replaced { "replaced" } else { "created" };
    let shown = path.shown();
    let text = format!("{done} `{shown}`: {lines} lines, {bytes} bytes");
    Ok(ToolOutput::text(text).touching(shown, Touch::Modified))
}
