//! Numbers and results as text for people.
//!
//! Invariants: nothing here makes decisions; the library's types have no text for people of their own.

use greenroom::{Compacted, CompactionOutcome};
use greenroom_kernel::plan::NothingToCompact;

#[cfg(test)]
mod tests;

/// Formats a number with commas: `142318` is `142,318`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Returns the last `characters` characters of a text.
pub fn end(text: &str, characters: usize) -> &str {
    let skipped = text.chars().count().saturating_sub(characters);
    text.char_indices().nth(skipped).map_or("", |(start, _)| text.get(start..).unwrap_or_default())
}

/// Formats the expected size after a compaction, and its maximum.
pub fn about(estimate: u64, max: u64) -> String {
    format!("about {} (at most {})", thousands(estimate), thousands(max))
}

/// Returns why nothing was compacted; if everything is recent, with the way to compact anyway.
pub fn nothing_to_compact(reason: &str, way: &str) -> String {
    if is_recent(reason) { format!("{reason}; {way}") } else { reason.to_owned() }
}

/// Whether nothing was compacted because everything is recent.
pub fn is_recent(reason: &str) -> bool {
    reason == NothingToCompact::AllRecent.to_string()
}

/// What to do if a server cannot be reached, or does not answer in time.
pub const UNREACHED: &str = "check that the server is running and its address is correct";

/// Describes the result of a compaction: the messages and tokens saved, or why nothing was compacted.
pub fn compacted(end: &Compacted) -> String {
    if end.is_installed() {
        let what = match end.messages_removed {
            0 => "Shortened tool results".to_owned(),
            removed => format!("Compacted {removed} messages"),
        };
        let why = end.outcome.reason().map(|reason| format!("\n  Without a summary: {reason}"));
        let facts = kept_facts(end).map(|kept| format!("\n  Facts: {kept}"));
        return format!(
            "✓ {what}\n  Tokens: {} → {} (saved {}){}{}",
            thousands(end.tokens_before),
            thousands(end.tokens_after),
            thousands(end.tokens_before.saturating_sub(end.tokens_after)),
            facts.unwrap_or_default(),
            why.unwrap_or_default(),
        );
    }
    let name = end.outcome.as_str();
    let reason = end.outcome.reason().unwrap_or(name);
    if matches!(end.outcome, CompactionOutcome::Nothing { .. }) {
        format!("No compaction needed: {reason}")
    } else {
        format!("Compaction {name}: {reason}; the conversation is unchanged")
    }
}

/// Describes how many of the facts that a compaction replaced are still in the context: `kept 39 of 41 facts`.
pub(crate) fn kept_facts(end: &Compacted) -> Option<String> {
    let recall = end.recall.filter(|recall| recall.facts > 0)?;
    Some(format!("kept {} of {} facts", recall.after, recall.facts))
}
