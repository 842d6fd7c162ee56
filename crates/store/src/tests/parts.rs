//! Batches that take several frames: they are atomic, whatever goes wrong in the middle. (Under test, a part
//! has at most 8 entries.)

use std::sync::Arc;

use greenroom_kernel::EntryId;

use crate::faults::{EIO, ENOSPC, Fault, Random};
use crate::parts::{PART_ENTRIES_MAX, Part};
use crate::{Appended, Batch, Notice, Store, StoreError};

use super::deletion::bytes;
use super::world::{World, append, batch, copy_dir, keyed, texts, wait};

const ENTRIES: usize = 30;

fn long(tag: &str, count: usize) -> Vec<String> {
    (0..count).map(|id| format!("{tag}{id} {}", "z".repeat(100))).collect()
}

fn of(texts: &[String], first: u64) -> Batch {
    batch(first, &texts.iter().map(String::as_str).collect::<Vec<_>>())
}

fn world() -> World {
    World { segment_bytes: 2_000, ..World::new() }
}

/// Returns the texts of the session; `None` if there is none.
fn held(store: &Store, session: &str) -> Option<Vec<String>> {
    store.head(session).unwrap()?;
    Some(texts(store, session, 0).unwrap())
}

#[test]
fn a_batch_of_any_size_is_one_batch() {
    let (world, expected) = (world(), long("a", ENTRIES));
    for store in [world.open_quiet(), Store::memory()] {
        append(&store, "one", batch(0, &["before"])).unwrap();
        let keyed = Batch { key: Some("k".to_owned()), ..of(&expected, 1) };
        let appended = append(&store, "one", keyed.clone()).unwrap();
        assert_eq!(appended, Appended::Written { first: EntryId(1), next: EntryId(31) });
        assert_eq!(append(&store, "one", keyed).unwrap(), Appended::Duplicate { first: EntryId(1) });
        append(&store, "one", batch(31, &["after"])).unwrap();
        let refused = append(&store, "one", of(&expected, 7));
        assert!(matches!(refused, Err(StoreError::Sequence { .. })), "{refused:?}");
        // Small batches, and those without entries, are ordinary batches.
        append(&store, "small", batch(0, &["x"])).unwrap();
        append(&store, "small", batch(1, &[])).unwrap();
    }
    for loses_index in [false, true, false] {
        if loses_index {
            std::fs::remove_dir_all(world.index()).unwrap();
        }
        let (store, _) = world.open();
        let found = texts(&store, "one", 0).unwrap();
        assert_eq!((found.len(), &found[1..31]), (32, &expected[..]));
        assert_eq!(store.head("one").unwrap().unwrap().entries, 32);
        assert_eq!(store.check().unwrap(), []);
        let again = Batch { key: Some("k".to_owned()), ..of(&expected, 32) };
        assert_eq!(append(&store, "one", again).unwrap(), Appended::Duplicate { first: EntryId(1) });
    }
    let limit = u64::try_from(PART_ENTRIES_MAX).unwrap();
    assert!(limit < 30, "the batch takes several frames");
}

#[test]
fn whatever_fails_in_the_middle_nothing_of_it_is_seen() {
    let expected = long("a", ENTRIES);
    let (mut broken, mut failures) = (0, 0);
    for errno in [ENOSPC, EIO] {
        for at in 1.. {
            let world = world();
            let store = world.open_quiet();
            append(&store, "other", batch(0, &["stays"])).unwrap();
            world.files.set(Fault::FailFrom { at, errno });
            let result = append(&store, "one", of(&expected, 0));
            if world.files.fired() == 0 {
                result.unwrap();
                broken += 1;
                break;
            }
            failures += 1;
            assert!(result.is_err(), "operation {at}");
            assert_eq!(held(&store, "one"), None, "operation {at}");
            assert_eq!(store.list().unwrap().len(), 1, "operation {at}");
            world.files.set(Fault::None);
            // With free space again the same call works, and a smaller one too.
            if at % 2 == 0 {
                append(&store, "one", of(&expected, 0)).unwrap();
            } else {
                append(&store, "one", batch(0, &["small"])).unwrap();
            }
            drop(store);
            if at % 3 == 0 {
                std::fs::remove_dir_all(world.index()).unwrap();
            }
            let (store, _) = world.open();
            let found = held(&store, "one").unwrap();
            assert!(found == expected || found == ["small"], "operation {at}: {found:?}");
        }
    }
    assert!(broken == 2 && failures >= 30, "{failures}");
}

#[test]
fn a_crash_in_the_middle_leaves_nothing_and_the_same_call_works_then() {
    let expected = long("a", ENTRIES);
    let mut random = Random::new(7);
    let (mut crashes, mut nothing) = (0, 0);
    for at in 1.. {
        for (loses_index, cuts_power) in [(false, false), (true, false), (false, true), (true, true)] {
            let world = world();
            let store = world.open_quiet();
            append(&store, "one", batch(0, &["before"])).unwrap();
            world.files.set(Fault::FailFrom { at, errno: EIO });
            let result = append(&store, "one", of(&expected, 1));
            let fired = world.files.fired();
            drop(store);
            world.files.set(Fault::None);
            if fired == 0 {
                assert!(crashes > 60 && nothing > 40, "{crashes}, {nothing}");
                return;
            }
            crashes += 1;
            if cuts_power {
                world.memory.power_cut(Some(&mut random));
            }
            if loses_index {
                std::fs::remove_dir_all(world.index()).unwrap();
            }
            let (store, notices) = world.open();
            let is_fine =
                |notice: &Notice| matches!(notice, Notice::IndexRebuilt { .. } | Notice::TailCut { .. });
            assert!(notices.iter().all(is_fine), "operation {at}: {notices:?}");
            let found = held(&store, "one").unwrap();
            assert!(
                found.len() == 1 || found.len() == ENTRIES + 1,
                "operation {at}: {} entries",
                found.len()
            );
            assert!(result.is_err() || found.len() > 1, "operation {at}");
            nothing += u32::from(found.len() == 1);
            if found.len() == 1 {
                append(&store, "one", of(&expected, 1)).unwrap();
            }
            drop(store);
            std::fs::remove_dir_all(world.index()).unwrap();
            let (store, _) = world.open();
            assert_eq!(texts(&store, "one", 1).unwrap(), expected, "operation {at}");
        }
    }
}

#[test]
fn an_index_from_the_middle_of_a_batch_catches_up() {
    let (world, expected) = (world(), long("a", 20));
    let aside = tempfile::tempdir().unwrap();
    let store = world.open_quiet();
    append(&store, "one", batch(0, &["before"])).unwrap();
    let crate::Inner::Disk(disk) = store.inner.as_ref() else { panic!("it is on a disk") };
    let batch = of(&expected, 1);
    let (mut rest, mut sequence) = (batch.entries.as_slice(), EntryId(1));
    for is_begun in [false, true, true] {
        let part = Part::first_of(rest, is_begun, 77, &None, &batch.head).unwrap();
        let count = part.count;
        wait(disk.append_part("one", sequence, &None, part)).unwrap();
        (rest, sequence) = (&rest[count..], EntryId(sequence.0 + count as u64));
        if rest.len() == 4 {
            disk.index.flush_staged().unwrap();
            copy_dir(&world.index(), &aside.path().join("index"));
            assert_eq!(texts(&store, "one", 0).unwrap(), ["before"]);
        }
    }
    assert!(rest.is_empty());
    drop(store);
    std::fs::remove_dir_all(world.index()).unwrap();
    copy_dir(&aside.path().join("index"), &world.index());
    let (store, notices) = world.open();
    assert_eq!(texts(&store, "one", 1).unwrap(), expected, "{notices:?}");
}

#[test]
fn another_append_in_the_middle_makes_the_batch_fail() {
    let (world, expected) = (world(), long("a", 20));
    let store = world.open_quiet();
    let crate::Inner::Disk(disk) = store.inner.as_ref() else { panic!("it is on a disk") };
    let large = of(&expected, 0);
    let first = Part::first_of(&large.entries, false, 77, &None, &large.head).unwrap();
    let next = EntryId(first.count as u64);
    wait(disk.append_part("one", EntryId(0), &None, first)).unwrap();
    append(&store, "one", batch(0, &["mine"])).unwrap();
    let second = Part::first_of(&large.entries[8..], true, 77, &None, &large.head).unwrap();
    let refused = wait(disk.append_part("one", next, &None, second));
    assert!(matches!(refused, Err(StoreError::Sequence { .. })), "{refused:?}");
    drop(store);
    std::fs::remove_dir_all(world.index()).unwrap();
    assert_eq!(texts(&world.open().0, "one", 0).unwrap(), ["mine"]);
}

/// Changes the bytes of this text wherever it occurs in the journal.
fn flip(world: &World, text: &str) {
    let mut hits = 0;
    for path in world.memory.paths() {
        let change = |bytes: &mut Vec<u8>| {
            if let Some(at) = bytes.windows(text.len()).position(|found| found == text.as_bytes()) {
                bytes[at] ^= 1;
                hits += 1;
            }
        };
        world.memory.damage(&path, change).unwrap();
    }
    assert!(hits > 0, "{text} is nowhere");
}

#[test]
fn a_damaged_part_costs_that_part() {
    // The text's number determines which frame is damaged: the first part, another one, and the last.
    for (text, loses_index) in
        [("a3 ", true), ("a12 ", true), ("a28 ", true), ("a3 ", false), ("a28 ", false)]
    {
        let (world, expected) = (world(), long("a", ENTRIES));
        let store = world.open_quiet();
        append(&store, "one", of(&expected, 0)).unwrap();
        drop(store);
        flip(&world, text);
        if loses_index {
            std::fs::remove_dir_all(world.index()).unwrap();
        } else {
            // If the opening does not find it, the first read does.
            let (store, _) = world.open();
            assert!(store.load("one", EntryId(0)).is_err() || store.check_session("one").unwrap().is_some());
        }
        let (store, notices) = world.open();
        let head = store.head("one").unwrap().unwrap();
        assert!(head.lost_from.is_some(), "{text}: {notices:?}");
        let salvaged = store.salvage("one").unwrap();
        assert!(salvaged.entries.len() >= 22, "{text}: {} entries", salvaged.entries.len());
        for entry in &salvaged.entries {
            let found = entry.kind.as_message().unwrap().text();
            assert_eq!(found, expected[usize::try_from(entry.id.0).unwrap()]);
        }
        let head = wait(store.accept_loss("one")).unwrap();
        append(&store, "one", batch(head.entries, &["on"])).unwrap();
        let before = store.salvage("one").unwrap();
        drop(store);
        std::fs::remove_dir_all(world.index()).unwrap();
        assert_eq!(world.open().0.salvage("one").unwrap(), before, "{text}");
    }
}

#[test]
fn parts_of_an_attempt_that_failed_never_mix_with_those_of_the_next() {
    let (world, expected) = (world(), long("new", ENTRIES));
    let store = world.open_quiet();
    world.files.set(Fault::FailFrom { at: 9, errno: EIO });
    append(&store, "one", of(&long("old", ENTRIES), 0)).unwrap_err();
    drop(store);
    world.files.set(Fault::None);
    let store = world.open_quiet();
    append(&store, "one", of(&expected, 0)).unwrap();
    drop(store);
    for text in ["new3 ", "new12 ", "new28 "] {
        flip(&world, text);
        std::fs::remove_dir_all(world.index()).unwrap();
        let (store, _) = world.open();
        for entry in store.salvage("one").unwrap().entries {
            let found = entry.kind.as_message().unwrap().text();
            assert_eq!(found, expected[usize::try_from(entry.id.0).unwrap()], "{text}");
        }
    }
}

#[test]
fn a_session_of_a_large_batch_is_deleted_and_its_space_given_back() {
    let (world, expected) = (world(), long("a", ENTRIES));
    let store = world.open_quiet();
    append(&store, "one", of(&expected, 0)).unwrap();
    append(&store, "two", of(&expected, 0)).unwrap();
    append(&store, "two", keyed(30, &["on"], "k")).unwrap();
    let before = bytes(&world);
    wait(store.delete("one")).unwrap();
    wait(store.reclaim()).unwrap();
    let after = bytes(&world);
    assert!(after < before - 2_000, "{before} bytes became {after}");
    assert_eq!(texts(&store, "two", 0).unwrap()[..30], expected);
    append(&store, "one", batch(0, &["again"])).unwrap();
    drop(store);
    std::fs::remove_dir_all(world.index()).unwrap();
    let (store, _) = world.open();
    assert_eq!(texts(&store, "two", 0).unwrap()[..30], expected);
    assert_eq!(texts(&store, "one", 0).unwrap(), ["again"]);
}

/// Appends the first parts of a batch with these entries, without the others. Returns the rest of the batch.
fn begin<'a>(
    store: &Store,
    session: &str,
    batch: &'a Batch,
    parts: usize,
) -> (&'a [Arc<greenroom_kernel::Entry>], u64) {
    let crate::Inner::Disk(disk) = store.inner.as_ref() else { panic!("it is on a disk") };
    let (mut rest, mut sequence) = (batch.entries.as_slice(), 0);
    for number in 0..parts {
        let part = Part::first_of(rest, number > 0, 77, &None, &batch.head).unwrap();
        let count = part.count;
        wait(disk.append_part(session, EntryId(sequence), &None, part)).unwrap();
        (rest, sequence) = (&rest[count..], sequence + count as u64);
    }
    (rest, sequence)
}

/// Returns the segment with the lowest number.
fn oldest(world: &World) -> Option<std::path::PathBuf> {
    world.memory.paths().into_iter().find(|path| path.extension().is_some_and(|found| found == "seg"))
}

#[test]
fn a_batch_goes_on_after_the_segment_of_its_first_parts_was_rewritten() {
    let (world, expected) = (World { segment_bytes: 1 << 20, ..World::new() }, long("a", 20));
    let store = world.open_quiet();
    let batch = of(&expected, 0);
    let (mut rest, mut sequence) = begin(&store, "one", &batch, 1);
    for dead in ["dead1", "dead2"] {
        append(&store, dead, self::batch(0, &["dead"])).unwrap();
    }
    // Twice, since the second time the part lies where the first one put it.
    for dead in ["dead1", "dead2"] {
        let before = oldest(&world);
        wait(store.delete(dead)).unwrap();
        wait(store.reclaim()).unwrap();
        assert_ne!(oldest(&world), before, "it was rewritten");
    }
    let crate::Inner::Disk(disk) = store.inner.as_ref() else { panic!("it is on a disk") };
    while !rest.is_empty() {
        let part = Part::first_of(rest, true, 77, &None, &batch.head).unwrap();
        let count = part.count;
        wait(disk.append_part("one", EntryId(sequence), &None, part)).unwrap();
        (rest, sequence) = (&rest[count..], sequence + count as u64);
    }
    assert_eq!(texts(&store, "one", 0).unwrap(), expected);
    drop(store);
    for loses_index in [false, true] {
        if loses_index {
            std::fs::remove_dir_all(world.index()).unwrap();
        }
        assert_eq!(texts(&world.open().0, "one", 0).unwrap(), expected);
    }
}

#[test]
fn the_space_of_a_batch_that_was_never_finished_is_given_back_after_the_next_opening() {
    let (world, expected) = (World { segment_bytes: 1 << 20, ..World::new() }, long("a", 30));
    let store = world.open_quiet();
    append(&store, "two", batch(0, &["stays"])).unwrap();
    let before = bytes(&world);
    begin(&store, "one", &of(&expected, 0), 2);
    let parts = bytes(&world) - before;
    assert!(parts > 1_600, "{parts}");
    drop(store);
    // It is reclaimed when there is nothing else to do.
    append(&world.open_quiet(), "two", batch(1, &["goes on"])).unwrap();
    assert!(bytes(&world) < before + parts / 2, "{} bytes of {before} and {parts}", bytes(&world));
    assert_eq!(held(&world.open_quiet(), "one"), None);
}
