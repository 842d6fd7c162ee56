//! Damage that a backup meets: it is found, told and remembered, and there is a way out.

use std::io;
use std::path::PathBuf;

use super::*;
use crate::Notice;
use crate::files::{File, Files, OpenMode};

fn back_up_damaged(store: &Store, dir: &Path) -> Result<BackupInfo, StoreError> {
    wait(store.backup_damaged(dir, 2_000, &Arc::default()))
}

/// Returns the numbers of the damaged segments that a backup was made or refused with.
fn damaged(made: Result<BackupInfo, StoreError>) -> Vec<u64> {
    match made {
        Ok(info) => info.damage.segments,
        Err(StoreError::DamagedStore { damage }) => damage.segments,
        Err(error) => panic!("{error}"),
    }
}

/// A backup that was made with damage does not count as whole for the next one, also on another file system.
#[test]
fn damage_of_the_backup_before_is_not_forgotten() {
    for is_copy in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (home, backup) = (dir.path().join("store"), dir.path().join("backup"));
        let store = open(&home);
        fill(&store, &["a"], 20);
        damage_text(&home, "a 5 ");
        let bad = [holding(&home, "a 4 ")];
        assert_eq!(damaged(back_up(&store, &backup)), bad);
        for round in 0..3 {
            assert_eq!(damaged(back_up_damaged(&store, &backup)), bad, "{round}");
            assert!(!Store::verify_backup(&backup, &Progress::default()).unwrap().is_undamaged(), "{round}");
            if is_copy {
                std::fs::rename(&backup, dir.path().join("elsewhere")).unwrap();
                copy_dir(&dir.path().join("elsewhere"), &backup);
                std::fs::remove_dir_all(dir.path().join("elsewhere")).unwrap();
            }
            let before = files(&backup);
            let refused = back_up(&store, &backup);
            assert!(matches!(refused, Err(StoreError::DamagedStore { .. })), "{round}: {refused:?}");
            assert_eq!((damaged(refused), files(&backup)), (bad.to_vec(), before), "{round}");
        }
        // The flipped bit is flipped back, so the store's file is mended: it is taken in place of the damaged one of
        // the backup before.
        damage_text(&home, "` 5 ");
        assert!(back_up(&store, &backup).unwrap().damage.is_none());
        verified(&backup);
    }
}

/// Damage that no session needs, and that reading all sessions does not find, has a way out: the next start.
#[test]
fn damage_that_only_a_backup_finds_is_accepted_after_a_start() {
    // A text in the damaged frame, and the sessions that lost entries with it.
    for (text, lost) in [("gone 5 ", &[][..]), ("a fact", &[]), ("a 5 ", &["a"])] {
        let dir = tempfile::tempdir().unwrap();
        let (home, backup) = (dir.path().join("store"), dir.path().join("backup"));
        let store = open(&home);
        fill(&store, &["a", "gone"], 10);
        wait(store.fact_put("fact", b"a fact")).unwrap();
        fill(&store, &["a"], 20);
        wait(store.delete("gone")).unwrap();
        wait(store.close()).unwrap();
        let bad = [holding(&home, text)];
        damage_text(&home, text);
        // A start reads the ends of a segment that is no longer written to, and a check the frames of sessions.
        let (store, notices) = Store::open(&options(&home)).unwrap();
        assert_eq!((notices, store.unknown_losses()), (vec![], vec![]), "{text}");
        if lost.is_empty() {
            assert_eq!(store.check().unwrap(), [], "{text}");
        }
        assert_eq!(damaged(back_up(&store, &backup)), bad, "{text}");
        wait(store.close()).unwrap();
        let (store, notices) = Store::open(&options(&home)).unwrap();
        assert_eq!(store.quarantined(), own(lost), "{text}: {notices:?}");
        for session in lost {
            wait(store.accept_loss(session)).unwrap();
        }
        for segment in store.unknown_losses() {
            wait(store.accept_unknown_loss(segment)).unwrap();
        }
        let made = back_up(&store, &backup);
        assert!(made.as_ref().is_ok_and(|info| info.damage.is_none()), "{text}: {notices:?} {made:?}");
        assert!(Store::verify_backup(&backup, &Progress::default()).unwrap().is_undamaged(), "{text}");
        wait(store.close()).unwrap();
        // This is so after the next start, too, which has nothing more to say.
        let (store, notices) = Store::open(&options(&home)).unwrap();
        assert_eq!(notices, [], "{text}");
        assert!(back_up(&store, &backup).unwrap().damage.is_none(), "{text}");
    }
}

/// A start finds a damaged header, which costs no entry; so it is no reason to refuse a backup.
#[test]
fn a_damaged_header_refuses_no_backup_after_a_start() {
    let dir = tempfile::tempdir().unwrap();
    let (home, backup) = (dir.path().join("store"), dir.path().join("backup"));
    let store = open(&home);
    fill(&store, &["a"], 20);
    let segment = holding(&home, "a 5 ");
    let path = home.join("journal").join(Segments::name(segment));
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[16] ^= 1;
    std::fs::write(path, bytes).unwrap();
    assert_eq!(damaged(back_up(&store, &backup)), [segment]);
    wait(store.close()).unwrap();
    let (store, notices) = Store::open(&options(&home)).unwrap();
    let expected = Notice::Damaged { segment, offset: 0, sessions: vec![], others_possible: false };
    assert!(notices.contains(&expected), "{notices:?}");
    assert!(back_up(&store, &backup).unwrap().damage.is_none());
    assert_eq!(verified(&backup).entries, 20);
    assert_eq!(restored(&backup)["a"].len(), 20);
    wait(store.close()).unwrap();
    assert_eq!(Store::open(&options(&home)).unwrap().1, [], "it is said once");
}

/// Files of which one can be opened, but has a bad sector in the middle: in the store, or as the backup has it.
#[derive(Debug, Default, Clone)]
struct BadSector(Arc<Mutex<Option<(PathBuf, u64)>>>);

impl Files for BadSector {
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        RealFiles.create_dir(dir)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        RealFiles.list(dir)
    }

    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        let file = RealFiles.open(path, mode)?;
        let bad = self.0.lock();
        let at = bad.as_ref().filter(|(bad, _)| path.file_name() == bad.file_name()).map(|(_, at)| *at);
        Ok(at.map_or(Arc::clone(&file), |at| Arc::new(BadFile(file, at))))
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

/// A file of which one byte cannot be read.
#[derive(Debug)]
struct BadFile(Arc<dyn File>, u64);

impl File for BadFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        match (offset..offset + buffer.len() as u64).contains(&self.1) {
            true => Err(io::Error::from_raw_os_error(EIO)),
            false => self.0.read_at(buffer, offset),
        }
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.0.write_at(bytes, offset)
    }

    fn truncate(&self, length: u64) -> io::Result<()> {
        self.0.truncate(length)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }

    fn length(&self) -> io::Result<u64> {
        self.0.length()
    }
}

/// A segment that the disk cannot read is damaged. The store can still be opened, and backed up all the same.
#[test]
fn an_unreadable_sector_is_damage() {
    for at in [0, 500] {
        let dir = tempfile::tempdir().unwrap();
        let (home, backup) = (dir.path().join("store"), dir.path().join("backup"));
        let files = BadSector::default();
        let options = StoreOptions { files: Arc::new(files.clone()), ..options(&home) };
        let (store, _) = Store::open(&options).unwrap();
        fill(&store, &["a"], 20);
        let bad = holding(&home, "a 5 ");
        *files.0.lock() = Some((PathBuf::from(Segments::name(bad)), at));
        let refused = back_up(&store, &backup);
        assert!(matches!(refused, Err(StoreError::DamagedStore { .. })), "{at}: {refused:?}");
        assert!(!backup.exists());
        assert_eq!(damaged(refused), [bad]);
        assert_eq!(damaged(back_up_damaged(&store, &backup)), [bad]);
        assert_eq!(Store::verify_backup(&backup, &Progress::default()).unwrap().info.damage.segments, [bad]);
        wait(store.close()).unwrap();
        // Reading the whole journal at the next start would fail.
        assert!(!home.join("index.suspect").exists());
        if at > 0 {
            assert_eq!(Store::open(&options).unwrap().1, []);
        }
    }
}
