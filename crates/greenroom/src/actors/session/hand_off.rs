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

use greenroom_kernel::carried::Carried;
use greenroom_kernel::entry::{Compaction, EntryKind, HandOff, RunOutcome, Sees, Trigger};
use greenroom_kernel::log::Draft;
use greenroom_kernel::path::{ActivePath, is_message, open_calls};
use greenroom_kernel::settings::{CompactionSettings, Occasion};
use greenroom_kernel::{Entry, EntryId, FileOps, Usage};

use super::SessionState;
use super::definition::Definition;
use super::open_compaction::CompactionRequest;
use crate::agent::team;
use crate::core::message::AgentMessage;
use crate::values::compaction::CompactOptions;
use crate::values::error::{Error, Result};

#[cfg(test)]
mod tests;

/// How often one run may hand over the conversation.
const HAND_OFFS_MAX: u32 = 8;

/// How much of the newest conversation is kept if no summary can be made and no setting says more, in tokens.
const RECENT_TOKENS: u64 = 20_000;

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
            self.measure_for(CompactionRequest { options, ..CompactionRequest::new(Trigger::Manual) });
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
        let (stamp, Some(pending)) = (run.stamp(), run.hand_off_mut().take()) else { return };
        if run.count_hand_off() > HAND_OFFS_MAX {
            let reason = format!("its agents handed the conversation on {HAND_OFFS_MAX} times");
            return self.end(stamp, Vec::new(), RunOutcome::Stopped { reason }, None).await;
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
                let recorded = AgentMessage::Recorded { stamp, delivered, answer, is_measuring: false };
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
        match sees {
            Sees::Last(messages) => self.narrow(&mut draft, &new, to, messages),
            // If the summary failed, its part of the conversation is not visible either.
            Sees::Summary if !is_summarised => self.narrow(&mut draft, &new, to, self.recent_messages()),
            Sees::Summary | Sees::All | _ => {}
        }
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

    /// Returns how many of the newest messages are kept if no summary can be made.
    fn recent_messages(&self) -> u32 {
        let window = self.definition.window.tokens.unwrap_or(0);
        let settings = CompactionSettings::clone(&self.definition.settings);
        let wanted = settings.keep_recent_tokens.or(Some(RECENT_TOKENS));
        let settings = CompactionSettings { keep_recent_tokens: wanted, ..settings };
        let keep = settings.keep_recent(window, Occasion::Automatic, 0);
        let active = ActivePath::of(self.log.path());
        let messages = active.entries().iter().rev().filter(|entry| is_message(&entry.kind));
        let resent = self.resent_reasoning();
        let mut tokens = 0;
        let kept = messages.take_while(|entry| {
            tokens += resent.sent_tokens(entry);
            tokens <= keep
        });
        u32::try_from(kept.count()).unwrap_or(u32::MAX)
    }

    /// Narrows the context of the agent that takes over, `to`, to this many of the newest messages, and the request in
    /// progress.
    fn narrow(&self, draft: &mut Draft, new: &Definition, to: &str, messages: u32) {
        let path = self.log.path();
        let active = ActivePath::of(path);
        let entries = active.entries();
        let Some(cut) = cut(entries, messages) else { return };
        let hidden = entries[..cut].iter().filter(|entry| is_message(&entry.kind)).count() as u64;
        let (Some(first), Some(last)) = (entries.first(), entries.get(cut.wrapping_sub(1))) else { return };
        let mut compaction = Compaction {
            base: active.compaction_id(),
            previous: self.log.head().last_compaction,
            first: Some(first.id),
            last: Some(last.id),
            first_kept: Some(entries[cut].id),
            summary: format!("What was said before is not for {to} to see."),
            active_request: None,
            files: FileOps::default(),
            trigger: Trigger::Manual,
            truncated: true,
            native: None,
            from_hook: true,
            is_split_turn: false,
            tokens_before: self.shared.context().tokens,
            tokens_after: 0,
            messages_before: active.messages(),
            messages_removed: hidden,
            duration_ms: 0,
            model: String::new(),
            usage: Usage::default(),
            cost_microdollars: None,
            debt: Vec::new(),
            carried: Carried::default(),
            recall: None,
        };
        let mut after = path.to_vec();
        let mut sized = draft.clone();
        sized.push(EntryKind::Compaction(Box::new(compaction.clone())));
        after.extend(sized.entries().last().map(Arc::clone));
        let resent = new.resent_reasoning(&self.deps.model_settings(&new.agent));
        compaction.tokens_after = self.measure_path_for(new, resent, &after).tokens();
        draft.push(EntryKind::Compaction(Box::new(compaction)));
    }
}

/// Returns where the newest messages start: not between a call and its result, and not after the request in
/// progress; `None` if nothing comes before them.
fn cut(entries: &[Arc<Entry>], messages: u32) -> Option<usize> {
    let places: Vec<usize> =
        entries.iter().enumerate().filter(|(_, entry)| is_message(&entry.kind)).map(|(at, _)| at).collect();
    let count = usize::try_from(messages).unwrap_or(usize::MAX).max(1).min(places.len());
    let mut at = places.len().checked_sub(count.max(1))?;
    let role = |at: usize| entries[places[at]].kind.as_message().map(|message| message.role());
    // If the last message is a tool result, the newest prompt is in progress.
    let is_open = role(places.len() - 1) == Some("tool");
    let is_prompt = |at: &usize| role(*at) == Some("user") && !entries[places[*at]].kind.is_steer();
    if let Some(request) = (0..places.len()).rev().find(is_prompt).filter(|_| is_open) {
        at = at.min(request);
    }
    while at > 0 && role(at) == Some("tool") {
        at -= 1;
    }
    Some(places[at]).filter(|place| *place > 0)
}
