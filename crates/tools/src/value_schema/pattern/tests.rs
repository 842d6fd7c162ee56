//! Patterns have the meaning of ECMA 262, and a search costs what was counted.

use super::*;

fn is_in(pattern: &str, text: &str) -> bool {
    let mut steps = Steps::new(1_000_000);
    let pattern = Pattern::new(pattern, &mut steps).expect("it is a pattern");
    pattern.is_in(text, &mut steps).expect("it costs little")
}

#[test]
fn a_pattern_is_found_where_it_is() {
    for (pattern, yes, no) in [
        ("a+b", "xaab", "xb"),
        ("^a|b$", "ax", "xa"),
        ("^$", "", "a"),
        ("", "", "\0never"),
        (r"^\d{3}$", "123", "١٢٣"),
        (r"^\w$", "_", "é"),
        (r"^\W$", "é", "a"),
        (r"^\s$", "\u{feff}", "x"),
        (r"^\S$", "x", "\u{2003}"),
        (r"^\D$", "x", "7"),
        (r"^.$", "é", "\u{2028}"),
        (r"\bab\b", "x ab y", "xaby"),
        (r"a\Bb", "ab", "a b"),
        (r"\bab", " ab", "xab"),
        (r"^[\d-]+$", "1-2", "a"),
        (r"^[[\]&&~]+$", "[]&~", "a"),
        (r"^[+--]$", ",", "/"),
        (r"^[+-\d]$", "-", "0]"),
        (r"^[+-\d]$", "7", "A"),
        (r"^[\w.-\s]+$", "a.-b c", "+"),
        (r"^\<\w+\>$", "<b>", "b"),
        (r"^[\<\>]$", "<", "b"),
        (r"^[^]$", "x", "xy"),
        (r"^\cA$", "\u{1}", "A"),
        (r"^\u0041$", "A", "B"),
        (r"^[\b]$", "\u{8}", "b"),
        (r"^\p{Lu}\0$", "Ä\0", "ä\0"),
        (r"^(?:a|bc)*$", "abca", "abb"),
        (r"^a{2,3}$", "aaa", "aaaa"),
        (r"^[^a-c]x$", "dx", "bx"),
        (r"^\/\-\.$", "/-.", "/x."),
    ] {
        assert!(is_in(pattern, yes), "{pattern} in {yes:?}");
        assert!(no == "\0never" || !is_in(pattern, no), "{pattern} not in {no:?}");
    }
    assert!(!is_in("[]", "x"), "the empty class has no character");
}

#[test]
fn what_is_no_pattern_is_refused_with_the_reason() {
    let long = "a".repeat(2_001);
    for (pattern, reason) in [
        ("(", "unclosed group"),
        (r"(?=a)", "look-around"),
        (r"(a)\1", "backreferences"),
        ("(?i)a", "flags"),
        (r"\a", r"`\a` is not a known escape"),
        (r"\", r"ends with `\`"),
        (r"\c1", "a letter is missing"),
        (r"(\p{L}{1000}){1000}", "too large"),
        (long.as_str(), "at most 2000 characters"),
    ] {
        match Pattern::new(pattern, &mut Steps::new(1_000_000)) {
            Err(NoPattern::Wrong(said)) => assert!(said.contains(reason), "{pattern}: {said}"),
            other => panic!("{pattern}: {other:?}"),
        }
    }
}

/// Returns the cost of reading a pattern, and of searching a text.
fn costs(pattern: &str, text: &str) -> (u64, u64) {
    let budget = 5_000_000;
    let mut steps = Steps::new(budget);
    let pattern = Pattern::new(pattern, &mut steps).expect("it is a pattern");
    let left = steps.left();
    pattern.is_in(text, &mut steps).expect("it costs little");
    (budget - left, left - steps.left())
}

#[test]
fn what_costs_time_is_counted() {
    let reading = |pattern: &str| costs(pattern, "").0;
    let searching = |pattern: &str, text: &str| costs(pattern, text).1;
    // Before a byte is read, in states that are allocated.
    assert!(searching("^a", "") >= 10);
    assert!(searching("^a{2000}", "") >= 10 + 2_000 / 4);
    // Twice for each byte: a search may begin there, and the byte leads on.
    assert!(searching("[b]", &"z".repeat(1_000)) >= 2_000);
    // A search ends when no state is left, and a state counts once for each byte however it is reached.
    assert!(searching("^a", &"b".repeat(1_000)) < 100);
    assert!(searching("(a|a|a)*(a|a|a)*b", &"a".repeat(100)) < 10_000);
    // A byte is compared with each of many ranges.
    let odd: String = ('!'..'z').step_by(2).filter(char::is_ascii_alphanumeric).collect();
    let text = "z".repeat(1_000);
    assert_eq!(odd.len(), 31);
    assert_eq!(searching(&format!("[{odd}]"), &text), 1_000 + searching("[b]", &text));
    // A short class costs more than a character, and more still when it joins a long one.
    assert!(reading(&format!("[{}]", r"\s".repeat(100))) >= 100 * 100);
    assert!(reading(&format!(r"[\p{{Lu}}{}]", r"\s".repeat(100))) >= 100 * 500);
    assert!(reading(r"\p{Lu}") >= 5_000);
}

#[test]
fn a_search_that_costs_too_much_ends() {
    let mut steps = Steps::new(1_000_000);
    let pattern = Pattern::new("(a?){500}a{500}b", &mut steps).expect("it is a pattern");
    assert_eq!(pattern.is_in(&"a".repeat(100_000), &mut steps), Err(Spent));
    assert!(matches!(Pattern::new("a", &mut Steps::new(10)), Err(NoPattern::Spent)));
}
