//! Edits, undo, folded pastes, the history.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;

/// Returns the text with the cursor as `|`.
fn shown(editor: &Editor) -> String {
    let (before, after) = editor.text.split_at(editor.cursor);
    format!("{before}|{after}")
}

/// Creates an editor with this text and the cursor at `|`.
fn at(text: &str) -> Editor {
    let cursor = text.find('|').unwrap();
    Editor { text: text.replace('|', ""), cursor, ..Editor::default() }
}

#[test]
fn edits_do_what_emacs_does() {
    use Edit::*;
    for (edit, before, after) in [
        (Left, "ab|c", "a|bc"),
        (Left, "|", "|"),
        (Right, "a|bc", "ab|c"),
        (Left, "a👩‍👩‍👧|", "a|👩‍👩‍👧"),
        (WordLeft, "one two|", "one |two"),
        (WordLeft, "one, |two", "|one, two"),
        (WordRight, "|one two", "one| two"),
        (Home, "a\nbc|d", "a\n|bcd"),
        (End, "a|b\ncd", "ab|\ncd"),
        (Up, "abc\nde|f", "ab|c\ndef"),
        (Down, "ab|c\ndef", "abc\nde|f"),
        (Down, "日|x\nabcdef", "日x\nab|cdef"),
        (Backspace, "ab|c", "a|c"),
        (Backspace, "a👩‍👩‍👧|", "a|"),
        (Delete, "a|bc", "a|c"),
        (DeleteWordLeft, "one two|", "one |"),
        (DeleteWordRight, "|one two", "| two"),
        (KillToStart, "a\nbc|d", "a\n|d"),
        (KillToEnd, "a|bc\nd", "a|\nd"),
        (KillToEnd, "a|\nd", "a|d"),
        (Transpose, "ab|c", "acb|"),
        (Transpose, "abc|", "acb|"),
    ] {
        let mut editor = at(before);
        editor.edit(edit);
        assert_eq!(shown(&editor), after, "{edit:?} of {before:?}");
    }
}

#[test]
fn what_was_killed_comes_back_and_every_change_can_be_undone() {
    let mut editor = at("one two|");
    editor.edit(Edit::DeleteWordLeft);
    editor.edit(Edit::Home);
    editor.edit(Edit::Yank);
    assert_eq!(shown(&editor), "two|one ");
    editor.edit(Edit::Undo);
    assert_eq!(shown(&editor), "|one ");
    editor.edit(Edit::Undo);
    assert_eq!(shown(&editor), "one two|");
    for letter in "abc".chars() {
        editor.insert(&letter.to_string());
    }
    editor.edit(Edit::Undo);
    assert_eq!(shown(&editor), "one two|", "letters of a word go together");
    assert!(!editor.edit(Edit::Undo));
}

#[test]
fn a_long_paste_is_one_thing_and_is_given_out_whole() {
    let pasted: Vec<String> = (0..200).map(|number| format!("line {number}")).collect();
    let pasted = pasted.join("\n");
    let mut editor = Editor::default();
    editor.insert("look: ");
    editor.paste(&pasted.replace('\n', "\r\n"));
    editor.insert(" what is it?");
    assert_eq!(editor.text(), format!("look: {pasted} what is it?"));
    let layout = editor.layout(60, 5);
    assert_eq!(layout.rows.len(), 1);
    assert_eq!(layout.rows[0].text(), "› look: [pasted 200 lines] what is it?");
    for _ in 0.." what is it?".len() {
        editor.edit(Edit::Left);
    }
    editor.edit(Edit::Backspace);
    assert_eq!(editor.text(), "look:  what is it?");
    editor.edit(Edit::Undo);
    assert_eq!(editor.submit(), format!("look: {pasted} what is it?"));
    assert!(editor.is_empty());
    editor.edit(Edit::Up);
    assert_eq!(editor.text(), format!("look: {pasted} what is it?"), "the history has it whole");
}

#[test]
fn what_marks_a_paste_is_not_taken_from_outside() {
    let mut editor = Editor::default();
    editor.paste(&"x\n".repeat(20));
    editor.insert("\u{f0000}");
    assert_eq!(editor.text(), format!("{}\u{fffd}", "x\n".repeat(20)));
}

#[test]
fn the_history_keeps_what_was_being_typed() {
    let mut editor = Editor::new(&["first".to_owned(), "second\nof two lines".to_owned()]);
    editor.insert("half");
    editor.edit(Edit::Up);
    assert_eq!(editor.text(), "second\nof two lines");
    editor.edit(Edit::Up);
    editor.edit(Edit::Up);
    assert_eq!(editor.text(), "first");
    editor.edit(Edit::Up);
    assert_eq!(editor.text(), "first");
    editor.edit(Edit::Down);
    editor.edit(Edit::Down);
    assert_eq!(editor.text(), "half");
    editor.edit(Edit::Down);
    assert_eq!(editor.text(), "half");
}

#[test]
fn what_is_given_back_stands_before_what_is_typed() {
    let mut editor = Editor::default();
    editor.insert("typed since");
    editor.give_back("one\ntwo");
    assert_eq!(shown(&editor), "one\ntwo\ntyped since|");
}

#[test]
fn it_is_laid_out_around_the_cursor() {
    let editor = at("abcdefghij|klm");
    let layout = editor.layout(8, 5);
    let rows: Vec<String> = layout.rows.iter().map(Row::text).collect();
    assert_eq!(rows, ["› abcdef", "  ghijkl", "  m"]);
    assert_eq!(layout.cursor, (1, 6));
    let layout = editor.layout(8, 1);
    assert_eq!((layout.rows[0].text().as_str(), layout.cursor), ("  ghijkl", (0, 6)));
    // After a full row, the cursor is on a row of its own.
    let layout = at("abcdef|").layout(8, 5);
    assert_eq!((layout.rows.len(), layout.cursor), (2, (1, 2)));
}

#[test]
fn a_key_costs_no_more_where_there_is_more_text() {
    let lines: Vec<String> = (0..5_000).map(|number| format!("line {number} of the text")).collect();
    let text = lines.join("\n");
    for cursor in [0, text.len() / 2, text.len()] {
        let editor = Editor { text: text.clone(), cursor, ..Editor::default() };
        let (begin, end) = editor.lines_around(6);
        assert!(text[begin..end].lines().count() <= 13, "{begin}..{end}");
        // The visible part is the same as if all the text had been laid out.
        let (few, all) = (editor.layout(40, 6), editor.layout(40, 10_000));
        let shown: Vec<&Row> = all.rows.iter().collect();
        let first = all.cursor.0.saturating_sub(few.cursor.0);
        assert_eq!(few.rows.iter().collect::<Vec<_>>(), shown[first..first + few.rows.len()]);
        assert_eq!(few.cursor.1, all.cursor.1);
    }
}

#[test]
fn a_long_prompt_of_earlier_is_one_again() {
    let pasted = "x\n".repeat(300);
    let mut editor = Editor::new(&["first".to_owned(), format!("why?\n{pasted}"), pasted.clone()]);
    editor.edit(Edit::Up);
    assert_eq!(editor.layout(40, 9).rows.len(), 2, "its first line, and the rest of it folded");
    assert_eq!(editor.text(), pasted);
    editor.edit(Edit::Up);
    editor.edit(Edit::Up);
    assert_eq!(editor.text(), format!("why?\n{pasted}"));
    // A text that was pasted in this chat is folded as before.
    let mut editor = Editor::default();
    editor.insert("see ");
    editor.paste(&pasted);
    let (before, said) = (editor.text.clone(), editor.submit());
    editor.edit(Edit::Up);
    assert_eq!((editor.text.clone(), editor.text()), (before, said));
    // So is text that is given back.
    editor.take();
    editor.give_back(&pasted);
    assert_eq!((editor.layout(40, 9).rows.len(), editor.text()), (2, pasted));
}
