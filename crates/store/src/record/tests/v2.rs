//! A fictitious version 2: it shows that records of two versions can be read side by side, and what a new
//! version costs. It was added by following `docs/record-versions.md`.
//!
//! The change: an entry's parent is stored as its distance, which is 1 for most entries and so takes one
//! byte.

use std::marker::PhantomData;
use std::sync::Arc;

use bincode::de::Decoder;
use bincode::enc::Encoder;
use bincode::error::{DecodeError, EncodeError};
use greenroom_kernel::head::{Head, LoggedState};
use greenroom_kernel::{Entry, EntryId, EntryKind};

use super::super::codec::{Stored, stored_enum, stored_struct, unchanged, unknown_variant};
use super::super::v1::V1;
use super::super::{Read, StoredRecord, Version, Versions, Written};
use super::{append_of, from_hex, golden, head, hex, kinds, samples};
use crate::error::StoreError;

struct V2;

/// The versions known to a program released after version 2.
const LATER: Versions = Versions(&[Version::new::<V1>(1), Version::new::<V2>(2)]);

/// The only type that is stored differently.
impl Stored<V2> for Entry {
    fn write<E: Encoder>(&self, encoder: &mut E) -> Result<(), EncodeError> {
        let Self { id, parent, at_ms, tokens, reasoning_tokens, origin, kind } = self;
        Stored::<V2>::write(id, encoder)?;
        let distance = parent.map_or(0, |parent| id.0 - parent.0);
        Stored::<V2>::write(&distance, encoder)?;
        Stored::<V2>::write(at_ms, encoder)?;
        Stored::<V2>::write(tokens, encoder)?;
        Stored::<V2>::write(reasoning_tokens, encoder)?;
        Stored::<V2>::write(origin, encoder)?;
        Stored::<V2>::write(kind, encoder)
    }

    fn read<D: Decoder>(decoder: &mut D) -> Result<Self, DecodeError> {
        let id: EntryId = Stored::<V2>::read(decoder)?;
        let distance: u64 = Stored::<V2>::read(decoder)?;
        let parent = match distance {
            0 => None,
            _ => Some(EntryId(
                id.0.checked_sub(distance).ok_or(DecodeError::Other("a parent before the start"))?,
            )),
        };
        let at_ms = Stored::<V2>::read(decoder)?;
        let tokens = Stored::<V2>::read(decoder)?;
        let reasoning_tokens = Stored::<V2>::read(decoder)?;
        let origin = Stored::<V2>::read(decoder)?;
        let kind = Stored::<V2>::read(decoder)?;
        Ok(Self { id, parent, at_ms, tokens, reasoning_tokens, origin, kind })
    }
}

// Types that contain an entry are declared again.
stored_enum!(V2: StoredRecord {
    0 = Append { key: Option<String>, entries: Vec<Arc<Entry>>, head: Arc<Head> },
    1 = Deleted,
    2 = Learned { key: String, value: Vec<u8> },
    3 = Quarantined { head: Arc<Head> },
    4 = LossAccepted { head: Arc<Head> },
    5 = Part { batch: u64, entries: Vec<Arc<Entry>>, head: Arc<Head> },
    6 = Commit { batch: u64, key: Option<String>, entries: Vec<Arc<Entry>>, head: Arc<Head> },
});

unchanged!(V2 = V1: EntryKind, Head);

#[test]
fn the_first_byte_decides_how_a_record_is_read() {
    // A journal written by an old and then by a new program.
    let old: Vec<(StoredRecord, Vec<u8>)> =
        samples().into_iter().map(|(_, record)| (record.clone(), super::encode(&record).unwrap())).collect();
    let new: Vec<(StoredRecord, Vec<u8>)> =
        samples().into_iter().map(|(_, record)| (record.clone(), LATER.encode(&record).unwrap())).collect();
    let mut differ = 0;
    for ((record, old), (_, new)) in old.iter().zip(&new) {
        assert_eq!((old[0], new[0]), (1, 2));
        assert_eq!(&LATER.decode(old).unwrap(), record);
        assert_eq!(&LATER.decode(new).unwrap(), record);
        // With the other version's number the same bytes mean something else.
        let swapped = [&[1], &new[1..]].concat();
        if new[1..] != old[1..] {
            differ += 1;
            assert_ne!(LATER.decode(&swapped).ok().as_ref(), Some(record));
        }
    }
    assert!(differ >= kinds().len(), "{differ} records are stored in another way");
}

#[test]
fn bytes_of_the_first_version_are_read_for_ever() {
    for (name, bytes) in golden() {
        let (_, expected) = samples().into_iter().find(|(sample, _)| *sample == name).unwrap();
        assert_eq!(LATER.decode(&from_hex(&bytes)).unwrap(), expected, "{name}");
    }
    let old = super::encode_head(&head()).unwrap();
    let new = LATER.encode_head(&head()).unwrap();
    assert_eq!((old[0], new[0]), (1, 2));
    assert_eq!((LATER.decode_head(&old).unwrap(), LATER.decode_head(&new).unwrap()), (head(), head()));
}

#[test]
fn an_older_program_names_the_version_that_it_does_not_know() {
    for record in [append_of(kinds().remove(0)), StoredRecord::Deleted] {
        let new = LATER.encode(&record).unwrap();
        let refused = super::decode(&new).unwrap_err();
        let is_named = matches!(refused, StoreError::Version { what: "a record", found: 2, supported: 1 });
        assert!(is_named, "{refused:?}");
        let text =
            "a record has format version 2, and this version of Greenroom reads up to 1; update Greenroom";
        assert_eq!(refused.to_string(), text);
    }
    let refused = super::decode_head(&LATER.encode_head(&head()).unwrap());
    assert!(matches!(refused, Err(StoreError::Version { what: "a head", found: 2, supported: 1 })));
}

/// The second version's own golden line: an entry whose parent is the entry before it.
#[test]
fn bytes_of_the_second_version_never_change() {
    let record = append_of(kinds().remove(0));
    let bytes = LATER.encode(&record).unwrap();
    assert_eq!(
        hex(&bytes),
        "0200000107 01 fd0068e5cf8b010000050301016f000001000568656c6c6f01090108\
         00000000000000000000000000000000000000000000000000000000\
         00000000000000000000000000000000000000000000000000000000"
            .replace([' ', '\n'], "")
    );
    assert_eq!(LATER.decode(&bytes).unwrap(), record);
}

/// A struct that got a field after the first version was frozen.
#[derive(Debug, PartialEq)]
struct Grown {
    old: u64,
    new: Option<String>,
}

stored_struct!(V1: Grown { old: u64 } without { new: None });
stored_struct!(V2: Grown { old: u64, new: Option<String> });

/// An enum that is stored in two orders.
#[derive(Debug, PartialEq)]
enum Turned {
    One,
    Two(u64),
    Three { state: LoggedState },
}

unchanged!(V2 = V1: LoggedState);
stored_enum!(V1: Turned { 0 = One, 1 = Two(number: u64), 2 = Three { state: LoggedState } });
stored_enum!(V2: Turned { 2 = One, 0 = Two(number: u64), 1 = Three { state: LoggedState } });

fn written<V, T: Stored<V>>(value: &T) -> Vec<u8> {
    bincode::encode_to_vec(Written::<V, T>(value, PhantomData), bincode::config::standard()).unwrap()
}

fn read<V, T: Stored<V>>(bytes: &[u8]) -> Result<T, DecodeError> {
    let (Read::<V, T>(value, _), _) = bincode::decode_from_slice(bytes, bincode::config::standard())?;
    Ok(value)
}

#[test]
fn a_field_that_a_version_does_not_have_gets_the_value_that_was_declared() {
    let grown = Grown { old: 5, new: Some("n".to_owned()) };
    assert_eq!(written::<V1, _>(&grown), [5]);
    assert_eq!(read::<V1, Grown>(&[5]).unwrap(), Grown { old: 5, new: None });
    assert_eq!(read::<V2, Grown>(&written::<V2, _>(&grown)).unwrap(), grown);
}

#[test]
fn variants_are_stored_by_their_declared_number() {
    let failed = LoggedState::Failed { reason: "f".to_owned() };
    for (value, in_1, in_2) in [
        (Turned::One, vec![0], vec![2]),
        (Turned::Two(7), vec![1, 7], vec![0, 7]),
        (Turned::Three { state: failed }, vec![2, 2, 1, b'f'], vec![1, 2, 1, b'f']),
    ] {
        assert_eq!(written::<V1, _>(&value), in_1);
        assert_eq!(written::<V2, _>(&value), in_2);
        assert_eq!(read::<V1, Turned>(&in_1).unwrap(), value);
        assert_eq!(read::<V2, Turned>(&in_2).unwrap(), value);
    }
    let unknown = read::<V1, Turned>(&[3]).unwrap_err().to_string();
    assert!(unknown.contains("Turned has no variant 3 in this version"), "{unknown}");
}
