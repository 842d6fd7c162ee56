//! Walks through a tree of sessions, also where one of them is missing or refers to itself.

use greenroom_kernel::{Entry, EntryId, EntryKind, Message};
use greenroom_store::{Batch, Store};

use super::*;

/// A store with these sessions: `id < parent`, created in this order, each labelled with its id.
async fn store(sessions: &[(&str, Option<&str>)]) -> Store {
    let store = Store::memory();
    for (at, (id, parent)) in sessions.iter().enumerate() {
        let entry = Entry {
            id: EntryId(0),
            parent: None,
            at_ms: 1,
            tokens: 1,
            reasoning_tokens: 0,
            origin: None,
            kind: EntryKind::message(Message::user("hello")),
        };
        let head = Head {
            entries: 1,
            parent_session: parent.map(str::to_owned),
            created_at_ms: at as u64,
            labels: BTreeMap::from([("id".to_owned(), (*id).to_owned())]),
            ..Head::default()
        };
        let batch = Batch { entries: vec![entry.into()], head: head.into(), key: None };
        Engine::append(&store, id, batch).await.expect("appended");
    }
    store
}

/// The sessions above one, and the labels by which it is counted.
type Seen = (Vec<(String, Option<Head>)>, BTreeMap<String, String>);

/// Checks the sessions above `id`, with `?` after one that does not exist, and the label by which it is counted.
#[track_caller]
fn check(seen: Seen, above: &str, label: &str) {
    let shown: Vec<String> =
        seen.0.into_iter().map(|(id, head)| if head.is_some() { id } else { format!("{id}?") }).collect();
    assert_eq!((shown.join(" ").as_str(), seen.1["id"].as_str()), (above, label));
}

async fn seen(store: &Store, id: &str) -> Seen {
    let head = Engine::head(store, id).await.expect("read").expect("it is there");
    let parent = head.parent_session.clone();
    let labels = top_labels(store, parent.clone(), &head.labels).await.expect("read");
    (above(store, parent).await.expect("read"), labels)
}

#[tokio::test]
async fn a_session_is_counted_by_the_highest_one_that_exists() {
    let store = store(&[
        ("a", None),
        ("a..1", Some("a")),
        ("a..1..1", Some("a..1")),
        ("b..1", Some("b")),
        ("b..1..1", Some("b..1")),
    ])
    .await;
    check(seen(&store, "a").await, "", "a");
    check(seen(&store, "a..1").await, "a", "a");
    check(seen(&store, "a..1..1").await, "a..1 a", "a");
    // The caller is gone: its own labels, or those of the highest one that is left.
    check(seen(&store, "b..1").await, "b?", "b..1");
    check(seen(&store, "b..1..1").await, "b..1 b?", "b..1");
}

#[tokio::test]
async fn a_circle_of_callers_ends() {
    let store = store(&[("a", Some("a..1")), ("a..1", Some("a"))]).await;
    assert_eq!(above(&store, Some("a".to_owned())).await.expect("read").len(), ABOVE_MAX);
    let ids: Vec<String> = below(&store, "a").await.expect("read").into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, ["a..1"]);
}

#[tokio::test]
async fn those_below_come_after_their_callers_and_the_oldest_first() {
    let store = store(&[
        ("a", None),
        ("a..2", Some("a")),
        ("a..1", Some("a")),
        ("a..1..1", Some("a..1")),
        ("a..2..9", Some("a..2")),
        ("a..2..8", Some("a..2")),
        // Begins alike, and is another's.
        ("a..3", Some("x")),
        ("b", None),
    ])
    .await;
    let ids = |found: Vec<(String, Head)>| found.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    let all = ids(below(&store, "a").await.expect("read"));
    assert_eq!(all, ["a..2", "a..2..9", "a..2..8", "a..1", "a..1..1"]);
    assert_eq!(ids(children(&store, "a").await.expect("read")), ["a..1", "a..2"]);
    assert_eq!(ids(below(&store, "b").await.expect("read")), [""; 0]);
}
