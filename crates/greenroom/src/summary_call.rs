//! One call to a model that writes a summary: of a conversation's older part, or of a branch.
//!
//! Invariants: the agent's hooks see the call; it holds a place in its provider's lane; dropping the future drops the call.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use greenroom_kernel::size::{Estimator, message_tokens};
use greenroom_kernel::{AssistantMessage, Failure, FailureClass, Message, Part, StopReason, summary};
use greenroom_provider::{ModelSettings, ProviderError, Purpose, ReplyEvent, Request};
use tracing::Span;

use crate::deps::Deps;
use crate::event::EventKind;
use crate::hooks::model_call::{Decision, Finished, ModelHooks};
use crate::lane::{Call, Lane, Urgency};
use crate::message::Summariser;
use crate::shared::SessionShared;
use crate::trace;
use crate::waits::Chain;

/// Asks a summariser once, for at most so much output. `parent` is what traces it.
pub(crate) async fn ask(
    parent: &Span,
    summariser: &Summariser,
    deps: &Deps,
    shared: &SessionShared,
    text: String,
    output_tokens_max: u64,
) -> Result<Box<AssistantMessage>, ProviderError> {
    let Summariser { lane, model, settings, agent } = summariser;
    let session = &*shared.id;
    let request = Request {
        model: model.clone(),
        system: Some(summary::SYSTEM.to_owned()),
        messages: vec![Arc::new(Message::user(text))],
        tools: Arc::from([]),
        settings: ModelSettings { output_tokens_max: Some(output_tokens_max), ..settings.clone() },
        output_schema: None,
        purpose: Purpose::Summary,
        session: session.to_owned(),
    };
    // The compaction waits for the hooks, and the session's next run for the compaction.
    let waiting = Chain::default().and(&shared.id);
    let hooks = ModelHooks { agent, deps, shared, run: None, waiting: &waiting };
    let provider = lane.provider.name();
    let (answer, was_asked, took) = match hooks.before(provider, request).await {
        Decision::Refused(reason) => {
            return Err(ProviderError::new(Failure::new(FailureClass::Other, reason), ""));
        }
        Decision::Answered(text) => (Ok(Box::new(answered(provider, model, text))), false, Duration::ZERO),
        Decision::Ask(request) => {
            let span = trace::chat(parent, &*lane.provider, &request);
            let began = tokio::time::Instant::now();
            let answer = answer(lane, deps, shared, &span, *request).await;
            let took = began.elapsed();
            match &answer {
                Ok(answer) => trace::answered(&span, session, Purpose::Summary, answer, took),
                Err(error) => trace::failed(&span, session, Purpose::Summary, &error.failure, took),
            }
            (answer, true, took)
        }
    };
    let result = answer.as_deref().map_err(|error| &error.failure);
    let purpose = Purpose::Summary;
    hooks.after(Finished { provider, model, purpose, result, was_asked, duration: took }).await;
    answer
}

/// An answer that a hook gave in the place of a model.
pub(crate) fn answered(provider: &str, model: &str, text: String) -> AssistantMessage {
    AssistantMessage {
        content: vec![Part::Text(text)],
        provider: provider.to_owned(),
        model: model.to_owned(),
        usage: None,
        stop: StopReason::Stop,
        error: None,
    }
}

async fn answer(
    lane: &Arc<Lane>,
    deps: &Deps,
    shared: &SessionShared,
    span: &Span,
    request: Request,
) -> Result<Box<AssistantMessage>, ProviderError> {
    let silent = |failure| ProviderError::new(failure, "");
    let asked = tokio::time::Instant::now();
    let texts = || request.messages.iter().map(|text| message_tokens(text, Estimator::Classes)).sum::<u64>();
    let call = Call {
        family: shared.family(),
        urgency: if shared.is_awaited() { Urgency::Summary } else { Urgency::Background },
        tokens: if lane.counts_tokens() {
            texts() + request.settings.output_tokens_max.unwrap_or(0)
        } else {
            0
        },
    };
    let tell = |queued| shared.publish(&deps.bus, EventKind::queue_update(lane, true, queued));
    let mut place = lane.enter(call, tell).await;
    trace::entered(span, &shared.id, asked.elapsed());
    let mut silence = lane.silence();
    let mut stream = silence.unless_silent(lane.provider.stream(request)).await.map_err(silent)??;
    while let Some(event) = silence.unless_silent(stream.next()).await.map_err(silent)? {
        if let ReplyEvent::Done(answer) = event? {
            answer.usage.iter().for_each(|usage| place.used(usage));
            return Ok(answer);
        }
    }
    let text = "the summariser's stream ended before the answer was complete";
    Err(silent(Failure::new(FailureClass::Malformed, text)))
}
