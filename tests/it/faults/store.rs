//! A full or broken disk under a working runtime: the run ends with a typed error, nothing acknowledged is
//! lost, and the session works again when the disk does.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use greenroom::prelude::*;
use greenroom_kernel::{Entry, EntryId, EntryKind};
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Function, SeenRequest, Simulator, Summariser,
};
use greenroom_store::Store;
use greenroom_store::faults::{EIO, ENOSPC, Fault, FaultyFiles, MemoryFiles};
use greenroom_store::files::{Files, OpenMode, RealFiles};
use greenroom_store::{StoreError, StoreOptions};

use crate::support::{agent, builder, simulator};

/// Notes a text.
#[derive(Deserialize, JsonSchema)]
struct Note {
    /// The text to work on.
    text: String,
}

fn tooled() -> Agent {
    agent(6_000).tool("note", |note: Note| async move { Ok(format!("noted {}", note.text)) })
}

/// Every second answer calls a tool, and the window fills every few runs.
fn talk() -> Simulator {
    let runs = Function(|_: &SeenRequest, info: CallInfo| {
        if info.session_call.is_multiple_of(2) {
            Said::call("note", &serde_json::json!({ "text": "x" }))
        } else {
            Said::text(format!("answer {} {}", info.session_call, "word ".repeat(200)))
        }
    });
    simulator(ByPurpose::new(runs, Summariser::Obedient), 6_000)
}

async fn start(model: &Simulator, dir: &Path, files: &FaultyFiles) -> Runtime {
    let options = StoreOptions { files: Arc::new(files.clone()), ..StoreOptions::new(dir) };
    Runtime::builder().provider(model.provider()).store_options(options).start().await.unwrap()
}

async fn quiet(session: &SessionHandle) {
    while session.state().await.unwrap().status != Status::Idle {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Two turns on a good disk, three on one with this fault, two on a good one again; then the log is read
/// again. Returns how many prompts failed.
async fn with_fault(model: &Simulator, files: FaultyFiles, fault: Fault) -> u32 {
    let dir = tempfile::tempdir().unwrap();
    let runtime = start(model, dir.path(), &files).await;
    let mut events = runtime.subscribe(Filter::all().durable());
    let session = runtime.open("disk", &tooled()).await.unwrap();
    let question = |run: u32| format!("question {run} {}", "thing ".repeat(250));
    for run in 0..2 {
        session.prompt(question(run)).await.unwrap();
    }
    quiet(&session).await;
    files.set(fault);
    let mut failed = 0;
    for run in 2..5 {
        match session.prompt(question(run)).await {
            Ok(_) => {}
            Err(Error::Store(error)) => {
                failed += 1;
                assert!(
                    matches!(&*error, StoreError::Full { .. } | StoreError::Io { .. }),
                    "{fault:?}: {error:?}"
                );
            }
            // A compaction that could not be recorded may leave a context that does not fit.
            Err(error) => assert!(error.is_context_overflow(), "{fault:?}: {error:?}"),
        }
    }
    assert!(files.fired() > 0, "{fault:?} never happened");
    files.set(Fault::None);
    for run in 5..7 {
        let reply = session.prompt(question(run)).await;
        reply.unwrap_or_else(|error| {
            panic!("{fault:?}: the disk works again, and the session does not: {error:?}")
        });
    }
    quiet(&session).await;
    let (context, log) =
        (session.context().await.unwrap(), runtime.entries("disk", EntryId(0)).await.unwrap());
    // Published events are there, in order.
    let mut next = 0;
    while let Some(delivery) = events.try_next() {
        let Delivery::Event(event) = delivery else { continue };
        assert_eq!(event.seq, next, "{fault:?}");
        next += 1;
    }
    assert_eq!(next, log.len() as u64, "{fault:?}");
    runtime.shutdown().await.unwrap();

    let again = start(model, dir.path(), &files).await;
    assert!(again.notices().is_empty(), "{fault:?}: {:?}", again.notices());
    let read: Vec<Entry> = again.entries("disk", EntryId(0)).await.unwrap();
    assert_eq!(read, log, "{fault:?}: the disk has something else than memory");
    let session = again.open("disk", &tooled()).await.unwrap();
    assert_eq!(session.context().await.unwrap(), context, "{fault:?}");
    session.prompt("and now?").await.unwrap();
    again.shutdown().await.unwrap();
    model.assert_clean();
    failed
}

#[tokio::test]
async fn a_full_disk_ends_a_turn_and_the_session_goes_on_when_there_is_room() {
    for at in 1..=14 {
        let files = FaultyFiles::new(Arc::new(RealFiles));
        let failed = with_fault(&talk(), files, Fault::FailFrom { at, errno: ENOSPC }).await;
        assert!(failed > 0, "nothing failed from operation {at} on");
    }
}

#[tokio::test]
async fn any_single_failure_of_the_disk_costs_at_most_its_turn() {
    for at in 1..=14 {
        for fault in [
            Fault::FailOnce { at, errno: ENOSPC },
            Fault::FailOnce { at, errno: EIO },
            Fault::FailOnce { at: at + 8, errno: ENOSPC },
        ] {
            let failed = with_fault(&talk(), FaultyFiles::new(Arc::new(MemoryFiles::new())), fault).await;
            assert!(failed <= 1, "{fault:?}: {failed} prompts failed");
        }
    }
}

/// The last answer and the end of its run are one write: if it fails, neither is there, and nothing counts
/// the answer.
#[tokio::test]
async fn an_answer_and_the_end_of_its_run_are_there_together_or_not_at_all() {
    let mut lost = 0;
    for at in 1..=8 {
        let (model, dir) = (talk(), tempfile::tempdir().unwrap());
        let files = FaultyFiles::new(Arc::new(RealFiles));
        let runtime = start(&model, dir.path(), &files).await;
        let session = runtime.open("disk", &tooled()).await.unwrap();
        session.prompt("first").await.unwrap();
        let before = runtime.entries("disk", EntryId(0)).await.unwrap().len();
        files.set(Fault::FailOnce { at, errno: ENOSPC });
        let reply = session.prompt("second").await;
        assert!(files.fired() > 0 && matches!(reply, Err(Error::Store(_))), "{at}: {reply:?}");
        files.set(Fault::None);
        let of_run = runtime.entries("disk", EntryId(before as u64)).await.unwrap();
        let is_end = |entry: &Entry| matches!(entry.kind, EntryKind::RunEnded { .. });
        let answers =
            |entry: &Entry| entry.kind.as_message().is_some_and(|message| message.role() == "assistant");
        assert!(!of_run.iter().any(is_end), "{at}: {of_run:?}");
        let is_last = of_run.len() == 3;
        lost += u32::from(is_last);
        assert_eq!(
            of_run.iter().filter(|entry| answers(entry)).count(),
            usize::from(of_run.len() > 1),
            "{at}"
        );
        let state = session.state().await.unwrap();
        runtime.shutdown().await.unwrap();
        let again = start(&model, dir.path(), &files).await;
        let read = again.open("disk", &tooled()).await.unwrap().state().await.unwrap();
        assert_eq!(read.total_tokens, state.total_tokens, "{at}");
        assert!(!is_last || read.context == state.context, "{at}: {:?}, {:?}", read.context, state.context);
        again.shutdown().await.unwrap();
    }
    assert_eq!(lost, 2, "the write and the sync of the end fail once each");
}

/// A context that only the lost answer makes too large is not compacted. The store is in memory: on a disk,
/// a learned ratio is written beside the answer, before it or after it, so that the number of the answer's
/// write varies.
#[tokio::test(start_paused = true)]
async fn an_answer_that_could_not_be_recorded_compacts_nothing() {
    let mut lost = 0;
    for at in 1..=12 {
        let talk = Function(|_: &SeenRequest, info: CallInfo| {
            let words = if info.session_call == 2 { 2_000 } else { 900 };
            Said::text("word ".repeat(words))
        });
        let model = simulator(ByPurpose::new(talk, Summariser::Obedient), 6_000);
        let disk = FaultyFiles::new(Arc::new(MemoryFiles::new()));
        let store = Store::memory_on(disk.open(Path::new("disk"), OpenMode::Create).unwrap());
        let runtime = builder(&model).store(store).start().await.unwrap();
        let mut events = runtime.subscribe(Filter::all().durable());
        let session = runtime.open("disk", &agent(6_000)).await.unwrap();
        session.prompt("thing ".repeat(500)).await.unwrap();
        quiet(&session).await;
        session.prompt("thing ".repeat(500)).await.unwrap();
        quiet(&session).await;
        disk.set(Fault::FailOnce { at, errno: ENOSPC });
        let reply = session.prompt("third").await;
        disk.set(Fault::None);
        quiet(&session).await;
        let state = session.state().await.unwrap();
        runtime.shutdown().await.unwrap();
        let starts = |delivery: Delivery| matches!(delivery, Delivery::Event(event) if matches!(event.kind, EventKind::CompactionStart { .. }));
        let compactions =
            std::iter::from_fn(|| events.try_next()).filter(|next| starts(next.clone())).count();
        assert!(reply.is_ok() || compactions == 0, "{at}: {reply:?}, {state:?}");
        // The third prompt is there, and its answer is not.
        lost += u32::from(reply.is_err() && state.entries == 7);
    }
    assert_eq!(lost, 2, "the write and the sync of the answer fail once each");
}

/// A waiting prompt is refused because the disk is full. It never begins after that: not when there is space
/// again, and not after the session has slept.
#[tokio::test(start_paused = true)]
async fn a_prompt_that_was_refused_never_begins_afterwards() {
    const ROOM_AFTER: Duration = Duration::from_secs(3_600);
    let model = simulator(
        Function(|request: &SeenRequest, _: CallInfo| match request.last_user_text().as_str() {
            "work" => Said::call("work", &serde_json::json!({})),
            text => Said::text(format!("to {text}")),
        }),
        50_000,
    );
    let disk = FaultyFiles::new(Arc::new(MemoryFiles::new()));
    let store = Store::memory_on(disk.open(Path::new("disk"), OpenMode::Create).unwrap());
    let runtime = builder(&model).store(store).idle_after(Duration::from_secs(60)).start().await.unwrap();
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    let definition = agent(50_000).tool("work", |_: Nothing| async {
        tokio::time::sleep(Duration::from_secs(30)).await;
        Ok("over")
    });
    let session = runtime.open("s", &definition).await.unwrap();
    let first = session.prompt("work").start().await.unwrap();
    let second = session.prompt("and then").start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(5)).await;
    disk.set(Fault::FailFrom { at: 0, errno: ENOSPC });
    assert!(matches!(first.reply().await, Err(Error::Store(_))));
    assert!(matches!(second.reply().await, Err(Error::Store(_))));
    tokio::time::sleep(ROOM_AFTER).await;
    assert!(session.is_live(), "what was refused is still in the log");
    let tries = disk.fired();
    assert!((60..90).contains(&tries), "it is tried {tries} times in an hour");
    disk.set(Fault::None);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!session.is_live(), "it sleeps");
    assert_eq!(session.state().await.unwrap().waiting, 0);
    assert_eq!(session.prompt("and now?").await.unwrap().text, "to and now?");
    assert_eq!(model.calls(), 2, "the prompt that was refused never began");
    model.assert_clean();
}

#[tokio::test]
async fn a_torn_write_is_taken_back() {
    let mut torn = 0;
    for at in 1..=8 {
        let files = FaultyFiles::new(Arc::new(MemoryFiles::new()));
        // Only writes can be torn: every other operation is a sync.
        let at = at * 2 - 1;
        torn += with_fault(&talk(), files, Fault::TornWrite { at }).await;
    }
    assert!(torn > 0);
}
