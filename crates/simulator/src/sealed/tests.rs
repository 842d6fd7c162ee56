//! What is sealed and opened.

use super::*;

#[test]
fn only_what_was_sealed_opens() {
    for text in ["", "x!", "## Goal\nÄ 漢\u{1f600}"] {
        let sealed = seal(text);
        assert_eq!(open(&sealed).as_deref(), Some(text));
        assert!(text.is_empty() || !sealed.contains(text));
        let altered = sealed.replacen(['0', '1', '2', '3'], "9", 1);
        assert!(altered == sealed || open(&altered).is_none());
        assert_eq!(open(&sealed[..sealed.len() - 1]), None);
    }
    assert_eq!((open("zz"), open(&"z".repeat(20))), (None, None));
}
