//! Callers that go away and runs that are aborted, at random moments and while commands run, five hundred
//! times: no task stays, no process stays, and the sessions work.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use greenroom::prelude::*;
use greenroom_kernel::message::{Message, ToolStatus};
use greenroom_simulator::{Answer as Said, ByPurpose, CallInfo, Function, Pace, SeenRequest, Summariser};
use greenroom_store::faults::Random;
use greenroom_tools::Workspace;

use crate::support::{agent, builder, simulator};

const SESSIONS: usize = 10;
const RUNS_PER_SESSION: usize = 50;

/// How long the commands of a session sleep: a number that distinguishes them from all other processes.
/// Without a session, the common prefix of those numbers.
fn mark(session: Option<&str>) -> String {
    format!("86417.{:07}{}", std::process::id(), session.unwrap_or_default().trim_start_matches('s'))
}

/// Returns the processes that sleep for a time that begins with `mark`.
fn sleeping(mark: &str) -> Vec<u32> {
    let is_ours = |id: &u32| {
        let command = std::fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        command.strip_prefix(b"sleep\0").is_some_and(|time| time.starts_with(mark.as_bytes()))
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_ours).collect()
}

/// Answers with text, waits, and runs commands that never end by themselves.
fn model(request: &SeenRequest, info: CallInfo) -> Said {
    let mut random = Random::new(info.seed);
    let pace = Pace { chunks: 4, first_ms: random.below(6), between_ms: random.below(6) };
    let said = match random.below(4) {
        0 | 1 => {
            let mark = mark(request.session.as_deref());
            let command = format!("sleep {mark} & (sleep {mark}; true) | cat & echo started; wait");
            Said::call("bash", &serde_json::json!({ "command": command }))
        }
        2 => Said::call("wait", &serde_json::json!({ "ms": random.below(50) })),
        _ => Said::text("one two three four five six"),
    };
    said.with_pace(pace)
}

/// Waits until a command of the session reports that it started, and was seen running. A report from one that
/// is being ended is old: then no process is found.
async fn command_runs(session: &SessionHandle) {
    let mut events = session.subscribe();
    while let Some(delivery) = events.next().await {
        if let Delivery::Event(event) = delivery
            && event.kind.name() == "tool_update"
        {
            let mark = mark(Some(session.id()));
            // The shell reports its start before its children may be `sleep`.
            for _ in 0..200 {
                if !sleeping(&mark).is_empty() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }
}

/// Prompts a session and cancels the run, again and again. Counts in `seen` the commands that were seen
/// running when they were cancelled.
async fn cancel_again_and_again(session: SessionHandle, seed: u64, seen: Arc<AtomicUsize>) {
    let mut random = Random::new(seed);
    for run in 0..RUNS_PER_SESSION {
        let after = Duration::from_micros(random.below(30_000));
        let when_it_runs = random.below(2) == 0;
        let moment = async {
            if when_it_runs {
                command_runs(&session).await;
                seen.fetch_add(1, Ordering::Relaxed);
            } else {
                tokio::time::sleep(after).await;
            }
        };
        let prompt = session.prompt(format!("prompt {run}")).into_future();
        if random.below(2) == 0 {
            // The caller goes away, unless it has its answer before.
            tokio::select! {
                biased;
                () = moment => {}
                end = prompt => assert!(end.is_ok(), "{end:?}"),
            }
        } else {
            tokio::pin!(prompt);
            let mut end = tokio::select! {
                biased;
                () = moment => None,
                end = &mut prompt => Some(end),
            };
            // An abort ends the current run, which may still be the previous one: this prompt waits behind
            // it.
            while end.is_none() {
                session.abort();
                end = tokio::time::timeout(Duration::from_millis(20), &mut prompt).await.ok();
            }
            let end = end.unwrap();
            assert!(matches!(end, Ok(_) | Err(Error::Aborted)), "{end:?}");
            // When the end of the run is reported, nothing of it is left.
            let left_over = sleeping(&mark(Some(session.id())));
            assert!(left_over.is_empty(), "{left_over:?} after {end:?}");
        }
    }
    // The rest completes, or is cancelled.
    session.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_cancels_leave_no_task_and_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let model = simulator(ByPurpose::new(Function(model), Summariser::Obedient), 200_000);
    let runtime = builder(&model).start().await.unwrap();
    let workspace = Workspace::open(dir.path()).unwrap();
    let tools = builtin::files_and_shell(
        workspace,
        builtin::bash::Options { sandbox: greenroom_tools::sandbox::Sandbox::off(), ..Default::default() },
    );
    let agent = agent(200_000).tools(&tools).tool("wait", |wait: Wait| async move {
        tokio::time::sleep(Duration::from_millis(wait.ms)).await;
        Ok("waited")
    });
    let mut sessions = Vec::new();
    for number in 0..SESSIONS {
        sessions.push(runtime.open(&format!("s{number}"), &agent).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let seen = Arc::new(AtomicUsize::new(0));
    let work: Vec<_> = sessions
        .iter()
        .enumerate()
        .map(|(number, session)| {
            tokio::spawn(cancel_again_and_again(session.clone(), number as u64, Arc::clone(&seen)))
        })
        .collect();
    for work in work {
        work.await.unwrap();
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let mut busy = 0;
        for session in &sessions {
            let state = session.state().await.unwrap();
            if state.status != Status::Idle || state.waiting > 0 {
                session.abort();
                busy += 1;
            }
        }
        let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let left_over = sleeping(&mark(None));
        if busy == 0 && tasks <= before && left_over.is_empty() {
            break;
        }
        assert!(
            Instant::now() < deadline,
            "{busy} sessions busy, {tasks} tasks of {before}, processes {left_over:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(model.in_flight(), 0);
    let seen = seen.load(Ordering::Relaxed);
    assert!(seen >= 100, "only {seen} commands were seen to run before they were cancelled");
    let mut cancelled = 0;
    for session in &sessions {
        let log = runtime.entries(session.id(), greenroom_kernel::EntryId(0)).await.unwrap();
        let is_cut_off = |entry: &&greenroom_kernel::Entry| {
            entry.kind.as_message().is_some_and(|message| {
                matches!(&**message, Message::ToolResult(result)
                    if result.status == ToolStatus::Interrupted && result.tool_name == "bash")
            })
        };
        cancelled += log.iter().filter(is_cut_off).count();
    }
    assert!(cancelled >= seen, "{cancelled} results of cancelled commands for {seen} that ran");
    println!("{seen} commands seen, {cancelled} cancelled");
    model.assert_clean();
    runtime.shutdown().await.unwrap();
}

/// Waits.
#[derive(Deserialize, JsonSchema)]
struct Wait {
    /// How long, in milliseconds.
    ms: u64,
}
