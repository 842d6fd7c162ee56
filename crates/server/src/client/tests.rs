//! The client, against a server in this process and against one that a test plays.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use greenroom::provider::Provider;
use greenroom::{Agent, Event, Runtime};
use greenroom::{EventKind, QuestionKind};
use greenroom_simulator::{Answer, Function, Pace, SeenRequest, Simulator, SimulatorOptions};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};

use super::{Client, ClientError, LINE_BYTES_MAX, Received};
use crate::operations::{
    Abort, ExportFormat, ExportSession, FollowUp, GetState, ImageData, ImportSession, ListQuestions,
    ListSessions, PlanSession, PromptSession, ShowSession, StartSession, Steer,
};
use crate::problem::ProblemKind;

/// A runtime whose model says so many words, at this pace.
async fn runtime(words: usize, pace: Pace) -> (Simulator, Runtime) {
    let script = Function(move |_: &SeenRequest, _: _| Answer::text("word ".repeat(words)).with_pace(pace));
    let simulator = Simulator::new(SimulatorOptions::new(script));
    let provider: Arc<dyn Provider> = simulator.provider();
    let runtime = Runtime::builder().provider(provider).in_memory().start().await.unwrap();
    (simulator, runtime)
}

fn agent() -> Agent {
    Agent::new("simulated").context_window(100_000)
}

fn named(id: &str) -> StartSession {
    StartSession { session_id: id.to_owned() }
}

#[tokio::test(start_paused = true)]
async fn calls_are_typed_and_events_come_before_the_outcome() {
    let (simulator, runtime) = runtime(20, Pace::default()).await;
    let client = Client::in_process(&runtime, agent());
    let (mut all, mut of_b) = (client.events(), client.events_of("b"));
    let work = client.work(PromptSession::new("a", "one")).await.unwrap();
    let entry = work.accepted.entry_id.unwrap();
    let outcome = work.outcome().await.unwrap();
    assert_eq!((outcome.session_id.as_str(), outcome.entry_id), ("a", entry));
    assert!(outcome.reply.text.starts_with("word"));
    let mut ends = 0;
    while let Some(Received::Event(event)) = all.try_next() {
        ends += u32::from(matches!(event.kind, EventKind::RunEnd { .. }));
    }
    assert_eq!(ends, 1, "the end of the run was told before its outcome");
    assert_eq!(of_b.try_next(), None);
    let shown = client.call(ShowSession { session_id: "a".into(), after: None }).await.unwrap();
    assert_eq!(shown.conversation.len(), 2);
    assert_eq!(client.call(ListSessions::default()).await.unwrap().sessions.len(), 1);
    client.close().await;
    assert_eq!(all.next().await, None);
    simulator.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_says_which_kind_it_is() {
    let (_simulator, runtime) = runtime(1, Pace::default()).await;
    let client = Client::in_process(&runtime, agent());
    let missing = client.call(GetState { session_id: "no".into() }).await.unwrap_err();
    assert_eq!(missing.kind(), Some(ProblemKind::NoSession));
    assert!(missing.to_string().contains("no session"), "{missing}");
    let empty = client.work(PromptSession::new("a", "")).await.map(|_| ()).unwrap_err();
    assert_eq!(empty.kind(), Some(ProblemKind::Invalid));
    let unnamed = client.call(named("a\u{7}")).await.unwrap_err();
    assert_eq!(unnamed.kind(), Some(ProblemKind::SessionId));
    let image = ImageData { media_type: "image/png".into(), data: "R0lGODlh".into() };
    let wrong = PromptSession { images: vec![image], ..PromptSession::new("a", "see") };
    let wrong = client.work(wrong).await.map(|_| ()).unwrap_err();
    assert!(matches!(&wrong, ClientError::Parameters(text) if text.starts_with("images[0]")), "{wrong}");
    client.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_picture_joins_the_run_with_a_steer_and_with_a_follow_up() {
    let (simulator, runtime) = runtime(20, Pace { between_ms: 1_000, ..Pace::default() }).await;
    let client = Client::in_process(&runtime, agent());
    let mut events = client.events_of("a");
    let work = client.work(PromptSession::new("a", "one")).await.unwrap();
    let image = || vec![ImageData { media_type: "image/gif".into(), data: "R0lGODlh".into() }];
    client.call(Steer { images: image(), ..Steer::new("a", "two") }).await.unwrap();
    client.call(FollowUp { images: image(), ..FollowUp::new("a", "three") }).await.unwrap();
    work.outcome().await.unwrap();
    let mut said = Vec::new();
    while let Some(Received::Event(event)) = events.try_next() {
        if let EventKind::MessageEnd { message, .. } = &event.kind
            && message.role == greenroom::Role::User
        {
            said.push((message.text.clone(), message.images));
        }
    }
    assert_eq!(said, [("one".to_owned(), 0), ("two".to_owned(), 1), ("three".to_owned(), 1)]);
    client.close().await;
    simulator.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_run_that_is_aborted_fails_as_such() {
    let (simulator, runtime) = runtime(20, Pace { between_ms: 1_000, ..Pace::default() }).await;
    let client = Client::in_process(&runtime, agent());
    let work = client.work(PromptSession::new("a", "one")).await.unwrap();
    client.call(Abort::current("a")).await.unwrap();
    assert_eq!(work.outcome().await.unwrap_err().kind(), Some(ProblemKind::Aborted));
    client.close().await;
    simulator.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_time_ends_the_run() {
    let (_simulator, runtime) = runtime(20, Pace { between_ms: 60_000, ..Pace::default() }).await;
    let client = Client::in_process(&runtime, agent());
    let prompt = PromptSession { timeout_s: Some(2), ..PromptSession::new("a", "one") };
    let error = client.work(prompt).await.unwrap().outcome().await.unwrap_err();
    assert!(error.to_string().contains("no reply came within 2s"), "{error}");
    client.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_session_of_many_mebibytes_comes_whole() {
    let (_simulator, runtime) = runtime(1, Pace::default()).await;
    let client = Client::in_process(&runtime, agent());
    for run in 0..3 {
        let text = "long ".repeat(600_000);
        let work = client.work(PromptSession { timeout_s: None, ..PromptSession::new("a", text) });
        // The window is too small for it: what was said is kept all the same.
        let _ = work.await.unwrap().outcome().await;
        let plan = client.call(PlanSession { session_id: "a".into(), keep_recent: None }).await;
        assert!(plan.is_ok(), "{run}: {plan:?}");
    }
    let exported =
        client.call(ExportSession { session_id: "a".into(), format: ExportFormat::Pi }).await.unwrap();
    assert!(exported.text.len() > 8 << 20, "{}", exported.text.len());
    let import = ImportSession { session_id: "b".into(), text: "no such format".into() };
    assert!(matches!(client.call(import).await, Err(ClientError::Parameters(_))));
    client.close().await;
}

#[tokio::test(start_paused = true)]
async fn a_silent_server_is_given_up_and_everybody_is_told_why() {
    let mut server = Played::new();
    let ask = |client: &Client| {
        let client = client.clone();
        tokio::spawn(async move { client.call(ListSessions::default()).await })
    };
    let call = ask(&server.client);
    server.lines.next_line().await.unwrap();
    let client = server.client.clone();
    let work =
        tokio::spawn(async move { client.work(PromptSession::new("a", "one")).await?.outcome().await });
    server.lines.next_line().await.unwrap();
    server.say(&json!({ "jsonrpc": "2.0", "id": 2, "result": { "accepted": true, "entry_id": 0 } })).await;
    // More than it can send, as nobody reads.
    let text = "long ".repeat(1 << 14);
    let client = server.client.clone();
    let many: Vec<_> = (0..200)
        .map(|_| {
            let (client, text) = (client.clone(), text.clone());
            tokio::spawn(
                async move { client.call(ImportSession { session_id: "b".into(), text }).await.err() },
            )
        })
        .collect();
    let weak = client.downgrade();
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    weak.upgrade().unwrap().give_up("it says nothing");
    let silent = ClientError::Silent("it says nothing".into());
    assert_eq!(call.await.unwrap().unwrap_err(), silent);
    assert_eq!(work.await.unwrap().unwrap_err(), silent);
    for call in many {
        assert_eq!(call.await.unwrap(), Some(silent.clone()));
    }
    weak.closed().await;
    assert!(client.is_closed());
    assert_eq!(ask(&client).await.unwrap().unwrap_err(), silent);
    assert_eq!(client.events().next().await, None);
    drop((client, server.client));
    assert!(weak.upgrade().is_none());
}

#[tokio::test(start_paused = true)]
async fn what_does_not_fit_into_a_line_is_refused_before_it_is_sent() {
    let mut server = Played::within(1_000);
    let client = server.client.clone();
    let mut asking = tokio::spawn(async move {
        // Half of it is escapes.
        let text = "\"".repeat(500);
        let refused = client.work(PromptSession::new("a", text)).await.map(|_| ()).unwrap_err();
        let ClientError::TooLong { bytes, bytes_max: 1_000 } = refused else { panic!("{refused:?}") };
        assert!((1_060..1_200).contains(&bytes), "{bytes}");
        let fits = client.call(ImportSession { session_id: "b".into(), text: "\"".repeat(400) }).await;
        (refused.to_string(), fits.unwrap_err())
    });
    let sent = tokio::select! {
        sent = server.lines.next_line() => sent.unwrap().unwrap(),
        ended = &mut asking => panic!("{ended:?}"),
    };
    assert!(sent.contains("session/import") && sent.len() < 1_000, "only what fits was sent: {sent}");
    // A server that cannot read a line and cannot tell whose it is.
    let error = json!({ "code": -32600, "message": "the line has more than 10 bytes" });
    server.say(&json!({ "jsonrpc": "2.0", "id": null, "error": error })).await;
    let (refused, unread) = asking.await.unwrap();
    assert!(refused.contains("bytes as a line of JSON, and a line may have 1000"), "{refused}");
    assert_eq!(unread, ClientError::Parameters("the line has more than 10 bytes".into()));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_read_is_waited_for_by_nobody() {
    let mut server = Played::within(6_000);
    let ask = |client: &Client| {
        let client = client.clone();
        tokio::spawn(async move { client.call(ListSessions::default()).await.map(|_| ()) })
    };
    let (first, second) = (ask(&server.client), ask(&server.client));
    server.lines.next_line().await.unwrap();
    server.lines.next_line().await.unwrap();
    server.say(&json!({ "id": 1, "result": "x".repeat(6_000) })).await;
    let malformed = first.await.unwrap().unwrap_err();
    assert!(matches!(&malformed, ClientError::Malformed(why) if why.contains("6000 bytes")), "{malformed}");
    // The connection goes on, and ends where nobody knows who waits for what was too long.
    server.say(&json!({ "id": 2, "result": { "sessions": [] } })).await;
    second.await.unwrap().unwrap();
    let third = ask(&server.client);
    server.lines.next_line().await.unwrap();
    server.say(&json!(["x".repeat(6_000)])).await;
    assert_eq!(third.await.unwrap(), Err(ClientError::Disconnected));
}

#[tokio::test(start_paused = true)]
async fn a_prompt_of_many_mebibytes_is_taken_on() {
    let (_simulator, runtime) = runtime(1, Pace::default()).await;
    let client = Client::in_process(&runtime, agent());
    // More than four mebibytes, and six times that as it is sent.
    let text = "\u{1}".repeat(5 << 20);
    let work = client.work(PromptSession::new("a", text)).await.unwrap();
    assert!(work.accepted.entry_id.is_some());
    client.close().await;
}

/// A server that a test plays.
struct Played {
    client: Client,
    lines: tokio::io::Lines<BufReader<tokio::io::ReadHalf<DuplexStream>>>,
    output: tokio::io::WriteHalf<DuplexStream>,
}

impl Played {
    fn new() -> Self {
        Self::within(LINE_BYTES_MAX)
    }

    /// Its client's lines have at most so many bytes.
    fn within(line_bytes_max: u64) -> Self {
        let (near, far) = tokio::io::duplex(1 << 16);
        let ((input, output), (read, write)) = (tokio::io::split(near), tokio::io::split(far));
        Self {
            client: Client::within(line_bytes_max, input, output),
            lines: BufReader::new(read).lines(),
            output: write,
        }
    }

    async fn say(&mut self, message: &serde_json::Value) {
        self.output.write_all(format!("{message}\n").as_bytes()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_hears_of_the_end_of_the_connection() {
    let mut server = Played::new();
    let client = server.client.clone();
    let call = tokio::spawn(async move { client.call(ListSessions::default()).await });
    assert!(server.lines.next_line().await.unwrap().unwrap().contains("session/list"));
    let client = server.client.clone();
    let work =
        tokio::spawn(async move { client.work(PromptSession::new("a", "one")).await?.outcome().await });
    server.lines.next_line().await.unwrap();
    server.say(&json!({ "jsonrpc": "2.0", "id": 2, "result": { "accepted": true, "entry_id": 0 } })).await;
    let Played { client, lines, output } = server;
    drop((lines, output));
    client.closed().await;
    assert_eq!(call.await.unwrap().unwrap_err(), ClientError::Disconnected);
    assert_eq!(work.await.unwrap().unwrap_err(), ClientError::Disconnected);
    assert_eq!(client.call(ListSessions::default()).await.unwrap_err(), ClientError::Disconnected);
    assert_eq!(client.events().next().await, None);
}

/// A host of a newer version is understood as far as it is known, and nothing of it is lost or an error.
#[tokio::test(start_paused = true)]
async fn what_a_newer_server_says_is_unknown_and_no_error() {
    let mut server = Played::new();
    let mut events = server.client.events_of("a");
    let params = json!({ "session_id": "a", "seq": 3, "at_ms": 1, "type": "image_end", "url": "a.png" });
    server.say(&json!({ "jsonrpc": "2.0", "method": "event", "params": params })).await;
    let Some(Received::Event(event)) = events.next().await else { panic!("no event") };
    assert!(matches!(&event.kind, EventKind::Unknown { name, .. } if name == "image_end"), "{event:?}");

    let client = server.client.clone();
    let call = tokio::spawn(async move { client.call(ListSessions::default()).await });
    server.lines.next_line().await.unwrap();
    let data = json!({ "kind": "moved", "class": "other", "message": "it has moved", "retryable": false });
    let error = json!({ "code": -32000, "message": "it has moved", "data": data });
    server.say(&json!({ "jsonrpc": "2.0", "id": 1, "error": error })).await;
    let refused = call.await.unwrap().unwrap_err();
    assert_eq!((refused.kind(), refused.to_string().as_str()), (Some(ProblemKind::Other), "it has moved"));

    let client = server.client.clone();
    let call = tokio::spawn(async move { client.call(ListQuestions::default()).await });
    server.lines.next_line().await.unwrap();
    let asked = |id: u64, kind: &str| {
        json!({
            "session_id": "a", "question_id": id, "run": 0, "call_id": "c", "tool": "t", "asker": "tool", "asked_at_ms": 1,
            "text": "Where?", "kind": kind, "map": "world",
        })
    };
    let questions = json!({ "questions": [asked(4, "place"), asked(5, "text")] });
    server.say(&json!({ "jsonrpc": "2.0", "id": 2, "result": questions })).await;
    let listed = call.await.unwrap().unwrap().questions;
    let kinds: Vec<_> = listed.iter().map(|asked| (asked.id.0, &asked.question.kind)).collect();
    assert_eq!(kinds, [(4, &QuestionKind::Unknown), (5, &QuestionKind::Text)]);
}

#[tokio::test(start_paused = true)]
async fn a_slow_listener_is_told_of_the_gap_and_nobody_waits_for_it() {
    let mut server = Played::new();
    let mut events = server.client.events_of("a");
    let total = super::events::EVENTS_MAX as u64 + 500;
    for seq in 0..total {
        let event = Event::new("a", seq, EventKind::RunStart);
        server.say(&json!({ "jsonrpc": "2.0", "method": "event", "params": event })).await;
    }
    let client = server.client.clone();
    let call = tokio::spawn(async move { client.call(ListSessions::default()).await });
    server.lines.next_line().await.unwrap();
    server.say(&json!({ "jsonrpc": "2.0", "id": 1, "result": { "sessions": [] } })).await;
    assert!(call.await.unwrap().is_ok(), "an answer comes past the events that wait");
    let mut next = 0;
    loop {
        match events.next().await.unwrap() {
            Received::Event(event) => {
                assert_eq!(event.seq, next);
                next += 1;
            }
            Received::Gap { session_id, from_seq } => {
                assert_eq!((session_id.as_str(), from_seq), ("a", Some(next)));
                break;
            }
            Received::Warning(warning) => panic!("{warning}"),
        }
    }
    assert_eq!(next, super::events::EVENTS_MAX as u64);
    assert_eq!(events.try_next(), None);
}

#[tokio::test(start_paused = true)]
async fn a_gap_of_the_server_is_handed_on() {
    let mut server = Played::new();
    let mut events = server.client.events();
    let gap = json!({ "type": "gap", "session_id": "a", "from": 4, "to": 9, "from_seq": 3 });
    server.say(&json!({ "jsonrpc": "2.0", "method": "event", "params": gap })).await;
    assert_eq!(events.next().await, Some(Received::Gap { session_id: "a".into(), from_seq: Some(3) }));
}
