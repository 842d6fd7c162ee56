//! Validators that send answers back, and instructions generated for each run.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom::{ConfigError, RunOutcome};
use greenroom_simulator::{Answer as Said, CallInfo, Function, Pace, SeenRequest, Sequence};
use serde_json::json;

use crate::support::{agent, builder, drain, quiet_injected_panics, runtime, simulator};

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct City {
    name: String,
    rain: u32,
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

fn texts(messages: &[Arc<greenroom_kernel::Message>]) -> Vec<String> {
    messages.iter().map(|message| format!("{}: {}", message.role(), message.text())).collect()
}

#[tokio::test(start_paused = true)]
async fn a_rejected_answer_goes_back_with_its_reason_and_both_are_on_the_record() {
    let script = vec![
        Said::call("look", &json!({})),
        Said::text("It rains."),
        Said::text("It rains in Oslo."),
        Said::text("Good night, Oslo."),
    ];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let judged = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&judged);
    let looker =
        agent(100_000).tool("look", |_: Nothing| async move { Ok("rain") }).validate(move |answer| {
            let seen = Arc::clone(&seen);
            async move {
                seen.lock().unwrap().push((answer.text.clone(), answer.rejections));
                if answer.text.contains("Oslo") { Ok(()) } else { Err("it names no city.") }
            }
        });
    let session = runtime.open("s", &looker).await.unwrap();
    let mut events = session.subscribe();
    let reply = session.prompt("weather?").await.unwrap();
    assert_eq!((reply.text.as_str(), reply.steps), ("It rains in Oslo.", 3));
    let on_record = [
        "user: weather?",
        "assistant: ",
        "tool: rain",
        "assistant: It rains.",
        "user: Your answer was not accepted: it names no city.\nAnswer again, in full.",
        "assistant: It rains in Oslo.",
    ];
    assert_eq!(texts(&session.context().await.unwrap()), on_record);
    let ends = drain(&mut events).iter().filter(|event| event.kind.event_type() == EventType::RunEnd).count();
    assert_eq!(ends, 1, "one run");
    session.prompt("thanks").await.unwrap();
    let calls = [
        ("It rains.".to_owned(), 0),
        ("It rains in Oslo.".to_owned(), 1),
        ("Good night, Oslo.".to_owned(), 0),
    ];
    assert_eq!(*judged.lock().unwrap(), calls, "and a call of a tool is not judged");
    // It is in the log, not only in memory.
    runtime.close("s").await.unwrap();
    assert_eq!(texts(&session.context().await.unwrap())[..6], on_record);
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn after_two_rejections_the_run_ends_with_the_reason_and_the_last_answer() {
    let script = vec![Said::text("one"), Said::text("two"), Said::text("three"), Said::text("fine")];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let never =
        session.prompt("a").validate(|answer| async move { Err(format!("{} is not enough", answer.text)) });
    let error = never.await.unwrap_err();
    let Error::Rejected { reason, text } = &error else { panic!("{error:?}") };
    assert_eq!((reason.as_str(), text.as_str()), ("three is not enough", "three"));
    assert_eq!(model.calls(), 3);
    let ended = runtime.replay("s", 0).await.unwrap().into_iter().find_map(|event| match event.kind {
        EventKind::RunEnd { outcome, .. } => Some(outcome),
        _ => None,
    });
    let Some(RunOutcome::Stopped { reason }) = ended else { panic!("{ended:?}") };
    assert_eq!(reason, "3 answers were not accepted, the last one because: three is not enough");
    // The prompt's own validator went with it.
    assert_eq!(session.prompt("b").await.unwrap().text, "fine");
    let none = agent(100_000).limits(RunLimits { rejections_max: 0, ..RunLimits::default() });
    let session = runtime.open("t", &none).await.unwrap();
    assert!(matches!(session.prompt("a").validate(async |_| Err("no")).await, Err(Error::Rejected { .. })));
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_typed_answer_that_cannot_be_read_is_sent_back_with_what_is_wrong_with_it() {
    let script = vec![
        Said::text("It is Bergen."),
        Said::text(r#"{"name":"Bergen","rain":"much"}"#),
        Said::text(r#"{"name":"Bergen","rain":2250}"#),
        Said::text("no"),
        Said::text("no"),
        Said::text("never"),
    ];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let typed = session.prompt("where?").output::<City>().await.unwrap();
    assert_eq!(typed.value, City { name: "Bergen".into(), rain: 2250 });
    assert_eq!(typed.reply.steps, 3);
    let told: Vec<String> = session.context().await.unwrap().iter().map(|message| message.text()).collect();
    assert!(
        told[2].starts_with("Your answer was not accepted: it does not fit the schema \"City\":"),
        "{told:?}"
    );
    assert!(told[4].contains("invalid type: string \"much\", expected u32"), "{told:?}");
    let error = session.prompt("again").output::<City>().await.unwrap_err();
    let Error::Output { wanted, text, .. } = &error else { panic!("{error:?}") };
    assert_eq!((wanted.as_str(), text.as_str()), ("City", "never"));
    model.assert_clean();
}

/// A schema defined at run time: an answer that does not fit is sent back with the location, and the value is
/// JSON.
#[tokio::test(start_paused = true)]
async fn an_answer_fits_a_schema_or_is_sent_back_with_the_place() {
    let script = vec![
        Said::text("It is Bergen."),
        Said::text(r#"{"value":[{"name":"Bergen","rain":-1}]}"#),
        Said::text(r#"{"value":[{"name":"Bergen","rain":2250}]}"#),
        Said::text(r#"[{"name":"Oslo","rain":763}]"#),
        Said::text("no"),
        Said::text("no"),
        Said::text("never"),
    ];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let schema = json!({ "title": "cities", "type": "array", "items": {
        "type": "object",
        "properties": { "name": { "type": "string" }, "rain": { "type": "integer", "minimum": 0 } },
        "required": ["name", "rain"],
    } });
    let typed = session.prompt("where?").output_schema(schema.clone()).await.unwrap();
    assert_eq!(typed.value, json!([{ "name": "Bergen", "rain": 2250 }]));
    assert_eq!(typed.reply.steps, 3);
    let told: Vec<String> = session.context().await.unwrap().iter().map(|message| message.text()).collect();
    assert!(told[2].contains("it does not fit the schema \"cities\": not valid JSON"), "{told:?}");
    assert!(told[4].contains("at `/0/rain`"), "{told:?}");
    let sent = model.requests()[0].request.output_schema.clone().unwrap();
    assert!(sent.is_strict() && sent.schema["required"] == json!(["value"]), "{sent:?}");

    let mut stream = session.prompt("and?").output_schema(schema.clone()).stream();
    let mut partial = Vec::new();
    while let Some(item) = stream.next().await {
        if let RunItem::Partial(value) = item.unwrap() {
            partial.push(value);
        }
    }
    assert_eq!(partial.last(), Some(&json!([{ "name": "Oslo", "rain": 763 }])));

    let error = session.prompt("again").output_schema(schema).await.unwrap_err();
    let Error::Output { wanted, text, .. } = &error else { panic!("{error:?}") };
    assert_eq!((wanted.as_str(), text.as_str()), ("cities", "never"));
    // An invalid schema is rejected before anything is recorded, however the request is sent.
    let (said, wrong) = (model.requests().len(), json!({ "properties": { "a": { "type": "text" } } }));
    let request = || session.prompt("x").output_schema(wrong.clone());
    let refused = [
        request().await.unwrap_err(),
        request().start().await.unwrap_err(),
        request().stream().reply().await.unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, Error::Config(ConfigError::OutputSchema { .. })), "{error:?}");
        assert!(error.to_string().contains("/properties/a/type"), "{error}");
    }
    assert_eq!(model.requests().len(), said);
    model.assert_clean();
}

/// Each level of the answer can be read in two ways: tried one by one, 60 levels are 2^60 ways. Everything
/// here runs on one thread, so one slow check would block all.
#[tokio::test(start_paused = true)]
async fn answers_that_are_hard_to_check_stand_in_nobodys_way() {
    let form = |op: &str| {
        json!({ "type": "object", "properties": { "op": { "const": op }, "arg": { "$ref": "#/$defs/n" } },
            "required": ["op"] })
    };
    let schema = json!({ "$defs": { "n": { "anyOf": [form("a"), form("b"), { "type": "number" }] } },
        "$ref": "#/$defs/n" });
    let hard = (0..60).fold(json!({ "op": "c" }), |arg, _| json!({ "op": "b", "arg": arg })).to_string();
    let script = Function(move |request: &SeenRequest, _: CallInfo| {
        let text = if request.output_schema.is_some() { hard.as_str() } else { "fine" };
        Said::text(text).after_ms(1_000)
    });
    let model = simulator(script, 100_000);
    let runtime = runtime(&model).await;
    let mut runs = Vec::new();
    for name in ["1", "2", "3", "4"] {
        let session = runtime.open(name, &agent(100_000)).await.unwrap();
        runs.push(session.prompt("what?").output_schema(schema.clone()).start().await.unwrap());
    }
    let other = runtime.open("other", &agent(100_000)).await.unwrap();
    assert_eq!(other.prompt("how is it?").await.unwrap().text, "fine");
    for run in runs {
        let error = run.reply().await.unwrap_err();
        let Error::Output { reason, .. } = &error else { panic!("{error:?}") };
        assert!(reason.contains("at `/op`: want \"a\", but got \"b\""), "{reason}");
    }
    // The first answer was sent back: an abort takes effect between the checks.
    let run = other.prompt("what?").output_schema(schema.clone()).start().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    other.abort();
    assert!(matches!(run.reply().await, Err(Error::Aborted)));
    let left = other.prompt("what?").output_schema(schema).start().await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    tokio::time::timeout(Duration::from_secs(10), runtime.shutdown()).await.expect("it ends").unwrap();
    assert!(left.reply().await.is_err());
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_validator_that_panics_ends_its_run_and_no_session() {
    quiet_injected_panics();
    let model = simulator(Sequence(vec![Said::text("one"), Said::text("two")]), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let mut events = session.subscribe();
    async fn panics(_: greenroom::ProposedAnswer) -> std::result::Result<(), String> {
        panic!("injected: no verdict")
    }
    let error = session.prompt("a").validate(panics).await.unwrap_err();
    let Error::Stopped { reason } = &error else { panic!("{error:?}") };
    assert_eq!(reason, "a validator failed: it panicked: injected: no verdict");
    assert!(drain(&mut events).iter().all(|event| event.kind.event_type() != EventType::SessionRestarted));
    assert_eq!(session.prompt("b").await.unwrap().text, "two");
}

/// The agent dies while an answer is validated: its replacement asks again, and the recorded answer is the
/// accepted one.
#[tokio::test(start_paused = true)]
async fn an_agent_that_dies_while_an_answer_is_judged_loses_no_verdict() {
    quiet_injected_panics();
    let script = vec![Said::text("bad"), Said::text("bad"), Said::text("good")];
    let model = simulator(Sequence(script), 100_000);
    let count = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&count);
    let runtime = builder(&model)
        .probe(move |_, at| {
            let strikes = at == "agent/validated" && counted.fetch_add(1, Ordering::Relaxed) == 0;
            assert!(!strikes, "injected at the first verdict");
        })
        .start()
        .await
        .unwrap();
    let judge =
        agent(100_000).validate(async |answer| if answer.text == "good" { Ok(()) } else { Err("no.") });
    let session = runtime.open("s", &judge).await.unwrap();
    assert_eq!(session.prompt("a").await.unwrap().text, "good");
    assert_eq!(count.load(Ordering::Relaxed), 3);
    let told = texts(&session.context().await.unwrap());
    assert_eq!(told.len(), 4, "the answer whose verdict was lost was never recorded: {told:?}");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn instructions_are_written_once_a_run_and_a_change_is_an_event() {
    let script = vec![
        Said::call("look", &json!({})),
        Said::text("one"),
        Said::text("two").with_pace(Pace { chunks: 2, first_ms: 1, between_ms: 1 }),
        Said::text("three"),
    ];
    let model = simulator(Sequence(script), 100_000);
    let runtime = runtime(&model).await;
    let written = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&written);
    let looker =
        agent(100_000).tool("look", |_: Nothing| async move { Ok("rain") }).instructions_from(move |to| {
            // The second run gets the same as the first, the third something longer.
            let runs = count.fetch_add(1, Ordering::Relaxed);
            let more = if runs < 2 { "" } else { " Say it in one word, however long the question may be." };
            assert_eq!(to.provider, "simulator");
            format!("You help {} with {}.{more}", to.session, to.model)
        });
    let session = runtime.open("s", &looker).await.unwrap();
    let mut events = session.subscribe();
    let first = session.prompt("a").await.unwrap();
    session.prompt("b").await.unwrap();
    let third = session.prompt("c").await.unwrap();
    assert_eq!(written.load(Ordering::Relaxed), 3, "once a run, however many requests it has");
    let systems: Vec<String> = crate::compaction_fixtures::runs(&model)
        .into_iter()
        .map(|logged| logged.request.system.clone().unwrap())
        .collect();
    let (short, long) = (
        "You help s with simulated.",
        "You help s with simulated. Say it in one word, however long the question may be.",
    );
    assert_eq!(systems, [short, short, short, long]);
    let seen = drain(&mut events);
    let changed: Vec<_> = seen
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::InstructionsChanged { text, tokens } => Some((event.run, text.clone(), *tokens)),
            _ => None,
        })
        .collect();
    assert_eq!(changed.len(), 1, "{changed:?}");
    assert_eq!((changed[0].0, changed[0].1.as_str()), (Some(third.run), long));
    assert!(changed[0].2 > 10);
    let at = |wanted: EventType| seen.iter().rposition(|event| event.kind.event_type() == wanted).unwrap();
    assert!(at(EventType::RunStart) < at(EventType::InstructionsChanged));
    assert!(first.run != third.run);
    model.assert_clean();
}

/// Their size is part of every request: if they fill the window, that is detected before anything is sent.
#[tokio::test(start_paused = true)]
async fn the_size_of_written_instructions_is_measured_with_the_request() {
    let model = simulator(Sequence(vec![Said::text("one"), Said::text("two")]), 4_000);
    let runtime = runtime(&model).await;
    let words = Arc::new(AtomicU32::new(10));
    let length = Arc::clone(&words);
    let wordy =
        agent(4_000).instructions_from(move |_| "word ".repeat(length.load(Ordering::Relaxed) as usize));
    let session = runtime.open("s", &wordy).await.unwrap();
    let small = session.prompt("a").await.unwrap().context.tokens;
    words.store(1_000, Ordering::Relaxed);
    let large = session.prompt("b").await.unwrap().context.tokens;
    assert!(large > small + 800, "{small}, {large}");
    words.store(100_000, Ordering::Relaxed);
    let error = session.prompt("c").await.unwrap_err();
    assert!(matches!(&error, Error::Config(ConfigError::Compaction(_))), "{error:?}");
    assert!(error.to_string().contains("the fixed part of every request"), "{error}");
    let entries = session.state().await.unwrap().entries;
    assert_eq!(model.calls(), 2);
    words.store(10, Ordering::Relaxed);
    assert!(session.state().await.unwrap().entries == entries, "the refused prompt is not on the record");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_function_that_panics_refuses_its_run_and_harms_no_session() {
    quiet_injected_panics();
    let model = simulator(Sequence(vec![Said::text("one")]), 100_000);
    let runtime = runtime(&model).await;
    let broken = Arc::new(AtomicU32::new(1));
    let is_broken = Arc::clone(&broken);
    let helper = agent(100_000).instructions_from(move |_| {
        assert!(is_broken.load(Ordering::Relaxed) == 0, "injected: nothing to say");
        "Be brief.".to_owned()
    });
    let session = runtime.open("s", &helper).await.unwrap();
    let error = session.prompt("a").await.unwrap_err();
    assert!(
        matches!(&error, Error::Config(ConfigError::Instructions { reason }) if reason.contains("nothing to say")),
        "{error:?}"
    );
    assert_eq!(session.state().await.unwrap().entries, 0);
    broken.store(0, Ordering::Relaxed);
    assert_eq!(session.prompt("a").timeout(Duration::from_secs(60)).await.unwrap().text, "one");
    model.assert_clean();
}
