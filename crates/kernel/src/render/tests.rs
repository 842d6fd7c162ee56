//! The words around summaries and commands, exactly.

use super::*;

#[test]
fn a_summary_stands_between_tags_after_its_leading_sentence() {
    assert_eq!(summary_text("Goal"), format!("{SUMMARY_LEAD}\n\n<summary>\nGoal\n</summary>"));
    assert_eq!(branch_summary_text("Goal"), format!("{BRANCH_LEAD}\n\n<summary>\nGoal\n</summary>"));
}

#[test]
fn a_command_is_told_with_its_output_and_how_it_ended() {
    let check = |exit_code, cancelled, truncated, expect: &str| {
        let (command, output) = ("ls".to_owned(), "a\nb\n\n".to_owned());
        let shell = Shell { command, output, exit_code, cancelled, truncated, excluded: false };
        assert_eq!(shell_text(&shell), format!("I ran `ls`.\n```\na\nb\n```{expect}"));
    };
    check(Some(0), false, false, "");
    check(None, false, false, "");
    check(Some(2), false, false, "\n(Exit code 2.)");
    check(Some(2), true, false, "\n(The command was cancelled.)");
    check(Some(0), false, true, "\n(The output was cut.)");
    check(Some(-1), false, true, "\n(The output was cut.)\n(Exit code -1.)");
}
