//! A program's own providers, with answers that no well-kept API gives: too large, without end, or with names, counts and
//! ids that cannot be used unchanged.
//!
//! Invariants: whatever such a provider answers, the session stays usable and its bill is plausible.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greenroom::futures_util::future::BoxFuture;
use greenroom::futures_util::stream::{self, BoxStream, StreamExt as _};
use greenroom::prelude::*;
use greenroom::provider::{Provider, ProviderError, ReplyEvent, ReplyStream, Request};
use greenroom_kernel::message::{AssistantMessage, Message, Part, StopReason, ToolCall, ToolResult};
use greenroom_kernel::{FailureClass, Usage};
use greenroom_provider::ModelPrice;

/// The pieces of an answer to a request.
type Pieces = BoxStream<'static, ReplyEvent>;

/// A provider that answers by a function of the request and the number of requests before it.
struct Own(Arc<Answers>, Mutex<usize>);

type Answers = dyn Fn(&Request, usize) -> Pieces + Send + Sync;

impl Provider for Own {
    fn name(&self) -> &'static str {
        "own"
    }

    fn stream(&self, request: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>> {
        let mut calls = self.1.lock().unwrap();
        let pieces = (self.0)(&request, *calls);
        *calls += 1;
        Box::pin(async move { Ok(pieces.map(Ok).boxed()) })
    }
}

async fn opened(
    answers: impl Fn(&Request, usize) -> Pieces + Send + Sync + 'static,
) -> (Runtime, SessionHandle) {
    let provider = Own(Arc::new(answers), Mutex::default());
    let runtime = Runtime::builder().provider(Arc::new(provider)).in_memory().start().await.unwrap();
    let price = ModelPrice { input: 1.0, output: 10.0, ..ModelPrice::default() };
    let agent = Agent::new("m")
        .context_window(1_000_000)
        .price_for("m", price)
        .tool("note", |note: Note| async move { Ok(note.text) });
    let session = runtime.open("s", &agent).await.unwrap();
    (runtime, session)
}

/// Notes something.
#[derive(Deserialize, JsonSchema)]
struct Note {
    text: String,
}

fn answer(parts: Vec<Part>) -> AssistantMessage {
    let has_call = parts.iter().any(|part| part.as_tool_call().is_some());
    let stop = if has_call { StopReason::ToolCalls } else { StopReason::Stop };
    AssistantMessage::new(parts, "own", "m", stop)
}

fn done(answer: AssistantMessage) -> Pieces {
    stream::iter([ReplyEvent::Done(Box::new(answer))]).boxed()
}

fn text(text: &str) -> Part {
    Part::Text(text.to_owned())
}

/// What has no end fails, and is asked for once.
#[tokio::test(start_paused = true)]
async fn an_answer_without_end_is_given_up() {
    fn piece() -> String {
        "x".repeat(64 * 1024)
    }
    let endless = |piece: fn() -> ReplyEvent| stream::repeat_with(piece).boxed();
    let cases = [
        ("text", endless(|| ReplyEvent::Text(piece()))),
        ("reasoning", endless(|| ReplyEvent::Reasoning(piece()))),
        ("arguments", endless(|| ReplyEvent::ToolCall { index: 0, name: None, arguments: piece() })),
        ("whole", done(answer(vec![Part::Text("x".repeat(5 << 20))]))),
    ];
    for (what, pieces) in cases {
        let pieces = Mutex::new(Some(pieces));
        let (_runtime, session) = opened(move |_, call| match call {
            0 => pieces.lock().unwrap().take().unwrap(),
            _ => done(answer(vec![text("fine")])),
        })
        .await;
        let failed = session.prompt("go").await.unwrap_err();
        let Error::Model(failure) = &failed else { panic!("{what}: {failed:?}") };
        assert_eq!(failure.class, FailureClass::Other, "{what}");
        assert!(failure.message.contains("more than 4194304 bytes"), "{what}: {failed}");
        assert_eq!(session.prompt("again").await.unwrap().text, "fine", "{what}");
    }
}

/// Pieces that are always there do not keep a call from being cancelled.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_always_ready_can_be_aborted() {
    let (_runtime, session) = opened(|_, call| match call {
        0 => stream::repeat_with(|| ReplyEvent::Text(String::new())).boxed(),
        _ => done(answer(vec![text("fine")])),
    })
    .await;
    let mut events = session.subscribe();
    let run = session.prompt("go").start().await.unwrap();
    while events.next_event().await.unwrap().kind.name() != "message_start" {}
    run.abort();
    assert!(matches!(run.reply().await, Err(Error::Aborted)));
    assert_eq!(session.prompt("again").await.unwrap().text, "fine");
}

/// Returns the input and the cost of a run whose answer has this report.
async fn billed(change: impl Fn(&mut AssistantMessage) + Send + Sync + 'static) -> (u64, u64) {
    let (_runtime, session) = opened(move |_, _| {
        let mut answer = answer(vec![text("fine")]);
        answer.usage = Some(Usage { input_tokens: 1_000, output_tokens: 100, ..Usage::default() });
        change(&mut answer);
        done(answer)
    })
    .await;
    let reply = session.prompt("go").await.unwrap();
    (reply.usage.input_tokens, reply.cost_microdollars)
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_billed_by_what_was_asked_and_cached_tokens_are_input() {
    let plain = billed(|_| {}).await;
    assert_eq!(plain, (1_000, 2_000));
    let other_names = |answer: &mut AssistantMessage| {
        answer.model = "m-2026-08-06".to_owned();
        answer.provider = "gateway".to_owned();
    };
    assert_eq!(billed(other_names).await, plain);
    let apart = |answer: &mut AssistantMessage| {
        let usage = answer.usage.as_mut().unwrap();
        (usage.input_tokens, usage.cached_tokens) = (10, 990);
    };
    assert_eq!(billed(apart).await.0, 1_000);
}

#[tokio::test(start_paused = true)]
async fn absurd_passes_are_not_billed() {
    let (runtime, session) = opened(|_, _| {
        let pass = Usage { input_tokens: u64::MAX, output_tokens: 7, ..Usage::default() };
        let mut answer = answer(vec![text("fine")]);
        answer.usage = Some(Usage { input_tokens: 1_000, output_tokens: 100, ..Usage::default() });
        stream::iter([ReplyEvent::Spent(pass), ReplyEvent::Done(Box::new(answer))]).boxed()
    })
    .await;
    session.prompt("go").await.unwrap();
    let state = session.state().await.unwrap();
    assert_eq!(state.total_tokens, 1_107);
    drop(runtime);
}

/// Each call has an id of its own, and its result belongs to it.
#[tokio::test(start_paused = true)]
async fn ids_of_calls_are_made_unique() {
    for id in ["", "c1"] {
        let seen: Arc<Mutex<Vec<(String, String)>>> = Arc::default();
        let sent = Arc::clone(&seen);
        let (_runtime, session) = opened(move |request, call| {
            let mut pairs = sent.lock().unwrap();
            pairs.clear();
            for message in request.messages.iter() {
                pairs.extend(message.tool_calls().map(|call| (call.id.clone(), call.arguments.clone())));
            }
            let noted = |number: usize| {
                let arguments = format!(r#"{{"text":"{call}.{number}"}}"#);
                Part::ToolCall(ToolCall { id: id.to_owned(), name: "note".to_owned(), arguments })
            };
            done(answer(if call < 2 { vec![noted(0), noted(1)] } else { vec![text("fine")] }))
        })
        .await;
        session.prompt("go").await.unwrap();
        let calls = seen.lock().unwrap().clone();
        let ids: HashSet<_> = calls.iter().map(|(id, _)| id.as_str()).collect();
        assert_eq!((calls.len(), ids.len()), (4, 4), "{calls:?}");
        assert!(!ids.contains(""), "{calls:?}");
        for result in session.context().await.unwrap().iter().filter_map(|message| result(message)) {
            let (_, arguments) = calls.iter().find(|(id, _)| *id == result.call_id).unwrap();
            let said = greenroom_kernel::message::blocks_text(&result.content);
            assert!(arguments.contains(&said), "{arguments} {said}");
        }
    }
}

/// An answer of a hook that says nothing fails at once, and the hook is named.
#[tokio::test(start_paused = true)]
async fn a_hook_that_answers_nothing_is_named() {
    let (runtime, _) = opened(|_, _| done(answer(vec![text("fine")]))).await;
    let agent = Agent::new("m")
        .context_window(10_000)
        .before_model(|_| async { greenroom::BeforeModel::Answer("  ".to_owned()) });
    let session = runtime.open("hooked", &agent).await.unwrap();
    let before = tokio::time::Instant::now();
    let error = session.prompt("go").await.unwrap_err().to_string();
    assert!(error.contains("a before_model hook answered with an empty text"), "{error}");
    assert_eq!(before.elapsed(), Duration::ZERO);
}

fn result(message: &Message) -> Option<&ToolResult> {
    if let Message::ToolResult(result) = message { Some(result) } else { None }
}
