//! What opening a damaged store decides, case by case: which bytes count, which index is used, what is reported.

use greenroom_kernel::EntryId;

use super::world::{World, append, batch, keyed, texts, wait};
use crate::journal::{Frame, FrameKind, NewFrame, Scan, SegmentHeader, scan};
use crate::record::{self, StoredRecord};
use crate::{Batch, Notice, StoreError};

/// The bytes of a segment.
fn bytes_of(world: &World, id: u64) -> Vec<u8> {
    let mut copy = Vec::new();
    world.memory.damage(&world.segment(id), |bytes| copy.clone_from(bytes)).unwrap();
    copy
}

/// What a segment holds.
fn scan_of(world: &World, id: u64) -> Scan {
    let bytes = bytes_of(world, id);
    let header = SegmentHeader::decode(&bytes).unwrap().unwrap();
    scan(&bytes, id, header.seed, None)
}

/// The bytes of the frame with this session's entry, in the first segment.
fn frame_of(world: &World, session: &str, sequence: u64) -> std::ops::Range<usize> {
    let scanned = scan_of(world, 1);
    let is_it = |frame: &&Frame| (&*frame.session, frame.sequence) == (session, sequence);
    let frame = scanned.frames.iter().map(|(frame, _)| frame).find(is_it).unwrap();
    usize::try_from(frame.offset).unwrap()..usize::try_from(frame.end()).unwrap()
}

/// A closed store with the sessions `one` and `two`, whose six entries each alternate in one segment.
fn alternating() -> World {
    let world = World { segment_bytes: 1 << 20, ..World::new() };
    let store = world.open_quiet();
    for id in 0..6 {
        append(&store, "one", keyed(id, &[&format!("one {id}")], &format!("k{id}"))).unwrap();
        append(&store, "two", batch(id, &[&format!("two {id}")])).unwrap();
    }
    drop(store);
    world
}

fn lose_index(world: &World) {
    std::fs::remove_dir_all(world.index()).unwrap();
}

fn expected(session: &str, count: u64) -> Vec<String> {
    (0..count).map(|id| format!("{session} {id}")).collect()
}

#[test]
fn an_index_whose_places_no_longer_fit_the_journal_is_built_again() {
    let world = alternating();
    let gone = frame_of(&world, "two", 2);
    world.memory.damage(&world.segment(1), |bytes| drop(bytes.drain(gone.clone()))).unwrap();
    let (store, notices) = world.open();
    let reason = "it does not fit the journal".to_owned();
    assert!(notices.contains(&Notice::IndexRebuilt { reason }), "{notices:?}");
    assert_eq!(texts(&store, "one", 0).unwrap(), expected("one", 6));
    assert!(matches!(store.load("two", EntryId(0)), Err(StoreError::Damaged { entry: EntryId(2), .. })));
}

#[test]
fn a_damaged_segment_keeps_its_bytes_and_is_not_written_to_again() {
    let world = alternating();
    let last = frame_of(&world, "two", 5);
    world.memory.damage(&world.segment(1), |bytes| bytes[last.end - 1] ^= 1).unwrap();
    let before = bytes_of(&world, 1);
    let (store, notices) = world.open();
    assert_eq!(notices, [Notice::TailLost { session: "two".to_owned(), from: EntryId(5) }]);
    append(&store, "one", batch(6, &["one 6"])).unwrap();
    drop(store);
    assert_eq!(bytes_of(&world, 1), before);
    assert_eq!(texts(&world.open_quiet(), "one", 0).unwrap(), expected("one", 7));
    let head = wait(world.open_quiet().accept_loss("two")).unwrap();
    assert_eq!(head.entries, 5);
}

#[test]
fn an_unfinished_write_is_cut_off_to_the_byte() {
    for loses_index in [false, true] {
        let world = alternating();
        let end = scan_of(&world, 1).end;
        world.memory.damage(&world.segment(1), |bytes| bytes.extend([7; 11])).unwrap();
        if loses_index {
            lose_index(&world);
        }
        let (store, notices) = world.open();
        let cut = Notice::TailCut { segment: 1, offset: end, bytes: 11 };
        assert!(notices.contains(&cut), "{notices:?}");
        assert_eq!(bytes_of(&world, 1).len() as u64, end);
        append(&store, "one", batch(6, &["one 6"])).unwrap();
        drop(store);
        let store = world.open_quiet();
        assert_eq!(texts(&store, "one", 0).unwrap(), expected("one", 7));
        assert_eq!(world.memory.paths().len(), 2, "the segment is still the only one");
    }
}

/// Appends batches to the first segment as one group, as if they had been written by one write. Returns where the group
/// begins.
fn write_group(world: &World, batches: &[(&str, Batch)]) -> u64 {
    let scanned = scan_of(world, 1);
    let header = SegmentHeader::decode(&bytes_of(world, 1)).unwrap().unwrap();
    let (mut buffer, mut chain) = (Vec::new(), scanned.chain);
    for (session, Batch { entries, head, key }) in batches {
        let sequence = entries[0].id.0;
        let count = u32::try_from(entries.len()).unwrap();
        let (entries, head) = (entries.clone(), Box::new(head.clone()));
        let payload = record::encode(&StoredRecord::Append { key: key.clone(), entries, head }).unwrap();
        let session = (*session).to_owned();
        let frame = NewFrame { kind: FrameKind::Append, session, sequence, count, payload };
        chain = frame.encode(&mut buffer, scanned.end, header.seed, chain).1;
    }
    world.memory.damage(&world.segment(1), |bytes| bytes.extend(&buffer)).unwrap();
    scanned.end
}

fn flip_last_byte(world: &World, frame: &std::ops::Range<usize>) {
    world.memory.damage(&world.segment(1), |bytes| bytes[frame.end - 1] ^= 1).unwrap();
}

#[test]
fn pieces_of_a_group_that_was_not_written_whole_are_cut_off_behind_the_first_gap() {
    for loses_index in [false, true] {
        let world = alternating();
        let group =
            [("one", batch(6, &["one 6"])), ("two", batch(6, &["two 6"])), ("one", batch(7, &["one 7"]))];
        write_group(&world, &group);
        let missing = frame_of(&world, "two", 6);
        let length = bytes_of(&world, 1).len();
        flip_last_byte(&world, &missing);
        if loses_index {
            lose_index(&world);
        }
        let (store, notices) = world.open();
        let cut = Notice::TailCut {
            segment: 1,
            offset: missing.start as u64,
            bytes: (length - missing.start) as u64,
        };
        assert!(notices.contains(&cut), "{notices:?}");
        assert!(!notices.iter().any(|notice| matches!(notice, Notice::Damaged { .. })), "{notices:?}");
        assert_eq!(bytes_of(&world, 1).len(), missing.start);
        assert_eq!(texts(&store, "one", 0).unwrap(), expected("one", 7));
        assert_eq!(texts(&store, "two", 0).unwrap(), expected("two", 6));
        append(&store, "two", batch(6, &["two 6"])).unwrap();
        append(&store, "one", batch(7, &["one 7"])).unwrap();
        drop(store);
        assert_eq!(texts(&world.open_quiet(), "one", 0).unwrap(), expected("one", 8));
    }
}

#[test]
fn a_first_frame_that_never_arrived_takes_its_group_with_it() {
    let world = alternating();
    let start = write_group(&world, &[("one", batch(6, &["one 6"])), ("two", batch(6, &["two 6"]))]);
    let length = bytes_of(&world, 1).len() as u64;
    let missing = frame_of(&world, "one", 6);
    flip_last_byte(&world, &missing);
    let (store, notices) = world.open();
    assert_eq!(notices, [Notice::TailCut { segment: 1, offset: start, bytes: length - start }]);
    assert_eq!(texts(&store, "one", 0).unwrap(), expected("one", 6));
    assert_eq!(texts(&store, "two", 0).unwrap(), expected("two", 6));
}

#[test]
fn a_gap_in_a_group_that_was_acknowledged_is_damage_and_costs_only_its_own_frame() {
    for loses_index in [false, true] {
        let world = alternating();
        let group =
            [("one", batch(6, &["one 6"])), ("two", batch(6, &["two 6"])), ("one", batch(7, &["one 7"]))];
        write_group(&world, &group);
        let damaged = frame_of(&world, "two", 6);
        // Closing the store notes that all of it is synced.
        drop(world.open_quiet());
        flip_last_byte(&world, &damaged);
        if loses_index {
            lose_index(&world);
        }
        let (store, notices) = world.open();
        assert!(!notices.iter().any(|notice| matches!(notice, Notice::TailCut { .. })), "{notices:?}");
        let lost = Notice::TailLost { session: "two".to_owned(), from: EntryId(6) };
        assert!(notices.contains(&lost), "{notices:?}");
        assert_eq!(texts(&store, "one", 0).unwrap(), expected("one", 8));
        assert_eq!(texts(&store, "two", 0).unwrap(), expected("two", 6));
    }
}
