//! Damage that a backup meets: it is found, told and remembered, and there is a way out.

use super::*;

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
