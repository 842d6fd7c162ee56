//! The fields of each event: its time, run, model and tool; and that a replay has the same.

use std::time::Duration;

use greenroom::Record;
use greenroom::prelude::*;
use greenroom_kernel::EntryId;
use greenroom_simulator::{Answer as Said, Fault, Sequence};
use serde_json::json;

use crate::compaction_fixtures::text;
use crate::support::{agent, drain, runtime, simulator};

const BEGAN_MS: u64 = 1_700_000_000_000;

/// Looks at something, for a second.
#[derive(Deserialize, JsonSchema)]
struct Look {}

fn looking() -> Agent {
    let look = tool("look", |_: Look, context: ToolContext| async move {
        context.progress.report("half");
        tokio::time::sleep(Duration::from_secs(1)).await;
        context.progress.report("whole");
        Ok("seen")
    });
    agent(100_000).add_tool(look)
}

#[tokio::test(start_paused = true)]
async fn every_event_of_a_run_says_when_and_which_run_and_a_replay_says_the_same() {
    let script = [
        Said::fault(Fault::ServerError(500)),
        Said::call("look", &json!({})),
        Said::text(text("Seen.", 300)),
        Said::text("Again."),
    ];
    let model = simulator(Sequence(script.to_vec()), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &looking()).await.unwrap();
    let mut events = session.subscribe();
    let first = session.prompt("Look.").await.unwrap().run;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let second = session.prompt("Again.").await.unwrap().run;
    let options = CompactOptions { force: true, keep_recent: Some(1), ..CompactOptions::default() };
    let end = session.compact(options).await.unwrap();
    assert!(end.is_installed(), "{end:?}");

    let mut told = drain(&mut events);
    while !told.iter().any(|event| event.kind.event_type() == EventType::SessionCompacted) {
        told.push(events.next_event().await.unwrap());
    }
    let of = |run: Option<EntryId>| told.iter().filter(move |event| event.run == run);
    assert!(told.iter().all(|event| [None, Some(first), Some(second)].contains(&event.run)));
    for run in [first, second] {
        let names: Vec<_> = of(Some(run)).map(|event| event.kind.name()).collect();
        assert_eq!((names[0], *names.last().unwrap()), ("message_end", "run_end"), "{names:?}");
    }
    let all_kinds: Vec<_> = of(Some(first)).map(|event| event.kind.event_type()).collect();
    for kind in [EventType::ToolStart, EventType::ToolUpdate, EventType::ToolEnd, EventType::Retry] {
        assert!(all_kinds.contains(&kind), "{kind}");
    }
    let between: Vec<_> = of(None).map(|event| event.kind.name()).collect();
    assert!(between.contains(&"compaction_start") && between.contains(&"compaction_end"), "{between:?}");

    assert_eq!(told[0].at_ms, BEGAN_MS);
    assert!(told.windows(2).all(|pair| pair[0].at_ms <= pair[1].at_ms), "time goes on");
    let at = |name: &str| told.iter().find(|event| event.kind.name() == name).unwrap().at_ms;
    assert!(at("tool_start") >= BEGAN_MS + 100, "after the wait before the retry");
    assert_eq!(at("tool_end"), at("tool_start") + 1_000);
    assert!(of(Some(second)).all(|event| event.at_ms >= BEGAN_MS + 60_000));

    let durable: Vec<Event> =
        told.iter().filter(|event| event.is_durable()).map(|event| (**event).clone()).collect();
    for from in 0..durable.len() {
        assert_eq!(runtime.replay("s", from as u64).await.unwrap(), durable[from..], "from {from} on");
    }
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn events_name_the_model_and_the_tool() {
    let model = simulator(Sequence(vec![Said::call("look", &json!({})), Said::text("Seen.")]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &looking()).await.unwrap();
    let mut events = session.subscribe();
    session.prompt("Look.").await.unwrap();
    let (mut models, mut tools) = (Vec::new(), Vec::new());
    for event in drain(&mut events) {
        match &event.kind {
            EventKind::StepStart { model, .. } => models.push(("step_start", model.clone())),
            EventKind::MessageEnd { message, .. } => {
                models.extend(message.model.clone().map(|model| (message.role.as_str(), model)));
                tools.extend(message.tool_name.clone().map(|name| (message.role.as_str(), name)));
            }
            EventKind::ToolStart { name, .. }
            | EventKind::ToolUpdate { name, .. }
            | EventKind::ToolEnd { name, .. } => tools.push((event.kind.name(), name.clone())),
            _ => {}
        }
    }
    let simulated = |what| (what, "simulated".to_owned());
    let both = ["step_start", "assistant"].map(simulated);
    assert_eq!(models, [both.clone(), both].concat());
    let look = |what| (what, "look".to_owned());
    assert_eq!(tools, ["tool_start", "tool_update", "tool_update", "tool_end", "tool"].map(look));
}

/// Records beside the messages describe themselves, not only their existence.
#[tokio::test(start_paused = true)]
async fn records_say_what_they_are() {
    let model = simulator(Sequence(vec![Said::text("Yes."), Said::text("No.")]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let mut events = session.subscribe();
    session.prompt("Yes?").await.unwrap();
    session.pin(EntryId(0)).await.unwrap();
    session.branch(Some(EntryId(1))).await.unwrap();
    runtime.open("s", &Agent::new("another").context_window(50_000)).await.unwrap();
    session.prompt("And?").await.unwrap();
    let records: Vec<Record> = drain(&mut events)
        .iter()
        .filter_map(|event| {
            if let EventKind::Recorded { record, .. } = &event.kind { Some(record.clone()) } else { None }
        })
        .collect();
    let wanted = [
        Record::Pin { entry: EntryId(0), pinned: true },
        Record::LeafMoved { to: Some(EntryId(1)) },
        Record::ModelChange { provider: "simulator".into(), model: "another".into() },
    ];
    assert_eq!(records, wanted);
}
