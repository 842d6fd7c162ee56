//! The id of a store: it is made once, and never replaced.

use super::*;
use crate::identity::ensure;

/// An id that cannot be read is not replaced: the backups of the store would not be known any more.
#[test]
fn a_damaged_id_is_kept_until_it_is_mended() {
    for damaged in [&b""[..], b"\n", b"short\n", b"\xff", b"0123456789abcdef0123456789abcdeg\n"] {
        let dir = tempfile::tempdir().unwrap();
        let (home, backup) = (dir.path().join("store"), dir.path().join("backup"));
        let path = home.join("journal/id");
        let store = open(&home);
        fill(&store, &["a"], 9);
        let info = back_up(&store, &backup).unwrap();
        wait(store.close()).unwrap();
        std::fs::write(&path, damaged).unwrap();
        // The store can be used all the same.
        let store = open(&home);
        fill(&store, &["a"], 1);
        let before = files(&backup);
        for _ in 0..2 {
            let error = back_up(&store, &backup).unwrap_err();
            assert!(matches!(error, StoreError::Backup { .. }), "{damaged:?}: {error}");
            assert!(error.to_string().contains("journal/id is damaged"), "{error}");
            assert_eq!((std::fs::read(&path).unwrap().as_slice(), files(&backup)), (damaged, before.clone()));
        }
        std::fs::write(&path, info.store_id.clone().unwrap()).unwrap();
        assert_eq!(back_up(&store, &backup).unwrap().store_id, info.store_id);
    }
}

#[test]
fn all_who_need_the_first_id_get_the_same() {
    for round in 0..50 {
        let dir = tempfile::tempdir().unwrap();
        let begin = std::sync::Barrier::new(4);
        let make = || {
            begin.wait();
            ensure(&RealFiles, dir.path()).unwrap()
        };
        let ids: Vec<String> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.iter().all(|id| *id == ids[0]), "{round}: {ids:?}");
        assert_eq!(ensure(&RealFiles, dir.path()).unwrap(), ids[0]);
    }
}
