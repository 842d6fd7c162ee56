//! Disks that are full or fail: errors are typed, everything acknowledged is there, and appends work again
//! once the disk does.

use crate::faults::{EIO, ENOSPC, Fault};
use crate::{Store, StoreError};

use super::world::{World, append, batch, texts, wait};

const APPENDS: u64 = 14;

fn text(id: u64) -> String {
    format!("{id} {}", "x".repeat(400))
}

/// Appends all entries, each until it works but at most `attempts` times, and checks the class of each failure.
fn append_all(store: &Store, attempts: usize, is_expected: impl Fn(&StoreError) -> bool) {
    for id in 0..APPENDS {
        let mut left = attempts;
        while let Err(error) = append(store, "one", batch(id, &[&text(id)])) {
            assert!(is_expected(&error) && error.is_retryable(), "{error:?}");
            // Reading still works.
            assert_eq!(texts(store, "one", 0).map_or(0, |texts| texts.len() as u64), id);
            left -= 1;
            assert!(left > 0, "{error:?} again and again");
        }
    }
}

fn check_whole(world: &World) {
    let expected: Vec<String> = (0..APPENDS).map(text).collect();
    assert_eq!(texts(&world.open_quiet(), "one", 0).unwrap(), expected);
    // The journal alone has the same content.
    std::fs::remove_dir_all(world.index()).unwrap();
    assert_eq!(texts(&world.open().0, "one", 0).unwrap(), expected);
}

fn small_world() -> World {
    World { segment_bytes: 2_048, ..World::new() }
}

/// Appends all entries once for each operation, with that operation failing. Returns how many faults fired.
fn each_operation(fault: impl Fn(u64) -> Fault, is_expected: impl Fn(&StoreError) -> bool) -> u64 {
    let mut fired = 0;
    for at in 1.. {
        let world = small_world();
        let store = world.open_quiet();
        world.files.set(fault(at));
        append_all(&store, 2, &is_expected);
        let has_fired = world.files.fired() > 0;
        let operations = world.files.operations();
        world.files.set(Fault::None);
        drop(store);
        check_whole(&world);
        fired += u64::from(has_fired);
        if at > operations {
            break;
        }
    }
    fired
}

#[test]
fn each_operation_in_turn_finds_the_disk_full() {
    let fired = each_operation(
        |at| Fault::FailOnce { at, errno: ENOSPC },
        |error| matches!(error, StoreError::Full { .. }),
    );
    assert!(fired > 30, "{fired}");
}

#[test]
fn each_operation_in_turn_fails() {
    let fired = each_operation(
        |at| Fault::FailOnce { at, errno: EIO },
        |error| matches!(error, StoreError::Io { .. }),
    );
    assert!(fired > 30, "{fired}");
}

#[test]
fn each_write_in_turn_is_torn() {
    let fired = each_operation(|at| Fault::TornWrite { at }, |error| matches!(error, StoreError::Io { .. }));
    assert!(fired > 15, "{fired}");
}

#[test]
fn each_write_in_turn_is_short_and_nobody_notices() {
    let fired = each_operation(|at| Fault::ShortWrite { at }, |_| false);
    assert!(fired > 15, "{fired}");
}

#[test]
fn a_disk_that_stays_full_from_any_operation_on_can_be_read_and_works_again_after() {
    for at in 1..60 {
        let world = small_world();
        let store = world.open_quiet();
        world.files.set(Fault::FailFrom { at, errno: ENOSPC });
        let mut written = 0;
        while written < APPENDS && append(&store, "one", batch(written, &[&text(written)])).is_ok() {
            written += 1;
        }
        if written < APPENDS {
            for _ in 0..5 {
                let refused = append(&store, "one", batch(written, &[&text(written)]));
                assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
                let other = append(&store, "two", batch(0, &["x"]));
                assert!(matches!(other, Err(StoreError::Full { .. })), "{other:?}");
            }
            assert!(world.files.fired() > 0);
            assert_eq!(texts(&store, "one", 0).map_or(0, |texts| texts.len() as u64), written);
        }
        world.files.set(Fault::None);
        for id in written..APPENDS {
            append(&store, "one", batch(id, &[&text(id)])).unwrap();
        }
        drop(store);
        check_whole(&world);
    }
}

#[test]
fn a_group_that_fails_fails_for_all_in_it() {
    let world = World::new();
    let store = world.open_quiet();
    append(&store, "one", batch(0, &["a"])).unwrap();
    world.files.set(Fault::FailFrom { at: 1, errno: EIO });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..50)
            .map(|task| {
                let store = store.clone();
                tokio::spawn(async move { store.append(&format!("s{task}"), batch(0, &["x"])).await })
            })
            .collect();
        for task in tasks {
            assert!(matches!(task.await.unwrap(), Err(StoreError::Io { .. })));
        }
    });
    world.files.set(Fault::None);
    assert_eq!(store.list().unwrap().len(), 1);
    append(&store, "s1", batch(0, &["x"])).unwrap();
    drop(store);
    assert_eq!(world.open_quiet().list().unwrap().len(), 2);
}

#[test]
fn opening_on_a_failing_disk_is_an_error_and_works_later() {
    let world = small_world();
    let mut refused = 0;
    for at in 1.. {
        world.files.set(Fault::FailFrom { at, errno: EIO });
        match world.try_open() {
            Ok((store, _)) => {
                drop(store);
                if world.files.fired() == 0 {
                    break;
                }
            }
            Err(error) => {
                assert!(error.is_retryable(), "{error:?}");
                refused += 1;
            }
        }
    }
    assert!(refused > 3, "{refused}");
    world.files.set(Fault::None);
    let (store, _) = world.open();
    append(&store, "one", batch(0, &["a"])).unwrap();
    drop(store);
    assert_eq!(texts(&world.open_quiet(), "one", 0).unwrap(), ["a"]);
}

#[test]
fn a_deletion_that_cannot_be_written_has_not_happened() {
    let world = World::new();
    let store = world.open_quiet();
    append(&store, "one", batch(0, &["a"])).unwrap();
    world.files.set(Fault::FailFrom { at: 1, errno: ENOSPC });
    assert!(matches!(wait(store.delete("one")), Err(StoreError::Full { .. })));
    assert_eq!(texts(&store, "one", 0).unwrap(), ["a"]);
    world.files.set(Fault::None);
    wait(store.delete("one")).unwrap();
    assert_eq!(store.head("one").unwrap(), None);
}
