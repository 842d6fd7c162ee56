//! Limits by label over HTTP: 429 with `Retry-After`, and what a token is told of spending.

use greenroom::LabelLimit;

use super::access::secret;
use super::*;
use crate::http::Token;
use crate::operations::{Label, Right};

async fn with_limits(limit: LabelLimit) -> (HttpServer, Simulator) {
    let simulator = Simulator::new(SimulatorOptions {
        provider_name: "openai".to_owned(),
        window: 8_000,
        ..SimulatorOptions::new(Function(|_: &_, _| Answer::text("word ".repeat(30))))
    });
    let runtime = Runtime::builder().provider(simulator.provider()).in_memory().label_limit(limit);
    let runtime = runtime.start().await.unwrap();
    let mut options = HttpOptions::new(([127, 0, 0, 1], 0).into(), TOKEN);
    for tenant in ["ada", "bob"] {
        let label = Label { name: "tenant".to_owned(), value: tenant.to_owned() };
        options.tokens.push(Token { secret: secret(tenant), right: Right::Prompt, within: Some(label) });
    }
    let agent = Arc::new(Agent::new("gpt-4o").context_window(8_000));
    (HttpServer::start(&runtime, agent, options).await.unwrap(), simulator)
}

async fn ask(
    server: &HttpServer,
    token: &str,
    method: Method,
    path: &str,
    accept: &str,
) -> reqwest::Response {
    let url = format!("http://{}{path}", server.address());
    let request = client().request(method.clone(), url).bearer_auth(token).header("accept", accept);
    let request = if method == Method::POST { request.json(&json!({ "text": "hello" })) } else { request };
    request.send().await.unwrap()
}

#[tokio::test]
async fn a_tenant_s_limit_of_messages_is_429_with_the_time_to_come_again() {
    // One in two minutes would not be a whole number: room comes back every 20 s.
    let (server, _simulator) = with_limits(LabelLimit::each("tenant").messages_per_minute(3)).await;
    let (ada, bob) = (secret("ada"), secret("bob"));
    let post =
        async |token: &str, path: &str, accept: &str| ask(&server, token, Method::POST, path, accept).await;
    for path in ["/v1/sessions/a/prompt", "/v1/sessions/a/steer", "/v1/sessions/b/prompt"] {
        assert_eq!(post(&ada, path, "application/json").await.status(), 200, "{path}");
    }
    // The last one is of a session that there is not, and then there is still none.
    for path in
        ["/v1/sessions/a/prompt", "/v1/sessions/a/steer", "/v1/sessions/b/follow_up", "/v1/sessions/e/prompt"]
    {
        for accept in ["application/json", "text/event-stream"] {
            let refused = post(&ada, path, accept).await;
            assert_eq!(refused.status(), 429, "{path} {accept}");
            let header = |name: &str| refused.headers().get(name).unwrap().to_str().unwrap().to_owned();
            assert_eq!(header("content-type"), "application/problem+json");
            let seconds: u64 = header("retry-after").parse().unwrap();
            assert!((1..=20).contains(&seconds), "{seconds}");
            let problem: Value = refused.json().await.unwrap();
            assert_eq!(
                (&problem["kind"], &problem["retryable"]),
                (&json!("limited"), &json!(true)),
                "{problem}"
            );
            let wait_ms = problem["retry_after_ms"].as_u64().unwrap();
            assert!((1..=20_000).contains(&wait_ms) && seconds == wait_ms.div_ceil(1_000), "{problem}");
            assert!(
                problem["detail"].as_str().unwrap().contains("tenant=ada take 3 messages a minute"),
                "{problem}"
            );
        }
    }
    let sessions = async |token: &str| {
        let listed = ask(&server, token, Method::GET, "/v1/sessions", "application/json").await;
        let listed: Value = listed.json().await.unwrap();
        let ids = listed["sessions"].as_array().unwrap().iter();
        ids.map(|session| session["id"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(sessions(&ada).await, ["a", "b"]);
    let url = format!("http://{}/v1/sessions/f/prompt", server.address());
    for wrong in [
        json!({ "text": "?", "images": [{ "media_type": "image/png", "data": "?" }] }),
        json!({ "txt": "?" }),
    ] {
        let refused = client().post(&url).bearer_auth(&bob).json(&wrong).send().await.unwrap();
        assert_eq!((refused.status().as_u16(), sessions(&bob).await), (400, Vec::new()), "{wrong}");
    }
    // Others are not concerned.
    assert_eq!(post(&bob, "/v1/sessions/c/prompt", "application/json").await.status(), 200);
    assert_eq!(post(TOKEN, "/v1/sessions/d/prompt", "application/json").await.status(), 200);
}

#[tokio::test]
async fn a_confined_token_is_told_what_its_label_spent() {
    let (server, _simulator) = with_limits(LabelLimit::each("tenant")).await;
    let (ada, bob) = (secret("ada"), secret("bob"));
    let mut costs = Vec::new();
    for (token, session) in [(&ada, "a"), (&ada, "b"), (&bob, "c"), (&TOKEN.to_owned(), "d")] {
        let path = format!("/v1/sessions/{session}/prompt");
        let reply: Value =
            ask(&server, token, Method::POST, &path, "application/json").await.json().await.unwrap();
        costs.push(reply["cost_microdollars"].as_u64().unwrap());
    }
    let told = async |token: &str, query: &str| {
        let response =
            ask(&server, token, Method::GET, &format!("/v1/usage{query}"), "application/json").await;
        let (status, answer) = (response.status().as_u16(), response.json::<Value>().await.unwrap());
        let rows = answer["spending"].as_array().cloned().unwrap_or_default();
        let row = |row: &Value| {
            let value = row["value"].as_str().unwrap_or("all").to_owned();
            (value, row["cost_microdollars"].as_u64().unwrap(), row["runs"].as_u64().unwrap())
        };
        (status, rows.iter().map(row).collect::<Vec<_>>())
    };
    let of = |tenant: &str, cost: u64, runs: u64| (tenant.to_owned(), cost, runs);
    let (adas, bobs) = (of("ada", costs[0] + costs[1], 2), of("bob", costs[2], 1));
    assert!(costs[2] > 0);
    for query in ["", "?per=hour&last=48", "?by=tenant", "?by=tenant&value=ada"] {
        assert_eq!(told(&ada, query).await, (200, vec![adas.clone()]), "{query}");
    }
    for query in ["?by=tenant&value=bob", "?by=team"] {
        assert_eq!(told(&ada, query).await.0, 403, "{query}");
    }
    assert_eq!(told(TOKEN, "?by=tenant").await, (200, vec![adas, bobs.clone()]));
    assert_eq!(told(TOKEN, "?by=tenant&value=bob&last=400").await, (200, vec![bobs]));
    assert_eq!(told(TOKEN, "").await, (200, vec![of("all", costs.iter().sum(), 4)]));
    for query in ["?by=team", "?value=ada", "?per=week", "?last=-1"] {
        assert_eq!(told(TOKEN, query).await.0, 400, "{query}");
    }
}
