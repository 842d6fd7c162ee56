//! The tools that come with Greenroom: `read`, `write`, `edit`, `list` and `grep` over a workspace, and `bash`.
//!
//! Invariants: each tool declares the files it touched, with paths relative to the workspace; a cancelled
//! file tool has no effect; only [`files_and_shell`] includes `bash`.

pub mod bash;
mod edit;
mod encoding;
mod grep;
mod list;
mod read;
mod write;

use std::sync::Arc;

pub use crate::Workspace;
use crate::{FunctionTool, Registry};

/// Returns the file tools plus `bash`, which runs any command with the rights of this process.
///
/// Its commands share a folder for temporary files, and one for output that is too long for a result, which `read`
/// can reach; both are removed with the registry.
pub fn files_and_shell(workspace: Workspace, shell: bash::Options) -> Registry {
    let shared = Arc::new(bash::Shared::default());
    let mut registry = Registry::new();
    let outputs = Arc::clone(&shared);
    add(&mut registry, read::tool(workspace.clone(), Some(Box::new(move || outputs.output()))));
    add(&mut registry, list::tool(workspace.clone()));
    add(&mut registry, grep::tool(workspace.clone()));
    add(&mut registry, write::tool(workspace.clone()));
    add(&mut registry, edit::tool(workspace.clone()));
    add(&mut registry, bash::tool(workspace, shell, shared));
    registry
}

/// `read`, `list`, `grep`, `write` and `edit`, confined to the workspace.
pub fn files(workspace: Workspace) -> Registry {
    let mut registry = read_only(workspace.clone());
    add(&mut registry, write::tool(workspace.clone()));
    add(&mut registry, edit::tool(workspace));
    registry
}

/// `read`, `list` and `grep` only.
pub fn read_only(workspace: Workspace) -> Registry {
    let mut registry = Registry::new();
    add(&mut registry, read::tool(workspace.clone(), None));
    add(&mut registry, list::tool(workspace.clone()));
    add(&mut registry, grep::tool(workspace));
    registry
}

fn add(registry: &mut Registry, tool: FunctionTool) {
    registry.insert(tool).expect("the built-in tools are valid");
}

#[cfg(test)]
mod tests;
