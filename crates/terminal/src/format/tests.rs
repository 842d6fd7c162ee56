//! Short numbers, bars and lines.

use super::{bar, call, cents, duration, history, short};

#[test]
fn numbers_are_short() {
    for (tokens, expect) in [
        (0, "0"),
        (812, "812"),
        (999, "999"),
        (1_000, "1k"),
        (9_876, "9.9k"),
        (21_904, "21.9k"),
        (99_949, "99.9k"),
        (99_950, "100k"),
        (142_318, "142k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (1_250_000, "1.3M"),
    ] {
        assert_eq!(short(tokens), expect);
    }
    for (ms, expect) in [(80, "80 ms"), (1_260, "1.2 s"), (59_999, "59.9 s"), (125_000, "2 min 5 s")] {
        assert_eq!(duration(ms), expect);
    }
    for (micro, expect) in [
        (1, "$0.0001"),
        (9_999, "$0.0100"),
        (31_200, "$0.03"),
        (1_230_000, "$1.23"),
        // Rounded, everywhere alike.
        (1_999_999, "$2.00"),
    ] {
        assert_eq!(cents(micro), expect);
    }
}

#[test]
fn bars_show_the_fill_and_the_trigger() {
    for (tokens, expect) in [
        (0, "░░░░░░░░┆░"),
        (1, "█░░░░░░░┆░"),
        (50, "█████░░░┆░"),
        (85, "████████┆░"),
        (100, "██████████"),
        (900, "██████████"),
    ] {
        assert_eq!(bar(tokens, 100, 80, 10), expect, "{tokens}");
    }
    assert_eq!(bar(5, 0, 0, 4), "█░░░");
}

#[test]
fn calls_say_what_they_are_about() {
    for (name, arguments, expect) in [
        ("read", r#"{"path":"src/lib.rs","offset":200}"#, "read src/lib.rs"),
        ("grep", r#"{"path":"src","pattern":"fn main"}"#, "grep fn main in src"),
        ("list", "{}", "list"),
        ("bash", r#"{"command":"cargo test\n\u001b[2J"}"#, "bash cargo test \\u{1b}[2J"),
        ("odd", "not json", "odd not json"),
        ("odd", r#"{"deep":{"x":1},"n":3}"#, "odd 3"),
    ] {
        assert_eq!(call(name, arguments, 60), expect);
    }
}

#[test]
fn the_history_keeps_its_drops() {
    assert_eq!(history(&[0, 50, 99, 20], 100, 80), "▁▅█▂");
    assert_eq!(history(&[10, 90, 10, 90], 100, 2).chars().count(), 2);
    assert_eq!(history(&[], 100, 10), "");
}
