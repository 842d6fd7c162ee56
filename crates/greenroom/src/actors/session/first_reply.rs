//! Repeated idempotency keys: the reply to the first prompt with the key.
//!
//! Invariants: the fate of the first prompt is read from the log alone, so a restart does not change it. If
//! it has a reply, the repetition gets the same one; while it waits or runs, the repetition waits with it, and the
//! work continues as long as one of their callers waits; without a reply, or once its run was aborted, it is continued,
//! or, if the conversation has continued without it, sent again with the recorded text. So a key has at most one reply
//! of the required form, and a run's end without a reply does not use it up.

use std::collections::VecDeque;
use std::sync::Arc;

use greenroom_kernel::bill::Bill;
use greenroom_kernel::entry::EntryKind;
use greenroom_kernel::log::UntoldCompactions;
use greenroom_kernel::message::{Block, Message};
use greenroom_kernel::terms::Terms;
use greenroom_kernel::usage::ContextUsage;
use greenroom_kernel::{Entry, EntryId, RunId, RunOutcome};
use greenroom_store::Engine;
use tokio_util::sync::CancellationToken;

use super::SessionState;
use super::inbox::Caller;
use super::open_run::Told;
use crate::core::message::{AgentMessage, Answer, PromptOptions, ReplyTo, RunCompletion, tell_all};
use crate::events::entry_events::RUN_RESUMED;
use crate::values::compaction::{Compacted, told_compactions};
use crate::values::error::{Error, Result};
use crate::values::prompt::Reply;

#[cfg(test)]
mod tests;

/// The callers that repeated a prompt, and wait for its first reply.
#[derive(Default)]
pub(super) struct Repeats {
    callers: Vec<Repeat>,
    /// Whether a run has ended, or an item has left the inbox, since the last check.
    is_due: bool,
}

/// A caller that repeated a prompt.
struct Repeat {
    /// The first entry of the batch that used its key.
    first: EntryId,
    /// The prompt: its message, or its item in the inbox.
    prompt: EntryId,
    /// The run that was in progress when it was repeated.
    run: Option<RunId>,
    by: Successor,
    /// Its options, if the run was aborted before: then it continues the prompt after the run's end.
    resumes: Option<Box<PromptOptions>>,
}

/// A caller to whom the work of a prompt can pass, because it repeated the prompt.
pub(super) struct Successor {
    pub(super) ticket: u64,
    /// Aborts the prompt in this caller's name.
    pub(super) cancel: CancellationToken,
    pub(super) reply: ReplyTo<Reply>,
}

impl Repeats {
    /// Applies a durable entry.
    #[expect(clippy::wildcard_enum_match_arm, reason = "no other record ends a prompt")]
    pub(super) fn follow(&mut self, kind: &EntryKind) {
        match kind {
            EntryKind::RunEnded { .. } | EntryKind::InboxCleared { .. } => self.is_due = true,
            _ => {}
        }
    }

    /// Notes that a run ended without a record in the log.
    pub(super) fn run_broken(&mut self) {
        self.is_due = true;
    }

    /// Adds a caller that waits for the first reply to its prompt.
    fn wait(&mut self, repeat: Repeat) {
        self.callers.push(repeat);
    }

    /// Takes the callers that wait for this prompt.
    pub(super) fn take_waiting(&mut self, prompt: EntryId) -> Vec<ReplyTo<Reply>> {
        self.callers.extract_if(.., |caller| caller.prompt == prompt).map(|caller| caller.by.reply).collect()
    }

    /// Takes the first caller of this kind that still waits.
    fn take_present(&mut self, is_wanted: impl Fn(&Repeat) -> bool) -> Option<Repeat> {
        let found =
            self.callers.iter().position(|caller| is_wanted(caller) && !caller.by.reply.is_closed())?;
        Some(self.callers.remove(found))
    }

    /// Removes the caller with this ticket, who no longer waits. Returns its reply.
    pub(super) fn take_ticket(&mut self, ticket: u64) -> Option<ReplyTo<Reply>> {
        let found = self.callers.iter().position(|caller| caller.by.ticket == ticket)?;
        Some(self.callers.remove(found).by.reply)
    }

    /// The callers that wait for any prompt.
    pub(super) fn into_waiting(self) -> Vec<ReplyTo<Reply>> {
        self.callers.into_iter().map(|caller| caller.by.reply).collect()
    }

    /// Whether callers wait, and something relevant was recorded since the last check. Resets the flag.
    fn take_due(&mut self) -> bool {
        std::mem::take(&mut self.is_due) && !self.callers.is_empty()
    }

    /// Takes the waiting callers.
    fn take_callers(&mut self) -> Vec<Repeat> {
        std::mem::take(&mut self.callers)
    }
}

impl SessionState {
    /// Refuses a prompt. A repeated one instead gets its first reply, or is continued.
    pub(super) async fn refuse_prompt(
        &mut self,
        reply: ReplyTo<Reply>,
        options: Box<PromptOptions>,
        error: Error,
    ) {
        let Error::DuplicateKey { first, .. } = error else {
            return drop(reply.send(Err(error)));
        };
        Box::pin(self.repeat(first, options, reply)).await;
    }

    /// Handles a prompt whose key was used before, by a batch that starts with this entry.
    pub(super) async fn repeat(
        &mut self,
        first: EntryId,
        mut options: Box<PromptOptions>,
        reply: ReplyTo<Reply>,
    ) {
        options.key = None;
        let told = match self.first_run(first).await {
            Ok(told) => told,
            Err(error) => return drop(reply.send(Err(error))),
        };
        let Some(prompt) = told.prompt else {
            let session = self.shared.id.to_string();
            return drop(reply.send(Err(Error::DuplicateKey { session, first })));
        };
        if self.inbox.is_held_back(prompt) {
            // The repetition lets the item start, with the validators of this request.
            let functions = options.validators.len();
            if self.let_go(options.agent.as_ref(), functions, |item| item == prompt).is_empty() {
                return drop(reply.send(Err(self.held_back_error(functions))));
            }
            let _ = options.recorded.set(prompt);
            return self.inbox.wait_for(prompt, Caller { options, reply });
        }
        if self.is_to_come(&told) {
            let _ = options.recorded.set(prompt);
            let by = Successor { ticket: options.ticket, cancel: options.cancel.clone(), reply };
            let is_aborted = self.runs.id() == told.run && self.shared.is_run_cancelled();
            let resumes = (told.run.is_some() && is_aborted).then_some(options);
            return self.repeats.wait(Repeat { first, prompt, run: told.run, by, resumes });
        }
        if self.runs.is_left_waiting() && self.log.head().open_run == told.run {
            return self.take_up(options, reply).await;
        }
        let is_newest = |run| told.end.is_some() || self.log.head().open_run == Some(run);
        let is_tail = !told.is_left && told.run.is_some_and(is_newest);
        if is_tail && self.log.unanswered().is_some() {
            let _ = options.recorded.set(prompt);
            return self.resume_unanswered(options, reply).await;
        }
        if let Some(answer) = told.answer(is_tail)
            && options.form.as_ref().is_none_or(|form| form.check(&answer.text).is_ok())
        {
            let _ = options.recorded.set(prompt);
            return drop(reply.send(Ok(answer)));
        }
        self.say_again(told, options, reply).await;
    }

    /// Sends a prompt again that has no reply, after the conversation has continued without it.
    async fn say_again(&mut self, told: FirstRun, mut options: Box<PromptOptions>, reply: ReplyTo<Reply>) {
        options.again = Some(told.first);
        if let Some(terms) = &told.terms {
            let functions = options.validators.len();
            let taken_over = match self.lacking(Some(terms), options.agent.as_ref(), functions) {
                Some((names, unnamed)) => {
                    Err(Error::NoValidator { session: self.shared.id.to_string(), names, unnamed })
                }
                None => options.take_over(terms),
            };
            if let Err(error) = taken_over {
                return drop(reply.send(Err(error)));
            }
        }
        Box::pin(self.prompt(told.content, options, reply)).await;
    }

    /// Gives the run in progress, whose caller has gone, to one that repeated its prompt. Returns whether there is one.
    /// The caller's own abort ends the run for all.
    pub(super) fn pass_run_on(&mut self) -> bool {
        let Some(run) = self.runs.open_mut().filter(|run| !run.is_aborted()) else {
            return false;
        };
        let (id, prompt) = (run.attempt().run, run.options().recorded.get().copied());
        let is_of_run = |repeat: &Repeat| repeat.run == Some(id) || Some(repeat.prompt) == prompt;
        let Some(Repeat { by, .. }) = self.repeats.take_present(is_of_run) else { return false };
        tell_all(run.pass_on(by).into_iter().collect(), || Err(Error::Aborted));
        true
    }

    /// As [`Self::pass_run_on`], for an item in the inbox.
    pub(super) fn pass_item_on(&mut self, item: EntryId) -> bool {
        if self.inbox.is_aborted(item) {
            return false;
        }
        let Some(Repeat { by, .. }) = self.repeats.take_present(|repeat| repeat.prompt == item) else {
            return false;
        };
        tell_all(self.inbox.pass_on(item, by).into_iter().collect(), || Err(Error::Aborted));
        true
    }

    /// Whether repeated prompts wait, and something relevant was recorded since the last check.
    pub(super) fn has_repeats_to_answer(&mut self) -> bool {
        self.repeats.take_due()
    }

    /// Answers the callers of repeated prompts whose runs have ended.
    pub(super) async fn answer_repeats(&mut self) {
        for repeat in self.repeats.take_callers() {
            let reply = match self.first_run(repeat.first).await {
                Ok(told) if self.is_to_come(&told) => {
                    self.repeats.wait(repeat);
                    continue;
                }
                Ok(_) if repeat.resumes.is_some() && !self.life.is_stopping() => {
                    let Repeat { first, by, resumes, .. } = repeat;
                    if let Some(options) = resumes {
                        Box::pin(self.repeat(first, options, by.reply)).await;
                    }
                    continue;
                }
                Ok(told) => told.reply(self.shared.gone()),
                Err(error) => Err(error),
            };
            // Like every reply, it comes after the events of its run.
            let answer = RunCompletion::new(Box::new(Answer { to: vec![repeat.by.reply], reply }));
            self.agent.tell(AgentMessage::Broadcast { events: Vec::new(), then: Some(answer) });
        }
    }

    /// Whether the prompt waits, or its run is in progress.
    fn is_to_come(&self, told: &FirstRun) -> bool {
        let is_waiting = self.inbox.waiting(&self.log).any(|item| Some(item.id) == told.prompt);
        let is_running = told.run.is_some_and(|run| told.end.is_none() && self.runs.id() == Some(run));
        is_waiting || is_running
    }

    async fn first_run(&self, first: EntryId) -> Result<FirstRun> {
        let (store, id) = (&*self.deps.store, &self.shared.id);
        // A prompt is usually repeated soon, so little has to be read from there on.
        let compactions = compactions_before(store, id, first).await?;
        let entries = store.load(id, first).await?;
        let mut told = FirstRun { first, compactions, ..FirstRun::default() };
        entries.iter().for_each(|entry| told.take(entry));
        Ok(told)
    }
}

/// A prompt and its newest run, by the log.
#[derive(Default)]
struct FirstRun {
    /// The first entry of the batch that used the key.
    first: EntryId,
    /// The prompt as it was last sent: the entry of its message, or of the inbox item.
    prompt: Option<EntryId>,
    content: Vec<Block>,
    terms: Option<Arc<Terms>>,
    /// The run that answers it: its own, or one that continues it.
    run: Option<RunId>,
    /// Whether the conversation has continued without an answer to it.
    is_left: bool,
    told: Told,
    end: Option<Ended>,
    /// The compactions that no reply has reported so far.
    compactions: UntoldCompactions,
}

/// The end of a run.
struct Ended {
    outcome: RunOutcome,
    /// The context's size at the end, and what was spent; `None` if it never ran.
    with: Option<(ContextUsage, Bill)>,
    /// The compactions that its reply reports.
    compactions: Vec<Compacted>,
}

/// Returns the compactions that no reply had reported before this entry.
async fn compactions_before(store: &dyn Engine, session: &str, first: EntryId) -> Result<UntoldCompactions> {
    /// How many entries are read at once.
    const CHUNK: u64 = 64;
    let mut since_reply: VecDeque<Entry> = VecDeque::new();
    let mut end = first.0;
    while end > 0 {
        let begin = end.saturating_sub(CHUNK);
        let ids: Vec<EntryId> = (begin..end).map(EntryId).collect();
        for entry in store.get(session, &ids).await?.into_iter().rev() {
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
    /// Starts with the prompt, when it is sent the first time or again.
    fn begin(&mut self, prompt: EntryId, run: Option<RunId>) {
        (self.prompt, self.run) = (Some(prompt), run);
        (self.is_left, self.told, self.end) = (false, Told::default(), None);
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "all other records say nothing of a prompt")]
    fn take(&mut self, entry: &Entry) {
        match &entry.kind {
            // The same batch may first have closed earlier work.
            EntryKind::Message { message, inbox: None, steer: false, .. } if self.prompt.is_none() => {
                if let Message::User(content) = &**message {
                    self.content.clone_from(content);
                    self.begin(entry.id, Some(entry.id));
                }
            }
            EntryKind::Inbox { content, terms, .. }
                if self.prompt.is_none() || is_again(terms.as_ref(), self.first) =>
            {
                self.content.clone_from(content);
                self.terms.clone_from(terms);
                self.begin(entry.id, None);
            }
            EntryKind::Terms { run, terms } if Some(*run) == self.run => self.terms = Some(Arc::clone(terms)),
            EntryKind::Terms { run, terms } if is_again(Some(terms), self.first) => {
                self.terms = Some(Arc::clone(terms));
                self.begin(*run, Some(*run));
            }
            EntryKind::Message { inbox: Some(item), .. } if Some(*item) == self.prompt => {
                self.run = Some(entry.id);
            }
            EntryKind::Message { message, .. } if self.run.is_some() => match self.end {
                None => self.told.note(message),
                Some(_) => self.is_left = true,
            },
            EntryKind::LeafMoved { .. } if self.run.is_some() => self.is_left = true,
            EntryKind::InboxCleared { items }
                if self.prompt.is_some_and(|prompt| items.contains(&prompt)) =>
            {
                let (outcome, compactions) = (RunOutcome::Aborted, Vec::new());
                self.end = Some(Ended { outcome, with: None, compactions });
                self.is_left = true;
            }
            EntryKind::RunEnded { run, outcome, context, bill } if Some(*run) == self.run => {
                let (outcome, compactions) = (outcome.clone(), told_compactions(self.compactions.iter()));
                self.end = Some(Ended { outcome, with: Some((*context, **bill)), compactions });
            }
            EntryKind::Note { kind, .. } if kind == RUN_RESUMED && self.run.is_some() && !self.is_left => {
                self.run = Some(entry.id);
                (self.told, self.end) = (Told::default(), None);
            }
            _ => {}
        }
        self.compactions.follow(&entry.kind);
    }

    /// Returns the complete answer, if there is one, even if only the record of the run's end is missing.
    fn answer(&self, is_tail: bool) -> Option<Reply> {
        let Ended { outcome, with, compactions } = self.end.as_ref()?;
        #[expect(clippy::wildcard_enum_match_arm, reason = "the others have no complete answer")]
        let is_whole = match outcome {
            RunOutcome::Completed => true,
            RunOutcome::Interrupted => is_tail && self.told.is_whole(),
            _ => false,
        };
        is_whole.then(|| Some(self.told.clone().reply(self.run?, (*with)?, compactions.clone())))?
    }

    /// Returns the result of the run. `gone` is the error if the session ended first.
    fn reply(self, gone: Error) -> Result<Reply> {
        if let Some(answer) = self.answer(!self.is_left) {
            return Ok(answer);
        }
        Err(match self.end.map(|end| end.outcome) {
            Some(RunOutcome::Aborted) => Error::Aborted,
            Some(RunOutcome::Failed(failure)) => Error::Model(*failure),
            Some(RunOutcome::Stopped { reason }) => Error::Stopped { reason },
            Some(RunOutcome::Completed | RunOutcome::Interrupted | RunOutcome::Unknown | _) | None => gone,
        })
    }
}

/// Whether a prompt with these terms repeats the one whose key this entry used first.
fn is_again(terms: Option<&Arc<Terms>>, first: EntryId) -> bool {
    terms.is_some_and(|terms| terms.again == Some(first))
}
