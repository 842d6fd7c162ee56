//! Guards: repeated calls, too many steps, too many concurrent calls, too much time, too much money. Each is
//! a typed end with an event, and the session continues; a guard that cannot be enforced is reported.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use greenroom::RunOutcome;
use greenroom::prelude::*;
use greenroom_kernel::message::{Message, ToolStatus};
use greenroom_kernel::run::RunLimits;
use greenroom_kernel::settings::UnknownWindow;
use greenroom_simulator::{
    Answer as Said, CallInfo, Fault, Function, Point, SeenRequest, Simulator, SimulatorOptions,
};
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

/// Returns a model that calls a tool for ever: with the same arguments, or with different ones each time.
fn endless(same: bool) -> Function<impl Fn(&SeenRequest, CallInfo) -> Said + Send + Sync> {
    Function(move |request: &SeenRequest, info: CallInfo| {
        if request.last_user_text() == "stop it" {
            return Said::text("stopped");
        }
        Said::call("count", &json!({ "number": if same { 1 } else { info.session_call } }))
    })
}

/// Checks that the run is stopped for a reason that contains these words, with an event, and that the session
/// continues.
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

/// Returns an answer with this many calls, each of which notes `text`.
fn calling(count: usize, text: &str) -> Said {
    (0..count).fold(Said::default(), |said, number| {
        said.and_call("count", &json!({ "number": number, "text": text }))
    })
}

#[tokio::test(start_paused = true)]
async fn of_too_many_calls_the_first_are_run_and_the_model_is_told_of_the_others() {
    for (calls, text, limits, run) in [
        (128, String::new(), RunLimits::default(), 128),
        (129, String::new(), RunLimits::default(), 128),
        (900, String::new(), RunLimits::default(), 128),
        (20, String::new(), RunLimits { calls_max: 7, ..RunLimits::default() }, 7),
        (40, "x".repeat(1_000), RunLimits { call_bytes_max: 10_500, ..RunLimits::default() }, 10),
    ] {
        let script = Function(move |request: &SeenRequest, info: CallInfo| match info.session_call {
            0 if request.last_user_text() == "go" => calling(calls, &text),
            _ => Said::text("done"),
        });
        let model = simulator(script, 2_000_000);
        let runtime = builder(&model).start().await.unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&ran);
        let tool = move |count: Count| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move { Ok(count.number.to_string()) }
        };
        let agent = agent(2_000_000).tool("count", tool).limits(limits);
        let session = runtime.open("many", &agent).await.unwrap();
        assert_eq!(session.prompt("go").await.unwrap().text, "done", "{calls}");
        assert_eq!(ran.load(Ordering::SeqCst), run, "{calls}");
        let context = session.context().await.unwrap();
        let refused: Vec<String> = context
            .iter()
            .filter(|message| {
                matches!(&***message, Message::ToolResult(result) if result.status == ToolStatus::Error)
            })
            .map(|message| message.text())
            .collect();
        assert_eq!(refused.len(), usize::from(calls > run), "{calls}: {refused:?}");
        if let Some(told) = refused.first() {
            let left_out = format!("this call and {} after it were left out", calls - run - 1);
            assert!(told.contains(&left_out), "{calls}: {told}");
        }
        // Prompt, answer, a result for each recorded call, the last answer.
        let recorded = run + usize::from(calls > run);
        assert_eq!(context.len(), recorded + 3, "{calls}");
        assert!(session.state().await.unwrap().context.tokens < 500_000, "{calls}");
        model.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_that_goes_on_calling_too_many_tools_is_stopped() {
    let script = Function(|request: &SeenRequest, info: CallInfo| {
        if request.last_user_text() == "stop it" {
            return Said::text("stopped");
        }
        calling(9, &format!("step {}", info.session_call))
    });
    let model = simulator(script, 50_000);
    let limits = RunLimits { calls_max: 2, ..RunLimits::default() };
    let calls =
        stopped(&model, &counting(50_000).limits(limits), "called more tools than one answer may").await;
    assert_eq!(calls, 4);
    model.assert_clean();
}

/// A provider that sends a little from time to time, for ever: no guard of a stream detects it.
#[tokio::test(start_paused = true)]
async fn a_run_that_takes_too_long_is_stopped_and_what_had_come_is_kept() {
    // In a model call, in a tool, in a wait between two calls.
    let drip = || {
        Said::text("a b c d e f").with_fault(Fault::Stall {
            at: Point::MidStream,
            ping_every_ms: Some(1_000),
            for_ms: None,
        })
    };
    let slow = || Said::call("count", &json!({ "number": 7 }));
    let failing = || Said::text("").with_fault(Fault::ServerError(503));
    for (what, first) in [("model", drip()), ("tool", slow()), ("wait", failing())] {
        let script =
            Function(
                move |request: &SeenRequest, _: CallInfo| {
                    if request.last_user_text() == "go" { first.clone() } else { Said::text("on") }
                },
            );
        let model = simulator(script, 50_000);
        let runtime = builder(&model).start().await.unwrap();
        let agent = agent(50_000)
            .tool("count", |count: Count| async move {
                tokio::time::sleep(Duration::from_secs(1_000_000)).await;
                Ok(count.number.to_string())
            })
            .run_timeout(Some(Duration::from_secs(9)));
        let session = runtime.open("slow", &agent).await.unwrap();
        let began = tokio::time::Instant::now();
        let error = session.prompt("go").await.unwrap_err();
        assert!(
            matches!(&error, Error::Stopped { reason } if reason == "the run reached its time limit of 9 s"),
            "{what}: {error:?}"
        );
        // Time is paused: this is the limit, plus a tool's grace period.
        assert!((9..30).contains(&began.elapsed().as_secs()), "{what}: {:?}", began.elapsed());
        let context = session.context().await.unwrap();
        match what {
            "model" => assert_eq!(context.last().unwrap().text().trim(), "a b c", "what had come is kept"),
            "tool" => assert!(
                matches!(&**context.last().unwrap(), Message::ToolResult(result) if result.status == ToolStatus::Interrupted)
            ),
            _ => assert_eq!(context.len(), 1, "{context:?}"),
        }
        let state = session.state().await.unwrap();
        assert_eq!((state.status, state.waiting), (Status::Idle, 0), "{what}");
        assert_eq!(session.prompt("next").await.unwrap().text, "on", "{what}");
        model.assert_clean();
    }
}

#[tokio::test(start_paused = true)]
async fn a_budget_that_is_used_up_stops_the_turn() {
    // A model with a price in the catalogue.
    let model = Simulator::new(SimulatorOptions {
        window: 100_000,
        provider_name: "openai".to_owned(),
        ..SimulatorOptions::new(endless(false))
    });
    let spending = Agent::new("gpt-4o")
        .context_window(100_000)
        .instructions("word ".repeat(2_000))
        .tool("count", |count: Count| async move { Ok(count.number.to_string()) })
        .cost_limit_usd(0.03);
    let calls = stopped(&model, &spending, "cost limit").await;
    assert!((2..50).contains(&calls), "{calls} calls");
    model.assert_clean();
}

/// Returns the warnings in two runs of an agent on a model of the simulator's, which is not in the catalogue.
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
        (known().cost_limit_usd(1.0), &["the price of simulated at simulator"]),
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
