//! Patterns of hosts, addresses that are not public, and requests, each as a table.

use super::*;

fn pattern(text: &str) -> HostPattern {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn hosts_are_matched() {
    for (text, host, port, expect) in [
        ("crates.io", "crates.io", 443, true),
        ("crates.io", "crates.io", 80, true),
        ("Crates.IO", "crates.io", 443, true),
        ("crates.io", "crates.io", 22, false),
        ("crates.io", "static.crates.io", 443, false),
        ("crates.io", "notcrates.io", 443, false),
        ("crates.io", "crates.io.evil.example", 443, false),
        ("*.crates.io", "static.crates.io", 443, true),
        ("*.crates.io", "a.b.crates.io", 443, true),
        ("*.crates.io", "crates.io", 443, false),
        ("*.crates.io", "notcrates.io", 443, false),
        ("example.org:8443", "example.org", 8443, true),
        ("example.org:8443", "example.org", 443, false),
        ("10.0.0.7:80", "10.0.0.7", 80, true),
        ("[::1]:80", "::1", 80, true),
        ("::1", "0:0:0:0:0:0:0:1", 443, true),
        ("10.0.0.7", "10.0.0.8", 80, false),
    ] {
        assert_eq!(pattern(text).is_of(host, port), expect, "{text} {host}:{port}");
    }
    for wrong in ["", "http://x", "x/y", "*", "*.com", "x:y", "a b", "a..b", "x:99999", "user@x", "*.*.x.y"] {
        assert!(wrong.parse::<HostPattern>().is_err(), "{wrong}");
    }
    for text in ["crates.io", "*.crates.io", "example.org:8443", "10.0.0.7:80", "[::1]:80"] {
        assert_eq!(pattern(text).to_string(), text);
    }
}

#[test]
fn addresses_are_told_apart() {
    for (text, expect) in [
        ("93.184.215.14", true),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", true),
        ("127.0.0.1", false),
        ("10.1.2.3", false),
        ("172.16.0.1", false),
        ("192.168.1.1", false),
        ("169.254.169.254", false),
        ("100.64.0.1", false),
        ("0.0.0.0", false),
        ("224.0.0.1", false),
        ("255.255.255.255", false),
        ("198.18.0.1", false),
        ("192.0.2.1", false),
        ("240.0.0.1", false),
        ("::", false),
        ("::1", false),
        ("::ffff:127.0.0.1", false),
        ("::ffff:10.0.0.1", false),
        ("::127.0.0.1", false),
        ("64:ff9b::7f00:1", false),
        ("64:ff9b::5db8:d70e", true),
        ("2002:7f00:1::", false),
        ("2001::1", false),
        ("fe80::1", false),
        ("fd00::1", false),
        ("ff02::1", false),
        ("2001:db8::1", false),
    ] {
        assert_eq!(is_public(text.parse().expect("an address")), expect, "{text}");
    }
}

#[test]
fn requests_are_read() {
    for (head, expect) in [
        ("CONNECT a.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n", Some(("a.example", 443, None))),
        ("CONNECT A.Example.:443 HTTP/1.1\r\n\r\n", Some(("a.example", 443, None))),
        ("CONNECT [::1]:443 HTTP/1.1\r\n\r\n", Some(("::1", 443, None))),
        (
            "GET http://a.example/x?y HTTP/1.1\r\nHost: b.example\r\nProxy-Connection: keep-alive\r\nConnection: keep-alive\r\nA: b\r\n\r\n",
            Some((
                "a.example",
                80,
                Some("GET /x?y HTTP/1.1\r\nHost: a.example\r\nA: b\r\nConnection: close\r\n\r\n"),
            )),
        ),
        (
            "GET http://a.example:81?q HTTP/1.0\r\n\r\n",
            Some((
                "a.example",
                81,
                Some("GET /?q HTTP/1.0\r\nHost: a.example:81\r\nConnection: close\r\n\r\n"),
            )),
        ),
        ("GET / HTTP/1.1\r\nHost: a.example\r\n\r\n", None),
        ("GET http://user@a.example/ HTTP/1.1\r\n\r\n", None),
        ("GET https://a.example/ HTTP/1.1\r\n\r\n", None),
        ("CONNECT a.example:443 x HTTP/1.1\r\n\r\n", None),
        ("CONNECT :443 HTTP/1.1\r\n\r\n", None),
        ("CONNECT a.example:443 SPDY\r\n\r\n", None),
        ("nonsense\r\n\r\n", None),
    ] {
        let found = Request::parse(head).ok();
        let found = found
            .as_ref()
            .map(|request| (request.target.host.as_str(), request.target.port, request.forwarded.as_deref()));
        assert_eq!(found, expect, "{head:?}");
    }
}
