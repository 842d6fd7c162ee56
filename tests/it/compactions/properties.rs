//! Random sessions: branches, parallel calls, images, empty and aborted answers, automatic and manual
//! compactions, undone ones, restarts. After every step, the invariants of any context are checked against
//! the log.
//!
//! Invariants: a session follows from its seed alone, and a failure names the seed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use greenroom::prelude::*;
use greenroom_kernel::entry::{Compaction, Entry, EntryId, EntryKind};
use greenroom_kernel::files::{FileOps, Touch};
use greenroom_kernel::message::{Block, Image, Message, StopReason, ToolStatus};
use greenroom_kernel::path::{is_message, path_to, project};
use greenroom_kernel::plan::{PlanOptions, plan};
use greenroom_kernel::random::Random;
use greenroom_kernel::settings::{CutRule, Occasion};
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Function, Pace, SeenRequest, Simulator, SimulatorOptions, Summariser,
};
use greenroom_tools::ToolOutput;
use serde_json::json;

use crate::compaction_fixtures::{
    asked, assert_paired, calls, ends, entries, result, said, settings, text, user,
};
use crate::support::{agent, builder, drain, store};

/// The number of random sessions.
const SEEDS: u64 = 100;
/// The number of steps of each.
const STEPS: u64 = 30;

#[tokio::test(start_paused = true)]
async fn what_holds_of_every_context_holds_in_random_sessions() {
    let mut shown = Shown::default();
    for seed in 0..SEEDS {
        let life = tokio::spawn(async move { live(seed).await });
        shown.add(&life.await.unwrap_or_else(|error| panic!("seed {seed}: {error}")));
    }
    let Shown { installed, planned, undone, branched, requests, messages } = shown;
    assert!(
        installed > 4 * SEEDS
            && planned > 10 * SEEDS
            && undone > SEEDS
            && branched > SEEDS
            && requests > 2 * SEEDS
            && messages > 20 * SEEDS,
        "too little to show anything: {shown:?}"
    );
}

/// How often each property was checked.
#[derive(Debug, Default, Clone, Copy)]
struct Shown {
    /// Compactions that were installed.
    installed: u64,
    /// Plans that were made and compared.
    planned: u64,
    /// Compactions that were undone, with the context from before.
    undone: u64,
    /// Branches that were taken.
    branched: u64,
    /// Compactions whose summary requests were searched.
    requests: u64,
    /// Messages that were searched for in those.
    messages: u64,
}

impl Shown {
    fn add(&mut self, other: &Self) {
        self.installed += other.installed;
        self.planned += other.planned;
        self.undone += other.undone;
        self.branched += other.branched;
        self.requests += other.requests;
        self.messages += other.messages;
    }
}

struct Life {
    model: Simulator,
    runtime: Runtime,
    session: SessionHandle,
    settings: CompactionSettings,
    window: u64,
    /// The number of summary requests already checked.
    looked_at: usize,
    shown: Shown,
}

async fn live(seed: u64) -> Shown {
    let mut random = Random::new(seed);
    let window = 6_000 + random.below(10_000);
    let settings = settings(|settings| {
        settings.cut = if random.below(2) == 0 { CutRule::Nearest } else { CutRule::TurnFirst };
        settings.min_split_prefix = 1 + random.below(6);
        settings.preserve_messages = [None, Some(2), Some(5)][random.index(3)];
        settings.background = random.below(2) == 0;
    });
    let options = SimulatorOptions {
        window,
        seed,
        log_capacity: 100_000,
        ..SimulatorOptions::new(ByPurpose::new(Function(talk), Summariser::Obedient))
    };
    let model = Simulator::new(options);
    let store = store();
    let runtime =
        builder(&model).engine(store).compaction(settings.clone()).start().await.expect("a usable runtime");
    let session = runtime.open("s", &tools(window)).await.unwrap();
    let path = imported(&mut random);
    let leaf = path.last().map(|entry| entry.id);
    session.import(path, leaf).await.unwrap();
    let mut life = Life { model, runtime, session, settings, window, looked_at: 0, shown: Shown::default() };
    for step in 0..STEPS {
        let mut events = life.session.subscribe();
        life.act(&mut random, step).await;
        while life.session.state().await.unwrap().status != Status::Idle {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let seen = drain(&mut events);
        life.check(&seen).await;
    }
    life.model.assert_clean();
    life.runtime.shutdown().await.unwrap();
    life.shown
}

/// Decides the answers: text, parallel calls, sometimes slow answers.
fn talk(_: &SeenRequest, info: CallInfo) -> Said {
    let mut random = Random::new(info.seed);
    let words = text(&format!("a{}.", info.call), 20 + random.index(300));
    let mut reply = Said { text: words, ..Said::default() };
    if random.below(2) == 0 {
        for _ in 0..=random.below(3) {
            let tool = if random.below(3) == 0 { "edit" } else { "read" };
            reply = reply.and_call(tool, &json!({ "path": format!("src/f{}.rs", random.below(12)) }));
        }
    }
    if random.below(4) == 0 {
        reply.with_pace(Pace { chunks: 4, first_ms: 50, between_ms: 50 })
    } else {
        reply
    }
}

/// Reads or changes a file.
#[derive(Deserialize, JsonSchema)]
struct File {
    /// The file's path.
    path: String,
}

/// Tools whose results each have a unique name; every seventh call fails, and so touches nothing.
fn tools(window: u64) -> Agent {
    let count = Arc::new(AtomicU64::new(0));
    let tool = |touch: Touch| {
        let count = Arc::clone(&count);
        move |file: File| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            async move {
                let said = text(&format!("r{number}."), usize::try_from(number * 37 % 400).unwrap());
                if number % 7 == 6 {
                    return Err(ToolError::new(said));
                }
                Ok(ToolOutput::text(said).touching(file.path, touch))
            }
        }
    };
    agent(window).tool("read", tool(Touch::Read)).tool("edit", tool(Touch::Modified))
}

/// Returns a tree as it may be imported: runs with calls, images, empty and aborted answers, and branches
/// that were left.
fn imported(random: &mut Random) -> Vec<Arc<Entry>> {
    let mut tree: Vec<Arc<Entry>> = Vec::new();
    let mut leaf = None;
    for run in 0..random.below(12) {
        let mut messages = vec![user(text(&format!("i{run}u."), random.index(200)))];
        match random.below(5) {
            0 => messages.push(said("")),
            1 => {
                let mut aborted = said(text(&format!("i{run}x."), 30));
                if let Message::Assistant(answer) = &mut aborted {
                    answer.stop = StopReason::Aborted;
                }
                messages.push(aborted);
            }
            2 => {
                let ids = [format!("i{run}c0"), format!("i{run}c1")];
                messages.push(calls(&[&ids[0], &ids[1]], "src/i.rs"));
                let touched = format!("src/i{run}.rs");
                messages.push(result(
                    &ids[1],
                    text(&format!("i{run}r1."), 90),
                    &[(&touched, Touch::Modified)],
                ));
                messages.push(result(&ids[0], text(&format!("i{run}r0."), 90), &[(&touched, Touch::Read)]));
                messages.push(said(text(&format!("i{run}a."), random.index(100))));
            }
            3 => {
                let image = Image { media_type: "image/png".into(), data: "iVBORw0KGgo=".into() };
                let shown = vec![Block::Text(format!("i{run}p.")), Block::Image(image)];
                messages.extend([Message::User(shown), said(text(&format!("i{run}a."), 60))]);
            }
            _ => messages.push(said(text(&format!("i{run}a."), random.index(200)))),
        }
        let first = tree.len() as u64;
        let branch_from = leaf;
        for entry in entries(messages.into_iter().map(EntryKind::message)) {
            let mut entry = Entry::clone(&entry);
            entry.parent = if entry.id.0 == 0 { leaf } else { Some(EntryId(first + entry.id.0 - 1)) };
            entry.id = EntryId(first + entry.id.0);
            leaf = Some(entry.id);
            tree.push(Arc::new(entry));
        }
        if random.below(5) == 0 && run > 0 {
            // This run is left behind: the next one begins at the same point.
            let mut moved = Entry::clone(tree.last().unwrap());
            moved.id = EntryId(tree.len() as u64);
            moved.parent = leaf;
            moved.tokens = 0;
            moved.kind = EntryKind::LeafMoved { to: branch_from };
            tree.push(Arc::new(moved));
            leaf = branch_from;
        }
    }
    // The import's leaf is its last entry, which must be on the path.
    while tree.last().is_some_and(|entry| !entry.kind.is_on_path()) {
        tree.pop();
    }
    tree
}

impl Life {
    async fn act(&mut self, random: &mut Random, step: u64) {
        let said = text(&format!("q{step}."), 10 + random.index(300));
        match random.below(12) {
            0..=4 => {
                self.session.prompt(said).await.unwrap();
            }
            5 => {
                let shown = Prompt::from(said).image(Image::new(b"\x89PNG\r\n\x1a\n").unwrap());
                self.session.prompt(shown).await.unwrap();
            }
            6 => {
                // Whether the abort arrives in time depends on the model's pace.
                let prompt = self.session.prompt(said);
                let abort = async {
                    tokio::time::sleep(Duration::from_millis(120)).await;
                    self.session.abort();
                };
                let (reply, ()) = tokio::join!(prompt, abort);
                assert!(matches!(reply, Ok(_) | Err(Error::Aborted)), "{reply:?}");
            }
            7 | 8 => {
                let options = CompactOptions {
                    keep_recent: Some(1 + random.below(self.window / 4)),
                    force: random.below(2) == 0,
                    focus: None,
                };
                let outcome = self.session.compact(options).await.unwrap();
                assert!(outcome.entry_id.is_some() || outcome.outcome.reason().is_some(), "{outcome:?}");
            }
            9 => self.undo_all(random).await,
            10 => {
                let entries = self.session.state().await.unwrap().entries;
                // Branching is not possible from every entry; a refused branch changes nothing.
                let before = self.session.context().await.unwrap();
                match self.session.branch(Some(EntryId(random.below(entries.max(1))))).await {
                    Ok(()) => self.shown.branched += 1,
                    Err(_) => assert_eq!(self.session.context().await.unwrap(), before),
                }
            }
            _ => {
                let before = self.session.context().await.unwrap();
                self.runtime.close("s").await.unwrap();
                assert_eq!(self.session.context().await.unwrap(), before, "the same after it was read again");
            }
        }
    }

    /// Consecutive manual compactions, and their reversal: each undo restores exactly the previous context.
    async fn undo_all(&mut self, random: &mut Random) {
        let mut contexts = vec![self.session.context().await.unwrap()];
        for _ in 0..=random.below(3) {
            let options = CompactOptions { keep_recent: Some(1), force: true, focus: None };
            if self.session.compact(options).await.unwrap().entry_id.is_some() {
                contexts.push(self.session.context().await.unwrap());
            }
        }
        contexts.pop();
        for before in contexts.iter().rev() {
            // Refused only if the result would not fit the window, with the size; then nothing changes.
            match self.session.undo_compaction().await {
                Ok(_) => {
                    assert_eq!(&self.session.context().await.unwrap(), before);
                    self.shown.undone += 1;
                }
                Err(Error::UndoTooLarge { tokens, window }) => return assert!(tokens > window),
                Err(other) => panic!("{other}"),
            }
        }
    }

    async fn check(&mut self, seen: &[Arc<Event>]) {
        let log: Vec<Arc<Entry>> =
            self.runtime.entries("s", EntryId(0)).await.unwrap().into_iter().map(Arc::new).collect();
        let head = self.runtime.summary("s").await.unwrap().unwrap();
        let path = path_to(&log, head.leaf).expect("every parent is there");
        let context = self.session.context().await.unwrap();
        assert_paired(&context);
        assert_eq!(context, project(&path, &[]), "what is held is what the whole log says");
        self.check_plan(&path).await;
        let ended = ends(seen);
        let starts = seen.iter().filter(|event| event.kind.name() == "compaction_start").count();
        assert_eq!(starts, ended.len(), "one end for each start");
        for end in &ended {
            let is_smaller = end.tokens_after < end.tokens_before;
            assert!(
                is_smaller || end.outcome.reason().is_some() || end.outcome.as_str() == "superseded",
                "{end:?}"
            );
        }
        let requests = asked(&self.model);
        let fresh: Vec<String> =
            requests[self.looked_at..].iter().map(|logged| logged.request.last_user_text()).collect();
        self.looked_at = requests.len();
        let installed: Vec<EntryId> = seen
            .iter()
            .filter_map(|event| match event.kind {
                EventKind::SessionCompacted { entry_id, .. } => Some(entry_id),
                _ => None,
            })
            .collect();
        for id in &installed {
            let path = path_to(&log, Some(*id)).unwrap();
            check_installed(&path);
            // Only if the requests are known to be this one's. Those of a preparation came earlier.
            if ended.len() == 1 && !self.settings.background {
                let messages = check_requests(&path, &fresh);
                self.shown.requests += u64::from(messages > 0);
                self.shown.messages += messages;
            }
        }
        self.shown.installed += installed.len() as u64;
    }

    /// Planning twice gives the same result, and so does planning over the whole log.
    async fn check_plan(&mut self, path: &[Arc<Entry>]) {
        let context = self.session.state().await.unwrap().context;
        let planned = self.session.plan(CompactOptions::default()).await;
        let again = self.session.plan(CompactOptions::default()).await;
        let own = || PlanOptions::new(&self.settings, self.window, Occasion::Manual, context.tokens, 0);
        let options = planned.as_ref().map_or_else(|_| own(), |plan| plan.options.clone());
        assert_eq!(options.tokens_before, context.tokens);
        match (planned, again, plan(path, &options)) {
            (Ok(one), Ok(two), Ok(three)) => {
                assert!(one == two && one == three, "{one:?}\n{three:?}");
                self.shown.planned += 1;
            }
            (Err(_), Err(_), Err(_)) => {}
            other => panic!("plans differ: {other:?}"),
        }
    }
}

/// Checks a path that ends with a compaction.
fn check_installed(path: &[Arc<Entry>]) {
    let (entry, before) = path.split_last().unwrap();
    let compaction = entry.kind.as_compaction().unwrap();
    let (old, new) = (project(before, &[]), project(path, &[]));
    assert_paired(&new);
    // Pairing may drop results that had lost their call before; the kept part is all of the new context but
    // the summary.
    assert!(old.ends_with(&new[1..]), "what is kept stays as it was");
    assert!(compaction.tokens_after < compaction.tokens_before, "{compaction:?}");
    let last = compaction.last.unwrap();
    let mut files = FileOps::default();
    for entry in path.iter().filter(|entry| entry.id <= last) {
        if let Some(Message::ToolResult(result)) = entry.kind.as_message().map(|message| &**message)
            && result.status == ToolStatus::Ok
        {
            result.touched.iter().for_each(|touched| files.record(touched.path.clone(), touched.touch));
        }
    }
    assert_eq!(compaction.files, files, "the files are a fold over everything before the kept part");
}

/// Checks that each message of the live part is in exactly one of a summary's input and the kept part.
/// Returns how many were checked.
fn check_requests(path: &[Arc<Entry>], requests: &[String]) -> u64 {
    let compaction: &Compaction = path.last().unwrap().kind.as_compaction().unwrap();
    if compaction.truncated {
        return 0;
    }
    // A repeated request counts once; merges have no messages.
    let mut transcripts: Vec<&str> = requests
        .iter()
        .filter(|request| !request.contains("<part number"))
        .map(|request| request.split("</conversation>").next().unwrap())
        .collect();
    transcripts.sort_unstable();
    transcripts.dedup();
    let (first, first_kept) = (compaction.first.unwrap(), compaction.first_kept.unwrap());
    let mut looked_for = 0;
    for entry in path.iter().filter(|entry| entry.id >= first && is_message(&entry.kind)) {
        let message = entry.kind.as_message().expect("these sessions have no other messages").text();
        let Some((name, _)) = message.split_once('.') else { continue };
        let is_name = name.len() < 8 && name.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if !is_name {
            continue;
        }
        let name = format!("{name}.");
        let inputs: usize = transcripts
            .iter()
            .map(|text| {
                text.match_indices(&name)
                    .filter(|(at, _)| !text[..*at].ends_with(char::is_alphanumeric))
                    .count()
            })
            .sum();
        let expected = usize::from(entry.id < first_kept);
        assert_eq!(inputs, expected, "{name} (entry {}, first kept {first_kept})", entry.id);
        looked_for += 1;
    }
    looked_for
}
