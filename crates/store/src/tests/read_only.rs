//! A read-only store: everything in it is readable, and nothing of it is changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::world::{append, batch, texts, wait};
use crate::{Notice, Store, StoreError, StoreOptions};

fn options(dir: &Path) -> StoreOptions {
    StoreOptions { segment_bytes: 4_096, cache_bytes: 1 << 20, ..StoreOptions::new(dir) }
}

fn read(dir: &Path) -> (Store, Vec<Notice>) {
    Store::open(&StoreOptions { is_read_only: true, ..options(dir) }).unwrap()
}

/// Returns all files below a directory with their content.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    found
}

/// Creates a store of several segments, closed cleanly.
fn written() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(&options(dir.path())).unwrap();
    for number in 0..20 {
        for session in ["a", "b"] {
            append(&store, session, batch(number, &[&"word ".repeat(100)])).unwrap();
        }
    }
    wait(store.close()).unwrap();
    dir
}

#[test]
fn everything_is_told_and_nothing_is_changed() {
    let dir = written();
    std::fs::remove_file(dir.path().join("reserve")).unwrap();
    let before = files(dir.path());
    let (store, notices) = read(dir.path());
    assert_eq!(notices, [Notice::ReadOnly { dir: dir.path().to_owned() }]);
    let ids: Vec<String> = store.list().unwrap().into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["a", "b"]);
    for id in ids {
        assert_eq!(texts(&store, &id, 0).unwrap().len(), 20);
        assert_eq!(store.check_session(&id).unwrap(), None);
    }
    for refused in [
        append(&store, "a", batch(20, &["more"])).map(drop),
        append(&store, "new", batch(0, &["more"])).map(drop),
        wait(store.append("a", batch(20, &["more"]))).map(drop),
        wait(store.delete("a")),
        wait(store.accept_loss("a")).map(drop),
        wait(store.accept_unknown_loss(1)).map(drop),
        wait(store.reclaim()).map(drop),
        wait(store.fact_put("fact", b"1")),
    ] {
        assert!(matches!(refused, Err(StoreError::NotPermitted { .. })), "{refused:?}");
    }
    // Others may read it meanwhile, and nobody may write to it.
    let (other, _) = read(dir.path());
    assert_eq!(other.list().unwrap().len(), 2);
    assert!(matches!(Store::open(&options(dir.path())), Err(StoreError::InUse { .. })));
    wait(other.close()).unwrap();
    wait(store.close()).unwrap();
    assert_eq!(files(dir.path()), before);

    let (store, _) = Store::open(&options(dir.path())).unwrap();
    let (beside, notices) = read(dir.path());
    let pid = Some(std::process::id());
    assert_eq!(notices, [Notice::ReadOnly { dir: dir.path().to_owned() }, Notice::InUse { pid }]);
    append(&store, "a", batch(20, &["more"])).unwrap();
    assert_eq!(texts(&beside, "a", 0).unwrap().len(), 20, "as it stood when it was opened");
    assert_eq!(texts(&read(dir.path()).0, "a", 0).unwrap().len(), 21);
    // Data that the other store erases meanwhile can still be read here.
    wait(store.delete("b")).unwrap();
    wait(store.reclaim()).unwrap();
    assert_eq!(texts(&beside, "b", 0).unwrap().len(), 20);
    assert_eq!(read(dir.path()).0.list().unwrap().len(), 1);
}

#[test]
fn a_reader_beside_a_busy_writer_sees_whole_states() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = Store::open(&options(dir.path())).unwrap();
    append(&store, "a", batch(0, &["0"])).unwrap();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let mut read_while_written = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Segments are sealed, deleted and erased all the time.
            for (number, words) in (1..400).zip((0..60).cycle()) {
                let text = "word ".repeat(words);
                append(&store, "a", batch(number, &[&text])).unwrap();
                append(&store, "gone", batch(0, &[&text])).unwrap();
                wait(store.delete("gone")).unwrap();
                if number % 50 == 0 {
                    wait(store.reclaim()).unwrap();
                }
            }
            is_done.store(true, std::sync::atomic::Ordering::SeqCst);
        });
        let mut known = 0;
        while !is_done.load(std::sync::atomic::Ordering::SeqCst) {
            let opened = Store::open(&StoreOptions { is_read_only: true, ..options(dir.path()) });
            // Being too busy to be read is a valid result, a wrong state is not.
            let Ok((beside, notices)) = opened else { continue };
            let strange = |notice: &Notice| !matches!(notice, Notice::ReadOnly { .. } | Notice::InUse { .. });
            assert!(!notices.iter().any(strange), "{notices:?}");
            assert_eq!(beside.check().unwrap(), []);
            let there = texts(&beside, "a", 0).unwrap().len();
            assert!(there >= known, "{there} after {known}");
            known = there;
            read_while_written += 1;
        }
    });
    assert!(read_while_written >= 5, "{read_while_written} times");
    assert_eq!(texts(&read(dir.path()).0, "a", 0).unwrap().len(), 400);
}

#[test]
fn damage_is_told_and_left_as_it_is() {
    let dir = written();
    let journal = dir.path().join("journal");
    let mut segments: Vec<PathBuf> = files(&journal).into_keys().collect();
    segments.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    assert!(segments.len() >= 4, "{segments:?}");
    // A byte within the first segment, a missing second one, and a write that never finished in the last.
    let mut bytes = std::fs::read(&segments[0]).unwrap();
    bytes[600] ^= 1;
    std::fs::write(&segments[0], bytes).unwrap();
    std::fs::remove_file(&segments[1]).unwrap();
    let last = segments.last().unwrap();
    let mut bytes = std::fs::read(last).unwrap();
    bytes.extend([7; 100]);
    std::fs::write(last, bytes).unwrap();
    std::fs::remove_file(dir.path().join("lock")).unwrap();
    let before = files(dir.path());
    // The notices of a writable store without an index.
    let copy = tempfile::tempdir().unwrap();
    std::fs::create_dir(copy.path().join("journal")).unwrap();
    for (path, bytes) in files(&journal) {
        std::fs::write(copy.path().join("journal").join(path.file_name().unwrap()), bytes).unwrap();
    }
    let (written, _) = Store::open(&options(copy.path())).unwrap();
    for _ in 0..2 {
        let (store, notices) = read(dir.path());
        assert!(notices.iter().any(|notice| matches!(notice, Notice::TailCut { .. })), "{notices:?}");
        let damaged = notices.iter().filter(|notice| matches!(notice, Notice::Damaged { .. })).count();
        assert_eq!(damaged, 2, "{notices:?}");
        let losses = store.check().unwrap();
        assert_eq!(losses.len(), 2, "both sessions lost something: {losses:?}");
        assert_eq!(losses, written.check().unwrap());
        for id in ["a", "b"] {
            let salvaged = store.salvage(id).unwrap();
            assert!(!salvaged.entries.is_empty() && !salvaged.lost.is_empty());
            assert_eq!(salvaged, written.salvage(id).unwrap());
        }
        wait(store.close()).unwrap();
        assert_eq!(files(dir.path()), before);
    }
}

#[test]
fn a_directory_that_is_not_there_is_not_created() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("none");
    let opened = Store::open(&StoreOptions { is_read_only: true, ..options(&path) });
    assert!(matches!(opened, Err(StoreError::Io { .. })), "{opened:?}");
    assert!(!path.exists());
    // An empty one holds nothing.
    let (store, _) = read(dir.path());
    assert!(store.list().unwrap().is_empty());
    drop(store);
    assert_eq!(files(dir.path()).len(), 0);
}
