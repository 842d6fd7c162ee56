//! Runs, as the session sees them: prompts that begin or wait, records, boundaries and ends.
//!
//! Invariants: one run at a time; what arrives during it waits in the durable inbox; the run's end is recorded once,
//! with the size that the tracker measured.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::cost::RunCost;
use greenroom_kernel::entry::{Delivery, Entry, EntryKind, Spender, Spent};
use greenroom_kernel::log::{Amendment, Draft, INBOX_MAX, InboxItem};
use greenroom_kernel::message::{Block, Message, StopReason};
use greenroom_kernel::path::is_message;
use greenroom_kernel::run::{Boundary, Fallbacks};
use greenroom_kernel::terms::Terms;
use greenroom_kernel::usage::ContextUsage;
use greenroom_kernel::{EntryId, RunId, RunOutcome, ToolCall, ToolResult, ToolStatus, Usage};
use greenroom_provider::ModelSettings;
use tracing::Span;

use super::definition::{Definition, instructions_tokens};
use super::hand_off::PendingHandOff;
use super::inbox::Caller;
use super::{AfterAppend, SessionState, questions};
use crate::agent::Agent;
use crate::agent::instructions::InstructionsContext;
use crate::agent::validate::Validators;
use crate::core::message::{
    AgentMessage, Answer, BeginRun, MeasureFor, Measurement, PendingCall, PromptOptions, QueuedInput,
    ReplyTo, RunAttempt, RunCompletion, SessionMessage, TrackerMessage, tell_all,
};
use crate::core::trace;
use crate::events::event::RUN_RESUMED;
use crate::limits::waits;
use crate::values::compaction::{Compacted, told_compactions};
use crate::values::error::{ConfigError, Error, Result};
use crate::values::prompt::{CallView, Reply};

/// The run in progress.
pub(super) struct OpenRun {
    stamp: RunAttempt,
    /// As it is traced, and since when.
    span: Span,
    began: tokio::time::Instant,
    options: Box<PromptOptions>,
    /// How the model is to answer.
    settings: ModelSettings,
    /// What judges the answers besides the agent's own validators.
    judges: Validators,
    /// The agent that the run began with, and how many of its fallbacks were asked for.
    agent: Arc<Agent>,
    fell_back: usize,
    reply: Option<ReplyTo<Reply>>,
    /// Who said what joined it, and waits for its reply too.
    joined: Vec<ReplyTo<Reply>>,
    /// Whether the session was closed in it: then it is interrupted, and can be resumed.
    is_interrupted: bool,
    /// The instructions of all its requests.
    instructions: RunInstructions,
    told: Told,
    /// Why the last answer was rejected, where that ended the run.
    rejected: Option<String>,
    /// To whom the conversation is to be handed before the run goes on.
    hand_off: Option<PendingHandOff>,
    /// How often it was handed on in this run.
    hand_offs: u32,
    /// How the run ended, while its end is not yet recorded.
    closing: Option<Closing>,
}

/// The end of a run that is about to be recorded.
struct Closing {
    outcome: RunOutcome,
    /// The answer that ends the run, which is recorded together with the end; empty where all is recorded.
    last: Vec<Arc<Entry>>,
}

impl OpenRun {
    /// Those who wait for its reply.
    pub(super) fn take_callers(&mut self) -> Vec<ReplyTo<Reply>> {
        self.reply.take().into_iter().chain(std::mem::take(&mut self.joined)).collect()
    }
}

/// Who waits for a run that begins.
#[derive(Default)]
pub(super) struct Waiting {
    /// Who said the prompt: without it, nobody wants the run.
    caller: Option<ReplyTo<Reply>>,
    /// Who waits for the reply, and lets the run go on without them.
    joined: Vec<ReplyTo<Reply>>,
}

impl Waiting {
    fn caller(caller: Option<ReplyTo<Reply>>) -> Self {
        Self { caller, joined: Vec::new() }
    }
}

/// The instructions of one run.
#[derive(Clone)]
struct RunInstructions {
    text: Arc<str>,
    /// Their size in estimated tokens, where they are not those of the run before.
    changed: Option<u64>,
}

/// What a run has said so far, for its reply.
#[derive(Default, Clone)]
pub(super) struct Told {
    /// The text of the newest answer.
    text: String,
    /// Why the newest answer ended; `None` before the first.
    stop: Option<StopReason>,
    /// The model of the newest answer.
    model: String,
    usage: Usage,
    steps: u32,
    tool_calls: Vec<CallView>,
}

impl SessionState {
    pub(super) async fn prompt(
        &mut self,
        content: Vec<Block>,
        options: Box<PromptOptions>,
        reply: ReplyTo<Reply>,
    ) {
        if self.is_stopping {
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
        if self.is_stopping {
            let _ = reply.send(Err(self.shared.gone()));
            return;
        }
        self.inbox.release();
        let (follower, answer) = tokio::sync::oneshot::channel();
        let mut waits = false;
        let taken = if self.is_idle() && self.inbox.is_empty(&self.log) {
            self.begin(content, options, Waiting { caller: None, joined: vec![follower] }).await
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
    fn check_prompt(&self, options: &PromptOptions) -> Result<()> {
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
    fn is_of_run(&self, item: EntryId) -> bool {
        let Some(agent) = self.inbox.agent(item) else { return true };
        let of_run =
            self.run.as_ref().and_then(|run| run.options.agent.clone()).or_else(|| self.shared.agent());
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
        if let Some(run) = self.run.as_mut().filter(|run| run.options.ticket == ticket) {
            run.reply.take_if(|reply| reply.is_closed());
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

    /// The session is closed: its run is interrupted, unless it is aborted already.
    pub(super) fn interrupt_run(&mut self) {
        self.shared.set_closing(true);
        if let Some(run) = &mut self.run {
            run.is_interrupted = !run.options.cancel.is_cancelled();
        }
        self.shared.cancel_run();
    }

    /// A draft that begins with closing what is still open, and with the model's change if there is one.
    fn opening_draft(&self) -> Box<Draft> {
        let at_ms = self.deps.now_ms();
        let mut draft = self.log.recovery(at_ms, self.estimate()).unwrap_or_else(|| self.log.draft(at_ms));
        let (provider, model) = (self.definition.provider(), self.definition.model());
        if !self.log.is_empty() && !self.log.head().is_model(provider, model) {
            let (provider, model) = (provider.to_owned(), model.to_owned());
            draft.push(EntryKind::ModelChange { provider, model });
        }
        self.inbox.clear_refused(&mut draft);
        draft
    }

    /// Records a prompt and lets the agent begin. Gives the prompt's entry.
    async fn begin(
        &mut self,
        content: Vec<Block>,
        options: Box<PromptOptions>,
        waiting: Waiting,
    ) -> Result<EntryId> {
        if let Err(error) = self.adopt(options.agent.as_ref()) {
            if let Some(reply) = waiting.caller {
                self.refuse_prompt(reply, options, error.clone()).await;
            }
            return Err(error);
        }
        self.refresh_settings();
        let mut draft = self.opening_draft();
        let run = draft.message(Message::User(content));
        self.begin_recorded(draft, run, None, options, waiting).await?;
        Ok(run)
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

    async fn begin_delivered(
        &mut self,
        item: &InboxItem,
        mut options: Box<PromptOptions>,
        reply: Option<ReplyTo<Reply>>,
    ) -> Result<()> {
        self.refresh_settings();
        let mut draft = self.opening_draft();
        // Whatever it was meant for, it begins a run.
        let run = draft.deliver(item, false);
        // Its key was used when it was queued, and what was aborted while it waited was not this.
        (options.key, options.early_aborts) = (None, self.shared.early_aborts());
        options.from.waited();
        let recorded = item.terms.clone().map(|terms| (item.id, terms));
        self.begin_recorded(draft, run, recorded, options, Waiting::caller(reply)).await?;
        let followers = self.inbox.take_followers(item.id);
        if let Some(run) = &mut self.run {
            run.joined.extend(followers);
        }
        Ok(())
    }

    /// How a prompt is answered that nobody waits for: as it recorded.
    fn options_without_caller(&self, terms: Option<&Terms>) -> Box<PromptOptions> {
        let early_aborts = self.shared.early_aborts();
        let time_limit = terms.and_then(|terms| terms.timeout_ms).map(Duration::from_millis);
        Box::new(PromptOptions { early_aborts, time_limit, is_left: true, ..PromptOptions::default() })
    }

    pub(super) async fn resume(&mut self, options: Box<PromptOptions>, reply: ReplyTo<Reply>) {
        if self.is_left_waiting {
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
        match &mut self.run {
            Some(run) => {
                let _ = options.recorded.set(run.stamp.run);
                run.joined.push(reply);
            }
            None => _ = reply.send(Err(Error::NothingToResume { session: self.shared.id.to_string() })),
        }
    }

    /// Begins a run that goes on with the unanswered message.
    async fn begin_resumed(&mut self, mut options: Box<PromptOptions>, waiting: Waiting) -> Result<()> {
        let Some(unanswered) = self.log.unanswered() else { return Ok(()) };
        let recorded = self.log.run_terms().map(|(entry, terms)| (entry, Arc::clone(terms)));
        if let Some((_, terms)) = &recorded
            && let Err(error) = options.take_over(terms)
        {
            tell_all(waiting.caller.into_iter().chain(waiting.joined).collect(), || Err(error.clone()));
            return Err(error);
        }
        self.refresh_settings();
        options.from.waited();
        let mut draft = self.opening_draft();
        let run = draft.push(EntryKind::Note { kind: RUN_RESUMED.into(), data: unanswered.to_string() });
        self.begin_recorded(draft, run, recorded, options, waiting).await
    }

    /// Goes on with the run that was interrupted, if there is one and nothing is under way.
    pub(super) async fn finish_interrupted(&mut self) {
        let is_interrupted = self.log.head().interrupted.is_some() && self.may_go_on(None, 0);
        if self.is_idle() && !self.is_stopping && is_interrupted {
            let terms = self.log.run_terms().map(|(_, terms)| Arc::clone(terms));
            let options = self.options_without_caller(terms.as_deref());
            if let Err(error) = self.begin_resumed(options, Waiting::default()).await {
                self.warn(format!("the run that was interrupted could not be resumed: {error}"));
            }
        }
    }

    /// Finishes what was interrupted and what waits. The reply is that of the last run that this takes.
    pub(super) async fn finish(&mut self, reply: ReplyTo<Reply>) {
        let is_interrupted = self.log.head().interrupted.is_some() && self.run.is_none();
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
        match (last, &mut self.run) {
            (Some(item), _) => self.inbox.follow(item, reply),
            (None, Some(run)) => run.joined.push(reply),
            (None, None) => match self.finished.take() {
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

    async fn begin_recorded(
        &mut self,
        mut draft: Box<Draft>,
        run: EntryId,
        recorded: Option<(EntryId, Arc<Terms>)>,
        options: Box<PromptOptions>,
        waiting: Waiting,
    ) -> Result<()> {
        let Waiting { caller: reply, joined } = waiting;
        let fingerprint = self.shared.agent().and_then(|agent| agent.fingerprint.clone());
        draft.begin_run(run, options.terms(), recorded, fingerprint);
        let judges = options.judges(&self.definition.agent);
        let begun = match judges.and_then(|judges| Ok((judges, self.write_instructions(run)?))) {
            Ok(begun) => self.append(draft, options.key.clone()).await.map(|()| begun),
            Err(error) => Err(error),
        };
        let (judges, instructions) = match begun {
            Ok(begun) => begun,
            Err(error) => {
                if let Some(reply) = reply {
                    self.refuse_prompt(reply, options, error.clone()).await;
                }
                return Err(error);
            }
        };
        // One that waited in the inbox was recorded there.
        let _ = options.recorded.set(run);
        self.start_run(run, options, Waiting { caller: reply, joined }, instructions, judges);
        self.tell_agent_to_begin();
        Ok(())
    }

    /// The run that is open in the log is in progress from now on.
    fn start_run(
        &mut self,
        run: EntryId,
        mut options: Box<PromptOptions>,
        waiting: Waiting,
        instructions: RunInstructions,
        judges: Validators,
    ) {
        let Waiting { caller: reply, joined } = waiting;
        self.instructions = Some(Arc::clone(&instructions.text));
        // Whatever changed since the prompt was said: settings that cannot be sent are refused by the provider.
        let settings = self.definition.model_settings(&self.deps, &options.settings);
        let settings = settings.unwrap_or_else(|_| options.settings.clone());
        self.limit_cost(&options);
        options.link.begin(run);
        self.attempts += 1;
        let stamp = RunAttempt { run, attempt: self.attempts };
        let cancel = options.cancel.clone();
        self.shared.begin_run(run, cancel, options.early_aborts);
        let gone = reply.as_ref().is_some_and(tokio::sync::oneshot::Sender::is_closed);
        let (provider, model) = (self.definition.provider(), self.definition.model());
        let span = trace::run(&self.span, &mut options.from, &self.shared.id, run, provider, model);
        self.run = Some(OpenRun {
            stamp,
            span,
            began: tokio::time::Instant::now(),
            options,
            settings,
            judges,
            agent: Arc::clone(&self.definition.agent),
            fell_back: 0,
            reply,
            joined,
            is_interrupted: false,
            instructions,
            told: Told::default(),
            rejected: None,
            hand_off: None,
            hand_offs: 0,
            closing: None,
        });
        if gone {
            self.shared.cancel_run();
        }
        for doubt in std::mem::take(&mut self.model_warnings) {
            self.warn(doubt);
        }
    }

    /// What the run that begins may cost: the lower of its prompt's limit and its agent's.
    fn limit_cost(&mut self, options: &PromptOptions) {
        let limit = [options.cost_limit, self.definition.agent.run_cost_limit].into_iter().flatten().min();
        let before = self.log.bill().cost_microdollars;
        let run_cost = limit.map(|limit| RunCost { limit, before });
        if std::mem::replace(&mut self.run_cost, run_cost) != run_cost {
            self.limits_changed();
        }
    }

    /// Writes the instructions of a run that begins. Their size counts from now on.
    fn write_instructions(&mut self, run: EntryId) -> Result<RunInstructions> {
        let context = || InstructionsContext {
            session: Arc::clone(&self.shared.id),
            parent: self.shared.parent.clone(),
            title: self.log.head().title.clone(),
            run,
            provider: self.definition.provider().to_owned(),
            model: self.definition.model().to_owned(),
            app_state: self.definition.agent.state.clone(),
        };
        let written = self.definition.agent.instructions.render(context);
        let text = written.map_err(|reason| ConfigError::Instructions { reason })?;
        let pinned_tokens = self.log.pinned_tokens();
        let has_other_window = self.definition.refresh_window(&self.deps, pinned_tokens);
        if self.definition.set_instructions(&text, pinned_tokens)? || has_other_window {
            self.limits_changed();
        }
        let is_changed = self.instructions.as_ref().is_some_and(|before| *before != text);
        Ok(RunInstructions { changed: is_changed.then(|| instructions_tokens(&text)), text })
    }

    fn tell_agent_to_begin(&mut self) {
        let Some(run) = &self.run else { return };
        let pending = self.pending_calls();
        let begin = BeginRun {
            stamp: run.stamp,
            span: run.span.clone(),
            agent: Arc::clone(&self.definition.agent),
            model: self.definition.model().to_owned(),
            tools: self.definition.tools.clone(),
            schema: run.options.form.as_ref().map(|form| Arc::clone(&form.schema)),
            validators: self.definition.agent.validators.and(&run.judges),
            settings: run.settings.clone(),
            fallbacks: Fallbacks {
                left: u32::try_from(run.agent.fallbacks.len() - run.fell_back).unwrap_or(u32::MAX),
                on: Arc::clone(&run.agent.fallback_on),
            },
            instructions: Arc::clone(&run.instructions.text),
            instructions_changed: run.instructions.changed,
            cancel: run.options.cancel.clone(),
            time_limit: run.options.time_limit,
            link: Arc::clone(&run.options.link),
            waiting: run.options.waiting.and(&self.shared.id),
            tracker: self.tracker.actor().clone(),
            may_compact: self.definition.settings.enabled,
            steps: run.told.steps,
            answer: self.log.newest_answer(),
            answered_before: self.log.has_answers(),
            is_measuring: pending.is_empty(),
            pending,
            max_request_bytes: self.definition.settings.max_request_bytes,
        };
        let (stamp, is_measuring) = (begin.stamp, begin.is_measuring);
        self.agent.tell(AgentMessage::Begin(Box::new(begin)));
        if is_measuring {
            self.measure_for_step(stamp);
        }
    }

    /// The calls that go on where a run is taken up again. Before a run begins, all calls have results.
    fn pending_calls(&self) -> Vec<PendingCall> {
        let questions = self.log.questions();
        let pending = |call: ToolCall| {
            // A sub-agent is found where it was left.
            let may_have_begun = questions.may_have_begun(&call.id) && !self.log.waits_below(&call.id);
            PendingCall { may_have_begun, call }
        };
        self.log.asking_calls().into_iter().map(pending).collect()
    }

    /// The agent died in its run: another goes on with it.
    pub(super) async fn rerun(&mut self) {
        let Some(run) = &self.run else { return };
        if run.closing.is_some() {
            return;
        }
        // A run that was about to sleep goes on like one that was not.
        self.suspended = None;
        self.note_waiting_children();
        if !self.close_calls(self.log.calls_that_asked_nothing()).await {
            return;
        }
        // A compaction that ran for the dead agent goes on; the new one waits for it when it needs one.
        self.compaction.detach_run();
        self.attempts += 1;
        if let Some(run) = &mut self.run {
            run.stamp.attempt = self.attempts;
            run.hand_off = None;
            // That they changed was said.
            run.instructions.changed = None;
        }
        self.shared.set_left_children(self.left_children());
        self.tell_agent_to_begin();
    }

    /// The run goes on with another agent, whose definition holds already.
    pub(super) fn go_on_with_other_agent(&mut self) {
        let Some(run) = &self.run else { return };
        let id = run.stamp.run;
        let instructions = match self.write_instructions(id) {
            Ok(instructions) => instructions,
            Err(error) => return self.run_broken(&error),
        };
        let Some(of_prompt) = self.run.as_ref().map(|run| run.options.settings.clone()) else { return };
        let settings = self.definition.model_settings(&self.deps, &of_prompt).unwrap_or(of_prompt);
        self.instructions = Some(Arc::clone(&instructions.text));
        self.attempts += 1;
        let Some(run) = &mut self.run else { return };
        run.stamp.attempt = self.attempts;
        run.agent = Arc::clone(&self.definition.agent);
        run.fell_back = 0;
        run.settings = settings;
        run.instructions = instructions;
        self.tell_agent_to_begin();
    }

    /// The run in progress, and which attempt at it.
    pub(super) fn open_stamp(&self) -> Option<RunAttempt> {
        self.run.as_ref().map(|run| run.stamp)
    }

    /// Lets go of the run, which somebody else goes on with.
    pub(super) fn take_run(&mut self) -> Option<OpenRun> {
        self.run.take()
    }

    /// The run in progress, as it is traced.
    pub(super) fn run_span(&self) -> Option<&Span> {
        self.run.as_ref().map(|run| &run.span)
    }

    /// The run in progress.
    pub(super) fn open_run(&self) -> Option<RunId> {
        self.run.as_ref().map(|run| run.stamp.run)
    }

    pub(super) fn open_run_mut(&mut self) -> Option<&mut OpenRun> {
        self.run.as_mut()
    }

    /// Whether the run's end waits for the size that the tracker measures.
    pub(super) fn is_closing(&self) -> bool {
        self.run.as_ref().is_some_and(|run| run.closing.is_some())
    }

    /// Tells the tracker of the answer that ends the run, if that is not recorded yet.
    pub(super) fn tell_last_answer(&mut self) {
        let closing = self.run.as_ref().and_then(|run| run.closing.as_ref());
        let Some(Closing { last, .. }) = closing.filter(|closing| !closing.last.is_empty()) else { return };
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.repeat(last);
        self.tracker.tell(TrackerMessage::Billed(draft.billed()));
        for entry in draft.entries().iter().filter(|entry| is_message(&entry.kind)) {
            self.tracker.tell(TrackerMessage::Appended(Arc::clone(entry)));
        }
    }

    /// The open run, if this is about it. Late news ends here.
    pub(super) fn current(&mut self, stamp: RunAttempt) -> Option<&mut OpenRun> {
        self.run.as_mut().filter(|run| run.stamp == stamp && run.closing.is_none())
    }

    pub(super) async fn record(&mut self, stamp: RunAttempt, messages: Vec<Message>, boundary: Boundary) {
        if self.current(stamp).is_none() {
            return;
        }
        let recorded = messages.len();
        let messages = self.without_waiting(messages);
        if messages.is_empty() && recorded > 0 {
            // The run is being left, and hears no more.
            return;
        }
        let Some(run) = self.current(stamp) else { return };
        messages.iter().for_each(|message| run.told.note(message));
        let handed = self.handed_to(&messages);
        let mut draft = self.log.draft(self.deps.now_ms());
        for message in messages {
            draft.message_of_run(message, self.definition.window.tokens);
        }
        let joins = |item: &&InboxItem| match boundary {
            Boundary::None => false,
            Boundary::Steps => item.delivery == Delivery::Steer,
            Boundary::End => item.delivery != Delivery::Prompt,
        };
        let items = self.inbox.ready(&self.log).filter(joins).filter(|item| self.is_of_run(item.id));
        let items: Vec<InboxItem> = items.cloned().collect();
        for item in &items {
            draft.deliver(item, item.delivery == Delivery::Steer);
            let from = self.inbox.take_from(item.id);
            self.run.iter().for_each(|run| from.joins(&run.span));
        }
        let delivered = u32::try_from(items.len()).unwrap_or(u32::MAX);
        let is_last = boundary == Boundary::End && delivered == 0 && handed.is_none();
        if is_last && !draft.is_empty() && !self.has_hand_off() {
            // One write for the answer and the end of the run.
            return self.start_closing(RunOutcome::Completed, draft.entries().to_vec());
        }
        if !self.append_for_run(draft).await {
            return;
        }
        let followers = items.iter().flat_map(|item| self.inbox.take_followers(item.id));
        let followers: Vec<_> = followers.collect();
        if let Some(run) = &mut self.run {
            run.joined.extend(followers);
        }
        if self.wait_for_hand_off(handed, boundary, delivered) {
            return;
        }
        let answer = self.log.newest_answer();
        let is_over = boundary == Boundary::End && delivered == 0;
        let is_measuring = boundary != Boundary::None && !is_over;
        self.agent.tell(AgentMessage::Recorded { stamp, delivered, answer, is_measuring });
        if is_measuring {
            self.measure_for_step(stamp);
        }
        if is_over {
            self.start_closing(RunOutcome::Completed, Vec::new());
        }
    }

    pub(super) async fn end(
        &mut self,
        stamp: RunAttempt,
        messages: Vec<Message>,
        outcome: RunOutcome,
        rejected: Option<String>,
    ) {
        if self.current(stamp).is_none() {
            return;
        }
        let messages = self.without_waiting(messages);
        let suspicion = self.suspicion(&messages);
        let Some(run) = self.current(stamp) else { return };
        let is_cut_off = run.is_interrupted && matches!(outcome, RunOutcome::Aborted);
        let outcome = match outcome {
            _ if is_cut_off => RunOutcome::Interrupted,
            RunOutcome::Stopped { reason } => match suspicion {
                Some(suspicion) => RunOutcome::Stopped { reason: format!("{reason}; {suspicion}") },
                None => RunOutcome::Stopped { reason },
            },
            outcome @ (RunOutcome::Completed
            | RunOutcome::Aborted
            | RunOutcome::Failed(_)
            | RunOutcome::Interrupted
            | RunOutcome::Unknown
            | _) => outcome,
        };
        run.rejected = rejected;
        messages.iter().for_each(|message| run.told.note(message));
        let mut draft = self.log.draft(self.deps.now_ms());
        for message in messages {
            draft.message_of_run(message, self.definition.window.tokens);
        }
        if !draft.is_empty() && !self.append_for_run(draft).await {
            return;
        }
        if is_cut_off && self.log.is_waiting() {
            self.leave_waiting().await;
        } else if self.close_open_calls().await {
            self.start_closing(outcome, Vec::new());
        }
    }

    /// What may have kept the run's calls from their end, where they are cut off. `last` is what is still to be recorded.
    fn suspicion(&self, last: &[Message]) -> Option<String> {
        let path = self.log.path().iter().rev().find_map(|entry| entry.kind.as_message());
        let newest = last.last().or(path.map(|message| &**message));
        let is_cut_off =
            matches!(newest, Some(Message::ToolResult(result)) if result.status == ToolStatus::Interrupted);
        waits::suspicion(self.inbox.callers()).filter(|_| is_cut_off)
    }

    /// The session is closed while calls of its run wait for people: the run stays open in the log, and goes on when the
    /// session is opened again.
    async fn leave_waiting(&mut self) {
        let draft = self.log.recovery_of_waiting(self.deps.now_ms());
        if !draft.is_empty() && !self.append_for_run(draft).await {
            return;
        }
        let Some(run) = self.run.take() else { return };
        self.shared.end_run();
        self.deps.ledger.release(&self.shared);
        let why = match self.shared.is_deleting() {
            true => self.shared.gone(),
            false => Error::Waiting { session: self.shared.id.to_string() },
        };
        tell_all(run.reply.into_iter().chain(run.joined).collect(), || Err(why.clone()));
    }

    /// What is recorded of these messages. Where the session is closed, a call that waits for a person has no result: it
    /// goes on when the session is opened again.
    fn without_waiting(&mut self, mut messages: Vec<Message>) -> Vec<Message> {
        if !self.run.as_ref().is_some_and(|run| run.is_interrupted) {
            return messages;
        }
        self.note_waiting_children();
        let questions = self.log.questions();
        let goes_on = |result: &ToolResult| {
            let is_waiting = questions.of_call(&result.call_id).any(|known| known.end.is_none());
            let has_asked = questions.has_asked(&result.call_id) || self.log.waits_below(&result.call_id);
            is_waiting || result.status == ToolStatus::Interrupted && has_asked
        };
        messages.retain(|message| !matches!(message, Message::ToolResult(result) if goes_on(result)));
        messages
    }

    /// A run that an earlier actor or process left, and whose calls wait for people, goes on. Gives whether it does.
    pub(super) async fn revive_run(&mut self) -> Result<bool> {
        let Some(run) = self.log.head().open_run.filter(|_| self.log.is_waiting()) else {
            return Ok(false);
        };
        let terms = self.log.run_terms().map(|(_, terms)| Arc::clone(terms));
        let mut options = self.options_without_caller(terms.as_deref());
        if let Some(terms) = &terms {
            options.take_over(terms)?;
        }
        let judges = options.judges(&self.definition.agent)?;
        let draft = self.log.recovery_of_waiting(self.deps.now_ms());
        self.refresh_settings();
        let instructions = self.write_instructions(run)?;
        if !draft.is_empty() {
            self.append(draft, None).await?;
        }
        self.close_children().await;
        self.start_run(run, options, Waiting::default(), instructions, judges);
        if let Some(open) = &mut self.run {
            let of_run = self.log.path().iter().filter(|entry| entry.id > run);
            of_run.filter_map(|entry| entry.kind.as_message()).for_each(|message| open.told.note(message));
        }
        self.shared.set_left_children(self.left_children());
        self.tell_agent_to_begin();
        Ok(true)
    }

    /// Appends what belongs to the run. Where the store refuses it, the run is given up; gives whether it goes on.
    pub(super) async fn append_for_run(&mut self, draft: Box<Draft>) -> bool {
        match self.append(draft, None).await {
            Ok(()) => true,
            Err(error) => {
                self.run_broken(&error);
                false
            }
        }
    }

    /// Puts on the bill what a model call cost besides what the log says by its answer.
    pub(super) async fn calls_spent(
        &mut self,
        stamp: Option<RunAttempt>,
        usage: Usage,
        cost_microdollars: Option<u64>,
    ) {
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.push(EntryKind::Spent(Spent { by: Spender::Calls, usage, cost_microdollars }));
        if let Err(error) = self.append(draft, None).await {
            return self.warn(format!("what a model call cost could not be recorded: {error}"));
        }
        if let Some(run) = stamp.and_then(|stamp| self.current(stamp)) {
            run.told.usage.add(&usage);
        }
    }

    /// Gives each call on the path that has no result an interrupted one. Gives whether the run goes on.
    async fn close_open_calls(&mut self) -> bool {
        self.close_calls(self.log.open_calls()).await
    }

    async fn close_calls(&mut self, calls: Vec<ToolCall>) -> bool {
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.close_calls(calls);
        draft.is_empty() || self.append_for_run(draft).await
    }

    /// The run is over; its end is recorded with the size that the tracker measures, and `last` with it.
    fn start_closing(&mut self, outcome: RunOutcome, last: Vec<Arc<Entry>>) {
        self.refresh_settings();
        if let Some(run) = &mut self.run {
            run.closing = Some(Closing { outcome, last });
            self.tell_last_answer();
            self.tracker.tell(TrackerMessage::MeasureFor(MeasureFor::RunEnd));
        }
        // A compaction that the run asked for has nobody to wait for it.
        self.cancel_compaction("the run ended");
    }

    pub(super) async fn close_run(&mut self, measured: &Measurement) {
        let context = measured.usage;
        let Some(mut run) = self.run.take_if(|run| run.closing.is_some()) else { return };
        self.shared.end_run();
        self.deps.ledger.release(&self.shared);
        let Some(Closing { outcome, last }) = run.closing.take() else { return };
        let Told { steps, usage, .. } = &run.told;
        trace::run_ended(
            &run.span,
            &self.shared.id,
            run.stamp.run,
            &outcome,
            *steps,
            usage,
            run.began.elapsed(),
        );
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.repeat(&last);
        draft.push(EntryKind::RunEnded { run: run.stamp.run, outcome: outcome.clone(), context });
        // Nobody heard of the failure who could ask again: it is still to be done, and what waits behind it too.
        let passing = match &outcome {
            RunOutcome::Failed(failure) if run.options.is_left && failure.class.may_pass() => Some(failure),
            RunOutcome::Failed(_)
            | RunOutcome::Completed
            | RunOutcome::Aborted
            | RunOutcome::Stopped { .. }
            | RunOutcome::Interrupted
            | RunOutcome::Unknown
            | _ => None,
        };
        if let Some(failure) = passing {
            draft.set_interrupted(Some(run.stamp.run));
            self.hold_back_left(&Error::Model(failure.clone()));
        }
        let result = match &outcome {
            RunOutcome::Completed => {
                Ok(run.told.reply(run.stamp.run, context, told_compactions(self.log.untold_compactions())))
            }
            // A sub-agent's run is aborted when the session above it is deleted.
            RunOutcome::Aborted if !self.shared.is_deleting() => Err(Error::Aborted),
            RunOutcome::Failed(failure) => Err(Error::Model(failure.clone())),
            RunOutcome::Stopped { reason } => Err(match run.rejected.take() {
                Some(reason) => Error::Rejected { reason, text: std::mem::take(&mut run.told.text) },
                None => Error::Stopped { reason: reason.clone() },
            }),
            RunOutcome::Aborted | RunOutcome::Interrupted | RunOutcome::Unknown | _ => {
                Err(self.shared.gone())
            }
        };
        let to: Vec<_> = run.reply.take().into_iter().chain(run.joined).collect();
        let answer = (!to.is_empty()).then(|| Box::new(Answer { to, reply: result }));
        let ended = (!last.is_empty()).then_some(run.stamp);
        let mut after = AfterAppend { then: answer.map(RunCompletion::new), ended };
        let appended = self.append_then(draft, None, &mut after).await;
        let is_recorded = appended.is_ok();
        if let Err(error) = appended {
            if last.is_empty() {
                // The answer itself is durable; that the run ended is noted with the next prompt.
                self.warn(format!("the run's end could not be recorded: {error}"));
            } else {
                run.options.cancel.cancel();
                self.repeats.run_broken();
                self.warn(format!("the run was given up: {error}"));
                self.tracker.tell(TrackerMessage::Billed(self.log.bill()));
                self.context_rewritten();
            }
            if let Some(mut answer) = after.then.and_then(|then| then.take()) {
                answer.reply = Err(error);
                self.completion = Some(RunCompletion::new(answer));
                self.agent
                    .tell(AgentMessage::Broadcast { events: Vec::new(), then: self.completion.clone() });
            }
        }
        // What was measured contains the last answer.
        let is_as_measured = !self.take_next_definition() && is_recorded;
        self.compact_if_requested();
        if is_as_measured {
            self.compact_if_due(measured).await;
        }
    }

    /// The store refused: the run cannot go on. What was acknowledged is there.
    pub(super) fn run_broken(&mut self, error: &Error) {
        self.shared.cancel_run();
        self.shared.end_run();
        self.deps.ledger.release(&self.shared);
        self.repeats.run_broken();
        self.warn(format!("the run was given up: {error}"));
        self.take_next_definition();
        if let Some(run) = self.run.take() {
            tell_all(run.reply.into_iter().chain(run.joined).collect(), || Err(error.clone()));
        }
    }
}

impl OpenRun {
    /// The agent as its next fallback answers for it.
    pub(super) fn next_fallback(&mut self) -> Option<Agent> {
        let fallback = self.agent.fallbacks.get(self.fell_back)?;
        self.fell_back += 1;
        Some(fallback.of(&self.agent))
    }

    pub(super) fn stamp(&self) -> RunAttempt {
        self.stamp
    }

    pub(super) fn hand_off_mut(&mut self) -> &mut Option<PendingHandOff> {
        &mut self.hand_off
    }

    /// Counts a hand-off. Gives how many there were.
    pub(super) fn count_hand_off(&mut self) -> u32 {
        self.hand_offs += 1;
        self.hand_offs
    }

    /// How the prompt asks the model to answer.
    pub(super) fn settings_of_prompt(&self) -> &ModelSettings {
        &self.options.settings
    }

    /// How its model is asked.
    pub(super) fn settings(&self) -> &ModelSettings {
        &self.settings
    }

    pub(super) fn set_settings(&mut self, settings: ModelSettings) {
        self.settings = settings;
    }
}

impl Told {
    /// Keeps what the reply will contain.
    pub(super) fn note(&mut self, message: &Message) {
        if let Message::Assistant(answer) = message {
            self.text = answer.text();
            self.stop = Some(answer.stop);
            self.model.clone_from(&answer.model);
            self.steps += 1;
            self.tool_calls.extend(answer.tool_calls().map(CallView::from));
            if let Some(usage) = &answer.usage {
                self.usage.add(usage);
            }
        }
    }

    /// Whether the newest answer is whole, and calls no tool.
    pub(super) fn is_whole(&self) -> bool {
        self.stop.is_some_and(|stop| !stop.is_partial() && stop != StopReason::ToolCalls)
    }

    /// The reply, when the run has ended with a context of this size.
    pub(super) fn reply(self, run: EntryId, context: ContextUsage, compactions: Vec<Compacted>) -> Reply {
        // A run that is completed has an answer.
        let stop = self.stop.unwrap_or(StopReason::Stop);
        let Self { text, model, usage, steps, tool_calls, .. } = self;
        Reply { text, stop, model, run, context, usage, steps, compactions, tool_calls }
    }
}
