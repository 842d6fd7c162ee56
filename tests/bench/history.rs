//! Long sessions, made without a model: many older entries, a compaction over them, and a live part.
//!
//! Invariants: the same numbers give the same entries, and two sessions with the same live part differ only
//! in the part that the compaction replaced.

use std::sync::Arc;

use greenroom_kernel::Head;
use greenroom_kernel::carried::Carried;
use greenroom_kernel::entry::Trigger;
use greenroom_kernel::size::{Estimator, entry_reasoning_tokens, entry_tokens};
use greenroom_kernel::{
    AssistantMessage, Block, Compaction, Entry, EntryId, EntryKind, FileOps, Message, Part, StopReason, Usage,
};
use greenroom_store::{Batch, Store};

/// The number of entries in one append.
const BATCH: usize = 4_096;

/// Creates a session of `older` messages, `live` messages after them, and, if there are older ones, a
/// compaction that replaced exactly these; then one more question and answer.
pub fn session(older: usize, live: usize) -> (Vec<Entry>, Head) {
    let mut entries: Vec<Entry> = Vec::with_capacity(older + live + 3);
    let push = |entries: &mut Vec<Entry>, kind: EntryKind| {
        let id = EntryId(entries.len() as u64);
        let parent = entries.last().map(|entry| entry.id);
        let tokens = entry_tokens(&kind, Estimator::Classes);
        let reasoning_tokens = entry_reasoning_tokens(&kind);
        entries.push(Entry {
            id,
            parent,
            at_ms: 1_700_000_000_000,
            tokens,
            reasoning_tokens,
            origin: None,
            kind,
        });
    };
    for number in 0..older + live {
        // The live part is the same, however much is before it.
        let number = number.checked_sub(older).map_or(number + 1_000_000, |place| place);
        push(&mut entries, message(number));
    }
    let mut head = Head::default();
    if older > 0 {
        let compaction = EntryId(entries.len() as u64);
        push(&mut entries, EntryKind::Compaction(Box::new(over(older as u64))));
        head.active_compaction = Some(compaction);
        head.last_compaction = Some(compaction);
        head.compactions = 1;
    }
    push(&mut entries, message(live));
    push(&mut entries, message(live + 1));
    head.entries = entries.len() as u64;
    head.leaf = entries.last().map(|entry| entry.id);
    head.active_from = EntryId(older as u64);
    head.context_tokens = entries[older..].iter().map(|entry| entry.tokens).sum();
    (entries, head)
}

/// Puts a session into a store.
///
/// # Panics
/// If the store cannot be written.
pub async fn append(store: &Store, id: &str, entries: &[Entry], head: &Head) {
    // The live part has records of its own, as in a session that grew naturally: reading one reads nothing
    // else.
    let live = usize::try_from(head.active_from.0).expect("it is a position").min(entries.len());
    let (older, live) = entries.split_at(live);
    for batch in older.chunks(BATCH).chain(live.chunks(BATCH)) {
        let entries: Vec<_> = batch.iter().cloned().map(Arc::new).collect();
        let next = entries.last().map_or(0, |entry| entry.id.0 + 1);
        let head = if next == head.entries {
            head.clone()
        } else {
            Head { entries: next, leaf: entries.last().map(|entry| entry.id), ..Head::default() }
        };
        let batch = Batch { entries, head: head.into(), key: None };
        store.append(id, batch).await.expect("the store takes a session");
    }
}

/// Returns a message of about sixty tokens: questions at even numbers, answers at odd ones.
fn message(number: usize) -> EntryKind {
    let words =
        ["the", "parser", "reads", "each", "line", "once", "and", "keeps", "its", "place", "for", "errors"];
    let text: Vec<&str> = (0..50).map(|word| words[(word * 7 + number) % words.len()]).collect();
    let text = format!("{number}: {}", text.join(" "));
    EntryKind::message(if number.is_multiple_of(2) {
        Message::User(vec![Block::Text(text)])
    } else {
        Message::Assistant(AssistantMessage::new(vec![Part::Text(text)], "bench", "bench", StopReason::Stop))
    })
}

/// Returns a compaction that replaced the first `older` entries.
fn over(older: u64) -> Compaction {
    Compaction {
        base: None,
        previous: None,
        first: Some(EntryId(0)),
        last: Some(EntryId(older - 1)),
        first_kept: Some(EntryId(older)),
        summary: format!("## Goal\nA parser.\n\n## Progress\n### Done\n{}", "- [x] a line\n".repeat(40)),
        active_request: None,
        debt: Vec::new(),
        native: None,
        files: FileOps::default(),
        trigger: Trigger::Threshold,
        truncated: false,
        from_hook: false,
        is_split_turn: false,
        tokens_before: older * 60,
        tokens_after: 1_000,
        messages_before: older,
        messages_removed: older,
        duration_ms: 1,
        model: "bench".to_owned(),
        usage: Usage::default(),
        cost_microdollars: None,
        carried: Carried::default(),
        recall: None,
    }
}

/// Returns the entries as a path in memory.
pub fn path(entries: Vec<Entry>) -> Vec<Arc<Entry>> {
    entries.into_iter().map(Arc::new).collect()
}
