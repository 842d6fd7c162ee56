//! Points about one owner: batches, keys, reads, deletion, sizes, walks.
//!
//! Invariants: no session of one point is used by another one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use greenroom_kernel::{Entry, EntryId, Head};
use greenroom_store::{Appended, Batch, Engine, Store, StoreError};

use crate::Fixture;
use crate::kit::{self, append, batch, entry, head, kind, refused, whole};

async fn open(fixture: &dyn Fixture) -> Arc<dyn Engine> {
    fixture.open("a").await.expect("it opens")
}

/// Point 1: ids are dense, and a batch that is not valid, or does not continue the session, leaves nothing.
///
/// # Panics
/// If the engine fails.
pub async fn batches(fixture: &dyn Fixture) {
    let engine = open(fixture).await;
    let engine = engine.as_ref();
    let session = "batches";
    assert_eq!(engine.head(session).await.unwrap_or_else(|error| panic!("{error}")), None);
    refused(engine.load(session, EntryId(0)).await, "not found", "a session that is not there");
    for (first, count, text) in [(0, 1, "a"), (1, 3, "b"), (4, 100, "c")] {
        assert_eq!(append(engine, session, batch(first, count, text, None)).await, EntryId(first));
    }
    let miscounted = Batch { head: Arc::new(head(200)), ..batch(104, 1, "x", None) };
    let gap = Batch { entries: vec![entry(104, "x"), entry(106, "x")], head: Arc::new(head(106)), key: None };
    let cases = [
        (batch(103, 1, "x", None), "sequence"),
        (batch(105, 1, "x", None), "sequence"),
        (batch(0, 1, "x", None), "sequence"),
        (batch(9, 0, "x", None), "sequence"),
        (miscounted, "head"),
        (gap, "sequence"),
        (batch(104, 1, "x", Some(&"k".repeat(513))), "too large"),
    ];
    for (batch, expected) in cases {
        let what = format!("{batch:?}");
        refused(engine.append(session, batch).await, expected, &what);
    }
    refused(engine.append(" ", batch(0, 1, "x", None)).await, "session id", "a name that is none");
    refused(engine.head("\n").await, "session id", "a name that is none");
    let found = whole(engine, session).await;
    let expected: Vec<_> = ["a"; 1].into_iter().chain(["b"; 3]).chain(["c"; 100]).collect();
    assert_eq!(found, expected);

    // Only the head changes. What only a store may set is not taken from it.
    let titled = Head { title: Some("t\0t".to_owned()), lost_from: Some(EntryId(1)), ..head(104) };
    let labels = BTreeMap::from([("a\0".to_owned(), "\u{1f600}\"".to_owned())]);
    let titled = Head { labels, ..titled };
    let only_head = Batch { entries: Vec::new(), head: Arc::new(titled.clone()), key: None };
    assert_eq!(append(engine, session, only_head).await, EntryId(104));
    let stored = engine.head(session).await.expect("it is read").expect("it is there");
    assert_eq!(stored, Head { lost_from: None, ..titled });

    // Parts of a session.
    let entries = engine.load(session, EntryId(102)).await.expect("it is read");
    assert_eq!(entries.iter().map(|entry| entry.id.0).collect::<Vec<_>>(), [102, 103]);
    assert_eq!(engine.load(session, EntryId(500)).await.expect("it is read"), []);
    let some = engine.get(session, &[EntryId(7), EntryId(0), EntryId(7)]).await.expect("they are read");
    assert_eq!(some.iter().map(|entry| entry.id.0).collect::<Vec<_>>(), [7, 0, 7]);
    assert_eq!(engine.get(session, &[]).await.expect("nothing is read"), []);
    refused(engine.get(session, &[EntryId(104)]).await, "damaged", "an entry that is not there");
    refused(engine.get("nobody", &[EntryId(0)]).await, "not found", "a session that is not there");
    let salvaged = engine.salvage(session).await.expect("it is read");
    assert_eq!((salvaged.entries.len(), salvaged.lost), (104, Vec::new()));
    engine.close().await.expect("it closes");
    refused(engine.append(session, batch(104, 1, "x", None)).await, "closed", "an append to a closed engine");
    refused(engine.head(session).await, "closed", "a read of a closed engine");
    refused(engine.close().await, "closed", "a second end");
}

/// Point 2: a key writes once, also after the engine was opened again.
///
/// # Panics
/// If the engine fails.
pub async fn keys(fixture: &dyn Fixture) {
    let engine = open(fixture).await;
    let session = "keys";
    append(engine.as_ref(), session, batch(0, 2, "a", Some("one"))).await;
    append(engine.as_ref(), session, batch(2, 1, "b", Some("t\0wo"))).await;
    append(engine.as_ref(), session, batch(3, 0, "", Some("three"))).await;
    append(engine.as_ref(), "keys of another", batch(0, 1, "c", Some("one"))).await;
    let check = async |engine: &dyn Engine| {
        for (key, expected) in
            [("one", Some(0)), ("t\0wo", Some(2)), ("three", Some(3)), ("two", None), ("", None)]
        {
            let found = engine.used_key(session, key).await.expect("it is read");
            assert_eq!(found, expected.map(EntryId), "{key:?}");
        }
        assert_eq!(engine.used_key("nobody", "one").await.expect("it is read"), None);
        let all = engine.used_keys(session).await.expect("they are read");
        let expected = [("one", 0), ("t\0wo", 2), ("three", 3)];
        assert_eq!(all, expected.map(|(key, first)| (key.to_owned(), EntryId(first))));
        assert_eq!(engine.used_keys("nobody").await.expect("they are read"), []);
        // Wherever the repetition begins.
        for first in [0, 1, 3, 9] {
            let repeated = engine.append(session, batch(first, 2, "x", Some("one"))).await;
            let expected = Appended::Duplicate { first: EntryId(0) };
            assert_eq!(repeated.expect("a repetition is no error"), expected, "from {first}");
        }
        assert_eq!(whole(engine, session).await, ["a", "a", "b"]);
    };
    check(engine.as_ref()).await;
    engine.close().await.expect("it closes");
    let engine = open(fixture).await;
    check(engine.as_ref()).await;
    append(engine.as_ref(), session, batch(3, 1, "d", Some("four"))).await;
    engine.delete(session).await.expect("it is deleted");
    assert_eq!(engine.used_key(session, "one").await.expect("it is read"), None, "keys go with the session");
    assert_eq!(engine.used_keys(session).await.expect("they are read"), []);
    append(engine.as_ref(), session, batch(0, 1, "new", Some("one"))).await;
    assert_eq!(whole(engine.as_ref(), session).await, ["new"]);
    engine.close().await.expect("it closes");
}

/// Point 9, of one node: what was acknowledged is read at once, with many sessions and tasks.
///
/// # Panics
/// If the engine fails.
pub async fn reads(fixture: &dyn Fixture) {
    const WRITERS: u64 = 16;
    const APPENDS: u64 = 40;
    let engine = open(fixture).await;
    let writers = (0..WRITERS).map(|writer| {
        let engine = Arc::clone(&engine);
        tokio::spawn(async move {
            let session = format!("reads {writer}");
            for number in 0..APPENDS {
                append(engine.as_ref(), &session, batch(number * 2, 2, &number.to_string(), None)).await;
                let head = engine.head(&session).await.expect("it is read").expect("it is there");
                assert_eq!(head.entries, number * 2 + 2, "the head of {session}");
                let newest = engine.load(&session, EntryId(number * 2)).await.expect("it is read");
                assert_eq!(newest.len(), 2, "the newest entries of {session}");
            }
            assert_eq!(whole(engine.as_ref(), &session).await.len() as u64, APPENDS * 2);
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("a writer is well");
    }

    // What a session is opened with: its head, what is live, and what the head refers to before that.
    let session = "opened";
    assert!(engine.open(session).await.expect("it is read").is_none(), "there is no such session");
    for (first, active_from, pins) in [(0, 0, &[][..]), (6, 4, &[1, 3, 9][..]), (12, 18, &[17][..])] {
        let mut batch = batch(first, 6, "opened", None);
        let pins: Vec<EntryId> = pins.iter().map(|id| EntryId(*id)).collect();
        let head = Head { active_from: EntryId(active_from), pins: pins.clone(), ..head(first + 6) };
        batch.head = Arc::new(head.clone());
        append(engine.as_ref(), session, batch).await;
        let opened = engine.open(session).await.expect("it is read").expect("it is there");
        let ids = |entries: &[Entry]| entries.iter().map(|entry| entry.id.0).collect::<Vec<_>>();
        let older: Vec<u64> = pins.iter().map(|id| id.0).filter(|id| *id < active_from).collect();
        assert_eq!(opened.head, head, "the head from {first} on");
        assert_eq!((ids(&opened.active), ids(&opened.older)), ((active_from..first + 6).collect(), older));
    }

    // Facts are read at once, too.
    let engine = engine.as_ref();
    for (key, value) in [("w/a", "1"), ("w/b", "2"), ("w/a", "3"), ("w%", "4"), ("v", "5"), ("w/\u{e9}", "6")]
    {
        engine.fact_put(key, value.as_bytes()).await.expect("it is stored");
    }
    let value = engine.fact_get("w/a").await.expect("it is read");
    assert_eq!(value.as_deref(), Some("3".as_bytes()), "the last value counts");
    assert_eq!(engine.fact_keys("w/").await.expect("they are read"), ["w/a", "w/b", "w/\u{e9}"]);
    assert_eq!(engine.fact_keys("v").await.expect("they are read"), ["v"]);
    assert_eq!(engine.fact_keys("").await.expect("they are read").len(), 5);
    engine.fact_put("w/a", b"").await.expect("it is removed");
    engine.fact_put("none", b"").await.expect("what is not there is removed, too");
    assert_eq!(engine.fact_get("w/a").await.expect("it is read"), None);
    refused(engine.fact_put(&"k".repeat(513), b"v").await, "too large", "a name");
    refused(engine.fact_put("k", &vec![0; (1 << 20) + 1]).await, "too large", "a value");
    engine.close().await.expect("it closes");
}

/// Point 10, of one node: what was deleted is gone, and the id begins anew.
///
/// # Panics
/// If the engine fails.
pub async fn deletion(fixture: &dyn Fixture) {
    let engine = open(fixture).await;
    let session = "deletion";
    refused(engine.delete(session).await, "not found", "a session that is not there");
    append(engine.as_ref(), session, batch(0, 3, "old", Some("k"))).await;
    engine.delete(session).await.expect("it is deleted");
    let check = async |engine: &dyn Engine| {
        assert_eq!(engine.head(session).await.expect("it is read"), None);
        refused(engine.load(session, EntryId(0)).await, "not found", "a deleted session");
        refused(engine.salvage(session).await, "not found", "a deleted session");
        refused(engine.delete(session).await, "not found", "a deleted session");
        let listed = engine.page(None, 100).await.expect("it is listed");
        assert!(listed.iter().all(|(id, _)| id != session), "a deleted session is not listed");
        refused(
            engine.append(session, batch(3, 1, "late", None)).await,
            "sequence",
            "what continues a deleted session",
        );
    };
    check(engine.as_ref()).await;
    engine.close().await.expect("it closes");
    let engine = open(fixture).await;
    check(engine.as_ref()).await;
    append(engine.as_ref(), session, batch(0, 1, "new", Some("k"))).await;
    assert_eq!(whole(engine.as_ref(), session).await, ["new"]);
    engine.close().await.expect("it closes");
}

/// Point 12: large entries and batches are stored whole, or refused before anything is.
///
/// # Panics
/// If the engine fails.
pub async fn sizes(fixture: &dyn Fixture) {
    let engine = open(fixture).await;
    let engine = engine.as_ref();
    let session = "sizes";
    let (mut next, mut expected) = (0, Vec::new());
    // Text that hardly compresses.
    let mut random = kit::random("sizes");
    for megabytes in [1, 8, 31] {
        let text: String =
            std::iter::repeat_with(|| format!("{:016x}", random.number())).take(megabytes << 16).collect();
        append(engine, session, batch(next, 1, &text, None)).await;
        expected.push(text.len());
        next += 1;
    }
    // An engine may have no limit, but then all of it is there.
    let too_large = "x".repeat(33 << 20);
    match engine.append(session, batch(next, 1, &too_large, None)).await {
        Ok(Appended::Written { .. }) => {
            expected.push(too_large.len());
            next += 1;
        }
        result => {
            refused(result, "too large", "33 MiB");
            let mut among = batch(next, 3, "small", Some("among"));
            among.entries[2] = entry(next + 2, &too_large);
            refused(engine.append(session, among).await, "too large", "33 MiB after others");
            assert_eq!(engine.used_key(session, "among").await.expect("it is read"), None);
        }
    }
    // Larger than one statement or frame: 48 MiB, and 20,000 entries.
    let six = "y".repeat(6 << 20);
    append(engine, session, batch(next, 8, &six, Some("large"))).await;
    let repeated = engine.append(session, batch(next, 8, &six, Some("large"))).await.expect("it is no error");
    assert_eq!(repeated, Appended::Duplicate { first: EntryId(next) });
    expected.extend([six.len(); 8]);
    next += 8;
    append(engine, session, batch(next, 20_000, "z", None)).await;
    expected.extend([1; 20_000]);
    refused(
        engine.append(session, batch(next, 8, &six, None)).await,
        "sequence",
        "a large batch in the wrong place",
    );
    let lengths: Vec<usize> = whole(engine, session).await.iter().map(String::len).collect();
    assert!(lengths == expected, "the lengths of {} entries are those that were written", expected.len());
    engine.close().await.expect("it closes");
}

/// Point 12: 10,000 sessions in one walk, ordered by their bytes.
///
/// # Panics
/// If the engine fails.
pub async fn walk(fixture: &dyn Fixture) {
    const SESSIONS: u64 = 10_000;
    let engine = open(fixture).await;
    let name = |number: u64| match number % 4 {
        0 => format!("Walk {number}"),
        1 => format!("walk-{number}"),
        2 => format!("w\u{e4}lk {number}"),
        _ => format!("walk_{number}"),
    };
    let writers = (0..100).map(|writer| {
        let engine = Arc::clone(&engine);
        tokio::spawn(async move {
            for number in (writer..SESSIONS).step_by(100) {
                append(engine.as_ref(), &name(number), batch(0, 1, "x", None)).await;
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.expect("a writer is well");
    }
    let expected: BTreeSet<String> = (0..SESSIONS).map(name).collect();
    for limit in [997, 20_000] {
        let (mut walked, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = engine.page(after.as_deref(), limit).await.expect("it is listed");
            let is_last = page.len() < limit;
            after = page.last().map(|(id, _)| id.clone());
            walked.extend(page.into_iter().map(|(id, head)| {
                assert_eq!(head.entries, 1, "the head of {id}");
                id
            }));
            if is_last {
                break;
            }
        }
        assert!(
            walked.iter().eq(&expected),
            "{} sessions are walked in order, {limit} at a time",
            walked.len()
        );
    }
    engine.close().await.expect("it closes");
}

/// Random operations on an engine and on one in memory: every result is the same.
///
/// # Panics
/// If the engine fails.
pub async fn like_memory(fixture: &dyn Fixture) {
    const OPERATIONS: u32 = 1_500;
    let mut random = kit::random("like_memory");
    let mut engine = open(fixture).await;
    let model = Store::memory();
    let model: &dyn Engine = &model;
    let (mut reopened, mut refusals) = (0, 0);
    for number in 0..OPERATIONS {
        let session = format!("model {}", random.below(5));
        let session = session.as_str();
        let entries = model.head(session).await.expect("it is read").map_or(0, |head| head.entries);
        let first = if random.below(5) == 0 { random.below(entries + 3) } else { entries };
        let key = (random.below(3) == 0).then(|| format!("key {}", random.below(8)));
        let text = format!("{number}");
        let operation = random.below(20);
        let pair: (Result<String, StoreError>, Result<String, StoreError>) = match operation {
            0..10 => {
                let batch = batch(first, random.below(4), &text, key.as_deref());
                (
                    shown(engine.append(session, batch.clone()).await),
                    shown(model.append(session, batch).await),
                )
            }
            10 => (shown(engine.delete(session).await), shown(model.delete(session).await)),
            11..14 => {
                let from = EntryId(random.below(entries + 2));
                (shown(engine.load(session, from).await), shown(model.load(session, from).await))
            }
            14 => (shown(engine.head(session).await), shown(model.head(session).await)),
            15 => {
                let key = format!("key {}", random.below(8));
                match random.below(2) {
                    0 => (shown(engine.used_keys(session).await), shown(model.used_keys(session).await)),
                    _ => (
                        shown(engine.used_key(session, &key).await),
                        shown(model.used_key(session, &key).await),
                    ),
                }
            }
            16 => {
                let ids: Vec<_> = (0..random.below(4)).map(|_| EntryId(random.below(entries + 1))).collect();
                (shown(engine.get(session, &ids).await), shown(model.get(session, &ids).await))
            }
            17 => {
                let limit = usize::try_from(random.below(7)).unwrap_or(0);
                let after = (random.below(2) == 0).then_some(session);
                let brief = |page: Vec<(String, Head)>| -> Vec<_> {
                    page.into_iter().map(|(id, head)| (id, head.entries, head.leaf)).collect()
                };
                let (got, expected) = (engine.page(after, limit).await, model.page(after, limit).await);
                (shown(got.map(brief)), shown(expected.map(brief)))
            }
            18 => {
                let value = "v".repeat(usize::try_from(random.below(3)).unwrap_or(0));
                let put = shown(engine.fact_put(session, value.as_bytes()).await);
                (put, shown(model.fact_put(session, value.as_bytes()).await))
            }
            _ => {
                if random.below(5) == 0 {
                    engine.close().await.expect("it closes");
                    engine = open(fixture).await;
                    reopened += 1;
                }
                (shown(engine.fact_get(session).await), shown(model.fact_get(session).await))
            }
        };
        let (got, expected) = pair;
        match (got, expected) {
            (Ok(got), Ok(expected)) => {
                assert_eq!(got, expected, "operation {number} ({operation}) on {session}")
            }
            (Err(got), Err(expected)) => {
                refusals += 1;
                assert_eq!(
                    kind(&got),
                    kind(&expected),
                    "operation {number} ({operation}) on {session}: {got}"
                );
            }
            (got, expected) => {
                panic!("operation {number} ({operation}) on {session}: {got:?} for {expected:?}")
            }
        }
    }
    assert!(refusals > 50, "only {refusals} operations were refused");
    assert!(reopened > 0, "it was never opened again");
    engine.close().await.expect("it closes");
}

fn shown<T: std::fmt::Debug>(result: Result<T, StoreError>) -> Result<String, StoreError> {
    result.map(|value| format!("{value:?}"))
}
