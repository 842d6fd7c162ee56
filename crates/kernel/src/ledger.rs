//! The ledger: the facts in what a compaction replaces that must not be lost, found by rules and not by a model.
//!
//! A pass over the replaced entries collects them (`collect`); another one over the new context finds those that a
//! summary kept (`recognised`); the most recent and most repeated of the others are shown (`Facts::choose`).
//!
//! Invariants: every fact is a part of the entry that it names; the same entries give the same facts; collecting is
//! linear in the entries, and recognising in the context; a ledger is bounded, however many compactions carry it.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;

use crate::carried::{Fact, FactKind};
use crate::entry::Entry;
use crate::size::classes;
use crate::summary::escape_tags;

mod collect;
pub(crate) mod scan;

#[cfg(test)]
mod tests;

pub(crate) use collect::collect;

/// The maximum number of facts that a compaction carries.
pub const FACTS_MAX: usize = 400;
/// The maximum amount of text of all facts that a compaction carries, in bytes.
const FACTS_BYTES_MAX: usize = 32 * 1024;
/// The text before the facts in a summary.
pub(crate) const MARK: &str = "\n\n## Facts\n<facts>";
const CLOSE: &str = "</facts>";
/// The size of the heading and the tags, in tokens.
const FRAME_TOKENS: u64 = 16;
/// The size of the heading of a kind, in tokens.
const HEADING_TOKENS: u64 = 6;
/// The size of an entry's number and the marks around it, in tokens.
const MARK_TOKENS: u64 = 6;
/// How much a repetition counts, where being the newest counts [`RECENCY`].
const REPETITION: u64 = 120;
/// The repetitions that count.
const REPETITIONS_MAX: u64 = 5;
/// How much being the newest counts.
const RECENCY: u64 = 1_000;

/// In which order the kinds take their turns when facts are chosen, until the budget is used up.
const TURNS: [FactKind; 16] = [
    FactKind::Rule,
    FactKind::Decision,
    FactKind::Error,
    FactKind::Done,
    FactKind::Path,
    FactKind::Open,
    FactKind::Rule,
    FactKind::Number,
    FactKind::Identifier,
    FactKind::Decision,
    FactKind::Path,
    FactKind::Command,
    FactKind::Error,
    FactKind::Identifier,
    FactKind::Url,
    FactKind::Path,
];

/// The kinds in the order of the text, with their headings.
const HEADINGS: [(FactKind, &str); 10] = [
    (FactKind::Rule, "Said by the user"),
    (FactKind::Decision, "Decided and found"),
    (FactKind::Done, "Done"),
    (FactKind::Open, "Open"),
    (FactKind::Error, "Errors"),
    (FactKind::Command, "Commands"),
    (FactKind::Number, "Numbers"),
    (FactKind::Path, "Paths"),
    (FactKind::Identifier, "Names"),
    (FactKind::Url, "Addresses"),
];

/// Facts, ranked by kind.
#[derive(Debug)]
pub(crate) struct Facts<'f> {
    facts: &'f [Fact],
    /// For each kind, the facts of that kind, best first.
    ranked: HashMap<FactKind, Vec<usize>>,
}

impl<'f> Facts<'f> {
    /// Ranks the facts for which `is_meant` holds.
    pub(crate) fn ranked(facts: &'f [Fact], is_meant: impl Fn(usize) -> bool) -> Self {
        let entries = || facts.iter().map(|fact| fact.entry.0);
        let (first, last) = (entries().min().unwrap_or(0), entries().max().unwrap_or(0));
        let score = |fact: &Fact| {
            let recency = (fact.entry.0 - first) * RECENCY / (last - first).max(1);
            recency + u64::from(fact.times.saturating_sub(1)).min(REPETITIONS_MAX) * REPETITION
        };
        let mut ranked: HashMap<FactKind, Vec<usize>> = HashMap::new();
        for index in (0..facts.len()).filter(|index| is_meant(*index)) {
            ranked.entry(facts[index].kind).or_default().push(index);
        }
        for list in ranked.values_mut() {
            list.sort_by_key(|index| (std::cmp::Reverse(score(&facts[*index])), *index));
        }
        Self { facts, ranked }
    }

    /// Chooses facts, kind by kind in turns, as long as `fits` takes them. Returns their indices.
    fn take(&self, mut fits: impl FnMut(&Fact) -> bool) -> Vec<usize> {
        let mut next: HashMap<FactKind, usize> = HashMap::new();
        let mut taken = Vec::new();
        loop {
            let mut is_any_left = false;
            for kind in TURNS {
                let place = next.entry(kind).or_default();
                let Some(index) = self.ranked.get(&kind).and_then(|list| list.get(*place)) else { continue };
                *place += 1;
                is_any_left = true;
                if fits(&self.facts[*index]) {
                    taken.push(*index);
                }
            }
            if !is_any_left {
                taken.sort_unstable();
                return taken;
            }
        }
    }

    /// Chooses the facts whose text fits into `tokens_max` tokens by our estimate. Returns their indices.
    pub(crate) fn choose(&self, tokens_max: u64) -> Vec<usize> {
        let mut room = tokens_max.saturating_sub(FRAME_TOKENS);
        let mut headings = HashSet::new();
        self.take(|fact| {
            let heading = if headings.contains(&fact.kind) { 0 } else { HEADING_TOKENS };
            let size = classes::tokens(&fact.text) + MARK_TOKENS + heading;
            let fits = size <= room;
            if fits {
                room -= size;
                headings.insert(fact.kind);
            }
            fits
        })
    }
}

/// Returns as many facts as a compaction may carry, in the order of their entries.
fn bounded(mut facts: Vec<Fact>) -> Vec<Fact> {
    facts.sort_by(|one, other| (one.entry, one.kind, &one.text).cmp(&(other.entry, other.kind, &other.text)));
    let (mut count, mut bytes) = (FACTS_MAX, FACTS_BYTES_MAX);
    let kept = Facts::ranked(&facts, |_| true).take(|fact| {
        let size = fact.text.len() + fact.key.len();
        let fits = count > 0 && size <= bytes;
        if fits {
            (count, bytes) = (count - 1, bytes - size);
        }
        fits
    });
    let mut index = 0;
    facts.retain(|_| {
        index += 1;
        kept.binary_search(&(index - 1)).is_ok()
    });
    facts
}

/// Returns the text of these facts in a summary; empty if there are none.
pub(crate) fn text(facts: &[Fact], chosen: &[usize]) -> String {
    let mut text = String::new();
    for (kind, heading) in HEADINGS {
        let mut items = chosen.iter().map(|index| &facts[*index]).filter(|fact| fact.kind == kind).peekable();
        if items.peek().is_none() {
            continue;
        }
        let _ = write!(text, "\n{heading}:");
        let is_short = matches!(kind, FactKind::Path | FactKind::Identifier | FactKind::Url);
        let separator = if is_short { " " } else { "\n- " };
        for fact in items {
            let _ =
                write!(text, "{separator}{} [{}]", escape_tags(&fact.text.replace('\n', " ")), fact.entry);
        }
    }
    if text.is_empty() { text } else { format!("{}{text}\n{CLOSE}", MARK.trim_start()) }
}

/// Returns a summary's text before the ledger and after it.
pub(crate) fn around(summary: &str) -> [&str; 2] {
    let Some((before, rest)) = summary.split_once(MARK) else { return [summary, ""] };
    [before, rest.split_once(CLOSE).map_or("", |(_, after)| after)]
}

/// Returns which facts are recognised in these texts.
pub(crate) fn recognised<'t>(facts: &[Fact], texts: impl Iterator<Item = &'t str>) -> Vec<bool> {
    let mut found = vec![false; facts.len()];
    // By the first word of its key, with where that begins in the key.
    let mut by_word: HashMap<&str, Vec<(usize, usize)>> = HashMap::new();
    for (index, fact) in facts.iter().enumerate() {
        let key = fact.key();
        match words(key).next() {
            Some((at, word)) => by_word.entry(word).or_default().push((index, at)),
            None => found[index] = true,
        }
    }
    for text in texts {
        for (at, word) in words(text) {
            let Some(candidates) = by_word.get(word) else { continue };
            for (index, offset) in candidates {
                let begins = at.checked_sub(*offset).and_then(|start| text.get(start..));
                found[*index] |= begins.is_some_and(|rest| rest.starts_with(facts[*index].key()));
            }
        }
    }
    found
}

/// Returns the words of a text, letters and digits, with where they begin.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_word = |c: char| c.is_alphanumeric();
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + text[at..].find(is_word)?;
        let end = text[start..].find(|c: char| !is_word(c)).map_or(text.len(), |length| start + length);
        at = end;
        Some((start, &text[start..end]))
    })
}

/// Returns the facts in these entries, as a compaction of them would carry on.
pub fn facts_of(entries: &[Arc<Entry>]) -> Vec<Fact> {
    carried_on(&[], entries)
}

/// Returns the facts that a compaction carries on: those of the one before it, and those in the entries that it
/// replaces.
pub(crate) fn carried_on(previous: &[Fact], replaced: &[Arc<Entry>]) -> Vec<Fact> {
    bounded(collect(previous, replaced))
}
