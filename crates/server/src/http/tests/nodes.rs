//! Two nodes of a cluster: any of them answers any request, and the one that runs the session does the work.

use std::sync::Arc;

use greenroom_store::Engine;
use greenroom_store::cluster::{Cluster, Node};

use super::access::secret;
use super::events::Reader;
use super::operations::request;
use super::*;
use crate::http::Token;
use crate::operations::{Label, Right};

struct Member {
    runtime: Runtime,
    node: Arc<Node>,
    server: HttpServer,
}

const CLUSTER: &str = "cluster-cluster-cluster-cluster-";

async fn member(cluster: &Cluster, name: &str) -> Member {
    // The address is announced before it is listened on, as `--advertise` does.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let node = cluster.join(name, Some(&format!("http://{free}")));
    let answer = |request: &greenroom_simulator::SeenRequest, _: greenroom_simulator::CallInfo| {
        Answer::text(format!("to {}", request.last_user_text()))
    };
    let simulator =
        Simulator::new(SimulatorOptions { window: 8_000, ..SimulatorOptions::new(Function(answer)) });
    let engine: Arc<dyn Engine> = node.clone();
    let runtime = Runtime::builder().provider(simulator.provider()).engine(engine).start().await.unwrap();
    let server = serve(&runtime, |options| {
        options.address = free;
        options.cluster_secret = Some(CLUSTER.to_owned());
        let label = Label { name: "tenant".to_owned(), value: "ada".to_owned() };
        for (name, right, within) in [
            ("reader", Right::Read, None),
            ("prompter", Right::Prompt, None),
            ("ada", Right::Prompt, Some(label)),
        ] {
            options.tokens.push(Token { secret: secret(name), right, within });
        }
    })
    .await;
    Member { runtime, node, server }
}

async fn as_of(server: &HttpServer, token: &str, name: &str, params: Value) -> (u16, Value) {
    let response = request(server, name, &params).bearer_auth(token).send().await.unwrap();
    let status = response.status().as_u16();
    (status, response.json().await.unwrap())
}

fn prompt(id: &str, text: &str) -> Value {
    json!({ "session_id": id, "text": text })
}

#[tokio::test]
async fn any_node_takes_any_request() {
    let cluster = Cluster::new();
    let (a, b) = (member(&cluster, "a").await, member(&cluster, "b").await);
    let (status, _) = call(&a.server, Method::POST, "/v1/sessions", Some(json!({ "session_id": "s" }))).await;
    assert_eq!(status, StatusCode::OK);
    for (number, member) in [&a, &b, &a, &b].into_iter().enumerate() {
        let (status, reply) =
            as_of(&member.server, TOKEN, "session/prompt", prompt("s", &number.to_string())).await;
        assert_eq!((status, &reply["text"]), (200, &json!(format!("to {number}"))), "{reply}");
    }
    assert_eq!((a.runtime.live().await.unwrap().len(), b.runtime.live().await.unwrap().len()), (1, 0));
    // A session that nobody runs begins where the placement says: here, at the first node.
    let (status, _) = as_of(&b.server, TOKEN, "session/prompt", prompt("new", "x")).await;
    assert_eq!((status, a.runtime.live().await.unwrap().len()), (200, 2));
    // The same key through two nodes is one prompt.
    for member in [&a, &b] {
        let params = json!({ "session_id": "s", "text": "once", "key": "k" });
        let (status, reply) = as_of(&member.server, TOKEN, "session/prompt", params).await;
        assert_eq!((status, &reply["text"]), (200, &json!("to once")), "{reply}");
    }
    let said = a.runtime.entries("s", EntryId(0)).await.unwrap();
    let prompts =
        said.iter().filter(|entry| entry.kind.as_message().is_some_and(|message| message.role() == "user"));
    assert_eq!(prompts.count(), 5);
    // Both list both.
    for member in [&a, &b] {
        let (_, listed) = call(&member.server, Method::GET, "/v1/sessions", None).await;
        assert_eq!(listed["sessions"].as_array().unwrap().len(), 2, "{listed}");
    }
}

#[tokio::test]
async fn the_owner_checks_who_asks() {
    let cluster = Cluster::new();
    let (a, b) = (member(&cluster, "a").await, member(&cluster, "b").await);
    for id in ["s", "hers"] {
        a.runtime
            .open(id, &Agent::new("simulated").context_window(8_000))
            .await
            .unwrap()
            .prompt("x")
            .await
            .unwrap();
    }
    a.runtime.session("hers").await.unwrap().set_label("tenant", "ada").await.unwrap();
    for (token, id, expected) in [
        (secret("reader"), "s", 403),
        (secret("prompter"), "s", 200),
        (secret("ada"), "s", 404),
        (secret("ada"), "hers", 200),
        (secret("nobody"), "s", 401),
    ] {
        let (status, told) = as_of(&b.server, &token, "session/prompt", prompt(id, "y")).await;
        assert_eq!(status, expected, "{token}, {id}: {told}");
    }
    // Only a node may speak for others, and only of rights that there are; and there is one hop.
    let send = async |token: &str, principal: Option<&str>, hop: bool| {
        let mut asked = request(&b.server, "session/get", &json!({ "session_id": "s" })).bearer_auth(token);
        if let Some(principal) = principal {
            asked = asked.header("greenroom-principal", principal);
        }
        if hop {
            asked = asked.header("greenroom-hop", "1");
        }
        asked.send().await.unwrap().status().as_u16()
    };
    assert_eq!(send(CLUSTER, Some("read"), false).await, 200);
    assert_eq!(send(CLUSTER, Some("read"), true).await, 421);
    // Nobody else speaks as a node: the request is forwarded, whatever its headers say, and refused by the owner.
    assert_eq!(send(&secret("ada"), Some("administer"), true).await, 404);
    assert_eq!(send(&secret("reader"), None, true).await, 200);
    assert_eq!(send(CLUSTER, Some("everything"), false).await, 403);
    assert_eq!(send(CLUSTER, None, false).await, 403);
    assert_eq!(send(CLUSTER, Some("read tenant%3Abob"), false).await, 404);
    assert_eq!(send(&secret("nobody"), Some("administer"), false).await, 401);
    let (status, _) =
        as_of(&b.server, &secret("reader"), "session/delete", json!({ "session_id": "s" })).await;
    assert_eq!(status, 403);
}

#[tokio::test]
async fn an_owner_that_cannot_be_reached_is_said() {
    let cluster = Cluster::new();
    let (a, b) = (member(&cluster, "a").await, member(&cluster, "b").await);
    let agent = Agent::new("simulated").context_window(8_000);
    a.runtime.open("s", &agent).await.unwrap().prompt("x").await.unwrap();
    // It answers nothing, and its lease is valid.
    a.server.stop().await;
    let response =
        request(&b.server, "session/prompt", &prompt("s", "y")).bearer_auth(TOKEN).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert!(response.headers().contains_key("retry-after"));
    let told: Value = response.json().await.unwrap();
    let detail = told["detail"].as_str().unwrap();
    assert!(detail.contains("node a runs the session") && detail.contains("nothing was sent"), "{told}");
    let (status, stored) = as_of(&b.server, TOKEN, "session/get", json!({ "session_id": "s" })).await;
    assert_eq!((status, &stored["session"]["entries"].is_number()), (200, &true), "{stored}");
    // Once its lease has run out, the session is run here.
    cluster.expire("a");
    let (status, reply) = as_of(&b.server, TOKEN, "session/prompt", prompt("s", "y")).await;
    assert_eq!((status, &reply["text"]), (200, &json!("to y")), "{reply}");
    drop(a.node);
}

/// A node that is frozen accepts connections and answers nothing. Nobody waits for it longer than its lease.
#[tokio::test]
async fn nobody_waits_for_a_node_without_a_lease() {
    let cluster = Cluster::new();
    let (a, b) = (member(&cluster, "a").await, member(&cluster, "b").await);
    let agent = Agent::new("simulated").context_window(8_000);
    for id in ["read", "keyed", "bare"] {
        a.runtime.open(id, &agent).await.unwrap();
        // The owner is remembered.
        let (status, _) = as_of(&b.server, TOKEN, "session/prompt", prompt(id, "x")).await;
        assert_eq!(status, 200);
    }
    let mut events = Reader::open(&b.server, TOKEN, "/v1/sessions/read/events", None).await;
    let address = a.server.address();
    a.server.stop().await;
    let frozen = std::net::TcpListener::bind(address).unwrap();
    let ask = async |name: &str, id: &str, key: Option<&str>| {
        let mut params = json!({ "session_id": id });
        if name == "session/prompt" {
            params["text"] = json!("y");
        }
        if let Some(key) = key {
            params["key"] = json!(key);
        }
        as_of(&b.server, TOKEN, name, params).await
    };
    let expire = async {
        // All of them have been sent.
        tokio::task::spawn_blocking(move || (0..3).map(|_| frozen.accept().unwrap()).collect::<Vec<_>>())
            .await
            .inspect(|_| cluster.expire("a"))
    };
    let (read, keyed, bare, _frozen) = tokio::join!(
        ask("session/get", "read", None),
        ask("session/prompt", "keyed", Some("k")),
        ask("session/prompt", "bare", None),
        expire
    );
    assert_eq!((read.0, &read.1["session"]["entries"].is_number()), (200, &true), "{read:?}");
    assert_eq!((keyed.0, &keyed.1["text"]), (200, &json!("to y")), "{keyed:?}");
    let detail = bare.1["detail"].as_str().unwrap_or_default();
    assert!(bare.0 == 503 && detail.contains("may have been carried out"), "{bare:?}");
    while events.next().await.is_some() {}
}

/// The stream of a node breaks off once the node has lost its lease, even if it sends nothing any more.
#[tokio::test]
async fn the_events_of_a_node_without_a_lease_break_off() {
    let cluster = Cluster::new();
    let (a, b) = (member(&cluster, "a").await, member(&cluster, "b").await);
    a.runtime.open("s", &Agent::new("simulated").context_window(8_000)).await.unwrap();
    let mut events = Reader::open(&b.server, TOKEN, "/v1/sessions/s/events", None).await;
    let (status, _) = as_of(&b.server, TOKEN, "session/prompt", prompt("s", "x")).await;
    assert_eq!(status, 200);
    cluster.expire("a");
    while events.next().await.is_some() {}
}

#[tokio::test]
async fn a_stream_ends_where_its_session_moves_and_goes_on_at_the_new_owner() {
    let cluster = Cluster::new();
    let (a, b) = (member(&cluster, "a").await, member(&cluster, "b").await);
    let (status, _) = as_of(&a.server, TOKEN, "session/prompt", prompt("s", "1")).await;
    assert_eq!(status, 200);
    let (mut seen, mut last) = (Vec::new(), Some("0".to_owned()));
    for (prompted, reader) in [("2", &b), ("3", &a)] {
        let mut events =
            Reader::open(&reader.server, TOKEN, "/v1/sessions/s/events?durable=true", last.as_deref()).await;
        let (status, _) = as_of(&reader.server, TOKEN, "session/prompt", prompt("s", prompted)).await;
        assert_eq!(status, 200);
        while seen.iter().filter(|(kind, _)| kind == "run_end").count() < prompted.parse::<usize>().unwrap() {
            let told = events.next().await.unwrap();
            seen.push((told.data["type"].as_str().unwrap().to_owned(), told.data["seq"].as_u64().unwrap()));
        }
        last = events.last.clone();
        if prompted == "2" {
            // The owner changes: the stream through b, which came from a, ends in order.
            cluster.expire("a");
            let agent = Agent::new("simulated").context_window(8_000);
            b.runtime.open("s", &agent).await.unwrap();
            cluster.notice("a");
            a.node.renew();
            while events.next().await.is_some() {}
        }
    }
    let numbers: Vec<u64> = seen.iter().map(|(_, seq)| *seq).collect();
    assert!(numbers.is_sorted(), "{numbers:?}");
    let mut once: Vec<(String, u64)> = seen.clone();
    once.dedup();
    assert_eq!(once.len(), seen.len(), "nothing comes twice: {seen:?}");
}

/// What a node remembers of an owner is a hint: the session may have moved, and its node may be gone.
#[tokio::test]
async fn an_owner_that_is_remembered_may_have_changed() {
    let cluster = Cluster::new();
    let (a, b) = (member(&cluster, "a").await, member(&cluster, "b").await);
    let c = member(&cluster, "c").await;
    let agent = Agent::new("simulated").context_window(8_000);
    let prompted = async |id: &str, text: &str| {
        let (status, reply) = as_of(&b.server, TOKEN, "session/prompt", prompt(id, text)).await;
        assert_eq!((status, &reply["text"]), (200, &json!(format!("to {text}"))), "{reply}");
    };
    for id in ["s", "t"] {
        a.runtime.open(id, &agent).await.unwrap();
        prompted(id, "1").await;
    }
    // Given to another node, while the old one is there.
    a.runtime.close("s").await.unwrap();
    c.runtime.open("s", &agent).await.unwrap();
    prompted("s", "2").await;
    assert_eq!(
        (a.runtime.live().await.unwrap(), c.runtime.live().await.unwrap()),
        (vec!["t".into()], vec!["s".into()])
    );
    // Taken over from one that is gone.
    a.server.stop().await;
    cluster.expire("a");
    c.runtime.open("t", &agent).await.unwrap();
    prompted("t", "2").await;
    prompted("t", "3").await;
}

/// Where another node claims the session after the owner was looked up, a prompt with a key is sent on, and written once;
/// one without a key may have been written already, and is refused. If that happens again and again, the client is told to
/// repeat its request.
#[tokio::test]
async fn a_session_is_claimed_by_another_node_after_the_look_up() {
    let cluster = Cluster::new();
    let (a, b) = (member(&cluster, "a").await, member(&cluster, "b").await);
    for (number, (key, times, expected)) in
        [(None, 1, 421), (Some("k"), 1, 200), (Some("k"), 2, 200), (Some("k"), 9, 503)]
            .into_iter()
            .enumerate()
    {
        // A session whose owner is not remembered yet.
        let id = format!("s{number}");
        b.runtime.open(&id, &Agent::new("simulated").context_window(8_000)).await.unwrap();
        cluster.look_up_early("a", times);
        let mut params = prompt(&id, "x");
        if let Some(key) = key {
            params["key"] = json!(key);
        }
        let (status, reply) = as_of(&a.server, TOKEN, "session/prompt", params).await;
        assert_eq!(status, expected, "{key:?}, {times} times: {reply}");
        cluster.look_up_early("a", 0);
        let said = b.runtime.entries(&id, EntryId(0)).await.unwrap();
        let prompts = said
            .iter()
            .filter(|entry| entry.kind.as_message().is_some_and(|message| message.role() == "user"));
        assert_eq!(prompts.count(), usize::from(expected == 200));
    }
    // The node to which a request was forwarded does not look up the owner again: the node that forwarded it does.
    b.runtime.open("hop", &Agent::new("simulated").context_window(8_000)).await.unwrap();
    cluster.look_up_early("a", 9);
    let hop = request(&a.server, "session/prompt", &json!({ "session_id": "hop", "text": "x", "key": "k" }))
        .bearer_auth(CLUSTER)
        .header("greenroom-principal", "administer")
        .header("greenroom-hop", "1");
    assert_eq!(hop.send().await.unwrap().status(), StatusCode::MISDIRECTED_REQUEST);
}

/// A run that a node loses is recorded, and another node resumes it: the answer says so, and whether the same request may be
/// sent again.
#[tokio::test]
async fn a_lost_run_is_recorded_and_the_answer_says_so() {
    for key in [None, Some("k")] {
        let cluster = Cluster::new();
        let node = cluster.join("a", None);
        let engine: Arc<dyn Engine> = node;
        let model = slow();
        let runtime = Runtime::builder().provider(model.provider()).engine(engine).start().await.unwrap();
        let server = serve(&runtime, |options| options.cluster_secret = Some(CLUSTER.to_owned())).await;
        let begun = greenroom::Filter::all().kinds([greenroom::EventType::RunStart]);
        let mut events = runtime.subscribe(begun);
        let mut params = prompt("s", "x");
        if let Some(key) = key {
            params["key"] = json!(key);
        }
        let lose = async {
            events.next().await.unwrap();
            cluster.expire("a");
            cluster.notice("a");
        };
        let ((status, told), ()) = tokio::join!(as_of(&server, TOKEN, "session/prompt", params), lose);
        assert_eq!((status, &told["retryable"]), (503, &json!(key.is_some())), "{told}");
        assert!(told["detail"].as_str().unwrap().contains("what was sent is recorded"), "{told}");
    }
}

/// The session is named in the body when it is begun.
#[tokio::test]
async fn a_session_is_begun_where_the_placement_says() {
    let cluster = Cluster::new();
    let (a, b) = (member(&cluster, "a").await, member(&cluster, "b").await);
    for id in ["new", "new", "given"] {
        if id == "given" {
            let agent = Agent::new("simulated").context_window(8_000);
            b.runtime.open(id, &agent).await.unwrap();
        }
        let (status, told) =
            call(&b.server, Method::POST, "/v1/sessions", Some(json!({ "session_id": id }))).await;
        assert_eq!(status, StatusCode::OK, "{id}: {told}");
    }
    assert_eq!(
        (a.runtime.live().await.unwrap(), b.runtime.live().await.unwrap()),
        (vec!["new".into()], vec!["given".into()])
    );
    // It has no entry yet, and its title is set where it was begun.
    for (id, member) in [("new", &b), ("given", &a)] {
        let title = json!({ "session_id": id, "title": "t" });
        let (status, told) = as_of(&member.server, TOKEN, "session/set_title", title).await;
        assert_eq!(status, 200, "{id}: {told}");
        let (status, told) = as_of(&member.server, TOKEN, "session/get", json!({ "session_id": id })).await;
        assert_eq!((status, &told["session"]["title"]), (200, &json!("t")), "{id}: {told}");
    }
}

#[tokio::test]
async fn a_cluster_s_secret_is_no_token() {
    let cluster = Cluster::new();
    let node = cluster.join("a", None);
    let engine: Arc<dyn Engine> = node;
    let runtime = Runtime::builder().provider(slow().provider()).engine(engine).start().await.unwrap();
    for (secret, reason) in [("short", "needs 32"), (TOKEN, "must differ")] {
        let mut options = HttpOptions::new(([127, 0, 0, 1], 0).into(), TOKEN);
        options.cluster_secret = Some(secret.to_owned());
        let refused = HttpServer::start(&runtime, Arc::new(Agent::new("m")), options).await.unwrap_err();
        assert!(refused.to_string().contains(reason), "{refused}");
    }
}
