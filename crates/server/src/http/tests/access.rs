//! Tokens: rights and labels, on every route.

use std::collections::BTreeSet;

use super::operations::{calls, request};
use super::*;
use crate::http::Token;
use crate::operations::{Label, Right, methods};

/// A token of 32 characters that begins like this.
pub(super) fn secret(name: &str) -> String {
    format!("{name:0<32}")
}

fn label(value: &str) -> Option<Label> {
    Some(Label { name: "tenant".to_owned(), value: value.to_owned() })
}

async fn with_tokens() -> (HttpServer, Simulator) {
    server_with(|options| {
        for (name, right, within) in [
            ("observer", Right::Observe, None),
            ("reader", Right::Read, None),
            ("prompter", Right::Prompt, None),
            ("ada", Right::Administer, label("ada")),
            ("bob", Right::Prompt, label("bob")),
            ("eve", Right::Read, label("ada")),
        ] {
            options.tokens.push(Token { secret: secret(name), right, within });
        }
    })
    .await
}

async fn as_of(server: &HttpServer, token: &str, name: &str, params: Value) -> (u16, Value) {
    let response = request(server, name, &params).bearer_auth(secret(token)).send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap())
}

/// Every route and every stream: without a token, with another one, from a web page, under another name.
#[tokio::test]
async fn every_route_is_guarded() {
    let (server, _model) = with_tokens().await;
    let mut routes: Vec<(String, String)> = methods()
        .iter()
        .filter_map(|method| method.route)
        .map(|route| (format!("{:?}", route.verb).to_uppercase(), format!("/v1{}", route.path)))
        .collect();
    for path in ["/v1/events", "/v1/sessions/{session_id}/events", "/openapi.json", "/metrics"] {
        routes.push(("GET".to_owned(), path.to_owned()));
    }
    let (ours, token) =
        (format!("host: {}", server.address()), format!("authorization: Bearer {}", secret("reader")));
    let (wrong, evil) =
        (format!("authorization: Bearer {}", secret("nobody")), "host: evil.example".to_owned());
    let (page, null) = ("origin: http://evil.example".to_owned(), "origin: null".to_owned());
    for (verb, path) in &routes {
        let path = path.replace(['{', '}'], "");
        for (headers, expected) in [
            (vec![&ours], 401),
            (vec![&ours, &wrong], 401),
            (vec![&ours, &token, &token], 401),
            (vec![&evil, &token], 421),
            (vec![&token], 400),
            (vec![&ours, &token, &page], 403),
            (vec![&ours, &token, &null], 403),
        ] {
            let headers: Vec<&str> = headers.into_iter().map(String::as_str).collect();
            let text = format!("{verb} {path} HTTP/1.1\r\n{}\r\n\r\n", headers.join("\r\n"));
            let mut stream = sent(&server, &text).await;
            assert_eq!(status(&mut stream).await, expected, "{verb} {path} {headers:?}");
        }
    }
    assert!(routes.len() > 40, "{}", routes.len());
}

/// What each right permits: every operation, with every token.
#[tokio::test]
async fn every_route_needs_its_right() {
    let (server, _model) = with_tokens().await;
    let mut checked = BTreeSet::new();
    for (name, params) in calls() {
        let needed = methods().into_iter().find(|method| method.name == name).unwrap().route.unwrap().right;
        for (token, has) in
            [("observer", Right::Observe), ("reader", Right::Read), ("prompter", Right::Prompt)]
        {
            // Where it is permitted, only what changes nothing is tried.
            if has < needed || needed == Right::Read {
                let (status, answer) = as_of(&server, token, name, params.clone()).await;
                assert_eq!(status == 403, has < needed, "{token} {name}: {answer}");
                assert_eq!(answer["kind"] == "forbidden", has < needed, "{token} {name}: {answer}");
                checked.insert((name, token));
            }
        }
    }
    assert!(checked.len() > 40, "{}", checked.len());
    let (_, list) = call(&server, Method::GET, "/v1/sessions", None).await;
    assert_eq!(list["sessions"], json!([]), "what was refused has done nothing");
    let prompt = json!({ "session_id": "p", "text": "x" });
    assert_eq!(as_of(&server, "prompter", "session/prompt", prompt).await.0, 200);
}

/// Two tenants on one server: neither reaches, names or finds what is the other's.
#[tokio::test]
async fn who_is_confined_to_a_label_sees_no_other_sessions() {
    let (server, simulator) = with_tokens().await;
    let named = |id: &str| json!({ "session_id": id });
    let prompt = |id: &str| json!({ "session_id": id, "text": "a word" });
    for (token, id) in [("ada", "ada-1"), ("ada", "ada-2"), ("bob", "bob-1"), ("prompter", "nobodys")] {
        assert_eq!(as_of(&server, token, "session/prompt", prompt(id)).await.0, 200, "{token} {id}");
    }
    assert_eq!(as_of(&server, "ada", "session/start", named("ada-3")).await.0, 200);
    let exported = as_of(&server, "ada", "session/export", named("ada-1")).await.1;
    let import = json!({ "session_id": "ada-4", "text": exported["text"] });
    assert_eq!(as_of(&server, "ada", "session/import", import.clone()).await.0, 200);
    assert_eq!(
        as_of(&server, "ada", "session/fork", json!({ "session_id": "ada-1", "to": "ada-5" })).await.0,
        200
    );
    let calls_before = simulator.calls();

    // Every operation on a session of the other's is answered as if there were none.
    let mut tried = BTreeSet::new();
    for (name, params) in calls() {
        if params.get("session_id").is_none() {
            continue;
        }
        for id in ["bob-1", "nobodys"] {
            let mut params = params.clone();
            params["session_id"] = id.into();
            let (status, answer) = as_of(&server, "ada", name, params.clone()).await;
            assert_eq!((status, &answer["kind"]), (404, &json!("no_session")), "{name} {id}: {answer}");
            // For the administrator it is there.
            tried.insert(name);
        }
    }
    assert!(tried.len() >= 30, "{tried:?}");
    assert_eq!(simulator.calls(), calls_before);
    for id in ["bob-1", "nobodys"] {
        assert_eq!(call(&server, Method::GET, &format!("/v1/sessions/{id}"), None).await.0, 200, "{id}");
        let (status, taken) =
            as_of(&server, "ada", "session/fork", json!({ "session_id": "ada-1", "to": id })).await;
        assert_eq!(status, 400, "{taken}");
        let import = json!({ "session_id": id, "text": exported["text"] });
        assert_eq!(as_of(&server, "ada", "session/import", import).await.0, 404, "{id}");
    }

    // The labels by which local commands find sessions are not theirs to set.
    for (token, name, expected) in
        [("ada", "folder", 403), ("ada", "one_shot", 403), ("prompter", "folder", 200)]
    {
        let label = json!({ "session_id": "ada-1", "name": name, "value": "/srv/project" });
        let (status, answer) = as_of(&server, token, "session/set_label", label).await;
        assert_eq!(status, expected, "{token} {name}: {answer}");
    }

    // Lists hold what is within the label.
    let ids = |answer: &Value, list: &str, id: &str| -> Vec<String> {
        let items = answer[list].as_array().unwrap_or_else(|| panic!("{answer}"));
        let ids: BTreeSet<String> = items.iter().map(|item| item[id].as_str().unwrap().to_owned()).collect();
        ids.into_iter().collect()
    };
    let adas = ["ada-1", "ada-2", "ada-3", "ada-4", "ada-5"];
    for token in ["ada", "eve"] {
        let (_, listed) = as_of(&server, token, "session/list", json!({})).await;
        assert_eq!(ids(&listed, "sessions", "id"), adas, "{token}");
        let (_, found) =
            as_of(&server, token, "session/recall", json!({ "query": "word", "limit": 100 })).await;
        assert_eq!(ids(&found, "found", "session"), ["ada-1", "ada-2", "ada-4", "ada-5"], "{token}");
        let (_, live) = as_of(&server, token, "session/live", json!({})).await;
        assert!(ids(&live, "sessions", "id").iter().all(|id| id.starts_with("ada")), "{live}");
        let all = json!({ "trees": true, "counts": true, "working": true });
        let (_, listed) = as_of(&server, token, "session/list", all.clone()).await;
        assert_eq!(ids(&listed, "sessions", "id"), adas, "{token}");
        assert_eq!(listed.get("counts"), None, "they count the sessions of all");
        let (status, _) = as_of(&server, token, "session/find", json!({ "prefix": "bob-1" })).await;
        assert_eq!(status, 404);
        let (_, other) =
            as_of(&server, token, "session/list", json!({ "labels": { "tenant": "bob" } })).await;
        assert_eq!(other["sessions"], json!([]));
        let (status, tree) = as_of(&server, token, "session/list", json!({ "tree": "bob-1" })).await;
        assert_eq!(status, 404, "{tree}");
        for name in ["models/list", "agent/tools"] {
            assert_eq!(as_of(&server, token, name, json!({})).await.0, 200, "{name}");
        }
    }
    let (_, listed) = as_of(&server, "prompter", "session/list", json!({ "counts": true })).await;
    assert!(listed["counts"]["matching"].as_u64().is_some_and(|count| count > 5), "{listed}");
    assert_eq!(
        as_of(&server, "ada", "session/find", json!({ "prefix": "ada-2" })).await.1["session_id"],
        "ada-2"
    );
    // The server is not theirs, nor is the label.
    assert_eq!(as_of(&server, "ada", "models/forget", json!({ "model": "x" })).await.0, 403);
    for value in [json!("bob"), Value::Null] {
        let relabel = json!({ "session_id": "ada-1", "name": "tenant", "value": value });
        assert_eq!(as_of(&server, "ada", "session/set_label", relabel).await.0, 403);
    }
    let other = json!({ "session_id": "ada-1", "name": "colour", "value": "red" });
    assert_eq!(as_of(&server, "ada", "session/set_label", other).await.0, 200);
    assert_eq!(as_of(&server, "eve", "session/prompt", prompt("ada-1")).await.0, 403);
    assert_eq!(as_of(&server, "ada", "session/delete", named("ada-1")).await.0, 200);
    // After the deletion, the id is free for the next client that uses it.
    assert_eq!(as_of(&server, "bob", "session/prompt", prompt("ada-1")).await.0, 200);
    assert_eq!(as_of(&server, "ada", "agent/state", named("ada-1")).await.0, 404);
    simulator.assert_clean();
}

/// Many who create the same session at once: it is one's alone.
#[tokio::test]
async fn a_new_session_belongs_to_one_label() {
    let (server, _model) = with_tokens().await;
    for round in 0..20 {
        let prompt = |token: &'static str| {
            let params = json!({ "session_id": format!("s{round}"), "text": token });
            let server = &server;
            async move { as_of(server, token, "session/prompt", params).await.0 }
        };
        let (ada, bob) = tokio::join!(prompt("ada"), prompt("bob"));
        assert!([(200, 404), (404, 200)].contains(&(ada, bob)), "{round}: {ada} {bob}");
        // And it stays that one's.
        assert_eq!((prompt("ada").await, prompt("bob").await), (ada, bob), "{round}");
    }
}

#[tokio::test]
async fn tokens_that_cannot_be_told_apart_are_refused_and_none_is_shown() {
    let simulator = Simulator::echo();
    let runtime = Runtime::builder().provider(simulator.provider()).in_memory().start().await.unwrap();
    for (token, reason) in [(TOKEN, "are equal"), ("short", "5 characters")] {
        let mut options = HttpOptions::new(([127, 0, 0, 1], 0).into(), TOKEN);
        options.tokens.push(Token { secret: token.to_owned(), right: Right::Read, within: label("x") });
        let shown = format!("{options:?}");
        assert!(!shown.contains(token) && shown.contains("Administer"), "{shown}");
        let refused =
            HttpServer::start(&runtime, Arc::new(Agent::new("simulated")), options).await.unwrap_err();
        assert!(refused.to_string().contains(reason), "{refused}");
        assert!(!refused.to_string().contains(token), "{refused}");
    }
}

/// A session's label `agent` names the agent that works on it: who may choose it, and what it changes.
#[tokio::test]
async fn a_session_has_the_agent_that_its_label_names() {
    let (server, simulator) = server_with(|options| {
        for (name, right) in [("prompter", Right::Prompt), ("admin", Right::Administer)] {
            options.tokens.push(Token { secret: secret(name), right, within: None });
        }
        let agent = Agent::new("simulated").context_window(8_000).instructions("You review.");
        options.agents.insert("reviewer".to_owned(), Arc::new(agent));
    })
    .await;
    let label =
        |id: &str, name: &str, value: Value| json!({ "session_id": id, "name": name, "value": value });
    for id in ["plain", "reviewed"] {
        assert_eq!(as_of(&server, "prompter", "session/start", json!({ "session_id": id })).await.0, 200);
    }
    for (token, value, status) in [
        ("prompter", json!("reviewer"), 403),
        ("prompter", Value::Null, 403),
        ("admin", json!("no-such"), 400),
        ("admin", json!("reviewer"), 200),
    ] {
        let (got, answer) =
            as_of(&server, token, "session/set_label", label("reviewed", "agent", value)).await;
        assert_eq!(got, status, "{token}: {answer}");
    }
    assert_eq!(
        as_of(&server, "prompter", "session/set_label", label("plain", "colour", json!("red"))).await.0,
        200
    );
    for (id, is_reviewed) in [("plain", false), ("reviewed", true)] {
        let prompt = json!({ "session_id": id, "text": "question" });
        assert_eq!(as_of(&server, "prompter", "session/prompt", prompt).await.0, 200);
        let sent = format!("{:?}", simulator.requests().last().unwrap().request);
        assert_eq!(sent.contains("You review."), is_reviewed, "{id}: {}", &sent[..sent.len().min(500)]);
    }
    // An agent that is no longer configured: the session can be read, and be given another one.
    let runtime = Runtime::builder().provider(simulator.provider()).in_memory().start().await.unwrap();
    let orphan = runtime.open("orphan", Arc::new(Agent::new("simulated"))).await.unwrap();
    orphan.set_label("agent", "gone").await.unwrap();
    let mut options = HttpOptions::new(([127, 0, 0, 1], 0).into(), secret("admin"));
    options.agents.insert("reviewer".to_owned(), Arc::new(Agent::new("simulated").context_window(8_000)));
    let server = HttpServer::start(&runtime, Arc::new(Agent::new("simulated")), options).await.unwrap();
    let prompt = || json!({ "session_id": "orphan", "text": "question" });
    let (status, problem) = as_of(&server, "admin", "session/prompt", prompt()).await;
    assert_eq!((status, problem["detail"].as_str().unwrap().contains("gone")), (409, true), "{problem}");
    assert_eq!(as_of(&server, "admin", "agent/state", json!({ "session_id": "orphan" })).await.0, 200);
    assert_eq!(
        as_of(&server, "admin", "session/set_label", label("orphan", "agent", Value::Null)).await.0,
        200
    );
    assert_eq!(as_of(&server, "admin", "session/prompt", prompt()).await.0, 200);
}
