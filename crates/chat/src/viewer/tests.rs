//! The open and marked parts, and the visible rows.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use greenroom::EntryId;
use greenroom_kernel::ToolStatus;

use super::*;

const SIZE: Size = Size { columns: 41, rows: 8 };

/// Calls of `bash` with so many lines of output each.
fn calls(lines: &[usize]) -> Calls {
    let mut calls = Calls::default();
    for (index, count) in lines.iter().enumerate() {
        let (id, text) =
            (index.to_string(), (0..*count).map(|line| format!("{index}.{line}\n")).collect::<String>());
        calls.start(&id, "bash", &format!(r#"{{"command":"c{index}"}}"#), 0);
        calls.result(&id, "bash", ToolStatus::Ok, &text, 40);
    }
    calls
}

fn screen(viewer: &mut Viewer, calls: &Calls) -> Vec<String> {
    let frame = viewer.frame(calls, SIZE, None);
    assert_eq!((frame.region.len(), frame.above.len()), (SIZE.rows, 0), "it fills the screen");
    assert!(frame.cursor.0 < SIZE.rows);
    frame.region.iter().map(|row| row.text().trim_end().to_owned()).collect()
}

/// The screen after each of these keys.
#[track_caller]
fn check(lines: &[usize], keys: &[KeyCode], wanted: &[&str]) {
    let calls = calls(lines);
    let mut viewer = Viewer::new(&calls).unwrap();
    screen(&mut viewer, &calls);
    for key in keys {
        assert_eq!(viewer.key(KeyEvent::from(*key), &calls, SIZE), Viewed::Stays, "{key:?}");
        screen(&mut viewer, &calls);
    }
    let screen = screen(&mut viewer, &calls);
    let shown: Vec<&str> = screen.iter().map(String::as_str).take(wanted.len()).collect();
    assert_eq!(shown, wanted, "{keys:?}");
}

#[test]
fn the_newest_text_is_open_and_each_can_be_opened_and_folded() {
    use KeyCode::{Down, Enter, Left, Right, Up};
    const FOLDED: [&str; 3] = [" ▸  ✓ bash c0", "❯▸  ✓ bash c1", ""];
    check(&[1, 1], &[], &[" ▸  ✓ bash c0", "❯▾  ✓ bash c1", "    command: c1", "    1.0", ""]);
    check(&[1, 1], &[Enter], &FOLDED);
    check(&[1, 1], &[Left, Left], &FOLDED);
    check(&[1, 1], &[Left, Right], &[" ▸  ✓ bash c0", "❯▾  ✓ bash c1", "    command: c1"]);
    check(
        &[1, 1],
        &[Left, Up, KeyCode::Char(' ')],
        &["❯▾  ✓ bash c0", "    command: c0", "    0.0", "", " ▸  ✓ bash c1"],
    );
    check(&[1, 1], &[Up, Up, Down, Down], &[" ▸  ✓ bash c0", "❯▾  ✓ bash c1"]);
}

#[test]
fn a_long_text_begins_at_the_top_and_is_scrolled() {
    use KeyCode::{Down, End, Home, PageDown, PageUp, Up};
    let begin = ["❯▾  ✓ bash c1 · 30 lines", "    command: c1", "    1.0", "    1.1"];
    check(&[1, 30], &[], &begin);
    check(&[1, 30], &[PageDown], &["    1.4", "    1.5", "    1.6", "    1.7", "    1.8", "    1.9"]);
    check(&[1, 30], &[PageDown, PageUp], &begin);
    check(&[1, 30], &[End], &["    1.24", "    1.25", "    1.26", "    1.27", "    1.28", "    1.29", ""]);
    check(&[1, 30], &[Home], &[" ▸  ✓ bash c0", "❯▾  ✓ bash c1 · 30 lines"]);
    check(&[1, 30], &[KeyCode::Char('j')], &begin[1..]);
    check(&[1, 30], &[End, Up], &["❯▸  ✓ bash c0", " ▾  ✓ bash c1 · 30 lines"]);
    check(&[1, 30], &[Up, Down], &begin);
}

#[test]
fn these_keys_close_it() {
    let calls = calls(&[1]);
    let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
    let keys = [
        KeyEvent::from(KeyCode::Esc),
        KeyEvent::from(KeyCode::Char('q')),
        control('o'),
        control('c'),
        control('d'),
    ];
    for key in keys {
        assert_eq!(Viewer::new(&calls).unwrap().key(key, &calls, SIZE), Viewed::Closes, "{key:?}");
    }
    assert!(Viewer::new(&Calls::default()).is_none(), "there is nothing to show");
}

#[test]
fn a_summary_is_shown_when_it_was_read_and_what_is_dropped_takes_the_mark_along() {
    let mut calls = calls(&[1]);
    calls.compacted(EntryId(7), "compacted 5k → 2k tokens");
    let mut viewer = Viewer::new(&calls).unwrap();
    assert_eq!(calls.unread(), [EntryId(7)]);
    assert_eq!(
        screen(&mut viewer, &calls)[..3],
        [" ▸  ✓ bash c0", "❯▾  ≡ compacted 5k → 2k tokens", "    reading it …"]
    );
    calls.summary(EntryId(7), "# Goal\nrename it");
    assert_eq!(calls.unread(), []);
    assert_eq!(screen(&mut viewer, &calls)[2..4], ["    # Goal", "    rename it"]);
    for _ in 0..200 {
        calls.thought("thought for 2 s", "why");
    }
    assert!(screen(&mut viewer, &calls)[0].starts_with("❯▸  ∴ thought"), "the oldest is marked");
}
