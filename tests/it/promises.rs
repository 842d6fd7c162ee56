//! Promises that answer known problems of other systems: a test for each, named after the promise.
//!
//! Invariants: each test shows its promise through the public API alone; what lies behind it has tests of its own.

use std::future::IntoFuture as _;
use std::time::Duration;

use greenroom::CompactionOutcome;
use greenroom::prelude::*;
use greenroom_kernel::entry::{EntryKind, Trigger};
use greenroom_kernel::size::{Estimator, text_tokens};
use greenroom_kernel::{EntryId, FailureClass};
use greenroom_provider::Purpose;
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Echo, ErrorDialect, Fault, Function, RetryAfter, Script,
    SeenRequest, Sequence, Simulator, SimulatorOptions, Summariser,
};

use crate::compaction_fixtures::{
    asked, calls, chat, count, editor, ends, keep, newest, opened, result, runs, said, settings, talker,
    text, user,
};
use crate::support::{agent, builder, drain, runtime, simulator};

const WINDOW: u64 = 16_000;
const SUMMARY_LEAD: &str = greenroom_kernel::render::SUMMARY_LEAD;

fn talks(tokens: usize, summariser: Summariser) -> Simulator {
    simulator(ByPurpose::new(talker(tokens), summariser), 100_000)
}

/// Returns the messages of a request as texts.
fn sent(request: &SeenRequest) -> Vec<String> {
    request.messages.iter().map(|message| format!("{}: {}", message.role(), message.said())).collect()
}

#[tokio::test(start_paused = true)]
async fn a_compaction_never_fails_because_the_conversation_is_too_long() {
    let small = simulator(ByPurpose::new(talker(20), Summariser::Obedient), 12_000);
    let runtime = runtime(&small).await;
    let session = opened(&runtime, "s", &agent(200_000), chat(60, 500)).await;
    let done = session.compact(keep(500)).await.unwrap();
    assert_eq!(done.outcome, CompactionOutcome::Completed);
    assert!(done.tokens_before > 4 * 12_000 && asked(&small).len() > 4, "in parts: {done:?}");
}

#[tokio::test(start_paused = true)]
async fn compactions_do_not_follow_one_another_without_an_end() {
    // What cannot be compacted takes half of the window.
    let model = talks(200, Summariser::Hostile);
    let runtime = runtime(&model).await;
    let heavy = agent(8_000).instructions(text("Rules.", 4_000));
    let session = runtime.open("s", &heavy).await.unwrap();
    let mut events = session.subscribe();
    for prompt in 0..30 {
        session.prompt(text(&format!("p{prompt}."), 150)).await.unwrap();
    }
    let told = drain(&mut events);
    let (starts, prompts) = (count(&told, "compaction_start"), count(&told, "run_start"));
    assert!(starts > 2 && starts <= prompts, "{starts} in {prompts}");
    let mut is_news = true;
    for event in &told {
        match &event.kind {
            EventKind::MessageEnd { .. } => is_news = true,
            EventKind::CompactionStart { .. } => {
                assert!(std::mem::take(&mut is_news), "without a new message")
            }
            _ => {}
        }
    }
}

#[tokio::test(start_paused = true)]
async fn it_does_not_run_twice_in_a_row() {
    let model = talks(300, Summariser::Obedient);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(WINDOW), chat(21, 300)).await;
    let mut events = session.subscribe();
    for _ in 0..3 {
        session.prompt("more").await.unwrap();
    }
    assert_eq!(count(&drain(&mut events), "compaction_start"), 1, "the report from before is not used again");
}

#[tokio::test(start_paused = true)]
async fn it_fires_before_the_provider_refuses_a_second_time() {
    // The server has a fifth of what it is believed to have.
    let model = simulator(ByPurpose::new(talker(400), Summariser::Obedient), 20_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &Agent::new("simulated")).await.unwrap();
    for prompt in 0..80 {
        session.prompt(text(&format!("p{prompt}."), 400)).await.unwrap();
    }
    let is_refused = |logged: &greenroom_simulator::LoggedRequest| logged.request.tokens > 20_000;
    let refused = runs(&model).iter().filter(|logged| is_refused(logged)).count();
    assert!(refused <= 1, "{refused} requests were refused");
    let state = session.state().await.unwrap();
    assert!(state.compactions >= 2 && state.context.tokens < 20_000, "{state:?}");
}

#[tokio::test(start_paused = true)]
async fn the_window_that_is_set_counts_and_its_source_is_shown() {
    let model = talks(20, Summariser::Obedient);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(12_345)).await.unwrap();
    session.prompt("hello").await.unwrap();
    let context = session.state().await.unwrap().context;
    assert_eq!((context.window, context.window_source), (Some(12_345), greenroom::WindowSource::Setting));
}

#[tokio::test(start_paused = true)]
async fn usage_is_not_counted_twice() {
    let model = talks(300, Summariser::Obedient);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(100_000)).await.unwrap();
    for prompt in 0..20 {
        session.prompt(text(&format!("p{prompt}."), 200)).await.unwrap();
    }
    let last = runs(&model).pop().expect("it was asked").request.tokens;
    let counted = session.state().await.unwrap().context.tokens;
    assert!(counted > last && counted < last + 400, "{counted}, and the last request had {last}");
}

#[test]
fn chinese_json_and_hex_are_not_counted_too_low() {
    // Tokens of o200k for one copy of each text, as counted with its tokeniser.
    for (name, text, least) in [
        ("chinese", "灯塔的看守人每天晚上都要检查油灯和玻璃。", 0.6),
        ("json", r#"{"id":17,"tags":["a","b"],"ok":true,"at":"2026-01-02T03:04:05Z"},"#, 0.35),
        ("hex", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", 0.4),
    ] {
        let text = text.repeat(50);
        let counted = text_tokens(&text, Estimator::Classes);
        let chars = text.chars().count();
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let ratio = counted as f64 / chars as f64;
        assert!(ratio >= least, "{name}: {counted} tokens for {chars} characters");
    }
}

#[tokio::test(start_paused = true)]
async fn images_weigh_something_and_no_request_is_stuck_because_of_them() {
    let model = talks(20, Summariser::Obedient);
    let runtime = runtime(&model).await;
    let small = settings(|settings| settings.max_request_bytes = 400_000);
    let session = runtime.open("s", &agent(100_000).compaction(small)).await.unwrap();
    let mut picture = b"\x89PNG\r\n\x1a\n".to_vec();
    picture.extend(std::iter::repeat_n(7, 100_000));
    let before = session.state().await.unwrap().context.tokens;
    for prompt in 0..6 {
        let shown = Prompt::from(format!("look {prompt}")).image(Image::new(&picture).unwrap());
        session.prompt(shown).await.unwrap();
        let now = session.state().await.unwrap().context.tokens;
        assert!(prompt > 0 || now > before + 1_000, "a picture weighs {}", now - before);
    }
    let bytes: Vec<u64> = runs(&model).iter().map(|logged| logged.request.bytes).collect();
    assert!(bytes.len() == 6 && bytes.iter().all(|bytes| *bytes <= 400_000), "{bytes:?}");
}

#[tokio::test(start_paused = true)]
async fn orphan_results_do_not_brick_a_session() {
    let model = talks(20, Summariser::Obedient);
    let runtime = runtime(&model).await;
    let odd = vec![
        result("gone", "of a call that nobody made", &[]),
        user("u"),
        calls(&["a", "b"], "x"),
        result("b", "only one", &[]),
        user("and on"),
        calls(&["c"], "x"),
    ];
    let session = opened(&runtime, "s", &agent(100_000), odd).await;
    session.prompt("more").await.unwrap();
    assert!(session.compact(keep(1)).await.is_ok());
    session.prompt("and more").await.unwrap();
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn rules_are_in_every_request_once() {
    const RULE: &str = "Answer in rhymes, always.";
    let model = talks(300, Summariser::Lossy);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(WINDOW).instructions(RULE)).await.unwrap();
    for prompt in 0..60 {
        session.prompt(text(&format!("p{prompt}."), 300)).await.unwrap();
    }
    assert!(session.state().await.unwrap().compactions >= 3);
    for logged in runs(&model) {
        let system = logged.request.system.clone().unwrap_or_default();
        let messages = sent(&logged.request).join("\n");
        assert_eq!((system.matches(RULE).count(), messages.matches(RULE).count()), (1, 0));
    }
    let log = format!("{:?}", runtime.entries("s", EntryId(0)).await.unwrap());
    assert!(!log.contains(RULE), "they are not part of the log");
}

#[tokio::test(start_paused = true)]
async fn the_latest_request_is_kept_word_for_word() {
    const REQUEST: &str = "Rename every lamp to beacon, but leave the tests of the harbour alone.";
    let steps = Function(|request: &SeenRequest, info: CallInfo| match request.purpose {
        Purpose::Step if info.session_call < 40 => {
            Said::call("read", &serde_json::json!({ "path": format!("src/{}.rs", info.session_call) }))
        }
        _ => Said::text("Done."),
    });
    let model = simulator(ByPurpose::new(steps, Summariser::Lossy), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &editor(WINDOW, 900)).await.unwrap();
    session.prompt(REQUEST).await.unwrap();
    assert!(session.state().await.unwrap().compactions >= 2, "within one turn");
    for logged in runs(&model) {
        assert_eq!(sent(&logged.request).join("\n").matches(REQUEST).count(), 1, "{:?}", logged.call);
    }
}

#[tokio::test(start_paused = true)]
async fn finished_work_is_known_after_a_compaction() {
    const DONE: &str = "I have finished the parser of the tide tables.";
    let model = talks(20, Summariser::Lossy);
    let runtime = runtime(&model).await;
    let mut messages = vec![user("Write the parser."), said(DONE)];
    messages.extend(chat(8, 300));
    let session = opened(&runtime, "s", &agent(100_000), messages).await;
    assert!(session.compact(keep(300)).await.unwrap().is_installed());
    assert!(session.context().await.unwrap()[0].text().contains(DONE));
}

#[tokio::test(start_paused = true)]
async fn no_turn_of_the_user_is_made_up() {
    let model = talks(300, Summariser::Obedient);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(WINDOW)).await.unwrap();
    for prompt in 0..60 {
        session.prompt(text(&format!("p{prompt}."), 300)).await.unwrap();
    }
    let mut summaries = 0;
    for logged in runs(&model) {
        for message in logged.request.messages.iter().filter(|message| message.role() == "user") {
            let said = message.text();
            summaries += usize::from(said.starts_with(SUMMARY_LEAD));
            assert!(said.starts_with('p') || said.starts_with(SUMMARY_LEAD), "{said}");
        }
    }
    assert!(summaries > 5, "{summaries}");
}

#[tokio::test(start_paused = true)]
async fn what_is_said_during_a_compaction_is_not_lost() {
    let slow = Function(|request: &SeenRequest, info: CallInfo| {
        Script::reply(&Summariser::Obedient, request, info).after_ms(20_000)
    });
    let model = simulator(ByPurpose::new(talker(20), slow), 100_000);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(20, 300)).await;
    let compacting = tokio::spawn({
        let session = session.clone();
        async move { session.compact(keep(500)).await }
    });
    while session.state().await.unwrap().status != Status::Compacting {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let sent = session.follow_up("and the lamps?").await.unwrap();
    assert!(compacting.await.unwrap().unwrap().is_installed(), "it is not cancelled");
    assert!(!sent.reply().await.unwrap().text.is_empty());
    let context = session.context().await.unwrap();
    assert_eq!(context.iter().filter(|message| message.text() == "and the lamps?").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_failed_summary_changes_nothing() {
    for summariser in [Summariser::Empty, Summariser::Garbage, Summariser::ToolCalls, Summariser::CutOff] {
        let model = talks(20, summariser);
        let runtime = runtime(&model).await;
        let session = opened(&runtime, "s", &agent(100_000), chat(20, 300)).await;
        let before = session.context().await.unwrap();
        let done = session.compact(keep(500)).await.unwrap();
        assert_eq!(done.outcome.as_str(), "failed", "{summariser:?}: {done:?}");
        assert_eq!(session.context().await.unwrap(), before, "{summariser:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn rate_limits_are_no_overflow_and_an_overflow_is_no_rate_limit() {
    for (fault, compactions) in
        [(Fault::RateLimited(RetryAfter::Seconds(1)), 0), (Fault::Overflow(ErrorDialect::OpenAi), 1)]
    {
        let name = format!("{fault:?}");
        let first = Sequence(vec![Said::text("").with_fault(fault), Said::text("Here.")]);
        let model = simulator(ByPurpose::new(first, Summariser::Obedient), 100_000);
        let runtime = runtime(&model).await;
        let session = opened(&runtime, "s", &agent(100_000), chat(20, 300)).await;
        let mut events = session.subscribe();
        assert_eq!(session.prompt("more").await.unwrap().text, "Here.", "{name}");
        let ended = ends(&drain(&mut events));
        assert_eq!(ended.len(), compactions, "{name}: {ended:?}");
        assert!(ended.iter().all(|end| end.trigger == Trigger::Overflow), "{name}: {ended:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn off_is_off() {
    let model = simulator(ByPurpose::new(talker(300), Summariser::Obedient), WINDOW);
    let runtime = runtime(&model).await;
    let off = agent(WINDOW).compaction(settings(|settings| settings.enabled = false));
    let session = runtime.open("s", &off).await.unwrap();
    let mut events = session.subscribe();
    let mut failed = None;
    for prompt in 0..60 {
        if let Err(error) = session.prompt(text(&format!("p{prompt}."), 300)).await {
            failed = Some(error);
            break;
        }
    }
    let class = failed.as_ref().and_then(|error| match error {
        Error::Model(failure) => Some(failure.class),
        _ => None,
    });
    assert_eq!(class, Some(FailureClass::ContextOverflow), "{failed:?}");
    assert_eq!((asked(&model).len(), count(&drain(&mut events), "compaction_start")), (0, 0));
    // A person's request works.
    assert!(session.compact(CompactOptions::default()).await.unwrap().is_installed());
}

#[tokio::test(start_paused = true)]
async fn the_call_for_a_summary_does_not_move_the_size_of_the_context() {
    let model = talks(20, Summariser::Obedient);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(40, 300)).await;
    let done = session.compact(keep(500)).await.unwrap();
    let state = session.state().await.unwrap();
    assert_eq!(state.context.tokens, done.tokens_after);
    let spent = done.summary_usage.total_tokens();
    assert!(spent > 10_000 && state.total_tokens == spent, "it is billed: {spent} of {}", state.total_tokens);
}

#[tokio::test(start_paused = true)]
async fn the_past_is_rewritten_by_compactions_alone() {
    let reads = Function(|request: &SeenRequest, info: CallInfo| {
        let is_result = request.messages.last().is_some_and(|message| message.role() == "tool");
        match info.session_call % 3 {
            1 | 2 if request.purpose == Purpose::Step || is_result => Said::call(
                "read",
                &serde_json::json!({ "path": format!("src/{}.rs", info.session_call % 7) }),
            ),
            _ => Said::text(text(&format!("answer {}.", info.session_call), 200)),
        }
    });
    let model = simulator(ByPurpose::new(reads, Summariser::Obedient), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &editor(WINDOW, 700)).await.unwrap();
    let mut events = session.subscribe();
    for prompt in 0..40 {
        session.prompt(text(&format!("p{prompt}."), 200)).await.unwrap();
    }
    let installed = ends(&drain(&mut events)).iter().filter(|end| end.is_installed()).count();
    let requests: Vec<Vec<String>> = runs(&model).iter().map(|logged| sent(&logged.request)).collect();
    let rewritten = requests.windows(2).filter(|pair| !pair[1].starts_with(&pair[0])).count();
    assert!(installed >= 3 && rewritten <= installed, "{rewritten} by {installed}, of {}", requests.len());
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_for_a_compaction_that_could_be_prepared() {
    let slow = Function(|request: &SeenRequest, info: CallInfo| {
        Script::reply(&Summariser::Obedient, request, info).after_ms(20_000)
    });
    let model = simulator(ByPurpose::new(talker(300), slow), 100_000);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(WINDOW)).await.unwrap();
    let mut events = session.subscribe();
    for prompt in 0..30 {
        session.prompt(text(&format!("p{prompt}."), 300)).await.unwrap();
        tokio::time::sleep(Duration::from_secs(30)).await;
    }
    let ended = ends(&drain(&mut events));
    assert!(!ended.is_empty());
    for end in ended {
        assert!(end.waited_ms == 0 && end.prepared_ms.is_some_and(|ms| ms >= 20_000), "{end:?}");
    }
    assert_eq!(session.state().await.unwrap().compaction_bill.waited_ms, 0);
}

#[tokio::test(start_paused = true)]
async fn a_compaction_is_told_with_its_sizes() {
    let model = talks(20, Summariser::Obedient);
    let runtime = runtime(&model).await;
    let session = opened(&runtime, "s", &agent(100_000), chat(20, 300)).await;
    let mut events = session.subscribe();
    let done = session.compact(keep(500)).await.unwrap();
    let told = drain(&mut events);
    assert_eq!((count(&told, "compaction_start"), ends(&told)), (1, vec![done.clone()]));
    assert!(done.tokens_before > done.tokens_after && done.messages_removed > 0);
}

#[tokio::test(start_paused = true)]
async fn what_was_compacted_away_is_still_there() {
    let model = talks(20, Summariser::Lossy);
    let runtime = runtime(&model).await;
    let mut messages = vec![user("The password of the lighthouse is marzipan."), said("Noted.")];
    messages.extend(chat(12, 300));
    let session = opened(&runtime, "s", &agent(100_000), messages).await;
    let (before, entries) =
        (session.context().await.unwrap(), runtime.entries("s", EntryId(0)).await.unwrap());
    assert!(session.compact(keep(300)).await.unwrap().is_installed());
    let after = runtime.entries("s", EntryId(0)).await.unwrap();
    assert!(after.starts_with(&entries), "the log only grows");
    let found = session.recall("password of the lighthouse", 1).await.unwrap();
    assert!(found[0].text.contains("marzipan"), "{found:?}");
    session.undo_compaction().await.unwrap();
    assert_eq!(session.context().await.unwrap(), before);
}

#[tokio::test(start_paused = true)]
async fn opening_a_session_reads_what_the_model_sees_and_not_its_history() {
    let model = talks(300, Summariser::Obedient);
    let runtime = runtime(&model).await;
    let session = runtime.open("s", &agent(WINDOW)).await.unwrap();
    for prompt in 0..200 {
        session.prompt(text(&format!("p{prompt}."), 300)).await.unwrap();
    }
    runtime.close("s").await.unwrap();
    let head = runtime.engine().head("s").await.unwrap().unwrap();
    let live = head.entries - head.active_from.0;
    assert!(head.entries > 600 && live * 5 < head.entries, "{live} of {}", head.entries);
    // Nothing before that is needed for an answer.
    assert!(runtime.open("s", &agent(WINDOW)).await.unwrap().prompt("more").await.is_ok());
    let newest = newest(&runtime, "s").await;
    assert!(newest.first_kept.is_some_and(|first| first >= head.active_from));
}

#[tokio::test(start_paused = true)]
async fn many_sessions_share_their_limits() {
    let model = Simulator::new(SimulatorOptions { window: 100_000, ..SimulatorOptions::new(Echo) });
    let runtime = builder(&model).live_sessions_max(3).idle_after(Duration::ZERO).start().await.unwrap();
    let mut sessions = Vec::new();
    for number in 0..12 {
        sessions.push(runtime.open(&format!("s{number}"), &agent(100_000)).await.unwrap());
    }
    for round in 0..3 {
        let prompts = sessions.iter().map(|session| session.prompt(format!("hello {round}")).into_future());
        for reply in futures_util::future::join_all(prompts).await {
            assert!(reply.is_ok(), "{reply:?}");
        }
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let live = runtime.live().await.unwrap().len();
    assert!(live <= 3, "{live}");
    for session in &sessions {
        let answers = runtime.entries(session.id(), EntryId(0)).await.unwrap();
        let answered =
            answers.iter().filter(|entry| matches!(&entry.kind, EntryKind::RunEnded { .. })).count();
        assert_eq!(answered, 3, "{}", session.id());
    }
}
