//! Normal operation of a store.

use std::sync::Arc;

use greenroom_kernel::{EntryId, Head};

use super::world::{World, append, batch, keyed, texts, wait};
use crate::{Appended, Batch, Store, StoreError, StoreOptions};

/// Runs the check on a store on a disk and on a store in memory.
fn both(check: impl Fn(&Store)) {
    let world = World::new();
    check(&world.open_quiet());
    check(&Store::memory());
}

#[test]
fn what_was_appended_is_read_back() {
    both(|store| {
        assert_eq!(store.head("one").unwrap(), None);
        let written = append(store, "one", batch(0, &["a", "b"])).unwrap();
        assert_eq!(written, Appended::Written { first: EntryId(0), next: EntryId(2) });
        append(store, "one", batch(2, &["c"])).unwrap();
        append(store, "two", batch(0, &["x"])).unwrap();
        assert_eq!(texts(store, "one", 0).unwrap(), ["a", "b", "c"]);
        assert_eq!(texts(store, "one", 1).unwrap(), ["b", "c"]);
        for beyond in [3, 4, 1_000, u64::MAX / 2] {
            assert_eq!(texts(store, "one", beyond).unwrap(), [""; 0]);
        }
        assert_eq!(store.head("one").unwrap().unwrap().entries, 3);
        let some = store.get("one", &[EntryId(2), EntryId(0)]).unwrap();
        assert_eq!(some.iter().map(|entry| entry.id.0).collect::<Vec<_>>(), [2, 0]);
        assert!(matches!(store.get("one", &[EntryId(3)]), Err(StoreError::Damaged { .. })));
        let sessions = store.list().unwrap();
        assert_eq!(sessions.iter().map(|(session, _)| session.as_str()).collect::<Vec<_>>(), ["one", "two"]);
        assert!(matches!(store.load("three", EntryId(0)), Err(StoreError::NotFound { .. })));
    });
}

#[test]
fn a_batch_that_does_not_continue_the_session_is_refused() {
    both(|store| {
        append(store, "one", batch(0, &["a"])).unwrap();
        let (expected, got) = (EntryId(1), EntryId(0));
        let refused = append(store, "one", batch(0, &["b"]));
        assert!(
            matches!(refused, Err(StoreError::Sequence { expected: e, got: g, .. }) if (e, g) == (expected, got))
        );
        let mut holed = batch(1, &["b", "c"]);
        Arc::make_mut(&mut holed.entries[1]).id = EntryId(5);
        assert!(matches!(append(store, "one", holed), Err(StoreError::Sequence { .. })));
        let mut miscounted = batch(1, &["b"]);
        Arc::make_mut(&mut miscounted.head).entries = 7;
        assert!(matches!(
            append(store, "one", miscounted),
            Err(StoreError::Head { expected: 2, got: 7, .. })
        ));
        assert_eq!(texts(store, "one", 0).unwrap(), ["a"]);
    });
}

#[test]
fn a_key_gives_one_batch() {
    let world = World::new();
    for round in 0..2 {
        let store = world.open_quiet();
        let first = append(&store, "one", keyed(0, &["a"], "k")).unwrap();
        let duplicate = Appended::Duplicate { first: EntryId(0) };
        assert_eq!(first == duplicate, round > 0);
        assert_eq!(append(&store, "one", keyed(0, &["a"], "k")).unwrap(), duplicate);
        assert_eq!(append(&store, "one", keyed(1, &["b"], "k")).unwrap(), duplicate);
        // The same key in another session is another key.
        append(&store, "two", keyed(0, &["a"], "k")).unwrap();
        assert_eq!(texts(&store, "one", 0).unwrap(), ["a"]);
    }
}

#[test]
fn a_head_can_change_without_an_entry() {
    both(|store| {
        append(store, "one", batch(0, &["a"])).unwrap();
        let head = Head { entries: 1, title: Some("named".to_owned()), ..Head::default() };
        append(store, "one", Batch { entries: Vec::new(), head: Arc::new(head.clone()), key: None }).unwrap();
        assert_eq!(store.head("one").unwrap(), Some(head));
        append(store, "one", batch(1, &["b"])).unwrap();
    });
}

#[test]
fn session_ids_are_checked() {
    let longest = "é".repeat(127) + "x";
    for (session, is_right) in [
        ("a", true),
        ("A-1_b.c", true),
        (longest.as_str(), true),
        ("", false),
        (".a", true),
        ("../x", true),
        ("a/b", true),
        ("user:42", true),
        ("ada@example.org", true),
        ("CON", true),
        ("a.", true),
        ("a b", true),
        ("e\u{301}", true),
        ("é", true),
        (".", false),
        ("..", false),
        (" a", false),
        ("a\0b", false),
        ("a\u{1b}[31m", false),
        ("a\u{202e}b", false),
        (&format!("{longest}x"), false),
    ] {
        both(|store| {
            let refused = append(store, session, batch(0, &["a"]));
            assert_eq!(refused.is_ok(), is_right, "{session:?}: {refused:?}");
            assert!(is_right || matches!(refused, Err(StoreError::SessionId { .. })));
            assert_eq!(store.head(session).is_ok(), is_right);
        });
    }
}

#[test]
fn what_is_too_large_is_refused() {
    both(|store| {
        let key = "k".repeat(513);
        assert!(matches!(append(store, "one", keyed(0, &["a"], &key)), Err(StoreError::TooLarge { .. })));
        assert!(matches!(wait(store.fact_put("k", &vec![0; 1 << 21])), Err(StoreError::TooLarge { .. })));
    });
    let world = World::new();
    let huge = "x".repeat(33 << 20);
    assert!(matches!(
        append(&world.open_quiet(), "one", batch(0, &[&huge])),
        Err(StoreError::TooLarge { .. })
    ));
}

#[test]
fn a_batch_larger_than_a_segment_gets_one_of_its_own() {
    let world = World::new();
    let store = world.open_quiet();
    let large = "x".repeat(40_000);
    append(&store, "one", batch(0, &["a"])).unwrap();
    append(&store, "one", batch(1, &[&large, "b"])).unwrap();
    append(&store, "one", batch(3, &["c"])).unwrap();
    drop(store);
    assert_eq!(texts(&world.open_quiet(), "one", 0).unwrap(), ["a", &large, "b", "c"]);
}

#[test]
fn a_store_is_as_it_was_after_a_close_and_after_a_drop() {
    let world = World::new();
    for round in 0..6 {
        let store = world.open_quiet();
        assert_eq!(store.head("one").unwrap().map_or(0, |head| head.entries), round * 3);
        for id in round * 3..round * 3 + 3 {
            append(&store, "one", batch(id, &[&"x".repeat(700)])).unwrap();
        }
        wait(store.fact_put("ratio", &round.to_le_bytes())).unwrap();
        if round % 2 == 0 {
            let clone = store.clone();
            wait(store.close()).unwrap();
            assert!(matches!(append(&clone, "one", batch(0, &["a"])), Err(StoreError::Closed)));
            assert!(matches!(clone.head("one"), Err(StoreError::Closed)));
        }
    }
    let store = world.open_quiet();
    assert_eq!(store.fact_get("ratio").unwrap(), Some(5_u64.to_le_bytes().to_vec()));
    assert_eq!(texts(&store, "one", 0).unwrap().len(), 18);
    assert!(world.memory.paths().len() > 3, "several segments");
}

#[test]
fn a_deleted_session_is_gone_and_its_id_is_free() {
    let world = World::new();
    let store = world.open_quiet();
    append(&store, "one", keyed(0, &["old"], "k")).unwrap();
    append(&store, "two", batch(0, &["x"])).unwrap();
    wait(store.delete("one")).unwrap();
    assert_eq!(store.head("one").unwrap(), None);
    assert!(matches!(wait(store.delete("one")), Err(StoreError::NotFound { .. })));
    drop(store);
    let store = world.open_quiet();
    assert_eq!(store.list().unwrap().len(), 1);
    append(&store, "one", keyed(0, &["new"], "k")).unwrap();
    assert_eq!(texts(&store, "one", 0).unwrap(), ["new"]);
}

#[test]
fn many_tasks_append_at_once_and_keep_their_order() {
    let world = World::new();
    let store = world.open_quiet();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    runtime.block_on(async {
        let tasks: Vec<_> = (0..64)
            .map(|task| {
                let store = store.clone();
                tokio::spawn(async move {
                    for id in 0..20 {
                        store
                            .append(&format!("s{task}"), batch(id, &[&format!("{task}-{id}")]))
                            .await
                            .unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
    drop(store);
    let store = world.open_quiet();
    for task in 0..64 {
        let expected: Vec<String> = (0..20).map(|id| format!("{task}-{id}")).collect();
        assert_eq!(texts(&store, &format!("s{task}"), 0).unwrap(), expected);
    }
}

#[test]
fn appends_of_one_session_may_be_sent_without_waiting() {
    let world = World::new();
    let store = world.open_quiet();
    wait(async {
        let sent: Vec<_> = (0..50).map(|id| Box::pin(store.append("one", batch(id, &["x"])))).collect();
        for (id, append) in (0..).zip(futures(sent).await) {
            assert_eq!(append.unwrap(), Appended::Written { first: EntryId(id), next: EntryId(id + 1) });
        }
    });
}

/// Polls all futures, so that all appends are sent before the first is answered. Returns their results in order.
async fn futures<F: Future + Unpin>(mut futures: Vec<F>) -> Vec<F::Output> {
    let mut results: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(|context| {
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none()
                && let std::task::Poll::Ready(value) = std::pin::Pin::new(future).poll(context)
            {
                *result = Some(value);
            }
        }
        if results.iter().all(Option::is_some) {
            std::task::Poll::Ready(())
        } else {
            std::task::Poll::Pending
        }
    })
    .await;
    results.into_iter().map(|result| result.expect("all are there")).collect()
}

#[test]
fn a_second_store_in_the_directory_is_refused_at_once() {
    let world = World::new();
    let store = world.open_quiet();
    let refused = world.try_open();
    let pid = std::process::id();
    assert!(
        matches!(&refused, Err(StoreError::InUse { pid: Some(found), .. }) if *found == pid),
        "{refused:?}"
    );
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("this process, which has it open already"), "{text}");
    drop(store);
    world.open_quiet();
}

#[test]
fn of_many_that_open_at_once_one_has_the_store() {
    let world = World::new();
    let options = world.options();
    for _ in 0..20 {
        let opened: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..50).map(|_| scope.spawn(|| Store::open(&options))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(opened.iter().filter(|opened| opened.is_ok()).count(), 1);
        assert!(
            opened
                .iter()
                .flat_map(|opened| opened.as_ref().err())
                .all(|error| { matches!(error, StoreError::InUse { .. }) && error.is_retryable() })
        );
    }
}

#[test]
fn real_files_work_and_are_the_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let options = StoreOptions { segment_bytes: 4_096, ..StoreOptions::new(dir.path().join("a/b")) };
    let (store, notices) = Store::open(&options).unwrap();
    assert_eq!(notices, []);
    for id in 0..30 {
        append(&store, "one", batch(id, &[&"x".repeat(500)])).unwrap();
    }
    drop(store);
    let (store, notices) = Store::open(&options).unwrap();
    assert_eq!(notices, []);
    assert_eq!(texts(&store, "one", 0).unwrap().len(), 30);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&options.dir).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }
}

#[cfg(unix)]
#[test]
fn what_the_store_keeps_is_closed_to_others_whatever_directory_it_is_in() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let mode = |path: &str| std::fs::metadata(dir.path().join(path)).unwrap().permissions().mode() & 0o777;
    let open_to_all = || std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(dir.path(), open_to_all()).unwrap();
    for _ in 0..2 {
        let (store, _) = Store::open(&StoreOptions::new(dir.path())).unwrap();
        append(
            &store,
            "secret-project",
            batch(store.head("secret-project").unwrap().map_or(0, |head| head.entries), &["a"]),
        )
        .unwrap();
        drop(store);
        assert_eq!((mode("journal"), mode("index")), (0o700, 0o700));
        let (store, _) = Store::open(&StoreOptions::new(dir.path())).unwrap();
        for own in ["journal", "index"] {
            for file in std::fs::read_dir(dir.path().join(own)).unwrap().map(|file| file.unwrap().file_name())
            {
                let path = format!("{own}/{}", file.to_str().unwrap());
                if dir.path().join(&path).is_file() {
                    assert_eq!(mode(&path), 0o600, "{path}");
                }
            }
        }
        drop(store);
        assert_eq!(mode(""), 0o777, "the directory itself is the user's");
        for own in ["journal", "index"] {
            std::fs::set_permissions(dir.path().join(own), open_to_all()).unwrap();
        }
    }
}

#[test]
fn a_file_that_claims_to_be_endless_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(&StoreOptions::new(dir.path())).unwrap());
    let manifest = std::fs::OpenOptions::new().write(true).open(dir.path().join("journal/manifest")).unwrap();
    // It takes no space on the disk.
    manifest.set_len(1 << 40).unwrap();
    let refused = Store::open(&StoreOptions::new(dir.path()));
    assert!(matches!(refused, Err(StoreError::Io { .. })), "{refused:?}");
}

#[test]
fn entries_of_one_frame_are_read_together() {
    let world = World { segment_bytes: 1 << 20, ..World::new() };
    let store = world.open_quiet();
    append(&store, "one", batch(0, &["a"; 500])).unwrap();
    let read = |ids: &[u64]| {
        let before = world.memory.bytes_read();
        let found = store.get("one", &ids.iter().copied().map(EntryId).collect::<Vec<_>>()).unwrap();
        assert_eq!(found.iter().map(|entry| entry.id.0).collect::<Vec<_>>(), ids);
        world.memory.bytes_read() - before
    };
    let (one, many) = (read(&[250]), read(&(100..400).collect::<Vec<_>>()));
    assert!(one > 100 && many < 50 * one, "{one} bytes for one, {many} for 300");
    assert!(read(&[7, 8, 300, 9, 9]) > 3 * one, "four runs of neighbours");
}

#[test]
fn an_entry_behind_the_last_is_told_to_be_missing() {
    let world = World::new();
    let store = world.open_quiet();
    append(&store, "one", batch(0, &["a", "b"])).unwrap();
    for far in [2, 3, 100] {
        let missing = store.get("one", &[EntryId(1), EntryId(far)]);
        assert!(
            matches!(missing, Err(StoreError::Damaged { entry, .. }) if entry == EntryId(far)),
            "{missing:?}"
        );
        assert_eq!(store.load("one", EntryId(far)).unwrap(), []);
        let page = store.entries("one", EntryId(far), 1).unwrap().unwrap();
        assert_eq!((page.entries, page.next), (Vec::new(), None));
    }
    for (from, limit, len, next) in [(0, 1, 1, Some(1)), (0, 2, 2, None), (1, 9, 1, None)] {
        let page = store.entries("one", EntryId(from), limit).unwrap().unwrap();
        assert_eq!((page.entries.len(), page.next.map(|next| next.0)), (len, next), "{from}, {limit}");
    }
    assert_eq!(store.entries("two", EntryId(0), 1).unwrap(), None);
    assert_eq!(texts(&store, "one", 0).unwrap(), ["a", "b"]);
}
