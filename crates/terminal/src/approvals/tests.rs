//! The lines of an approval.

use serde_json::json;

use super::*;

fn shown(text: &str, approval: &Approval, width: usize) -> String {
    let rows = lines(text, approval, true).into_iter().flat_map(|line| line.rows(width));
    rows.map(|row| row.text()).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_is_shown_depends_on_what_the_question_shows_already() {
    let bash = |arguments: Value, parts: &[&str]| {
        let mut approval = Approval::new("bash", arguments);
        approval.parts = parts.iter().map(|part| (*part).to_owned()).collect();
        approval
    };
    let rows: [(&str, Approval, &str); 7] = [
        ("Run `ls x`?", bash(json!({ "command": "ls x" }), &["ls x"]), "Run `ls x`?"),
        ("Run `ls x`?", bash(json!({ "command": "ls x\n" }), &["ls x"]), "Run `ls x`?"),
        (
            "Run `rm x`?",
            bash(json!({ "command": "ls && rm x" }), &["rm x"]),
            "Run `rm x`?\nthe whole command (10 characters in 1 line):\n│ ls && rm x",
        ),
        (
            "Run `ls rm`?",
            bash(json!({ "command": "ls\nrm" }), &["ls\nrm"]),
            "Run `ls rm`?\nthe whole command (5 characters in 2 lines):\n│ ls\n│ rm",
        ),
        (
            "Run `a … · b …`?",
            bash(json!({ "command": "a 1; b 2", "timeout_ms": 5 }), &["a 1", "b 2"]),
            "Run `a … · b …`?\nthe whole command (8 characters in 1 line):\n│ a 1; b 2\n│ {\"timeout_ms\":5}\nneeds the approval \
             (2):\n│ a 1\n│ b 2",
        ),
        ("Call `pay`?", Approval::new("pay", json!({ "euros": 5 })), "Call `pay`?\n│ {\"euros\":5}"),
        (
            "Call `read`?",
            Approval::new("read", json!("x … (9 bytes in all)")),
            "Call `read`?\n│ x … (9 bytes in all)",
        ),
    ];
    for (text, approval, expected) in rows {
        assert_eq!(shown(text, &approval, usize::MAX), expected);
    }
}

#[test]
fn a_line_that_does_not_fit_goes_on_behind_another_bar() {
    let mut approval = Approval::new("write", json!({}));
    approval.preview = Some("+abcdefghij\n-x".to_owned());
    (approval.folder, approval.why) = (Some("/srv".to_owned()), Some("a rule".to_owned()));
    approval.rules = vec!["write(a)".to_owned()];
    let expected = "Write\n?\nbecaus\ne a ru\nle\n│ +abc\n┊ defg\n┊ hij\n│ -x\nin /sr\nv\n\"alway\ns\" all\nows wr\nite(a)";
    assert_eq!(shown("Write\n?", &approval, 6), expected);
}
