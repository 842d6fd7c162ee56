//! What a frame of the journal carries, and its bytes: a version byte, then the record in that version's form.
//!
//! Invariants: bytes once written can be read for ever. A version's structs (`record/v1.rs`) are storage structs of
//! their own, apart from the kernel's; their golden bytes are in the tests. What is decoded is limited in size and
//! consumed to its last byte.

mod v1;

#[cfg(test)]
mod tests;

use greenroom_kernel::{Entry, EntryId};

use crate::error::StoreError;
use crate::head::Head;

/// One record, as the rest of the crate sees it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum StoredRecord {
    /// Entries of a session, and its head after them.
    Append {
        /// The term of the writer that owns the session; 0 on one machine.
        epoch: u64,
        /// The caller's idempotency key.
        key: Option<String>,
        /// The entries, dense.
        entries: Vec<Entry>,
        /// The head after them.
        head: Box<Head>,
    },
    /// The session was deleted: all its frames before this one are dead.
    Deleted,
    /// A learned fact.
    Learned {
        /// Its name.
        key: String,
        /// Its value.
        value: Vec<u8>,
    },
    /// Entries of the session from `from` on were found lost. `head` is the head that it has since.
    Quarantined {
        /// The first that was lost.
        from: EntryId,
        /// The head since then.
        head: Box<Head>,
    },
    /// The loss was accepted, and the session goes on from `head`.
    LossAccepted {
        /// The head from here on.
        head: Box<Head>,
    },
}

/// Decoding allocates no more than this, whatever the bytes say.
const DECODE_LIMIT_BYTES: usize = 512 << 20;
/// What is larger than this is decoded before it is written: only then could it exceed the decoding limit (an
/// encoded byte becomes at most about 70 bytes in memory).
const CHECKED_FROM_BYTES: usize = 4 << 20;

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<DECODE_LIMIT_BYTES>()
}

fn record_error(detail: impl std::fmt::Display) -> StoreError {
    StoreError::Record { detail: detail.to_string() }
}

/// The bytes of `value` after the newest version's byte.
fn encode_versioned(value: &impl bincode::Encode) -> Result<Vec<u8>, StoreError> {
    let mut bytes = vec![v1::VERSION];
    bincode::encode_into_std_write(value, &mut bytes, bincode::config::standard()).map_err(record_error)?;
    Ok(bytes)
}

/// The value in `bytes`, all of them.
fn decode_whole<T: bincode::Decode<()>>(bytes: &[u8]) -> Result<T, StoreError> {
    let (value, consumed) = bincode::decode_from_slice(bytes, config()).map_err(record_error)?;
    if consumed == bytes.len() {
        Ok(value)
    } else {
        Err(record_error(format_args!("{} bytes are left over", bytes.len() - consumed)))
    }
}

fn split_version<'a>(bytes: &'a [u8], what: &'static str) -> Result<(u8, &'a [u8]), StoreError> {
    let (&version, body) = bytes.split_first().ok_or_else(|| record_error("it is empty"))?;
    if version == v1::VERSION {
        Ok((version, body))
    } else {
        Err(StoreError::Version { what, found: version.into(), supported: v1::VERSION.into() })
    }
}

/// The record's bytes, in the newest version.
pub(crate) fn encode(record: &StoredRecord) -> Result<Vec<u8>, StoreError> {
    let bytes = encode_versioned(&v1::Record::from(record))?;
    if bytes.len() > CHECKED_FROM_BYTES {
        decode(&bytes)?;
    }
    Ok(bytes)
}

/// The record in `bytes`, whichever version wrote it.
pub(crate) fn decode(bytes: &[u8]) -> Result<StoredRecord, StoreError> {
    let (_, body) = split_version(bytes, "a record")?;
    Ok(decode_whole::<v1::Record>(body)?.into())
}

/// A head's bytes, in the newest version.
pub(crate) fn encode_head(head: &Head) -> Result<Vec<u8>, StoreError> {
    encode_versioned(&v1::Head::from(head))
}

/// The head in `bytes`, whichever version wrote it.
pub(crate) fn decode_head(bytes: &[u8]) -> Result<Head, StoreError> {
    let (_, body) = split_version(bytes, "a head")?;
    Ok(decode_whole::<v1::Head>(body)?.into())
}
