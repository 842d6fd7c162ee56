//! Hand-offs: the conversation goes to another agent of the session's team, by the program between runs, or
//! by the model during one.
//!
//! Sequence in a run: the result of a `transfer_to_…` call is recorded; a summary is made if the other agent
//! is to see one; then the hand-off is recorded, and the run continues with the other agent from the log, as
//! after a restart.
//!
//! Invariants: the log says which agent answers before it is called; a recorded transfer is followed by its
//! hand-off before a model is called, even after a crash; a failed hand-off leaves the conversation with its
//! agent; messages that the other agent does not see stay in the log.

use std::sync::Arc;

use greenroom_kernel::EntryId;
use greenroom_kernel::entry::{EntryKind, HandOff, RunOutcome, Sees, Trigger};
use greenroom_kernel::log::Draft;
use greenroom_kernel::message::{Message, ToolCall, ToolResult};
use greenroom_kernel::narrowing::Narrowing;
use greenroom_kernel::path::{PinnedPath, open_calls};

use super::SessionState;
use super::definition::Definition;
use super::open_compaction::CompactionRequest;
use crate::agent::team;
use crate::core::message::AgentMessage;
use crate::values::compaction::CompactOptions;
use crate::values::error::{Error, Result};

/// How often one run may hand over the conversation.
const HAND_OFFS_MAX: u32 = 8;

/// A hand-off that waits until the run is between two steps.
pub(super) struct PendingHandOff {
    to: String,
    sees: Sees,
    /// How much input joined at the boundary, for the current agent if the hand-off fails.
    delivered: u32,
    /// The entry of the transfer's result: a summary that was installed later is the one for the other agent.
    transfer: EntryId,
}

impl SessionState {
    /// Handles a hand-off from outside, between runs.
    pub(super) async fn hand_off(&mut self, to: &str, sees: Sees) -> Result<()> {
        self.check_idle("hand it over")?;
        // The summary was made before.
        self.record_hand_off(to, sees, true).await
    }

    /// Returns the hand-off that the newest results request: the first one counts.
    fn requested_hand_off(&self) -> Option<PendingHandOff> {
        self.log.newest_results().into_iter().find_map(|(transfer, result)| {
            let to = self.definition.agent.handed_to(result)?;
            Some(PendingHandOff { to: to.name.clone(), sees: to.sees, delivered: 0, transfer })
        })
    }

    /// Replaces the results of transfers for which another one of the same answer counts: they are not done.
    pub(super) fn refuse_further_hand_offs(&self, messages: &mut [Message]) {
        let agent = &self.definition.agent;
        let mut first = None;
        for message in messages {
            let Message::ToolResult(result) = message else { continue };
            let Some(to) = agent.handed_to(result) else { continue };
            let known = first.get_or_insert_with(|| self.requested_hand_off().map(|pending| pending.to));
            match known {
                Some(known) => {
                    let reason = format!("the conversation is handed to {known}, which was recorded first");
                    let call = ToolCall {
                        id: result.call_id.clone(),
                        name: result.tool_name.clone(),
                        arguments: String::new(),
                    };
                    *result = ToolResult::not_run(&call, &reason);
                }
                None => *known = Some(to.name.clone()),
            }
        }
    }

    /// Lets the run wait if the conversation is to be handed over before its next step, and no calls are open.
    /// `delivered` is how much input joined. Returns whether it waits.
    pub(super) fn wait_for_hand_off(&mut self, delivered: u32) -> bool {
        if !open_calls(self.log.path()).is_empty() {
            return false;
        }
        let requested = self.requested_hand_off();
        let Some(run) = self.runs.open_mut() else { return false };
        let requested = requested.filter(|pending| run.failed_transfer() != Some(pending.transfer));
        // A hand-off for which a crashed agent waited is kept.
        let pending = run.hand_off_mut();
        *pending = pending.take().or(requested);
        let Some(pending) = pending else { return false };
        pending.delivered = delivered;
        let (is_summarised, focus) = (pending.sees == Sees::Summary, team::focus(&pending.to));
        if is_summarised && self.compaction.is_idle() {
            let options = CompactOptions { focus: Some(focus), force: true, ..CompactOptions::default() };
            self.measure_for(CompactionRequest { options, ..CompactionRequest::new(Trigger::HandOff) });
        }
        // `hand_off_if_ready` does this when no compaction is in progress.
        true
    }

    /// Whether the run will continue with another agent.
    pub(super) fn has_hand_off(&mut self) -> bool {
        self.runs.open_mut().is_some_and(|run| run.hand_off_mut().is_some())
    }

    /// Hands over the conversation as soon as no summary is being made.
    pub(super) async fn hand_off_if_ready(&mut self) {
        let is_ready = self.compaction.is_idle() && !self.runs.is_closing();
        let Some(run) = self.runs.open_mut().filter(|_| is_ready) else { return };
        let (attempt, Some(pending)) = (run.attempt(), run.hand_off_mut().take()) else { return };
        if run.count_hand_off() > HAND_OFFS_MAX {
            let reason = format!("its agents handed the conversation on {HAND_OFFS_MAX} times");
            return self.end(attempt, Vec::new(), RunOutcome::Stopped { reason }, None).await;
        }
        let is_summarised = self.log.head().active_compaction.is_some_and(|id| id > pending.transfer);
        match self.record_hand_off(&pending.to, pending.sees, is_summarised).await {
            Ok(()) => self.go_on_with_other_agent(),
            Err(Error::Store(error)) => self.run_broken(&Error::Store(error)),
            Err(error) => {
                self.warn(format!("the conversation stays with its agent: {error}"));
                if let Some(run) = self.runs.open_mut() {
                    run.note_failed_transfer(pending.transfer);
                }
                let answer = self.log.newest_answer();
                let delivered = pending.delivered;
                let recorded = AgentMessage::Recorded { attempt, delivered, answer, is_measuring: false };
                self.agent.tell(recorded);
            }
        }
    }

    /// Records a hand-off, and switches to the other agent's definition.
    async fn record_hand_off(&mut self, to: &str, sees: Sees, is_summarised: bool) -> Result<()> {
        let agent = &self.definition.agent;
        let from = agent.member_name().unwrap_or_default().to_owned();
        // If the session was opened with another team in the meantime, that team's member is used.
        let newest = self.shared.agent().and_then(|agent| agent.member(to));
        let member =
            newest.or_else(|| agent.member(to)).ok_or_else(|| Error::NoMember { name: to.to_owned() })?;
        let new = Definition::resolve(&self.deps, Arc::new(member), self.log.pinned_tokens())?;
        let mut draft = self.log.draft(self.deps.now_ms());
        self.narrow(&mut draft, &new, to, sees, is_summarised);
        let is_narrowed = !draft.is_empty();
        draft.push(EntryKind::HandOff(HandOff { from, to: to.to_owned(), sees }));
        if self.runs.is_open() && !new.is_same_model(&self.definition) {
            let (provider, model) = (new.provider().to_owned(), new.model().to_owned());
            draft.push(EntryKind::ModelChange { provider, model });
        }
        self.append(draft, None).await?;
        if is_narrowed {
            self.context_rewritten();
        }
        // This replaces a definition that waits for the run's end.
        self.definition.set_next(None);
        self.take_definition(new);
        Ok(())
    }

    /// Hides the older messages from the agent that takes over, `to`, if it is to see only a part.
    fn narrow(&self, draft: &mut Draft, new: &Definition, to: &str, sees: Sees, is_summarised: bool) {
        if sees == Sees::All {
            return;
        }
        let path = self.log.path();
        let mut after = PinnedPath { path: path.to_vec(), pinned: self.log.pinned().to_vec() };
        let narrowing = Narrowing {
            path,
            pinned: &self.log.head().pins,
            to,
            sees,
            is_summarised,
            previous: self.log.head().last_compaction,
            // The tracker may not have counted the newest results yet.
            tokens_before: self.measure_path(&after).tokens(),
            settings: &self.definition.settings,
            window: self.definition.window.tokens,
            resent: &self.resent_reasoning(),
        };
        let Some(mut compaction) = narrowing.compaction() else { return };
        let mut sized = draft.clone();
        sized.push(EntryKind::Compaction(Box::new(compaction.clone())));
        after.path.extend(sized.entries().last().map(Arc::clone));
        let resent = new.resent_reasoning(&self.deps.model_settings(&new.agent));
        compaction.tokens_after = self.measure_path_for(new, resent, &after).tokens();
        draft.push(EntryKind::Compaction(Box::new(compaction)));
    }
}
