//! A host and its clients, over pipes in memory.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greenroom::EventKind;
use greenroom::{Agent, Runtime, SharedProvider};
use greenroom_simulator::{Answer, Function, Pace, SeenRequest, Simulator, SimulatorOptions};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, DuplexStream};
use tokio::sync::broadcast;

use super::{Defined, Definer, Host};
use crate::client::{Client, ClientError, Received};
use crate::operations::{
    Abort, BranchSession, ClearInbox, ClientKind, CompactSession, DeleteSession, FollowUp, ForkSession,
    GetSession, GetState, Hello, HelloAnswer, HostStatus, ListSessions, Nothing, Operation, PROTOCOL,
    PingHost, PromptSession, SetLabel, SetTitle, StartSession, Steer, StopHost, Task,
};
use crate::problem::{Problem, ProblemKind};

/// Each person has a model of their own, which says whose it is.
#[derive(Clone, Default)]
struct People(Arc<Mutex<HashMap<String, Person>>>);

#[derive(Clone)]
struct Person {
    model: Simulator,
    agent: Arc<Agent>,
    news: broadcast::Sender<String>,
}

impl People {
    fn person(&self, name: &str) -> Person {
        let mut people = self.0.lock().unwrap();
        let person = people.entry(name.to_owned()).or_insert_with(|| {
            let answer = format!("{name}: {}", "word ".repeat(40));
            let pace = Pace { chunks: 40, first_ms: 1_000, between_ms: 500 };
            let script = Function(move |_: &SeenRequest, _: _| Answer::text(answer.clone()).with_pace(pace));
            let model = Simulator::new(SimulatorOptions::new(script));
            let agent = Agent::new("simulated")
                .context_window(100_000)
                .own_provider(&SharedProvider::new(model.provider()));
            Person { model, agent: Arc::new(agent), news: broadcast::channel(4).0 }
        });
        person.clone()
    }
}

impl Definer for People {
    fn define(&self, definition: Value) -> Task<Result<Defined, Problem>> {
        let people = self.clone();
        Box::pin(async move {
            let Some(name) = definition.as_str() else {
                return Err(Problem::new(ProblemKind::Invalid, "a definition is a name"));
            };
            let Person { agent, news, .. } = people.person(name);
            let warnings = vec![format!("hello {name}")];
            Ok(Defined {
                agent,
                labels: [("whose".to_owned(), name.to_owned())].into(),
                warnings,
                news: Some(news.subscribe()),
            })
        })
    }
}

struct Fixture {
    host: Host,
    people: People,
    runtime: Runtime,
}

impl Fixture {
    async fn new() -> Self {
        let nobody = Simulator::echo();
        let runtime = Runtime::builder().provider(nobody.provider()).in_memory().start().await.unwrap();
        let people = People::default();
        Self { host: Host::new(&runtime, people.clone(), "1.2.3"), people, runtime }
    }

    /// A client that has not said who it is.
    fn stranger(&self) -> Client {
        let (input, output) = tokio::io::split(self.connection());
        Client::new(input, output)
    }

    fn connection(&self) -> DuplexStream {
        let (near, far) = tokio::io::duplex(1 << 20);
        let (input, output) = tokio::io::split(far);
        tokio::spawn(self.host.serve(input, output));
        near
    }

    async fn client(&self, kind: ClientKind, name: &str) -> Client {
        let client = self.stranger();
        let answer = client.call(hello(kind, Some(json!(name)))).await.unwrap();
        assert_eq!(answer.warnings, [format!("hello {name}")]);
        client
    }
}

fn hello(kind: ClientKind, definition: Option<Value>) -> Hello {
    Hello { protocol: PROTOCOL, version: "test".to_owned(), kind, definition }
}

async fn status(client: &Client, id: &str) -> greenroom::Status {
    client.call(GetState { session_id: id.to_owned() }).await.unwrap().status
}

#[tokio::test(start_paused = true)]
async fn who_the_client_is_comes_first_and_fits_or_not() {
    let place = Fixture::new().await;
    let client = place.stranger();
    let refused = client.call(ListSessions::default()).await.unwrap_err();
    assert!(refused.to_string().contains("client/hello"), "{refused}");
    let other = Hello { protocol: PROTOCOL + 1, ..hello(ClientKind::Run, None) };
    let refused = client.call(other).await.unwrap_err();
    assert_eq!(refused.kind(), Some(ProblemKind::Version));
    assert!(refused.to_string().contains("greenroom 1.2.3"), "{refused}");
    let refused = client.call(hello(ClientKind::Run, Some(json!(7)))).await.unwrap_err();
    assert_eq!(refused.kind(), Some(ProblemKind::Invalid));
    let HelloAnswer { version, pid, .. } = client.call(hello(ClientKind::Watch, None)).await.unwrap();
    assert_eq!((version.as_str(), pid), ("1.2.3", std::process::id()));
    assert!(client.call(ListSessions::default()).await.is_ok(), "who has no agent may look");
    let refused = client.work(PromptSession::new("a", "x")).await.map(|_| ()).unwrap_err();
    assert!(matches!(&refused, ClientError::Parameters(text) if text.contains("definition")), "{refused}");
    assert!(client.call(hello(ClientKind::Watch, None)).await.is_err(), "once");
    let shown = format!("{:?}", hello(ClientKind::Run, Some(json!("secret"))));
    assert!(!shown.contains("secret"), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn who_has_not_said_hello_has_short_lines_and_little_time() {
    let place = Fixture::new().await;
    let mut stream = BufReader::new(place.connection());
    let answer = async |stream: &mut BufReader<DuplexStream>| {
        let mut line = String::new();
        // `None`: the host has ended the connection.
        (stream.read_line(&mut line).await.unwrap() > 0)
            .then(|| serde_json::from_str::<Value>(&line).unwrap())
    };
    let say = |id: u64, name: String| {
        let params = hello(ClientKind::Chat, Some(json!(name)));
        format!("{}\n", json!({ "id": id, "jsonrpc": "2.0", "method": "client/hello", "params": params }))
    };
    // It does not wait for the end of the line to be short of memory: 2 MiB are more than the pipe holds.
    stream.write_all(say(1, "a".repeat(2 << 20)).as_bytes()).await.unwrap();
    let refused = answer(&mut stream).await.unwrap();
    assert_eq!((&refused["id"], &refused["error"]["code"]), (&json!(1), &json!(-32_600)));
    let reason = refused["error"]["message"].as_str().unwrap();
    assert!(reason.contains("1048576 bytes") && reason.contains("client/hello"), "{reason}");
    stream.write_all(say(2, "ada".to_owned()).as_bytes()).await.unwrap();
    assert_eq!(answer(&mut stream).await.unwrap()["result"]["warnings"], json!(["hello ada"]));
    // Afterwards lines are as long as any, and come when they do.
    tokio::time::sleep(Duration::from_secs(60)).await;
    stream.write_all(say(3, "a".repeat(2 << 20)).as_bytes()).await.unwrap();
    let refused = answer(&mut stream).await.unwrap();
    assert_eq!(refused["error"]["message"], json!("`client/hello` was already sent"));
    // A client that sends half a line and nothing more.
    let mut silent = BufReader::new(place.connection());
    silent.write_all(b"{\"jsonrpc\":").await.unwrap();
    let refused = answer(&mut silent).await.unwrap();
    assert!(refused["error"]["message"].as_str().unwrap().contains("30 s"), "{refused}");
    assert_eq!(answer(&mut silent).await, None, "the connection is closed");
}

#[tokio::test(start_paused = true)]
async fn few_are_let_in_at_once_who_have_not_said_hello() {
    let place = Fixture::new().await;
    let within = |ms: u64| tokio::time::timeout(Duration::from_millis(ms), place.host.room());
    let mut strangers = Vec::new();
    for _ in 0..64 {
        within(1).await.expect("there is room for 64");
        strangers.push(place.stranger());
    }
    assert!(within(1).await.is_err(), "there is no room for another");
    strangers[7].call(hello(ClientKind::Watch, None)).await.unwrap();
    within(1).await.expect("one has said who it is");
    strangers.push(place.stranger());
    assert!(within(1).await.is_err());
    strangers.pop().unwrap().close().await;
    within(1).await.expect("one is gone");
    drop(place.client(ClientKind::Chat, "ada").await);
    strangers.push(place.stranger());
    assert!(within(29_000).await.is_err());
    within(2_000).await.expect("their time is over");
    strangers[7].call(ListSessions::default()).await.expect("a client that sent hello stays connected");
    assert!(strangers[8].call(PingHost {}).await.is_err(), "the others are gone");
}

#[tokio::test(start_paused = true)]
async fn two_clients_of_a_session_hear_the_same_and_each_is_answered_by_their_own() {
    let place = Fixture::new().await;
    let ada = place.client(ClientKind::Chat, "ada").await;
    let bob = place.client(ClientKind::Chat, "bob").await;
    let start = || StartSession { session_id: "a".to_owned() };
    let (mut hers, mut his) = (ada.events_of("a"), bob.events_of("a"));
    ada.call(start()).await.unwrap();
    bob.call(start()).await.unwrap();
    let first = ada.work(PromptSession::new("a", "one")).await.unwrap();
    // Both wait for her run, and then begin runs of his.
    let steer = Steer::new("a", "two");
    bob.call(steer).await.unwrap();
    bob.call(FollowUp::new("a", "three")).await.unwrap();
    let last = ada.work(PromptSession::new("a", "four")).await.unwrap();
    assert!(first.outcome().await.unwrap().reply.text.starts_with("ada:"));
    assert!(last.outcome().await.unwrap().reply.text.starts_with("ada:"));
    let heard = |events: &mut crate::client::Events| {
        let mut heard = Vec::new();
        while let Some(received) = events.try_next() {
            let Received::Event(event) = received else { panic!("{received:?}") };
            heard.push((event.seq, event.n, event.kind.name()));
        }
        heard
    };
    bob.call(ListSessions::default()).await.unwrap();
    let (hers, his) = (heard(&mut hers), heard(&mut his));
    assert!(hers.len() > 100, "{}", hers.len());
    assert_eq!(hers, his);
    let asked = |name: &str| -> Vec<String> {
        let requests = place.people.person(name).model.requests();
        requests.iter().map(|logged| logged.request.messages.last().unwrap().text()).collect()
    };
    assert_eq!(asked("ada"), ["one", "four"]);
    assert_eq!(asked("bob").concat(), ["two", "three"].concat());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_takes_its_runs_with_it_or_not() {
    for (kind, goes_on) in [(ClientKind::Run, false), (ClientKind::Chat, true)] {
        let place = Fixture::new().await;
        let watch = place.client(ClientKind::Chat, "bob").await;
        let (client, mut events) = (place.client(kind, "ada").await, watch.events_of("a"));
        let work = client.work(PromptSession::new("a", "one")).await.unwrap();
        watch.call(StartSession { session_id: "a".to_owned() }).await.unwrap();
        drop((work, client));
        let end = loop {
            let Some(Received::Event(event)) = events.next().await else { panic!("{kind:?}") };
            if let EventKind::RunEnd { outcome, .. } = &event.kind {
                break outcome.as_str().to_owned();
            }
        };
        assert_eq!(end, if goes_on { "completed" } else { "aborted" }, "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_abort_of_ones_own_run_harms_no_other() {
    let place = Fixture::new().await;
    let ada = place.client(ClientKind::Chat, "ada").await;
    let bob = place.client(ClientKind::Run, "bob").await;
    let hers = ada.work(PromptSession::new("a", "one")).await.unwrap();
    let his = bob.work(PromptSession::new("a", "two")).await.unwrap();
    let entry_id = his.accepted.entry_id;
    bob.call(Abort { session_id: "a".to_owned(), entry_id }).await.unwrap();
    // Another connection's run is not his to abort by its entry.
    bob.call(Abort { session_id: "a".to_owned(), entry_id: hers.accepted.entry_id }).await.unwrap();
    assert_eq!(his.outcome().await.unwrap_err().kind(), Some(ProblemKind::Aborted));
    assert!(hers.outcome().await.unwrap().reply.text.starts_with("ada:"));
    assert_eq!(place.people.person("bob").model.calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn news_reach_those_whom_they_concern() {
    let place = Fixture::new().await;
    let ada = place.client(ClientKind::Chat, "ada").await;
    let bob = place.client(ClientKind::Chat, "bob").await;
    let (mut hers, mut his) = (ada.events_of("a"), bob.events());
    place.people.person("ada").news.send("a bad edit".to_owned()).unwrap();
    assert_eq!(hers.next().await, Some(Received::Warning("a bad edit".to_owned())));
    bob.call(ListSessions::default()).await.unwrap();
    assert_eq!(his.try_next(), None);
}

#[tokio::test(start_paused = true)]
async fn it_ends_when_it_is_idle_or_told_to() {
    let place = Fixture::new().await;
    let idle = |host: Host| tokio::spawn(async move { host.idle(Duration::from_secs(60)).await });
    let ended = idle(place.host.clone());
    let ada = place.client(ClientKind::Chat, "ada").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!ended.is_finished(), "a client is there");
    let work = ada.work(PromptSession::new("a", "one")).await.unwrap();
    let bob = place.client(ClientKind::Watch, "bob").await;
    assert_eq!(status(&bob, "a").await, greenroom::Status::Working);
    assert_eq!(bob.call(PingHost {}).await.unwrap().pid, std::process::id());
    let state = bob.call(HostStatus::default()).await.unwrap();
    assert_eq!((state.clients.len(), state.at_work), (2, vec!["a".to_owned()]));
    assert_eq!(state.clients[0].sessions, ["a"]);
    let refused = bob.call(StopHost::default()).await.unwrap_err();
    assert_eq!(refused.kind(), Some(ProblemKind::Busy));
    drop((work, ada, bob));
    // Her run goes on for 21 s, and then a minute passes.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(!ended.is_finished(), "it was at work");
    tokio::time::timeout(Duration::from_secs(30), ended).await.unwrap().unwrap();
    // Told to.
    let ended = idle(place.host.clone());
    let bob = place.client(ClientKind::Watch, "bob").await;
    bob.call(StopHost::default()).await.unwrap();
    tokio::time::timeout(Duration::from_millis(10), ended).await.unwrap().unwrap();
    place.runtime.shutdown().await.unwrap();
}

/// One that is to end at once still waits for who started it, and for the work that is left to it.
#[tokio::test(start_paused = true)]
async fn without_any_patience_it_serves_its_first_client_and_finishes_the_work() {
    let place = Fixture::new().await;
    let idle = |host: Host| tokio::spawn(async move { host.idle(Duration::ZERO).await });
    let ended = idle(place.host.clone());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!ended.is_finished(), "nobody has come yet");
    let ada = place.client(ClientKind::Chat, "ada").await;
    let work = ada.work(PromptSession::new("a", "one")).await.unwrap();
    drop((work, ada));
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert!(!ended.is_finished(), "her run goes on for 21 s");
    tokio::time::timeout(Duration::from_secs(10), ended).await.unwrap().unwrap();
    // Where nobody comes at all.
    let other = Fixture::new().await;
    tokio::time::timeout(Duration::from_secs(15), idle(other.host.clone())).await.unwrap().unwrap();
}

/// A read-only client may compact a live session with the session's own agent, and may not change it otherwise.
#[tokio::test(start_paused = true)]
async fn who_looks_on_has_a_live_session_compacted_by_its_own_agent() {
    let place = Fixture::new().await;
    let ada = place.client(ClientKind::Chat, "ada").await;
    ada.work(PromptSession::new("a", "one")).await.unwrap().outcome().await.unwrap();
    let watcher = place.stranger();
    watcher.call(hello(ClientKind::Watch, None)).await.unwrap();
    let mut events = watcher.events_of("a");
    let compact =
        || CompactSession { session_id: "a".to_owned(), keep_recent: None, focus: None, force: false };
    let ended = watcher.work(compact()).await.unwrap().outcome().await;
    // It was taken on; there is too little to compact.
    assert!(!ended.unwrap().installed);
    let steer = Steer::new("a", "x");
    assert!(watcher.call(steer).await.is_err(), "it begins nothing");
    ada.work(PromptSession::new("a", "two")).await.unwrap().outcome().await.unwrap();
    assert!(events.try_next().is_some(), "its events are told");
    place.runtime.close("a").await.unwrap();
    assert!(watcher.work(compact()).await.is_err(), "what sleeps is not woken");
}

/// A client of kind `watch` changes nothing; other clients without an agent may perform changes that need no agent.
#[tokio::test(start_paused = true)]
async fn who_looks_on_changes_nothing() {
    let place = Fixture::new().await;
    let ada = place.client(ClientKind::Chat, "ada").await;
    ada.work(PromptSession::new("a", "one")).await.unwrap().outcome().await.unwrap();
    let watcher = place.stranger();
    watcher.call(hello(ClientKind::Watch, None)).await.unwrap();
    let id = || "a".to_owned();
    let title = "x".to_owned();
    refused(&watcher, SetTitle { session_id: id(), title }).await;
    refused(&watcher, SetLabel { session_id: id(), name: "x".to_owned(), value: None }).await;
    refused(&watcher, ForkSession { session_id: id(), to: "b".to_owned(), entry_id: None, goal: None }).await;
    refused(&watcher, ClearInbox { session_id: id(), entry_id: None }).await;
    refused(&watcher, BranchSession { session_id: id(), entry_id: None, summary: false }).await;
    refused(&watcher, DeleteSession { session_id: id() }).await;
    refused(&watcher, StopHost { force: true }).await;
    let known = ada.call(GetSession { session_id: id() }).await.unwrap().session;
    assert!(known.labels.keys().eq(["whose"]), "{:?}", known.labels);
    watcher.call(Abort::current("a")).await.unwrap();
    // One that begins things, and needs no agent for this.
    let other = place.stranger();
    other.call(hello(ClientKind::Run, None)).await.unwrap();
    other.call(DeleteSession { session_id: id() }).await.unwrap();
    ada.close().await;
    let busy = place.client(ClientKind::Watch, "bob").await;
    busy.call(StopHost::default()).await.unwrap();
}

/// It is refused what it asks, with the reason.
async fn refused<O: Operation<Outcome = Nothing>>(watcher: &Client, operation: O) {
    let refused = watcher.call(operation).await.map(|_| ()).unwrap_err();
    let is_clear =
        matches!(&refused, ClientError::Parameters(text) if text.contains("this client is read-only"));
    assert!(is_clear, "{}: {refused}", O::METHOD);
}
