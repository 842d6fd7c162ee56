//! Streams of events: nothing durable is missing or there twice, whoever is slow, leaves or is restarted.

use std::collections::{BTreeMap, VecDeque};

use greenroom::{Delivery, Position};
use greenroom_simulator::SeenRequest;
use reqwest::Response;

use super::operations::request;
use super::*;
use crate::http::Token;
use crate::operations::{Label, Right};

/// One event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Told {
    pub(super) id: Option<String>,
    name: Option<String>,
    pub(super) data: Value,
}

impl Told {
    fn kind(&self) -> &str {
        self.data["type"].as_str().unwrap_or_default()
    }
}

/// A client that reads server-sent events, and remembers the last id.
pub(super) struct Reader {
    response: Response,
    text: String,
    pub(super) last: Option<String>,
    ready: VecDeque<Told>,
}

impl Reader {
    pub(super) async fn open(server: &HttpServer, token: &str, path: &str, last: Option<&str>) -> Self {
        let mut request = client().get(format!("http://{}{path}", server.address())).bearer_auth(token);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        Self::of(request.send().await.unwrap())
    }

    fn of(response: Response) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self { response, text: String::new(), last: None, ready: VecDeque::new() }
    }

    /// The next event; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> Option<Told> {
        loop {
            while let Some(told) = self.ready.pop_front() {
                self.last = told.id.clone().or(self.last.take());
                // An id alone is where the stream begins.
                if !told.data.is_null() {
                    return Some(told);
                }
            }
            let chunk = self.response.chunk().await.ok()??;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
            while let Some((block, rest)) = self.text.split_once("\n\n") {
                let field = |name: &str| {
                    block
                        .lines()
                        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
                        .map(str::to_owned)
                };
                let (id, name, data) = (field("id"), field("event"), field("data"));
                let data = data.map_or(Value::Null, |data| serde_json::from_str(&data).unwrap());
                self.ready.push_back(Told { id, name, data });
                self.text = rest.to_owned();
            }
        }
    }

    /// Whether the stream ends in order, and is not cut off, whatever comes before.
    async fn ends(&mut self) -> bool {
        loop {
            match self.response.chunk().await {
                Ok(Some(_)) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Reads up to the first event of this type.
    pub(super) async fn until(&mut self, kind: &str) -> Vec<Told> {
        let mut told = Vec::new();
        loop {
            let next = self.next().await.unwrap_or_else(|| panic!("it ended before {kind}: {}", told.len()));
            let is_it = next.kind() == kind;
            told.push(next);
            if is_it {
                return told;
            }
        }
    }
}

async fn prompt(server: &HttpServer, token: &str, id: &str, text: &str) -> (u16, Value) {
    let params = json!({ "session_id": id, "text": text });
    let response = request(server, "session/prompt", &params).bearer_auth(token).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// Numbers below a limit, by xorshift.
fn numbers(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        usize::try_from(state >> 1).unwrap() % below
    }
}

/// The durable events that a client has got, by session, by creation time and number.
#[derive(Default)]
struct Got(BTreeMap<String, Vec<(u64, u64)>>);

impl Got {
    fn add(&mut self, told: &Told) {
        if told.id.is_none() {
            return;
        }
        let number = |name: &str| told.data[name].as_u64().unwrap();
        let of = self.0.entry(told.data["session_id"].as_str().unwrap().to_owned()).or_default();
        of.push((number("session_created_at_ms"), number("seq")));
    }
}

/// A client that is cut off, and a server that is killed, again and again: from the beginning of the first stream on, it has
/// each durable event of its scope once, and in order.
#[tokio::test]
async fn a_client_that_comes_back_misses_nothing_and_gets_nothing_twice() {
    let seed = 20_261_127;
    for (path, sessions) in [
        ("/v1/sessions/a/events?tree=true", &["a"][..]),
        ("/v1/events", &["a", "b", "c"]),
        ("/v1/events?label=tenant:x", &["b", "c"]),
        ("/v1/events?durable=true", &["a", "b", "c"]),
    ] {
        let (mut random, store) = (numbers(seed), Store::memory());
        let simulator = Simulator::echo();
        let (mut last, mut got, mut killed) = (Some("0".to_owned()), Got::default(), 0);
        let start = async || {
            Runtime::builder().provider(simulator.provider()).store(store.clone()).start().await.unwrap()
        };
        let first = start().await;
        let server = serve(&first, |_| {}).await;
        for id in ["a", "b", "c"] {
            prompt(&server, TOKEN, id, "first").await;
            if id != "a" {
                let label = json!({ "session_id": id, "name": "tenant", "value": "x" });
                request(&server, "session/set_label", &label).bearer_auth(TOKEN).send().await.unwrap();
            }
        }
        server.stop().await;
        drop(first);
        for round in 0..50 {
            let runtime = start().await;
            let server = serve(&runtime, |_| {}).await;
            // It is there before, in the middle of, or after what happens.
            let prompts = random(4);
            let ids: Vec<&str> = (0..prompts).map(|_| ["a", "b", "c"][random(3)]).collect();
            let reads = random(30);
            let working = async {
                for id in &ids {
                    prompt(&server, TOKEN, id, &format!("round {round}")).await;
                }
            };
            let reading = async {
                let mut reader = Reader::open(&server, TOKEN, path, last.as_deref()).await;
                for _ in 0..reads {
                    let next = tokio::time::timeout(Duration::from_millis(10), reader.next()).await;
                    let Ok(Some(told)) = next else { break };
                    got.add(&told);
                }
                // What has arrived and was not taken is lost with the client.
                reader.last
            };
            let (kept, ()) = tokio::join!(reading, working);
            last = kept.or(last);
            drop((server, runtime));
            killed += 1;
        }
        let runtime = start().await;
        let server = serve(&runtime, |_| {}).await;
        let mut reader = Reader::open(&server, TOKEN, path, last.as_deref()).await;
        prompt(&server, TOKEN, sessions[0], "the last one").await;
        loop {
            let told = reader.next().await.unwrap();
            got.add(&told);
            if told.kind() == "run_end" && told.data["session_id"] == sessions[0] {
                let end = store.head(sessions[0]).unwrap().unwrap().entries;
                if told.data["seq"].as_u64() == Some(end - 1) {
                    break;
                }
            }
        }
        assert_eq!(got.0.keys().collect::<Vec<_>>(), sessions, "{path}, seed {seed}");
        for (id, events) in &got.0 {
            let log = runtime.replay(id, 0).await.unwrap();
            let wanted: Vec<(u64, u64)> =
                log.iter().map(|event| (event.session_created_at_ms, event.seq)).collect();
            assert_eq!(*events, wanted, "{path} {id}, seed {seed}");
        }
        assert_eq!(killed, 50);
        simulator.assert_clean();
    }
}

/// What is in the log and in the subscription comes once, and what is in neither's order is read from the log.
#[tokio::test]
async fn what_happens_while_the_log_is_read_comes_once() {
    let simulator = Simulator::echo();
    let runtime = Runtime::builder().provider(simulator.provider()).in_memory().start().await.unwrap();
    let session = runtime.open("a", Arc::new(Agent::new("simulated"))).await.unwrap();
    session.prompt("before").await.unwrap();
    for after in ["0", "0,1.7.other", ""] {
        let first = if after.is_empty() { session.state().await.unwrap().entries } else { 0 };
        let mut follow = match after {
            "" => runtime.follow(Position::default()).from_now().await.unwrap(),
            after => runtime.follow(Position::parse(after).unwrap()),
        };
        // It has subscribed, and has not read the log.
        session.prompt("meanwhile").await.unwrap();
        let mut durable = Vec::new();
        while let Some(delivery) = follow.try_next_delivery().await.unwrap() {
            match delivery {
                Delivery::Event(event) if event.is_durable() => durable.push(event.seq),
                Delivery::Event(_) => {}
                Delivery::Gap { .. } => panic!("it is not slow"),
            }
        }
        let entries = session.state().await.unwrap().entries;
        assert_eq!(durable, (first..entries).collect::<Vec<_>>(), "{after:?}");
    }
}

/// What does not fit into a subscriber's queue is a gap, after which what is durable follows, and what is in progress.
#[tokio::test]
async fn a_slow_reader_gets_a_gap_and_then_all_that_is_durable() {
    let model = Simulator::new(SimulatorOptions::new(Function(|_: &SeenRequest, _| {
        Answer::text("word ".repeat(60_000))
    })));
    let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await.unwrap();
    let agent = Arc::new(Agent::new("simulated").context_window(10_000_000));
    let session = runtime.open("a", Arc::clone(&agent)).await.unwrap();
    session.prompt("before").await.unwrap();
    let mut follow = session.follow(Position::default()).from_now().await.unwrap();
    assert!(follow.try_next_delivery().await.unwrap().is_none(), "the log has been read");
    for round in 0..8 {
        session.prompt(format!("prompt {round}")).await.unwrap();
    }
    let entries = session.state().await.unwrap().entries;
    let (mut durable, mut gaps) = (Vec::new(), 0);
    while let Some(delivery) = follow.try_next_delivery().await.unwrap() {
        match delivery {
            Delivery::Gap { .. } => gaps += 1,
            Delivery::Event(event) if event.is_durable() => durable.push(event.seq),
            Delivery::Event(_) => {}
        }
    }
    assert_eq!(gaps, 1);
    assert_eq!(durable, (3..entries).collect::<Vec<_>>());
    let position = follow.position().to_string();
    assert_eq!(Position::parse(&position).unwrap().to_string(), position);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_cut_off_and_one_that_is_told_nothing_is_not() {
    let model = Simulator::new(SimulatorOptions::new(Function(|_: &SeenRequest, _| {
        Answer::text("word ".repeat(100_000))
    })));
    let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await.unwrap();
    let mut options = HttpOptions::new(([127, 0, 0, 1], 0).into(), TOKEN);
    options.connections_max = 4;
    let agent = Arc::new(Agent::new("simulated").context_window(100_000_000));
    let server = HttpServer::start(&runtime, Arc::clone(&agent), options).await.unwrap();
    let session = runtime.open("a", agent).await.unwrap();
    runtime.open("b", Arc::new(Agent::new("simulated"))).await.unwrap().set_title("quiet").await.unwrap();
    let mut stalled = sent(&server, &(head(&server, "GET /v1/events") + "\r\n")).await;
    let mut quiet = Reader::open(&server, TOKEN, "/v1/sessions/b/events", None).await;
    let _other = Reader::open(&server, TOKEN, "/v1/sessions/b/events", None).await;
    let (status, problem) = call(&server, Method::GET, "/v1/events", None).await;
    assert_eq!((status, &problem["kind"]), (StatusCode::TOO_MANY_REQUESTS, &json!("busy")), "{problem}");
    // More than the sockets hold.
    for _ in 0..40 {
        session.prompt("more").await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(100)).await;
    // Its place is another's now, and so is its memory.
    let again = Reader::open(&server, TOKEN, "/v1/sessions/b/events", None).await;
    drop(again);
    assert!(is_closed(&mut stalled).await);
    session.set_title("x").await.unwrap();
    runtime.session("b").await.unwrap().set_title("loud").await.unwrap();
    assert_eq!(quiet.next().await.unwrap().data["title"], "loud", "it is still open");
}

#[tokio::test(start_paused = true)]
async fn who_joins_a_run_is_told_what_is_in_progress() {
    let model = slow();
    let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await.unwrap();
    let server = serve(&runtime, |_| {}).await;
    let accepted = request(&server, "session/prompt", &json!({ "session_id": "a", "text": "x" }))
        .bearer_auth(TOKEN)
        .header("prefer", "respond-async");
    assert_eq!(accepted.send().await.unwrap().status(), 202);
    let mut first = Reader::open(&server, TOKEN, "/v1/sessions/a/events", Some("0")).await;
    let mut said = String::new();
    while said.len() < 20 {
        let told = first.next().await.unwrap();
        said.push_str(told.data["delta"]["text"].as_str().unwrap_or_default());
    }
    for path in ["/v1/sessions/a/events", "/v1/events", "/v1/sessions/a/events?tree=true"] {
        let mut second = Reader::open(&server, TOKEN, path, None).await;
        let told = second.until("message_delta").await;
        let kinds: Vec<&str> = told.iter().map(Told::kind).collect();
        assert_eq!(kinds, ["run_start", "step_start", "message_start", "message_delta"], "{path}");
        let so_far = told[3].data["delta"]["text"].as_str().unwrap();
        assert!(so_far.starts_with(&said[..20]), "{path}: {so_far}");
        // What follows continues where that ends.
        let next = second.until("message_delta").await;
        assert!(next.last().unwrap().data["delta"]["text"].as_str().unwrap().starts_with("word"), "{path}");
    }
    // A reader of durable events gets no transient events of the run in progress.
    let mut durable = Reader::open(&server, TOKEN, "/v1/events?durable=true", Some("0")).await;
    assert_eq!(durable.until("message_end").await.len(), 1);
    runtime.session("a").await.unwrap().abort();
    let told = durable.until("run_end").await;
    assert!(told.iter().all(|told| told.id.is_some()), "{told:?}");
}

#[tokio::test]
async fn a_prompt_streams_its_events_and_ends_with_its_outcome() {
    let (server, simulator) = server_with(|_| {}).await;
    let stream = async |params: Value| {
        let request = request(&server, "session/prompt", &params).bearer_auth(TOKEN);
        request.header("accept", "text/event-stream, application/json;q=0.5").send().await.unwrap()
    };
    let mut reader = Reader::of(stream(json!({ "session_id": "a", "text": "question" })).await);
    let mut told = Vec::new();
    while let Some(next) = reader.next().await {
        told.push(next);
    }
    let (first, last) = (&told[0], told.last().unwrap());
    assert_eq!((first.name.as_deref(), &first.data["entry_id"]), (Some("accepted"), &json!(0)));
    assert_eq!((last.name.as_deref(), &last.data["stop"]), (Some("result"), &json!("stop")));
    let kinds: Vec<&str> = told.iter().map(Told::kind).filter(|kind| !kind.is_empty()).collect();
    for kind in ["run_start", "message_delta", "run_end"] {
        assert!(kinds.contains(&kind), "{kind}: {kinds:?}");
    }
    let text: String = told.iter().filter_map(|told| told.data["delta"]["text"].as_str()).collect();
    assert_eq!(text, last.data["text"].as_str().unwrap());
    // A stream of the session continues where this one ended.
    let mut later = Reader::open(&server, TOKEN, "/v1/sessions/a/events", reader.last.as_deref()).await;
    prompt(&server, TOKEN, "a", "more").await;
    assert_eq!(later.next().await.unwrap().data["message"]["text"], "more");
    // What is refused before it is accepted is no stream.
    let refused = stream(json!({ "session_id": "a", "text": " " })).await;
    assert_eq!(
        (refused.status().as_u16(), &refused.headers()["content-type"]),
        (400, &"application/problem+json".parse().unwrap())
    );
    simulator.assert_clean();
    server.stop().await;
}

/// A client that lost the stream of a prompt sends the prompt again, with its key and the last id.
#[tokio::test]
async fn a_prompt_that_is_sent_again_streams_what_its_client_missed() {
    let (server, simulator) = server_with(|_| {}).await;
    let stream = async |last: Option<&str>| {
        let params = json!({ "session_id": "a", "text": "question", "key": "1" });
        let mut request = request(&server, "session/prompt", &params).bearer_auth(TOKEN);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        request.header("accept", "text/event-stream").send().await.unwrap()
    };
    for seen in 1..=3 {
        // The first one runs; the others find its reply.
        let mut reader = Reader::of(stream(Some("0")).await);
        let accepted = reader.next().await.unwrap();
        assert_eq!((accepted.name.as_deref(), accepted.id.as_deref()), (Some("accepted"), Some("0")));
        let mut numbers = Vec::new();
        while numbers.len() < seen {
            let told = reader.next().await.unwrap();
            numbers.extend(told.id.as_ref().and_then(|_| told.data["seq"].as_u64()));
        }
        let last = reader.last.take();
        drop(reader);
        let mut again = Reader::of(stream(last.as_deref()).await);
        let mut end = None;
        while let Some(told) = again.next().await {
            numbers.extend(told.id.as_ref().and_then(|_| told.data["seq"].as_u64()));
            end = told.name;
        }
        assert_eq!((numbers, end.as_deref()), (vec![0, 1, 2], Some("result")), "after {seen}");
    }
    // One that lost the stream before its first id knows no position. The events of other prompts are not its own.
    prompt(&server, TOKEN, "a", "another").await;
    let mut again = Reader::of(stream(None).await);
    let mut numbers = Vec::new();
    while let Some(told) = again.next().await {
        numbers.extend(told.id.as_ref().and_then(|_| told.data["seq"].as_u64()));
    }
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
    let refused = stream(Some("?")).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    simulator.assert_clean();
    server.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_left_cancels_no_run_and_a_stop_tells_its_end() {
    let model = slow();
    let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await.unwrap();
    let server = serve(&runtime, |_| {}).await;
    let stream = async |id: &str| {
        let params = json!({ "session_id": id, "text": "question" });
        let request = request(&server, "session/prompt", &params).bearer_auth(TOKEN);
        Reader::of(request.header("accept", "text/event-stream").send().await.unwrap())
    };
    let mut left = stream("a").await;
    left.until("message_delta").await;
    drop(left);
    let mut aborted = stream("b").await;
    aborted.until("message_delta").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(call(&server, Method::GET, "/v1/sessions/a/state", None).await.1["status"], "working");
    call(&server, Method::POST, "/v1/sessions/b/abort", None).await;
    let mut last = None;
    while let Some(told) = aborted.next().await {
        last = Some(told);
    }
    let last = last.unwrap();
    assert_eq!((last.name.as_deref(), &last.data["kind"]), (Some("problem"), &json!("aborted")), "{last:?}");
    let mut watching = Reader::open(&server, TOKEN, "/v1/events", None).await;
    let begun = Instant::now();
    call(&server, Method::POST, "/v1/sessions/a/abort", None).await;
    server.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert!(watching.ends().await);
}

/// A server that stops beside its runtime tells every prompt its end, also those that wait for a slot and were sent
/// nothing for a while.
#[tokio::test(start_paused = true)]
async fn a_stop_tells_each_of_many_prompts_its_end() {
    let model = slow();
    let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await.unwrap();
    let server = serve(&runtime, |_| {}).await;
    let mut readers = Vec::new();
    for number in 0..24 {
        let mut params = json!({ "session_id": format!("session-{number}"), "text": "question" });
        if number % 2 == 0 {
            params["key"] = json!("k");
        }
        let request = request(&server, "session/prompt", &params).bearer_auth(TOKEN);
        let mut reader = Reader::of(request.header("accept", "text/event-stream").send().await.unwrap());
        reader.until("step_start").await;
        readers.push(reader);
    }
    let ended = readers.into_iter().map(|mut reader| {
        tokio::spawn(async move {
            let mut last = None;
            while let Some(told) = reader.next().await {
                last = Some(told);
            }
            last.unwrap()
        })
    });
    let ended: Vec<_> = ended.collect();
    let shutdown = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        runtime.shutdown().await.unwrap();
    };
    tokio::join!(server.stop(), shutdown);
    for (number, last) in ended.into_iter().enumerate() {
        let last = last.await.unwrap();
        let (name, kind) = (last.name.as_deref(), &last.data["kind"]);
        assert_eq!((name, kind), (Some("problem"), &json!("interrupted")), "{number}: {last:?}");
        // As in the answer without a stream: without a key, the same request would be other work.
        assert_eq!(last.data["retryable"], number % 2 == 0, "{number}: {last:?}");
        assert!(last.data["detail"].as_str().unwrap().contains("what was sent is recorded"), "{last:?}");
    }
}

/// A stream of a confined token has the events of its label, as long as they are.
#[tokio::test]
async fn a_confined_token_streams_the_events_of_its_label() {
    let secret = "b".repeat(32);
    let (server, _model) = server_with(|options| {
        let within = Some(Label { name: "tenant".into(), value: "bob".into() });
        options.tokens.push(Token { secret: secret.clone(), right: Right::Prompt, within });
    })
    .await;
    let mut all = Reader::open(&server, &secret, "/v1/events", Some("0")).await;
    let mut labelled = Reader::open(&server, &secret, "/v1/events?label=colour:red", None).await;
    prompt(&server, &secret, "bob-1", "mine").await;
    prompt(&server, TOKEN, "nobodys", "not his").await;
    prompt(&server, &secret, "bob-2", "mine too").await;
    let set = async |id: &str, name: &str, value: Value| {
        let label = json!({ "session_id": id, "name": name, "value": value });
        let sent = request(&server, "session/set_label", &label).bearer_auth(TOKEN).send().await.unwrap();
        assert_eq!(sent.status(), 200);
    };
    set("bob-2", "colour", json!("red")).await;
    set("nobodys", "colour", json!("red")).await;
    // It is taken away, and what is said then is not his any more.
    set("bob-1", "tenant", Value::Null).await;
    prompt(&server, TOKEN, "bob-1", "a secret").await;
    // One that he deletes may be another's next.
    call(&server, Method::DELETE, "/v1/sessions/bob-2", None).await;
    prompt(&server, TOKEN, "bob-2", "another secret").await;
    prompt(&server, &secret, "bob-3", "the end").await;
    let is_end = |told: &Told| told.data["session_id"] == "bob-3" && told.kind() == "run_end";
    let mut told = Vec::new();
    while !told.last().is_some_and(is_end) {
        told.push(all.next().await.unwrap());
    }
    let text = json!(told.iter().map(|told| &told.data).collect::<Vec<_>>()).to_string();
    for (words, is_there) in [
        ("mine too", true),
        ("the end", true),
        ("not his", false),
        ("a secret", false),
        ("another secret", false),
    ] {
        assert_eq!(text.contains(words), is_there, "{words}");
    }
    assert_eq!(labelled.next().await.unwrap().data["name"], "colour");
    for (path, status) in [
        ("/v1/sessions/nobodys/events", 404),
        ("/v1/sessions/bob-1/events", 404),
        ("/v1/events?label=tenant:ada", 403),
    ] {
        let sent = client().get(format!("http://{}{path}", server.address())).bearer_auth(&secret);
        assert_eq!(sent.send().await.unwrap().status(), status, "{path}");
    }
}

#[tokio::test]
async fn what_is_no_stream_is_refused() {
    let server = server().await;
    prompt(&server, TOKEN, "a", "x").await;
    for (path, last, status) in [
        ("/v1/sessions/none/events", None, 404),
        ("/v1/sessions/a/events?tree=perhaps", None, 400),
        ("/v1/sessions/a/events?label=a:b", None, 400),
        ("/v1/events?tree=true", None, 400),
        ("/v1/events?label=a", None, 400),
        ("/v1/events?after=here", None, 400),
        ("/v1/events", Some("1,2"), 400),
        ("/v1/events", Some("-1"), 400),
        ("/v1/events?after=here", Some("0"), 200),
        ("/v1/events?after=0", None, 200),
    ] {
        let mut request = client().get(format!("http://{}{path}", server.address())).bearer_auth(TOKEN);
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        assert_eq!(request.send().await.unwrap().status(), status, "{path} {last:?}");
    }
}
