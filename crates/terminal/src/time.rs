//! Times for people and scripts, in UTC.
//!
//! Invariants: only [`now_ms`] reads the clock, and `main` for [`check_clock`].

use std::time::{SystemTime, UNIX_EPOCH};

pub use greenroom_formats::rfc3339;

/// Returns the current time, in Unix milliseconds.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Checks that dates can be written for this time.
///
/// # Errors
/// The time is before 1970 or after 9999. The text says what to do.
pub fn check_clock(now: SystemTime) -> Result<(), String> {
    const YEAR_10000_S: u64 = 253_402_300_800;
    let wrong = match now.duration_since(UNIX_EPOCH) {
        Err(_) => "before 1970",
        Ok(since) if since.as_secs() >= YEAR_10000_S => "after 9999",
        Ok(_) => return Ok(()),
    };
    Err(format!("the system's clock is {wrong}; set it, as with `date -s`"))
}

/// Formats a time to the second, as a part of a name: `20260102-030405`.
pub fn stamp(at_ms: u64) -> String {
    let text = rfc3339(at_ms);
    let to_the_second = text.split('.').next().unwrap_or_default();
    to_the_second.replace(['-', ':'], "").replace('T', "-")
}

/// Formats the age of a time: `12 s ago`, `3 h ago`, `5 days ago`.
pub fn ago(at_ms: u64, now_ms: u64) -> String {
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
