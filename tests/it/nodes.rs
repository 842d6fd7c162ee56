//! Several nodes that share one storage, in memory: who runs a session, and what happens when that changes.
//!
//! The last test lives through random faults: frozen owners, lost leases, appends in doubt, restarts and races. What every
//! seed shows: no acknowledged entry is lost, no prompt is recorded or answered twice, and never do two owners write.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom::provider::Purpose;
use greenroom::{EventType, Filter, Retention, StoreError, TakeOver};
use greenroom_kernel::{EntryId, EntryKind};
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Function, Pace, SeenRequest, Simulator, Summariser,
};
use greenroom_store::Engine;
use greenroom_store::cluster::{Cluster, Fault, Node};
use greenroom_store::faults::Random;

use crate::compaction_fixtures::{keep, text};
use crate::support::{agent, answers_after, answers_in, builder, simulator};

/// What moves with a session, and where its node lets it go.
mod moves;

const WINDOW: u64 = 50_000;

/// A node that runs.
struct Running {
    node: Arc<Node>,
    runtime: Runtime,
    _taking: TakeOver,
}

fn model(first_ms: u64) -> Simulator {
    answers_after(first_ms, WINDOW)
}

async fn start(cluster: &Cluster, name: &str, model: &Simulator) -> Running {
    let node = cluster.join(name, None);
    let engine: Arc<dyn Engine> = node.clone();
    let runtime = builder(model).engine(engine).idle_after(Duration::from_secs(30)).start().await.unwrap();
    let taking = runtime.take_over(|_| Some(agent(WINDOW)));
    Running { node, runtime, _taking: taking }
}

async fn answers(cluster: &Cluster, id: &str) -> Vec<(String, Vec<String>)> {
    answers_in(&Engine::load(cluster.store(), id, EntryId(0)).await.unwrap())
}

fn whole(prompts: &[&str]) -> Vec<(String, Vec<String>)> {
    prompts.iter().map(|prompt| ((*prompt).to_owned(), vec![format!("to {prompt}")])).collect()
}

fn store_error(error: &Error) -> &StoreError {
    let Error::Store(error) = error else { panic!("{error}") };
    error
}

#[tokio::test(start_paused = true)]
async fn a_session_is_run_by_one_node() {
    let (cluster, model) = (Cluster::new(), model(1));
    let (a, b) = (start(&cluster, "a", &model).await, start(&cluster, "b", &model).await);
    let on_a = a.runtime.open("s", &agent(WINDOW)).await.unwrap();
    on_a.prompt("1").await.unwrap();
    let refused = b.runtime.open("s", &agent(WINDOW)).await.unwrap_err();
    let StoreError::Elsewhere { owner, .. } = store_error(&refused) else { panic!("{refused}") };
    assert_eq!(owner.node, "a");
    assert_eq!(
        b.runtime.entries("s", EntryId(0)).await.unwrap().len(),
        a.runtime.entries("s", EntryId(0)).await.unwrap().len()
    );
    // Changes of a session without actors need its ownership, too.
    let refused = b.runtime.delete("s").await.unwrap_err();
    assert!(matches!(store_error(&refused), StoreError::Elsewhere { .. }), "{refused}");
    // It is given back when it sleeps.
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(a.runtime.live().await.unwrap(), [] as [&str; 0]);
    b.runtime.open("s", &agent(WINDOW)).await.unwrap().prompt("2").await.unwrap();
    let refused = on_a.prompt("3").await.unwrap_err();
    assert!(matches!(store_error(&refused), StoreError::Elsewhere { .. }), "{refused}");
    // And when the runtime ends.
    b.runtime.shutdown().await.unwrap();
    on_a.prompt("3").await.unwrap();
    assert_eq!(answers(&cluster, "s").await, whole(&["1", "2", "3"]));
}

/// A session that is live on another node is kept, and delays the deletion of no other one.
#[tokio::test(start_paused = true)]
async fn retention_leaves_out_what_another_node_runs() {
    let (cluster, model) = (Cluster::new(), model(1));
    let (a, b) = (start(&cluster, "a", &model).await, start(&cluster, "b", &model).await);
    for id in ["1", "2", "3"] {
        let node = if id == "2" { &b.runtime } else { &a.runtime };
        node.open(id, &agent(WINDOW)).await.unwrap().prompt("x").await.unwrap();
        if id != "2" {
            node.close(id).await.unwrap();
        }
    }
    let none = Retention { sessions_max: Some(0), ..Retention::default() };
    let retained = a.runtime.retain(&none).await.unwrap();
    let deleted: Vec<&str> = retained.deleted.iter().map(|session| session.id.as_str()).collect();
    assert_eq!((deleted, retained.used_again), (vec!["1", "3"], 1));
}

#[tokio::test(start_paused = true)]
async fn a_frozen_owner_is_refused_and_its_run_goes_on_elsewhere() {
    let (cluster, slow) = (Cluster::new(), model(20_000));
    let (a, b) = (start(&cluster, "a", &slow).await, start(&cluster, "b", &slow).await);
    let session = a.runtime.open("s", &agent(WINDOW)).await.unwrap();
    let mut events = a.runtime.subscribe(Filter::all().kinds([EventType::SessionMoved]));
    let mut run = session.prompt("1").start().await.unwrap();
    run.recorded().await.unwrap();
    // It does not know that its lease has run out, and b takes over.
    cluster.expire("a");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(b.runtime.live().await.unwrap(), ["s"]);
    let refused = run.reply().await.unwrap_err();
    assert!(matches!(store_error(&refused), StoreError::Fenced { .. }), "{refused}");
    assert!(events.next().await.is_some());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(answers(&cluster, "s").await, whole(&["1"]));
    assert_eq!(a.runtime.live().await.unwrap(), [] as [&str; 0]);
    // It comes back with a new lease, and takes sessions again.
    cluster.notice("a");
    a.node.renew();
    session.prompt("2").await.unwrap();
    assert_eq!(answers(&cluster, "s").await, whole(&["1", "2"]));
}

/// However many sessions a node leaves to others, it takes over the one that is listed behind them.
#[tokio::test(start_paused = true)]
async fn sessions_that_are_left_to_others_delay_no_other_one() {
    for left in [10, 300] {
        let (cluster, slow) = (Cluster::new(), model(10_000_000));
        let engine: Arc<dyn Engine> = cluster.join("a", None);
        let a = builder(&slow).engine(engine).start().await.unwrap();
        let b = start(&cluster, "b", &slow).await;
        drop(b._taking);
        let ids = (0..left).map(|number| format!("a{number:03}")).chain(["z".to_owned()]);
        let mut runs = Vec::new();
        for id in ids {
            let mut run = a.open(&id, &agent(WINDOW)).await.unwrap().prompt("1").start().await.unwrap();
            run.recorded().await.unwrap();
            runs.push(run);
        }
        let _taking = b.runtime.take_over(|summary| (summary.id == "z").then(|| agent(WINDOW)));
        cluster.expire("a");
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert_eq!(b.runtime.live().await.unwrap(), ["z"], "behind {left}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_loses_its_lease_ends_what_it_runs() {
    let (cluster, slow) = (Cluster::new(), model(20_000));
    let a = start(&cluster, "a", &slow).await;
    let sessions: Vec<String> = (0..5).map(|number| format!("s{number}")).collect();
    let mut runs = Vec::new();
    for id in &sessions {
        let session = a.runtime.open(id, &agent(WINDOW)).await.unwrap();
        let mut run = session.prompt("1").start().await.unwrap();
        run.recorded().await.unwrap();
        runs.push(run);
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let calls = slow.calls();
    cluster.expire("a");
    cluster.notice("a");
    for run in runs {
        let refused = run.reply().await.unwrap_err();
        assert!(matches!(store_error(&refused), StoreError::Fenced { .. }), "{refused}");
    }
    assert!(a.runtime.ready().await.is_err());
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(
        (a.runtime.live().await.unwrap().len(), slow.calls()),
        (0, calls),
        "nothing begins without a lease"
    );
    // With a new one, its own work is resumed.
    a.node.renew();
    tokio::time::sleep(Duration::from_secs(120)).await;
    for id in &sessions {
        assert_eq!(answers(&cluster, id).await, whole(&["1"]), "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_append_in_doubt_is_settled_by_the_log() {
    for fault in [Fault::WrittenInDoubt, Fault::LostInDoubt, Fault::Unavailable] {
        let (cluster, model) = (Cluster::new(), model(1));
        let a = start(&cluster, "a", &model).await;
        let session = a.runtime.open("s", &agent(WINDOW)).await.unwrap();
        session.prompt("1").await.unwrap();
        cluster.fault("a", fault);
        let told = session.prompt("2").once("two").await;
        let again = session.prompt("2").once("two").await.unwrap();
        assert_eq!((again.text.as_str(), told.is_ok()), ("to 2", false), "{fault:?}");
        session.prompt("3").await.unwrap();
        assert_eq!(answers(&cluster, "s").await, whole(&["1", "2", "3"]), "{fault:?}");
    }
}

/// Has an effect.
#[derive(Deserialize, JsonSchema)]
struct Effect {
    /// Which one
    what: String,
}

#[tokio::test(start_paused = true)]
async fn no_model_and_no_tool_is_called_without_a_lease() {
    let cluster = Cluster::new();
    let doubts = cluster.clone();
    let calls_tool = move |request: &SeenRequest, _: CallInfo| {
        // What follows is to begin without a lease.
        doubts.doubt("a", true);
        match request.messages.last().map(|last| last.role()) {
            Some("user") => Said::call("effect", &serde_json::json!({ "what": "x" })),
            _ => Said::text("done"),
        }
    };
    let model = simulator(Function(calls_tool), WINDOW);
    let a = start(&cluster, "a", &model).await;
    let effects = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&effects);
    let doubts = cluster.clone();
    let effect = move |asked: Effect| {
        counted.fetch_add(1, Ordering::Relaxed);
        doubts.doubt("a", true);
        async move { Ok(asked.what) }
    };
    let session = a.runtime.open("s", &agent(WINDOW).tool("effect", effect)).await.unwrap();
    cluster.doubt("a", true);
    let run = session.prompt("1").start().await.unwrap();
    for done in [(0, 0), (1, 0), (1, 1), (2, 1)] {
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!((model.calls(), effects.load(Ordering::Relaxed)), done);
        cluster.doubt("a", false);
    }
    assert_eq!(run.reply().await.unwrap().text, "done");
}

#[tokio::test(start_paused = true)]
async fn no_summary_is_asked_for_without_a_lease() {
    let cluster = Cluster::new();
    let talk = |_: &SeenRequest, _: CallInfo| Said::text("so be it");
    let model = simulator(ByPurpose::new(Function(talk), Summariser::Obedient), WINDOW);
    let a = start(&cluster, "a", &model).await;
    let session = a.runtime.open("s", agent(WINDOW)).await.unwrap();
    for _ in 0..4 {
        session.prompt(text("much to say", 2_000)).await.unwrap();
    }
    cluster.doubt("a", true);
    let compaction = tokio::spawn(async move { session.compact(keep(300)).await });
    tokio::time::sleep(Duration::from_secs(10)).await;
    let summaries =
        || model.requests().iter().filter(|seen| seen.request.purpose == Purpose::Summary).count();
    assert_eq!((model.calls(), summaries(), compaction.is_finished()), (4, 0, false));
    cluster.doubt("a", false);
    assert!(compaction.await.unwrap().unwrap().is_installed());
    assert!(summaries() > 0);
}

#[tokio::test(start_paused = true)]
async fn the_node_that_the_placement_names_takes_over() {
    let (cluster, slow) = (Cluster::new(), model(20_000));
    let a = start(&cluster, "a", &slow).await;
    let (b, c) = (start(&cluster, "b", &slow).await, start(&cluster, "c", &slow).await);
    let session = a.runtime.open("s", &agent(WINDOW)).await.unwrap();
    let mut run = session.prompt("1").start().await.unwrap();
    run.recorded().await.unwrap();
    // It looks first, and is leaving.
    greenroom_store::Placement::drain(&*b.node).await.unwrap();
    cluster.expire("a");
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!((b.runtime.live().await.unwrap().len(), c.runtime.live().await.unwrap().len()), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn what_other_nodes_record_is_followed_too() {
    let (cluster, model) = (Cluster::new(), model(1));
    let (a, b) = (start(&cluster, "a", &model).await, start(&cluster, "b", &model).await);
    a.runtime.open("before", &agent(WINDOW)).await.unwrap().prompt("1").await.unwrap();
    let mut follow = b.runtime.follow(greenroom::Position::default());
    let mut ended = BTreeMap::<String, Vec<u64>>::new();
    for (number, id) in ["before", "after", "before"].into_iter().enumerate() {
        a.runtime.open(id, &agent(WINDOW)).await.unwrap().prompt("2").await.unwrap();
        while ended.values().map(Vec::len).sum::<usize>() < number + 2 {
            let event = follow.next().await.unwrap().unwrap();
            if matches!(event.kind, greenroom::EventKind::RunEnd { .. }) {
                ended.entry(event.session.to_string()).or_default().push(event.seq);
            }
        }
    }
    let counts: Vec<(&str, usize)> = ended.iter().map(|(id, seen)| (&**id, seen.len())).collect();
    assert_eq!(counts, [("after", 1), ("before", 3)]);
    assert!(ended.values().all(|seen| seen.is_sorted()));
}

/// What a seed's life has shown.
#[derive(Debug, Default)]
struct Shown {
    prompts: u64,
    refused: u64,
    faults: BTreeMap<&'static str, u64>,
}

/// A life of three nodes: prompts with keys to random nodes, each repeated until it is answered, and faults in between.
async fn live(seed: u64) -> Shown {
    let mut random = Random::new(seed);
    let (cluster, model) = (Cluster::new(), model(1_500));
    let names = ["a", "b", "c"];
    let mut nodes: Vec<Option<Running>> = Vec::new();
    for name in names {
        nodes.push(Some(start(&cluster, name, &model).await));
    }
    let shown = Arc::new(Mutex::new(Shown::default()));
    let acknowledged: Arc<Mutex<BTreeSet<(String, EntryId)>>> = Arc::default();
    let runtimes: Arc<Mutex<Vec<Option<Runtime>>>> = Arc::new(Mutex::new(
        nodes.iter().map(|node| node.as_ref().map(|node| node.runtime.clone())).collect(),
    ));
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..4_u64 {
        let mut random = Random::new(seed ^ (client + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (runtimes, shown, acknowledged) =
            (Arc::clone(&runtimes), Arc::clone(&shown), Arc::clone(&acknowledged));
        clients.spawn(async move {
            let id = format!("s{client}");
            for number in 0..5 {
                let text = format!("{client}.{number}");
                for attempt in 0.. {
                    assert!(attempt < 5_000, "prompt {text} is never answered");
                    let at = usize::try_from(random.below(3)).unwrap();
                    let runtime = runtimes.lock().unwrap()[at].clone();
                    let Some(runtime) = runtime else {
                        tokio::time::sleep(Duration::from_millis(500)).await;
                        continue;
                    };
                    let asked = async {
                        let session = runtime.open(&id, &agent(WINDOW)).await?;
                        let mut run = session.prompt(text.clone()).once(text.clone()).start().await?;
                        let entry = run.recorded().await?;
                        acknowledged.lock().unwrap().insert((id.clone(), entry));
                        run.reply().await
                    };
                    match asked.await {
                        Ok(reply) => {
                            assert_eq!(reply.text, format!("to {text}"));
                            break;
                        }
                        Err(_) => {
                            shown.lock().unwrap().refused += 1;
                            tokio::time::sleep(Duration::from_millis(300 + random.below(700))).await;
                        }
                    }
                }
                shown.lock().unwrap().prompts += 1;
                tokio::time::sleep(Duration::from_millis(random.below(3_000))).await;
            }
        });
    }
    let mut frozen: BTreeSet<usize> = BTreeSet::new();
    let count = |what| *shown.lock().unwrap().faults.entry(what).or_default() += 1;
    while !clients.is_empty() {
        tokio::time::sleep(Duration::from_millis(200 + random.below(2_500))).await;
        while let Some(ended) = clients.try_join_next() {
            ended.unwrap();
        }
        let at = usize::try_from(random.below(3)).unwrap();
        match random.below(7) {
            // The others may take over, and the node goes on: it is frozen, or its clock is slow.
            0 => {
                cluster.expire(names[at]);
                frozen.insert(at);
                count("frozen");
            }
            // Its clock is fast: it believes for a while that its lease has run out.
            6 => {
                cluster.doubt(names[at], true);
                tokio::time::sleep(Duration::from_millis(random.below(3_000))).await;
                cluster.doubt(names[at], false);
                count("its clock is fast");
            }
            1 | 2 => {
                if let Some(node) = nodes[at].as_ref().filter(|_| frozen.remove(&at)) {
                    cluster.notice(names[at]);
                    tokio::time::sleep(Duration::from_millis(random.below(1_000))).await;
                    node.node.renew();
                    count("lost its lease");
                }
            }
            3 => {
                let fault = [Fault::Unavailable, Fault::WrittenInDoubt, Fault::LostInDoubt]
                    [usize::try_from(random.below(3)).unwrap()];
                cluster.fault(names[at], fault);
                count("an append failed");
            }
            4 => {
                // Its actors never send anything again that counts: it is as good as killed.
                runtimes.lock().unwrap()[at] = None;
                let Some(node) = nodes[at].take() else { continue };
                cluster.expire(names[at]);
                std::mem::forget(node.runtime);
                frozen.remove(&at);
                tokio::time::sleep(Duration::from_millis(random.below(2_000))).await;
                let node = start(&cluster, names[at], &model).await;
                runtimes.lock().unwrap()[at] = Some(node.runtime.clone());
                nodes[at] = Some(node);
                count("killed");
            }
            _ => {
                runtimes.lock().unwrap()[at] = None;
                let Some(node) = nodes[at].take() else { continue };
                node.runtime.drain(Duration::from_millis(random.below(1_000))).await;
                node.runtime.shutdown().await.unwrap();
                frozen.remove(&at);
                let node = start(&cluster, names[at], &model).await;
                runtimes.lock().unwrap()[at] = Some(node.runtime.clone());
                nodes[at] = Some(node);
                count("restarted");
            }
        }
    }
    for client in 0..4 {
        let id = format!("s{client}");
        let prompts: Vec<String> = (0..5).map(|number| format!("{client}.{number}")).collect();
        let prompts: Vec<&str> = prompts.iter().map(String::as_str).collect();
        assert_eq!(answers(&cluster, &id).await, whole(&prompts), "seed {seed}, {id}");
        let entries = Engine::load(cluster.store(), &id, EntryId(0)).await.unwrap();
        for (of, entry) in acknowledged.lock().unwrap().iter().filter(|(of, _)| *of == id) {
            let kind = &entries[usize::try_from(entry.0).unwrap()].kind;
            assert!(
                matches!(kind, EntryKind::Message { .. } | EntryKind::Inbox { .. }),
                "seed {seed}, {of}: {kind:?}"
            );
        }
        let mut ended = BTreeSet::new();
        for entry in &entries {
            if let EntryKind::RunEnded { run, .. } = &entry.kind {
                assert!(ended.insert(*run), "seed {seed}, {id}: run {run} ended twice");
            }
        }
    }
    for node in nodes.into_iter().flatten() {
        node.runtime.shutdown().await.unwrap();
    }
    Arc::try_unwrap(shown).unwrap().into_inner().unwrap()
}

/// Lives of these seeds. Prints the seed that fails.
fn lives(seeds: std::ops::Range<u64>) -> Shown {
    let mut all = Shown::default();
    for seed in seeds {
        let tokio =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| tokio.block_on(live(seed))));
        let shown = lived.unwrap_or_else(|_| panic!("seed {seed} failed; run it with GREENROOM_SEED={seed}"));
        all.prompts += shown.prompts;
        all.refused += shown.refused;
        for (what, times) in shown.faults {
            *all.faults.entry(what).or_default() += times;
        }
    }
    all
}

#[test]
fn lives_of_three_nodes() {
    let given = greenroom_tools::privacy::variable("GREENROOM_SEED")
        .and_then(|seed| seed.to_str()?.parse::<u64>().ok());
    let seeds = match given {
        Some(seed) => seed..seed + 1,
        None => 0..40,
    };
    let shown = lives(seeds);
    if given.is_none() {
        assert!(shown.prompts >= 800 && shown.refused >= 50, "{shown:?}");
        for what in
            ["frozen", "lost its lease", "an append failed", "killed", "restarted", "its clock is fast"]
        {
            assert!(shown.faults.get(what).is_some_and(|times| *times >= 20), "{what}: {shown:?}");
        }
    }
}

/// A prompt reaches a session before its interrupted run is taken over: the run is finished first, and what waited behind it
/// follows. The key of the first prompt is known.
#[tokio::test(start_paused = true)]
async fn an_interrupted_run_is_finished_before_the_prompt_that_comes_next() {
    for by_close in [false, true] {
        let (cluster, model) = (Cluster::new(), model(5_000));
        let (a, b) = (start(&cluster, "a", &model).await, start(&cluster, "b", &model).await);
        let session = a.runtime.open("s", agent(WINDOW)).await.unwrap();
        let first = session.prompt("1").once("k").start().await.unwrap();
        session.follow_up("2").await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        if by_close {
            a.runtime.close("s").await.unwrap();
        } else {
            cluster.expire("a");
        }
        let session = b.runtime.open("s", agent(WINDOW)).await.unwrap();
        let reply = session.prompt("3").await.unwrap();
        assert_eq!(reply.text, "to 3");
        // Its run also answered the follow-up.
        assert_eq!(session.prompt("1").once("k").await.unwrap().text, "to 2");
        drop(first);
        assert_eq!(answers(&cluster, "s").await, whole(&["1", "2", "3"]), "{by_close}");
    }
}

/// 20,000 seeds, by hand: `cargo nextest run --release -p greenroom-tests --run-ignored only -E 'test(many_lives)'`.
#[test]
#[ignore = "takes minutes"]
fn many_lives_of_three_nodes() {
    let shown = lives(1_000..21_000);
    assert!(shown.prompts >= 400_000, "{shown:?}");
}
