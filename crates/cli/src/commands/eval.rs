//! `greenroom eval`: replays sessions with simulated summarisers, and reports what compactions keep.
//!
//! Invariants: no model is asked and nothing is stored; the same sessions and settings give the same report. A fact counts
//! once it has come up in the part of the session that was read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use greenroom_formats::{ImportOptions, import};
use greenroom_kernel::entry::Entry;
use greenroom_kernel::ledger;
use greenroom_kernel::path::{entry_message, is_message};
use greenroom_kernel::settings::Strategy;
use greenroom_kernel::text::joined_words;
use greenroom_simulator::Summariser;
use greenroom_simulator::replay::{ReplayOptions, ReplayState, replay};
use greenroom_terminal::screen::one_line;
use greenroom_terminal::{Look, Row, Screen, format};
use serde::{Deserialize, Serialize};

use crate::args::{EvalArgs, Global, Summarises};
use crate::host::source::Stored;
use crate::{agent, error};

#[cfg(test)]
mod tests;

/// After how many compactions there is a report.
const AFTER: [usize; 3] = [1, 3, 5];

/// One fact of a list.
#[derive(Debug, Clone, Deserialize)]
struct Listed {
    #[serde(default)]
    question: Option<String>,
    /// It is known if one of these stands in a text.
    needles: Vec<String>,
}

/// One row of the report.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Evaluated {
    session: String,
    window: u64,
    strategy: Strategy,
    summariser: Summarises,
    /// After how many compactions.
    compactions: usize,
    /// The number of facts that had come up.
    facts: usize,
    /// How many of them are in the context.
    in_context: usize,
    /// How many others one recall finds with their questions; `null` without questions.
    one_recall_away: Option<usize>,
    /// How often old tool results were left out instead of a compaction, in the whole replay.
    prunes: u64,
    tokens_before: u64,
    tokens_after: u64,
    /// The tokens of all calls for summaries so far.
    summary_tokens: u64,
    /// How long the user waits for this compaction without a preparation, in milliseconds.
    waited_ms: Option<u64>,
    /// How long with one.
    waited_prepared_ms: Option<u64>,
}

/// Returns the simulated summariser.
fn simulated(summariser: Summarises) -> Summariser {
    match summariser {
        Summarises::Obedient => Summariser::Obedient,
        Summarises::Lossy => Summariser::Lossy,
    }
}

fn strategy_name(strategy: Strategy) -> &'static str {
    match strategy {
        Strategy::Digest => "digest",
        Strategy::Truncate => "truncate",
        Strategy::Summarize | Strategy::Native | Strategy::Auto | _ => "summarize",
    }
}

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &EvalArgs) -> Result<u8> {
    let settings = agent::config(global)?.config.compaction;
    let strategies = match args.strategies.as_slice() {
        [] => vec![Strategy::Summarize, Strategy::Digest],
        chosen => chosen.iter().map(|strategy| strategy.strategy()).collect(),
    };
    let summarisers = match args.summarisers.as_slice() {
        [] => vec![Summarises::Obedient, Summarises::Lossy],
        chosen => chosen.to_vec(),
    };
    let mut rows = Vec::new();
    for source in &args.sources {
        let messages = messages(global, source).await?;
        let facts = facts(source, args.facts.as_deref())?;
        for strategy in &strategies {
            // Without a summariser, all are the same.
            let count = if strategy.wants_summary() { summarisers.len() } else { 1 };
            for summariser in &summarisers[..count] {
                let options = ReplayOptions {
                    window: args.window,
                    settings: greenroom::CompactionSettings { strategy: *strategy, ..settings.clone() },
                    summariser: simulated(*summariser),
                    compactions_max: AFTER[AFTER.len() - 1],
                    summary_ms: args.summary_time * 1_000,
                };
                rows.extend(evaluated(source, &messages, facts.as_deref(), *summariser, &options));
            }
        }
    }
    let mut screen = Screen::stdout(global.color);
    if args.json {
        screen.pretty_json(&rows)?;
    } else {
        print(&mut screen, &rows)?;
    }
    Ok(0)
}

/// Returns the messages of a session file or a stored session, oldest first.
async fn messages(global: &Global, source: &str) -> Result<Vec<Arc<Entry>>> {
    let file = Path::new(source);
    let path = if file.is_file() {
        let bytes = crate::commands::import::read(file)?;
        let imported = import(&String::from_utf8_lossy(&bytes), ImportOptions::default())
            .map_err(|error| error::usage(format!("{source}: {error}")))?;
        imported.path()
    } else {
        let stored = Stored::read(global, source).await.map_err(|error| {
            let is_path = source.contains(['/', '.']);
            if is_path { error.context(format!("there is no file {source}")) } else { error }
        })?;
        stored.path()
    };
    Ok(path.into_iter().filter(|entry| is_message(&entry.kind)).collect())
}

/// Returns the facts of a list: the one that is named, or the one beside the session's file; `None` if there is none.
fn facts(source: &str, named: Option<&Path>) -> Result<Option<Vec<Listed>>> {
    let beside = || {
        let beside = PathBuf::from(source).with_extension("facts.jsonl");
        beside.is_file().then_some(beside)
    };
    let Some(path) = named.map(Path::to_owned).or_else(beside) else { return Ok(None) };
    let text = std::fs::read_to_string(&path)
        .map_err(|error| error::usage(format!("read {}: {error}", path.display())))?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let facts = lines.map(|(number, line)| {
        let fact: Listed = serde_json::from_str(line)
            .map_err(|error| error::usage(format!("{}: line {}: {error}", path.display(), number + 1)))?;
        if fact.needles.iter().all(|needle| plain(needle).is_empty()) {
            let wrong = format!("{}: line {}: `needles` has no text", path.display(), number + 1);
            return Err(error::usage(wrong));
        }
        Ok(fact)
    });
    facts.collect::<Result<Vec<Listed>>>().map(Some)
}

/// Returns the report of one replay.
fn evaluated(
    session: &str,
    messages: &[Arc<Entry>],
    facts: Option<&[Listed]>,
    summariser: Summarises,
    options: &ReplayOptions,
) -> Vec<Evaluated> {
    let replayed = replay(messages, options);
    let rows = AFTER.iter().filter_map(|after| Some((*after, replayed.states.get(after - 1)?)));
    rows.map(|(compactions, state)| {
        let read = &messages[..state.read];
        let of_ledger = || {
            let facts = ledger::facts_of(read);
            facts.iter().map(|fact| Listed { question: None, needles: vec![fact.key().to_owned()] }).collect()
        };
        let facts = facts.map_or_else(of_ledger, <[Listed]>::to_vec);
        let share = Share::of(&facts, read, state);
        let waits =
            state.waits_ms(if options.settings.strategy.wants_summary() { options.summary_ms } else { 0 });
        Evaluated {
            session: session.to_owned(),
            window: options.window,
            strategy: options.settings.strategy,
            summariser,
            compactions,
            facts: share.all,
            in_context: share.in_context,
            one_recall_away: share.one_recall_away,
            prunes: replayed.prunes,
            tokens_before: state.tokens_before,
            tokens_after: state.tokens_after,
            summary_tokens: state.summary_tokens,
            waited_ms: waits.map(|(foreground, _)| foreground),
            waited_prepared_ms: waits.map(|(_, background)| background),
        }
    })
    .collect()
}

/// How many facts are where.
#[derive(Debug, Default, PartialEq, Eq)]
struct Share {
    /// Those that had come up.
    all: usize,
    in_context: usize,
    /// `None` if no fact that is not in the context has a question.
    one_recall_away: Option<usize>,
}

impl Share {
    fn of(facts: &[Listed], read: &[Arc<Entry>], state: &ReplayState) -> Self {
        let said: Vec<String> =
            read.iter().filter_map(|entry| Some(plain(&entry_message(&entry.kind)?.said()))).collect();
        let context = plain(&state.context);
        let mut share = Self::default();
        for fact in facts {
            let needles: Vec<String> =
                fact.needles.iter().map(|needle| plain(needle)).filter(|needle| !needle.is_empty()).collect();
            let stands_in = |text: &str| needles.iter().any(|needle| text.contains(needle));
            if !said.iter().any(|text| stands_in(text)) {
                continue;
            }
            share.all += 1;
            if stands_in(&context) {
                share.in_context += 1;
            } else if let Some(question) = &fact.question {
                let found = stands_in(&plain(&state.found_by(question)));
                *share.one_recall_away.get_or_insert(0) += usize::from(found);
            }
        }
        if share.one_recall_away.is_none() && facts.iter().any(|fact| fact.question.is_some()) {
            share.one_recall_away = Some(0);
        }
        share
    }
}

/// Returns a text in lower case, with single spaces.
fn plain(text: &str) -> String {
    joined_words(&text.to_lowercase())
}

fn print(screen: &mut Screen, rows: &[Evaluated]) -> Result<()> {
    let mut session = None;
    for row in rows {
        if session != Some(&row.session) {
            session = Some(&row.session);
            let title = format!("{}, window {}", one_line(&row.session, 80), format::short(row.window));
            screen.line(Row::styled(Look::BOLD, title))?;
            let head = format!(
                "  {:<22} {:>5} {:>8} {:>8} {:>6} {:>16} {:>10} {:>8} {:>10}",
                "strategy", "after", "context", "+recall", "gone", "tokens", "summaries", "wait", "prepared"
            );
            screen.line(Row::styled(Look::DIM, head))?;
        }
        screen.line(line(row))?;
    }
    if rows.is_empty() {
        screen.line("No compaction was necessary in this window; use a smaller --window.")?;
    }
    Ok(())
}

fn line(row: &Evaluated) -> String {
    let percent = |number: usize| match (number * 100).checked_div(row.facts) {
        Some(percent) => format!("{percent} %"),
        None => "–".to_owned(),
    };
    let strategy = match row.strategy.wants_summary() {
        true => {
            let summariser = match row.summariser {
                Summarises::Obedient => "obedient",
                Summarises::Lossy => "lossy",
            };
            format!("{} {summariser}", strategy_name(row.strategy))
        }
        false => strategy_name(row.strategy).to_owned(),
    };
    let found = row.in_context + row.one_recall_away.unwrap_or(0);
    let wait = |ms: Option<u64>| ms.map_or("–".to_owned(), format::duration);
    format!(
        "  {:<22} {:>5} {:>8} {:>8} {:>6} {:>16} {:>10} {:>8} {:>10}",
        strategy,
        row.compactions,
        percent(row.in_context),
        row.one_recall_away.map_or("–".to_owned(), |_| percent(found)),
        percent(row.facts - found),
        format!("{} → {}", format::short(row.tokens_before), format::short(row.tokens_after)),
        format::short(row.summary_tokens),
        wait(row.waited_ms),
        wait(row.waited_prepared_ms),
    )
}
