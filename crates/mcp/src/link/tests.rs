//! The output of a program ends at each message that `rmcp` would drop.

use super::*;

/// Checks whether a message of this length, with its line break, is too large, in whatever pieces it arrives.
#[track_caller]
fn check(message: usize, is_too_large: bool) {
    let mut output = vec![b'x'; message - 1];
    output.extend(b"\n{}\n");
    for piece in [message / 3, message - 1, message, message + 1, output.len()] {
        let mut line = LineLength::default();
        // `rmcp` drops it as soon as it is too long, and so this does not wait for its end.
        let found = output.chunks(piece).fold(false, |found, read| found | line.is_exceeded_by(read));
        assert_eq!(found, is_too_large, "{message} bytes in pieces of {piece}");
    }
}

#[test]
fn a_message_that_is_too_large_by_a_byte_is_noticed_however_it_arrives() {
    check(MESSAGE_BYTES_MAX, false);
    check(MESSAGE_BYTES_MAX + 1, true);
    check(MESSAGE_BYTES_MAX + 2_000, true);
}
