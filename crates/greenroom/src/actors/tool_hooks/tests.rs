//! The results of hooks around a call.

use greenroom_kernel::files::{Touch, Touched};
use greenroom_kernel::message::blocks_text;
use serde_json::json;

use super::*;

fn call(arguments: &str) -> ToolCall {
    ToolCall { id: "k".into(), name: "pay".into(), arguments: arguments.into() }
}

fn output(text: &str, status: ToolStatus) -> ToolOutput {
    let touched = vec![Touched { path: "a".into(), touch: Touch::Modified }];
    ToolOutput::new(ToolOutput::text(text).content, status, touched)
}

/// Formats what happens to a call.
fn shown(then: &Before) -> String {
    match then {
        Before::GoOn => "goes on".to_owned(),
        Before::With(arguments) => format!("with {arguments}"),
        Before::Instead(output) => format!("{:?}: {}", output.status, blocks_text(&output.content)),
    }
}

#[test]
fn a_call_goes_on_unless_a_hook_says_otherwise_or_fails() {
    #[track_caller]
    fn check(
        decided: Result<BeforeTool, String>,
        then: &str,
        told: Option<(HookAction, Option<&str>)>,
        warning: Option<&str>,
    ) {
        let said = format!("{decided:?}");
        let told = told.map(|(action, detail)| Told { action, detail: detail.map(str::to_owned) });
        let judged = judge_before(decided, &call("{}"));
        assert_eq!(shown(&judged.then), then, "{said}");
        assert_eq!((judged.told, judged.warning), (told, warning.map(str::to_owned)), "{said}");
    }
    check(Ok(BeforeTool::Continue), "goes on", None, None);
    let changed = Some((HookAction::Changed, Some(r#"{"sum":5}"#)));
    check(Ok(BeforeTool::Change(json!({ "sum": 5 }))), r#"with {"sum":5}"#, changed, None);
    // The reason is a clause, whatever punctuation the hook ends it with.
    let refused = Some((HookAction::Refused, Some("it is too much.")));
    let text = "Error: The call was not run: it is too much.";
    check(Ok(BeforeTool::Refuse("it is too much.".into())), text, refused, None);
    let answered = Some((HookAction::Answered, None));
    check(Ok(BeforeTool::Answer(ToolOutput::text("paid before"))), "Ok: paid before", answered, None);
    check(
        Err("it panicked: oh".into()),
        "Error: The call was not run: a before_tool hook failed: it panicked: oh.",
        Some((HookAction::Refused, Some("a before_tool hook failed: it panicked: oh"))),
        Some("the call of `pay` was not run: a before_tool hook failed: it panicked: oh"),
    );
}

#[test]
fn an_output_is_read_as_it_is_unless_a_hook_replaces_it_or_fails() {
    let kept = judge_after(Ok(AfterTool::Keep), output("paid", ToolStatus::Ok), "pay");
    assert_eq!(kept, Judged::quiet(output("paid", ToolStatus::Ok)));
    let replaced = judge_after(
        Ok(AfterTool::Replace(ToolOutput::text("done"))),
        output("secret", ToolStatus::Ok),
        "pay",
    );
    assert_eq!(replaced, Judged::told(ToolOutput::text("done"), HookAction::Replaced, None));
    let how = [
        (ToolStatus::Ok, "succeeded"),
        (ToolStatus::Error, "failed"),
        (ToolStatus::Interrupted, "was interrupted"),
    ];
    for (status, ended) in how {
        let Judged { then, told, warning } =
            judge_after(Err("it took longer than 5s".into()), output("secret", status), "pay");
        let reason = "an after_tool hook failed: it took longer than 5s";
        let text = format!("The call {ended}, and its output is withheld: {reason}.");
        assert_eq!((blocks_text(&then.content), then.status), (text, ToolStatus::Error));
        assert_eq!(then.touched, output("", status).touched, "which files it touched is no secret");
        let detail = Some(reason.to_owned());
        assert_eq!(told, Some(Told { action: HookAction::Replaced, detail }));
        assert_eq!(warning, Some(format!("the output of `pay` was withheld: {reason}")));
    }
}

#[test]
fn a_call_that_was_run_with_other_arguments_says_so() {
    let noted = |asked: &str, called: &str| {
        let mut output = ToolOutput::text("paid");
        note_changed_arguments(&mut output, &call(asked), &call(called));
        blocks_text(&output.content)
    };
    assert_eq!(noted("{}", "{}"), "paid");
    assert_eq!(
        noted("{}", r#"{"sum":5}"#),
        "[The program changed the arguments of the call to: {\"sum\":5}]\npaid"
    );
    let long = "ä".repeat(TOLD_BYTES_MAX);
    let told = noted("{}", &long);
    let cut = "ä".repeat(TOLD_BYTES_MAX / 2);
    assert_eq!(
        told,
        format!("[The program changed the arguments of the call to: {cut} … (8192 bytes in all)]\npaid")
    );
}
