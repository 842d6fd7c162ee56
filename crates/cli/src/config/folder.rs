//! The folder of a configuration file that is about to be written.
//!
//! Invariants: the folder is private if it is made here; a placeholder that the command of an agent left is no obstacle,
//! and what such a command must not create now remains impossible for it.

use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, Result};
use greenroom_files::private;
use greenroom_tools::sandbox;

use crate::error::usage;

/// Makes it possible to write a file: makes its folder, and takes a placeholder out of its way.
///
/// # Errors
/// A command of an agent runs that must not create the file, or the folder cannot be made.
pub(crate) fn make_room(path: &Path) -> Result<()> {
    let failed = || format!("write {}", path.display());
    sandbox::make_room(path).map_err(|error| match error.kind() == ErrorKind::ResourceBusy {
        true => usage(format!(
            "{} cannot be written now: a command of an agent is running, which must not create it; try again when the \
             command has ended",
            path.display()
        )),
        false => anyhow::Error::from(error).context(failed()),
    })?;
    let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) else { return Ok(()) };
    private::create_folders(folder).with_context(failed)
}
