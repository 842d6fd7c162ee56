//! A call of a model that writes a summary, of the older part of a conversation or of a branch.
//!
//! Invariants: the agent's hooks see the call; it occupies a slot in its provider's lane; dropping the future
//! drops the call.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::redact::Redactor;
use greenroom_kernel::size::{Estimator, message_tokens};
use greenroom_kernel::unreported::billable;
use greenroom_kernel::{
    AssistantMessage, Block, Failure, FailureClass, Message, Part, StopReason, cost, summary,
};
use greenroom_provider::{ModelSettings, ProviderError, Purpose, ReplyEvent, Request};
use ractor::ActorRef;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::actors::call_path::{Admitted, Answering, Sender, Waits, limit_output, no_body};
use crate::actors::model_hooks::{Decision, Finished, ModelHooks};
use crate::core::deps::Deps;
use crate::core::flight::{Summarised, warn_of_no_price};
use crate::core::message::{RequestHead, SessionMail, Summariser};
use crate::core::metrics::{CallResult, CallTimes, Happened};
use crate::core::shared::SessionShared;
use crate::core::trace;
use crate::lane::{ModelCall, Urgency};
use crate::limits::spending::tree::Wanted;
use crate::limits::waits::Chain;

/// Returns a request for a summary, with an output limit.
pub(crate) fn summary_request(summariser: &Summariser, text: String, output_tokens_max: u64) -> Request {
    let Summariser { model, settings, .. } = summariser;
    Request {
        model: model.clone(),
        system: Some(summary::SYSTEM.to_owned()),
        messages: vec![Arc::new(Message::user(text))].into(),
        tools: Arc::from([]),
        settings: ModelSettings { output_tokens_max: Some(output_tokens_max), ..settings.clone() },
        output_schema: None,
        purpose: Purpose::Summary,
        session: String::new(),
    }
}

/// Returns a request for the provider's own compaction of these messages. It begins as the session's requests do, so that
/// the provider reads it from its cache.
pub(crate) fn compaction_request(
    summariser: &Summariser,
    head: &RequestHead,
    mut messages: Vec<Arc<Message>>,
    instruction: String,
    output_tokens_max: u64,
) -> Request {
    messages.push(Arc::new(Message::user(instruction)));
    let output_tokens_max = Some(output_tokens_max);
    Request {
        model: summariser.model.clone(),
        system: Some(head.system.to_string()).filter(|text| !text.is_empty()),
        messages: messages.into(),
        tools: Arc::clone(&head.tools),
        // What concerns an answer to the user.
        settings: ModelSettings { output_tokens_max, tool_choice: None, stop: None, ..head.settings.clone() },
        output_schema: None,
        purpose: Purpose::Compaction,
        session: String::new(),
    }
}

/// Calls a summariser once. `parent` is the span above it in the trace. `is_told` says whether events tell that it waits.
pub(crate) async fn ask(
    parent: &Span,
    is_told: bool,
    summariser: &Summariser,
    session: &ActorRef<SessionMail>,
    deps: &Deps,
    shared: &Arc<SessionShared>,
    request: Request,
) -> Result<Summarised, ProviderError> {
    let Summariser { lane, model, agent, .. } = summariser;
    let id = &*shared.id;
    let mut request = Request { session: id.to_owned(), ..request };
    let purpose = request.purpose;
    if purpose == Purpose::Summary && !deps.redactor.is_off() {
        let mut messages = request.messages.into_vec();
        messages.iter_mut().for_each(|message| redact_all(&deps.redactor, Arc::make_mut(message)));
        request.messages = messages.into();
    }
    // The compaction waits for the hooks, and the session's next run waits for the compaction.
    let waiting = Chain::default().and(&shared.id);
    let hooks = ModelHooks { agent, deps, shared, run: None, waiting: &waiting };
    let provider = lane.provider.name();
    let (answer, was_asked, took) = match hooks.before(provider, Box::new(request)).await {
        Decision::Refused(reason) => {
            return Err(ProviderError::new(Failure::new(FailureClass::Other, reason), ""));
        }
        Decision::Answered(text) => {
            let answer = Box::new(answered(provider, model, text));
            (Ok(Summarised { answer, flight: None }), false, Duration::ZERO)
        }
        Decision::Ask(request) => {
            let span = trace::chat(parent, &*lane.provider, &request);
            let began = Instant::now();
            let mut counted =
                Counted { deps, provider, model, purpose, times: CallTimes::default(), is_over: false };
            let mut answer =
                answer(summariser, is_told, session, shared, &span, *request, &mut counted).await;
            lane.heard(model, answer.as_mut().err().map(|error| &mut **error), &deps.learned);
            match &mut answer {
                Ok(summarised) => deps.redactor.answer(&mut summarised.answer),
                Err(error) => deps.redactor.failure(&mut error.failure),
            }
            let took = began.elapsed();
            match &answer {
                Ok(summarised) => {
                    trace::answered(&span, id, purpose, &summarised.answer, took);
                    counted.end(CallResult::Answered);
                }
                Err(error) => {
                    trace::failed(&span, id, purpose, &error.failure, took);
                    counted.end(CallResult::Failed(error.failure.class));
                }
            }
            (answer.map_err(|error| *error), true, took)
        }
    };
    let result = answer.as_ref().map(|summarised| &*summarised.answer).map_err(|error| &error.failure);
    hooks.after(Finished { provider, model, purpose, result, was_asked, duration: took }).await;
    answer
}

/// Replaces everything that looks like a secret in the text that a summary is made of: a summary lives longer than
/// what it replaces.
fn redact_all(redactor: &Redactor, message: &mut Message) {
    match message {
        Message::User(content) => {
            for block in content {
                if let Block::Text(text) = block {
                    redactor.all_in(text);
                }
            }
        }
        Message::Assistant(_) | Message::ToolResult(_) => redactor.message(message),
    }
}

/// A call that is counted when it ends, and as cancelled if it is dropped before.
struct Counted<'a> {
    deps: &'a Deps,
    provider: &'a str,
    model: &'a str,
    purpose: Purpose,
    times: CallTimes,
    is_over: bool,
}

impl Counted<'_> {
    fn end(&mut self, result: CallResult) {
        let Self { deps, provider, model, purpose, times, .. } = *self;
        self.is_over = true;
        deps.metrics.count(Happened::CallEnded { provider, model, purpose, result, times });
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.end(CallResult::Cancelled);
        }
    }
}

/// Returns an answer that a hook gave in place of a model.
pub(crate) fn answered(provider: &str, model: &str, text: String) -> AssistantMessage {
    AssistantMessage::new(vec![Part::Text(text)], provider, model, StopReason::Stop)
}

async fn answer(
    Summariser { lane, agent, .. }: &Summariser,
    is_told: bool,
    session: &ActorRef<SessionMail>,
    shared: &Arc<SessionShared>,
    span: &Span,
    mut request: Request,
    counted: &mut Counted<'_>,
) -> Result<Summarised, Box<ProviderError>> {
    let (deps, times) = (counted.deps, &mut counted.times);
    let texts = || request.messages.iter().map(|text| message_tokens(text, Estimator::Classes)).sum::<u64>();
    let call = ModelCall {
        turn: deps.turn(shared),
        urgency: if shared.is_summary_awaited() { Urgency::Summary } else { Urgency::Background },
        tokens: if lane.counts_tokens() || deps.accounts.limits_tokens() {
            texts() + request.settings.output_tokens_max.unwrap_or(0)
        } else {
            0
        },
    };
    let tenants = deps.tenants(shared);
    let publish = |kind| {
        if is_told {
            shared.publish(&deps.bus, kind);
        }
    };
    let waits = Waits { deps, shared, lane, span, tenants: &tenants, is_summary: true, publish: &publish };
    let tokens = waits.tokens(call.tokens, Instant::now()).await;
    let sent = deps.learned.ratio(lane.origin(), &request.model).apply(texts());
    let refused = |reason| no_body(Failure::new(FailureClass::Other, reason));
    let info = deps.priced(agent, lane.provider.name(), &request.model);
    let wanted = Wanted::of(info.as_ref(), &request, cost::with_margin(sent));
    let reserved = match wanted {
        Some(wanted) => {
            let budget = || trace::wait(span, &shared.id, "budget");
            Some(deps.ledger.reserve_summary(shared, wanted, budget).await.map_err(refused)?)
        }
        None => {
            warn_of_no_price(deps, shared, lane, &request.model);
            None
        }
    };
    // Dropping the future cancels the call.
    let entered = waits.slot(&call, wanted, &CancellationToken::new()).await;
    let (slot, allowed) = entered.map_err(refused)?;
    let admitted = Admitted { tokens, slot };
    // A summary's own limit fits beside its input.
    limit_output(&mut request, reserved.as_ref().map(|reserved| reserved.output_tokens()), None);
    limit_output(&mut request, allowed, None);
    let mut flight = None;
    let sender = Sender { deps, lane, session, attempt: None };
    let mut answering = Answering::send(sender, admitted, request, info.as_ref(), &mut flight, times).await?;
    loop {
        if let ReplyEvent::Done(mut answer) = answering.next().await? {
            answer.usage = answer.usage.map(billable);
            let mut flight = answering.end(&answer)?;
            let cost = flight.as_mut().map_or(0, |flight| flight.completed(&mut answer));
            reserved.into_iter().for_each(|reserved| reserved.answered(cost));
            return Ok(Summarised { answer, flight });
        }
    }
}
