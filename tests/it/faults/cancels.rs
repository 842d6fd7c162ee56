//! Callers that go away and runs that are aborted, at random moments, five hundred times: no task stays, no
//! process stays, and the sessions work.

use std::time::Duration;

use greenroom::prelude::*;
use greenroom_kernel::message::{Message, ToolStatus};
use greenroom_simulator::{ByPurpose, CallInfo, Function, Pace, Reply as Said, SeenRequest, Summariser};
use greenroom_store::faults::Random;
use greenroom_tools::Workspace;

use crate::support::{agent, builder, simulator};

/// How long the commands sleep: a number that tells them from all other processes.
fn mark() -> String {
    format!("86417.{}", std::process::id())
}

/// Our processes whose command line holds the mark.
fn left_over() -> Vec<u32> {
    let mark = mark();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if id != std::process::id() && String::from_utf8_lossy(&command).contains(&mark) {
            found.push(id);
        }
    }
    found
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_hundred_cancels_leave_no_task_and_no_process() {
    let dir = tempfile::tempdir().unwrap();
    let runs = Function(|_: &SeenRequest, info: CallInfo| {
        let mut random = Random::new(info.seed);
        let pace = Pace { chunks: 4, first_ms: random.below(6), between_ms: random.below(6) };
        let said = match random.below(4) {
            0 => {
                let mark = mark();
                let command = format!("sleep {mark} & (sleep {mark}; true) | cat; wait");
                Said::call("bash", &serde_json::json!({ "command": command }))
            }
            1 => Said::call("wait", &serde_json::json!({ "ms": random.below(50) })),
            _ => Said::text("one two three four five six"),
        };
        said.with_pace(pace)
    });
    let model = simulator(ByPurpose::new(runs, Summariser::Obedient), 50_000);
    let runtime = builder(&model).start().await.unwrap();
    let workspace = Workspace::open(dir.path()).unwrap();
    let tools = builtin::all(workspace, builtin::Options::default());
    let agent = agent(50_000).tools(&tools).tool("wait", |wait: Wait| async move {
        tokio::time::sleep(Duration::from_millis(wait.ms)).await;
        Ok("waited")
    });
    let mut sessions = Vec::new();
    for number in 0..10 {
        sessions.push(runtime.open(&format!("s{number}"), &agent).await.unwrap());
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    let before = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let work = sessions.iter().enumerate().map(|(number, session)| {
        let session = session.clone();
        tokio::spawn(async move {
            let mut random = Random::new(number as u64);
            for run in 0..50 {
                let after = Duration::from_micros(random.below(30_000));
                if random.below(2) == 0 {
                    // The caller goes away.
                    let _ = tokio::time::timeout(after, session.prompt(format!("prompt {run}"))).await;
                } else {
                    let prompt = session.prompt(format!("prompt {run}"));
                    let abort = async {
                        tokio::time::sleep(after).await;
                        session.abort();
                    };
                    let (end, ()) = tokio::join!(prompt, abort);
                    assert!(matches!(end, Ok(_) | Err(Error::Aborted)), "{end:?}");
                }
            }
            // What is left runs out, or is cancelled.
            session.abort();
        })
    });
    let work: Vec<_> = work.collect();
    for work in work {
        work.await.unwrap();
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
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
        if busy == 0 && tasks <= before && left_over().is_empty() {
            break;
        }
        assert!(
            std::time::Instant::now() < deadline,
            "{busy} sessions busy, {tasks} tasks of {before}, processes {:?}",
            left_over()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(model.in_flight(), 0);
    let mut cancelled = 0;
    for session in &sessions {
        let log = runtime.entries(session.id(), greenroom_kernel::EntryId(0)).await.unwrap();
        let is_cut_off = |entry: &&greenroom_kernel::Entry| {
            entry.kind.as_message().is_some_and(|message| {
                matches!(&**message, Message::ToolResult(result) if result.status == ToolStatus::Interrupted)
            })
        };
        cancelled += log.iter().filter(is_cut_off).count();
    }
    assert!(cancelled > 0, "no tool was ever cancelled");
    model.assert_clean();
    runtime.shutdown().await.unwrap();
}

/// Waits.
#[derive(Deserialize, JsonSchema)]
struct Wait {
    /// How long, in milliseconds.
    ms: u64,
}
