//! The reply of a prompt that was said before: what a repeated idempotency key gets.
//!
//! Invariants: it is read from the log alone, so it is the same after a restart; while the first prompt waits or runs,
//! the repeated one waits with it; a prompt that ended without a reply is an error which says how.

use std::collections::VecDeque;
use std::sync::Arc;

use greenroom_kernel::entry::EntryKind;
use greenroom_kernel::usage::ContextUsage;
use greenroom_kernel::{Entry, EntryId, RunId, RunOutcome};
use greenroom_store::Store;

use super::SessionState;
use super::runs::Told;
use crate::deps::blocking;
use crate::error::{Error, Result};
use crate::event::RUN_RESUMED;
use crate::log::UntoldCompactions;
use crate::message::{AgentMessage, Answer, PromptOptions, ReplyTo, RunCompletion};
use crate::prompt::Reply;

/// The callers of prompts that were said before, and whose first reply is still to come.
#[derive(Default)]
pub(super) struct Repeats {
    callers: Vec<(EntryId, ReplyTo<Reply>)>,
    /// Whether a run ended, or something left the inbox, since the callers were looked at.
    is_due: bool,
}

impl Repeats {
    /// Takes note of an entry that is durable.
    #[expect(clippy::wildcard_enum_match_arm, reason = "no other record ends a prompt")]
    pub(super) fn follow(&mut self, kind: &EntryKind) {
        match kind {
            EntryKind::RunEnded { .. } | EntryKind::InboxCleared { .. } => self.is_due = true,
            _ => {}
        }
    }

    /// A run was given up without an end in the log.
    pub(super) fn run_broken(&mut self) {
        self.is_due = true;
    }
}

impl SessionState {
    /// Tells the caller of a prompt why it was not taken. One that was said before gets the reply that it had, or waits
    /// for it.
    pub(super) async fn refuse_prompt(
        &mut self,
        reply: ReplyTo<Reply>,
        options: &PromptOptions,
        error: Error,
    ) {
        let Error::DuplicateKey { first, .. } = error else {
            let _ = reply.send(Err(error));
            return;
        };
        if self.inbox.is_held_back(first) {
            // Whoever says it again wants it to begin.
            if self.let_go(options.agent.as_ref(), options.validators.len(), |item| item == first).is_empty()
            {
                let _ = reply.send(Err(self.held_back_error(options.validators.len())));
                return;
            }
        }
        match self.first_reply(first).await {
            FirstReply::Known(told) => {
                if told.is_ok() {
                    let _ = options.recorded.set(first);
                }
                let _ = reply.send(told);
            }
            FirstReply::ToCome => {
                let _ = options.recorded.set(first);
                self.repeats.callers.push((first, reply));
            }
        }
    }

    /// Whether repeated prompts wait, and something was recorded since they were looked at.
    pub(super) fn has_repeats_to_answer(&mut self) -> bool {
        std::mem::take(&mut self.repeats.is_due) && !self.repeats.callers.is_empty()
    }

    /// Answers the repeated prompts whose first reply is known now.
    pub(super) async fn answer_repeats(&mut self) {
        for (first, to) in std::mem::take(&mut self.repeats.callers) {
            match self.first_reply(first).await {
                FirstReply::ToCome => self.repeats.callers.push((first, to)),
                FirstReply::Known(reply) => {
                    // As every reply, after the events of its run.
                    let answer = RunCompletion::new(Box::new(Answer { to: vec![to], reply }));
                    self.agent.tell(AgentMessage::Broadcast { events: Vec::new(), then: Some(answer) });
                }
            }
        }
    }

    async fn first_reply(&self, first: EntryId) -> FirstReply {
        let told = match self.first_run(first).await {
            Ok(told) => told,
            Err(error) => return FirstReply::Known(Err(error)),
        };
        let is_waiting = self.inbox.waiting(&self.log).any(|item| item.id == first);
        let is_running = told.end.is_none() && told.run.is_some() && told.run == self.open_run();
        if is_waiting || is_running {
            FirstReply::ToCome
        } else {
            FirstReply::Known(told.reply(&self.shared.id))
        }
    }

    async fn first_run(&self, first: EntryId) -> Result<FirstRun> {
        let (store, id) = (self.deps.store.clone(), Arc::clone(&self.shared.id));
        // A prompt is repeated soon after it was said: there is not much to read from there on.
        let read = move || Ok((compactions_before(&store, &id, first)?, store.load(&id, first)?));
        let (compactions, entries) = blocking(&self.deps, read).await?;
        let mut told = FirstRun { first, compactions, ..FirstRun::default() };
        for entry in &entries {
            told.take(entry);
            if told.is_answered() {
                break;
            }
        }
        Ok(told)
    }
}

/// The reply of a prompt that was said before.
enum FirstReply {
    /// The reply, or why there is none.
    Known(Result<Reply>),
    /// The prompt waits, or its run is in progress.
    ToCome,
}

/// The run of a prompt, as its log tells it.
#[derive(Default)]
struct FirstRun {
    /// The prompt's first entry: its message, or its place in the inbox.
    first: EntryId,
    /// The run that answers it: the first, or one that goes on with it.
    run: Option<RunId>,
    /// Whether the conversation went on without an answer to it.
    is_left: bool,
    told: Told,
    end: Option<(RunOutcome, Option<ContextUsage>)>,
    /// The compactions that its reply tells.
    compactions: UntoldCompactions,
}

/// The compactions that no reply had told when this entry was written.
fn compactions_before(store: &Store, session: &str, first: EntryId) -> Result<UntoldCompactions> {
    /// How many entries are read at once.
    const CHUNK: u64 = 64;
    let mut since_reply: VecDeque<Entry> = VecDeque::new();
    let mut end = first.0;
    while end > 0 {
        let begin = end.saturating_sub(CHUNK);
        let ids: Vec<EntryId> = (begin..end).map(EntryId).collect();
        for entry in store.get(session, &ids)?.into_iter().rev() {
            if matches!(entry.kind, EntryKind::RunEnded { outcome: RunOutcome::Completed, .. }) {
                end = 0;
                break;
            }
            if matches!(entry.kind, EntryKind::CompactionEnded(_)) {
                since_reply.push_front(entry);
            }
        }
        end = end.min(begin);
    }
    let mut compactions = UntoldCompactions::default();
    since_reply.iter().for_each(|entry| compactions.follow(&entry.kind));
    Ok(compactions)
}

impl FirstRun {
    fn is_answered(&self) -> bool {
        matches!(self.end, Some((RunOutcome::Completed, _)))
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "all other records say nothing of a run")]
    fn take(&mut self, entry: &Entry) {
        let is_end = matches!(&entry.kind, EntryKind::RunEnded { run, .. } if Some(*run) == self.run);
        if !is_end {
            self.compactions.follow(&entry.kind);
        }
        match &entry.kind {
            EntryKind::Message { inbox, .. } if entry.id == self.first || *inbox == Some(self.first) => {
                self.run = Some(entry.id);
            }
            EntryKind::Message { message, .. } if self.run.is_some() => {
                self.told.note(message);
                self.is_left |= self.end.is_some();
            }
            EntryKind::InboxCleared { items } if items.contains(&self.first) => {
                self.end = Some((RunOutcome::Aborted, None));
            }
            EntryKind::RunEnded { run, outcome, context } if Some(*run) == self.run => {
                self.end = Some((outcome.clone(), Some(*context)));
            }
            EntryKind::Note { kind, .. } if kind == RUN_RESUMED && self.run.is_some() && !self.is_left => {
                self.run = Some(entry.id);
                (self.told, self.end) = (Told::default(), None);
            }
            _ => {}
        }
    }

    fn reply(self, session: &str) -> Result<Reply> {
        match (self.run, self.end) {
            (Some(run), Some((RunOutcome::Completed, Some(context)))) => {
                Ok(self.told.reply(run, context, self.compactions.told()))
            }
            (_, end) => Err(Error::DuplicateKey {
                session: session.to_owned(),
                first: self.first,
                outcome: end.map(|(outcome, _)| outcome),
            }),
        }
    }
}
