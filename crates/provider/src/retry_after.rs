//! Reads how long a provider asks the client to wait, from headers or from the text of an error.
//!
//! Invariants: a wait is in milliseconds, rounded up and never negative; text that names no time gives `None`; and the
//! current time is an argument.

use std::time::SystemTime;

use http::HeaderMap;

/// Returns the wait that `headers` request, in milliseconds.
///
/// `retry-after-ms` outranks `retry-after`, which holds seconds (whole or fractional), a duration such as `1m30s`, or
/// an HTTP date relative to `now`. A date in the past is a wait of 0. `None` if neither header can be read.
pub fn retry_after_ms(headers: &HeaderMap, now: SystemTime) -> Option<u64> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    if let Some(ms) = text("retry-after-ms").and_then(|value| scaled_ms(value, 1.0)) {
        return Some(ms);
    }
    let value = text("retry-after")?;
    if let Some(ms) = scaled_ms(value, 1_000.0) {
        return Some(ms);
    }
    // No standard allows "20s" and "1m30s", and some servers send them.
    if let Some(ms) = duration_ms(value, 1_000.0) {
        return Some(ms);
    }
    let date = httpdate::parse_http_date(value).ok()?;
    let wait = date.duration_since(now).unwrap_or_default();
    Some(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))
}

/// Returns the wait that the text of an error requests, in milliseconds; `None` if it names no time.
///
/// Examples: "try again in 1.5s", "Please retry in 20ms", "wait for 30 seconds", `"retryDelay": "3s"`,
/// `"retry_after_ms": 250`. A number without a unit is in seconds.
pub(crate) fn retry_after_in_text_ms(text: &str) -> Option<u64> {
    // In order of precedence.
    const NAMES: [&str; 13] = [
        "try again in", "try again after", "retry in", "retry after", "retryafter", "retry_after",
        "retry-after", "retrydelay", "retry_delay", "estimated_time", "reset after", "wait for", "wait",
    ];
    let lower = text.to_ascii_lowercase();
    NAMES.iter().find_map(|name| lower.split(name).skip(1).find_map(named_duration_ms))
}

/// Returns the duration in `text`, which follows a name. The name itself may end with a unit, as in
/// `retry_after_ms": 250`.
fn named_duration_ms(text: &str) -> Option<u64> {
    let suffix = text.strip_prefix(['_', '-']).unwrap_or(text);
    let (unit_ms, rest) =
        unit(suffix).map_or((1_000.0, text), |(unit_ms, length)| (unit_ms, &suffix[length..]));
    let value = rest.trim_start_matches([' ', '"', '\'', ':', '=', '\\', '~']);
    duration_ms(value.strip_prefix("about ").unwrap_or(value), unit_ms)
}

/// Returns the unit of time at the start of `text`, in milliseconds, and the length of its word in bytes.
fn unit(text: &str) -> Option<(f64, usize)> {
    let length = text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len());
    let unit_ms = match &text[..length] {
        "ms" | "millisecond" | "milliseconds" | "msec" => 1.0,
        "s" | "sec" | "secs" | "second" | "seconds" => 1_000.0,
        "m" | "min" | "mins" | "minute" | "minutes" => 60_000.0,
        "h" | "hr" | "hour" | "hours" => 3_600_000.0,
        "d" | "day" | "days" => 86_400_000.0,
        _ => return None,
    };
    Some((unit_ms, length))
}

/// Returns the duration at the start of `text`: numbers with units, one after another, as in `1m30.5s`. A
/// first number without a unit counts `default_unit_ms` each.
pub(crate) fn duration_ms(text: &str, default_unit_ms: f64) -> Option<u64> {
    let mut total_ms: Option<u64> = None;
    let mut rest = text;
    loop {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        // A full stop after the number ends the sentence.
        let number = rest[..digits].trim_end_matches('.');
        if number.is_empty() {
            return total_ms;
        }
        let after = rest[digits..].trim_start();
        let (unit_ms, taken) = match unit(after) {
            Some(unit) => unit,
            None if total_ms.is_none() => (default_unit_ms, 0),
            None => return total_ms,
        };
        total_ms = Some(total_ms.unwrap_or_default().saturating_add(scaled_ms(number, unit_ms)?));
        if taken == 0 {
            return total_ms;
        }
        rest = after[taken..].trim_start_matches([' ', ',']);
        rest = rest.strip_prefix("and ").unwrap_or(rest);
    }
}

/// Returns `number` times `unit_ms`, rounded up to whole milliseconds; `None` if `number` is not a decimal
/// number.
fn scaled_ms(number: &str, unit_ms: f64) -> Option<u64> {
    if !number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    let value: f64 = number.parse().ok()?;
    // Converted via text, because a cast could truncate silently.
    format!("{:.0}", (value * unit_ms).ceil()).parse().ok()
}

#[cfg(test)]
mod tests;
