//! Invariants of the logs, of the events, and of both together.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom::prelude::*;
use greenroom_kernel::Entry;
use greenroom_kernel::entry::{EntryId, EntryKind, RunOutcome};
use greenroom_kernel::message::Message;
use greenroom_kernel::path::{path_to, project};
use greenroom_kernel::text::panic_text;
use greenroom_store::Store;

use super::plan::Plan;
use super::record::{Bounds, Record};
use super::stream::{Ends, Stream, check_told};
use super::tools::Runs;

/// An input to a session.
#[derive(Debug)]
pub(crate) struct Input {
    pub(crate) session: String,
    /// Unique.
    pub(crate) text: String,
    /// Whether the session acknowledged it.
    pub(crate) acknowledged: bool,
    /// Whether a guard refused it.
    pub(crate) refused: bool,
}

/// All logs as of the last check, and the reported events.
pub(crate) struct Logs {
    store: Store,
    runs: Runs,
    bounds: Bounds,
    records: BTreeMap<String, Record>,
    /// The durable events of a subscriber that never leaves, and of one that leaves and comes back.
    staying: BTreeMap<String, Stream>,
    returning: BTreeMap<String, Stream>,
    /// The outcomes of runs in this life, while they are known.
    ends: BTreeMap<String, Ends>,
    counts_ends: bool,
    pub(crate) lives: u64,
}

/// The subscriber that received an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Who {
    Staying,
    Returning,
}

impl Logs {
    pub(crate) fn new(store: Store, runs: Runs, plan: &Plan) -> Self {
        // The assumption for an unknown window.
        let window = plan.told_window.unwrap_or(128_000).max(plan.window);
        Self {
            store,
            runs,
            bounds: Bounds { settings: plan.settings.clone(), window },
            records: BTreeMap::new(),
            staying: BTreeMap::new(),
            returning: BTreeMap::new(),
            ends: BTreeMap::new(),
            counts_ends: true,
            lives: 0,
        }
    }

    /// Events in the logs, and how often they happened.
    pub(crate) fn facts(&self) -> Vec<(&'static str, u64)> {
        let facts = self.records.values().flat_map(|record| record.facts.iter());
        facts.map(|(what, times)| (*what, *times)).collect()
    }

    /// Begins another life: its events are counted separately.
    pub(crate) fn begin_life(&mut self) {
        self.lives += 1;
        self.ends.clear();
        self.counts_ends = true;
    }

    /// Records an event.
    pub(crate) fn event(&mut self, who: Who, event: &Arc<Event>) {
        if who == Who::Staying && self.counts_ends {
            self.ends.entry(event.session.to_string()).or_default().take(event);
        }
        if event.is_durable() {
            let streams = if who == Who::Staying { &mut self.staying } else { &mut self.returning };
            streams.entry(event.session.to_string()).or_default().take(event, &self.records);
        }
    }

    /// Ends of runs were missed, or could not be recorded: in this life they are not counted.
    pub(crate) fn miss_ends(&mut self) {
        self.ends.clear();
        self.counts_ends = false;
    }

    /// Reads from the log what a subscriber missed.
    pub(crate) async fn catch_up(&mut self, who: Who, runtime: &Runtime) {
        self.check_new();
        let sessions: Vec<String> = self.records.keys().cloned().collect();
        for session in sessions {
            let streams = if who == Who::Staying { &mut self.staying } else { &mut self.returning };
            let stream = streams.entry(session.clone()).or_default();
            for event in runtime.replay(&session, stream.next()).await.unwrap() {
                stream.take(&Arc::new(event), &self.records);
            }
        }
    }

    /// Checks that everything accepted by an earlier life is answered, withdrawn, or listed as unfinished.
    /// Returns how much is listed.
    pub(crate) async fn check_unfinished(&mut self, runtime: &Runtime) -> u64 {
        self.check_new();
        let listed = runtime.unfinished().await.unwrap();
        let undone = self.records.iter().filter(|(_, record)| record.is_left_undone());
        for (session, _) in undone {
            assert!(
                listed.iter().any(|known| known.id == *session),
                "{session}: nobody is told what it left undone"
            );
        }
        listed.len() as u64
    }

    /// After a life that ended cleanly: the subscriber that stayed and the one that left and came back
    /// received the same as one that only comes now. If an actor died, the newest events may be missing until
    /// the session is opened again.
    pub(crate) async fn check_streams(&self, runtime: &Runtime, is_whole: bool) {
        for session in self.records.keys() {
            let all = runtime.replay(session, 0).await.unwrap();
            for streams in [&self.staying, &self.returning] {
                let told = streams.get(session).map_or(&[][..], Stream::events);
                check_told(session, told, &all, is_whole);
            }
        }
    }

    /// Checks that everything ended in this life, in which no actor died.
    pub(crate) fn check_all_ended(&self) {
        self.ends.iter().for_each(|(session, ends)| ends.check_all_ended(session));
    }

    /// Checks that an acknowledged input is there.
    pub(crate) fn check_has(&self, input: &Input) {
        let has = self.records.get(&input.session).is_some_and(|record| record.has(&input.text));
        assert!(has, "{}: acknowledged, and not there: {:?}", input.session, input.text);
    }

    /// Checks that a reply is in the log, and that its run ended completed.
    pub(crate) fn check_reply(&self, session: &str, reply: &Reply) {
        let from = usize::try_from(reply.run.0).expect("a log in memory");
        let entries = &self.records[session].entries()[from..];
        let said = entries.iter().any(|entry| {
            entry.kind.as_message().is_some_and(
                |message| matches!(&**message, Message::Assistant(answer) if answer.text() == reply.text),
            )
        });
        assert!(said, "{session}: a reply is not in the log: {reply:?}");
        let ended = entries.iter().any(|entry| {
            matches!(&entry.kind, EntryKind::RunEnded { run, outcome: RunOutcome::Completed, .. } if *run == reply.run)
        });
        assert!(ended, "{session}: a reply came before its run's end: {reply:?}");
    }

    /// After every step: new entries continue the old ones, and all invariants of a log hold.
    pub(crate) fn check_new(&mut self) {
        for (session, head) in self.store.list().unwrap() {
            let record = self.records.entry(session.clone()).or_default();
            let known = record.entries().len() as u64;
            assert!(head.entries >= known, "{session} lost entries");
            let new = self.store.load(&session, EntryId(known)).unwrap();
            // Otherwise a failure in there would not name its log.
            let checked = std::panic::AssertUnwindSafe(|| {
                new.into_iter().for_each(|entry| record.push(entry, &self.bounds));
                record.check_head(&head);
            });
            if let Err(panic) = std::panic::catch_unwind(checked) {
                panic!("{session}: {}", panic_text(&*panic));
            }
        }
        // No call was run more often than it was requested.
        let mut runs = self.runs.lock().unwrap();
        for (session, call) in std::mem::take(&mut runs.fresh) {
            let asked = self.records.get(&session).map_or(0, |record| record.asked(&call));
            let times = runs.times[&(session.clone(), call.clone())];
            assert!(
                times <= asked,
                "{session}: call {call} was asked for {asked} times and run {times} times"
            );
        }
    }

    /// After every life: the history is unchanged.
    pub(crate) fn check_history(&mut self) {
        self.check_new();
        for (session, record) in &self.records {
            let all = self.store.load(session, EntryId(0)).unwrap();
            let known = record.entries().iter().map(|entry| &**entry);
            assert!(all.iter().eq(known), "{session}: its history was changed");
        }
    }

    /// Checks that apply when nothing is in progress any more.
    pub(crate) fn check_settled(&self, inputs: &[Input]) {
        for input in inputs.iter().filter(|input| input.acknowledged) {
            let settled = self.records[&input.session].is_settled(&input.text);
            assert!(settled, "{} lost {:?}", input.session, input.text);
        }
        for input in inputs.iter().filter(|input| input.refused) {
            let has = self.records.get(&input.session).is_some_and(|record| record.has(&input.text));
            assert!(!has, "{} has what was refused: {:?}", input.session, input.text);
        }
        for (session, record) in &self.records {
            record.check_settled(&self.store.head(session).unwrap().unwrap());
        }
    }

    /// Checks that the context follows from the whole log.
    pub(crate) fn check_context(&mut self, session: &str, context: &[Arc<Message>]) {
        self.check_new();
        let known = self.records[session].entries();
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
