//! Hostile calls at terminals of every size: what runs is readable before it is approved.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;

/// The sizes of the dialog: columns, rows. The third is a terminal of 20 × 6 with its status row and a hint.
const SIZES: [(usize, usize); 6] = [(79, 22), (29, 10), (19, 4), (19, 5), (199, 58), (45, 9)];

struct Case {
    name: &'static str,
    text: &'static str,
    approval: Approval,
    /// What the screen must have shown, over all pages.
    shown: Vec<String>,
}

fn command(name: &'static str, command: &str, shown: &[&str]) -> Case {
    let mut approval = Approval::new("bash", json!({ "command": command }));
    approval.parts = vec![command.to_owned()];
    approval.folder = Some("/srv/project".to_owned());
    let shown = shown.iter().map(|part| (*part).to_owned()).collect();
    Case { name, text: "Run `something …`?", approval, shown }
}

fn change(name: &'static str, preview: &str, shown: &[&str]) -> Case {
    let mut approval = Approval::new("write", json!({ "path": "a", "content": "c" }));
    approval.set_preview(Some(preview.to_owned()));
    let shown = shown.iter().map(|part| (*part).to_owned()).collect();
    Case { name, text: "Write a?", approval, shown }
}

fn cases() -> Vec<Case> {
    let long = format!("echo {}; rm -rf ~", "x".repeat(10_000));
    let lines =
        format!("{}\nrm -rf ~", (0..3_000).map(|n| format!("echo {n}")).collect::<Vec<_>>().join("\n"));
    let blanks = format!("ls {}; rm -rf ~", " ".repeat(5_000));
    let breaks = format!("ls{}rm -rf ~", "\n".repeat(400));
    let wide = format!("echo {}; rm -rf ~", "日本語".repeat(700));
    let unreadable = format!("echo $(( '{}; rm -rf ~", "y".repeat(2_000));
    let diff = (0..5_000).map(|n| format!("+line {n}")).collect::<Vec<_>>().join("\n");
    let wide_line = format!("+{}rm -rf ~", "z".repeat(5_000));
    let marks = format!("rm a{} -rf ~", "\u{301}".repeat(3));
    let mut cases = vec![
        command("10,000 characters", &long, &[&long]),
        command("3,000 lines", &lines, &["\necho 0\necho 1\n", "\necho 2999\nrm -rf ~\n"]),
        command("blanks before the end", &blanks, &[&blanks]),
        command("empty lines before the end", &breaks, &[&breaks]),
        command("wide characters", &wide, &[&wide]),
        command("cannot be parsed", &unreadable, &[&unreadable]),
        command(
            "escape sequences",
            "\x1b]0;t\x07\x1b[2J\x1b[8mrm -rf ~\x1b[0m\u{9b}1A",
            &[r"\u{1b}]0;t\u{7}\u{1b}[2J\u{1b}[8mrm -rf ~\u{1b}[0m\u{9b}1A"],
        ),
        command(
            "a link",
            "\x1b]8;;http://x\x1b\\ls\x1b]8;;\x1b\\",
            &[r"\u{1b}]8;;http://x\u{1b}\ls\u{1b}]8;;"],
        ),
        command("right to left", "echo \u{202e}~ fr- mr\u{202c}", &[r"echo \u{202e}~ fr- mr\u{202c}"]),
        command("isolates", "a\u{2066}b\u{2069}\u{200f}\u{61c}", &[r"a\u{2066}b\u{2069}\u{200f}\u{61c}"]),
        command("overwritten", "rm -rf ~\recho hi\r\nls", &["rm -rf ~\\u{d}echo hi\\u{d}\nls"]),
        command("backspaces", "rm -rf ~\u{8}\u{8}\u{8}\0", &[r"rm -rf ~\u{8}\u{8}\u{8}\u{0}"]),
        command(
            "invisible",
            "r\u{200b}m\u{200d}\u{ad} \u{2060}x\u{fe0f}",
            &[r"r\u{200b}m\u{200d}\u{ad} \u{2060}x\u{fe0f}"],
        ),
        command(
            "odd blanks",
            "rm\u{a0}-rf\u{3000}~\u{2800}\u{2009}",
            &[r"rm\u{a0}-rf\u{3000}~\u{2800}\u{2009}"],
        ),
        command("tags", "ls \u{e0072}\u{e006d}\u{feff}", &[r"ls \u{e0072}\u{e006d}\u{feff}"]),
        command("marks that pile up", &marks, &["rm a\u{301}\u{301}\\u{301} -rf ~"]),
        command(
            "the dialog's own text",
            "ls\n    in /elsewhere\n  ❯ 1. Yes\n",
            &["│ ls\n│     in /elsewhere\n│   ❯ 1. Yes\n", "\nin /srv/project"],
        ),
        change("5,000 lines", &diff, &["\n+line 0\n+line 1\n", "\n+line 4998\n+line 4999\n"]),
        change("a long line", &wide_line, &[&wide_line]),
        change("sequences in a change", "-a\x1b[2J\n+b\u{202e}c\r", &["-a\\u{1b}[2J\n+b\\u{202e}c\\u{d}\n"]),
    ];
    let mut parts = command("50 parts", "a; b", &[]);
    parts.approval.parts = (0..50).map(|n| format!("touch file-{n}; \n rm {n}")).collect();
    parts.shown = (0..50).map(|n| format!("touch file-{n}; \\u{{a}} rm {n}\n")).collect();
    cases.push(parts);
    let mut rules = command("50 rules", "a", &[]);
    rules.approval.rules = (0..50).map(|n| format!("bash(some-command-{n} *)")).collect();
    rules.shown = (0..50).map(|n| format!("allows bash(some-command-{n} *)")).collect();
    cases.push(rules);
    let other =
        Approval::new("pay", json!({ "to": "Ada\u{202e}\x1b[2J", "why": "x".repeat(5_000), "z": "end" }));
    let shown = ["Ada\\u{202e}\\u001b[2J", &"x".repeat(5_000), r#""z": "end""#].map(str::to_owned).to_vec();
    cases.push(Case { name: "another tool", text: "Call `pay`?", approval: other, shown });
    let mut limit = Approval::new("bash", json!({ "command": "ls", "timeout_ms": 77 }));
    limit.parts = vec!["ls".to_owned()];
    limit.why = Some(format!("{}END", "w".repeat(3_000)));
    let shown = vec![r#"{"timeout_ms":77}"#.to_owned(), format!("{}END", "w".repeat(3_000))];
    cases.push(Case { name: "a long reason", text: "Run `ls`?", approval: limit, shown });
    cases
}

/// Presses a key, and nothing for a moment.
fn press(form: &mut Form, code: KeyCode) -> Result<AskOutcome, String> {
    let outcome = form.key(KeyEvent::from(code), 0, false);
    let due = form.due(MOMENT_MS);
    form.held = None;
    due.unwrap_or(outcome)
}

/// Tries to approve, as a hasty user would.
fn approves(form: &mut Form) -> Result<AskOutcome, String> {
    press(form, KeyCode::Char('1'))
}

fn foot(columns: usize) -> Vec<Row> {
    vec![Row::new("a number or ↑ ↓, then Enter · Esc: later", Look::DIM).cut(columns)]
}

/// Joins rows of the call into lines, without the dialog's indentation: once with the rows of a line joined, and once
/// with all joined.
fn joined(rows: &[Row], columns: usize) -> (String, String) {
    let (mut text, mut all) = ("\n".to_owned(), String::new());
    for row in rows {
        let row = row.text();
        let row: String = if columns < 30 { row } else { row.chars().skip(4).collect() };
        match (row.strip_prefix(BAR), row.strip_prefix(BAR_ON)) {
            (_, Some(on)) => {
                text.push_str(on);
                all.push_str(on);
            }
            (Some(line), _) => {
                text.push_str(&format!("\n{BAR}{line}"));
                all.push_str(line);
            }
            (None, None) => {
                text.push_str(&format!("\n{row}"));
                all.push_str(&row);
            }
        }
    }
    text.push('\n');
    (text, all)
}

const BAR: &str = "│ ";
const BAR_ON: &str = "┊ ";

/// Reads a dialog page by page. Returns the number of pages.
fn check(case: &Case, (columns, rows): (usize, usize)) -> usize {
    let at = || format!("{} at {columns} × {rows}", case.name);
    let mut form = Form::new(case.text, &case.approval);
    assert!(approves(&mut form).is_err(), "{}: nothing was drawn yet", at());
    let (mut pages, mut read): (usize, Vec<Row>) = (0, Vec::new());
    loop {
        let (drawn, cursor) = form.layout(columns, rows, foot(columns));
        pages += 1;
        assert!(drawn.len() <= rows && cursor.0 < drawn.len(), "{}: {} rows, {cursor:?}", at(), drawn.len());
        for row in &drawn {
            assert!(row.width() <= columns, "{}: {row:?}", at());
            let is_safe = |c: char| {
                !(c.is_control()
                    || matches!(c, '\u{a0}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'))
            };
            assert!(row.text().chars().all(is_safe), "{}: {row:?}", at());
        }
        let (first, end) = (form.shown.first, form.shown.end());
        assert!(first <= read.len() && (end > read.len() || end == form.shown.rows.len()), "{}: a gap", at());
        assert_eq!(
            drawn.get(..end - first),
            form.shown.rows.get(first..end),
            "{}: the call comes first",
            at()
        );
        read.extend_from_slice(&form.shown.rows[read.len().min(end)..end]);
        let missing = form.shown.rows.len() - read.len();
        assert_eq!(form.shown.unseen(), missing, "{}", at());
        if missing == 0 {
            break;
        }
        let screen = drawn.iter().map(Row::text).collect::<Vec<_>>().join("\n");
        assert!(screen.contains(&format!("⋮ {missing}")), "{}: {missing} are missing in\n{screen}", at());
        let is_short = screen.contains("an answer") || !screen.contains("No, and");
        assert!(is_short || screen.contains("1. Yes (scroll"), "{}: {screen}", at());
        for choice in ['1', '2'] {
            if choice == '2' && case.approval.rules.is_empty() {
                continue;
            }
            let tried = press(&mut form, KeyCode::Char(choice));
            assert!(tried.is_err(), "{}: {choice} with {missing} rows unseen gives {tried:?}", at());
        }
        press(&mut form, KeyCode::Char(' ')).unwrap();
        assert!(pages < 20_000, "{}: it does not end", at());
    }
    let (text, all) = joined(&read, columns);
    let quoted = text.replace("\n│ ", "\n");
    for part in &case.shown {
        let is_shown = quoted.contains(part) || all.contains(part) || text.contains(part);
        assert!(is_shown, "{}: {part:.200?} is not in {quoted:.3000?}", at());
    }
    assert_eq!(approves(&mut form), Ok(AskOutcome::Answered(json!("yes"))), "{}", at());
    pages
}

#[test]
fn a_hostile_call_is_read_whole_before_it_is_approved() {
    let (mut checked, mut pages) = (0, 0);
    for case in cases() {
        for size in SIZES {
            pages += check(&case, size);
            checked += 1;
        }
    }
    assert!(checked >= 140 && pages > 10_000, "{checked} dialogs with {pages} pages");
}

#[test]
fn the_end_may_be_read_first_and_what_was_passed_over_is_counted() {
    let case = &cases()[1];
    let mut form = Form::new(case.text, &case.approval);
    form.layout(79, 20, foot(79));
    press(&mut form, KeyCode::End).unwrap();
    assert!(approves(&mut form).is_err(), "the end is not drawn yet");
    let (drawn, _) = form.layout(79, 20, foot(79));
    let screen = drawn.iter().map(Row::text).collect::<Vec<_>>().join("\n");
    assert!(screen.contains("rm -rf ~") && screen.contains("rows before were not seen"), "{screen}");
    assert_eq!(approves(&mut form), Ok(AskOutcome::Answered(json!("yes"))));
    // In another width it is another text, which was not read.
    form.layout(60, 20, foot(60));
    assert!(approves(&mut form).is_err());
    press(&mut form, KeyCode::PageDown).unwrap();
    press(&mut form, KeyCode::Home).unwrap();
    assert_eq!(form.shown.first, 0);
}

#[test]
fn no_needs_no_reading() {
    let case = &cases()[0];
    let mut form = Form::new(case.text, &case.approval);
    assert_eq!(press(&mut form, KeyCode::Char('3')), Ok(AskOutcome::Refused(json!("no"))));
    press(&mut form, KeyCode::Char('4')).unwrap();
    for c in "use git clean".chars() {
        press(&mut form, KeyCode::Char(c)).unwrap();
    }
    assert_eq!(press(&mut form, KeyCode::Enter), Ok(AskOutcome::Answered(json!({ "no": "use git clean" }))));
}

#[test]
fn a_terminal_without_room_approves_nothing() {
    let case = &cases()[0];
    for rows in 0..=2 {
        let mut form = Form::new(case.text, &case.approval);
        let (drawn, _) = form.layout(19, rows, foot(19));
        assert!(drawn.len() <= rows.max(1), "{rows}");
        for _ in 0..3_000 {
            press(&mut form, KeyCode::Char(' ')).unwrap();
            form.layout(19, rows, foot(19));
        }
        let refused = approves(&mut form);
        assert!(refused.as_ref().is_err_and(|why| why.contains("too small")), "{rows}: {refused:?}");
    }
}
