//! Moments as people and scripts read them, in UTC.
//!
//! Invariants: plain arithmetic on unix milliseconds; only [`now_ms`] looks at a clock.

use std::time::{SystemTime, UNIX_EPOCH};

/// Now, in unix milliseconds.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Year, month, day, hour, minute, second.
fn parts(at_ms: u64) -> [u64; 6] {
    let seconds = at_ms / 1_000;
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years are counted from March, so that the leap day is a year's last one.
    let days = days + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    [year, month, day, second / 3_600, second / 60 % 60, second % 60]
}

/// `2026-01-02T03:04:05.678Z`.
pub(crate) fn rfc3339(at_ms: u64) -> String {
    let [year, month, day, hour, minute, second] = parts(at_ms);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", at_ms % 1_000)
}

/// `20260102-030405`, for names.
pub(crate) fn stamp(at_ms: u64) -> String {
    let [year, month, day, hour, minute, second] = parts(at_ms);
    format!("{year:04}{month:02}{day:02}-{hour:02}{minute:02}{second:02}")
}

/// How long ago that was: `12 s ago`, `3 h ago`, `5 days ago`.
pub(crate) fn ago(at_ms: u64, now_ms: u64) -> String {
    let seconds = now_ms.saturating_sub(at_ms) / 1_000;
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3_600 => format!("{} min ago", seconds / 60),
        3_600..172_800 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests;
