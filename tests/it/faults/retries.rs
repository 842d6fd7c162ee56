//! Retries: in one place, with increasing waits, as long as the provider requests and no longer than a
//! minute, and only if they can help.

use std::time::Duration;

use greenroom::Subscription;
use greenroom::prelude::*;
use greenroom_kernel::FailureClass;
use greenroom_kernel::run::RunLimits;
use greenroom_provider::{HttpProvider, ServerOptions};
use greenroom_simulator::{
    Answer as Said, Echo, Fault, Pace, Point, RetryAfter, Sequence, Simulator, SimulatorOptions,
};

use crate::support::{agent, builder, drain, names, runtime, simulator, store};

/// Each retry's attempt and wait, in milliseconds.
fn retries(events: &mut Subscription) -> Vec<(u32, u64)> {
    let wait = |event: &std::sync::Arc<Event>| match &event.kind {
        EventKind::Retry { attempt, delay_ms, .. } => Some((*attempt, *delay_ms)),
        _ => None,
    };
    drain(events).iter().filter_map(wait).collect()
}

/// One prompt against these faults and then a good answer: its end, and the waits.
async fn asked(faults: Vec<Fault>) -> (Result<Reply>, Vec<(u32, u64)>, Duration) {
    let mut script: Vec<Said> = faults.into_iter().map(Said::fault).collect();
    script.push(Said::text("fine"));
    let model = simulator(Sequence(script), 20_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("retries", &agent(20_000)).await.unwrap();
    let mut events = session.subscribe();
    let began = tokio::time::Instant::now();
    let reply = session.prompt("hello").await;
    let took = began.elapsed();
    model.assert_clean();
    (reply, retries(&mut events), took)
}

#[tokio::test(start_paused = true)]
async fn each_form_of_retry_after_is_obeyed_up_to_a_minute() {
    let forms = [
        (RetryAfter::Seconds(7), 7_000),
        (RetryAfter::Fraction(2_500), 2_500),
        (RetryAfter::Milliseconds(1_250), 1_250),
        (RetryAfter::Message(4_200), 4_200),
        (RetryAfter::Missing, 500),
        (RetryAfter::Garbage, 500),
        // The time of a full reset is not the time of the next possible request.
        (RetryAfter::ResetHeader(3_500), 500),
        (RetryAfter::Seconds(3_600), 60_000),
    ];
    for (form, wanted_ms) in forms {
        let (reply, waits, took) = asked(vec![Fault::RateLimited(form.clone())]).await;
        assert_eq!(reply.unwrap().text, "fine", "{form:?}");
        assert_eq!(waits.len(), 1, "{form:?}");
        let (attempt, waited_ms) = waits[0];
        assert_eq!(attempt, 1);
        // Up to a quarter more, so that many clients do not retry at once; never more than a minute.
        let most_ms = (wanted_ms + wanted_ms / 4).min(60_000);
        assert!((wanted_ms..=most_ms).contains(&waited_ms), "{form:?}: {waited_ms} ms");
        assert!(took >= Duration::from_millis(waited_ms), "{form:?}: {took:?}");
    }
    // Dates use the wall clock.
    let (reply, waits, _) = asked(vec![Fault::RateLimited(RetryAfter::Date(30))]).await;
    assert!(reply.is_ok());
    assert!((25_000..=40_000).contains(&waits[0].1), "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn waits_grow_and_attempts_are_limited() {
    let (reply, waits, _) = asked(vec![Fault::ServerError(503); 9]).await;
    let Err(Error::Model(failure)) = reply else { panic!("{reply:?}") };
    assert_eq!(failure.class, FailureClass::Overloaded);
    assert_eq!(waits.iter().map(|(attempt, _)| *attempt).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    for ((_, wait), least) in waits.iter().zip([500, 1_000, 2_000, 4_000, 8_000]) {
        assert!((least..=least + least / 4).contains(wait), "{waits:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_heal_is_not_tried_again() {
    let http = |status: u16, message: &str, code: &str| Fault::Http {
        status,
        headers: Vec::new(),
        body: serde_json::json!({ "error": { "message": message, "type": code, "code": code } }).to_string(),
    };
    let cases = [
        (http(401, "Incorrect API key provided", "invalid_api_key"), FailureClass::Auth),
        (http(403, "You are not allowed to use this model", "forbidden"), FailureClass::Auth),
        (
            http(429, "You exceeded your current quota, please check your plan", "insufficient_quota"),
            FailureClass::Quota,
        ),
        (http(400, "Invalid value for 'temperature'", "invalid_request_error"), FailureClass::Other),
    ];
    for (fault, class) in cases {
        let (reply, waits, took) = asked(vec![fault.clone()]).await;
        let Err(Error::Model(failure)) = reply else { panic!("{fault:?}: {reply:?}") };
        assert_eq!((failure.class, waits.len()), (class, 0), "{fault:?}: {failure:?}");
        assert!(took < Duration::from_secs(1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_can_be_aborted() {
    let script = vec![Said::fault(Fault::RateLimited(RetryAfter::Seconds(50))), Said::text("fine")];
    let model = simulator(Sequence(script), 20_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("abort", &agent(20_000)).await.unwrap();
    let prompt = tokio::spawn({
        let session = session.clone();
        async move { session.prompt("hello").await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let began = tokio::time::Instant::now();
    session.abort();
    assert!(matches!(prompt.await.unwrap(), Err(Error::Aborted)));
    assert!(began.elapsed() < Duration::from_millis(500));
    assert_eq!(model.calls(), 1);
    // The provider's requested wait still applies to the next prompt.
    assert_eq!(session.prompt("again").await.unwrap().text, "fine");
    assert!(began.elapsed() >= Duration::from_secs(45));
}

#[tokio::test(start_paused = true)]
async fn what_was_said_before_a_failure_is_void_and_never_in_the_log() {
    let broken = Said::text("one two three four five six seven eight")
        .with_pace(Pace { chunks: 8, first_ms: 10, between_ms: 10 })
        .with_fault(Fault::Reset(Point::MidStream));
    let model = simulator(Sequence(vec![broken, Said::text("whole")]), 20_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("void", &agent(20_000)).await.unwrap();
    let mut stream = session.prompt("count").stream();
    let mut said = String::new();
    let mut seen = Vec::new();
    let mut replies = 0;
    while let Some(item) = stream.next().await {
        match item.unwrap() {
            RunItem::Event(event) => seen.push(event.kind.name()),
            RunItem::Text(text) => said.push_str(&text),
            RunItem::Discarded => {
                assert!(!said.is_empty(), "something was said");
                said.clear();
            }
            RunItem::Reply(reply) => {
                assert_eq!(reply.text, "whole");
                replies += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(replies, 1);
    assert_eq!(said, "whole");
    let at =
        |name: &str| seen.iter().position(|seen| *seen == name).unwrap_or_else(|| panic!("{name}: {seen:?}"));
    assert!(
        at("message_start") < at("message_discarded") && at("message_discarded") < at("retry"),
        "{seen:?}"
    );
    let texts: Vec<String> = session.context().await.unwrap().iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["count", "whole"]);
}

#[tokio::test(start_paused = true)]
async fn a_model_that_says_nothing_is_asked_again_and_then_given_up() {
    let stall = Fault::Stall { at: Point::MidStream, ping_every_ms: None, for_ms: None };
    let script = vec![Said::fault(stall.clone()), Said::text("fine")];
    let model = simulator(Sequence(script), 20_000);
    let runtime = builder(&model).silence_max(Duration::from_secs(30)).start().await.unwrap();
    let session = runtime.open("stall", &agent(20_000)).await.unwrap();
    let mut events = session.subscribe();
    let began = tokio::time::Instant::now();
    assert_eq!(session.prompt("hello").await.unwrap().text, "fine");
    assert!((30..33).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert!(names(&mut events).contains(&"message_discarded"));
    assert_eq!(model.fired()["stall"], 1);

    let (reply, waits, took) = asked(vec![stall; 9]).await;
    let Err(Error::Model(failure)) = reply else { panic!("{reply:?}") };
    assert_eq!((failure.class, waits.len()), (FailureClass::Timeout, 5));
    assert!(took > Duration::from_secs(6 * 300), "five minutes of silence each: {took:?}");
}

/// Each wait for a loading server, in milliseconds.
fn loading(events: &mut Subscription) -> Vec<u64> {
    let wait = |event: &std::sync::Arc<Event>| match &event.kind {
        EventKind::Retry { delay_ms, failure, .. } if failure.class == FailureClass::Loading => {
            Some(*delay_ms)
        }
        _ => None,
    };
    drain(events).iter().filter_map(wait).collect()
}

#[tokio::test(start_paused = true)]
async fn a_server_that_loads_is_waited_for_and_seen_and_costs_no_retry() {
    // Two and a half minutes of loading, and then all retries of a run.
    for fault in [Fault::Loading, Fault::Refused] {
        let mut script = vec![Said::text("first")];
        script.extend(vec![Said::fault(fault.clone()); 17]);
        script.extend(vec![Said::fault(Fault::ServerError(500)); 5]);
        script.push(Said::text("second"));
        let model = simulator(Sequence(script), 20_000);
        let runtime = runtime(&model).await;
        let session = runtime.open("loads", &agent(20_000)).await.unwrap();
        session.prompt("one").await.unwrap();
        let mut events = session.subscribe();
        let began = tokio::time::Instant::now();
        assert_eq!(session.prompt("two").await.unwrap().text, "second", "{fault:?}");
        let took = began.elapsed();
        let waits = loading(&mut events);
        assert_eq!(waits.len(), 17, "{fault:?}: {waits:?}");
        let waited: u64 = waits.iter().sum();
        assert!((145_000..185_000).contains(&waited), "{fault:?}: {waits:?}");
        assert!(took >= Duration::from_millis(waited));
        assert_eq!(model.fired()[fault.name()], 17);
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_loads_for_ever_is_given_up_when_the_user_said() {
    for (loading_ms_max, at_least) in [(300_000, 300), (20_000, 20), (0, 0)] {
        let model = simulator(Sequence(vec![Said::fault(Fault::Loading); 99]), 20_000);
        let runtime = runtime(&model).await;
        let limits = RunLimits { loading_ms_max, ..RunLimits::default() };
        let session = runtime.open("loads", &agent(20_000).limits(limits)).await.unwrap();
        let began = tokio::time::Instant::now();
        let end = session.prompt("hello").await;
        let Err(Error::Model(failure)) = end else { panic!("{end:?}") };
        assert_eq!(failure.class, FailureClass::Loading);
        assert_eq!(failure.message, "the server is loading its model (503): Loading model");
        assert!((at_least..at_least + 2).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_was_never_reached_is_not_waited_for() {
    let (reply, waits, took) = asked(vec![Fault::Refused; 9]).await;
    let Err(Error::Model(failure)) = reply else { panic!("{reply:?}") };
    assert_eq!((failure.class, waits.len()), (FailureClass::Timeout, 5));
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn the_wait_for_a_loading_server_can_be_aborted() {
    let model = simulator(Sequence(vec![Said::fault(Fault::Loading); 99]), 20_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("loads", &agent(20_000)).await.unwrap();
    let mut events = session.subscribe();
    let began = tokio::time::Instant::now();
    let handle = session.clone();
    let run = tokio::spawn(async move { handle.prompt("hello").await });
    tokio::time::sleep(Duration::from_secs(42)).await;
    session.abort();
    let end = run.await.unwrap();
    assert!(matches!(end, Err(Error::Aborted)), "{end:?}");
    assert_eq!(began.elapsed().as_secs(), 42);
    assert!(loading(&mut events).len() >= 5);
}

#[tokio::test]
async fn a_server_that_closes_each_connection_costs_no_retry() {
    for closes_after_ms in [0, 1, 5] {
        let options = SimulatorOptions {
            window: 20_000,
            closes_after_ms: Some(closes_after_ms),
            ..SimulatorOptions::new(Echo)
        };
        let model = Simulator::new(options);
        let server = model.serve().await.unwrap();
        let provider =
            HttpProvider::new(ServerOptions { base_url: server.base_url(), ..Default::default() }).unwrap();
        let runtime =
            Runtime::builder().provider(std::sync::Arc::new(provider)).engine(store()).start().await.unwrap();
        let session = runtime.open("closed", &agent(20_000)).await.unwrap();
        let mut events = session.subscribe();
        for number in 0..40 {
            session.prompt(format!("prompt {number}")).await.unwrap();
        }
        assert_eq!(retries(&mut events), [], "closed after {closes_after_ms} ms");
    }
}
