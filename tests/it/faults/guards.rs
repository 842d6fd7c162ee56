//! Guards: the same call again and again, too many steps, too much money. Each is a typed end with an event, and
//! the session goes on; a guard that cannot hold says so.

use greenroom::prelude::*;
use greenroom_kernel::run::RunLimits;
use greenroom_kernel::settings::UnknownWindow;
use greenroom_simulator::{CallInfo, Function, Reply as Said, SeenRequest, Simulator, SimulatorOptions};
use serde_json::json;

use crate::support::{agent, builder, drain, simulator};

/// Takes a number.
#[derive(Deserialize, JsonSchema)]
struct Count {
    /// The call's number.
    number: u64,
}

fn counting(window: u64) -> Agent {
    agent(window).tool("count", |count: Count| async move { Ok(count.number.to_string()) })
}

/// A model that calls a tool for ever: with the same arguments, or with others each time.
fn endless(same: bool) -> Function<impl Fn(&SeenRequest, CallInfo) -> Said + Send + Sync> {
    Function(move |request: &SeenRequest, info: CallInfo| {
        if request.last_user_text() == "stop it" {
            return Said::text("stopped");
        }
        Said::call("count", &json!({ "number": if same { 1 } else { info.session_call } }))
    })
}

/// The run is stopped for a reason that holds these words, an event says so, and the session goes on.
async fn stopped(model: &Simulator, agent: &Agent, words: &str) -> u64 {
    let runtime = builder(model).start().await.unwrap();
    let session = runtime.open("guarded", agent).await.unwrap();
    let mut events = session.subscribe();
    let error = session.prompt("go").await.unwrap_err();
    let Error::Stopped { reason } = &error else { panic!("{error:?}") };
    assert!(reason.contains(words), "{reason}");
    let calls = model.calls();
    let told = drain(&mut events).iter().any(|event| {
        matches!(&event.kind, EventKind::RunEnd { outcome: RunOutcome::Stopped { reason: told }, .. } if told == reason)
    });
    assert!(told, "an event says why");
    calls
}

#[tokio::test(start_paused = true)]
async fn the_same_call_over_and_over_is_stopped() {
    let model = simulator(endless(true), 50_000);
    let limits = RunLimits { repeats_max: 3, ..RunLimits::default() };
    let calls = stopped(&model, &counting(50_000).limits(limits), "`count` came 4 times in a row").await;
    assert_eq!(calls, 4);
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn too_many_steps_are_stopped_and_the_session_goes_on() {
    let model = simulator(endless(false), 50_000);
    let limits = RunLimits { steps_max: 6, ..RunLimits::default() };
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("steps", &counting(50_000).limits(limits)).await.unwrap();
    let error = session.prompt("go").await.unwrap_err();
    assert!(matches!(&error, Error::Stopped { reason } if reason.contains("limit of 6 steps")), "{error}");
    assert_eq!(model.calls(), 6);
    assert_eq!(session.prompt("stop it").await.unwrap().text, "stopped");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_is_used_up_stops_the_turn() {
    // A model whose price the catalogue knows.
    let model = Simulator::new(SimulatorOptions {
        window: 100_000,
        provider_name: "openai".to_owned(),
        ..SimulatorOptions::new(endless(false))
    });
    let spending = Agent::new("gpt-4o")
        .context_window(100_000)
        .instructions("word ".repeat(2_000))
        .tool("count", |count: Count| async move { Ok(count.number.to_string()) })
        .cost_microdollars_max(30_000);
    let calls = stopped(&model, &spending, "cost limit").await;
    assert!((2..50).contains(&calls), "{calls} calls");
    model.assert_clean();
}

/// What is warned of in two runs of an agent on a model of the simulator's, which no catalogue knows.
async fn warnings(agent: Agent) -> Vec<String> {
    let model = simulator(Function(|_: &SeenRequest, _| Said::text("well")), 50_000);
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("doubtful", &agent).await.unwrap();
    let mut events = session.subscribe();
    for prompt in ["one", "two"] {
        session.prompt(prompt).await.unwrap();
    }
    let warnings = drain(&mut events).into_iter().filter_map(|event| match &event.kind {
        EventKind::Warning { message } => Some(message.clone()),
        _ => None,
    });
    warnings.collect()
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_cannot_hold_says_so_once() {
    let known = || Agent::new("simulated").context_window(50_000);
    let assumes_nothing =
        CompactionSettings { unknown_window: UnknownWindow::Disable, ..CompactionSettings::default() };
    for (agent, words) in [
        (known(), &[][..]),
        (known().cost_microdollars_max(1_000_000), &["the price of simulated at simulator"]),
        (Agent::new("simulated"), &["128000 tokens are assumed"]),
        (Agent::new("simulated").compaction(assumes_nothing), &["nothing is compacted before"]),
    ] {
        let warnings = warnings(agent).await;
        assert_eq!(warnings.len(), words.len(), "{warnings:?}");
        for (warning, words) in warnings.iter().zip(words) {
            assert!(warning.contains(words), "{warning}");
        }
    }
}
