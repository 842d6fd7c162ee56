//! Settings that cannot work, and servers made from those that can.

use std::collections::BTreeMap;

use serde_json::json;

use super::*;

fn parsed(value: serde_json::Value) -> McpConfig {
    serde_json::from_value(value).expect("it parses")
}

#[test]
fn what_cannot_work_is_refused_with_its_key() {
    for (name, value, key, reason) in [
        ("a b", json!({ "command": "x" }), "", "must be a name of 1 to 32 letters"),
        ("a__b", json!({ "command": "x" }), "", "must be a name of 1 to 32 letters"),
        ("a", json!({ "command": " " }), "command", "must be a program"),
        ("a", json!({ "command": "npx -y x" }), "command", "must be the program alone"),
        ("a", json!({ "command": "x", "url": "http://h/" }), "", "not both"),
        ("a", json!({ "url": "http://h/", "args": ["x"] }), "", "not both"),
        (
            "a",
            json!({ "command": "x", "folder": "here" }),
            "folder",
            "must be an absolute path, begin with ~/, or be {workspace}",
        ),
        (
            "a",
            json!({ "url": "http://h/", "token_env": "sk-123" }),
            "token_env",
            "must be the name of an environment",
        ),
        (
            "a",
            json!({ "command": "x", "env": { "A": "env:a b" } }),
            "env.A",
            "must name an environment variable",
        ),
        (
            "a",
            json!({ "command": "x", "env": { "GH_TOKEN": "ghp_1234567890" } }),
            "env.GH_TOKEN",
            "looks like a secret",
        ),
        (
            "a",
            json!({ "url": "http://h/", "headers": { "X-Api-Key": "abcdef123456" } }),
            "headers.X-Api-Key",
            "looks like",
        ),
        (
            "a",
            json!({ "command": "x", "env": { "A B": "x" } }),
            "env.A B",
            "is not the name of an environment",
        ),
        ("a", json!({ "command": "x", "start_timeout_s": 0 }), "start_timeout_s", "must be from 1 to 86400"),
        (
            "a",
            json!({ "command": "x", "start_timeout_s": u64::MAX }),
            "start_timeout_s",
            "must be from 1 to 86400",
        ),
        ("a", json!({ "command": "x", "call_timeout_s": 0 }), "call_timeout_s", "must be at least 1"),
    ] {
        let (at, why) = parsed(value).check(name).expect_err(reason);
        let expected: Vec<&str> =
            ["mcp_servers", name].into_iter().chain(key.split('.').filter(|k| !k.is_empty())).collect();
        assert_eq!(at, expected);
        assert!(why.contains(reason), "{why}");
        assert!(!why.contains("ghp_") && !why.contains("abcdef"), "{why}");
    }
}

#[test]
fn what_can_work_is_accepted() {
    for value in [
        json!({ "command": "npx", "args": ["-y", "x"], "env": { "GH_TOKEN": "env:GITHUB_TOKEN", "LOG_LEVEL": "debug" } }),
        json!({ "command": "/opt/my tools/server", "folder": "~/x" }),
        json!({ "command": "npx", "args": ["{workspace}"], "folder": "{workspace}" }),
        json!({ "url": "https://h.example/mcp", "token_env": "H_TOKEN", "headers": { "X-Mode": "read" } }),
        json!({ "enabled": false }),
    ] {
        assert_eq!(parsed(value.clone()).check("a"), Ok(()), "{value}");
    }
}

#[test]
fn a_server_knows_which_variables_it_needs() {
    let config = parsed(json!({ "command": "x", "env": { "A": "env:GREENROOM_NO_SUCH", "B": "b" } }));
    assert_eq!(config.variables().collect::<Vec<_>>(), ["GREENROOM_NO_SUCH"]);
    let made = |config: &McpConfig, root: &str| {
        config.server("a", Path::new(root), None, Proxies::default(), &Surroundings::here())
    };
    let error = made(&config, "/").map(drop).expect_err("the variable is not set");
    assert_eq!(
        error,
        "the MCP server `a` is not used: the environment variable GREENROOM_NO_SUCH is not set"
    );
    // Servers are shared where everything is the same.
    let config = McpConfig { env: BTreeMap::new(), ..config };
    let key = |config: &McpConfig, root: &str| made(config, root).expect("it can be made").1;
    let other = McpConfig { args: vec!["y".to_owned()], ..config.clone() };
    assert_eq!(key(&config, "/"), key(&config, "/"));
    assert_ne!(key(&config, "/"), key(&config, "/tmp"));
    assert_ne!(key(&config, "/"), key(&other, "/"));
    // A connection through another proxy is another one.
    let by = |proxies| {
        config.server("a", Path::new("/"), None, proxies, &Surroundings::here()).expect("it can be made").1
    };
    let proxied = Proxies { https: Some("http://proxy:3128".to_owned()), ..Proxies::default() };
    assert_ne!(by(proxied), by(Proxies::default()));
    let service = |query: &str| parsed(json!({ "url": format!("http://h/?{query}") }));
    assert_ne!(
        key(&service("a=1"), "/"),
        key(&service("a=2"), "/"),
        "the query counts, although it is not shown"
    );
}
