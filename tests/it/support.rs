//! Shared helpers: runtimes over a simulator that checks every request.

/// PostgreSQL as the store of a test whose time may be paused.
mod apart;
pub(crate) mod overtaken;

use std::sync::Arc;

use greenroom::prelude::*;
use greenroom::{RuntimeBuilder, Subscription};
use greenroom_kernel::{Entry, Message};
use greenroom_simulator::{
    Answer, CallInfo, Function, Pace, Script, SeenRequest, Simulator, SimulatorOptions,
};
use greenroom_store::{Engine, Store};

/// Returns a simulator with this script and window.
pub(crate) fn simulator(script: impl Script + 'static, window: u64) -> Simulator {
    Simulator::new(SimulatorOptions { window, ..SimulatorOptions::new(script) })
}

/// Returns a simulator that answers each prompt with `to` and the prompt, after this delay.
pub(crate) fn answers_after(first_ms: u64, window: u64) -> Simulator {
    let pace = Pace { chunks: 3, first_ms, between_ms: 1 };
    let answer = move |request: &SeenRequest, _: CallInfo| {
        Answer::text(format!("to {}", request.last_user_text())).with_pace(pace)
    };
    simulator(Function(answer), window)
}

/// Returns the user's prompts in a log, each with the whole answers that follow it before the next one.
pub(crate) fn answers_in(entries: &[Entry]) -> Vec<(String, Vec<String>)> {
    let mut answers: Vec<(String, Vec<String>)> = Vec::new();
    for entry in entries {
        match entry.kind.as_message().map(|message| &**message) {
            Some(message @ Message::User(_)) => answers.push((message.text(), Vec::new())),
            Some(message @ Message::Assistant(answer)) if !answer.stop.is_partial() => {
                answers.last_mut().unwrap().1.push(message.text());
            }
            _ => {}
        }
    }
    answers
}

/// Returns an empty store: in memory, or a schema of the PostgreSQL server that `GREENROOM_TEST_POSTGRES` names.
#[expect(clippy::disallowed_methods, reason = "where sessions are stored is said by the environment")]
pub(crate) fn store() -> Arc<dyn Engine> {
    match std::env::var("GREENROOM_TEST_POSTGRES") {
        Ok(url) => apart::Apart::new(&url),
        Err(_) => Arc::new(Store::memory()),
    }
}

/// Returns the store as the next process finds it, after it was closed or not.
pub(crate) fn reopened(store: &Arc<dyn Engine>) -> Arc<dyn Engine> {
    store.as_store().map_or_else(|| Arc::clone(store), |store| Arc::new(store.reopened().unwrap()))
}

/// Returns a builder over a simulator, with a store of its own, at a fixed time.
pub(crate) fn builder(simulator: &Simulator) -> RuntimeBuilder {
    Runtime::builder().provider(simulator.provider()).engine(store()).clock_from(1_700_000_000_000)
}

/// Returns a runtime over a simulator, with a store of its own.
pub(crate) async fn runtime(simulator: &Simulator) -> Runtime {
    builder(simulator).start().await.unwrap()
}

/// Returns an agent for the simulated model, with this window.
pub(crate) fn agent(window: u64) -> Agent {
    Agent::new("simulated").context_window(window)
}

/// Returns the names of the events so far, without deltas and usage.
pub(crate) fn names(events: &mut Subscription) -> Vec<&'static str> {
    drain(events)
        .iter()
        .map(|event| event.kind.name())
        .filter(|name| !matches!(*name, "message_delta" | "usage_update" | "message_start"))
        .collect()
}

/// Returns the events so far.
pub(crate) fn drain(events: &mut Subscription) -> Vec<Arc<Event>> {
    let mut out = Vec::new();
    while let Some(delivery) = events.try_next() {
        match delivery {
            Delivery::Event(event) => out.push(event),
            Delivery::Gap { from, to, .. } => panic!("events {from}..{to} were missed"),
        }
    }
    out
}

/// Suppresses panics whose text begins with "injected", which tests cause on purpose: they need no backtrace,
/// which would take longer than the test.
pub(crate) fn quiet_injected_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !info.payload_as_str().is_some_and(|text| text.starts_with("injected")) {
                before(info);
            }
        }));
    });
}
