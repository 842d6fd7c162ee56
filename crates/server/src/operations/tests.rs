//! Every operation, done on a runtime with a simulated model; the checked-in schema.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;
use std::sync::Arc;

use greenroom::permissions::{Mode, Permissions, Policy};
use greenroom::{Agent, Runtime};
use greenroom_kernel::entry::{Entry, EntryId, EntryKind};
use greenroom_kernel::head::Head;
use greenroom_simulator::{
    Answer as Said, ByPurpose, Function, SeenRequest, Simulator, SimulatorOptions, Summariser,
};
use greenroom_store::faults::MemoryFiles;
use greenroom_store::{Batch, Store, StoreOptions};
use serde_json::{Value, json};

use super::{Access, Answer, CallScope, OpenConsumers, Refused, Runs, call, methods, schema};

struct Client {
    runtime: Runtime,
    agent: Arc<Agent>,
}

impl Client {
    async fn new() -> Self {
        Self::on(Store::memory()).await
    }

    async fn on(store: Store) -> Self {
        let runs = Function(|seen: &SeenRequest, _| match seen.last_user_text().as_str() {
            "[7]" => Said::text("[7]"),
            _ => Said::text("word ".repeat(300)),
        });
        let script = ByPurpose::new(runs, Summariser::Obedient);
        let simulator = Simulator::new(SimulatorOptions { window: 8_000, ..SimulatorOptions::new(script) });
        let look = greenroom_tools::tool("look", |(): (), _| async {
            Ok::<_, greenroom_tools::ToolError>("nothing")
        });
        let permissions = Permissions::new(Policy::new(Mode::Everything, "/work"));
        let agent = Agent::new("simulated").context_window(8_000).add_tool(look).permissions(permissions);
        let runtime = Runtime::builder()
            .provider(simulator.provider())
            .store(store)
            .spending_by(["tenant"])
            .start()
            .await
            .unwrap();
        Self { runtime, agent: Arc::new(agent) }
    }

    /// The answer to a call, and the outcome of its work.
    async fn ask(&self, method: &str, params: Value) -> Result<(Value, Option<Value>), Refused> {
        let call = call(method, params)?;
        let mut scope = CallScope {
            runtime: self.runtime.clone(),
            agent: Arc::clone(&self.agent),
            has_agent: true,
            session: None,
            runs: Runs::default(),
            consumers: OpenConsumers::default(),
            within: None,
            choice: None,
        };
        if let Some(id) = call.session_id() {
            scope.open(call.access(), id).await?;
        }
        Ok(match call.perform(scope).await? {
            Answer::Now(answer) => (answer, None),
            Answer::Later(task) => (task.await?, None),
            Answer::Work(work) => {
                let accepted = work.accepted.await?;
                (accepted, Some(work.outcome.await.result?))
            }
        })
    }
}

/// What an operation gives, at a place in its answer or, after `/`, in its outcome.
#[tokio::test(start_paused = true)]
async fn every_operation_does_what_it_says() {
    let client = Client::new().await;
    let mut seen = std::collections::BTreeSet::new();
    let a = json!({ "session_id": "a" });
    let with = |more: Value| {
        let mut params = a.clone();
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    let prompt = |text: &str| with(json!({ "text": text }));
    let exported = std::cell::RefCell::new(String::new());
    for (method, params, place, wanted) in [
        ("session/start", a.clone(), "/session_id", json!("a")),
        ("session/prompt", prompt("one"), "/entry_id", json!(0)),
        ("session/prompt", with(json!({ "text": "two", "key": "k" })), "outcome/stop", json!("stop")),
        ("session/live", json!({}), "/sessions/0/status", json!("idle")),
        ("session/watch", a.clone(), "/session_id", json!("a")),
        ("session/in_progress", a.clone(), "/events", json!([])),
        ("session/steer", prompt("three"), "/entry_id", json!(6)),
        ("agent/state", a.clone(), "/id", json!("a")),
        ("agent/state", a.clone(), "/compacts_at", json!(6_001)),
        ("session/follow_up", prompt("four"), "", Value::Null),
        ("session/set_title", with(json!({ "title": "Four words" })), "/session_id", json!("a")),
        (
            "session/set_permissions",
            with(json!({ "mode": "read_only", "deny": ["read(.env)"] })),
            "/mode",
            json!("read_only"),
        ),
        ("session/permissions", a.clone(), "/rules/0/rule", json!("read(.env)")),
        ("session/set_label", with(json!({ "name": "tenant", "value": "x" })), "/session_id", json!("a")),
        ("session/get", a.clone(), "/session/id", json!("a")),
        ("session/find", json!({ "prefix": "a" }), "/session_id", json!("a")),
        ("session/list", json!({ "labels": { "tenant": "x" } }), "/sessions/0/title", json!("Four words")),
        ("session/plan", with(json!({ "keep_recent": 300 })), "/reason", Value::Null),
        ("session/pin", with(json!({ "entry_id": 0 })), "/pins/0/role", json!("user")),
        ("session/pins", a.clone(), "/pins/0/text", json!("one")),
        ("session/pin", with(json!({ "entry_id": 0, "pinned": false })), "/pins", json!([])),
        ("session/compact", with(json!({ "keep_recent": 300 })), "outcome/installed", json!(true)),
        ("session/compactions", a.clone(), "/compactions/0/number", json!(1)),
        ("session/compaction", a.clone(), "/is_active", json!(true)),
        ("session/compaction", with(json!({ "number": 1 })), "/replaced/requests/0/text", json!("one")),
        ("session/undo_compaction", a.clone(), "/context/window", json!(8_000)),
        ("session/entries", a.clone(), "/is_live", json!(true)),
        ("session/entries", with(json!({ "limit": 1 })), "/next", json!(1)),
        ("session/show", a.clone(), "/conversation/0/text", json!("one")),
        ("session/recall", with(json!({ "query": "one" })), "/found/0/text", json!("one")),
        ("session/recall", json!({ "query": "one", "limit": 1 }), "/found/0/session", json!("a")),
        ("session/replay", with(json!({ "limit": 2 })), "/events/0/seq", json!(0)),
        ("session/fork", with(json!({ "to": "b", "entry_id": 1 })), "/session_id", json!("b")),
        ("session/show", json!({ "session_id": "b" }), "/conversation/1/role", json!("assistant")),
        (
            "session/fork",
            with(json!({ "to": "d", "goal": "count" })),
            "/compacted/outcome",
            json!("completed"),
        ),
        ("session/branch", with(json!({ "entry_id": 1 })), "/session_id", json!("a")),
        ("session/rewind", with(json!({ "dry_run": true })), "/prompt_id", json!(0)),
        ("session/rewind", with(json!({ "entry_id": 1, "scope": "files" })), "/keeps_files", json!(false)),
        ("session/tree", a.clone(), "/branches/0/text", json!("you: one")),
        ("session/context", a.clone(), "/parts/0/category", json!("instructions")),
        ("agent/tools", json!({}), "/tools/0/name", json!("look")),
        ("agent/tools", json!({}), "/tools/1/name", json!("recall")),
        ("usage/report", json!({}), "/spending/0/cost_microdollars", json!(0)),
        (
            "usage/report",
            json!({ "by": "tenant", "value": "x", "per": "hour" }),
            "/spending/0/value",
            json!("x"),
        ),
        ("session/inbox", a.clone(), "/inputs", json!([])),
        ("session/clear_inbox", a.clone(), "/withdrawn", json!(0)),
        ("session/export", a.clone(), "/format", json!("pi")),
        ("session/import", json!({ "session_id": "c" }), "/session_id", json!("c")),
        ("session/show", json!({ "session_id": "c" }), "/conversation/0/text", json!("one")),
        ("consumer/read", json!({ "name": "audit", "max": 1 }), "/events/0/seq", json!(0)),
        ("consumer/list", json!({}), "/consumers", json!([])),
        ("consumer/delete", json!({ "name": "audit" }), "/was_known", json!(false)),
        ("models/list", json!({}), "/origin", json!("simulator")),
        ("models/forget", json!({ "model": "none" }), "/was_known", json!(false)),
        ("agent/abort", a.clone(), "/session_id", json!("a")),
        (
            "session/prompt",
            with(json!({ "text": "[7]", "output_schema": { "items": { "type": "integer" } } })),
            "outcome/value",
            json!([7]),
        ),
        ("session/delete", a.clone(), "/session_id", json!("a")),
    ] {
        let mut params = params;
        if method == "session/import" {
            params["text"] = exported.borrow().clone().into();
        }
        let (answer, outcome) =
            client.ask(method, params).await.unwrap_or_else(|refused| panic!("{method}: {refused:?}"));
        if method == "session/export" {
            exported.replace(answer["text"].as_str().unwrap().to_owned());
        }
        if !place.is_empty() {
            let (value, pointer) = match place.strip_prefix("outcome") {
                Some(pointer) => (outcome.unwrap(), pointer),
                None => (answer, place),
            };
            assert_eq!(value.pointer(pointer), Some(&wanted), "{method}: {value}");
        }
        // What was sent on has to end before the next thing is asked.
        while client.runtime.session("a").await.is_ok_and(|session| session.is_live())
            && client.runtime.session("a").await.unwrap().state().await.unwrap().status
                != greenroom::Status::Idle
        {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        seen.insert(method);
    }
    // What is not there is refused with what is.
    let none = client.ask("session/compaction", json!({ "session_id": "d", "number": 9 })).await;
    let Err(Refused::Parameters(said)) = none else { panic!("{none:?}") };
    assert!(said.starts_with("session d has ") && said.ends_with("and no number 9"), "{said}");
    client.ask("session/prompt", json!({ "session_id": "n", "text": "new" })).await.unwrap();
    let none = client.ask("session/compaction", json!({ "session_id": "n" })).await;
    let Err(Refused::Parameters(said)) = none else { panic!("{none:?}") };
    assert_eq!(said, "session n has no compactions");
    let both =
        client.ask("session/fork", json!({ "session_id": "b", "to": "e", "entry_id": 1, "goal": "x" })).await;
    assert!(matches!(both, Err(Refused::Parameters(_))), "{both:?}");
    // Nothing is left to resume, and that is said.
    let resumed = client.ask("session/resume", json!({ "session_id": "b" })).await;
    assert!(resumed.is_ok() || matches!(resumed, Err(Refused::Failed(_))), "{resumed:?}");
    seen.insert("session/resume");
    // Nothing waits for a person here: see the tests of the protocols.
    let listed = client.ask("session/questions", json!({})).await.unwrap().0;
    assert_eq!(listed, json!({ "questions": [] }));
    let refused =
        client.ask("session/answer", json!({ "session_id": "b", "question_id": 0, "value": "x" })).await;
    assert!(matches!(refused, Err(Refused::Failed(greenroom::Error::NoQuestion { .. }))), "{refused:?}");
    seen.extend(["session/questions", "session/answer"]);
    // A store in memory cannot be backed up: see `a_store_is_backed_up_and_pruned`.
    let refused = client.ask("store/backup", json!({ "dir": "/tmp/greenroom-none" })).await;
    assert!(matches!(refused, Err(Refused::Failed(greenroom::Error::Store(_)))), "{refused:?}");
    let refused = client.ask("session/prune", json!({})).await;
    assert!(
        matches!(&refused, Err(Refused::Parameters(text)) if text.contains("there is no limit")),
        "{refused:?}"
    );
    seen.extend(["store/backup", "session/prune"]);
    // These are answered by a host, whose tests they are in.
    seen.extend(["client/hello", "host/ping", "host/status", "host/stop"]);
    let all: std::collections::BTreeSet<&str> = methods().iter().map(|method| method.name).collect();
    assert_eq!(seen, all, "each operation is tried here");
}

#[tokio::test(start_paused = true)]
async fn what_is_not_understood_is_refused_before_anything_is_done() {
    let client = Client::new().await;
    for method in methods() {
        let unknown = client.ask(method.name, json!({ "no_such": 1 })).await;
        assert!(matches!(unknown, Err(Refused::Parameters(_))), "{}: {unknown:?}", method.name);
    }
    assert!(matches!(client.ask("no/such", json!({})).await, Err(Refused::UnknownMethod(_))));
    for (method, params, named) in [
        ("session/start", json!({ "session_id": 5 }), "session_id: "),
        ("session/list", json!({ "limit": -1 }), "limit: "),
        ("session/prompt", json!({ "session_id": "s", "text": "x", "images": [{ "data": 1 }] }), "images[0]"),
    ] {
        let refused = client.ask(method, params).await;
        assert!(matches!(&refused, Err(Refused::Parameters(text)) if text.starts_with(named)), "{refused:?}");
    }
    assert_eq!(client.runtime.sessions().await.unwrap().len(), 0);
    // Of a session that must be there, and of one that is only looked at, nothing is begun. Each method is given those of
    // these parameters that it takes.
    let all = json!({
        "session_id": "none", "text": "x", "title": "x", "name": "x", "to": "y", "entry_id": 1, "question_id": 0,
        "value": "x", "prefix": "none", "model": "none", "query": "x", "dir": "none",
    });
    let schema = schema();
    let mut refused = Vec::new();
    // Hosts are asked by others than sessions are.
    let of_sessions = |name: &str| !name.starts_with("host/") && !name.starts_with("client/");
    for method in
        methods().iter().filter(|method| method.name != "session/import" && of_sessions(method.name))
    {
        let params = &schema["methods"][method.name]["params"];
        let params = match params["$ref"].as_str() {
            Some(place) => schema.pointer(place.trim_start_matches('#')).unwrap(),
            None => params,
        };
        let takes = |name: &str| params["properties"].get(name).is_some();
        let given: serde_json::Map<String, Value> =
            all.as_object().unwrap().clone().into_iter().filter(|(name, _)| takes(name)).collect();
        let given = Value::Object(given);
        let call = call(method.name, given.clone()).unwrap_or_else(|_| panic!("{} {given}", method.name));
        if call.access() != Access::Create && call.session_id().is_some() {
            let answer = client.ask(method.name, given).await;
            assert!(matches!(answer, Err(Refused::Failed(_))), "{}: {answer:?}", method.name);
            refused.push(method.name);
        }
    }
    assert!(refused.len() >= 15 && refused.contains(&"session/set_title"), "{refused:?}");
    assert_eq!(client.runtime.sessions().await.unwrap().len(), 0);
}

#[tokio::test]
async fn a_store_is_backed_up_and_pruned() {
    let dir = tempfile::tempdir().unwrap();
    let (home, backup) = (dir.path().join("store"), dir.path().join("backup"));
    let (store, _) = Store::open(&StoreOptions::new(&home)).unwrap();
    let client = Client::on(store).await;
    for (id, kind) in [("a", "probe"), ("b", "probe"), ("c", "talk")] {
        client.ask("session/prompt", json!({ "session_id": id, "text": "[7]" })).await.unwrap();
        let label = json!({ "session_id": id, "name": "kind", "value": kind });
        client.ask("session/set_label", label).await.unwrap();
        client.runtime.close(id).await.unwrap();
    }
    let refused = client.ask("store/backup", json!({ "dir": "backup" })).await;
    assert!(matches!(&refused, Err(Refused::Parameters(text)) if text.contains("absolute")), "{refused:?}");
    let made = client.ask("store/backup", json!({ "dir": backup })).await.unwrap().0;
    let found =
        greenroom_store::Store::verify_backup(&backup, &greenroom_store::Progress::default()).unwrap();
    assert!(found.is_undamaged());
    assert_eq!((made["sessions"].as_u64(), made["entries"].as_u64()), (Some(3), Some(found.entries)));
    let rules = json!([{ "labels": { "kind": "probe" }, "sessions_max": 1 }]);
    let listed = client.ask("session/prune", json!({ "dry_run": true, "rules": rules })).await.unwrap().0;
    assert_eq!((&listed["dry_run"], &listed["erased"]), (&json!(true), &json!(false)));
    assert_eq!(client.runtime.sessions().await.unwrap().len(), 3);
    let pruned = client.ask("session/prune", json!({ "rules": rules })).await.unwrap().0;
    assert_eq!(pruned["sessions"], listed["sessions"]);
    let session = &pruned["sessions"][0];
    assert_eq!(session["labels"], json!({ "kind": "probe" }));
    assert_eq!((&session["reason"], &session["title"]), (&json!("count"), &json!("[7]")));
    assert_eq!((&pruned["erased"], &pruned["used_again"]), (&json!(true), &json!(0)));
    assert_eq!(client.runtime.sessions().await.unwrap().len(), 2);
    let all = client.ask("session/prune", json!({ "sessions_max": 0, "age_max_s": 3_600 })).await.unwrap().0;
    assert_eq!(all["sessions"].as_array().map(Vec::len), Some(2));
}

/// A session that was deleted on a full disk is gone, and the answer says what became of its bytes.
#[tokio::test]
async fn a_deletion_says_whether_the_bytes_are_on_the_disk_no_more() {
    let (dir, files) = (tempfile::tempdir().unwrap(), MemoryFiles::new());
    let options = StoreOptions {
        reserve_bytes: 20_000,
        files: Arc::new(files.clone()),
        ..StoreOptions::new(dir.path())
    };
    let client = Client::on(Store::open(&options).unwrap().0).await;
    for (session, prompts) in [("gone", 1), ("also", 1), ("kept", 20)] {
        for _ in 0..prompts {
            let prompt = json!({ "session_id": session, "text": "word ".repeat(400) });
            client.ask("session/prompt", prompt).await.unwrap();
        }
    }
    for (session, room) in [("gone", 0), ("also", 10_000_000)] {
        files.leave_room(room);
        let named = json!({ "session_id": session });
        let (deleted, _) = client.ask("session/delete", named.clone()).await.unwrap();
        let reason = deleted["reason"].as_str();
        assert_eq!(
            (&deleted["session_id"], deleted["erased"].as_bool(), reason.is_some()),
            (&json!(session), Some(room > 0), room == 0),
            "{deleted}"
        );
        assert!(reason.is_none_or(|reason| reason.starts_with("no space is left")), "{deleted}");
        let again = client.ask("session/delete", named).await;
        assert!(
            matches!(again, Err(Refused::Failed(greenroom::Error::NoSession { .. }))),
            "there is nothing to delete again: {again:?}"
        );
    }
}

/// A store in memory with these sessions, the newest last: the id, the caller, and whether its work is unfinished.
async fn stored(sessions: &[(&str, Option<&str>, bool)]) -> Store {
    let store = Store::memory();
    for (at_ms, (id, parent, is_unfinished)) in (1..).zip(sessions) {
        let kind = EntryKind::Note { kind: "n".into(), data: "{}".into() };
        let (tokens, reasoning_tokens) = (1, 0);
        let entry =
            Entry { id: EntryId(0), parent: None, at_ms, tokens, reasoning_tokens, origin: None, kind };
        let head = Head {
            entries: 1,
            created_at_ms: at_ms,
            updated_at_ms: at_ms,
            parent_session: parent.map(str::to_owned),
            interrupted: is_unfinished.then_some(EntryId(0)),
            labels: [("tenant".to_owned(), id[..1].to_owned())].into(),
            ..Head::default()
        };
        let batch = Batch { entries: vec![entry.into()], head: head.into(), key: None };
        store.append(id, batch).await.unwrap();
    }
    store
}

#[tokio::test]
async fn sessions_are_listed_with_those_below_them_and_counted() {
    let client = Client::on(
        stored(&[
            ("a", None, true),
            ("a..0000000000000001", Some("a"), true),
            ("a..0000000000000002", Some("a"), false),
            ("a..0000000000000001..0000000000000003", Some("a..0000000000000001"), false),
            ("b", None, false),
            ("c", None, false),
            ("gone..0000000000000004", Some("gone"), false),
        ])
        .await,
    )
    .await;
    let (first, second) = ("a..0000000000000001", "a..0000000000000002");
    let (third, orphan) = ("a..0000000000000001..0000000000000003", "gone..0000000000000004");
    let tree = ["a", first, third, second];
    for (params, wanted, matching) in [
        (json!({}), vec!["a", first, third, second, "b", "c", orphan], 7),
        (json!({ "roots": true }), vec!["a", "b", "c"], 3),
        (json!({ "roots": true, "order": "newest", "limit": 2 }), vec!["c", "b"], 3),
        (json!({ "roots": true, "trees": true }), [&tree[..], &["b", "c", orphan]].concat(), 4),
        // The limit counts no session below another.
        (json!({ "roots": true, "trees": true, "limit": 1 }), tree.to_vec(), 4),
        (json!({ "roots": true, "order": "newest", "trees": true, "limit": 2 }), vec![orphan, "c"], 4),
        (json!({ "roots": true, "trees": true, "labels": { "tenant": "a" } }), tree.to_vec(), 1),
        (json!({ "unfinished": true, "trees": true }), tree.to_vec(), 1),
        (json!({ "unfinished": true, "working": true, "limit": 0 }), vec![], 1),
        (json!({ "tree": first }), vec![third], 1),
    ] {
        for counts in [true, false] {
            let mut params = params.clone();
            params["counts"] = json!(counts);
            let (page, _) = client.ask("session/list", params.clone()).await.unwrap();
            let ids: Vec<&str> =
                page["sessions"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
            assert_eq!(ids, wanted, "{params}");
            let of_all = params.get("tree").is_none();
            let below = if of_all { 4 } else { 1 };
            let numbers = json!({ "matching": matching, "of_sub_agents": below, "damaged": 0 });
            assert_eq!(page.get("counts"), counts.then_some(&numbers), "{params}");
        }
    }
    // Pages follow one another, whatever stands below their last session.
    let (mut seen, mut after) = (Vec::new(), Value::Null);
    loop {
        let params = json!({ "roots": true, "trees": true, "counts": true, "limit": 1, "after": after });
        let (page, _) = client.ask("session/list", params).await.unwrap();
        seen.push((page["sessions"][0]["id"].clone(), page["counts"]["matching"].clone()));
        after = page["next"].clone();
        if after.is_null() {
            break;
        }
    }
    let last = (Value::Null, json!(0));
    let wanted = [("a", 4), ("b", 3), ("c", 2), (orphan, 1)].map(|(id, left)| (json!(id), json!(left)));
    assert_eq!(seen, [&wanted[..], &[last]].concat());
}

/// `GREENROOM_WRITE_SCHEMAS=1 cargo test -p greenroom-server operations` writes it anew.
#[test]
fn the_checked_in_schema_is_that_of_the_operations() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema/operations.json");
    let wanted = format!("{}\n", serde_json::to_string_pretty(&schema()).unwrap());
    #[expect(clippy::disallowed_methods, reason = "whoever changes a type says so, and the file is written")]
    if std::env::var_os("GREENROOM_WRITE_SCHEMAS").is_some() {
        std::fs::write(&path, &wanted).unwrap();
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        there == wanted,
        "docs/schema/operations.json is not what the types say; write it with GREENROOM_WRITE_SCHEMAS=1"
    );
}
