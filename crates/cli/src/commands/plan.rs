//! `greenroom compact --dry-run`: shows what a compaction would do, without performing it.
//!
//! Invariants: nothing is changed, and nothing to compact is a result, not a failure.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use greenroom::internal::Catalog;
use greenroom_formats::{ImportOptions, PlanReport, import};
use greenroom_kernel::entry::{Entry, EntryId};
use greenroom_kernel::path::{ActivePath, as_sent, is_message, path_to};
use greenroom_kernel::plan::{FileRule, PlanOptions};
use greenroom_kernel::settings::{CutRule, Occasion};
use greenroom_kernel::usage::{Measured, Ratio, Reports, measure};
use greenroom_kernel::{AssistantMessage, Message, size};
use greenroom_terminal::screen::one_line;
use greenroom_terminal::text::{self, thousands};
use greenroom_terminal::{Screen, format};

use crate::args::{CompactArgs, Cut, Estimator, Global};
use crate::config::Config;
use crate::host::source::Stored;
use crate::{agent, error};

/// How much a comparison keeps by default, in tokens, as other systems do.
const COMPARISON_KEEP: u64 = 20_000;
/// The default window if none is known, in tokens.
const WINDOW: u64 = 128_000;
/// How many file names are printed.
const FILES_SHOWN: usize = 8;

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &CompactArgs) -> Result<u8> {
    let config = agent::config(global)?.config;
    let file = Path::new(&args.id);
    let is_file = file.is_file();
    let (report, code) =
        if is_file { (of_file(file, args, &config)?, 0) } else { of_session(global, args, &config).await? };
    let mut screen = Screen::stdout(global.color);
    if args.json {
        screen.pretty_json(&report)?;
    } else {
        print(&mut screen, &report)?;
    }
    Ok(code)
}

fn of_file(path: &Path, args: &CompactArgs, config: &Config) -> Result<PlanReport> {
    let bytes = crate::commands::import::read(path)?;
    let text = String::from_utf8_lossy(&bytes);
    // Without repairs: a plan shows the existing file, not the one that an import would produce.
    let imported = import(&text, ImportOptions { repair: false })
        .map_err(|error| error::usage(format!("{}: {error}", path.display())))?;
    let leaf = match &args.leaf {
        Some(leaf) => Some(imported.find(leaf).ok_or_else(|| no_entry(leaf, &args.id))?),
        None => imported.leaf,
    };
    let path = imported.path_to(leaf);
    let window = catalog_window(&path).unwrap_or(WINDOW);
    let measured = measure(&path, estimator(args, config), 0, Ratio::default(), Reports::AsRecorded);
    let options = PlanOptions { as_read: true, ..options(args, config, window, measured, 0) };
    Ok(PlanReport::new(&path, &options, measured, |id| imported.name_of(id)))
}

/// Returns the plan and the exit code; a damaged session is planned as far as it can be read.
async fn of_session(global: &Global, args: &CompactArgs, config: &Config) -> Result<(PlanReport, u8)> {
    let stored = Stored::read(global, &args.id).await.map_err(|error| {
        let is_path = args.id.contains(['/', '.']);
        if is_path { error.context(format!("there is no file {}", args.id)) } else { error }
    })?;
    let path: Vec<Arc<Entry>> = match &args.leaf {
        Some(leaf) => {
            let id = leaf.parse().map(EntryId).map_err(|_| no_entry(leaf, &args.id))?;
            path_to(&stored.entries, Some(id)).map_err(|_| no_entry(leaf, &args.id))?
        }
        None => stored.path(),
    };
    let window = stored.summary.context_window.or_else(|| catalog_window(&path)).unwrap_or(WINDOW);
    // The fixed part of the requests is not in the log: it is the session's size minus its messages, and the
    // same for each path of the session.
    let fixed = stored.summary.context_tokens.saturating_sub(context_estimate(&stored.path()));
    let measured = measure(&path, estimator(args, config), fixed, Ratio::default(), Reports::Believed);
    let options = options(args, config, window, measured, fixed);
    let report = PlanReport::new(&path, &options, measured, |id| id.to_string());
    Ok((report, stored.say_losses(global)?))
}

/// Returns the size of a path's messages and summary, in tokens by our own count.
fn context_estimate(path: &[Arc<Entry>]) -> u64 {
    let active = ActivePath::of(path);
    let sent = as_sent(path);
    let messages = sent[active.start..].iter().filter(|entry| is_message(&entry.kind));
    let summary = active.compaction.map_or(0, |index| path[index].tokens);
    summary + messages.map(|entry| entry.tokens).sum::<u64>()
}

fn no_entry(leaf: &str, source: &str) -> anyhow::Error {
    error::usage(format!("{source} has no entry {leaf}"))
}

/// Returns the window of the model that answered last on a path, if the catalogue knows it.
fn catalog_window(path: &[Arc<Entry>]) -> Option<u64> {
    let answer = last_answer(path)?;
    Catalog::bundled().find(&answer.provider, &answer.model)?.window_tokens()
}

/// Returns the newest answer on a path.
pub(crate) fn last_answer(path: &[Arc<Entry>]) -> Option<&AssistantMessage> {
    path.iter().rev().find_map(|entry| match &**entry.kind.as_message()? {
        Message::Assistant(answer) => Some(answer),
        Message::User(_) | Message::ToolResult(_) => None,
    })
}

/// Returns the options of the plan; `nearest` with `char4` is the comparison with other systems. `window` is
/// the default if neither a flag nor the configuration sets one; `fixed` is the fixed part of every request,
/// in tokens.
fn options(args: &CompactArgs, config: &Config, window: u64, measured: Measured, fixed: u64) -> PlanOptions {
    let settings = &config.compaction;
    let is_comparison = args.cut == Some(Cut::Nearest) && args.estimator == Some(Estimator::Char4);
    if is_comparison {
        return PlanOptions::comparison(args.keep_recent.unwrap_or(COMPARISON_KEEP), 0);
    }
    let window = args.model.window.or(settings.context_window).or(config.context_window).unwrap_or(window);
    let mut options = PlanOptions::new(settings, window, Occasion::Manual, measured.tokens(), fixed);
    options.estimator = estimator(args, config);
    options.files = FileRule::Declared;
    if let Some(keep) = args.keep_recent {
        options.keep_recent = keep;
    }
    match args.cut {
        Some(Cut::Nearest) => options.cut = CutRule::Nearest,
        Some(Cut::TurnFirst) => options.cut = CutRule::TurnFirst,
        None => {}
    }
    let PlanOptions { keep_recent, keep_max, preserve_messages, summary_cap, .. } = options;
    tracing::debug!(window, keep_recent, keep_max, preserve_messages, summary_cap, "the plan is made with");
    options
}

/// Returns the estimator of sizes.
fn estimator(args: &CompactArgs, config: &Config) -> size::Estimator {
    match args.estimator {
        Some(Estimator::Char4) => size::Estimator::Char4,
        Some(Estimator::Classes) => size::Estimator::Classes,
        None => config.compaction.estimator,
    }
}

fn print(screen: &mut Screen, report: &PlanReport) -> Result<()> {
    screen.line(format!(
        "{} on the path, {} tokens: {} reported by the provider, {} estimated",
        format::count(report.entries as u64, "entry"),
        thousands(report.context_tokens),
        thousands(report.usage_tokens),
        thousands(report.trailing_tokens),
    ))?;
    let Some(plan) = &report.plan else {
        let reason = report.reason.as_deref().unwrap_or("there is nothing to compact");
        screen.line(format!(
            "No compaction needed: {}",
            text::nothing_to_compact(reason, "--keep N keeps less")
        ))?;
        return Ok(());
    };
    let mut what = format::count(plan.messages_to_summarize, "message");
    if plan.is_split_turn {
        what.push_str(&format!(
            " and the first {} of a turn that is cut",
            format::count(plan.turn_prefix_messages, "message")
        ));
    }
    screen.line(format!(
        "A compaction would summarise {what}, and keep all from entry {} on.",
        plan.first_kept_entry_id
    ))?;
    if plan.has_previous_summary {
        screen.line("The earlier summary would be merged into the new one.")?;
    }
    screen.line(format!(
        "  Tokens: {} → {}",
        thousands(plan.tokens_before),
        text::about(plan.tokens_after_estimate, plan.tokens_after_max),
    ))?;
    for (what, files) in [("read", &plan.read_files), ("modified", &plan.modified_files)] {
        if files.is_empty() {
            continue;
        }
        let shown: Vec<String> = files.iter().take(FILES_SHOWN).map(|file| one_line(file, 60)).collect();
        let more = files.len().saturating_sub(FILES_SHOWN);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        screen.line(format!("  Files {what}: {}{more}", shown.join(", ")))?;
    }
    Ok(())
}
