//! Every operation over HTTP: its route, its answer by the description, idempotency keys and the forms of answers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use greenroom_tools::ValueSchema;
use reqwest::header::HeaderMap;
use reqwest::{RequestBuilder, Response};

use super::super::openapi::openapi;
use super::*;
use crate::operations::{Method as Declared, Verb, methods};

/// The request of an operation with these parameters.
pub(super) fn request(server: &HttpServer, name: &str, params: &Value) -> RequestBuilder {
    let declared = methods().into_iter().find(|method| method.name == name).unwrap();
    let route = declared.route.unwrap();
    let (mut path, mut rest) = (route.path.to_owned(), params.as_object().unwrap().clone());
    for (name, value) in params.as_object().unwrap() {
        let encoded: String = form_urlencoded::byte_serialize(text(value).as_bytes()).collect();
        let place = format!("{{{name}}}");
        if path.contains(&place) {
            path = path.replace(&place, &encoded.replace('+', "%20"));
            rest.remove(name);
        }
    }
    let method = match route.verb {
        Verb::Get => Method::GET,
        Verb::Delete => Method::DELETE,
        Verb::Post => Method::POST,
        Verb::Put => Method::PUT,
    };
    let mut url = format!("http://{}/v1{path}", server.address());
    if route.verb.has_query() && !rest.is_empty() {
        let mut query = form_urlencoded::Serializer::new(String::new());
        for (name, value) in &rest {
            match value.as_object() {
                Some(labels) => labels.iter().for_each(|(name, value)| {
                    query.append_pair("label", &format!("{name}:{}", text(value)));
                }),
                None => _ = query.append_pair(name, &text(value)),
            }
        }
        url = format!("{url}?{}", query.finish());
    }
    let request = client().request(method, url);
    if route.verb.has_query() { request } else { request.json(&rest) }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

async fn ask(server: &HttpServer, name: &str, params: &Value) -> Response {
    request(server, name, params).bearer_auth(TOKEN).send().await.unwrap()
}

/// The schema in the description of the answer with this status, as a schema of its own.
fn described(document: &Value, name: &str, status: u16, kind: &str) -> ValueSchema {
    let id = name.replace('/', "_");
    let operations =
        document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values());
    let operation = operations.into_iter().find(|operation| operation["operationId"] == *id).unwrap();
    let own = &operation["responses"][status.to_string()];
    let response = if own.is_null() { &document["components"]["responses"]["Problem"] } else { own };
    let mut schema = response["content"][kind]["schema"].clone();
    assert!(schema.is_object(), "{name} {status} {kind} is not described: {response}");
    schema["components"] = document["components"].clone();
    ValueSchema::new(&schema).unwrap()
}

/// Checks an answer by the description, and returns it.
async fn check(document: &Value, name: &str, response: Response) -> (StatusCode, Value) {
    let status = response.status();
    let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
    let value: Value = response.json().await.unwrap();
    let schema = described(document, name, status.as_u16(), &kind);
    let shown: String = value.to_string().chars().take(500).collect();
    schema.check(&value).unwrap_or_else(|reason| panic!("{name} {status}: {reason}: {shown}"));
    (status, value)
}

/// Calls for every operation, in an order in which they all succeed.
pub(super) fn calls() -> Vec<(&'static str, Value)> {
    let with = |more: Value| {
        let mut params = json!({ "session_id": "a b/c" });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    let a = || with(json!({}));
    vec![
        ("session/start", a()),
        ("session/prompt", with(json!({ "text": "one" }))),
        ("session/prompt", with(json!({ "text": "two", "key": "k", "settings": { "temperature": 0.5 } }))),
        ("session/steer", with(json!({ "text": "three" }))),
        ("session/follow_up", with(json!({ "text": "four" }))),
        ("usage/report", json!({ "per": "hour", "last": 2 })),
        ("session/live", json!({})),
        ("session/in_progress", a()),
        ("agent/state", a()),
        ("session/set_title", with(json!({ "title": "Four words" }))),
        ("session/set_permissions", with(json!({ "mode": "read_only", "deny": ["read(.env)"] }))),
        ("session/permissions", a()),
        ("session/set_label", with(json!({ "name": "a/b c", "value": "x:y" }))),
        ("session/get", a()),
        ("session/find", json!({ "prefix": "a b" })),
        (
            "session/list",
            json!({ "labels": { "a/b c": "x:y" }, "limit": 1, "order": "newest", "unfinished": false }),
        ),
        ("session/plan", with(json!({ "keep_recent": 300 }))),
        ("session/pin", with(json!({ "entry_id": 0 }))),
        ("session/pins", a()),
        ("session/pin", with(json!({ "entry_id": 0, "pinned": false }))),
        ("session/compact", with(json!({ "keep_recent": 300 }))),
        ("session/compactions", a()),
        ("session/compaction", with(json!({ "number": 1 }))),
        ("session/undo_compaction", a()),
        ("session/entries", with(json!({ "from": 1, "limit": 2 }))),
        ("session/show", with(json!({ "after": 0 }))),
        ("session/recall", json!({ "query": "one", "session_id": "a b/c", "limit": 3 })),
        ("session/replay", with(json!({ "from_seq": 1 }))),
        ("session/fork", with(json!({ "to": "b", "entry_id": 1 }))),
        ("session/branch", with(json!({ "entry_id": 1 }))),
        ("session/rewind", with(json!({ "entry_id": 1, "scope": "files", "dry_run": true }))),
        ("session/tree", a()),
        ("session/context", a()),
        ("session/inbox", a()),
        ("session/clear_inbox", a()),
        ("session/questions", json!({ "session_id": "a b/c" })),
        ("session/export", a()),
        ("consumer/read", json!({ "name": "a b/c", "max": 2, "labels": { "a/b c": "x:y" } })),
        ("consumer/list", json!({})),
        ("consumer/delete", json!({ "name": "a b/c" })),
        ("models/list", json!({})),
        ("models/forget", json!({ "model": "none" })),
        ("agent/tools", json!({})),
        ("agent/abort", a()),
        ("session/prune", json!({ "dry_run": true, "age_max_s": 60, "rules": [{ "labels": { "a": "b" } }] })),
        ("session/delete", a()),
    ]
}

#[tokio::test]
async fn every_operation_has_a_route_and_answers_as_described() {
    let (server, simulator) = server_with(|_| {}).await;
    let document = openapi();
    let mut seen = BTreeSet::new();
    for (name, params) in calls() {
        let (status, value) = check(&document, name, ask(&server, name, &params).await).await;
        let shown: String = value.to_string().chars().take(500).collect();
        assert_eq!(status, StatusCode::OK, "{name} {params}: {shown}");
        if name == "session/export" {
            let import = json!({ "session_id": "imported", "text": value["text"] });
            let (status, value) =
                check(&document, "session/import", ask(&server, "session/import", &import).await).await;
            assert_eq!(status, StatusCode::OK, "{value}");
        }
        seen.insert(name);
        // Input that was sent on has to be done before the next call.
        while seen.contains("session/steer") && name != "session/delete" {
            let state: Value =
                ask(&server, "agent/state", &json!({ "session_id": "a b/c" })).await.json().await.unwrap();
            if state["status"] == "idle" && state["waiting"] == 0 {
                break;
            }
        }
    }
    // Refusals are described, too.
    for (name, params, wanted) in [
        ("session/resume", json!({ "session_id": "b" }), 400),
        ("session/answer", json!({ "session_id": "b", "question_id": 0, "value": "x" }), 404),
        ("session/get", json!({ "session_id": "none" }), 404),
        ("session/find", json!({ "prefix": "" }), 400),
        ("session/replay", json!({ "session_id": "b", "from_seq": "x" }), 400),
        ("session/compaction", json!({ "session_id": "b", "number": 9 }), 400),
        ("session/prune", json!({}), 400),
    ] {
        let (status, problem) = check(&document, name, ask(&server, name, &params).await).await;
        assert_eq!(
            (status.as_u16(), problem["status"].as_u64()),
            (wanted, Some(wanted.into())),
            "{name}: {problem}"
        );
        seen.insert(name);
    }
    seen.insert("session/import");
    let routed: BTreeSet<&str> =
        methods().iter().filter(|known| known.route.is_some()).map(|known| known.name).collect();
    assert_eq!(seen, routed, "each is called here");
    // What HTTP has not: the connections of hosts, backups, which name a path, and watching, which is a stream of events
    // here.
    let others: Vec<&str> =
        methods().iter().filter(|known| known.route.is_none()).map(|known| known.name).collect();
    assert_eq!(
        others,
        ["client/hello", "host/ping", "host/status", "host/stop", "store/backup", "session/watch"]
    );
    simulator.assert_clean();
    server.stop().await;
}

/// Each route is in the description with exactly the parameters that its operation takes.
#[test]
fn routes_are_described_with_all_their_parameters() {
    let document = openapi();
    let mut schemas = schemars::generate::SchemaSettings::draft2020_12().into_generator();
    let mut paths = BTreeMap::new();
    for method in methods() {
        let Declared { name, route: Some(route), .. } = method else { continue };
        let verb = format!("{:?}", route.verb).to_lowercase();
        let before = paths.insert((route.path, verb.clone()), name);
        assert_eq!(before, None, "{name} has the route of another operation");
        let operation = &document["paths"][format!("/v1{}", route.path)][&verb];
        let mut described: BTreeSet<String> = BTreeSet::new();
        for parameter in operation["parameters"].as_array().unwrap() {
            if parameter["in"] != "header" {
                described.insert(text(&parameter["name"]).replace("label", "labels"));
            }
        }
        let body = &operation["requestBody"]["content"]["application/json"]["schema"]["properties"];
        described.extend(body.as_object().into_iter().flatten().map(|(name, _)| name.clone()));
        let params = method.params(&mut schemas);
        let wanted: BTreeSet<String> =
            params["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone()).collect();
        assert_eq!(described, wanted, "{name}");
        for place in route.path.split('/').filter_map(|part| part.strip_prefix('{')) {
            assert!(wanted.contains(place.trim_end_matches('}')), "{name}: {place}");
        }
    }
}

/// `GREENROOM_WRITE_SCHEMAS=1 cargo test -p greenroom-server schema` writes it anew.
#[tokio::test]
async fn the_checked_in_openapi_schema_is_what_is_served() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema/openapi.json");
    let wanted = format!("{}\n", serde_json::to_string_pretty(&openapi()).unwrap());
    #[expect(clippy::disallowed_methods, reason = "whoever changes a type says so, and the file is written")]
    if std::env::var_os("GREENROOM_WRITE_SCHEMAS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == wanted,
        "docs/schema/openapi.json is not what the types say; write it with GREENROOM_WRITE_SCHEMAS=1"
    );
    let server = server().await;
    let (status, served) = call(&server, Method::GET, "/openapi.json", None).await;
    assert_eq!((status, &served["openapi"]), (StatusCode::OK, &json!("3.1.0")));
    assert!(served == serde_json::from_str::<Value>(&there).unwrap());
}

#[tokio::test]
async fn a_prompt_is_repeated_by_its_key_wherever_the_key_is() {
    let (server, simulator) = server_with(|_| {}).await;
    let prompt = async |header: Option<&str>, key: Option<&str>| -> (u16, Value) {
        let mut params = json!({ "session_id": "a", "text": "question" });
        if let Some(key) = key {
            params["key"] = key.into();
        }
        let mut request = request(&server, "session/prompt", &params).bearer_auth(TOKEN);
        if let Some(header) = header {
            request = request.header("idempotency-key", header);
        }
        let response = request.send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap())
    };
    let (_, first) = prompt(Some("k-1"), None).await;
    for (header, key, is_same) in [
        (Some("k-1"), None, true),
        (Some("\"k-1\""), None, true),
        (None, Some("k-1"), true),
        (Some("k-2"), None, false),
        (None, None, false),
    ] {
        let (status, reply) = prompt(header, key).await;
        assert_eq!(
            (status, reply["entry_id"] == first["entry_id"]),
            (200, is_same),
            "{header:?} {key:?}: {reply}"
        );
    }
    assert_eq!(simulator.calls(), 3);
    for (header, key) in [(Some(""), None), (Some("\"\""), None), (Some("k"), Some("k"))] {
        assert_eq!(prompt(header, key).await.0, 400, "{header:?} {key:?}");
    }
    let steer = request(&server, "session/steer", &json!({ "session_id": "a", "text": "x" }));
    let steer = steer.bearer_auth(TOKEN).header("idempotency-key", "k").send().await.unwrap();
    assert_eq!(steer.status(), 400, "a promise that is not kept is not made");
    server.stop().await;
}

#[tokio::test]
async fn parameters_are_in_one_place() {
    let server = server().await;
    let post = async |path: &str, headers: &[(&str, &str)], body: &'static str| {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(name.parse::<reqwest::header::HeaderName>().unwrap(), value.parse().unwrap());
        }
        let url = format!("http://{}{path}", server.address());
        let sent = client().post(url).bearer_auth(TOKEN).headers(map).body(body).send().await.unwrap();
        (sent.status().as_u16(), sent.json::<Value>().await.unwrap()["detail"].as_str().unwrap().to_owned())
    };
    let json = ("content-type", "application/json");
    for (path, headers, body, status, said) in [
        ("/v1/sessions/a/prompt", &[json][..], r#"{"session_id":"a","text":"x"}"#, 400, "session_id"),
        ("/v1/sessions/a/prompt?text=x", &[json], r#"{"text":"x"}"#, 400, "in the body"),
        ("/v1/sessions/a/prompt", &[json], "[]", 400, "object"),
        ("/v1/sessions/a/prompt", &[json], "{", 400, "EOF"),
        ("/v1/sessions/a/prompt", &[], r#"{"text":"x"}"#, 415, "application/json"),
        (
            "/v1/sessions/a/prompt",
            &[("content-type", "text/plain")],
            r#"{"text":"x"}"#,
            415,
            "application/json",
        ),
        ("/v1/sessions/a/prompt", &[json], r#"{"text":5}"#, 400, "text"),
        ("/v1/sessions/a/prompt", &[json], "", 400, "text"),
        ("/v1/sessions/a/branch", &[], "", 400, "entry_id"),
        ("/v1/sessions/a/branch", &[json], r#"{"summary":true}"#, 400, "entry_id"),
    ] {
        let (got, detail) = post(path, headers, body).await;
        assert_eq!((got, detail.contains(said)), (status, true), "{path} {body}: {detail}");
    }
    for (path, status) in [
        ("/v1/sessions/a/entries?session_id=b", 400),
        ("/v1/sessions?limit=1&limit=2", 400),
        ("/v1/sessions?label=a:b&label=a:c", 400),
        ("/v1/sessions?label=:c", 400),
        ("/v1/sessions?label=a:b&label=c:", 200),
        ("/v1/live?x=1", 400),
    ] {
        assert_eq!(call(&server, Method::GET, path, None).await.0.as_u16(), status, "{path}");
    }
    let delete = client().delete(format!("http://{}/v1/sessions/a", server.address())).bearer_auth(TOKEN);
    assert_eq!(delete.body("{}").send().await.unwrap().status(), 400);
}

#[tokio::test]
async fn work_is_accepted_without_its_outcome_if_the_client_prefers_that() {
    let (server, _model) = server_with(|options| options.connections_max = 2).await;
    let document = openapi();
    let params = json!({ "session_id": "a", "text": "question" });
    let prompt = request(&server, "session/prompt", &params)
        .bearer_auth(TOKEN)
        .header("prefer", "wait=5, respond-async");
    let response = prompt.send().await.unwrap();
    assert_eq!(response.headers()["preference-applied"], "respond-async");
    let (status, accepted) = check(&document, "session/prompt", response).await;
    assert_eq!((status.as_u16(), &accepted), (202, &json!({ "accepted": true, "entry_id": 0 })));
    loop {
        let (_, state) = call(&server, Method::GET, "/v1/sessions/a/state", None).await;
        if state["status"] == "idle" {
            break;
        }
    }
    let (_, shown) = call(&server, Method::GET, "/v1/sessions/a/conversation", None).await;
    assert_eq!(shown["conversation"].as_array().unwrap().len(), 2, "it was answered although nobody waited");
}

/// A run is aborted by its prompt's entry, whichever request began it.
#[tokio::test(start_paused = true)]
async fn one_run_is_aborted_by_its_entry() {
    let model = slow();
    let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await.unwrap();
    let server = serve(&runtime, |_| {}).await;
    let later = |text: &str| {
        let params = json!({ "session_id": "a", "text": text });
        request(&server, "session/prompt", &params)
            .bearer_auth(TOKEN)
            .header("prefer", "respond-async")
            .send()
    };
    let mut entries = Vec::new();
    for text in ["one", "two"] {
        let accepted: Value = later(text).await.unwrap().json().await.unwrap();
        entries.push(accepted["entry_id"].clone());
    }
    let abort = json!({ "session_id": "a", "entry_id": entries[1] });
    assert_eq!(ask(&server, "agent/abort", &abort).await.status(), 200);
    loop {
        let (_, state) = call(&server, Method::GET, "/v1/sessions/a/state", None).await;
        if state["waiting"] == 0 {
            assert_eq!(state["status"], "working", "the first one goes on: {state}");
            break;
        }
    }
}

#[test]
fn the_page_lists_each_route_with_its_method_and_right() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/protocol.md");
    let page = std::fs::read_to_string(path).unwrap();
    for method in methods() {
        let Some(route) = method.route else { continue };
        let verb = format!("{:?}", route.verb).to_uppercase();
        let row = format!("| `{verb} /v1{}` | `{}` | `{}` |", route.path, method.name, route.right.as_str());
        assert!(page.contains(&row), "docs/protocol.md lacks {row}");
    }
}
