//! The cost of a digest: the user's words and the ledger of a long session, without a model.
//!
//! The baseline is the plan of the same compaction without words and facts.

use std::sync::Arc;

use greenroom_kernel::compacting::{
    Compacting, CompactionParams, Effect, HookDecision, Input, SummariserLimits,
};
use greenroom_kernel::entry::Trigger;
use greenroom_kernel::plan::plan;
use greenroom_kernel::retry::Retries;
use greenroom_kernel::settings::{CompactionSettings, Strategy};
use greenroom_kernel::size::{Estimator, entry_tokens};
use greenroom_kernel::usage::Ratio;
use greenroom_kernel::{
    AssistantMessage, Block, Entry, EntryId, EntryKind, Message, Part, StopReason, ToolCall, ToolResult,
    ToolStatus,
};
use greenroom_tests::measure::{figure, micros, ratio, scaled, time_of, title};

/// The sizes of the sessions, in tokens.
const SIZES: [u64; 3] = [20_000, 200_000, 1_000_000];

fn main() {
    title("a digest, by the length of what it replaces", "the plan alone");
    println!("| tokens  | plan ms | digest ms | ratio | ns/token |");
    println!("|---------|---------|-----------|-------|----------|");
    for tokens in SIZES {
        let params = params(session(tokens), tokens);
        let bare = CompactionParams {
            settings: CompactionSettings { user_words: None, ledger: None, ..params.settings.clone() },
            ..params.clone()
        };
        let runs = scaled(40);
        let planned = time_of(runs, || plan(&bare.path, &bare.plan_options()).expect("it is long"));
        let digest = time_of(runs, || digest(&params));
        let (planned, digest) = (micros(planned) / 1e3, micros(digest) / 1e3);
        #[expect(clippy::cast_precision_loss, reason = "a million tokens")]
        let each = digest * 1e6 / tokens as f64;
        println!(
            "| {tokens:>7} | {planned:>7.2} | {digest:>9.2} | {:>5.1} | {each:>8.1} |",
            ratio(digest, planned)
        );
        figure(&format!("digest/{tokens}"), digest, "ms", Some(ratio(digest, planned)));
    }
}

/// Makes a digest, from its plan to what is installed.
fn digest(params: &CompactionParams) -> usize {
    let (mut compacting, _) = Compacting::begin(params.clone());
    let effects = compacting.on(Input::Hooks(HookDecision::Continue));
    match effects.as_slice() {
        [Effect::Install(segment)] => segment.compaction.carried.facts.len(),
        other => panic!("a digest is installed: {other:?}"),
    }
}

fn params(path: Vec<Arc<Entry>>, tokens: u64) -> CompactionParams {
    CompactionParams {
        settings: CompactionSettings { strategy: Strategy::Digest, ..CompactionSettings::default() },
        trigger: Trigger::Threshold,
        window: tokens,
        known_window: tokens,
        summarisers: vec![SummariserLimits { window: tokens, output_tokens_max: None }],
        retries: Retries::new(1, 1_000),
        overhead: 1_000,
        pinned: Vec::new(),
        tokens_before: tokens,
        ratio: Ratio::default(),
        at_window: false,
        keep_recent: None,
        force: false,
        focus: None,
        failed_attempts: 0,
        debt: Vec::new(),
        debt_left: Vec::new(),
        prepared_for: None,
        native: None,
        path,
    }
}

/// Returns a session of about this many tokens: prompts, answers, and calls that read files and run commands.
fn session(tokens: u64) -> Vec<Arc<Entry>> {
    let mut path: Vec<Arc<Entry>> = Vec::new();
    let mut size = 0;
    let mut push = |kind: EntryKind| {
        let id = EntryId(path.len() as u64);
        let tokens = entry_tokens(&kind, Estimator::Classes);
        let parent = id.0.checked_sub(1).map(EntryId);
        path.push(Arc::new(Entry { id, parent, at_ms: 0, tokens, reasoning_tokens: 0, origin: None, kind }));
        tokens
    };
    let code: Vec<&str> = include_str!("measure.rs").lines().collect();
    let mut step = 0;
    while size < tokens {
        if step % 12 == 0 {
            size += push(EntryKind::message(Message::user(format!(
                "Now module {step}. You must not change src/old_{step}.rs, and keep it below {step} ms."
            ))));
        }
        let said =
            format!("The cause is in `load_{step}`: see src/part_{step}.rs. Fixed the {step} tests of it.");
        let arguments = match step % 3 {
            0 => serde_json::json!({ "command": format!("cargo test part_{step}") }),
            _ => serde_json::json!({ "path": format!("src/part_{step}.rs") }),
        };
        let id = format!("call-{step}");
        let name = if step % 3 == 0 { "bash" } else { "read" };
        let call = ToolCall { id: id.clone(), name: name.to_owned(), arguments: arguments.to_string() };
        size += push(EntryKind::message(Message::Assistant(AssistantMessage::new(
            vec![Part::Text(said), Part::ToolCall(call)],
            "bench",
            "bench",
            StopReason::ToolCalls,
        ))));
        let lines: Vec<&str> = code.iter().cycle().skip(step * 13).take(60).copied().collect();
        let error = if step % 6 == 0 {
            format!("\nerror[E0308]: mismatched types in part {step}")
        } else {
            String::new()
        };
        size += push(EntryKind::message(Message::ToolResult(ToolResult {
            call_id: id,
            tool_name: name.to_owned(),
            content: vec![Block::Text(lines.join("\n") + &error)],
            status: ToolStatus::Ok,
            touched: Vec::new(),
        })));
        step += 1;
    }
    path
}
