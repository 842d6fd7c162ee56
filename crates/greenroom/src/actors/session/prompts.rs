//! Prompts and other input: whether they start a run at once, wait, or resume one.
//!
//! Invariants: input that arrives during other work waits in the durable inbox; input is never handled by
//! another sender's agent; callers of refused input get the error.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::EntryId;
use greenroom_kernel::entry::{EntryKind, InboxDelivery};
use greenroom_kernel::log::{Amendment, INBOX_MAX};
use greenroom_kernel::message::Block;
use greenroom_kernel::terms::Terms;

use super::definition::Definition;
use super::inbox::Caller;
use super::open_run::Waiting;
use super::{SessionState, questions};
use crate::agent::Agent;
use crate::core::message::{PromptOptions, QueuedInput, ReplyTo, SessionMessage, tell_all};
use crate::limits::accounts::{Accounts, Message};
use crate::values::error::{Error, Result};
use crate::values::prompt::Reply;

impl SessionState {
    pub(super) async fn prompt(
        &mut self,
        content: Vec<Block>,
        options: Box<PromptOptions>,
        reply: ReplyTo<Reply>,
    ) {
        if self.life.is_stopping() {
            let _ = reply.send(Err(self.shared.gone()));
            return;
        }
        if let Err(error) = self.check_prompt(&options) {
            let _ = reply.send(Err(error));
            return;
        }
        let accounts = Arc::clone(&self.deps.accounts);
        let counted = match self.count_message(&accounts, &options).await {
            Ok(counted) => counted,
            Err(error) => return drop(reply.send(Err(error))),
        };
        self.inbox.release();
        if self.is_idle() && self.inbox.is_empty(&self.log) {
            // A failure is the reply.
            let begun = self.begin(content, options, Waiting::caller(Some(reply))).await;
            return begun.into_iter().zip(counted).for_each(|(_, message)| message.accepted());
        }
        if options.cancel.is_cancelled() || self.shared.early_aborts() > options.early_aborts {
            // The prompt was withdrawn on its way.
            let _ = reply.send(Err(Error::Aborted));
            return;
        }
        let agent = options.agent.clone();
        let queued = self.queue(content, InboxDelivery::Prompt, options.key.clone(), options.terms(), agent);
        // Boxed, because most prompts start a run.
        match Box::pin(queued).await {
            Ok(id) => {
                counted.into_iter().for_each(Message::accepted);
                let _ = options.recorded.set(id);
                self.inbox.wait_for(id, Caller { options, reply });
            }
            Err(error) => Box::pin(self.refuse_prompt(reply, options, error)).await,
        }
    }

    pub(super) async fn input(
        &mut self,
        content: Vec<Block>,
        delivery: InboxDelivery,
        options: Box<PromptOptions>,
        reply: ReplyTo<QueuedInput>,
    ) {
        if self.life.is_stopping() {
            let _ = reply.send(Err(self.shared.gone()));
            return;
        }
        let accounts = Arc::clone(&self.deps.accounts);
        let counted = match self.count_message(&accounts, &options).await {
            Ok(counted) => counted,
            Err(error) => return drop(reply.send(Err(error))),
        };
        self.inbox.release();
        let (follower, answer) = tokio::sync::oneshot::channel();
        let mut waits = false;
        let taken = if self.is_idle() && self.inbox.is_empty(&self.log) {
            self.begin(content, options, Waiting::follower(follower)).await
        } else {
            let PromptOptions { agent, from, .. } = *options;
            let queued = self.queue(content, delivery, None, None, agent).await;
            waits = queued.as_ref().is_ok_and(|id| !self.is_of_run(*id));
            queued.inspect(|id| {
                self.inbox.follow(*id, follower);
                self.inbox.came_from(*id, from);
            })
        };
        taken.iter().zip(counted).for_each(|(_, message)| message.accepted());
        let _ = reply.send(taken.map(|entry| QueuedInput { entry, waits, reply: answer }));
    }

    /// Counts a message against the limits of the session's labels. A message that a run waits for is not counted, and
    /// neither is one whose key was used before.
    ///
    /// # Errors
    /// [`Error::LabelLimit`], and then nothing is counted.
    async fn count_message<'a>(
        &self,
        accounts: &'a Accounts,
        options: &PromptOptions,
    ) -> Result<Option<Message<'a>>> {
        let tenants = self.deps.tenants(&self.shared);
        if tenants.is_empty() || !options.waiting.is_empty() {
            return Ok(None);
        }
        let refused = match accounts.message(&tenants) {
            Ok(message) => return Ok(Some(message)),
            Err(refused) => refused,
        };
        let Some(key) = options.key.clone() else { return Err(refused) };
        match self.deps.store.used_key(&self.shared.id, &key).await? {
            Some(_) => Ok(None),
            None => Err(refused),
        }
    }

    /// Changes the session without starting work. Returns how many inputs were withdrawn.
    pub(super) async fn amend(&mut self, amendment: Amendment) -> Result<usize> {
        if let Amendment::AbortWaiting { run } = amendment
            && self.log.head().open_run == Some(run)
            && self.log.is_waiting()
        {
            // The session was opened in the meantime.
            self.shared.abort();
        }
        let mut draft = self.log.draft(self.deps.now_ms());
        self.inbox.clear_refused(&mut draft);
        let waiting = self.inbox.waiting(&self.log).map(|item| item.id);
        let waiting: Vec<EntryId> = waiting.filter(|item| amendment.withdraws(*item)).collect();
        let withdrawn = match draft.amend(amendment, waiting.clone(), greenroom_tools::fits) {
            Ok(withdrawn) => withdrawn,
            Err(error) => return Err(questions::refused(&self.deps, &self.shared.id, error).await),
        };
        if !draft.is_empty() {
            self.append(draft, None).await?;
        }
        if withdrawn > 0 {
            let error = Error::Withdrawn { session: self.shared.id.to_string() };
            waiting.into_iter().for_each(|item| self.tell_waiting(item, &error));
        }
        Ok(withdrawn)
    }

    /// Checks that the prompt can be answered by its agent.
    pub(super) fn check_prompt(&self, options: &PromptOptions) -> Result<()> {
        let current = self.shared.agent();
        let other =
            options.agent.as_ref().filter(|agent| current.is_none_or(|known| !Arc::ptr_eq(&known, agent)));
        match other {
            None => self.definition.check_prompt(&self.deps, options),
            Some(agent) => Definition::resolve(&self.deps, Arc::clone(agent), self.log.pinned_tokens())?
                .check_prompt(&self.deps, options),
        }
    }

    /// Whether this inbox item may join the run: input is never handled by another sender's agent.
    pub(super) fn is_of_run(&self, item: EntryId) -> bool {
        let Some(agent) = self.inbox.agent(item) else { return true };
        let of_run =
            self.runs.open().and_then(|run| run.options().agent.clone()).or_else(|| self.shared.agent());
        of_run.is_some_and(|of_run| Arc::ptr_eq(&of_run, agent))
    }

    /// Adds input to the durable inbox.
    async fn queue(
        &mut self,
        content: Vec<Block>,
        delivery: InboxDelivery,
        key: Option<String>,
        terms: Option<Arc<Terms>>,
        agent: Option<Arc<Agent>>,
    ) -> Result<EntryId> {
        let waiting = self.inbox.waiting(&self.log).count();
        if waiting >= INBOX_MAX {
            return Err(Error::Busy { session: self.shared.id.to_string(), waiting });
        }
        let mut draft = self.log.draft(self.deps.now_ms());
        self.inbox.clear_refused(&mut draft);
        let said_to = agent.clone().or_else(|| self.shared.agent());
        let fingerprint = said_to.and_then(|agent| agent.fingerprint.clone());
        let id = draft.push(EntryKind::Inbox { delivery, content, key: key.clone(), fingerprint, terms });
        self.append(draft, key).await?;
        if let Some(agent) = agent {
            self.inbox.set_agent(id, agent);
            // This actor's successor must not handle the input with another agent.
            self.publish_state();
        }
        Ok(id)
    }

    /// Handles a caller that has gone, is out of time, or aborts its prompt. Unless the caller that holds the work
    /// aborts it, the work passes to another caller that repeated the prompt with its key and still waits.
    pub(super) async fn withdraw(&mut self, ticket: u64) {
        if let Some(joined) = self.repeats.take_ticket(ticket) {
            // The work is another caller's.
            let _ = joined.send(Err(Error::Aborted));
            return;
        }
        if let Some(run) = self.runs.open_mut().filter(|run| run.options().ticket == ticket) {
            run.forget_gone_caller();
            if !self.pass_run_on() {
                self.shared.cancel_run();
            }
            return;
        }
        if let Some(item) = self.inbox.of_ticket(ticket) {
            if self.pass_item_on(item) {
                return;
            }
            self.inbox.refuse(item);
            let mut draft = self.log.draft(self.deps.now_ms());
            self.inbox.clear_refused(&mut draft);
            if let Err(error) = self.append(draft, None).await {
                self.warn(format!("a withdrawn prompt leaves the inbox later: {error}"));
            }
            // If the caller has gone, the reply is dropped.
            self.tell_waiting(item, &Error::Aborted);
        }
    }

    /// Refuses an item, which then never starts. Everybody who waits for it gets the error.
    fn refuse(&mut self, item: EntryId, error: &Error) {
        self.inbox.refuse(item);
        self.tell_waiting(item, error);
    }

    /// Gives the error to everybody who waits for an item that does not start.
    pub(super) fn tell_waiting(&mut self, item: EntryId, error: &Error) {
        tell_all(self.inbox.take_waiting(item), || Err(error.clone()));
        tell_all(self.repeats.take_waiting(item), || Err(error.clone()));
    }

    /// Starts the first queued item. If the store refuses, all callers get the error, and items without a
    /// caller are retried later.
    pub(super) async fn next_prompt(&mut self) {
        let item = loop {
            let Some(item) = self.inbox.next(&self.log) else { return };
            let agent = self.inbox.agent(item.id).cloned();
            let Err(error) = self.adopt(agent.as_ref()) else { break item };
            // The item's agent or the session has changed in the meantime, so the item can never start.
            self.warn(format!("queued input could not start with its agent: {error}"));
            self.refuse(item.id, &error);
        };
        let (mut options, reply) = match self.inbox.take_caller(item.id) {
            Some(Caller { options, reply }) => (options, Some(reply)),
            None => {
                let mut options = self.options_without_caller(item.terms.as_deref());
                options.from = self.inbox.take_from(item.id);
                (options, None)
            }
        };
        let taken_over = item.terms.as_ref().map_or(Ok(()), |terms| options.take_over(terms));
        if let Err(error) = taken_over.and_then(|()| options.judges(&self.definition.agent).map(drop)) {
            self.warn(format!("queued input is held back: {error}"));
            self.inbox.hold_back(item.id);
            tell_all(reply.into_iter().collect(), || Err(error.clone()));
            self.tell_waiting(item.id, &error);
            return Box::pin(self.next_prompt()).await;
        }
        options.agent = self.inbox.agent(item.id).cloned();
        // An item of this process without a caller may have been a steer.
        options.is_left &= item.id < self.opened_at;
        let is_awaited = reply.is_some();
        let Err(error) = self.begin_delivered(&item, options, reply).await else {
            self.inbox.delivered();
            return;
        };
        self.warn(format!("queued input could not be delivered: {error}"));
        for refused in is_awaited.then_some(item.id).into_iter().chain(self.inbox.awaited()) {
            self.refuse(refused, &error);
        }
        self.try_again_later();
    }

    /// Removes refused items from the log, so they never start. If the store refuses, this is retried later.
    pub(super) async fn clear_refused(&mut self) {
        let mut draft = self.log.draft(self.deps.now_ms());
        self.inbox.clear_refused(&mut draft);
        match self.append(draft, None).await {
            Ok(()) => self.inbox.delivered(),
            Err(error) => {
                tracing::debug!(session = %self.shared.id, %error, "refused input leaves the inbox later");
                self.try_again_later();
            }
        }
    }

    fn try_again_later(&mut self) {
        if let Some(wait) = self.inbox.hold(&self.log) {
            self.myself.send_after(wait, || SessionMessage::TryAgain.into());
        }
    }

    /// Returns the options of a prompt without a caller, from its record.
    pub(super) fn options_without_caller(&self, terms: Option<&Terms>) -> Box<PromptOptions> {
        let early_aborts = self.shared.early_aborts();
        let time_limit = terms.and_then(|terms| terms.timeout_ms).map(Duration::from_millis);
        Box::new(PromptOptions { early_aborts, time_limit, is_left: true, ..PromptOptions::default() })
    }

    /// Continues the newest prompt. A run that an earlier process left, and that continued when the session was opened,
    /// is joined.
    pub(super) async fn resume(&mut self, options: Box<PromptOptions>, reply: ReplyTo<Reply>) {
        if self.runs.is_left_waiting() {
            return self.take_up(options, reply).await;
        }
        // A sub-agent's run must end with its caller's run, and a caller that only joins does not end it.
        let may_join = options.validators.is_empty() && self.shared.parent.is_none();
        let continued = self.runs.open_mut().filter(|run| may_join && run.options().is_left);
        if let Some(run) = continued {
            let _ = options.recorded.set(run.attempt().run);
            run.join([reply]);
            return;
        }
        if let Err(error) = self.check_idle("resume it") {
            let _ = reply.send(Err(error));
            return;
        }
        if self.log.unanswered().is_none() && self.inbox.held_back().is_empty() {
            let _ = reply.send(Err(Error::NothingToResume { session: self.shared.id.to_string() }));
            return;
        }
        let adopted = self.adopt(options.agent.as_ref());
        if let Err(error) = adopted.and_then(|()| self.definition.check_prompt(&self.deps, &options)) {
            let _ = reply.send(Err(error));
            return;
        }
        let released = self.let_go(options.agent.as_ref(), options.validators.len(), |_| true);
        if self.log.unanswered().is_none() || !self.may_go_on(None, options.validators.len()) {
            match released.first() {
                Some(first) => {
                    let _ = options.recorded.set(*first);
                    self.inbox.wait_for(*first, Caller { options, reply });
                }
                None => _ = reply.send(Err(self.held_back_error(options.validators.len()))),
            }
            return;
        }
        let _ = self.begin_resumed(options, Waiting::caller(Some(reply))).await;
    }

    /// Continues the newest prompt, which was repeated with its key.
    pub(super) async fn resume_unanswered(&mut self, options: Box<PromptOptions>, reply: ReplyTo<Reply>) {
        let functions = options.validators.len();
        let ready = self.check_idle("resume this prompt");
        let ready = ready.and_then(|()| self.adopt(options.agent.as_ref()));
        let ready = ready.and_then(|()| self.definition.check_prompt(&self.deps, &options));
        let ready = ready.and_then(|()| match self.may_go_on(None, functions) {
            true => Ok(()),
            false => Err(self.held_back_error(functions)),
        });
        match ready {
            Ok(()) => _ = self.begin_resumed(options, Waiting::caller(Some(reply))).await,
            Err(error) => _ = reply.send(Err(error)),
        }
    }

    /// Continues a run that waits for people, and that this process did not continue by itself.
    pub(super) async fn take_up(&mut self, options: Box<PromptOptions>, reply: ReplyTo<Reply>) {
        let taken = match self.may_take_up(options.agent.as_ref()) {
            true => self.adopt(options.agent.as_ref()),
            false => Err(self.held_back_error(0)),
        };
        if let Err(error) = taken {
            let _ = reply.send(Err(error));
            return;
        }
        self.recover().await;
        match self.runs.open_mut() {
            Some(run) => {
                let _ = options.recorded.set(run.attempt().run);
                run.join([reply]);
            }
            None => _ = reply.send(Err(Error::NothingToResume { session: self.shared.id.to_string() })),
        }
    }

    /// Continues the interrupted run, if there is one and no other work is in progress.
    async fn finish_interrupted(&mut self) {
        let is_interrupted = self.log.head().interrupted.is_some() && self.may_go_on(None, 0);
        if self.is_idle() && !self.life.is_stopping() && is_interrupted {
            let terms = self.log.run_terms().map(|(_, terms)| Arc::clone(terms));
            let options = self.options_without_caller(terms.as_deref());
            if let Err(error) = self.begin_resumed(options, Waiting::default()).await {
                self.warn(format!("the interrupted run could not be resumed: {error}"));
            }
        }
    }

    /// Continues the run that an earlier process left, if input that waited behind it is about to start: input is
    /// processed in its order. A sub-agent's run continues with that of its caller.
    pub(super) async fn finish_before_queue(&mut self) {
        let is_child = self.shared.parent.is_some() || self.log.head().parent_session.is_some();
        if !is_child && self.inbox.next(&self.log).is_some() && self.hold_back_behind_run().is_none() {
            self.finish_interrupted().await;
        }
    }

    /// Holds back the input behind an interrupted run whose validators are missing: it would leave the run behind.
    /// Returns the error for that.
    fn hold_back_behind_run(&mut self) -> Option<Error> {
        let is_interrupted = self.log.head().interrupted.is_some() && !self.runs.is_open();
        let terms = self.log.run_terms().map(|(_, terms)| terms);
        if !is_interrupted || self.lacking(terms, None, 0).is_none() {
            return None;
        }
        let error = self.held_back_error(0);
        self.hold_back_left(&error);
        Some(error)
    }

    /// Finishes interrupted work and queued input. The reply is that of the last of these runs.
    pub(super) async fn finish(&mut self, reply: ReplyTo<Reply>) {
        if let Some(error) = self.hold_back_behind_run() {
            let _ = reply.send(Err(error));
            return;
        }
        self.let_go(None, 0, |_| true);
        self.finish_interrupted().await;
        // A prompt with a caller belongs to that caller, which may withdraw it.
        let left =
            self.inbox.ready(&self.log).map(|item| item.id).filter(|item| !self.inbox.has_caller(*item));
        let last = left.last();
        match (last, self.runs.open_mut()) {
            (Some(item), _) => self.inbox.follow(item, reply),
            (None, Some(run)) => run.join([reply]),
            (None, None) => match self.life.take_finished() {
                Some(finished) => {
                    tokio::spawn(async move {
                        if let Ok(result) = finished.await {
                            let _ = reply.send(result);
                        }
                    });
                }
                None if !self.inbox.held_back().is_empty() || self.is_others() => {
                    _ = reply.send(Err(self.held_back_error(0)))
                }
                None => {
                    let _ = reply.send(Err(Error::NothingToResume { session: self.shared.id.to_string() }));
                }
            },
        }
    }
}
