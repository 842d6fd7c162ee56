//! Work left by the end of a process: which sessions have unfinished work, from their heads alone, and how it
//! is finished. And how sessions are listed, named and found.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom::{MetadataError, Order};
use greenroom_kernel::{EntryId, EntryKind, Message};
use greenroom_simulator::{Answer as Said, CallInfo, Echo, Fault, Function, Pace, SeenRequest, Simulator};
use greenroom_store::Engine;

use crate::support::{agent, builder, drain, runtime, simulator, store};

const WINDOW: u64 = 50_000;

/// Answers with the newest prompt, after this delay.
fn answers_after(first_ms: u64) -> Simulator {
    let pace = Pace { chunks: 3, first_ms, between_ms: 1 };
    let answer = move |request: &SeenRequest, _: CallInfo| {
        Said::text(format!("to {}", request.last_user_text())).with_pace(pace)
    };
    simulator(Function(answer), WINDOW)
}

/// Returns the user's messages of a session, each with the whole answers that follow it before the next one.
async fn answers(runtime: &Runtime, id: &str) -> Vec<(String, Vec<String>)> {
    let mut answers: Vec<(String, Vec<String>)> = Vec::new();
    for entry in runtime.entries(id, EntryId(0)).await.unwrap() {
        match entry.kind.as_message().map(|message| &**message) {
            Some(message @ Message::User(_)) => answers.push((message.text(), Vec::new())),
            Some(message @ Message::Assistant(answer)) if !answer.stop.is_partial() => {
                answers.last_mut().unwrap().1.push(message.text());
            }
            _ => {}
        }
    }
    answers
}

/// Checks the ends of runs in the log: each run has one.
async fn check_ends(runtime: &Runtime, id: &str) {
    let entries = runtime.entries(id, EntryId(0)).await.unwrap();
    let mut ended = BTreeSet::new();
    for entry in &entries {
        if let EntryKind::RunEnded { run, .. } = &entry.kind {
            assert!(ended.insert(*run), "{id}: run {run} ended twice");
        }
    }
}

async fn ids(query: greenroom::SessionQuery) -> Vec<String> {
    query.await.unwrap().into_iter().map(|session| session.id).collect()
}

/// Sessions in every state that the end of a process may leave them in: `crash` says whether it ends without
/// a shutdown.
async fn leave(store: &Arc<dyn Engine>, crash: bool) {
    let model = answers_after(60_000);
    let runtime = builder(&model).engine(store.clone()).start().await.unwrap();
    let open = async |id: &str| runtime.open(id, &agent(WINDOW)).await.unwrap();
    let answered = open("answered").await;
    answered.prompt("a").await.unwrap();
    let aborted = open("aborted").await;
    let run = aborted.prompt("a").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    run.abort();
    assert!(run.reply().await.is_err());
    for (id, prompts) in [("running", 1), ("waiting", 3)] {
        let session = open(id).await;
        for number in 0..prompts {
            let mut run = session.prompt(format!("{id} {number}")).start().await.unwrap();
            run.recorded().await.unwrap();
            std::mem::forget(run);
        }
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(ids(runtime.unfinished()).await, [""; 0], "what is being worked on is no such work");
    if crash {
        // Its actors never send anything again.
        std::mem::forget(runtime);
    } else {
        for id in runtime.live().await.unwrap() {
            runtime.close(&id).await.unwrap();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn heads_tell_what_is_unfinished_and_resume_all_finishes_it_once() {
    for crash in [false, true] {
        let store = store();
        leave(&store, crash).await;
        let model = answers_after(10);
        let runtime = builder(&model).engine(store.clone()).start().await.unwrap();
        let unfinished = runtime.unfinished().await.unwrap();
        let found: Vec<(&str, usize)> =
            unfinished.iter().map(|session| (session.id.as_str(), session.waiting)).collect();
        assert_eq!(found, [("running", 0), ("waiting", 2)], "crash: {crash}");
        assert!(runtime.live().await.unwrap().is_empty(), "nothing was opened");

        let definition = Arc::new(agent(WINDOW));
        let nobody = runtime.resume_all(|_| None::<Agent>).await.unwrap();
        assert!(nobody.is_empty() && runtime.live().await.unwrap().is_empty());
        let resumed = runtime.resume_all(move |_| Some(Arc::clone(&definition))).await.unwrap();
        let mut replies: Vec<(String, String)> = resumed
            .into_iter()
            .map(|resumed| (resumed.session.id().to_owned(), resumed.result.unwrap().text))
            .collect();
        replies.sort();
        let wanted = [("running", "to running 0"), ("waiting", "to waiting 2")];
        assert_eq!(replies, wanted.map(|(id, text)| (id.to_owned(), text.to_owned())), "crash: {crash}");
        let all = answers(&runtime, "waiting").await;
        let once: Vec<(&str, &[String])> =
            all.iter().map(|(said, got)| (said.as_str(), got.as_slice())).collect();
        let to = |number: u32| vec![format!("to waiting {number}")];
        let (zero, one, two) = (to(0), to(1), to(2));
        assert_eq!(
            once,
            [("waiting 0", &*zero), ("waiting 1", &*one), ("waiting 2", &*two)],
            "crash: {crash}"
        );
        for id in ["running", "waiting", "aborted"] {
            check_ends(&runtime, id).await;
        }
        assert_eq!(ids(runtime.unfinished()).await, [""; 0], "crash: {crash}");
        assert!(
            runtime.resume_all(|_| Some(agent(WINDOW))).await.unwrap().is_empty(),
            "there is nothing to do"
        );
        model.assert_clean();
    }
}

/// Returns a provider that accepts the key only when the test allows it.
fn locked(is_open: &Arc<AtomicBool>) -> Simulator {
    let is_open = Arc::clone(is_open);
    let answer = move |request: &SeenRequest, _: CallInfo| {
        let said = Said::text(format!("to {}", request.last_user_text()));
        match is_open.load(Ordering::Relaxed) {
            true => said,
            false => said.with_fault(Fault::Http { status: 401, headers: Vec::new(), body: "{}".into() }),
        }
    };
    simulator(Function(answer), WINDOW)
}

#[tokio::test(start_paused = true)]
async fn what_a_wrong_key_could_not_finish_is_still_to_be_done() {
    let mut cases = 0;
    for (crash, is_restart) in [(false, false), (true, false), (false, true), (true, true)] {
        let case = format!("crash: {crash}, restart: {is_restart}");
        let store = store();
        leave(&store, crash).await;
        let is_open = Arc::new(AtomicBool::new(false));
        let model = locked(&is_open);
        let mut runtime = builder(&model).engine(store.clone()).start().await.unwrap();
        for _ in 0..2 {
            let resumed = runtime.resume_all(|_| Some(agent(WINDOW))).await.unwrap();
            assert_eq!(resumed.len(), 2, "{case}");
            for resumed in resumed {
                let id = resumed.session.id();
                assert!(
                    matches!(&resumed.result, Err(Error::Model(_))),
                    "{case}: {id}: {:?}",
                    resumed.result
                );
            }
            // What waits behind the prompt that failed begins, and fails, too.
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(ids(runtime.unfinished()).await, ["running", "waiting"], "{case}");
            assert_eq!(runtime.summary("waiting").await.unwrap().unwrap().waiting, 2, "{case}");
        }
        is_open.store(true, Ordering::Relaxed);
        if is_restart {
            for id in runtime.live().await.unwrap() {
                runtime.close(&id).await.unwrap();
            }
            runtime = builder(&model).engine(store.clone()).start().await.unwrap();
        }
        let resumed = runtime.resume_all(|_| Some(agent(WINDOW))).await.unwrap();
        assert_eq!(resumed.len(), 2, "{case}");
        assert!(resumed.iter().all(|resumed| resumed.result.is_ok()), "{case}: {resumed:?}");
        let to = |number: u32| (format!("waiting {number}"), vec![format!("to waiting {number}")]);
        assert_eq!(answers(&runtime, "waiting").await, [to(0), to(1), to(2)], "{case}");
        for id in ["running", "waiting"] {
            check_ends(&runtime, id).await;
        }
        assert_eq!(ids(runtime.unfinished()).await, [""; 0], "{case}");
        model.assert_clean();
        cases += 1;
    }
    assert_eq!(cases, 4);
}

/// A prompt left by an earlier process fails, so that process's later input is held back. Input of this
/// process, before the session slept and woke again, is not.
#[tokio::test(start_paused = true)]
async fn what_is_said_beside_a_run_that_was_left_is_not_held_back_with_it() {
    let store = store();
    leave(&store, false).await;
    let model = simulator(
        Function(move |request: &SeenRequest, _: CallInfo| {
            let text = request.last_user_text();
            match request.messages.last().map(|message| message.role()) {
                Some("tool") => {
                    let fault = Fault::Http { status: 401, headers: Vec::new(), body: "{}".into() };
                    Said::text("never").with_fault(fault)
                }
                _ if text.starts_with("waiting") => Said::call("wait", &serde_json::json!({})),
                _ => Said::text(format!("to {text}")),
            }
        }),
        WINDOW,
    );
    let runtime =
        builder(&model).engine(store.clone()).idle_after(Duration::from_secs(60)).start().await.unwrap();
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    let waits = agent(WINDOW).tool("wait", |_: Nothing| async {
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        Ok("over")
    });
    let session = runtime.open("waiting", waits).await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!session.is_live(), "it sleeps in the run that was left");
    let said = session.clone();
    let reply = tokio::spawn(async move { said.prompt("and then").await });
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!session.is_live(), "it sleeps again");
    assert!(!reply.is_finished());
    let reply = tokio::time::timeout(Duration::from_secs(7_200), reply).await.expect("it is not held back");
    assert_eq!(reply.unwrap().unwrap().text, "to and then");
    let state = session.state().await.unwrap();
    assert_eq!((state.waiting, state.held_back), (1, 1), "what was left");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!session.is_live());
    assert_eq!(session.state().await.unwrap().held_back, 1, "also while it sleeps");
    assert_eq!(session.clear_inbox().await.unwrap(), 1);
    let state = session.state().await.unwrap();
    assert!(!session.is_live());
    assert_eq!((state.waiting, state.held_back), (0, 0), "nothing is left that could be held back");
}

#[tokio::test(start_paused = true)]
async fn only_so_many_sessions_are_resumed_at_a_time() {
    let store = store();
    let slow = answers_after(60_000);
    let runtime = builder(&slow).engine(store.clone()).start().await.unwrap();
    for number in 0..20 {
        let session = runtime.open(&format!("s{number:02}"), &agent(WINDOW)).await.unwrap();
        session.prompt("hello").start().await.unwrap().detach();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    for id in runtime.live().await.unwrap() {
        runtime.close(&id).await.unwrap();
    }
    let model = answers_after(1_000);
    let runtime = builder(&model).in_flight_max(100).engine(store.clone()).start().await.unwrap();
    let busiest = Arc::new(AtomicUsize::new(0));
    let (watched, seen) = (model.clone(), Arc::clone(&busiest));
    let watch = tokio::spawn(async move {
        loop {
            seen.fetch_max(watched.in_flight(), Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    let resumed = runtime.resume_all(|_| Some(agent(WINDOW))).at_once(3).await.unwrap();
    watch.abort();
    assert_eq!(resumed.len(), 20);
    assert!(resumed.iter().all(|resumed| resumed.result.is_ok()));
    assert_eq!(busiest.load(Ordering::Relaxed), 3);
}

/// An agent that cannot work, and a session that is deleted meanwhile, do not affect others.
#[tokio::test(start_paused = true)]
async fn a_session_that_cannot_be_resumed_harms_no_other() {
    let store = store();
    leave(&store, false).await;
    let model = answers_after(10);
    let runtime = builder(&model).engine(store.clone()).start().await.unwrap();
    let resumed = runtime
        .resume_all(|session| {
            let broken = agent(WINDOW).provider("nowhere");
            Some(if session.id == "running" { broken } else { agent(WINDOW) })
        })
        .await
        .unwrap();
    for resumed in resumed {
        match resumed.session.id() {
            "running" => assert!(matches!(resumed.result, Err(Error::Config(_))), "{:?}", resumed.result),
            _ => assert_eq!(resumed.result.unwrap().text, "to waiting 2"),
        }
    }
    assert_eq!(ids(runtime.unfinished()).await, ["running"], "it is still to be done");
}

#[tokio::test(start_paused = true)]
async fn a_resumed_run_is_another_run_with_one_end_also_where_it_is_cut_off_again() {
    let model = answers_after(60_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("one", &agent(WINDOW)).await.unwrap();
    session.prompt("hello").start().await.unwrap().detach();
    for round in 0..3 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        runtime.close("one").await.unwrap();
        assert!(runtime.summary("one").await.unwrap().unwrap().is_unfinished, "round {round}");
        session.resume().start().await.unwrap().detach();
    }
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(answers(&runtime, "one").await, [("hello".to_owned(), vec!["to hello".to_owned()])]);
    check_ends(&runtime, "one").await;
    let summary = runtime.summary("one").await.unwrap().unwrap();
    assert!(!summary.is_unfinished && !summary.has_open_run);
    // A message after an interruption leaves the run behind.
    session.prompt("two").start().await.unwrap().detach();
    tokio::time::sleep(Duration::from_secs(1)).await;
    runtime.close("one").await.unwrap();
    session.prompt("three").await.unwrap();
    assert!(!runtime.summary("one").await.unwrap().unwrap().is_unfinished);
}

/// Takes its time.
#[derive(Deserialize, JsonSchema)]
struct Slow {}

#[tokio::test(start_paused = true)]
async fn what_was_closed_within_a_tool_call_is_resumed_with_its_reply() {
    let mut cases = 0;
    for (is_restart, queued) in [(false, false), (true, false), (false, true), (true, true)] {
        let answer = |request: &SeenRequest, _: CallInfo| match request.messages.last() {
            Some(last) if last.role() == "tool" => Said::text("done"),
            _ if request.last_user_text() == "go" => Said::call("slow", &serde_json::json!({})),
            _ => Said::text(format!("to {}", request.last_user_text())),
        };
        let (model, store) = (simulator(Function(answer), WINDOW), store());
        let slow = async |_: Slow| {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Ok("slept")
        };
        let agent = Arc::new(agent(WINDOW).tool("slow", slow));
        let runtime = builder(&model).engine(store.clone()).start().await.unwrap();
        let session = runtime.open("one", Arc::clone(&agent)).await.unwrap();
        for text in ["go", "and then"].into_iter().take(1 + usize::from(queued)) {
            let mut run = session.prompt(text).start().await.unwrap();
            run.recorded().await.unwrap();
            run.detach();
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
        runtime.close("one").await.unwrap();
        let runtime = match is_restart {
            true => builder(&model).engine(store).start().await.unwrap(),
            false => runtime,
        };
        let resumed = runtime.resume_all(move |_| Some(Arc::clone(&agent))).await.unwrap();
        let replies: Vec<_> =
            resumed.into_iter().map(|resumed| resumed.result.map(|reply| reply.text)).collect();
        let wanted = if queued { "to and then" } else { "done" };
        assert!(
            matches!(&replies[..], [Ok(text)] if text == wanted),
            "restart {is_restart}, queued {queued}: {replies:?}"
        );
        cases += 1;
    }
    assert_eq!(cases, 4);
}

/// The working folder of the child of [`two_hundred_sessions_are_killed_and_all_answered_once`]; only set for
/// the child.
const DIR: &str = "GREENROOM_RESUME_DIR";
const SESSIONS: usize = 200;

#[test]
#[ignore = "started by the test below"]
#[expect(clippy::disallowed_methods, reason = "a child of a test has no other way to be told")]
#[expect(clippy::print_stdout, reason = "its parent reads it")]
fn resume_child() {
    let Some(dir) = std::env::var_os(DIR).map(PathBuf::from) else { return };
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    tokio.block_on(async move {
        let model = answers_after(40);
        let runtime = Runtime::builder().provider(model.provider()).data_dir(dir).start().await.unwrap();
        let agent = Arc::new(agent(WINDOW));
        let mut runs = Vec::new();
        for number in 0..SESSIONS {
            let session = runtime.open(&format!("user:{number}"), Arc::clone(&agent)).await.unwrap();
            for prompt in 0..1 + number % 3 {
                let run = session.prompt(format!("question {number}.{prompt}")).start().await.unwrap();
                runs.push(run);
            }
        }
        for run in &mut runs {
            run.recorded().await.unwrap();
        }
        println!("@durable");
        futures_util::future::join_all(runs.into_iter().map(greenroom::Run::reply)).await;
        println!("@all answered");
        std::future::pending::<()>().await;
    });
}

#[test]
fn two_hundred_sessions_are_killed_and_all_answered_once() {
    use std::io::BufRead as _;
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["unfinished::resume_child", "--exact", "--ignored", "--nocapture"])
        .env(DIR, &store)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let durable = lines.map_while(Result::ok).find(|line| line.contains("@durable"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(durable.is_some(), "the child ended before every prompt was durable");

    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    tokio.block_on(async move {
        let model = answers_after(1);
        let runtime = Runtime::builder().provider(model.provider()).data_dir(&store).start().await.unwrap();
        let left = runtime.unfinished().await.unwrap();
        assert!(left.len() > SESSIONS / 4, "the kill came too late: {} were left", left.len());
        assert!(runtime.live().await.unwrap().is_empty());
        let definition = Arc::new(agent(WINDOW));
        let resumed = runtime.resume_all(move |_| Some(Arc::clone(&definition))).at_once(20).await.unwrap();
        assert_eq!(resumed.len(), left.len());
        for resumed in &resumed {
            let id = resumed.session.id();
            assert!(
                matches!(resumed.result, Ok(_) | Err(Error::NothingToResume { .. })),
                "{id}: {:?}",
                resumed.result
            );
        }
        let mut prompts = 0;
        for number in 0..SESSIONS {
            let id = format!("user:{number}");
            let answered = answers(&runtime, &id).await;
            let wanted: Vec<_> = (0..1 + number % 3)
                .map(|prompt| {
                    let said = format!("question {number}.{prompt}");
                    let answer = vec![format!("to {said}")];
                    (said, answer)
                })
                .collect();
            assert_eq!(answered, wanted, "{id}: each prompt has one answer");
            check_ends(&runtime, &id).await;
            prompts += answered.len();
        }
        assert!(prompts > SESSIONS);
        assert!(runtime.unfinished().await.unwrap().is_empty());
        model.assert_clean();
        runtime.shutdown().await.unwrap();
    });
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
        Err(Error::Metadata(error)) => error,
        other => panic!("{other:?}"),
    };
    let too_long = MetadataError::TooLong { what: "title", bytes: 513, bytes_max: 512 };
    assert_eq!(refused(session.set_title("x".repeat(513)).await).await, too_long);
    assert_eq!(
        refused(session.set_title("a\u{1b}[31m").await).await,
        MetadataError::Unprintable { what: "title" }
    );
    // People use scripts and emoji that are written with joiners.
    for title in ["👨\u{200d}👩\u{200d}👧", "می\u{200c}خواهم", "🏳\u{fe0f}\u{200d}🌈", "Donau\u{ad}dampf"]
    {
        session.set_title(title).await.unwrap();
    }
    assert_eq!(
        refused(session.set_label("", "x").await).await,
        MetadataError::Empty { what: "label's name" }
    );
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
    let too_many = MetadataError::TooManyLabels { labels_max: 16 };
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
    let model = answers_after(10_000);
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
        "user:42",
        "ada@example.org",
        "../x",
        "..x",
        "a/b",
        "/etc/passwd",
        "é",
        "e\u{301}",
        "É",
        "CON",
        "con",
        "a.",
        "a",
        "a b",
        "%2e",
        "-rf",
        "日本語",
        "'; drop table",
        "\"",
        "\\",
        "?#&",
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
    for round in 0..2 {
        let runtime = Runtime::builder()
            .provider(model.provider())
            .data_dir(dir.path().join("store"))
            .start()
            .await
            .unwrap();
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

    let runtime = Runtime::builder()
        .provider(model.provider())
        .data_dir(dir.path().join("store"))
        .start()
        .await
        .unwrap();
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
