//! The user's own editor, started for the user and not for a model.
//!
//! Invariants: the file is one argument, whatever is in its name; the editor has the terminal and the user's
//! environment, because the user asked for it.

use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};

/// Opens a file in an editor, and waits for its end. `editor` are words of a shell, such as `code --wait`.
///
/// # Errors
/// No shell can be started.
pub fn open(editor: &str, path: &Path) -> io::Result<ExitStatus> {
    Command::new("sh").args(["-c", &format!("{editor} \"$1\""), "sh"]).arg(path).status()
}
