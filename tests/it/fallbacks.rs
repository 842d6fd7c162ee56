//! Other models, of the same or another provider, that answer when an agent's own fails.
//!
//! Invariants: the first server fails as its script says; the second one is named "second" and checks its requests too.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use greenroom::prelude::*;
use greenroom::{ConfigError, FailureClass, Fallback};
use greenroom_kernel::{EntryKind, Message};
use greenroom_simulator::{
    Answer as Said, CallInfo, Echo, Fault, Function, RetryAfter, Script, SeenRequest, Sequence, Simulator,
    SimulatorOptions,
};

use crate::compaction_fixtures::{count, ends, talker, text};
use crate::support::{agent, drain, quiet_injected_panics, simulator};

fn second(script: impl Script + 'static, window: u64) -> Simulator {
    let options = SimulatorOptions::new(script);
    Simulator::new(SimulatorOptions { window, provider_name: "second".into(), ..options })
}

fn runtime_of(first: &Simulator, second: &Simulator) -> greenroom::RuntimeBuilder {
    crate::support::builder(first).provider(second.provider())
}

/// Returns the fault of a server that rejects the key.
fn no_key() -> Fault {
    let body = r#"{"error":{"message":"Incorrect API key provided"}}"#;
    Fault::Http { status: 401, headers: Vec::new(), body: body.into() }
}

fn other(window: u64) -> Fallback {
    Fallback::new("other").provider("second").context_window(window)
}

/// Returns the providers and models of all answers, in order.
async fn answered_by(session: &SessionHandle) -> Vec<String> {
    let context = session.context().await.unwrap();
    let by = |message: &Arc<Message>| match &**message {
        Message::Assistant(answer) => Some(format!("{}/{}", answer.provider, answer.model)),
        Message::User(_) | Message::ToolResult(_) => None,
    };
    context.iter().filter_map(by).collect()
}

/// Returns the reported fallbacks: the model, and the class of the failure.
fn told(events: &[Arc<Event>]) -> Vec<(String, FailureClass)> {
    let of = |event: &Arc<Event>| match &event.kind {
        EventKind::Fallback { provider, model, failure, .. } => {
            Some((format!("{provider}/{model}"), failure.class))
        }
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

/// Checks a failure that triggers a fallback: how often the first model is called before.
async fn check_falls_back(fault: Fault, asked: usize, class: FailureClass) {
    let failing = {
        let fault = fault.clone();
        Function(move |_: &SeenRequest, _: CallInfo| Said::fault(fault.clone()))
    };
    let (one, two) = (simulator(failing, 20_000), second(Echo, 20_000));
    let runtime = runtime_of(&one, &two).start().await.unwrap();
    let definition =
        agent(20_000).fallback(other(20_000)).limits(RunLimits { retries_max: 2, ..RunLimits::default() });
    let session = runtime.open("s", &definition).await.unwrap();
    let mut events = session.subscribe();
    let reply = session.prompt("hello").await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
    let seen = drain(&mut events);
    assert_eq!((reply.steps, reply.model.as_str()), (1, "other"), "{fault:?}");
    assert_eq!(told(&seen), [("second/other".to_owned(), class)], "{fault:?}");
    assert_eq!((count(&seen, "step_start"), count(&seen, "run_end")), (1, 1), "{fault:?}");
    assert_eq!(one.requests().len(), asked, "{fault:?}");
    assert_eq!(answered_by(&session).await, ["second/other"], "{fault:?}");
    two.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn another_provider_answers_when_the_first_fails() {
    check_falls_back(Fault::ServerError(500), 3, FailureClass::Overloaded).await;
    check_falls_back(Fault::RateLimited(RetryAfter::Seconds(5)), 3, FailureClass::RateLimited).await;
    check_falls_back(Fault::RateLimited(RetryAfter::Seconds(50)), 1, FailureClass::RateLimited).await;
    check_falls_back(Fault::EmptyStream, 3, FailureClass::Malformed).await;
    check_falls_back(Fault::Loading, 1, FailureClass::Loading).await;
    let key = no_key();
    check_falls_back(key, 1, FailureClass::Auth).await;
}

#[tokio::test(start_paused = true)]
async fn a_run_goes_on_where_it_was_and_the_next_begins_at_home() {
    // Answers, calls a tool, then fails in the middle of its second answer; it works again for the next run.
    let home = Function(move |request: &SeenRequest, info: CallInfo| match info.call {
        0 => Said::call("look", &serde_json::json!({})),
        1..3 => {
            Said::text("I begin to answer ").with_fault(Fault::Reset(greenroom_simulator::Point::MidStream))
        }
        _ => Said::text(format!("{} messages", request.messages.len())),
    });
    let (one, two) = (simulator(home, 20_000), second(Echo, 20_000));
    let runtime = runtime_of(&one, &two).start().await.unwrap();
    let definition = agent(20_000)
        .fallback(other(20_000))
        .tool("look", |_: ()| async move { Ok("seen") })
        .limits(RunLimits { retries_max: 2, ..RunLimits::default() });
    let session = runtime.open("s", &definition).await.unwrap();
    let mut events = session.subscribe();
    session.prompt("look and tell").await.unwrap();
    let seen = drain(&mut events);
    assert_eq!(told(&seen).len(), 1);
    assert_eq!((count(&seen, "tool_start"), count(&seen, "step_start"), count(&seen, "step_end")), (1, 2, 2));
    assert_eq!(count(&seen, "message_discarded"), 2);
    session.prompt("and now?").await.unwrap();
    let seen = drain(&mut events);
    assert!(told(&seen).is_empty());
    assert_eq!(answered_by(&session).await, ["simulator/simulated", "second/other", "simulator/simulated"]);
    // The log records the current model before it answers: the fallback, and the return.
    let entries = runtime.entries("s", greenroom::EntryId(0)).await.unwrap();
    let changes: Vec<&str> = entries
        .iter()
        .filter_map(|entry| match &entry.kind {
            EntryKind::ModelChange { model, .. } => Some(model.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(changes, ["other", "simulated"]);
    assert_eq!(session.state().await.unwrap().model, "simulated");
    one.assert_clean();
    two.assert_clean();
}

/// The context is compacted for the window of the next model, and not again for the one that failed.
#[tokio::test(start_paused = true)]
async fn the_context_fits_the_window_of_the_other_model() {
    let is_down = Arc::new(AtomicBool::new(false));
    let down = Arc::clone(&is_down);
    let script = talker(300);
    let home = Function(move |request: &SeenRequest, info: CallInfo| match down.load(Ordering::Relaxed) {
        true => Said::fault(Fault::ServerError(503)),
        false => script.reply(request, info),
    });
    let one = simulator(home, 60_000);
    let two = second(
        greenroom_simulator::ByPurpose::new(talker(50), greenroom_simulator::Summariser::Obedient),
        8_000,
    );
    let runtime = runtime_of(&one, &two).start().await.unwrap();
    let session = runtime.open("s", &agent(60_000).fallback(other(8_000))).await.unwrap();
    for run in 0..40 {
        session.prompt(text(&format!("q{run}."), 300)).await.unwrap();
    }
    let before = session.state().await.unwrap().context;
    assert!(before.tokens > 16_000, "{before:?}");
    let mut events = session.subscribe();
    is_down.store(true, Ordering::Relaxed);
    session.prompt("are you there?").await.unwrap();
    let seen = drain(&mut events);
    assert_eq!(told(&seen).len(), 1);
    let ended = ends(&seen);
    assert_eq!(ended.iter().map(|end| end.outcome.as_str()).collect::<Vec<_>>(), ["completed"], "{ended:?}");
    // Before the call, not after a refusal.
    assert_eq!(ended[0].trigger, greenroom_kernel::entry::Trigger::Threshold);
    // The failed model was not asked for the summary.
    assert_eq!(one.requests().iter().filter(|logged| logged.request.tokens > 60_000).count(), 0);
    is_down.store(false, Ordering::Relaxed);
    session.prompt("and you?").await.unwrap();
    assert!(ends(&drain(&mut events)).is_empty(), "at home there is room");
    assert_eq!(answered_by(&session).await.last().unwrap(), "simulator/simulated");
    one.assert_clean();
    two.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn the_last_model_s_failure_is_the_run_s() {
    let one = simulator(Sequence(vec![Said::fault(Fault::ServerError(500))]), 20_000);
    let failing = |_: &SeenRequest, _: CallInfo| Said::fault(no_key());
    let two = second(Function(failing), 20_000);
    let runtime = runtime_of(&one, &two).start().await.unwrap();
    let definition = agent(20_000)
        .fallback(other(20_000))
        .fallback(Fallback::new("third").provider("second").context_window(20_000))
        .limits(RunLimits { retries_max: 0, ..RunLimits::default() });
    let session = runtime.open("s", &definition).await.unwrap();
    let mut events = session.subscribe();
    let error = session.prompt("hello").await.unwrap_err();
    assert!(matches!(&error, Error::Model(failure) if failure.class == FailureClass::Auth), "{error}");
    let models: Vec<String> = told(&drain(&mut events)).into_iter().map(|(model, _)| model).collect();
    assert_eq!(models, ["second/other", "second/third"]);
    // A filter's refusal would happen again: no other model is called.
    let filtered = |_: &SeenRequest, _: CallInfo| {
        Said::text("").with_finish(greenroom_kernel::StopReason::ContentFilter)
    };
    let one = simulator(Function(filtered), 20_000);
    let runtime = runtime_of(&one, &two).start().await.unwrap();
    let asked = two.requests().len();
    let session = runtime.open("s", &definition).await.unwrap();
    let error = session.prompt("hello").await.unwrap_err();
    assert!(
        matches!(&error, Error::Model(failure) if failure.class == FailureClass::ContentFilter),
        "{error}"
    );
    assert_eq!(two.requests().len(), asked);
    // Unless the agent's settings include it.
    let definition = definition.fallback_on([FailureClass::ContentFilter]);
    let session = runtime.open("t", &definition).await.unwrap();
    assert!(session.prompt("hello").await.is_err());
    assert_eq!(two.requests().len(), asked + 1);
}

#[tokio::test]
async fn a_fallback_that_could_not_work_is_refused_when_the_session_is_opened() {
    let (one, two) = (simulator(Echo, 20_000), second(Echo, 20_000));
    let runtime = runtime_of(&one, &two).start().await.unwrap();
    let refused = [
        (
            Fallback::new("x").provider("third"),
            "the fallback x is invalid: the runtime has no provider named \"third\"",
        ),
        (Fallback::new("x").context_window(20), "the fallback x is invalid: "),
        (Fallback::new(" ").context_window(20_000), "a model needs a name"),
        (
            Fallback::new("simulated").context_window(20_000),
            "the fallback simulated is invalid: it is the agent's own model",
        ),
        (
            Fallback::new("x").settings(ModelSettings::new().temperature(-3.0)),
            "the fallback x is invalid: the model settings are invalid: temperature",
        ),
    ];
    for (fallback, expect) in refused {
        let error = runtime.open("s", &agent(20_000).fallback(fallback)).await.unwrap_err();
        assert!(matches!(error, Error::Config(ConfigError::Fallback { .. })), "{error:?}");
        assert!(error.to_string().contains(expect), "{error}");
    }
    assert!(runtime.summary("s").await.unwrap().is_none());
}

/// An agent that dies after the fallback continues with the other model, and has no more fallbacks than
/// before.
#[tokio::test(start_paused = true)]
async fn a_crash_after_the_change_changes_nothing() {
    quiet_injected_panics();
    let failing = |_: &SeenRequest, _: CallInfo| Said::fault(Fault::ServerError(500));
    let (one, two) = (simulator(Function(failing), 20_000), second(Echo, 20_000));
    let died = Arc::new(AtomicBool::new(false));
    let dies = Arc::clone(&died);
    let runtime = runtime_of(&one, &two)
        .probe(move |_, at| {
            assert!(at != "agent/fell_back" || dies.swap(true, Ordering::Relaxed), "injected");
        })
        .start()
        .await
        .unwrap();
    let limits = RunLimits { retries_max: 0, ..RunLimits::default() };
    let session = runtime.open("s", &agent(20_000).fallback(other(20_000)).limits(limits)).await.unwrap();
    session.prompt("hello").await.unwrap();
    assert!(died.load(Ordering::Relaxed));
    assert_eq!(answered_by(&session).await, ["second/other"]);
    assert_eq!((one.requests().len(), two.requests().len()), (1, 1));
    session.prompt("again").await.unwrap();
    assert_eq!((one.requests().len(), two.requests().len()), (2, 2));
}

/// If the session is opened with another agent meanwhile, that one takes over when the run has ended.
#[tokio::test(start_paused = true)]
async fn an_agent_that_is_named_meanwhile_holds_afterwards() {
    let failing = |request: &SeenRequest, _: CallInfo| match request.model.as_str() {
        "simulated" => Said::fault(Fault::ServerError(500)),
        model => Said::text(format!("I am {model}")),
    };
    let one = simulator(Function(failing), 20_000);
    let two = second(Sequence(vec![Said::text("done").after_ms(5_000)]), 20_000);
    let runtime = runtime_of(&one, &two).start().await.unwrap();
    let limits = RunLimits { retries_max: 0, ..RunLimits::default() };
    let session = runtime.open("s", &agent(20_000).fallback(other(20_000)).limits(limits)).await.unwrap();
    let prompt = session.prompt("hello");
    let run = tokio::spawn(async move { prompt.await });
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    runtime.open("s", &Agent::new("named").context_window(20_000)).await.unwrap();
    assert_eq!(run.await.unwrap().unwrap().text, "done");
    assert_eq!(session.prompt("who?").await.unwrap().text, "I am named");
}
