//! Headers as servers send them.

use http::{HeaderName, HeaderValue};

use super::*;

/// 2026-01-02T03:04:05Z.
const NOW: u64 = 1_767_323_045;

fn waits(headers: &[(&'static str, &'static str)]) -> Option<u64> {
    let headers = headers
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
        .collect();
    let wait = wait(&headers, SystemTime::UNIX_EPOCH + Duration::from_secs(NOW))?;
    Some(u64::try_from(wait.as_millis()).expect("it is short"))
}

#[test]
fn only_a_limit_that_is_used_up_makes_wait() {
    const REQUESTS: &str = "anthropic-ratelimit-requests-remaining";
    const REQUESTS_RESET: &str = "anthropic-ratelimit-requests-reset";
    const INPUT: &str = "anthropic-ratelimit-input-tokens-remaining";
    const INPUT_RESET: &str = "anthropic-ratelimit-input-tokens-reset";
    let check = |headers: &[(&'static str, &'static str)], expect: Option<u64>| {
        assert_eq!(waits(headers), expect, "{headers:?}");
    };
    check(&[], None);
    check(&[(REQUESTS, "1"), (REQUESTS_RESET, "2026-01-02T03:04:25Z")], None);
    check(&[(REQUESTS, "0"), (REQUESTS_RESET, "2026-01-02T03:04:25Z")], Some(20_000));
    check(&[(REQUESTS, "0"), (REQUESTS_RESET, "2026-01-02T03:04:25.25+00:00")], Some(20_250));
    check(&[(REQUESTS, "0"), (REQUESTS_RESET, "2026-01-02T04:04:06+01:00")], Some(1_000));
    check(&[(REQUESTS, "0"), (REQUESTS_RESET, "2026-01-01T22:04:06-05:00")], Some(1_000));
    check(&[(REQUESTS, "0"), (REQUESTS_RESET, "2026-01-02T03:04:00Z")], Some(0));
    check(&[(REQUESTS, "0"), (REQUESTS_RESET, "soon")], None);
    check(&[(REQUESTS, "0")], None);
    check(&[(REQUESTS, "none"), (REQUESTS_RESET, "2026-01-02T03:04:25Z")], None);
    // The longest of several.
    let both = [(REQUESTS, "0"), (REQUESTS_RESET, "2026-01-02T03:04:06Z"), (INPUT, "0")];
    check(&[&both[..], &[(INPUT_RESET, "2026-01-02T03:05:05Z")]].concat(), Some(60_000));
    check(
        &[
            ("anthropic-ratelimit-output-tokens-remaining", "0"),
            ("anthropic-ratelimit-output-tokens-reset", "2026-01-02T03:04:07Z"),
        ],
        Some(2_000),
    );
    check(
        &[
            ("anthropic-ratelimit-tokens-remaining", "0"),
            ("anthropic-ratelimit-tokens-reset", "2026-01-02T03:04:07Z"),
        ],
        Some(2_000),
    );
    for (reset, expect) in [("6m0s", 360_000), ("1s", 1_000), ("20ms", 20), ("1.5s", 1_500), ("2", 2_000)] {
        check(
            &[("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", reset)],
            Some(expect),
        );
        check(&[("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", reset)], Some(expect));
        check(&[("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-requests", reset)], None);
    }
}

#[test]
fn times_are_read_in_every_year() {
    for (text, expect) in [
        ("1970-01-01T00:00:00Z", Some(0)),
        ("2026-01-02T03:04:25+999999999999999999:00", None),
        ("2026-01-02T03:04:25-9223372036854775807:-9223372036854775808", None),
        ("2000-02-29T12:00:00Z", Some(951_825_600_000)),
        ("2024-12-31T23:59:60Z", Some(1_735_689_600_000)),
        ("2100-03-01T00:00:00.001Z", Some(4_107_542_400_001)),
        ("2026-13-01T00:00:00Z", None),
        ("2026-01-01T24:00:00Z", None),
        ("2026-01-01", None),
        ("2026-01-01T00:00:00", None),
        ("-1-01-01T00:00:00Z", None),
        ("1960-01-01T00:00:00Z", None),
    ] {
        assert_eq!(unix_ms(text), expect, "{text}");
    }
}
