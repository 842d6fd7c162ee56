//! The entries for lines of Codex' files.

use greenroom_kernel::entry::{Compaction, EntryKind, Trigger};
use greenroom_kernel::files::{Touch, Touched};
use greenroom_kernel::message::{AssistantMessage, Part, StopReason, ToolStatus, Usage};
use greenroom_kernel::path::project;
use serde_json::{Value, json};

use super::NO_SUMMARY;
use crate::tests::{corpus, outline, result_of, told};
use crate::{Format, FormatError, ImportOptions, Imported, import, recognise};

/// Imports a file with this line after its header.
fn read(lines: &[Value], repair: bool) -> Imported {
    let mut all = vec![line("session_meta", json!({"id": "s", "cwd": "/"}))];
    all.extend(lines.iter().cloned());
    let text: Vec<String> = all.iter().map(Value::to_string).collect();
    let imported = import(&text.join("\n"), ImportOptions { repair }).expect("a file of Codex");
    assert_eq!((imported.format, imported.session_id.as_deref()), (Format::Codex, Some("s")));
    imported
}

fn line(kind: &str, payload: Value) -> Value {
    let mut line = json!({"timestamp": "2025-09-25T15:49:46.552Z", "type": kind});
    line["payload"] = payload;
    line
}

fn item(payload: Value) -> Value {
    line("response_item", payload)
}

fn said(role: &str, text: &str) -> Value {
    let kind = if role == "assistant" { "output_text" } else { "input_text" };
    item(json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]}))
}

fn thought(text: &str) -> Value {
    let summary = json!([{"type": "summary_text", "text": text}]);
    item(json!({"type": "reasoning", "summary": summary, "content": null, "encrypted_content": "gAAA"}))
}

fn call(id: &str) -> Value {
    item(
        json!({"type": "function_call", "name": "shell", "arguments": "{\"command\":[\"ls\"]}", "call_id": id}),
    )
}

fn result(id: &str, output: Value) -> Value {
    let mut result = json!({"type": "function_call_output", "call_id": id});
    result["output"] = output;
    item(result)
}

fn event(kind: &str, message: &str) -> Value {
    line("event_msg", json!({"type": kind, "message": message, "text": message}))
}

/// A count of tokens: those of the last answer, and those of all so far.
fn counted(input: u64, output: u64, total: u64) -> Value {
    let last = json!({"input_tokens": input, "cached_input_tokens": 2, "output_tokens": output,
        "reasoning_output_tokens": 1, "total_tokens": input + output});
    let info = json!({"total_token_usage": {"total_tokens": total}, "last_token_usage": last});
    line("event_msg", json!({"type": "token_count", "info": info, "rate_limits": {"used": total}}))
}

/// Checks the path of a file, as [`outline`] writes it, and that nothing was skipped or broken.
fn check(lines: &[Value], expected: &str) -> Imported {
    let imported = read(lines, false);
    assert_eq!(outline(&imported.path()), expected);
    assert_eq!(
        (imported.skipped, imported.path().len()),
        (0, imported.entries.len()),
        "{:?}",
        imported.warnings
    );
    assert_eq!(read(lines, true).repaired, 0, "nothing is broken");
    imported
}

fn answers(imported: &Imported) -> Vec<&AssistantMessage> {
    imported.entries.iter().filter_map(|entry| entry.kind.as_answer()).collect()
}

#[test]
fn files_are_recognised_by_their_first_line() {
    let header = line("session_meta", json!({"id": "s"})).to_string();
    let user = said("user", "hi").to_string();
    for (text, expected) in [
        (header.clone(), Ok(Format::Codex)),
        (format!("{{cut\n{header}\n{user}"), Ok(Format::Codex)),
        (format!("{user}\n{header}"), Err(FormatError::Unrecognised)),
    ] {
        assert_eq!(recognise(&text), expected, "{text}");
    }
    assert_eq!(Format::Codex.as_str(), "codex");
}

#[test]
fn the_items_of_an_answer_are_one_entry() {
    let lines = [
        said("developer", "rules"),
        said("user", "<environment_context>\n<cwd>/</cwd>\n</environment_context>"),
        said("user", "<permissions instructions>all</permissions instructions>"),
        said("user", "<user_instructions>be brief</user_instructions>"),
        said("user", "hi"),
        event("user_message", "hi"),
        line("turn_context", json!({"model": "gpt-x"})),
        event("agent_reasoning", "hm"),
        thought("hm"),
        item(json!({"type": "reasoning", "summary": [], "encrypted_content": "gAAA"})),
        said("assistant", "let me"),
        event("agent_message", "let me"),
        call("c1"),
        call("c2"),
        item(json!({"type": "web_search_call", "status": "completed"})),
        result("c1", json!("one")),
        result("c2", json!("two")),
        line("turn_context", json!({"model": "gpt-y"})),
        thought("so"),
        said("assistant", "done"),
        said("user", "<environment_context>x</environment_context> is what?"),
    ];
    let imported = check(
        &lines,
        "user(hi) answer(hm let me c1 c2) result(c1: one) result(c2: two) answer(so done) \
         user(<environment_context>x</environment_context> is what?)",
    );
    assert_eq!(imported.warnings, Vec::<String>::new());
    assert_eq!((imported.title.as_deref(), imported.entries[0].at_ms), (None, 1_758_815_386_552));
    let answers = answers(&imported);
    assert_eq!(answers[0].content[0], Part::Reasoning("hm".into()));
    assert_eq!(answers[0].content[1], Part::Text("let me".into()));
    let header = |answer: &AssistantMessage| (answer.provider.clone(), answer.model.clone(), answer.stop);
    assert_eq!(header(answers[0]), ("openai".into(), "gpt-x".into(), StopReason::ToolCalls));
    assert_eq!(header(answers[1]), ("openai".into(), "gpt-y".into(), StopReason::Stop));
}

#[test]
fn each_count_belongs_to_one_answer() {
    let user = || said("user", "hi");
    let done = || said("assistant", "done");
    let out = || result("c", json!("out"));
    let none = line("event_msg", json!({"type": "token_count", "info": null}));
    let (first, second) = (counted(10, 3, 13), counted(20, 4, 37));
    let both = [Some(13), Some(24)];
    for (order, lines, expected) in [
        ("behind the items", vec![call("c"), first.clone(), out(), done(), second.clone()], both),
        ("before the items", vec![first.clone(), call("c"), out(), second.clone(), done()], both),
        ("behind the results", vec![call("c"), out(), first.clone(), done(), second.clone()], both),
        ("repeated", vec![call("c"), first.clone(), none, out(), first.clone(), done()], [Some(13), None]),
        (
            "equal, but another",
            vec![call("c"), first.clone(), out(), counted(10, 3, 26), done()],
            [Some(13), Some(13)],
        ),
        ("of an empty answer", vec![call("c"), out(), user(), first.clone(), done()], [None, Some(13)]),
        ("zero", vec![call("c"), counted(0, 0, 9), out(), done(), second.clone()], [None, Some(24)]),
    ] {
        let mut all = vec![user()];
        all.extend(lines);
        let imported = read(&all, false);
        let told: Vec<Option<u64>> =
            answers(&imported).iter().map(|answer| answer.usage.map(|usage| usage.total_tokens())).collect();
        assert_eq!(told, expected, "{order}");
    }
    let imported = read(&[done(), first], false);
    let usage = Usage {
        input_tokens: 10,
        cached_tokens: 2,
        output_tokens: 3,
        reasoning_tokens: 1,
        ..Usage::default()
    };
    assert_eq!(answers(&imported)[0].usage, Some(usage));
}

#[test]
fn results() {
    let gif = "data:image/gif;base64,R0lGODlhLi4u";
    let nested = |code: i64| json!(json!({"output": "out", "metadata": {"exit_code": code}}).to_string());
    let failed = "Exit code: 2\nWall time: 0 seconds\nOutput:\nno";
    for (output, expected, status) in [
        (json!("Plan updated"), vec!["Plan updated"], ToolStatus::Ok),
        (nested(0), vec!["out"], ToolStatus::Ok),
        (nested(1), vec!["out"], ToolStatus::Error),
        (json!("{\"a\":1}"), vec!["{\"a\":1}"], ToolStatus::Ok),
        (json!(failed), vec![failed], ToolStatus::Error),
        (json!("Exit code: 0\nOutput:"), vec!["Exit code: 0\nOutput:"], ToolStatus::Ok),
        (json!({"content": "no", "success": false}), vec!["no"], ToolStatus::Error),
        (json!({"content": "yes", "success": true}), vec!["yes"], ToolStatus::Ok),
        (
            json!([{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": gif}, {"type": "x"}]),
            vec!["see", "image/gif"],
            ToolStatus::Ok,
        ),
        (
            json!([{"type": "input_image", "image_url": "https://example.org"}]),
            vec!["[an image that could not be read]"],
            ToolStatus::Ok,
        ),
        (json!(null), vec![], ToolStatus::Ok),
    ] {
        let imported = read(&[call("c"), result("c", output)], false);
        let result = result_of(&imported.entries[1]);
        assert_eq!(
            (told(&result.content), result.status, result.tool_name.as_str()),
            (expected, status, "shell")
        );
    }
}

#[test]
fn other_calls_and_the_files_of_patches() {
    let patch = "*** Begin Patch\n*** Update File: a.rs\n*** Move to: b.rs\n@@\n-*** x\n*** Add File: c.rs\n+1\n\
                 *** Delete File: d.rs\n*** End Patch";
    let paths = ["a.rs", "b.rs", "c.rs", "d.rs"];
    let custom = json!({"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": patch});
    let function = |name: &str, arguments: Value| json!({"type": "function_call", "call_id": "c", "name": name, "arguments": arguments.to_string()});
    let action = json!({"type": "exec", "command": ["ls"]});
    let local = json!({"type": "local_shell_call", "call_id": "c", "action": action});
    for (call, name, arguments, touched) in [
        (custom, "apply_patch", json!({"input": patch}), &paths[..]),
        (
            function("apply_patch", json!({"input": patch})),
            "apply_patch",
            json!({"input": patch}),
            &paths[..],
        ),
        (
            function("shell", json!({"command": ["apply_patch", patch]})),
            "shell",
            json!({"command": ["apply_patch", patch]}),
            &paths[..],
        ),
        (
            function("shell", json!({"command": ["cat", patch]})),
            "shell",
            json!({"command": ["cat", patch]}),
            &[],
        ),
        (local, "local_shell", action, &[]),
    ] {
        for (output, is_ok) in [("Success", true), ("Exit code: 1", false)] {
            let result = item(json!({"type": "custom_tool_call_output", "call_id": "c", "output": output}));
            let imported = read(&[item(call.clone()), result], false);
            let called = answers(&imported)[0].tool_calls().next().expect("a call").clone();
            let given: Value = serde_json::from_str(&called.arguments).expect("JSON");
            assert_eq!((called.name.as_str(), &given), (name, &arguments));
            let result = result_of(&imported.entries[1]);
            let file = |path: &&str| Touched { path: (*path).to_owned(), touch: Touch::Modified };
            let expected: Vec<Touched> = touched.iter().filter(|_| is_ok).map(file).collect();
            assert_eq!(result.touched, expected, "{name}, {output}");
        }
    }
}

#[test]
fn compactions_keep_nothing_before_them() {
    let user = |text: &str| json!({"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]});
    let history = json!([user("<environment_context></environment_context>"), user("hi"), user("more"),
        {"type": "compaction", "encrypted_content": "gAAA"}]);
    for (payload, summary) in [
        (json!({"message": "so far"}), "so far"),
        (json!({"message": "so far", "replacement_history": history}), "so far"),
        (json!({"message": "", "replacement_history": history}), "hi\n\nmore"),
        (json!({"message": "", "replacement_history": []}), NO_SUMMARY),
        (json!({}), NO_SUMMARY),
    ] {
        let lines = [
            said("user", "hi"),
            said("assistant", "yes"),
            counted(10, 3, 13),
            line("compacted", payload),
            event("context_compacted", ""),
            said("user", "two"),
            said("assistant", "2"),
        ];
        let path = format!("user(hi) answer(yes) compaction({summary}) user(two) answer(2)");
        let imported = check(&lines, &path);
        let compaction: &Compaction =
            imported.entries.iter().find_map(|entry| entry.kind.as_compaction()).expect("a compaction");
        assert_eq!((compaction.first_kept, compaction.trigger), (None, Trigger::Threshold));
        assert_eq!((compaction.tokens_before, compaction.tokens_after), (13, 0));
        assert_eq!(project(&imported.path(), &[]).len(), 3, "the summary and what came after it");
    }
}

#[test]
fn what_cannot_be_read_is_counted() {
    let lines = [
        said("user", "hi"),
        line("from_the_future", json!({})),
        item(json!({"type": "from_the_future"})),
        said("tool", "what?"),
        json!(7),
        line("session_meta", json!({"id": "of the parent"})),
        line("world_state", json!({})),
        event("from_the_future", "x"),
        said("assistant", "yes"),
    ];
    let imported = read(&lines, false);
    assert_eq!(imported.skipped, 4, "{:?}", imported.warnings);
    assert_eq!(outline(&imported.path()), "user(hi) answer(yes)");
}

#[test]
fn a_recorded_session() {
    let Some(text) = corpus::read("sessions/codex_2025_09.jsonl") else { return };
    let imported = import(&text, ImportOptions::default()).expect("a file of Codex");
    assert_eq!((imported.skipped, imported.repaired), (0, 0), "{:?}", imported.warnings);
    let path = imported.path();
    let count = |role: &str| {
        path.iter().filter(|entry| entry.kind.as_message().is_some_and(|m| m.role() == role)).count()
    };
    assert_eq!((count("assistant"), count("tool"), count("user")), (85, 84, 1));
    assert_eq!(path.len(), imported.entries.len());
    // The first lines of the file count 2803 and 205 tokens for the answer that follows them.
    let totals: Vec<u64> =
        answers(&imported).iter().filter_map(|answer| Some(answer.usage?.total_tokens())).collect();
    assert_eq!((totals.len(), totals[0]), (85, 3008));
    let model = |kind: &EntryKind| kind.as_answer().is_none_or(|answer| answer.model == "gpt-5-codex");
    assert!(path.iter().all(|entry| model(&entry.kind)));
}
