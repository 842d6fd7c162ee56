//! A prompt as a request: typed, timed, streamed; and a stream that carries its own run.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use greenroom::RunOutcome;
use greenroom::prelude::*;
use greenroom_simulator::{Answer as Said, Fault, Pace, Point, Sequence, Simulator, SimulatorOptions};
use serde_json::{Value, json};

use crate::support::{agent, runtime, simulator};

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct City {
    name: String,
    rain: u32,
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[tokio::test(start_paused = true)]
async fn nothing_is_said_before_it_is_awaited() {
    let model = simulator(Sequence(vec![Said::text("one")]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let request = session.prompt("a");
    let stream = session.prompt("b").stream();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((session.state().await.unwrap().entries, model.calls()), (0, 0));
    drop(stream);
    assert_eq!(request.await.unwrap().text, "one");
    assert!(matches!(session.prompt("  ").await, Err(Error::EmptyPrompt)));
    for key in ["", " \n"] {
        assert!(matches!(session.prompt("c").once(key).await, Err(Error::EmptyKey)), "{key:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_may_be_typed_keyed_and_timed_at_once_and_so_may_a_resumed_one() {
    let answer = r#"{"name":"Bergen","rain":2250}"#;
    let slow = Said::text("a late one").after_ms(60_000);
    let model = simulator(Sequence(vec![Said::text(answer), slow, Said::text(answer)]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let wanted = City { name: "Bergen".into(), rain: 2250 };
    let request = || session.prompt("where?").once("k").output::<City>().timeout(Duration::from_secs(5));
    let first = request().await.unwrap();
    assert_eq!((&first.value, first.reply.steps), (&wanted, 1));
    assert_eq!(request().await.unwrap(), first, "the first reply again, as the type");
    assert_eq!(model.calls(), 1);
    let late = session.prompt("and now?").timeout(Duration::from_secs(5)).await;
    assert!(matches!(late, Err(Error::TimedOut { .. })));
    assert_eq!(session.resume().output::<City>().await.unwrap().value, wanted);
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn what_takes_too_long_is_aborted_and_what_had_come_is_kept() {
    let slow =
        Said::text("one two three four").with_pace(Pace { chunks: 4, first_ms: 10, between_ms: 4_000 });
    let model = simulator(Sequence(vec![slow, Said::text("fine")]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let mut events = session.subscribe();
    let timed = session.prompt("a").timeout(Duration::from_secs(5));
    let waits = session.prompt("never said").timeout(Duration::from_secs(2));
    let (timed, waits) = tokio::join!(timed, async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        waits.await
    });
    assert!(
        matches!(timed, Err(Error::TimedOut { timeout }) if timeout == Duration::from_secs(5)),
        "{timed:?}"
    );
    assert!(
        matches!(waits, Err(Error::TimedOut { timeout }) if timeout == Duration::from_secs(2)),
        "{waits:?}"
    );
    for (error, expected) in [
        (timed.unwrap_err(), "no reply came within 5s; "),
        (Error::TimedOut { timeout: Duration::ZERO }, "no reply came within 0s; "),
    ] {
        assert!(error.to_string().starts_with(expected), "{error}");
    }
    let ended = crate::support::drain(&mut events).into_iter().find_map(|event| match &event.kind {
        EventKind::RunEnd { outcome, .. } => Some(outcome.clone()),
        _ => None,
    });
    assert_eq!(ended, Some(RunOutcome::Aborted), "when the error is told, the run has ended");
    let texts: Vec<String> = session.context().await.unwrap().iter().map(|message| message.text()).collect();
    assert_eq!(texts, ["a", "one two th"], "what waited was never said");
    assert_eq!(session.prompt("b").timeout(Duration::from_secs(5)).await.unwrap().text, "fine");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_stream_on_a_busy_session_carries_its_own_run_only() {
    let slow = |text: &str| Said::text(text).with_pace(Pace { chunks: 3, first_ms: 500, between_ms: 500 });
    let script = vec![slow("the answer to ONE"), Said::call("look", &json!({})), slow("the answer to TWO")];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let looker = agent(100_000).tool("look", |_: Nothing| async move { Ok("nothing there") });
    let session = runtime.open("s", &looker).await.unwrap();
    let one = tokio::spawn({
        let session = session.clone();
        async move { session.prompt("ONE").await }
    });
    tokio::time::sleep(Duration::from_millis(700)).await;
    let mut stream = session.prompt("TWO").stream();
    let (mut text, mut names, mut replies) = (String::new(), Vec::new(), Vec::new());
    while let Some(item) = stream.try_next().await.unwrap() {
        match item {
            RunItem::Text(piece) => text.push_str(&piece),
            RunItem::Event(event) => names.push(event.kind.event_type()),
            RunItem::Reply(reply) => replies.push(reply),
            other => panic!("{other:?}"),
        }
    }
    assert!(StreamExt::next(&mut stream).await.is_none(), "it stays over");
    assert_eq!(one.await.unwrap().unwrap().text, "the answer to ONE");
    assert_eq!((text.as_str(), replies.len()), ("the answer to TWO", 1));
    assert_eq!(replies[0].text, "the answer to TWO");
    names.retain(|name| !matches!(name, EventType::MessageDelta | EventType::UsageUpdate));
    let count = |wanted: EventType| names.iter().filter(|name| **name == wanted).count();
    assert_eq!(names[..3], [EventType::MessageEnd, EventType::RunStart, EventType::StepStart], "{names:?}");
    assert_eq!(names.last(), Some(&EventType::RunEnd));
    assert_eq!(
        (count(EventType::RunEnd), count(EventType::MessageEnd), count(EventType::ToolEnd)),
        (1, 4, 1)
    );
    model.assert_clean();
}

/// Two tabs, one session: each shows its own answer, whichever arrives first.
#[tokio::test(start_paused = true)]
async fn two_streams_at_the_same_time_do_not_mix() {
    let paced = |text: &str| Said::text(text).with_pace(Pace { chunks: 5, first_ms: 1, between_ms: 5 });
    let model = simulator(Sequence(vec![paced("first first first"), paced("second second second")]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let read = |prompt: &'static str| {
        let mut stream = session.prompt(prompt).stream();
        async move {
            let mut text = String::new();
            while let Some(piece) = stream.next_text().await {
                piece.apply(&mut text);
            }
            (text, stream.reply().await.unwrap().text)
        }
    };
    let (one, two) = tokio::join!(read("one"), read("two"));
    assert_eq!(one, ("first first first".into(), "first first first".into()));
    assert_eq!(two, ("second second second".into(), "second second second".into()));
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_typed_stream_tells_the_value_as_it_grows() {
    let text = r#"{"name":"Bergen on the coast","rain":2250}"#;
    let paced = Said::text(text).with_pace(Pace { chunks: 12, first_ms: 1, between_ms: 5 });
    let model =
        simulator(Sequence(vec![paced, Said::text("no"), Said::text("no"), Said::text("no idea")]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let mut stream = session.prompt("where?").output::<City>().stream();
    let (mut values, mut typed) = (Vec::<Value>::new(), None);
    while let Some(item) = stream.try_next().await.unwrap() {
        match item {
            RunItem::Partial(value) => values.push(value),
            RunItem::Reply(reply) => typed = Some(reply),
            _ => {}
        }
    }
    let typed: Typed<City> = typed.unwrap();
    assert_eq!(typed.value, City { name: "Bergen on the coast".into(), rain: 2250 });
    assert!(values.len() >= 4, "{values:?}");
    assert_eq!(values.last(), Some(&json!({ "name": "Bergen on the coast", "rain": 2250 })));
    let names: Vec<&str> = values.iter().filter_map(|value| value["name"].as_str()).collect();
    assert!(names.windows(2).all(|pair| pair[1].starts_with(pair[0])) && names[0].len() < 10, "{names:?}");
    let mut stream = session.prompt("and?").output::<City>().stream();
    let mut last = None;
    while let Some(item) = stream.next().await {
        last = Some(item);
    }
    assert!(matches!(last, Some(Err(Error::Output { .. }))), "{last:?}");
}

#[tokio::test(start_paused = true)]
async fn dropping_a_stream_cancels_its_run() {
    let slow = Said::text("one two three").with_pace(Pace { chunks: 3, first_ms: 10, between_ms: 60_000 });
    let model = simulator(Sequence(vec![slow, Said::text("fine")]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let mut stream = session.prompt("a").stream();
    assert_eq!(stream.next_text().await, Some(greenroom::TextPiece::More("one t".into())));
    drop(stream);
    assert_eq!(session.prompt("b").await.unwrap().text, "fine");
    assert_eq!(model.in_flight(), 0);
    model.assert_clean();
}

/// Returns a model whose answers may be of any length.
fn talkative(script: Vec<Said>) -> Simulator {
    let options = SimulatorOptions::new(Sequence(script));
    Simulator::new(SimulatorOptions { window: 10_000_000, max_output: 5_000_000, ..options })
}

/// A reader that pauses loses nothing: the model waits for it.
#[tokio::test(start_paused = true)]
async fn a_slow_reader_of_a_stream_loses_nothing() {
    let text = "0123456789".repeat(300_000);
    let pace = Pace { chunks: 3_000, first_ms: 1, between_ms: 1 };
    let model = talkative(vec![Said::text(text.clone()).with_pace(pace)]);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(10_000_000)).await.unwrap();
    let mut stream = session.prompt("a").stream();
    let mut said = String::new();
    for _ in 0..3 {
        let piece = stream.next_text().await.unwrap();
        piece.apply(&mut said);
    }
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(
        model.in_flight(),
        1,
        "after ten minutes the model is still read, at the pace of who reads it"
    );
    while let Some(item) = stream.next().await {
        match item.unwrap() {
            RunItem::Text(piece) => said.push_str(&piece),
            RunItem::Gap { .. } => panic!("a gap after {} bytes", said.len()),
            _ => {}
        }
    }
    assert!(said == text, "{} of {} bytes came", said.len(), text.len());
    model.assert_clean();
}

/// A stream whose reader stops reading can still be aborted, and a reader that goes away ends the run.
#[tokio::test(start_paused = true)]
async fn a_reader_who_never_reads_can_be_aborted() {
    let text = "0123456789".repeat(300_000);
    let pace = Pace { chunks: 3_000, first_ms: 1, between_ms: 1 };
    let endless = Said::text(text).with_pace(pace);
    let model = talkative(vec![endless.clone(), endless, Said::text("fine")]);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(10_000_000)).await.unwrap();
    let mut stream = session.prompt("a").stream();
    stream.next_text().await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(model.in_flight(), 1, "it waits");
    session.abort();
    assert!(matches!(stream.reply().await, Err(Error::Aborted)));
    let mut stream = session.prompt("b").stream();
    stream.next_text().await.unwrap();
    tokio::time::sleep(Duration::from_secs(600)).await;
    drop(stream);
    assert_eq!(session.prompt("c").await.unwrap().text, "fine");
    model.assert_clean();
}

/// After a retry no void text stays, and two messages of a run are separated.
#[tokio::test(start_paused = true)]
async fn the_text_of_a_stream_is_what_is_recorded() {
    let pace = Pace { chunks: 6, first_ms: 1, between_ms: 1 };
    let broken =
        Said::text("The quick brown fox jumps").with_pace(pace).with_fault(Fault::Reset(Point::MidStream));
    let script = vec![
        Said::text("Let me look.").with_pace(pace).and_call("look", &json!({})),
        broken.clone(),
        broken,
        Said::text("The quick brown fox jumps").with_pace(pace),
    ];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let looker = agent(100_000).tool("look", |_: Nothing| async move { Ok("it rains") });
    let session = runtime.open("s", &looker).await.unwrap();
    let mut stream = session.prompt("a").stream();
    let (mut text, mut printed, mut restarts) = (String::new(), String::new(), 0);
    while let Some(piece) = stream.next_text().await {
        restarts += u32::from(matches!(piece, greenroom::TextPiece::Restart { .. }));
        piece.apply(&mut text);
        printed.push_str(&piece.to_string());
    }
    assert_eq!(text, "Let me look.\n\nThe quick brown fox jumps");
    assert_eq!(restarts, 2);
    assert!(printed.contains("[the answer begins again]\n"), "{printed:?}");
    assert_eq!(stream.reply().await.unwrap().text, "The quick brown fox jumps");
    model.assert_clean();
}

/// Types that are not a struct: the schema on the wire can be satisfied, and the answer is parsed; a wrong
/// answer is sent back, and the cost of both is counted.
#[tokio::test(start_paused = true)]
async fn an_answer_may_be_of_any_type() {
    #[derive(Debug, PartialEq, Deserialize, JsonSchema)]
    enum Verdict {
        Yes,
        No,
    }
    let script = [
        r#"{"value":[{"name":"Bergen","rain":2250}]}"#,
        r#"{"value":"Perhaps"}"#,
        r#"{"value":"Yes"}"#,
        "true",
        r#"{"value":[1,2,3]}"#,
    ];
    let pace = Pace { chunks: 8, first_ms: 1, between_ms: 1 };
    let model = simulator(Sequence(script.map(|text| Said::text(text).with_pace(pace)).to_vec()), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let cities = session.prompt("which?").output::<Vec<City>>().await.unwrap();
    assert_eq!(cities.value, [City { name: "Bergen".into(), rain: 2250 }]);
    let verdict = session.prompt("really?").output::<Verdict>().await.unwrap();
    assert_eq!((verdict.value, verdict.reply.steps), (Verdict::Yes, 2));
    let asked: Vec<_> = model.requests().iter().map(|logged| logged.request.clone()).collect();
    let sent_back = asked[2].last_user_text();
    assert!(sent_back.contains("Perhaps") && sent_back.contains("Verdict"), "{sent_back}");
    assert!(
        verdict.reply.usage.output_tokens > cities.reply.usage.output_tokens / 4,
        "{:?}",
        verdict.reply.usage
    );
    assert!(session.prompt("sure?").output::<bool>().await.unwrap().value, "one that knows no schema");
    let mut stream = session.prompt("how many?").output::<Vec<u32>>().stream();
    let mut values = Vec::new();
    while let Some(item) = stream.try_next().await.unwrap() {
        if let RunItem::Partial(value) = item {
            values.push(value);
        }
    }
    assert_eq!(values.last(), Some(&json!([1, 2, 3])), "the value, not what it is wrapped in: {values:?}");
    for request in &asked {
        let schema = &request.output_schema.as_ref().unwrap().schema;
        assert_eq!(schema["type"], "object");
        assert_eq!(schema["required"], json!(["value"]), "{schema}");
        assert_eq!(schema["additionalProperties"], false);
    }
    model.assert_clean();
}
