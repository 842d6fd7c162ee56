//! Damage that a backup meets: it is found, told and remembered, and there is a way out.

use super::*;
use crate::Notice;

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
            assert!(!verify_backup(&backup, &Progress::default()).unwrap().is_undamaged(), "{round}");
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
        // The flipped bit is flipped back, so the store's file is mended: it is taken in place of the damaged one of the backup before.
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
        assert!(verify_backup(&backup, &Progress::default()).unwrap().is_undamaged(), "{text}");
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
