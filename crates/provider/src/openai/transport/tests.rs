//! The parts of the transport that need no socket.

use bytes::Bytes;

use super::{Utf8Repair, json_as_event};

#[test]
fn utf8_is_repaired_across_chunks() {
    let check = |chunks: &[&[u8]], expected: &str| {
        let mut repair = Utf8Repair::default();
        let whole: Vec<u8> =
            chunks.iter().flat_map(|chunk| repair.repair(Bytes::copy_from_slice(chunk))).collect();
        assert_eq!(String::from_utf8(whole).expect("it is valid"), expected, "{chunks:?}");
    };
    check(&["aé".as_bytes()], "aé");
    check(&[b"a\xc3", b"\xa9b"], "aéb");
    check(&[b"\xf0\x9f", b"\xa6", b"\x80!"], "🦀!");
    check(&[b"a\xffb", b"\xc3", b"c"], "a\u{fffd}b\u{fffd}c");
}

#[test]
fn json_becomes_one_event() {
    assert_eq!(json_as_event(b"{\n \"a\": \"b\\nc\"\r\n}\n"), "data: {  \"a\": \"b\\nc\"  }\n\n".as_bytes());
}
