//! Text from outside becomes one harmless line.

use super::{broken, columns, one_line, wrapped};

#[test]
fn a_line_is_harmless_and_fits() {
    for (text, width, expect) in [
        ("short", 20, "short"),
        ("two\nlines\tand  spaces ", 40, "two lines and spaces"),
        ("\x1b[31mred\x07", 20, r"\u{1b}[31mred\u{7}"),
        ("\u{202e}\u{9b}0m", 20, r"\u{202e}\u{9b}0m"),
        ("0123456789", 6, "01234…"),
        ("日本語テキスト", 8, "日本語…"),
        ("", 8, ""),
    ] {
        let line = one_line(text, width);
        assert_eq!(line, expect, "{text:?}");
        assert!(columns(&line) <= width);
    }
}

#[test]
fn text_is_broken_between_words() {
    assert_eq!(wrapped("one two three four", 9, 5), ["one two", "three", "four"]);
    assert_eq!(wrapped("", 9, 2), [""]);
    let long = wrapped(&"word ".repeat(50), 12, 2);
    assert_eq!(long.len(), 2);
    assert!(long.iter().all(|line| columns(line) <= 12), "{long:?}");
}

#[test]
fn an_error_is_broken_between_words_and_no_flag_in_the_middle() {
    let text = "Error: No API key found. Use one of these:\n  a local server: --base-url http://127.0.0.1:11434/v1\n  \
                the simulated model: --simulate";
    for width in 10..120 {
        let shown = broken(text, width);
        assert_eq!(shown.split_whitespace().collect::<Vec<_>>(), text.split_whitespace().collect::<Vec<_>>());
        let fits = |line: &str| columns(line) <= width || line.split_whitespace().count() == 1;
        assert!(shown.lines().all(fits), "{width}: {shown}");
    }
    assert_eq!(broken("one two three\n  four five six", 10), "one two\n  three\n  four\n  five six");
}
