//! Timestamps, read and refused.

use super::{text, unix_ms};

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
        assert_eq!(unix_ms(&text(at_ms)), Some(at_ms), "{}", text(at_ms));
    }
    assert_eq!(text(1_767_225_601_000), "2026-01-01T00:00:01.000Z");
}
