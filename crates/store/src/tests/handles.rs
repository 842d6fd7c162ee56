//! How many files a store has open at once: a number that does not grow with the journal.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::world::{append, batch, texts};
use crate::backup::Progress;
use crate::files::{File, Files, OpenMode, RealFiles};
use crate::{Store, StoreOptions};

/// The maximum number of files that a store may have open: those that are kept for reading, and some that are written.
const OPEN_MAX: usize = 80;

/// Files that are counted while they are open.
#[derive(Debug, Clone, Default)]
struct Counted {
    open: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Handle {
    file: Arc<dyn File>,
    open: Arc<AtomicUsize>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Files for Counted {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        RealFiles.create_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealFiles.list(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = RealFiles.open(path, mode)?;
        let open = self.open.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(open, Ordering::Relaxed);
        Ok(Arc::new(Handle { file, open: Arc::clone(&self.open) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealFiles.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealFiles.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        RealFiles.sync_dir(dir)
    }
}

impl File for Handle {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.file.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.file.write_at(bytes, offset)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.file.truncate(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }

    fn length(&self) -> io::Result<u64> {
        self.file.length()
    }
}

/// Opens the store, and returns it with the most files that were open until then.
fn open(dir: &Path) -> (Store, Counted) {
    let files = Counted::default();
    let options = StoreOptions {
        segment_bytes: 2_000,
        cache_bytes: 1 << 20,
        reserve_bytes: 0,
        files: Arc::new(files.clone()),
        ..StoreOptions::new(dir)
    };
    (Store::open(&options).unwrap().0, files)
}

#[test]
fn no_number_of_segments_takes_more_open_files() {
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("store");
    let (store, files) = open(&home);
    let most = |files: &Counted| files.most.load(Ordering::Relaxed);
    let text = "x".repeat(600);
    for id in 0..900 {
        append(&store, &format!("s{}", id % 3), batch(id / 3, &[&text])).unwrap();
    }
    let segments = std::fs::read_dir(home.join("journal")).unwrap().filter(|entry| {
        entry.as_ref().is_ok_and(|entry| entry.path().extension().is_some_and(|extension| extension == "seg"))
    });
    assert!(segments.count() > 3 * OPEN_MAX, "too few segments for the test");
    assert!(most(&files) <= OPEN_MAX, "writing opens {}", most(&files));
    let backup = dir.path().join("backup");
    super::world::wait(store.backup(&backup, 1_000, &Arc::default())).unwrap();
    drop(store);

    let (store, files) = open(&home);
    assert_eq!(texts(&store, "s1", 0).unwrap().len(), 300);
    assert!(most(&files) <= OPEN_MAX, "opening and reading opens {}", most(&files));
    drop(store);

    std::fs::remove_dir_all(home.join("index")).unwrap();
    let (store, files) = open(&home);
    assert_eq!(texts(&store, "s1", 0).unwrap().len(), 300);
    assert!(most(&files) <= OPEN_MAX, "rebuilding the index opens {}", most(&files));
    drop(store);

    // These use the system's files.
    let opened = || std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let before = opened();
    Store::verify_backup(&backup, &Progress::default()).unwrap();
    Store::restore_backup(&backup, &dir.path().join("restored"), &Progress::default()).unwrap();
    assert!(opened() <= before + 2, "files stay open");
}
