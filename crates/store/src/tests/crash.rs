//! Processes that end in the middle of an operation: everything that was acknowledged is there.

use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::faults::{Fault, FaultyFiles};
use crate::files::RealFiles;
use crate::{Store, StoreOptions};

use super::world::{append, batch, texts, wait};

/// This file holds the number of the operation at which the child aborts. It is in the child's working directory, which
/// is also the store's.
const ABORT_AT: &str = "abort_at";

fn options(dir: &std::path::Path, files: FaultyFiles) -> StoreOptions {
    StoreOptions { segment_bytes: 2_000, files: Arc::new(files), ..StoreOptions::new(dir) }
}

/// The child process; not a test by itself. It writes the number of acknowledged entries to a file.
#[test]
fn child() {
    let Ok(at) = std::fs::read_to_string(ABORT_AT) else { return };
    let dir = std::path::Path::new(".");
    let files = FaultyFiles::new(Arc::new(RealFiles));
    files.set(Fault::AbortAt(at.parse().unwrap()));
    let (store, _) = Store::open(&options(dir, files)).unwrap();
    let next = store.head("one").unwrap().map_or(0, |head| head.entries);
    for id in next..next + 12 {
        append(&store, "one", batch(id, &[&"x".repeat(300)])).unwrap();
        std::fs::write(dir.join("acknowledged"), (id + 1).to_string()).unwrap();
    }
    wait(store.close()).unwrap();
}

#[test]
fn a_process_that_ends_at_any_operation_loses_nothing_acknowledged() {
    let dir = tempfile::tempdir().unwrap();
    let mut aborted = 0;
    for at in 1..=30 {
        std::fs::write(dir.path().join(ABORT_AT), at.to_string()).unwrap();
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::crash::child"])
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        aborted += u32::from(!ended.success());
        let (store, _) = Store::open(&options(dir.path(), FaultyFiles::new(Arc::new(RealFiles)))).unwrap();
        let noted = std::fs::read_to_string(dir.path().join("acknowledged")).unwrap_or_default();
        let acknowledged: usize = noted.parse().unwrap_or(0);
        let found = texts(&store, "one", 0).unwrap_or_default().len();
        assert!(found >= acknowledged, "operation {at}: {found} of {acknowledged}");
        assert!(found <= acknowledged + 1, "operation {at}: {found} of {acknowledged}");
        std::fs::write(dir.path().join("acknowledged"), found.to_string()).unwrap();
    }
    assert!(aborted >= 25, "{aborted}");
}
