//! The compactor: performs the compaction in progress. It drives `Compacting`, and supervises one child for
//! each request to a summariser; the two halves of a split turn are summarised concurrently.
//!
//! Invariants: at most [`CHILDREN_MAX`] children at a time; a child that fails or panics harms neither its
//! siblings nor the session: only its request is repeated. The compactor's state can be rebuilt from the log,
//! so a crash leaves the history unchanged.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::compacting::{Effect, HookDecision, Input, SummaryRequest};
use greenroom_kernel::retry::BACKOFF_MS_MAX;
use greenroom_kernel::run::is_full;
use greenroom_kernel::usage::Ratio;
use greenroom_kernel::{AssistantMessage, EntryId, Failure, FailureClass};
use ractor::{Actor, ActorId, ActorProcessingErr, ActorRef, SupervisionEvent};
use tracing::Span;

use crate::actors::agent::jitter;
use crate::actors::{compaction_requests, summary_call};
use crate::core::deps::Deps;
use crate::core::message::{
    CompactionOrder, CompactionWork, CompactorMessage, RequestHead, SessionMail, SessionMessage, Summariser,
};
use crate::core::shared::SessionShared;
use crate::core::trace;
use crate::events::event::EventKind;
use crate::values::compaction::CompactionProposal;
use crate::values::model_info::call_cost;

/// The most concurrent requests.
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
    /// The entry of its start: messages about another compaction are late.
    id: EntryId,
    /// The compaction's span in the trace.
    span: Span,
    work: CompactionWork,
    /// The models that write the summaries, in order: each is used after the previous one failed.
    summarisers: Vec<Summariser>,
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
            CompactorMessage::HooksDecided { compaction, decision } => {
                state.input(&myself, compaction, Input::Hooks(decision)).await;
            }
            CompactorMessage::Answered { compaction, id, answer } => {
                state.answered(&myself, compaction, id, answer).await;
            }
            CompactorMessage::AskNow { compaction, id } => {
                if let Some(running) = state.current(compaction) {
                    running.queue.extend(running.delayed.remove(&id).map(|(question, _)| question));
                    state.start_children(&myself).await;
                }
            }
            CompactorMessage::Installed { compaction, installed } => {
                state.input(&myself, compaction, Input::Installed(installed)).await;
            }
            CompactorMessage::Cancel { compaction, reason } => {
                state.input(&myself, compaction, Input::Cancelled { reason }).await;
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
                let compaction = running.id;
                if let Some(Child { id, .. }) = running.children.remove(&child.get_id()) {
                    let failure =
                        Failure::new(FailureClass::Other, format!("a summary's call died: {reason}"));
                    let input = Input::Answered { id, answer: Err(failure), jitter: 0 };
                    state.input(&myself, compaction, input).await;
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
        let CompactionOrder { id, span, work, effects, ratio, doubts_window, summarisers, head } = order;
        self.running = Some(Box::new(Running {
            id,
            span,
            work,
            summarisers,
            head,
            queue: VecDeque::new(),
            delayed: HashMap::new(),
            children: HashMap::new(),
            ratio,
            doubts_window,
            cost_microdollars: Some(0),
        }));
        self.perform(myself, effects).await;
    }

    async fn answered(
        &mut self,
        myself: &ActorRef<CompactorMessage>,
        compaction: EntryId,
        id: u32,
        answer: Result<Box<AssistantMessage>, Failure>,
    ) {
        let session = self.session.clone();
        if let Some(running) = self.current(compaction) {
            let child = running.children.extract_if(|_, child| child.id == id).next().map(|(_, child)| child);
            match (&answer, child) {
                (Ok(answer), _) => running.bill(answer),
                (Err(failure), Some(child)) => refused(&session, &child, failure),
                (Err(_), None) => {}
            }
        }
        let jitter = jitter(&self.shared.id, compaction.0, id.into());
        self.input(myself, compaction, Input::Answered { id, answer, jitter }).await;
        self.start_children(myself).await;
    }

    /// Returns the compaction in progress if the message is about it. Late messages are dropped here.
    fn current(&mut self, compaction: EntryId) -> Option<&mut Running> {
        self.running.as_deref_mut().filter(|running| running.id == compaction)
    }

    async fn input(&mut self, myself: &ActorRef<CompactorMessage>, compaction: EntryId, input: Input) {
        let Some(running) = self.current(compaction) else { return };
        let effects = match &mut running.work {
            CompactionWork::Replace(compacting) => compacting.on(input),
            CompactionWork::Branch(branch) => branch.on(input),
        };
        self.perform(myself, effects).await;
    }

    async fn perform(&mut self, myself: &ActorRef<CompactorMessage>, effects: Vec<Effect>) {
        for effect in effects {
            let Some(running) = &mut self.running else { return };
            if let Effect::Ask(SummaryRequest { after_ms, attempt, failure: Some(failure), .. }) = &effect {
                let compaction = Some(running.id);
                let (attempt, delay_ms, failure) = (*attempt, *after_ms, failure.clone());
                self.shared
                    .publish(&self.deps.bus, EventKind::Retry { compaction, attempt, delay_ms, failure });
            }
            match effect {
                Effect::Consult(plan) => {
                    let compaction = running.id;
                    trace::planned(&running.span, &self.shared.id, &plan);
                    let CompactionWork::Replace(compacting) = &running.work else { continue };
                    let params = compacting.params();
                    let proposal = CompactionProposal {
                        session: Arc::clone(&self.shared.id),
                        trigger: params.trigger,
                        options: params.options(),
                        settings: Arc::new(params.settings.clone()),
                        plan: Arc::new(*plan),
                        compaction: compaction_requests::requests_to(&self.session),
                    };
                    self.consult(myself, compaction, proposal);
                }
                Effect::Ask(question) if question.after_ms > 0 => {
                    let (id, compaction, compactor) = (question.id, running.id, myself.clone());
                    let delay = Duration::from_millis(question.after_ms);
                    let wait = trace::wait(&running.span, &self.shared.id, "retry");
                    running.delayed.insert(id, (question, wait));
                    compactor.send_after(delay, move || CompactorMessage::AskNow { compaction, id });
                }
                Effect::Ask(question) => running.queue.push_back(question),
                Effect::FallBack { from, to, reason } => {
                    let name = |index: usize| running.summarisers[index].model.as_str();
                    let message = format!(
                        "compaction {}: {} could not write the summary: {reason}; {} is asked instead",
                        running.id,
                        name(from),
                        name(to)
                    );
                    tracing::warn!(session = %self.shared.id, "{message}");
                    self.shared.publish(&self.deps.bus, EventKind::Warning { message });
                }
                Effect::NativeFailed { reason } => {
                    let model = running.summarisers.last().map_or("", |own| own.model.as_str());
                    let message = format!(
                        "compaction {}: the provider of {model} could not compact the conversation: {reason}; a summary \
                         is written instead",
                        running.id
                    );
                    tracing::warn!(session = %self.shared.id, "{message}");
                    self.shared.publish(&self.deps.bus, EventKind::Warning { message });
                }
                Effect::Withdraw(ids) => running.withdraw(&ids),
                Effect::Install(segment) => {
                    let (compaction, cost_microdollars) = (running.id, running.cost_microdollars);
                    let message =
                        SessionMessage::ReplacePathSegment { compaction, segment, cost_microdollars };
                    let _ = self.session.cast(message.into());
                }
                Effect::Summarised(record) => {
                    let (compaction, cost_microdollars) = (running.id, running.cost_microdollars);
                    self.running = None;
                    let message = SessionMessage::BranchSummarised { compaction, record, cost_microdollars };
                    let _ = self.session.cast(message.into());
                    return;
                }
                Effect::InstallPrune(segment) => {
                    let (compaction, cost_microdollars) = (running.id, running.cost_microdollars);
                    let message = SessionMessage::PruneResults { compaction, segment, cost_microdollars };
                    let _ = self.session.cast(message.into());
                }
                Effect::End(end) => {
                    let (compaction, cost_microdollars) = (running.id, running.cost_microdollars);
                    for child in running.children.values() {
                        // Nobody waits for this compaction any more. Dropping it drops its model calls.
                        child.actor.kill();
                    }
                    self.running = None;
                    if !end.outcome.is_installed() {
                        let end = Box::new(end);
                        let over = SessionMessage::CompactionOver { compaction, end, cost_microdollars };
                        let _ = self.session.cast(over.into());
                    }
                    return;
                }
            }
        }
        self.start_children(myself).await;
    }

    fn consult(
        &self,
        myself: &ActorRef<CompactorMessage>,
        compaction: EntryId,
        proposal: CompactionProposal,
    ) {
        let compactor = myself.clone();
        if self.deps.hooks.is_empty() {
            let decision = HookDecision::Continue;
            let _ = compactor.cast(CompactorMessage::HooksDecided { compaction, decision });
            return;
        }
        let (deps, shared) = (Arc::clone(&self.deps), Arc::clone(&self.shared));
        tokio::spawn(async move {
            let (decision, warnings) = deps.hooks.before(&proposal).await;
            for message in warnings {
                shared.publish(&deps.bus, EventKind::Warning { message });
            }
            let _ = compactor.cast(CompactorMessage::HooksDecided { compaction, decision });
        });
    }

    async fn start_children(&mut self, myself: &ActorRef<CompactorMessage>) {
        let Some(running) = &mut self.running else { return };
        let compaction = running.id;
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
                compaction,
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
                    let _ = myself.cast(CompactorMessage::Answered { compaction, id, answer: Err(failure) });
                }
            }
        }
    }
}

impl Running {
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

    fn bill(&mut self, answer: &AssistantMessage) {
        let Some(usage) = &answer.usage else { return };
        let cost = call_cost(&answer.provider, &answer.model, usage);
        self.cost_microdollars = match (self.cost_microdollars, cost) {
            (Some(sum), Some(cost)) => Some(sum + cost),
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
    compaction: EntryId,
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
        let Summariser { lane, model, .. } = &state.summariser;
        let request = match question.native {
            Some(native) => {
                let output = question.output_tokens_max;
                summary_call::compaction_request(
                    &state.summariser,
                    &state.head,
                    native.messages,
                    question.text,
                    output,
                )
            }
            None => {
                summary_call::summary_request(&state.summariser, question.text, question.output_tokens_max)
            }
        };
        let answer = summary_call::ask(
            &state.span,
            &state.summariser,
            &state.session,
            &state.deps,
            &state.shared,
            request,
        );
        let mut answer = Box::pin(answer).await;
        lane.heard(model, answer.as_mut().err(), &state.deps.learned);
        let answer = answer.map_err(|error| {
            // As in a run: an empty answer to a request that fills the window, or to a repetition with an
            // unknown limit.
            let is_silence = error.empty_stream;
            let may_be_too_large = state.fills_window || (state.is_doubtful && is_silence);
            let is_overflow = may_be_too_large && error.is_overflow_candidate();
            let class = if is_overflow { FailureClass::ContextOverflow } else { error.failure.class };
            Failure { class, ..error.failure }
        });
        let _ = state.compactor.cast(CompactorMessage::Answered { compaction: state.compaction, id, answer });
        myself.stop(None);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        _myself: ActorRef<Self::Msg>,
        _event: SupervisionEvent,
        _state: &mut Self::State,
    ) -> Result<(), ActorProcessingErr> {
        // The actor has no children.
        Ok(())
    }
}
