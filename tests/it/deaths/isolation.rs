//! A panic at any point of one session, with a hundred alive: the other ninety-nine are byte-identical to a
//! run without it, and the one continues.
//!
//! Invariants: the points are read from the actors' own code, so that a new message fails here until the test
//! covers it.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use greenroom::prelude::*;
use greenroom::{BeforeCompact, BeforeTool, Fallback, InputVerdict, ToolCallProposal};
use greenroom_kernel::entry::EntryKind;
use greenroom_kernel::{Entry, EntryId};
use greenroom_provider::Purpose;
use greenroom_simulator::{
    Answer as Said, CallInfo, ErrorDialect, Fault, Function, Pace, Script, SeenRequest, Simulator,
    SimulatorOptions, Summariser,
};
use greenroom_store::Store;
use greenroom_store::faults::{self as store, FaultyFiles, MemoryFiles};
use greenroom_store::files::{Files, OpenMode};

use crate::compaction_fixtures::{calls, chat, entries, result, said, text, user};
use crate::support::{agent, builder, quiet_injected_panics};

const SESSIONS: usize = 100;
const TURNS: u64 = 3;
/// The number of sessions that are long enough to be compacted.
const LONG: usize = 10;
/// The session that is struck.
const VICTIM: &str = "s0";
/// No request takes longer than this, whatever was struck.
const PATIENCE: Duration = Duration::from_secs(6 * 3_600);

/// Returns the source files of the library, in which the actors call the probe.
fn sources() -> Vec<String> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/greenroom/src")];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else {
                sources.push(std::fs::read_to_string(entry.path()).unwrap());
            }
        }
    }
    sources
}

/// Probe points outside of the actors.
const OUTSIDE: [&str; 6] = ["provider", "summary", "tool", "hook/before", "hook/after", "hook/failed"];

/// Returns all points, as the code names them: `=> "session/prompt"`, `probe(…, "install/1_accepted")`.
fn points() -> BTreeSet<&'static str> {
    let actors = ["session/", "agent/", "usage_tracker/", "compactor/", "install/"];
    let sources = sources();
    let named = sources.iter().flat_map(|source| source.lines()).filter_map(|line| {
        let is_point = line.contains("=> \"") || line.contains(".probe(");
        let name = line.split('"').nth(1).filter(|_| is_point)?;
        // The probe requires names with a static lifetime.
        actors.iter().any(|actor| name.starts_with(actor)).then(|| &*name.to_owned().leak())
    });
    named.chain(OUTSIDE).collect()
}

/// Notes a text.
#[derive(Deserialize, JsonSchema)]
struct Note {
    /// The text to work on.
    text: String,
}

/// Strikes once, at one point of one session.
#[derive(Clone)]
struct Strike {
    point: Option<&'static str>,
    hits: Arc<AtomicU32>,
    seen: Arc<Mutex<BTreeSet<&'static str>>>,
    /// The tracker dies once more, so that the new one must be announced.
    kills_tracker: Arc<AtomicBool>,
    /// The disk fails while a summary is installed and waiting input is about to begin.
    fails_disk: Arc<AtomicBool>,
    disk: FaultyFiles,
}

impl Strike {
    fn at(&self, session: &str, at: &'static str) {
        // The next handler has a working disk again: nothing waits here.
        if !at.starts_with("install/") {
            self.disk.set(store::Fault::None);
        }
        if session != VICTIM {
            return;
        }
        self.seen.lock().unwrap().insert(at);
        let struck = Some(at) == self.point && self.hits.fetch_add(1, Ordering::Relaxed) == 0;
        assert!(!struck, "injected at {at}");
        let dies = at == "usage_tracker/measure" && self.kills_tracker.swap(false, Ordering::Relaxed);
        assert!(!dies, "injected so that the tracker is a new one");
        if at == "session/replace_path_segment" && once(&self.fails_disk) {
            self.disk.set(store::Fault::FailFrom { at: 1, errno: store::ENOSPC });
        }
    }
}

/// The next actions of the victim's model and hooks, once each.
#[derive(Clone, Default)]
struct Orders {
    overloaded: Arc<AtomicBool>,
    key_refused: Arc<AtomicBool>,
    overflow: Arc<AtomicBool>,
    summary_overloaded: Arc<AtomicBool>,
    summary_slow: Arc<AtomicBool>,
    /// As long as it is set.
    summary_refused: Arc<AtomicBool>,
    cancel_compaction: Arc<AtomicBool>,
}

fn once(order: &AtomicBool) -> bool {
    order.swap(false, Ordering::Relaxed)
}

fn script(strike: Strike, orders: Orders) -> impl Script {
    Function(move |request: &SeenRequest, info: CallInfo| {
        let session = request.session.as_deref().unwrap_or_default();
        let is_victim = session == VICTIM;
        if request.purpose == Purpose::Summary {
            strike.at(session, "summary");
            if is_victim && once(&orders.summary_overloaded) {
                return Said::fault(Fault::ServerError(503));
            }
            if is_victim && orders.summary_refused.load(Ordering::Relaxed) {
                return Said::fault(Fault::EmptyBody(403));
            }
            let wait_ms = if is_victim && once(&orders.summary_slow) { 30_000 } else { 0 };
            return Script::reply(&Summariser::Obedient, request, info).after_ms(wait_ms);
        }
        strike.at(session, "provider");
        let answer = Said::text(format!("answer {} {}", info.session_call, "word ".repeat(20)));
        if !is_victim {
            let calls = info.session_call.is_multiple_of(2) && request.has_tool("note");
            return if calls { Said::call("note", &serde_json::json!({ "text": session })) } else { answer };
        }
        if once(&orders.overloaded) {
            return Said::fault(Fault::ServerError(503));
        }
        if once(&orders.key_refused) {
            let body = r#"{"error":{"message":"Incorrect API key provided"}}"#;
            return Said::fault(Fault::Http { status: 401, headers: Vec::new(), body: body.into() });
        }
        if once(&orders.overflow) {
            return Said::fault(Fault::Overflow(ErrorDialect::OpenAi));
        }
        let has_result = request.messages.last().is_some_and(|message| message.role() == "tool");
        let asked = request.last_user_text();
        match asked.split(' ').next() {
            Some("call") if !has_result => Said::call("note", &serde_json::json!({ "text": session })),
            Some("ask") if !has_result => Said::call("ask", &serde_json::json!({ "text": session })),
            Some("delegate") if !has_result => Said::call("helper", &serde_json::json!({ "task": "help" })),
            Some("slow") => answer.with_pace(Pace { chunks: 4, first_ms: 20_000, between_ms: 1_000 }),
            _ => answer,
        }
    })
}

/// Makes one request for the victim: it must be answered or refused, but not hang.
async fn ask<T>(what: &str, request: impl IntoFuture<Output = T>) -> T {
    let answer = tokio::time::timeout(PATIENCE, request).await;
    // The struck actor is being restarted.
    tokio::time::sleep(Duration::from_secs(5)).await;
    answer.unwrap_or_else(|_| panic!("{what} was never answered"))
}

/// A life that reaches every point. Any of its requests may be refused.
async fn victim(runtime: Runtime, definitions: [Arc<Agent>; 2], strike: Strike, orders: Orders) {
    let open = |which: usize| {
        let (runtime, definition) = (runtime.clone(), Arc::clone(&definitions[which]));
        async move { runtime.open(VICTIM, definition).await }
    };
    let mut opened = ask("open", open(0)).await;
    if opened.is_err() {
        opened = ask("open again", open(0)).await;
    }
    let session = &opened.unwrap();
    let later = |text: &'static str| {
        let session = session.clone();
        tokio::spawn(async move { session.prompt(text).await })
    };
    // Old results fill the window, and give way if no summary is possible.
    let mut messages = chat(3, 20);
    for id in (0..12).map(|number| format!("k{number}")) {
        let found = result(&id, text("found.", 360), &[]);
        messages.extend([user("look"), calls(&[&id], "x"), found, said("seen")]);
    }
    let path = entries(messages.into_iter().map(EntryKind::message));
    let leaf = path.last().map(|entry| entry.id);
    let _ = ask("adopt", session.import(path, leaf)).await;
    let _ = ask("pin", session.pin(EntryId(0))).await;
    orders.summary_refused.store(true, Ordering::Relaxed);
    let _ = ask("prompt", session.prompt("call it")).await;
    orders.summary_refused.store(false, Ordering::Relaxed);
    let _ = ask("delegate", session.prompt("delegate it")).await;
    let _ = ask("configure", open(1)).await;
    orders.overloaded.store(true, Ordering::Relaxed);
    let _ = ask("overloaded", session.prompt("hello")).await;
    orders.key_refused.store(true, Ordering::Relaxed);
    let _ = ask("fall back", session.prompt("hello again")).await;
    strike.kills_tracker.store(true, Ordering::Relaxed);
    let _ = ask("a new tracker", session.prompt("call it again")).await;
    // Questions of a hook and of its tool: one is answered, one expires, and one is answered after the
    // session was closed.
    let _ = ask("questions", later("ask for an answer")).await;
    for text in ["ask again", "ask once more"] {
        let asks = later(text);
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_secs(2)).await;
            if text == "ask once more" {
                let _ = ask("close", runtime.close(VICTIM)).await;
                let _ = ask("open what waits", open(1)).await;
            }
            for question in ask("what is asked", session.questions()).await.unwrap() {
                let _ = ask("answer", session.answer(question.id, "yes")).await;
            }
        }
        let _ = ask("what was asked", asks).await;
        tokio::time::sleep(Duration::from_secs(7_200)).await;
    }
    // Input that begins a run by itself.
    let _ = ask("input", session.follow_up("by the way")).await;
    // The same key twice.
    for _ in 0..2 {
        let _ = ask("key", session.prompt("with a key").once("a key")).await;
    }
    // An abort, after which the prompt is resumed.
    let aborted = later("slow one");
    tokio::time::sleep(Duration::from_secs(2)).await;
    session.abort();
    let _ = ask("abort", aborted).await;
    let _ = ask("resume", session.resume()).await;
    // A caller that goes away.
    let dropped = later("slow two");
    tokio::time::sleep(Duration::from_secs(2)).await;
    dropped.abort();
    let _ = ask("drop", dropped).await;
    // Compactions: planned, cancelled by a hook, with a summariser that is busy, undone.
    let keep = || CompactOptions { keep_recent: Some(100), ..CompactOptions::default() };
    let _ = ask("plan", session.plan(keep())).await;
    orders.cancel_compaction.store(true, Ordering::Relaxed);
    let _ = ask("cancelled", session.compact(keep())).await;
    orders.summary_overloaded.store(true, Ordering::Relaxed);
    let _ = ask("compact", session.compact(keep())).await;
    let _ = ask("undo", session.undo_compaction()).await;
    let _ = ask("hand off", session.hand_off("nobody", Sees::All)).await;
    // The same settings again change nothing, and every live session is checked against them.
    let _ = ask("settings", runtime.set_compaction(CompactionSettings::default())).await;
    let _ = ask("compact later", session.compact_after_run(keep())).await;
    for run in 0..TURNS {
        let words = "thing ".repeat(1_800);
        let _ = ask("long", session.prompt(format!("question {run} {words}"))).await;
    }
    orders.overflow.store(true, Ordering::Relaxed);
    let _ = ask("overflow", session.prompt("too much")).await;
    let _ = ask("branch", session.branch_with_summary(Some(EntryId(3)))).await;
    let _ = ask("branch without a summary", session.branch(Some(EntryId(3)))).await;
    let _ = ask("rewind", session.rewind(greenroom::files::Rewind::last_turn())).await;
    let _ = ask("context", session.context()).await;
    for run in 0..TURNS {
        let _ = ask("more", session.prompt(format!("more {run} {}", "thing ".repeat(300)))).await;
    }
    let compacting = || {
        orders.summary_slow.store(true, Ordering::Relaxed);
        let session = session.clone();
        tokio::spawn(async move { session.compact(keep()).await })
    };
    // Input waits for a compaction, and the disk is full when its run begins.
    let compaction = compacting();
    tokio::time::sleep(Duration::from_secs(2)).await;
    strike.fails_disk.store(true, Ordering::Relaxed);
    let _ = ask("what waits", session.follow_up("one more thing")).await;
    let _ = ask("a compaction on a full disk", compaction).await;
    // It is closed while a summary is in progress; then it sleeps.
    let compaction = compacting();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let _ = ask("close", runtime.close(VICTIM)).await;
    let _ = ask("a compaction that was cancelled", compaction).await;
    // A run interrupted by the close is finished after reopening.
    let cut_off = later("slow three");
    tokio::time::sleep(Duration::from_secs(2)).await;
    let _ = ask("close", runtime.close(VICTIM)).await;
    let _ = ask("cut off", cut_off).await;
    let definition = Arc::clone(&definitions[1]);
    let finish = runtime.resume_all(move |session| (session.id == VICTIM).then(|| Arc::clone(&definition)));
    let _ = ask("finish", finish).await;
    let _ = ask("clear", session.clear_inbox()).await;
    let _ = ask("state", session.state()).await;
    let _ = ask("wait", session.wait_until_idle()).await;
    tokio::time::sleep(Duration::from_secs(1_800)).await;

    // After all of that, it works.
    let last = ask("the last prompt", session.prompt("and now?")).await;
    assert!(last.is_ok(), "{:?}: the victim does not work any more: {last:?}", strike.point);
    let head = runtime.engine().head(VICTIM).await.unwrap().unwrap();
    assert_eq!((head.open_run, head.open_compaction), (None, None), "{:?}", strike.point);
    assert!(head.inbox.is_empty(), "{:?}: {:?}", strike.point, head.inbox);
    let names: Vec<&str> =
        runtime.replay(VICTIM, 0).await.unwrap().iter().map(|event| event.kind.name()).collect();
    let count = |wanted: &str| names.iter().filter(|name| **name == wanted).count();
    assert_eq!(count("compaction_start"), count("compaction_end"), "{:?}: {names:?}", strike.point);
}

/// Lives with a hundred sessions. If `point` is given, the first session's actor panics the first time it
/// reaches it, or its tool, model call, summary or hook does. Returns the logs of the others, how often the
/// point was reached, and the other points of the victim.
async fn live(point: Option<&'static str>) -> (Vec<Vec<Entry>>, u32, BTreeSet<&'static str>) {
    let strike = Strike {
        point,
        hits: Arc::default(),
        seen: Arc::default(),
        kills_tracker: Arc::default(),
        fails_disk: Arc::default(),
        disk: FaultyFiles::new(Arc::new(MemoryFiles::new())),
    };
    let disk = strike.disk.open(Path::new("disk"), OpenMode::Create).unwrap();
    let orders = Orders::default();
    let options = SimulatorOptions {
        counts_tokens: true,
        ..SimulatorOptions::new(script(strike.clone(), orders.clone()))
    };
    // Its models have prices, so the cost of an interrupted call is reported.
    let model =
        Simulator::new(SimulatorOptions { provider_name: "openai".into(), window: 20_000, ..options });
    let [probe, before, after, failed, in_tool] = std::array::from_fn(|_| strike.clone());
    let cancels = Arc::clone(&orders.cancel_compaction);
    let runtime = builder(&model)
        .store(Store::memory_on(disk))
        .in_flight_max(10_000)
        .probe(move |session, at| probe.at(session, at))
        .before_compact(move |proposal| {
            let session = proposal.session;
            before.at(&session, "hook/before");
            let cancels = &*session == VICTIM && once(&cancels);
            let word =
                if cancels { BeforeCompact::Cancel("not now".into()) } else { BeforeCompact::Continue };
            async move { word }
        })
        .after_compact(move |report| {
            after.at(&report.session, "hook/after");
            async {}
        })
        .compact_failed(move |report| {
            failed.at(&report.session, "hook/failed");
            async {}
        })
        .start()
        .await
        .unwrap();
    let tooled = |agent: Agent| {
        let in_tool = in_tool.clone();
        agent.tool("note", move |note: Note| {
            if note.text == VICTIM {
                in_tool.at(VICTIM, "tool");
            }
            async move { Ok(format!("noted {}", note.text)) }
        })
    };
    // Each waits so long for an answer that the session falls asleep.
    let patience = Duration::from_secs(2_000);
    let asking = move |agent: Agent| {
        let may = move || Question::text("May it?").expires_in(patience);
        agent
            .before_tool(move |call: ToolCallProposal| async move {
                if call.tool == "ask" {
                    let _ = call.ask(may()).await;
                }
                BeforeTool::Continue
            })
            .tool("ask", move |_: Note, cx: ToolContext| async move {
                let answer = cx.ask(Question::text("What?").expires_in(patience)).await;
                // It ends while the session sleeps.
                tokio::time::sleep(patience).await;
                Ok(answer?.to_string())
            })
    };
    // Facts learned about the victim's model do not affect others.
    let [first, second] = ["Be brief.", "Be briefer."].map(|instructions| {
        let helper = Agent::new("gpt-4o").context_window(6_000);
        let spare = Fallback::new("gpt-4o-mini").context_window(6_000);
        let agent = asking(tooled(
            Agent::new("gpt-4o")
                .context_window(6_000)
                .instructions(instructions)
                .fallback(spare)
                .guard_input(async |_| InputVerdict::Accept)
                .validate(async |_| Ok::<_, String>(())),
        ));
        Arc::new(agent.sub_agent(sub_agent("helper", helper).describe("Helps.")))
    });
    let victim = victim(runtime.clone(), [first, second], strike.clone(), orders);
    let shared = Arc::new(tooled(agent(6_000)));
    let lives = (1..SESSIONS).map(|number| {
        let (runtime, shared) = (runtime.clone(), Arc::clone(&shared));
        async move {
            let id = format!("s{number}");
            let session = runtime.open(&id, shared).await.unwrap();
            for run in 0..TURNS {
                let words = "thing ".repeat(if number < LONG { 1_800 } else { 5 });
                let end = session.prompt(format!("question {run} {words}")).await;
                assert!(end.is_ok(), "{id}: {end:?}");
                while session.state().await.unwrap().status != Status::Idle {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
            runtime.entries(&id, EntryId(0)).await.unwrap()
        }
    });
    let ((), logs) = futures_util::future::join(victim, join_all(lives)).await;
    model.assert_clean();
    runtime.shutdown().await.unwrap();
    let seen = std::mem::take(&mut *strike.seen.lock().unwrap());
    (logs, strike.hits.load(Ordering::Relaxed), seen)
}

#[tokio::test(start_paused = true)]
async fn a_panic_in_one_of_a_hundred_sessions_changes_no_other() {
    quiet_injected_panics();
    let points = points();
    assert!(points.len() > 60, "{points:?}");
    let (calm, _, seen) = live(None).await;
    assert!(calm[..LONG - 1].iter().all(|log| log.iter().any(|entry| entry.kind.as_compaction().is_some())));
    let missed: Vec<_> = points.difference(&seen).collect();
    assert!(missed.is_empty(), "the victim's life does not come to {missed:?}");
    for point in points {
        let (others, hits, _) = live(Some(point)).await;
        assert!(hits > 0, "{point} was never reached");
        for (number, (log, calm)) in others.iter().zip(&calm).enumerate() {
            assert_eq!(log, calm, "{point}: session s{} is not what it was", number + 1);
        }
    }
}
