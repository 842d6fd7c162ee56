//! The bill of a session: a fold of its log that survives crashes and sleep.
//!
//! Invariants: whatever happened, the bill of a session is the sum of the costs in its log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom::provider::Purpose;
use greenroom_kernel::entry::{EntryKind, Spender};
use greenroom_kernel::message::Message;
use greenroom_kernel::{EntryId, Usage};
use greenroom_provider::Catalog;
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Function, SeenRequest, Simulator, SimulatorOptions, Summariser,
};

use crate::compaction_fixtures::{keep, text};
use crate::support::{builder, quiet_injected_panics};

/// A model with a price in the catalogue.
const MODEL: &str = "gpt-4o";

/// Counts.
#[derive(Deserialize, JsonSchema)]
struct Count {
    /// The next number.
    number: u32,
}

/// Calls a tool once in each run that requests it, and answers with text.
fn model() -> Simulator {
    let talk = Function(|request: &SeenRequest, info: CallInfo| {
        let has_result = request.messages.last().is_some_and(|message| message.role() == "tool");
        match request.last_user_text().split(' ').next() {
            Some("count") if !has_result => Said::call("count", &serde_json::json!({ "number": 1 })),
            Some("delegate") if !has_result => Said::call("helper", &serde_json::json!({ "task": "help" })),
            _ => Said::text(text(&format!("answer {}.", info.session_call), 200)),
        }
    });
    Simulator::new(SimulatorOptions {
        window: 100_000,
        provider_name: "openai".to_owned(),
        ..SimulatorOptions::new(ByPurpose::new(talk, Summariser::Obedient))
    })
}

fn agent() -> Agent {
    let helper = Agent::new(MODEL).context_window(100_000);
    Agent::new(MODEL)
        .context_window(100_000)
        .tool("count", |count: Count| async move { Ok(count.number.to_string()) })
        .sub_agent(sub_agent("helper", helper).describe("Helps."))
}

fn cost(usage: &Usage) -> u64 {
    Catalog::bundled().find("openai", MODEL).unwrap().cost_microdollars(usage).unwrap()
}

/// Returns the tokens and micro-dollars recorded in the log of a session.
async fn logged(runtime: &Runtime, id: &str) -> (u64, u64) {
    let mut sum = (0, 0);
    for entry in runtime.entries(id, EntryId(0)).await.unwrap() {
        let (usage, cost) = match &entry.kind {
            EntryKind::Message { message, .. } => match &**message {
                Message::Assistant(answer) => {
                    let usage = answer.usage.unwrap_or_default();
                    (usage, cost(&usage))
                }
                _ => continue,
            },
            EntryKind::CompactionEnded(ended) => (ended.summary_usage, ended.cost_microdollars.unwrap_or(0)),
            EntryKind::Spent(spent) => (spent.usage, spent.cost_microdollars.unwrap_or(0)),
            _ => continue,
        };
        sum = (sum.0 + usage.total_tokens(), sum.1 + cost);
    }
    sum
}

async fn billed(session: &SessionHandle) -> (u64, u64) {
    let state = session.state().await.unwrap();
    (state.total_tokens, state.cost_microdollars)
}

/// An actor dies at each of these points, whenever it reaches them. No answer's cost is forgotten.
#[tokio::test(start_paused = true)]
async fn a_crash_forgets_no_answer_s_cost() {
    quiet_injected_panics();
    let points = [
        "session/record", "agent/sized", "session/measured", "usage_tracker/appended",
        "usage_tracker/measure", "agent/recorded", "agent/tool_over",
    ];
    let mut crashes = 0;
    for point in points {
        for nth in 0..4 {
            let model = model();
            let hits = Arc::new(AtomicU32::new(0));
            let probe = Arc::clone(&hits);
            let runtime = builder(&model)
                .probe(move |_, at| {
                    assert!(at != point || probe.fetch_add(1, Ordering::Relaxed) != nth, "injected at {at}");
                })
                .start()
                .await
                .unwrap();
            let session = runtime.open("s", &agent()).await.unwrap();
            for prompt in ["hello", "count it", "and on"] {
                // It may be interrupted.
                let _ = session.prompt(prompt).await;
                tokio::time::sleep(Duration::from_secs(5)).await;
            }
            crashes += u32::from(hits.load(Ordering::Relaxed) > nth);
            let logged = logged(&runtime, "s").await;
            assert!(logged.0 > 0 && logged.1 > 0, "{point} {nth}: {logged:?}");
            assert_eq!(billed(&session).await, logged, "{point} {nth}: live");
            runtime.close("s").await.unwrap();
            let head = runtime.engine().head("s").await.unwrap().unwrap();
            assert_eq!(
                (head.total_usage.total_tokens(), head.cost_microdollars),
                logged,
                "{point} {nth}: stored"
            );
            assert_eq!(billed(&session).await, logged, "{point} {nth}: reopened");
        }
    }
    assert!(crashes >= 20, "only {crashes} crashes");
}

/// The cost of a summary is known after the session slept right after it.
#[tokio::test(start_paused = true)]
async fn what_a_summary_cost_is_not_forgotten_when_the_session_is_closed() {
    let model = model();
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("s", &agent()).await.unwrap();
    for number in 0..8 {
        session.prompt(format!("question {number}")).await.unwrap();
    }
    let before = billed(&session).await;
    assert!(session.compact(keep(300)).await.unwrap().entry_id.is_some());
    let after = billed(&session).await;
    assert!(after.0 > before.0 && after.1 > before.1, "the summary is billed: {before:?} {after:?}");
    runtime.close("s").await.unwrap();
    assert_eq!(billed(&session).await, after);
    assert_eq!(after, logged(&runtime, "s").await);
    model.assert_clean();
}

/// A summary was answered, and its compaction is aborted before the compactor has the answer.
#[tokio::test(start_paused = true)]
async fn what_an_answered_summary_cost_is_billed_although_its_compaction_was_aborted() {
    let model = model();
    let runtime = builder(&model).start().await.unwrap();
    let slow = agent().after_model(|call| async move {
        if call.purpose == Purpose::Summary {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    });
    let session = runtime.open("s", &slow).await.unwrap();
    for number in 0..8 {
        session.prompt(format!("question {number}")).await.unwrap();
    }
    let (before, calls) = (billed(&session).await, model.calls());
    let compacting = {
        let session = session.clone();
        tokio::spawn(async move { session.compact(keep(300)).await })
    };
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(model.calls(), calls + 1, "the summary was written");
    session.abort();
    let ended = compacting.await.unwrap().unwrap();
    assert_eq!(ended.outcome.as_str(), "cancelled");
    tokio::time::sleep(Duration::from_secs(20)).await;
    let after = billed(&session).await;
    assert!(after.0 > before.0 && after.1 > before.1, "{before:?} {after:?}");
    assert_eq!(after, logged(&runtime, "s").await);
}

/// The cost of a summary of a branch that was left is an entry too.
#[tokio::test(start_paused = true)]
async fn what_a_branch_s_summary_cost_is_billed() {
    let model = model();
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("s", &agent()).await.unwrap();
    session.prompt("hello").await.unwrap();
    session.prompt("and on").await.unwrap();
    let before = billed(&session).await;
    session.branch_with_summary(Some(EntryId(1))).await.unwrap();
    let after = billed(&session).await;
    assert!(after.0 > before.0 && after.1 > before.1, "{before:?} {after:?}");
    assert_eq!(after, logged(&runtime, "s").await);
    model.assert_clean();
}

/// The cost of an agent called as a tool is an entry of its caller's log, once for each call.
#[tokio::test(start_paused = true)]
async fn what_a_sub_agent_spent_is_an_entry_of_its_caller() {
    let model = model();
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("s", &agent()).await.unwrap();
    for prompt in ["delegate it", "delegate it again"] {
        session.prompt(prompt).await.unwrap();
    }
    let entries = runtime.entries("s", EntryId(0)).await.unwrap();
    let mut children = Vec::new();
    for entry in &entries {
        if let EntryKind::Spent(spent) = &entry.kind
            && let Spender::SubAgent { session: child } = &spent.by
        {
            let own = logged(&runtime, child).await;
            assert_eq!(
                (spent.usage.total_tokens(), spent.cost_microdollars),
                (own.0, Some(own.1)),
                "{child}"
            );
            assert!(own.1 > 0);
            children.push(child.clone());
        }
    }
    assert_eq!(children.len(), 2, "one entry a call");
    assert_ne!(children[0], children[1]);
    assert_eq!(billed(&session).await, logged(&runtime, "s").await);
    model.assert_clean();
}

/// What a run cost, with the agents that it called, is in its reply and in the event of its end.
#[tokio::test(start_paused = true)]
async fn a_run_s_cost_is_in_its_reply_and_its_end() {
    let model = model();
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("s", &agent()).await.unwrap();
    let mut sum = 0;
    for prompt in ["hello", "delegate it", "and on"] {
        let before = billed(&session).await.1;
        let reply = session.prompt(prompt).once(prompt).await.unwrap();
        assert_eq!(reply.cost_microdollars, billed(&session).await.1 - before, "{prompt}");
        assert!(reply.cost_microdollars > 0 && !reply.is_cost_estimated);
        assert_eq!(session.prompt(prompt).once(prompt).await.unwrap(), reply, "the reply to a repeated key");
        let ends = runtime.replay("s", 0).await.unwrap();
        let told = ends.iter().rev().find_map(|event| match &event.kind {
            EventKind::RunEnd { cost_microdollars, is_cost_estimated, .. } => {
                Some((*cost_microdollars, *is_cost_estimated))
            }
            _ => None,
        });
        assert_eq!(told, Some((reply.cost_microdollars, false)));
        sum += reply.cost_microdollars;
    }
    assert_eq!(sum, billed(&session).await.1);
    model.assert_clean();
}

/// What compactions cost and saved is in the reply of each run, in the state, and summed up for a label; and it is what the
/// log says.
#[tokio::test(start_paused = true)]
async fn what_compactions_cost_and_saved_is_told_by_run_session_and_label() {
    let model = model();
    let runtime = builder(&model).start().await.unwrap();
    let small = Agent::new(MODEL).context_window(6_000);
    let mut sums = Vec::new();
    for (id, label) in [("a", "one"), ("b", "one"), ("c", "two")] {
        let session = runtime.open(id, &small).await.unwrap();
        session.set_label("customer", label).await.unwrap();
        let mut by_run = greenroom::CompactionBill::default();
        for prompt in 0..30 {
            let prompt = Prompt::from(text(&format!("p{prompt}."), 300));
            let reply = session.prompt(prompt).await.unwrap();
            by_run.add(&reply.compaction_bill);
        }
        let bill = session.state().await.unwrap().compaction_bill;
        let records = runtime.compaction_records(id).await.unwrap();
        assert!(records.len() >= 3, "{records:?}");
        let saved =
            |of: fn(&greenroom::Saved) -> u64| records.iter().map(|record| of(&record.saved)).sum::<u64>();
        assert_eq!(
            (bill.saved_tokens, bill.saved_microdollars),
            (saved(|it| it.tokens), saved(|it| it.microdollars))
        );
        assert!(
            bill.saved_tokens > 10_000 && bill.saved_microdollars > 0 && bill.cost_microdollars > 0,
            "{bill:?}"
        );
        // What is compacted between runs belongs to none of them; what calls saved belongs to runs alone.
        assert_eq!(by_run.saved_tokens, bill.saved_tokens);
        assert!(by_run.cost_microdollars <= bill.cost_microdollars, "{by_run:?} {bill:?}");
        let spent: u64 = records.iter().filter_map(|record| record.cost_microdollars).sum();
        assert_eq!(bill.cost_microdollars, spent);
        sums.push(bill);
    }
    // A key that is used again gets the same reply, with its bill.
    let a = runtime.session("a").await.unwrap();
    let first = a.prompt("again").once("k").await.unwrap();
    assert_eq!(a.prompt("again").once("k").await.unwrap(), first);
    let of = async |label: &str| runtime.sessions().label("customer", label).bill().await.unwrap().compaction;
    let mut one = sums[0];
    one.add(&sums[1]);
    one.add(&first.compaction_bill);
    assert_eq!((of("one").await.saved_tokens, of("two").await), (one.saved_tokens, sums[2]));
    let all = runtime.sessions().bill().await.unwrap();
    assert_eq!(all.compaction.saved_tokens, one.saved_tokens + sums[2].saved_tokens);
    assert!(all.cost_microdollars > all.compaction.cost_microdollars, "{all:?}");
}

/// The run reaches its time limit, or is aborted, while a hook looks at a whole answer that only calls a tool.
#[tokio::test(start_paused = true)]
async fn what_an_answer_of_calls_cost_is_billed_although_its_run_was_over() {
    for is_aborted in [false, true] {
        let model = model();
        let runtime = builder(&model).start().await.unwrap();
        let looks = |_| async { tokio::time::sleep(Duration::from_secs(5)).await };
        let limit = (!is_aborted).then_some(Duration::from_secs(2));
        let session = runtime.open("s", &agent().after_model(looks).run_timeout(limit)).await.unwrap();
        let run = session.prompt("count it").start().await.unwrap();
        tokio::time::sleep(Duration::from_secs(2)).await;
        if is_aborted {
            session.abort();
        }
        let ended = run.reply().await;
        assert!(matches!(ended, Err(Error::Stopped { .. } | Error::Aborted)), "{ended:?}");
        assert_eq!(model.calls(), 1);
        let logged = logged(&runtime, "s").await;
        assert!(logged.0 > 0 && logged.1 > 0, "aborted: {is_aborted}: {logged:?}");
        assert_eq!(billed(&session).await, logged);
        // An abort by the program comes after the answer, whose call then does not run.
        let context = session.context().await.unwrap();
        let is_recorded = context.iter().any(|message| message.role() == "assistant");
        assert_eq!(is_recorded, is_aborted);
        model.assert_clean();
    }
}
