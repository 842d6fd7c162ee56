//! Copies between engines.
//!
//! Invariants: what is compared is read from the engines, not from what a copy says.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_kernel::entry::InboxDelivery;
use greenroom_kernel::{Block, Entry, EntryId, EntryKind, Head};
use greenroom_store::{Batch, Copied, Engine, StoreError, copy};

use crate::kit::{self, append, batch, head, refused, whole};

/// Copies sessions from one engine to a second one, and from there to a third one, after copies that were cancelled and in
/// spite of sessions that differ. All three have the same.
///
/// # Panics
/// If a copy is not what it should be.
pub async fn there_and_back(first: &Arc<dyn Engine>, second: &Arc<dyn Engine>, third: &Arc<dyn Engine>) {
    const SESSIONS: u64 = 20;
    let mut random = kit::random("there_and_back");
    let mut keys = Vec::new();
    for number in 0..SESSIONS {
        let session = format!("copy {number}");
        let mut next = 0;
        for _ in 0..random.below(6) {
            let key = (random.below(2) == 0).then(|| format!("key {next}"));
            let count = random.below(if number == 7 { 3_000 } else { 5 }) + 1;
            let mut written = batch(next, count, &format!("{session} {next}"), key.as_deref());
            if let Some(key) = key {
                // The prompt of an idle session is a message, which does not name its key.
                if random.below(2) == 0 {
                    written.entries[0] = inbox(next, &key);
                }
                keys.push((session.clone(), key, next));
            }
            append(first.as_ref(), &session, written).await;
            next += count;
            if random.below(4) == 0 {
                // Two keys of batches without entries, which begin where the next batch does.
                for key in [format!("empty {next}"), format!("also empty {next}")] {
                    append(first.as_ref(), &session, batch(next, 0, "", Some(&key))).await;
                    keys.push((session.clone(), key, next));
                }
            }
        }
        let titled = Head { title: Some(format!("title {number}")), ..head(next) };
        append(first.as_ref(), &session, Batch { entries: Vec::new(), head: titled.into(), key: None }).await;
    }
    first.fact_put("window", b"9").await.expect("it is stored");

    // A session that is another one stops the copy, and stays as it is.
    append(second.as_ref(), "copy 9", batch(0, 9, "another", None)).await;
    refused(
        copy(first.as_ref(), second.as_ref(), |_| {}).await,
        "unsuitable",
        "another session of the same id",
    );
    assert_eq!(whole(second.as_ref(), "copy 9").await, ["another"; 9]);
    second.delete("copy 9").await.expect("it is deleted");
    // One of which a part is there is completed.
    second.delete("copy 7").await.expect("it is deleted");
    let part: Vec<_> =
        first.load("copy 7", EntryId(0)).await.expect("it is read").into_iter().take(1).collect();
    let count = part.len() as u64;
    let part = Batch {
        entries: part.into_iter().map(Arc::new).collect(),
        head: head(count).into(),
        key: keys
            .iter()
            .find(|(session, _, first)| session == "copy 7" && *first == 0)
            .map(|(_, key, _)| key.clone()),
    };
    append(second.as_ref(), "copy 7", part).await;

    let told = parking_lot::Mutex::new(Vec::<Copied>::new());
    let copied = copy(first.as_ref(), second.as_ref(), |copied| told.lock().push(*copied))
        .await
        .expect("it is copied");
    assert_eq!((copied.sessions, copied.facts, told.lock().len() as u64), (SESSIONS, 1, SESSIONS));
    let again = copy(first.as_ref(), second.as_ref(), |_| {}).await.expect("it is compared");
    assert_eq!((again.entries, again.entries_before), (0, copied.entries + copied.entries_before));
    let back = copy(second.as_ref(), third.as_ref(), |_| {}).await.expect("it is copied back");
    assert_eq!((back.sessions, back.entries), (SESSIONS, again.entries_before));

    let all = contents(first).await.expect("it is read");
    assert!(all.len() as u64 == SESSIONS && keys.len() > 8, "{} sessions, {} keys", all.len(), keys.len());
    for engine in [second, third] {
        assert!(contents(engine).await.expect("it is read") == all, "heads and entries are the same");
        assert_eq!(engine.fact_get("window").await.expect("it is read").as_deref(), Some(&b"9"[..]));
        for (session, key, first) in &keys {
            let found = engine.used_key(session, key).await.expect("it is read");
            assert_eq!(found, Some(EntryId(*first)), "{session} {key}");
        }
    }
}

/// Returns all heads and entries.
async fn contents(engine: &Arc<dyn Engine>) -> Result<BTreeMap<String, (Head, Vec<Entry>)>, StoreError> {
    let mut found = BTreeMap::new();
    for (session, head) in engine.page(None, 1_000).await? {
        let entries = engine.load(&session, EntryId(0)).await?;
        found.insert(session, (head, entries));
    }
    Ok(found)
}

/// Returns an entry of the inbox that came with this key.
fn inbox(id: u64, key: &str) -> Arc<Entry> {
    let kind = EntryKind::Inbox {
        delivery: InboxDelivery::Prompt,
        content: vec![Block::Text("x".to_owned())],
        key: Some(key.to_owned()),
        fingerprint: None,
        terms: None,
    };
    let parent = id.checked_sub(1).map(EntryId);
    Arc::new(Entry { id: EntryId(id), parent, at_ms: 1, tokens: 3, reasoning_tokens: 0, origin: None, kind })
}
