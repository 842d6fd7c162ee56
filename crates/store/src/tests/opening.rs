//! What opening a damaged store decides, case by case: which bytes count, which index is used, what is reported.

use greenroom_kernel::EntryId;

use super::world::{World, append, batch, keyed, texts, wait};
use crate::journal::{Scan, SegmentHeader, scan};
use crate::{Notice, StoreError};

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
    let is_it = |frame: &&crate::journal::Frame| (&*frame.session, frame.sequence) == (session, sequence);
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
