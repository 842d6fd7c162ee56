//! Backups: what they hold, under load and with failing disks; how they are verified and restored; what is refused.

mod damage;
mod identity;
mod restoring;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Condvar, Mutex};

use super::world::{append, batch, copy_dir, keyed, texts, wait};
use crate::faults::{EIO, ENOSPC, Fault, FaultyFiles, Random};
use crate::files::RealFiles;
use crate::journal::segments::Segments;
use crate::{BackupInfo, Progress, Store, StoreDamage, StoreError, StoreOptions};

fn options(dir: &Path) -> StoreOptions {
    StoreOptions { segment_bytes: 2_000, reserve_bytes: 0, ..StoreOptions::new(dir) }
}

fn open(dir: &Path) -> Store {
    Store::open(&options(dir)).unwrap().0
}

fn back_up(store: &Store, dir: &Path) -> Result<BackupInfo, StoreError> {
    wait(store.backup(dir, 1_000, &Arc::default()))
}

/// Restores the backup, and returns the texts of all its sessions.
fn restored(backup: &Path) -> BTreeMap<String, Vec<String>> {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("store");
    Store::restore_backup(backup, &to, &Progress::default()).unwrap();
    let (store, notices) = Store::open(&options(&to)).unwrap();
    assert_eq!(notices, [], "that the index is made anew is how a backup is restored");
    assert_eq!(store.check().unwrap(), []);
    let sessions = store.list().unwrap().into_iter().map(|(id, head)| {
        let texts = texts(&store, &id, 0).unwrap();
        assert_eq!(head.entries, texts.len() as u64);
        (id, texts)
    });
    sessions.collect()
}

/// Verifies the backup and expects no damage.
fn verified(backup: &Path) -> BackupInfo {
    let found = Store::verify_backup(backup, &Progress::default()).unwrap();
    assert!(found.is_undamaged() && found.losses.is_empty(), "{:?}", found.damage);
    assert_eq!((found.sessions, found.entries), (found.info.sessions, found.info.entries));
    found.info
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        match path.is_dir() {
            true => found
                .extend(files(&path).into_iter().map(|(inner, bytes)| (format!("{name}/{inner}"), bytes))),
            false => drop(found.insert(name, std::fs::read(&path).unwrap())),
        }
    }
    found
}

/// Changes what a backup says of itself.
fn change_info(backup: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    let path = backup.join("backup.json");
    let mut info = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut info);
    std::fs::write(path, info.to_string()).unwrap();
}

fn real(dir: &Path) -> String {
    dir.canonicalize().unwrap().display().to_string()
}

/// Appends `count` entries to each of these sessions, in turns.
fn fill(store: &Store, sessions: &[&str], count: u64) {
    for _ in 0..count {
        for session in sessions {
            let next = store.head(session).unwrap().map_or(0, |head| head.entries);
            append(store, session, batch(next, &[&format!("{session} {next} {}", "x".repeat(200))])).unwrap();
        }
    }
}

#[test]
fn a_backup_is_a_store_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (home, backup) = (dir.path().join("store"), dir.path().join("backup"));
    let store = open(&home);
    fill(&store, &["a", "b", "gone"], 20);
    append(&store, "b", keyed(20, &["keyed"], "key")).unwrap();
    wait(store.fact_put("fact", b"value")).unwrap();
    wait(store.delete("gone")).unwrap();
    let info = back_up(&store, &backup).unwrap();
    assert_eq!((info.sessions, info.entries, info.made_at_ms), (2, 41, 1_000));
    assert_eq!(verified(&backup), info);
    // What is acknowledged afterwards is not in it.
    append(&store, "a", batch(20, &["later"])).unwrap();
    let found = restored(&backup);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!((found["a"].len(), found["b"].len()), (20, 21));
    for path in [backup.clone(), backup.join("journal")] {
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }
    for name in files(&backup).into_keys() {
        assert_eq!(backup.join(&name).metadata().unwrap().permissions().mode() & 0o777, 0o600, "{name}");
    }
    // It is a store itself, too.
    let other = open(&backup);
    assert_eq!(other.fact_get("fact").unwrap().as_deref(), Some(b"value".as_slice()));
    let again = append(&other, "b", keyed(21, &["again"], "key")).unwrap();
    assert!(matches!(again, crate::Appended::Duplicate { first } if first.0 == 20));
    drop(other);
    let used = back_up(&store, &backup).unwrap_err().to_string();
    assert!(used.contains("was used as a store"), "{used}");
}

/// A backup is known by the id of its store, and without one, as earlier versions made it, by the path.
#[test]
fn a_backup_is_replaced_only_by_one_of_the_same_store() {
    // What happens to the store after its backup, and whether the next one replaces it.
    type Step = fn(&Path, &Path);
    let lose: Step = |home, _| std::fs::remove_dir_all(home).unwrap();
    let restore: Step = |home, backup| {
        std::fs::remove_dir_all(home).unwrap();
        Store::restore_backup(backup, home, &Progress::default()).unwrap();
    };
    let copy_by_hand: Step = |home, backup| {
        std::fs::remove_dir_all(home).unwrap();
        copy_dir(&backup.join("journal"), &home.join("journal"));
    };
    let move_away: Step = |home, backup| {
        std::fs::rename(home, home.with_extension("moved")).unwrap();
        std::os::unix::fs::symlink(home.with_extension("moved"), home).unwrap();
        assert_ne!(real(home), home.display().to_string());
        verified(backup);
    };
    let lose_index: Step = |home, _| std::fs::remove_dir_all(home.join("index")).unwrap();
    // A store of an earlier version has no id.
    let make_older: Step = |home, backup| {
        std::fs::remove_file(home.join("journal/id")).unwrap();
        change_info(backup, |info| drop(info.as_object_mut().unwrap().remove("store_id")));
    };
    let make_older_and_move: Step = |home, backup| {
        std::fs::remove_file(home.join("journal/id")).unwrap();
        let of = |info: &mut serde_json::Value| {
            info["store"] = "/elsewhere".into();
            info.as_object_mut().unwrap().remove("store_id");
        };
        change_info(backup, of);
    };
    for (name, step, is_replaced) in [
        ("unchanged", (|_, _| {}) as Step, true),
        ("lost", lose, false),
        ("restored", restore, true),
        ("copied by hand", copy_by_hand, true),
        ("moved", move_away, true),
        ("without its index", lose_index, true),
        ("of an earlier version", make_older, true),
        ("of an earlier version, moved", make_older_and_move, false),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (home, backup) = (dir.path().join("store"), dir.path().join("backup"));
        let store = open(&home);
        fill(&store, &["a"], 20);
        back_up(&store, &backup).unwrap();
        wait(store.close()).unwrap();
        step(&home, &backup);
        let before = files(&backup);
        let store = open(&home);
        match back_up(&store, &backup) {
            Ok(info) => {
                assert!(is_replaced, "{name}");
                assert_eq!(info.entries, 20, "{name}");
                assert_eq!(verified(&backup), info, "{name}");
            }
            Err(error) => {
                assert!(!is_replaced && matches!(error, StoreError::Backup { .. }), "{name}: {error}");
                assert_eq!(files(&backup), before, "{name}");
            }
        }
        // From now on both have the id.
        if is_replaced {
            back_up(&store, &backup).unwrap();
        }
    }
}

/// Returns the number of the segment that holds this text.
fn holding(home: &Path, text: &str) -> u64 {
    let found = files(&home.join("journal")).into_iter().find_map(|(name, bytes)| {
        let id = Segments::id_of(&name)?;
        bytes.windows(text.len()).any(|found| found == text.as_bytes()).then_some(id)
    });
    found.unwrap()
}

/// Damages this text of the store, and not of a backup that has the same file.
fn damage_text(home: &Path, text: &str) {
    let path = home.join("journal").join(Segments::name(holding(home, text)));
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(text.len()).position(|found| found == text.as_bytes()).unwrap();
    bytes[at] ^= 1;
    std::fs::remove_file(&path).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// The last backup of a store without damage stays until the losses are accepted, or the caller wants a damaged one.
#[test]
fn a_damaged_store_replaces_no_backup() {
    type Step = fn(&Path);
    let nothing: Step = |_| {};
    let lose_segment: Step = |home| {
        let segment = home.join("journal").join(Segments::name(holding(home, "a 5 ")));
        std::fs::remove_dir_all(home.join("index")).unwrap();
        std::fs::remove_file(segment.with_extension("sessions")).unwrap();
        std::fs::remove_file(segment).unwrap();
    };
    let [old, sealed, newest]: [Step; 3] = [
        |home| damage_text(home, "a 5 "),
        |home| damage_text(home, "before"),
        |home| damage_text(home, "newest"),
    ];
    // What is damaged since the first backup, while the store is open or closed; the sessions that are then known to be
    // damaged, and a text in the damaged segment.
    for (name, is_open, step, sessions, segment) in [
        ("nothing", false, nothing, &[][..], None),
        ("what the backup before has whole", false, old, &[], None),
        ("the newest entry", false, newest, &["b"], None),
        ("a segment, and the index", false, lose_segment, &["a", "b"], Some("a 5 ")),
        ("the newest entry, found by the backup", true, newest, &[], Some("newest")),
        ("a sealed entry, found by the backup", true, sealed, &[], Some("before")),
        ("a sealed entry, after a start", false, sealed, &[], Some("before")),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (home, backup) = (dir.path().join("store"), dir.path().join("backup"));
        let mut store = open(&home);
        fill(&store, &["a", "b"], 20);
        back_up(&store, &backup).unwrap();
        let before = files(&backup);
        append(&store, "b", batch(20, &["before"])).unwrap();
        fill(&store, &["a"], 20);
        append(&store, "b", batch(21, &["newest"])).unwrap();
        let expected = StoreDamage {
            sessions: own(sessions),
            segments: segment.map(|text| holding(&home, text)).into_iter().collect(),
        };
        if is_open {
            step(&home);
        } else {
            wait(store.close()).unwrap();
            step(&home);
            drop(open(&home));
            // Not only the first opening knows of it.
            store = open(&home);
        }
        assert_eq!(store.quarantined(), expected.sessions, "{name}");
        for _ in 0..2 {
            match back_up(&store, &backup) {
                Ok(_) => assert!(expected.is_none() && verified(&backup).damage.is_none(), "{name}"),
                Err(StoreError::DamagedStore { damage }) => {
                    assert_eq!(*damage, expected, "{name}");
                    assert_eq!(files(&backup), before, "{name}");
                    assert!(!backup.with_extension("partial").exists(), "{name}");
                }
                Err(error) => panic!("{name}: {error}"),
            }
        }
        let info = wait(store.backup_damaged(&backup, 2_000, &Arc::default())).unwrap();
        assert_eq!((info.made_at_ms, info.damage), (2_000, expected.clone()), "{name}");
        let found = Store::verify_backup(&backup, &Progress::default()).unwrap();
        let is_whole = found.is_undamaged() && found.losses.is_empty() && found.unknown_losses.is_empty();
        assert_eq!((is_whole, found.info.damage), (expected.is_none(), expected), "{name}");
    }
}

/// A loss that was accepted is no reason to refuse a backup, also after a start.
#[test]
fn a_store_whose_losses_are_accepted_is_backed_up() {
    let dir = tempfile::tempdir().unwrap();
    let (home, backup) = (dir.path().join("store"), dir.path().join("backup"));
    let store = open(&home);
    fill(&store, &["a", "b", "c"], 20);
    wait(store.close()).unwrap();
    damage_text(&home, "a 19 ");
    damage_text(&home, "b 19 ");
    let store = open(&home);
    assert_eq!(store.quarantined(), ["a", "b"]);
    wait(store.accept_loss("a")).unwrap();
    assert_eq!(store.quarantined(), ["b"]);
    wait(store.delete("b")).unwrap();
    assert_eq!(store.quarantined(), [""; 0]);
    wait(store.close()).unwrap();
    let store = open(&home);
    assert_eq!(store.quarantined(), [""; 0]);
    let info = back_up(&store, &backup).unwrap();
    assert!(info.damage.is_none());
    assert_eq!(Store::verify_backup(&backup, &Progress::default()).unwrap().damage, [""; 0]);
}

#[test]
fn what_is_damaged_is_named_in_a_few_words() {
    for (sessions, segments, expected) in [
        (&["a"][..], &[][..], "session a lost entries"),
        (&["a", "b"], &[7], "2 sessions lost entries: a, b; segment 7 of the journal is damaged"),
        (&[], &[7, 9], "segments 7, 9 of the journal are damaged"),
        (&["1", "2", "3", "4", "5", "6", "7"], &[], "7 sessions lost entries: 1, 2, 3, 4, 5 and 2 more"),
    ] {
        let damage = StoreDamage { sessions: own(sessions), segments: segments.to_vec() };
        assert_eq!(damage.to_string(), expected);
    }
}

fn own(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The number of entries is counted with each change, and found again if an earlier version wrote the index.
#[test]
fn entries_are_counted_over_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let (home, backup) = (dir.path().join("store"), dir.path().join("backup"));
    for round in 1..=3 {
        let store = open(&home);
        fill(&store, &["a", "b", "gone"], 7);
        wait(store.delete("gone")).unwrap();
        let info = back_up(&store, &backup).unwrap();
        assert_eq!((info.sessions, info.entries), (2, 14 * round));
        verified(&backup);
        wait(store.close()).unwrap();
        let index = sled::open(home.join("index")).unwrap();
        let key = crate::index::key::CHECKPOINT;
        let checkpoint = index.get(key).unwrap().unwrap();
        assert_eq!(checkpoint.len(), 45);
        index.insert(key, &checkpoint[..37]).unwrap();
    }
}

#[test]
fn a_second_backup_copies_only_what_is_new() {
    let dir = tempfile::tempdir().unwrap();
    let (home, backup) = (dir.path().join("store"), dir.path().join("backup"));
    let store = open(&home);
    fill(&store, &["a", "secret"], 20);
    back_up(&store, &backup).unwrap();
    let inode = |dir: &Path, id: u64| {
        dir.join(format!("journal/{id:010}.seg")).metadata().ok().map(|metadata| metadata.ino())
    };
    let first = inode(&backup, 1);
    assert!(first.is_some() && first == inode(&home, 1), "a segment that is no longer written to is linked");
    let active = files(&home).into_keys().filter(|name| name.ends_with(".seg")).count() as u64;
    assert!(active > 4);
    assert_ne!(inode(&backup, active), inode(&home, active), "the active segment is copied");
    fill(&store, &["a"], 20);
    // A copy on another file system would be linked to the backup before.
    std::fs::rename(&backup, dir.path().join("elsewhere")).unwrap();
    copy_dir(&dir.path().join("elsewhere"), &backup);
    let copied = inode(&backup, 1);
    let info = back_up(&store, &backup).unwrap();
    assert_eq!((verified(&backup), inode(&backup, 1)), (info, copied));
    // Erasing in the store is complete. The old backup keeps what it had, until it is replaced.
    wait(store.delete("secret")).unwrap();
    wait(store.reclaim()).unwrap();
    let holds =
        |dir: &Path| files(dir).values().any(|bytes| bytes.windows(8).any(|found| found == b"secret 1"));
    assert!(!holds(&home) && holds(&backup));
    back_up(&store, &backup).unwrap();
    assert!(!holds(&backup));
    assert_eq!(restored(&backup).keys().collect::<Vec<_>>(), ["a"]);
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "{left:?}");
}

#[test]
fn directories_that_cannot_be_used_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let store = open(&at("store"));
    let other = open(&at("other"));
    fill(&store, &["a"], 9);
    back_up(&other, &at("of_other")).unwrap();
    back_up(&other, &at("of_earlier")).unwrap();
    change_info(&at("of_earlier"), |info| info["store"] = real(&at("store")).into());
    back_up(&store, &at("shared")).unwrap();
    back_up(&store, &at("shared/another")).unwrap();
    std::fs::create_dir(at("folder")).unwrap();
    std::fs::write(at("folder/note"), "mine").unwrap();
    std::fs::write(at("file"), "mine").unwrap();
    std::fs::create_dir(at("blocked.partial")).unwrap();
    std::fs::write(at("blocked.partial/note"), "mine").unwrap();
    std::os::unix::fs::symlink(at("store"), at("link")).unwrap();
    let before = files(&at("folder"));
    for (name, expected) in [
        ("store", "lies in the store"),
        ("link", "lies in the store"),
        ("store/backup", "lies in the store"),
        ("", "or the store in it"),
        ("folder", "exists and is not a backup; name a new directory"),
        ("file", "is not a directory; name another one"),
        ("none/backup", "does not exist; create that first"),
        ("of_other", "is a backup of the store in"),
        ("of_earlier", "is a backup of another store that was in"),
        ("blocked", "exists and is no unfinished backup"),
        ("shared", "also holds another"),
    ] {
        let error = back_up(&store, &at(name)).unwrap_err();
        assert!(matches!(error, StoreError::Backup { .. }), "{name}: {error}");
        assert!(error.to_string().contains(expected), "{name}: {error}");
    }
    assert_eq!(files(&at("folder")), before);
    verified(&at("shared/another"));
    // An empty directory is used.
    std::fs::create_dir(at("empty")).unwrap();
    back_up(&store, &at("empty")).unwrap();
    verified(&at("empty"));
    // A store in memory, and one that is read.
    assert!(matches!(back_up(&Store::memory(), &at("new")), Err(StoreError::Backup { .. })));
    let reading = StoreOptions { is_read_only: true, ..options(&at("empty")) };
    let (reading, _) = Store::open(&reading).unwrap();
    assert!(matches!(back_up(&reading, &at("new")), Err(StoreError::NotPermitted { .. })));
    // What is no backup is not verified and not restored; a store is not overwritten.
    let (progress, backup) = (Progress::default(), at("empty"));
    for (name, expected) in [("folder", "is not a backup"), ("store", "is not a backup")] {
        let error = Store::verify_backup(&at(name), &progress).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let error = Store::restore_backup(&at(name), &at("new"), &progress).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    for (to, expected) in [
        ("other", "has a store already"),
        ("empty/inside", "lies in the backup"),
        ("file", "is not a directory"),
        ("folder", "is not empty; name a new directory"),
    ] {
        let error = Store::restore_backup(&backup, &at(to), &progress).unwrap_err().to_string();
        assert!(error.contains(expected), "{to}: {error}");
    }
    assert!(!at("new").exists());
    assert_eq!(files(&at("folder")), before);
    // An empty directory gets the store, and one in which a restoration was interrupted.
    std::fs::create_dir(at("vacant")).unwrap();
    std::fs::create_dir_all(at("begun/journal.partial")).unwrap();
    std::fs::write(at("begun/journal.partial/0000000001.seg"), "a part").unwrap();
    std::fs::write(at("begun/lock"), "").unwrap();
    for name in ["vacant", "begun"] {
        Store::restore_backup(&backup, &at(name), &progress).unwrap();
        assert_eq!(texts(&open(&at(name)), "a", 0).unwrap().len(), 9);
        assert!(!at(name).join("journal.partial").exists());
    }
}

#[test]
fn a_cancelled_backup_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (home, backup) = (dir.path().join("store"), dir.path().join("backup"));
    let store = open(&home);
    fill(&store, &["a"], 30);
    let progress = Arc::<Progress>::default();
    progress.cancel();
    assert!(matches!(wait(store.backup(&backup, 0, &progress)), Err(StoreError::Cancelled)));
    assert!(!backup.exists() && !backup.with_extension("partial").exists());
    let progress = Arc::<Progress>::default();
    wait(store.backup(&backup, 0, &progress)).unwrap();
    assert!(progress.total_bytes() > 5_000 && progress.done_bytes() == progress.total_bytes());
    let cancelled = Progress::default();
    cancelled.cancel();
    let to = dir.path().join("restored");
    assert!(matches!(Store::verify_backup(&backup, &cancelled), Err(StoreError::Cancelled)));
    assert!(matches!(Store::restore_backup(&backup, &to, &cancelled), Err(StoreError::Cancelled)));
    assert!(!to.join("journal").exists() && !to.join("journal.partial").exists());
}

/// What was finished was not cancelled, and the next work counts from the start.
#[test]
fn one_progress_serves_several_works_in_turn() {
    let dir = tempfile::tempdir().unwrap();
    let (home, backup) = (dir.path().join("store"), dir.path().join("backup"));
    let store = open(&home);
    fill(&store, &["a"], 30);
    let progress = Arc::<Progress>::default();
    let done = || {
        assert_eq!(progress.done_bytes(), progress.total_bytes());
        progress.total_bytes()
    };
    wait(store.backup(&backup, 0, &progress)).unwrap();
    let first = done();
    wait(store.backup(&backup, 1, &progress)).unwrap();
    assert_eq!(done(), first);
    Store::verify_backup(&backup, &progress).unwrap();
    Store::restore_backup(&backup, &dir.path().join("restored"), &progress).unwrap();
    done();
}

/// Every operation fails once, in a first backup and in one that replaces another.
#[test]
fn a_backup_that_fails_leaves_nothing_that_looks_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (home, backup) = (dir.path().join("store"), dir.path().join("backup"));
    let files = FaultyFiles::new(Arc::new(RealFiles));
    let (store, _) = Store::open(&StoreOptions { files: Arc::new(files.clone()), ..options(&home) }).unwrap();
    fill(&store, &["a"], 12);
    let (mut fired, mut entries) = (0, 12);
    for (is_second, errno) in [(false, ENOSPC), (true, EIO)] {
        for at in 1.. {
            if backup.exists() && !is_second {
                std::fs::remove_dir_all(&backup).unwrap();
            }
            let before = is_second.then(|| back_up(&store, &backup).unwrap());
            fill(&store, &["a"], 1);
            entries += 1;
            files.set(Fault::FailOnce { at, errno });
            let made = back_up(&store, &backup);
            let is_over = files.fired() == 0;
            files.set(Fault::None);
            assert!(!backup.with_extension("partial").exists(), "operation {at}: {made:?}");
            match (&made, &before) {
                // The list of the newest frames may fail: nothing depends on it.
                (Ok(info), _) => assert_eq!((&verified(&backup), info.entries), (info, entries)),
                // The name is durable or not, and the backup is whole either way.
                (Err(_), _) if backup.exists() && verified(&backup).entries == entries => {}
                (Err(_), Some(before)) => assert_eq!(&verified(&backup), before),
                (Err(_), None) => assert!(!backup.exists(), "operation {at}"),
            }
            if let Err(error) = made {
                fired += 1;
                assert!(matches!(error, StoreError::Full { .. } | StoreError::Io { .. }), "{error}");
            }
            if is_over {
                assert!(at > 10, "{at}");
                break;
            }
        }
    }
    assert!(fired > 20, "{fired}");
}

/// This file holds the number of the operation at which the child aborts.
const ABORT_AT: &str = "abort_backup_at";

/// The child process; not a test by itself.
#[test]
fn child() {
    let Ok(at) = std::fs::read_to_string(ABORT_AT) else { return };
    let files = FaultyFiles::new(Arc::new(RealFiles));
    let (store, _) =
        Store::open(&StoreOptions { files: Arc::new(files.clone()), ..options(Path::new("store")) }).unwrap();
    fill(&store, &["a"], 5);
    files.set(Fault::AbortAt(at.parse().unwrap()));
    back_up(&store, Path::new("backup")).unwrap();
}

#[test]
fn a_killed_backup_is_never_taken_for_a_whole_one() {
    let dir = tempfile::tempdir().unwrap();
    let (home, backup) = (dir.path().join("store"), dir.path().join("backup"));
    let (mut unfinished, mut aborted) = (0, 0);
    let mut whole: Option<BackupInfo> = None;
    for round in 0..24 {
        std::fs::write(dir.path().join(ABORT_AT), (1 + round % 12).to_string()).unwrap();
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "tests::backup::child"])
            .current_dir(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        aborted += u32::from(!ended.success());
        let partial = backup.with_extension("partial");
        if partial.exists() && !partial.join("backup.json").exists() {
            unfinished += 1;
            let opened = Store::open(&options(&partial)).unwrap_err().to_string();
            assert!(opened.contains("is an unfinished backup"), "{opened}");
            let verified = Store::verify_backup(&partial, &Progress::default()).unwrap_err().to_string();
            assert!(verified.contains("is an unfinished backup"), "{verified}");
        }
        // The one before is as it was, or there is a whole new one.
        match &whole {
            Some(before) => assert!(verified(&backup).entries >= before.entries, "round {round}"),
            None if backup.exists() => drop(verified(&backup)),
            None => {}
        }
        if round == 11 {
            let store = open(&home);
            whole = Some(back_up(&store, &backup).unwrap());
            assert!(!partial.exists());
            assert_eq!(restored(&backup)["a"].len() as u64, whole.as_ref().unwrap().entries);
        }
    }
    assert!(aborted >= 20 && unfinished >= 10, "{aborted} aborted, {unfinished} unfinished");
}

/// Damages a backup in every way, and returns what the verification says.
#[test]
fn damage_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (home, backup) = (dir.path().join("store"), dir.path().join("backup"));
    let store = open(&home);
    fill(&store, &["a", "b"], 20);
    back_up(&store, &backup).unwrap();
    drop(store);
    let journal = files(&backup.join("journal"));
    let segments: Vec<&String> = journal.keys().filter(|name| name.ends_with(".seg")).collect();
    let active = segments.len() - 1;
    let damaged = |change: &dyn Fn(&Path)| {
        let copy = tempfile::tempdir().unwrap();
        let path = copy.path().join("copy");
        copy_dir(&backup, &path);
        change(&path);
        let before = files(&path);
        let found = Store::verify_backup(&path, &Progress::default());
        assert_eq!(files(&path), before, "verifying changes nothing");
        found
    };
    let mut random = Random::new(7);
    let mut cases = 0;
    for (at, name) in segments.iter().enumerate() {
        let id = at + 1;
        let length = journal[*name].len();
        let offsets = [0, 41, 90, length / 2, length - 1]
            .into_iter()
            .chain((0..6).map(|_| usize::try_from(random.below(length as u64)).unwrap()));
        for offset in offsets.collect::<Vec<_>>() {
            let found = damaged(&|dir| {
                let path = dir.join("journal").join(name);
                let mut bytes = std::fs::read(&path).unwrap();
                bytes[offset] ^= 1;
                std::fs::write(path, bytes).unwrap();
            });
            let found = found.unwrap();
            let is_named =
                found.damage.iter().any(|damage| damage.starts_with(&format!("segment {id} is damaged")));
            assert!(is_named, "{name} at {offset}: {found:?}");
            cases += 1;
        }
        let found = damaged(&|dir| std::fs::remove_file(dir.join("journal").join(name)).unwrap()).unwrap();
        assert!(found.damage.contains(&format!("segment {id} is missing")), "{:?}", found.damage);
        let found = damaged(&|dir| {
            let path = dir.join("journal").join(name);
            let bytes = std::fs::read(&path).unwrap();
            std::fs::write(path, &bytes[..bytes.len() - 60]).unwrap();
        });
        assert!(!found.unwrap().is_undamaged());
    }
    assert!(cases > 50 && active > 4, "{cases}");
    // An older segment list with older segments: all of them are whole.
    let older = dir.path().join("older");
    let store = open(&home);
    back_up(&store, &older).unwrap();
    fill(&store, &["a"], 20);
    std::fs::remove_dir_all(&backup).unwrap();
    back_up(&store, &backup).unwrap();
    std::fs::copy(older.join("journal/manifest"), backup.join("journal/manifest")).unwrap();
    assert!(!Store::verify_backup(&backup, &Progress::default()).unwrap().is_undamaged());
    std::fs::remove_dir_all(backup.join("journal")).unwrap();
    copy_dir(&older.join("journal"), &backup.join("journal"));
    let found = Store::verify_backup(&backup, &Progress::default()).unwrap();
    assert_eq!(found.damage.len(), 2, "{:?}", found.damage);
    std::fs::remove_file(older.join("journal/manifest")).unwrap();
    let found = Store::verify_backup(&older, &Progress::default()).unwrap();
    assert!(found.damage[0].contains("journal/manifest"), "{:?}", found.damage);
    std::fs::write(older.join("backup.json"), "{").unwrap();
    let error = Store::verify_backup(&older, &Progress::default()).unwrap_err().to_string();
    assert!(error.contains("damaged backup.json"), "{error}");
    std::fs::write(older.join("backup.json"), r#"{"format": 2}"#).unwrap();
    assert!(matches!(
        Store::verify_backup(&older, &Progress::default()),
        Err(StoreError::Version { found: 2, .. })
    ));
}

/// What was acknowledged in a session: the generation, which changes when it is deleted, and the number of entries.
type Acknowledged = BTreeMap<String, (u64, u64)>;

/// Ends the writers, also when a comparison fails.
struct EndOnDrop<'a>(&'a AtomicBool, &'a Permits);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.set(0);
    }
}

/// How many writes may still be made. Writers wait for more.
#[derive(Default)]
struct Permits {
    left: Mutex<u64>,
    more: Condvar,
}

impl Permits {
    fn set(&self, count: u64) {
        *self.left.lock() = count;
        self.more.notify_all();
    }

    /// Waits for a permit and takes it; returns false when all is over.
    fn take(&self, is_over: &AtomicBool) -> bool {
        let mut left = self.left.lock();
        loop {
            if is_over.load(Ordering::Relaxed) {
                return false;
            }
            if let Some(fewer) = left.checked_sub(1) {
                *left = fewer;
                return true;
            }
            self.more.wait(&mut left);
        }
    }
}

/// Backs up again and again while sessions are appended to, deleted and reclaimed, and compares each backup with what
/// was acknowledged before it began.
#[expect(clippy::print_stdout, reason = "whoever runs it by hand reads it")]
fn under_load(backups: u64, seed: u64, segment_bytes: u64) {
    const WRITERS: u64 = 4;
    const SESSIONS: u64 = 3;
    /// The writes during and after each backup, until the next one begins.
    const WRITES: u64 = 2_000;
    let dir = tempfile::tempdir().unwrap();
    let home = dir.path().join("store");
    let options = StoreOptions { segment_bytes, ..options(&home) };
    let store = Store::open(&options).unwrap().0;
    let (is_over, known) = (AtomicBool::new(false), Mutex::new(Acknowledged::new()));
    // How many writes are still permitted: so many for each backup, or the store would outgrow the machine.
    let permitted = Permits::default();
    let mut compared = 0;
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (store, known, is_over, permitted) = (&store, &known, &is_over, &permitted);
            scope.spawn(move || {
                let mut random = Random::new(seed * 100 + writer);
                let mut generations = BTreeMap::<String, u64>::new();
                while permitted.take(is_over) {
                    let session = format!("w{writer}s{}", random.below(SESSIONS));
                    let generation = *generations.entry(session.clone()).or_default();
                    let next = store.head(&session).unwrap().map_or(0, |head| head.entries);
                    if next > 40 && random.below(12) == 0 {
                        generations.insert(session.clone(), generation + 1);
                        wait(store.delete(&session)).unwrap();
                        known.lock().remove(&session);
                        if random.below(3) == 0 {
                            wait(store.reclaim()).unwrap();
                        }
                        continue;
                    }
                    let count = 1 + random.below(3);
                    let padding = "x".repeat(usize::try_from(random.below(400)).unwrap());
                    let texts: Vec<_> = (next..next + count)
                        .map(|at| format!("{session} {generation} {at} {padding}"))
                        .collect();
                    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                    match random.below(8) {
                        0 => wait(store.append(&session, batch(next, &texts))).unwrap(),
                        _ => append(store, &session, batch(next, &texts)).unwrap(),
                    };
                    known.lock().insert(session, (generation, next + count));
                }
            });
        }
        let _ends = EndOnDrop(&is_over, &permitted);
        let mut random = Random::new(seed);
        for round in 0..backups {
            // The same directory again, or another one.
            let backup = dir.path().join(format!("backup{}", random.below(2)));
            permitted.set(WRITES);
            let before = known.lock().clone();
            let info = back_up(&store, &backup)
                .unwrap_or_else(|error| panic!("seed {seed}, round {round}: {error}"));
            let after = known.lock().clone();
            assert_eq!(verified(&backup), info, "seed {seed}, round {round}");
            let found = restored(&backup);
            assert_eq!(found.len() as u64, info.sessions);
            for (session, texts) in &found {
                let mut words = texts[0].split(' ');
                let generation: u64 = words.nth(1).unwrap().parse().unwrap();
                for (at, text) in texts.iter().enumerate() {
                    assert!(
                        text.starts_with(&format!("{session} {generation} {at} ")),
                        "seed {seed}: {text:.40}"
                    );
                }
                let count = texts.len() as u64;
                let at_least = before.get(session).copied().unwrap_or_default();
                assert!((generation, count) >= at_least, "seed {seed}, round {round}: {session}");
                compared += 1;
            }
            for (session, (generation, count)) in before {
                // It is there, or was deleted after the backup began.
                let is_deleted = after.get(&session).is_none_or(|(now, _)| *now > generation);
                assert!(
                    found.contains_key(&session) || is_deleted,
                    "seed {seed}, round {round}: {session} with {count} entries is missing"
                );
            }
        }
    });
    assert!(compared > backups * 3, "seed {seed}: {compared} sessions were compared");
    // By their names only: the store is open, and may be removing some of them.
    let names = std::fs::read_dir(home.join("journal")).unwrap().map(|entry| entry.unwrap().file_name());
    let segments = names.filter(|name| name.to_string_lossy().ends_with(".seg")).count();
    println!("{backups} backups, {compared} sessions compared, {segments} segments at the end");
}

#[test]
fn backups_under_load_miss_nothing() {
    for seed in 1..=2 {
        under_load(6, seed, 2_000 + 6_000 * (seed - 1));
    }
}

/// `GREENROOM_BACKUPS=200 cargo test --release -p greenroom-store by_hand -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes: see CONTRIBUTING.md"]
#[expect(clippy::disallowed_methods, reason = "who runs it says how many")]
fn backups_under_load_by_hand() {
    let backups = std::env::var("GREENROOM_BACKUPS").map_or(200, |count| count.parse().unwrap());
    under_load(backups, 99, 64_000);
}
