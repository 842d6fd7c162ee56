//! Random sessions, and properties that every import and every plan of them must have.
//!
//! Invariants: a failure names its seed, and the same seed gives the same session.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use greenroom_kernel::entry::{Entry, EntryId, EntryKind};
use greenroom_kernel::message::{
    AssistantMessage, Message, Part, StopReason, ToolCall, ToolResult, ToolStatus,
};
use greenroom_kernel::path::{ActivePath, is_message, path_to, project};
use greenroom_kernel::plan::{FileRule, NothingToCompact, Plan, PlanOptions, is_turn_start, plan};
use greenroom_kernel::settings::CutRule;
use greenroom_kernel::size::Estimator;
use serde_json::{Value, json};

use crate::{ImportOptions, Imported, import};

/// The number of sessions for each property.
pub(super) const SEEDS: u64 = 300;

/// A seeded generator of numbers.
pub(super) struct Random(greenroom_kernel::random::Random);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(greenroom_kernel::random::Random::new(seed))
    }

    /// Returns a number below `end`.
    pub(super) fn below(&mut self, end: usize) -> usize {
        let end = u64::try_from(end).expect("small");
        usize::try_from(self.0.below(end)).expect("below a usize")
    }

    pub(super) fn percent(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }

    pub(super) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }

    pub(super) fn text(&mut self) -> String {
        let length = self.below(60);
        (0..length).map(|_| self.pick(&["word ", "é", "漢字", "\n", "fn f() {} ", "0xab12", "😀"])).collect()
    }
}

/// Returns a session as pi could have written it, with a few errors that pi would not make.
fn session(seed: u64) -> String {
    let mut random = Random::new(seed);
    let length = random.pick(&[3, 12, 40, 90]);
    let mut lines = vec![json!({"type": "session", "version": 3, "id": "s"})];
    let mut ids: Vec<String> = Vec::new();
    let mut parent: Option<String> = None;
    let mut open: Vec<String> = Vec::new();
    for number in 0..=random.below(length) {
        let id = format!("{number:08x}");
        let mut line = entry(&mut random, number, &ids, &mut open);
        line["id"] = json!(id);
        line["parentId"] = json!(parent);
        lines.push(line);
        ids.push(id.clone());
        parent = if random.percent(4) { Some(ids[random.below(ids.len())].clone()) } else { Some(id) };
    }
    lines.iter().map(Value::to_string).collect::<Vec<_>>().join("\n")
}

fn entry(random: &mut Random, number: usize, ids: &[String], open: &mut Vec<String>) -> Value {
    let any = if ids.is_empty() { "gone".to_owned() } else { ids[random.below(ids.len())].clone() };
    let message = |message: Value| json!({"type": "message", "message": message});
    match random.below(100) {
        0..20 => message(json!({"role": "user", "content": random.text()})),
        20..50 => {
            let mut content = vec![json!({"type": "text", "text": random.text()})];
            if random.percent(60) {
                open.clear();
                for call in 0..=random.below(3) {
                    let id = if random.percent(3) { "again".into() } else { format!("c{number}_{call}") };
                    let (name, path) =
                        (random.pick(&["read", "edit", "bash"]), random.pick(&["a.rs", "b.rs"]));
                    let arguments = json!({"path": path, "text": random.text()});
                    content.push(json!({"type": "toolCall", "id": id, "name": name, "arguments": arguments}));
                    open.push(id);
                }
            }
            let (input, output) = (random.below(9_000), random.below(900));
            let usage = json!({"input": input, "output": output, "cacheRead": 0, "cacheWrite": 0});
            let stop = random.pick(&["stop", "toolUse", "toolUse", "aborted", "error", "length"]);
            message(json!({"role": "assistant", "content": content, "usage": usage, "stopReason": stop}))
        }
        50..75 if !open.is_empty() => {
            let call =
                if random.percent(95) { open.remove(0) } else { random.pick(&["orphan", "again"]).into() };
            let content = json!([{"type": "text", "text": random.text()}]);
            let is_error = random.percent(20);
            message(
                json!({"role": "toolResult", "toolCallId": call, "content": content, "isError": is_error}),
            )
        }
        50..80 => message(json!({"role": "bashExecution", "command": "ls", "output": random.text(),
            "excludeFromContext": random.percent(30)})),
        80..84 => json!({"type": "custom_message", "customType": "c", "content": random.text()}),
        84..87 => json!({"type": "branch_summary", "fromId": any, "summary": random.text()}),
        87..91 => json!({"type": "compaction", "summary": random.text(), "firstKeptEntryId": any,
            "tokensBefore": 1, "fromHook": random.percent(20),
            "details": {"readFiles": ["r.rs"], "modifiedFiles": ["a.rs"]}}),
        91..94 => json!({"type": "model_change", "provider": "p", "modelId": "m"}),
        94..96 => json!({"type": "label", "targetId": any, "label": "l"}),
        96..98 => json!({"type": "from_the_future"}),
        _ => json!({"type": "custom", "customType": "c", "data": 1}),
    }
}

fn imported(text: &str, repair: bool) -> Imported {
    import(text, ImportOptions { repair }).expect("it has a header")
}

/// Returns random options, of comparisons and of production.
pub(super) fn options(random: &mut Random) -> PlanOptions {
    let keep = random.pick(&[1, 20, 60, 200, 700, 2_000, 100_000]);
    let comparison = PlanOptions::comparison(keep, 0);
    if random.percent(40) {
        return comparison;
    }
    PlanOptions {
        cut: random.pick(&[CutRule::TurnFirst, CutRule::TurnFirst, CutRule::Nearest]),
        min_split_prefix: random.pick(&[1, 5]),
        preserve_messages: random.pick(&[0, 0, 5]),
        force: random.percent(20),
        estimator: Estimator::Classes,
        files: FileRule::Declared,
        as_read: false,
        ..comparison
    }
}

/// Panics if the plan is not sound.
fn check_plan(path: &[Arc<Entry>], plan: &Plan, options: &PlanOptions) {
    let active = ActivePath::of(path);
    let index = |id: EntryId| path.iter().position(|entry| entry.id == id).expect("on the path");
    assert_eq!(index(plan.first), active.start, "it begins at the first active entry");
    assert_eq!(index(plan.last) + 1, index(plan.first_kept), "it ends directly before what stays");
    let parts = plan.history.iter().chain(&plan.turn_prefix).chain(&path[index(plan.first_kept)..]);
    assert!(parts.eq(active.entries()), "each active entry is in exactly one part, in order");
    assert!(plan.messages_removed() > 0, "something is replaced");

    let kept = &path[index(plan.first_kept)..];
    let cut = kept.iter().position(|entry| is_message(&entry.kind)).expect("a message stays");
    let cut = index(plan.first_kept) + cut;
    let message = |entry: &Arc<Entry>| entry.kind.as_message().cloned();
    let is_result = |message: &Message| matches!(message, Message::ToolResult(_));
    assert!(
        !message(&path[cut]).is_some_and(|message| is_result(&message)),
        "the kept part does not begin with a result"
    );
    let calls_before: HashSet<String> = path[active.start..cut]
        .iter()
        .filter_map(message)
        .flat_map(|message| message.tool_calls().map(|call| call.id.clone()).collect::<Vec<_>>())
        .collect();
    // A repeated id belongs to the newest call that has it.
    let mut called_after: HashSet<String> = HashSet::new();
    for message in path[cut..].iter().filter_map(message) {
        called_after.extend(message.tool_calls().map(|call| call.id.clone()));
        if let Message::ToolResult(result) = &*message {
            let id = &result.call_id;
            assert!(!calls_before.contains(id) || called_after.contains(id), "{id} is torn from its result");
        }
    }

    let turn = plan.turn_prefix.iter().find(|entry| is_message(&entry.kind));
    assert_eq!(plan.is_split_turn, turn.is_some());
    if let Some(turn) = turn {
        assert!(is_turn_start(&turn.kind) && !is_turn_start(&path[cut].kind), "a split turn is split");
        assert!(plan.turn_prefix_messages() >= options.min_split_prefix);
    }
    let kept_messages = kept.iter().filter(|entry| is_message(&entry.kind)).count();
    if !options.force {
        assert!(kept_messages as u64 >= options.preserve_messages, "enough messages stay");
    }
    let moved = plan.moved_to(path, plan.first_kept);
    assert_eq!(moved.as_ref(), Some(plan), "a plan that is moved to its own cut does not change");
}

#[test]
fn every_plan_is_sound() {
    let (mut plans, mut splits) = (0, 0);
    for seed in 0..SEEDS {
        let text = session(seed);
        for repair in [false, true] {
            let mut random = Random::new(seed);
            let path = imported(&text, repair).path();
            for _ in 0..3 {
                let options = options(&mut random);
                let planned = plan(&path, &options);
                assert_eq!(planned, plan(&path, &options), "seed {seed}: the same again");
                let Ok(plan) = planned else { continue };
                plans += 1;
                splits += u64::from(plan.is_split_turn);
                let checked = std::panic::catch_unwind(|| check_plan(&path, &plan, &options));
                assert!(checked.is_ok(), "seed {seed}, repair {repair}, {options:?}, {plan:#?}");
            }
        }
    }
    assert!(plans > SEEDS && splits > SEEDS / 10, "{plans} plans, {splits} of them split");
}

#[test]
fn after_a_repair_every_call_has_exactly_one_result_on_every_path() {
    let mut repairs = 0;
    for seed in 0..SEEDS {
        let text = session(seed);
        let imported = imported(&text, true);
        repairs += imported.repaired;
        check_repaired(seed, &imported);
    }
    assert!(repairs > SEEDS, "{repairs} repairs");
}

/// Panics if a path of a repaired session has a call without exactly one result, or if a second repair finds something.
pub(super) fn check_repaired(seed: u64, imported: &Imported) {
    let parents: HashSet<EntryId> = imported.entries.iter().filter_map(|entry| entry.parent).collect();
    for end in imported.entries.iter().filter(|entry| !parents.contains(&entry.id)) {
        let path = path_to(&imported.entries, Some(end.id)).expect("parents are there");
        check_pairs(&path).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
        let sent = project(&path, &[]);
        let (calls, results) = sent.iter().fold((0, 0), |(calls, results), message| {
            let is_result = usize::from(matches!(**message, Message::ToolResult(_)));
            (calls + message.tool_calls().count(), results + is_result)
        });
        assert_eq!(calls, results, "seed {seed}: as sent");
    }
    let again = crate::repair::repair(&imported.entries, imported.leaf);
    assert_eq!((again.repairs, again.leaf), (0, imported.leaf), "seed {seed}");
    assert_eq!(again.entries, imported.entries, "seed {seed}: a second repair changes nothing");
}

fn check_pairs(path: &[Arc<Entry>]) -> Result<(), String> {
    let mut open: HashSet<&str> = HashSet::new();
    let mut results: HashMap<&str, usize> = HashMap::new();
    for entry in path.iter().filter(|entry| is_message(&entry.kind)) {
        if let EntryKind::Message { message, .. } = &entry.kind
            && let Message::ToolResult(result) = &**message
        {
            *results.entry(&result.call_id).or_default() += 1;
            if !open.remove(result.call_id.as_str()) {
                return Err(format!("{}: the result of no open call", entry.id));
            }
            continue;
        }
        if !open.is_empty() {
            return Err(format!("{}: a message before the results of {open:?}", entry.id));
        }
        if let EntryKind::Message { message, .. } = &entry.kind {
            open.extend(message.tool_calls().map(|call| call.id.as_str()));
        }
    }
    match results.iter().find(|(_, count)| **count != 1) {
        _ if !open.is_empty() => Err(format!("the end: {open:?} have no result")),
        Some((id, count)) => Err(format!("{id} has {count} results")),
        None => Ok(()),
    }
}

/// Returns a text with a few pieces cut off, overwritten or repeated.
pub(super) fn damaged(text: String, random: &mut Random) -> String {
    let mut bytes = text.into_bytes();
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len());
        match random.below(3) {
            0 => bytes.truncate(at.max(60)),
            1 => bytes[at] = random.pick(&[b'"', b'\\', b'{', b'\n', 0xff, b'0']),
            // A copy of a piece of the file: repeated ids, and lines within lines.
            _ => {
                let piece = bytes[at..bytes.len().min(at + 400)].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, piece);
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Panics if ids are not dense, a parent is not earlier, or the leaf is no entry.
pub(super) fn check_log(seed: u64, imported: &Imported) {
    for (index, entry) in imported.entries.iter().enumerate() {
        assert_eq!(entry.id.0, index as u64, "seed {seed}: ids are dense");
        assert!(entry.parent.is_none_or(|parent| parent < entry.id), "seed {seed}: parents are earlier");
    }
    let known = |id: EntryId| id.0 < imported.entries.len() as u64;
    assert!(imported.leaf.is_none_or(known), "seed {seed}");
}

#[test]
fn a_damaged_file_never_gives_a_cycle() {
    let mut imports = 0;
    for seed in 0..SEEDS {
        let mut random = Random::new(seed);
        let text = damaged(session(seed), &mut random);
        for repair in [false, true] {
            let Ok(imported) = import(&text, ImportOptions { repair }) else { continue };
            imports += 1;
            check_log(seed, &imported);
            let _: Result<Plan, NothingToCompact> = plan(&imported.path(), &options(&mut random));
        }
    }
    assert!(imports > SEEDS, "{imports} imports");
}

/// A plan whose time grew with the square of the path's length would take minutes here, and the test runner
/// would end it.
#[test]
fn a_long_path_is_planned() {
    let mut all_live = vec![long_entry(0, EntryKind::message(Message::user("go on")))];
    extend_with_calls(&mut all_live, 50_000);
    let mut small_live = all_live.clone();
    let compaction = json!({"type": "compaction", "id": "c", "parentId": null, "summary": "s"});
    let header = json!({"type": "session", "id": "long"});
    let compaction = imported(&format!("{header}\n{compaction}"), false).entries[0].kind.clone();
    small_live.push(long_entry(small_live.len(), compaction));
    extend_with_calls(&mut small_live, 100);
    for (path, messages) in [(all_live, 100_001), (small_live, 201)] {
        assert_eq!(ActivePath::of(&path).messages(&[]), messages);
        for cut in [CutRule::Nearest, CutRule::TurnFirst] {
            for (force, as_read) in [(false, false), (true, false), (false, true)] {
                let options = PlanOptions { cut, force, as_read, ..PlanOptions::comparison(100, 0) };
                let plan = plan(&path, &options).expect("there is something to cut");
                assert!(plan.messages_removed() > 100);
            }
        }
    }
}

fn long_entry(number: usize, kind: EntryKind) -> Arc<Entry> {
    let id = EntryId(number as u64);
    let parent = id.0.checked_sub(1).map(EntryId);
    Arc::new(Entry { id, parent, at_ms: 0, tokens: 5, reasoning_tokens: 0, origin: None, kind })
}

/// Appends answers that each call one tool, and its result.
fn extend_with_calls(path: &mut Vec<Arc<Entry>>, calls: usize) {
    for _ in 0..calls {
        let id = format!("c{}", path.len());
        let call = ToolCall { id, name: "read".into(), arguments: r#"{"path":"a"}"#.into() };
        let result = ToolResult { status: ToolStatus::Ok, ..ToolResult::interrupted(&call) };
        let answer = AssistantMessage::new(
            vec![Part::ToolCall(call)],
            String::new(),
            String::new(),
            StopReason::ToolCalls,
        );
        for message in [Message::Assistant(answer), Message::ToolResult(result)] {
            path.push(long_entry(path.len(), EntryKind::message(message)));
        }
    }
}

/// Returns the messages of a path, without what an export loses: in pi's files an interrupted call is a
/// failed one.
fn comparable(path: &[Arc<Entry>]) -> Vec<(u64, EntryKind)> {
    let plain = |entry: &Arc<Entry>| {
        let mut kind = entry.kind.clone();
        if let EntryKind::Message { message, .. } = &mut kind
            && let Message::ToolResult(result) = Arc::make_mut(message)
            && result.status == greenroom_kernel::ToolStatus::Interrupted
        {
            result.status = greenroom_kernel::ToolStatus::Error;
        }
        (entry.tokens, kind)
    };
    path.iter().map(plain).filter(|(_, kind)| is_message(kind)).collect()
}

#[test]
fn an_export_reads_back_as_the_same_conversation_with_the_same_plan() {
    for seed in 0..SEEDS {
        let before = imported(&session(seed), true);
        let exported =
            crate::export_pi("s", 1_700_000_000_000, "/", before.entries.iter().map(|entry| &**entry));
        let after = imported(&exported, false);
        assert_eq!(after.skipped, 0, "seed {seed}: {:?}", after.warnings);
        let (path, again) = (before.path(), after.path_to(before.leaf));
        assert_eq!(comparable(&path), comparable(&again), "seed {seed}");
        assert_eq!(project(&path, &[]).len(), project(&again, &[]).len(), "seed {seed}");
        let plans = [&path, &again]
            .map(|path| plan(path, &PlanOptions::comparison(500, 0)).map(|plan| plan.first_kept));
        assert_eq!(plans[0], plans[1], "seed {seed}");
    }
}
