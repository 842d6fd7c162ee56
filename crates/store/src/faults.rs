//! Failing disks for tests: [`FaultyFiles`] makes a chosen operation fail, and [`MemoryFiles`] loses unsynced
//! data when the power is cut.
//!
//! Invariants: every fault that fires is counted ([`FaultyFiles::fired`]), so that a test can assert that it did.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub use greenroom_kernel::random::Random;
use parking_lot::Mutex;

use crate::files::{File, Files, OpenMode};

/// `ENOSPC`: no space left on the device.
pub const ENOSPC: i32 = 28;
/// `EIO`: the device failed.
pub const EIO: i32 = 5;

/// Which operation fails, and how. Operations are numbered from 1. Only those that change something count:
/// create, write, sync, truncate, rename and remove.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Everything works.
    None,
    /// Operation `at` fails with `errno`; the others work.
    FailOnce {
        /// The number of the operation.
        at: u64,
        /// The operating system's error number, such as [`ENOSPC`].
        errno: i32,
    },
    /// Operation `at` and all later ones fail with `errno`, until another fault is set.
    FailFrom {
        /// The number of the operation.
        at: u64,
        /// The operating system's error number, such as [`EIO`].
        errno: i32,
    },
    /// If operation `at` is a write, it writes only the first half and reports that number of bytes.
    ShortWrite {
        /// The number of the operation.
        at: u64,
    },
    /// If operation `at` is a write, it writes only the first half and fails with [`EIO`].
    TornWrite {
        /// The number of the operation.
        at: u64,
    },
    /// If operation `at` is a write, it writes only the first half but reports that everything was written.
    LostWrite {
        /// The number of the operation.
        at: u64,
    },
    /// The process aborts at the operation with this number, before the operation takes effect.
    AbortAt(u64),
}

#[derive(Debug)]
struct Plan {
    fault: Mutex<Fault>,
    operations: AtomicU64,
    fired: AtomicU64,
    largest: AtomicUsize,
}

enum Verdict {
    Go,
    Half,
    HalfAsAll,
    HalfThenFail,
}

impl Plan {
    fn next(&self, is_write: bool) -> io::Result<Verdict> {
        let now = self.operations.fetch_add(1, Ordering::SeqCst) + 1;
        let fault = *self.fault.lock();
        let hits = |at: u64, verdict: Verdict| (now == at && is_write).then_some(verdict);
        let (errno, verdict) = match fault {
            Fault::None => (None, None),
            Fault::FailOnce { at, errno } => ((now == at).then_some(errno), None),
            Fault::FailFrom { at, errno } => ((now >= at).then_some(errno), None),
            Fault::AbortAt(at) if now == at => std::process::abort(),
            Fault::AbortAt(_) => (None, None),
            Fault::ShortWrite { at } => (None, hits(at, Verdict::Half)),
            Fault::LostWrite { at } => (None, hits(at, Verdict::HalfAsAll)),
            Fault::TornWrite { at } => (None, hits(at, Verdict::HalfThenFail)),
        };
        if errno.is_some() || verdict.is_some() {
            self.fired.fetch_add(1, Ordering::SeqCst);
        }
        match errno {
            Some(errno) => Err(io::Error::from_raw_os_error(errno)),
            None => Ok(verdict.unwrap_or(Verdict::Go)),
        }
    }
}

/// Files on which a chosen operation fails.
#[derive(Debug, Clone)]
pub struct FaultyFiles {
    inner: Arc<dyn Files>,
    plan: Arc<Plan>,
}

impl FaultyFiles {
    /// Wraps `inner`. No fault is set.
    pub fn new(inner: Arc<dyn Files>) -> Self {
        let plan = Plan {
            fault: Mutex::new(Fault::None),
            operations: AtomicU64::new(0),
            fired: AtomicU64::new(0),
            largest: AtomicUsize::new(0),
        };
        Self { inner, plan: Arc::new(plan) }
    }

    /// Sets the fault. The next operation is number 1.
    pub fn set(&self, fault: Fault) {
        let mut current = self.plan.fault.lock();
        self.plan.operations.store(0, Ordering::SeqCst);
        self.plan.fired.store(0, Ordering::SeqCst);
        self.plan.largest.store(0, Ordering::SeqCst);
        *current = fault;
    }

    /// Returns the number of operations counted since the fault was set.
    pub fn operations(&self) -> u64 {
        self.plan.operations.load(Ordering::SeqCst)
    }

    /// Returns the most bytes that one call read or wrote since the fault was set.
    pub fn largest(&self) -> usize {
        self.plan.largest.load(Ordering::SeqCst)
    }

    /// Returns the number of times that the fault fired since it was set.
    pub fn fired(&self) -> u64 {
        self.plan.fired.load(Ordering::SeqCst)
    }
}

impl Files for FaultyFiles {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.create_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.inner.list(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        if mode == OpenMode::Create {
            self.plan.next(false)?;
        }
        let inner = self.inner.open(path, mode)?;
        Ok(Arc::new(FaultyFile { inner, plan: Arc::clone(&self.plan) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.plan.next(false)?;
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.plan.next(false)?;
        self.inner.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.plan.next(false)?;
        self.inner.sync_dir(dir)
    }
}

#[derive(Debug)]
struct FaultyFile {
    inner: Arc<dyn File>,
    plan: Arc<Plan>,
}

impl File for FaultyFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.plan.largest.fetch_max(buffer.len(), Ordering::SeqCst);
        self.inner.read_at(buffer, offset)
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.plan.largest.fetch_max(bytes.len(), Ordering::SeqCst);
        let half = bytes.len().div_ceil(2);
        match self.plan.next(true)? {
            Verdict::Go => self.inner.write_at(bytes, offset),
            Verdict::Half => self.inner.write_at(&bytes[..half], offset),
            Verdict::HalfAsAll => {
                self.inner.write_at(&bytes[..half], offset)?;
                Ok(bytes.len())
            }
            Verdict::HalfThenFail => {
                self.inner.write_at(&bytes[..half], offset)?;
                Err(io::Error::from_raw_os_error(EIO))
            }
        }
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.plan.next(false)?;
        self.inner.truncate(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.plan.next(false)?;
        self.inner.sync()
    }

    fn length(&self) -> io::Result<u64> {
        self.inner.length()
    }
}

/// Files in memory that simulate a power cut: synced data survives, and parts of the rest may.
#[derive(Debug, Clone, Default)]
pub struct MemoryFiles {
    names: Arc<Mutex<Names>>,
    space: Arc<Space>,
}

/// The simulated disk space.
#[derive(Debug, Default)]
struct Space {
    /// The total size of all files in bytes.
    used: AtomicU64,
    /// The maximum total size in bytes; 0 for no limit.
    limit: AtomicU64,
    /// The bytes that were read.
    read: AtomicU64,
}

impl Space {
    /// Accounts for a change of a file's length.
    fn resize(&self, from: usize, to: usize) -> io::Result<()> {
        let (from, to) = (from as u64, to as u64);
        let limit = self.limit.load(Ordering::SeqCst);
        let used = self.used.load(Ordering::SeqCst).saturating_sub(from).saturating_add(to);
        if to > from && limit > 0 && used > limit {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        self.used.store(used, Ordering::SeqCst);
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Names {
    current: BTreeMap<PathBuf, Arc<MemoryFile>>,
    durable: BTreeMap<PathBuf, Arc<MemoryFile>>,
}

#[derive(Debug, Default)]
struct MemoryFile(Mutex<Bytes>, Arc<Space>);

#[derive(Debug, Default)]
struct Bytes {
    current: Vec<u8>,
    durable: Vec<u8>,
}

impl MemoryFiles {
    /// Creates an empty file system.
    pub fn new() -> Self {
        Self::default()
    }

    /// Limits the free space to this many bytes. Larger writes fail with [`ENOSPC`].
    pub fn leave_room(&self, bytes: u64) {
        let used = self.space.used.load(Ordering::SeqCst);
        self.space.limit.store(used.saturating_add(bytes).max(1), Ordering::SeqCst);
    }

    /// Returns the number of bytes that were read so far.
    pub fn bytes_read(&self) -> u64 {
        self.space.read.load(Ordering::SeqCst)
    }

    /// Cuts the power. Unsynced data is lost. With `random`, each unsynced page survives or not by chance,
    /// because a disk may write pages in any order. Nothing may use the files meanwhile.
    pub fn power_cut(&self, mut random: Option<&mut Random>) {
        const PAGE: usize = 64;
        let mut names = self.names.lock();
        if random.as_deref_mut().is_some_and(|random| random.below(2) == 0) {
            names.durable = names.current.clone();
        } else {
            names.current = names.durable.clone();
        }
        for file in names.current.values() {
            let mut bytes = file.0.lock();
            let mut after = bytes.durable.clone();
            if let Some(random) = random.as_deref_mut()
                && bytes.current != bytes.durable
            {
                for start in (0..bytes.current.len()).step_by(PAGE) {
                    let end = (start + PAGE).min(bytes.current.len());
                    if random.below(2) == 0 {
                        if after.len() < end {
                            after.resize(end, 0);
                        }
                        after[start..end].copy_from_slice(&bytes.current[start..end]);
                    }
                }
            }
            bytes.current.clone_from(&after);
            bytes.durable = after;
        }
    }

    /// Returns the paths of all files.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.names.lock().current.keys().cloned().collect()
    }

    /// Damages a file: changes its bytes durably, without notice to open handles.
    pub fn damage(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let file = self.find(path)?;
        let mut bytes = file.0.lock();
        change(&mut bytes.current);
        bytes.durable = bytes.current.clone();
        Ok(())
    }

    /// Removes a file durably, as if the disk had lost it.
    pub fn lose(&self, path: &Path) {
        let mut names = self.names.lock();
        names.current.remove(path);
        names.durable.remove(path);
    }

    fn find(&self, path: &Path) -> io::Result<Arc<MemoryFile>> {
        self.names.lock().current.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Files for MemoryFiles {
    fn create_dir(&self, _dir: &Path) -> io::Result<()> {
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let names = self.names.lock();
        let inside = names.current.keys().filter(|path| path.parent() == Some(dir));
        Ok(inside.filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect())
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        if mode != OpenMode::Create {
            return Ok(self.find(path)?);
        }
        let mut names = self.names.lock();
        if names.current.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let file = Arc::new(MemoryFile(Mutex::default(), Arc::clone(&self.space)));
        names.current.insert(path.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        let file = names.current.remove(from).ok_or(io::ErrorKind::NotFound)?;
        names.current.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let removed = self.names.lock().current.remove(path).ok_or(io::ErrorKind::NotFound)?;
        let length = removed.0.lock().current.len();
        self.space.resize(length, 0)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut names = self.names.lock();
        let Names { current, durable } = &mut *names;
        durable.retain(|path, _| path.parent() != Some(dir));
        for (path, file) in current.iter().filter(|(path, _)| path.parent() == Some(dir)) {
            durable.insert(path.clone(), Arc::clone(file));
        }
        Ok(())
    }
}

impl File for MemoryFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let bytes = self.0.lock();
        let start =
            usize::try_from(offset).map_or(bytes.current.len(), |start| start.min(bytes.current.len()));
        let count = buffer.len().min(bytes.current.len() - start);
        buffer[..count].copy_from_slice(&bytes.current[start..start + count]);
        self.1.read.fetch_add(count as u64, Ordering::SeqCst);
        Ok(count)
    }

    fn write_at(&self, new: &[u8], offset: u64) -> io::Result<usize> {
        let mut bytes = self.0.lock();
        let start = usize::try_from(offset).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let end = start + new.len();
        if bytes.current.len() < end {
            self.1.resize(bytes.current.len(), end)?;
            bytes.current.resize(end, 0);
        }
        bytes.current[start..end].copy_from_slice(new);
        Ok(new.len())
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        let length = usize::try_from(length).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut bytes = self.0.lock();
        self.1.resize(bytes.current.len(), length)?;
        bytes.current.resize(length, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut bytes = self.0.lock();
        let Bytes { current, durable } = &mut *bytes;
        durable.clone_from(current);
        Ok(())
    }

    fn length(&self) -> io::Result<u64> {
        Ok(self.0.lock().current.len() as u64)
    }
}
