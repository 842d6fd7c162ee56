//! Prompts and other input: what begins a run at once, what waits, and what is taken up again.
//!
//! Invariants: what arrives while something is under way waits in the durable inbox; nobody's words are worked on with
//! another's agent; who waits for input that is refused hears why.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::EntryId;
use greenroom_kernel::entry::{Delivery, EntryKind};
use greenroom_kernel::log::{Amendment, INBOX_MAX};
use greenroom_kernel::message::Block;
use greenroom_kernel::terms::Terms;

use super::definition::Definition;
use super::inbox::Caller;
use super::open_run::Waiting;
use super::{SessionState, questions};
use crate::agent::Agent;
use crate::core::message::{PromptOptions, QueuedInput, ReplyTo, SessionMessage, tell_all};
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
        self.inbox.release();
        if self.is_idle() && self.inbox.is_empty(&self.log) {
            // A failure is the reply.
            let _ = self.begin(content, options, Waiting::caller(Some(reply))).await;
            return;
        }
        if options.cancel.is_cancelled() || self.shared.early_aborts() > options.early_aborts {
            // It was taken back while it was on its way.
            let _ = reply.send(Err(Error::Aborted));
            return;
        }
        let agent = options.agent.clone();
        let queued = self.queue(content, Delivery::Prompt, options.key.clone(), options.terms(), agent);
        match queued.await {
            Ok(id) => {
                let _ = options.recorded.set(id);
                self.inbox.wait_for(id, Caller { options, reply });
            }
            Err(error) => self.refuse_prompt(reply, options, error).await,
        }
    }

    pub(super) async fn input(
        &mut self,
        content: Vec<Block>,
        delivery: Delivery,
        options: Box<PromptOptions>,
        reply: ReplyTo<QueuedInput>,
    ) {
        if self.life.is_stopping() {
            let _ = reply.send(Err(self.shared.gone()));
            return;
        }
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
        let _ = reply.send(taken.map(|entry| QueuedInput { entry, waits, reply: answer }));
    }

    /// Changes the session, and begins nothing. Gives how many inputs were withdrawn.
    pub(super) async fn amend(&mut self, amendment: Amendment) -> Result<usize> {
        let mut draft = self.log.draft(self.deps.now_ms());
        self.inbox.clear_refused(&mut draft);
        let waiting = self.inbox.waiting(&self.log).map(|item| item.id).collect();
        let withdrawn = match draft.amend(amendment, waiting, greenroom_tools::fits) {
            Ok(withdrawn) => withdrawn,
            Err(error) => return Err(questions::refused(&self.deps, &self.shared.id, error).await),
        };
        if !draft.is_empty() {
            self.append(draft, None).await?;
        }
        let session = self.shared.id.to_string();
        tell_all(self.inbox.take_withdrawn(&self.log), || Err(Error::Withdrawn { session: session.clone() }));
        Ok(withdrawn)
    }

    /// Checks that the prompt can be answered with the agent that it is for.
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

    /// Whether what waits as this item may join the run: nobody's words are worked on with another's agent.
    pub(super) fn is_of_run(&self, item: EntryId) -> bool {
        let Some(agent) = self.inbox.agent(item) else { return true };
        let of_run =
            self.runs.open().and_then(|run| run.options().agent.clone()).or_else(|| self.shared.agent());
        of_run.is_some_and(|of_run| Arc::ptr_eq(&of_run, agent))
    }

    /// Puts input into the durable inbox.
    async fn queue(
        &mut self,
        content: Vec<Block>,
        delivery: Delivery,
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
            // An actor that takes this one's place must not work on it with another agent.
            self.publish_state();
        }
        Ok(id)
    }

    /// The caller of a prompt went away, or takes it back.
    pub(super) async fn withdraw(&mut self, ticket: u64) {
        if let Some(run) = self.runs.open_mut().filter(|run| run.options().ticket == ticket) {
            run.forget_gone_caller();
            self.shared.cancel_run();
            return;
        }
        if let Some(caller) = self.inbox.withdraw(ticket) {
            let mut draft = self.log.draft(self.deps.now_ms());
            self.inbox.clear_refused(&mut draft);
            if let Err(error) = self.append(draft, None).await {
                self.warn(format!("a withdrawn prompt leaves the inbox later: {error}"));
            }
            // Who went away hears nothing.
            let _ = caller.reply.send(Err(Error::Aborted));
        }
    }

    /// Begins with what waits first. Where the store refuses that, all who wait are told, and what nobody waits for
    /// is tried again later.
    pub(super) async fn next_prompt(&mut self) {
        let item = loop {
            let Some(item) = self.inbox.next(&self.log) else { return };
            let agent = self.inbox.agent(item.id).cloned();
            let Err(error) = self.adopt(agent.as_ref()) else { break item };
            // Another agent was changed meanwhile, or the session was: with this one it will never begin.
            self.warn(format!("input that waits could not begin with its agent: {error}"));
            self.inbox.refuse(item.id);
            let caller = self.inbox.take_caller(item.id).map(|caller| caller.reply);
            let waiting = caller.into_iter().chain(self.inbox.take_followers(item.id)).collect();
            tell_all(waiting, || Err(error.clone()));
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
            self.warn(format!("input that waits is held back: {error}"));
            self.inbox.hold_back(item.id);
            let waiting = reply.into_iter().chain(self.inbox.take_followers(item.id)).collect();
            tell_all(waiting, || Err(error.clone()));
            return Box::pin(self.next_prompt()).await;
        }
        options.agent = self.inbox.agent(item.id).cloned();
        // What was said in this process may have been a steer, for which nobody waits.
        options.is_left &= item.id < self.opened_at;
        let is_awaited = reply.is_some();
        let Err(error) = self.begin_delivered(&item, options, reply).await else {
            self.inbox.delivered();
            return;
        };
        self.warn(format!("input that waits could not be delivered: {error}"));
        if is_awaited {
            self.inbox.refuse(item.id);
        }
        tell_all(self.inbox.refuse_all_callers(), || Err(error.clone()));
        self.try_again_later();
    }

    /// What was refused leaves the log, so that it never begins. Where the store refuses that, it is tried again later.
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

    /// How a prompt is answered that nobody waits for: as it recorded.
    pub(super) fn options_without_caller(&self, terms: Option<&Terms>) -> Box<PromptOptions> {
        let early_aborts = self.shared.early_aborts();
        let time_limit = terms.and_then(|terms| terms.timeout_ms).map(Duration::from_millis);
        Box::new(PromptOptions { early_aborts, time_limit, is_left: true, ..PromptOptions::default() })
    }

    pub(super) async fn resume(&mut self, options: Box<PromptOptions>, reply: ReplyTo<Reply>) {
        if self.runs.is_left_waiting() {
            return self.take_up(options, reply).await;
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

    /// Goes on with the newest prompt, which was said again under its key.
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

    /// Goes on with a run that waits for people, and that this process did not go on with by itself.
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
                let _ = options.recorded.set(run.stamp().run);
                run.join([reply]);
            }
            None => _ = reply.send(Err(Error::NothingToResume { session: self.shared.id.to_string() })),
        }
    }

    /// Goes on with the run that was interrupted, if there is one and nothing is under way.
    async fn finish_interrupted(&mut self) {
        let is_interrupted = self.log.head().interrupted.is_some() && self.may_go_on(None, 0);
        if self.is_idle() && !self.life.is_stopping() && is_interrupted {
            let terms = self.log.run_terms().map(|(_, terms)| Arc::clone(terms));
            let options = self.options_without_caller(terms.as_deref());
            if let Err(error) = self.begin_resumed(options, Waiting::default()).await {
                self.warn(format!("the run that was interrupted could not be resumed: {error}"));
            }
        }
    }

    /// Finishes what was interrupted and what waits. The reply is that of the last run that this takes.
    pub(super) async fn finish(&mut self, reply: ReplyTo<Reply>) {
        let is_interrupted = self.log.head().interrupted.is_some() && !self.runs.is_open();
        if is_interrupted && self.lacking(self.log.run_terms().map(|(_, terms)| terms), None, 0).is_some() {
            // What waits behind it would leave it behind.
            let error = self.held_back_error(0);
            self.hold_back_left(&error);
            let _ = reply.send(Err(error));
            return;
        }
        self.let_go(None, 0, |_| true);
        self.finish_interrupted().await;
        let last = self.inbox.ready(&self.log).last().map(|item| item.id);
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
