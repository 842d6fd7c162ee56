//! The order and time of requests to a runtime that the test plays, and that does not reply by itself.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use greenroom_server::Client;
use greenroom_server::operations::Sent;
use greenroom_tools::Workspace;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc::unbounded_channel;
use tokio::time::Instant;

use super::*;

/// A request that does not arrive within this time never arrives; on a paused clock the wait ends at once.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// The runtime at the other end of the connection.
struct Runtime {
    requests: tokio::io::Lines<BufReader<ReadHalf<DuplexStream>>>,
    answers: WriteHalf<DuplexStream>,
}

impl Runtime {
    /// Returns the id, the method and the text of the next request.
    async fn hears(&mut self) -> (Value, String, String) {
        let line = tokio::time::timeout(PATIENCE, self.requests.next_line()).await;
        let line = line.expect("a request comes").unwrap().unwrap();
        let mut request: Value = serde_json::from_str(&line).unwrap();
        let method = request["method"].as_str().unwrap().to_owned();
        let text = request["params"]["text"].as_str().unwrap_or_default().to_owned();
        (request["id"].take(), method, text)
    }

    async fn answers(&mut self, id: &Value, result: Value) {
        let line = json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string() + "\n";
        self.answers.write_all(line.as_bytes()).await.unwrap();
    }
}

/// Opens a session with such a runtime.
async fn session() -> (Backend, Runtime) {
    let (near, far) = tokio::io::duplex(1 << 16);
    let (input, output) = tokio::io::split(near);
    let client = Client::new(input, output);
    let (requests, answers) = tokio::io::split(far);
    let mut runtime = Runtime { requests: BufReader::new(requests).lines(), answers };
    let starts = async {
        let (id, _, _) = runtime.hears().await;
        runtime.answers(&id, json!({ "session_id": "s" })).await;
    };
    let (opened, ()) = tokio::join!(Backend::open(client, "s"), starts);
    (opened.unwrap().0, runtime)
}

fn said(backend: &Backend, ticket: u64, kind: Kind, text: &str) -> Order {
    Order::Send(Box::new(Said {
        backend: backend.clone(),
        ticket,
        kind,
        text: text.to_owned(),
        names: text.to_owned(),
        is_typed: true,
        settings: ModelSettings::default(),
        told: vec![format!("told with {ticket}")],
    }))
}

fn local(folder: &Path) -> Arc<Local> {
    Arc::new(Local::of(Workspace::open(folder).unwrap()))
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_waits_for_nothing_and_what_had_not_gone_out_comes_back() {
    let (backend, mut runtime) = session().await;
    let folder = tempfile::tempdir().unwrap();
    let ((orders, ordered), (done, mut results)) = (unbounded_channel(), unbounded_channel());
    tokio::spawn(obey(ordered, done, local(folder.path())));
    let began = Instant::now();
    for (ticket, text) in [(1, "one"), (2, "two"), (3, "three")] {
        orders.send(said(&backend, ticket, Kind::Steer, text)).unwrap();
    }
    let (steer, method, text) = runtime.hears().await;
    assert_eq!((method.as_str(), text.as_str()), ("session/steer", "one\n\ntold with 1"));
    // The runtime does not reply to this request, and still accepts the interrupt.
    orders.send(Order::Interrupt(backend.clone())).unwrap();
    let (clear, method, _) = runtime.hears().await;
    assert_eq!(method, "session/clear_inbox");
    let (abort, method, _) = runtime.hears().await;
    assert_eq!(method, "agent/abort");
    assert_eq!(began.elapsed().as_millis(), 0);
    // The two inputs behind it return, and so does their command output.
    for told in ["told with 2", "told with 3"] {
        let Some(Done::Told(_, text)) = results.recv().await else { panic!("{told} is lost") };
        assert_eq!(text, told);
    }
    let Some(Done::TakenBack(tickets)) = results.recv().await else { panic!("they are lost") };
    assert_eq!(tickets, [2, 3]);
    // Sent input ends as the runtime replies.
    runtime.answers(&steer, json!({ "entry_id": 7 })).await;
    runtime.answers(&clear, json!({ "withdrawn": 1 })).await;
    runtime.answers(&abort, json!({ "session_id": "s" })).await;
    let Some(Done::Sent(1, Ok(Sent { entry_id: entry, .. }))) = results.recv().await else {
        panic!("it is not told")
    };
    assert_eq!(entry.0, 7);
    // The next input is sent.
    orders.send(said(&backend, 4, Kind::FollowUp, "four")).unwrap();
    let (_, method, text) = runtime.hears().await;
    assert_eq!((method.as_str(), text.as_str()), ("session/follow_up", "four\n\ntold with 4"));
    // The senders are gone, and work in progress continues until the connection ends.
    drop((orders, runtime));
    while results.recv().await.is_some() {}
}

#[tokio::test]
async fn a_picture_goes_with_a_steer_and_with_a_follow_up() {
    let (backend, mut runtime) = session().await;
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.png"), b"\x89PNG\r\n\x1a\n a").unwrap();
    let ((orders, ordered), (done, _results)) = (unbounded_channel(), unbounded_channel());
    tokio::spawn(obey(ordered, done, local(folder.path())));
    for (kind, wanted) in [(Kind::Steer, "session/steer"), (Kind::FollowUp, "session/follow_up")] {
        orders.send(said(&backend, 1, kind, "look at @a.png")).unwrap();
        let line = runtime.requests.next_line().await.unwrap().unwrap();
        let request: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(request["method"], wanted);
        assert_eq!(request["params"]["images"][0]["media_type"], "image/png");
        runtime.answers(&request["id"], json!({ "entry_id": 1 })).await;
    }
}

/// However far a prompt has got when the user interrupts, its run does not continue.
#[expect(clippy::wildcard_enum_match_arm, reason = "all else says nothing of how it ends")]
#[tokio::test(start_paused = true)]
async fn an_interrupt_right_behind_a_prompt_is_not_lost() {
    use greenroom::RunOutcome;
    use greenroom::{EventKind, Record};
    use greenroom_server::Received;
    use greenroom_simulator::{Answer, CallInfo, Function, Pace, SeenRequest, Simulator, SimulatorOptions};

    let pace = Pace { chunks: 100, first_ms: 60_000, between_ms: 60_000 };
    let script =
        Function(move |_: &SeenRequest, _: CallInfo| Answer::text("a word ".repeat(100)).with_pace(pace));
    let simulator = Simulator::new(SimulatorOptions::new(script));
    let runtime =
        greenroom::Runtime::builder().provider(simulator.provider()).in_memory().start().await.unwrap();
    let agent = greenroom::Agent::new("simulated").context_window(100_000);
    let client = Client::in_process(&runtime, agent);
    let folder = tempfile::tempdir().unwrap();
    let local = local(folder.path());
    let (mut aborted, mut given_back) = (0, 0);
    for steps in 0..150 {
        let id = format!("s{steps}");
        let (backend, mut events) = Backend::open(client.clone(), &id).await.unwrap();
        let ((orders, ordered), (done, mut results)) = (unbounded_channel(), unbounded_channel());
        let obeying = tokio::spawn(obey(ordered, done, Arc::clone(&local)));
        orders.send(said(&backend, 1, Kind::Prompt, "go on and on")).unwrap();
        for _ in 0..steps {
            tokio::task::yield_now().await;
        }
        orders.send(Order::Interrupt(backend.clone())).unwrap();
        drop(orders);
        // Any of these ends it: nothing was sent, the prompt was withdrawn, or its run was interrupted.
        let is_aborted = loop {
            tokio::select! {
                Some(result) = results.recv() => match result {
                    Done::TakenBack(tickets) if !tickets.is_empty() => break false,
                    Done::Sent(_, Err(_)) => break false,
                    _ => {}
                },
                Some(Received::Event(event)) = events.next() => match &event.kind {
                    EventKind::RunEnd { outcome, .. } => {
                        assert_eq!(*outcome, RunOutcome::Aborted, "after {steps} steps");
                        break true;
                    }
                    EventKind::Recorded { record: Record::InboxCleared { .. }, .. } => break false,
                    _ => {}
                },
            }
        };
        aborted += usize::from(is_aborted);
        given_back += usize::from(!is_aborted);
        obeying.await.unwrap();
    }
    assert!(aborted >= 100 && aborted + given_back == 150, "{aborted} aborted, {given_back} given back");
    client.close().await;
}
