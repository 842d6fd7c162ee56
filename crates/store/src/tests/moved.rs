//! A directory that is moved, replaced or removed while a store has it open.

use std::collections::BTreeMap;
use std::ffi::OsString;

use super::world::{append, batch, copy_dir, texts};
use crate::{Notice, Store, StoreError, StoreOptions};

fn open(dir: &std::path::Path) -> Store {
    let options = StoreOptions { segment_bytes: 4_096, cache_bytes: 1 << 20, ..StoreOptions::new(dir) };
    let (store, notices) = Store::open(&options).unwrap();
    // A copy of a store in use, and one that was not closed cleanly, may lack the newest part of the index,
    // which is rebuilt.
    assert!(notices.iter().all(|notice| matches!(notice, Notice::IndexRebuilt { .. })), "{notices:?}");
    store
}

/// Returns the files of the journal.
fn journal(dir: &std::path::Path) -> BTreeMap<OsString, Vec<u8>> {
    let files = std::fs::read_dir(dir.join("journal")).unwrap().map(Result::unwrap);
    files.map(|file| (file.file_name(), std::fs::read(file.path()).unwrap())).collect()
}

#[test]
fn what_is_there_then_is_not_touched_and_nothing_is_acknowledged() {
    let place = tempfile::tempdir().unwrap();
    let (dir, moved) = (place.path().join("store"), place.path().join("moved"));
    let first = open(&dir);
    append(&first, "one", batch(0, &["a"])).unwrap();
    std::fs::rename(&dir, &moved).unwrap();
    let refused = append(&first, "one", batch(1, &["nowhere"]));
    assert!(matches!(&refused, Err(StoreError::Replaced { dir: at }) if *at == dir), "{refused:?}");
    assert_eq!(texts(&first, "one", 0).unwrap(), ["a"], "it can be read");
    // A copy takes its place, and continues while the first one ends.
    copy_dir(&moved, &dir);
    let second = open(&dir);
    append(&second, "one", batch(1, &["b"])).unwrap();
    assert!(matches!(append(&first, "one", batch(1, &["nowhere"])), Err(StoreError::Replaced { .. })));
    drop(first);
    append(&second, "one", batch(2, &["c"])).unwrap();
    drop(second);
    let second = open(&dir);
    assert_eq!(texts(&second, "one", 0).unwrap(), ["a", "b", "c"]);
    // Removed, and created again.
    std::fs::remove_dir_all(&dir).unwrap();
    let third = open(&dir);
    append(&third, "two", batch(0, &["x"])).unwrap();
    assert!(matches!(append(&second, "one", batch(3, &["nowhere"])), Err(StoreError::Replaced { .. })));
    let before = journal(&dir);
    drop(second);
    assert!(journal(&dir) == before, "the end of the second one changes nothing here");
    drop(third);
    assert_eq!(texts(&open(&dir), "two", 0).unwrap(), ["x"]);
    // The moved store is unchanged.
    assert_eq!(texts(&open(&moved), "one", 0).unwrap(), ["a"]);
}

/// A directory that is moved back is the same one.
#[test]
fn a_directory_that_comes_back_goes_on() {
    let place = tempfile::tempdir().unwrap();
    let (dir, moved) = (place.path().join("store"), place.path().join("moved"));
    let store = open(&dir);
    std::fs::rename(&dir, &moved).unwrap();
    assert!(append(&store, "one", batch(0, &["nowhere"])).is_err());
    std::fs::rename(&moved, &dir).unwrap();
    append(&store, "one", batch(0, &["a"])).unwrap();
    drop(store);
    assert_eq!(texts(&open(&dir), "one", 0).unwrap(), ["a"]);
}
