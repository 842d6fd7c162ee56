//! The rest of long texts, and the mark between head and tail.

use super::*;

#[test]
fn a_long_text_keeps_two_thirds_of_the_bytes_from_its_head_and_one_third_from_its_tail() {
    assert_eq!(bounded("", 0), "");
    assert_eq!(bounded("short", 5), "short");
    assert_eq!(bounded("123456789", 8), "12345\n[… 2 bytes cut …]\n89");
    assert_eq!(bounded("123456789", 3), "12\n[… 6 bytes cut …]\n9");
    assert_eq!(bounded("123456789", 0), "\n[… 9 bytes cut …]\n");
}

#[test]
fn bytes_are_never_cut_inside_a_character() {
    // Each é has two bytes: the head ends before one that does not fit, and the tail begins after it.
    assert_eq!(bounded("éééé", 7), "éé\n[… 2 bytes cut …]\né");
    assert_eq!(bounded("éééé", 6), "éé\n[… 2 bytes cut …]\né");
    assert_eq!(bounded("éééé", 5), "é\n[… 6 bytes cut …]\n");
    for bytes in 0..30 {
        let text = bounded("日本語日本語日本語", bytes);
        let kept = text.len() - text.find('[').map_or(0, |at| text.rfind(']').map_or(0, |end| end + 3 - at));
        assert!(kept <= bytes.max(2), "{bytes}: {text}");
    }
}

#[test]
fn a_long_text_keeps_three_quarters_of_the_characters_from_its_beginning() {
    assert_eq!(elide_middle("", 0), "");
    assert_eq!(elide_middle("12345678", 8), "12345678");
    assert_eq!(elide_middle("123456789", 8), "123456\n[… 1 characters cut …]\n89");
    assert_eq!(elide_middle("123456789", 4), "123\n[… 5 characters cut …]\n9");
    // Characters count, not bytes.
    assert_eq!(elide_middle("éééééééé", 8), "éééééééé");
    assert_eq!(elide_middle("ééééééééa", 8), "éééééé\n[… 1 characters cut …]\néa");
}

#[test]
fn the_first_characters_of_a_text() {
    assert_eq!(first_chars("éé", 2), "éé");
    assert_eq!(first_chars("ééa", 2), "éé…");
    assert_eq!(first_chars("", 0), "");
}
