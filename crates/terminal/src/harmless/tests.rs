//! Hostile characters are escaped, in text and in JSON, and nothing else changes.

use super::{evident, harmless, harmless_json};

#[test]
fn what_steers_or_misleads_is_escaped() {
    for (text, expect) in [
        (
            "plain\ttext\nand \u{65e5}\u{672c}\u{8a9e} \u{2014} \u{1f468}\u{200d}\u{1f469} e\u{301} \u{f1}",
            None,
        ),
        ("\x1b]52;c;cm0=\x07", Some(r"\u{1b}]52;c;cm0=\u{7}")),
        ("\u{9b}31m\u{85}\u{7f}", Some(r"\u{9b}31m\u{85}\u{7f}")),
        (
            "a\u{202e}b\u{2066}c\u{2069}d\u{200e}\u{200f}\u{61c}",
            Some(r"a\u{202e}b\u{2066}c\u{2069}d\u{200e}\u{200f}\u{61c}"),
        ),
        ("a\u{2028}b\u{2029}", Some(r"a\u{2028}b\u{2029}")),
        // Invisible characters: zero-width spaces and fillers, soft hyphens, variation selectors without
        // glyphs.
        ("a\u{200b}b\u{2060}\u{ad}\u{3164}c\u{e0100}", Some(r"a\u{200b}b\u{2060}\u{ad}\u{3164}c\u{e0100}")),
        ("x\u{e0041}\u{e007f}\u{feff}", Some(r"x\u{e0041}\u{e007f}\u{feff}")),
        ("over\rwritten\r\nline", Some("over\\u{d}written\nline")),
        ("back\u{8}\0", Some(r"back\u{8}\u{0}")),
    ] {
        let shown = harmless(text);
        assert_eq!(shown, expect.unwrap_or(text), "{text:?}");
        assert_eq!(harmless(&shown), shown, "{text:?} twice");
    }
}

#[test]
fn json_means_the_same() {
    let mut cases = 0;
    for number in (0..0x300).chain(0x2000..0x2080).chain([0xfeff, 0xfffa, 0xe0001, 0xe0041, 0x1f600, 0xffff])
    {
        let Some(c) = char::from_u32(number) else { continue };
        let value = serde_json::json!({ (format!("key {c}")): format!("before {c} after") });
        for json in [value.to_string(), serde_json::to_string_pretty(&value).expect("JSON")] {
            let shown = harmless_json(&json);
            assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).expect("JSON"), value, "{number:x}");
            assert_eq!(harmless(&shown), shown, "{number:x}: {shown}");
            cases += 1;
        }
    }
    assert!(cases > 1_500, "{cases}");
}

#[test]
fn what_is_approved_shows_also_what_text_may_have() {
    for (line, expect) in [
        ("ls -l\t日本語 é e\u{301} ñ", "ls -l\t日本語 é e\u{301} ñ"),
        ("a\r", r"a\u{d}"),
        ("a\nb", r"a\u{a}b"),
        ("a\u{a0}b\u{3000}c\u{2003}", r"a\u{a0}b\u{3000}c\u{2003}"),
        ("a\u{200d}b\u{200c}c\u{fe0f}\u{34f}", r"a\u{200d}b\u{200c}c\u{fe0f}\u{34f}"),
        ("a\u{301}\u{302}\u{303}\u{304}b", "a\u{301}\u{302}\\u{303}\\u{304}b"),
        ("\x1b[2J\u{202e}\u{2800}", r"\u{1b}[2J\u{202e}\u{2800}"),
    ] {
        assert_eq!(evident(line), expect, "{line:?}");
        assert_eq!(harmless(&evident(line)), expect, "{line:?}");
    }
}
