//! A line a call, what changes, and the whole on request.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;

fn texts(rows: &[Row]) -> Vec<String> {
    rows.iter().map(|row| row.text().trim_end().to_owned()).collect()
}

#[test]
fn a_call_is_a_line_while_it_runs_and_one_when_it_has_ended() {
    let mut calls = Calls::default();
    calls.start("1", "read", r#"{"path":"src/lib.rs"}"#, 1_000);
    calls.start("2", "bash", r#"{"command":"make"}"#, 1_000);
    calls.update("2", "compiling");
    assert_eq!(
        texts(&calls.rows(40, 3_500)),
        ["  ⠋ read src/lib.rs 2 s", "  ⠋ bash make 2 s … compiling"]
            .map(|row| row.replace('⠋', wheel(3_500)))
    );
    assert_eq!(texts(&calls.end("1", "read", ToolStatus::Ok, 20, 40)), ["  ✓ read src/lib.rs"]);
    assert_eq!(texts(&calls.end("2", "bash", ToolStatus::Error, 1_200, 40)), ["  ✗ bash make failed 1.2 s"]);
    assert_eq!(calls.rows(40, 4_000), []);
    assert_eq!(texts(&calls.end("9", "late", ToolStatus::Interrupted, 0, 40)), ["  ✗ late interrupted"]);
}

#[test]
fn an_edit_shows_what_goes_and_what_comes() {
    let mut calls = Calls::default();
    let arguments = serde_json::json!({
        "path": "a.rs", "old": "one\ntwo\nthree\nfour\nfive\nsix\n", "new": "one\ntwo\nthree\nFOUR\nfive\nsix\n",
    });
    calls.start("1", "edit", &arguments.to_string(), 0);
    assert_eq!(
        texts(&calls.end("1", "edit", ToolStatus::Ok, 0, 40)),
        [
            "  ✓ edit a.rs",
            "        two",
            "        three",
            "      - four",
            "      + FOUR",
            "        five",
            "        six"
        ]
    );
    // One that failed has changed nothing.
    calls.start("2", "edit", &arguments.to_string(), 0);
    assert_eq!(texts(&calls.end("2", "edit", ToolStatus::Error, 0, 40)), ["  ✗ edit a.rs failed"]);
}

#[test]
fn what_is_folded_is_shown_whole_on_request_the_newest_first() {
    let mut calls = Calls::default();
    let lines: Vec<String> = (0..30).map(|number| format!("line {number}")).collect();
    let arguments = serde_json::json!({ "path": "a.txt", "content": lines.join("\n") });
    calls.start("1", "write", &arguments.to_string(), 0);
    let rows = texts(&calls.end("1", "write", ToolStatus::Ok, 0, 60));
    assert_eq!(rows.len(), 1 + DIFF_LINES_MAX + 1);
    assert_eq!(rows.last().unwrap(), "      … 14 more lines · Ctrl-O shows all");
    calls.result("1", "written");
    calls.thought("thought for 2 s", "why\nnot");
    let thought = texts(&calls.expand(60).unwrap());
    assert_eq!(thought, ["  ▾ thought for 2 s", "    why", "    not"]);
    let all = texts(&calls.expand(60).unwrap());
    assert_eq!((all.len(), all.last().unwrap().as_str()), (32, "    written"));
    assert_eq!(calls.expand(60), None);
}
