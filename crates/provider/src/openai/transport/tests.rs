//! The parts of the transport that need no socket.

use bytes::Bytes;

use super::{WholeLines, json_as_event};

#[test]
fn lines_are_handed_on_whole_and_readable() {
    let check = |chunks: &[&[u8]], handed: &[&str], held: &[u8]| {
        let mut lines = WholeLines::default();
        let pieces: Vec<Bytes> =
            chunks.iter().map(|chunk| lines.take(Bytes::copy_from_slice(chunk))).collect();
        assert_eq!(
            (pieces, lines.held.as_slice()),
            (handed.iter().map(|text| Bytes::from(text.as_bytes().to_vec())).collect(), held)
        );
    };
    check(&["aé\n".as_bytes()], &["aé\n"], b"");
    check(&[b"a", b"b\nc", b"d", b"\n"], &["", "ab\n", "", "cd\n"], b"");
    check(&[b"a\n\nb\r\nc", b""], &["a\n\nb\r\n", ""], b"c");
    check(&[b"a\r", b"\nb"], &["a\r", "\n"], b"b");
    // A character that is cut is in the line that is held; a bad one is replaced.
    check(&[b"a\xc3", b"\xa9b\n"], &["", "aéb\n"], b"");
    check(&[b"\xf0\x9f", b"\xa6", b"\x80!\n"], &["", "", "🦀!\n"], b"");
    check(&[b"a\xffb", b"\xc3", b"c\n"], &["", "", "a\u{fffd}b\u{fffd}c\n"], b"");
}

#[test]
fn json_becomes_one_event() {
    assert_eq!(json_as_event(b"{\n \"a\": \"b\\nc\"\r\n}\n"), "data: {  \"a\": \"b\\nc\"  }\n\n".as_bytes());
}
