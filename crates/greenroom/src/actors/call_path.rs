//! The path of a model call, of a step or a summary: what it waits for before it is sent, and its answer as it
//! streams in.
//!
//! Invariants: tokens of the labels' limits are reserved before a budget, and a budget before a slot, because the
//! call whose reservation this one waits for may itself wait for a slot; spending and ownership are checked once
//! more when the call has its slot; what an answer used is settled with all limits before the answer is returned.

use std::sync::Arc;

use futures_util::StreamExt;
use greenroom_kernel::unreported::billable;
use greenroom_kernel::{AssistantMessage, Failure, FailureClass};
use greenroom_provider::classify::classify_answer;
use greenroom_provider::{ModelInfo, ProviderError, ReplyEvent, ReplyStream, Request};
use ractor::ActorRef;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::actors::answer_checks::AnswerChecks;
use crate::core::deps::Deps;
use crate::core::flight::Flight;
use crate::core::message::{RunAttempt, SessionMail};
use crate::core::metrics::{CallTimes, Happened};
use crate::core::ownership;
use crate::core::shared::SessionShared;
use crate::core::trace;
use crate::events::event::EventKind;
use crate::events::reasons::QueueReason;
use crate::lane::silence::Silence;
use crate::lane::{Lane, ModelCall, Queued, Slot};
use crate::limits::accounts::ReservedTokens;
use crate::limits::labels::Tenants;
use crate::limits::spending::tree::Wanted;

/// The waits of a call before it is sent.
pub(crate) struct Waits<'a> {
    pub(crate) deps: &'a Deps,
    pub(crate) shared: &'a SessionShared,
    pub(crate) lane: &'a Arc<Lane>,
    /// The call's span in the trace.
    pub(crate) span: &'a Span,
    pub(crate) tenants: &'a Tenants,
    pub(crate) is_summary: bool,
    /// Publishes an event about a wait.
    pub(crate) publish: &'a (dyn Fn(EventKind) + Sync),
}

/// What a call holds from the end of its waits to its end.
pub(crate) struct Admitted {
    pub(crate) tokens: ReservedTokens,
    pub(crate) slot: Slot,
}

impl Waits<'_> {
    /// Tells that the call waits at this position, or with 0 that the wait is over.
    pub(crate) fn tell(&self, wait: &mut Span, queued: Queued) {
        trace::queued(wait, self.span, &self.shared.id, &queued);
        (self.publish)(self.lane.queue_update(self.is_summary, queued));
    }

    /// Waits until the labels' limits per minute allow this many tokens. `asked` is when the call was due.
    pub(crate) async fn tokens(&self, tokens: u64, asked: Instant) -> ReservedTokens {
        let reserved = self.deps.accounts.tokens(self.tenants, tokens);
        if !reserved.delay().is_zero() {
            let mut wait = Span::none();
            for position in [1, 0] {
                let (waited, reason) = (asked.elapsed(), QueueReason::LabelTokens);
                self.tell(&mut wait, Queued { position, waited, reason });
                if position > 0 {
                    Box::pin(tokio::time::sleep(reserved.delay())).await;
                }
            }
        }
        reserved
    }

    /// Waits for a slot of the lane, and checks the limits again. Returns the slot, and how many tokens of output
    /// the call may have if that is less than wanted.
    ///
    /// # Errors
    /// Others used a limit up while the call waited.
    pub(crate) async fn slot(
        &self,
        call: &ModelCall,
        wanted: Option<Wanted>,
        cancel: &CancellationToken,
    ) -> Result<(Slot, Option<u64>), String> {
        // The waits for the labels' limits and for the budget are not part of the wait for a slot.
        let asked = Instant::now();
        let mut wait = Span::none();
        let slot = self.lane.enter(call, |queued| self.tell(&mut wait, queued)).await;
        let waited = asked.elapsed();
        trace::entered(self.span, &self.shared.id, waited);
        let provider = self.lane.provider.name();
        self.deps.metrics.count(Happened::CallEntered { provider, waited });
        let allowed = self.deps.accounts.look(self.tenants, || self.deps.now_ms(), wanted)?;
        let is_less = wanted.is_some_and(|wanted| allowed < wanted.output_tokens);
        ownership::may_act(self.deps, cancel).await;
        Ok((slot, Some(allowed).filter(|_| is_less)))
    }
}

/// The sender of a call.
#[derive(Clone, Copy)]
pub(crate) struct Sender<'a> {
    pub(crate) deps: &'a Deps,
    pub(crate) lane: &'a Lane,
    /// Receives the cost of a call whose answer does not report it.
    pub(crate) session: &'a ActorRef<SessionMail>,
    /// The run, if the call is a step of one.
    pub(crate) attempt: Option<RunAttempt>,
}

/// The answer to a call, as it streams in.
pub(crate) struct Answering<'a> {
    admitted: Admitted,
    silence: Silence,
    stream: ReplyStream,
    checks: AnswerChecks<'a>,
    /// Belongs to the caller: if the call is cut off, dropping the flight bills it.
    flight: &'a mut Option<Box<Flight>>,
    times: &'a mut CallTimes,
}

impl<'a> Answering<'a> {
    /// Sends a request.
    ///
    /// # Errors
    /// The provider refused it, or was silent.
    pub(crate) fn send(
        sender: Sender<'a>,
        mut admitted: Admitted,
        request: Request,
        info: Option<&ModelInfo>,
        flight: &'a mut Option<Box<Flight>>,
        times: &'a mut CallTimes,
    ) -> impl Future<Output = Result<Self, Box<ProviderError>>> + use<'a> {
        let Sender { deps, lane, session, attempt } = sender;
        admitted.tokens.begin();
        let mut silence = lane.silence();
        *flight = Some(Flight::begin(session, attempt, deps, lane, &request, info));
        let checks = AnswerChecks::new(lane, &request);
        times.sent = Some(Instant::now());
        let opening = lane.provider.stream(request);
        async move {
            let stream = silence.unless_silent(opening).await.map_err(no_body)?;
            if stream.is_err() {
                flight.take().into_iter().for_each(|flight| flight.refused());
            }
            Ok(Self { admitted, silence, stream: stream?, checks, flight, times })
        }
    }

    /// Returns the next piece of the answer.
    ///
    /// # Errors
    /// The answer broke off, or is too large; the model was silent.
    pub(crate) async fn next(&mut self) -> Result<ReplyEvent, Box<ProviderError>> {
        let event = self.silence.unless_silent(self.stream.next()).await.map_err(no_body)?;
        let Some(event) = event else {
            let text = "the provider's stream ended before the answer was complete";
            return Err(no_body(Failure::new(FailureClass::Malformed, text)));
        };
        let mut event = event?;
        self.times.first.get_or_insert_with(Instant::now);
        self.checks.check(&mut event)?;
        self.flight.iter_mut().for_each(|flight| flight.heard(&event));
        // A provider whose pieces are always there must not keep the call from being cancelled.
        tokio::task::coop::consume_budget().await;
        Ok(event)
    }

    /// Settles what an answer used with the limits. Returns the flight, which bills the rest.
    ///
    /// # Errors
    /// The provider did not finish the answer. That is a failed call, as if the stream had broken off; its flight
    /// bills it.
    pub(crate) fn end(
        mut self,
        answer: &AssistantMessage,
    ) -> Result<Option<Box<Flight>>, Box<ProviderError>> {
        if let Some(usage) = answer.usage.map(billable) {
            self.admitted.slot.used(&usage);
            self.admitted.tokens.used(usage.total_tokens());
        }
        if let Some(failure) = classify_answer(answer) {
            self.flight.iter_mut().for_each(|flight| flight.broke_off(answer));
            let body = answer.error.as_deref().unwrap_or_default();
            return Err(Box::new(ProviderError::new(failure, body)));
        }
        Ok(self.flight.take())
    }
}

/// Lowers a request's output limit to what the budget allows. `room` is what the window leaves for output, as far as
/// known: servers refuse a request whose input and output limit exceed the window together.
pub(crate) fn limit_output(request: &mut Request, allowed: Option<u64>, room: Option<u64>) {
    let limits = [request.settings.output_tokens_max, allowed, room.filter(|_| allowed.is_some())];
    request.settings.output_tokens_max = limits.into_iter().flatten().min();
}

/// Creates an error that has no response body.
pub(crate) fn no_body(failure: Failure) -> Box<ProviderError> {
    Box::new(ProviderError::new(failure, ""))
}
