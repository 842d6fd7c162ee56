//! Appending a draft: it becomes durable, and is then applied to the log in memory, the budgets, the parts of
//! the session, the tracker, and the subscribers.
//!
//! Invariants: a draft that the store refused has no effects, and the session is unchanged.

use std::sync::Arc;

use greenroom_kernel::bill::{Bill, Tally};
use greenroom_kernel::entry::{EntryKind, Spender, Spent};
use greenroom_kernel::log::Draft;
use greenroom_kernel::path::is_message;
use greenroom_kernel::{Entry, Usage};
use greenroom_store::{Appended, Batch, StoreError};
use tracing::Instrument as _;

use super::SessionState;
use crate::core::message::{AgentMessage, RunAttempt, RunCompletion, TrackerMessage};
use crate::core::metrics::Happened;
use crate::core::ownership;
use crate::core::trace;
use crate::events::entry_events::Due;
use crate::values::error::{Error, Result};

/// What else to report when a draft is durable, besides its events.
#[derive(Default)]
pub(super) struct AfterAppend {
    /// The completion of the run, with its reply.
    pub(super) then: Option<RunCompletion>,
    /// The run that ends with an answer in this draft.
    pub(super) ended: Option<RunAttempt>,
}

impl SessionState {
    /// Appends a draft, and then applies it to the log in memory, the tracker and the subscribers.
    pub(super) async fn append(&mut self, draft: Box<Draft>, key: Option<String>) -> Result<()> {
        self.append_then(draft, key, &mut AfterAppend::default()).await
    }

    pub(super) async fn append_then(
        &mut self,
        mut draft: Box<Draft>,
        key: Option<String>,
        after: &mut AfterAppend,
    ) -> Result<()> {
        if self.log.is_empty() {
            let created_at_ms = self.created_at_ms();
            let (provider, model) = (self.definition.provider(), self.definition.model());
            draft.begin(provider, model, self.shared.parent.as_deref(), created_at_ms);
        }
        let (provider, model) = (self.definition.provider(), self.definition.model());
        draft.set_window(provider, model, self.definition.window.tokens);
        self.store(&draft, key).await?;
        let (bill_before, is_import) = (self.log.bill(), draft.is_import());
        let entries = self.log.commit(draft);
        if is_import || entries.iter().any(|entry| matches!(entry.kind, EntryKind::Metadata(_))) {
            self.labels_changed();
        }
        if !is_import {
            let (provider, model) = (self.definition.provider(), self.definition.model());
            self.deps.metrics.count(Happened::Recorded { entries: &entries, provider, model });
        }
        // The tracker already has the answer that ends a run, and its cost.
        let ended = after.ended.take();
        let is_counted = ended.is_some();
        self.pay(&entries, &bill_before, is_counted);
        if !is_import {
            self.count(&entries);
        }
        self.follow(&entries, is_counted || is_import);
        self.announce(&entries, ended, after.then.take());
        Ok(())
    }

    /// Writes entries to the store.
    async fn store(&mut self, draft: &Draft, key: Option<String>) -> Result<()> {
        let batch = Batch { entries: draft.entries().to_vec(), head: draft.shared_head(), key };
        let entries = batch.entries.len();
        self.send_told();
        let span = trace::append(self.work_span(), &self.shared.id, entries);
        let began = tokio::time::Instant::now();
        let appended = self.deps.store.append(&self.shared.id, batch).instrument(span.clone()).await;
        let took = began.elapsed();
        self.deps.readiness.note(&appended);
        let is_durable = appended.is_ok();
        self.deps.metrics.count(Happened::Appended { entries, is_durable, took });
        if let Err(error) = &appended {
            trace::append_failed(&span);
            self.append_failed(error);
        }
        match appended? {
            Appended::Written { .. } => Ok(()),
            Appended::Duplicate { first } => {
                Err(Error::DuplicateKey { session: self.shared.id.to_string(), first })
            }
        }
    }

    /// Ends the actor if its log is not what it believes: another node took the session over, or nobody knows whether
    /// the entries were written.
    fn append_failed(&self, error: &StoreError) {
        if ownership::is_lost(error) {
            self.shared.lose();
            self.myself.stop(Some(error.to_string()));
        } else if matches!(error, StoreError::InDoubt { .. }) {
            self.myself.stop(Some(error.to_string()));
        }
    }

    /// Adds what these entries record to the accounts.
    fn count(&self, entries: &[Arc<Entry>]) {
        let Some(newest) = entries.last().filter(|_| self.deps.accounts.is_on()) else { return };
        let is_sub_agent = self.shared.parent.is_some();
        let tally = Tally::of(entries.iter().map(|entry| &**entry), is_sub_agent);
        let (tenants, below) = (self.deps.tenants(&self.shared), newest.id.0 + 1);
        self.deps.accounts.count(&tenants, &self.shared.id, below, newest.at_ms, &tally);
    }

    /// Sets the labels by which the session is counted. Those of a sub-agent are its top-level session's.
    pub(super) fn labels_changed(&self) {
        if self.log.head().parent_session.is_none() {
            self.shared.set_tenants(self.deps.accounts.table().tenants(&self.log.head().labels));
        }
    }

    /// Charges the budgets of its callers with the costs of these entries.
    fn pay(&mut self, entries: &[Arc<Entry>], bill_before: &Bill, is_counted: bool) {
        let bill = self.log.bill();
        // A sub-agent has told the sessions above it.
        let below: u64 = entries.iter().filter_map(|entry| spent_below(&entry.kind)).sum();
        let own = bill.since(bill_before).cost_microdollars.saturating_sub(below);
        let of_summaries =
            entries.iter().map(|entry| spent_by_summaries(&entry.kind)).fold(0, u64::saturating_add);
        self.deps.ledger.billed(&self.shared, bill, own, of_summaries, below);
        if entries.iter().any(|entry| ends_call(&entry.kind)) {
            self.deps.ledger.release(&self.shared);
        }
        if bill != *bill_before && !is_counted {
            self.tracker.tell(TrackerMessage::Billed(bill));
        }
    }

    /// Applies these entries to the parts of the session, and to the tracker, unless it `is_counted` there
    /// already.
    fn follow(&mut self, entries: &[Arc<Entry>], is_counted: bool) {
        for entry in entries {
            self.repeats.follow(&entry.kind);
            if is_message(&entry.kind) {
                self.compaction.message_recorded();
                if entry.kind.is_whole_answer() {
                    self.definition.answered();
                }
                if !is_counted {
                    self.tracker.tell(TrackerMessage::Appended(Arc::clone(entry)));
                }
            }
        }
        self.inbox.committed(&self.log);
        self.tell_askers(entries);
    }

    /// Lets the agent publish the events of these entries, and then answer the callers of the run. `ended` is
    /// the run that ends with an answer among them.
    fn announce(&mut self, entries: &[Arc<Entry>], ended: Option<RunAttempt>, then: Option<RunCompletion>) {
        let mut events = Due::of(entries, self.log.head().open_run);
        self.outgoing.add(&events, self.shared.broadcast_below());
        let then = then.map(|then| self.outgoing.complete(then));
        if let Some(attempt) = ended {
            // The step's end comes between the answer and the end of the run.
            let end = events.iter().position(|event| matches!(event.entry.kind, EntryKind::RunEnded { .. }));
            let last = events.split_off(end.unwrap_or(events.len()));
            self.agent.tell(AgentMessage::Broadcast { events, then: None });
            let answer = self.log.newest_answer();
            self.agent.tell(AgentMessage::Recorded { attempt, delivered: 0, answer, is_measuring: false });
            events = last;
        }
        self.agent.tell(AgentMessage::Broadcast { events, then });
    }

    /// Returns when the session was created, in Unix milliseconds.
    pub(super) fn created_at_ms(&self) -> u64 {
        self.shared.created_at_ms().unwrap_or_else(|| self.deps.created_at_ms())
    }
}

/// Returns the cost that an entry bills for another session's calls, in micro-dollars.
fn spent_below(kind: &EntryKind) -> Option<u64> {
    let EntryKind::Spent(spent) = kind else { return None };
    spent.cost_microdollars.filter(|_| matches!(spent.by, Spender::SubAgent { .. }))
}

/// Returns how much an entry bills of the cost of answered summaries, in micro-dollars; all of it, if a price was unknown.
fn spent_by_summaries(kind: &EntryKind) -> u64 {
    if let EntryKind::CompactionEnded(ended) = kind
        && ended.summary_usage != Usage::default()
    {
        return ended.cost_microdollars.unwrap_or(u64::MAX);
    }
    if let EntryKind::Spent(Spent { by: Spender::BranchSummary, cost_microdollars, .. }) = kind {
        return cost_microdollars.unwrap_or(u64::MAX);
    }
    0
}

/// Whether the entry bills a model call: it is a complete or partial answer, or the known usage of a call
/// without an answer.
fn ends_call(kind: &EntryKind) -> bool {
    matches!(kind, EntryKind::Spent(Spent { by: Spender::Calls, .. })) || kind.as_answer().is_some()
}
