//! The limit and the size of the request, in tokens, as a refusal's message states them.
//!
//! There is no pattern per provider. Every number that can be a count of tokens is found, the words directly
//! before and after it label it, and the fact that the request is larger than the limit resolves what the
//! words leave open.
//!
//! Invariants: counts of characters, bytes and other units are never taken for tokens; a number with a JSON field of
//! its own outranks the message; and sums saturate.

use std::collections::BTreeSet;

use super::digest::Digest;

/// How far before a number its label may stand, in bytes.
const LABEL_DISTANCE_BYTES_MAX: usize = 70;

/// What a refusal states about the request, in tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sizes {
    /// The largest size that the provider accepts.
    pub(super) limit: Option<u64>,
    /// The size of the request, or of its input together with the output that it asked for.
    pub(super) requested: Option<u64>,
}

impl Sizes {
    /// Whether both sizes are known and the request is the larger one.
    pub(super) fn exceed_limit(self) -> bool {
        matches!(self, Self { limit: Some(limit), requested: Some(requested) } if requested > limit)
    }
}

/// Returns the sizes that a refusal states, first from JSON fields, then from its message.
pub(super) fn sizes(digest: &Digest) -> Sizes {
    let stated = sizes_in_text(&digest.lowercase, &digest.codes);
    Sizes { limit: digest.limit.or(stated.limit), requested: digest.requested.or(stated.requested) }
}

/// Whether the message labels a number as a limit, and the request is larger than that limit.
pub(super) fn requested_exceeds_limit(digest: &Digest) -> bool {
    /// No context window is smaller, in tokens; other counts are.
    const WINDOW_TOKENS_MIN: u64 = 512;
    let has_limit_label = numbers(&digest.lowercase).iter().any(|number| {
        number.value >= WINDOW_TOKENS_MIN && matches!(number.label(), Label::Window | Label::Limit)
    });
    let sizes = sizes(digest);
    has_limit_label && sizes.exceed_limit() && sizes.limit >= Some(WINDOW_TOKENS_MIN)
}

fn sizes_in_text(text: &str, codes: &[String]) -> Sizes {
    let all = numbers(text);
    if let Some(sizes) = sizes_in_formula(&all) {
        return sizes;
    }
    let counts = Counts::of(&all, codes);
    if let Some(limit) = counts.limit() {
        return Sizes { limit: Some(limit), requested: counts.requested(text, limit) };
    }
    match (counts.sizes.as_slice(), all.as_slice()) {
        // Without a label, the smaller of two counts is the limit.
        (&[a, b], _) if a != b => Sizes { limit: Some(a.min(b)), requested: Some(a.max(b)) },
        (&[size], [number]) if number.label() == Label::Requested => {
            Sizes { limit: None, requested: Some(size) }
        }
        _ => Sizes::default(),
    }
}

/// Returns the sizes in `A + B > C`, `A > B - C`, `[1, N]` and `1 (inclusive) to N (exclusive)`.
fn sizes_in_formula(all: &[Number<'_>]) -> Option<Sizes> {
    let sum = all.array_windows().find_map(|[a, b, c]| match (b.before.trim(), c.before.trim()) {
        ("+", ">") => Some((c.value, a.value.saturating_add(b.value))),
        (">", "-") => Some((b.value, a.value.saturating_add(c.value))),
        _ => None,
    });
    if let Some((limit, requested)) = sum {
        return Some(Sizes { limit: Some(limit), requested: Some(requested) });
    }
    let range = all.array_windows().find(|[low, high]| {
        low.value <= 1
            && low.before.ends_with('[')
            && high.before.trim() == ","
            && high.after.starts_with(']')
    });
    if let Some([_, high]) = range {
        return Some(Sizes { limit: Some(high.value), requested: None });
    }
    let range = all.array_windows().find(|[low, high]| {
        let is_end = |number: &Number<'_>, words| number.after.trim_start().starts_with(words);
        is_end(low, "(inclusive)") && (is_end(high, "(inclusive)") || is_end(high, "(exclusive)"))
    });
    range.map(|[_, high]| {
        let is_exclusive = high.after.trim_start().starts_with("(exclusive)");
        let limit = high.value.saturating_sub(u64::from(is_exclusive));
        let values = || all.iter().map(|number| number.value);
        Sizes { limit: Some(limit), requested: values().find(|value| *value > high.value) }
    })
}

/// The numbers of a message that can be counts of tokens, by their labels.
#[derive(Debug, Default)]
struct Counts {
    /// Sizes of the context window.
    windows: Vec<u64>,
    /// Limits of something other than the context window.
    limits: Vec<u64>,
    /// Sizes of the request or of parts of it, and counts without a label.
    sizes: Vec<u64>,
    /// By how much the request is too large.
    excess: Option<u64>,
    /// Whether a size is to be added to the one before it.
    has_addend: bool,
}

impl Counts {
    fn of(all: &[Number<'_>], codes: &[String]) -> Self {
        // A number of characters may be repeated without its unit, and a code may be repeated in the message.
        let mut excluded: Vec<u64> =
            all.iter().filter(|number| number.has_other_unit()).map(|number| number.value).collect();
        excluded.extend(codes.iter().filter_map(|code| code.parse::<u64>().ok()));
        let mut counts = Self::default();
        for number in all {
            if number.value <= 1 || excluded.contains(&number.value) || number.is_code() {
                continue;
            }
            match number.label() {
                Label::Window => counts.windows.push(number.value),
                Label::Limit => counts.limits.push(number.value),
                Label::Excess => counts.excess = Some(number.value),
                Label::Addend => {
                    counts.has_addend = true;
                    counts.sizes.push(number.value);
                }
                Label::Requested | Label::None => counts.sizes.push(number.value),
            }
        }
        counts
    }

    /// Returns the window, from which other limits follow; otherwise the smallest limit.
    fn limit(&self) -> Option<u64> {
        self.windows.iter().min().or_else(|| self.limits.iter().min()).copied()
    }

    /// Returns the size of the request, which is larger than `limit`, in any form in which the message states
    /// it.
    fn requested(&self, text: &str, limit: u64) -> Option<u64> {
        let different: BTreeSet<u64> = self.sizes.iter().copied().collect();
        let sum = different.iter().copied().fold(0, u64::saturating_add);
        let largest = different.last().copied();
        // Several parts and their total, which may be exactly the limit.
        if let Some(total) = largest
            && total >= limit
            && sum - total == total
        {
            return Some(total);
        }
        if self.has_addend && sum > limit {
            return Some(sum);
        }
        // "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 512 `max_new_tokens`"
        if let [input, output] = self.sizes[..]
            && text.contains("tokens + ")
            && text.contains("must be")
            && input.saturating_add(output) > limit
        {
            return Some(input.saturating_add(output));
        }
        if let Some(size) = largest {
            let size = if size > limit { size } else { sum };
            return Some(size).filter(|size| *size > limit).or_else(|| self.limit_and_excess(limit));
        }
        // Nothing but limits: the larger one is the request.
        let largest_limit = self.limits.iter().chain(&self.windows).max().copied();
        largest_limit.filter(|largest| *largest > limit).or_else(|| self.limit_and_excess(limit))
    }

    fn limit_and_excess(&self, limit: u64) -> Option<u64> {
        self.excess.map(|excess| limit.saturating_add(excess))
    }
}

/// A whole number in a message, with its surroundings.
#[derive(Debug, Clone, Copy)]
struct Number<'a> {
    value: u64,
    /// The text between the previous number and this one.
    before: &'a str,
    /// All text after the number.
    after: &'a str,
}

/// The meaning of a number, from the words around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    /// The size of the context window.
    Window,
    /// A limit of something other than the context window.
    Limit,
    /// The size of the request or of a part of it.
    Requested,
    /// A size that is to be added to the number before.
    Addend,
    /// By how much the request is too large.
    Excess,
    /// The words say nothing about the number.
    None,
}

/// Words that name the context window.
const WINDOW_WORDS: &[&str] = &[
    "context length", "context_length", "context size", "context window", "context limit", "n_ctx", "n ctx",
    "model len", "seq_len",
];
/// Words that name a limit.
const LIMIT_WORDS: &[&str] = &[
    "maximum", "max", "limit", "only", "<=", "less than", "fewer than", "up to", "cannot exceed", "at most",
    "no more than", "longer than", "greater than", "larger than", "exceeds the", "exceed the", "upper bound",
    "limited to", "just", "holds", "can hold", "accepts", "supports",
];
/// Words that name the size of the request.
const REQUESTED_WORDS: &[&str] = &[
    "requested", "resulted in", "given", "received", "contain", "request has", "your prompt",
    "current length", "too long", "actual", "you provided", "but got", "used", "estimated", "has",
    "request (", "input (", "you sent",
];

impl Number<'_> {
    fn label(&self) -> Label {
        let before = self.before.trim_end();
        if self.before.trim_start_matches([')', ' ']).starts_with("+ ") {
            return Label::Addend;
        }
        if before.ends_with(" by") || before == "by" {
            return Label::Excess;
        }
        let after = self.after.trim_start_matches([' ', ')']);
        if before.ends_with('>')
            || ["maximum", "max ", "token limit"].iter().any(|word| after.starts_with(word))
        {
            return Label::Limit;
        }
        let start =
            self.before.ceil_char_boundary(self.before.len().saturating_sub(LABEL_DISTANCE_BYTES_MAX));
        let near = &self.before[start..];
        let last = |list: &[&str]| list.iter().filter_map(|word| near.rfind(word)).max();
        // The word nearest to the number decides, and a limit of the window is the window.
        let (window, limit, requested) = (last(WINDOW_WORDS), last(LIMIT_WORDS), last(REQUESTED_WORDS));
        if window.max(limit) > requested {
            return if window.is_some() { Label::Window } else { Label::Limit };
        }
        if requested.is_some() { Label::Requested } else { Label::None }
    }

    /// Whether the number counts something other than tokens.
    fn has_other_unit(&self) -> bool {
        const UNITS: &[&str] = &[
            "char", "byte", "mb", "kb", "gb", "mib", "gib", "image", "pixel", "second", "ms", "%", "page",
            "minute", "file",
        ];
        let after = self.after.trim_start();
        UNITS.iter().any(|unit| after.starts_with(unit))
    }

    /// Whether the number is a status, an error code or another number that counts nothing.
    fn is_code(&self) -> bool {
        const NAMES: &[&str] = &["code", "status", "http", "error", "line", "version", "index", " id"];
        let before = self.before.trim_end_matches([' ', ':', '=', '(', '#', '[']);
        let is_bracketed = self.before.ends_with('<') && self.after.starts_with('>');
        let is_leading_status = before.is_empty()
            && (400..600).contains(&self.value)
            && self.after.starts_with([' ', ':'])
            && !self.after.chars().take(8).collect::<String>().contains("token");
        is_bracketed || is_leading_status || NAMES.iter().any(|name| before.ends_with(name))
    }
}

/// Returns all whole numbers that stand alone: not part of a name, a version, a date, a port or an id.
fn numbers(text: &str) -> Vec<Number<'_>> {
    let mut found = Vec::new();
    let mut previous_end = 0;
    let mut at = 0;
    while let Some(distance) = text[at..].find(|c: char| c.is_ascii_digit()) {
        let start = at + distance;
        let digits_end = start + number_length(&text[start..]);
        let rest = &text[digits_end..];
        // "9351.0": a count that is the result of a division.
        let fraction = rest
            .strip_prefix(".0")
            .filter(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '.'));
        let end = if fraction.is_some() { digits_end + 2 } else { digits_end };
        let rest = fraction.unwrap_or(rest);
        at = end;
        let digits = text[start..digits_end].replace([',', '_'], "");
        let is_count = starts_number(&text[..start])
            && ends_number(rest)
            // No count is written with leading zeros.
            && (digits == "0" || !digits.starts_with('0'));
        let Some(value) = digits.parse::<u64>().ok().filter(|_| is_count) else { continue };
        let value = if ends_with_k(rest) { value.saturating_mul(1_000) } else { value };
        found.push(Number { value, before: &text[previous_end..start], after: rest });
        previous_end = end;
    }
    found
}

/// Returns the length in bytes of the digits at the start of `text`, including thousands separators.
fn number_length(text: &str) -> usize {
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let mut length = digits(text);
    while text[length..].starts_with([',', '_']) && digits(&text[length + 1..]) == 3 {
        length += 4;
    }
    length
}

/// Whether a number may begin after `before`.
fn starts_number(before: &str) -> bool {
    let mut backwards = before.chars().rev();
    match (backwards.next(), backwards.next()) {
        // A port, or the minutes of a time.
        (Some(':'), Some(c)) => !c.is_ascii_digit(),
        (Some(c), _) => !c.is_alphanumeric() && !matches!(c, '-' | '.' | '_' | '/' | '#'),
        (None, _) => true,
    }
}

/// Whether a number may end before `after`.
fn ends_number(after: &str) -> bool {
    let mut chars = after.chars();
    match (chars.next(), chars.next()) {
        (Some('.' | '-' | ':' | '/'), Some(c)) => !c.is_alphanumeric(),
        (Some(c), _) => ends_with_k(after) || !c.is_alphanumeric() && c != '_',
        (None, _) => true,
    }
}

/// Whether `after` gives the number before it in thousands, as in "128k".
fn ends_with_k(after: &str) -> bool {
    after.strip_prefix('k').is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
}

#[cfg(test)]
mod tests;
