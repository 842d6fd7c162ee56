//! Waits in headers and texts, in every form that providers use.

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, HeaderValue};

use super::{retry_after_in_text_ms, retry_after_ms};

fn check_header(name: &'static str, value: &str, expected: Option<u64>) {
    let mut headers = HeaderMap::new();
    headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).expect("a header"));
    // Fri, 20 Nov 2026 00:00:00 GMT
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_132_800);
    assert_eq!(retry_after_ms(&headers, now), expected, "{name}: {value}");
}

#[test]
fn headers() {
    check_header("retry-after", "7", Some(7_000));
    check_header("retry-after", "0.25", Some(250));
    check_header("retry-after", " 20s ", Some(20_000));
    check_header("retry-after", "Fri, 20 Nov 2026 00:00:30 GMT", Some(30_000));
    check_header("retry-after", "Fri, 20 Nov 2020 00:00:30 GMT", Some(0));
    check_header("retry-after", "soon", None);
    check_header("retry-after", "-5", None);
    check_header("retry-after-ms", "1234", Some(1_234));
    check_header("retry-after-ms", "12.5", Some(13));
    check_header("retry-after", "1m30s", Some(90_000));
    check_header("retry-after", "1.2.3", None);
    check_header("retry-after", "0.0001", Some(1));
    check_header("retry-after", "", None);
    check_header("x-other", "1", None);
}

#[test]
fn texts() {
    let check = |text: &str, expected| assert_eq!(retry_after_in_text_ms(text), expected, "{text}");
    check("Please try again in 1.5s.", Some(1_500));
    check("Please try again in 20ms. Visit", Some(20));
    check("Please retry in 3.2s.", Some(3_200));
    check("try again in 1m30.5s", Some(90_500));
    check("try again in 6 minutes and 5 seconds", Some(365_000));
    check("Retry after 30 seconds", Some(30_000));
    check(r#"{"@type":"RetryInfo","retryDelay": "3s"}"#, Some(3_000));
    check(r#"{"retry_after": 12}"#, Some(12_000));
    check("Please try again after 5 seconds.", Some(5_000));
    check("Your quota will reset after 2h14m9s.", Some(8_049_000));
    check("Rate limited, wait for 20s", Some(20_000));
    check("Please wait 2 minutes", Some(120_000));
    check("wait for about 3s", Some(3_000));
    check("Please retry in 12.5s", Some(12_500));
    check(r#"{"retry_after_ms": 1500}"#, Some(1_500));
    check(r#"{"retry_after_seconds": 1.5}"#, Some(1_500));
    check(r#"{"retryAfter": 8}"#, Some(8_000));
    check(r#"{"retryAfter":"8"}"#, Some(8_000));
    check(r#"{"retryAfterMs": 250}"#, Some(250));
    check(r#"{"retry-after-ms": "250"}"#, Some(250));
    check(r#"{"retryDelay":"36s"}"#, Some(36_000));
    check(r#"{"error":"{\"retryDelay\": \"36.5s\"}"}"#, Some(36_500));
    for (text, expected) in [
        ("retry in 1h", 3_600_000),
        ("retry in 2 hours", 7_200_000),
        ("retry in 1 hr", 3_600_000),
        ("retry in 1d", 86_400_000),
        ("retry in 2 days", 172_800_000),
        ("retry in 1 day, 2 hours and 3 min", 93_780_000),
        ("retry in 5 msec", 5),
        ("retry in 5 milliseconds", 5),
        ("retry in 5 secs", 5_000),
        ("retry in 5", 5_000),
        ("retry in 5.", 5_000),
        // A second number without a unit is not a part of the duration.
        ("retry in 1m 30 times", 60_000),
        ("retry in 5 30s", 5_000),
        ("retry in 2s, 3 of 5", 2_000),
    ] {
        check(text, Some(expected));
    }
    // The unit after the number outranks the unit in the name.
    check(r#"{"retry_after_seconds": "250ms"}"#, Some(250));
    // A name without a time is skipped.
    check("retry after the limit resets; retry after 4s", Some(4_000));
    check(r#"{"retryAfter": null, "retry_after_ms": 900}"#, Some(900));
    check(r#"{"retry_after_steps": 3}"#, None);
    check(r#"{"retry_after": true}"#, None);
    check("attempt 3 of 5", None);
    check("please wait before trying again", None);
    check("try again later", None);
}
