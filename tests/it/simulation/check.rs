//! What must hold of a log, of the events, and of both together.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use greenroom::prelude::*;
use greenroom_kernel::entry::{CompactionOutcome, Entry, EntryId, EntryKind, TurnOutcome};
use greenroom_kernel::message::{Message, StopReason};
use greenroom_kernel::path::{path_to, project};
use greenroom_store::{Head, Store};

use super::life::Runs;

/// Something that was said to a session.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) session: String,
    /// Not the same twice.
    pub(crate) text: String,
    /// Whether the session said that it has it.
    pub(crate) acknowledged: bool,
}

/// All logs, as they were when last looked at.
pub(crate) struct Logs {
    store: Store,
    known: BTreeMap<String, Vec<Arc<Entry>>>,
    /// The next durable event of each session in this life.
    next: HashMap<Arc<str>, u64>,
    pub(crate) lives: u64,
}

impl Logs {
    pub(crate) fn new(store: Store) -> Self {
        Self { store, known: BTreeMap::new(), next: HashMap::new(), lives: 0 }
    }

    /// Published only after it is durable, and without holes.
    pub(crate) fn event(&mut self, event: &Event) {
        if !event.is_durable() {
            return;
        }
        let entries = self.store.head(&event.session).unwrap().map_or(0, |head| head.entries);
        assert!(event.seq < entries, "published before it was durable: {event:?}");
        if let Some(next) = self.next.get(&event.session) {
            assert_eq!(event.seq, *next, "a hole or a repetition in the events: {event:?}");
        }
        self.next.insert(Arc::clone(&event.session), event.seq + 1);
    }

    /// Some events were missed, and the subscriber was told which.
    pub(crate) fn gap(&mut self, sessions: &[(Arc<str>, u64)]) {
        for (session, _) in sessions {
            self.next.remove(session);
        }
    }

    pub(crate) fn check_exists(&self, session: &str, entry: EntryId) {
        let entries = self.store.head(session).unwrap().map_or(0, |head| head.entries);
        assert!(entry.0 < entries, "{session}: entry {entry} was acknowledged and is not there");
    }

    /// A reply is in the log, and its turn ended completed.
    pub(crate) fn check_reply(&self, session: &str, reply: &Reply) {
        let entries = self.store.load(session, reply.turn).unwrap();
        let said = entries.iter().any(|entry| {
            entry.kind.as_message().is_some_and(
                |message| matches!(&**message, Message::Assistant(answer) if answer.text() == reply.text),
            )
        });
        assert!(said, "{session}: a reply is not in the log: {reply:?}");
        let ended = entries.iter().any(|entry| {
            matches!(&entry.kind, EntryKind::TurnEnded { turn, outcome: TurnOutcome::Completed, .. } if *turn == reply.turn)
        });
        assert!(ended, "{session}: a reply came before its turn's end: {reply:?}");
    }

    /// What was there is there unchanged; what is new continues it.
    pub(crate) fn check_new(&mut self) {
        for (session, head) in self.store.list().unwrap() {
            let known = self.known.entry(session.clone()).or_default();
            assert!(head.entries >= known.len() as u64, "{session} lost entries");
            for entry in self.store.load(&session, EntryId(known.len() as u64)).unwrap() {
                assert_eq!(entry.id.0, known.len() as u64, "{session}: ids are dense");
                assert!(
                    entry.parent.is_none_or(|parent| parent < entry.id),
                    "{session}: a parent is earlier"
                );
                known.push(Arc::new(entry));
            }
        }
    }

    /// Everything that holds of a log at any moment.
    pub(crate) fn check_all(&mut self, inputs: &[Input], runs: &Runs) {
        // Another life's subscriber begins anew.
        self.next.clear();
        self.check_new();
        for (session, known) in &self.known {
            let all = self.store.load(session, EntryId(0)).unwrap();
            assert!(all.iter().eq(known.iter().map(|entry| &**entry)), "{session}: its history was changed");
            check_compactions(session, known);
            check_turns(session, known);
            let head = self.store.head(session).unwrap().unwrap();
            check_pairs(session, known, &head);
            check_runs(session, known, runs);
        }
        for input in inputs {
            let times = self.said(input);
            assert!(times <= 1, "{} has {:?} {times} times", input.session, input.text);
        }
    }

    /// How often an input is on the record as a message.
    fn said(&self, input: &Input) -> usize {
        let entries = self.known.get(&input.session).map_or(&[][..], Vec::as_slice);
        let is_it = |entry: &&Arc<Entry>| {
            entry
                .kind
                .as_message()
                .is_some_and(|message| message.role() == "user" && message.text() == input.text)
        };
        entries.iter().filter(is_it).count()
    }

    /// What holds when nothing is under way any more.
    pub(crate) fn check_settled(&self, inputs: &[Input]) {
        for input in inputs.iter().filter(|input| input.acknowledged) {
            assert_eq!(self.said(input), 1, "{} lost {:?}", input.session, input.text);
        }
        for (session, known) in &self.known {
            let head = self.store.head(session).unwrap().unwrap();
            assert_eq!(head.open_turn, None, "{session}: a turn never ended");
            assert_eq!(head.open_compaction, None, "{session}: a compaction never ended");
            assert!(head.inbox.is_empty(), "{session}: input still waits");
            let path = path_to(known, head.leaf).unwrap();
            assert!(
                greenroom_kernel::path::open_calls(&path).is_empty(),
                "{session}: a call was never answered"
            );
        }
    }

    /// The context is what the whole log says.
    pub(crate) fn check_context(&mut self, session: &str, context: &[Arc<Message>]) {
        self.check_new();
        let known = &self.known[session];
        let head = self.store.head(session).unwrap().unwrap();
        let path = path_to(known, head.leaf).unwrap();
        let pinned: Vec<Arc<Entry>> = head
            .pins
            .iter()
            .filter_map(|id| known.iter().find(|entry| entry.id == *id).map(Arc::clone))
            .collect();
        let whole = project(&path, &pinned);
        assert_eq!(context, whole, "{session}: the context differs from what the log says");
    }
}

/// Each start has at most one end, an installed compaction shrinks, and no failed summary is installed.
fn check_compactions(session: &str, entries: &[Arc<Entry>]) {
    let mut open = None;
    for (index, entry) in entries.iter().enumerate() {
        match &entry.kind {
            EntryKind::CompactionStarted(_) => {
                assert_eq!(open, None, "{session}: a compaction began within another");
                open = Some(entry.id);
            }
            EntryKind::CompactionEnded(ended) => {
                assert_eq!(open, Some(ended.started), "{session}: an end without its start");
                open = None;
                if ended.outcome.is_installed() {
                    let next = entries.get(index + 1).and_then(|entry| entry.kind.as_compaction());
                    let compaction = next.unwrap_or_else(|| panic!("{session}: an end without its summary"));
                    assert!(!compaction.summary.trim().is_empty(), "{session}: an empty summary");
                    // A provider that lies about its usage makes the size before too small to compare with.
                    let replaced = compaction.first.zip(compaction.last).map_or(0, |(first, last)| {
                        let is_replaced = |entry: &&Arc<Entry>| (first..=last).contains(&entry.id);
                        entries.iter().filter(is_replaced).map(|entry| entry.tokens).sum::<u64>()
                    });
                    assert!(
                        ended.tokens_after < ended.tokens_before || entries[index + 1].tokens < replaced,
                        "{session}: a compaction does not shrink: {ended:?}"
                    );
                    for words in ["Sure! Next I will", "lorem 42 }{"] {
                        assert!(
                            !compaction.summary.contains(words),
                            "{session}: a wrong summary was installed"
                        );
                    }
                    let fallback = matches!(ended.outcome, CompactionOutcome::Truncated);
                    assert_eq!(fallback, compaction.truncated, "{session}: the fallback says what it is");
                } else {
                    assert_eq!(ended.entry, None, "{session}");
                    let next = entries.get(index + 1).and_then(|entry| entry.kind.as_compaction());
                    assert!(next.is_none(), "{session}: a compaction that failed was installed");
                }
            }
            _ => {}
        }
    }
}

/// Each run has one end: no more ends of a turn than beginnings.
fn check_turns(session: &str, entries: &[Arc<Entry>]) {
    let mut ends: HashMap<EntryId, u64> = HashMap::new();
    let mut begins: HashMap<EntryId, u64> = HashMap::new();
    for entry in entries {
        match &entry.kind {
            EntryKind::TurnEnded { turn, .. } => *ends.entry(*turn).or_default() += 1,
            EntryKind::Note { kind, data } if kind == "turn_resumed" => {
                let turn = EntryId(data.parse().expect("a note of ours"));
                *begins.entry(turn).or_default() += 1;
            }
            _ => {}
        }
    }
    for (turn, ends) in ends {
        let begins = 1 + begins.get(&turn).copied().unwrap_or(0);
        assert!(ends <= begins, "{session}: turn {turn} began {begins} times and ended {ends} times");
    }
}

/// On the path, each call has one result, directly after it; only the newest answer may have open calls.
fn check_pairs(session: &str, entries: &[Arc<Entry>], head: &Head) {
    let path = path_to(entries, head.leaf).unwrap();
    let mut open: HashSet<&str> = HashSet::new();
    for entry in &path {
        let Some(message) = entry.kind.as_message() else { continue };
        match &**message {
            Message::ToolResult(result) => {
                assert!(
                    open.remove(result.call_id.as_str()),
                    "{session}: entry {}: a result without its call, or a second one",
                    entry.id
                );
            }
            Message::User(_) => {
                assert!(open.is_empty(), "{session}: entry {}: calls are open: {open:?}", entry.id);
            }
            Message::Assistant(answer) => {
                assert!(open.is_empty(), "{session}: entry {}: calls are open: {open:?}", entry.id);
                open.extend(answer.tool_calls().map(|call| call.id.as_str()));
                if answer.stop == StopReason::Aborted {
                    assert!(open.is_empty(), "{session}: an aborted answer asks for tools");
                }
                assert!(!answer.is_empty(), "{session}: an empty answer was recorded");
            }
        }
    }
}

/// No call was run more often than it was asked for.
fn check_runs(session: &str, entries: &[Arc<Entry>], runs: &Runs) {
    let mut asked: HashMap<&str, u64> = HashMap::new();
    for message in entries.iter().filter_map(|entry| entry.kind.as_message()) {
        for call in message.tool_calls() {
            *asked.entry(&call.id).or_default() += 1;
        }
    }
    for ((of, call), times) in runs.lock().unwrap().iter().filter(|((of, _), _)| of == session) {
        let asked = asked.get(call.as_str()).copied().unwrap_or(0);
        assert!(*times <= asked, "{of}: call {call} was asked for {asked} times and run {times} times");
    }
}
