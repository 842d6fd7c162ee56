//! One row per call with what matters, some lines of the result, changes with their numbers, and the full text.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;

fn texts(rows: &[Row]) -> Vec<String> {
    rows.iter().map(|row| row.text().trim_end().to_owned()).collect()
}

/// The rows of a call with these arguments and this result.
fn rows_of(name: &str, arguments: &str, status: ToolStatus, ms: u64, result: &str) -> Vec<String> {
    let mut calls = Calls::default();
    calls.start("1", name, arguments, 0);
    calls.end("1", name, status, ms, 0);
    texts(&calls.result("1", name, status, result, 60))
}

#[track_caller]
fn check(name: &str, arguments: &str, status: ToolStatus, result: &str, wanted: &[&str]) {
    assert_eq!(rows_of(name, arguments, status, 20, result), wanted, "{name} {arguments}: {result:?}");
}

#[test]
fn a_row_says_what_matters_of_the_result() {
    use ToolStatus::{Error, Interrupted, Ok};
    let path = r#"{"path":"a.rs"}"#;
    check("read", path, Ok, "1\tfn a() {\n2\t}\n", &["  ✓ read a.rs · 2 lines"]);
    check("read", path, Ok, "1\tx\n", &["  ✓ read a.rs · 1 line"]);
    let part = "9\tx\n[lines 9 to 60 of 5000; continue with offset 61]\n";
    check("read", path, Ok, part, &["  ✓ read a.rs · lines 9–60 of 5000"]);
    check("read", path, Ok, "`a.rs` is empty", &["  ✓ read a.rs · empty"]);
    check("read", path, Ok, "`a.rs`: image/png, 67 bytes", &["  ✓ read a.rs · image/png, 67 bytes"]);
    check("read", path, Error, "`a.rs` leads out\n", &["  ✗ read a.rs · failed", "      `a.rs` leads out"]);
    check("list", r#"{"path":"src"}"#, Ok, "src/a\nsrc/b/\n", &["  ✓ list src · 2 entries"]);
    check(
        "list",
        r#"{"path":"src"}"#,
        Ok,
        "`src` is empty, or all in it is ignored",
        &["  ✓ list src · empty"],
    );
    let more = "a\n[... more left out; list a subfolder, or with a smaller depth ...]\n";
    check("list", r#"{"path":"src"}"#, Ok, more, &["  ✓ list src · at least 1 entry"]);
    let search = r#"{"pattern":"main","path":"src"}"#;
    check("grep", search, Ok, "no line matches\n", &["  ✓ grep main in src · no match"]);
    check(
        "grep",
        search,
        Ok,
        "a.rs-1- // x\na.rs:2: fn main\n--\nb.rs:7: main()\n",
        &["  ✓ grep main in src · 2 matches in 2 files", "      a.rs:2: fn main", "      b.rs:7: main()"],
    );
    check("bash", r#"{"command":"make"}"#, Ok, "(no output)\n", &["  ✓ bash make · no output"]);
    check("bash", r#"{"command":"make"}"#, Ok, "cc a.c\n", &["  ✓ bash make", "      cc a.c"]);
    check(
        "bash",
        r#"{"command":"make"}"#,
        Error,
        "cc: no input\n\n[exit code 3]\n",
        &["  ✗ bash make · exit code 3", "      cc: no input", ""],
    );
    check(
        "bash",
        r#"{"command":"make"}"#,
        Interrupted,
        "a\n[cancelled]\n",
        &["  ✗ bash make · cancelled", "      a"],
    );
    // What is not known in its form is counted, and begins below.
    check("deploy", "{}", Ok, "done", &["  ✓ deploy", "      done"]);
    check("deploy", "{}", Interrupted, "", &["  ✗ deploy · interrupted"]);
    check("ask_user", "{}", Ok, "red", &["  ✓ ask_user"]);
}

#[test]
fn a_long_result_shows_some_lines_and_how_many_more_there_are() {
    let lines = |count: usize| (1..=count).map(|line| format!("line {line}\n")).collect::<String>();
    let command = r#"{"command":"make"}"#;
    let rows = rows_of("bash", command, ToolStatus::Ok, 20, &lines(120));
    assert_eq!(
        rows,
        [
            "  ✓ bash make · 120 lines", "      … 117 earlier lines · Ctrl-O", "      line 118",
            "      line 119", "      line 120"
        ]
    );
    // One that was cut for the model counts as it was.
    let cut = format!("{}[... 1000 lines, 9000 bytes left out here; tail ...]\n{}", lines(60), lines(60));
    let rows = rows_of("bash", command, ToolStatus::Ok, 20, &cut);
    assert_eq!(
        rows[..2],
        ["  ✓ bash make · 1,120 lines", "      … 1,117 earlier lines · Ctrl-O"],
        "{rows:?}"
    );
    let rows = rows_of("bash", command, ToolStatus::Ok, 20, &lines(4));
    assert_eq!(rows.len(), 5, "no line says that one more line is there: {rows:?}");
    let rows = rows_of("deploy", "{}", ToolStatus::Ok, 20, &lines(5));
    assert_eq!(
        rows,
        [
            "  ✓ deploy · 5 lines", "      line 1", "      line 2", "      line 3",
            "      … 2 more lines · Ctrl-O"
        ]
    );
}

#[test]
fn only_a_long_call_says_how_long_it_took() {
    let row = |ms| rows_of("bash", r#"{"command":"x"}"#, ToolStatus::Ok, ms, "(no output)\n").remove(0);
    assert_eq!(row(0), "  ✓ bash x · no output");
    assert_eq!(row(999), "  ✓ bash x · no output");
    assert_eq!(row(1_000), "  ✓ bash x · no output · 1.0 s");
    assert_eq!(row(125_000), "  ✓ bash x · no output · 2 min 5 s");
}

#[test]
fn a_call_is_a_line_until_its_result_is_known() {
    let mut calls = Calls::default();
    calls.start("1", "read", r#"{"path":"src/lib.rs"}"#, 1_000);
    calls.start("2", "bash", r#"{"command":"make"}"#, 1_000);
    calls.update("2", "compiling");
    let shown = |calls: &Calls| texts(&calls.rows(40, 3_500));
    let moving = |row: &str| row.replace('⠋', wheel(3_500));
    assert_eq!(shown(&calls), ["  ⠋ read src/lib.rs 2 s", "  ⠋ bash make 2 s … compiling"].map(moving));
    calls.end("1", "read", ToolStatus::Ok, 20, 0);
    assert_eq!(shown(&calls), ["  ✓ read src/lib.rs", "  ⠋ bash make 2 s … compiling"].map(moving));
    assert_eq!(
        texts(&calls.result("1", "read", ToolStatus::Ok, "1\tx", 40)),
        ["  ✓ read src/lib.rs · 1 line"]
    );
    assert_eq!(calls.rows(40, 4_000).len(), 1);
    // A run that ends takes the others along: what has ended stays.
    calls.end("2", "bash", ToolStatus::Error, 5, 0);
    calls.start("3", "late", "{}", 0);
    assert_eq!(texts(&calls.clear(40)), ["  ✗ bash make · failed"]);
    assert_eq!(calls.rows(40, 4_000), []);
    // The time in which the user was asked is not the call's.
    for (granted, wanted) in [(true, "  ✓ bash make · 2.5 s       ok"), (false, "  ✗ bash make · denied: no")]
    {
        calls.start("4", "bash", r#"{"command":"make"}"#, 0);
        calls.asks("4");
        assert_eq!(shown(&calls), ["  ? bash make waiting for you"]);
        calls.go_on("4", 50_000);
        let (status, text) = match granted {
            true => (ToolStatus::Ok, "ok"),
            false => (ToolStatus::Error, "The call was not run: the user (ada) refused it and says: no."),
        };
        calls.end("4", "bash", status, 52_500, if granted { 52_500 } else { 50_002 });
        assert_eq!(texts(&calls.result("4", "bash", status, text, 40)).join(" "), wanted);
    }
    // The chat joined the session after the call's start.
    calls.end("9", "late", ToolStatus::Interrupted, 0, 0);
    assert_eq!(
        texts(&calls.result("9", "late", ToolStatus::Interrupted, "", 40)),
        ["  ✗ late · interrupted"]
    );
}

/// The rows of an edit whose tool reported these lines.
fn changed(name: &str, arguments: &str, told: &[&str], result: &str) -> Vec<String> {
    let mut calls = Calls::default();
    calls.start("1", name, arguments, 0);
    told.iter().for_each(|line| calls.update("1", line));
    calls.end("1", name, ToolStatus::Ok, 3, 0);
    texts(&calls.result("1", name, ToolStatus::Ok, result, 60))
}

#[test]
fn an_edit_shows_line_numbers_and_what_is_around() {
    let arguments = r#"{"path":"a.rs","old":"four\n","new":"FOUR\nand\n"}"#;
    let told = ["diff 7", "@@ 98 98", " two", "-four", "+FOUR", "+and", " five", "@@ 200 201", "-x"];
    assert_eq!(
        changed("edit", arguments, &told[..1], "edited `a.rs`: 1 replacement at line 99")[0],
        "  ✓ edit a.rs · +2 −1"
    );
    let told: Vec<&str> = ["diff 8"].into_iter().chain(told.into_iter().skip(1)).collect();
    assert_eq!(
        changed("edit", arguments, &told, "edited `a.rs`"),
        [
            "  ✓ edit a.rs · +2 −2", "       98   two", "       99 - four", "       99 + FOUR",
            "      100 + and", "      101   five", "          ⋮", "      200 - x"
        ]
    );
    // After a restart, only the arguments and the result are known: the number is in the result.
    assert_eq!(
        changed("edit", arguments, &[], "edited `a.rs`: 2 replacements at lines 9, 40"),
        ["  ✓ edit a.rs · +2 −1", "       9 - four", "       9 + FOUR", "      10 + and"]
    );
    assert_eq!(changed("edit", arguments, &[], "")[1], "      - four", "an unknown number is not shown");
    // A failed call has changed nothing.
    let rows = rows_of("edit", arguments, ToolStatus::Error, 0, "`old` does not occur in it");
    assert_eq!(rows, ["  ✗ edit a.rs · failed", "      `old` does not occur in it"]);
}

#[test]
fn a_file_that_is_written_shows_what_changed_in_it() {
    let arguments = r#"{"path":"a.txt","content":"one\nTWO\n"}"#;
    let told = ["diff 4", "@@ 1 1", " one", "-two", "+TWO"];
    assert_eq!(
        changed("write", arguments, &told, "replaced `a.txt`"),
        ["  ✓ write a.txt · +1 −1", "      1   one", "      2 - two", "      2 + TWO"]
    );
    // If reported lines are missing, the call's arguments are shown.
    assert_eq!(
        changed("write", arguments, &told[..3], "replaced `a.txt`"),
        ["  ✓ write a.txt · +2", "      1 + one", "      2 + TWO"]
    );
    assert_eq!(changed("write", arguments, &["diff 0"], "replaced `a.txt`"), ["  ✓ write a.txt"]);
}

#[test]
fn what_is_folded_is_kept_whole() {
    let mut calls = Calls::default();
    let lines: Vec<String> = (0..30).map(|number| format!("line {number}")).collect();
    let arguments = serde_json::json!({ "path": "a.txt", "content": lines.join("\n") });
    calls.start("1", "write", &arguments.to_string(), 0);
    let rows = texts(&calls.result("1", "write", ToolStatus::Ok, "written", 60));
    assert_eq!(rows.len(), 1 + DIFF_LINES_MAX + 1);
    assert_eq!(rows.last().unwrap(), "      … 14 more lines · Ctrl-O");
    let whole = texts(&calls.kept().back().unwrap().rows(60));
    assert_eq!(
        (whole.len(), whole[0].as_str(), whole.last().unwrap().as_str()),
        (32, "    path: a.txt", "    written")
    );
    calls.thought("thought for 2 s", "why\nnot");
    assert_eq!(texts(&calls.kept().back().unwrap().rows(60)), ["    why", "    not"]);
    // A command that its row cuts off is shown whole.
    let command = format!("echo {}; rm -rf /tmp/x\necho done", "a".repeat(100));
    calls.start("2", "bash", &serde_json::json!({ "command": command }).to_string(), 0);
    let rows = texts(&calls.result("2", "bash", ToolStatus::Ok, "(no output)", 40));
    assert!(rows[0].ends_with("… · no output") && rows.len() == 1, "{rows:?}");
    let whole: String =
        texts(&calls.kept().back().unwrap().rows(40)).iter().map(|row| row.trim_start()).collect();
    assert!(whole.contains("; rm -rf /tmp/xecho done"), "{whole:?}");
}
