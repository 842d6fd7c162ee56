//! How sessions are listed, named, copied and found.

use std::time::Duration;

use greenroom::Order;
use greenroom::prelude::*;
use greenroom_kernel::EntryId;
use greenroom_simulator::{Answer as Said, CallInfo, Echo, Function, SeenRequest};

use crate::support::{agent, answers_after, answers_in, builder, drain, runtime, simulator};

const WINDOW: u64 = 50_000;

async fn answers(runtime: &Runtime, id: &str) -> Vec<(String, Vec<String>)> {
    answers_in(&runtime.entries(id, EntryId(0)).await.unwrap())
}

async fn ids(query: greenroom::SessionQuery) -> Vec<String> {
    query.await.unwrap().into_iter().map(|session| session.id).collect()
}

#[tokio::test(start_paused = true)]
async fn sessions_are_listed_in_pages_orders_and_by_their_labels() {
    let dir = tempfile::tempdir().unwrap();
    for on_disk in [false, true] {
        let model = simulator(Echo, WINDOW);
        let runtime = match on_disk {
            true => builder(&model).store(
                greenroom_store::Store::open(&greenroom_store::StoreOptions::new(dir.path())).unwrap().0,
            ),
            false => builder(&model),
        };
        let runtime = runtime.start().await.unwrap();
        let count = 25_u32;
        // The order of their ids is not the order of their messages.
        for number in 0..count {
            let number = number * 7 % count;
            let session = runtime.open(&format!("s{number:02}"), &agent(WINDOW)).await.unwrap();
            session.prompt(format!("hello {number}")).await.unwrap();
            if number.is_multiple_of(2) {
                session.set_label("tenant", (number % 4).to_string()).await.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for id in ["s03", "s04"] {
            runtime.delete(id).await.unwrap();
        }
        let all = runtime.sessions().await.unwrap();
        assert_eq!(all.len(), 23);
        for order in Order::ALL {
            for limit in [1, 4, 23, 100] {
                let mut paged = Vec::new();
                let mut query = runtime.sessions().order(*order).limit(limit);
                loop {
                    let page = query.clone().await.unwrap();
                    assert!(page.len() <= limit);
                    let Some(last) = page.last() else { break };
                    let cursor: greenroom::Cursor = last.cursor().to_string().parse().unwrap();
                    query = query.after(cursor);
                    paged.extend(page);
                }
                let mut wanted = all.clone();
                match order {
                    Order::Id => {}
                    Order::Newest => wanted.sort_by_key(|session| std::cmp::Reverse(session.updated_at_ms)),
                    Order::Oldest => wanted.sort_by_key(|session| session.updated_at_ms),
                    _ => unreachable!("there is no other order"),
                }
                assert_eq!(paged, wanted, "{order}, {limit} at a time");
            }
        }
        let labelled = ids(runtime.sessions().label("tenant", "2").limit(3)).await;
        assert_eq!(labelled, ["s02", "s06", "s10"]);
        assert!(ids(runtime.sessions().label("tenant", "2").label("tenant", "0")).await.is_empty());
        assert_eq!(ids(runtime.sessions().roots().label("tenant", "0")).await.len(), 6);
        assert!(ids(runtime.sessions().children_of("s00")).await.is_empty());
        runtime.shutdown().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn titles_and_labels_are_stored_listed_copied_and_limited() {
    let dir = tempfile::tempdir().unwrap();
    let model = simulator(Echo, WINDOW);
    let runtime = Runtime::builder().provider(model.provider()).data_dir(dir.path()).start().await.unwrap();
    let session = runtime.open("ada@example.org", &agent(WINDOW)).await.unwrap();
    session.prompt("\n  What   is\train?\nIn detail.").await.unwrap();
    let summary = async || runtime.summary("ada@example.org").await.unwrap().unwrap();
    assert_eq!((summary().await.title, summary().await.shown_title()), (None, Some("What is rain?")));
    let mut events = session.subscribe();
    session.set_title("Rain").await.unwrap();
    session.set_label("tenant", "42").await.unwrap();
    session.set_label("empty", "").await.unwrap();
    let told: Vec<_> =
        drain(&mut events).iter().map(|event| serde_json::to_value(&event.kind).unwrap()).collect();
    let kinds: Vec<_> = told.iter().filter_map(|event| event["kind"].as_str()).collect();
    assert_eq!(kinds, ["title", "session_label", "session_label"], "{told:?}");
    // A sleeping one is not woken.
    runtime.close("ada@example.org").await.unwrap();
    session.set_label("tenant", "43").await.unwrap();
    session.remove_label("empty").await.unwrap();
    session.remove_label("nothing").await.unwrap();
    assert!(!session.is_live());
    let before = summary().await;
    assert_eq!(before.shown_title(), Some("Rain"));
    let labels: Vec<_> = before.labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(labels, [("tenant", "43")]);
    session.prompt("and snow?").await.unwrap();
    runtime.fork("ada@example.org", "copy", &agent(WINDOW)).await.unwrap();
    runtime.shutdown().await.unwrap();

    let runtime = Runtime::builder().provider(model.provider()).data_dir(dir.path()).start().await.unwrap();
    for id in ["ada@example.org", "copy"] {
        let summary = runtime.summary(id).await.unwrap().unwrap();
        assert_eq!((summary.title.as_deref(), &summary.labels), (Some("Rain"), &before.labels), "{id}");
    }
    let session = runtime.session("copy").await.unwrap();
    let refused = async |result: Result<()>| match result {
        Err(Error::Metadata(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let too_long = "a session's title may have at most 512 bytes, and this one has 513";
    assert_eq!(refused(session.set_title("x".repeat(513)).await).await, too_long);
    assert_eq!(
        refused(session.set_title("a\u{1b}[31m").await).await,
        "a session's title must be one line of printable characters"
    );
    // People use scripts and emoji that are written with joiners.
    for title in ["👨\u{200d}👩\u{200d}👧", "می\u{200c}خواهم", "🏳\u{fe0f}\u{200d}🌈", "Donau\u{ad}dampf"]
    {
        session.set_title(title).await.unwrap();
    }
    assert_eq!(refused(session.set_label("", "x").await).await, "a session's label's name must not be empty");
    for result in [
        session.set_label("x".repeat(65), "x").await,
        session.set_label("x", "x".repeat(257)).await,
        session.set_label("x", "a\nb").await,
    ] {
        refused(result).await;
    }
    for number in 0..15 {
        session.set_label(format!("label {number}"), "x").await.unwrap();
    }
    let too_many = "a session may have at most 16 labels";
    assert_eq!(refused(session.set_label("one more", "x").await).await, too_many);
    session.set_label("tenant", "44").await.unwrap();
    session.set_title("").await.unwrap();
    let summary = runtime.summary("copy").await.unwrap().unwrap();
    assert_eq!((summary.title, summary.labels.len()), (None, 16));
    runtime.delete("copy").await.unwrap();
    let new = runtime.open("copy", &agent(WINDOW)).await.unwrap();
    // A title may be set before the first prompt.
    new.set_title("New").await.unwrap();
    new.prompt("hello").await.unwrap();
    let summary = runtime.summary("copy").await.unwrap().unwrap();
    assert_eq!((summary.shown_title(), summary.labels.len()), (Some("New"), 0));
    assert_eq!(summary.model, "simulated");
    runtime.shutdown().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_fork_takes_the_conversation_and_leaves_what_waits() {
    let model = answers_after(10_000, WINDOW);
    let runtime = runtime(&model).await;
    let session = runtime.open("one", &agent(WINDOW)).await.unwrap();
    let runs = [session.prompt("a").start().await.unwrap(), session.prompt("b").start().await.unwrap()];
    let [a, b] = runs.map(greenroom::Run::reply);
    a.await.unwrap();
    b.await.unwrap();
    session.prompt("c").start().await.unwrap().detach();
    session.prompt("d").start().await.unwrap().detach();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let calls = model.calls();
    runtime.fork("one", "two", &agent(WINDOW)).await.unwrap();
    let copy = runtime.summary("two").await.unwrap().unwrap();
    assert_eq!((copy.waiting, copy.is_unfinished), (0, false), "{copy:?}");
    runtime.close("two").await.unwrap();
    runtime.open("two", &agent(WINDOW)).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(model.calls(), calls, "nothing of the original begins in the copy");
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(answers(&runtime, "one").await.len(), 4);
    model.assert_clean();
}

/// Ids as people and attackers use them: each is a separate session, on a disk, after a restart, with a
/// sub-agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_have_ids_as_people_have_them() {
    let dir = tempfile::tempdir().unwrap();
    let long = "é".repeat(127);
    let mut ids: Vec<String> = [
        "user:42", "ada@example.org", "../x", "..x", "a/b", "/etc/passwd", "é", "e\u{301}", "É", "CON",
        "con", "a.", "a", "a b", "%2e", "-rf", "日本語", "'; drop table", "\"", "\\", "?#&",
    ]
    .map(str::to_owned)
    .to_vec();
    ids.extend([format!("{long}a"), format!("{long}b"), "x".repeat(255)]);
    /// Asks another agent.
    fn team() -> Agent {
        agent(WINDOW).sub_agent(sub_agent("ask", agent(WINDOW)).describe("Asks."))
    }
    let script = Function(|request: &SeenRequest, _: CallInfo| match request.tools.is_empty() {
        true => Said::text("helped"),
        false if request.messages.len() == 1 => Said::call("ask", &serde_json::json!({ "task": "help" })),
        false => Said::text(request.messages[0].text()),
    });
    let model = simulator(script, WINDOW);
    let open = || async {
        let builder = Runtime::builder().provider(model.provider());
        builder.data_dir(dir.path().join("store")).start().await.unwrap()
    };
    for round in 0..2 {
        let runtime = open().await;
        for id in &ids {
            if round == 0 {
                let session = runtime.open(id, &team()).await.unwrap();
                assert_eq!(session.prompt(format!("I am {id}")).await.unwrap().text, format!("I am {id}"));
            }
            assert_eq!(answers(&runtime, id).await[0].0, format!("I am {id}"));
            let children = runtime.sessions().children_of(id.as_str()).await.unwrap();
            assert_eq!(children.len(), 1, "{id:?}");
            assert_eq!(runtime.session(&children[0].id).await.unwrap().id(), children[0].id);
        }
        let listed = runtime.sessions().roots().await.unwrap();
        let mut wanted = ids.clone();
        wanted.sort();
        assert_eq!(listed.into_iter().map(|session| session.id).collect::<Vec<_>>(), wanted);
        runtime.shutdown().await.unwrap();
    }
    let beside: Vec<_> = std::fs::read_dir(dir.path()).unwrap().flatten().collect();
    assert_eq!(beside.len(), 1, "no file is named after an id: {beside:?}");

    let runtime = open().await;
    for id in ["", ".", "..", " a", "a\n", "a\0", "\u{1b}[2J", "a\u{202e}b", &"x".repeat(256)] {
        let error = runtime.open(id, &team()).await.unwrap_err();
        assert!(
            matches!(&error, Error::Store(error) if matches!(**error, greenroom_store::StoreError::SessionId { .. })),
            "{id:?}: {error}"
        );
        assert!(!error.to_string().contains(['\u{1b}', '\u{202e}', '\n', '\0']), "{error}");
        assert!(runtime.session(id).await.is_err() && runtime.delete(id).await.is_err());
    }
    runtime.shutdown().await.unwrap();
}
