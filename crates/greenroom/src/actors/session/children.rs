//! The sub-agents of a session's runs, by its log.
//!
//! Invariants: each recorded start has one end, with the sub-agent's spending; a sub-agent that no task works
//! on is ended by its own log, as soon as no other work is in progress.

use std::sync::Arc;

use greenroom_kernel::Head;
use greenroom_kernel::bill::Bill;
use greenroom_kernel::entry::{ChildRecord, EntryId, EntryKind, RunOutcome};
use greenroom_store::Engine;

use super::SessionState;
use crate::core::asking;
use crate::core::door::Door;
use crate::core::message::ReplyTo;
use crate::core::shared::SessionShared;
use crate::values::error::{Error, Result};

/// The end of a session's last run is within this many of its newest entries.
const LAST_ENTRIES: u64 = 8;

impl SessionState {
    /// Records the start of a sub-agent.
    pub(super) async fn child_started(&mut self, record: ChildRecord, reply: ReplyTo<EntryId>) {
        if self.life.is_stopping() || !self.runs.is_open() {
            let _ = reply.send(Err(Error::Aborted));
            return;
        }
        let mut draft = self.log.draft(self.deps.now_ms());
        let started = draft.push(EntryKind::Child(record));
        let _ = reply.send(self.append(draft, None).await.map(|()| started));
    }

    /// Records the end of a sub-agent.
    pub(super) async fn child_ended(&mut self, started: EntryId, outcome: RunOutcome, spent: Bill) {
        let mut draft = self.log.draft(self.deps.now_ms());
        if let Some((_, child)) = self.log.children().iter().find(|(id, _)| *id == started) {
            draft.end_child(started, child, outcome, spent);
        }
        if !draft.is_empty()
            && let Err(error) = self.append(draft, None).await
        {
            self.warn(format!("the end of a sub-agent could not be recorded: {error}"));
        }
    }

    /// Ends sub-agents that a crash left, and for which nobody waits any more.
    pub(super) async fn close_children(&mut self) {
        let is_left = |(_, child): &&(EntryId, ChildRecord)| {
            !self.shared.has_child_at_work(&child.session) && !self.log.waits_below(&child.call_id)
        };
        let left: Vec<(EntryId, ChildRecord)> = self.log.children().iter().filter(is_left).cloned().collect();
        if left.is_empty() || !self.is_idle() {
            return;
        }
        let mut draft = self.log.draft(self.deps.now_ms());
        for (started, child) in left {
            self.withdraw_questions_of(&child.session);
            match self.read_child(child.session.clone()).await {
                Ok((outcome, spent)) => draft.end_child(started, &child, outcome, spent),
                // This is retried after the next message.
                Err(error) => {
                    self.warn(format!("the end of {} could not be read: {error}", child.name));
                    return;
                }
            }
        }
        if let Err(error) = self.append(draft, None).await {
            self.warn(format!("the end of a sub-agent could not be recorded: {error}"));
        }
    }

    /// Withdraws the questions of a sub-agent for which nobody waits, and of those below it.
    fn withdraw_questions_of(&self, session: &str) {
        let (deps, session) = (Arc::clone(&self.deps), session.to_owned());
        tokio::spawn(async move {
            let asking = asking::asking_in_tree(&*deps.store, &session).await;
            for (session, _) in asking.unwrap_or_default() {
                let parent = None;
                let shared = SessionShared::new(session.into(), parent, None, None);
                let handle = Door::new(Arc::new(shared), Arc::clone(&deps));
                if let Err(error) = handle.withdraw_questions().await {
                    tracing::warn!(session = handle.id(), "its questions could not be withdrawn: {error}");
                }
            }
        });
    }

    /// Returns the sub-agents that wait for people, for the successors that continue their calls.
    pub(super) fn left_children(&self) -> Vec<(EntryId, ChildRecord)> {
        let waits = |(_, child): &&(EntryId, ChildRecord)| self.log.waits_below(&child.call_id);
        self.log.children().iter().filter(waits).cloned().collect()
    }

    /// Notes the calls whose sub-agents wait for people.
    pub(super) fn note_waiting_children(&mut self) {
        self.log.set_waiting_below(self.shared.calls_that_wait());
    }

    /// Reads from a sub-agent's log how its session ended, and what it spent. The spending of a deleted
    /// session is unknown and counts as 0.
    async fn read_child(&self, session: String) -> Result<(RunOutcome, Bill)> {
        let store = &*self.deps.store;
        let interrupted = RunOutcome::Interrupted;
        let Some(head) = store.head(&session).await? else { return Ok((interrupted, Bill::default())) };
        let spent = spent(store, &session, &head).await?;
        if head.open_run.is_some() || head.interrupted.is_some() {
            return Ok((interrupted, spent));
        }
        let newest = store.load(&session, EntryId(head.entries.saturating_sub(LAST_ENTRIES))).await?;
        let end = newest.into_iter().rev().find_map(|entry| {
            if let EntryKind::RunEnded { outcome, .. } = entry.kind { Some(outcome) } else { None }
        });
        Ok((end.unwrap_or(interrupted), spent))
    }
}

/// Returns a session's spending, including that of sessions below it that is missing from its bill because of
/// a crash.
async fn spent(store: &dyn Engine, session: &str, head: &Head) -> Result<Bill> {
    let mut spent = Bill::of(head);
    for entry in store.get(session, &head.open_children).await? {
        let EntryKind::Child(child) = &entry.kind else { continue };
        if let Some(below) = store.head(&child.session).await? {
            let more = Box::pin(self::spent(store, &child.session, &below)).await?;
            spent.usage.add(&more.usage);
            spent.cost_microdollars = spent.cost_microdollars.saturating_add(more.cost_microdollars);
        }
    }
    Ok(spent)
}
