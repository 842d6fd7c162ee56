//! A provider that answers at once: the remaining time of a run is ours.

use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt};
use greenroom::provider::{Provider, ProviderError, ReplyEvent, ReplyStream, Request};
use greenroom_kernel::{AssistantMessage, Part, StopReason};

/// Answers everything with the same few words.
pub(crate) struct Canned;

impl Provider for Canned {
    fn name(&self) -> &str {
        "canned"
    }

    fn stream(&self, request: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>> {
        let text = "Understood.".to_owned();
        let message =
            AssistantMessage::new(vec![Part::Text(text.clone())], "canned", request.model, StopReason::Stop);
        let events = [Ok(ReplyEvent::Text(text)), Ok(ReplyEvent::Done(Box::new(message)))];
        Box::pin(async move { Ok(stream::iter(events).boxed()) })
    }
}
