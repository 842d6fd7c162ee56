//! The order of calls when many sessions share a provider, and what waiting callers are told.

use std::time::Duration;

use futures_util::future::join_all;
use greenroom::Subscription;
use greenroom::prelude::*;
use greenroom::provider::Purpose;
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Function, SeenRequest, Simulator, Summariser,
};
use serde_json::json;

use crate::compaction_fixtures::text;
use crate::support::{agent, builder, drain, simulator, store};

/// How long each answer takes.
const ANSWER_MS: u64 = 100;

/// Returns a slow model that calls the tool `helper` as often as the prompt's number says.
fn slow_model() -> Simulator {
    let step = |request: &SeenRequest, _: CallInfo| {
        let is_done = request.messages.last().is_some_and(|message| message.role() == "tool");
        let calls = match request.last_user_text().as_str() {
            "help" => 1,
            text => text.parse().unwrap_or(0),
        };
        let said = match calls {
            1.. if request.has_tool("helper") && !is_done => {
                let call = || json!({ "task": "help" });
                (1..calls).fold(Said::call("helper", &call()), |said, _| said.and_call("helper", &call()))
            }
            _ if request.last_user_text() == "say much" => Said::text(text("much", 12_000)),
            _ => Said::text("done"),
        };
        said.after_ms(ANSWER_MS)
    };
    let summary = |request: &SeenRequest, call: CallInfo| {
        greenroom_simulator::Script::reply(&Summariser::Obedient, request, call).after_ms(ANSWER_MS)
    };
    simulator(ByPurpose::new(Function(step), Function(summary)), 100_000)
}

/// Returns the requests in order: the session, and `+` for a summary.
fn asked(model: &Simulator) -> Vec<String> {
    let shown = |request: &SeenRequest| {
        let mark = if request.purpose == Purpose::Summary { "+" } else { "" };
        format!("{}{mark}", request.session.clone().unwrap_or_default())
    };
    model.requests().iter().map(|logged| shown(&logged.request)).collect()
}

async fn until(events: &mut Subscription, wanted: impl Fn(&Event) -> bool) {
    let come = async { while !wanted(&events.next_event().await.unwrap()) {} };
    tokio::time::timeout(Duration::from_secs(600), come).await.expect("it comes");
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_place_is_told_where_it_stands_and_how_long_it_took() {
    let model = slow_model();
    let runtime = builder(&model).in_flight_max(1).start().await.unwrap();
    let mut all = runtime.subscribe(Filter::all().kinds([EventType::QueueUpdate]));
    let mut sessions = Vec::new();
    for id in ["a", "b", "c"] {
        sessions.push(runtime.open(id, agent(100_000)).await.unwrap());
    }
    let mut runs = Vec::new();
    for session in &sessions {
        runs.push(session.prompt("hello").start().await.unwrap());
        // It queues before the next one does.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for run in runs {
        run.reply().await.unwrap();
    }
    let events = drain(&mut all);
    let of = |id: &str| {
        let own = events.iter().filter(|event| *event.session == *id);
        own.map(|event| serde_json::to_value(&event.kind).unwrap()).collect::<Vec<_>>()
    };
    assert!(of("a").is_empty(), "it did not wait");
    let wait = |position: u64, waited_ms: u64| {
        json!({
            "type": "queue_update", "provider": "simulator", "is_summary": false, "reason": "slots",
            "position": position, "waited_ms": waited_ms,
        })
    };
    assert_eq!(of("b"), [wait(1, 0), wait(0, ANSWER_MS - 1)]);
    assert_eq!(of("c"), [wait(2, 0), wait(0, 2 * ANSWER_MS - 2)]);
    assert!(events.iter().all(|event| event.run.is_some()), "they belong to their runs");
    model.assert_clean();
}

/// Forty calls of one session's sub-agents are in the queue: another session waits for one of them and not
/// for all. The sub-agents of sub-agents belong to the same family.
#[tokio::test(start_paused = true)]
async fn a_session_with_many_calls_does_not_starve_a_quiet_one() {
    for depth in [1, 2] {
        let model = slow_model();
        let runtime = builder(&model).in_flight_max(1).start().await.unwrap();
        let mut events = runtime.subscribe(Filter::all().kinds([EventType::QueueUpdate]));
        // One in the middle passes its task on.
        let helper = |helper| agent(100_000).sub_agent(sub_agent("helper", helper).parallel(40));
        let boss = (0..depth).fold(agent(100_000), |below, _| helper(below));
        let busy = runtime.open("busy", boss).await.unwrap();
        let quiet = runtime.open("quiet", agent(100_000)).await.unwrap();
        let run = busy.prompt("40").start().await.unwrap();
        until(&mut events, |event| matches!(event.kind, EventKind::QueueUpdate { position: 30.., .. })).await;
        let before = model.calls();
        quiet.prompt("hello").await.unwrap();
        let between = model.calls() - before;
        assert!(between <= 3, "{between} calls of the busy one came before the quiet one's");
        run.reply().await.unwrap();
        assert!(model.calls() > 40, "{} calls", model.calls());
        model.assert_clean();
    }
}

/// Five sessions talk, and the context of a sixth is due to be compacted after its run.
async fn compacting_beside_others(speaks_again: bool) -> Vec<String> {
    let model = slow_model();
    let runtime = builder(&model).in_flight_max(1).start().await.unwrap();
    let compactions = || Filter::all().kinds([EventType::CompactionStart, EventType::CompactionEnd]);
    let (mut starts, mut ends) = (runtime.subscribe(compactions()), runtime.subscribe(compactions()));
    let long = runtime.open("long", agent(20_000)).await.unwrap();
    let mut others = Vec::new();
    for number in 0..5 {
        others.push(runtime.open(&format!("other-{number}"), agent(100_000)).await.unwrap());
    }
    long.prompt(text("first", 2_000)).await.unwrap();
    let run = long.prompt("say much").start().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1)).await;
    let talk = others.into_iter().map(|other| async move {
        for _ in 0..3 {
            other.prompt("hello").await.unwrap();
        }
    });
    let talk = tokio::spawn(join_all(talk));
    run.reply().await.unwrap();
    until(&mut starts, |event| matches!(event.kind, EventKind::CompactionStart { .. })).await;
    if speaks_again {
        long.prompt("third").await.unwrap();
    }
    talk.await.unwrap();
    until(&mut ends, |event| matches!(event.kind, EventKind::CompactionEnd(_))).await;
    model.assert_clean();
    asked(&model)
}

#[tokio::test(start_paused = true)]
async fn a_compaction_that_nobody_waits_for_lets_all_others_go_first() {
    let asked = compacting_beside_others(false).await;
    let summary = asked.iter().position(|asked| asked == "long+").expect("it was compacted");
    let before = asked[..summary].iter().filter(|asked| asked.starts_with("other")).count();
    assert_eq!(before, 15, "{asked:?}");
}

/// The prompt that arrives meanwhile waits for the compaction, so the compaction has a waiting caller.
#[tokio::test(start_paused = true)]
async fn a_compaction_that_a_prompt_waits_for_comes_in_its_turn() {
    let asked = compacting_beside_others(true).await;
    let summary = asked.iter().position(|asked| asked == "long+").expect("it was compacted");
    let before = asked[..summary].iter().filter(|asked| asked.starts_with("other")).count();
    assert!((5..=8).contains(&before), "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_limit_of_tokens_a_minute_holds_calls_back() {
    let model = slow_model();
    let runtime = builder(&model).tokens_per_minute(6_000).start().await.unwrap();
    let mut events = runtime.subscribe(Filter::all().kinds([EventType::QueueUpdate]));
    let first = runtime.open("first", agent(100_000)).await.unwrap();
    let second = runtime.open("second", agent(100_000)).await.unwrap();
    let began = tokio::time::Instant::now();
    first.prompt(text("first", 4_000)).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "there was room");
    second.prompt(text("second", 4_000)).await.unwrap();
    let took = began.elapsed().as_secs();
    assert!((15..40).contains(&took), "2,000 more than there were, at 100 a second: {took} s");
    let told: Vec<_> = drain(&mut events).iter().map(|event| serde_json::to_value(event).unwrap()).collect();
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told.iter().all(|told| told["session_id"] == "second" && told["reason"] == "tokens"), "{told:?}");
    assert_eq!((&told[0]["position"], &told[1]["position"]), (&json!(1), &json!(0)));
    assert!(told[1]["waited_ms"].as_u64() > Some(15_000), "{told:?}");

    // One that gives up returns its tokens.
    let third = runtime.open("third", agent(100_000)).await.unwrap();
    let run = third.prompt(text("third", 5_500)).start().await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    run.abort();
    tokio::time::sleep(Duration::from_secs(60)).await;
    let began = tokio::time::Instant::now();
    first.prompt("short").await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    model.assert_clean();
}

/// A provider whose own limit is used up for a while after its first call.
struct Limited {
    inner: std::sync::Arc<dyn greenroom::provider::Provider>,
    full_again: std::sync::Mutex<Option<tokio::time::Instant>>,
}

impl greenroom::provider::Provider for Limited {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn stream(
        &self,
        request: greenroom::provider::Request,
    ) -> greenroom::futures_util::future::BoxFuture<
        'static,
        Result<greenroom::provider::ReplyStream, greenroom::provider::ProviderError>,
    > {
        let full_again = tokio::time::Instant::now() + Duration::from_secs(20);
        self.full_again.lock().unwrap().get_or_insert(full_again);
        self.inner.stream(request)
    }

    fn limited_for(&self) -> Option<Duration> {
        let wait = (*self.full_again.lock().unwrap())?.saturating_duration_since(tokio::time::Instant::now());
        Some(wait).filter(|wait| !wait.is_zero())
    }
}

/// A limit that the provider's answers show as used up holds back the calls of all sessions, until it is full again.
#[tokio::test(start_paused = true)]
async fn a_used_up_limit_of_the_provider_holds_calls_back() {
    let model = slow_model();
    let limited = Limited { inner: model.provider(), full_again: std::sync::Mutex::new(None) };
    let builder = Runtime::builder().provider(std::sync::Arc::new(limited)).engine(store());
    let runtime = builder.start().await.unwrap();
    let mut events = runtime.subscribe(Filter::all().kinds([EventType::QueueUpdate]));
    let (one, two) =
        (runtime.open("a", agent(100_000)).await.unwrap(), runtime.open("b", agent(100_000)).await.unwrap());
    let began = tokio::time::Instant::now();
    one.prompt("hello").await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "there was room");
    two.prompt("hello").await.unwrap();
    let waited = began.elapsed();
    assert!(waited >= Duration::from_secs(20) && waited < Duration::from_secs(21), "{waited:?}");
    one.prompt("hello").await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(22), "it is full again");
    let reasons: Vec<_> = drain(&mut events)
        .iter()
        .map(|event| serde_json::to_value(&event.kind).unwrap()["reason"].clone())
        .collect();
    assert_eq!(reasons, ["paused", "paused"], "the begin and the end of one wait");
    model.assert_clean();
}
