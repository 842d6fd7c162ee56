//! Consumers over HTTP: each durable event at least once, in the order of its session, and again only if it was not
//! committed, whoever is killed.

use std::collections::BTreeMap;

use greenroom_kernel::random::Random;
use greenroom_store::Store;

use super::operations::request;
use super::*;
use crate::http::Token;
use crate::operations::{Label, Right};

/// A read by this bearer: the status and the answer.
async fn read_as(server: &HttpServer, token: &str, name: &str, more: Value) -> (u16, Value) {
    let mut params = json!({ "name": name });
    params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let sent = request(server, "consumer/read", &params).bearer_auth(token).send().await.unwrap();
    (sent.status().as_u16(), sent.json().await.unwrap())
}

async fn read(server: &HttpServer, name: &str, more: Value) -> Value {
    let (status, answer) = read_as(server, TOKEN, name, more).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// The sessions and numbers of the events in an answer.
fn numbers(answer: &Value) -> Vec<(String, u64)> {
    let number =
        |event: &Value| (event["session_id"].as_str().unwrap().to_owned(), event["seq"].as_u64().unwrap());
    answer["events"].as_array().unwrap().iter().map(number).collect()
}

async fn listed(server: &HttpServer, token: &str) -> Value {
    let sent = request(server, "consumer/list", &json!({})).bearer_auth(token).send().await.unwrap();
    let answer: Value = sent.json().await.unwrap();
    answer["consumers"].clone()
}

#[tokio::test]
async fn what_is_not_committed_is_read_again() {
    let simulator = Simulator::echo();
    let store = Store::memory();
    let start = async |store: Store| {
        Runtime::builder().provider(simulator.provider()).store(store).start().await.unwrap()
    };
    let runtime = start(store.clone()).await;
    let server = serve(&runtime, |_| {}).await;
    let session = runtime.open("a", Arc::new(Agent::new("simulated"))).await.unwrap();
    assert_eq!(read(&server, "audit", json!({})).await, json!({ "events": [] }));
    session.prompt("one").await.unwrap();
    let all: Vec<(String, u64)> = (0..3).map(|seq| ("a".to_owned(), seq)).collect();
    let two = read(&server, "audit", json!({ "max": 2 })).await;
    assert_eq!(numbers(&two), all[..2]);
    // Not committed.
    assert_eq!(numbers(&read(&server, "audit", json!({})).await), all);
    assert_eq!(listed(&server, TOKEN).await, json!([]), "it has committed nothing");
    // A part is.
    let rest = read(&server, "audit", json!({ "commit": two["position"] })).await;
    assert_eq!(numbers(&rest), all[2..]);
    let known = listed(&server, TOKEN).await;
    assert_eq!(known, json!([{ "name": "audit", "labels": {}, "lag": 1, "is_open": true }]));
    // A server that did not return them takes a commit, too, and an old one takes nothing back.
    server.stop().await;
    runtime.shutdown().await.unwrap();
    let runtime = start(store.reopened().unwrap()).await;
    let server = serve(&runtime, |_| {}).await;
    let none = read(&server, "audit", json!({ "commit": rest["position"] })).await;
    assert_eq!((numbers(&none), &none["position"]), (vec![], &Value::Null));
    assert_eq!(numbers(&read(&server, "audit", json!({ "commit": two["position"] })).await), []);
    assert_eq!(listed(&server, TOKEN).await[0]["lag"], 0);
    // Another consumer has positions of its own.
    assert_eq!(numbers(&read(&server, "billing", json!({})).await), all);
    // One that is deleted begins anew.
    for was_known in [true, false] {
        let deleted = request(&server, "consumer/delete", &json!({ "name": "audit" })).bearer_auth(TOKEN);
        let deleted: Value = deleted.send().await.unwrap().json().await.unwrap();
        assert_eq!(deleted, json!({ "was_known": was_known }));
    }
    assert_eq!(numbers(&read(&server, "audit", json!({})).await), all);
    for (wrong, words) in [
        (json!({ "max": 0 }), "`max` must be 1 to 1000"),
        (json!({ "max": 1_001 }), "`max` must be 1 to 1000"),
        (json!({ "wait_ms": 60_001 }), "at most 60000"),
        (json!({ "commit": "x" }), "is not a position"),
    ] {
        let (status, problem) = read_as(&server, TOKEN, "audit", wrong.clone()).await;
        assert_eq!(status, 400, "{wrong}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(words), "{wrong}: {problem}");
    }
    server.stop().await;
}

/// A read waits for an event. A newer read of the same consumer ends the wait, since its client may be gone; so does the
/// end of the server.
#[tokio::test]
async fn a_read_waits_until_there_is_something() {
    let simulator = Simulator::echo();
    let runtime = Runtime::builder().provider(simulator.provider()).in_memory().start().await.unwrap();
    let server = serve(&runtime, |_| {}).await;
    let session = runtime.open("a", Arc::new(Agent::new("simulated"))).await.unwrap();
    let wait = json!({ "wait_ms": 60_000 });
    let long = Duration::from_secs(30);
    let waiting = read(&server, "audit", wait.clone());
    let events = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        session.set_title("x").await.unwrap();
    };
    let (answer, ()) = tokio::time::timeout(long, async { tokio::join!(waiting, events) }).await.unwrap();
    assert_eq!(numbers(&answer), [("a".to_owned(), 0)]);
    let commit = json!({ "wait_ms": 60_000, "commit": answer["position"] });
    let older = read(&server, "audit", commit);
    let newer = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let newer = read(&server, "audit", wait.clone());
        let events = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            session.set_title("y").await.unwrap();
        };
        tokio::join!(newer, events).0
    };
    let (older, newer) = tokio::time::timeout(long, async { tokio::join!(older, newer) }).await.unwrap();
    assert_eq!((numbers(&older), numbers(&newer)), (vec![], vec![("a".to_owned(), 1)]));
    // One that is open, and not being read.
    read(&server, "billing", json!({})).await;
    let commit = json!({ "wait_ms": 60_000, "commit": newer["position"] });
    let waiting = read(&server, "audit", commit);
    let stopping = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        server.stop.cancel();
    };
    let (answer, ()) = tokio::time::timeout(long, async { tokio::join!(waiting, stopping) }).await.unwrap();
    assert_eq!(numbers(&answer), []);
    server.stop().await;
    // Nor does the runtime wait for them.
    tokio::time::timeout(Duration::from_secs(5), runtime.shutdown()).await.unwrap().unwrap();
}

/// The bearer of a confined token has consumers of its own, which read its label.
#[tokio::test]
async fn a_confined_token_has_consumers_of_its_own() {
    let (secret, above) = ("b".repeat(32), "c".repeat(32));
    let (server, _model) = server_with(|options| {
        for (secret, value) in [(&secret, "a/b"), (&above, "a")] {
            let within = Some(Label { name: "tenant".into(), value: value.into() });
            options.tokens.push(Token { secret: secret.clone(), right: Right::Administer, within });
        }
    })
    .await;
    for (token, id) in [(TOKEN, "ours"), (&*secret, "theirs")] {
        let params = json!({ "session_id": id, "text": "x" });
        request(&server, "session/prompt", &params).bearer_auth(token).send().await.unwrap();
    }
    let mut positions = BTreeMap::new();
    for (token, ids) in [(TOKEN, &["ours", "theirs"][..]), (&*secret, &["theirs"])] {
        let (status, answer) = read_as(&server, token, "audit", json!({})).await;
        assert_eq!(status, 200, "{answer}");
        let mut seen: Vec<String> = numbers(&answer).into_iter().map(|(id, _)| id).collect();
        seen.dedup();
        assert_eq!(seen, ids);
        positions.insert(token.to_owned(), answer["position"].clone());
    }
    for (token, position) in &positions {
        let (status, answer) = read_as(&server, token, "audit", json!({ "commit": position })).await;
        assert_eq!((status, numbers(&answer)), (200, vec![]));
    }
    let names = |listed: Value| {
        let names = listed.as_array().unwrap().iter().map(|consumer| consumer["name"].clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(listed(&server, TOKEN).await), ["audit", "tenant=a%2Fb/audit"]);
    assert_eq!(names(listed(&server, &secret).await), ["audit"]);
    // A label whose value begins in the same way has others.
    assert_eq!(names(listed(&server, &above).await), [""; 0]);
    let delete = request(&server, "consumer/delete", &json!({ "name": "b/audit" })).bearer_auth(&above);
    assert_eq!(delete.send().await.unwrap().json::<Value>().await.unwrap()["was_known"], false);
    let (status, problem) =
        read_as(&server, &secret, "audit", json!({ "labels": { "tenant": "other" } })).await;
    assert_eq!(status, 400, "{problem}");
    let delete = request(&server, "consumer/delete", &json!({ "name": "audit" })).bearer_auth(&secret);
    assert_eq!(delete.send().await.unwrap().json::<Value>().await.unwrap()["was_known"], true);
    assert_eq!(names(listed(&server, TOKEN).await), ["audit"]);
    server.stop().await;
}

/// A consumer that is killed between its work and its commit, and a server that is killed at any time.
#[tokio::test]
async fn killed_consumers_and_servers_lose_nothing() {
    let (mut kills, mut restarts, mut again, mut total) = (0, 0, 0, 0);
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let simulator = Simulator::echo();
        let store = Store::memory();
        let start = async || {
            let builder = Runtime::builder().provider(simulator.provider());
            builder.store(store.clone()).start().await.unwrap()
        };
        let mut runtime = start().await;
        let mut server = serve(&runtime, |_| {}).await;
        // What was processed for good, and since the last commit that the consumer knows.
        let mut done: BTreeMap<String, u64> = BTreeMap::new();
        let mut commit = Value::Null;
        for _ in 0..40 {
            match random.below(8) {
                0..=2 => {
                    let id = ["a", "b", "c"][usize::try_from(random.below(3)).unwrap()];
                    let session = runtime.open(id, Arc::new(Agent::new("simulated"))).await.unwrap();
                    session.prompt("x").await.unwrap();
                }
                3 => {
                    drop(server);
                    drop(runtime);
                    restarts += 1;
                    runtime = start().await;
                    server = serve(&runtime, |_| {}).await;
                }
                // It forgets what it has read: it is another process, and commits nothing.
                4 => {
                    commit = Value::Null;
                    kills += 1;
                }
                _ => {
                    let max = 1 + random.below(5);
                    let answer = read(&server, "audit", json!({ "max": max, "commit": commit })).await;
                    commit = answer["position"].clone();
                    for (id, seq) in numbers(&answer) {
                        let next = done.entry(id.clone()).or_default();
                        assert!(seq <= *next, "seed {seed}: {id} misses {next} before {seq}");
                        again += u64::from(seq < *next);
                        *next = (*next).max(seq + 1);
                    }
                }
            }
        }
        loop {
            let answer = read(&server, "audit", json!({ "commit": commit })).await;
            if numbers(&answer).is_empty() {
                break;
            }
            commit = answer["position"].clone();
            for (id, seq) in numbers(&answer) {
                let next = done.entry(id).or_default();
                *next = (*next).max(seq + 1);
            }
        }
        for session in runtime.sessions().await.unwrap() {
            assert_eq!(done.get(&session.id), Some(&session.entries), "seed {seed}: {}", session.id);
            total += session.entries;
        }
    }
    assert!(kills > 20 && restarts > 20 && again > 20 && total > 200, "{kills} {restarts} {again} {total}");
}
