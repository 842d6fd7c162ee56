//! The identity of a store: a random id, by which a backup knows of which store it is. A path does not tell that:
//! another store may be there now, in another container too, and a store may be moved.
//!
//! Invariants: an id that a store has is never changed. It lies beside the segments, so that it is copied with them: a
//! restored store has the id of the one that was backed up.

use std::path::Path;

use parking_lot::Mutex;

use crate::error::StoreError;
use crate::files::{Files, OpenMode, read_all, replace};
use crate::journal::segments::random_number;

/// The file's name in the directory of the journal.
const FILE: &str = "id";
/// The number of hexadecimal digits.
const DIGITS: usize = 32;
/// Held while a store's first id is made. Only one process uses a store, but two first backups may begin at once.
static MAKING: Mutex<()> = Mutex::new(());

/// Returns the id of the store with this journal; `None` if it has none. A damaged one is an error: with another id the
/// store would not know its backups.
fn read(files: &dyn Files, journal: &Path) -> Result<Option<String>, StoreError> {
    let path = journal.join(FILE);
    let bytes = match files.open(&path, OpenMode::Read) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other.and_then(|file| read_all(file.as_ref())),
    };
    let bytes = bytes.map_err(|error| StoreError::io("read", &path, error))?;
    let text = String::from_utf8(bytes).unwrap_or_default();
    let id = text.trim_end();
    let is_id = id.len() == DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit());
    if is_id {
        return Ok(Some(id.to_owned()));
    }
    let reason = "is damaged; write the `store_id` of this store's backup.json to it, or remove it: then the store \
                  gets a new id, and needs a new directory for its backups";
    Err(StoreError::unusable(&path, reason))
}

/// Returns the id of the store with this journal. A store without one gets one.
///
/// # Errors
/// The id is damaged, or cannot be read or written.
pub(crate) fn ensure(files: &dyn Files, journal: &Path) -> Result<String, StoreError> {
    let _making = MAKING.lock();
    if let Some(id) = read(files, journal)? {
        return Ok(id);
    }
    let id = format!("{:016x}{:016x}", random_number(), random_number());
    store(files, journal, &id).map(|()| id)
}

/// Writes the id of a store durably.
pub(crate) fn store(files: &dyn Files, journal: &Path, id: &str) -> Result<(), StoreError> {
    let path = journal.join(FILE);
    let text = format!("{id}\n");
    replace(files, &path, text.as_bytes()).map_err(|error| StoreError::io("write", &path, error))
}
