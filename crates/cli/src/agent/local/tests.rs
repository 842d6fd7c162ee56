//! Which addresses are local, and what an answer lists.

#![expect(clippy::unwrap_used, reason = "tests end where something is not as it should be")]

use greenroom::provider::BaseUrl;

use std::cell::Cell;
use std::io::Read;
use std::time::Duration;

use super::{ANSWER_MAX, answer_within, is_local, models_of, usual_name};

#[test]
fn a_local_address_is_recognised() {
    for (address, expected, name) in [
        ("http://127.0.0.1:11434/v1", true, Some("Ollama")),
        ("http://localhost:1234/v1", true, Some("LM Studio")),
        ("http://[::1]:8080/v1", true, Some("llama.cpp")),
        ("http://127.0.0.1:29001/v1", true, None),
        ("http://192.168.1.20:11434/v1", true, None),
        ("http://10.0.0.3/v1", true, None),
        ("http://[fd00::1]:8000/v1", true, None),
        ("http://gpu-box:8000/v1", true, None),
        ("http://gpu.local:8000/v1", true, None),
        ("https://api.openai.com/v1", false, None),
        ("https://llm.example.org/v1", false, None),
        ("http://8.8.8.8:11434/v1", false, None),
    ] {
        let address: BaseUrl = address.parse().unwrap();
        assert_eq!((is_local(&address), usual_name(&address)), (expected, name), "{address}");
    }
}

/// A server that sends a byte at a time, each of which takes a moment of the test's clock.
struct Drips<'a> {
    bytes_left: u64,
    clock: &'a Cell<Duration>,
}

impl Read for Drips<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.bytes_left == 0 {
            return Ok(0);
        }
        self.bytes_left -= 1;
        self.clock.set(self.clock.get() + Duration::from_millis(100));
        into[0] = b'x';
        Ok(1)
    }
}

#[test]
fn an_answer_that_takes_too_long_is_not_awaited() {
    for (bytes, is_answer) in [(0, true), (3, true), (1_000_000, false)] {
        let clock = Cell::default();
        let found = answer_within(Drips { bytes_left: bytes, clock: &clock }, || clock.get());
        assert_eq!(found, is_answer.then(|| "x".repeat(bytes.try_into().unwrap())), "{bytes} bytes");
        assert!(clock.get() <= ANSWER_MAX * 2, "{bytes} bytes took {:?}", clock.get());
    }
}

#[test]
fn an_answer_lists_its_models() {
    let ok = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n";
    for (answer, expected) in [
        (
            format!("{ok}{{\"data\":[{{\"id\":\"qwen3:8b\"}},{{\"id\":\"b\"}},{{}}]}}"),
            Some(vec!["qwen3:8b", "b"]),
        ),
        (format!("{ok}1f\r\n{{\"data\":[{{\"id\":\"a\"}}]}}\r\n0\r\n\r\n"), Some(vec!["a"])),
        (format!("{ok}{{\"data\":[]}}"), Some(vec![])),
        (format!("{ok}{{other}}"), Some(vec![])),
        (format!("{ok}<html>"), None),
        ("HTTP/1.1 404 Not Found\r\n\r\n{}".to_owned(), None),
        ("SSH-2.0-OpenSSH".to_owned(), None),
        (String::new(), None),
    ] {
        let expected = expected.map(|names| names.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(models_of(&answer), expected, "{answer}");
    }
}
