//! Helpers: a store on a disk that can be made to fail, and batches for it.

use std::path::PathBuf;
use std::sync::Arc;

use greenroom_kernel::{Entry, EntryId, EntryKind, Head, Message};
use tempfile::TempDir;

use crate::faults::{FaultyFiles, MemoryFiles};
use crate::{Appended, Batch, Notice, Store, StoreError, StoreOptions};

/// Runs a future to completion.
pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

pub(crate) fn entry(id: u64, text: &str) -> Entry {
    let kind = EntryKind::message(Message::user(text));
    Entry {
        id: EntryId(id),
        parent: id.checked_sub(1).map(EntryId),
        at_ms: id,
        tokens: 1,
        reasoning_tokens: 0,
        origin: None,
        kind,
    }
}

/// Returns a batch of entries with these texts. `first` is the id of the first entry.
pub(crate) fn batch(first: u64, texts: &[&str]) -> Batch {
    let entries: Vec<_> = (first..).zip(texts).map(|(id, text)| Arc::new(entry(id, text))).collect();
    let count = first + entries.len() as u64;
    let head = Head { entries: count, leaf: count.checked_sub(1).map(EntryId), ..Head::default() };
    Batch { entries, head: Arc::new(head), key: None }
}

pub(crate) fn keyed(first: u64, texts: &[&str], key: &str) -> Batch {
    Batch { key: Some(key.to_owned()), ..batch(first, texts) }
}

pub(crate) fn append(store: &Store, session: &str, batch: Batch) -> Result<Appended, StoreError> {
    wait(store.append(session, batch))
}

/// Returns the texts of the session's entries from `from` on.
pub(crate) fn texts(store: &Store, session: &str, from: u64) -> Result<Vec<String>, StoreError> {
    let entries = store.load(session, EntryId(from))?;
    for (at, entry) in (from..).zip(&entries) {
        assert_eq!(entry.id, EntryId(at), "entries are dense");
    }
    Ok(entries.iter().map(|entry| entry.kind.as_message().unwrap().text()).collect())
}

/// A directory for the index, and journal files in memory that can be made to fail.
pub(crate) struct World {
    pub(crate) dir: TempDir,
    pub(crate) memory: MemoryFiles,
    pub(crate) files: FaultyFiles,
    pub(crate) segment_bytes: u64,
    pub(crate) reserve_bytes: u64,
}

impl World {
    pub(crate) fn new() -> Self {
        let memory = MemoryFiles::new();
        let files = FaultyFiles::new(Arc::new(memory.clone()));
        Self { dir: tempfile::tempdir().unwrap(), memory, files, segment_bytes: 4_096, reserve_bytes: 0 }
    }

    pub(crate) fn options(&self) -> StoreOptions {
        StoreOptions {
            segment_bytes: self.segment_bytes,
            cache_bytes: 1 << 20,
            reserve_bytes: self.reserve_bytes,
            files: Arc::new(self.files.clone()),
            ..StoreOptions::new(self.dir.path())
        }
    }

    pub(crate) fn try_open(&self) -> Result<(Store, Vec<Notice>), StoreError> {
        Store::open(&self.options())
    }

    pub(crate) fn open(&self) -> (Store, Vec<Notice>) {
        self.try_open().unwrap()
    }

    /// Opens the store and expects no notice.
    pub(crate) fn open_quiet(&self) -> Store {
        let (store, notices) = self.open();
        assert_eq!(notices, []);
        store
    }

    pub(crate) fn segment(&self, id: u64) -> PathBuf {
        self.dir.path().join(format!("journal/{id:010}.seg"))
    }

    /// Removes the files about a segment's sessions beside it: its record and its list of frames.
    pub(crate) fn forget_sessions(&self, id: u64) {
        for extension in ["sessions", "frames"] {
            self.memory.lose(&self.segment(id).with_extension(extension));
        }
    }

    pub(crate) fn index(&self) -> PathBuf {
        self.dir.path().join("index")
    }
}

/// Copies a directory of plain files and directories.
pub(crate) fn copy_dir(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for found in std::fs::read_dir(from).unwrap() {
        let found = found.unwrap();
        let target = to.join(found.file_name());
        if found.file_type().unwrap().is_dir() {
            copy_dir(&found.path(), &target);
        } else {
            std::fs::copy(found.path(), target).unwrap();
        }
    }
}
