//! Programs that are started for the user and not for a model: the user's own editor, and what reads the clipboard.
//!
//! Invariants: the file is one argument, whatever is in its name; the editor has the terminal and the user's
//! environment, because the user asked for it.

use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};

/// Opens a file in an editor, and waits for its end. `editor` are words of a shell, such as `code --wait`.
///
/// # Errors
/// No shell can be started.
pub fn open(editor: &str, path: &Path) -> io::Result<ExitStatus> {
    Command::new("sh").args(["-c", &format!("{editor} \"$1\""), "sh"]).arg(path).status()
}

/// Runs a program of the user's system without input, and returns what it printed. It ends when the future is dropped.
///
/// # Errors
/// It cannot be started.
pub async fn printed(program: &str, arguments: &[&str]) -> io::Result<Output> {
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    command.output().await
}
