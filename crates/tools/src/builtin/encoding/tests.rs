//! Decoded text is encoded to the same bytes.

use super::*;

/// Checks how these bytes are read, and that they are written back as they were.
fn check(bytes: &[u8], expect: Option<(Encoding, &str)>) {
    let found = decode(bytes.to_vec());
    let found = found.as_ref().map(|(encoding, text)| (*encoding, text.as_str()));
    assert_eq!(found, expect, "{bytes:x?}");
    if let Some((encoding, text)) = found {
        assert_eq!(encoding.encode(text).as_deref(), Ok(bytes), "{bytes:x?}");
    }
}

#[test]
fn encodings() {
    for (bytes, expect) in [
        (&b""[..], Some((Encoding::Utf8, ""))),
        (b"caf\xc3\xa9\n", Some((Encoding::Utf8, "caf\u{e9}\n"))),
        (b"\xef\xbb\xbfa\r\n", Some((Encoding::Utf8, "\u{feff}a\r\n"))),
        (b"caf\xe9\n", Some((Encoding::Windows1252, "caf\u{e9}\n"))),
        (
            b"\x93q\x94 \x80 \x81\xff",
            Some((Encoding::Windows1252, "\u{201c}q\u{201d} \u{20ac} \u{81}\u{ff}")),
        ),
        (b"\xff\xfea\0\xe9\0", Some((Encoding::Utf16Le, "a\u{e9}"))),
        (b"\xfe\xff\0a\xd8\x3d\xde\0", Some((Encoding::Utf16Be, "a\u{1f600}"))),
        // Half a character, an odd byte, NUL bytes without a mark.
        (b"\xff\xfe\x3d\xd8", None),
        (b"\xff\xfea\0b", None),
        (b"\xff\0a\0", None),
    ] {
        check(bytes, expect);
    }
    // All bytes, in their order.
    let all: Vec<u8> = (1..=255).collect();
    let (encoding, text) = decode(all.clone()).expect("it has no NUL bytes");
    assert_eq!((encoding, encoding.encode(&text)), (Encoding::Windows1252, Ok(all)));
    assert_eq!(Encoding::Windows1252.encode("a\u{5b57}"), Err('\u{5b57}'));
    assert_eq!(Encoding::Windows1252.encode("\u{80}"), Err('\u{80}'), "its byte is another character");
}
