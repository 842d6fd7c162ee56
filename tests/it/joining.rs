//! A client that joins in the middle of a run sees the same as those that were there before.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use greenroom::prelude::*;
use greenroom::{Delta, Role};
use greenroom::{InProgress, ToolContext};
use greenroom_simulator::{Answer as Said, Echo, Fault, Pace, Point, Sequence};
use serde_json::json;

use crate::support::{agent, builder, drain, runtime, simulator, store};

/// A program's view of a run, from the events it has seen.
#[derive(Debug, Default, Clone, PartialEq)]
struct Shown {
    is_running: bool,
    step: Option<u32>,
    retries: u32,
    text: String,
    arguments: String,
    /// The tools at work, with their latest progress.
    tools: BTreeMap<String, Option<String>>,
}

impl Shown {
    fn see(&mut self, kind: &EventKind) {
        match kind {
            EventKind::RunStart => *self = Self { is_running: true, ..Self::default() },
            EventKind::RunEnd { .. } => *self = Self::default(),
            EventKind::StepStart { step, .. } => {
                *self = Self { is_running: self.is_running, step: Some(*step), ..Self::default() };
            }
            EventKind::Retry { attempt, .. } => self.retries = *attempt,
            EventKind::MessageStart => {
                (self.retries, self.text, self.arguments) = (0, String::new(), String::new());
            }
            EventKind::MessageDelta { delta: Delta::Text(text) } => self.text.push_str(text),
            EventKind::MessageDelta { delta: Delta::ToolArguments { text, .. } } => {
                self.arguments.push_str(text);
            }
            EventKind::MessageDiscarded => (self.text, self.arguments) = (String::new(), String::new()),
            EventKind::MessageEnd { message, .. } if message.role == Role::Assistant => {
                (self.text, self.arguments) = (String::new(), String::new());
            }
            EventKind::ToolStart { call_id, .. } => drop(self.tools.insert(call_id.clone(), None)),
            EventKind::ToolUpdate { call_id, line, .. } => {
                self.tools.insert(call_id.clone(), Some(line.clone()));
            }
            EventKind::ToolEnd { call_id, .. } => drop(self.tools.remove(call_id)),
            _ => {}
        }
    }
}

/// A client subscribes at each event of a run that streams, fails, calls tools and streams again, and from
/// then on sees the same as one that was there from the start.
#[tokio::test(start_paused = true)]
async fn who_joins_at_any_moment_of_a_run_sees_the_same_as_the_others() {
    let pace = Pace { chunks: 12, first_ms: 10, between_ms: 20 };
    let calls = Said::text("I look at both, one beside the other, and say what is there.")
        .and_call("look", &json!({ "at": "the sky, for a long time" }))
        .and_call("look", &json!({ "at": "the sea" }));
    let model = simulator(
        Sequence(vec![
            Said::text("nothing of this holds").with_pace(pace).with_fault(Fault::Reset(Point::MidStream)),
            calls.with_pace(pace),
            Said::text("there is a good deal of it, and all of it is blue").with_pace(pace),
        ]),
        100_000,
    );
    let runtime = runtime(&model).await;
    let look = |_: serde_json::Value, cx: ToolContext| async move {
        for minute in 1..=3 {
            tokio::time::sleep(Duration::from_secs(60)).await;
            cx.progress.report(format!("{minute} minutes"));
        }
        Ok("blue")
    };
    let session = runtime.open("s", &agent(100_000).tool("look", look)).await.unwrap();
    let mut events = session.subscribe();
    let run = session.prompt("look").start().await.unwrap();
    let mut all: Vec<Arc<Event>> = Vec::new();
    // The clients that have joined, with their initial state.
    let mut joined: Vec<(InProgress, greenroom::Subscription)> = Vec::new();
    loop {
        let event = events.next_event().await.unwrap();
        let is_over = matches!(event.kind, EventKind::RunEnd { .. });
        all.push(event);
        let late = session.subscribe();
        joined.push((session.in_progress().await.unwrap(), late));
        if is_over {
            break;
        }
    }
    run.reply().await.unwrap();
    all.extend(drain(&mut events));
    let (mut told_text, mut told_tools) = (0, 0);
    for (number, (in_progress, mut late)) in joined.into_iter().enumerate() {
        let mut shown = Shown::default();
        in_progress.events.iter().for_each(|event| shown.see(&event.kind));
        told_text += usize::from(!shown.text.is_empty());
        told_tools += usize::from(!shown.tools.is_empty());
        // The view of clients that were there from the start, as far as it was reported.
        let mut others = Shown::default();
        all.iter().filter(|event| in_progress.contains(event)).for_each(|event| others.see(&event.kind));
        assert_eq!(shown, others, "who joined at event {number}");
        let rest: Vec<_> =
            drain(&mut late).into_iter().filter(|event| !in_progress.contains(event)).collect();
        let wanted: Vec<_> = all.iter().filter(|event| !in_progress.contains(event)).cloned().collect();
        assert_eq!(rest, wanted, "who joined at event {number}");
    }
    assert!(
        told_text > 20 && told_tools > 6,
        "{told_text} joined while it spoke, {told_tools} while tools worked"
    );
    assert_eq!(session.in_progress().await.unwrap().events, [], "nothing goes on");
    model.assert_clean();
}

/// A client that joins a sleeping session is told how far its log is, whatever this process knows of it.
#[tokio::test(start_paused = true)]
async fn who_joins_a_session_that_sleeps_is_told_how_far_its_log_is() {
    let (model, store) = (simulator(Echo, 100_000), store());
    let newest = async |runtime: &Runtime, what: &str| {
        let session = runtime.session("s").await.unwrap();
        let told = session.in_progress().await.unwrap();
        let log = runtime.replay("s", 0).await.unwrap();
        assert_eq!(told.seq, log.last().map(|event| event.seq), "{what}");
        assert!(log.iter().all(|event| told.contains(event)), "{what}");
        assert_eq!(told.events, [], "{what}");
        (session, log.len())
    };
    let runtime = builder(&model).engine(store.clone()).start().await.unwrap();
    let session = runtime.open("s", agent(100_000)).await.unwrap();
    let empty = session.in_progress().await.unwrap();
    assert_eq!(empty.seq, None, "no messages yet");
    session.prompt("hello").await.unwrap();
    let first = runtime.replay("s", 0).await.unwrap().remove(0);
    assert!(!empty.contains(&first), "the first entry came later");
    newest(&runtime, "it is live").await;
    runtime.close("s").await.unwrap();
    newest(&runtime, "it sleeps").await;
    drop(session);
    let (session, before) = newest(&runtime, "it sleeps and nobody held it").await;
    session.set_title("a title").await.unwrap();
    let (_, after) = newest(&runtime, "it was changed in its sleep").await;
    assert_eq!(after, before + 1);
    runtime.close("s").await.unwrap();
    let other = builder(&model).engine(store).start().await.unwrap();
    newest(&other, "another process").await;
    let runtime = other;
    assert!(runtime.live().await.unwrap().is_empty(), "nothing was started");
}
