//! Deleting sessions and giving back their space, with a crash at every step.

use crate::faults::{EIO, Fault};
use crate::{Notice, Store};

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
        wait(store.learned_put("fact", &id.to_le_bytes())).unwrap();
    }
}

fn check_live(store: &Store) {
    let expected: Vec<String> = (0..12).map(|id| text("live", id)).collect();
    assert_eq!(texts(store, "live", 0).unwrap(), expected);
    let again = append(store, "live", keyed(12, &["x"], "live3")).unwrap();
    assert!(matches!(again, crate::Appended::Duplicate { first } if first.0 == 3), "{again:?}");
    assert_eq!(store.learned_get("fact").unwrap(), Some(11_u64.to_le_bytes().to_vec()));
    assert_eq!(store.head("gone").unwrap(), None);
    assert_eq!(texts(store, "dead", 0).unwrap(), ["new"]);
}

/// How many bytes the store's files have.
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

/// Deletes two of the sessions, and begins one of them again.
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

/// The journal's files that hold this text.
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
        // It is full to the last byte.
        world.memory.leave_room(200_000);
        let mut id = 0;
        for length in [2_000, 100, 0] {
            while append(&store, "large", batch(id, &[&"l".repeat(length)])).is_ok() {
                id += 1;
            }
        }
        assert!(id >= 90, "{id}");
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
