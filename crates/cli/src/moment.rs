//! Times as people and scripts read them, in UTC.
//!
//! Invariants: only [`now_ms`] reads a clock.

use std::time::{SystemTime, UNIX_EPOCH};

pub(crate) use greenroom_formats::rfc3339;

/// Now, in unix milliseconds.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The time to the second, as a part of a name: `20260102-030405`.
pub(crate) fn stamp(at_ms: u64) -> String {
    let text = rfc3339(at_ms);
    let to_the_second = text.split('.').next().unwrap_or_default();
    to_the_second.replace(['-', ':'], "").replace('T', "-")
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
