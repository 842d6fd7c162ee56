//! The locations of a session's entries, as stored in sled: many consecutive entries share one row, because
//! each row that sled writes is expensive.
//!
//! Readers and the indexer do not see this. Staged changes are folded into rows when they move, and rows are unfolded
//! when they are read.
//!
//! Invariants: the key of a chunk is that of its first entry. A chunk has at most [`CHUNK_ENTRIES_MAX`]
//! entries, so finding an entry takes a look at few keys before it. Chunks of a session do not overlap, and
//! the start of a chunk does not change while its first entry exists: a reader between two changes misses
//! nothing.

use std::collections::{BTreeMap, BTreeSet};

use super::rows::{Location, key};
use super::staged::Spans;
use crate::bytes::{read_number, write_number};

/// The maximum number of entries in a chunk.
const CHUNK_ENTRIES_MAX: u64 = 64;
/// Earlier versions had a row of this length for each entry.
const SINGLE_BYTES: usize = 20;

/// The locations of entries, by sequence number.
pub(super) type Places = BTreeMap<u64, Location>;

/// Returns the first key at which a chunk with this entry may begin; `entry` is an entry's key.
pub(super) fn first_key(entry: &[u8]) -> Vec<u8> {
    match split(entry) {
        Some((session, sequence)) => join(session, sequence.saturating_sub(CHUNK_ENTRIES_MAX - 1)),
        None => entry.to_vec(),
    }
}

/// Splits an entry's key into the session's part and the sequence number.
pub(super) fn split(key: &[u8]) -> Option<(&[u8], u64)> {
    let (session, sequence) = key.split_last_chunk::<8>()?;
    (session.first() == Some(&b'e') && session.last() == Some(&0))
        .then(|| (session, u64::from_be_bytes(*sequence)))
}

/// Returns the key of an entry, given the session's part of it.
pub(super) fn join(session: &[u8], sequence: u64) -> Vec<u8> {
    [session, &sequence.to_be_bytes()].concat()
}

/// Adds the entries of a row that begins with the entry `first`; `None` if the row is not valid.
pub(super) fn unfold(first: u64, value: &[u8], places: &mut Places) -> Option<()> {
    if value.len() == SINGLE_BYTES {
        places.insert(first, Location::decode(value)?);
        return Some(());
    }
    let mut rest = value;
    let count = read_number(&mut rest).filter(|count| *count <= CHUNK_ENTRIES_MAX)?;
    let end = first.checked_add(count)?;
    let (mut sequence, mut segment, mut from) = (first, 0_u64, 0_u64);
    while sequence < end {
        segment = segment.wrapping_add(read_number(&mut rest)?);
        let offset = from.wrapping_add(read_number(&mut rest)?);
        let length = u32::try_from(read_number(&mut rest)?).ok()?;
        let next = sequence.checked_add(read_number(&mut rest)?).filter(|next| *next > sequence)?;
        (next <= end).then_some(())?;
        places.extend((sequence..next).map(|sequence| (sequence, Location { segment, offset, length })));
        (sequence, from) = (next, offset.wrapping_add(u64::from(length)));
    }
    Some(())
}

/// Encodes the row of consecutive entries.
fn fold(entries: &[(u64, Location)]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(8 + 8 * entries.len());
    write_number(&mut bytes, entries.len() as u64);
    let (mut segment, mut from) = (0_u64, 0_u64);
    // Entries of one frame have the same location.
    for frame in entries.chunk_by(|one, next| one.1 == next.1) {
        let location = frame[0].1;
        write_number(&mut bytes, location.segment.wrapping_sub(segment));
        write_number(&mut bytes, location.offset.wrapping_sub(from));
        write_number(&mut bytes, u64::from(location.length));
        write_number(&mut bytes, frame.len() as u64);
        (segment, from) = (location.segment, location.offset.wrapping_add(u64::from(location.length)));
    }
    if bytes.len() == SINGLE_BYTES {
        // Otherwise it would be taken for the row of an earlier version.
        bytes.push(0);
    }
    bytes
}

/// Applies changes of one session's entries to sled's rows. `session` is the session's part of the
/// keys. The resulting rows are passed to `change`.
pub(super) fn change_rows(
    database: &sled::Db,
    session: &[u8],
    changes: &Spans,
    mut change: impl FnMut(Vec<u8>, Option<Vec<u8>>),
) -> sled::Result<()> {
    let Some(changed) = changes.bounds() else { return Ok(()) };
    // The chunk that ends right before the first change is included: there may be space in it.
    let from = join(session, changed.start.saturating_sub(CHUNK_ENTRIES_MAX));
    let (mut rows, mut places) = (BTreeMap::new(), Places::new());
    for row in database.range(from..join(session, changed.end)) {
        let (key, value) = row?;
        let Some((_, first)) = split(&key) else { continue };
        if unfold(first, &value, &mut places).is_none() {
            return Err(sled::Error::Corruption { at: None, bt: () });
        }
        rows.insert(first, value);
    }
    changes.apply(&mut places);
    let places: Vec<(u64, Location)> = places.into_iter().collect();
    let mut begun = BTreeSet::new();
    let mut rest = places.as_slice();
    while let Some((first, _)) = rest.first().copied() {
        let belongs = |(at, (sequence, _)): (u64, &(u64, Location))| {
            *sequence == first + at && at < CHUNK_ENTRIES_MAX && (at == 0 || !rows.contains_key(sequence))
        };
        let count = (0..).zip(rest).take_while(|one| belongs(*one)).count();
        let (chunk, after) = rest.split_at(count);
        let row = fold(chunk);
        begun.insert(first);
        if rows.get(&first).is_none_or(|known| known.as_ref() != row.as_slice()) {
            change(join(session, first), Some(row));
        }
        rest = after;
    }
    for first in rows.keys().filter(|first| !begun.contains(first)) {
        change(join(session, *first), None);
    }
    Ok(())
}

/// Returns the session and the sequence number in an entry's key.
pub(super) fn entry_of(entry: &[u8]) -> Option<(&str, u64)> {
    let (session, sequence) = key::split(entry)?;
    Some((session, u64::from_be_bytes(sequence.try_into().ok()?)))
}
