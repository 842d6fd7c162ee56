//! The file that describes the contents of a backup. Its presence, without the marker of an unfinished backup, makes a
//! directory a backup.
//!
//! Invariants: it is written after everything else was synced.

use std::path::Path;

use serde_json::{Value, json};

use crate::error::StoreError;
use crate::files::{Files, OpenMode, read_all, replace};
use crate::journal::manifest::Manifest;
use crate::loss::StoreDamage;

/// The file's name.
pub(super) const FILE: &str = "backup.json";
/// The version of its form.
const FORMAT: u64 = 1;

/// What a backup holds, as it was counted when it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupInfo {
    /// The version of Greenroom that made it.
    pub version: String,
    /// The random id of the store; `None` if an earlier version made the backup.
    pub store_id: Option<String>,
    /// The directory of the store, as an absolute path.
    pub store: String,
    /// What was known to be damaged of the store when it was made.
    pub damage: StoreDamage,
    /// When it was made, in Unix milliseconds.
    pub made_at_ms: u64,
    /// The number of sessions.
    pub sessions: u64,
    /// The number of their entries.
    pub entries: u64,
    /// The number of journal segments.
    pub segments: u64,
    /// The size of the journal in bytes.
    pub bytes: u64,
    /// A checksum over the list of the segments and the checksums of their frames, as hexadecimal digits.
    pub digest: String,
}

/// Returns the checksum of a journal. `chain` is the chain after the last frame of its active segment; those of the
/// others are in the list.
pub(super) fn digest(manifest: &Manifest, chain: u32) -> String {
    format!("{:08x}", crc32c::crc32c_append(crc32c::crc32c(&manifest.encode()), &chain.to_le_bytes()))
}

impl BackupInfo {
    /// Reads what the backup in a directory says; `None` if the directory has no such file.
    pub(super) fn load(files: &dyn Files, dir: &Path) -> Result<Option<Self>, StoreError> {
        let path = dir.join(FILE);
        let bytes = match files.open(&path, OpenMode::Read) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.and_then(|file| read_all(file.as_ref())),
        };
        let bytes = bytes.map_err(|error| StoreError::io("read", &path, error))?;
        let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
        let number = |name: &str| value.get(name).and_then(Value::as_u64);
        let text = |name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
        if let Some(found) = number("format").filter(|found| *found > FORMAT) {
            let (found, supported) = (u32::try_from(found).unwrap_or(u32::MAX), 1);
            return Err(StoreError::Version { what: "the backup", found, supported });
        }
        let items = |name: &str| value.get(name).and_then(Value::as_array).into_iter().flatten();
        let read = || {
            Some(Self {
                version: text("greenroom")?,
                store_id: text("store_id"),
                store: text("store")?,
                damage: StoreDamage {
                    sessions: items("damaged_sessions")
                        .filter_map(Value::as_str)
                        .map(str::to_owned)
                        .collect(),
                    segments: items("damaged_segments").filter_map(Value::as_u64).collect(),
                },
                made_at_ms: number("made_at_ms")?,
                sessions: number("sessions")?,
                entries: number("entries")?,
                segments: number("segments")?,
                bytes: number("bytes")?,
                digest: text("digest")?,
            })
        };
        let unreadable = || StoreError::unusable(dir, format!("has a damaged {FILE}; make another backup"));
        read().map(Some).ok_or_else(unreadable)
    }

    /// Writes the file durably.
    pub(super) fn store(&self, files: &dyn Files, dir: &Path) -> Result<(), StoreError> {
        let path = dir.join(FILE);
        let value = json!({
            "format": FORMAT,
            "greenroom": self.version,
            "store_id": self.store_id,
            "store": self.store,
            "damaged_sessions": self.damage.sessions,
            "damaged_segments": self.damage.segments,
            "made_at_ms": self.made_at_ms,
            "sessions": self.sessions,
            "entries": self.entries,
            "segments": self.segments,
            "bytes": self.bytes,
            "digest": self.digest,
        });
        let text = format!("{value:#}\n");
        replace(files, &path, text.as_bytes()).map_err(|error| StoreError::io("write", &path, error))
    }
}
