//! A batch in the form in which it is sent.
//!
//! Invariants: everything about its size is checked before anything is sent. The columns of a head are for lists and filters
//! only: what PostgreSQL cannot have in a text (the character NUL) is replaced there, and kept in the head itself.

use std::hash::{BuildHasher, RandomState};

use greenroom_kernel::head::Head;
use greenroom_store::{BATCH_BYTES_MAX, Batch, StoreError, encode_entry, encode_head};

/// A batch that is larger goes in parts.
const STATEMENT_BYTES_MAX: usize = 32 << 20;
const STATEMENT_ENTRIES_MAX: usize = 16_384;

pub(crate) struct Work {
    pub(crate) session: String,
    /// The id of the first entry, which is the number of entries before.
    pub(crate) first: i64,
    pub(crate) next: i64,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) head: Vec<u8>,
    pub(crate) updated_at_ms: i64,
    pub(crate) columns: Columns,
    /// A hash of the columns, with a key of the engine. Two different sets of columns have the same one with a probability
    /// of 2^-64.
    pub(crate) shown: u64,
    pub(crate) entries: Vec<Vec<u8>>,
    /// The size of head and entries together.
    pub(crate) bytes: usize,
}

/// The parts of a head that lists and filters need, and that seldom change.
#[derive(Hash)]
pub(crate) struct Columns {
    pub(crate) title: Option<String>,
    /// A JSON object of texts.
    pub(crate) labels: String,
    pub(crate) created_at_ms: i64,
    pub(crate) is_unfinished: bool,
    pub(crate) parent: Option<String>,
    pub(crate) active_from: i64,
}

impl Work {
    /// Checks and encodes a batch.
    ///
    /// # Errors
    /// Those of an invalid batch.
    pub(crate) fn new(session: &str, batch: Batch, hashes: &RandomState) -> Result<Self, StoreError> {
        let (first, batch) = batch.checked(session)?;
        let head = fitting(encode_head(&batch.head)?)?;
        let entries = batch.entries.iter().map(|entry| fitting(encode_entry(entry)?));
        let entries = entries.collect::<Result<Vec<_>, StoreError>>()?;
        let bytes = head.len() + entries.iter().map(Vec::len).sum::<usize>();
        let columns = Columns::of(&batch.head);
        Ok(Self {
            session: session.to_owned(),
            first: column(first.0),
            next: column(batch.head.entries),
            key: batch.key.map(String::into_bytes),
            updated_at_ms: column(batch.head.updated_at_ms),
            shown: hashes.hash_one(&columns),
            columns,
            head,
            entries,
            bytes,
        })
    }

    /// Whether it is too large for one statement.
    pub(crate) fn is_large(&self) -> bool {
        self.bytes > STATEMENT_BYTES_MAX || self.entries.len() > STATEMENT_ENTRIES_MAX
    }
}

impl Columns {
    fn of(head: &Head) -> Self {
        let text = |text: &String| text.replace('\0', "\u{fffd}");
        let labels = head.labels.iter().map(|(name, value)| (text(name), text(value).into()));
        Self {
            title: head.title.as_ref().map(text),
            labels: serde_json::Value::Object(labels.collect()).to_string(),
            created_at_ms: column(head.created_at_ms),
            is_unfinished: head.open_run.is_some() || head.interrupted.is_some() || !head.inbox.is_empty(),
            parent: head.parent_session.as_ref().map(text),
            active_from: column(head.active_from.0),
        }
    }
}

/// Returns a number as a column has it.
pub(crate) fn column(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns a column as a number, which is never negative.
pub(crate) fn number(column: i64) -> u64 {
    u64::try_from(column).unwrap_or(0)
}

fn fitting(bytes: Vec<u8>) -> Result<Vec<u8>, StoreError> {
    let size = bytes.len() as u64;
    if size > BATCH_BYTES_MAX {
        return Err(StoreError::TooLarge { what: "bytes", size, limit: BATCH_BYTES_MAX });
    }
    Ok(bytes)
}
