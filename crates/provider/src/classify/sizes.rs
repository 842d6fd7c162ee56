//! The limit and the size of the request, in tokens, read out of a refusal's words.
//!
//! Rather than one pattern for each provider: find every number that can be a count of tokens, look which words
//! stand directly before and behind it, and let the fact that the request is larger than the limit decide what
//! the words leave open. Characters and bytes are not tokens.

use std::collections::BTreeSet;

use super::digest::Digest;
use super::words::contains_any;

/// How far before a number its label may stand, in bytes.
const LABEL_REACH_BYTES: usize = 70;

/// `(limit, requested)`.
pub(super) fn sizes(digest: &Digest) -> (Option<u64>, Option<u64>) {
    let (limit, requested) = sizes_in_text(&digest.plain, &digest.codes);
    (digest.limit.or(limit), digest.requested.or(requested))
}

/// Whether a limit is named as such, and what was asked for is more.
pub(super) fn exceed(digest: &Digest) -> bool {
    /// No window is smaller; other things that are counted are.
    const WINDOW_MIN: u64 = 512;
    let is_named = numbers(&digest.plain)
        .iter()
        .any(|number| number.value >= WINDOW_MIN && matches!(label(number), Label::Window | Label::Limit));
    match sizes(digest) {
        (Some(limit), Some(requested)) => is_named && limit >= WINDOW_MIN && requested > limit,
        _ => false,
    }
}

#[derive(Debug, Clone, Copy)]
struct Number<'a> {
    value: u64,
    /// The text between the number before and this one.
    before: &'a str,
    /// The text behind it.
    after: &'a str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    /// The window itself. What else is limited follows from it.
    Window,
    Limit,
    Requested,
    /// Added to the number before.
    Added,
    /// By how much it is too large.
    Excess,
    None,
}

fn sizes_in_text(text: &str, codes: &[String]) -> (Option<u64>, Option<u64>) {
    let all = numbers(text);
    if let Some(found) = as_formula(&all) {
        return found;
    }
    // A number of characters may be repeated without its unit.
    let mut others: Vec<u64> =
        all.iter().filter(|number| is_other_unit(number.after)).map(|number| number.value).collect();
    others.extend(codes.iter().filter_map(|code| code.parse::<u64>().ok()));
    let mut windows = Vec::new();
    let mut limits = Vec::new();
    let mut sizes = Vec::new();
    let mut excess = None;
    let mut are_added = false;
    for number in
        all.iter().filter(|number| number.value > 1 && !others.contains(&number.value) && !is_code(number))
    {
        match label(number) {
            Label::Window => windows.push(number.value),
            Label::Limit => limits.push(number.value),
            Label::Excess => excess = Some(number.value),
            Label::Added => {
                are_added = true;
                sizes.push(number.value);
            }
            Label::Requested | Label::None => sizes.push(number.value),
        }
    }
    let window = windows.iter().min().copied();
    let largest = limits.iter().chain(&windows).max().copied();
    let Some(limit) = window.or_else(|| limits.iter().min().copied()) else {
        // No label: of two counts, the smaller one is the limit.
        return match sizes[..] {
            [a, b] if a != b => (Some(a.min(b)), Some(a.max(b))),
            [size] if label_of_only(&all) == Label::Requested => (None, Some(size)),
            _ => (None, None),
        };
    };
    // A size that is repeated is one size.
    let different: BTreeSet<u64> = sizes.iter().copied().collect();
    let sum = different.iter().copied().fold(0, u64::saturating_add);
    // Input, output and what they make together, which may be just the window.
    if let Some(total) = different.last().copied().filter(|total| *total >= limit)
        && different.len() > 2
        && sum - total == total
    {
        return (Some(limit), Some(total));
    }
    if are_added && sum > limit {
        return (Some(limit), Some(sum));
    }
    let requested = sizes
        .iter()
        .max()
        .copied()
        .filter(|size| *size > limit)
        .or((sum > limit).then_some(sum))
        .or(largest.filter(|largest| *largest > limit && sizes.is_empty()))
        .or(excess.map(|excess| limit.saturating_add(excess)));
    (Some(limit), with_output(text, limit, &sizes).or(requested))
}

/// "Given: 5000 inputs tokens and 512 max new tokens": the two together are the request.
fn with_output(text: &str, limit: u64, sizes: &[u64]) -> Option<u64> {
    match sizes {
        [input, output] if text.contains("tokens + ") && text.contains("must be") => {
            Some(input.saturating_add(*output)).filter(|sum| *sum > limit)
        }
        _ => None,
    }
}

fn label_of_only(all: &[Number<'_>]) -> Label {
    match all {
        [number] => label(number),
        _ => Label::None,
    }
}

/// `A + B > C`, `A > B - C`, `[1, N]`.
fn as_formula(all: &[Number<'_>]) -> Option<(Option<u64>, Option<u64>)> {
    for window in all.windows(3) {
        if let [a, b, c] = window {
            match (b.before.trim(), c.before.trim()) {
                ("+", ">") => return Some((Some(c.value), Some(a.value.saturating_add(b.value)))),
                (">", "-") => return Some((Some(b.value), Some(a.value.saturating_add(c.value)))),
                _ => {}
            }
        }
    }
    all.windows(2).find_map(|window| match window {
        [low, high]
            if low.value <= 1
                && low.before.ends_with('[')
                && high.before.trim() == ","
                && high.after.starts_with(']') =>
        {
            Some((Some(high.value), None))
        }
        _ => None,
    })
}

fn label(number: &Number<'_>) -> Label {
    const WINDOW: &[&str] = &[
        "context length",
        "context_length",
        "context size",
        "context window",
        "context limit",
        "n_ctx",
        "n ctx",
        "model len",
        "seq_len",
    ];
    const LIMIT: &[&str] = &[
        "maximum",
        "max",
        "limit",
        "only",
        "<=",
        "less than",
        "fewer than",
        "up to",
        "cannot exceed",
        "at most",
        "no more than",
        "longer than",
        "greater than",
        "larger than",
        "exceeds the",
        "exceed the",
        "upper bound",
        "limited to",
        "just",
        "holds",
        "can hold",
        "accepts",
        "supports",
    ];
    const REQUESTED: &[&str] = &[
        "requested",
        "resulted in",
        "given",
        "received",
        "contain",
        "request has",
        "your prompt",
        "current length",
        "too long",
        "actual",
        "you provided",
        "but got",
        "used",
        "estimated",
        "has",
        "request (",
        "input (",
        "you sent",
    ];
    let reach = number.before.len().saturating_sub(LABEL_REACH_BYTES);
    let near = (reach..=number.before.len()).find_map(|start| number.before.get(start..)).unwrap_or_default();
    let trimmed = near.trim_end();
    if number.before.trim_start_matches([')', ' ']).starts_with("+ ") {
        return Label::Added;
    }
    if trimmed.ends_with(" by") || trimmed == "by" {
        return Label::Excess;
    }
    if trimmed.ends_with('>') {
        return Label::Limit;
    }
    let behind: String = number.after.chars().take(18).collect();
    let behind = behind.trim_start_matches([' ', ')']);
    if behind.starts_with("maximum") || behind.starts_with("max ") || behind.starts_with("token limit") {
        return Label::Limit;
    }
    let last = |list: &[&str]| list.iter().filter_map(|word| near.rfind(word)).max();
    // The nearer word counts.
    let (window, requested) = (last(WINDOW), last(REQUESTED));
    match (window.max(last(LIMIT)), requested) {
        (Some(limit), requested) if requested.is_none_or(|requested| limit > requested) => {
            if window.is_some() { Label::Window } else { Label::Limit }
        }
        (_, Some(_)) => Label::Requested,
        (_, None) => Label::None,
    }
}

/// Counted in something else than tokens.
fn is_other_unit(after: &str) -> bool {
    const UNITS: &[&str] = &[
        "character",
        "char",
        "byte",
        "mb",
        "kb",
        "gb",
        "mib",
        "gib",
        "image",
        "pixel",
        "second",
        "ms",
        "%",
        "page",
        "minute",
        "file",
    ];
    let after = after.trim_start();
    UNITS.iter().any(|unit| after.starts_with(unit))
}

/// A status or an error's code, not a count.
fn is_code(number: &Number<'_>) -> bool {
    let before = number.before.trim_end_matches([' ', ':', '=', '(', '#', '[']);
    let named = ["code", "status", "http", "error", "line", "version", "index", " id"]
        .iter()
        .any(|name| before.ends_with(name));
    let leads =
        before.is_empty() && (400..600).contains(&number.value) && number.after.starts_with([' ', ':']);
    let is_alone = number.before.ends_with('<') && number.after.starts_with('>');
    named
        || is_alone
        || (leads && !contains_any(&number.after.chars().take(8).collect::<String>(), &["token"]))
}

/// All whole numbers that stand by themselves: no part of a name, a version, a date or an id.
fn numbers(text: &str) -> Vec<Number<'_>> {
    let bytes = text.as_bytes();
    let mut found = Vec::new();
    let mut previous_end = 0;
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let start = at;
        while at < bytes.len() && is_in_number(bytes, at) {
            at += 1;
        }
        let digits: String = text[start..at].chars().filter(char::is_ascii_digit).collect();
        // A count that went through a division.
        if text[at..].starts_with(".0")
            && !text[at + 2..].starts_with(|c: char| c.is_alphanumeric() || c == '.')
        {
            at += 2;
        }
        let mut ahead = text[..start].chars().rev();
        let (before, over_before) = (ahead.next(), ahead.next());
        let is_port = before == Some(':') && over_before.is_some_and(|c| c.is_ascii_digit());
        let mut rest = text[at..].chars();
        let (next, over_next) = (rest.next(), rest.next());
        let thousands = next == Some('k') && !over_next.is_some_and(char::is_alphanumeric);
        let ends_well = thousands
            || match next {
                Some('.' | '-' | ':' | '/') => !over_next.is_some_and(char::is_alphanumeric),
                Some(c) => !c.is_alphanumeric() && c != '_',
                None => true,
            };
        let begins_well = !is_port
            && !before.is_some_and(|c| c.is_alphanumeric() || matches!(c, '-' | '.' | '_' | '/' | '#'));
        if !(begins_well && ends_well) {
            // Skip the rest of the name that it is a part of.
            while at < bytes.len()
                && (bytes[at].is_ascii_alphanumeric() || matches!(bytes[at], b'-' | b'_' | b'.'))
            {
                at += 1;
            }
            continue;
        }
        // No count is written with zeros in front.
        if digits.len() > 1 && digits.starts_with('0') {
            continue;
        }
        let Ok(value) = digits.parse::<u64>() else { continue };
        let value = if thousands { value.saturating_mul(1_000) } else { value };
        found.push(Number { value, before: &text[previous_end..start], after: &text[at..] });
        previous_end = at;
    }
    found
}

/// A digit, or a separator of thousands.
fn is_in_number(bytes: &[u8], at: usize) -> bool {
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    bytes[at].is_ascii_digit()
        || (matches!(bytes[at], b',' | b'_')
            && digit(at + 1)
            && digit(at + 2)
            && digit(at + 3)
            && !digit(at + 4))
}
