//! Limits by label, and what was spent by label and time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use greenroom::prelude::*;
use greenroom::{ConfigError, LabelLimit, Period, QueueReason, RuntimeBuilder, Subscription};
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Function, SeenRequest, Simulator, SimulatorOptions, Summariser,
};
use greenroom_store::Engine;
use serde_json::json;

use crate::compaction_fixtures::text;
use crate::support::{drain, reopened, store};

const MODEL: &str = "gpt-4o";
const BEGUN: u64 = 1_700_000_000_000;
/// How long each answer takes.
const ANSWER_MS: u64 = 100;

/// Returns a model with a price. `delegate` calls a sub-agent, `ask` asks a person, `pass` prompts another session.
fn model() -> Simulator {
    let talk = Function(|request: &SeenRequest, info: CallInfo| {
        let has_result = request.messages.last().is_some_and(|message| message.role() == "tool");
        let said = match request.last_user_text().split(' ').next() {
            Some("delegate") if !has_result => Said::call("helper", &json!({ "task": "help" })),
            Some("ask") if !has_result => Said::call("ask", &json!({})),
            Some("pass") if !has_result => Said::call("pass", &json!({})),
            _ => Said::text(text(&format!("answer {}.", info.session_call), 200)),
        };
        said.after_ms(ANSWER_MS)
    });
    Simulator::new(SimulatorOptions {
        window: 100_000,
        provider_name: "openai".to_owned(),
        ..SimulatorOptions::new(ByPurpose::new(talk, Summariser::Obedient))
    })
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

fn agent() -> Agent {
    let helper = Agent::new(MODEL).context_window(100_000);
    Agent::new(MODEL)
        .context_window(100_000)
        .sub_agent(sub_agent("helper", helper).describe("Helps.").parallel(4))
        .tool("ask", |_: Nothing, cx: ToolContext| async move {
            let answer = cx.ask(Question::choice("Yes?", ["yes", "no"])).await?;
            Ok(answer.is("yes").to_string())
        })
}

fn builder(model: &Simulator) -> RuntimeBuilder {
    Runtime::builder().provider(model.provider()).engine(store()).clock_from(BEGUN)
}

/// Opens a session with a value of the label `tenant`; none if it is empty.
async fn open(runtime: &Runtime, id: &str, tenant: &str) -> SessionHandle {
    let session = runtime.open(id, &agent()).await.unwrap();
    if !tenant.is_empty() {
        session.set_label("tenant", tenant).await.unwrap();
    }
    session
}

fn usd(microdollars: u64) -> f64 {
    f64::from(u32::try_from(microdollars).unwrap()) / 1e6
}

fn stopped_by(end: Result<Reply>) -> String {
    match end {
        Err(Error::Stopped { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

/// The cost of one prompt, with or without a sub-agent.
async fn one(prompt: &str) -> u64 {
    let runtime = builder(&model()).start().await.unwrap();
    open(&runtime, "s", "").await.prompt(prompt).await.unwrap().cost_microdollars
}

/// All sums of a label, over all time.
async fn sums(runtime: &Runtime, label: &str) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for day in runtime.spending().by(label).last(400).await.unwrap() {
        *sums.entry(day.value.unwrap()).or_insert(0) += day.cost_microdollars;
    }
    sums
}

#[tokio::test(start_paused = true)]
async fn dollars_of_a_label_stop_its_sessions_and_no_others_and_a_restart_keeps_them() {
    let (each, model, store) = (one("hello").await, model(), store());
    let start = |at_ms: u64| {
        let limit = LabelLimit::each("tenant").cost_usd(usd(each * 5 / 2), Period::Day);
        let free = LabelLimit::of("tenant", "south");
        builder(&model).engine(store.clone()).clock_from(at_ms).label_limit(limit).label_limit(free).start()
    };
    let runtime = start(BEGUN).await.unwrap();
    for id in ["a", "b"] {
        open(&runtime, id, "north").await.prompt("hello").await.unwrap();
    }
    // The third prompt begins, since something is left; its answer is cut to that, or not asked for.
    let _ = open(&runtime, "c", "north").await.prompt("hello").await;
    let asked = model.calls();
    let north = open(&runtime, "d", "north").await;
    let reason = stopped_by(north.prompt("hello").await);
    assert!(reason.starts_with("the label tenant=north reached its cost limit of $0.0"), "{reason}");
    assert!(reason.contains(" a day"), "{reason}");
    assert_eq!(model.calls(), asked, "no call was made");
    for (id, tenant) in [("e", "south"), ("f", ""), ("g", "south"), ("h", "")] {
        open(&runtime, id, tenant).await.prompt("hello").await.unwrap();
    }
    // A label that is set later counts from then on.
    let moved = open(&runtime, "e", "north").await;
    assert!(stopped_by(moved.prompt("hello").await).contains("tenant=north"));
    moved.set_label("tenant", "south").await.unwrap();
    moved.prompt("hello").await.unwrap();
    runtime.shutdown().await.unwrap();
    let store = reopened(&store);
    let start = |at_ms: u64| {
        let limit = LabelLimit::each("tenant").cost_usd(usd(each * 5 / 2), Period::Day);
        builder(&model).engine(store.clone()).clock_from(at_ms).label_limit(limit).start()
    };
    let runtime = start(BEGUN + 3_600_000).await.unwrap();
    assert!(stopped_by(open(&runtime, "d", "north").await.prompt("hello").await).contains("tenant=north"));
    drop(runtime);
    let runtime = start(BEGUN + 25 * 3_600_000).await.unwrap();
    open(&runtime, "d", "north").await.prompt("hello").await.unwrap();
    model.assert_clean();
}

/// A sub-agent spends from the label of the session that it works for, and so does one that a program opens later.
#[tokio::test(start_paused = true)]
async fn a_sub_agent_counts_as_its_top_level_session() {
    let model = model();
    let runtime = builder(&model).spending_by(["tenant"]).start().await.unwrap();
    let boss = open(&runtime, "boss", "north").await;
    let reply = boss.prompt("delegate it").await.unwrap();
    let below = runtime.sessions().tree("boss").await.unwrap().remove(0);
    assert!(below.labels.is_empty() && below.cost_microdollars > 0);
    let all = runtime.spending().of("tenant", "north").await.unwrap();
    assert_eq!((all[0].cost_microdollars, all[0].runs, all[0].calls), (reply.cost_microdollars, 1, 3));
    // The program prompts the sub-agent's session itself, after the label has changed.
    boss.set_label("tenant", "south").await.unwrap();
    let helper = runtime.open(&below.id, Agent::new(MODEL)).await.unwrap();
    let later = helper.prompt("hello").await.unwrap();
    let sums = sums(&runtime, "tenant").await;
    assert_eq!(
        sums,
        BTreeMap::from([
            ("north".into(), reply.cost_microdollars),
            ("south".into(), later.cost_microdollars)
        ])
    );
    let refused = runtime.spending().by("tennant").await.unwrap_err();
    assert!(
        matches!(&refused, Error::Config(ConfigError::NotCounted { label }) if label.as_deref() == Some("tennant")),
        "{refused}"
    );
}

/// The waits of each session, in order: its reason, and whether it begins or ends.
fn waits(events: &mut Subscription) -> Vec<String> {
    let shown = |event: &Arc<Event>| match &event.kind {
        EventKind::QueueUpdate { reason, position, waited_ms, .. } => {
            let at = if *position == 0 { format!("over after {waited_ms}") } else { position.to_string() };
            Some(format!("{} {reason} {at}", event.session))
        }
        _ => None,
    };
    drain(events).iter().filter_map(shown).collect()
}

#[tokio::test(start_paused = true)]
async fn tokens_of_a_label_hold_its_calls_back() {
    let model = model();
    let agent =
        agent().settings(ModelSettings { output_tokens_max: Some(1_000), ..ModelSettings::default() });
    let limit = LabelLimit::each("tenant").tokens_per_minute(6_000);
    let runtime = builder(&model).label_limit(limit).start().await.unwrap();
    let mut events = runtime.subscribe(Filter::all().kinds([EventType::QueueUpdate]));
    let prompt = async |id: &str, tenant: &str| {
        let session = open(&runtime, id, tenant).await.with_agent(agent.clone());
        let began = tokio::time::Instant::now();
        session.prompt(text("long.", 4_000)).await.unwrap();
        began.elapsed()
    };
    assert!(prompt("a", "north").await < Duration::from_secs(1));
    let waited = prompt("b", "north").await;
    assert!((Duration::from_secs(20)..Duration::from_secs(60)).contains(&waited), "{waited:?}");
    let told = waits(&mut events);
    assert!(told[0] == "b label_tokens 1" && told[1].starts_with("b label_tokens over after "), "{told:?}");
    // Others do not wait, and after a while neither does this one.
    assert!(
        prompt("c", "south").await < Duration::from_secs(1) && prompt("d", "").await < Duration::from_secs(1)
    );
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(prompt("e", "north").await < Duration::from_secs(1));
    assert_eq!(waits(&mut events), [""; 0]);
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn messages_of_a_label_are_refused_and_told_when_to_come_again() {
    let model = model();
    let limit = LabelLimit::each("tenant").messages_per_minute(3);
    let runtime = builder(&model).label_limit(limit).start().await.unwrap();
    let (one, two) = (open(&runtime, "one", "north").await, open(&runtime, "two", "north").await);
    let first = one.prompt("hello").once("k").await.unwrap();
    one.steer("hello").await.unwrap().reply().await.unwrap();
    // Its sub-agent's message does not count.
    two.prompt("delegate it").await.unwrap();
    let before = runtime.entries("two", greenroom::EntryId(0)).await.unwrap().len();
    let waits_for = |refused: Error| match refused {
        Error::LabelLimit { name, value, messages_per_minute: 3, retry_after } => {
            assert_eq!((name.as_str(), value.as_str()), ("tenant", "north"));
            retry_after
        }
        other => panic!("{other:?}"),
    };
    let wait = waits_for(two.prompt("hello").await.unwrap_err());
    assert!(wait > Duration::from_secs(15) && wait <= Duration::from_secs(20), "{wait:?}");
    waits_for(two.steer("hello").await.map(|_| ()).unwrap_err());
    waits_for(two.follow_up("hello").await.map(|_| ()).unwrap_err());
    assert_eq!(
        runtime.entries("two", greenroom::EntryId(0)).await.unwrap().len(),
        before,
        "nothing was recorded"
    );
    // A repeated key gets its reply.
    assert_eq!(one.prompt("hello").once("k").await.unwrap(), first);
    for (id, tenant) in [("three", "south"), ("four", "")] {
        open(&runtime, id, tenant).await.prompt("hello").await.unwrap();
    }
    tokio::time::sleep(wait).await;
    two.prompt("hello").await.unwrap();
    waits_for(two.prompt("hello").await.unwrap_err());
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn runs_of_a_label_wait_for_each_other_in_order() {
    let model = model();
    let limit = LabelLimit::each("tenant").runs_max(2);
    let runtime = builder(&model).label_limit(limit).start().await.unwrap();
    let mut events = runtime.subscribe(Filter::all().kinds([EventType::QueueUpdate]));
    let began = tokio::time::Instant::now();
    let mut runs = Vec::new();
    for (id, tenant) in
        [("a", "north"), ("b", "north"), ("c", "north"), ("d", "north"), ("e", "south"), ("f", "")]
    {
        let mut run = open(&runtime, id, tenant).await.prompt("hello").start().await.unwrap();
        run.recorded().await.unwrap();
        runs.push(async move {
            run.reply().await.unwrap();
            (id, began.elapsed().as_millis() as u64)
        });
    }
    let ended: BTreeMap<&str, u64> = join_all(runs).await.into_iter().collect();
    let at = |rounds: u64| rounds * ANSWER_MS;
    let expected = [("a", at(1)), ("b", at(1)), ("c", at(2)), ("d", at(2)), ("e", at(1)), ("f", at(1))];
    assert_eq!(ended, BTreeMap::from(expected));
    let told = waits(&mut events);
    let over = |id: &str| format!("{id} label_runs over after {ANSWER_MS}");
    assert_eq!(told, ["c label_runs 1".to_owned(), "d label_runs 2".to_owned(), over("c"), over("d")]);
    model.assert_clean();
}

/// An aborted run leaves the queue, a run that waits for a person takes no slot, and a run that another one waits for needs
/// none.
#[tokio::test(start_paused = true)]
async fn slots_of_a_label_are_freed_by_runs_that_do_not_work() {
    let model = model();
    let limit = LabelLimit::each("tenant").runs_max(1);
    let runtime = builder(&model).label_limit(limit).start().await.unwrap();
    let other = open(&runtime, "other", "north").await;
    let passing = {
        let other = other.clone();
        agent().tool("pass", move |_: Nothing| {
            let other = other.clone();
            async move { Ok(other.prompt("hello").await?.text) }
        })
    };
    let first = open(&runtime, "first", "north").await.with_agent(passing);
    // The tool's prompt would otherwise wait for its own caller.
    first.prompt("pass it on").await.unwrap();
    first.prompt("delegate it").await.unwrap();
    // A run that asks a person.
    let asking = open(&runtime, "asking", "north").await;
    let run = asking.prompt("ask").start().await.unwrap();
    while asking.questions().await.unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    other.prompt("hello").await.unwrap();
    // It waits for a slot when it goes on.
    let mut events = runtime.subscribe(Filter::all().kinds([EventType::QueueUpdate]));
    let busy = other.prompt("hello").start().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let question = asking.questions().await.unwrap().remove(0);
    asking.answer(question.id, "yes").await.unwrap();
    run.reply().await.unwrap();
    busy.reply().await.unwrap();
    assert_eq!(waits(&mut events)[0], "asking label_runs 1");
    // One that is aborted while it waits.
    let busy = other.prompt("hello").start().await.unwrap();
    let waiting = asking.prompt("hello").start().await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    asking.abort();
    assert!(matches!(waiting.reply().await, Err(Error::Aborted)));
    busy.reply().await.unwrap();
    first.prompt("hello").await.unwrap();
    model.assert_clean();
}

/// A run whose reply another run waits for needs no slot, whatever began it, and whenever the wait begins.
#[tokio::test(start_paused = true)]
async fn a_run_that_another_one_waits_for_needs_no_slot() {
    for way in ["prompt", "start", "steer", "follow_up", "late"] {
        let model = model();
        let limit = LabelLimit::each("tenant").runs_max(1);
        let runtime = builder(&model).label_limit(limit).start().await.unwrap();
        let other = open(&runtime, "other", "north").await;
        let passing = agent().tool("pass", move |_: Nothing| {
            let other = other.clone();
            async move {
                let reply = match way {
                    "prompt" => other.prompt("hello").await?,
                    "start" => other.prompt("hello").start().await?.reply().await?,
                    "steer" => other.steer("hello").await?.reply().await?,
                    "follow_up" => other.follow_up("hello").await?.reply().await?,
                    _ => {
                        let run = other.steer("hello").await?;
                        // It queues for the slot before anybody waits for it.
                        tokio::time::sleep(Duration::from_secs(1)).await;
                        run.reply().await?
                    }
                };
                Ok(reply.text)
            }
        });
        let first = open(&runtime, "first", "north").await.with_agent(passing);
        let passed = tokio::time::timeout(Duration::from_secs(60), first.prompt("pass it on").into_future());
        passed.await.unwrap_or_else(|_| panic!("{way}: it waits for its own slot")).unwrap();
        open(&runtime, "third", "north").await.prompt("hello").await.unwrap();
        model.assert_clean();
    }
}

/// A tenant with a hundred sessions and one with a single session take turns.
#[tokio::test(start_paused = true)]
async fn slots_are_shared_by_label_first() {
    for is_fair in [true, false] {
        let model = model();
        let mut builder = builder(&model).in_flight_max(1);
        if is_fair {
            builder = builder.fair_by("tenant");
        }
        let runtime = builder.start().await.unwrap();
        let mut many = Vec::new();
        for number in 0..100 {
            let session = open(&runtime, &format!("many{number}"), "many").await;
            many.push(session.prompt("hello").start().await.unwrap());
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        let single = open(&runtime, "single", "single").await;
        let before = model.calls();
        let mut between = Vec::new();
        for _ in 0..10 {
            let asked = model.calls();
            single.prompt("hello").await.unwrap();
            between.push(model.calls() - asked);
        }
        let made = model.calls() - before;
        // Each of its ten calls comes after the one in progress and the next one; without that, the first comes after them all.
        match is_fair {
            true => assert!(made <= 30 && between.iter().all(|calls| *calls <= 3), "{between:?}"),
            false => assert!(between[0] > 90, "{between:?}"),
        }
        join_all(many.into_iter().map(|run| run.reply()))
            .await
            .into_iter()
            .for_each(|reply| drop(reply.unwrap()));
        model.assert_clean();
    }
}

/// Random prompts, labels, deletions and restarts: the sums of each tenant are what its sessions have cost.
#[tokio::test(start_paused = true)]
async fn sums_by_label_are_what_the_sessions_cost() {
    let (mut prompts, mut changes, mut deletions, mut restarts) = (0, 0, 0, 0);
    for seed in 1..=8_u64 {
        let mut random = seed;
        let mut draw = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (random >> 33) % below
        };
        let (model, mut store, mut now) = (model(), store(), BEGUN);
        let start = |store: &Arc<dyn Engine>, now: u64| {
            builder(&model).engine(store.clone()).clock_from(now).spending_by(["tenant"]).start()
        };
        let mut runtime = start(&store, now).await.unwrap();
        let mut expected: BTreeMap<String, u64> = BTreeMap::new();
        let (mut labels, mut all, mut runs): (BTreeMap<u64, String>, u64, u64) = (BTreeMap::new(), 0, 0);
        for _ in 0..60 {
            let number = draw(4);
            let id = format!("s{number}");
            match draw(12) {
                0 | 1 => {
                    let tenant = format!("t{}", draw(3));
                    open(&runtime, &id, &tenant).await;
                    labels.insert(number, tenant);
                    changes += 1;
                }
                2 if runtime.summary(&id).await.unwrap().is_some() => {
                    runtime.delete(&id).await.unwrap();
                    labels.remove(&number);
                    deletions += 1;
                }
                3 => {
                    let pause = draw(40) * 3_600_000;
                    runtime.shutdown().await.unwrap();
                    store = reopened(&store);
                    now += 1_000_000 + pause;
                    runtime = start(&store, now).await.unwrap();
                    restarts += 1;
                }
                action => {
                    let prompt = if action < 7 { "delegate it" } else { "hello" };
                    let reply = open(&runtime, &id, "").await.prompt(prompt).await.unwrap();
                    let cost = reply.cost_microdollars;
                    (all, runs, prompts) = (all + cost, runs + 1, prompts + 1);
                    if let Some(tenant) = labels.get(&number) {
                        *expected.entry(tenant.clone()).or_insert(0) += cost;
                    }
                }
            }
        }
        assert_eq!(sums(&runtime, "tenant").await, expected, "seed {seed}");
        let days = runtime.spending().last(400).await.unwrap();
        let sum = |of: fn(&greenroom::Spending) -> u64| days.iter().map(of).sum::<u64>();
        assert_eq!((sum(|day| day.cost_microdollars), sum(|day| day.runs)), (all, runs), "seed {seed}");
        model.assert_clean();
    }
    let cases = (prompts, changes, deletions, restarts);
    assert!(prompts > 150 && changes > 30 && deletions > 5 && restarts > 15, "{cases:?}");
}

/// Each reason of a wait has its own name.
#[test]
fn the_reasons_of_waits_have_names() {
    let names: Vec<&str> = QueueReason::ALL.iter().map(|reason| reason.as_str()).collect();
    assert_eq!(names, ["slots", "tokens", "label_tokens", "label_runs", "paused"]);
}
