//! The effect of each compaction of a session, read from the whole log: for people who want to know what was replaced,
//! by what, what is missing, and what it cost and saved.
//!
//! Invariants: every compaction that ended is listed once, oldest first, whether it was installed, failed or undone,
//! and so is the summary of a branch that was left; those that found nothing to do are not; nothing here is needed to
//! continue a session.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::bill::{CallCost, saved_by_call};
use crate::carried::{Fact, FactRecall, Quote};
use crate::entry::{Compaction, CompactionEnded, CompactionOutcome, Entry, EntryId, EntryKind, Trigger};
use crate::ledger;
use crate::message::{Message, Usage};
use crate::path::{as_sent, entry_message, path_to, path_within, pinned_ids};
use crate::words::{self, own_words};

#[cfg(test)]
mod tests;

/// The maximum number of the user's messages that are listed of a replaced part: the newest ones.
pub const REQUESTS_MAX: usize = 200;

/// One compaction of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CompactionRecord {
    /// Its number: 1 is the session's first.
    pub number: u64,
    /// The entry that it installed, or of its end if it installed nothing.
    pub entry_id: EntryId,
    /// When it ended, in Unix milliseconds.
    pub at_ms: u64,
    /// The reason for it.
    pub trigger: Trigger,
    /// How it ended.
    #[serde(flatten)]
    pub outcome: CompactionOutcome,
    /// Whether it was undone.
    pub is_undone: bool,
    /// Whether it shapes the current context: it was installed on the current path, was not undone, and no later
    /// compaction replaced it.
    pub is_active: bool,
    /// Whether the cut is inside a turn.
    #[serde(default)]
    pub is_split_turn: bool,
    /// Whether a hook supplied the summary.
    #[serde(default)]
    pub from_hook: bool,
    /// The first entry that it replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<EntryId>,
    /// The last entry that it replaced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<EntryId>,
    /// The first entry that it kept verbatim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_kept: Option<EntryId>,
    /// The size of the context before, in tokens.
    pub tokens_before: u64,
    /// The size of the context after, in tokens; `null` if unknown, as in some imported files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_after: Option<u64>,
    /// The number of replaced messages.
    pub messages_removed: u64,
    /// The number of tool results that are sent shorter because of it.
    #[serde(default)]
    pub results_shortened: u64,
    /// Its duration, in milliseconds.
    pub duration_ms: u64,
    /// How long anybody waited for it, in milliseconds.
    #[serde(default)]
    pub waited_ms: u64,
    /// How long it was prepared in the background, in milliseconds; `null` if it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prepared_ms: Option<u64>,
    /// The model that wrote the summary; empty if none did.
    #[serde(default)]
    pub model: String,
    /// The usage of its model calls.
    pub summary_usage: Usage,
    /// The cost of its model calls, in micro-dollars; `null` if the price is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_microdollars: Option<u64>,
    /// How many facts of what was replaced are in the new context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recall: Option<FactRecall>,
    /// The savings so far, while it was the newest compaction of the context.
    pub saved: Saved,
}

/// The savings of a compaction: each later model call sends fewer tokens, priced as if they were read from the
/// provider's cache, so that the real saving is rather larger.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Saved {
    /// The number of model calls.
    #[serde(default)]
    pub calls: u64,
    /// The input that was not sent, in tokens.
    #[serde(default)]
    pub tokens: u64,
    /// The cost that they would have had, in micro-dollars, as far as prices are known.
    #[serde(default)]
    pub microdollars: u64,
}

/// All about one compaction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CompactionDetails {
    /// The compaction.
    #[serde(flatten)]
    pub record: CompactionRecord,
    /// The text that the model sees in place of the replaced part, or of the branch that was left; empty if there is
    /// none.
    #[serde(default)]
    pub summary: String,
    /// The replaced part.
    pub replaced: Replaced,
    /// The user's own words that it quotes.
    #[serde(default)]
    pub words: Vec<Quote>,
    /// The user's messages that it does not quote as a whole; `recall` reads them.
    #[serde(default)]
    pub words_left: Vec<EntryId>,
    /// The facts that the summary lacked, and that were added to it.
    #[serde(default)]
    pub facts_added: Vec<Fact>,
    /// The facts that are missing in the new context; `recall` finds them.
    #[serde(default)]
    pub facts_missing: Vec<Fact>,
    /// The tool results that are sent shorter because of it.
    #[serde(default)]
    pub shortened: Vec<EntryId>,
}

/// The messages that a compaction replaced.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Replaced {
    /// The number of the user's messages.
    pub user: u64,
    /// The number of the model's answers.
    pub assistant: u64,
    /// The number of tool results.
    pub results: u64,
    /// The number of other messages, such as commands that the user ran.
    pub other: u64,
    /// The first lines of the user's messages, oldest first: at most the newest [`REQUESTS_MAX`].
    pub requests: Vec<Quote>,
}

/// Returns the compactions in a session's entries. `leaf` is the end of the current path.
#[expect(clippy::wildcard_enum_match_arm, reason = "no other kind changes the context for later calls")]
pub fn list(entries: &[Arc<Entry>], leaf: Option<EntryId>, cost: &CallCost) -> Vec<CompactionRecord> {
    let path = path_within(entries, leaf);
    let is_undone = undone_ids(entries);
    let on_path: HashSet<EntryId> = path.iter().map(|entry| entry.id).collect();
    let ended: HashMap<EntryId, (u64, &CompactionEnded)> = entries
        .iter()
        .filter_map(|entry| {
            if let EntryKind::CompactionEnded(ended) = &entry.kind {
                Some((ended.entry?, (entry.at_ms, &**ended)))
            } else {
                None
            }
        })
        .collect();
    let mut records: Vec<CompactionRecord> = Vec::new();
    // The newest installed one, as long as it shapes the context.
    let mut in_effect: Option<usize> = None;
    for entry in entries {
        match &entry.kind {
            EntryKind::Compaction(compaction) => {
                let end = ended.get(&entry.id).copied();
                records.push(installed(entry, compaction, end));
                in_effect = Some(records.len() - 1);
            }
            EntryKind::Prune(prune) => {
                if let Some((at_ms, ended)) = ended.get(&entry.id).copied() {
                    let results_shortened = prune.results.len() as u64;
                    records.push(CompactionRecord { results_shortened, ..of_end(entry.id, at_ms, ended) });
                    in_effect = Some(records.len() - 1);
                }
            }
            // It replaced nothing of this path, so calls save nothing by it.
            EntryKind::BranchSummary { .. } => {
                if let Some((at_ms, ended)) = ended.get(&entry.id).copied() {
                    records.push(of_end(entry.id, at_ms, ended));
                }
            }
            EntryKind::CompactionEnded(end) => {
                let is_listed =
                    end.entry.is_none() && !matches!(end.outcome, CompactionOutcome::Nothing { .. });
                if is_listed {
                    records.push(of_end(entry.id, entry.at_ms, end));
                }
            }
            EntryKind::CompactionUndone { .. } | EntryKind::LeafMoved { .. } => in_effect = None,
            _ => {
                let Some(record) = in_effect.and_then(|index| records.get_mut(index)) else { continue };
                let tokens =
                    record.tokens_after.map_or(0, |after| record.tokens_before.saturating_sub(after));
                if let Some(microdollars) = saved_by_call(entry, tokens, cost) {
                    record.saved.calls += 1;
                    record.saved.tokens += tokens;
                    record.saved.microdollars += microdollars;
                }
            }
        }
    }
    let mut is_covered = false;
    for (number, record) in records.iter_mut().enumerate().rev() {
        record.number = number as u64 + 1;
        record.is_undone = is_undone.contains(&record.entry_id);
        let counts = record.outcome.is_installed() && !record.is_undone && on_path.contains(&record.entry_id);
        record.is_active = counts && !is_covered;
        is_covered |= counts && record.first_kept.is_some();
    }
    records
}

/// Returns all about the compaction with this number; `None` if there is none.
pub fn details(
    entries: &[Arc<Entry>],
    leaf: Option<EntryId>,
    number: u64,
    cost: &CallCost,
) -> Option<CompactionDetails> {
    let index = usize::try_from(number).ok()?.checked_sub(1)?;
    let record = list(entries, leaf, cost).into_iter().nth(index)?;
    let entry = entries.iter().find(|entry| entry.id == record.entry_id)?;
    let mut details = CompactionDetails {
        record,
        summary: String::new(),
        replaced: Replaced::default(),
        words: Vec::new(),
        words_left: Vec::new(),
        facts_added: Vec::new(),
        facts_missing: Vec::new(),
        shortened: Vec::new(),
    };
    if let EntryKind::Prune(prune) = &entry.kind {
        details.shortened = prune.results.iter().map(|result| result.entry).collect();
    }
    if let EntryKind::BranchSummary { summary, .. } = &entry.kind {
        details.summary.clone_from(summary);
    }
    let Some(compaction) = entry.kind.as_compaction() else { return Some(details) };
    let before = path_to(entries, entry.parent).unwrap_or_else(|_| path_within(entries, entry.parent));
    let earlier = &entries[..entries.partition_point(|other| other.id < entry.id)];
    let pinned = pinned_ids(earlier);
    details.summary.clone_from(&compaction.summary);
    details.replaced = replaced(&before, compaction);
    (details.words, details.words_left) = words::shown_in(compaction);
    (details.facts_added, details.facts_missing) = facts(&before, compaction, &pinned);
    if let Some(EntryKind::Prune(prune)) = before.last().map(|entry| &entry.kind) {
        details.shortened = prune.results.iter().map(|result| result.entry).collect();
    }
    Some(details)
}

fn undone_ids(entries: &[Arc<Entry>]) -> HashSet<EntryId> {
    let undone = |entry: &Arc<Entry>| {
        if let EntryKind::CompactionUndone { compaction } = entry.kind { Some(compaction) } else { None }
    };
    entries.iter().filter_map(undone).collect()
}

fn installed(
    entry: &Entry,
    compaction: &Compaction,
    end: Option<(u64, &CompactionEnded)>,
) -> CompactionRecord {
    let outcome = match compaction.trigger {
        Trigger::HandOff => {
            let reason = "the next agent sees only the newest messages".to_owned();
            CompactionOutcome::Truncated { reason }
        }
        // An imported one.
        Trigger::Threshold
        | Trigger::Overflow
        | Trigger::Manual
        | Trigger::ModelSwitch
        | Trigger::Hook
        | Trigger::Branch
        | Trigger::Unknown => CompactionOutcome::Completed,
    };
    let base = match end {
        Some((at_ms, ended)) => of_end(entry.id, at_ms, ended),
        None => CompactionRecord {
            number: 0,
            entry_id: entry.id,
            at_ms: entry.at_ms,
            trigger: compaction.trigger,
            outcome,
            is_undone: false,
            is_active: false,
            is_split_turn: false,
            from_hook: false,
            first: None,
            last: None,
            first_kept: None,
            tokens_before: compaction.tokens_before,
            tokens_after: compaction.known_tokens_after(),
            messages_removed: compaction.messages_removed,
            results_shortened: 0,
            duration_ms: compaction.duration_ms,
            waited_ms: 0,
            prepared_ms: None,
            model: String::new(),
            summary_usage: compaction.usage,
            cost_microdollars: compaction.cost_microdollars,
            recall: compaction.recall,
            saved: Saved::default(),
        },
    };
    let Compaction { first, last, first_kept, is_split_turn, from_hook, .. } = *compaction;
    let model = compaction.model.clone();
    CompactionRecord { first, last, first_kept, is_split_turn, from_hook, model, ..base }
}

fn of_end(entry_id: EntryId, at_ms: u64, ended: &CompactionEnded) -> CompactionRecord {
    CompactionRecord {
        number: 0,
        entry_id,
        at_ms,
        trigger: ended.trigger,
        outcome: ended.outcome.clone(),
        is_undone: false,
        is_active: false,
        is_split_turn: false,
        from_hook: false,
        first: None,
        last: None,
        first_kept: None,
        tokens_before: ended.tokens_before,
        tokens_after: Some(ended.tokens_after),
        messages_removed: ended.messages_removed,
        results_shortened: 0,
        duration_ms: ended.duration_ms,
        waited_ms: ended.waited_ms,
        prepared_ms: ended.prepared_ms,
        model: String::new(),
        summary_usage: ended.summary_usage,
        cost_microdollars: ended.cost_microdollars,
        recall: ended.recall,
        saved: Saved::default(),
    }
}

/// Returns what a compaction replaced of the path before it.
fn replaced(before: &[Arc<Entry>], compaction: &Compaction) -> Replaced {
    let mut replaced = Replaced::default();
    let is_replaced = |id: EntryId| {
        compaction.first.is_none_or(|first| id >= first)
            && match (compaction.last, compaction.first_kept) {
                (Some(last), _) => id <= last,
                (None, Some(first_kept)) => id < first_kept,
                (None, None) => true,
            }
    };
    for entry in before.iter().filter(|entry| is_replaced(entry.id)) {
        match entry.kind.as_message().map(|message| &**message) {
            Some(Message::User(_)) => replaced.user += 1,
            Some(Message::Assistant(_)) => replaced.assistant += 1,
            Some(Message::ToolResult(_)) => replaced.results += 1,
            None if crate::path::is_message(&entry.kind) => replaced.other += 1,
            None => {}
        }
        if let Some(words) = own_words(&entry.kind) {
            let line = words.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
            replaced.requests.push(Quote { entry: entry.id, text: line.to_owned(), is_rule: false });
        }
    }
    let more = replaced.requests.len().saturating_sub(REQUESTS_MAX);
    replaced.requests.drain(..more);
    replaced
}

/// Returns the facts that were added to a compaction's summary, and those that its context lacks.
/// `pinned` are the pinned messages then.
fn facts(before: &[Arc<Entry>], compaction: &Compaction, pinned: &[EntryId]) -> (Vec<Fact>, Vec<Fact>) {
    let facts = &compaction.carried.facts;
    let is_sent =
        |id: EntryId| compaction.first_kept.is_some_and(|first| id >= first) || pinned.contains(&id);
    let sent = as_sent(before);
    let kept: Vec<String> = sent
        .iter()
        .filter(|entry| is_sent(entry.id))
        .filter_map(|entry| Some(entry_message(&entry.kind)?.said()))
        .collect();
    let summary = compaction.summary.as_str();
    let recognised = |summary: &[&str]| {
        ledger::recognised(facts, kept.iter().map(String::as_str).chain(summary.iter().copied()))
    };
    let (without, with) = (recognised(&ledger::around(summary)), recognised(&[summary]));
    let those = |is_meant: &dyn Fn(usize) -> bool| {
        facts.iter().enumerate().filter(|(index, _)| is_meant(*index)).map(|(_, fact)| fact.clone()).collect()
    };
    (those(&|index| with[index] && !without[index]), those(&|index| !with[index]))
}
