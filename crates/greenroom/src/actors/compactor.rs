//! The compactor: performs the compaction in progress. It drives `Compacting`, and supervises one child for
//! each request to a summariser; the two halves of a split turn are summarised concurrently.
//!
//! A preparation is the same work before the compaction has started, whose result the compactor holds.
//!
//! Invariants: at most [`CHILDREN_MAX`] children at a time; a child that fails or panics harms neither its
//! siblings nor the session: only its request is repeated. The compactor's state can be rebuilt from the log,
//! so a crash leaves the history unchanged.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::bill::CallCost;
use greenroom_kernel::compacting::{CompactionParams, Effect, HookDecision, Input, SummaryRequest};
use greenroom_kernel::plan::Plan;
use greenroom_kernel::retry::BACKOFF_MS_MAX;
use greenroom_kernel::run::is_full;
use greenroom_kernel::usage::Ratio;
use greenroom_kernel::{AssistantMessage, EntryId, Failure, FailureClass};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tracing::Span;

use crate::actors::agent::jitter;
use crate::actors::{compaction_hooks, compaction_requests, summary_call};
use crate::agent::Agent;
use crate::core::deps::Deps;
use crate::core::flight::{Flight, Summarised};
use crate::core::message::{
    CompactionOrder, CompactionWork, CompactorMessage, Effort, RequestHead, SessionMail, SessionMessage,
    Summariser, WorkId,
};
use crate::core::metrics::Happened;
use crate::core::shared::SessionShared;
use crate::core::trace;
use crate::events::event::EventKind;
use crate::values::compaction::CompactionProposal;

/// The maximum number of concurrent requests.
const CHILDREN_MAX: usize = 4;

/// The compactor actor.
pub(crate) struct Compactor;

/// The arguments of its start.
pub(crate) struct CompactorArguments {
    pub(crate) deps: Arc<Deps>,
    pub(crate) shared: Arc<SessionShared>,
    pub(crate) session: ActorRef<SessionMail>,
}

/// The compactor's state.
pub(crate) struct CompactorState {
    deps: Arc<Deps>,
    shared: Arc<SessionShared>,
    session: ActorRef<SessionMail>,
    running: Option<Box<Running>>,
}

struct Running {
    /// Messages about other work are late.
    id: WorkId,
    /// The name under which it began: it differs for a compaction that was prepared.
    begun_as: WorkId,
    began: tokio::time::Instant,
    /// How long it took until it was ready, in milliseconds, for a preparation that is.
    ready_after_ms: Option<u64>,
    /// How long it was prepared before the compaction started, in milliseconds.
    prepared_ms: Option<u64>,
    /// The compaction's span in the trace.
    span: Span,
    work: CompactionWork,
    /// The models that write the summaries, in order: each is used after the previous one failed.
    summarisers: Vec<Summariser>,
    agent: Arc<Agent>,
    head: RequestHead,
    /// Requests that wait for a child.
    queue: VecDeque<SummaryRequest>,
    /// Requests that wait for their time.
    delayed: HashMap<u32, (SummaryRequest, Span)>,
    /// The running children.
    children: HashMap<ActorId, Child>,
    ratio: Ratio,
    /// Whether another silence of the provider may mean that the request is too large.
    doubts_window: bool,
    /// The cost of the calls so far, in micro-dollars; `None` if a price is unknown.
    cost_microdollars: Option<u64>,
    /// The answered calls whose cost `cost_microdollars` sums up. Each bills itself if it is dropped before
    /// [`Self::take_effort`].
    billed: Vec<Flight>,
    /// When the first failure happened since the last answer, or since the last change of the summariser.
    failing_since: Option<tokio::time::Instant>,
}

/// A running child and its request.
struct Child {
    actor: ActorRef<SummaryRequest>,
    id: u32,
    tokens: u64,
    summariser: Summariser,
}

impl Actor for Compactor {
    type Msg = CompactorMessage;
    type State = CompactorState;
    type Arguments = CompactorArguments;

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        let CompactorArguments { deps, shared, session } = arguments;
        deps.probe(&shared.id, "compactor/starts");
        Ok(CompactorState { deps, shared, session, running: None })
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        message: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        state.deps.probe(&state.shared.id, message.point());
        match message {
            CompactorMessage::Begin(order) => state.begin(&myself, *order).await,
            CompactorMessage::HooksDecided { work, decision } => {
                state.input(&myself, work, Input::Hooks(decision)).await;
            }
            CompactorMessage::Answered { work, id, answer } => {
                state.answered(&myself, work, id, answer).await;
            }
            CompactorMessage::AskNow { work, id } => {
                if let Some(running) = state.current(work) {
                    running.queue.extend(running.delayed.remove(&id).map(|(question, _)| question));
                    state.start_children(&myself).await;
                }
            }
            CompactorMessage::Installed { work, installed } => {
                state.input(&myself, work, Input::Installed(installed)).await;
            }
            CompactorMessage::Cancel { work, reason } => {
                state.input(&myself, work, Input::Cancelled { reason }).await;
            }
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        myself: ActorRef<Self::Msg>,
        event: SupervisionEvent,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            // The request of a child that panicked is repeated; its siblings continue.
            SupervisionEvent::ActorFailed(child, reason) => {
                let Some(running) = &mut state.running else { return Ok(()) };
                let work = running.id;
                if let Some(Child { id, .. }) = running.children.remove(&child.get_id()) {
                    let failure =
                        Failure::new(FailureClass::Other, format!("a summary's call crashed: {reason}"));
                    let input = Input::Answered { id, answer: Err(failure), jitter: 0 };
                    state.input(&myself, work, input).await;
                }
            }
            SupervisionEvent::ActorTerminated(..)
            | SupervisionEvent::ActorStarted(_)
            | SupervisionEvent::ProcessGroupChanged(_) => {}
        }
        Ok(())
    }
}

impl CompactorState {
    async fn begin(&mut self, myself: &ActorRef<CompactorMessage>, order: CompactionOrder) {
        let CompactionOrder {
            id,
            adopts,
            span,
            work,
            effects,
            ratio,
            doubts_window,
            summarisers,
            agent,
            head,
        } = order;
        let adopted = match (&mut self.running, &work) {
            (Some(running), CompactionWork::Replace(due)) if adopts && running.has_writers(&summarisers) => {
                running.adopt(id, &span, due.params())
            }
            (_, CompactionWork::Replace(_) | CompactionWork::Branch(_)) => None,
        };
        if let Some(effects) = adopted {
            return self.perform(myself, effects).await;
        }
        // The preparation is useless for this compaction.
        if let Some(unused) = self.running.as_ref().map(|running| running.id) {
            let reason = "the conversation or its model has changed".to_owned();
            Box::pin(self.input(myself, unused, Input::Cancelled { reason })).await;
        }
        self.running = Some(Box::new(Running {
            id,
            begun_as: id,
            began: tokio::time::Instant::now(),
            ready_after_ms: None,
            prepared_ms: None,
            span,
            work,
            summarisers,
            agent,
            head,
            queue: VecDeque::new(),
            delayed: HashMap::new(),
            children: HashMap::new(),
            ratio,
            doubts_window,
            cost_microdollars: Some(0),
            billed: Vec::new(),
            failing_since: None,
        }));
        self.perform(myself, effects).await;
    }

    async fn answered(
        &mut self,
        myself: &ActorRef<CompactorMessage>,
        work: WorkId,
        id: u32,
        answer: Result<Summarised, Failure>,
    ) {
        let session = self.session.clone();
        let deps = Arc::clone(&self.deps);
        let mut late = None;
        if let Some(running) = self.current(work) {
            // The resolved agent: it has the prices that live settings add.
            let cost = deps.call_cost(Some(&running.agent));
            let child = running.children.extract_if(|_, child| child.id == id).next().map(|(_, child)| child);
            match (&answer, child) {
                (Ok(summarised), _) => running.bill(&summarised.answer, &cost),
                (Err(failure), Some(child)) => {
                    late =
                        running.fails_for(child.summariser.lane.patience()).then(|| failure.message.clone());
                    refused(&session, &child, failure);
                }
                (Err(_), None) => {}
            }
        }
        let (WorkId::Compaction(EntryId(number)) | WorkId::Preparation(number)) = work;
        let jitter = jitter(&self.shared.id, number, id.into());
        let answer = answer.map(|Summarised { answer, flight }| {
            // If the work is over, dropping the call bills it.
            if let Some(running) = self.current(work) {
                running.billed.extend(flight.map(|flight| *flight));
            }
            answer
        });
        self.input(myself, work, Input::Answered { id, answer, jitter }).await;
        let is_failing = self.current(work).is_some_and(|running| running.failing_since.is_some());
        if let Some(failure) = late.filter(|_| is_failing) {
            let reason = format!("the model has not answered for too long: {failure}");
            self.input(myself, work, Input::Late { reason }).await;
        }
        self.start_children(myself).await;
    }

    /// Returns the work in progress if the message is about it. Late messages are dropped here.
    fn current(&mut self, work: WorkId) -> Option<&mut Running> {
        self.running.as_deref_mut().filter(|running| [running.id, running.begun_as].contains(&work))
    }

    async fn input(&mut self, myself: &ActorRef<CompactorMessage>, work: WorkId, input: Input) {
        let Some(running) = self.current(work) else { return };
        let effects = match &mut running.work {
            CompactionWork::Replace(compacting) => compacting.on(input),
            CompactionWork::Branch(branch) => branch.on(input),
        };
        self.perform(myself, effects).await;
    }

    async fn perform(&mut self, myself: &ActorRef<CompactorMessage>, effects: Vec<Effect>) {
        for effect in effects {
            let Some(running) = &mut self.running else { return };
            if let Effect::Ask(SummaryRequest { after_ms, attempt, failure: Some(failure), .. }) = &effect
                && let WorkId::Compaction(id) = running.id
            {
                let compaction = Some(id);
                let (attempt, delay_ms, failure) = (*attempt, *after_ms, failure.clone());
                self.deps.metrics.count(Happened::Retried { class: failure.class });
                self.shared
                    .publish(&self.deps.bus, EventKind::Retry { compaction, attempt, delay_ms, failure });
            }
            match effect {
                Effect::Consult(plan) => {
                    let id = running.id;
                    trace::planned(&running.span, &self.shared.id, &plan);
                    let CompactionWork::Replace(compacting) = &running.work else { continue };
                    let params = compacting.params();
                    let cuts = Plan::places(&params.path).into();
                    let proposal = CompactionProposal {
                        cuts,
                        session: Arc::clone(&self.shared.id),
                        trigger: params.trigger,
                        options: params.options(),
                        settings: Arc::new(params.settings.clone()),
                        plan: Arc::new(*plan),
                        compaction: compaction_requests::requests_to(&self.session),
                    };
                    let agent = Arc::clone(&running.agent);
                    self.consult(myself, id, agent, proposal);
                }
                Effect::Ask(question) if question.after_ms > 0 => {
                    let (id, work, compactor) = (question.id, running.id, myself.clone());
                    let delay = Duration::from_millis(question.after_ms);
                    let wait = trace::wait(&running.span, &self.shared.id, "retry");
                    running.delayed.insert(id, (question, wait));
                    compactor.send_after(delay, move || CompactorMessage::AskNow { work, id });
                }
                Effect::Ask(question) => running.queue.push_back(question),
                Effect::FallBack { from, to, reason } => {
                    running.failing_since = None;
                    let name = |index: usize| running.summarisers[index].model.as_str();
                    let message = format!(
                        "{}: {} could not write the summary: {reason}; {} is asked instead",
                        running.title(),
                        name(from),
                        name(to)
                    );
                    tracing::warn!(session = %self.shared.id, "{message}");
                    self.shared.publish(&self.deps.bus, EventKind::Warning { message });
                }
                Effect::NativeFailed { reason } => {
                    running.failing_since = None;
                    let model = running.summarisers.last().map_or("", |own| own.model.as_str());
                    let message = format!(
                        "{}: the provider of {model} could not compact the conversation: {reason}; a summary is \
                         written instead",
                        running.title()
                    );
                    tracing::warn!(session = %self.shared.id, "{message}");
                    self.shared.publish(&self.deps.bus, EventKind::Warning { message });
                }
                Effect::Withdraw(ids) => running.withdraw(&ids),
                Effect::Prepared => running.ready_after_ms = Some(running.elapsed_ms()),
                Effect::Install(segment) => {
                    let WorkId::Compaction(compaction) = running.id else { continue };
                    let effort = running.take_effort();
                    let message = SessionMessage::ReplacePathSegment { compaction, segment, effort };
                    let _ = self.session.cast(message.into());
                }
                Effect::Summarised(record) => {
                    let cost_microdollars = running.take_effort().cost_microdollars;
                    let WorkId::Compaction(compaction) = running.id else { continue };
                    self.running = None;
                    let message = SessionMessage::BranchSummarised { compaction, record, cost_microdollars };
                    let _ = self.session.cast(message.into());
                    return;
                }
                Effect::InstallPrune(segment) => {
                    let WorkId::Compaction(compaction) = running.id else { continue };
                    let effort = running.take_effort();
                    let message = SessionMessage::PruneResults { compaction, segment, effort };
                    let _ = self.session.cast(message.into());
                }
                Effect::End(end) => {
                    let (id, effort) = (running.id, running.take_effort());
                    for child in running.children.values() {
                        // Nobody waits for this compaction any more. Dropping it drops its model calls.
                        child.actor.kill();
                    }
                    self.running = None;
                    let is_installed = end.outcome.is_installed();
                    let (end, cost_microdollars) = (Box::new(end), effort.cost_microdollars);
                    let over = match id {
                        WorkId::Compaction(_) if is_installed => return,
                        WorkId::Compaction(compaction) => {
                            SessionMessage::CompactionOver { compaction, end, effort }
                        }
                        WorkId::Preparation(number) => {
                            SessionMessage::PreparationOver { number, end, cost_microdollars }
                        }
                    };
                    let _ = self.session.cast(over.into());
                    return;
                }
            }
        }
        self.start_children(myself).await;
    }

    fn consult(
        &self,
        myself: &ActorRef<CompactorMessage>,
        work: WorkId,
        agent: Arc<Agent>,
        proposal: CompactionProposal,
    ) {
        let compactor = myself.clone();
        if self.deps.hooks.before_compact.is_empty() && agent.hooks.before_compact.is_empty() {
            let decision = HookDecision::Continue;
            let _ = compactor.cast(CompactorMessage::HooksDecided { work, decision });
            return;
        }
        let (deps, shared) = (Arc::clone(&self.deps), Arc::clone(&self.shared));
        tokio::spawn(async move {
            let (mut decision, warnings) =
                compaction_hooks::before_compact(&deps.hooks, &agent.hooks, &proposal).await;
            if let HookDecision::Cancel { reason } = &mut decision {
                deps.redactor.all_in(reason);
            }
            for message in warnings {
                shared.publish(&deps.bus, EventKind::Warning { message });
            }
            let _ = compactor.cast(CompactorMessage::HooksDecided { work, decision });
        });
    }

    async fn start_children(&mut self, myself: &ActorRef<CompactorMessage>) {
        let Some(running) = &mut self.running else { return };
        let work = running.id;
        while running.children.len() < CHILDREN_MAX {
            let Some(question) = running.queue.pop_front() else { return };
            let summariser = running.summarisers[question.summariser].clone();
            let (id, tokens) = (question.id, question.tokens(running.ratio));
            let arguments = SummaryArguments {
                compactor: myself.clone(),
                session: self.session.clone(),
                deps: Arc::clone(&self.deps),
                span: running.span.clone(),
                summariser: summariser.clone(),
                work,
                shared: Arc::clone(&self.shared),
                head: running.head.clone(),
                fills_window: is_full(tokens, running.summariser_window()),
                is_doubtful: question.attempt > 0 && running.doubts_window,
            };
            match Actor::spawn_linked(None, SummaryActor, arguments, myself.get_cell()).await {
                Ok((actor, _)) => {
                    let _ = actor.cast(question);
                    running.children.insert(actor.get_id(), Child { actor, id, tokens, summariser });
                }
                Err(error) => {
                    let failure =
                        Failure::new(FailureClass::Other, format!("a summary could not be started: {error}"));
                    let _ = myself.cast(CompactorMessage::Answered { work, id, answer: Err(failure) });
                }
            }
        }
    }
}

impl Running {
    /// Takes a preparation over for a compaction that has started. Returns the next effects; `None` if there is no
    /// preparation, or it is of no use for this compaction.
    fn adopt(&mut self, id: WorkId, span: &Span, due: &CompactionParams) -> Option<Vec<Effect>> {
        let (WorkId::Preparation(_), CompactionWork::Replace(prepared)) = (self.id, &mut self.work) else {
            return None;
        };
        let effects = prepared.adopt(due)?;
        (self.id, self.span) = (id, span.clone());
        self.prepared_ms = Some(self.ready_after_ms.unwrap_or_else(|| self.elapsed_ms()));
        Some(effects)
    }

    /// Whether these models write its summaries.
    fn has_writers(&self, summarisers: &[Summariser]) -> bool {
        let is_same = |(own, other): (&Summariser, &Summariser)| {
            Arc::ptr_eq(&own.lane, &other.lane) && own.model == other.model
        };
        self.summarisers.len() == summarisers.len() && self.summarisers.iter().zip(summarisers).all(is_same)
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// Returns the cost and the time of the work so far. From now on the receiver bills the cost.
    fn take_effort(&mut self) -> Effort {
        self.billed.drain(..).for_each(Flight::settle);
        Effort { cost_microdollars: self.cost_microdollars, prepared_ms: self.prepared_ms }
    }

    /// Returns its name for people.
    fn title(&self) -> String {
        match self.id {
            WorkId::Compaction(id) => format!("compaction {id}"),
            WorkId::Preparation(_) => "preparing a compaction".to_owned(),
        }
    }

    /// Returns how many tokens a request to the summariser may have.
    fn summariser_window(&self) -> u64 {
        match &self.work {
            CompactionWork::Replace(compacting) => compacting.summariser_window(),
            CompactionWork::Branch(branch) => branch.summariser_window(),
        }
    }

    /// Forgets these requests. Killing a child drops its call.
    fn withdraw(&mut self, ids: &[u32]) {
        self.queue.retain(|question| !ids.contains(&question.id));
        self.delayed.retain(|id, _| !ids.contains(id));
        for (_, child) in self.children.extract_if(|_, child| ids.contains(&child.id)) {
            child.actor.kill();
        }
    }

    /// Notes that a call has failed. Returns whether all calls have failed for this long.
    fn fails_for(&mut self, patience: Duration) -> bool {
        self.failing_since.get_or_insert_with(tokio::time::Instant::now).elapsed() >= patience
    }

    fn bill(&mut self, answer: &AssistantMessage, cost: &CallCost) {
        self.failing_since = None;
        let Some(usage) = &answer.usage else { return };
        let cost = cost.of(&answer.provider, &answer.model, usage);
        self.cost_microdollars = match (self.cost_microdollars, cost) {
            (Some(sum), Some(cost)) => Some(sum.saturating_add(cost)),
            (Some(_) | None, None) | (None, Some(_)) => None,
        };
    }
}

/// Applies a refusal to all users of the summariser: how long to wait, and the named limit.
fn refused(session: &ActorRef<SessionMail>, child: &Child, failure: &Failure) {
    let Summariser { lane, model, .. } = &child.summariser;
    if let Some(wait_ms) = failure.retry_after_ms.filter(|_| failure.class.is_retryable()) {
        lane.pause_ms(wait_ms.min(BACKOFF_MS_MAX));
    }
    if let Some(limit) = failure.limit.filter(|_| failure.class == FailureClass::ContextOverflow) {
        let (lane, model) = (Arc::clone(lane), model.clone());
        let learned = SessionMessage::LimitLearned { lane, model, limit, sent: child.tokens };
        let _ = session.cast(learned.into());
    }
}

/// One request to a summariser: an actor that is one task. It may wait, because nobody sends it messages;
/// killing it drops the call.
struct SummaryActor;

struct SummaryArguments {
    compactor: ActorRef<CompactorMessage>,
    session: ActorRef<SessionMail>,
    deps: Arc<Deps>,
    /// The compaction's span in the trace.
    span: Span,
    summariser: Summariser,
    work: WorkId,
    shared: Arc<SessionShared>,
    head: RequestHead,
    /// Whether the request fills the summariser's window, so an empty answer means that it is too large.
    fills_window: bool,
    /// Whether this is a repetition and the limit is unknown, so an empty stream means the same.
    is_doubtful: bool,
}

impl Actor for SummaryActor {
    type Msg = SummaryRequest;
    type State = SummaryArguments;
    type Arguments = SummaryArguments;

    async fn pre_start(
        &self,
        _myself: ActorRef<Self::Msg>,
        arguments: Self::Arguments,
    ) -> Result<Self::State, ActorProcessingErr> {
        Ok(arguments)
    }

    async fn handle(
        &self,
        myself: ActorRef<Self::Msg>,
        question: Self::Msg,
        state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        let id = question.id;
        let request = match question.native {
            Some(native) => {
                let output = question.output_tokens_max;
                summary_call::compaction_request(
                    &state.summariser, &state.head, native.messages, question.text, output,
                )
            }
            None => {
                summary_call::summary_request(&state.summariser, question.text, question.output_tokens_max)
            }
        };
        let answer = summary_call::ask(
            &state.span,
            matches!(state.work, WorkId::Compaction(_)),
            &state.summariser,
            &state.session,
            &state.deps,
            &state.shared,
            request,
        );
        let answer = Box::pin(answer).await.map_err(|error| {
            // As in a run: an empty answer to a request that fills the window, or to a repetition with an
            // unknown limit.
            let is_silence = error.empty_stream;
            let may_be_too_large = state.fills_window || (state.is_doubtful && is_silence);
            let is_overflow = may_be_too_large && error.is_overflow_candidate();
            let class = if is_overflow { FailureClass::ContextOverflow } else { error.failure.class };
            Failure { class, ..error.failure }
        });
        let _ = state.compactor.cast(CompactorMessage::Answered { work: state.work, id, answer });
        myself.stop(None);
        Ok(())
    }
}
