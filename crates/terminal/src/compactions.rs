//! Compactions as text: one line each, or one compaction with its details.
//!
//! Invariants: pure functions from values to lines; lines are not cut to a width, and their text is not made harmless
//! here, since rows and screens do both.

use greenroom::{CompactionDetails, CompactionOutcome, CompactionRecord, Saved};
use greenroom_kernel::entry::Trigger;
use greenroom_kernel::{Fact, FactKind};

use crate::format::{about, cents, count, duration, tenths};
use crate::screen::one_line;
use crate::text::thousands;

#[cfg(test)]
mod tests;

/// The maximum number of the user's messages that are listed of a replaced part.
const REQUESTS_MAX: usize = 20;
/// The maximum number of facts of a list that are shown.
const FACTS_MAX: usize = 20;
/// The maximum number of columns of a message or a fact.
const COLUMNS: usize = 100;

/// Describes a compaction in one line.
pub fn line(record: &CompactionRecord) -> String {
    let mut parts = vec![format!("{:>3}", record.number), trigger(record.trigger).to_owned()];
    if record.outcome.is_installed() {
        let is_whole = record.outcome == CompactionOutcome::Completed;
        let verb = if is_whole { "compacted" } else { record.outcome.as_str() };
        parts.push(format!(
            "{verb} {} → {} tokens",
            tenths(record.tokens_before),
            record.tokens_after.map_or_else(|| "?".to_owned(), tenths)
        ));
        match record.results_shortened {
            0 => parts.push(count(record.messages_removed, "message")),
            results => parts.push(count(results, "result")),
        }
    } else {
        let reason = record.outcome.reason().map(|reason| format!(": {}", one_line(reason, COLUMNS)));
        parts.push(format!("{}{}", record.outcome, reason.unwrap_or_default()));
    }
    parts.push(duration(record.duration_ms));
    parts.extend(cost(record));
    parts.extend(record.recall.map(|recall| format!("{} of {} facts", recall.after, recall.facts)));
    parts.extend(saved(&record.saved));
    parts.extend(record.is_undone.then(|| "undone".to_owned()));
    parts.extend(record.is_active.then(|| "in effect".to_owned()));
    parts.join("  ")
}

/// Describes what compactions cost together, and what they saved; `None` if there were none.
pub fn totals(count_of: u64, bill: &greenroom::CompactionBill) -> Option<String> {
    if count_of == 0 && *bill == greenroom::CompactionBill::default() {
        return None;
    }
    let mut parts = vec![count(count_of, "compaction")];
    if bill.tokens > 0 {
        let cost = if bill.cost_microdollars > 0 {
            format!(", {}", cents(bill.cost_microdollars))
        } else {
            String::new()
        };
        parts.push(format!("{} tokens for summaries{cost}", thousands(bill.tokens)));
    }
    if bill.saved_tokens > 0 {
        parts.push(saved_text(bill.saved_tokens, bill.saved_microdollars));
    }
    parts.push(format!("waited {}", duration(bill.waited_ms)));
    Some(parts.join("; "))
}

/// Describes all about a compaction, in lines.
pub fn details(details: &CompactionDetails) -> Vec<String> {
    let CompactionDetails { record, replaced, .. } = details;
    let mut lines =
        vec![format!("compaction {}, entry {}: {}", record.number, record.entry_id, state(record))];
    let mut add = |name: &str, text: String| lines.push(format!("  {name:<9} {text}"));
    let after = record.tokens_after.map_or_else(|| "?".to_owned(), thousands);
    let mut size = format!("{} → {after} tokens", thousands(record.tokens_before));
    size.push_str(&format!(", {}", duration(record.duration_ms)));
    if record.waited_ms > 0 {
        size.push_str(&format!(", waited {}", duration(record.waited_ms)));
    }
    if let Some(prepared) = record.prepared_ms {
        size.push_str(&format!(", prepared in the background in {}", duration(prepared)));
    }
    add("context", size);
    if let (Some(first), Some(last)) = (record.first, record.last) {
        let of = [
            (replaced.user, "of yours", "of yours"),
            (replaced.assistant, "answer", "answers"),
            (replaced.results, "result", "results"),
            (replaced.other, "other", "others"),
        ];
        let of: Vec<String> = of
            .into_iter()
            .filter(|(number, ..)| *number > 0)
            .map(|(number, one, many)| format!("{number} {}", if number == 1 { one } else { many }))
            .collect();
        let messages = count(record.messages_removed, "message");
        add("replaced", format!("entries {first} to {last}: {messages} ({})", of.join(", ")));
    }
    let more = replaced.requests.len().saturating_sub(REQUESTS_MAX);
    if more > 0 {
        add("", format!("  … {more} earlier messages of yours"));
    }
    for request in replaced.requests.iter().skip(more) {
        add("", format!("  {:>4}  {}", request.entry.to_string(), one_line(&request.text, COLUMNS)));
    }
    if let Some(first_kept) = record.first_kept {
        add("kept", format!("everything from entry {first_kept} on"));
    }
    if !details.words.is_empty() || !details.words_left.is_empty() {
        let quoted = count(details.words.len() as u64, "message");
        let left: Vec<String> = details.words_left.iter().map(ToString::to_string).collect();
        let left = match left.as_slice() {
            [] => String::new(),
            left => format!("; not as a whole: {}", one_line(&left.join(", "), COLUMNS)),
        };
        add("verbatim", format!("{quoted} of yours{left}"));
    }
    if let Some(recall) = record.recall {
        let added = details.facts_added.len() as u64;
        let missing = details.facts_missing.len() as u64;
        let kept = recall.facts.saturating_sub(added + missing);
        let facts = count(recall.facts, "fact");
        add("facts", format!("{facts}: {kept} kept, {added} added to the summary, {missing} missing"));
        for (what, facts) in [("added", &details.facts_added), ("missing", &details.facts_missing)] {
            for fact in facts.iter().take(FACTS_MAX) {
                let text = format!("{} [{}]", one_line(&fact.text, COLUMNS), fact.entry);
                add("", format!("  {what:<7}  {:<10}  {text}", kind(fact)));
            }
            let more = facts.len().saturating_sub(FACTS_MAX);
            if more > 0 {
                add("", format!("  {what:<7}  … and {more} more (--json lists all)"));
            }
        }
        if missing > 0 {
            add("", "  `recall` and `greenroom recall` find the missing facts".to_owned());
        }
    }
    if !details.shortened.is_empty() {
        let results: Vec<String> = details.shortened.iter().map(ToString::to_string).collect();
        let what = count(details.shortened.len() as u64, "tool result");
        add("shortened", format!("{what}: entries {}", one_line(&results.join(", "), COLUMNS)));
    }
    if record.summary_usage.total_tokens() > 0 {
        let usage = record.summary_usage;
        let sums =
            format!("{} tokens in, {} out", thousands(usage.input_tokens), thousands(usage.output_tokens));
        let by = if record.model.is_empty() { String::new() } else { format!(", by {}", record.model) };
        let price = cost(record).unwrap_or_else(|| "no known price".to_owned());
        add("cost", format!("{price} ({sums}{by})"));
    }
    if let Some(saved) = saved(&record.saved) {
        add(
            "saved",
            format!("{} in {}", saved.trim_start_matches("saved "), count(record.saved.calls, "call")),
        );
    }
    if record.is_active {
        let number = record.number;
        add("undo", format!("/undo-compact {number} in `greenroom chat` undoes it and all later ones"));
    }
    if !details.summary.is_empty() {
        lines.push(String::new());
        lines.extend(details.summary.lines().map(str::to_owned));
    }
    lines
}

fn state(record: &CompactionRecord) -> String {
    let reason = record.outcome.reason().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let effect = match (record.is_undone, record.is_active, record.outcome.is_installed()) {
        (true, ..) => ", undone",
        (_, true, _) => ", in effect",
        (_, _, true) => ", replaced by a later one or on another branch",
        (_, _, false) => "",
    };
    let hook = if record.from_hook { ", supplied by a hook" } else { "" };
    format!("{}, {}{reason}{hook}{effect}", trigger(record.trigger), record.outcome)
}

fn trigger(trigger: Trigger) -> &'static str {
    match trigger {
        Trigger::Threshold => "automatic",
        Trigger::Overflow => "overflow",
        Trigger::Manual => "manual",
        Trigger::ModelSwitch => "model change",
        Trigger::Hook => "for a hook",
        Trigger::Branch => "of a branch",
        Trigger::HandOff => "hand-off",
        Trigger::Unknown | _ => "other",
    }
}

fn cost(record: &CompactionRecord) -> Option<String> {
    let cost = record.cost_microdollars.filter(|cost| *cost > 0)?;
    Some(about(cents(cost), record.summary_usage.estimated_tokens))
}

fn saved(saved: &Saved) -> Option<String> {
    (saved.tokens > 0).then(|| saved_text(saved.tokens, saved.microdollars))
}

fn saved_text(tokens: u64, microdollars: u64) -> String {
    let sum = if microdollars > 0 { format!(" ({} or more)", cents(microdollars)) } else { String::new() };
    format!("saved {} tokens{sum}", tenths(tokens))
}

fn kind(fact: &Fact) -> &'static str {
    match fact.kind {
        FactKind::Rule => "rule",
        FactKind::Decision => "decision",
        FactKind::Error => "error",
        FactKind::Done => "done",
        FactKind::Open => "open",
        FactKind::Command => "command",
        FactKind::Path => "path",
        FactKind::Url => "address",
        FactKind::Identifier => "name",
        FactKind::Number => "number",
        FactKind::Unknown | _ => "other",
    }
}
