//! Starting runs: with a prompt, with queued input, with interrupted work, or midway with another agent.
//!
//! Invariants: a run's start is durable before its agent is told; anything that a crash left open is closed
//! in the same draft.

use std::borrow::Cow;
use std::sync::Arc;

use greenroom_kernel::EntryId;
use greenroom_kernel::cost::RunCost;
use greenroom_kernel::entry::EntryKind;
use greenroom_kernel::log::{Draft, InboxItem};
use greenroom_kernel::message::{Block, Message, ToolCall};
use greenroom_kernel::terms::Terms;

use super::SessionState;
use super::definition::instructions_tokens;
use super::open_run::{NewRun, RunInstructions, Waiting};
use crate::actors::sub_agent;
use crate::agent::instructions::InstructionsContext;
use crate::agent::validate::Validators;
use crate::core::message::{AgentMessage, PendingCall, PromptOptions, ReplyTo, SessionMessage, tell_all};
use crate::core::trace;
use crate::events::entry_events::RUN_RESUMED;
use crate::values::error::{ConfigError, Error, Result};
use crate::values::prompt::Reply;

impl SessionState {
    /// Returns a draft that first closes what is still open, and records a change of the model.
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

    /// Records a prompt and starts its run. Returns the prompt's entry.
    pub(super) async fn begin(
        &mut self,
        content: Vec<Block>,
        options: Box<PromptOptions>,
        waiting: Waiting,
    ) -> Result<EntryId> {
        if let Err(error) = self.adopt(options.agent.as_ref()) {
            return Err(Box::pin(self.not_begun(waiting, options, error)).await);
        }
        self.refresh_settings();
        let mut draft = self.opening_draft();
        let run = draft.message(Message::User(content));
        self.begin_recorded(draft, run, None, options, waiting).await?;
        Ok(run)
    }

    pub(super) async fn begin_delivered(
        &mut self,
        item: &InboxItem,
        mut options: Box<PromptOptions>,
        reply: Option<ReplyTo<Reply>>,
    ) -> Result<()> {
        self.refresh_settings();
        let mut draft = self.opening_draft();
        // Whatever its delivery was, it starts a run.
        let run = draft.deliver(item, false);
        // Its key was recorded when it was queued, and earlier aborts were not meant for it.
        (options.key, options.early_aborts) = (None, self.shared.early_aborts());
        options.from.waited();
        let recorded = item.terms.clone().map(|terms| (item.id, terms));
        self.begin_recorded(draft, run, recorded, options, Waiting::caller(reply)).await?;
        let followers = self.inbox.take_followers(item.id);
        if let Some(run) = self.runs.open_mut() {
            run.join(followers);
        }
        Ok(())
    }

    /// Starts a run that continues with the unanswered message.
    pub(super) async fn begin_resumed(
        &mut self,
        mut options: Box<PromptOptions>,
        waiting: Waiting,
    ) -> Result<()> {
        let Some(unanswered) = self.log.unanswered() else { return Ok(()) };
        let recorded = self.log.run_terms().map(|(entry, terms)| (entry, Arc::clone(terms)));
        if let Some((_, terms)) = &recorded
            && let Err(error) = options.take_over(terms)
        {
            tell_all(waiting.into_all(), || Err(error.clone()));
            return Err(error);
        }
        self.refresh_settings();
        options.from.waited();
        let mut draft = self.opening_draft();
        let run = draft.push(EntryKind::Note { kind: RUN_RESUMED.into(), data: unanswered.to_string() });
        self.begin_recorded(draft, run, recorded, options, waiting).await
    }

    async fn begin_recorded(
        &mut self,
        mut draft: Box<Draft>,
        run: EntryId,
        recorded: Option<(EntryId, Arc<Terms>)>,
        options: Box<PromptOptions>,
        waiting: Waiting,
    ) -> Result<()> {
        if self.shared.parent.is_some() {
            // The labels of its top-level session may have changed.
            let tenants = Box::pin(sub_agent::tenants(&self.deps, &self.shared, self.log.head())).await;
            tenants.into_iter().for_each(|tenants| self.shared.set_tenants(tenants));
        }
        let fingerprint = self.shared.agent().and_then(|agent| agent.fingerprint.clone());
        draft.begin_run(run, options.terms(), recorded, fingerprint);
        let judges = options.judges(&self.definition.agent);
        let (judges, instructions) =
            match judges.and_then(|judges| Ok((judges, self.write_instructions(run)?))) {
                Ok(known) => known,
                Err(error) => return Err(Box::pin(self.not_begun(waiting, options, error)).await),
            };
        if let Err(error) = self.append(draft, options.key.clone()).await {
            return Err(Box::pin(self.not_begun(waiting, options, error)).await);
        }
        // A prompt from the inbox was recorded there.
        let _ = options.recorded.set(run);
        self.start_run(run, options, waiting, instructions, judges);
        self.tell_agent_to_begin();
        Ok(())
    }

    /// Refuses the prompt of a run that could not be started; returns the error.
    async fn not_begun(&mut self, waiting: Waiting, options: Box<PromptOptions>, error: Error) -> Error {
        if let Some(reply) = waiting.into_caller() {
            self.refuse_prompt(reply, options, error.clone()).await;
        }
        error
    }

    /// Makes the run that is open in the log the run in progress.
    fn start_run(
        &mut self,
        run: EntryId,
        mut options: Box<PromptOptions>,
        waiting: Waiting,
        instructions: RunInstructions,
        judges: Validators,
    ) {
        // The definition may have changed since the prompt was sent: the provider refuses invalid settings.
        let settings = self.definition.model_settings(&self.deps, &options.settings);
        let settings = settings.unwrap_or_else(|_| options.settings.clone());
        self.limit_cost(&options);
        options.link.begin(run);
        self.shared.begin_run(run, options.cancel.clone(), options.early_aborts);
        let (is_gone, ticket) = (waiting.is_gone(), options.ticket);
        let (provider, model) = (self.definition.provider(), self.definition.model());
        let span = trace::run(&self.span, &mut options.from, &self.shared.id, run, provider, model);
        let agent = Arc::clone(&self.definition.agent);
        self.runs.begin(run, span, NewRun { options, settings, judges, agent, waiting, instructions });
        if is_gone {
            // Requests that are in the mailbox already may repeat the prompt, and come first.
            let _ = self.myself.cast(SessionMessage::Withdraw { ticket }.into());
        }
        for doubt in self.definition.take_warnings() {
            self.warn(doubt);
        }
    }

    /// Sets the cost limit of the new run: the lower of its prompt's and its agent's.
    fn limit_cost(&mut self, options: &PromptOptions) {
        let limit = [options.cost_limit, self.definition.agent.run_cost_limit].into_iter().flatten().min();
        let before = self.log.bill().cost_microdollars;
        let run_cost = limit.map(|limit| RunCost { limit, before });
        if self.runs.set_cost(run_cost) {
            self.limits_changed();
        }
    }

    /// Writes the instructions of a new run. Their size counts from now on.
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
        let mut text = written.map_err(|reason| ConfigError::Instructions { reason })?;
        if let Cow::Owned(redacted) = self.deps.redactor.values(&text) {
            text = Arc::from(redacted);
        }
        let pinned_tokens = self.log.pinned_tokens();
        let has_other_window = self.definition.refresh_window(&self.deps, pinned_tokens).is_some();
        if self.definition.set_instructions(&text, pinned_tokens)? || has_other_window {
            self.limits_changed();
        }
        Ok(self.runs.instructions(text, instructions_tokens))
    }

    fn tell_agent_to_begin(&mut self) {
        self.wait_for_hand_off(0);
        let Some(run) = self.runs.open() else { return };
        let tracker = self.tracker.actor().clone();
        let begin = run.order(&self.shared.id, &self.definition, &self.log, self.pending_calls(), tracker);
        let (attempt, is_measuring) = (begin.attempt, begin.is_measuring);
        self.agent.tell(AgentMessage::Begin(Box::new(begin)));
        if is_measuring {
            self.measure_for_step(attempt);
        }
    }

    /// Returns the calls that continue when a run is resumed. Before a new run, all calls have results.
    fn pending_calls(&self) -> Vec<PendingCall> {
        let questions = self.log.questions();
        let pending = |call: ToolCall| {
            // A sub-agent is found where it was left.
            let may_have_begun = questions.may_have_begun(&call.id) && !self.log.waits_below(&call.id);
            PendingCall { may_have_begun, call }
        };
        self.log.asking_calls().into_iter().map(pending).collect()
    }

    /// Continues the run with a new agent after the old one crashed.
    pub(super) async fn rerun(&mut self) {
        if !self.runs.is_open() || self.runs.is_closing() {
            return;
        }
        // A run that was about to sleep continues normally.
        self.runs.take_back();
        self.note_waiting_children();
        let results = self.log.cut_off_results(|call| self.definition.runs_alone(call));
        if !self.record_results(results).await {
            return;
        }
        // A compaction for the crashed agent continues; the new agent waits for it if it needs one.
        self.compaction.detach_run();
        let number = self.runs.next_attempt();
        if let Some(run) = self.runs.open_mut() {
            run.go_on(number);
        }
        self.shared.set_left_children(self.left_children());
        self.tell_agent_to_begin();
    }

    /// Continues the run with another agent, whose definition is already in use.
    pub(super) fn go_on_with_other_agent(&mut self) {
        let Some(id) = self.runs.id() else { return };
        let instructions = match self.write_instructions(id) {
            Ok(instructions) => instructions,
            Err(error) => return self.run_broken(&error),
        };
        let Some(of_prompt) = self.runs.open().map(|run| run.options().settings.clone()) else { return };
        let settings = self.definition.model_settings(&self.deps, &of_prompt).unwrap_or(of_prompt);
        self.runs.note_instructions(&instructions);
        let number = self.runs.next_attempt();
        let Some(run) = self.runs.open_mut() else { return };
        run.go_on_with(number, Arc::clone(&self.definition.agent), settings, instructions);
        self.tell_agent_to_begin();
    }

    /// Continues a run that an earlier actor or process left, and whose calls wait for people. Returns
    /// whether there is one.
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
        let draft = self.log.recovery_of_waiting(self.deps.now_ms(), |call| self.definition.runs_alone(call));
        self.refresh_settings();
        let instructions = self.write_instructions(run)?;
        if !draft.is_empty() {
            self.append(draft, None).await?;
        }
        self.close_children().await;
        self.start_run(run, options, Waiting::default(), instructions, judges);
        if let Some(open) = self.runs.open_mut() {
            let of_run = self.log.path().iter().filter(|entry| entry.id > run);
            open.note(of_run.filter_map(|entry| entry.kind.as_message()).map(|message| &**message));
        }
        self.shared.set_left_children(self.left_children());
        self.tell_agent_to_begin();
        Ok(true)
    }
}
