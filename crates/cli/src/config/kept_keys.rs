//! The keys that `greenroom login` keeps, in a file that only the user can read.
//!
//! A stored key is used as if its variable were set; a variable that is set takes precedence.
//!
//! Invariants: the file has mode 600 from its first byte; a file that others can read or write is not used; a key
//! leaves this module only by its variable's name; two processes that keep keys lose none.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use greenroom_files::access::{self, Need};
use greenroom_files::{self as files, private};
use parking_lot::Mutex;

use super::folder;
use super::layers::users_places;
use super::redact::is_secret_name;
use super::surroundings::Surroundings;
use super::{FILE_NAME, check_variable};
use crate::error::{secrets, usage};

#[cfg(test)]
mod tests;

/// The file in the user's configuration folder.
const FILE: &str = "keys.yaml";
/// The maximum number of bytes that are read of it.
const BYTES_MAX: u64 = 1 << 16;

/// The keys of this process's user, once they were read.
static KNOWN: Mutex<Option<BTreeMap<String, String>>> = Mutex::new(None);

/// Returns the path of the file; `None` without a configuration folder.
pub(crate) fn path() -> Option<PathBuf> {
    let places = users_places(None, &Surroundings::here());
    places.into_iter().find(|place| !place.ends_with(FILE_NAME)).map(|folder| folder.join(FILE))
}

/// Returns the kept key of a variable.
pub(crate) fn key(variable: &str) -> Option<String> {
    // Most variables are not keys, and the file is read only for those that are.
    if !is_secret_name(variable) {
        return None;
    }
    all().remove(variable)
}

/// Returns all kept keys, by their variables.
pub(crate) fn all() -> BTreeMap<String, String> {
    let known = KNOWN.lock().clone();
    known.unwrap_or_else(|| {
        // A command of a model gets no key of the user, and so must not find it here.
        let path = || path().filter(|_| !greenroom_tools::origin::is_of_command());
        let read = path().map(|path| read(&path).unwrap_or_default()).unwrap_or_default();
        KNOWN.lock().insert(read).clone()
    })
}

/// Reads the file again when a key is next asked for: another process may have kept one.
pub(crate) fn read_again() {
    *KNOWN.lock() = None;
}

/// Returns why the file is not used, if it exists.
pub(crate) fn problem() -> Option<String> {
    let path = path()?;
    let reason = read(&path).err()?;
    Some(format!("{}: {reason:#}", path.display()))
}

/// Keeps a key for a variable, or forgets it. Returns the file.
///
/// # Errors
/// There is no configuration folder; or the file cannot be read or written, or is not the user's alone.
pub(crate) fn keep(variable: &str, key: Option<&str>) -> Result<PathBuf> {
    let path = path().ok_or_else(|| usage("there is no configuration directory for the key: set HOME"))?;
    check_variable(variable).map_err(usage)?;
    if let Some(key) = key {
        secrets::note(variable, key);
    }
    *KNOWN.lock() = Some(change(&path, variable, key)?);
    Ok(path)
}

/// Changes a key in the file, and returns all keys.
fn change(path: &std::path::Path, variable: &str, key: Option<&str>) -> Result<BTreeMap<String, String>> {
    let _lock = folder::make_room(path)?;
    let mut keys = read(path)?;
    match key {
        Some(key) => drop(keys.insert(variable.to_owned(), key.to_owned())),
        None => drop(keys.remove(variable)),
    }
    let text = format!("# Keys stored by `greenroom login`.\n{}", serde_norway::to_string(&keys)?);
    private::replace(path, text.as_bytes()).with_context(|| format!("write {}", path.display()))?;
    Ok(keys)
}

/// Reads the file; one that does not exist has no keys.
fn read(path: &std::path::Path) -> Result<BTreeMap<String, String>> {
    let not_read = |error| usage(format!("read {}: {error}", path.display()));
    let (file, metadata) = match files::open(path, true) {
        Err(error) if error.is_not_found() => return Ok(BTreeMap::new()),
        opened => opened.map_err(not_read)?,
    };
    if access::check(&metadata, Need::Private).is_err() {
        return Err(usage(format!(
            "{} has keys, and others can read or change it; `chmod 600` it, and replace the keys if somebody may have read \
             them",
            path.display()
        )));
    }
    let bytes = files::read_all(file, BYTES_MAX).map_err(not_read)?;
    let text = String::from_utf8_lossy(&bytes);
    // The parser's message could show a part of a key.
    let keys: Option<BTreeMap<String, String>> = serde_norway::from_str(&text).ok();
    let keys = keys.ok_or_else(|| usage(format!("{} is not a list of VARIABLE: KEY", path.display())))?;
    secrets::redactor().add(keys.clone());
    Ok(keys)
}
