//! One line per call, changes, and the full text on request.

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
    assert_eq!(texts(&calls.end("1", "read", ToolStatus::Ok, Some(20), 40)), ["  ✓ read src/lib.rs 20 ms"]);
    assert_eq!(
        texts(&calls.end("2", "bash", ToolStatus::Error, Some(1_200), 40)),
        ["  ✗ bash make failed 1.2 s"]
    );
    assert_eq!(calls.rows(40, 4_000), []);
    assert_eq!(
        texts(&calls.end("9", "late", ToolStatus::Interrupted, Some(0), 40)),
        ["  ✗ late interrupted 0 ms"]
    );
}

#[test]
fn an_edit_shows_what_goes_and_what_comes() {
    let mut calls = Calls::default();
    let arguments = serde_json::json!({
        "path": "a.rs", "old": "one\ntwo\nthree\nfour\nfive\nsix\n", "new": "one\ntwo\nthree\nFOUR\nfive\nsix\n",
    });
    calls.start("1", "edit", &arguments.to_string(), 0);
    assert_eq!(
        texts(&calls.end("1", "edit", ToolStatus::Ok, Some(0), 40)),
        [
            "  ✓ edit a.rs 0 ms",
            "        two",
            "        three",
            "      - four",
            "      + FOUR",
            "        five",
            "        six"
        ]
    );
    // A failed call has changed nothing.
    calls.start("2", "edit", &arguments.to_string(), 0);
    assert_eq!(texts(&calls.end("2", "edit", ToolStatus::Error, Some(0), 40)), ["  ✗ edit a.rs failed 0 ms"]);
}

#[test]
fn what_is_folded_is_shown_whole_on_request_the_newest_first() {
    let mut calls = Calls::default();
    let lines: Vec<String> = (0..30).map(|number| format!("line {number}")).collect();
    let arguments = serde_json::json!({ "path": "a.txt", "content": lines.join("\n") });
    calls.start("1", "write", &arguments.to_string(), 0);
    let rows = texts(&calls.end("1", "write", ToolStatus::Ok, Some(0), 60));
    assert_eq!(rows.len(), 1 + DIFF_LINES_MAX + 1);
    assert_eq!(rows.last().unwrap(), "      … 14 more lines · Ctrl-O shows all");
    assert_eq!(calls.result("1", "written", 60), None);
    calls.thought("thought for 2 s", "why\nnot");
    let thought = texts(&calls.expand(60).unwrap());
    assert_eq!(thought, ["  ▾ thought for 2 s", "    why", "    not"]);
    let all = texts(&calls.expand(60).unwrap());
    assert_eq!((all.len(), all.last().unwrap().as_str()), (33, "    written"));
    assert_eq!(all[1], "    path: a.txt");
    assert_eq!(calls.expand(60), None);
}

#[test]
fn a_call_that_failed_says_why_in_a_row() {
    let mut calls = Calls::default();
    for (id, arguments) in [("1", r#"{"command":"make"}"#), ("2", r#"{"path":"../x"}"#)] {
        calls.start(id, if id == "1" { "bash" } else { "read" }, arguments, 0);
    }
    calls.end("1", "bash", ToolStatus::Error, Some(5), 60);
    calls.end("2", "read", ToolStatus::Error, Some(5), 60);
    let reason = |calls: &mut Calls, id: &str, text: &str| {
        calls.result(id, text, 60).map(|row| row.text().trim_end().to_owned())
    };
    let printed = "cc: no input\n\n[exit code 3]\n";
    assert_eq!(reason(&mut calls, "1", printed).unwrap(), "      bash make: exit code 3");
    assert_eq!(reason(&mut calls, "2", "`../x` leads out").unwrap(), "      `../x` leads out");
    assert_eq!(reason(&mut calls, "2", "`../x` leads out"), None, "it is said once");
}

#[test]
fn a_long_command_is_seen_whole_on_request() {
    let mut calls = Calls::default();
    let command = format!("echo {}; rm -rf /tmp/x\necho done", "a".repeat(100));
    calls.start("1", "bash", &serde_json::json!({ "command": command }).to_string(), 0);
    let line = texts(&calls.end("1", "bash", ToolStatus::Ok, Some(5), 40));
    assert!(line[0].ends_with("… 5 ms") && line.len() == 1, "{line:?}");
    let whole = texts(&calls.expand(40).unwrap());
    let joined: String = whole.iter().map(|row| row.trim_start()).collect();
    assert!(joined.contains("; rm -rf /tmp/xecho done"), "{whole:?}");
}

#[test]
fn a_file_that_is_written_anew_shows_what_changed_in_it() {
    let mut calls = Calls::default();
    let arguments = r#"{"path":"a.txt","content":"one\nTWO\n"}"#;
    calls.start("1", "write", arguments, 0);
    for line in ["diff 3", " one", "-two", "+TWO"] {
        calls.update("1", line);
    }
    let rows = texts(&calls.end("1", "write", ToolStatus::Ok, Some(3), 60));
    assert_eq!(rows, ["  ✓ write a.txt 3 ms", "        one", "      - two", "      + TWO"]);
    // If reported lines are missing, the call's arguments are shown.
    calls.start("2", "write", arguments, 0);
    calls.update("2", "diff 3");
    calls.update("2", "-two");
    let rows = texts(&calls.end("2", "write", ToolStatus::Ok, Some(3), 60));
    assert_eq!(rows, ["  ✓ write a.txt 3 ms", "      + one", "      + TWO"]);
}
