//! Probes and metrics: who may ask, and what they are told.

use greenroom_store::StoreOptions;
use greenroom_store::faults::{ENOSPC, Fault, FaultyFiles};
use greenroom_store::files::RealFiles;

use super::*;
use crate::http::Token;
use crate::operations::{Label, Right};

fn secret(name: &str) -> String {
    format!("{name:0<32}")
}

async fn get(server: &HttpServer, path: &str, token: Option<&str>) -> (u16, String, String) {
    let mut request = client().get(format!("http://{}{path}", server.address()));
    if let Some(token) = token {
        request = request.bearer_auth(token);
    }
    let response = request.send().await.unwrap();
    let kind = response.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
    (response.status().as_u16(), kind.unwrap_or_default(), response.text().await.unwrap())
}

/// The rights that each probe needs.
#[tokio::test]
async fn probes_need_no_token_and_metrics_the_least_right() {
    let label = || Some(Label { name: "tenant".to_owned(), value: "ada".to_owned() });
    let (server, _model) = server_with(|options| {
        for (name, right, within) in [
            ("observer", Right::Observe, None),
            ("reader", Right::Read, None),
            ("ada", Right::Administer, label()),
        ] {
            options.tokens.push(Token { secret: secret(name), right, within });
        }
    })
    .await;
    let [observer, reader, ada, wrong] = ["observer", "reader", "ada", "nobody"].map(secret);
    for (path, token, expected) in [
        ("/healthz", None, 200),
        ("/readyz", None, 200),
        ("/healthz", Some(&wrong), 200),
        ("/readyz", Some(&ada), 200),
        ("/metrics", None, 401),
        ("/metrics", Some(&wrong), 401),
        ("/metrics", Some(&observer), 200),
        ("/metrics", Some(&reader), 200),
        ("/metrics", Some(&TOKEN.to_owned()), 200),
        ("/metrics", Some(&ada), 403),
        ("/v1/sessions", Some(&observer), 403),
        ("/v1/events", Some(&observer), 403),
        ("/healthz/", None, 401),
        ("/readyz/x", None, 401),
    ] {
        let (status, _, body) = get(&server, path, token.map(String::as_str)).await;
        assert_eq!(status, expected, "{path} {token:?}: {body}");
    }
    for (path, expected) in [("/healthz", "ok"), ("/readyz", "ready")] {
        assert_eq!(get(&server, path, None).await.2, expected);
    }
    // Web pages and other names are refused everywhere, and only reading is open.
    let ours = format!("host: {}", server.address());
    for (line, headers, expected) in [
        ("GET /healthz", vec!["host: evil.example"], 421),
        ("GET /readyz", vec![&*ours, "origin: http://evil.example"], 403),
        ("POST /readyz", vec![&*ours, "content-length: 0"], 401),
        ("HEAD /healthz", vec![&*ours], 200),
        // A body is not waited for.
        ("GET /healthz", vec![&*ours, "content-length: 100"], 200),
    ] {
        let text = format!("{line} HTTP/1.1\r\n{}\r\n\r\n", headers.join("\r\n"));
        let mut stream = sent(&server, &text).await;
        if line.starts_with("HEAD") {
            let mut buffer = [0; 64];
            let read = stream.read(&mut buffer).await.unwrap();
            assert!(buffer[..read].starts_with(b"HTTP/1.1 200"), "{line}");
            continue;
        }
        assert_eq!(status(&mut stream).await, expected, "{line} {headers:?}");
    }
    let confined = Token { secret: secret("both"), right: Right::Observe, within: label() };
    let mut options = HttpOptions::new(([127, 0, 0, 1], 0).into(), TOKEN);
    options.tokens.push(confined);
    let simulator = Simulator::echo();
    let runtime = Runtime::builder().provider(simulator.provider()).in_memory().start().await.unwrap();
    let refused = HttpServer::start(&runtime, Arc::new(Agent::new("any")), options).await.unwrap_err();
    assert!(refused.to_string().contains("`observe` cannot have a label"), "{refused}");
}

#[tokio::test]
async fn metrics_are_in_the_text_format() {
    let server = server().await;
    let body = json!({ "text": "question" });
    assert_eq!(call(&server, Method::POST, "/v1/sessions/a/prompt", Some(body)).await.0, StatusCode::OK);
    let (status, kind, text) = get(&server, "/metrics", Some(TOKEN)).await;
    assert_eq!((status, &*kind), (200, "text/plain; version=0.0.4; charset=utf-8"));
    for line in [
        "# TYPE greenroom_runs_total counter",
        "greenroom_runs_total{provider=\"simulator\",model=\"simulated\",outcome=\"completed\"} 1",
        "greenroom_sessions{state=\"idle\"} 1",
    ] {
        assert!(text.lines().any(|known| known == line), "{line} in\n{text}");
    }
}

/// While the runtime drains, no more work is sent to it.
#[tokio::test]
async fn a_server_that_drains_is_not_ready() {
    let simulator = Simulator::echo();
    let runtime = Runtime::builder().provider(simulator.provider()).in_memory().start().await.unwrap();
    let server = serve(&runtime, |_| {}).await;
    assert_eq!(get(&server, "/readyz", None).await.0, 200);
    assert_eq!(runtime.drain(Duration::ZERO).await, 0);
    let (status, kind, body) = get(&server, "/readyz", None).await;
    assert_eq!((status, &*kind), (503, "application/problem+json"));
    assert!(body.contains("the server is stopping"), "{body}");
    assert_eq!(get(&server, "/healthz", None).await.0, 200, "the process is well");
    server.stop().await;
}

/// A full disk, and space again: the server finds out by itself, although nobody sends it work.
#[tokio::test]
async fn a_server_whose_store_cannot_be_written_is_not_ready_until_it_can() {
    let dir = tempfile::tempdir().unwrap();
    let files = FaultyFiles::new(Arc::new(RealFiles));
    let options = StoreOptions { files: Arc::new(files.clone()), ..StoreOptions::new(dir.path()) };
    let (store, _) = Store::open(&options).unwrap();
    let simulator = Simulator::echo();
    let runtime = Runtime::builder().provider(simulator.provider()).store(store).start().await.unwrap();
    let server = serve(&runtime, |_| {}).await;
    let prompt = async || {
        let body = Some(json!({ "text": "question" }));
        call(&server, Method::POST, "/v1/sessions/a/prompt", body).await.0.as_u16()
    };
    assert_eq!((prompt().await, get(&server, "/readyz", None).await.0), (200, 200));
    files.set(Fault::FailFrom { at: 1, errno: ENOSPC });
    assert_eq!(get(&server, "/readyz", None).await.0, 200, "nothing was written, so nothing is known");
    assert_ne!(prompt().await, 200);
    for _ in 0..2 {
        let (status, _, body) = get(&server, "/readyz", None).await;
        assert_eq!(status, 503, "{body}");
        assert!(body.contains("the store cannot be written"), "{body}");
        assert!(!body.contains(&*dir.path().to_string_lossy()), "no path is told to strangers: {body}");
    }
    files.set(Fault::None);
    assert_eq!(get(&server, "/readyz", None).await.0, 200);
    assert_eq!(prompt().await, 200);
    server.stop().await;
}
