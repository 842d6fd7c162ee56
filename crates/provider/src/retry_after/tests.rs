//! Every form in which providers ask for patience.

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
    check("please wait before trying again", None);
    check("try again later", None);
}
