//! Ids that are accepted and refused.

use super::*;

#[test]
fn ids_as_people_have_them_are_taken_and_hostile_ones_refused() {
    let longest = "é".repeat(127) + "x";
    let taken = [
        "a",
        "user:42",
        "ada@example.org",
        "tenant/42",
        "a/../b",
        "../x",
        "..x",
        "...",
        "CON",
        "nul.txt",
        "a.",
        "équipe/été",
        "e\u{301}te",
        "a b",
        "日本語",
        "%2e%2e",
        "a?b#c",
        "\"quoted\"",
        "'; --",
        "-rf",
        "~",
        "*",
        longest.as_str(),
    ];
    for id in taken {
        assert_eq!(check(id), Ok(()), "{id:?}");
    }
    let too_long = "x".repeat(256);
    let refused = [
        "",
        ".",
        "..",
        " a",
        "a ",
        "a\u{34f}b",
        "a\u{17b4}b",
        "a\u{180f}b",
        "a\u{2800}b",
        "a\u{fe0f}b",
        "\u{a0}a",
        "a\0b",
        "a\nb",
        "a\tb",
        "\u{1b}[31mred",
        "a\u{7f}",
        "a\u{85}b",
        "a\u{9b}31m",
        "a\u{202e}b",
        "a\u{200b}b",
        "\u{feff}a",
        "a\u{2028}b",
        "a\u{e0041}b",
        "a\u{200d}b",
        // Fillers and variation selectors: two ids that look alike.
        "a\u{115f}b",
        "a\u{3164}b",
        "a\u{e0100}b",
        too_long.as_str(),
    ];
    for id in refused {
        assert!(check(id).is_err(), "{id:?}");
    }
}
