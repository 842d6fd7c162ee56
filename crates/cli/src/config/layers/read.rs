//! Reads the files of a configuration from the disk.
//!
//! Invariants: no file is read that is large or not regular, and none of a project's that another user owns
//! or could have written.

use std::path::{Path, PathBuf};

use anyhow::Result;
use greenroom_files::access::{self, Exposed, Need};
use greenroom_files::{self as files, FileError};
use greenroom_kernel::settings::COMPACT_PROMPT_BYTES_MAX;
use greenroom_tools::sandbox::is_placeholder;
use serde_norway::Value;

use super::Source;
use super::errors::not_readable;
use super::merge::setting;
use super::permitted::Author;
use crate::config::surroundings::Surroundings;
use crate::config::{Config, FILE_NAME};
use crate::error::usage;
/// The largest configuration, in bytes.
pub(super) const BYTES_MAX: u64 = 64 * 1024;

/// Returns the files of prompts that this text of the user's file names.
pub(crate) fn prompt_files(path: &Path, text: &str) -> Vec<PathBuf> {
    let value: Value = serde_norway::from_str(text).unwrap_or_default();
    let folder = path.parent().unwrap_or(Path::new(""));
    let keys = Config::default().prompts().map(|(key, _)| key);
    let named = keys.into_iter().filter_map(|key| prompt_file(setting(&value, key)?.as_str()?));
    named.map(|name| folder.join(name)).collect()
}

/// Returns the paths of the user's configuration, whether they exist or not: the file they named, their own
/// file, and its folder.
pub(crate) fn users_places(explicit: Option<&Path>, surroundings: &Surroundings) -> Vec<PathBuf> {
    let own = own_file(surroundings);
    let folder = own.as_deref().and_then(Path::parent).map(Path::to_owned);
    own.into_iter().chain(folder).chain(explicit.map(Path::to_owned)).collect()
}

/// Reads a file that the user named.
pub(super) fn user_source(path: &Path) -> Result<Source> {
    let read = || text(files::open(path, true)?.0);
    let text = read().map_err(|error| not_readable(path, &error))?;
    Ok(Source { path: path.to_owned(), text, author: Author::User })
}

/// Reads the user's own file, if there is one.
pub(super) fn own_source(path: &Path) -> Result<Option<Source>> {
    let (file, metadata) = match files::open(path, true) {
        Ok(opened) => opened,
        Err(error) if error.is_not_found() => return Ok(None),
        // A command of an agent runs somewhere, or was killed, and is kept from creating the file.
        Err(FileError::NotRegular) if is_placeholder(path) => return Ok(None),
        Err(error) => return Err(not_readable(path, &error)),
    };
    if access::check(&metadata, Need::Guarded).is_err() {
        let path = path.display();
        return Err(usage(format!(
            "{path} is not read: everybody may write it, and it sets where your keys are sent; check it, then run \
             `chmod o-w {path}`"
        )));
    }
    let text = text(file).map_err(|error| not_readable(path, &error))?;
    Ok(Some(Source { path: path.to_owned(), text, author: Author::User }))
}

/// Reads the file in the current folder, if there is a readable one. `own` is not a project's file, even if
/// the user is in its folder.
pub(super) fn project_source(
    own: Option<&Path>,
    surroundings: &Surroundings,
    warnings: &mut Vec<String>,
) -> Result<Option<Source>> {
    let path = surroundings.path(FILE_NAME);
    let path = path.as_path();
    let same = |own: &Path| Some(own.canonicalize().ok()? == path.canonicalize().ok()?);
    if own.and_then(same) == Some(true) {
        return Ok(None);
    }
    let (file, metadata) = match files::open(path, false) {
        Ok(opened) => opened,
        Err(error) if error.is_not_found() => return Ok(None),
        // A command of an agent runs here, and is kept from creating the file.
        Err(FileError::NotRegular) if is_placeholder(path) => return Ok(None),
        Err(error @ (FileError::NotRegular | FileError::Link)) => {
            warnings.push(format!("./{FILE_NAME} is not read: {error}"));
            return Ok(None);
        }
        Err(FileError::Io(error)) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            warnings.push(format!("./{FILE_NAME} is not read: {error}"));
            return Ok(None);
        }
        Err(error) => return Err(not_readable(path, &error)),
    };
    if let Err(exposed) = access::check(&metadata, Need::Own) {
        let reason = match exposed {
            Exposed::Owner { .. } => format!("{exposed}; if you trust it, pass --config {FILE_NAME}"),
            Exposed::Permissions => {
                format!("others may write it; check it, then run `chmod go-w {FILE_NAME}`")
            }
        };
        warnings.push(format!("./{FILE_NAME} is not read: {reason}"));
        return Ok(None);
    }
    let text = text(file).map_err(|error| not_readable(path, &error))?;
    Ok(Some(Source { path: path.to_owned(), text, author: Author::Project }))
}

pub(super) fn text(file: std::fs::File) -> Result<String, FileError> {
    text_within(file, BYTES_MAX)
}

pub(super) fn text_within(file: std::fs::File, bytes_max: u64) -> Result<String, FileError> {
    let bytes = files::read_all(file, bytes_max)?;
    String::from_utf8(bytes).map_err(|error| {
        let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = good.iter().filter(|byte| **byte == b'\n').count() + 1;
        let reason = format!("line {line} is not UTF-8 text");
        FileError::Io(std::io::Error::new(std::io::ErrorKind::InvalidData, reason))
    })
}

/// Returns the file that a prompt names, if it names one.
pub(crate) fn prompt_file(prompt: &str) -> Option<&str> {
    prompt.trim().strip_prefix("file:").map(str::trim)
}

/// Returns a prompt that was given as a flag in this folder: a text, or the content of a file.
pub(crate) fn given_prompt(given: &str, folder: &Path) -> Result<String, String> {
    let Some(name) = prompt_file(given) else { return Ok(given.to_owned()) };
    let path = folder.join("a flag");
    read_prompt(&Source { path, text: String::new(), author: Author::User }, name)
}

/// Reads a prompt's file that a configuration names, relative to that configuration. A project's file may
/// name only files within the project that nobody else could have written.
pub(super) fn read_prompt(source: &Source, name: &str) -> Result<String, String> {
    let folder = source.path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    if name.is_empty() {
        return Err("the name of a file must follow `file:`".to_owned());
    }
    let shown = |error: std::io::Error| format!("cannot read {}: {error}", folder.join(name).display());
    let path = folder.join(name).canonicalize().map_err(shown)?;
    let opened = match source.author {
        Author::User => files::open(&path, true),
        Author::Project => {
            if !path.starts_with(folder.canonicalize().map_err(shown)?) {
                return Err(
                    "it is outside the project, and a project's file may not name such files".to_owned()
                );
            }
            files::open(&path, false)
        }
    };
    let read = || -> Result<String, FileError> {
        let (file, metadata) = opened?;
        let need = match source.author {
            Author::User => Need::Guarded,
            Author::Project => Need::Own,
        };
        if access::check(&metadata, need).is_err() {
            let reason = "others may write it; check it, and revoke that permission (chmod go-w)";
            return Err(FileError::Io(std::io::Error::new(std::io::ErrorKind::PermissionDenied, reason)));
        }
        text_within(file, COMPACT_PROMPT_BYTES_MAX as u64)
    };
    read().map_err(|error| format!("cannot read {}: {error}", path.display()))
}

/// Returns the user's own file. A variable with a relative path is ignored: it would depend on the current
/// folder.
pub(crate) fn own_file(surroundings: &Surroundings) -> Option<PathBuf> {
    let variable = |name| surroundings.variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = variable("XDG_CONFIG_HOME");
    Some(base.or_else(|| Some(variable("HOME")?.join(".config")))?.join("greenroom").join(FILE_NAME))
}

/// Returns the user's own file as it is shown in advice.
pub(crate) fn own_file_shown() -> String {
    own_file(&Surroundings::here()).map_or_else(
        || format!("greenroom/{FILE_NAME} in your configuration directory"),
        |path| path.display().to_string(),
    )
}
