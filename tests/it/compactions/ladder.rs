//! At the window and below it: which rung is taken, which errors are typed, and when attempts stop.

use greenroom::prelude::*;
use greenroom_kernel::entry::EntryKind;
use greenroom_kernel::{EntryId, FailureClass, Usage};
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Echo, Fault, Function, Point, Script as _, SeenRequest, Sequence,
    Summariser,
};

use crate::compaction_fixtures::{
    asked, chat, compactions, count, ends, keep, newest, opened, runs, said, settings, talker, text, user,
    warnings,
};
use crate::support::{agent, builder, drain, runtime, simulator};

/// Returns a usage report of this size, whatever was sent.
fn reported(input_tokens: u64) -> Usage {
    Usage { input_tokens, output_tokens: 10, ..Usage::default() }
}

/// At the window something must be done: if no summary is possible, the fallback is installed, and reported
/// as such.
#[tokio::test(start_paused = true)]
async fn at_the_window_a_digest_stands_in_and_says_so() {
    let model = simulator(ByPurpose::new(Sequence(vec![Said::text("on")]), Summariser::Garbage), 20_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(8_000), chat(12, 330)).await;
    let mut events = session.subscribe();
    session.prompt("go on").await.unwrap();
    let ended = ends(&drain(&mut events));
    assert_eq!(ended.iter().map(|end| end.outcome.as_str()).collect::<Vec<_>>(), ["digested"], "{ended:?}");
    let compaction = newest(&runtime, "s").await;
    assert!(compaction.truncated && compaction.summary.starts_with("[Compacted "));
    assert!(compaction.summary.contains("<user-words>\n["), "{}", compaction.summary);
    model.assert_clean();
}

/// A summariser that says nothing at all is given up after a quarter of an hour, and a prompt waits no longer.
#[tokio::test(start_paused = true)]
async fn a_silent_summariser_is_given_up_in_time() {
    for (window, has_other, outcome) in
        [(8_000, false, "digested"), (14_000, false, "failed"), (14_000, true, "completed")]
    {
        let stall = Fault::Stall { at: Point::BeforeHeaders, ping_every_ms: None, for_ms: None };
        let summaries = Function(move |request: &SeenRequest, info: CallInfo| match request.model.as_str() {
            "simulated" if has_other => Summariser::Obedient.reply(request, info),
            _ => Said::fault(stall.clone()),
        });
        let talk = Function(|_: &SeenRequest, _: CallInfo| Said::text("on"));
        let model = simulator(ByPurpose::new(talk, summaries), 20_000);
        let runtime = runtime(&model).await;
        if has_other {
            // The next summariser is the session's own model.
            let own = settings(|settings| settings.summary_model = Some("scribe".into()));
            runtime.set_compaction(own).await.unwrap();
        }
        let session = opened(&runtime, "s", &agent(window), chat(12, 330)).await;
        let mut events = session.subscribe();
        session.prompt("go on").await.unwrap();
        // Where the prompt needed no compaction, one is asked for. How it ends is in its event.
        let _ended = session.compact(CompactOptions::default()).await;
        let ended = ends(&drain(&mut events));
        let first = ended.first().map(|end| (end.outcome.as_str(), end.duration_ms / 60_000));
        assert!(
            first.is_some_and(|(seen, minutes)| seen == outcome && (20..26).contains(&minutes)),
            "{window} {has_other}: {ended:?}"
        );
    }
}

/// The newest messages leave the fallback above the trigger: it is sent, since it can be, and no useless
/// compaction follows. Once it is answered it is summarised.
#[tokio::test(start_paused = true)]
async fn after_a_fallback_above_the_trigger_none_follows_in_vain() {
    let talk = Function(|_: &SeenRequest, _: CallInfo| Said::text("yes").with_usage(reported(6_700)));
    // The first summary is refused, so that the fallback is installed.
    let scribe = Function(|request: &SeenRequest, info: CallInfo| match info.session_call {
        0 => Said::fault(Fault::EmptyBody(403)),
        _ => Summariser::Obedient.reply(request, info),
    });
    let model = simulator(ByPurpose::new(talk, scribe), 20_000);
    let runtime = runtime(&model).await;
    let definition = agent(8_000);
    let session = opened(&runtime, "s", &definition, chat(10, 110)).await;
    let mut events = session.subscribe();
    session.prompt(text("huge", 6_200)).await.unwrap();
    let trigger = CompactionSettings::default().trigger_tokens(8_000).unwrap();
    // The second one begins after the run.
    tokio::time::sleep(std::time::Duration::from_secs(10)).await;
    let ended = ends(&drain(&mut events));
    let outcomes: Vec<_> = ended.iter().map(|end| end.outcome.as_str()).collect();
    assert_eq!(outcomes, ["digested", "completed"], "{ended:?}");
    assert!((trigger..7_000).contains(&ended[0].tokens_after), "{ended:?}");
    // Once it is answered, the large prompt is compacted below the trigger.
    assert!(ended[1].tokens_after < trigger, "{ended:?}");
    for sleeps in [false, true] {
        if sleeps {
            runtime.close("s").await.unwrap();
        }
        let session = runtime.open("s", &definition).await.unwrap();
        let mut events = session.subscribe();
        for _ in 0..4 {
            session.prompt("more").await.unwrap();
        }
        let seen = drain(&mut events);
        assert_eq!(count(&seen, "compaction_start"), 0, "{:?}", ends(&seen));
    }
}

/// Below the window a failed summary changes nothing.
#[tokio::test(start_paused = true)]
async fn below_the_window_a_failed_summary_changes_nothing() {
    let runs = Sequence(vec![Said::text("on").with_usage(reported(6_700))]);
    let model = simulator(ByPurpose::new(runs, Summariser::Garbage), 20_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(8_000), chat(12, 280)).await;
    let mut events = session.subscribe();
    session.prompt("go on").await.unwrap();
    let ended = ends(&drain(&mut events));
    assert_eq!(ended[0].outcome.as_str(), "failed");
    assert_eq!(session.context().await.unwrap().len(), 26);
}

/// The newest message alone is larger than the window: a typed error with the numbers; the session stays
/// usable.
#[tokio::test(start_paused = true)]
async fn a_floor_is_typed_with_its_numbers_and_the_session_stays_usable() {
    let model = simulator(Echo, 8_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(8_000), chat(4, 200)).await;
    let error = session.prompt(text("huge", 9_000)).await.unwrap_err();
    let Error::Model(failure) = &error else { panic!("{error}") };
    assert_eq!((failure.class, failure.limit), (FailureClass::ContextFloor, Some(8_000)));
    assert!(failure.requested.is_some_and(|tokens| tokens > 8_000), "{failure:?}");
    assert!(error.is_context_overflow());
    session.branch(Some(EntryId(7))).await.unwrap();
    session.prompt("and on").await.unwrap();
}

/// After three failures in a row there is a warning, and no further attempt until something changes.
#[tokio::test(start_paused = true)]
async fn after_three_failures_it_pauses_until_a_manual_compaction_new_settings_another_model_or_opening() {
    for change in ["manual", "settings", "model", "opening"] {
        let broken = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
        let is_broken = std::sync::Arc::clone(&broken);
        let summaries = Function(move |request: &SeenRequest, info: CallInfo| {
            let broken = is_broken.load(std::sync::atomic::Ordering::Relaxed);
            let kind = if broken { Summariser::Garbage } else { Summariser::Obedient };
            greenroom_simulator::Script::reply(&kind, request, info)
        });
        let talk = Function(|_: &SeenRequest, _: CallInfo| Said::text("yes").with_usage(reported(16_500)));
        let model = simulator(ByPurpose::new(talk, summaries), 40_000);
        let runtime = runtime(&model).await;
        let mut session = opened(&runtime, "s", &agent(20_000), chat(28, 290)).await;
        let mut events = session.subscribe();
        for _ in 0..8 {
            session.prompt("more").await.unwrap();
        }
        let seen = drain(&mut events);
        assert_eq!(ends(&seen).len(), 3, "{change}: {:?}", ends(&seen));
        assert_eq!(
            warnings(&seen).iter().filter(|warning| warning.contains("3 compactions in a row")).count(),
            1
        );
        broken.store(false, std::sync::atomic::Ordering::Relaxed);
        match change {
            "manual" => {
                assert_eq!(session.compact(keep(14_000)).await.unwrap().outcome.as_str(), "completed")
            }
            "settings" => {
                runtime.set_compaction(settings(|settings| settings.threshold = Some(0.79))).await.unwrap();
            }
            "opening" => {
                runtime.close("s").await.unwrap();
                session = runtime.open("s", &agent(20_000)).await.unwrap();
                events = session.subscribe();
            }
            _ => drop(runtime.open("s", &Agent::new("another").context_window(20_000)).await.unwrap()),
        }
        for _ in 0..4 {
            session.prompt(text("more", 300)).await.unwrap();
        }
        let ended = ends(&drain(&mut events));
        let automatic = ended.iter().filter(|end| serde_json::to_value(end.trigger).unwrap() == "threshold");
        assert!(automatic.clone().any(|end| end.outcome.as_str() == "completed"), "{change}: {ended:?}");
    }
}

/// The pause does not apply at the window: the fallback needs no model.
#[tokio::test(start_paused = true)]
async fn a_paused_session_compacts_at_the_window_all_the_same() {
    // It grows to 94 % of the window after the pause began.
    let talk = Function(|_: &SeenRequest, info: CallInfo| {
        Said::text("yes").with_usage(reported(if info.session_call < 8 { 16_500 } else { 18_800 }))
    });
    let model = simulator(ByPurpose::new(talk, Summariser::Garbage), 40_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(20_000), chat(28, 290)).await;
    let mut events = session.subscribe();
    for _ in 0..8 {
        session.prompt("more").await.unwrap();
    }
    let outcomes = |events: &[_]| ends(events).iter().map(|end| end.outcome.as_str()).collect::<Vec<_>>();
    assert_eq!(outcomes(&drain(&mut events)), ["failed"; 3]);
    session.prompt("more").await.unwrap();
    session.prompt("more").await.unwrap();
    assert_eq!(outcomes(&drain(&mut events))[0], "digested");
}

/// A weak compaction is not followed by another without a new message between them.
#[tokio::test(start_paused = true)]
async fn no_automatic_compaction_follows_another_without_a_new_message() {
    let model = simulator(ByPurpose::new(talker(250), Summariser::Garbage), 40_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(20_000), chat(28, 290)).await;
    let mut events = session.subscribe();
    session.prompt("more").await.unwrap();
    let seen = drain(&mut events);
    let names: Vec<_> = seen.iter().map(|event| event.kind.name()).collect();
    let mut message_since = true;
    for name in &names {
        match *name {
            "compaction_start" => assert!(std::mem::take(&mut message_since), "{names:?}"),
            "message_end" => message_since = true,
            _ => {}
        }
    }
    assert!(count(&seen, "compaction_start") >= 1);
}

/// The provider names a smaller window than configured: it is remembered, and the run continues.
#[tokio::test(start_paused = true)]
async fn a_limit_that_a_provider_names_is_remembered() {
    let model = simulator(Echo, 9_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &Agent::new("nobody-knows-it"), chat(14, 350)).await;
    let mut events = session.subscribe();
    session.prompt("go on").await.unwrap();
    assert_eq!(compactions(&runtime, "s").await.len(), 1);
    let context = session.state().await.unwrap().context;
    assert_eq!(
        (context.window, serde_json::to_value(context.window_source).unwrap()),
        (Some(9_000), "learned".into())
    );
    assert!(warnings(&drain(&mut events)).iter().any(|warning| warning.contains("9000")));
}

/// An unused limit is not reported as remembered: a configured window has precedence.
#[tokio::test(start_paused = true)]
async fn a_limit_below_the_window_that_is_set_is_said_not_to_be_used() {
    let model = simulator(Echo, 9_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(20_000), chat(14, 350)).await;
    let mut events = session.subscribe();
    session.prompt("go on").await.unwrap();
    assert_eq!(session.state().await.unwrap().context.window, Some(20_000));
    let said = warnings(&drain(&mut events));
    let of_limit: Vec<&String> = said.iter().filter(|warning| warning.contains("9000")).collect();
    assert_eq!(of_limit.len(), 1, "{said:?}");
    assert!(of_limit[0].contains("is not used, because its window is set to 20000"), "{of_limit:?}");
}

/// On a switch to a model with a smaller window, the old model, whose window still holds the context, writes
/// the summary.
#[tokio::test(start_paused = true)]
async fn a_switch_to_a_smaller_window_compacts_with_the_model_that_is_left_and_then_with_the_new_one() {
    for old_refuses in [false, true] {
        let script = Function(move |request: &SeenRequest, info: CallInfo| {
            let is_summary = request.purpose == greenroom::provider::Purpose::Summary;
            if is_summary && old_refuses && request.model == "large" {
                return Said::text("no");
            }
            greenroom_simulator::Script::reply(&Echo, request, info)
        });
        let model = simulator(script, 100_000);
        let runtime = runtime(&model).await;
        let large = Agent::new("large").context_window(100_000);
        let session = opened(&runtime, "s", &large, chat(30, 400)).await;
        runtime.open("s", &Agent::new("small").context_window(16_000)).await.unwrap();
        session.prompt("go on").await.unwrap();
        let compaction = newest(&runtime, "s").await;
        assert_eq!(serde_json::to_value(compaction.trigger).unwrap(), "model_switch");
        let models: Vec<String> = asked(&model).iter().map(|logged| logged.request.model.clone()).collect();
        assert_eq!(models[0], "large");
        assert_eq!(compaction.model, if old_refuses { "small" } else { "large" }, "{models:?}");
        assert_eq!(runs(&model).last().unwrap().request.model, "small");
        assert!(session.state().await.unwrap().context.tokens < 12_800);
    }
}

/// Settings that cannot work are rejected when they are set, and when a session is opened with them.
#[tokio::test(start_paused = true)]
async fn settings_that_cannot_work_are_refused_with_the_reason() {
    let model = simulator(Echo, 8_000);
    let bad = [
        settings(|settings| settings.threshold = Some(1.5)),
        settings(|settings| settings.context_window = Some(0)),
        settings(|settings| settings.compact_prompt = Some(" ".into())),
        settings(|settings| settings.max_request_bytes = 1),
    ];
    let runtime = runtime(&model).await;
    for bad in bad {
        let refused = runtime.set_compaction(bad.clone()).await.unwrap_err();
        assert!(
            matches!(&refused, Error::Config(reason) if reason.to_string().contains("must")),
            "{refused}"
        );
        assert!(builder(&model).compaction(bad).start().await.is_err());
    }
    let refused = runtime.open("floor", &agent(8_000).instructions(text("rules", 7_000))).await.unwrap_err();
    assert!(refused.to_string().contains("system prompt"), "{refused}");
    // The kept part shrinks; a limit that the fixed part fills is rejected, with the numbers.
    let limited = settings(|settings| {
        (settings.auto_compact_token_limit, settings.keep_recent_tokens) = (Some(1_500), Some(2_000));
    });
    runtime.open("keep", &agent(8_000).compaction(limited.clone())).await.unwrap();
    let ruled = agent(8_000).instructions(text("rules", 1_400));
    let refused = runtime.open("ruled", &ruled.clone().compaction(limited.clone())).await.unwrap_err();
    assert!(refused.to_string().contains("triggers at 1500 of 8000"), "{refused}");
    // Also when they are set for a live session; then they apply to no session.
    let session = runtime.open("ruled", &ruled).await.unwrap();
    let refused = runtime.set_compaction(limited.clone()).await.unwrap_err();
    assert!(refused.to_string().contains("triggers at 1500 of 8000"), "{refused}");
    runtime.open("later", &ruled).await.unwrap();
    runtime.close("ruled").await.unwrap();
    runtime.close("later").await.unwrap();
    runtime.set_compaction(limited).await.unwrap();
    assert!(session.prompt("hello").await.is_err());
}

/// An agent that cannot work is rejected for a live session as for any other, and changes nothing.
#[tokio::test(start_paused = true)]
async fn a_live_session_refuses_an_agent_that_cannot_work_and_goes_on_as_it_was() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let good = agent(8_000);
    let session = opened(&runtime, "s", &good, chat(3, 100)).await;
    let mut events = session.subscribe();
    let unusable: [(Agent, &str); 4] = [
        (agent(8_000).provider("nowhere"), "no provider named"),
        (agent(8_000).compaction(settings(|settings| settings.threshold = Some(7.0))), "threshold"),
        (agent(8_000).instructions(text("rules", 7_000)), "of 8000 tokens"),
        (agent(8_000).settings(ModelSettings::new().temperature(9.0)), "temperature"),
    ];
    for sleeps in [false, true] {
        for (bad, reason) in &unusable {
            if sleeps {
                runtime.close("s").await.unwrap();
            }
            let refused = runtime.open("s", bad).await.unwrap_err();
            assert!(
                matches!(&refused, Error::Config(_)) && refused.to_string().contains(reason),
                "{sleeps}: {refused}"
            );
            // Callers that have the session open continue with the previous agent; it is read and exported as
            // before.
            session.prompt("and on").await.unwrap();
            assert_eq!(session.state().await.unwrap().model, "simulated");
            assert!(!runtime.entries("s", EntryId(0)).await.unwrap().is_empty());
            runtime.replay("s", 0).await.unwrap();
        }
    }
    assert_eq!(warnings(&drain(&mut events)), [""; 0]);
    // With another model it continues.
    runtime.close("s").await.unwrap();
    assert!(runtime.open("s", &unusable[2].0).await.is_err());
    let asleep = runtime.session("s").await.unwrap();
    assert!(!asleep.is_live());
    let stored = asleep.state().await.unwrap();
    assert_eq!(stored.status, Status::Idle);
    let other = Agent::new("other").context_window(50_000).instructions(text("rules", 7_000));
    runtime.open("s", &other).await.unwrap().prompt("and on").await.unwrap();
    assert_eq!(runs(&model).last().unwrap().request.model, "other");
}

/// Several callers open a session at once, with valid and invalid definitions: each gets its own result.
#[tokio::test(start_paused = true)]
async fn who_opens_a_session_at_the_same_time_has_an_answer_of_his_own() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    for good_first in [true, false] {
        let (good, bad) = (agent(8_000), agent(8_000).provider("nowhere"));
        let (one, other) = if good_first { (&good, &bad) } else { (&bad, &good) };
        let id = format!("s{good_first}");
        let (one, other, third) =
            tokio::join!(runtime.open(&id, one), runtime.open(&id, other), runtime.open(&id, &good));
        assert_eq!((one.is_ok(), other.is_ok(), third.is_ok()), (good_first, !good_first, true));
        third.unwrap().prompt("hello").await.unwrap();
    }
}

/// A report shows that the last request was larger than the window, though our estimate is far below it: that
/// is reported, and the session is compacted before the next model call.
#[tokio::test(start_paused = true)]
async fn silent_truncation_is_noticed_by_the_report_and_compacted_for() {
    let said = vec![Said::text("on").with_usage(reported(6_300)), Said::text("and on")];
    let model = simulator(ByPurpose::new(Sequence(said), Summariser::Obedient), 20_000);
    let late = settings(|settings| (settings.threshold, settings.reserve_tokens) = (Some(1.0), None));
    let runtime = builder(&model).compaction(late).start().await.unwrap();
    let session = opened(&runtime, "s", &agent(6_000), chat(8, 270)).await;
    let estimate = session.state().await.unwrap().context.tokens;
    assert!((3_600..5_000).contains(&estimate), "believable, and not due by itself: {estimate}");
    let mut events = session.subscribe();
    for _ in 0..2 {
        session.prompt("more").await.unwrap();
    }
    let seen = drain(&mut events);
    let wanted = ["step_start", "overflow_detected", "compaction_start", "compaction_end", "step_start"];
    let order: Vec<&str> =
        seen.iter().map(|event| event.kind.name()).filter(|name| wanted.contains(name)).collect();
    assert_eq!(order, wanted);
    assert_eq!(ends(&seen)[0].outcome.as_str(), "completed", "{:?}", ends(&seen));
    assert_eq!(model.requests().len(), 3, "two runs and a summary");
    model.assert_clean();
}

/// A message inserted by a program and an empty one count as such.
#[tokio::test(start_paused = true)]
async fn empty_answers_and_notes_neither_count_nor_break_a_compaction() {
    let model = simulator(Echo, 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    let mut kinds: Vec<EntryKind> = chat(4, 200).into_iter().map(EntryKind::message).collect();
    kinds.insert(2, EntryKind::Note { kind: "note".into(), data: "{}".into() });
    kinds.insert(3, EntryKind::message(said("")));
    kinds.insert(4, EntryKind::message(user(" ")));
    let path = crate::compaction_fixtures::entries(kinds);
    let leaf = path.last().map(|entry| entry.id);
    session.import(path, leaf).await.unwrap();
    let done = session.compact(keep(300)).await.unwrap();
    assert_eq!(done.outcome.as_str(), "completed", "{done:?}");
    session.prompt("and on").await.unwrap();
    model.assert_clean();
}
