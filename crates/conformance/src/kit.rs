//! Batches for tests, random numbers, and comparisons that read well.
//!
//! Invariants: a batch's entries tell which batch they belong to, so a test sees whether one is there entirely.

use std::sync::Arc;

use greenroom_kernel::random::Random;
use greenroom_kernel::{Block, Entry, EntryId, EntryKind, Head, Message};
use greenroom_store::{Appended, Batch, Engine, StoreError};

/// Returns an entry with this text.
pub fn entry(id: u64, text: &str) -> Arc<Entry> {
    let kind = EntryKind::message(Message::User(vec![Block::Text(text.to_owned())]));
    let parent = id.checked_sub(1).map(EntryId);
    Arc::new(Entry { id: EntryId(id), parent, at_ms: 1, tokens: 3, reasoning_tokens: 0, origin: None, kind })
}

/// Returns a head that counts this many entries.
pub fn head(entries: u64) -> Head {
    Head { entries, leaf: entries.checked_sub(1).map(EntryId), ..Head::default() }
}

/// Returns a batch of this many entries with this text, from `first` on.
pub fn batch(first: u64, count: u64, text: &str, key: Option<&str>) -> Batch {
    let entries = (first..first + count).map(|id| entry(id, text)).collect();
    Batch { entries, head: Arc::new(head(first + count)), key: key.map(str::to_owned) }
}

/// Returns the texts of entries.
pub fn texts(entries: &[Entry]) -> Vec<String> {
    let text = |entry: &Entry| {
        if let EntryKind::Message { message, .. } = &entry.kind
            && let Message::User(blocks) = message.as_ref()
            && let [Block::Text(text)] = blocks.as_slice()
        {
            return text.clone();
        }
        panic!("{:?} is no text of a user", entry.kind)
    };
    entries.iter().map(text).collect()
}

/// Checks that the entries have dense ids from 0, and returns their texts.
pub async fn whole(engine: &dyn Engine, session: &str) -> Vec<String> {
    let entries = engine.load(session, EntryId(0)).await.expect("the session can be read");
    for (id, entry) in (0..).zip(&entries) {
        assert_eq!(entry.id, EntryId(id), "the ids of {session} are dense");
    }
    let head = engine.head(session).await.expect("the head can be read").expect("there is a session");
    assert_eq!(head.entries, entries.len() as u64, "the head of {session} counts its entries");
    texts(&entries)
}

/// Appends, and returns the id of the first entry. The batch must be written.
pub async fn append(engine: &dyn Engine, session: &str, batch: Batch) -> EntryId {
    match engine.append(session, batch).await {
        Ok(Appended::Written { first, .. }) => first,
        other => panic!("{session}: {other:?}"),
    }
}

/// A name for an error, without what differs between engines.
#[expect(clippy::wildcard_enum_match_arm, reason = "the others belong to one engine")]
pub fn kind(error: &StoreError) -> &'static str {
    match error {
        StoreError::Sequence { .. } => "sequence",
        StoreError::Head { .. } => "head",
        StoreError::SessionId { .. } => "session id",
        StoreError::TooLarge { .. } => "too large",
        StoreError::NotFound { .. } => "not found",
        StoreError::Damaged { .. } => "damaged",
        StoreError::Fenced { .. } => "fenced",
        StoreError::Elsewhere { .. } => "elsewhere",
        StoreError::LeaseLost => "lease lost",
        StoreError::Unavailable { .. } => "unavailable",
        StoreError::InDoubt { .. } => "in doubt",
        StoreError::SetBack { .. } => "set back",
        StoreError::Unsuitable { .. } => "unsuitable",
        StoreError::Version { .. } => "version",
        StoreError::Closed => "closed",
        _ => "another error",
    }
}

/// Checks that an operation failed with an error of this kind.
pub fn refused<T: std::fmt::Debug>(result: Result<T, StoreError>, expected: &str, what: &str) {
    match result {
        Err(error) if kind(&error) == expected => {}
        other => panic!("{what}: {other:?} instead of `{expected}`"),
    }
}

/// Returns random numbers. The seed is the variable `GREENROOM_SEED`, or from the clock, and is printed.
#[expect(clippy::print_stderr, reason = "a random test prints its seed")]
#[expect(clippy::disallowed_methods, reason = "a seed is given by hand")]
pub fn random(test: &str) -> Random {
    let given = std::env::var("GREENROOM_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |now| u64::from(now.subsec_nanos()) ^ (now.as_secs() << 20))
    });
    eprintln!("{test}: GREENROOM_SEED={seed}");
    Random::new(seed)
}
