//! Tests of `acp`.

use super::{of_servers, server_name};
use greenroom_acp::{Server, ServerKind};

#[test]
fn secrets_of_servers_are_variables() {
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let program = ServerKind::Program {
        command: "/bin/server".into(),
        args: vec!["--all".to_owned()],
        env: vec![pair("TOKEN", "secret-1"), pair("MODE", "x=1, y")],
    };
    let service = ServerKind::Service {
        url: "https://example.org/mcp".to_owned(),
        headers: vec![pair("Authorization", "Bearer secret-2")],
    };
    let servers = [("My Server", program), ("remote", service)]
        .map(|(name, kind)| Server { name: name.to_owned(), kind });
    let (settings, variables) = of_servers(&servers);
    let values: Vec<&str> = variables.values().map(String::as_str).collect();
    assert_eq!(values, ["secret-1", "Bearer secret-2"]);
    let expected = [
        ("My-Server", r#"mcp_servers.My-Server.command="/bin/server""#),
        ("My-Server", r#"mcp_servers.My-Server.args=["--all"]"#),
        ("My-Server", r#"mcp_servers.My-Server.env={"MODE":"x=1, y","TOKEN":"env:ACP_1_TOKEN"}"#),
        ("remote", r#"mcp_servers.remote.url="https://example.org/mcp""#),
        ("remote", r#"mcp_servers.remote.headers={"Authorization":"env:ACP_2_Authorization"}"#),
    ];
    let expected = expected.map(|(name, setting)| (name.to_owned(), setting.to_owned()));
    assert_eq!(settings, expected);
}

#[test]
fn servers_with_similar_names_are_told_apart() {
    let long = "x".repeat(40);
    let servers = ["a b", "a.b", "a-b", "", "ü", &long, &long].map(|name| {
        let kind = ServerKind::Service { url: "https://example.org".to_owned(), headers: Vec::new() };
        Server { name: name.to_owned(), kind }
    });
    let (settings, _) = of_servers(&servers);
    let mut names: Vec<String> = settings.into_iter().map(|(name, _)| name).collect();
    names.dedup();
    let (long, second) = ("x".repeat(32), format!("{}-2", "x".repeat(30)));
    assert_eq!(names, ["a-b", "a-b-2", "a-b-3", "editor", "editor-2", &long, &second]);
}

#[test]
fn names_of_servers_are_names_of_settings() {
    for (name, expected) in [
        ("github", "github"),
        ("My Server (2)", "My-Server--2"),
        ("a_b.c", "a-b-c"),
        ("ü", "editor"),
        ("", "editor"),
        (&"x".repeat(50), &"x".repeat(32)),
    ] {
        let made = server_name(name);
        assert_eq!(made, expected, "{name}");
        assert!(greenroom_mcp::is_server_name(&made), "{made}");
    }
}
