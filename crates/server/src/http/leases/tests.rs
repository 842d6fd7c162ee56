//! Lists of leases.

use futures_util::FutureExt as _;

use super::*;

/// The leases that were read, each with its node, its number and its address; and whether they show a loss.
type Listed<'a> = (&'a [(&'a str, u64, &'a str)], bool);

/// What lists show of node "a" at "x" that were published after a request was sent to it.
fn check(lists: &[Listed<'_>]) {
    let leases = Leases::default();
    let mut lost = leases.lost("a", Some("x"));
    assert!(lost.as_mut().now_or_never().is_none());
    for (list, expected) in lists {
        let lease = |number: u64, address: &str| Lease { number, address: Some(address.to_owned()) };
        let list = list.iter().map(|(node, number, at)| ((*node).to_owned(), lease(*number, at)));
        leases.0.send_replace(list.collect());
        assert_eq!(lost.as_mut().now_or_never().is_some(), *expected, "{lists:?}");
    }
}

#[test]
fn a_lease_is_lost_when_it_is_not_listed_or_is_another_one() {
    check(&[(&[("a", 1, "x")], false), (&[("a", 1, "x"), ("b", 2, "y")], false), (&[("b", 2, "y")], true)]);
    check(&[(&[("a", 1, "x")], false), (&[("a", 3, "x")], true)]);
    // Another node has its name.
    check(&[(&[("a", 1, "y")], false), (&[("a", 1, "y")], true)]);
    // The first list may be older than the node.
    check(&[(&[], false), (&[("a", 1, "x")], false), (&[("a", 1, "x")], false), (&[], true)]);
    check(&[(&[], false), (&[], true)]);
}
