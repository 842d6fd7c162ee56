//! The limits that a server states with each answer, as the headers of Anthropic and of OpenAI.
//!
//! Invariants: only a limit of which nothing remains makes anybody wait; the current time is an argument.

use std::time::{Duration, SystemTime};

use http::HeaderMap;

use crate::retry_after::duration_ms;

/// The headers of each limit: how much remains, and when it is full again.
const LIMITS: [(&str, &str); 6] = [
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    ("anthropic-ratelimit-input-tokens-remaining", "anthropic-ratelimit-input-tokens-reset"),
    ("anthropic-ratelimit-output-tokens-remaining", "anthropic-ratelimit-output-tokens-reset"),
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
];

/// Returns how long until each limit that is used up is full again; `None` if none is used up, or the time is not known.
pub(super) fn wait(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let is_used_up = |remaining: &str| text(remaining).is_some_and(|number| number == "0");
    let used_up = LIMITS.iter().filter(|(remaining, _)| is_used_up(remaining));
    used_up.filter_map(|(_, reset)| until(text(reset)?, now)).max()
}

/// Returns how long until a reset: a time as in RFC 3339, or a duration such as `6m0s` or `20ms`.
fn until(reset: &str, now: SystemTime) -> Option<Duration> {
    if let Some(at) = unix_ms(reset) {
        let now = now.duration_since(SystemTime::UNIX_EPOCH).ok()?;
        return Some(Duration::from_millis(at).saturating_sub(now));
    }
    duration_ms(reset, 1_000.0).map(Duration::from_millis)
}

/// Returns a time as in RFC 3339, such as `2026-01-02T03:04:05.5Z` or `2026-01-02T03:04:05+01:00`, in milliseconds since
/// 1970.
fn unix_ms(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let numbers = |text: &str, between: char| -> Option<[i64; 3]> {
        let parts =
            text.split(between).map(|part| part.parse().ok().filter(|number| (0..10_000).contains(number)));
        parts.collect::<Option<Vec<i64>>>()?.try_into().ok()
    };
    let [year, month, day] = numbers(date, '-')?;
    let zone_at = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(zone_at);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let [hour, minute, second] = numbers(clock, ':')?;
    let fraction: f64 = format!("0.{fraction}").parse().ok()?;
    let offset_minutes = match zone.split_at_checked(1)? {
        ("Z" | "z", "") => 0,
        (sign, zone) => {
            let (hours, minutes) = zone.split_once(':')?;
            let (hours, minutes) = (hours.parse::<i64>().ok()?, minutes.parse::<i64>().ok()?);
            if !(0..=23).contains(&hours) || !(0..=59).contains(&minutes) {
                return None;
            }
            let minutes = hours * 60 + minutes;
            if sign == "-" { -minutes } else { minutes }
        }
    };
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    // Days since 1970 of a date, with years that begin in March, so that the leap day is the last one.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    let seconds = days * 86_400 + hour * 3_600 + (minute - offset_minutes) * 60 + second;
    let whole = Duration::from_secs(u64::try_from(seconds).ok()?);
    u64::try_from((whole + Duration::from_secs_f64(fraction)).as_millis()).ok()
}

#[cfg(test)]
mod tests;
