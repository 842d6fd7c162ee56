//! The screen, as text.

use serde_json::json;

use super::super::model::tests::{four, model, session};
use super::*;
use crate::args::Sort;

fn text(model: &Model, columns: usize, rows: usize) -> Vec<String> {
    let screen = screen(model, Size { columns, rows });
    assert_eq!(screen.len(), rows, "the whole screen");
    screen.iter().for_each(|row| assert!(row.width() < columns, "{:?}", row.text()));
    screen.iter().map(|row| row.text().trim_end().to_owned()).collect()
}

#[test]
fn the_list_shows_each_session_and_what_the_keys_do() {
    let screen = text(&model(Sort::State), 120, 9);
    assert_eq!(
        screen,
        [
            "4 live sessions, 1 working, 1 compacting, 1 waiting for an answer  $0.0014 in all",
            "",
            "  TITLE            ID  STATE                CONTEXT         TOKENS     COST  QUEUE  AGE",
            "▸ no messages yet  b   step 3: bash, grep   ░░░░░░░░   0 %      10  $0.0005          1s",
            "  no messages yet  d   compacting           ░░░░░░░░   0 %      30  $0.0009          5s",
            "  no messages yet  c   waits for an answer  ████░░░░  50 %      20               2   2s",
            "  no messages yet  a   idle                 ███████░  90 %      40                   9s",
            "",
            "↑↓ choose  Enter look  s sort (state)  r reverse  a abort  c compact  q quit",
        ],
        "{screen:#?}"
    );
}

#[test]
fn a_small_terminal_gets_what_matters_most() {
    for columns in 20..200 {
        for rows in 3..12 {
            let screen = text(&model(Sort::Id), columns, rows);
            assert!(rows < 6 || screen[3].starts_with("▸ "), "{columns} by {rows}: {screen:#?}");
        }
    }
    for columns in 8..200 {
        let keys = text(&model(Sort::Id), columns, 6).pop().unwrap_or_default();
        assert!(keys.ends_with("q quit"), "{columns}: {keys}");
    }
    let narrow = text(&model(Sort::Id), 44, 8);
    assert!(narrow[2].contains("TITLE") && !narrow[2].contains("QUEUE"), "{narrow:#?}");
    // The selected session is always visible.
    let mut many = Model::new(Sort::Id);
    let sessions: Vec<_> =
        (0..100).map(|number| session(&format!("s{number:02}"), "idle", json!({}))).collect();
    many.taken(sessions, 1);
    many.key(greenroom_terminal::input::KeyEvent::from(greenroom_terminal::input::KeyCode::End));
    assert!(text(&many, 80, 10).iter().any(|row| row.starts_with("▸ ") && row.contains("s99")));
}

#[test]
fn a_question_takes_the_place_of_the_keys() {
    let mut model = model(Sort::Id);
    model.question = Some(Question::Abort("a".into()));
    let screen = text(&model, 80, 10);
    assert_eq!(screen.last().map(String::as_str), Some("Abort the work in a? Partial output is kept. y/n"));
}

#[test]
fn one_session_is_shown_closely_with_the_newest_at_the_bottom() {
    let mut model = model(Sort::Id);
    model.key(greenroom_terminal::input::KeyEvent::from(greenroom_terminal::input::KeyCode::Enter));
    assert!(text(&model, 80, 10).iter().any(|row| row.contains("New events appear here")));
    if let Some(close) = &mut model.close {
        close.lines.extend((0..50).map(|number| Row::plain(&format!("line {number}"))));
        close.text = "and so".to_owned();
    }
    let screen = text(&model, 80, 10);
    assert!(screen[0].starts_with('a') && screen[1].contains("idle"), "{screen:#?}");
    assert_eq!(screen[screen.len() - 3..][..2], ["line 49", "and so"], "{screen:#?}");
    model.taken(four().split_off(1), 11_000);
    assert_eq!(text(&model, 80, 10)[1], "it is no longer live");
}

#[test]
fn a_pipe_gets_the_table_alone() {
    let table: Vec<String> =
        table(&model(Sort::Id), usize::MAX).iter().map(|row| row.text().trim_end().to_owned()).collect();
    assert_eq!(table.len(), 5);
    assert!(table[0].starts_with("TITLE ") && table[1].contains("  a   idle"), "{table:#?}");
}
