//! A URL leads to the server that its text names, or it is rejected.

use super::BaseUrl;

#[test]
fn what_is_plain_is_taken_as_it_is_written() {
    for (text, shown, host, port) in [
        ("https://api.openai.com/v1", "https://api.openai.com/v1", "api.openai.com", 443),
        ("https://api.openai.com:443/v1/", "https://api.openai.com/v1", "api.openai.com", 443),
        ("http://localhost:11434/v1", "http://localhost:11434/v1", "localhost", 11_434),
        ("http://localhost", "http://localhost", "localhost", 80),
        ("http://localhost/", "http://localhost", "localhost", 80),
        (" http://127.0.0.1:80/v1 \n", "http://127.0.0.1/v1", "127.0.0.1", 80),
        ("http://[::1]:8080/v1", "http://[::1]:8080/v1", "::1", 8_080),
        ("http://[fd00::2]/v1", "http://[fd00::2]/v1", "fd00::2", 80),
        (
            "https://xn--mller-kva.example/v1", "https://xn--mller-kva.example/v1", "xn--mller-kva.example",
            443,
        ),
        ("https://x.example/a/://localhost", "https://x.example/a/://localhost", "x.example", 443),
        ("https://x.example/v1?key=secret@y", "https://x.example/v1", "x.example", 443),
        ("http://localhost?key=secret", "http://localhost", "localhost", 80),
        ("http://localhost.:1/v1", "http://localhost.:1/v1", "localhost.", 1),
    ] {
        let url: BaseUrl = text.parse().expect(text);
        assert_eq!((url.to_string().as_str(), url.host(), url.port()), (shown, host, port), "{text}");
        assert_eq!(url.has_query(), text.contains('?'));
        assert!(!format!("{url:?}").contains("secret"));
        let again: BaseUrl = url.to_string().parse().expect(shown);
        assert_eq!(again == url, !url.has_query(), "{text}");
    }
}

#[test]
fn what_a_parser_would_make_something_else_of_is_refused() {
    let mut refused = 0;
    for text in [
        "", "x", "localhost:8080", "//localhost", "ftp://x/", "file:///etc", "http:", "http:/", "http://",
        "http:///", "http:x.example/v1?x=://localhost", "http:/x.example/v1?://localhost",
        "http:\\\\x.example/v1?://localhost", "https:x.example?://localhost", "http:///x.example/v1",
        "HTTP://localhost/v1", "Http://localhost/v1", "http://LOCALHOST/v1", "http://x.example\\@localhost/",
        "http://localhost\\.x.example/", "http://a b/", "ht\ttp://localhost/", "http://local\thost/",
        "http://local\nhost/", "http://localhost/\u{0}", "http://localhost/\u{202e}", "http://ⓛocalhost/",
        "http://müller.example/", "http://localhost\u{3002}/", "http://%6cocalhost/", "http://127.1/",
        "http://2130706433/", "http://0x7f000001/", "http://0x7f.0.0.1/", "http://0177.0.0.1/",
        "http://017700000001/", "http://127.0.0.1./", "http://127.0.0.01/", "http://0/",
        "http://[::ffff:127.0.0.1]/", "http://[0:0:0:0:0:0:0:1]/", "http://[::0001]/", "http://[FD00::2]/",
        "http://[::1/", "http://[::1%25eth0]/", "http://x:00080/", "http://x:/", "http://x:99999/",
        "http://x:8a/", "http://x#y", "http://x/#", "http://x/v1#://localhost", "http://@x/", "http://:@x/",
        "http://me@x/", "http://localhost:1@x/",
    ] {
        let error = text.parse::<BaseUrl>().expect_err(text).to_string();
        assert!(
            error.contains("the base URL \"") && error.chars().all(|c| !c.is_control()),
            "{text:?}: {error}"
        );
        refused += 1;
    }
    assert!(refused >= 50, "{refused}");
    assert!(format!("http://x/{}", "a".repeat(3_000)).parse::<BaseUrl>().is_err());
}

#[test]
fn an_error_shows_no_secret_and_says_what_to_write() {
    for text in [
        "http://me:hunter2@x/v1", "http:\\\\me:hunter2@x/v1", "http:me:hunter2@x/v1",
        "ftp://x/v1?key=hunter2", "me:hunter2@x", "http://x y/v1?hunter2", "http://X/v1?hunter2",
        "http://me:hunter2@y@x/v1",
    ] {
        let error = text.parse::<BaseUrl>().expect_err(text);
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
    let error = "http://0x7f.1:80/v1".parse::<BaseUrl>().expect_err("another spelling").to_string();
    assert!(error.contains("http://127.0.0.1"), "{error}");
}
