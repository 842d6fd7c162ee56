//! Retention: which sessions are deleted by age, count and label, which never are, and what is left when a deletion is
//! interrupted.
//!
//! Invariants: time is paused, except where a store is on the disk.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use greenroom::prelude::*;
use greenroom::{DeletionReason, Retained, Retention, RetentionRule, Subscription};
use greenroom_simulator::{Answer as Said, CallInfo, Function, Pace, SeenRequest, Simulator};
use greenroom_store::faults::{EIO, Fault, FaultyFiles};
use greenroom_store::files::RealFiles;
use greenroom_store::{Store, StoreOptions};
use serde_json::json;

use crate::support::{agent, builder, drain, reopened, runtime, simulator};

const HOUR: Duration = Duration::from_secs(3_600);

fn by_age(hours: u32) -> Retention {
    Retention { age_max: Some(hours * HOUR), ..Retention::default() }
}

async fn ids(runtime: &Runtime) -> Vec<String> {
    runtime.sessions().await.unwrap().into_iter().map(|session| session.id).collect()
}

/// Prompts a session, and lets it fall asleep.
async fn said(runtime: &Runtime, id: &str) -> SessionHandle {
    let session = runtime.open(id, &agent(100_000)).await.unwrap();
    session.prompt("go").await.unwrap();
    runtime.close(id).await.unwrap();
    session
}

/// Returns the deletions among the events so far: the session, and the reason.
fn deletions(events: &mut Subscription) -> Vec<(String, Option<DeletionReason>)> {
    let deletions = drain(events).into_iter().filter_map(|event| match event.kind {
        EventKind::SessionDeleted { reason } => Some((event.session.to_string(), reason)),
        _ => None,
    });
    deletions.collect()
}

/// Checks that this policy deletes these sessions, as it announces.
async fn check(runtime: &Runtime, policy: &Retention, expected: &[(&str, DeletionReason)]) -> Retained {
    let mut events = runtime.subscribe(Filter::all());
    let announced = runtime.due_for_deletion(policy).await.unwrap();
    assert_eq!(deletions(&mut events), [], "a dry run deletes nothing");
    let retained = runtime.retain(policy).await.unwrap();
    assert_eq!(retained.deleted, announced);
    assert_eq!((retained.used_again, &retained.not_erased), (0, &None));
    let deleted: Vec<_> =
        retained.deleted.iter().map(|session| (session.id.as_str(), session.reason)).collect();
    assert_eq!(deleted, expected);
    let told = deletions(&mut events);
    let below: usize = retained.deleted.iter().map(|session| session.below).sum();
    assert_eq!(told.len(), expected.len() + below, "{told:?}");
    for (id, reason) in expected {
        assert!(told.contains(&((*id).to_owned(), Some(*reason))), "{told:?}");
        assert!(runtime.summary(id).await.unwrap().is_none());
    }
    assert_eq!(runtime.due_for_deletion(policy).await.unwrap(), []);
    retained
}

#[tokio::test(start_paused = true)]
async fn sessions_go_by_age_count_and_label() {
    use DeletionReason::{Age, Count};
    let model = Simulator::echo();
    let runtime = runtime(&model).await;
    for id in ["a", "b", "c", "d", "e"] {
        let session = said(&runtime, id).await;
        if matches!(id, "a" | "d") {
            session.set_label("kind", "probe").await.unwrap();
            runtime.close(id).await.unwrap();
        }
        tokio::time::sleep(HOUR).await;
    }
    check(&runtime, &Retention::default(), &[]).await;
    let rule = |sessions_max, age_max| RetentionRule {
        labels: [("kind".to_owned(), "probe".to_owned())].into(),
        age_max,
        sessions_max,
    };
    let kept = Retention { rules: vec![rule(None, None)], ..by_age(3) };
    let retained = check(&runtime, &kept, &[("b", Age)]).await;
    assert_eq!(retained.deleted[0].title.as_deref(), Some("go"));
    let probes = Retention { rules: vec![rule(Some(1), None)], ..Retention::default() };
    check(&runtime, &probes, &[("a", Count)]).await;
    check(&runtime, &Retention { sessions_max: Some(2), ..Retention::default() }, &[("c", Count)]).await;
    assert_eq!(ids(&runtime).await, ["d", "e"]);
    // The id can be used again.
    said(&runtime, "a").await;
    assert_eq!(ids(&runtime).await, ["a", "d", "e"]);
}

fn team_script(request: &SeenRequest, _: CallInfo) -> Said {
    let has_result = request.messages.last().is_some_and(|message| message.role() == "tool");
    if request.has_tool("helper") && !has_result {
        return Said::call("helper", &json!({ "task": "help" }));
    }
    Said::text("done")
}

/// A session goes with those of its sub-agents, and stays as long as one of them was active.
#[tokio::test(start_paused = true)]
async fn sub_agents_sessions_go_with_their_callers() {
    let model = simulator(Function(team_script), 100_000);
    let runtime = runtime(&model).await;
    let helper = agent(100_000).sub_agent(sub_agent("helper", agent(100_000)));
    let boss = agent(100_000).sub_agent(sub_agent("helper", helper));
    for id in ["boss", "other"] {
        runtime.open(id, &boss).await.unwrap().prompt("go").await.unwrap();
        for id in ids(&runtime).await {
            runtime.close(&id).await.unwrap();
        }
    }
    tokio::time::sleep(10 * HOUR).await;
    let below = runtime.sessions().tree("other").await.unwrap();
    assert_eq!(below.len(), 2);
    runtime.open(&below[1].id, &agent(100_000)).await.unwrap().prompt("more").await.unwrap();
    let retained = check(&runtime, &by_age(5), &[("boss", DeletionReason::Age)]).await;
    assert_eq!(retained.deleted[0].below, 2);
    // One that is live protects its caller, and its activity is its caller's.
    check(&runtime, &Retention { sessions_max: Some(0), ..Retention::default() }, &[]).await;
    tokio::time::sleep(3 * HOUR).await;
    assert_eq!(runtime.live().await.unwrap(), Vec::<String>::new());
    check(&runtime, &by_age(5), &[]).await;
    assert_eq!(ids(&runtime).await.len(), 3);
    // It sleeps after a while, and is as old as its caller.
    tokio::time::sleep(10 * HOUR).await;
    check(&runtime, &by_age(5), &[("other", DeletionReason::Age)]).await;
    assert_eq!(ids(&runtime).await, Vec::<String>::new());
    model.assert_clean();
}

/// Sessions that work, wait for a person, have queued input, are live, or were interrupted are never deleted.
#[tokio::test(start_paused = true)]
async fn a_session_with_something_to_do_is_never_deleted() {
    let script = |request: &SeenRequest, _: CallInfo| match request.last_user_text().as_str() {
        "for long" => {
            Said::text("for ever").with_pace(Pace { chunks: 2, first_ms: 0, between_ms: 360_000_000 })
        }
        "ask" if request.messages.last().is_none_or(|message| message.role() != "tool") => {
            Said::call("ask", &json!({}))
        }
        _ => Said::text("done"),
    };
    let model = simulator(Function(script), 100_000);
    let runtime = builder(&model).silence_max(Duration::ZERO).idle_after(50 * HOUR).start().await.unwrap();
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    let ask = async |_: Nothing, cx: ToolContext| -> Result<String, ToolError> {
        Ok(format!("{:?}", cx.ask(Question::text("Well?")).await?))
    };
    let long = agent(100_000).run_timeout(None);
    let asking = long.clone().tool("ask", move |args: Nothing, cx: ToolContext| ask(args, cx));
    let working = runtime.open("working", &long).await.unwrap();
    let _run = working.prompt("for long").start().await.unwrap();
    let _behind = working.prompt("behind").start().await.unwrap();
    let waiting = runtime.open("waiting", &asking).await.unwrap();
    let _asked = waiting.prompt("ask").start().await.unwrap();
    let live = runtime.open("live", &long).await.unwrap();
    live.prompt("go").await.unwrap();
    said(&runtime, "old").await;
    tokio::time::sleep(30 * HOUR).await;
    check(&runtime, &by_age(1), &[("old", DeletionReason::Age)]).await;
    check(&runtime, &Retention { sessions_max: Some(0), ..Retention::default() }, &[]).await;
    assert_eq!(ids(&runtime).await, ["live", "waiting", "working"]);
    // In another process, what was interrupted is unfinished, and what waits still waits.
    let store = runtime.engine().clone();
    runtime.shutdown().await.unwrap();
    let next = Runtime::builder().provider(model.provider()).engine(reopened(&store));
    let next = next.clock_from(1_800_000_000_000).start().await.unwrap();
    check(&next, &by_age(1), &[("live", DeletionReason::Age)]).await;
    assert_eq!(ids(&next).await, ["waiting", "working"]);
}

/// What the end of a process left of a sub-agent's work keeps its caller only until that has continued without it.
#[tokio::test(start_paused = true)]
async fn the_interrupted_work_of_a_sub_agent_keeps_no_session_for_good() {
    for is_clean in [true, false] {
        let script = |request: &SeenRequest, call: CallInfo| match request.has_tool("helper") {
            true => team_script(request, call),
            false => Said::text("late").after_ms(36_000_000_000),
        };
        let model = simulator(Function(script), 100_000);
        let runtime = builder(&model).silence_max(Duration::ZERO).start().await.unwrap();
        let helper = agent(100_000).sub_agent(sub_agent("helper", agent(100_000)));
        let boss = Arc::new(agent(100_000).sub_agent(sub_agent("helper", helper)));
        runtime.open("boss", boss.clone()).await.unwrap().prompt("go").start().await.unwrap().detach();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let store = runtime.engine().clone();
        if is_clean {
            runtime.shutdown().await.unwrap();
        } else {
            drop(runtime);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let next = Runtime::builder().provider(model.provider()).engine(reopened(&store));
        let next = next.clock_from(1_800_000_000_000).start().await.unwrap();
        assert_eq!(ids(&next).await.len(), 3);
        check(&next, &by_age(5), &[]).await;
        let resumed = next.resume_all(move |_| Some(Arc::clone(&boss))).await.unwrap();
        assert_eq!(resumed.into_iter().map(|ended| ended.result.unwrap().text).collect::<Vec<_>>(), ["done"]);
        tokio::time::sleep(10 * HOUR).await;
        assert_eq!(ids(&next).await.len(), 3);
        let retained = check(&next, &by_age(5), &[("boss", DeletionReason::Age)]).await;
        assert_eq!((retained.deleted[0].below, ids(&next).await.len()), (2, 0), "is clean: {is_clean}");
    }
}

/// A session of which entries are lost is kept, and nothing is deleted while a loss may concern any session.
#[tokio::test]
async fn a_damaged_session_is_never_deleted() {
    let model = Simulator::echo();
    let dir = tempfile::tempdir().unwrap();
    let start = || Runtime::builder().provider(model.provider()).data_dir(dir.path()).start();
    let first = start().await.unwrap();
    for id in ["damaged", "whole"] {
        said(&first, id).await;
    }
    first.shutdown().await.unwrap();
    let segment = dir.path().join("journal/0000000001.seg");
    let bytes = std::fs::read(&segment).unwrap();
    let at = bytes.windows(7).position(|found| found == b"damaged").unwrap();
    let mut hurt = bytes.clone();
    hurt[at + 30] ^= 1;
    std::fs::write(&segment, hurt).unwrap();
    let all = Retention { sessions_max: Some(0), ..Retention::default() };
    let next = start().await.unwrap();
    assert!(!next.store().unwrap().check().unwrap().is_empty());
    check(&next, &all, &[("whole", DeletionReason::Count)]).await;
    assert_eq!(ids(&next).await, ["damaged"]);
    said(&next, "other").await;
    next.shutdown().await.unwrap();
    // A part of the journal is gone, and nothing tells whose it was.
    for name in ["index", "journal"] {
        for entry in std::fs::read_dir(dir.path().join(name)).unwrap() {
            let path = entry.unwrap().path();
            if name == "index" || path.extension().is_some_and(|kind| kind == "frames" || kind == "sessions")
            {
                drop(std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path)));
            }
        }
    }
    let segments =
        || std::fs::read_dir(dir.path().join("journal")).unwrap().map(|entry| entry.unwrap().path());
    let segment = segments()
        .filter(|path| path.extension().is_some_and(|kind| kind == "seg"))
        .find(|path| std::fs::read(path).unwrap().windows(5).any(|found| found == b"other"));
    let mut hurt = std::fs::read(segment.as_ref().unwrap()).unwrap();
    hurt[40..100].fill(0);
    std::fs::write(segment.unwrap(), hurt).unwrap();
    let next = start().await.unwrap();
    let unknown = next.store().unwrap().unknown_losses();
    assert!(!unknown.is_empty());
    let refused = next.retain(&all).await.unwrap_err().to_string();
    assert!(refused.contains("store accept-loss --segment"), "{refused}");
    for segment in unknown {
        assert!(next.store().unwrap().accept_unknown_loss(segment).await.unwrap());
    }
    next.retain(&all).await.unwrap();
    next.shutdown().await.unwrap();
}

/// Prompts that arrive while sessions are deleted: one that is answered is in a session that exists.
#[tokio::test(start_paused = true)]
async fn a_session_that_is_used_again_is_not_deleted() {
    let model = Simulator::echo();
    let runtime = runtime(&model).await;
    let (mut kept, mut gone) = (0, 0);
    for round in 0..60 {
        let id = format!("s{round}");
        let session = said(&runtime, &id).await;
        tokio::time::sleep(2 * HOUR).await;
        let policy = by_age(1);
        let prompting = async {
            for _ in 0..round % 12 {
                tokio::task::yield_now().await;
            }
            session.prompt("more").await
        };
        let (retained, answered) = tokio::join!(runtime.retain(&policy), prompting);
        let is_deleted = !retained.unwrap().deleted.is_empty();
        match answered {
            Ok(_) => {
                assert!(!is_deleted, "round {round}: it was answered and deleted");
                assert!(runtime.summary(&id).await.unwrap().is_some_and(|summary| summary.entries > 4));
                kept += 1;
            }
            Err(Error::Deleted { .. }) => {
                assert!(is_deleted);
                gone += 1;
            }
            Err(error) => panic!("round {round}: {error}"),
        }
        if !is_deleted {
            runtime.delete(&id).await.unwrap();
        }
    }
    // The yields decide only where a store answers at once.
    assert!(runtime.store().is_none() || kept >= 5 && gone >= 5, "{kept} kept, {gone} gone");
}

/// How far consumers have read a session is forgotten with it.
#[tokio::test(start_paused = true)]
async fn the_positions_of_a_deleted_session_are_forgotten() {
    let model = Simulator::echo();
    let runtime = runtime(&model).await;
    for id in ["a", "b", "c"] {
        said(&runtime, id).await;
        tokio::time::sleep(HOUR).await;
    }
    let mut consumer = runtime.consumer("audit").await.unwrap();
    while consumer.lag().await.unwrap() > 0 {
        consumer.next().await.unwrap();
    }
    consumer.commit().await.unwrap();
    let stored = async || runtime.engine().fact_keys("consumer/").await.unwrap();
    assert_eq!(stored().await.len(), 3);
    check(
        &runtime,
        &Retention { sessions_max: Some(2), ..Retention::default() },
        &[("a", DeletionReason::Count)],
    )
    .await;
    runtime.delete("b").await.unwrap();
    assert_eq!(stored().await, ["consumer/audit/c"]);
}

/// Sessions that are opened, or prompted and asleep again, after they were found due.
#[tokio::test(start_paused = true)]
async fn sessions_that_are_used_while_others_are_deleted_stay() {
    const SESSIONS: usize = 200;
    let model = Simulator::echo();
    let runtime = runtime(&model).await;
    let id = |at: usize| format!("s{at:03}");
    for at in 0..SESSIONS {
        said(&runtime, &id(at)).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    tokio::time::sleep(2 * HOUR).await;
    let (policy, mut used) = (by_age(1), Vec::new());
    let using = async {
        for at in (0..SESSIONS).rev() {
            if runtime.summary(&id(at)).await.unwrap().is_none() {
                break;
            }
            // It may be deleted before it is reached: then this is another one.
            let session = runtime.open(&id(at), &agent(100_000)).await.unwrap();
            if at % 2 == 0 {
                session.prompt("more").await.unwrap();
                runtime.close(&id(at)).await.unwrap();
            }
            if runtime
                .summary(&id(at))
                .await
                .unwrap()
                .is_some_and(|known| known.created_at_ms < 1_700_003_600_000)
            {
                used.push(id(at));
            }
        }
    };
    let (retained, ()) = tokio::join!(runtime.retain(&policy), using);
    let retained = retained.unwrap();
    assert!(used.len() >= 5 && retained.deleted.len() >= 10, "{} used, {retained:.100?}", used.len());
    // The first ones may have been used before the decision.
    assert!((4..=used.len()).contains(&retained.used_again), "{} of {}", retained.used_again, used.len());
    for id in used {
        assert!(runtime.summary(&id).await.unwrap().is_some(), "{id} was in use, and is gone");
        assert!(runtime.session(&id).await.unwrap().state().await.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_runtime_applies_its_own_policy_every_hour() {
    let model = Simulator::echo();
    let runtime = builder(&model).retention(by_age(1)).start().await.unwrap();
    said(&runtime, "a").await;
    let mut events = runtime.subscribe(Filter::all());
    tokio::time::sleep(HOUR).await;
    assert_eq!(ids(&runtime).await, ["a"]);
    tokio::time::sleep(HOUR).await;
    assert_eq!(ids(&runtime).await, Vec::<String>::new());
    assert_eq!(deletions(&mut events), [("a".to_owned(), Some(DeletionReason::Age))]);
    // It does not keep the runtime.
    let weak = Arc::downgrade(&model.provider());
    drop(runtime);
    tokio::time::sleep(2 * HOUR).await;
    assert_eq!(events.next().await.map(|_| ()), None);
    drop(weak);
}

/// The disk fails at each operation in turn, and the process ends. The next start leaves no sub-agent's session without
/// its caller.
#[tokio::test]
async fn a_deletion_that_is_cut_off_is_finished() {
    let model = simulator(Function(team_script), 100_000);
    let helper = agent(100_000).sub_agent(sub_agent("helper", agent(100_000)));
    let boss = agent(100_000).sub_agent(sub_agent("helper", helper));
    let (mut finished, mut untouched) = (0, 0);
    // Behind each deletion, the store reclaims space in many operations.
    for at in (1..14).chain((14..200).step_by(9)) {
        let dir = tempfile::tempdir().unwrap();
        let files = FaultyFiles::new(Arc::new(RealFiles));
        let options = |files: &FaultyFiles| StoreOptions {
            files: Arc::new(files.clone()),
            ..StoreOptions::new(dir.path())
        };
        let start = |options: StoreOptions| {
            Runtime::builder().provider(model.provider()).store_options(options).start()
        };
        let runtime = start(options(&files)).await.unwrap();
        runtime.open("boss", &boss).await.unwrap().prompt("go").await.unwrap();
        for id in ids(&runtime).await {
            runtime.close(&id).await.unwrap();
        }
        files.set(Fault::FailFrom { at, errno: EIO });
        let retained = runtime.retain(&Retention { sessions_max: Some(0), ..Retention::default() }).await;
        drop(runtime);
        files.set(Fault::None);
        let good = FaultyFiles::new(Arc::new(RealFiles));
        let left = loop {
            // The last runtime's threads release the directory.
            match Store::open(&options(&good)) {
                Ok((store, _)) => break store,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let known: BTreeSet<String> = left.list().unwrap().into_iter().map(|(id, _)| id).collect();
        left.close().await.unwrap();
        let next = start(options(&good)).await.unwrap();
        let after = ids(&next).await;
        next.shutdown().await.unwrap();
        match known.len() {
            3 => {
                assert_eq!(after.len(), 3, "{at}");
                untouched += 1;
            }
            _ => {
                assert!(!known.contains("boss"), "{at}: {known:?}");
                assert_eq!(after, Vec::<String>::new(), "{at}");
                finished += usize::from(!known.is_empty());
            }
        }
        if retained.is_ok() {
            // What follows is the erasing, which later writes repeat.
            break;
        }
        assert!(at < 190);
    }
    assert!(finished >= 2 && untouched >= 1, "{finished} {untouched}");
    model.assert_clean();
}
