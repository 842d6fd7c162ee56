//! Decisions on opening a damaged store, case by case: which bytes count, which index is used, what is
//! reported.

use std::path::PathBuf;
use std::sync::Arc;

use greenroom_kernel::EntryId;

use super::world::{World, append, batch, copy_dir, keyed, texts, wait};
use crate::faults::{EIO, Fault};
use crate::journal::manifest::{Manifest, SegmentState};
use crate::journal::{Frame, FrameKind, NewFrame, Scan, SegmentHeader, scan};
use crate::record::{self, StoredRecord};
use crate::{Batch, Notice, StoreError};

/// Returns the bytes of a segment.
fn bytes_of(world: &World, id: u64) -> Vec<u8> {
    let mut copy = Vec::new();
    world.memory.damage(&world.segment(id), |bytes| copy.clone_from(bytes)).unwrap();
    copy
}

/// Scans a segment.
fn scan_of(world: &World, id: u64) -> Scan {
    let bytes = bytes_of(world, id);
    let header = SegmentHeader::decode(&bytes).unwrap().unwrap();
    scan(&bytes, id, header.seed, None)
}

/// Returns the bytes of the frame with this session's entry, in the first segment.
fn frame_of(world: &World, session: &str, sequence: u64) -> std::ops::Range<usize> {
    let scanned = scan_of(world, 1);
    let is_it = |frame: &&Frame| (&*frame.session, frame.sequence) == (session, sequence);
    let frame = scanned.frames.iter().map(|(frame, _)| frame).find(is_it).unwrap();
    usize::try_from(frame.offset).unwrap()..usize::try_from(frame.end()).unwrap()
}

/// Returns a closed store with the sessions `one` and `two`, whose six entries each alternate in one segment.
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
        assert!(!world.memory.paths().contains(&world.segment(2)), "the segment is still the only one");
    }
}

fn frame(kind: FrameKind, session: &str, sequence: u64, count: u32, payload: Vec<u8>) -> NewFrame {
    NewFrame { kind, session: session.into(), sequence, count, payload }
}

/// Appends batches to the first segment as one group. Returns where the group begins.
fn write_group(world: &World, batches: &[(&str, Batch)]) -> u64 {
    let encode = |(session, Batch { entries, head, key }): &(&str, Batch)| {
        let (sequence, count) = (entries[0].id.0, u32::try_from(entries.len()).unwrap());
        let (entries, head) = (entries.clone(), Arc::clone(head));
        let payload = record::encode(&StoredRecord::Append { key: key.clone(), entries, head }).unwrap();
        frame(FrameKind::Append, session, sequence, count, payload)
    };
    write_frames(world, batches.iter().map(encode).collect())
}

/// Appends frames to the first segment, as if one write had written them. Returns where they begin.
fn write_frames(world: &World, frames: Vec<NewFrame>) -> u64 {
    let scanned = scan_of(world, 1);
    let header = SegmentHeader::decode(&bytes_of(world, 1)).unwrap().unwrap();
    let (mut buffer, mut chain) = (Vec::new(), scanned.chain);
    for frame in frames {
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
        // Closing the store records that all of it is synced.
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

#[test]
fn opening_a_store_that_was_closed_changes_nothing_in_the_journal() {
    let world = alternating();
    let before = bytes_of(&world, 1);
    world.files.set(Fault::None);
    let store = world.open_quiet();
    assert_eq!(world.files.operations(), 0);
    assert_eq!(bytes_of(&world, 1), before);
    drop(store);
}

#[test]
fn a_store_to_which_nothing_was_appended_keeps_its_index() {
    let world = World::new();
    for _ in 0..3 {
        drop(world.open_quiet());
    }
    let paths = world.memory.paths();
    assert!(paths.contains(&world.segment(1)) && !paths.contains(&world.segment(2)), "{paths:?}");
}

#[test]
fn damage_that_the_index_covers_is_reported_with_all_that_it_cost() {
    let world = alternating();
    let damaged = frame_of(&world, "one", 2);
    flip_last_byte(&world, &damaged);
    let (store, notices) = world.open();
    let (offset, sessions) = (damaged.start as u64, vec!["one".to_owned()]);
    assert_eq!(notices, [Notice::Damaged { segment: 1, offset, sessions, others_possible: false }]);
    let head = store.head("one").unwrap().unwrap();
    assert_eq!((head.lost_from, head.entries), (Some(EntryId(2)), 6));
    assert_eq!(store.head("two").unwrap().unwrap().lost_from, None);
    // The new segment follows the damaged one.
    let order = |id| SegmentHeader::decode(&bytes_of(&world, id)).unwrap().unwrap().order;
    assert_eq!(order(2), order(1) + 1);
}

#[test]
fn damage_that_neither_the_index_nor_a_record_covers_may_have_cost_other_sessions_too() {
    for has_record in [true, false] {
        behind_the_checkpoint(has_record);
    }
}

/// Damages a frame behind the index's checkpoint, with or without the record of the segment's sessions.
fn behind_the_checkpoint(has_record: bool) {
    let world = alternating();
    let aside = tempfile::tempdir().unwrap();
    copy_dir(&world.index(), &aside.path().join("index"));
    let store = world.open_quiet();
    for id in 6..9 {
        append(&store, "one", batch(id, &[&format!("one {id}")])).unwrap();
    }
    drop(store);
    lose_index(&world);
    copy_dir(&aside.path().join("index"), &world.index());
    let damaged = frame_of(&world, "one", 7);
    flip_last_byte(&world, &damaged);
    if !has_record {
        world.forget_sessions(1);
    }
    let (store, notices) = world.open();
    let (offset, sessions) = (damaged.start as u64, vec!["one".to_owned()]);
    assert_eq!(notices, [Notice::Damaged { segment: 1, offset, sessions, others_possible: !has_record }]);
    assert_eq!(store.head("one").unwrap().unwrap().lost_from, Some(EntryId(7)));
    assert_eq!(store.salvage("one").unwrap().lost, [(EntryId(7), EntryId(8))]);
}

#[test]
fn a_segment_number_is_never_used_again_even_if_only_the_index_remembers_it() {
    let world = World { segment_bytes: 400, ..World::new() };
    let store = world.open_quiet();
    for id in 0..6 {
        append(&store, "one", batch(id, &[&"x".repeat(300)])).unwrap();
    }
    drop(store);
    let names = world.memory.paths();
    let is_segment = |path: &&PathBuf| path.extension().is_some_and(|found| found == "seg");
    let highest = names.iter().filter(is_segment).count() as u64;
    assert!(highest > 3 && names.contains(&world.segment(highest)), "{names:?}");
    let order = SegmentHeader::decode(&bytes_of(&world, highest)).unwrap().unwrap().order;
    for path in world.memory.paths() {
        world.memory.lose(&path);
    }
    let (store, notices) = world.open();
    assert_eq!(notices, [Notice::TailLost { session: "one".to_owned(), from: EntryId(0) }]);
    assert!(world.memory.paths().contains(&world.segment(highest + 1)), "{:?}", world.memory.paths());
    let header = SegmentHeader::decode(&bytes_of(&world, highest + 1)).unwrap().unwrap();
    assert_eq!(header.order, order + 1);
    drop(store);
}

#[test]
fn a_lost_head_is_taken_from_the_last_entry_that_is_left() {
    let world = alternating();
    let store = world.open_quiet();
    // A newer head without an entry, which is lost with its frame.
    let mut named = batch(6, &[]);
    Arc::make_mut(&mut named.head).title = Some("named".to_owned());
    append(&store, "one", named).unwrap();
    drop(store);
    let length = bytes_of(&world, 1).len();
    world.memory.damage(&world.segment(1), |bytes| bytes[length - 1] ^= 1).unwrap();
    let (store, notices) = world.open();
    assert_eq!(notices, [Notice::TailLost { session: "one".to_owned(), from: EntryId(6) }]);
    let head = store.head("one").unwrap().unwrap();
    assert_eq!((head.entries, head.lost_from, head.title), (6, Some(EntryId(6)), None));
    assert_eq!(texts(&store, "one", 0).unwrap(), expected("one", 6));
}

#[test]
fn an_index_of_another_journal_is_built_again_even_if_something_else_is_damaged() {
    for damages in [None, Some(0), Some(1)] {
        let world = alternating();
        let manifest = world.dir.path().join("journal/manifest");
        let read = |path: &std::path::Path| {
            let mut copy = Vec::new();
            world.memory.damage(path, |bytes| copy.clone_from(bytes)).unwrap();
            copy
        };
        let list = world.segment(1).with_extension("frames");
        let common = [manifest, world.segment(1), list].map(|path| (read(&path), path));
        let store = world.open_quiet();
        append(&store, "one", batch(6, &["the journal that the index knows"])).unwrap();
        drop(store);
        let aside = tempfile::tempdir().unwrap();
        copy_dir(&world.index(), &aside.path().join("index"));
        // The existing journal took another course, and its frames end elsewhere.
        for (before, path) in &common {
            world.memory.damage(path, |bytes| bytes.clone_from(before)).unwrap();
        }
        lose_index(&world);
        let (store, _) = world.open();
        for id in 0..4 {
            let text = format!("other {id}{}", "x".repeat(90));
            append(&store, "three", batch(id, &[&text])).unwrap();
        }
        drop(store);
        if let Some(at) = damages {
            // Once before the last location that the index knows, once behind it.
            let (session, sequence) = [("two", 1), ("three", 3)][at];
            let damaged = frame_of(&world, session, sequence);
            flip_last_byte(&world, &damaged);
        }
        lose_index(&world);
        copy_dir(&aside.path().join("index"), &world.index());
        let (store, notices) = world.open();
        let reason = "it does not fit the journal".to_owned();
        assert!(notices.contains(&Notice::IndexRebuilt { reason }), "damage {damages:?}: {notices:?}");
        assert_eq!(texts(&store, "one", 0).unwrap(), expected("one", 6));
        let others = texts(&store, "three", 0).map_or(0, |texts| texts.len());
        assert_eq!(others, if damages == Some(1) { 3 } else { 4 });
    }
}

#[test]
fn a_damaged_sealed_segment_is_listed_as_abandoned_and_the_others_stay_sealed() {
    let world = World { segment_bytes: 400, ..World::new() };
    let store = world.open_quiet();
    for id in 0..5 {
        append(&store, "one", batch(id, &[&"x".repeat(300)])).unwrap();
    }
    drop(store);
    // The segment's ends are intact: only reading it shows the damage.
    world.memory.damage(&world.segment(2), |bytes| bytes[200] ^= 1).unwrap();
    drop(world.open_quiet());
    lose_index(&world);
    let (store, notices) = world.open();
    let lost = |notice: &Notice| matches!(notice, Notice::Damaged { segment: 2, others_possible: false, .. });
    assert!(notices.iter().any(lost), "{notices:?}");
    assert_eq!(store.salvage("one").unwrap().lost, [(EntryId(1), EntryId(2))]);
    let manifest = Manifest::load(&world.memory, &world.dir.path().join("journal")).unwrap().unwrap();
    let states = manifest.segments.iter().map(|listed| (listed.id, listed.state));
    for (id, state) in states.filter(|(_, state)| !matches!(state, SegmentState::Active { .. })) {
        assert_eq!(matches!(state, SegmentState::Abandoned { .. }), id == 2, "segment {id}: {state:?}");
    }
    assert!(manifest.segments.len() > 4, "{manifest:?}");
    drop(store);
    drop(world.open_quiet());
}

#[test]
fn a_damaged_deletion_takes_effect_where_it_stood_and_only_once() {
    for loses_index in [false, true] {
        let world = alternating();
        let deleted = record::encode(&StoredRecord::Deleted).unwrap();
        write_frames(&world, vec![frame(FrameKind::Deleted, "two", 6, 0, deleted)]);
        write_group(&world, &[("two", batch(0, &["new"]))]);
        // The index learns of both, and the deletion stays where it is.
        drop(world.open_quiet());
        let is_deletion = |frame: &&Frame| frame.kind == FrameKind::Deleted;
        let scanned = scan_of(&world, 1);
        let deletion = scanned.frames.iter().map(|(frame, _)| frame).find(is_deletion).unwrap();
        let end = usize::try_from(deletion.end()).unwrap();
        flip_last_byte(&world, &(0..end));
        if loses_index {
            lose_index(&world);
        }
        let (store, notices) = world.open();
        assert!(notices.iter().any(|notice| matches!(notice, Notice::Damaged { .. })), "{notices:?}");
        assert_eq!(texts(&store, "two", 0).unwrap(), ["new"], "index lost: {loses_index}");
        assert_eq!(store.head("two").unwrap().unwrap().lost_from, None, "index lost: {loses_index}");
        assert_eq!(texts(&store, "one", 0).unwrap(), expected("one", 6));
    }
}

#[test]
fn each_damage_names_the_sessions_that_it_cost_and_no_others() {
    // With its header, a damaged frame is still known; without it and without the record of the segment's
    // sessions, only the gap in its session reveals it.
    for has_header in [true, false] {
        let world = alternating();
        let damaged = [frame_of(&world, "one", 1), frame_of(&world, "two", 3)];
        let damage =
            |frame: &std::ops::Range<usize>| if has_header { frame.end - 1 } else { frame.start + 20 };
        let at = damaged.each_ref().map(damage);
        world.memory.damage(&world.segment(1), |bytes| at.iter().for_each(|at| bytes[*at] ^= 1)).unwrap();
        lose_index(&world);
        if !has_header {
            world.forget_sessions(1);
        }
        let (store, notices) = world.open();
        let found: Vec<(u64, &[String])> = notices
            .iter()
            .filter_map(|notice| match notice {
                Notice::Damaged { offset, sessions, .. } => Some((*offset, sessions.as_slice())),
                Notice::TailLost { .. }
                | Notice::TailCut { .. }
                | Notice::IndexRebuilt { .. }
                | Notice::IndexInMemory { .. }
                | Notice::ReadOnly { .. }
                | Notice::InUse { .. }
                | Notice::SetAside { .. }
                | Notice::ManifestRebuilt { .. } => None,
            })
            .collect();
        let (one, two) = (vec!["one".to_owned()], vec!["two".to_owned()]);
        let starts = damaged.map(|frame| frame.start as u64);
        assert_eq!(found, [(starts[0], one.as_slice()), (starts[1], two.as_slice())], "header: {has_header}");
        assert_eq!(store.salvage("one").unwrap().lost, [(EntryId(1), EntryId(2))]);
        assert_eq!(store.salvage("two").unwrap().lost, [(EntryId(3), EntryId(4))]);
    }
}

#[test]
fn what_is_accepted_of_an_unknown_loss_does_not_hide_who_is_known_to_have_lost_something() {
    let world = alternating();
    let damaged = frame_of(&world, "one", 1).start;
    world.memory.damage(&world.segment(1), |bytes| bytes[damaged + 20] ^= 1).unwrap();
    world.forget_sessions(1);
    let opened = || {
        lose_index(&world);
        let (store, mut notices) = world.open();
        notices.retain(|notice| !matches!(notice, Notice::IndexRebuilt { .. }));
        (store, notices)
    };
    let offset = damaged as u64;
    let said = |others_possible| {
        let sessions = vec!["one".to_owned()];
        [Notice::Damaged { segment: 1, offset, sessions, others_possible }]
    };
    let (store, notices) = opened();
    assert_eq!(notices, said(true));
    assert!(wait(store.accept_unknown_loss(1)).unwrap());
    drop(store);
    // It is accepted that there may be others. The session still needs attention.
    let (store, notices) = opened();
    assert_eq!(notices, said(false));
    wait(store.accept_loss("one")).unwrap();
    drop(store);
    assert_eq!(opened().1, []);
}

/// All notices of an opening agree on whether entries were lost, and whose.
#[test]
fn notices_say_the_same_of_a_loss() {
    let newest = |world: &World| frame_of(world, "one", 5).start + 20;
    for (damages_header, expected, lost) in [
        (true, "segment 1 of the journal is damaged at byte 0; no entry was lost", &[][..]),
        (false, "; sessions that lost entries: one", &["one"]),
    ] {
        let world = alternating();
        let at = newest(&world);
        let damage = |bytes: &mut Vec<u8>| match damages_header {
            true => bytes[..40].fill(0),
            false => bytes[at] ^= 1,
        };
        world.memory.damage(&world.segment(1), damage).unwrap();
        let (store, notices) = world.open();
        let said = notices.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(said.iter().any(|notice| notice.contains(expected)), "{said:?}");
        assert!(notices.iter().all(|notice| notice.is_loss() != lost.is_empty()), "{said:?}");
        assert!(!said.iter().any(|notice| notice.contains("none")), "{said:?}");
        let found = store.check().unwrap().into_iter().map(|loss| loss.session).collect::<Vec<_>>();
        assert_eq!(found, lost, "{said:?}");
    }
}

/// Summarises the damage: where it begins, which sessions lost entries there, and whether others may have.
fn damages(notices: &[Notice]) -> Vec<(u64, Vec<String>, bool)> {
    let damage = |notice: &Notice| match notice {
        Notice::Damaged { offset, sessions, others_possible, .. } => {
            Some((*offset, sessions.clone(), *others_possible))
        }
        Notice::TailLost { .. }
        | Notice::TailCut { .. }
        | Notice::IndexRebuilt { .. }
        | Notice::IndexInMemory { .. }
        | Notice::ReadOnly { .. }
        | Notice::InUse { .. }
        | Notice::SetAside { .. }
        | Notice::ManifestRebuilt { .. } => None,
    };
    notices.iter().filter_map(damage).collect()
}

#[test]
fn the_footer_of_a_sealed_segment_tells_who_lost_what_where() {
    let world = World { segment_bytes: 2_500, ..World::new() };
    let store = world.open_quiet();
    for id in 0..20 {
        append(&store, "one", batch(id, &[&format!("one {id}")])).unwrap();
        append(&store, "two", batch(id, &[&format!("two {id}")])).unwrap();
    }
    drop(store);
    assert!(world.memory.paths().contains(&world.segment(2)));
    // The headers are gone, too, and the record of the segment's sessions.
    let (one, two) = (frame_of(&world, "one", 1).start, frame_of(&world, "two", 3).start);
    world
        .memory
        .damage(&world.segment(1), |bytes| [one, two].iter().for_each(|at| bytes[at + 20] ^= 1))
        .unwrap();
    world.forget_sessions(1);
    lose_index(&world);
    let (store, notices) = world.open();
    let expected = [(one as u64, vec!["one".to_owned()], false), (two as u64, vec!["two".to_owned()], false)];
    assert_eq!(damages(&notices), expected);
    assert_eq!(store.salvage("one").unwrap().lost, [(EntryId(1), EntryId(2))]);
    assert_eq!(store.salvage("two").unwrap().lost, [(EntryId(3), EntryId(4))]);
}

#[test]
fn the_record_of_a_segments_sessions_tells_all_up_to_its_own_end() {
    for (session, sequence, is_noted) in [("two", 5, true), ("two", 6, false)] {
        let world = alternating();
        let store = world.open_quiet();
        append(&store, "two", batch(6, &["two 6"])).unwrap();
        append(&store, "one", batch(6, &["one 6"])).unwrap();
        // The process is killed, so writes since the store was opened are not recorded.
        world.files.set(Fault::FailFrom { at: 1, errno: EIO });
        drop(store);
        world.files.set(Fault::None);
        let damaged = frame_of(&world, session, sequence).start;
        world.memory.damage(&world.segment(1), |bytes| bytes[damaged + 20] ^= 1).unwrap();
        lose_index(&world);
        let (_store, notices) = world.open();
        let sessions = if is_noted { vec!["two".to_owned()] } else { Vec::new() };
        assert_eq!(damages(&notices), [(damaged as u64, sessions, !is_noted)], "{session} {sequence}");
    }
}

#[test]
fn an_index_that_holds_nothing_is_filled_and_only_missed_where_there_were_entries() {
    for has_entries in [false, true] {
        for is_empty in [false, true] {
            let world = if has_entries { alternating() } else { World::new() };
            drop(world.open_quiet());
            lose_index(&world);
            if is_empty {
                std::fs::create_dir(world.index()).unwrap();
            }
            let (store, notices) = world.open();
            // An empty one was never written: its store was never closed, or was restored.
            let missed = Notice::IndexRebuilt { reason: "it was not there".to_owned() };
            assert_eq!(notices, if has_entries && !is_empty { vec![missed] } else { Vec::new() });
            let found = texts(&store, "one", 0).unwrap_or_default();
            assert_eq!(found, expected("one", if has_entries { 6 } else { 0 }));
            drop(store);
            drop(world.open_quiet());
            let names = std::fs::read_dir(world.dir.path()).unwrap();
            let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            assert!(!names.any(|name| name.starts_with("index.damaged")), "nothing was set aside");
        }
    }
}

/// An index that a crash left behind, or that somebody restored, knows a segment that has been replaced by
/// another.
#[test]
fn an_index_of_a_segment_that_is_another_now_is_built_again() {
    for is_rewritten in [true, false] {
        let aside = tempfile::tempdir().unwrap();
        let world = World { segment_bytes: 1_000, ..World::new() };
        let store = world.open_quiet();
        for id in 0..2 {
            append(&store, "one", batch(id, &[&format!("one {id}")])).unwrap();
            append(&store, "two", batch(id, &[&format!("two {id}")])).unwrap();
        }
        drop(store);
        // The index knows only the first segment, which is still written to.
        copy_dir(&world.index(), &aside.path().join("index"));
        let world = if is_rewritten {
            let store = world.open_quiet();
            wait(store.delete("two")).unwrap();
            wait(store.reclaim()).unwrap();
            assert!(!world.memory.paths().contains(&world.segment(1)), "it was rewritten");
            drop(store);
            world
        } else {
            // Or it is that of another store.
            let other = World { segment_bytes: 1_000, ..World::new() };
            let store = other.open_quiet();
            for id in 0..2 {
                append(&store, "one", batch(id, &[&format!("one {id}")])).unwrap();
            }
            append(&store, "three", batch(0, &[&"x".repeat(900)])).unwrap();
            drop(store);
            assert!(other.memory.paths().contains(&other.segment(2)), "the first segment is sealed");
            other
        };
        lose_index(&world);
        copy_dir(&aside.path().join("index"), &world.index());
        let (store, notices) = world.open();
        let [Notice::IndexRebuilt { reason }] = &notices[..] else { panic!("{notices:?}") };
        assert!(reason.starts_with("it does not fit segment "), "{reason}");
        assert_eq!(texts(&store, "one", 0).unwrap(), expected("one", 2));
        assert_eq!(store.head("two").unwrap(), None);
    }
}

/// The rest of the segment does not show the position of the deletion, but only that the session was created
/// again after it.
#[test]
fn a_lost_deletion_does_not_cost_the_session_that_was_begun_again() {
    for loses_index in [false, true] {
        for is_cut_out in [true, false] {
            let world = alternating();
            let delete = |count: u64| {
                let deleted = record::encode(&StoredRecord::Deleted).unwrap();
                let begins = write_frames(&world, vec![frame(FrameKind::Deleted, "two", count, 0, deleted)]);
                write_group(&world, &[("two", batch(0, &["new"]))]);
                usize::try_from(begins).unwrap()
            };
            let deletions = [delete(6), delete(1)];
            write_group(&world, &[("one", batch(6, &["one 6"])), ("one", batch(7, &["one 7"]))]);
            drop(world.open_quiet());
            // The deletions' headers are lost, and a later frame's: the record tells what is missing, but not
            // where.
            let later = frame_of(&world, "one", 6).start;
            let length = frame_of(&world, "two", 0).start;
            let change = |bytes: &mut Vec<u8>| {
                [deletions[0], deletions[1], later].iter().for_each(|at| bytes[at + 20] ^= 1);
                if is_cut_out {
                    let next =
                        (deletions[0] + 1..).find(|at| bytes[*at..].starts_with(&bytes[length..length + 4]));
                    drop(bytes.drain(deletions[0]..next.unwrap()));
                }
            };
            world.memory.damage(&world.segment(1), change).unwrap();
            if loses_index {
                lose_index(&world);
            }
            let (store, notices) = world.open();
            let context = format!("cut out: {is_cut_out}, index lost: {loses_index}: {notices:?}");
            assert_eq!(texts(&store, "two", 0).unwrap(), ["new"], "{context}");
            assert_eq!(store.head("two").unwrap().unwrap().lost_from, None, "{context}");
            assert_eq!(store.salvage("one").unwrap().lost, [(EntryId(6), EntryId(7))], "{context}");
        }
    }
}
