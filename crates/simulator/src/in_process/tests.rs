//! The provider in this process: answers, faults and time.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use greenroom_provider::Purpose;
use serde_json::json;
use tokio::time::Instant;

use super::*;
use crate::{
    Answer, ByPurpose, Echo, ErrorDialect, Fault, FaultPlan, Pace, Point, RetryAfter, Sequence,
    SimulatorOptions, Summariser,
};

fn request(session: &str, text: &str) -> Request {
    Request {
        model: "m".to_owned(),
        system: Some("Be brief.".to_owned()),
        messages: vec![Arc::new(Message::user(text))].into(),
        tools: Arc::new([]),
        settings: greenroom_provider::ModelSettings::default(),
        output_schema: None,
        purpose: Purpose::Step,
        session: session.to_owned(),
    }
}

/// Collects all events up to the end or the error.
async fn run(
    simulator: &Simulator,
    request: Request,
) -> Result<(Vec<ReplyEvent>, AssistantMessage), ProviderError> {
    let mut stream = simulator.provider().stream(request).await?;
    let mut events = Vec::new();
    let mut whole = None;
    while let Some(event) = stream.next().await {
        assert!(whole.is_none(), "nothing follows the end");
        match event? {
            ReplyEvent::Done(message) => whole = Some(*message),
            event @ (ReplyEvent::Text(_) | ReplyEvent::Reasoning(_) | ReplyEvent::ToolCall { .. } | _) => {
                events.push(event);
            }
        }
    }
    Ok((events, whole.expect("a stream ends with a message or an error")))
}

#[tokio::test(start_paused = true)]
async fn pieces_add_up_to_the_whole_at_the_scripted_pace() {
    let reply = Answer::text("Let me look.")
        .with_reasoning("Where is it?")
        .and_call("read", &json!({ "path": "a" }))
        .with_pace(Pace { chunks: 2, first_ms: 1_000, between_ms: 100 });
    let simulator = Simulator::new(SimulatorOptions::new(Sequence(vec![reply])));
    let start = Instant::now();
    let (events, message) = run(&simulator, request("s", "go")).await.unwrap();
    assert_eq!(start.elapsed().as_millis(), 1_000 + 100 * (events.len() as u128 - 1));
    let text: String = events
        .iter()
        .filter_map(|event| if let ReplyEvent::Text(text) = event { Some(text.as_str()) } else { None })
        .collect();
    assert_eq!(text, "Let me look.");
    assert_eq!(message.text(), text);
    assert_eq!(message.stop, StopReason::ToolCalls);
    assert_eq!(message.tool_calls().next().unwrap().arguments, r#"{"path":"a"}"#);
    let usage = message.usage.unwrap();
    assert_eq!(usage.input_tokens, simulator.requests()[0].request.tokens);
    assert!(usage.output_tokens > usage.reasoning_tokens && usage.reasoning_tokens > 0);
    simulator.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn the_same_conversation_counts_the_same_over_http() {
    let options =
        || SimulatorOptions::new(Sequence(vec![Answer::text("x").and_call("read", &json!({ "path": "a" }))]));
    let inside = Simulator::new(options());
    let (_, message) = run(&inside, request("s", "Read a, please.")).await.unwrap();
    let body = json!({ "model": "m", "prompt_cache_key": "s", "messages": [
        { "role": "system", "content": "Be brief." }, { "role": "user", "content": "Read a, please." } ] });
    let wire: wire::WireRequest = serde_json::from_value(body).unwrap();
    let outside = Simulator::new(options());
    let (seen, _, broken) = wire.into_seen(wire::FromHeaders::default(), wire::Extra::default(), 0);
    let (answer, _flight) = outside.begin(seen, broken);
    let Transmission::Stream(steps) = answer else { panic!("a stream") };
    assert_eq!(outside.requests()[0].request.tokens, inside.requests()[0].request.tokens);
    assert!(steps.contains(&Step::Piece(Piece::Usage(message.usage.unwrap()))));
    let id = message.tool_calls().next().unwrap().id.clone();
    assert!(steps.contains(&Step::Piece(Piece::CallStart { index: 0, id: Some(id), name: "read".into() })));
}

#[tokio::test(start_paused = true)]
async fn the_window_is_real() {
    let simulator = Simulator::new(SimulatorOptions { window: 100, ..SimulatorOptions::new(Echo) });
    run(&simulator, request("s", "small")).await.unwrap();
    let error = run(&simulator, request("s", &"word ".repeat(200))).await.unwrap_err();
    assert_eq!(error.failure.class, FailureClass::ContextOverflow);
    assert!(error.body.contains("maximum context length is 100 tokens"), "{}", error.body);
    let silent =
        SimulatorOptions { window: 100, error_dialect: ErrorDialect::Silent, ..SimulatorOptions::new(Echo) };
    let (_, message) = run(&Simulator::new(silent), request("s", &"word ".repeat(200))).await.unwrap();
    assert!(message.usage.unwrap().input_tokens > 100);
    assert_eq!(message.stop, StopReason::Length);
    let empty = SimulatorOptions {
        window: 100,
        error_dialect: ErrorDialect::LlamaCppPython,
        ..SimulatorOptions::new(Echo)
    };
    let error = run(&Simulator::new(empty), request("s", &"word ".repeat(200))).await.unwrap_err();
    assert!(error.is_overflow_candidate());
}

/// Checks one fault in-process: the failure class, or `None` if the answer still arrives.
async fn check_fault(fault: Fault, expected: Option<FailureClass>) {
    let name = fault.name();
    let reply = Answer::text("one two three").and_call("read", &json!({ "path": "a" })).with_fault(fault);
    let simulator = Simulator::new(SimulatorOptions::new(Sequence(vec![reply])));
    let waited = tokio::time::timeout(Duration::from_secs(60), run(&simulator, request("s", "go"))).await;
    let class = match waited {
        Err(_) => Some(FailureClass::Timeout),
        Ok(result) => result.err().map(|error| error.failure.class),
    };
    assert_eq!(class, expected, "{name}");
    assert_eq!(simulator.fired().get(name), Some(&1), "{name}");
    assert_eq!(simulator.in_flight(), 0, "{name}");
}

#[tokio::test(start_paused = true)]
async fn ids_are_made_unique_and_waits_are_read() {
    for fault in [Fault::DoubledIds, Fault::MissingIds] {
        let call = json!({ "path": "a" });
        let reply = Answer::call("read", &call).and_call("read", &call).with_fault(fault);
        let simulator = Simulator::new(SimulatorOptions::new(Sequence(vec![reply])));
        let (_, message) = run(&simulator, request("s", "go")).await.unwrap();
        let ids: Vec<&str> = message.tool_calls().map(|call| call.id.as_str()).collect();
        assert!(ids.len() == 2 && ids[0] != ids[1] && !ids[0].is_empty(), "{ids:?}");
    }
    for (form, expected) in [
        (RetryAfter::Missing, 0..=0),
        (RetryAfter::Seconds(7), 7_000..=7_000),
        (RetryAfter::Fraction(1_500), 1_500..=1_500),
        (RetryAfter::Date(60), 55_000..=60_000),
        (RetryAfter::Milliseconds(250), 250..=250),
        (RetryAfter::Message(1_200), 1_200..=1_200),
        (RetryAfter::Garbage, 0..=0),
    ] {
        let reply = Answer::fault(Fault::RateLimited(form.clone()));
        let simulator = Simulator::new(SimulatorOptions::new(Sequence(vec![reply])));
        let error = run(&simulator, request("s", "go")).await.unwrap_err();
        let waits_ms = error.failure.retry_after_ms.unwrap_or(0);
        assert!(expected.contains(&waits_ms), "{form:?}: {waits_ms}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_fault_in_process() {
    use FailureClass::{Loading, Malformed, Other, Overloaded, PayloadTooLarge, RateLimited, Timeout};
    for fault in Fault::every_kind() {
        let class = match &fault {
            Fault::RateLimited(_) | Fault::EmptyBody(429) => Some(RateLimited),
            Fault::EmptyBody(413) => Some(PayloadTooLarge),
            Fault::EmptyBody(400) => Some(Other),
            Fault::ServerError(_) | Fault::EmptyBody(_) | Fault::ErrorIn200 | Fault::ErrorEvent => {
                Some(Overloaded)
            }
            Fault::Loading => Some(Loading),
            Fault::Reset(_) | Fault::Refused | Fault::Stall { .. } => Some(Timeout),
            Fault::EofBeforeFinish
            | Fault::EmptyStream
            | Fault::MalformedSse
            | Fault::BadUtf8
            | Fault::PlainTextLine(_) => Some(Malformed),
            Fault::EofWithoutDone
            | Fault::TruncatedArguments
            | Fault::DoubledArguments
            | Fault::DoubledIds
            | Fault::MissingIds
            | Fault::Usage(_)
            | Fault::SilentTruncation => None,
            Fault::Http { .. } | Fault::Overflow(_) => continue,
        };
        check_fault(fault, class).await;
    }
    check_fault(Fault::Stall { at: Point::MidStream, ping_every_ms: Some(10), for_ms: Some(5_000) }, None)
        .await;
}

#[tokio::test(start_paused = true)]
async fn under_a_fault_plan_every_reply_comes_in_the_end() {
    let mut fired = 0;
    for seed in 0..20 {
        let replies: Vec<Answer> = (0..10).map(|number| Answer::text(format!("reply {number}"))).collect();
        let options = SimulatorOptions {
            faults: Some(FaultPlan::new(seed, 0.4)),
            ..SimulatorOptions::new(Sequence(replies))
        };
        let simulator = Simulator::new(options);
        let mut heard = Vec::new();
        for _ in 0..200 {
            if heard.len() == 10 {
                break;
            }
            let asked = run(&simulator, request("s", "next"));
            if let Ok(Ok((_, message))) = tokio::time::timeout(Duration::from_secs(60), asked).await {
                heard.push(message.text());
            }
        }
        let expected: Vec<String> = (0..10).map(|number| format!("reply {number}")).collect();
        assert_eq!(heard, expected, "seed {seed}: {:?}", simulator.fired());
        fired += simulator.fired().values().sum::<u64>();
    }
    assert!(fired > 50, "{fired}");
}

#[tokio::test(start_paused = true)]
async fn sessions_have_their_own_sequence_and_summaries_do_not_count() {
    let script =
        ByPurpose::new(Sequence(vec![Answer::text("first"), Answer::text("second")]), Summariser::Lossy);
    let simulator = Simulator::new(SimulatorOptions::new(script));
    let say = async |session: &str| run(&simulator, request(session, "go")).await.unwrap().1.text();
    assert_eq!(say("a").await, "first");
    assert_eq!(say("b").await, "first");
    let summary = Request { purpose: Purpose::Summary, ..request("a", "<conversation>x</conversation>") };
    assert!(run(&simulator, summary).await.unwrap().1.text().starts_with("## Goal"));
    assert_eq!(say("a").await, "second");
    assert_eq!(say("a").await, "(the script has ended)");
    assert_eq!(simulator.calls(), 5);
}

#[tokio::test(start_paused = true)]
async fn calls_in_flight_are_counted_and_dropping_ends_them() {
    let simulator =
        Simulator::new(SimulatorOptions::new(Sequence(vec![Answer::text("slow").after_ms(1_000)])));
    let provider = simulator.provider();
    let streams = [provider.stream(request("a", "x")), provider.stream(request("b", "x"))];
    let streams = futures_util::future::join_all(streams).await;
    assert_eq!((simulator.in_flight(), simulator.in_flight_max()), (2, 2));
    drop(streams);
    assert_eq!((simulator.in_flight(), simulator.in_flight_max()), (0, 2));
    assert!(simulator.requests().iter().all(|logged| logged.ended.is_some()));
}

#[tokio::test(start_paused = true)]
async fn a_broken_request_fails_the_assertion() {
    let simulator = Simulator::new(SimulatorOptions::new(Echo));
    let error = run(&simulator, request("s", " ")).await.unwrap_err();
    assert_eq!(error.failure.status, Some(400));
    assert_eq!(simulator.violations().len(), 1);
    let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| simulator.assert_clean()));
    let message = *checked.unwrap_err().downcast::<String>().unwrap();
    assert!(message.contains("an empty message"), "{message}");
}
