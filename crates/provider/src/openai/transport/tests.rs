//! The parts of the transport that work without a socket.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt};

use super::{EventBody, Exchange, LineBuffer, READ_AHEAD_BYTES_MAX, json_as_event};

#[test]
fn lines_are_handed_on_whole_and_readable() {
    let check = |chunks: &[&[u8]], handed: &[&str], partial: &[u8]| {
        let mut lines = LineBuffer::default();
        let pieces: Vec<Bytes> =
            chunks.iter().map(|chunk| lines.take(Bytes::copy_from_slice(chunk))).collect();
        assert_eq!(
            (pieces, lines.partial.as_slice()),
            (handed.iter().map(|text| Bytes::from(text.as_bytes().to_vec())).collect(), partial)
        );
    };
    check(&["aé\n".as_bytes()], &["aé\n"], b"");
    check(&[b"a", b"b\nc", b"d", b"\n"], &["", "ab\n", "", "cd\n"], b"");
    check(&[b"a\n\nb\r\nc", b""], &["a\n\nb\r\n", ""], b"c");
    check(&[b"a\r", b"\nb"], &["a\r", "\n"], b"b");
    // Marks of byte order in front, as some servers and files have them.
    check(&["\u{feff}a\n".as_bytes(), "\u{feff}b\n".as_bytes()], &["a\n", "\u{feff}b\n"], b"");
    check(&[b"\xef", b"\xbb\xbf\xef\xbb\xbfa", b"\n"], &["", "", "a\n"], b"");
    // A character in two pieces is put together, and an invalid one is replaced.
    check(&[b"a\xc3", b"\xa9b\n"], &["", "aéb\n"], b"");
    check(&[b"\xf0\x9f", b"\xa6", b"\x80!\n"], &["", "", "🦀!\n"], b"");
    check(&[b"a\xffb", b"\xc3", b"c\n"], &["", "", "a\u{fffd}b\u{fffd}c\n"], b"");
}

#[test]
fn json_becomes_one_event() {
    assert_eq!(json_as_event(b"{\n \"a\": \"b\\nc\"\r\n}\n"), "data: {  \"a\": \"b\\nc\"  }\n\n".as_bytes());
}

#[test]
fn the_body_is_never_far_ahead_of_its_reader() {
    let exchange = Arc::new(Exchange::default());
    let mut body = EventBody {
        chunks: stream::repeat_with(|| Ok(Bytes::from_static(b"data: {}\n\n"))).boxed(),
        lines: LineBuffer::default(),
        limit_bytes: usize::MAX,
        left_bytes: usize::MAX,
        unread_bytes: 0,
        exchange: Arc::clone(&exchange),
        is_over: false,
    };
    let mut handed_on = || {
        let lines = std::iter::from_fn(|| body.next().now_or_never());
        lines.map(|lines| lines.expect("it has no end").expect("it does not break").len()).sum::<usize>()
    };
    let full = READ_AHEAD_BYTES_MAX..READ_AHEAD_BYTES_MAX + 10;
    assert!(full.contains(&handed_on()));
    assert_eq!(handed_on(), 0, "nothing was read");
    // The reader still has something to read, so the body does not continue.
    assert_eq!(exchange.next(&mut stream::iter([7]).boxed()).now_or_never(), Some(Some(7)));
    assert_eq!(handed_on(), 0);
    // The reader waits for more, so the body continues.
    assert_eq!(exchange.next(&mut stream::pending::<u8>().boxed()).now_or_never(), None);
    assert!(full.contains(&handed_on()));
    assert_eq!(handed_on(), 0);
}
