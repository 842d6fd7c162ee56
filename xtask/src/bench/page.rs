//! The table of `docs/performance.md`: goals, and results.
//!
//! Invariants: a goal without a figure is shown as not measured; nothing outside the table's marks is changed.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use anyhow::{Context, Result};

use super::figures::{Figure, Figures, Run};

const BEGIN: &str = "<!-- The table below is written by `cargo xtask bench`. -->";
const END: &str = "<!-- The end of the table. -->";

/// A goal for a figure.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Goal {
    /// The measured quantity.
    what: &'static str,
    /// The baseline in the same run.
    baseline: &'static str,
    figure: &'static str,
    bound: Bound,
}

#[derive(Debug, Clone, Copy)]
enum Bound {
    /// The ratio to the baseline.
    RatioMin(f64),
    RatioMax(f64),
    /// The value itself.
    ValueMin(f64),
    ValueMax(f64),
}

impl Goal {
    const fn new(what: &'static str, baseline: &'static str, figure: &'static str, bound: Bound) -> Self {
        Self { what, baseline, figure, bound }
    }

    /// Returns the relevant number of a figure.
    fn reached(&self, figure: &Figure) -> Option<f64> {
        match self.bound {
            Bound::RatioMin(_) | Bound::RatioMax(_) => figure.ratio,
            Bound::ValueMin(_) | Bound::ValueMax(_) => Some(figure.value),
        }
    }

    /// Returns how far the goal is reached: 1 is just met, more is better.
    fn share(&self, reached: f64) -> f64 {
        match self.bound {
            Bound::RatioMin(least) | Bound::ValueMin(least) => reached / least,
            // A goal of zero, or a result of at most zero, is as good as possible.
            Bound::RatioMax(most) | Bound::ValueMax(most) if reached > 0.0 => most / reached,
            Bound::RatioMax(_) | Bound::ValueMax(_) => f64::INFINITY,
        }
    }

    fn shown(&self, unit: &str) -> String {
        match self.bound {
            Bound::RatioMin(least) => format!("≥ {least} ×"),
            Bound::RatioMax(most) => format!("≤ {most} ×"),
            Bound::ValueMin(least) => format!("≥ {least} {unit}"),
            Bound::ValueMax(most) => format!("≤ {most} {unit}"),
        }
    }
}

use Bound::{RatioMax, RatioMin, ValueMax, ValueMin};

const BARE: &str = "a lean loop over a bare HTTP client";
const VALUES: &str = "a loop that keeps JSON values and serialises them for each call";
const TEXT: &str = "a loop that keeps each message as serialised text";
const BARE_1000: &str = "the same loop with 1,000 in flight";
const CHAT: &str = "the same run over chat completions";
const FIRST: &str = "the shortest history";
const PLAIN: &str = "a file, one fdatasync for all that wait";
const INSERT: &str = "a plain `INSERT` of the same bytes, grouped alike";
const NONE: &str = "–";

const GOALS: &[Goal] = &[
    Goal::new("agents at work, log on disk, 64 in flight: runs/s", BARE, "fleet/disk_64/rate", RatioMin(0.6)),
    Goal::new("… CPU a run", BARE, "fleet/disk_64/cpu", RatioMax(2.2)),
    Goal::new(
        "agents at work, log in memory, 64 in flight: runs/s",
        BARE,
        "fleet/memory_64/rate",
        RatioMin(0.75),
    ),
    Goal::new("… CPU a run", BARE, "fleet/memory_64/cpu", RatioMax(1.7)),
    Goal::new(
        "… peak memory of each, all with a prompt open",
        NONE,
        "fleet/memory_64/memory",
        ValueMax(45.0),
    ),
    Goal::new(
        "1,000 in flight, log on disk: runs/s",
        "64 in flight",
        "fleet/disk_1000/rate_against_64",
        RatioMin(0.9),
    ),
    Goal::new(
        "1,000 in flight, log in memory: runs/s",
        "64 in flight",
        "fleet/memory_1000/rate_against_64",
        RatioMin(0.9),
    ),
    Goal::new("… CPU a run", BARE_1000, "fleet/memory_1000/cpu_against_bare", RatioMax(1.9)),
    Goal::new(
        "… the bare loop alone: runs/s",
        "64 in flight",
        "fleet/bare_1000/rate_against_64",
        RatioMin(0.9),
    ),
    Goal::new(
        "100,000 tokens in 50 messages, log in memory: runs/s",
        VALUES,
        "fleet/large_50/memory/rate",
        RatioMin(1.2),
    ),
    Goal::new("… CPU a run", VALUES, "fleet/large_50/memory/cpu", RatioMax(0.8)),
    Goal::new("… runs/s", TEXT, "fleet/large_50/memory/rate_against_text", RatioMin(0.85)),
    Goal::new(
        "100,000 tokens in 50 messages, log on disk: runs/s",
        VALUES,
        "fleet/large_50/disk/rate",
        RatioMin(1.0),
    ),
    Goal::new("… CPU a run", VALUES, "fleet/large_50/disk/cpu", RatioMax(0.95)),
    Goal::new(
        "100,000 tokens in 2,000 messages, log in memory: runs/s",
        VALUES,
        "fleet/large_2000/memory/rate",
        RatioMin(1.2),
    ),
    Goal::new("… CPU a run", VALUES, "fleet/large_2000/memory/cpu", RatioMax(0.8)),
    Goal::new("… runs/s", TEXT, "fleet/large_2000/memory/rate_against_text", RatioMin(0.85)),
    Goal::new(
        "100,000 tokens in 2,000 messages, log on disk: runs/s",
        VALUES,
        "fleet/large_2000/disk/rate",
        RatioMin(1.0),
    ),
    Goal::new("… CPU a run", VALUES, "fleet/large_2000/disk/cpu", RatioMax(0.95)),
    Goal::new("a streamed piece, as fast as they come: CPU", BARE, "pieces/at_once/session", RatioMax(1.5)),
    Goal::new("a streamed piece, one a millisecond: CPU", BARE, "pieces/each_ms/session", RatioMax(1.5)),
    Goal::new("… where its chunk has an id of its own", BARE, "pieces/each_ms_other/session", RatioMax(1.5)),
    Goal::new(
        "a run over Anthropic's Messages, one piece a ms: CPU",
        CHAT,
        "dialects/run/anthropic/1ms",
        RatioMax(1.3),
    ),
    Goal::new("… OpenAI's Responses", CHAT, "dialects/run/responses/1ms", RatioMax(1.3)),
    Goal::new("… Gemini", CHAT, "dialects/run/gemini/1ms", RatioMax(1.3)),
    Goal::new(
        "a run over Anthropic's Messages, as fast as it comes: CPU",
        CHAT,
        "dialects/run/anthropic/0ms",
        RatioMax(1.3),
    ),
    Goal::new("… OpenAI's Responses", CHAT, "dialects/run/responses/0ms", RatioMax(1.3)),
    Goal::new("… Gemini", CHAT, "dialects/run/gemini/0ms", RatioMax(1.3)),
    Goal::new(
        "runs/s on disk, whole answers",
        "rig, not streaming, no log",
        "peers/whole_against_rig",
        RatioMin(2.5),
    ),
    Goal::new(
        "runs/s on disk, streaming",
        "rig, streaming, no log",
        "peers/against_rig_streaming",
        RatioMin(2.5),
    ),
    Goal::new(
        "runs/s on disk, whole answers",
        "autoagents, not streaming, no log",
        "peers/whole_against_autoagents",
        RatioMin(0.7),
    ),
    Goal::new(
        "memory an agent, log in memory, whole answers",
        "autoagents, not streaming, no log",
        "peers/whole_memory_against_autoagents",
        RatioMax(1.0),
    ),
    Goal::new("durable appends of 1 KiB, 1 writer", PLAIN, "store/append_1", RatioMin(0.8)),
    Goal::new("… 64 writers", PLAIN, "store/append_64", RatioMin(0.6)),
    Goal::new("… 1,000 writers", PLAIN, "store/append_1000", RatioMin(0.3)),
    Goal::new(
        "… through the engine, 64 writers",
        "the store itself",
        "store/engine_append_64",
        RatioMin(0.98),
    ),
    Goal::new(
        "opening a session through the engine",
        "the store itself",
        "store/engine_open",
        RatioMin(0.98),
    ),
    Goal::new("durable appends in PostgreSQL, 1 session", INSERT, "postgres/append_1", RatioMin(0.7)),
    Goal::new("… 64 sessions", INSERT, "postgres/append_64", RatioMin(0.7)),
    Goal::new("… 1,000 sessions", INSERT, "postgres/append_1000", RatioMin(0.7)),
    Goal::new(
        "takeover of a node's 1,000 sessions after its sudden end",
        "the lease",
        "postgres/takeover_1000",
        RatioMax(1.2),
    ),
    Goal::new(
        "opening a session of 100,000 entries",
        "only its live context",
        "plan_cost/100000/open",
        RatioMax(1.2),
    ),
    Goal::new("… time", NONE, "plan_cost/100000/open", ValueMax(5_000.0)),
    Goal::new(
        "opening a store of 100,000 sessions, closed cleanly",
        NONE,
        "start/closed/store",
        ValueMax(0.3),
    ),
    Goal::new("… after kill -9", NONE, "start/killed/store", ValueMax(2.0)),
    Goal::new(
        "… sessions that listing all of them woke",
        NONE,
        "start/killed/live_after_listing",
        ValueMax(0.0),
    ),
    Goal::new(
        "short commands a second, with a host",
        "`greenroom --version`",
        "host/sessions",
        ValueMin(100.0),
    ),
    Goal::new("from a key to the screen of a chat, p99", NONE, "keys/streaming_no/p99", ValueMax(30.0)),
    Goal::new("… while 200 pieces a second stream in", NONE, "keys/streaming_yes/p99", ValueMax(30.0)),
    Goal::new(
        "from Esc to \"interrupted\" while they stream in, worst",
        NONE,
        "keys/interrupt/worst",
        ValueMax(100.0),
    ),
    Goal::new("planning behind 100,000 entries", FIRST, "plan_cost/100000/plan", RatioMax(1.1)),
    Goal::new(
        "a run behind 10,000 entries, on disk",
        FIRST,
        "run_cost/older_entries_10000/disk",
        RatioMax(1.1),
    ),
    Goal::new("… in memory", FIRST, "run_cost/older_entries_10000/memory", RatioMax(1.1)),
    Goal::new(
        "a run behind 10,000 live messages, on disk",
        "100 live messages",
        "run_cost/live_messages_10000/disk",
        RatioMax(2.0),
    ),
    Goal::new("… in memory", "100 live messages", "run_cost/live_messages_10000/memory", RatioMax(2.0)),
    Goal::new("estimating the tokens of prose", "tiktoken-rs", "peers/estimate/prose", RatioMin(5.0)),
    Goal::new("… speed", NONE, "estimate/prose/classes", ValueMin(200.0)),
    Goal::new("1,000 live idle sessions: memory", "4 bare actors each", "memory/idle_1000", RatioMax(1.3)),
    Goal::new("20,000 live idle sessions: memory", "4 bare actors each", "memory/idle_20000", RatioMax(1.3)),
    Goal::new(
        "1,000 live sessions after five runs: allocated",
        NONE,
        "memory/worked/allocated",
        ValueMax(45.0),
    ),
    Goal::new("100,000 sleeping sessions: memory of each", NONE, "memory/asleep/rss", ValueMax(500.0)),
    Goal::new("… allocated", NONE, "memory/asleep/allocated", ValueMax(300.0)),
    Goal::new(
        "100 subscribers, half stalled: a run's p99",
        "one subscriber",
        "crowd/subscribers_100/p99",
        RatioMax(1.05),
    ),
    Goal::new("10,000 sessions streaming at once: all end", NONE, "crowd/streams/ended", RatioMin(1.0)),
    Goal::new(
        "100 talk beside 1,000 that are compacted: a run's p99",
        "the 100 alone, half as many in flight",
        "crowd/beside_compactions/p99",
        RatioMax(1.2),
    ),
    Goal::new("30 minutes of load: memory", "after the first fifth", "growth/rss", RatioMax(1.1)),
    Goal::new("… descriptors", "after the first fifth", "growth/descriptors", RatioMax(1.1)),
    Goal::new("… tasks", "after the first fifth", "growth/tasks", RatioMax(1.1)),
    Goal::new("… disk", "after the first fifth", "growth/disk", RatioMax(1.1)),
];

/// Returns each measured goal, and how far it is reached: 1 is just met, more is better.
pub(crate) fn reached(figures: &Figures) -> Vec<(String, f64)> {
    let mut reached = Vec::new();
    let mut group = "";
    for goal in GOALS {
        let mut what = goal.what.to_owned();
        match goal.what.strip_prefix("… ") {
            Some(rest) => what = format!("{}: {rest}", group.split(':').next().unwrap_or(group)),
            None => group = goal.what,
        }
        // Several goals of the same name differ in their baseline.
        if goal.figure.starts_with("peers/") && goal.what.starts_with("runs/s") {
            what = format!("{what}, against {}", goal.baseline);
        }
        let value = figures.0.get(goal.figure).and_then(|(figure, _)| goal.reached(figure));
        reached.extend(value.map(|value| (what, goal.share(value))));
    }
    reached
}

/// Returns the page with a new table between the marks.
pub(crate) fn with_table(page: &str, figures: &Figures) -> Result<String> {
    let (before, rest) = page.split_once(BEGIN).context("docs/performance.md lacks the mark of its table")?;
    let (_, after) = rest.split_once(END).context("docs/performance.md lacks the mark of its table's end")?;
    Ok(format!("{before}{BEGIN}\n\n{}\n{END}{after}", table(figures)))
}

fn table(figures: &Figures) -> String {
    let mut text = String::new();
    let used = || GOALS.iter().filter_map(|goal| figures.0.get(goal.figure));
    let machines: BTreeSet<&str> = used().map(|(_, run)| run.machine.as_str()).collect();
    for machine in &machines {
        let _ = writeln!(text, "Machine: {machine}.\n");
    }
    text.push_str("| what | baseline of the same run | goal | reached | | value | measured (load) |\n");
    text.push_str("|---|---|---|---|---|---|---|\n");
    for goal in GOALS {
        let Goal { what, baseline, figure, .. } = goal;
        let found =
            figures.0.get(*figure).and_then(|(figure, run)| Some((goal.reached(figure)?, figure, run)));
        let _ = match found {
            None => writeln!(text, "| {what} | {baseline} | {} | – | | not measured | |", goal.shown("")),
            Some((reached, Figure { value, unit, ratio }, Run { date, load, .. })) => {
                let verdict = if goal.share(reached) >= 1.0 { "met" } else { "short" };
                let shown = match (goal.bound, ratio) {
                    (RatioMin(_) | RatioMax(_), Some(ratio)) => format!("**{ratio:.2} ×**"),
                    _ => format!("**{}**", rounded(*value)),
                };
                let value = rounded(*value);
                writeln!(
                    text,
                    "| {what} | {baseline} | {} | {shown} | {verdict} | {value} {unit} | {date} ({load}) |",
                    goal.shown(unit)
                )
            }
        };
    }
    text
}

/// Formats a number with about three significant digits.
fn rounded(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
