//! Compactions that are prepared while the conversation goes on.
//!
//! Invariants of the preparations: nobody waits for one, none changes the context, and its cost is billed once.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom::provider::Purpose;
use greenroom::{BeforeCompact, Record, Subscription};
use greenroom_kernel::EntryId;
use greenroom_kernel::message::StopReason;
use greenroom_kernel::settings::Strategy;
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Fault, Function, Script, SeenRequest, Simulator, Summariser,
};
use tokio::time::Instant;

use crate::compaction_fixtures::{asked, ends, runs, settings, text};
use crate::support::{agent, builder, drain, simulator};

const WINDOW: u64 = 16_000;
/// The context's size at which the default settings compact in this window, in tokens.
const TRIGGER: u64 = 12_001;
/// How long a summary takes.
const SUMMARY: Duration = Duration::from_secs(20);

/// Returns a model whose answers have about 300 tokens, and whose summaries take their time.
fn slow_summaries() -> Simulator {
    let talk =
        |_: &SeenRequest, info: CallInfo| Said::text(text(&format!("answer {}.", info.session_call), 300));
    let summary = |request: &SeenRequest, call: CallInfo| {
        let millis = u64::try_from(SUMMARY.as_millis()).unwrap();
        Script::reply(&Summariser::Obedient, request, call).after_ms(millis)
    };
    simulator(ByPurpose::new(Function(talk), Function(summary)), WINDOW)
}

/// The agent of these tests, with changed settings.
fn prepares(change: impl FnOnce(&mut CompactionSettings)) -> Agent {
    agent(WINDOW).compaction(settings(change))
}

/// Prompts until the soft threshold is passed.
async fn approach(session: &SessionHandle, events: &mut Subscription) {
    for _ in 0..100 {
        session.prompt(text("question", 300)).await.unwrap();
        if drain(events).iter().any(|event| event.kind.name() == "compaction_near") {
            return;
        }
    }
    panic!("it does not come near");
}

/// Returns the tokens of model calls that are billed by themselves.
fn spent(events: &[Arc<Event>]) -> Vec<u64> {
    let tokens = |event: &Arc<Event>| match &event.kind {
        EventKind::Recorded { record: Record::Spent { usage, .. }, .. } => Some(usage.total_tokens()),
        _ => None,
    };
    events.iter().filter_map(tokens).collect()
}

/// A wait that a test saw, and the preparation before it.
#[derive(Debug, Clone, Copy)]
struct Wait {
    /// From the soft threshold to the compaction's start.
    notice: Duration,
    /// As the event has it.
    waited_ms: u64,
    prepared_ms: Option<u64>,
    tokens_before: u64,
}

/// Holds a conversation at an even pace until it was compacted five times.
async fn paced(is_prepared: bool, pause: Duration) -> (Vec<Wait>, Simulator) {
    held(is_prepared, std::iter::repeat((300, pause))).await
}

/// Holds a conversation of prompts of so many tokens, each with the pause after it, until it was compacted five times.
async fn held(is_prepared: bool, prompts: impl Iterator<Item = (usize, Duration)>) -> (Vec<Wait>, Simulator) {
    let model = slow_summaries();
    let runtime = builder(&model).idle_after(Duration::ZERO).start().await.unwrap();
    let session = runtime.open("s", &prepares(|it| it.background = is_prepared)).await.unwrap();
    let mut events = session.subscribe();
    let seen = tokio::spawn(async move {
        let (mut waits, mut near, mut start) = (Vec::new(), None, None);
        while let Some(event) = events.next_event().await {
            match &event.kind {
                &EventKind::CompactionNear { tokens, compacts_at } => {
                    assert!(tokens < compacts_at && compacts_at == TRIGGER, "{event:?}");
                    assert!(near.replace(Instant::now()).is_none(), "it is told once");
                }
                EventKind::CompactionStart { .. } => start = Some(Instant::now()),
                EventKind::CompactionEnd(end) => {
                    assert_eq!(end.outcome.as_str(), "completed", "{end:?}");
                    let start: Instant = start.take().expect("it has started");
                    let notice = near.take().map_or(Duration::ZERO, |near| start - near);
                    waits.push(Wait {
                        notice,
                        waited_ms: end.waited_ms,
                        prepared_ms: end.prepared_ms,
                        tokens_before: end.tokens_before,
                    });
                }
                _ => {}
            }
        }
        waits
    });
    for (tokens, pause) in prompts {
        if session.state().await.unwrap().compactions >= 5 {
            break;
        }
        session.prompt(text("question", tokens)).await.unwrap();
        tokio::time::sleep(pause).await;
    }
    drop(session);
    runtime.shutdown().await.unwrap();
    (seen.await.unwrap(), model)
}

/// The user's wait is what is left of the summary's time when the trigger is reached, whatever the pace.
#[tokio::test(start_paused = true)]
async fn a_user_waits_for_what_is_left_of_a_summary() {
    let mut waited = Vec::new();
    for pause in [0, 1, 3, 10, 60].map(Duration::from_secs) {
        let (waits, model) = paced(true, pause).await;
        model.assert_clean();
        assert_eq!(waits.len(), 5, "{waits:?}");
        for wait in &waits {
            let prepared = wait.prepared_ms.expect("it was prepared");
            assert!(prepared <= 20_050 && u128::from(prepared) <= wait.notice.as_millis() + 50, "{wait:?}");
            let left = 20_000_u64.saturating_sub(prepared);
            // It is due after a run, and then the next prompt waits, which comes after a pause.
            let least = left.saturating_sub(u64::try_from(pause.as_millis()).unwrap() + 50);
            assert!((least..=left + 50).contains(&wait.waited_ms), "pause {pause:?}: {wait:?}");
            assert!(wait.tokens_before >= TRIGGER, "the trigger is as before: {wait:?}");
        }
        waited.push(waits.iter().map(|wait| wait.waited_ms).sum::<u64>());
    }
    assert!(waited[0] >= 90_000, "{waited:?}");
    assert_eq!(waited[4], 0, "{waited:?}");
    let (foreground, _) = paced(false, Duration::from_secs(1)).await;
    for wait in &foreground {
        assert!(wait.waited_ms >= 18_000 && wait.prepared_ms.is_none(), "{wait:?}");
    }
}

/// The same over recorded sessions: prompts of the size of each message, at the pace at which they were recorded.
#[tokio::test(start_paused = true)]
async fn a_user_waits_for_what_is_left_of_a_summary_at_recorded_paces() {
    let mut seen = 0;
    for name in ["codex_2025_09", "claude_code_2.1", "pi_v3_large"] {
        let Some(session) = crate::fidelity::sessions::read(name) else { continue };
        let times = session.messages.windows(2).map(|pair| pair[1].at_ms.saturating_sub(pair[0].at_ms));
        let prompts: Vec<(usize, Duration)> = session
            .messages
            .iter()
            .zip(times)
            .map(|(entry, pause)| (entry.tokens.clamp(20, 800) as usize, Duration::from_millis(pause)))
            .collect();
        let (foreground, _) = held(false, prompts.iter().copied()).await;
        let (background, model) = held(true, prompts.iter().copied()).await;
        model.assert_clean();
        let sum = |waits: &[Wait]| waits.iter().map(|wait| wait.waited_ms).sum::<u64>();
        #[expect(clippy::print_stdout, reason = "the figures are what the test is run for")]
        {
            println!("{name}: {foreground:?}, in the background {background:?}");
        }
        assert!(sum(&background) <= sum(&foreground), "{name}: {background:?}, {foreground:?}");
        for wait in &background {
            let prepared = wait.prepared_ms.unwrap_or(0);
            // As the formula of the wait has it: what is left of the summary when it is due, and nothing if it is ready.
            assert!(wait.waited_ms <= 20_050 - prepared.min(20_000), "{name}: {wait:?}");
            assert!(u128::from(prepared) <= wait.notice.as_millis() + 50, "{name}: {wait:?}");
        }
        seen += background.len();
    }
    assert!(seen == 0 || seen >= 9, "{seen} compactions");
}

/// A preparation leaves the requests of the conversation alone, and is made of one summary.
#[tokio::test(start_paused = true)]
async fn requests_extend_each_other_until_what_was_prepared_is_installed() {
    let (waits, model) = paced(true, Duration::from_secs(60)).await;
    let asked = asked(&model).len();
    assert!((waits.len()..=waits.len() + 2).contains(&asked), "{asked} summaries for {waits:?}");
    let mut rewritten = 0;
    let requests = runs(&model);
    for pair in requests.windows(2) {
        let (before, after) = (&pair[0].request.messages, &pair[1].request.messages);
        rewritten += usize::from(!after.starts_with(before));
    }
    // The fifth one comes after the last request.
    assert!((4..=5).contains(&rewritten), "once for each compaction: {rewritten}");
}

#[tokio::test(start_paused = true)]
async fn what_was_prepared_for_another_path_is_discarded_and_billed() {
    let model = slow_summaries();
    let runtime = builder(&model).idle_after(Duration::ZERO).start().await.unwrap();
    let session = runtime.open("s", &prepares(|_| {})).await.unwrap();
    let mut events = session.subscribe();
    approach(&session, &mut events).await;
    tokio::time::sleep(2 * SUMMARY).await;
    assert_eq!(asked(&model).len(), 1, "it is ready");
    let before = session.state().await.unwrap();
    let first = runtime.entries("s", EntryId(0)).await.unwrap()[1].id;
    session.branch(Some(first)).await.unwrap();
    let mut seen = Vec::new();
    while spent(&seen).is_empty() {
        seen.push(events.next_event().await.unwrap());
    }
    let after = session.state().await.unwrap();
    let [billed] = spent(&seen)[..] else { panic!("{seen:?}") };
    assert!(billed > 5_000, "it has read the conversation");
    assert_eq!((after.total_tokens, after.compactions), (before.total_tokens + billed, 0));
    approach(&session, &mut events).await;
    tokio::time::sleep(2 * SUMMARY).await;
    seen.clear();
    while ends(&seen).is_empty() {
        session.prompt(text("question", 300)).await.unwrap();
        tokio::time::sleep(2 * SUMMARY).await;
        seen.extend(drain(&mut events));
    }
    let ends = ends(&seen);
    assert_eq!((ends[0].outcome.as_str(), ends[0].waited_ms), ("completed", 0), "{ends:?}");
    assert_eq!((spent(&seen).len(), asked(&model).len()), (0, 2), "its cost is in its end");
    assert!(ends[0].summary_usage.total_tokens() > 5_000, "{ends:?}");
    model.assert_clean();
}

#[tokio::test(start_paused = true)]
async fn a_preparation_keeps_nothing_awake_and_nothing_from_ending() {
    for is_closed in [true, false] {
        let model = slow_summaries();
        let idle = Duration::from_secs(if is_closed { 0 } else { 5 });
        let runtime = builder(&model).idle_after(idle).start().await.unwrap();
        let session = runtime.open("s", &prepares(|_| {})).await.unwrap();
        let mut events = session.subscribe();
        approach(&session, &mut events).await;
        let began = Instant::now();
        assert_eq!(session.state().await.unwrap().status, Status::Idle);
        if is_closed {
            runtime.close("s").await.unwrap();
            assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
        } else {
            tokio::time::sleep(Duration::from_secs(12)).await;
            assert!(runtime.live().await.unwrap().is_empty(), "it sleeps while a summary is made");
        }
        drop((session, events));
        runtime.shutdown().await.unwrap();
        assert!(began.elapsed() < Duration::from_secs(13), "{:?}", began.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_are_asked_once_about_what_was_prepared() {
    for cancels in [false, true] {
        let model = slow_summaries();
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&count);
        let runtime = builder(&model)
            .before_compact(move |_| {
                let is_first = counted.fetch_add(1, Ordering::Relaxed) == 0;
                async move {
                    if cancels && is_first {
                        BeforeCompact::Cancel("not yet".into())
                    } else {
                        BeforeCompact::Continue
                    }
                }
            })
            .start()
            .await
            .unwrap();
        let session = runtime.open("s", &prepares(|_| {})).await.unwrap();
        let mut events = session.subscribe();
        approach(&session, &mut events).await;
        tokio::time::sleep(2 * SUMMARY).await;
        assert_eq!((count.load(Ordering::Relaxed), asked(&model).len()), (1, usize::from(!cancels)));
        let mut seen = Vec::new();
        while ends(&seen).is_empty() {
            session.prompt(text("question", 300)).await.unwrap();
            tokio::time::sleep(2 * SUMMARY).await;
            seen.extend(drain(&mut events));
        }
        // What a hook cancelled is not prepared again, but proposed when it is due.
        let expect = if cancels { (2, None) } else { (1, Some(20_000)) };
        let prepared = ends(&seen)[0].prepared_ms.map(|millis| millis / 100 * 100);
        assert_eq!((count.load(Ordering::Relaxed), prepared), expect);
        assert_eq!(asked(&model).len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_prepared_where_it_is_off_or_would_be_in_the_way() {
    type Change = fn(&mut CompactionSettings);
    let table: [(&str, usize, Change, usize); 5] = [
        ("on", 4, |_| {}, 1),
        ("off", 4, |it| it.background = false, 0),
        ("a digest", 4, |it| it.strategy = Strategy::Digest, 0),
        ("one slot", 1, |_| {}, 0),
        ("no compaction", 4, |it| it.enabled = false, 0),
    ];
    for (name, slots, change, expect) in table {
        let model = slow_summaries();
        let runtime = builder(&model).in_flight_max(slots).start().await.unwrap();
        let session = runtime.open("s", &prepares(change)).await.unwrap();
        let mut tokens = 0;
        while tokens < TRIGGER - 900 {
            tokens = session.prompt(text("question", 300)).await.unwrap().context.tokens;
        }
        tokio::time::sleep(2 * SUMMARY).await;
        assert_eq!(asked(&model).len(), expect, "{name}");
    }
}

/// Steps of other sessions come first, until the summary is needed.
#[tokio::test(start_paused = true)]
async fn a_preparation_gives_way_to_steps_until_it_is_needed() {
    let talk = |request: &SeenRequest, info: CallInfo| {
        let millis = if request.session.as_deref() == Some("s") { 0 } else { 1_000 };
        Said::text(text(&format!("answer {}.", info.session_call), 300)).after_ms(millis)
    };
    let model = simulator(ByPurpose::new(Function(talk), Summariser::Obedient), WINDOW);
    let runtime = builder(&model).in_flight_max(2).start().await.unwrap();
    let session = runtime.open("s", &prepares(|_| {})).await.unwrap();
    let mut events = session.subscribe();
    let others: Vec<_> = (0..3)
        .map(|number| {
            let runtime = runtime.clone();
            tokio::spawn(async move {
                for turn in 0.. {
                    let id = format!("other-{number}-{turn}");
                    let other = runtime.open(&id, agent(WINDOW)).await.unwrap();
                    if other.prompt("on and on").await.is_err() {
                        return;
                    }
                }
            })
        })
        .collect();
    approach(&session, &mut events).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(asked(&model).len(), 0, "others want the slots");
    let mut seen = Vec::new();
    while ends(&seen).is_empty() {
        session.prompt(text("question", 300)).await.unwrap();
        seen.extend(drain(&mut events));
    }
    let end = &ends(&seen)[0];
    assert!(end.prepared_ms.is_some() && end.waited_ms < 10_000, "{end:?}");
    others.iter().for_each(|other| other.abort());
}

/// Between the tool calls of one long run, too.
#[tokio::test(start_paused = true)]
async fn a_long_run_goes_on_while_its_compaction_is_prepared() {
    let steps = AtomicU32::new(0);
    let step = move |_: &SeenRequest, _: CallInfo| match steps.fetch_add(1, Ordering::Relaxed) {
        step @ 0..60 => {
            Said::call("look", &serde_json::json!({ "path": format!("file-{step}") })).after_ms(2_000)
        }
        _ => Said::text("done"),
    };
    let summary = |request: &SeenRequest, call: CallInfo| {
        Script::reply(&Summariser::Obedient, request, call).after_ms(5_000)
    };
    let model = simulator(ByPurpose::new(Function(step), Function(summary)), WINDOW);
    let runtime = builder(&model).start().await.unwrap();
    #[derive(Deserialize, JsonSchema)]
    struct File {
        path: String,
    }
    let look = |file: File| async move { Ok::<_, ToolError>(text(&file.path, 400)) };
    // Without old results that could be left out instead of a summary.
    let session = runtime.open("s", &prepares(|it| it.prune = false).tool("look", look)).await.unwrap();
    let mut events = session.subscribe();
    let reply = session.prompt("look at everything").await.unwrap();
    assert_eq!((reply.steps, reply.stop), (61, StopReason::Stop));
    let ends = ends(&drain(&mut events));
    assert!(ends.len() >= 2, "{ends:?}");
    for end in &ends {
        assert!(end.waited_ms <= 50 && end.prepared_ms.is_some(), "{end:?}");
    }
    let summaries = model.requests().iter().filter(|it| it.request.purpose == Purpose::Summary).count();
    assert!(summaries <= 2 * ends.len() + 2, "{summaries} for {}", ends.len());
    model.assert_clean();
}

/// What a model prepares is of no use once the session has another one, whose window is the same.
#[tokio::test(start_paused = true)]
async fn what_another_model_prepares_is_not_adopted() {
    let talk =
        |_: &SeenRequest, info: CallInfo| Said::text(text(&format!("answer {}.", info.session_call), 300));
    let writers: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&writers);
    let summary = move |request: &SeenRequest, call: CallInfo| {
        noted.lock().unwrap().push(request.model.clone());
        let answer = Script::reply(&Summariser::Obedient, request, call);
        match &*request.model {
            "failing" => answer.with_fault(Fault::ServerError(503)).after_ms(20_000),
            _ => answer,
        }
    };
    let model = simulator(ByPurpose::new(Function(talk), Function(summary)), WINDOW);
    let runtime = builder(&model).start().await.unwrap();
    let session = runtime.open("s", &prepares(|_| {}).model("failing")).await.unwrap();
    let mut events = session.subscribe();
    approach(&session, &mut events).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(*writers.lock().unwrap(), ["failing"]);
    let session = runtime.open("s", &prepares(|_| {}).model("another")).await.unwrap();
    for _ in 0..40 {
        session.prompt(text("question", 300)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
        if let Some(end) = ends(&drain(&mut events)).first() {
            assert_eq!(end.outcome.as_str(), "completed");
            assert_eq!(writers.lock().unwrap().last().map(String::as_str), Some("another"));
            return;
        }
    }
    panic!("it was not compacted");
}
