//! The routes over a real socket, and who is let in.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;

use greenroom::{Agent, Runtime};
use greenroom_simulator::{ByPurpose, Function, Reply, Simulator, SimulatorOptions, Summariser};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};

use super::{HttpOptions, HttpServer};

const TOKEN: &str = "0123456789abcdef";

async fn server() -> HttpServer {
    let runs = Function(|_: &_, _| Reply::text("word ".repeat(300)));
    let script = ByPurpose::new(runs, Summariser::Obedient);
    let simulator = Simulator::new(SimulatorOptions { window: 8_000, ..SimulatorOptions::new(script) });
    let runtime = Runtime::builder().provider(simulator.provider()).in_memory().start().await.unwrap();
    let options = HttpOptions { address: ([127, 0, 0, 1], 0).into(), token: TOKEN.into() };
    let agent = Arc::new(Agent::new("simulated").context_window(8_000));
    HttpServer::start(&runtime, agent, options).await.unwrap()
}

async fn call(server: &HttpServer, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
    let request =
        Client::new().request(method, format!("http://{}{path}", server.address())).bearer_auth(TOKEN);
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
    let (status, state) = call(&server, Method::POST, "/sessions", Some(json!({ "session_id": "a" }))).await;
    assert_eq!((status, &state["context_window"]), (StatusCode::OK, &json!(8_000)));
    let (_, nothing) = call(&server, Method::POST, "/sessions/a/compact", None).await;
    assert_eq!(nothing["outcome"], "nothing", "{nothing:?}");
    for run in 0..4 {
        let body = json!({ "text": format!("question {run}") });
        let (status, reply) = call(&server, Method::POST, "/sessions/a/prompt", Some(body)).await;
        assert_eq!(status, StatusCode::OK, "{reply}");
        assert!(reply["text"].as_str().unwrap().starts_with("word"));
    }
    let options = json!({ "keep_recent": 400, "focus": "words" });
    let (status, end) = call(&server, Method::POST, "/sessions/a/compact", Some(options)).await;
    assert_eq!((status, &end["outcome"]), (StatusCode::OK, &json!("completed")), "{end}");
    assert!(end["tokens_after"].as_u64() < end["tokens_before"].as_u64());
    let (_, state) = call(&server, Method::GET, "/sessions/a", None).await;
    assert_eq!((&state["compactions"], &state["status"]), (&json!(1), &json!("idle")));
    let (_, list) = call(&server, Method::GET, "/sessions", None).await;
    assert_eq!(list["sessions"][0]["id"], "a");
    assert_eq!(call(&server, Method::POST, "/sessions/a/abort", None).await.0, StatusCode::OK);
    server.stop().await;
}

#[tokio::test]
async fn bad_requests_are_problems() {
    let server = server().await;
    let cases = [
        (Method::GET, "/no/such", None, 404),
        (Method::GET, "/sessions/none", None, 404),
        (Method::POST, "/sessions/none/compact", None, 404),
        (Method::POST, "/sessions", Some(json!({ "id": "a" })), 400),
        (Method::POST, "/sessions", Some(json!({ "session_id": "../a" })), 400),
        (Method::POST, "/sessions/a/prompt", Some(json!({ "text": " " })), 400),
        (Method::POST, "/sessions/a/prompt", None, 415),
    ];
    for (method, path, body, expected) in cases {
        let (status, problem) = call(&server, method.clone(), path, body).await;
        assert_eq!(status.as_u16(), expected, "{method} {path}: {problem}");
        assert_eq!(problem["status"], expected, "{method} {path}");
    }
    let long = json!({ "text": "x".repeat(super::BODY_BYTES_MAX) });
    let (status, _) = call(&server, Method::POST, "/sessions/a/prompt", Some(long)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}

#[tokio::test]
async fn nobody_without_the_token_and_no_web_page_is_let_in() {
    let server = server().await;
    let url = |path: &str| format!("http://{}{path}", server.address());
    for path in ["/healthz", "/sessions", "/sessions/a", "/no/such"] {
        let bare = Client::new().get(url(path)).send().await.unwrap();
        assert_eq!(bare.status(), StatusCode::UNAUTHORIZED, "{path}");
        let wrong = Client::new().get(url(path)).bearer_auth("0123456789abcdeF").send().await.unwrap();
        assert_eq!(wrong.status(), StatusCode::UNAUTHORIZED, "{path}");
    }
    let good = || Client::new().get(url("/healthz")).bearer_auth(TOKEN);
    assert_eq!(good().send().await.unwrap().status(), StatusCode::OK);
    let page = good().header("origin", "http://example.com").send().await.unwrap();
    assert_eq!(page.status(), StatusCode::FORBIDDEN);
    let rebound = good().header("host", "example.com").send().await.unwrap();
    assert_eq!(rebound.status(), StatusCode::MISDIRECTED_REQUEST);
}
