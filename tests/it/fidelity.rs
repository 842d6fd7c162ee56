//! How much of a conversation is still in the context after compactions: lists of facts, written by people who read the
//! session, looked up after 1, 3 and 5 compactions of a replay.
//!
//! Invariants: a list has at least 20 facts, each of which stands in its session, and no question contains its answer.
//! The recorded sessions are not part of the project: a test that needs an absent one says so, and passes.

/// Recorded sessions, as entries.
pub(crate) mod sessions;
/// Synthetic sessions.
mod synthetic;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use greenroom::CompactionSettings;
use greenroom_kernel::settings::Strategy;
use greenroom_simulator::Summariser;
use greenroom_simulator::replay::{ReplayOptions, ReplayState, Replayed, replay};
use serde::Deserialize;

use sessions::Session;

/// One fact of a session.
#[derive(Debug, Deserialize)]
struct Listed {
    kind: String,
    question: String,
    /// It is known if one of these stands in the context.
    needles: Vec<String>,
}

impl Listed {
    fn stands_in(&self, text: &str) -> bool {
        self.needles.iter().any(|needle| text.contains(&plain(needle)))
    }
}

/// Returns a text in lower case, with single spaces.
fn plain(text: &str) -> String {
    text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ")
}

fn listed(name: &str) -> Vec<Listed> {
    let path = format!("{}/data/facts/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Every list that there is, by the name of its session.
const LISTS: [&str; 6] = [
    "pi_v3_large", "codex_2025_09", "claude_code_2.1", "claude_code_2.0_short", "synthetic_harbour",
    "synthetic_hafen",
];

#[test]
fn each_listed_fact_stands_in_its_session_and_not_in_its_question() {
    for name in LISTS {
        let facts = listed(name);
        assert!(facts.len() >= 20, "{name} has {} facts", facts.len());
        let Some(session) = sessions::read(name) else { continue };
        let texts: Vec<String> = session.texts().map(|text| plain(&text)).collect();
        for fact in &facts {
            assert!(texts.iter().any(|text| fact.stands_in(text)), "{name}: {fact:?} is not there");
            assert!(!fact.stands_in(&plain(&fact.question)), "{name}: {fact:?} has its answer in it");
        }
    }
}

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    SummariseLossy,
    SummariseObedient,
    Digest,
    Truncate,
}

const WAYS: [Way; 4] = [Way::SummariseLossy, Way::SummariseObedient, Way::Digest, Way::Truncate];

impl Way {
    fn settings(self, is_with: bool) -> CompactionSettings {
        let strategy = match self {
            Self::SummariseLossy | Self::SummariseObedient => Strategy::Summarize,
            Self::Digest => Strategy::Digest,
            Self::Truncate => Strategy::Truncate,
        };
        // Every compaction has a summary, so that all are compared after as many.
        let mut settings = CompactionSettings { strategy, prune: false, ..CompactionSettings::default() };
        if !is_with {
            (settings.user_words, settings.ledger) = (None, None);
        }
        settings
    }

    fn summariser(self) -> Summariser {
        match self {
            Self::SummariseLossy | Self::Digest | Self::Truncate => Summariser::Lossy,
            Self::SummariseObedient => Summariser::Obedient,
        }
    }
}

/// How many of the facts that had come up are in the context, how many are there or found by one recall with their
/// question, and how many had come up.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    found: usize,
    within_reach: usize,
    all: usize,
}

impl Share {
    fn add(&mut self, other: Self) {
        (self.found, self.all) = (self.found + other.found, self.all + other.all);
        self.within_reach += other.within_reach;
    }

    fn percent(self) -> String {
        let percent = (self.found * 100).checked_div(self.all);
        percent.map_or("–".to_owned(), |percent| format!("{percent} %"))
    }

    fn percent_within_reach(self) -> String {
        Self { found: self.within_reach, ..self }.percent()
    }
}

/// Returns the share of the facts, all or those of one kind, after so many compactions.
fn share(
    session: &Session,
    facts: &[Listed],
    replayed: &Replayed,
    after: usize,
    kind: Option<&str>,
) -> Option<Share> {
    let state: &ReplayState = replayed.states.get(after.checked_sub(1)?)?;
    let mut came_up = String::new();
    for text in session.texts().take(state.read) {
        came_up.push_str(&plain(&text));
        came_up.push('\n');
    }
    let context = plain(&state.context);
    let mut share = Share::default();
    for fact in facts.iter().filter(|fact| kind.is_none_or(|kind| fact.kind == kind)) {
        if fact.stands_in(&came_up) {
            share.all += 1;
            let is_there = fact.stands_in(&context);
            share.found += usize::from(is_there);
            share.within_reach +=
                usize::from(is_there || fact.stands_in(&plain(&state.found_by(&fact.question))));
        }
    }
    Some(share)
}

/// The report: run it with `--no-capture`.
#[test]
fn facts_in_the_context_after_compactions() {
    let mut report = String::new();
    let mut totals: BTreeMap<(Way, bool, usize), Share> = BTreeMap::new();
    for name in LISTS {
        let Some(session) = sessions::read(name) else { continue };
        let facts = listed(name);
        for window in [8_000, 16_000, 32_000] {
            for way in WAYS {
                for is_with in [false, true] {
                    let options = ReplayOptions {
                        window,
                        settings: way.settings(is_with),
                        summariser: way.summariser(),
                        compactions_max: 5,
                        summary_ms: 20_000,
                    };
                    let replayed = replay(&session.messages, &options);
                    let with = if is_with { "with" } else { "without" };
                    let _ = write!(report, "{name:<22} {window:>6} {:<18} {with:<8}", format!("{way:?}"));
                    for after in [1, 3, 5] {
                        let all = share(&session, &facts, &replayed, after, None);
                        let rules = share(&session, &facts, &replayed, after, Some("constraint"));
                        let text = |share: Option<Share>| share.map_or("–".to_owned(), Share::percent);
                        let reach = all.map_or("–".to_owned(), Share::percent_within_reach);
                        let _ = write!(
                            report,
                            " {after}: {:>5} +recall {reach:>5} ({:>5} rules)",
                            text(all),
                            text(rules)
                        );
                        totals.entry((way, is_with, after)).or_default().add(all.unwrap_or_default());
                    }
                    let recall: Vec<String> = replayed
                        .states
                        .iter()
                        .take(5)
                        .filter_map(|state| state.recall)
                        .map(|recall| format!("{}/{}/{}", recall.before, recall.after, recall.facts))
                        .collect();
                    let _ = writeln!(report, " ledger {}", recall.join(" "));
                }
            }
        }
    }
    for ((way, is_with, after), share) in &totals {
        let with = if *is_with { "with" } else { "without" };
        let reach = share.percent_within_reach();
        let _ = writeln!(
            report,
            "all {way:?} {with} after {after}: {}, +recall {reach}, of {}",
            share.percent(),
            share.all
        );
    }
    #[expect(clippy::print_stdout, reason = "the report is what the test is run for")]
    {
        println!("{report}");
    }
    for ((way, is_with, after), share) in &totals {
        // What was measured over all lists, less a little.
        let least = if *is_with && *way != Way::Truncate { 80 } else { 0 };
        assert!(share.found * 100 >= share.all * least, "{way:?} after {after}: {share:?}");
        let without = totals[&(*way, false, *after)];
        assert!(
            !is_with || share.found >= without.found,
            "{way:?} after {after}: {share:?}, without {without:?}"
        );
    }
}
