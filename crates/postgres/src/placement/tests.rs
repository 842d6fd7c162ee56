//! The weights of nodes.

use super::*;

const SESSIONS: u32 = 3_000;

fn chosen<'a>(nodes: &[&'a str], session: &str) -> &'a str {
    nodes.iter().max_by_key(|node| weight(node, session)).expect("there is one")
}

/// Nodes of two versions must choose the same.
#[test]
fn the_weight_never_changes() {
    let cases = [
        ("a", "s", 0x3e09_4e82_dbca_0d55),
        ("", "", 0x25fc_6dd3_6ce0_4b20),
        ("node-1", "user:42", 0x7c19_9ad1_5e2b_060a),
    ];
    for (node, session, expected) in cases {
        assert_eq!(weight(node, session), expected, "{node} {session}");
    }
}

#[test]
fn sessions_are_spread_and_few_move_when_a_node_leaves() {
    let (all, fewer) = (["a", "b", "c"], ["a", "b"]);
    let mut counts = std::collections::BTreeMap::<&str, u32>::new();
    for number in 0..SESSIONS {
        let session = format!("user:{number}");
        let node = chosen(&all, &session);
        *counts.entry(node).or_default() += 1;
        if node != "c" {
            assert_eq!(chosen(&fewer, &session), node, "{session} stays where it was");
        }
    }
    for (node, count) in counts {
        assert!((SESSIONS / 4..SESSIONS / 2).contains(&count), "{node} has {count} of {SESSIONS}");
    }
}
