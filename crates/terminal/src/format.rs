//! Numbers, bars and lines that show the size of a context and how it changes.
//!
//! Invariants: everything here is a pure function from values to text, without colours and without a clock.

use greenroom::{Compacted, CompactionOutcome, EntryId};
use greenroom_kernel::entry::Trigger;
use greenroom_kernel::usage::ContextUsage;

use crate::screen::one_line;
use crate::text;

/// The arguments that identify a tool call best, in order of preference.
const TELLING_ARGUMENTS: [&str; 9] =
    ["command", "pattern", "query", "path", "file_path", "task", "url", "name", "text"];

/// Formats a number of tokens briefly: `812`, `9.9k`, `142k`, `1.2M`.
pub fn short(tokens: u64) -> String {
    let tenths = |unit: u64| (tokens + unit / 20) / (unit / 10);
    match tokens {
        0..1_000 => tokens.to_string(),
        1_000..99_950 => with_tenth(tenths(1_000), "k"),
        99_950..999_500 => format!("{}k", (tokens + 500) / 1_000),
        _ => with_tenth(tenths(1_000_000), "M"),
    }
}

/// Like [`short`], with one decimal up to a million: `142.3k`.
pub fn tenths(tokens: u64) -> String {
    match tokens {
        99_950..999_950 => with_tenth((tokens + 50) / 100, "k"),
        _ => short(tokens),
    }
}

fn with_tenth(tenths: u64, unit: &str) -> String {
    if tenths.is_multiple_of(10) {
        format!("{}{unit}", tenths / 10)
    } else {
        format!("{}.{}{unit}", tenths / 10, tenths % 10)
    }
}

/// Formats a duration in milliseconds: `80 ms`, `1.2 s`, `2 min 5 s`.
pub fn duration(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1_000, ms % 1_000 / 100),
        _ => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1_000),
    }
}

/// Formats what was spent, given in micro-dollars, as dollars and cents, `$0.03`; less than a cent with four digits,
/// rounded up: `$0.0012`. A limit that a person set is formatted exactly, by the kernel.
pub fn cents(microdollars: u64) -> String {
    match microdollars {
        0..10_000 => format!("$0.{:04}", microdollars.div_ceil(100)),
        _ => greenroom_kernel::cost::dollars(microdollars),
    }
}

/// Marks a sum as an estimate, `~$0.03`, if some of its tokens are estimated.
pub fn about(sum: String, estimated_tokens: u64) -> String {
    if estimated_tokens > 0 { format!("~{sum}") } else { sum }
}

/// Formats a number with its noun: `1 message`, `2 messages`.
pub fn count(number: u64, what: &str) -> String {
    let many = || what.strip_suffix('y').map_or(format!("{what}s"), |stem| format!("{stem}ies"));
    if number == 1 { format!("1 {what}") } else { format!("{} {}", crate::text::thousands(number), many()) }
}

/// Formats a size in bytes: `980 bytes`, `1.2 MB`.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if bytes < 1_000 {
        return count(bytes, "byte");
    }
    let (mut tenths, mut unit) = (bytes / 100, 0);
    while tenths >= 10_000 && unit + 1 < UNITS.len() {
        (tenths, unit) = (tenths / 1_000, unit + 1);
    }
    format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
}

/// Draws the fill level of a window as a bar of `width` characters, with a mark at the compaction trigger.
pub fn bar(tokens: u64, window: u64, trigger: u64, width: usize) -> String {
    let cell = |tokens: u64| {
        let cells = tokens.saturating_mul(width as u64).checked_div(window).unwrap_or(0);
        usize::try_from(cells).unwrap_or(width).min(width)
    };
    let (filled, mark) = (cell(tokens).max(usize::from(tokens > 0)), cell(trigger));
    (0..width)
        .map(|index| match index {
            _ if index < filled => '█',
            _ if index == mark => '┆',
            _ => '░',
        })
        .collect()
}

/// Draws the context as a bar with its numbers: `██████░░┆░ 12.3k of 24k, 51 %`.
pub fn context(context: &ContextUsage, trigger: u64, width: usize) -> String {
    match context.window {
        Some(window) => format!("{} {}", bar(context.tokens, window, trigger, width), fill(context)),
        None => fill(context),
    }
}

/// Formats the fill level: `12.3k of 24k, 51 %`.
pub fn fill(context: &ContextUsage) -> String {
    match (context.window, context.percent()) {
        (Some(window), Some(percent)) => {
            format!("{} of {}, {percent:.0} %", short(context.tokens), short(window))
        }
        (Some(_) | None, None) | (None, Some(_)) => format!("{} tokens", short(context.tokens)),
    }
}

/// Says where the conversation continues after a branch.
pub fn branched(to: Option<EntryId>) -> String {
    match to {
        Some(entry) => format!(
            "the next prompt continues after entry {entry}; later entries, if any, are a branch: /tree"
        ),
        None => {
            "the next prompt starts the conversation over; the messages so far are a branch: /tree".to_owned()
        }
    }
}

/// Describes a compaction in progress.
pub fn compacting(trigger: Trigger, tokens: u64) -> String {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others compact the conversation")]
    match trigger {
        Trigger::Branch => "summarising the abandoned branch".to_owned(),
        _ => {
            format!("compacting {} tokens", tenths(tokens))
        }
    }
}

/// Describes a compaction in one line: `compacted 142.3k → 21.8k tokens, 96 messages, 8.4 s, $0.03`.
pub fn compaction(end: &Compacted) -> String {
    if let CompactionOutcome::Nothing { reason } = &end.outcome {
        return format!("nothing to compact: {reason}");
    }
    let is_of_branch = end.trigger == Trigger::Branch;
    if !end.is_installed() {
        let reason = end.outcome.reason().map(|reason| format!(": {reason}")).unwrap_or_default();
        let what = if is_of_branch { "the summary of the branch" } else { "compaction" };
        return format!("{what} {}{reason}; the conversation is unchanged", end.outcome.as_str());
    }
    let verb = match (end.outcome == CompactionOutcome::Completed, is_of_branch) {
        (true, true) => "summarised the abandoned branch:",
        (true, false) => "compacted",
        (false, _) => end.outcome.as_str(),
    };
    let estimated_tokens = end.summary_usage.estimated_tokens;
    let cost = end.cost_microdollars.filter(|cost| *cost > 0);
    let cost = cost.map(|cost| format!(", {}", about(cents(cost), estimated_tokens)));
    format!(
        "{verb} {} → {} tokens, {}, {}{}{}",
        tenths(end.tokens_before),
        tenths(end.tokens_after),
        count(end.messages_removed, "message"),
        duration(end.duration_ms),
        cost.unwrap_or_default(),
        text::kept_facts(end).map(|kept| format!(", {kept}")).unwrap_or_default(),
    ) + if end.prepared_ms.is_some() { ", prepared in the background" } else { "" }
}

/// Says with what a new session continues another one.
pub fn continued(from: &str, compacted: &Compacted) -> String {
    if compacted.is_installed() {
        return format!(
            "continues {from} with a summary of it: {} → {} tokens",
            tenths(compacted.tokens_before),
            tenths(compacted.tokens_after)
        );
    }
    let reason = compacted.outcome.reason().unwrap_or("it was interrupted");
    if let CompactionOutcome::Nothing { .. } = compacted.outcome {
        return format!("continues {from} with the whole conversation: {reason}");
    }
    format!("continues {from} with the whole conversation, since no summary could be made: {reason}")
}

/// Describes a context that will be compacted soon.
pub fn compaction_near(tokens: u64, compacts_at: u64) -> String {
    format!("context {} tokens; it is compacted at {}", tenths(tokens), tenths(compacts_at))
}

/// Describes a tool call in one line: `read src/lib.rs`.
pub fn call(name: &str, arguments: &str, width: usize) -> String {
    let value: serde_json::Value = serde_json::from_str(arguments).unwrap_or_default();
    let text = |value: &serde_json::Value| match value {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Number(number) => Some(number.to_string()),
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Array(_)
        | serde_json::Value::Object(_) => None,
    };
    let object = value.as_object();
    let told = object.and_then(|object| {
        let told = TELLING_ARGUMENTS.iter().find_map(|name| object.get(*name).and_then(text));
        told.or_else(|| object.values().find_map(text))
    });
    let told = told.or_else(|| object.is_none().then(|| arguments.to_owned())).unwrap_or_default();
    // A search says where it searched.
    let searches =
        object.is_some_and(|object| ["pattern", "query"].iter().any(|name| object.contains_key(*name)));
    let place = object.filter(|_| searches).and_then(|object| object.get("path").and_then(text));
    let place = place.map(|path| format!(" in {path}")).unwrap_or_default();
    one_line(&format!("{name} {told}{place}"), width)
}

/// Draws sizes over time as at most `width` columns of blocks; `top` is full height.
pub fn history(sizes: &[u64], top: u64, width: usize) -> String {
    const STEPS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let step = |size: u64| {
        let step = size.saturating_mul(8).checked_div(top.max(1)).unwrap_or(0);
        STEPS[usize::try_from(step).unwrap_or(7).min(7)]
    };
    if width == 0 || sizes.is_empty() {
        return String::new();
    }
    // Each column shows the last size of its share, so every drop remains visible.
    let columns = sizes.len().min(width);
    (1..=columns).map(|column| step(sizes[column * sizes.len() / columns - 1])).collect()
}

#[cfg(test)]
mod tests;
