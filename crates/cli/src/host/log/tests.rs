//! The file of a host's log does not grow beyond its limit.

use std::io::Write as _;

use super::*;

/// Checks what a file that may have ten bytes more has after these lines.
#[track_caller]
fn check(lines: &[&[u8]], expected: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    let mut log = Bounded { file: std::fs::File::create(&path).expect("created"), left: 10 };
    for line in lines {
        assert_eq!(log.write(line).expect("written"), line.len());
    }
    assert_eq!(std::fs::read_to_string(&path).expect("read"), expected, "{lines:?}");
}

#[test]
fn a_line_counts_as_it_is_written() {
    check(&[b"one\n", b"second\n", b"three\n"], "one\nthree\n");
    // What is hostile is escaped, and what is not UTF-8 replaced.
    check(&[b"\x1b\n", b"\x1b\n", b"a\n"], "\\u{1b}\na\n");
    check(&[b"\xff\xff\xff\xff\n", b"a\n"], "a\n");
}
