//! The attributes of a span for a server.

use super::host_and_port;

#[test]
fn a_server_is_its_host_and_its_port() {
    for (address, expected) in [
        ("https://api.openai.com/v1", Some(("api.openai.com", 443))),
        ("http://localhost:11434/v1", Some(("localhost", 11_434))),
        ("http://127.0.0.1", Some(("127.0.0.1", 80))),
        ("http://[::1]:8080/v1", Some(("[::1]", 8_080))),
        ("http://[::1]/v1", Some(("[::1]", 80))),
        ("https://host/v1?key=secret", Some(("host", 443))),
        ("https://host?key=secret:9", Some(("host", 443))),
        ("simulator", None),
    ] {
        assert_eq!(host_and_port(address), expected, "{address}");
    }
}
