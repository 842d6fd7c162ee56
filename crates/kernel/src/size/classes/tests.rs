//! The estimator against o200k's own counts, and properties for any text.

use proptest::prelude::*;

use super::{SEAMS, tokens};

/// Short texts with their number of tokens in o200k.
const MEASURED: &[(&str, u64)] = &[
    ("hello", 1),
    ("Hello, world!", 4),
    ("The quick brown fox jumps over the lazy dog.", 10),
    ("It's a test; don't panic.", 7),
    ("fn main() { println!(\"{}\", x); }", 9),
    ("let total_count = items.iter().map(|i| i.len()).sum::<usize>();", 18),
    ("    return self.value\n", 5),
    ("if (!isReady) { throw new TypeError(\"not ready\"); }", 15),
    ("#include <stdio.h>", 5),
    ("{\"id\":17,\"name\":\"alpha\",\"tags\":[\"a\",\"b\"],\"ok\":true}", 20),
    ("-rw-r--r-- 1 root root  4096 Jan 12  2024 README.md", 23),
    ("/usr/share/doc/bash/examples/loadables/Makefile.in", 11),
    ("2025-03-14T09:26:53.589Z INFO server: request completed status=200 duration_ms=42", 27),
    ("550e8400-e29b-41d4-a716-446655440000", 18),
    ("d41d8cd98f00b204e9800998ecf8427e", 19),
    ("SGVsbG8sIHdvcmxkISBUaGlzIGlzIGJhc2U2NCBvZiBzb21ldGhpbmc=", 36),
    ("00000010: 7f45 4c46 0201 0100 0000 0000 0000 0000  .ELF............", 35),
    ("@@ -12,7 +12,9 @@ fn parse(input: &str) -> Result<Ast, Error> {", 25),
    ("name,age,city\nAnna,34,Berlin\nLi Wei,29,Shanghai\n", 20),
    ("1234567890", 4),
    ("HTTP_PROXY_SERVER", 3),
    ("getElementById", 4),
    ("======================================", 2),
    ("\n\n\n", 1),
    ("\t\t\treturn 0;", 5),
    ("你好，世界！今天的天气很好。", 9),
    ("這個檔案無法開啟，請檢查權限。", 18),
    ("今日はとても良い天気ですね。", 9),
    ("ファイルを保存できませんでした", 7),
    ("안녕하세요, 오늘 날씨가 좋네요.", 10),
    ("Привет, как дела? Сегодня хорошая погода.", 12),
    ("Файл не найден, проверьте путь.", 10),
    ("Καλημέρα κόσμε, τι κάνεις;", 11),
    ("مرحبا بالعالم، كيف حالك اليوم؟", 10),
    ("שלום עולם, מה שלומך היום?", 9),
    ("สวัสดีชาวโลก วันนี้อากาศดี", 12),
    ("नमस्ते दुनिया, आप कैसे हैं?", 10),
    ("Die Größe der Datei überschreitet die zulässige Länge.", 13),
    ("Le fichier n'a pas été trouvé à l'emplacement demandé.", 13),
    ("✅ Done 🎉🎉 🚀", 8),
    ("├── src\n│   └── main.rs\n", 12),
];

/// Checks that the estimate is within 30 % of `measured`, plus one token.
fn check(text: &str, measured: u64) {
    let estimate = tokens(text);
    let allowed = 1 + measured * 3 / 10;
    assert!(estimate.abs_diff(measured) <= allowed, "{text:?}: estimated {estimate}, measured {measured}");
}

#[test]
fn short_texts_are_near_their_measured_counts() {
    for (text, measured) in MEASURED {
        check(text, *measured);
    }
}

#[test]
fn together_the_short_texts_are_within_six_percent() {
    let estimated: u64 = MEASURED.iter().map(|(text, _)| tokens(text)).sum();
    let measured: u64 = MEASURED.iter().map(|(_, measured)| measured).sum();
    assert!(estimated.abs_diff(measured) * 100 <= measured * 6, "estimated {estimated}, measured {measured}");
}

/// Counts that follow from the rules, not from the fitted costs.
#[test]
fn exact_by_rule() {
    for (text, expected) in [
        ("", 0),
        ("a", 1),
        (" ", 1),
        ("\n", 1),
        ("é", 1),
        ("的", 1),
        ("7", 1),
        ("123", 1),
        ("1234", 2),
        ("1 2 3", 5),
    ] {
        assert_eq!(tokens(text), expected, "{text:?}");
    }
}

/// A megabyte of one character or pair: o200k's count per 1,024 of it, within a factor of four.
#[test]
fn repeated_characters_stay_near_what_they_cost() {
    for (unit, per_kib) in [
        ("a", 128),
        ("e", 256),
        ("0", 342),
        (" ", 8),
        ("\n", 64),
        ("\t", 64),
        ("=", 16),
        ("/", 16),
        ("é", 1024),
        ("я", 512),
        ("中", 1024),
        ("あ", 1024),
        ("한", 1024),
        ("🎉", 2048),
        ("─", 64),
        ("ab", 512),
    ] {
        let part = tokens(&unit.repeat(1 << 16));
        let mib = tokens(&unit.repeat(1 << 20));
        assert!(mib <= per_kib * 1024 * 4, "{unit:?}: {mib}");
        assert!(mib * 4 >= per_kib * 1024, "{unit:?}: {mib}");
        // Sixteen times the text is sixteen times the estimate: no part of it is counted twice or left out.
        assert!(mib.abs_diff(part * 16) <= 16 * CUT_TOKENS, "{unit:?}: {part} per 64 KiB, {mib} per MiB");
    }
}

#[test]
fn random_letters_cost_more_than_words() {
    assert!(tokens("xqzvkwjtbfgp") > tokens("information") * 3);
}

#[test]
fn every_seam_is_a_digit() {
    assert!(SEAMS.iter().all(|row| row.iter().all(u8::is_ascii_digit)));
}

/// Splitting a text anywhere changes the estimate by this many tokens at most.
const CUT_TOKENS: u64 = 10;

fn check_cut(a: &str, b: &str) -> Result<(), TestCaseError> {
    let (parts, whole) = (tokens(a) + tokens(b), tokens(&format!("{a}{b}")));
    prop_assert!(
        parts.abs_diff(whole) <= CUT_TOKENS,
        "{:?} + {:?}: {} as parts, {} whole",
        a,
        b,
        parts,
        whole
    );
    Ok(())
}

proptest! {
    #[test]
    fn any_unicode_is_estimated(text in any::<String>()) {
        let estimate = tokens(&text);
        prop_assert_eq!(estimate == 0, text.is_empty());
        prop_assert!(estimate <= 4 * text.len() as u64, "{} for {} bytes", estimate, text.len());
    }

    #[test]
    fn cutting_any_unicode_changes_little(a in any::<String>(), b in any::<String>()) {
        check_cut(&a, &b)?;
    }

    #[test]
    fn cutting_text_like_text_changes_little(
        a in "[a-zA-Z0-9 \n\t_./(){}=\"'é中あカ한я─🎉-]{0,200}",
        b in "[a-zA-Z0-9 \n\t_./(){}=\"'é中あカ한я─🎉-]{0,200}",
    ) {
        check_cut(&a, &b)?;
    }

    #[test]
    fn cutting_runs_changes_little(
        unit in prop::sample::select(vec!["a", "A", "é", "aé", " ", "\n", " \n", "-", "=>", "中", "я", "1", "─"]),
        first in 0usize..400,
        second in 0usize..400,
    ) {
        check_cut(&unit.repeat(first), &unit.repeat(second))?;
    }
}
