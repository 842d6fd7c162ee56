//! Sentences and the names in them.

use super::*;

#[test]
fn sentences_are_split_and_code_is_left_out() {
    let check = |text: &str, expect: &[&str]| {
        let mut found = Vec::new();
        sentences(text, &mut |sentence| found.push(sentence));
        assert_eq!(found, expect, "{text}");
    };
    check("One thing. Another! A third", &["One thing.", "Another!", "A third"]);
    check("## Heading\n- an item\n2. a step\n> said", &["Heading", "an item", "a step", "said"]);
    check("before\n```rust\nlet x = 1;\n```\nafter", &["before", "after"]);
    check("| a | table |", &[]);
    check("version 1.2.3 of it.", &["version 1.2.3 of it."]);
    check("東京に行く。次は京都。", &["東京に行く。", "次は京都。"]);
    check("日本語", &["日本語"]);
    check(" 42 ", &[]);
}

#[test]
fn a_rule_is_known_by_its_words() {
    for rule in [
        "You must not touch it.", "Never commit to main", "don't use unwrap", "Please don’t use it",
        "No, the other one.", "use tabs instead of spaces", "that's not it, actually",
        "Make sure that it builds.", "lines should be at most 80 wide",
    ] {
        assert!(is_rule(rule), "{rule}");
    }
    for other in ["Fix the parser.", "mustard and onlyness", "Nothing new.", "これを直して", "thanks"] {
        assert!(!is_rule(other), "{other}");
    }
}

#[test]
fn a_statement_is_told_from_an_announcement() {
    let check = |sentence: &str, expect| assert_eq!(statement(sentence), expect, "{sentence}");
    check("The root cause is a stale cache.", Some(Statement::Decision));
    check("All tests pass now.", Some(Statement::Done));
    check("The docs are still pending.", Some(Statement::Open));
    check("Let me fix the bug.", None);
    check("Is the bug fixed?", None);
    check("Here is what I added:", None);
    check("A lighthouse stands there.", None);
}

#[test]
fn names_are_found_in_texts() {
    let check = |text: &str, expect: &[Name<'_>]| {
        let mut found = Vec::new();
        names(text, &mut |name| found.push(name));
        assert_eq!(found, expect, "{text}");
    };
    check("see src/main.rs:12:5, and ./run", &[Name::Path("src/main.rs"), Name::Path("./run")]);
    check("and/or 3/4 w/o e.g. 1.5", &[]);
    check("open `config.toml` and (Cargo.lock).", &[Name::Path("config.toml"), Name::Path("Cargo.lock")]);
    check(
        "https://x.org/a?b=1, localhost:3000",
        &[Name::Url("https://x.org/a?b"), Name::Url("localhost:3000")],
    );
    check(
        "E0308 in commit 45ffe0a, DATABASE_URL",
        &[Name::Identifier("E0308"), Name::Identifier("45ffe0a"), Name::Identifier("DATABASE_URL")],
    );
    check("the `setImmediate()` call", &[Name::Identifier("setImmediate()")]);
}

#[test]
fn a_quantity_is_a_number_with_its_unit() {
    let check = |sentence: &str, expect| assert_eq!(quantity(sentence), expect, "{sentence}");
    check("raised to 250 ms now", Some("250 ms"));
    check("it took 3.5s.", Some("3.5s"));
    check("above 70% of it", Some("70%"));
    check("costs $12.50 each", Some("$12.50"));
    check("there are 44 color tokens", Some("44 color"));
    check("1,234 files", Some("1,234 files"));
    check("see step 2 of v1.2", None);
    check("日本 5 個", None);
}

#[test]
fn error_lines_are_told_from_code() {
    let check = |text: &str, expect: &[&str]| {
        let mut found = Vec::new();
        error_lines(text, &mut |line| found.push(line));
        assert_eq!(found, expect, "{text}");
    };
    check("ok\n  error[E0308]: mismatched types\n --> x", &["error[E0308]: mismatched types"]);
    check("a.ts(3,5): error TS2345: no", &["a.ts(3,5): error TS2345: no"]);
    check("throw new Error(\"x\")\ncatch (error) {", &[]);
    check("thread 'main' panicked at src/a.rs:1:\nboom", &["thread 'main' panicked at src/a.rs:1:"]);
    check("no errors at all", &[]);
}

#[test]
fn constants_are_found_in_results() {
    let mut found = Vec::new();
    constants("a API_KEY_2 = x_y, __init__ FOO_BARbaz MAX_LEN", 9, &mut |name| found.push(name));
    assert_eq!(found, ["API_KEY_2", "MAX_LEN"]);
}

/// Texts of any content are read without a panic, and all that is found is a part of them.
#[test]
fn whatever_a_text_contains_its_parts_are_found_in_it() {
    let pieces = [
        "é", "日本", "`", "/", ".rs", "_", "A", "9", " ", "\n", "error: ", "%", "$", "http://", "。", "😀",
        "#", "“",
    ];
    let mut random = crate::tests::notation::Random::new(3);
    let mut found = 0;
    for _ in 0..3_000 {
        let text: String = (0..random.below(40)).map(|_| *random.pick(&pieces)).collect();
        let mut check = |part: &str| {
            assert!(text.contains(part), "{part} of {text}");
            found += 1;
        };
        sentences(&text, &mut |sentence| {
            check(sentence);
            let _ = (is_rule(sentence), statement(sentence));
            quantity(sentence).into_iter().for_each(&mut check);
        });
        names(&text, &mut |name| match name {
            Name::Path(part) | Name::Url(part) | Name::Identifier(part) => check(part),
        });
        error_lines(&text, &mut check);
        constants(&text, 4, &mut check);
    }
    assert!(found > 5_000, "{found} parts");
}
