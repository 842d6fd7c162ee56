//! Timestamps that are read, rejected and written.

use super::{rfc3339, unix_ms};

#[test]
fn timestamps() {
    for (text, expected) in [
        ("1970-01-01T00:00:00Z", Some(0)),
        ("2025-11-20T23:33:50.805Z", Some(1_763_681_630_805)),
        ("2024-02-29T12:00:00.5+01:30", Some(1_709_202_600_500)),
        ("2000-03-01T00:00:00-00:00", Some(951_868_800_000)),
        ("2025-11-20T23:33:50.805123456Z", Some(1_763_681_630_805)),
        ("1969-12-31T23:59:59Z", None),
        ("2025-13-01T00:00:00Z", None),
        ("2025-11-20T23:33:50", None),
        ("2025-11-20", None),
        ("+5", None),
        ("9999999999999999999-01-01T00:00:00Z", None),
        ("", None),
    ] {
        assert_eq!(unix_ms(text), expected, "{text}");
    }
}

#[test]
fn what_is_written_is_read_back() {
    for days in 0..60_000u64 {
        let at_ms = days * 86_400_000 + days * 1_234_567 % 86_400_000;
        assert_eq!(unix_ms(&rfc3339(at_ms)), Some(at_ms), "{}", rfc3339(at_ms));
    }
}

#[test]
fn dates_at_the_edges_of_months_and_years() {
    for (at_ms, expected) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (951_782_399_999, "2000-02-28T23:59:59.999Z"),
        (951_782_400_000, "2000-02-29T00:00:00.000Z"),
        (951_868_800_000, "2000-03-01T00:00:00.000Z"),
        (1_735_689_599_000, "2024-12-31T23:59:59.000Z"),
        (1_767_225_600_001, "2026-01-01T00:00:00.001Z"),
        (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
    ] {
        assert_eq!(rfc3339(at_ms), expected);
    }
}
