//! Names of all kinds.

use super::{is_server_name, matches, tool_name};

#[test]
fn names_of_tools_are_those_that_providers_accept() {
    let long = "x".repeat(80);
    for (server, tool, expected) in [
        ("github", "create_issue", "mcp__github__create_issue".to_owned()),
        ("s", &*"y".repeat(56), format!("mcp__s__{}", "y".repeat(56))),
        ("a-b", "files/read.all", "mcp__a-b__files_read_all_18936d67".to_owned()),
        ("s", "über", "mcp__s___ber_".to_owned()),
        ("s", &long, format!("mcp__s__{}_", "x".repeat(47))),
        ("s", "", "mcp__s___".to_owned()),
    ] {
        let name = tool_name(server, tool);
        assert!(name.starts_with(&expected) && name.len() <= 64, "{server} {tool}: {name}");
        assert_eq!(name == expected, !expected.ends_with('_'), "{name}");
    }
    // Two that differ in what providers refuse, or at their ends, differ.
    assert_ne!(tool_name("s", "a.b"), tool_name("s", "a/b"));
    assert_ne!(tool_name("s", &long), tool_name("s", &format!("{long}y")));
}

#[test]
fn names_of_servers() {
    for (name, expected) in [
        ("github", true),
        ("my-server_2", true),
        ("", false),
        ("a__b", false),
        ("a_", false),
        ("a b", false),
        ("é", false),
        (&*"x".repeat(33), false),
    ] {
        assert_eq!(is_server_name(name), expected, "{name:?}");
    }
}

#[test]
fn patterns() {
    for (pattern, name, expected) in [
        ("get", "get", true),
        ("get", "get_x", false),
        ("get_*", "get_x", true),
        ("get_*", "forget_x", false),
        ("*", "", true),
        ("*_issue", "get_issue", true),
        ("*_issue", "get_issues", false),
        ("*a*b*", "xaxbx", true),
        ("*a*b*", "xbxax", false),
        ("a*a", "a", false),
        ("a*b*c", "abbc", true),
    ] {
        assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
    }
}
