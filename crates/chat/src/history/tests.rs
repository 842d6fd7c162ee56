//! Prompts of several chats.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::os::unix::fs::PermissionsExt as _;

use super::*;

#[test]
fn prompts_come_back_in_their_order_and_only_this_user_reads_them() {
    let folder = tempfile::tempdir().unwrap();
    let history = History::new(folder.path());
    assert_eq!(history.read(), Vec::<String>::new());
    for prompt in ["one", "two\nlines", "  ", "three"] {
        history.add(prompt).unwrap();
    }
    assert_eq!(history.read(), ["one", "two\nlines", "three"]);
    let mode = fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn it_stays_small_and_lives_through_a_line_that_was_cut_off() {
    let folder = tempfile::tempdir().unwrap();
    let history = History::new(folder.path());
    let long = "x".repeat(PROMPT_BYTES_MAX);
    for number in 0..600 {
        history.add(&format!("{number} {}", &long[10..])).unwrap();
    }
    let length = fs::metadata(folder.path().join(FILE)).unwrap().len();
    assert!(length <= FILE_BYTES_MAX + 20_000, "{length}");
    assert!(history.read().last().unwrap().starts_with("599 "), "the newest is kept");
    history.add(&"y".repeat(PROMPT_BYTES_MAX + 1)).unwrap();
    assert!(!history.read().last().unwrap().starts_with('y'), "one that is too long is not");
    let mut text = fs::read_to_string(folder.path().join(FILE)).unwrap();
    text.push_str("\"cut o");
    fs::write(folder.path().join(FILE), text).unwrap();
    assert!(history.read().last().unwrap().starts_with("599 "));
    for number in 0..2_000 {
        history.add(&format!("short {number}")).unwrap();
    }
    assert_eq!(history.read().len(), PROMPTS_MAX);
}

#[test]
fn a_damaged_line_harms_no_other_and_what_is_no_file_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let history = History::new(folder.path());
    let path = folder.path().join(FILE);
    fs::write(&path, b"\"one\"\n\xff\xfe\n\"two\"\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(history.read(), ["one", "two"]);
    history.add("three").unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    fs::remove_file(&path).unwrap();
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    assert!(history.read().is_empty());
    assert!(history.add("four").is_err());
}
