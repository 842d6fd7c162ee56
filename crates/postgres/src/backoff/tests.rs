//! Pauses between attempts.

use super::*;

#[test]
fn pauses_grow_to_a_limit_and_differ() {
    let mut backoff = Backoff::new();
    let pauses: Vec<_> = (0..12).map(|_| backoff.next()).collect();
    for (at, pause) in (0..).zip(&pauses) {
        let whole = (FIRST * (1 << at)).min(LONGEST);
        assert!((whole / 2..=whole).contains(pause), "pause {at} is {pause:?}");
    }
    let longest: std::collections::BTreeSet<_> = pauses[6..].iter().collect();
    assert!(longest.len() > 1, "they are random: {pauses:?}");
}
