//! The findings for various clusters.

use super::*;

fn node(name: &str, lease_seconds: f64, sessions: u64) -> SurveyedNode {
    let address = Some(format!("http://{name}:7878"));
    SurveyedNode { name: name.to_owned(), address, is_draining: false, lease_seconds, sessions }
}

/// A node with this answer: whether something is wrong, and what is said.
#[test]
fn each_state_of_a_node_is_said() {
    let none = || Some(NodeAnswer::None("connection refused".to_owned()));
    let leaving = SurveyedNode { is_draining: true, ..node("a", 5.0, 1) };
    let silent = SurveyedNode { address: None, ..node("a", 5.0, 1) };
    let not_ready = || Some(NodeAnswer::NotReady("its answer is 503".to_owned()));
    for (node, answer, ok, said) in [
        (node("a", 5.0, 2), Some(NodeAnswer::Ready), true, "a, http://a:7878, 2 sessions"),
        (node("a", 5.0, 1), Some(NodeAnswer::OtherSecret), false, "its secret differs"),
        (node("a", 5.0, 1), Some(NodeAnswer::OtherNode("b".to_owned())), false, "node b answers at this"),
        (node("a", 5.0, 1), none(), false, "not reached from here: connection refused"),
        (node("a", 5.0, 1), not_ready(), false, "not ready: its answer is 503"),
        (leaving, not_ready(), true, "leaving"),
        (node("a", -42.0, 3), None, false, "its lease expired 42"),
        (node("a", -42.0, 0), None, false, "its lease expired 42"),
        (silent, None, true, "without an address"),
    ] {
        let check = of_node(&node, answer);
        assert_eq!((check.ok, check.found.contains(said)), (ok, true), "{check:?}");
        assert_eq!(check.remedy.is_some(), !ok, "{check:?}");
    }
}

#[test]
fn what_concerns_all_nodes_is_said() {
    let survey = |nodes: &[SurveyedNode], abandoned| Survey {
        server: "15.18".to_owned(),
        tables: 1,
        nodes: nodes.to_vec(),
        sessions: 9,
        abandoned,
        connections_left: 50,
    };
    let twin = SurveyedNode { address: Some("http://a:7878".to_owned()), ..node("b", 5.0, 1) };
    let leaving = SurveyedNode { is_draining: true, ..node("a", 5.0, 1) };
    for (survey, said) in [
        (survey(&[node("a", 5.0, 1), node("b", 5.0, 1)], 0), &[] as &[&str]),
        (survey(&[node("a", 5.0, 1), twin], 0), &["a and b have the same address"]),
        (survey(&[node("a", 5.0, 1)], 2), &["2 sessions with unfinished runs"]),
        (survey(&[leaving], 0), &["all nodes are leaving"]),
        (survey(&[node("a", -9.0, 1)], 1), &["1 session with unfinished runs"]),
    ] {
        let found: Vec<Check> = of_cluster(&survey, true);
        assert_eq!(found.len(), said.len(), "{found:?}");
        for (check, said) in found.iter().zip(said) {
            assert!(!check.ok && check.found.contains(said) && check.remedy.is_some(), "{check:?}");
        }
    }
    let few = Survey { connections_left: 3, ..survey(&[], 0) };
    assert!(!of_database(&few, Duration::ZERO).ok);
    let empty = Survey { tables: 0, ..survey(&[], 0) };
    assert!(of_database(&empty, Duration::ZERO).found.contains("no tables yet"));
}
