//! An actor or the process dies at any step of installing a compaction: the session comes back with the old
//! context or the new one, and a compaction whose agent died is finished for the next one.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom_kernel::message::Message;
use greenroom_simulator::{
    ByPurpose, CallInfo, Echo, Function, Outcome, Script, SeenRequest, Simulator, Summariser,
};

use crate::compaction_fixtures::{chat, compactions, count, ends, keep, opened, runs, settings};
use crate::support::{agent, builder, drain, simulator};

/// The steps of an installation, and whether the compaction is durable there.
const STEPS: [(&str, bool); 8] = [
    ("compactor/begin", false),
    ("compactor/answered", false),
    ("session/replace_path_segment", false),
    ("install/1_accepted", false),
    ("install/2_drafted", false),
    ("install/3_durable", true),
    ("install/4_measured", true),
    ("compactor/installed", true),
];

/// Tells a child process at which step to end, and where its store is.
const STEP: &str = "GREENROOM_TEST_ABORT_AT";
const DIR: &str = "GREENROOM_TEST_ABORT_DIR";

fn model() -> Simulator {
    simulator(Echo, 100_000)
}

/// Checks that the context is the old one or the new one.
async fn assert_old_or_new(
    session: &SessionHandle,
    runtime: &Runtime,
    old: &[Arc<Message>],
    durable: bool,
    at: &str,
) {
    let context = session.context().await.unwrap();
    let installed = compactions(runtime, "s").await.len();
    assert_eq!(installed, usize::from(durable), "{at}");
    if durable {
        assert!(context.len() < old.len() && old.ends_with(&context[1..]), "{at}: the new context");
    } else {
        assert_eq!(context, old, "{at}: the old context");
    }
    let events = runtime.replay("s", 0).await.unwrap();
    let named = |name| events.iter().filter(|event| event.kind.name() == name).count();
    assert_eq!(named("compaction_start"), named("compaction_end"), "{at}: each start has one end");
    session.prompt("and on").await.unwrap();
}

/// A panic at each step: the actors are restarted from the log.
#[tokio::test(start_paused = true)]
async fn a_panic_at_any_step_leaves_the_old_context_or_the_new_one() {
    for (step, durable) in STEPS {
        let model = model();
        let once = Arc::new(AtomicBool::new(true));
        let runtime = builder(&model)
            .probe(move |_, at| {
                assert!(!(at == step && once.swap(false, Ordering::Relaxed)), "injected panic at {step}");
            })
            .start()
            .await
            .unwrap();
        let session = opened(&runtime, "s", &agent(100_000), chat(8, 200)).await;
        let old = session.context().await.unwrap();
        let mut events = session.subscribe();
        let _ = session.compact(keep(300)).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_old_or_new(&session, &runtime, &old, durable, step).await;
        let seen = drain(&mut events);
        assert_eq!(count(&seen, "compaction_start"), count(&seen, "compaction_end"), "{step}");
        model.assert_clean();
    }
}

/// The same with a separate process that really ends, and a store on a disk.
#[tokio::test]
async fn a_process_that_ends_at_any_step_leaves_the_old_context_or_the_new_one() {
    for (step, durable) in STEPS {
        let dir = tempfile::tempdir().unwrap();
        let name = "deaths::installations::the_process_that_ends";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture", "--ignored"])
            .env(STEP, step)
            .env(DIR, dir.path())
            .output()
            .unwrap();
        assert!(!child.status.success(), "{step}: it was to end there");
        let model = model();
        let runtime = builder(&model).data_dir(dir.path()).start().await.unwrap();
        let session = runtime.open("s", &agent(100_000)).await.unwrap();
        let old: Vec<Arc<Message>> = chat(8, 200).into_iter().map(Arc::new).collect();
        assert_old_or_new(&session, &runtime, &old, durable, step).await;
        runtime.shutdown().await.unwrap();
    }
}

/// The child of the test above; by itself it does nothing.
#[tokio::test]
#[ignore = "a process of its own, started by the test above"]
#[expect(clippy::disallowed_methods, reason = "what a child process is told stands in its environment")]
async fn the_process_that_ends() {
    let (Some(step), Some(dir)) = (std::env::var_os(STEP), std::env::var_os(DIR)) else { return };
    let runtime = builder(&model())
        .data_dir(dir)
        .probe(move |_, at| {
            if step == *at {
                std::process::abort();
            }
        })
        .start()
        .await
        .unwrap();
    let session = opened(&runtime, "s", &agent(100_000), chat(8, 200)).await;
    let _ = session.compact(keep(300)).await;
    tokio::time::sleep(Duration::from_secs(20)).await;
}

/// The result of a run whose agent died during a compaction that it waited for.
struct Orphaned {
    reply: Result<Reply>,
    ended: Vec<&'static str>,
    /// How often the provider rejected the run's request for its size.
    refused: usize,
}

/// Performs a run with a real window smaller than stated, and a summariser that takes a minute. The agent dies in
/// that minute; before that the settings may change.
async fn orphaned(summaries: Summariser, told: u64, change: Option<CompactionSettings>) -> Orphaned {
    crate::support::quiet_injected_panics();
    let slow = Function(move |request: &SeenRequest, info: CallInfo| {
        summaries.reply(request, info).after_ms(60_000)
    });
    let model = simulator(ByPurpose::new(Echo, slow), 8_000);
    let armed = Arc::new(AtomicBool::new(false));
    let fires = Arc::clone(&armed);
    let runtime = builder(&model)
        .probe(move |_, at| {
            assert!(!(at == "agent/broadcast" && fires.swap(false, Ordering::Relaxed)), "injected panic");
        })
        .start()
        .await
        .unwrap();
    let session = opened(&runtime, "s", &agent(told), chat(12, 350)).await;
    let mut events = session.subscribe();
    let prompt = tokio::spawn({
        let session = session.clone();
        async move { session.prompt("go on").await }
    });
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(session.state().await.unwrap().status, Status::Compacting);
    if let Some(change) = change {
        runtime.set_compaction(change).await.unwrap();
    }
    armed.store(true, Ordering::Relaxed);
    session.steer("and be quick").await.unwrap();
    let reply = prompt.await.unwrap();
    assert!(!armed.load(Ordering::Relaxed), "the agent died");
    model.assert_clean();
    let ended = ends(&drain(&mut events)).iter().map(|end| end.outcome.as_str()).collect();
    let refused = runs(&model).iter().filter(|logged| logged.outcome == Outcome::Overflowed).count();
    Orphaned { reply, ended, refused }
}

/// The agent that replaces a dead one waits for the same compaction, and continues with its result.
#[tokio::test(start_paused = true)]
async fn a_compaction_under_way_is_waited_for_by_the_agent_that_comes_after_a_dead_one() {
    let run = orphaned(Summariser::Obedient, 20_000, None).await;
    run.reply.unwrap();
    assert_eq!((run.ended, run.refused), (vec!["completed"], 2), "refused once for each agent");
}

/// The compaction has no effect below the window, and the new agent's request was rejected there: then it
/// gets its own compaction.
#[tokio::test(start_paused = true)]
async fn where_nothing_comes_of_it_the_new_agent_has_a_compaction_of_its_own() {
    let late = settings(|settings| (settings.threshold, settings.reserve_tokens) = (Some(1.0), None));
    let run = orphaned(Summariser::Garbage, 10_200, Some(late)).await;
    run.reply.unwrap();
    assert_eq!((run.ended, run.refused), (vec!["failed", "digested"], 1));
}
