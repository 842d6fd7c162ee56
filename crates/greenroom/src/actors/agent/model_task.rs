//! A model call, as a task: waits for a slot in the lane, streams, publishes deltas, and ends with one
//! message.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt;
use greenroom_kernel::text::panic_text;
use greenroom_kernel::{AssistantMessage, Failure, FailureClass, Part, StopReason};
use greenroom_provider::{ModelInfo, ProviderError, Purpose, ReplyEvent, Request};
use parking_lot::Mutex;
use ractor::ActorRef;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::prefix::Prefix;
use crate::actors::call_path::{Admitted, Answering, Sender, Waits, limit_output, no_body};
use crate::actors::model_hooks::{Decision, Finished, ModelHooks};
use crate::actors::summary_call;
use crate::agent::Agent;
use crate::core::deps::Deps;
use crate::core::flight::{Flight, STREAMED_BYTES, warn_of_no_price};
use crate::core::mail::Mail;
use crate::core::message::{AgentMessage, ModelOutcome, RunAttempt, SessionMail};
use crate::core::metrics::{CallResult, CallTimes, Happened};
use crate::core::shared::SessionShared;
use crate::core::trace;
use crate::events::event::{Delta, EventKind};
use crate::events::reasons::QueueReason;
use crate::events::redact::Pieces;
use crate::events::run_link::RunLink;
use crate::lane::{Lane, ModelCall, Queued, Urgency};
use crate::limits::accounts::ReservedTokens;
use crate::limits::spending::tree::Wanted;
use crate::limits::waits::Chain;

pub(super) struct ModelTask {
    pub(super) agent: ActorRef<Mail<AgentMessage>>,
    /// Receives the cost of a call whose answer does not report it.
    pub(super) session: ActorRef<SessionMail>,
    pub(super) deps: Arc<Deps>,
    pub(super) shared: Arc<SessionShared>,
    pub(super) lane: Arc<Lane>,
    pub(super) attempt: RunAttempt,
    pub(super) call: u64,
    pub(super) cancel: CancellationToken,
    /// The link to the caller that streams the run: the model's answer is read no faster than the caller
    /// reads.
    pub(super) link: Arc<RunLink>,
    /// The step's span in the trace.
    pub(super) span: Span,
    pub(super) definition: Arc<Agent>,
    /// The sessions that wait for the hooks.
    pub(super) waiting: Chain,
    /// The newest request of the session, which this one should extend.
    pub(super) prefix: Arc<Mutex<Prefix>>,
    /// The maximum input of the call by the server's count, in tokens.
    pub(super) input_tokens_max: u64,
    /// What the window leaves for output, in tokens, as far as known.
    pub(super) output_room: Option<u64>,
    /// The expected tokens of the call, as far as known.
    pub(super) tokens: u64,
}

impl ModelTask {
    /// Makes the call, and reports its end to the agent.
    pub(super) fn run(self, request: Box<Request>) -> impl Future<Output = ()> {
        // An `async fn` would store its argument twice.
        let this = self;
        async move {
            let outcome = this.with_hooks(request).await;
            let over = AgentMessage::ModelOver { attempt: this.attempt, call: this.call, outcome };
            let agent = this.agent.clone();
            // The step's span must not outlive the runtime, which may be shut down as soon as the reply is there.
            drop(this);
            let _ = agent.cast(over.into());
        }
    }

    /// Makes the call with its hooks, and returns the outcome.
    async fn with_hooks(&self, request: Box<Request>) -> ModelOutcome {
        let hooks = ModelHooks {
            agent: &self.definition,
            deps: &self.deps,
            shared: &self.shared,
            run: Some(self.attempt.run),
            waiting: &self.waiting,
        };
        let (provider, model) = (self.lane.provider.name(), request.model.clone());
        let decision = tokio::select! {
            biased;
            () = self.cancel.cancelled() => None,
            decision = hooks.before(provider, request) => Some(decision),
        };
        let began = Instant::now();
        let (outcome, was_asked) = match decision {
            Some(Decision::Ask(request)) => {
                self.compare(&request);
                (self.call(&model, request).await, true)
            }
            Some(Decision::Answered(text)) => (self.answered(&model, text), false),
            Some(Decision::Refused(reason)) => return ModelOutcome::Refused(reason),
            None => return self.cancelled(model, String::new()),
        };
        let result = match &outcome {
            ModelOutcome::Answered(answer) => Ok(&**answer),
            ModelOutcome::Failed { error, .. } => Err(&error.failure),
            ModelOutcome::Refused(_) | ModelOutcome::Cancelled(_) => return outcome,
        };
        let duration = began.elapsed();
        let finished =
            Finished { provider, model: &model, purpose: Purpose::Step, result, was_asked, duration };
        tokio::select! {
            biased;
            () = hooks.after(finished) => {}
            () = self.cancel.cancelled() => {}
        }
        outcome
    }

    /// Tells if this request does not extend the one before it.
    fn compare(&self, request: &Request) {
        let has_hook = !self.definition.hooks.before_model.is_empty();
        let changed = self.prefix.lock().next(request, &self.shared, has_hook);
        if let Some((reason, messages_kept)) = changed {
            self.publish(EventKind::PrefixChanged { reason, messages_kept });
        }
    }

    /// Publishes a hook's answer like an answer of the model.
    fn answered(&self, model: &str, mut text: String) -> ModelOutcome {
        self.deps.redactor.values_in(&mut text);
        self.publish(EventKind::MessageStart);
        self.publish(EventKind::MessageDelta { delta: Delta::Text(text.clone()) });
        ModelOutcome::Answered(Box::new(summary_call::answered(self.lane.provider.name(), model, text)))
    }

    /// Returns the outcome of a call that was cancelled after this text.
    fn cancelled(&self, model: String, text: String) -> ModelOutcome {
        ModelOutcome::Cancelled(Box::new(AssistantMessage::new(
            Some(text).filter(|text| !text.is_empty()).map(Part::Text).into_iter().collect(),
            self.lane.provider.name().to_owned(),
            model,
            StopReason::Aborted,
        )))
    }

    /// Calls the provider.
    async fn call(&self, model: &str, request: Box<Request>) -> ModelOutcome {
        let mut partial = String::with_capacity(STREAMED_BYTES);
        let span = trace::chat(&self.span, &*self.lane.provider, &request);
        let began = Instant::now();
        let mut times = CallTimes::default();
        let mut flight = None;
        let mut output_tokens_max = None;
        let mut outcome = {
            let work =
                self.work(request, &mut partial, &mut times, &mut flight, &mut output_tokens_max, &span);
            // Boxed, because a large allocation costs more than two small ones.
            let work = AssertUnwindSafe(Box::pin(work)).catch_unwind();
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => None,
                outcome = work => Some(outcome),
            }
        };
        // A call that was cut off reports its cost to the session, which releases the reservation.
        let is_paid_for = flight.take().is_some_and(|flight| flight.is_open());
        if let Some(Ok(result)) = &mut outcome {
            let failure = match result {
                Ok(_) => None,
                Err(NoAnswer::Failed(error)) => Some(&mut **error),
                Err(NoAnswer::OverBudget(reason)) => {
                    self.deps.ledger.release(&self.shared);
                    return ModelOutcome::Refused(std::mem::take(reason));
                }
            };
            self.lane.heard(model, failure, &self.deps.learned);
        }
        let mut outcome = match outcome {
            None => self.cancelled(model.to_owned(), partial),
            Some(Ok(Ok(answer))) => ModelOutcome::Answered(answer),
            Some(Ok(Err(NoAnswer::Failed(error)))) => ModelOutcome::Failed { error, output_tokens_max },
            Some(Ok(Err(NoAnswer::OverBudget(reason)))) => ModelOutcome::Refused(reason),
            Some(Err(panic)) => {
                let text = format!("the provider panicked: {}", panic_text(&*panic));
                let error = no_body(Failure::new(FailureClass::Other, text));
                ModelOutcome::Failed { error, output_tokens_max }
            }
        };
        if let ModelOutcome::Failed { error, .. } = &mut outcome {
            self.deps.redactor.failure(&mut error.failure);
            self.deps.redactor.all_in(&mut error.body);
        }
        if !matches!(outcome, ModelOutcome::Answered(_)) && !is_paid_for {
            self.deps.ledger.release(&self.shared);
        }
        let (session, took) = (&self.shared.id, began.elapsed());
        let result = match &outcome {
            ModelOutcome::Answered(answer) => {
                trace::answered(&span, session, Purpose::Step, answer, took);
                CallResult::Answered
            }
            ModelOutcome::Failed { error, .. } => {
                trace::failed(&span, session, Purpose::Step, &error.failure, took);
                CallResult::Failed(error.failure.class)
            }
            ModelOutcome::Refused(_) | ModelOutcome::Cancelled(_) => {
                trace::cancelled(&span, session, Purpose::Step, took);
                CallResult::Cancelled
            }
        };
        drop(span);
        let (provider, purpose) = (self.lane.provider.name(), Purpose::Step);
        self.deps.metrics.count(Happened::CallEnded { provider, model, purpose, result, times });
        if times.first.is_some() && matches!(outcome, ModelOutcome::Failed { .. }) {
            self.publish(EventKind::MessageDiscarded);
        }
        outcome
    }

    fn publish(&self, kind: EventKind) {
        self.shared.publish_of_run(&self.deps.bus, self.attempt.run, kind);
    }

    /// Warns the user, once in this session for each reason, that the model does not see thinking of earlier answers.
    fn thinking_dropped(&self, reason: String, count: usize) {
        let message = format!(
            "the model does not see the thinking of earlier answers: the provider dropped {count} blocks ({reason}). It does \
             so when what came before a block has changed, for example by a compaction, or when another model wrote it"
        );
        tracing::debug!(session = %self.shared.id, "{message}");
        if self.shared.is_first_drop(reason) {
            self.publish(EventKind::Warning { message });
        }
    }

    /// Waits for the limits of the labels by which the session is counted: until its run may work, and its call has tokens.
    async fn wait_for_tenants(&self, waits: &Waits<'_>) -> ReservedTokens {
        let asked = Instant::now();
        if !self.waiting.is_awaited() && !self.shared.has_label_slots() {
            let queued =
                |position| Queued { position, waited: asked.elapsed(), reason: QueueReason::LabelRuns };
            let mut held = Vec::new();
            for slots in self.deps.accounts.run_slots(waits.tenants) {
                let mut wait = None;
                let tell = |position| waits.tell(wait.get_or_insert_with(Span::none), queued(position));
                // A run that begins to wait for this one, such as a tool that steers the session, may have the slot.
                let slot = tokio::select! {
                    biased;
                    () = self.deps.waits.awaited(&self.shared.id) => None,
                    slot = slots.enter(tell) => Some(slot),
                };
                if let Some(mut wait) = wait {
                    waits.tell(&mut wait, queued(0));
                }
                let Some(slot) = slot else {
                    held.clear();
                    break;
                };
                held.push(slot);
            }
            self.shared.keep_label_slots(self.attempt.run, held);
        }
        waits.tokens(self.tokens, asked).await
    }

    /// Waits until the call may be made. Returns what it holds, and what is known about its model.
    async fn admitted(
        &self,
        request: &mut Request,
        span: &Span,
    ) -> Result<(Admitted, Option<ModelInfo>), NoAnswer> {
        let Self { deps, lane, shared, .. } = self;
        let tenants = deps.tenants(shared);
        let publish = |kind| self.publish(kind);
        let waits =
            Waits { deps, shared, lane, span, tenants: &tenants, is_summary: false, publish: &publish };
        let tokens = self.wait_for_tenants(&waits).await;
        // Sessions that share a limit with this one may be working, too.
        let info = deps.priced(&self.definition, lane.provider.name(), &request.model);
        let wanted = Wanted::of(info.as_ref(), request, self.input_tokens_max);
        if wanted.is_none() {
            warn_of_no_price(deps, shared, lane, &request.model);
        }
        let budget = || trace::wait(span, &shared.id, "budget");
        let allowed = deps.ledger.reserve(shared, wanted, budget).await.map_err(NoAnswer::OverBudget)?;
        limit_output(request, allowed, self.output_room);
        let call = ModelCall { turn: deps.turn(shared), urgency: Urgency::Step, tokens: self.tokens };
        let entered = waits.slot(&call, wanted, &self.cancel).await;
        let (slot, allowed) = entered.map_err(NoAnswer::OverBudget)?;
        limit_output(request, allowed, self.output_room);
        Ok((Admitted { tokens, slot }, info))
    }

    async fn work(
        &self,
        mut request: Box<Request>,
        partial: &mut String,
        times: &mut CallTimes,
        flight: &mut Option<Box<Flight>>,
        output_sent: &mut Option<u64>,
        span: &Span,
    ) -> Result<Box<AssistantMessage>, NoAnswer> {
        let Self { deps, lane, .. } = self;
        let (admitted, info) = Box::pin(self.admitted(&mut request, span)).await?;
        *output_sent = request.settings.output_tokens_max.or_else(|| lane.provider.output_tokens_max());
        let mut pieces = Pieces::default();
        let redactor = &deps.redactor;
        let sender = Sender { deps, lane, session: &self.session, attempt: Some(self.attempt) };
        let answering = Answering::send(sender, admitted, *request, info.as_ref(), flight, times);
        drop(info);
        let mut answering = answering.await?;
        let mut has_started = false;
        loop {
            let event = answering.next().await?;
            if !std::mem::replace(&mut has_started, true) {
                self.publish(EventKind::MessageStart);
            }
            let delta = match event {
                ReplyEvent::Done(mut answer) => {
                    redactor.answer(&mut answer);
                    for delta in pieces.end(redactor) {
                        self.publish(EventKind::MessageDelta { delta });
                    }
                    if let Some(flight) = answering.end(&answer)? {
                        flight.answered(&answer);
                    }
                    return Ok(answer);
                }
                ReplyEvent::Text(text) => Delta::Text(text),
                ReplyEvent::Reasoning(text) => Delta::Reasoning(text),
                ReplyEvent::ToolCall { index, name, arguments } => {
                    Delta::ToolArguments { index, name, text: arguments }
                }
                ReplyEvent::ThinkingDropped { reason, count } => {
                    self.thinking_dropped(reason, count);
                    continue;
                }
                // Other events have no visible text.
                ReplyEvent::Spent(_) | _ => continue,
            };
            for delta in pieces.push(redactor, delta).into_iter().flatten() {
                if let Delta::Text(text) = &delta {
                    partial.push_str(text);
                }
                self.publish(EventKind::MessageDelta { delta });
            }
            self.link.room().await;
        }
    }
}

/// Why a call has no answer.
enum NoAnswer {
    /// The call failed.
    Failed(Box<ProviderError>),
    /// The call was not made, because a cost limit is used up or does not cover it.
    OverBudget(String),
}

impl From<Box<ProviderError>> for NoAnswer {
    fn from(error: Box<ProviderError>) -> Self {
        Self::Failed(error)
    }
}
