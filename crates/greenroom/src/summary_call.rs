//! One call to a model that writes a summary: of a conversation's older part, or of a branch.
//!
//! Invariants: the call holds a place in its provider's lane; dropping the future drops the call.

use std::sync::Arc;

use futures_util::StreamExt;
use greenroom_kernel::{AssistantMessage, Failure, FailureClass, Message, summary};
use greenroom_provider::{ModelSettings, ProviderError, Purpose, ReplyEvent, Request};
use tracing::Span;

use crate::lane::Lane;
use crate::message::Summariser;
use crate::trace;

/// Asks a summariser once, for at most so much output. `parent` is what traces it.
pub(crate) async fn ask(
    parent: &Span,
    summariser: &Summariser,
    session: &str,
    text: String,
    output_tokens_max: u64,
) -> Result<Box<AssistantMessage>, ProviderError> {
    let Summariser { lane, model, settings } = summariser;
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
    let span = trace::chat(parent, &*lane.provider, &request);
    let began = tokio::time::Instant::now();
    let answer = answer(lane, session, &span, request).await;
    match &answer {
        Ok(answer) => trace::answered(&span, session, Purpose::Summary, answer, began.elapsed()),
        Err(error) => trace::failed(&span, session, Purpose::Summary, &error.failure, began.elapsed()),
    }
    answer
}

async fn answer(
    lane: &Lane,
    session: &str,
    span: &Span,
    request: Request,
) -> Result<Box<AssistantMessage>, ProviderError> {
    let silent = |failure| ProviderError::new(failure, "");
    let asked = tokio::time::Instant::now();
    let _place = lane.enter(Purpose::Summary).await;
    trace::entered(span, session, asked.elapsed());
    let mut stream = lane.unless_silent(lane.provider.stream(request)).await.map_err(silent)??;
    while let Some(event) = lane.unless_silent(stream.next()).await.map_err(silent)? {
        if let ReplyEvent::Done(answer) = event? {
            return Ok(answer);
        }
    }
    let text = "the summariser's stream ended before the answer was complete";
    Err(silent(Failure::new(FailureClass::Malformed, text)))
}
