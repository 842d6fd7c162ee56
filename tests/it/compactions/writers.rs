//! Which model writes a summary, how often and with how much output: the configured model or the old one,
//! then the session's own.

use std::sync::Arc;
use std::time::Duration;

use greenroom::Subscription;
use greenroom::prelude::*;
use greenroom::provider::Purpose;
use greenroom_kernel::entry::Trigger;
use greenroom_kernel::settings::UnknownWindow;
use greenroom_kernel::{EntryId, Message};
use greenroom_provider::{HttpProvider, ServerOptions};
use greenroom_simulator::{
    Answer as Said, CallInfo, Echo, ErrorDialect, Fault, Function, ListForm, RetryAfter, Script, SeenRequest,
    Simulator, SimulatorOptions, Summariser,
};

use crate::compaction_fixtures::{
    asked, chat, compactions, ends, keep, newest, opened, runs, settings, text, warnings,
};
use crate::support::{agent, builder, drain, runtime, simulator, store};

/// Returns a model that answers runs, and summaries unless `name` is asked: then it does this.
fn broken(name: &'static str, harm: impl Fn(&SeenRequest) -> Said + Send + Sync + 'static) -> impl Script {
    Function(move |request: &SeenRequest, info: CallInfo| {
        if request.purpose == Purpose::Summary {
            return if request.model == name {
                harm(request)
            } else {
                Summariser::Obedient.reply(request, info)
            };
        }
        Echo.reply(request, info)
    })
}

fn http(status: u16, body: &str) -> Said {
    Said::fault(Fault::Http { status, headers: Vec::new(), body: body.to_owned() })
}

/// Everything that may be wrong with a model that writes summaries.
fn harms() -> Vec<(&'static str, Said)> {
    vec![
        ("401", http(401, r#"{"error":{"message":"Incorrect API key provided","code":"invalid_api_key"}}"#)),
        ("403", http(403, r#"{"error":{"message":"You are not allowed to use this model"}}"#)),
        ("404", http(404, r#"{"error":{"message":"The model does not exist","code":"model_not_found"}}"#)),
        (
            "quota",
            http(429, r#"{"error":{"message":"You exceeded your quota","code":"insufficient_quota"}}"#),
        ),
        (
            "output",
            http(
                400,
                r#"{"error":{"message":"max_tokens is too large: 1600. This model supports at most 16 completion tokens"}}"#,
            ),
        ),
        ("overflow", Said::fault(Fault::Overflow(ErrorDialect::OpenAi))),
        ("500", Said::fault(Fault::ServerError(500))),
        ("cut stream", Said::fault(Fault::EofBeforeFinish)),
        ("empty stream", Said::fault(Fault::EmptyStream)),
        ("malformed", Said::fault(Fault::MalformedSse)),
        ("empty", Said::text("")),
        ("garbage", Said::text("Sure! What next?")),
    ]
}

#[tokio::test(start_paused = true)]
async fn whatever_the_configured_model_does_the_sessions_own_follows() {
    for (name, harm) in harms() {
        let model = simulator(broken("cheap", move |_| harm.clone()), 100_000);
        let own = settings(|settings| settings.summary_model = Some("cheap".into()));
        let runtime = builder(&model).compaction(own).start().await.unwrap();
        let session = opened(&runtime, "s", &agent(8_000), chat(8, 280)).await;
        let mut events = session.subscribe();
        let done = session.compact(keep(1_000)).await.unwrap();
        assert_eq!(done.outcome.as_str(), "completed", "{name}: {done:?}");
        assert_eq!(newest(&runtime, "s").await.model, "simulated", "{name}");
        let models: Vec<String> = asked(&model).iter().map(|logged| logged.request.model.clone()).collect();
        assert_eq!(models.first().map(String::as_str), Some("cheap"), "{name}");
        let told = warnings(&drain(&mut events));
        let fell_back = told.iter().filter(|told| told.contains("cheap could not write the summary"));
        assert_eq!(fell_back.count(), 1, "{name}: {told:?}");
        assert!(told.iter().any(|told| told.contains("simulated is asked instead")), "{name}: {told:?}");
    }
}

/// The old model fails in any way while the context is larger than the new window: the new model writes the
/// summary, in parts, and nothing is cut.
#[tokio::test(start_paused = true)]
async fn whatever_the_model_that_is_left_does_the_new_one_follows() {
    for (name, harm) in harms() {
        let model = simulator(broken("large", move |_| harm.clone()), 100_000);
        let runtime = runtime(&model).await;
        let large = Agent::new("large").context_window(100_000);
        let session = opened(&runtime, "s", &large, chat(30, 400)).await;
        let mut events = session.subscribe();
        runtime.open("s", &Agent::new("small").context_window(16_000)).await.unwrap();
        session.prompt("go on").await.unwrap();
        let ended = ends(&drain(&mut events));
        let outcomes: Vec<_> = ended.iter().map(|end| end.outcome.as_str()).collect();
        assert_eq!(outcomes, ["completed"], "{name}: {ended:?}");
        assert_eq!(newest(&runtime, "s").await.model, "small", "{name}");
        let models: Vec<String> = asked(&model).iter().map(|logged| logged.request.model.clone()).collect();
        assert_eq!(models.first().map(String::as_str), Some("large"), "{name}");
        assert!(models.iter().filter(|model| *model == "small").count() > 1, "{name}: in parts: {models:?}");
    }
}

/// Returns the waits before a compaction's calls were retried: its number, the retry's, and the wait in
/// milliseconds.
fn retries(events: &mut Subscription) -> Vec<(EntryId, u32, u64)> {
    let wait = |event: &Arc<Event>| match &event.kind {
        EventKind::Retry { compaction: Some(id), attempt, delay_ms, failure } => {
            assert!(!failure.message.is_empty());
            Some((*id, *attempt, *delay_ms))
        }
        EventKind::Retry { compaction: None, .. } => panic!("no run is tried again"),
        _ => None,
    };
    drain(events).iter().filter_map(wait).collect()
}

/// Summaries that fail five times in this way, and then succeed.
fn flaky(harm: impl Fn(u32) -> Said + Send + Sync + 'static) -> impl Script {
    let calls = std::sync::atomic::AtomicU32::new(0);
    Function(move |request: &SeenRequest, info: CallInfo| {
        if request.purpose == Purpose::Summary {
            let call = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            return if call < 5 { harm(call) } else { Summariser::Obedient.reply(request, info) };
        }
        Echo.reply(request, info)
    })
}

#[tokio::test(start_paused = true)]
async fn a_summary_has_a_turns_retries_and_each_is_an_event() {
    let faults: [fn(u32) -> Said; 5] = [
        |_| Said::fault(Fault::ServerError(500)),
        |_| Said::fault(Fault::EofBeforeFinish),
        |_| Said::fault(Fault::ErrorEvent),
        |_| Said::text(""),
        |call| Said::fault(if call % 2 == 0 { Fault::ServerError(503) } else { Fault::MalformedSse }),
    ];
    for harm in faults {
        let model = simulator(flaky(harm), 100_000);
        let runtime = runtime(&model).await;
        let session = opened(&runtime, "s", &agent(8_000), chat(8, 280)).await;
        let mut events = session.subscribe();
        let began = tokio::time::Instant::now();
        let done = session.compact(keep(1_000)).await.unwrap();
        assert_eq!(done.outcome.as_str(), "completed", "{done:?}");
        let seen = retries(&mut events);
        assert_eq!(seen.len(), 5, "{seen:?}");
        for (index, (id, attempt, delay_ms)) in seen.iter().enumerate() {
            assert_eq!((Some(*id), *attempt as usize), (done.started, index + 1));
            let wait = 500 << index;
            assert!((wait..=wait + wait / 4).contains(delay_ms), "{seen:?}");
        }
        let waited: u64 = seen.iter().map(|(_, _, delay_ms)| delay_ms).sum();
        assert!(began.elapsed() >= Duration::from_millis(waited), "{:?}", began.elapsed());
    }
}

/// The only message for a minute is the event; a caller that does not want to wait ends it at once.
#[tokio::test(start_paused = true)]
async fn a_wait_of_a_summary_is_told_and_can_be_left() {
    for leave in [false, true] {
        let slow = |call| {
            if call == 0 { Said::fault(Fault::RateLimited(RetryAfter::Seconds(45))) } else { Said::text("") }
        };
        let model = simulator(flaky(slow), 100_000);
        let runtime = runtime(&model).await;
        let session = opened(&runtime, "s", &agent(8_000), chat(12, 500)).await;
        let mut events = session.subscribe();
        let began = tokio::time::Instant::now();
        let prompt = session.prompt("go on");
        let abort = async {
            tokio::time::sleep(Duration::from_secs(10)).await;
            if leave {
                session.abort();
            }
        };
        let (reply, ()) = tokio::join!(prompt, abort);
        if leave {
            assert!(matches!(reply, Err(Error::Aborted)), "{reply:?}");
            assert!(began.elapsed() < Duration::from_secs(11), "{:?}", began.elapsed());
        } else {
            reply.unwrap();
            assert!(began.elapsed() >= Duration::from_secs(45), "{:?}", began.elapsed());
        }
        let first = retries(&mut events)[0];
        assert!((45_000..=60_000).contains(&first.2), "{first:?}");
    }
}

/// Returns the output limits of summary requests.
fn outputs(model: &Simulator) -> Vec<u64> {
    asked(model).iter().filter_map(|logged| logged.request.settings.output_tokens_max).collect()
}

#[tokio::test(start_paused = true)]
async fn a_summary_has_no_more_output_than_is_set_for_the_agent() {
    let check = async |agent: Agent, expected: u64| {
        let model = simulator(broken("nobody", |_| Said::text("")), 200_000);
        let runtime = runtime(&model).await;
        let session = opened(&runtime, "s", &agent, chat(12, 900)).await;
        assert_eq!(session.compact(keep(1_000)).await.unwrap().outcome.as_str(), "completed");
        assert_eq!(outputs(&model), [expected], "{agent:?}");
    };
    check(agent(100_000), 16_383).await;
    check(agent(100_000).output_tokens_max(3_000), 3_000).await;
    let of_model = ModelSettings::new().output_tokens_max(2_000);
    check(agent(100_000).output_tokens_max(3_000).settings_for("simulated", of_model.clone()), 2_000).await;
    let other = settings(|settings| settings.summary_model = Some("cheap".into()));
    check(agent(100_000).output_tokens_max(3_000).compaction(other.clone()), 3_000).await;
    let chosen = agent(100_000).output_tokens_max(3_000).compaction(other).settings_for("cheap", of_model);
    check(chosen, 2_000).await;
}

/// The output limit in the server's list applies, and a refusal lowers it to the limit it names.
#[tokio::test]
async fn a_summary_has_no_more_output_than_the_server_says() {
    for (list, refuses, expected) in [
        (ListForm::LiteLlm, None, vec![2_047]),
        (ListForm::Names, None, vec![16_383]),
        (ListForm::Names, Some(1_000), vec![16_383, 1_000]),
    ] {
        let script = Function(move |request: &SeenRequest, info: CallInfo| {
            let output = request.settings.output_tokens_max.unwrap_or(0);
            if let Some(limit) = refuses.filter(|limit| output > *limit) {
                let body = format!(
                    r#"{{"error":{{"message":"max_tokens is too large: {output}. This model supports at most {limit} completion tokens, whereas you provided {output}.","param":"max_tokens","code":"invalid_value"}}}}"#
                );
                return http(400, &body);
            }
            Summariser::Obedient.reply(request, info)
        });
        let model = Simulator::new(SimulatorOptions { window: 8_192, list, ..SimulatorOptions::new(script) });
        let server = model.serve().await.unwrap();
        let options = ServerOptions {
            name: "rig".to_owned(),
            base_url: server.base_url(),
            prompt_cache_key: Some(true),
            ..ServerOptions::default()
        };
        let provider = Arc::new(HttpProvider::new(options).unwrap());
        let runtime = Runtime::builder().provider(provider).engine(store()).start().await.unwrap();
        // The user's setting of the window: the reserve follows from it.
        let session = opened(&runtime, "s", &agent(100_000), chat(8, 280)).await;
        let done = session.compact(keep(1_000)).await.unwrap();
        assert_eq!(done.outcome.as_str(), "completed", "{list:?} {refuses:?}: {done:?}");
        assert_eq!(outputs(&model), expected, "{list:?} {refuses:?}");
        runtime.shutdown().await.unwrap();
    }
}

fn large() -> Agent {
    Agent::new("large").context_window(100_000)
}

fn small() -> Agent {
    Agent::new("small").context_window(16_000)
}

/// Nothing is compacted before a request requires it: switching to a small model and back changes nothing.
#[tokio::test(start_paused = true)]
async fn naming_a_model_and_going_back_compacts_nothing() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &large(), chat(30, 400)).await;
    let before = session.context().await.unwrap();
    for _ in 0..3 {
        runtime.open("s", &small()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        runtime.open("s", &large()).await.unwrap();
    }
    assert_eq!(session.context().await.unwrap(), before);
    session.prompt("and on").await.unwrap();
    assert_eq!((compactions(&runtime, "s").await.len(), asked(&model).len()), (0, 0));
    // Via a third model, the one that answered last still writes.
    for name in ["small", "tiny"] {
        runtime.open("s", Agent::new(name).context_window(16_000)).await.unwrap();
    }
    session.prompt("and on").await.unwrap();
    let compaction = newest(&runtime, "s").await;
    assert_eq!((compaction.model.as_str(), compaction.trigger), ("large", Trigger::ModelSwitch));
    assert_eq!(runs(&model).last().unwrap().request.model, "tiny");
    // It has answered, so from now on it writes.
    for number in 0..12 {
        session.prompt(text(&format!("more {number}"), 900)).await.unwrap();
    }
    let compaction = newest(&runtime, "s").await;
    assert_eq!((compaction.model.as_str(), compaction.trigger), ("tiny", Trigger::Threshold));
}

/// Nobody knows whether the model of a conversation from elsewhere can be reached: the session's own model writes.
#[tokio::test(start_paused = true)]
async fn a_model_that_has_not_answered_here_does_not_write() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let mut messages = chat(30, 400);
    for message in &mut messages {
        if let Message::Assistant(answer) = message {
            "elsewhere".clone_into(&mut answer.provider);
        }
    }
    let session = opened(&runtime, "s", &large(), messages).await;
    runtime.open("s", &small()).await.unwrap();
    session.prompt("and on").await.unwrap();
    assert_eq!(newest(&runtime, "s").await.model, "small");
}

/// The switch happens during a turn: the run continues with its model, and then the old model writes.
#[tokio::test(start_paused = true)]
async fn after_a_switch_during_a_turn_the_model_that_is_left_writes() {
    let script = Function(|request: &SeenRequest, info: CallInfo| {
        if request.purpose == Purpose::Summary {
            return Summariser::Obedient.reply(request, info);
        }
        Said::text("done").after_ms(5_000)
    });
    let model = simulator(script, 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &large(), chat(30, 400)).await;
    let running = tokio::spawn(session.prompt("go on").into_future());
    tokio::time::sleep(Duration::from_secs(1)).await;
    runtime.open("s", &small()).await.unwrap();
    running.await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(compactions(&runtime, "s").await.len(), 0, "nothing needs it yet");
    session.prompt("and on").await.unwrap();
    let all = compactions(&runtime, "s").await;
    assert_eq!(all.iter().map(|(_, one)| one.model.as_str()).collect::<Vec<_>>(), ["large"]);
    assert_eq!(asked(&model).len(), 1, "in one piece");
    let models: Vec<_> = runs(&model).iter().map(|logged| logged.request.model.clone()).collect();
    assert_eq!(models, ["large", "small"]);
}

/// The switch happens with a restart, before or after it was recorded: the old model writes.
#[tokio::test(start_paused = true)]
async fn after_a_restart_the_model_that_is_left_writes() {
    let store = store();
    for crashes in [false, true] {
        let id = format!("s{crashes}");
        let model = simulator(broken("nobody", |_| Said::text("")), 100_000);
        let start =
            || Runtime::builder().provider(model.provider()).engine(store.clone()).clock_from(1).start();
        let runtime = start().await.unwrap();
        let session = opened(&runtime, &id, &large(), chat(30, 400)).await;
        session.prompt("go on").await.unwrap();
        drop((session, runtime));
        if crashes {
            // The switch was recorded with a prompt, which never got an answer.
            let runtime = start().await.unwrap();
            let session = runtime.open(&id, &Agent::new("small").context_window(90_000)).await.unwrap();
            session.abort();
            let prompt = session.prompt("and on").into_future();
            assert!(tokio::time::timeout(Duration::ZERO, prompt).await.is_err());
            tokio::time::sleep(Duration::from_secs(1)).await;
            drop((session, runtime));
        }
        let runtime = start().await.unwrap();
        let session = runtime.open(&id, &small()).await.unwrap();
        assert_eq!(compactions(&runtime, &id).await.len(), 0);
        session.prompt("and on").await.unwrap();
        let all = compactions(&runtime, &id).await;
        assert_eq!(all.iter().map(|(_, one)| one.model.as_str()).collect::<Vec<_>>(), ["large"], "{crashes}");
        assert_eq!(asked(&model).len(), 1, "in one piece");
    }
}

/// The assumption for an unknown window applies to the summary model, too.
#[tokio::test(start_paused = true)]
async fn an_unknown_window_of_the_summary_model_is_what_is_set() {
    for (unknown, parts) in [(20_000, true), (128_000, false)] {
        let model = simulator(broken("nobody", |_| Said::text("")), 100_000);
        let own = settings(|settings| {
            settings.summary_model = Some("nobody-knows-it".into());
            settings.unknown_window = UnknownWindow::Assume(unknown);
        });
        let runtime = builder(&model).compaction(own).start().await.unwrap();
        let session = opened(&runtime, "s", &agent(100_000), chat(60, 500)).await;
        assert_eq!(session.compact(keep(5_000)).await.unwrap().outcome.as_str(), "completed");
        assert_eq!(asked(&model).len() > 1, parts, "{unknown}");
        assert!(asked(&model).iter().all(|logged| logged.request.tokens < unknown));
    }
}

/// The configured window of the summary model applies, whatever is configured for the session's own.
#[tokio::test(start_paused = true)]
async fn the_window_that_is_set_for_a_model_holds_where_it_writes_summaries() {
    for (set_for, parts) in [("nobody-knows-it", true), ("another", false)] {
        let model = simulator(broken("nobody", |_| Said::text("")), 100_000);
        let own = settings(|settings| settings.summary_model = Some("nobody-knows-it".into()));
        let runtime = builder(&model).compaction(own).start().await.unwrap();
        let agent = agent(100_000).context_window_for(set_for, 20_000);
        let session = opened(&runtime, "s", &agent, chat(60, 500)).await;
        assert_eq!(session.compact(keep(5_000)).await.unwrap().outcome.as_str(), "completed");
        assert_eq!(asked(&model).len() > 1, parts, "{set_for}");
        assert_eq!(asked(&model).iter().all(|logged| logged.request.tokens < 20_000), parts);
    }
}
