//! A custom provider: any source of answers can be the model. This one echoes the prompt, word by
//! word, and rejects the first call with a rate limit, so that the run waits and retries.
#![expect(clippy::print_stdout, reason = "an example shows its result")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use greenroom::futures_util::future::BoxFuture;
use greenroom::futures_util::{FutureExt, StreamExt, stream};
use greenroom::prelude::*;
use greenroom::provider::{Provider, ProviderError, ReplyEvent, ReplyStream, Request};
use greenroom::{AssistantMessage, Failure, FailureClass, Part, StopReason, Usage};
use greenroom_simulator::provider_conformance;

#[derive(Default)]
struct Parrot {
    was_asked: AtomicBool,
}

impl Provider for Parrot {
    fn name(&self) -> &str {
        "parrot"
    }

    fn stream(&self, request: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>> {
        if !self.was_asked.swap(true, Ordering::SeqCst) {
            let failure = Failure::new(FailureClass::RateLimited, "the parrot is asleep");
            return async { Err(ProviderError::new(failure, "")) }.boxed();
        }
        let heard = request.messages.last().map(|message| message.text()).unwrap_or_default();
        let words: Vec<_> =
            heard.split_inclusive(' ').map(|word| Ok(ReplyEvent::Text(word.to_owned()))).collect();
        let usage =
            Usage { input_tokens: heard.len() as u64, output_tokens: heard.len() as u64, ..Usage::default() };
        let whole = AssistantMessage {
            content: vec![Part::Text(heard.clone())],
            provider: "parrot".into(),
            model: request.model,
            usage: Some(usage),
            stop: StopReason::Stop,
            stop_raw: None,
            error: None,
        };
        let done = Ok(ReplyEvent::Done(Box::new(whole)));
        async move { Ok(stream::iter(words).chain(stream::iter([done])).boxed()) }.boxed()
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let parrot: Arc<dyn Provider> = Arc::new(Parrot::default());
    // The conformance check: these lines are the complete test of a custom provider.
    let report = provider_conformance::check(&parrot, "grey").await;
    println!("{report}");
    report.assert_passed();

    let runtime = Runtime::builder().provider(parrot).in_memory().start().await?;
    let session = runtime.open("cage", &Agent::new("grey").context_window(8_000)).await?;
    let mut run = session.prompt("Polly wants a cracker.").stream();
    while let Some(word) = run.next_text().await {
        print!("{word}");
    }
    println!("\n{:?}", run.reply().await?.usage);
    runtime.shutdown().await
}
