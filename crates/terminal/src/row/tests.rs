//! Widths, wrapping and truncation; no text can control the terminal.

use super::*;

fn texts(rows: &[Row]) -> Vec<String> {
    rows.iter().map(Row::text).collect()
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    texts(&Row::plain(text).wrap(width, &Row::plain("> "), &Row::plain("  ")))
}

#[test]
fn it_breaks_between_words_and_within_those_that_are_too_long() {
    assert_eq!(wrapped("the quick brown fox", 11), ["> the quick", "  brown fox"]);
    assert_eq!(wrapped("unbelievable", 7), ["> unbel", "  ievab", "  le"]);
    assert_eq!(wrapped("a unbelievable b", 7), ["> a", "  unbel", "  ievab", "  le b"]);
    assert_eq!(wrapped("", 7), ["> "]);
}

#[test]
fn wide_scripts_take_two_columns_and_break_anywhere() {
    assert_eq!(Row::plain("日本語").width(), 6);
    assert_eq!(wrapped("日本語です", 8), ["> 日本語", "  です"]);
    // An emoji made of several characters counts as one and is never split.
    assert_eq!(Row::plain("👩‍👩‍👧").width(), 2);
    assert_eq!(texts(&Row::plain("aa👩‍👩‍👧b").wrap_exactly(4, &Row::default())), ["aa👩‍👩‍👧", "b"]);
}

#[test]
fn what_is_cut_says_so() {
    assert_eq!(Row::plain("abcdef").cut(4).text(), "abc…");
    assert_eq!(Row::plain("abcd").cut(4).text(), "abcd");
    assert_eq!(Row::plain("日本語").cut(4).text(), "日…");
}

#[test]
fn nothing_in_it_steers_a_terminal() {
    let row = Row::plain("a\x1b[2Jb\tc\nd\u{202e}e");
    let mut out = String::new();
    row.render(Some(Theme::Dark), &mut out);
    assert_eq!(out, r"a\u{1b}[2Jb    c d\u{202e}e");
}

#[test]
fn colours_are_codes_only_where_they_are_wanted() {
    let row = Row::new("bad", Look { bold: true, ..Look::BAD }).and(" plain", Look::PLAIN);
    let (mut with, mut without) = (String::new(), String::new());
    row.render(Some(Theme::Dark), &mut with);
    row.render(None, &mut without);
    assert_eq!(with, "\x1b[1;31mbad\x1b[0m plain");
    assert_eq!(without, "\x1b[1mbad\x1b[0m plain");
}
