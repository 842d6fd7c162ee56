//! The tools that come with Greenroom: `read`, `write`, `edit`, `list` and `grep` over a workspace, and `bash`.
//!
//! Invariants: each declares the files it touched, with paths relative to the workspace; a cancelled file tool
//! took no effect.

pub mod bash;
mod edit;
mod grep;
mod list;
mod read;
mod write;

use crate::{FunctionTool, Registry, Workspace};

/// Which of the built-in tools, and how.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// With `bash`, which runs any command with the rights of this process. Off by default.
    pub shell: bool,
    /// How commands are run.
    pub bash: bash::Options,
}

/// The file tools, and `bash` if `options` says so.
pub fn all(workspace: Workspace, options: Options) -> Registry {
    let mut registry = files(workspace.clone());
    if options.shell {
        add(&mut registry, bash::tool(workspace, options.bash));
    }
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
    add(&mut registry, read::tool(workspace.clone()));
    add(&mut registry, list::tool(workspace.clone()));
    add(&mut registry, grep::tool(workspace));
    registry
}

fn add(registry: &mut Registry, tool: FunctionTool) {
    registry.insert(tool).expect("the names of the built-in tools are valid");
}

#[cfg(test)]
mod tests;
