//! An entry by itself: what engines store that keep each entry in a row.
//!
//! Invariants: its bytes are those that it has inside a record of the journal, so the golden bytes of records pin them.

use super::*;
use crate::{decode_entry, encode_entry};

/// What precedes the entry in a record with one entry and no key, after the version: the kind of record, no key, a length.
const BEFORE: [u8; 3] = [0, 0, 1];

#[test]
fn an_entry_by_itself_has_the_bytes_that_it_has_in_a_record() {
    let mut seen = 0;
    for (name, bytes) in golden() {
        let sample = samples().into_iter().find_map(|(sample, record)| (sample == name).then_some(record));
        let Some(StoredRecord::Append { key: None, entries, head }) = sample else { continue };
        let bytes = from_hex(&bytes);
        let head = encode_head(&head).unwrap();
        let inside = bytes.strip_prefix(&[&[1], &BEFORE[..]].concat()[..]).unwrap();
        let inside = inside.strip_suffix(&head[1..]).unwrap();
        let released = [&[1], inside].concat();
        assert_eq!(hex(&encode_entry(&entries[0]).unwrap()), hex(&released), "{name}");
        assert_eq!(decode_entry(&released).unwrap(), *entries[0], "{name}");
        seen += 1;
    }
    assert_eq!(seen, kinds().len(), "every kind of entry was compared");
}

#[test]
fn only_a_whole_entry_of_a_known_version_decodes() {
    let StoredRecord::Append { entries, .. } = append_of(kinds().remove(0)) else {
        panic!("it is an append")
    };
    let bytes = encode_entry(&entries[0]).unwrap();
    for length in 0..bytes.len() {
        assert!(decode_entry(&bytes[..length]).is_err(), "cut to {length}");
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    assert!(matches!(decode_entry(&longer), Err(StoreError::Record { .. })), "with a byte more");
    let newer = [&[2], &bytes[1..]].concat();
    let refused = decode_entry(&newer);
    assert!(matches!(refused, Err(StoreError::Version { found: 2, supported: 1, .. })), "{refused:?}");
}
