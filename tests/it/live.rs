//! Settings that change while sessions are open.

use std::sync::{Arc, Mutex};

use greenroom::prelude::*;
use greenroom::{EventKind, ModelPrice, RuntimeBuilder, SettingsChange};
use greenroom_simulator::{Answer as Said, ByPurpose, Function, Simulator, Summariser};
use serde_json::json;

use crate::support::{agent, builder, drain, simulator};

/// The next change of the source.
type Next = Arc<Mutex<Option<SettingsChange>>>;

fn live(model: &Simulator) -> (RuntimeBuilder, Next) {
    let next = Next::default();
    let source = Arc::clone(&next);
    (builder(model).live_settings(move || source.lock().unwrap().take()), next)
}

/// Settings that compact at this many tokens.
fn limit(tokens: u64) -> CompactionSettings {
    CompactionSettings {
        auto_compact_token_limit: Some(tokens),
        keep_recent_tokens: Some(tokens / 8),
        ..CompactionSettings::default()
    }
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

/// Returns a model that calls the tool this many times, and then answers.
fn caller(calls: u64) -> Simulator {
    let runs = Function(move |_: &_, info: greenroom_simulator::CallInfo| match info.session_call {
        call if call < calls => Said::call("edit", &json!({})),
        _ => Said::text("done"),
    });
    simulator(ByPurpose::new(runs, Summariser::Obedient), 100_000)
}

/// A tool of the run changes the settings: the check before the next call obeys.
#[tokio::test(start_paused = true)]
async fn a_change_holds_at_the_next_check_within_a_run() {
    let model = caller(6);
    let (builder, next) = live(&model);
    let runtime = builder.start().await.unwrap();
    let calls = Arc::new(Mutex::new(0));
    let agent = agent(100_000).tool("edit", move |_: Nothing| {
        let (next, calls) = (Arc::clone(&next), Arc::clone(&calls));
        async move {
            let mut calls = calls.lock().unwrap();
            *calls += 1;
            if *calls == 4 {
                *next.lock().unwrap() = Some(SettingsChange::settings(limit(4_000), Agent::clone));
            }
            Ok("word ".repeat(1_200))
        }
    });
    let session = runtime.open("a", &agent).await.unwrap();
    let mut events = session.subscribe();
    session.prompt("edit").await.unwrap();
    let names: Vec<&str> = drain(&mut events)
        .iter()
        .map(|event| event.kind.name())
        .filter(|name| matches!(*name, "tool_end" | "compaction_start" | "message_start"))
        .collect();
    let call = ["message_start", "tool_end"];
    let expected =
        [call.as_slice(), &call, &call, &call, &["compaction_start"], &call, &["message_start"]].concat();
    assert_eq!(names[..expected.len() - 1], expected[..expected.len() - 1], "{names:?}");
    model.assert_clean();
}

/// Limits and model settings apply from the next run; the model and the provider stay the session's.
#[tokio::test(start_paused = true)]
async fn the_rest_of_a_change_holds_from_the_next_run() {
    let model = caller(u64::MAX);
    let (builder, next) = live(&model);
    let runtime = builder.start().await.unwrap();
    let agent = agent(100_000).tool("edit", |_: Nothing| async { Ok("done") });
    let (one, two) = (runtime.open("one", &agent).await.unwrap(), runtime.open("two", &agent).await.unwrap());
    for steps_max in [2, 5] {
        let change = SettingsChange::settings(CompactionSettings::default(), move |_| {
            let settings = ModelSettings::new().temperature(f64::from(steps_max) / 10.0);
            // The source cannot choose its model.
            let other = Agent::new("another").provider("nowhere").context_window(100_000);
            let agent = other.tool("edit", |_: Nothing| async { Ok("done") });
            agent.settings(settings).limits(RunLimits { steps_max, ..RunLimits::default() })
        });
        *next.lock().unwrap() = Some(change);
        for session in [&one, &two] {
            let before = model.calls();
            let error = session.prompt("edit").await.unwrap_err();
            assert!(matches!(error, Error::Stopped { .. }), "{error:?}");
            assert_eq!(model.calls() - before, u64::from(steps_max), "{}", session.id());
            let request = model.requests().pop().unwrap().request;
            assert_eq!(request.model, "simulated");
            assert_eq!(request.settings.temperature, Some(f64::from(steps_max) / 10.0));
        }
    }
    model.assert_clean();
}

/// Settings that cannot work, and the source's warnings, are reported once; the previous settings stay in
/// force.
#[tokio::test(start_paused = true)]
async fn what_cannot_work_is_said_once_and_changes_nothing() {
    let runs = Function(|_: &_, _| Said::text("word ".repeat(1_000)));
    let model = simulator(ByPurpose::new(runs, Summariser::Obedient), 100_000);
    let (builder, next) = live(&model);
    let runtime = builder.start().await.unwrap();
    let agent = agent(100_000).instructions("word ".repeat(2_000));
    let session = runtime.open("a", &agent).await.unwrap();
    let mut events = session.subscribe();
    let mut say = async |change: Option<SettingsChange>| {
        *next.lock().unwrap() = change;
        let reply = session.prompt("go on").await.unwrap();
        let warnings: Vec<String> = drain(&mut events)
            .iter()
            .filter_map(|event| match &event.kind {
                EventKind::Warning { message } => Some(message.clone()),
                _ => None,
            })
            .collect();
        (reply.compactions.len(), warnings)
    };
    assert_eq!(say(Some(SettingsChange::settings(limit(6_000), Agent::clone))).await, (0, vec![]));
    // Below the fixed part of every request: it cannot work with these instructions.
    let (_, warnings) = say(Some(SettingsChange::settings(limit(1_000), Agent::clone))).await;
    assert!(warnings.len() == 1 && warnings[0].contains("fixed part"), "{warnings:?}");
    let out_of_range = CompactionSettings { threshold: Some(7.0), ..CompactionSettings::default() };
    let (_, warnings) = say(Some(SettingsChange::settings(out_of_range, Agent::clone))).await;
    assert!(warnings.len() == 1 && warnings[0].contains("threshold: must be"), "{warnings:?}");
    let (_, warnings) = say(Some(SettingsChange::warning("line 3: no"))).await;
    assert_eq!(warnings, ["line 3: no"]);
    let mut compactions = 0;
    for _ in 0..6 {
        let (more, warnings) = say(None).await;
        assert_eq!(warnings, Vec::<String>::new());
        compactions += more;
    }
    assert!(compactions >= 1, "the limit of 6,000 tokens holds");
    model.assert_clean();
}

/// A summary is billed by the price that the settings add: in the event, the session's bill and the records.
#[tokio::test(start_paused = true)]
async fn a_summary_costs_what_the_settings_say() {
    let runs = Function(|_: &_, _| Said::text("word ".repeat(1_000)));
    let model = simulator(ByPurpose::new(runs, Summariser::Obedient), 100_000);
    let (builder, next) = live(&model);
    let change = SettingsChange::settings(CompactionSettings::default(), |agent| {
        agent.clone().price_for("simulated", ModelPrice::new(0.0, 10.0))
    });
    *next.lock().unwrap() = Some(change);
    let runtime = builder.start().await.unwrap();
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    for _ in 0..4 {
        session.prompt("talk").await.unwrap();
    }
    let mut events = session.subscribe();
    let done =
        session.compact(CompactOptions { keep_recent: Some(1_500), ..Default::default() }).await.unwrap();
    let expected = done.summary_usage.output_tokens * 10;
    assert!(expected > 0, "{done:?}");
    assert_eq!(done.cost_microdollars, Some(expected));
    let ended = drain(&mut events).into_iter().find_map(|event| match &event.kind {
        EventKind::CompactionEnd(end) => Some(end.cost_microdollars),
        _ => None,
    });
    assert_eq!(ended, Some(Some(expected)));
    let bill = session.state().await.unwrap().compaction_bill;
    assert_eq!(bill.cost_microdollars, expected);
    let records = runtime.compaction_records("s").await.unwrap();
    assert_eq!(records[0].cost_microdollars, Some(expected));
    model.assert_clean();
}
