//! Reads and writes RFC 3339 timestamps in UTC.
//!
//! Invariants: no clock is read; a text that is not a timestamp is `None` and never a guess; and a written
//! time reads back as the same time.

#[cfg(test)]
mod tests;

/// Unix milliseconds of `YYYY-MM-DDThh:mm[:ss[.fraction]](Z|±hh:mm)`, where a space may replace the `T`. `None` for
/// other texts and for times before 1970.
pub(crate) fn unix_ms(text: &str) -> Option<u64> {
    let (date, time) = text.split_once(['T', ' '])?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<i64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let zone_at = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(zone_at);
    let mut clock = clock.splitn(3, ':');
    let hour: i64 = clock.next()?.parse().ok()?;
    let minute: i64 = clock.next()?.parse().ok()?;
    let (second, fraction) =
        clock.next().map_or(("0", ""), |second| second.split_once('.').unwrap_or((second, "")));
    let second: i64 = second.parse().ok()?;
    let ranges =
        [(year, 1970, 9999), (month, 1, 12), (day, 1, 31), (hour, 0, 23), (minute, 0, 59), (second, 0, 60)];
    if ranges.iter().any(|(value, least, most)| value < least || value > most) {
        return None;
    }
    let seconds =
        ((days_since_1970(year, month, day) * 24 + hour) * 60 + minute - offset_minutes(zone)?) * 60 + second;
    let millis: i64 = format!("{:0<3}", fraction.get(..3).unwrap_or(fraction)).parse().ok()?;
    u64::try_from(seconds * 1000 + millis).ok()
}

/// Formats a time as RFC 3339 in UTC, with milliseconds: `2026-01-02T03:04:05.678Z`.
///
/// `unix_ms` is the time in milliseconds since 1970.
pub fn rfc3339(unix_ms: u64) -> String {
    let (days, millis) = (unix_ms / 86_400_000, unix_ms % 86_400_000);
    // Years begin in March here, so that the leap day comes last. An era is 400 years: 146,097 days.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let months_since_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * months_since_march + 2) / 5 + 1;
    let month = if months_since_march < 10 { months_since_march + 3 } else { months_since_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (seconds, millis) = (millis / 1000, millis % 1000);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
}

/// Returns the offset from UTC, in minutes, of `Z` or `±hh:mm`.
fn offset_minutes(zone: &str) -> Option<i64> {
    let sign = match zone.chars().next()? {
        'Z' | 'z' => return Some(0),
        '+' => 1,
        _ => -1,
    };
    let (hours, minutes) = zone[1..].split_once(':')?;
    let (hours, minutes): (i64, i64) = (hours.parse().ok()?, minutes.parse().ok()?);
    ((0..24).contains(&hours) && (0..60).contains(&minutes)).then_some(sign * (hours * 60 + minutes))
}

/// Days from 1970-01-01 to a date of the Gregorian calendar. Years begin in March here, so that the leap day comes last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let leap_days = year / 4 - year / 100 + year / 400;
    // 719,468 days lie between 0000-03-01 and 1970-01-01.
    year * 365 + leap_days + day_of_year - 719_468
}
