//! Similar texts are found, dissimilar ones are left out.

use super::{Likeness, nearest};

fn similarity(left: &str, right: &str) -> usize {
    Likeness::to(left).of(right)
}

#[test]
fn similarity_is_symmetric_and_bounded() {
    for (left, right) in [("read", "raed"), ("", ""), ("a", "a"), ("grep", "bash"), ("Straße", "strasse")] {
        assert_eq!(similarity(left, right), similarity(right, left), "{left:?} {right:?}");
        assert!(similarity(left, right) <= 1_000);
    }
    assert_eq!(similarity("let x = 1;", "  LET x=1;"), 1_000);
    assert_eq!(similarity("abc", "xyz"), 0);
}

#[test]
fn nearest_is_best_first() {
    let names = ["read", "write", "edit", "list", "grep", "bash"];
    assert_eq!(nearest("read_file", names, 2), ["read"]);
    assert_eq!(nearest("edits", names, 2), ["edit"]);
    assert!(nearest("browser", names, 2).is_empty());
}
