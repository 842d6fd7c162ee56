//! Work left by the end of a process: which sessions have unfinished work, from their heads alone, and how it
//! is finished.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom_kernel::{EntryId, EntryKind};
use greenroom_simulator::{Answer as Said, CallInfo, Fault, Function, SeenRequest, Simulator};
use greenroom_store::Engine;

use crate::support::{agent, answers_after, answers_in, builder, runtime, simulator, store};

const WINDOW: u64 = 50_000;

async fn answers(runtime: &Runtime, id: &str) -> Vec<(String, Vec<String>)> {
    answers_in(&runtime.entries(id, EntryId(0)).await.unwrap())
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
    let model = answers_after(60_000, WINDOW);
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
        let model = answers_after(10, WINDOW);
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

/// However a session is opened whose process ended: its input is processed in its order, each prompt once.
#[tokio::test(start_paused = true)]
async fn the_run_that_was_left_comes_before_the_input_behind_it() {
    for crash in [false, true] {
        for opened_for in ["nothing", "resume", "prompt"] {
            let case = format!("crash: {crash}, opened for {opened_for}");
            let store = store();
            leave(&store, crash).await;
            let model = answers_after(10, WINDOW);
            let runtime = builder(&model).engine(store.clone()).start().await.unwrap();
            let session = runtime.open("waiting", &agent(WINDOW)).await.unwrap();
            match opened_for {
                "resume" => assert_eq!(session.resume().await.unwrap().text, "to waiting 0", "{case}"),
                "prompt" => assert_eq!(session.prompt("more").await.unwrap().text, "to more", "{case}"),
                _ => {}
            }
            let is_idle = async || {
                let state = session.state().await.unwrap();
                state.status == Status::Idle && state.waiting == 0
            };
            while !is_idle().await {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            let answered = answers(&runtime, "waiting").await;
            let order: Vec<&str> = answered.iter().map(|(said, _)| said.as_str()).collect();
            let left = ["waiting 0", "waiting 1", "waiting 2", "more"];
            assert_eq!(order, left[..if opened_for == "prompt" { 4 } else { 3 }], "{case}");
            assert!(
                answered.iter().all(|(said, got)| *got == [format!("to {said}")]),
                "{case}: {answered:?}"
            );
            check_ends(&runtime, "waiting").await;
            model.assert_clean();
        }
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
    assert_eq!((state.waiting, state.held_back), (2, 2), "what was left");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!session.is_live());
    assert_eq!(session.state().await.unwrap().held_back, 2, "also while it sleeps");
    assert_eq!(session.clear_inbox().await.unwrap(), 2);
    let state = session.state().await.unwrap();
    assert!(!session.is_live());
    assert_eq!((state.waiting, state.held_back), (0, 0), "nothing is left that could be held back");
}

#[tokio::test(start_paused = true)]
async fn only_so_many_sessions_are_resumed_at_a_time() {
    let store = store();
    let slow = answers_after(60_000, WINDOW);
    let runtime = builder(&slow).engine(store.clone()).start().await.unwrap();
    for number in 0..20 {
        let session = runtime.open(&format!("s{number:02}"), &agent(WINDOW)).await.unwrap();
        session.prompt("hello").start().await.unwrap().detach();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    for id in runtime.live().await.unwrap() {
        runtime.close(&id).await.unwrap();
    }
    let model = answers_after(1_000, WINDOW);
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
    let model = answers_after(10, WINDOW);
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
    let model = answers_after(60_000, WINDOW);
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
        let model = answers_after(40, WINDOW);
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
        let model = answers_after(1, WINDOW);
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
