//! Answers that a provider of a program's own ends as failed or interrupted: they are failures, as they are over HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::{FutureExt, StreamExt};
use greenroom::futures_util::future::BoxFuture;
use greenroom::prelude::*;
use greenroom::provider::{Messages, Provider, ProviderError, Purpose, ReplyEvent, ReplyStream, Request};
use greenroom::{FailureClass, ModelPrice, Part, RunOutcome, StopReason, Usage};
use greenroom_simulator::{Answer as Said, ByPurpose, CallInfo, Function, SeenRequest, Summariser};
use parking_lot::Mutex;

use crate::compaction_fixtures::{chat, keep, opened};
use crate::support::{agent, drain, simulator};

/// How the first answer of a kind ends.
#[derive(Debug, Clone, Copy)]
struct Break {
    stop: StopReason,
    error: Option<&'static str>,
    /// Whether the answer is streamed, or comes at once.
    is_streamed: bool,
    of: Purpose,
}

/// A provider whose first answer of a kind is not finished.
struct Breaks {
    model: Arc<dyn Provider>,
    how: Break,
    calls: AtomicU32,
    /// What is reported for each answer, unfinished ones included.
    reported: Arc<Mutex<Vec<Usage>>>,
}

impl Provider for Breaks {
    fn name(&self) -> &str {
        self.model.name()
    }

    fn stream(&self, request: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>> {
        let Break { stop, error, is_streamed, of } = self.how;
        let breaks = request.purpose == of && self.calls.fetch_add(1, Ordering::SeqCst) == 0;
        assert!(is_asked(&request.messages), "a request ends with what is asked");
        let (answer, reported) = (self.model.stream(request), Arc::clone(&self.reported));
        let broken = move |event| match event {
            Ok(ReplyEvent::Done(mut answer)) => {
                reported.lock().extend(answer.usage);
                if breaks {
                    answer.content.truncate(1);
                    if let Some(Part::Text(text)) = answer.content.first_mut() {
                        text.truncate(text.len() / 2);
                    }
                    (answer.stop, answer.error) = (stop, error.map(str::to_owned));
                }
                Some(Ok(ReplyEvent::Done(answer)))
            }
            other => (is_streamed || !breaks).then_some(other),
        };
        async move { Ok(answer.await?.filter_map(move |event| std::future::ready(broken(event))).boxed()) }
            .boxed()
    }
}

/// Whether the newest message is the user's.
fn is_asked(messages: &Messages) -> bool {
    messages.last().is_some_and(|message| message.role() == "user")
}

/// What a prompt became.
struct Lived {
    runtime: Runtime,
    session: SessionHandle,
    events: Vec<Arc<Event>>,
    reply: Result<Reply>,
    reported: Vec<Usage>,
}

/// Sends a prompt with a key to a model whose first answer of a kind ends like this.
async fn live(how: Break) -> Lived {
    let says =
        Function(|_: &SeenRequest, _: CallInfo| Said::text("the answer is forty-two, as it always was"));
    let model = simulator(ByPurpose::new(says, Summariser::Obedient), 20_000);
    let reported = Arc::<Mutex<Vec<Usage>>>::default();
    let calls = AtomicU32::new(0);
    let provider = Arc::new(Breaks { model: model.provider(), how, calls, reported: Arc::clone(&reported) });
    let runtime = Runtime::builder().provider(provider).in_memory().start().await.unwrap();
    let agent = agent(20_000).price_for("simulated", ModelPrice::new(1_000.0, 10_000.0));
    let session = opened(&runtime, "s", &agent, chat(8, 200)).await;
    let mut events = session.subscribe();
    if how.of == Purpose::Summary {
        assert_eq!(session.compact(keep(300)).await.unwrap().outcome.as_str(), "completed", "{how:?}");
    }
    let reply = session.prompt("the question").once("key").await;
    model.assert_clean();
    let (events, reported) = (drain(&mut events), reported.lock().clone());
    Lived { runtime, session, events, reply, reported }
}

fn retries(events: &[Arc<Event>]) -> Vec<(FailureClass, String, bool)> {
    let retry = |event: &Arc<Event>| match &event.kind {
        EventKind::Retry { failure, compaction, .. } => {
            Some((failure.class, failure.message.clone(), compaction.is_some()))
        }
        _ => None,
    };
    events.iter().filter_map(retry).collect()
}

/// The call is made again, its partial answer is void, and all of it is billed by its report.
#[tokio::test(start_paused = true)]
async fn an_answer_that_its_provider_did_not_finish_is_no_reply() {
    use FailureClass::{Overloaded, RateLimited, Timeout};
    for (stop, error, class, message) in [
        (StopReason::Error, None, Overloaded, "the provider failed in the middle of the answer"),
        (
            StopReason::Error,
            Some("upstream\nfailed"),
            Overloaded,
            "the provider failed in the middle of the answer: upstream failed",
        ),
        (StopReason::Aborted, None, Overloaded, "the provider broke off the answer"),
        (StopReason::Error, Some("Rate limit reached"), RateLimited, "the provider's rate limit is reached"),
        (StopReason::Aborted, Some("the request timed out"), Timeout, "the provider timed out"),
    ] {
        for (is_streamed, of) in [(true, Purpose::Step), (false, Purpose::Step), (true, Purpose::Summary)] {
            let how = Break { stop, error, is_streamed, of };
            let Lived { runtime, session, events, reply, reported } = live(how).await;
            assert_eq!(reply.unwrap().text, "the answer is forty-two, as it always was", "{how:?}");
            let told = retries(&events);
            assert_eq!(told.len(), 1, "{how:?}: {told:?}");
            let (told_class, told_message, is_of_summary) = &told[0];
            assert_eq!((*told_class, *is_of_summary), (class, of == Purpose::Summary), "{how:?}");
            assert!(told_message.starts_with(message), "{how:?}: {told_message}");
            let voids = events.iter().filter(|event| event.kind.event_type() == EventType::MessageDiscarded);
            assert_eq!(voids.count(), usize::from(of == Purpose::Step), "{how:?}");
            assert!(!session.state().await.unwrap().is_unanswered, "{how:?}");
            // The reply is recorded, so the key finds it.
            let calls = reported.len();
            session.prompt("the question").once("key").await.unwrap();
            assert_eq!(reported.len(), calls, "{how:?}");
            let cost: u64 =
                reported.iter().map(|usage| usage.input_tokens * 1_000 + usage.output_tokens * 10_000).sum();
            let billed = runtime.sessions().bill().await.unwrap().cost_microdollars;
            assert!(reported.len() >= 2 && billed == cost, "{how:?}: {billed} for {reported:?}");
        }
    }
}

/// A failure that no repetition helps ends the run with what the provider said.
#[tokio::test(start_paused = true)]
async fn an_unfinished_answer_fails_its_run_if_the_words_of_its_error_say_so() {
    let how = Break {
        stop: StopReason::Error,
        error: Some("Incorrect API key provided"),
        is_streamed: true,
        of: Purpose::Step,
    };
    let Lived { session, events, reply, .. } = live(how).await;
    let Err(Error::Model(failure)) = reply else { panic!("{reply:?}") };
    assert_eq!((failure.class, failure.status), (FailureClass::Auth, None));
    assert_eq!(retries(&events), []);
    assert!(session.state().await.unwrap().is_unanswered);
    let failed =
        |event: &&Arc<Event>| matches!(&event.kind, EventKind::RunEnd { outcome: RunOutcome::Failed(_), .. });
    assert_eq!(events.iter().filter(failed).count(), 1);
}
