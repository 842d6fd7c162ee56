//! The agent: performs the run in progress. It drives `Run`, starts the model's and the tools' tasks, and
//! publishes the session's events.
//!
//! Invariants: no handler waits: model calls, tools and waits run in tasks with a cancellation token, and
//! each task ends with exactly one message. All state of the agent is in the log, so a successor can replace
//! it. When the agent ends, its tasks are cancelled.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::failure::Failure;
use greenroom_kernel::run::{AbortCause, Effect, Input, Run};
use greenroom_kernel::unreported::billable;
use greenroom_kernel::{Messages, Usage, cost};
use greenroom_provider::ModelSettings;
use greenroom_tools::Pauses;
use parking_lot::Mutex;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::agent::Agent;
use crate::agent::validate::ProposedAnswer;
use crate::core::agent_line::AgentLine;
use crate::core::deps::Deps;
use crate::core::mail::Mail;
use crate::core::message::{
    AgentMessage, Answer, BeginRun, ModelOutcome, RunAttempt, SessionMail, SessionMessage, TrackerMessage,
    tell_all,
};
use crate::core::metrics::Happened;
use crate::core::running::{RequestForm, Running};
use crate::core::shared::SessionShared;
use crate::core::trace;
use crate::events::event::EventKind;
use prefix::Prefix;

mod count_task;
mod model_task;
mod prefix;
mod request;
mod tool_task;

/// The agent actor.
pub(crate) struct AgentActor;

/// The arguments of its start.
pub(crate) struct AgentArguments {
    pub(crate) deps: Arc<Deps>,
    pub(crate) shared: Arc<SessionShared>,
    pub(crate) session: ActorRef<SessionMail>,
}

/// The agent's state.
pub(crate) struct AgentState {
    deps: Arc<Deps>,
    shared: Arc<SessionShared>,
    session: ActorRef<SessionMail>,
    running: Option<Box<Running>>,
    /// The newest request.
    prefix: Arc<Mutex<Prefix>>,
}

impl Actor for AgentActor {
    type Msg = Mail<AgentMessage>;
    type State = AgentState;
    type Arguments = AgentArguments;

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let AgentArguments { deps, shared, session } = arguments;
        deps.probe(&shared.id, "agent/starts");
        Ok(AgentState { deps, shared, session, running: None, prefix: Arc::default() })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        mail: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        mail.each(|message| {
            state.deps.probe(&state.shared.id, message.point());
            state.on(&myself, message);
        });
        Ok(())
    }
}

impl AgentState {
    fn on(&mut self, myself: &ActorRef<Mail<AgentMessage>>, message: AgentMessage) {
        match message {
            AgentMessage::Broadcast { events, then } => {
                for event in &events {
                    self.shared.publish_durable(&self.deps.bus, event);
                }
                if let Some(answer) = then.and_then(|then| then.take()) {
                    let Answer { mut to, reply } = *answer;
                    // Usually there is one caller, and nothing is copied.
                    if let Some(last) = to.pop() {
                        tell_all(to, || reply.clone());
                        let _ = last.send(reply);
                    }
                }
            }
            AgentMessage::FlushEvents => self.tell_session(SessionMessage::EventsFlushed),
            AgentMessage::Begin(begin) => self.begin(myself, begin),
            AgentMessage::Suspend { attempt } => self.suspend(attempt),
            AgentMessage::Continue { mut running, tracker } => {
                running.begin.tracker = tracker;
                let line = running.line.clone();
                self.running = Some(running);
                line.wake_up(myself.clone());
            }
            AgentMessage::Recorded { attempt, delivered, answer, is_measuring } => {
                let Some(running) = self.current(attempt) else { return };
                running.begin.answer = answer;
                running.begin.is_measuring = is_measuring;
                let was_held = std::mem::take(&mut running.begin.is_held);
                let input = if was_held { Input::Begin } else { Input::Recorded { delivered } };
                self.input(myself, attempt, input);
            }
            AgentMessage::Compacted { attempt, installed, floor, why } => {
                self.input(
                    myself,
                    attempt,
                    Input::Compacted { installed, floor: floor.map(|floor| *floor), why },
                );
            }
            AgentMessage::FellBack { attempt, agent, provider, settings, failure } => {
                self.fell_back(myself, attempt, agent, provider, *settings, *failure);
            }
            AgentMessage::Sized { attempt, measured, context } => {
                let Some(running) = self.current(attempt) else { return };
                // If a crashed tracker and its successor both answer, the second answer is ignored.
                if !std::mem::take(&mut running.measuring) {
                    return;
                }
                let mut size = measured.size.clone();
                if size.nears.is_some() {
                    let measured = measured.clone();
                    let _ = self.session.cast(SessionMessage::Nears { attempt, measured }.into());
                }
                let Some(running) = self.current(attempt) else { return };
                running.measured = Some(measured);
                running.context = context;
                size.is_uncertain = size.is_uncertain && self.can_count(attempt);
                self.input(myself, attempt, Input::Size(size));
                // If another step comes first, such as a compaction, this context is outdated by the next
                // model call.
                if let Some(running) = self.current(attempt) {
                    running.context = None;
                }
            }
            AgentMessage::Context { attempt, messages } => self.ask(myself, attempt, messages),
            AgentMessage::TrackerRestarted { tracker } => self.measure_anew(myself, tracker),
            AgentMessage::Abort { attempt, cause } => self.abort(myself, attempt, cause),
            AgentMessage::Counted { attempt, call, tokens } => self.counted(myself, attempt, call, tokens),
            AgentMessage::ModelOver { attempt, call, outcome } => {
                self.model_over(myself, attempt, call, outcome)
            }
            AgentMessage::ToolOver { attempt, result } => {
                self.input(myself, attempt, Input::ToolEnded(result))
            }
            AgentMessage::ToolsOver { attempt, not_begun } => {
                if let Some(running) = self.current(attempt) {
                    running.tools = None;
                    running.not_begun = not_begun;
                }
                self.abort_when_quiet(myself, attempt);
            }
            AgentMessage::Validated { attempt, verdict } => {
                self.input(myself, attempt, Input::Validated(verdict));
            }
            AgentMessage::Waited { attempt, call } => {
                if self.current(attempt).is_some_and(|running| running.call == call) {
                    self.input(myself, attempt, Input::Waited);
                }
            }
        }
    }

    /// Returns the run in progress if the message is about it. Late messages are dropped here.
    fn current(&mut self, attempt: RunAttempt) -> Option<&mut Running> {
        self.running.as_deref_mut().filter(|running| running.begin.attempt == attempt)
    }

    fn publish(&self, attempt: RunAttempt, kind: EventKind) {
        self.shared.publish_of_run(&self.deps.bus, attempt.run, kind);
    }

    fn tell_session(&self, message: SessionMessage) {
        // If the session is gone, the agent ends with it.
        let _ = self.session.cast(message.into());
    }

    fn begin(&mut self, myself: &ActorRef<Mail<AgentMessage>>, begin: Box<BeginRun>) {
        let (attempt, is_held) = (begin.attempt, begin.is_held);
        let over = CancellationToken::new();
        let pauses = Pauses::within(self.shared.pauses());
        let line = AgentLine::new(&self.deps, &self.shared, myself.clone());
        let watch = Watch {
            line: line.clone(),
            attempt,
            cancel: begin.cancel.clone(),
            time_limit: [begin.agent.run_timeout, begin.time_limit].into_iter().flatten().min(),
            pauses: pauses.clone(),
            over: over.clone(),
        };
        tokio::spawn(watch.run());
        let output_tokens_max = self.output_tokens_max(&begin.agent, &begin.settings);
        let run = Run::new(begin.agent.limits, begin.may_compact, output_tokens_max)
            .with_fallbacks(begin.fallbacks.clone())
            .validated(!begin.validators.is_empty())
            .answered_before(begin.answered_before)
            .with_pending(begin.pending.iter().map(|pending| pending.call.clone()).collect(), begin.steps);
        let changed = begin
            .instructions_changed
            .map(|tokens| EventKind::InstructionsChanged { text: begin.instructions.to_string(), tokens });
        self.running = Some(Box::new(Running {
            run,
            line,
            call: 0,
            step: 0,
            step_span: Span::none(),
            next_request: None,
            fewer_images: None,
            has_native_summary: false,
            media_missed: false,
            opaque_missed: false,
            measuring: false,
            measured: None,
            context: None,
            pauses,
            model: None,
            tools: None,
            aborting: None,
            not_begun: Vec::new(),
            partial: None,
            _cancels_over: over.clone().drop_guard(),
            over,
            begin,
        }));
        self.publish(attempt, EventKind::RunStart);
        if let Some(changed) = changed {
            self.publish(attempt, changed);
        }
        if self.current(attempt).is_some_and(|running| running.begin.cancel.is_cancelled()) {
            // The run was aborted before it started, so nothing is done.
            self.abort(myself, attempt, AbortCause::Requested);
        } else if !is_held {
            self.input(myself, attempt, Input::Begin);
        }
    }

    /// Hands the run over if it waits only for its tools. From then on, messages of its tasks are buffered.
    fn suspend(&mut self, attempt: RunAttempt) {
        let waits = |running: &mut Box<Running>| {
            running.begin.attempt == attempt
                && running.run.is_waiting_for_calls()
                && running.aborting.is_none()
                && running.tools.is_some()
        };
        let running = self.running.take_if(waits);
        if let Some(running) = &running {
            running.line.fall_asleep();
        }
        self.tell_session(SessionMessage::Suspended { attempt, running });
    }

    /// Returns the output limit that requests would carry anyway, in tokens. The provider's own limit must be
    /// known here so that it can be lowered.
    fn output_tokens_max(&self, agent: &Agent, settings: &ModelSettings) -> Option<u64> {
        let of_provider = || self.deps.lane(agent)?.provider.output_tokens_max();
        settings.output_tokens_max.or_else(of_provider)
    }

    /// Continues the run with another model.
    fn fell_back(
        &mut self,
        myself: &ActorRef<Mail<AgentMessage>>,
        attempt: RunAttempt,
        agent: Arc<Agent>,
        provider: String,
        settings: ModelSettings,
        failure: Failure,
    ) {
        let output_tokens_max = self.output_tokens_max(&agent, &settings);
        let Some(running) = self.current(attempt) else { return };
        let model = agent.model.clone();
        running.begin.model.clone_from(&model);
        running.begin.agent = agent;
        running.begin.settings = settings;
        self.deps.metrics.count(Happened::FellBack);
        self.publish(attempt, EventKind::Fallback { provider, model, failure });
        self.input(myself, attempt, Input::FellBack { output_tokens_max });
    }

    /// Passes an input to the run, and performs its effects.
    fn input(&mut self, myself: &ActorRef<Mail<AgentMessage>>, attempt: RunAttempt, input: Input) {
        let Some(running) = self.current(attempt) else { return };
        let effects = running.run.on(input);
        for effect in effects {
            self.perform(myself, attempt, effect);
        }
        // A finished run holds nothing, and its watcher ends.
        if self.current(attempt).is_some_and(|running| running.run.is_over()) {
            self.running = None;
        }
    }

    fn perform(&mut self, myself: &ActorRef<Mail<AgentMessage>>, attempt: RunAttempt, effect: Effect) {
        match effect {
            Effect::Measure => {
                let Some(running) = self.current(attempt) else { return };
                running.measuring = true;
                // The session starts the measurement itself if it knows that a step follows.
                if !std::mem::take(&mut running.begin.is_measuring) {
                    self.tell_session(SessionMessage::Measure { attempt });
                }
            }
            Effect::Count { media, without_opaque } => {
                let form = RequestForm { output_tokens_max: None, media, without_opaque };
                self.count(myself, attempt, form);
            }
            Effect::Compact { trigger, at_window, failed_attempts } => {
                let measured = self.current(attempt).and_then(|running| running.measured.clone());
                let measured = measured.expect("a run compacts only after it was told its size");
                self.tell_session(SessionMessage::Compact {
                    attempt,
                    trigger,
                    at_window,
                    failed_attempts,
                    measured,
                });
            }
            Effect::StepStarted { step } => {
                let session = Arc::clone(&self.shared.id);
                let Some(running) = self.current(attempt) else { return };
                running.step = step;
                running.step_span = trace::step(&running.begin.span, &session, step);
                let model = running.begin.model.clone();
                self.publish(attempt, EventKind::StepStart { step, model });
            }
            Effect::StepEnded { step } => {
                if let Some(running) = self.current(attempt) {
                    running.step_span = Span::none();
                }
                self.publish(attempt, EventKind::StepEnd { step });
            }
            Effect::Ask { output_tokens_max, media, without_opaque } => {
                let Some(running) = self.current(attempt) else { return };
                running.next_request = Some(RequestForm { output_tokens_max, media, without_opaque });
                match running.context.take() {
                    Some(messages) => self.ask(myself, attempt, messages),
                    None => self.tell_session(SessionMessage::Project { attempt }),
                }
            }
            Effect::Record { messages, boundary } => {
                self.tell_session(SessionMessage::Record { attempt, messages, boundary });
            }
            Effect::RunTools(calls) => {
                let (deps, shared) = (Arc::clone(&self.deps), Arc::clone(&self.shared));
                let Some(running) = self.current(attempt) else { return };
                let cancel = running.begin.cancel.child_token();
                running.tools = Some(cancel.clone().drop_guard());
                let waiting = running.begin.waiting.clone();
                let task = tool_task::ToolTask {
                    pending: std::mem::take(&mut running.begin.pending),
                    answer: running.begin.answer,
                    run_cancel: running.begin.cancel.clone(),
                    pauses: running.pauses.clone(),
                    line: running.line.clone(),
                    deps,
                    shared,
                    attempt,
                    span: running.step_span.clone(),
                    tools: running.begin.tools.clone(),
                    definition: Arc::clone(&running.begin.agent),
                    waiting,
                    cancel,
                };
                tokio::spawn(task.run(calls));
            }
            Effect::Wait { delay_ms, attempt: retry, failure } => {
                self.wait(myself, attempt, delay_ms, retry, failure)
            }
            Effect::Validate { text, rejections } => {
                let session = Arc::clone(&self.shared.id);
                let Some(running) = self.current(attempt) else { return };
                let BeginRun { validators, agent: definition, waiting, .. } = &*running.begin;
                let (validators, waiting, definition) =
                    (validators.clone(), waiting.clone(), Arc::clone(definition));
                let app_state = definition.state.clone();
                let (agent, over) = (myself.clone(), running.over.clone());
                tokio::spawn(async move {
                    let answer = ProposedAnswer { session, run: attempt.run, text, rejections, app_state };
                    tokio::select! {
                        biased;
                        () = over.cancelled() => {}
                        verdict = validators.judge(&answer, &waiting, &definition.hooks) => {
                            let _ = agent.cast(AgentMessage::Validated { attempt, verdict }.into());
                        }
                    }
                });
            }
            Effect::FallBack { failure } => {
                self.tell_session(SessionMessage::FallBack { attempt, failure: Box::new(failure) });
            }
            Effect::OverflowDetected => self.publish(attempt, EventKind::OverflowDetected),
            Effect::Cancel => {
                if let Some(running) = self.current(attempt) {
                    running.model = None;
                    running.tools = None;
                }
            }
            Effect::End { messages, outcome } => {
                let rejected =
                    self.current(attempt).and_then(|running| running.run.rejected().map(str::to_owned));
                self.tell_session(SessionMessage::End { attempt, messages, outcome, rejected });
            }
        }
    }

    fn wait(
        &mut self,
        myself: &ActorRef<Mail<AgentMessage>>,
        attempt: RunAttempt,
        delay_ms: u64,
        retry: u32,
        failure: Failure,
    ) {
        if failure.retry_after_ms.is_some() {
            // The wait applies to all sessions that use this provider with this key.
            let agent = self.current(attempt).map(|running| Arc::clone(&running.begin.agent));
            if let Some(lane) = agent.as_ref().and_then(|agent| self.deps.lane(agent)) {
                lane.pause_ms(delay_ms);
            }
        }
        let session = Arc::clone(&self.shared.id);
        if let Some(running) = self.current(attempt) {
            trace::retry(&running.step_span, &session, retry, delay_ms, &failure);
        }
        self.deps.metrics.count(Happened::Retried { class: failure.class });
        self.publish(attempt, EventKind::Retry { compaction: None, attempt: retry, delay_ms, failure });
        let Some(running) = self.current(attempt) else { return };
        running.call += 1;
        let (call, over, agent) = (running.call, running.over.clone(), myself.clone());
        let span = trace::wait(&running.step_span, &session, "retry");
        tokio::spawn(async move {
            let delay = tokio::time::sleep(Duration::from_millis(delay_ms));
            tokio::select! {
                biased;
                () = delay => { let _ = agent.cast(AgentMessage::Waited { attempt, call }.into()); }
                () = over.cancelled() => {}
            }
            drop(span);
        });
    }

    /// Handles the arrival of the context: asks the model.
    fn ask(&mut self, myself: &ActorRef<Mail<AgentMessage>>, attempt: RunAttempt, messages: Messages) {
        let (deps, shared) = (Arc::clone(&self.deps), Arc::clone(&self.shared));
        let session = self.session.clone();
        let Some(running) = self.current(attempt) else { return };
        let Some(form) = running.next_request.take() else { return };
        let request = request::of_step(running, &deps, &shared, messages, form);
        let begin = &*running.begin;
        let Some(lane) = deps.lane(&begin.agent).cloned() else { return };
        running.call += 1;
        let cancel = begin.cancel.child_token();
        let call = running.call;
        running.model = Some(cancel.clone().drop_guard());
        let (span, link) = (running.step_span.clone(), Arc::clone(&begin.link));
        let (definition, waiting) = (Arc::clone(&begin.agent), begin.waiting.clone());
        let measured = running.measured.as_ref().map_or(0, |measured| measured.size.tokens);
        let tokens = measured + request.settings.output_tokens_max.unwrap_or(0);
        let input_tokens_max =
            running.measured.as_ref().map_or(0, |measured| cost::input_tokens_max(&measured.usage));
        let output_room =
            running.measured.as_ref().and_then(|measured| measured.size.output_room(input_tokens_max));
        let agent = myself.clone();
        let task = model_task::ModelTask {
            agent,
            session,
            input_tokens_max,
            output_room,
            deps,
            shared,
            lane,
            attempt,
            call,
            cancel,
            link,
            span,
            definition,
            waiting,
            prefix: Arc::clone(&self.prefix),
            tokens,
        };
        tokio::spawn(task.run(Box::new(request)));
    }

    fn model_over(
        &mut self,
        myself: &ActorRef<Mail<AgentMessage>>,
        attempt: RunAttempt,
        call: u64,
        outcome: ModelOutcome,
    ) {
        let Some(running) = self.current(attempt).filter(|running| running.call == call) else { return };
        running.model = None;
        match outcome {
            ModelOutcome::Answered(_) | ModelOutcome::Failed { .. } | ModelOutcome::Refused(_)
                if running.aborting.is_some() =>
            {
                if let ModelOutcome::Answered(answer) = outcome {
                    // Nothing of an answer that only calls tools is recorded, and its flight has ended.
                    let unrecorded = answer.usage.filter(|_| answer.only_calls()).map(billable);
                    let spent =
                        unrecorded.map(|usage| (answer.provider.clone(), answer.model.clone(), usage));
                    running.partial = Some(answer);
                    if let Some((provider, model, usage)) = spent {
                        self.tell_spent(attempt, &provider, &model, usage);
                    }
                }
                self.abort_when_quiet(myself, attempt);
            }
            ModelOutcome::Cancelled(partial) => {
                running.partial = Some(partial);
                self.abort_when_quiet(myself, attempt);
            }
            ModelOutcome::Answered(answer) => {
                // An empty answer is requested again, and its failure has the reason.
                if let Some(message) = answer.stop.cut_off().filter(|_| !answer.is_empty()) {
                    self.shared.publish(&self.deps.bus, EventKind::Warning { message: message.to_owned() });
                }
                let jitter = jitter(&self.shared.id, attempt.run.0, call);
                self.input(myself, attempt, Input::Answered { answer, jitter });
            }
            ModelOutcome::Refused(reason) => self.input(myself, attempt, Input::Refused { reason }),
            ModelOutcome::Failed { error, output_tokens_max } => {
                let wordless = error.is_overflow_candidate();
                let (fewer_images, has_native_summary) = (running.fewer_images, running.has_native_summary);
                if let Some(limit) = error
                    .failure
                    .limit
                    .filter(|_| error.failure.class == greenroom_kernel::FailureClass::ContextOverflow)
                {
                    self.limit_named(attempt, limit, output_tokens_max);
                }
                // Jitter that differs between sessions and calls, and is reproducible for the same ids.
                let jitter = jitter(&self.shared.id, attempt.run.0, call);
                let failure = error.failure;
                let failed = Input::Failed {
                    failure,
                    wordless,
                    fewer_images,
                    has_native_summary,
                    output_tokens_max,
                    jitter,
                };
                self.input(myself, attempt, failed);
            }
        }
    }

    fn limit_named(&mut self, attempt: RunAttempt, limit: u64, output_tokens_max: Option<u64>) {
        let (deps, shown) = (Arc::clone(&self.deps), self.shared.context().tokens);
        let Some(running) = self.current(attempt) else { return };
        // The shown size may be from before the prompt or the results at the end of the request.
        let tokens = running.measured.as_ref().map_or(shown, |measured| measured.size.tokens.max(shown));
        let BeginRun { agent, model, .. } = &*running.begin;
        let Some(lane) = deps.lane(agent) else { return };
        let (lane, model) = (Arc::clone(lane), model.clone());
        let sent = tokens + output_tokens_max.unwrap_or(0);
        self.tell_session(SessionMessage::LimitLearned { lane, model, limit, sent });
    }

    fn measure_anew(
        &mut self,
        myself: &ActorRef<Mail<AgentMessage>>,
        tracker: ActorRef<Mail<TrackerMessage>>,
    ) {
        let Some(running) = &mut self.running else { return };
        running.begin.tracker = tracker;
        if running.measuring {
            let (attempt, reply_to) = (running.begin.attempt, myself.clone());
            let _ = running
                .begin
                .tracker
                .cast(TrackerMessage::Measure { attempt, context: None, reply_to }.into());
        }
    }

    /// Aborts the run: first its tasks end, then the run is notified.
    fn abort(&mut self, myself: &ActorRef<Mail<AgentMessage>>, attempt: RunAttempt, cause: AbortCause) {
        let Some(running) = self.current(attempt) else { return };
        running.aborting = Some(cause);
        running.begin.cancel.cancel();
        self.abort_when_quiet(myself, attempt);
    }

    /// Bills a call whose answer is not recorded.
    fn tell_spent(&self, attempt: RunAttempt, provider: &str, model: &str, usage: Usage) {
        let cost_microdollars =
            self.deps.call_cost(self.shared.agent().as_deref()).of(provider, model, &usage);
        let attempt = Some(attempt);
        let spent = SessionMessage::Spent { attempt, usage, cost_microdollars, has_summary: false };
        let _ = self.session.cast(spent.into());
    }

    fn abort_when_quiet(&mut self, myself: &ActorRef<Mail<AgentMessage>>, attempt: RunAttempt) {
        let Some(running) = self.current(attempt) else { return };
        if let Some(cause) = running.aborting
            && running.model.is_none()
            && running.tools.is_none()
        {
            running.next_request = None;
            let partial = running.partial.take();
            let not_begun = std::mem::take(&mut running.not_begun);
            self.input(myself, attempt, Input::Abort { partial, not_begun, cause });
        }
    }
}

/// Notifies the agent when the run is cancelled or its time is up, until the run is over.
struct Watch {
    line: AgentLine,
    attempt: RunAttempt,
    cancel: CancellationToken,
    time_limit: Option<Duration>,
    /// The time limit stops while people are being asked.
    pauses: Pauses,
    over: CancellationToken,
}

impl Watch {
    async fn run(self) {
        let Self { line, attempt, cancel, time_limit, pauses, over } = self;
        let mut time_is_up = pin!(async {
            match time_limit {
                Some(limit) => pauses.sleep(limit).await,
                None => std::future::pending().await,
            }
        });
        let cause = tokio::select! {
            biased;
            () = cancel.cancelled() => AbortCause::Requested,
            () = over.cancelled() => return,
            () = &mut time_is_up => {
                let limit_ms = time_limit.unwrap_or_default().as_millis();
                AbortCause::OutOfTime { limit_ms: u64::try_from(limit_ms).unwrap_or(u64::MAX) }
            }
        };
        line.send(AgentMessage::Abort { attempt, cause }.into());
    }
}

/// Returns a number in 0..1000 that differs between sessions and calls.
pub(crate) fn jitter(session: &str, run: u64, call: u64) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (session, run, call).hash(&mut hasher);
    hasher.finish() % 1000
}
