//! The text of a position.

use super::Position;

#[test]
fn a_position_is_a_short_text() {
    let position = Position { created_at_ms: 1_764_273_600_000, next: 17 };
    assert_eq!(position.to_string(), "1764273600000-17");
    assert_eq!(Position::default().to_string(), "0-0");
    let json = serde_json::to_string(&position).expect("it is text");
    assert_eq!(json, "\"1764273600000-17\"");
    for (text, expected) in [
        ("1764273600000-17", Some(position)),
        ("0-0", Some(Position::default())),
        (
            "18446744073709551615-18446744073709551615",
            Some(Position { created_at_ms: u64::MAX, next: u64::MAX }),
        ),
        ("", None),
        ("17", None),
        ("-17", None),
        ("1-", None),
        ("1-2-3", None),
        ("+1-2", None),
        ("1-+2", None),
        (" 1-2", None),
        ("1-x", None),
        ("18446744073709551616-0", None),
    ] {
        assert_eq!(Position::parse(text), expected, "{text:?}");
        let read = serde_json::from_value::<Position>(text.into());
        assert_eq!(read.ok(), expected, "{text:?}");
    }
    // A position of another session of the same id means its beginning.
    assert_eq!(position.within(1_764_273_600_000), position);
    assert_eq!(position.within(1_764_273_600_001), Position { created_at_ms: 1_764_273_600_001, next: 0 });
}
