//! The journal of one session: a file with a line for each record, only ever appended to.
//!
//! A journal that became too long is replaced by the last state of each file ([`shortened`]).
//!
//! Invariants: a record is on the disk when the append returns. A line begins with a checksum; a line that a
//! crash cut off is skipped, and does not spoil the next one.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::contents::ContentsHash;
use super::{By, FileState, NotKept};

/// The ending of a journal that is being created.
const PART: &str = "part";
/// The digits of a line's checksum.
const CHECKSUM: usize = 8;

/// A record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "record")]
pub(super) enum Record {
    /// The first record: whose journal it is.
    Session { id: String },
    /// A file is about to be changed, or was changed by a command.
    Change {
        at: u64,
        by: By,
        #[serde(with = "as_text")]
        root: PathBuf,
        path: String,
        before: FileState,
        after: FileState,
    },
    /// A file as it was before a command, which may change it.
    Seen {
        at: u64,
        #[serde(with = "as_text")]
        root: PathBuf,
        path: String,
        state: FileState,
    },
    /// A command begins, which may change any file.
    CommandBegun {
        at: u64,
        #[serde(with = "as_text")]
        root: PathBuf,
    },
    /// A command has ended, and what it changed is recorded.
    CommandEnded {
        at: u64,
        #[serde(with = "as_text")]
        root: PathBuf,
    },
}

impl Record {
    /// Notes the state that it leaves.
    pub(super) fn follow(&self, last: &mut HashMap<(PathBuf, String), FileState>) {
        let (root, path, state) = match self {
            Self::Session { .. } | Self::CommandBegun { .. } | Self::CommandEnded { .. } => return,
            Self::Change { root, path, after, .. } => (root, path, after),
            Self::Seen { root, path, state, .. } => (root, path, state),
        };
        last.insert((root.clone(), path.clone()), state.clone());
    }

    /// The contents that it refers to.
    pub(super) fn hashes(&self) -> impl Iterator<Item = &str> {
        let states = match self {
            Self::Session { .. } | Self::CommandBegun { .. } | Self::CommandEnded { .. } => [None, None],
            Self::Change { before, after, .. } => [Some(before), Some(after)],
            Self::Seen { state, .. } => [Some(state), None],
        };
        states.into_iter().flatten().filter_map(FileState::hash)
    }
}

/// Returns what remains of records for which there is no room: the last state of each changed file, and the commands
/// that have not ended. What was before is said to be dropped.
pub(super) fn shortened(records: &[Record]) -> Vec<Record> {
    let open = interrupted(records);
    let mut last: BTreeMap<(&Path, &str), Record> = BTreeMap::new();
    for record in records {
        match record {
            Record::Change { root, path, .. } => {
                let mut record = record.clone();
                if let Record::Change { before, .. } = &mut record {
                    *before = FileState::NotKept { why: NotKept::Dropped };
                }
                last.insert((root, path), record);
            }
            Record::Seen { root, path, state, .. } => {
                if let Some(Record::Change { after, .. }) = last.get_mut(&(&**root, &**path)) {
                    after.clone_from(state);
                }
            }
            Record::Session { .. } | Record::CommandBegun { .. } | Record::CommandEnded { .. } => {}
        }
    }
    let open = open.into_iter().map(|index| records[index].clone());
    last.into_values().chain(open).collect()
}

/// Returns the places of commands that have not ended.
pub(super) fn interrupted(records: &[Record]) -> Vec<usize> {
    let mut open: Vec<(usize, u64, &Path)> = Vec::new();
    for (index, record) in records.iter().enumerate() {
        match record {
            Record::CommandBegun { at, root } => open.push((index, *at, root)),
            Record::CommandEnded { at, root } => {
                if let Some(place) = open.iter().position(|(_, begun, of)| (begun, *of) == (at, &**root)) {
                    open.remove(place);
                }
            }
            Record::Session { .. } | Record::Change { .. } | Record::Seen { .. } => {}
        }
    }
    open.into_iter().map(|(index, ..)| index).collect()
}

/// A journal, which may not exist yet.
#[derive(Debug)]
pub(super) struct Journal(PathBuf);

impl Journal {
    /// The journal of a session. Ids may have any characters and any length, so the name is their hash.
    pub(super) fn of(dir: &Path, session: &str) -> Self {
        let mut name = ContentsHash::of(session.as_bytes()).into_text();
        name.truncate(40);
        Self(dir.join(name))
    }

    /// All journals in the folder.
    pub(super) fn all(dir: &Path) -> io::Result<Vec<Self>> {
        std::fs::read_dir(dir)?.map(|entry| Ok(Self(entry?.path()))).collect()
    }

    /// The size in bytes; 0 if there is none.
    pub(super) fn bytes(&self) -> u64 {
        self.0.metadata().map_or(0, |metadata| metadata.len())
    }

    /// When it was changed last.
    pub(super) fn changed_at(&self) -> Option<SystemTime> {
        self.0.metadata().ok()?.modified().ok()
    }

    /// Appends records.
    pub(super) fn append(&self, session: &str, records: &[Record]) -> io::Result<()> {
        if !self.0.exists() {
            self.rewrite(session, &[])?;
        }
        let mut file = OpenOptions::new().append(true).open(&self.0)?;
        // A line that a crash cut off has no end.
        let mut text = String::from("\n");
        for record in records {
            text.push_str(&line(record)?);
        }
        file.write_all(text.as_bytes())?;
        file.sync_data()
    }

    /// Creates or replaces the journal as a whole.
    pub(super) fn rewrite(&self, session: &str, records: &[Record]) -> io::Result<()> {
        let part = self.0.with_extension(PART);
        let mut file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(&part)?;
        let mut text = line(&Record::Session { id: session.to_owned() })?;
        for record in records {
            text.push_str(&line(record)?);
        }
        file.write_all(text.as_bytes())?;
        file.sync_data()?;
        std::fs::rename(&part, &self.0)?;
        self.0.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    }

    /// Reads the session's id and the records.
    pub(super) fn read(&self) -> io::Result<(Option<String>, Vec<Record>)> {
        let mut bytes = Vec::new();
        match File::open(&self.0) {
            Ok(mut file) => file.read_to_end(&mut bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((None, Vec::new())),
            Err(error) => return Err(error),
        };
        let (mut session, mut records) = (None, Vec::new());
        for line in bytes.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok()) {
            let sound = line.split_once(' ').filter(|(sum, line)| *sum == checksum(line));
            let Some((_, line)) = sound else { continue };
            match serde_json::from_str(line) {
                Ok(Record::Session { id }) => session = Some(id),
                Ok(record) => records.push(record),
                // A later version wrote it.
                Err(_) => {}
            }
        }
        Ok((session, records))
    }

    /// Removes the journal, if there is one.
    pub(super) fn remove(&self) -> io::Result<()> {
        match std::fs::remove_file(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Returns a record as a line.
fn line(record: &Record) -> io::Result<String> {
    let json = serde_json::to_string(record)?;
    Ok(format!("{} {json}\n", checksum(&json)))
}

fn checksum(line: &str) -> String {
    let mut sum = ContentsHash::of(line.as_bytes()).into_text();
    sum.truncate(CHECKSUM);
    sum
}

/// Paths as text; those that are not UTF-8 as hexadecimal digits.
mod as_text {
    use super::*;

    const HEX: &str = "hex:";

    pub(super) fn serialize<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
        match path.to_str() {
            // Folders are absolute, so no text begins like the other form.
            Some(text) => to.serialize_str(text),
            None => {
                let digits = path.as_os_str().as_bytes().iter().map(|byte| format!("{byte:02x}"));
                to.serialize_str(&std::iter::once(HEX.to_owned()).chain(digits).collect::<String>())
            }
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
        let text = String::deserialize(from)?;
        let Some(digits) = text.strip_prefix(HEX) else { return Ok(PathBuf::from(text)) };
        let bytes: Option<Vec<u8>> = (0..digits.len())
            .step_by(2)
            .map(|place| u8::from_str_radix(digits.get(place..place + 2)?, 16).ok())
            .collect();
        let bytes = bytes.ok_or_else(|| serde::de::Error::custom("no path"))?;
        Ok(PathBuf::from(OsString::from_vec(bytes)))
    }
}
