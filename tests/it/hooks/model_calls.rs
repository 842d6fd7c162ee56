//! Hooks around model calls: nothing is sent that they did not see, and their changes are sent but not
//! recorded.

use std::sync::{Arc, Mutex};

use greenroom::prelude::*;
use greenroom::provider::Purpose;
use greenroom::{BeforeModel, CompactionOutcome, HookAction, HookPoint, Message, ToolChoice};
use greenroom_simulator::{Answer as Said, ByPurpose, Echo, Fault, Sequence, Summariser};
use serde_json::json;

use super::{Path, Told, live, read, reader};
use crate::support::{agent, drain, quiet_injected_panics, runtime, simulator};

#[tokio::test(start_paused = true)]
async fn a_refused_call_ends_the_run_and_is_not_made() {
    let told = Told::default();
    let limited = reader(&told).before_model(|call| async move {
        if call.request.messages.len() > 1 {
            return BeforeModel::Refuse("one question a day".into());
        }
        BeforeModel::Continue
    });
    let lived = live(limited, vec![read("a"), Said::text("never")]).await;
    let Err(Error::Stopped { reason }) = &lived.reply else { panic!("{:?}", lived.reply) };
    assert_eq!(reason, "a before_model hook refused the call: one question a day");
    assert_eq!((lived.model.calls(), lived.results.as_slice()), (1, &["the contents of a".to_owned()][..]));
    let refused = (HookPoint::BeforeModel, HookAction::Refused, Some("one question a day".to_owned()));
    assert_eq!(lived.acts(), [refused]);
}

/// An answer from a hook is streamed, validated and recorded like one of the model, without usage and cost.
#[tokio::test(start_paused = true)]
async fn a_hook_answers_in_the_models_place() {
    quiet_injected_panics();
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let cached = agent(100_000)
        .before_model(|call| async move {
            let text = call.request.messages.last().map(|message| message.text()).unwrap_or_default();
            match text.as_str() {
                "ping" => BeforeModel::Answer("pong".into()),
                _ => BeforeModel::Continue,
            }
        })
        .after_model(move |call| {
            let said = call.result.as_ref().map(|answer| (answer.text(), answer.usage.is_some()));
            noted.lock().unwrap().push((call.was_asked, said.map_err(Clone::clone)));
            async {}
        })
        .validate(async |answer| if answer.text == "pang" { Err("no") } else { Ok(()) });
    let session = runtime.open("s", &cached).await.unwrap();
    let mut run = session.prompt("ping").stream();
    let mut text = String::new();
    while let Some(item) = run.next().await {
        match item.unwrap() {
            RunItem::Text(piece) => text.push_str(&piece),
            RunItem::Reply(reply) => {
                assert_eq!((reply.text.as_str(), reply.usage.total_tokens()), ("pong", 0))
            }
            _ => {}
        }
    }
    assert_eq!((text.as_str(), model.calls()), ("pong", 0));
    assert_eq!(session.prompt("and you?").await.unwrap().text, "and you?");
    let expected = [(false, Ok(("pong".to_owned(), false))), (true, Ok(("and you?".to_owned(), true)))];
    assert_eq!(*asked.lock().unwrap(), expected);
    let said: Vec<String> = session.context().await.unwrap().iter().map(|message| message.text()).collect();
    assert_eq!(said, ["ping", "pong", "and you?", "and you?"]);
    model.assert_clean();
}

/// Numbers are removed from every request, at every step and in the summary; the log keeps the original.
#[tokio::test(start_paused = true)]
async fn a_hook_takes_something_out_of_all_that_is_sent_and_nothing_out_of_the_log() {
    let model = simulator(ByPurpose::new(Echo, Summariser::Obedient), 20_000);
    let runtime = runtime(&model).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let purposes = Arc::clone(&seen);
    let redacting = agent(20_000).before_model(move |call| {
        purposes.lock().unwrap().push(call.request.purpose);
        let redacted = |message: &Arc<Message>| match &**message {
            Message::User(_) => Arc::new(Message::user(message.text().replace("555", "[number]"))),
            _ => Arc::clone(message),
        };
        let messages = call.request.messages.iter().map(redacted).collect();
        async move { BeforeModel::Messages(messages) }
    });
    let session = runtime.open("s", &redacting).await.unwrap();
    for _ in 0..6 {
        let reply = session.prompt(format!("call 555 {}", "again ".repeat(300))).await.unwrap();
        assert!(reply.text.starts_with("call [number]"), "{reply}");
    }
    let compacted =
        session.compact(CompactOptions { force: true, ..CompactOptions::default() }).await.unwrap();
    assert_eq!(compacted.outcome, CompactionOutcome::Completed);
    assert!(seen.lock().unwrap().contains(&Purpose::Summary), "summaries are seen");
    let sent = model.requests();
    assert!(sent.len() >= 7);
    for request in sent {
        let text = format!("{:?}", request.request.messages);
        assert!(!text.contains("555") && text.contains("[number]"), "{text}");
    }
    let first = &runtime.replay("s", 0).await.unwrap()[0];
    assert!(format!("{first:?}").contains("call 555"), "{first:?}");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn settings_of_a_hook_reach_the_model_and_only_lower_the_output_limit() {
    let told = Told::default();
    let cool = reader(&told).output_tokens_max(500).before_model(|call| async move {
        let settings = ModelSettings::new().temperature(0.0).output_tokens_max(9_000);
        if call.request.messages.len() > 1 { BeforeModel::Continue } else { BeforeModel::Settings(settings) }
    });
    let lived = live(cool, vec![read("a"), Said::text("done")]).await;
    let sent: Vec<(Option<f64>, Option<u64>)> = lived
        .model
        .requests()
        .iter()
        .map(|it| (it.request.settings.temperature, it.request.settings.output_tokens_max))
        .collect();
    assert_eq!(sent, [(Some(0.0), Some(500)), (None, Some(500))]);
    assert_eq!(lived.acts(), [(HookPoint::BeforeModel, HookAction::Changed, None)]);
}

/// It may have been about to refuse, or its result cannot be sent: so nothing is.
#[tokio::test(start_paused = true)]
async fn a_hook_before_a_call_that_fails_has_refused_it() {
    let failing: [(Agent, &str); 4] = [
        (
            agent(100_000).before_model(|_| async { panic!("injected: no verdict") }),
            "a before_model hook failed: it panicked: injected: no verdict",
        ),
        (
            agent(100_000).before_model(|_| std::future::pending()),
            "a before_model hook failed: it took longer than 60s, the limit by `Agent::hook_timeout`",
        ),
        (
            agent(100_000).before_model(|_| async { BeforeModel::Messages(Vec::new()) }),
            "a before_model hook returned 0 messages instead of 1",
        ),
        (
            agent(100_000).before_model(|_| async {
                BeforeModel::Settings(ModelSettings::new().tool_choice(ToolChoice::Tool("x".into())))
            }),
            "a before_model hook chose an unknown tool: \"x\"",
        ),
    ];
    for (agent, expected) in failing {
        let lived = live(agent, vec![Said::text("never")]).await;
        let Err(Error::Stopped { reason }) = &lived.reply else { panic!("{:?}", lived.reply) };
        assert_eq!((reason.as_str(), lived.model.calls()), (expected, 0));
    }
}

/// Each attempt is seen; a failing observer causes only a warning.
#[tokio::test(start_paused = true)]
async fn a_hook_after_a_call_sees_failures_too_and_its_own_failure_is_reported() {
    let told = Told::default();
    let noted = Arc::clone(&told);
    let watching = agent(100_000)
        .tool("read", async |asked: Path| Ok(asked.path))
        .before_model({
            let told = Arc::clone(&told);
            move |_| {
                told.lock().unwrap().push("asked".to_owned());
                async { BeforeModel::Continue }
            }
        })
        .after_model(move |call| {
            let line = match &call.result {
                Ok(answer) => format!("{}: {}", call.model, answer.text()),
                Err(failure) => format!("{}: {}", call.model, failure.class),
            };
            noted.lock().unwrap().push(line);
            async move { assert!(call.result.is_err(), "injected: cannot count") }
        });
    let script = vec![Said::text("fine").with_fault(Fault::ServerError(500)), Said::text("fine")];
    // Only the first attempt fails.
    let model = simulator(FirstFails(script), 100_000);
    quiet_injected_panics();
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &watching).await.unwrap();
    let mut events = session.subscribe();
    assert_eq!(session.prompt("go").await.unwrap().text, "fine");
    assert_eq!(*told.lock().unwrap(), ["asked", "simulated: overloaded", "asked", "simulated: fine"]);
    let warnings: Vec<String> = drain(&mut events)
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Warning { message } => Some(message.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(warnings, ["an after_model hook was skipped: it panicked: injected: cannot count"]);
}

/// Replies by the number of the call, over all sessions.
struct FirstFails(Vec<Said>);

impl greenroom_simulator::Script for FirstFails {
    fn reply(&self, _: &greenroom_simulator::SeenRequest, info: greenroom_simulator::CallInfo) -> Said {
        self.0[usize::try_from(info.call).unwrap()].clone()
    }
}

/// Summaries that hooks refuse or supply are not requested from a model.
#[tokio::test(start_paused = true)]
async fn hooks_refuse_and_give_summaries() {
    for refuses in [true, false] {
        let model = simulator(ByPurpose::new(Echo, Sequence(vec![])), 20_000);
        let runtime = runtime(&model).await;
        let summary = json!("## Goal\nTo say it again.\n").as_str().unwrap().to_owned();
        let hooked = agent(20_000).before_model(move |call| {
            let summary = summary.clone();
            async move {
                match call.request.purpose {
                    Purpose::Step => BeforeModel::Continue,
                    Purpose::Summary if refuses => BeforeModel::Refuse("no summaries here".into()),
                    Purpose::Summary | Purpose::Compaction => BeforeModel::Answer(summary),
                }
            }
        });
        let session = runtime.open("s", &hooked).await.unwrap();
        for _ in 0..6 {
            session.prompt("again ".repeat(300)).await.unwrap();
        }
        let before = model.calls();
        let options = CompactOptions { force: true, ..CompactOptions::default() };
        let compacted = session.compact(options).await.unwrap();
        assert_eq!(model.calls(), before, "no model was asked");
        let outcome = format!("{:?}", compacted.outcome);
        if refuses {
            assert!(outcome.contains("a before_model hook refused the call: no summaries here"), "{outcome}");
        }
        // The session continues to work in both cases.
        session.prompt("go on").await.unwrap();
        model.assert_clean();
    }
}
