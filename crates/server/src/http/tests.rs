//! The routes over a real socket, and who is let in.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::time::Duration;

use greenroom::permissions::{Mode, Permissions, Policy};
use greenroom::{Agent, EntryId, Runtime};
use greenroom_simulator::{Answer, ByPurpose, Function, Pace, Simulator, SimulatorOptions, Summariser};
use greenroom_store::{Store, StoreError};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::answers::{HttpProblem, store_status};
use super::{HttpOptions, HttpServer, check_token};

mod access;
mod consumers;
mod events;
mod limits;
mod nodes;
mod operations;
mod probes;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// A client for the routes. It insists on cryptography, although nothing here is encrypted.
fn client() -> Client {
    let _is_there_already = rustls::crypto::ring::default_provider().install_default();
    Client::new()
}

async fn server() -> HttpServer {
    server_with(|_| {}).await.0
}

async fn server_with(change: impl FnOnce(&mut HttpOptions)) -> (HttpServer, Simulator) {
    let runs = Function(|_: &_, _| Answer::text("word ".repeat(300)));
    let script = ByPurpose::new(runs, Summariser::Obedient);
    let simulator = Simulator::new(SimulatorOptions { window: 8_000, ..SimulatorOptions::new(script) });
    let runtime = Runtime::builder().provider(simulator.provider()).in_memory().spending_by(["tenant"]);
    let runtime = runtime.start().await.unwrap();
    (serve(&runtime, change).await, simulator)
}

async fn serve(runtime: &Runtime, change: impl FnOnce(&mut HttpOptions)) -> HttpServer {
    let mut options = HttpOptions::new(([127, 0, 0, 1], 0).into(), TOKEN);
    change(&mut options);
    let permissions = Permissions::new(Policy::new(Mode::Everything, "/work"));
    let agent = Arc::new(Agent::new("simulated").context_window(8_000).permissions(permissions));
    HttpServer::start(runtime, agent, options).await.unwrap()
}

/// A model that takes an hour for an answer.
fn slow() -> Simulator {
    let pace = Pace { chunks: 60, first_ms: 1_000, between_ms: 60_000 };
    let runs = Function(move |_: &_, _| Answer::text("word ".repeat(60)).with_pace(pace));
    Simulator::new(SimulatorOptions { window: 8_000, ..SimulatorOptions::new(runs) })
}

/// A connection on which this was sent.
async fn sent(server: &HttpServer, text: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    stream
}

/// Whether the server closes a connection; what it still says is read.
async fn is_closed(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 4_096];
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return true,
            Ok(_) => {}
        }
    }
}

/// The status of the next answer on a connection that stays open.
async fn status(stream: &mut TcpStream) -> u16 {
    let (mut text, mut buffer) = (String::new(), [0; 4_096]);
    loop {
        let read = stream.read(&mut buffer).await.unwrap();
        assert!(read > 0, "it is closed after {text:?}");
        text.push_str(&String::from_utf8_lossy(&buffer[..read]));
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                return head.split(' ').nth(1).unwrap().parse().unwrap();
            }
        }
    }
}

/// A request of the token's owner, without its last line.
fn head(server: &HttpServer, line: &str) -> String {
    format!("{line} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {TOKEN}\r\n", server.address())
}

async fn call(server: &HttpServer, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
    let request = client().request(method, format!("http://{}{path}", server.address())).bearer_auth(TOKEN);
    let request = match body {
        Some(body) => request.json(&body),
        None => request,
    };
    let response = request.send().await.unwrap();
    let status = response.status();
    (status, serde_json::from_str(&response.text().await.unwrap()).unwrap_or(Value::Null))
}

#[tokio::test]
async fn a_session_is_prompted_and_compacted() {
    let server = server().await;
    let (status, state) =
        call(&server, Method::POST, "/v1/sessions", Some(json!({ "session_id": "a" }))).await;
    assert_eq!((status, &state["session_id"]), (StatusCode::OK, &json!("a")));
    let (_, nothing) = call(&server, Method::POST, "/v1/sessions/a/compact", None).await;
    assert_eq!(nothing["installed"], false, "{nothing}");
    assert_eq!(nothing["compacted"]["outcome"], "nothing", "{nothing:?}");
    for run in 0..4 {
        let body = json!({ "text": format!("question {run}") });
        let (status, reply) = call(&server, Method::POST, "/v1/sessions/a/prompt", Some(body)).await;
        assert_eq!(status, StatusCode::OK, "{reply}");
        assert!(reply["text"].as_str().unwrap().starts_with("word"));
        assert_eq!(reply["stop"], "stop");
    }
    let options = json!({ "keep_recent": 400, "focus": "words" });
    let (status, end) = call(&server, Method::POST, "/v1/sessions/a/compact", Some(options)).await;
    assert_eq!(end["installed"], true, "{end}");
    let end = &end["compacted"];
    assert_eq!((status, &end["outcome"]), (StatusCode::OK, &json!("completed")), "{end}");
    assert!(end["tokens_after"].as_u64() < end["tokens_before"].as_u64());
    let (_, state) = call(&server, Method::GET, "/v1/sessions/a/state", None).await;
    assert_eq!((&state["compactions"], &state["status"]), (&json!(1), &json!("idle")));
    let (_, list) = call(&server, Method::GET, "/v1/sessions", None).await;
    assert_eq!(list["sessions"][0]["id"], "a");
    assert_eq!(call(&server, Method::POST, "/v1/sessions/a/abort", None).await.0, StatusCode::OK);
    server.stop().await;
}

/// Each compaction is told by one reply: the first one that comes after its end.
#[tokio::test]
async fn replies_tell_the_compactions_since_the_one_before() {
    let (server, simulator) = server_with(|_| {}).await;
    let mut told = Vec::new();
    for run in 0..40 {
        let body = json!({ "text": format!("question {run}"), "key": format!("{run}") });
        let (_, reply) = call(&server, Method::POST, "/v1/sessions/a/prompt", Some(body.clone())).await;
        let compactions = reply["compactions"].as_array().unwrap().clone();
        assert!(compactions.iter().all(|end| end["outcome"] == "completed"), "{reply}");
        told.extend(compactions.iter().map(|end| end["entry_id"].as_u64().unwrap()));
        // The first reply again is the same, the compactions included.
        let (_, again) = call(&server, Method::POST, "/v1/sessions/a/prompt", Some(body)).await;
        assert_eq!(reply, again);
    }
    let mut distinct = told.clone();
    distinct.dedup();
    assert_eq!(told, distinct, "each is told once");
    let (_, state) = call(&server, Method::GET, "/v1/sessions/a/state", None).await;
    let installed = state["compactions"].as_u64().unwrap();
    assert!(installed >= 2, "{installed} compactions");
    // The newest one may have begun after the last reply.
    assert!([installed, installed - 1].contains(&(told.len() as u64)), "{told:?} of {installed}");
    simulator.assert_clean();
    server.stop().await;
}

#[tokio::test]
async fn a_prompt_takes_settings_for_its_own_run() {
    let (server, simulator) = server_with(|_| {}).await;
    let prompt = async |settings: Value| {
        let body = json!({ "text": "question", "settings": settings });
        call(&server, Method::POST, "/v1/sessions/a/prompt", Some(body)).await
    };
    let settings = json!({ "temperature": 0.5, "reasoning_effort": "low", "extra": { "top_k": 3 } });
    for settings in [&settings, &json!({})] {
        assert_eq!(prompt(settings.clone()).await.0, StatusCode::OK);
    }
    let sent: Vec<Value> = simulator.requests().iter().map(|logged| json!(logged.request.settings)).collect();
    assert_eq!(sent, [settings, json!({})]);
    for (wrong, why) in [(json!({ "top_p": 7 }), "top_p: must be above 0"), (json!({ "topp": 1 }), "topp")] {
        let (status, problem) = prompt(wrong).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(why), "{problem}");
    }
    assert_eq!(simulator.requests().len(), 2);
    simulator.assert_clean();
    server.stop().await;
}

#[tokio::test]
async fn bad_requests_are_problems() {
    let server = server().await;
    let cases = [
        (Method::GET, "/no/such", None, 404),
        (Method::GET, "/v1/sessions/none", None, 404),
        (Method::POST, "/v1/sessions/none/compact", None, 404),
        (Method::POST, "/v1/sessions", Some(json!({ "id": "a" })), 400),
        (Method::POST, "/v1/sessions", Some(json!({ "session_id": "a\u{1b}[2J" })), 400),
        (Method::POST, "/v1/sessions", Some(json!({ "session_id": ".." })), 400),
        (Method::GET, "/v1/sessions?limit=many", None, 400),
        (Method::GET, "/v1/sessions?limits=1", None, 400),
        (Method::GET, "/v1/sessions?order=size", None, 400),
        (Method::GET, "/v1/sessions?after=here", None, 400),
        (Method::GET, "/v1/sessions?label=tenant", None, 400),
        (Method::POST, "/v1/sessions/a/prompt", Some(json!({ "text": " " })), 400),
        (Method::POST, "/v1/sessions/a/prompt", None, 400),
        (Method::DELETE, "/v1/sessions", None, 405),
        (Method::GET, "/v1/sessions/a/prompt", None, 405),
        (Method::GET, "/v1/sessions/%ff", None, 400),
        (Method::GET, "/v1/sessions/%2e%2e%2fa", None, 404),
        (Method::GET, "/v1/sessions/a%0ab", None, 400),
        (Method::POST, "/v1/sessions/none/abort", None, 404),
        (Method::DELETE, "/v1/sessions/none", None, 404),
    ];
    for (method, path, body, expected) in cases {
        let (status, problem) = call(&server, method.clone(), path, body).await;
        assert_eq!(status.as_u16(), expected, "{method} {path}: {problem}");
        assert_eq!(problem["status"], expected, "{method} {path}");
        assert!(problem["detail"].is_string(), "{method} {path}");
    }
    let long = json!({ "text": "x".repeat(super::BODY_BYTES_MAX) });
    let (status, problem) = call(&server, Method::POST, "/v1/sessions/a/prompt", Some(long)).await;
    assert_eq!((status, &problem["status"]), (StatusCode::PAYLOAD_TOO_LARGE, &json!(413)));
    assert!(problem["detail"].as_str().unwrap().contains("4194304 bytes"), "{problem}");
}

/// Ids as people have them, in the path and in JSON; and lists of them in pages.
#[tokio::test]
async fn sessions_are_listed_in_pages_and_have_ids_as_people_have_them() {
    let server = server().await;
    let ids = ["../a", "a/b", "ada@example.org", "e\u{301}té", "user:42", "100%"];
    let paths = ["%2e%2e%2fa", "a%2Fb", "ada@example.org", "e%CC%81t%C3%A9", "user:42", "100%25"];
    for (id, path) in ids.iter().zip(paths) {
        let body = Some(json!({ "text": "hello" }));
        let (status, reply) = call(&server, Method::POST, &format!("/v1/sessions/{path}/prompt"), body).await;
        assert_eq!(status, StatusCode::OK, "{id}: {reply}");
        let (_, state) = call(&server, Method::GET, &format!("/v1/sessions/{path}/state"), None).await;
        assert_eq!(&state["id"], id);
    }
    let mut listed = Vec::new();
    let mut path = "/v1/sessions?limit=4&order=newest".to_owned();
    loop {
        let (status, page) = call(&server, Method::GET, &path, None).await;
        assert_eq!(status, StatusCode::OK, "{page}");
        let sessions = page["sessions"].as_array().unwrap();
        assert!(sessions.len() <= 4);
        listed.extend(sessions.iter().map(|session| session["id"].as_str().unwrap().to_owned()));
        let Some(next) = page["next"].as_str() else { break };
        let next: String = next.bytes().map(|byte| format!("%{byte:02x}")).collect();
        path = format!("/v1/sessions?limit=4&order=newest&after={next}");
    }
    assert_eq!(listed, ids.iter().rev().map(ToString::to_string).collect::<Vec<_>>());
    for (query, wanted) in [("unfinished=true", 0), ("label=tenant:42", 0), ("order=id", 6), ("", 6)] {
        let (_, page) = call(&server, Method::GET, &format!("/v1/sessions?{query}"), None).await;
        assert_eq!(page["sessions"].as_array().unwrap().len(), wanted, "{query}: {page}");
        assert_eq!(page["next"], Value::Null, "{query}");
    }
    let (status, problem) = call(&server, Method::GET, "/v1/sessions?colour=red", None).await;
    let detail = problem["detail"].as_str().unwrap();
    let names_the_parameter = detail.contains("`label`") && !detail.contains("`labels`");
    assert!(status == StatusCode::BAD_REQUEST && names_the_parameter, "{detail}");
}

#[tokio::test]
async fn nobody_without_the_token_and_no_web_page_is_let_in() {
    let server = server().await;
    let url = |path: &str| format!("http://{}{path}", server.address());
    for path in ["/openapi.json", "/v1/sessions", "/v1/sessions/a", "/no/such"] {
        let bare = client().get(url(path)).send().await.unwrap();
        assert_eq!(bare.status(), StatusCode::UNAUTHORIZED, "{path}");
        let wrong = client().get(url(path)).bearer_auth(TOKEN.to_uppercase()).send().await.unwrap();
        assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED, "{path}");
    }
    let good = || client().get(url("/openapi.json")).bearer_auth(TOKEN);
    assert_eq!(good().send().await.unwrap().status(), StatusCode::OK);
    let page = good().header("origin", "http://example.com").send().await.unwrap();
    assert_eq!(page.status(), StatusCode::FORBIDDEN);
    let rebound = good().header("host", "example.com").send().await.unwrap();
    assert_eq!(rebound.status(), StatusCode::MISDIRECTED_REQUEST);
}

#[tokio::test]
async fn a_request_is_answered_only_where_it_is_sure_to_be_ours() {
    let (server, _model) = server_with(|options| {
        options.host_names = vec!["Build.example".into(), "proxy.example:8443".into()];
    })
    .await;
    let port = server.address().port();
    let ours = format!("host: 127.0.0.1:{port}");
    let token = format!("authorization: Bearer {TOKEN}");
    let cases: &[(&str, &[&str], u16)] = &[
        ("/openapi.json", &[&ours, &token], 200),
        ("/openapi.json", &[&format!("host: LocalHost:{port}"), &token], 200),
        ("/openapi.json", &[&format!("host: [::1]:{port}"), &token], 200),
        ("/openapi.json", &["host: build.example", &token], 200),
        ("/openapi.json", &["host: BUILD.example:443", &token], 200),
        ("/openapi.json", &["host: proxy.example:8443", &token], 200),
        ("/openapi.json", &["host: proxy.example", &token], 421),
        ("/openapi.json", &["host: build.example:x", &token], 421),
        ("/openapi.json", &["host: build.example:", &token], 421),
        ("/openapi.json", &["host: evil.build.example", &token], 421),
        ("/openapi.json", &["host: 127.0.0.1", &token], 421),
        ("/openapi.json", &["host: evil.example", &token], 421),
        ("/openapi.json", &[&token], 400),
        ("/openapi.json", &[&ours, &ours, &token], 400),
        ("/openapi.json", &[&ours, "host: evil.example", &token], 400),
        ("/openapi.json", &["host: evil.example", &ours, &token], 400),
        (&format!("http://127.0.0.1:{port}/openapi.json"), &[&ours, &token], 200),
        ("http://evil.example/openapi.json", &[&ours, &token], 421),
        (&format!("http://x@127.0.0.1:{port}/openapi.json"), &[&ours, &token], 421),
        ("/openapi.json", &[&ours, &format!("authorization: bearer {TOKEN}")], 200),
        ("/openapi.json", &[&ours, &format!("authorization: BEARER   {TOKEN}")], 200),
        ("/openapi.json", &[&ours, &format!("authorization: Basic {TOKEN}")], 401),
        ("/openapi.json", &[&ours, &format!("authorization: {TOKEN}")], 401),
        ("/openapi.json", &[&ours, &token, "authorization: Bearer x"], 401),
        ("/openapi.json", &[&ours, &token, "origin: null"], 403),
    ];
    for (target, headers, expected) in cases {
        let text = format!("GET {target} HTTP/1.1\r\n{}\r\n\r\n", headers.join("\r\n"));
        let mut stream = sent(&server, &text).await;
        assert_eq!(status(&mut stream).await, *expected, "{target} {headers:?}");
    }
}

#[test]
fn a_token_that_can_be_guessed_or_sent_by_nobody_is_refused() {
    assert!(check_token(TOKEN).is_ok());
    for (token, reason) in [("", "0 characters"), ("x", "1 character"), (&TOKEN[1..], "31 characters")] {
        assert!(check_token(token).unwrap_err().to_string().contains(reason), "{token}");
    }
    for token in [format!("{TOKEN}\n{TOKEN}"), format!("{TOKEN} "), format!("{TOKEN}ä")] {
        assert!(check_token(&token).unwrap_err().to_string().contains("one line"), "{token}");
    }
}

#[tokio::test(start_paused = true)]
async fn slow_clients_are_closed_and_keep_nobody_out() {
    let (server, _model) = server_with(|_| {}).await;
    let begun = Instant::now();
    let mut silent = Vec::new();
    for number in 0..300 {
        let said = ["", "GET /se", "GET /v1/sessions HTTP/1.1\r\nhost: ", "\r\n\r\n"][number % 4];
        silent.push(sent(&server, said).await);
    }
    let mut dripping = sent(&server, "GET /").await;
    let (status, _) = call(&server, Method::GET, "/v1/sessions", None).await;
    assert_eq!(status, StatusCode::OK, "the owner is answered beside them");
    // A byte a second does not keep a connection.
    let mut dripped = 0;
    while dripping.write_all(b"x").await.is_ok() {
        dripped += 1;
        assert!(dripped < 60, "it is still open");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    assert!(dripped >= 28, "it had its time: {dripped} s");
    for stream in &mut silent {
        assert!(is_closed(stream).await);
    }
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_body_must_come_in_time_too() {
    let (server, _model) = server_with(|_| {}).await;
    let text =
        head(&server, "POST /v1/sessions") + "content-type: application/json\r\ncontent-length: 20\r\n\r\n{";
    let mut stream = sent(&server, &text).await;
    let begun = Instant::now();
    assert_eq!(status(&mut stream).await, 408);
    let took = begun.elapsed();
    assert!((Duration::from_secs(30)..Duration::from_secs(32)).contains(&took), "{took:?}");
    assert!(is_closed(&mut stream).await);
}

#[tokio::test(start_paused = true)]
async fn who_does_not_bear_the_token_makes_room_for_its_owner() {
    let (server, _model) = server_with(|options| options.connections_max = 8).await;
    let list = head(&server, "GET /v1/sessions") + "\r\n";
    let mut owner = sent(&server, &list).await;
    assert_eq!(status(&mut owner).await, 200);
    let mut strangers = Vec::new();
    for number in 0..40 {
        strangers.push(sent(&server, "").await);
        // In the middle of them, a new connection of the owner is served at once, and an old one stays open.
        if number % 10 == 9 {
            let (status_of_new, _) = call(&server, Method::GET, "/v1/sessions", None).await;
            assert_eq!(status_of_new, StatusCode::OK);
            owner.write_all(list.as_bytes()).await.unwrap();
            assert_eq!(status(&mut owner).await, 200);
        }
    }
    // The oldest strangers went, long before their time was over.
    let begun = Instant::now();
    for stranger in &mut strangers[..30] {
        assert!(is_closed(stranger).await);
    }
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_run_can_be_aborted_however_many_wait_for_theirs() {
    let model = slow();
    let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await.unwrap();
    let server = Arc::new(serve(&runtime, |options| options.connections_max = 4).await);
    let prompt = async |id: &str| {
        call(&server, Method::POST, &format!("/v1/sessions/{id}/prompt"), Some(json!({ "text": "x" }))).await
    };
    let mut waiting = Box::pin(async { tokio::join!(prompt("a"), prompt("b"), prompt("c")) });
    let ended = tokio::time::timeout(Duration::from_secs(5), &mut waiting).await;
    assert!(ended.is_err(), "they wait: {ended:?}");
    let (status, problem) = prompt("d").await;
    assert_eq!((status, &problem["retryable"]), (StatusCode::TOO_MANY_REQUESTS, &json!(true)), "{problem}");
    for id in ["a", "b", "c"] {
        let (status, _) = call(&server, Method::POST, &format!("/v1/sessions/{id}/abort"), None).await;
        assert_eq!(status, StatusCode::OK);
    }
    let (a, b, c) = waiting.await;
    assert_eq!([a.0, b.0, c.0], [StatusCode::CONFLICT; 3], "{a:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_waits_for_answers_and_for_nobody_else() {
    let (server, _model) = server_with(|_| {}).await;
    let open = ["", "GET /se", "GET /v1/sessions HTTP/1.1\r\nhost: x\r\n"].map(str::to_owned);
    let half_a_body =
        head(&server, "POST /v1/sessions") + "content-type: application/json\r\ncontent-length: 20\r\n\r\n{";
    let kept = head(&server, "GET /v1/sessions") + "\r\n";
    let mut streams = Vec::new();
    for text in open.into_iter().chain([half_a_body, kept]) {
        streams.push(sent(&server, &text).await);
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let begun = Instant::now();
    server.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    for stream in &mut streams {
        assert!(is_closed(stream).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_stop_has_a_hard_end() {
    let model = slow();
    let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await.unwrap();
    let server = serve(&runtime, |_| {}).await;
    let body = r#"{"text":"x"}"#;
    let prompt = head(&server, "POST /v1/sessions/a/prompt")
        + &format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut stream = sent(&server, &prompt).await;
    while model.calls() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let begun = Instant::now();
    // Nobody interrupts the run.
    server.stop().await;
    let took = begun.elapsed();
    assert!((Duration::from_secs(7)..Duration::from_secs(10)).contains(&took), "{took:?}");
    assert!(is_closed(&mut stream).await);
}

#[tokio::test(start_paused = true)]
async fn looking_at_a_session_starts_nothing() {
    let (model, store) = (slow(), Store::memory());
    let start = || Runtime::builder().provider(model.provider()).store(store.clone()).start();
    let crashing = start().await.unwrap();
    let session = crashing.open("a", Arc::new(Agent::new("simulated").context_window(8_000))).await.unwrap();
    for text in ["one", "two"] {
        let mut submitted = session.prompt(text).start().await.unwrap();
        submitted.recorded().await.unwrap();
        std::mem::forget(submitted);
    }
    while model.calls() == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop((session, crashing));
    let (calls, entries) = (model.calls(), store.head("a").unwrap().unwrap().entries);

    let runtime = start().await.unwrap();
    let server = serve(&runtime, |_| {}).await;
    for path in ["/v1/sessions", "/v1/sessions/a", "/v1/sessions/none", "/openapi.json"] {
        call(&server, Method::GET, path, None).await;
    }
    let (status, state) = call(&server, Method::GET, "/v1/sessions/a/state", None).await;
    assert_eq!(
        (status, &state["waiting"], &state["is_unanswered"]),
        (StatusCode::OK, &json!(1), &json!(true))
    );
    let (status, _) = call(&server, Method::POST, "/v1/sessions/a/abort", None).await;
    assert_eq!(status, StatusCode::OK, "nothing is under way, and nothing is woken to be told so");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!((model.calls(), store.head("a").unwrap().unwrap().entries), (calls, entries));
    assert!(runtime.live().await.unwrap().is_empty());
    assert!(store.head("none").unwrap().is_none());
}

#[tokio::test]
async fn a_deleted_session_is_gone_and_so_are_its_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let model = Simulator::new(SimulatorOptions::new(Function(|_: &_, _| Answer::text("fine"))));
    let start = Runtime::builder().provider(model.provider()).data_dir(dir.path()).start();
    let server = serve(&start.await.unwrap(), |_| {}).await;
    let held = || {
        let segments = std::fs::read_dir(dir.path().join("journal")).unwrap();
        let text =
            |path: std::path::PathBuf| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
        segments.filter(|segment| text(segment.as_ref().unwrap().path()).contains("a secret word")).count()
    };
    for id in ["kept", "gone"] {
        let said =
            if id == "gone" { "a secret word" } else { "nothing much, but more than the other one says" };
        let (status, _) =
            call(&server, Method::POST, &format!("/v1/sessions/{id}/prompt"), Some(json!({ "text": said })))
                .await;
        assert_eq!(status, StatusCode::OK);
    }
    assert_eq!(held(), 1);
    let (status, _) = call(&server, Method::DELETE, "/v1/sessions/gone", None).await;
    assert_eq!((status, held()), (StatusCode::OK, 0));
    let (status, _) = call(&server, Method::GET, "/v1/sessions/gone", None).await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    let (_, list) = call(&server, Method::GET, "/v1/sessions", None).await;
    assert_eq!((list["sessions"].as_array().unwrap().len(), &list["sessions"][0]["id"]), (1, &json!("kept")));
}

#[test]
fn a_damaged_session_is_a_conflict_that_names_its_remedy() {
    let session = || "a".to_owned();
    for (error, status, remedy) in [
        (StoreError::SessionId { session: session(), reason: "why" }, 400, None),
        (StoreError::NotFound { session: session() }, 404, None),
        (StoreError::Quarantined { session: session(), from: EntryId(3) }, 409, Some("accept-loss a`")),
        (StoreError::Damaged { session: session(), entry: EntryId(3) }, 409, Some("accept-loss a`")),
        (StoreError::UnknownLoss { segment: 7 }, 409, Some("accept-loss --segment 7`")),
        (StoreError::Closed, 503, None),
    ] {
        assert_eq!(store_status(&error), status, "{error}");
        let problem = json!(HttpProblem::of(&error.into()));
        let detail = problem["detail"].as_str().unwrap();
        assert_eq!(detail.matches("accept-loss").count(), usize::from(remedy.is_some()), "{detail}");
        assert!(remedy.is_none_or(|remedy| detail.contains(remedy)), "{detail}");
    }
}

#[tokio::test]
async fn questions_are_listed_and_answered_once_and_the_run_goes_on() {
    let simulator = crate::tests::simulator();
    let runtime = Runtime::builder().provider(simulator.provider()).in_memory().start().await.unwrap();
    let options = HttpOptions::new(([127, 0, 0, 1], 0).into(), TOKEN);
    let server = HttpServer::start(&runtime, Arc::new(crate::tests::agent()), options).await.unwrap();
    let url = |path: &str| format!("http://{}{path}", server.address());
    let prompt = client()
        .post(url("/v1/sessions/a/prompt"))
        .bearer_auth(TOKEN)
        .json(&json!({ "text": "refund it" }))
        .send();
    let prompt = tokio::spawn(prompt);
    let get = async |path: &str| -> Value {
        client().get(url(path)).bearer_auth(TOKEN).send().await.unwrap().json().await.unwrap()
    };
    let id = loop {
        let all = get("/v1/questions").await;
        if let Some(question) = all["questions"].get(0) {
            break question["question_id"].clone();
        }
    };
    assert_eq!(get("/v1/questions?session_id=a").await["questions"][0]["text"], "Refund?");
    assert_eq!(get("/v1/sessions/a/state").await["status"], "waiting");
    let answer = async |id: &Value, value: &str| {
        let body = json!({ "question_id": id, "value": value });
        let sent =
            client().post(url("/v1/sessions/a/answer")).bearer_auth(TOKEN).json(&body).send().await.unwrap();
        sent.status()
    };
    assert_eq!(answer(&id, "perhaps").await, StatusCode::BAD_REQUEST);
    assert_eq!(answer(&json!(0), "yes").await, StatusCode::NOT_FOUND);
    assert_eq!(answer(&id, "yes").await, StatusCode::OK);
    assert_eq!(answer(&id, "yes").await, StatusCode::CONFLICT);
    let reply: Value = prompt.await.unwrap().unwrap().json().await.unwrap();
    assert_eq!(reply["text"], "The answer was yes");
}

#[test]
fn a_body_is_json_in_utf_8() {
    for (media_type, is_read) in [
        ("application/json", true),
        ("Application/JSON; charset=UTF-8", true),
        ("application/json;charset=\"utf-8\"", true),
        ("application/json; version=1", true),
        ("application/json; charset=iso-8859-1", false),
        ("application/json; version=1; Charset = utf-16", false),
        ("text/plain; charset=utf-8", false),
    ] {
        assert_eq!(super::calls::is_json(media_type), is_read, "{media_type}");
    }
}
