//! The entries for lines of Claude Code's files.

use greenroom_kernel::entry::{Compaction, EntryKind, Trigger};
use greenroom_kernel::files::{Touch, Touched};
use greenroom_kernel::message::{AssistantMessage, Part, StopReason, ToolStatus, Usage};
use greenroom_kernel::path::project;
use serde_json::{Value, json};

use crate::tests::{corpus, outline, result_of, told};
use crate::{Format, FormatError, ImportOptions, Imported, import, recognise};

/// The smallest image that is recognised.
const GIF: &str = "R0lGODlhLi4u";

fn read(lines: &[Value], repair: bool) -> Imported {
    let text: Vec<String> = lines.iter().map(Value::to_string).collect();
    let imported = import(&text.join("\n"), ImportOptions { repair }).expect("a file of Claude Code");
    assert_eq!(imported.format, Format::ClaudeCode);
    imported
}

/// A line with the id `id` and the parent `parent`; none if that is empty.
fn line(id: &str, parent: &str, kind: &str, fields: &Value) -> Value {
    let mut line = json!({"type": kind, "uuid": id, "sessionId": "s", "isSidechain": false,
        "timestamp": "2026-02-12T14:48:36.922Z",
        "parentUuid": if parent.is_empty() { Value::Null } else { json!(parent) }});
    for (key, value) in fields.as_object().expect("an object") {
        line[key] = value.clone();
    }
    line
}

/// A line of the user with this content.
fn user(id: &str, parent: &str, content: Value) -> Value {
    let mut message = json!({"role": "user"});
    message["content"] = content;
    line(id, parent, "user", &json!({ "message": message }))
}

/// A line of the answer `message` with these blocks.
fn answer(id: &str, parent: &str, message: &str, blocks: Value) -> Value {
    let mut message = json!({"id": message, "role": "assistant", "model": "claude-x"});
    message["content"] = blocks;
    line(id, parent, "assistant", &json!({ "message": message }))
}

fn text(text: &str) -> Value {
    json!([{"type": "text", "text": text}])
}

fn call(id: &str) -> Value {
    json!([{"type": "tool_use", "id": id, "name": "Bash", "input": {"command": "ls"}}])
}

fn result(id: &str) -> Value {
    json!([{"type": "tool_result", "tool_use_id": id, "content": format!("of {id}")}])
}

/// Checks the path of a file, as [`outline`] writes it, and that nothing was skipped.
fn check(lines: &[Value], expected: &str) -> Imported {
    let imported = read(lines, false);
    assert_eq!(outline(&imported.path()), expected);
    assert_eq!(imported.skipped, 0, "{:?}", imported.warnings);
    let repaired = read(lines, true);
    assert_eq!(repaired.repaired, 0, "nothing is broken");
    imported
}

fn only_answer(lines: &[Value]) -> AssistantMessage {
    let imported = read(lines, false);
    let mut answers = imported.entries.iter().filter_map(|entry| entry.kind.as_answer());
    let answer = answers.next().expect("an answer").clone();
    assert!(answers.next().is_none(), "one answer");
    answer
}

fn compaction(imported: &Imported) -> &Compaction {
    imported.entries.iter().find_map(|entry| entry.kind.as_compaction()).expect("a compaction")
}

#[test]
fn files_are_recognised_by_a_line_with_an_id_and_a_parent() {
    let snapshot = json!({"type": "file-history-snapshot", "messageId": "m"}).to_string();
    let user = user("u", "", json!("hi")).to_string();
    let chat = json!({"role": "user", "content": "hi"}).to_string();
    for (text, expected) in [
        (user.clone(), Ok(Format::ClaudeCode)),
        (format!("{snapshot}\n{{cut\n{user}"), Ok(Format::ClaudeCode)),
        (snapshot, Err(FormatError::Unrecognised)),
        (user.replace("parentUuid", "parent"), Err(FormatError::Unrecognised)),
        (chat, Err(FormatError::Unrecognised)),
    ] {
        assert_eq!(recognise(&text), expected, "{text}");
    }
    assert_eq!(Format::ClaudeCode.as_str(), "claude-code");
}

#[test]
fn the_lines_of_an_answer_are_one_entry_with_the_last_usage() {
    let with = |mut line: Value, usage: Value, stop: Value| {
        line["message"]["usage"] = usage;
        line["message"]["stop_reason"] = stop;
        line
    };
    let usage = |output: u64| {
        json!({"input_tokens": 3, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 100,
            "output_tokens": output, "cache_creation": {"ephemeral_1h_input_tokens": 40}})
    };
    let thinking = json!([{"type": "thinking", "thinking": "hm", "signature": "sig"}]);
    let lines = [
        user("u", "", json!("hi")),
        with(answer("a1", "u", "m", thinking), usage(1), Value::Null),
        with(answer("a2", "a1", "m", text("let me")), usage(7), Value::Null),
        with(answer("a3", "a2", "m", call("c")), Value::Null, json!("tool_use")),
    ];
    let answer = only_answer(&lines);
    assert_eq!(answer.content[..2], [Part::Reasoning("hm".into()), Part::Text("let me".into())]);
    let call = answer.content[2].as_tool_call().expect("a call");
    assert_eq!(
        (call.id.as_str(), call.name.as_str(), call.arguments.as_str()),
        ("c", "Bash", r#"{"command":"ls"}"#)
    );
    let expected = Usage {
        input_tokens: 123,
        cached_tokens: 20,
        cache_write_tokens: 100,
        cache_write_hour_tokens: 40,
        output_tokens: 7,
        ..Usage::default()
    };
    assert_eq!(answer.usage, Some(expected));
    assert_eq!((answer.provider.as_str(), answer.model.as_str()), ("anthropic", "claude-x"));
    assert_eq!((answer.stop, answer.stop_raw.as_deref()), (StopReason::ToolCalls, Some("tool_use")));

    let imported = read(&lines, false);
    let whole = greenroom_kernel::entry::Entry::recorded(
        imported.entries[1].id,
        None,
        0,
        imported.entries[1].kind.clone(),
    );
    assert_eq!(imported.entries[1].tokens, whole.tokens, "its size counts all parts");
    assert_eq!(imported.entries[1].at_ms, 1_770_907_716_922);
    assert_eq!(imported.find("a1"), imported.leaf);
    assert_eq!(imported.session_id.as_deref(), Some("s"));
}

#[test]
fn reasons_for_the_end() {
    for (raw, expected) in [
        (json!(null), StopReason::Stop),
        (json!("end_turn"), StopReason::Stop),
        (json!("max_tokens"), StopReason::Length),
        (json!("refusal"), StopReason::ContentFilter),
        (json!("pause_turn"), StopReason::Paused),
    ] {
        let mut line = answer("a", "", "m", text("hi"));
        line["message"]["stop_reason"] = raw.clone();
        assert_eq!(only_answer(&[line]).stop, expected, "{raw}");
    }
    assert_eq!(only_answer(&[answer("a", "", "m", call("c"))]).stop, StopReason::ToolCalls);
}

#[test]
fn results_of_parallel_calls_stand_behind_one_another() {
    // The results stand beside one another in the tree, and the next line follows only one of them.
    for next in ["r1", "r2"] {
        let lines = [
            user("u", "", json!("hi")),
            answer("a1", "u", "m", call("c1")),
            answer("a2", "a1", "m", call("c2")),
            user("r1", "a1", result("c1")),
            line("p", "r1", "progress", &json!({})),
            user("r2", "a2", result("c2")),
            answer("b", next, "n", text("done")),
        ];
        check(&lines, "user(hi) answer(c1 c2) result(c1: of c1) result(c2: of c2) answer(done)");
    }
    // A result came before the next call of the same answer.
    let lines = [
        user("u", "", json!("hi")),
        answer("a1", "u", "m", call("c1")),
        user("r1", "a1", result("c1")),
        line("p", "r1", "progress", &json!({})),
        answer("a2", "p", "m", call("c2")),
        user("r2", "a2", result("c2")),
    ];
    check(&lines, "user(hi) answer(c1 c2) result(c1: of c1) result(c2: of c2)");
    // A session that ends in the middle of its results.
    check(&lines[..4], "user(hi) answer(c1) result(c1: of c1)");
    // Both results and what the user said in one line.
    let mut both = result("c1").as_array().expect("a list").clone();
    both.extend(result("c2").as_array().expect("a list").clone());
    both.extend(text("and now?").as_array().expect("a list").clone());
    let mut calls = call("c1").as_array().expect("a list").clone();
    calls.extend(call("c2").as_array().expect("a list").clone());
    let lines = [
        answer("a", "", "m", json!(calls)),
        user("r", "a", json!(both)),
        answer("b", "r", "n", text("done")),
    ];
    check(&lines, "answer(c1 c2) result(c1: of c1) result(c2: of c2) user(and now?) answer(done)");
}

#[test]
fn an_answer_does_not_grow_past_what_the_user_said() {
    let lines = [
        answer("a1", "", "m", text("one")),
        user("u", "a1", json!("wait")),
        answer("a2", "u", "m", text("two")),
    ];
    check(&lines, "answer(one) user(wait) answer(two)");
}

#[test]
fn results() {
    let image =
        json!({"type": "image", "source": {"type": "base64", "media_type": "image/gif", "data": GIF}});
    let broken = json!({"type": "image", "source": {"type": "url", "url": "https://example.org"}});
    for (content, is_error, expected, status) in [
        (json!("out"), json!(null), vec!["out"], ToolStatus::Ok),
        (json!("bad"), json!(true), vec!["bad"], ToolStatus::Error),
        (text("in a block"), json!(false), vec!["in a block"], ToolStatus::Ok),
        (json!([image, {"type": "tool_reference"}]), json!(null), vec!["image/gif"], ToolStatus::Ok),
        (json!([broken]), json!(null), vec!["[an image that could not be read]"], ToolStatus::Ok),
        (json!(null), json!(null), vec![], ToolStatus::Ok),
    ] {
        let block =
            json!({"type": "tool_result", "tool_use_id": "c", "content": content, "is_error": is_error});
        let imported = read(&[answer("a", "", "m", call("c")), user("r", "a", json!([block]))], false);
        let result = result_of(&imported.entries[1]);
        assert_eq!(
            (told(&result.content), result.status, result.tool_name.as_str()),
            (expected, status, "Bash")
        );
    }
}

#[test]
fn successful_results_declare_the_file_of_their_call() {
    let file = |touch| vec![Touched { path: "/f".into(), touch }];
    for (tool, field, is_error, expected) in [
        ("Read", "file_path", false, file(Touch::Read)),
        ("Edit", "file_path", false, file(Touch::Modified)),
        ("Write", "file_path", false, file(Touch::Modified)),
        ("MultiEdit", "file_path", false, file(Touch::Modified)),
        ("NotebookEdit", "notebook_path", false, file(Touch::Modified)),
        ("Edit", "file_path", true, vec![]),
        ("Edit", "path", false, vec![]),
        ("Bash", "file_path", false, vec![]),
    ] {
        let call = json!([{"type": "tool_use", "id": "c", "name": tool, "input": {field: "/f"}}]);
        let block = json!({"type": "tool_result", "tool_use_id": "c", "content": "", "is_error": is_error});
        let imported = read(&[answer("a", "", "m", call), user("r", "a", json!([block]))], false);
        let result = result_of(&imported.entries[1]);
        assert_eq!(result.touched, expected, "{tool} {field} {is_error}");
    }
}

#[test]
fn lines_of_the_program_are_walked_through() {
    let meta = |mut line: Value| {
        line["isMeta"] = json!(true);
        line
    };
    let mut error = answer("e", "x", "", text("API Error"));
    error["message"]["model"] = json!("<synthetic>");
    let lines = [
        json!({"type": "file-history-snapshot", "messageId": "m"}),
        line("p", "", "progress", &json!({})),
        meta(user("m", "p", json!("Caveat"))),
        user("n1", "m", json!("<command-name>/clear</command-name>\n  <command-args></command-args>")),
        user("n2", "n1", json!("<local-command-stdout></local-command-stdout>")),
        user("u", "n2", json!("<command-name> is what?")),
        line("s", "u", "system", &json!({"subtype": "turn_duration"})),
        line("t", "s", "attachment", &json!({})),
        answer("a", "t", "n", text("a tag")),
        user("n3", "a", text("[Request interrupted by user for tool use]")),
        user("v", "n3", json!("thanks")),
        line("x", "v", "system", &json!({"subtype": "stop_hook_summary"})),
        error,
        meta(user("y", "e", json!("Base directory"))),
        json!({"type": "queue-operation"}),
    ];
    let imported = check(&lines, "user(<command-name> is what?) answer(a tag) user(thanks)");
    assert_eq!(imported.leaf, imported.find("v"));
    assert_eq!(imported.warnings, Vec::<String>::new());
}

#[test]
fn the_leaf_is_the_newest_line_of_the_conversation() {
    let mut beside = user("x", "u", json!("of a sub-agent"));
    beside["isSidechain"] = json!(true);
    let mut below = answer("y", "x", "k", text("its answer"));
    below["isSidechain"] = json!(true);
    let lines = [
        user("u", "", json!("one")),
        answer("a", "u", "m", text("1")),
        user("v", "a", json!("two")),
        answer("b", "v", "n", text("2")),
        user("w", "a", json!("again")),
        beside,
        below,
    ];
    let imported = check(&lines, "user(one) answer(1) user(again)");
    assert_eq!(imported.entries.len(), 5);
    assert_eq!(imported.warnings, ["a line of a sub-agent was left out (2 times)"]);
    assert_eq!(outline(&imported.path_to(imported.find("b"))), "user(one) answer(1) user(two) answer(2)");
}

#[test]
fn compactions_keep_the_history_on_the_path_and_nothing_in_the_context() {
    let edit = json!([{"type": "tool_use", "id": "c", "name": "Edit", "input": {"file_path": "/f"}}]);
    let boundary = |metadata: Value| {
        let mut line = line("b", "", "system", &json!({"subtype": "compact_boundary"}));
        line["logicalParentUuid"] = json!("d");
        line["compactMetadata"] = metadata;
        line
    };
    let summary = |parent: &str| {
        let mut line = user("s", parent, json!("the summary"));
        line["isCompactSummary"] = json!(true);
        line
    };
    let before = [
        user("u", "", json!("one")),
        answer("a", "u", "m", edit),
        user("r", "a", result("c")),
        line("d", "r", "system", &json!({"subtype": "turn_duration"})),
    ];
    let path = "user(one) answer(c) result(c: of c) compaction(the summary) user(two)";
    for (metadata, trigger, tokens) in [
        (json!({"trigger": "manual", "preTokens": 142_431}), Trigger::Manual, (142_431, 0)),
        (json!({"trigger": "auto", "preTokens": 9, "postTokens": 2}), Trigger::Threshold, (9, 2)),
        (json!(null), Trigger::Threshold, (0, 0)),
    ] {
        let mut lines = before.to_vec();
        lines.extend([boundary(metadata), summary("b"), user("v", "s", json!("two"))]);
        let imported = check(&lines, path);
        let compaction = compaction(&imported);
        assert_eq!((compaction.trigger, compaction.first_kept), (trigger, None));
        assert_eq!((compaction.tokens_before, compaction.tokens_after), tokens);
        assert_eq!(compaction.files.modified().collect::<Vec<_>>(), ["/f"]);
        let sent = project(&imported.path(), &[]);
        assert_eq!(sent.len(), 2, "the summary and what came after it: {sent:?}");
    }
    // The boundary names a branch that is not the newest one.
    let mut lines = before.to_vec();
    lines.extend([
        user("o", "", json!("other")),
        boundary(json!(null)),
        summary("b"),
        user("v", "s", json!("two")),
    ]);
    check(&lines, path);
    // Versions without a boundary begin a new tree, and a boundary may name a line that is lost.
    for (lost, parent) in [(false, ""), (true, "b")] {
        let mut lines = before[..3].to_vec();
        lines.extend(lost.then(|| boundary(json!({"trigger": "auto"}))));
        lines.extend([summary(parent), user("v", "s", json!("two"))]);
        check(&lines, path);
    }
}

#[test]
fn titles() {
    let custom = |title: &str| json!({"type": "custom-title", "customTitle": title, "sessionId": "s"});
    let ai = |title: &str| json!({"type": "ai-title", "aiTitle": title});
    let summary = |title: &str| json!({"type": "summary", "summary": title, "leafUuid": "u"});
    for (lines, expected) in [
        (vec![], None),
        (vec![summary("s1"), summary("s2")], Some("s2")),
        (vec![ai("a1"), summary("s"), ai("")], Some("a1")),
        (vec![custom("c1"), custom("c2"), ai("a"), summary("s")], Some("c2")),
    ] {
        let mut all = vec![user("u", "", json!("hi"))];
        all.extend(lines);
        assert_eq!(read(&all, false).title.as_deref(), expected);
    }
}

#[test]
fn what_cannot_be_read_is_counted() {
    let unknown = line("x", "u", "from-the-future", &json!({}));
    let lines = [
        user("u", "", json!("one")),
        unknown,
        user("u", "", json!("a second time")),
        user("k", "x", json!(7)),
        json!({"type": "from-the-future"}),
        json!(7),
        user("v", "k", json!("two")),
        user("w", "gone", json!("three")),
    ];
    let imported = read(&lines, false);
    assert_eq!(imported.skipped, 5, "{:?}", imported.warnings);
    assert_eq!(outline(&imported.path_to(imported.find("v"))), "user(one) user(two)");
    assert_eq!(outline(&imported.path()), "user(three)");
    let text = format!("{}\n{{\"type\": \"us", lines[0]);
    assert_eq!(import(&text, ImportOptions::default()).expect("a file").skipped, 1);
}

#[test]
fn recorded_sessions() {
    for (name, answers, results, users, compactions) in
        [("claude_code_2.0_short", 30, 27, 3, 0), ("claude_code_2.1", 217, 242, 2, 1)]
    {
        let Some(text) = corpus::read(&format!("sessions/{name}.jsonl")) else { return };
        let imported = import(&text, ImportOptions::default()).expect("a file of Claude Code");
        assert_eq!((imported.skipped, imported.repaired), (0, 0), "{name}: {:?}", imported.warnings);
        let path = imported.path();
        assert_eq!(path.len(), imported.entries.len(), "{name}: all of it is on one path");
        let count = |role: &str| {
            path.iter().filter(|entry| entry.kind.as_message().is_some_and(|m| m.role() == role)).count()
        };
        assert_eq!((count("assistant"), count("tool"), count("user")), (answers, results, users), "{name}");
        let of_compactions: Vec<&Compaction> =
            path.iter().filter_map(|entry| entry.kind.as_compaction()).collect();
        assert_eq!(of_compactions.len(), compactions, "{name}");
        for compaction in of_compactions {
            assert_eq!((compaction.trigger, compaction.tokens_before), (Trigger::Manual, 142_431));
            assert!(compaction.files.modified().len() > 5, "{:?}", compaction.files);
        }
        let has_usage = |kind: &EntryKind| kind.as_answer().is_none_or(|answer| answer.usage.is_some());
        assert!(path.iter().all(|entry| has_usage(&entry.kind)), "{name}");
    }
}
