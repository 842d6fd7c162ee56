//! Deletion of sessions and reclaiming of their space, with a crash at every step.

use std::sync::Arc;

use greenroom_kernel::EntryId;

use crate::faults::{EIO, Fault};
use crate::journal::stream::WINDOW_BYTES;
use crate::journal::{FrameKind, SegmentHeader, scan};
use crate::{Appended, Notice, Store, StoreError};

use super::world::{World, append, batch, copy_dir, keyed, texts, wait};

fn text(session: &str, id: u64) -> String {
    format!("{session}{id} {}", "z".repeat(300))
}

/// Appends three sessions, whose frames alternate over several segments, and learns a fact again and again.
fn fill(store: &Store) {
    for id in 0..12 {
        for session in ["dead", "live", "gone"] {
            let key = format!("{session}{id}");
            append(store, session, keyed(id, &[&text(session, id)], &key)).unwrap();
        }
        wait(store.fact_put("fact", &id.to_le_bytes())).unwrap();
    }
}

fn check_live(store: &Store) {
    let expected: Vec<String> = (0..12).map(|id| text("live", id)).collect();
    assert_eq!(texts(store, "live", 0).unwrap(), expected);
    let again = append(store, "live", keyed(12, &["x"], "live3")).unwrap();
    assert!(matches!(again, crate::Appended::Duplicate { first } if first.0 == 3), "{again:?}");
    assert_eq!(store.fact_get("fact").unwrap(), Some(11_u64.to_le_bytes().to_vec()));
    assert_eq!(store.head("gone").unwrap(), None);
    assert_eq!(texts(store, "dead", 0).unwrap(), ["new"]);
}

/// Returns the total size of the store's files.
pub(super) fn bytes(world: &World) -> usize {
    let length = |path: &std::path::PathBuf| {
        crate::files::Files::open(&world.memory, path, crate::files::OpenMode::Read)
            .unwrap()
            .length()
            .unwrap()
    };
    world.memory.paths().iter().map(|path| usize::try_from(length(path)).unwrap()).sum()
}

fn prepared() -> (World, Store) {
    let world = World { segment_bytes: 3_000, ..World::new() };
    let store = world.open_quiet();
    fill(&store);
    (world, store)
}

/// Deletes two of the sessions, and creates one of them again.
fn delete(store: &Store) {
    wait(store.delete("dead")).unwrap();
    wait(store.delete("gone")).unwrap();
    append(store, "dead", batch(0, &["new"])).unwrap();
}

#[test]
fn the_space_of_deleted_sessions_is_given_back() {
    let (world, store) = prepared();
    let before = bytes(&world);
    delete(&store);
    wait(store.reclaim()).unwrap();
    let after = bytes(&world);
    assert!(after < before / 2, "{before} bytes became {after}");
    check_live(&store);
    assert_eq!(wait(store.reclaim()).unwrap(), 0, "once is enough");
    drop(store);
    let store = world.open_quiet();
    check_live(&store);
    drop(store);
    std::fs::remove_dir_all(world.index()).unwrap();
    let (store, notices) = world.open();
    assert!(matches!(notices.as_slice(), [Notice::IndexRebuilt { .. }]), "{notices:?}");
    check_live(&store);
}

#[test]
fn it_happens_by_itself() {
    let (world, store) = prepared();
    let before = bytes(&world);
    delete(&store);
    drop(store);
    assert!(bytes(&world) < before / 2);
    check_live(&world.open_quiet());
}

#[test]
fn a_crash_at_any_step_of_a_reclaim_loses_nothing_and_brings_nothing_back() {
    let mut crashes = 0;
    for at in 1.. {
        // Each step is tried with and without a power cut. The index is lost at every other one.
        for (loses_index, cuts_power) in [(at % 2 == 0, false), (at % 2 == 1, true)] {
            let (world, store) = prepared();
            // The deletions are written, and then every operation from number `at` of the reclaim on fails.
            let aside = tempfile::tempdir().unwrap();
            world.files.set(Fault::FailFrom { at: 1_000_000, errno: EIO });
            wait(store.delete("dead")).unwrap();
            drop(store);
            world.files.set(Fault::None);
            let store = world.open_quiet();
            copy_dir(&world.index(), &aside.path().join("index"));
            let first = 4; // one write and one sync for each of the next two
            world.files.set(Fault::FailFrom { at: first + at, errno: EIO });
            append(&store, "dead", batch(0, &["new"])).unwrap();
            let deleted = wait(store.delete("gone"));
            drop(wait(store.reclaim()));
            let fired = world.files.fired();
            drop(store);
            world.files.set(Fault::None);
            if deleted.is_err() || fired == 0 {
                if fired == 0 {
                    assert!(crashes > 30, "{crashes}");
                    return;
                }
                continue;
            }
            crashes += 1;
            if cuts_power {
                world.memory.power_cut(None);
            }
            if loses_index {
                std::fs::remove_dir_all(world.index()).unwrap();
            }
            let (store, notices) = world.open();
            let is_fine =
                |notice: &Notice| matches!(notice, Notice::IndexRebuilt { .. } | Notice::TailCut { .. });
            assert!(notices.iter().all(is_fine), "operation {at}: {notices:?}");
            check_live(&store);
            wait(store.reclaim()).unwrap();
            check_live(&store);
            drop(store);
            check_live(&world.open_quiet());
        }
    }
}

/// A segment that is rewritten is never in memory as a whole, however long it is.
#[test]
fn a_segment_is_rewritten_in_pieces() {
    for entries in [40, 400] {
        let world = World { segment_bytes: 1 << 20, ..World::new() };
        let store = world.open_quiet();
        for session in ["dead", "live"] {
            for id in 0..entries {
                append(&store, session, batch(id, &[&text(session, id)])).unwrap();
            }
        }
        let before = bytes(&world);
        wait(store.delete("dead")).unwrap();
        world.files.set(Fault::None);
        wait(store.reclaim()).unwrap();
        assert!(bytes(&world) < before * 6 / 10, "{} of {before} bytes are left", bytes(&world));
        let (largest, frame) = (world.files.largest(), 600);
        assert!(largest < WINDOW_BYTES + frame, "{entries} entries: {largest} bytes at once");
        let expected: Vec<String> = (0..entries).map(|id| text("live", id)).collect();
        assert_eq!(texts(&store, "live", 0).unwrap(), expected);
    }
}

#[test]
fn readers_read_on_during_a_reclaim() {
    let (_world, store) = prepared();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while !is_done.load(std::sync::atomic::Ordering::SeqCst) || reads == 0 {
                assert_eq!(texts(&store, "live", 0).unwrap().len(), 12);
                reads += 1;
            }
        });
        delete(&store);
        for round in 0..20 {
            append(&store, "more", batch(0, &[&text("more", round)])).unwrap();
            wait(store.delete("more")).unwrap();
            wait(store.reclaim()).unwrap();
        }
        is_done.store(true, std::sync::atomic::Ordering::SeqCst);
        reader.join().unwrap();
    });
}

#[test]
fn a_crash_right_after_a_deletion_does_not_bring_the_session_back() {
    let world = World::new();
    let store = world.open_quiet();
    append(&store, "one", batch(0, &["a"])).unwrap();
    append(&store, "two", batch(0, &["b"])).unwrap();
    wait(store.delete("one")).unwrap();
    world.files.set(Fault::FailFrom { at: 1, errno: EIO });
    drop(store);
    world.files.set(Fault::None);
    world.memory.power_cut(None);
    std::fs::remove_dir_all(world.index()).unwrap();
    let (store, _) = world.open();
    assert_eq!(store.list().unwrap().len(), 1);
}

/// Returns the journal's files that contain this text.
fn holding(world: &World, text: &str) -> Vec<std::path::PathBuf> {
    let mut paths = world.memory.paths();
    paths.retain(|path| {
        let mut is_held = false;
        let look = |bytes: &mut Vec<u8>| {
            is_held = bytes.windows(text.len()).any(|found| found == text.as_bytes());
        };
        world.memory.damage(path, look).unwrap();
        is_held
    });
    paths
}

#[test]
fn what_is_deleted_is_erased_from_the_active_segment_too() {
    for others in [0_u64, 3, 40] {
        let world = World { segment_bytes: 1 << 20, ..World::new() };
        let store = world.open_quiet();
        for id in 0..others {
            append(&store, "live", batch(id, &[&text("live", id)])).unwrap();
        }
        append(&store, "dead", batch(0, &["a secret"])).unwrap();
        assert_eq!(holding(&world, "a secret"), [world.segment(1)]);
        wait(store.delete("dead")).unwrap();
        wait(store.reclaim()).unwrap();
        let left = holding(&world, "a secret");
        assert!(left.is_empty(), "beside {others} entries: {left:?}");
        append(&store, "live", batch(others, &[&text("live", others)])).unwrap();
        drop(store);
        for loses_index in [false, true] {
            if loses_index {
                std::fs::remove_dir_all(world.index()).unwrap();
            }
            let (store, _) = world.open();
            let expected: Vec<String> = (0..=others).map(|id| text("live", id)).collect();
            assert_eq!(texts(&store, "live", 0).unwrap(), expected);
            assert_eq!(store.head("dead").unwrap(), None);
        }
    }
}

#[test]
fn a_full_disk_becomes_usable_by_deleting() {
    for reserve_bytes in [0, 20_000] {
        let world = World { segment_bytes: 1 << 20, reserve_bytes, ..World::new() };
        let store = world.open_quiet();
        for id in 0..10 {
            append(&store, "live", batch(id, &[&text("live", id)])).unwrap();
        }
        world.memory.leave_room(200_000);
        let mut id = 0;
        for length in [2_000, 100, 0] {
            while append(&store, "large", batch(id, &[&"l".repeat(length)])).is_ok() {
                id += 1;
            }
        }
        assert!(id >= 90, "{id}");
        // It is full to the last byte.
        world.memory.leave_room(0);
        assert!(append(&store, "live", batch(10, &[""])).is_err());
        let deleted = wait(store.delete("large"));
        if reserve_bytes == 0 {
            assert!(deleted.is_err(), "without a reserve there is no room to note it");
            continue;
        }
        deleted.unwrap();
        wait(store.reclaim()).unwrap();
        for id in 10..30 {
            append(&store, "live", batch(id, &[&text("live", id)])).unwrap();
        }
        drop(store);
        let store = world.open_quiet();
        let expected: Vec<String> = (0..30).map(|id| text("live", id)).collect();
        assert_eq!((texts(&store, "live", 0).unwrap(), store.list().unwrap().len()), (expected, 1));
        let reserve = world.dir.path().join("reserve");
        assert!(world.memory.paths().contains(&reserve), "the reserve is made again");
    }
}

/// Data deleted while there was no space to rewrite its segment is erased automatically: after later writes,
/// and when the store is opened again, even with a rebuilt index.
#[test]
fn what_was_deleted_on_a_full_disk_is_erased_by_itself_once_there_is_room() {
    for (reopens, loses_index) in [(false, false), (true, false), (true, true)] {
        let world = World { segment_bytes: 1 << 20, reserve_bytes: 20_000, ..World::new() };
        let store = world.open_quiet();
        append(&store, "dead", batch(0, &["a secret"])).unwrap();
        for id in 0..200 {
            append(&store, "live", batch(id, &[&text("live", id)])).unwrap();
        }
        world.memory.leave_room(0);
        wait(store.delete("dead")).unwrap();
        let refused = wait(store.reclaim()).unwrap_err();
        assert!(matches!(refused, StoreError::Full { .. }), "{refused}");
        assert_eq!(holding(&world, "a secret"), [world.segment(1)], "nothing can be done yet");
        assert_eq!(store.head("dead").unwrap(), None);
        let (store, mut next) = if reopens {
            drop(store);
            if loses_index {
                std::fs::remove_dir_all(world.index()).unwrap();
            }
            world.memory.leave_room(10_000_000);
            let (store, _) = world.open();
            // The first command is performed after that.
            wait(store.fact_put("fact", b"x")).unwrap();
            (store, 200)
        } else {
            world.memory.leave_room(10_000_000);
            let mut next = 200;
            while !holding(&world, "a secret").is_empty() {
                append(&store, "live", batch(next, &[&text("live", next)])).unwrap();
                next += 1;
                assert!(next < 1_000, "it is not erased by itself");
            }
            (store, next)
        };
        assert!(holding(&world, "a secret").is_empty(), "{loses_index}");
        append(&store, "live", batch(next, &[&text("live", next)])).unwrap();
        next += 1;
        drop(store);
        let store = world.open_quiet();
        let expected: Vec<String> = (0..next).map(|id| text("live", id)).collect();
        assert_eq!(texts(&store, "live", 0).unwrap(), expected);
        assert_eq!(store.head("dead").unwrap(), None);
    }
}

/// Returns the frames of all segments, in order: kind, session and sequence number.
fn frames(world: &World) -> Vec<(FrameKind, String, u64)> {
    let mut paths = world.memory.paths();
    paths.retain(|path| path.extension().is_some_and(|found| found == "seg"));
    let mut found = Vec::new();
    for path in paths {
        let look = |bytes: &mut Vec<u8>| {
            let header = SegmentHeader::decode(bytes).unwrap().unwrap();
            let scanned = scan(bytes, header.id, header.seed, None);
            let frames = scanned.frames.into_iter().map(|(frame, _)| frame);
            let facts = frames.map(|frame| (frame.kind, frame.session.to_string(), frame.sequence));
            found.push((header.order, facts.collect::<Vec<_>>()));
        };
        world.memory.damage(&path, look).unwrap();
    }
    found.sort_by_key(|(order, _)| *order);
    found.into_iter().flat_map(|(_, facts)| facts).collect()
}

/// Two sessions, for [`rewrite`].
fn begin_dead(store: &Store) {
    for dead in ["dead1", "dead2"] {
        append(store, dead, batch(0, &["dead"])).unwrap();
    }
}

/// Deletes one of the sessions, and so rewrites the segment that it was in.
fn rewrite(store: &Store, dead: &str) {
    wait(store.delete(dead)).unwrap();
    wait(store.reclaim()).unwrap();
}

#[test]
fn a_rewritten_segment_keeps_the_frames_that_are_needed_and_no_others() {
    let world = World { segment_bytes: 1 << 20, ..World::new() };
    let store = world.open_quiet();
    begin_dead(&store);
    append(&store, "one", keyed(0, &["first"], "with an entry")).unwrap();
    // Batches without entries: one is needed for its key, one for nothing, and one has the newest head.
    append(&store, "one", keyed(1, &[], "without an entry")).unwrap();
    let titled = |title: &str| {
        let mut batch = batch(1, &[]);
        Arc::make_mut(&mut batch.head).title = Some(title.to_owned());
        batch
    };
    append(&store, "one", titled("old")).unwrap();
    append(&store, "one", titled("new")).unwrap();
    wait(store.fact_put("fact", b"old")).unwrap();
    wait(store.fact_put("fact", b"new")).unwrap();
    wait(store.fact_put("gone", b"x")).unwrap();
    wait(store.fact_put("gone", b"")).unwrap();
    let one = |sequence| (FrameKind::Append, "one".to_owned(), sequence);
    let needed = vec![
        one(0),
        one(1),
        one(1),
        (FrameKind::Learned, String::new(), 0),
        (FrameKind::Learned, String::new(), 0),
    ];
    // Twice, since the second time the frames lie where the first one put them.
    for dead in ["dead1", "dead2"] {
        rewrite(&store, dead);
        let mut left = frames(&world);
        left.retain(|(kind, session, _)| *kind != FrameKind::Deleted && session != "dead2");
        assert_eq!(left, needed);
    }
    drop(store);
    for loses_index in [false, true] {
        if loses_index {
            std::fs::remove_dir_all(world.index()).unwrap();
        }
        let (store, _) = world.open();
        assert_eq!(store.fact_keys("").unwrap(), ["fact"]);
        assert_eq!(store.fact_get("gone").unwrap(), None);
        assert_eq!(texts(&store, "one", 0).unwrap(), ["first"]);
        assert_eq!(store.head("one").unwrap().unwrap().title.as_deref(), Some("new"));
        assert_eq!(store.fact_get("fact").unwrap().as_deref(), Some(&b"new"[..]));
        for (key, first) in [("with an entry", 0), ("without an entry", 1)] {
            let again = append(&store, "one", keyed(1, &["twice"], key)).unwrap();
            assert_eq!(again, Appended::Duplicate { first: EntryId(first) }, "{key}");
        }
    }
}

#[test]
fn what_says_that_a_loss_was_accepted_is_kept_and_what_said_that_it_was_found_is_not() {
    for (is_accepted, goes_on) in [(false, false), (true, false), (true, true)] {
        let world = World { segment_bytes: 1 << 20, ..World::new() };
        let store = world.open_quiet();
        for id in 0..3 {
            append(&store, "one", batch(id, &[&format!("one {id}")])).unwrap();
        }
        drop(store);
        let damage = |bytes: &mut Vec<u8>| {
            let at = bytes.windows(5).position(|found| found == b"one 2").unwrap();
            bytes[at] ^= 1;
        };
        world.memory.damage(&world.segment(1), damage).unwrap();
        let (store, _) = world.open();
        begin_dead(&store);
        let mut kept = FrameKind::Quarantined;
        if is_accepted {
            wait(store.accept_loss("one")).unwrap();
            kept = FrameKind::LossAccepted;
        }
        if goes_on {
            append(&store, "one", batch(2, &["one 2 again"])).unwrap();
        }
        for dead in ["dead1", "dead2"] {
            rewrite(&store, dead);
            let mut left = frames(&world);
            left.retain(|(kind, ..)| [FrameKind::Quarantined, FrameKind::LossAccepted].contains(kind));
            assert_eq!(left, [(kept, "one".to_owned(), 2)], "accepted: {is_accepted}, goes on: {goes_on}");
        }
        drop(store);
        std::fs::remove_dir_all(world.index()).unwrap();
        let (store, _) = world.open();
        let head = store.head("one").unwrap().unwrap();
        let lost_from = (!is_accepted).then_some(EntryId(2));
        assert_eq!((head.lost_from, head.entries), (lost_from, 2 + u64::from(goes_on)));
    }
}
