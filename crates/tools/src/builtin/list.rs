//! `list`: lists the contents of a folder.
//!
//! Invariants: names are sorted, each with its path relative to the workspace; files ignored by `.gitignore`
//! are omitted.

use std::ops::ControlFlow;

use rustix::fs::FileType;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::output::{BODY_BYTES_MAX, BODY_LINES_MAX};
use crate::{FunctionTool, ToolContext, ToolOutput, ToolsError, Workspace};

/// Lists the files and folders in a folder of the workspace, by name, with paths from the workspace; folders end in
/// `/`, symbolic links in `@`. What `.gitignore` names is left out.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct List {
    /// The folder, relative to the workspace. Default: the workspace itself.
    path: Option<String>,
    /// How many levels of folders to show. Default: 2.
    depth: Option<usize>,
}

pub(super) fn tool(workspace: Workspace) -> FunctionTool {
    crate::tool("list", move |arguments: List, context: ToolContext| {
        let workspace = workspace.clone();
        async move { workspace.blocking(&context.cancel, move |w, cancel| list(w, &arguments, cancel)).await }
    })
    .read_only()
    .shows_own_files()
}

fn list(
    workspace: &Workspace,
    arguments: &List,
    cancel: &CancellationToken,
) -> Result<ToolOutput, ToolsError> {
    let start = workspace.locate(arguments.path.as_deref().unwrap_or("."))?;
    let depth = arguments.depth.unwrap_or(2);
    if depth == 0 {
        return Err(ToolsError::Refused("`depth` counts from 1".to_owned()));
    }
    let (mut text, mut lines) = (String::new(), 0);
    workspace.walk(&start, depth, cancel, &mut |found| {
        let mark = match found.kind {
            FileType::Directory => "/",
            FileType::Symlink => "@",
            FileType::RegularFile => "",
            FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice
            | FileType::Unknown => "?",
        };
        if lines >= BODY_LINES_MAX || text.len() + found.path.as_str().len() >= BODY_BYTES_MAX {
            text.push_str("[... more left out; list a subfolder, or with a smaller depth ...]\n");
            return Ok(ControlFlow::Break(()));
        }
        lines += 1;
        text.push_str(&format!("{}{mark}\n", found.path.as_str()));
        Ok(ControlFlow::Continue(()))
    })?;
    if text.is_empty() {
        text = format!("`{}` is empty, or all in it is ignored", start.shown());
    }
    Ok(ToolOutput::text(text))
}
