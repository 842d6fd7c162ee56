//! The records that frames of the journal carry, and their bytes: one byte for the version, then the record
//! in the form of that version. Engines that keep entries and heads in rows of a table store the same bytes: an entry by
//! itself is the version and what a record of that version has of it.
//!
//! A record is written in the newest version and read in the version that its first byte names.
//! `record/v1.rs` declares version 1; `docs/record-versions.md` explains how to add another one.
//!
//! Invariants: bytes written once can be read by every later program; the tests hold golden bytes of each
//! version. An unknown version is a typed error that names it. Decoded data is limited in size and must be
//! used up to its last byte.

mod codec;
mod v1;

#[cfg(test)]
mod tests;

use std::marker::PhantomData;
use std::sync::Arc;

use bincode::de::Decoder;
use bincode::enc::Encoder;
use bincode::error::{DecodeError, EncodeError};
use codec::Stored;
use greenroom_kernel::Entry;
use greenroom_kernel::head::Head;
use v1::V1;

use crate::error::StoreError;

/// One record, as the rest of the crate sees it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum StoredRecord {
    /// Entries of a session, and the head after them.
    Append {
        /// The caller's idempotency key.
        key: Option<String>,
        /// The entries, with dense ids.
        entries: Vec<Arc<Entry>>,
        /// The head after the entries.
        head: Arc<Head>,
    },
    /// The session was deleted. All its frames before this one are dead.
    Deleted,
    /// A fact.
    Learned {
        /// The name of the fact.
        key: String,
        /// The fact itself.
        value: Vec<u8>,
    },
    /// Entries of the session were found to be lost, from `head.lost_from` on.
    Quarantined {
        /// The session's head after the loss.
        head: Arc<Head>,
    },
    /// The loss was accepted.
    LossAccepted {
        /// The head that the session continues from.
        head: Arc<Head>,
    },
    /// A part of a batch that is too large for one record. It counts only once the whole batch is committed.
    Part {
        /// A random number, the same in all records of the batch.
        batch: u64,
        /// The entries of this part.
        entries: Vec<Arc<Entry>>,
        /// The head that remains if the following parts are lost.
        head: Arc<Head>,
    },
    /// The last part of a batch: it makes all parts count.
    Commit {
        /// A random number, the same in all records of the batch.
        batch: u64,
        /// The caller's idempotency key.
        key: Option<String>,
        /// The entries of this part.
        entries: Vec<Arc<Entry>>,
        /// The head after the whole batch.
        head: Arc<Head>,
    },
}

/// The supported versions. Records are written in the last one.
const VERSIONS: Versions = Versions(&[Version::new::<V1>(1)]);

/// The maximum amount of memory that decoding allocates, for any bytes.
const DECODE_LIMIT_BYTES: usize = 512 << 20;
/// A record larger than this is decoded before it is written, so that nothing is written that exceeds the
/// limit of decoding. A smaller one cannot exceed it: an encoded byte takes at most about 70 bytes in memory.
const CHECKED_FROM_BYTES: usize = 4 << 20;

/// The initial buffer size: most records and heads are no larger, in bytes.
const RECORD_BYTES: usize = 1_000;
const HEAD_BYTES: usize = 200;

/// Encodes a record in the newest version.
pub(crate) fn encode(record: &StoredRecord) -> Result<Vec<u8>, StoreError> {
    VERSIONS.encode(record)
}

/// The size of an entry in a record, in bytes.
pub(crate) fn entry_bytes(entry: &Entry) -> Result<usize, StoreError> {
    encode_after::<V1, _>(entry, Vec::new()).map(|bytes| bytes.len())
}

/// Decodes a record of any version.
pub(crate) fn decode(bytes: &[u8]) -> Result<StoredRecord, StoreError> {
    VERSIONS.decode(bytes)
}

/// Encodes an entry in the newest version.
///
/// # Errors
/// [`StoreError::Record`] if it has something that this version cannot store.
pub fn encode_entry(entry: &Entry) -> Result<Vec<u8>, StoreError> {
    VERSIONS.encode_entry(entry)
}

/// Decodes an entry of any version.
///
/// # Errors
/// [`StoreError::Version`] if a newer program wrote it; [`StoreError::Record`] if it is damaged.
pub fn decode_entry(bytes: &[u8]) -> Result<Entry, StoreError> {
    VERSIONS.decode_entry(bytes)
}

/// Encodes a head in the newest version.
///
/// # Errors
/// [`StoreError::Record`] if it has something that this version cannot store.
pub fn encode_head(head: &Head) -> Result<Vec<u8>, StoreError> {
    VERSIONS.encode_head(head)
}

/// Decodes a head of any version.
///
/// # Errors
/// [`StoreError::Version`] if a newer program wrote it; [`StoreError::Record`] if it is damaged.
pub fn decode_head(bytes: &[u8]) -> Result<Head, StoreError> {
    VERSIONS.decode_head(bytes)
}

/// Whether the version that wrote `bytes` is supported.
pub(crate) fn is_known_version(bytes: &[u8]) -> bool {
    VERSIONS.of(bytes, "a record").is_ok()
}

/// One version: the byte that names it, and how records and heads are encoded and decoded without that byte.
struct Version {
    number: u8,
    encode: fn(&StoredRecord, Vec<u8>) -> Result<Vec<u8>, StoreError>,
    decode: fn(&[u8]) -> Result<StoredRecord, StoreError>,
    encode_head: fn(&Head, Vec<u8>) -> Result<Vec<u8>, StoreError>,
    decode_head: fn(&[u8]) -> Result<Head, StoreError>,
    encode_entry: fn(&Entry, Vec<u8>) -> Result<Vec<u8>, StoreError>,
    decode_entry: fn(&[u8]) -> Result<Entry, StoreError>,
}

impl Version {
    const fn new<V>(number: u8) -> Self
    where
        StoredRecord: Stored<V>,
        Head: Stored<V>,
        Entry: Stored<V>,
    {
        Self {
            number,
            encode: encode_after::<V, StoredRecord>,
            decode: decode_whole::<V, StoredRecord>,
            encode_head: encode_after::<V, Head>,
            decode_head: decode_whole::<V, Head>,
            encode_entry: encode_after::<V, Entry>,
            decode_entry: decode_whole::<V, Entry>,
        }
    }
}

impl Version {
    /// Returns a buffer with the version number and capacity for this many more bytes.
    fn begin(&self, room: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(1 + room);
        bytes.push(self.number);
        bytes
    }
}

/// Versions in ascending order; there is at least one.
struct Versions(&'static [Version]);

impl Versions {
    fn newest(&self) -> &Version {
        self.0.last().expect("there is at least one version")
    }

    /// Returns the version that wrote `bytes`, and the bytes after its number.
    fn of<'a>(&self, bytes: &'a [u8], what: &'static str) -> Result<(&Version, &'a [u8]), StoreError> {
        let (&number, body) = bytes.split_first().ok_or_else(|| record_error("it is empty"))?;
        match self.0.iter().find(|version| version.number == number) {
            Some(version) => Ok((version, body)),
            None => {
                let supported = self.newest().number.into();
                Err(StoreError::Version { what, found: number.into(), supported })
            }
        }
    }

    fn encode(&self, record: &StoredRecord) -> Result<Vec<u8>, StoreError> {
        let newest = self.newest();
        let bytes = (newest.encode)(record, newest.begin(RECORD_BYTES))?;
        if bytes.len() > CHECKED_FROM_BYTES {
            self.decode(&bytes)?;
        }
        Ok(bytes)
    }

    fn decode(&self, bytes: &[u8]) -> Result<StoredRecord, StoreError> {
        let (version, body) = self.of(bytes, "a record")?;
        (version.decode)(body)
    }

    fn encode_entry(&self, entry: &Entry) -> Result<Vec<u8>, StoreError> {
        let newest = self.newest();
        let bytes = (newest.encode_entry)(entry, newest.begin(RECORD_BYTES))?;
        if bytes.len() > CHECKED_FROM_BYTES {
            self.decode_entry(&bytes)?;
        }
        Ok(bytes)
    }

    fn decode_entry(&self, bytes: &[u8]) -> Result<Entry, StoreError> {
        let (version, body) = self.of(bytes, "an entry")?;
        (version.decode_entry)(body)
    }

    fn encode_head(&self, head: &Head) -> Result<Vec<u8>, StoreError> {
        let newest = self.newest();
        (newest.encode_head)(head, newest.begin(HEAD_BYTES))
    }

    fn decode_head(&self, bytes: &[u8]) -> Result<Head, StoreError> {
        let (version, body) = self.of(bytes, "a head")?;
        (version.decode_head)(body)
    }
}

/// A value that bincode writes as the version `V` stores it.
struct Written<'a, V, T>(&'a T, PhantomData<V>);

impl<V, T: Stored<V>> bincode::Encode for Written<'_, V, T> {
    fn encode<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        self.0.write(encoder)
    }
}

/// A value that bincode reads as the version `V` stores it.
struct Read<V, T>(T, PhantomData<V>);

impl<V, T: Stored<V>, Context> bincode::Decode<Context> for Read<V, T> {
    fn decode<D: Decoder<Context = Context>>(decoder: &mut D) -> Result<Self, DecodeError> {
        T::read(decoder).map(|value| Self(value, PhantomData))
    }
}

/// Appends the value to `bytes` in the form of the version `V`.
fn encode_after<V, T: Stored<V>>(value: &T, mut bytes: Vec<u8>) -> Result<Vec<u8>, StoreError> {
    let written = Written::<V, T>(value, PhantomData);
    bincode::encode_into_std_write(written, &mut bytes, bincode::config::standard()).map_err(record_error)?;
    Ok(bytes)
}

/// Decodes a value in the form of the version `V`. All bytes must belong to it.
fn decode_whole<V, T: Stored<V>>(bytes: &[u8]) -> Result<T, StoreError> {
    let config = bincode::config::standard().with_limit::<DECODE_LIMIT_BYTES>();
    let (Read::<V, T>(value, _), consumed) =
        bincode::decode_from_slice(bytes, config).map_err(record_error)?;
    if consumed == bytes.len() {
        Ok(value)
    } else {
        Err(record_error(format_args!("{} bytes are left over", bytes.len() - consumed)))
    }
}

fn record_error(detail: impl std::fmt::Display) -> StoreError {
    StoreError::Record { detail: detail.to_string() }
}
