//! Processes that end in the middle of an operation: everything that was acknowledged is there, and nothing that was
//! deleted comes back.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::faults::{Fault, FaultyFiles};
use crate::files::RealFiles;
use crate::{Store, StoreOptions};

use super::world::{append, batch, copy_dir, texts, wait};

/// This file holds the number of the operation at which the child aborts. It is in the child's working directory, which
/// is also the store's.
const ABORT_AT: &str = "abort_at";

/// If this file exists, the child deletes and reclaims instead of appending.
const RECLAIMS: &str = "reclaims";

fn options(dir: &Path, files: FaultyFiles) -> StoreOptions {
    // A rewritten segment has several pieces.
    let segment_bytes = if dir.join(RECLAIMS).exists() { 4_000 } else { 2_000 };
    StoreOptions { segment_bytes, files: Arc::new(files), ..StoreOptions::new(dir) }
}

/// Opens the store in a process that has not ended.
fn open(dir: &Path) -> Store {
    Store::open(&options(dir, FaultyFiles::new(Arc::new(RealFiles)))).unwrap().0
}

/// The child process; not a test by itself. It writes the number of acknowledged entries to a file.
#[test]
fn child() {
    let Ok(at) = std::fs::read_to_string(ABORT_AT) else { return };
    let dir = Path::new(".");
    let files = FaultyFiles::new(Arc::new(RealFiles));
    files.set(Fault::AbortAt(at.parse().unwrap()));
    let (store, _) = Store::open(&options(dir, files)).unwrap();
    if dir.join(RECLAIMS).exists() {
        wait(store.delete("gone")).unwrap();
        std::fs::write(dir.join("acknowledged"), "deleted").unwrap();
        wait(store.reclaim()).unwrap();
        return;
    }
    let next = store.head("one").unwrap().map_or(0, |head| head.entries);
    for id in next..next + 12 {
        append(&store, "one", batch(id, &[&"x".repeat(300)])).unwrap();
        std::fs::write(dir.join("acknowledged"), (id + 1).to_string()).unwrap();
    }
    wait(store.close()).unwrap();
}

/// Runs the child in this directory. Returns whether it aborted at the operation with this number.
fn aborts(dir: &Path, at: u64) -> bool {
    std::fs::write(dir.join(ABORT_AT), at.to_string()).unwrap();
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "tests::crash::child"])
        .current_dir(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    !ended.success()
}

#[test]
fn a_process_that_ends_at_any_operation_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut aborted = 0;
    for at in 1..=30 {
        aborted += u32::from(aborts(dir.path(), at));
        let store = open(dir.path());
        let noted = std::fs::read_to_string(dir.path().join("acknowledged")).unwrap_or_default();
        let acknowledged: usize = noted.parse().unwrap_or(0);
        let found = texts(&store, "one", 0).unwrap_or_default().len();
        assert!(found >= acknowledged, "operation {at}: {found} of {acknowledged}");
        assert!(found <= acknowledged + 1, "operation {at}: {found} of {acknowledged}");
        std::fs::write(dir.path().join("acknowledged"), found.to_string()).unwrap();
    }
    assert!(aborted >= 25, "{aborted}");
}

/// Unlike a disk that fails, this leaves the index as it was in the middle of a segment's relocation.
#[test]
fn a_process_that_ends_at_any_operation_of_a_reclaim_loses_nothing_and_brings_nothing_back() {
    let text = |session: &str, id: u64| format!("{session}{id} {}", "x".repeat(250));
    let prepared = tempfile::tempdir().unwrap();
    std::fs::write(prepared.path().join(RECLAIMS), "").unwrap();
    let store = open(prepared.path());
    for (id, session) in (0..5).flat_map(|id| [(id, "gone"), (id, "live")]) {
        append(&store, session, batch(id, &[&text(session, id)])).unwrap();
    }
    drop(store);
    for at in 1.. {
        let dir = tempfile::tempdir().unwrap();
        copy_dir(prepared.path(), dir.path());
        let is_aborted = aborts(dir.path(), at);
        let is_deleted = dir.path().join("acknowledged").exists();
        for _ in 0..2 {
            let store = open(dir.path());
            let expected: Vec<String> = (0..5).map(|id| text("live", id)).collect();
            assert_eq!(texts(&store, "live", 0).unwrap(), expected, "operation {at}");
            assert_eq!(store.check().unwrap(), [], "operation {at}");
            let is_there = store.head("gone").unwrap().is_some();
            assert!(!is_deleted || !is_there, "operation {at}: what was deleted came back");
            if !is_there {
                wait(store.reclaim()).unwrap();
            }
        }
        if !is_aborted {
            assert!(at > 30, "{at} operations");
            return;
        }
    }
}
