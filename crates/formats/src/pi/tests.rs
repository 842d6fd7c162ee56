//! The entries for lines of pi files, in each version.

use std::sync::Arc;

use greenroom_kernel::entry::{Custom, Entry, EntryId, EntryKind, Shell, Trigger};
use greenroom_kernel::files::{FileOps, Touch, Touched};
use greenroom_kernel::message::{Block, Image, Message, Part, StopReason, ToolStatus, Usage};
use greenroom_kernel::plan::{PlanOptions, plan};
use greenroom_kernel::usage::{Ratio, Reports, measure, usable_usage};
use serde_json::{Value, json};

use crate::tests::corpus;
use crate::{Format, FormatError, ImportOptions, Imported, PlanReport, import, recognise};

fn read(lines: &[Value]) -> Imported {
    let text: Vec<String> = lines.iter().map(Value::to_string).collect();
    import(&text.join("\n"), ImportOptions { repair: false }).expect("a pi file")
}

/// Imports a version 3 file of these lines, which get the ids `e0`, `e1` and so on, each the parent of the next.
fn chain(lines: &[Value]) -> Imported {
    let mut all = vec![json!({"type": "session", "version": 3, "id": "s", "cwd": "/"})];
    for (number, line) in lines.iter().enumerate() {
        let mut line = line.clone();
        line["id"] = json!(format!("e{number}"));
        line["parentId"] = number.checked_sub(1).map_or(Value::Null, |before| json!(format!("e{before}")));
        line["timestamp"] = json!("2025-11-20T23:33:50.805Z");
        all.push(line);
    }
    read(&all)
}

fn message(message: &Value) -> Message {
    let imported = chain(&[json!({"type": "message", "message": message})]);
    Message::clone(imported.entries[0].kind.as_message().expect("a message"))
}

fn kind(line: Value) -> EntryKind {
    let imported = chain(&[json!({"type": "message", "message": {"role": "user", "content": "hi"}}), line]);
    imported.entries[1].kind.clone()
}

#[test]
fn user_messages() {
    assert_eq!(message(&json!({"role": "user", "content": "hi"})), Message::user("hi"));
    let image = json!({"type": "image", "data": "AA", "mimeType": "image/png"});
    let content = json!([{"type": "text", "text": "see"}, image, {"type": "video"}, 7]);
    assert_eq!(
        message(&json!({"role": "user", "content": content})),
        Message::User(vec![
            Block::Text("see".into()),
            Block::Image(Image { media_type: "image/png".into(), data: "AA".into() }),
        ])
    );
}

#[test]
fn answers() {
    let answer = message(&json!({
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "thinkingSignature": "sig"},
            {"type": "text", "text": "let me"},
            {"type": "toolCall", "id": "c", "name": "read", "arguments": {"path": "a", "limit": 1.0, "big": 1e21},
                "partialJson": "{"},
        ],
        "provider": "anthropic", "model": "m", "stopReason": "aborted", "errorMessage": "stopped",
        "usage": {"input": 3, "output": 5, "cacheRead": 20, "cacheWrite": 100, "totalTokens": 128},
    }));
    let Message::Assistant(answer) = answer else { panic!("an answer") };
    assert_eq!(answer.content[0], Part::Reasoning("hm".into()));
    assert_eq!(answer.content[1], Part::Text("let me".into()));
    let call = answer.content[2].as_tool_call().expect("a call");
    assert_eq!((call.id.as_str(), call.name.as_str()), ("c", "read"));
    assert_eq!(call.arguments, r#"{"path":"a","limit":1,"big":1e+21}"#);
    assert_eq!((answer.provider.as_str(), answer.model.as_str()), ("anthropic", "m"));
    assert_eq!((answer.stop, answer.error.as_deref()), (StopReason::Aborted, Some("stopped")));
    let usage = Usage {
        input_tokens: 123,
        cached_tokens: 20,
        cache_write_tokens: 100,
        output_tokens: 5,
        ..Usage::default()
    };
    assert_eq!(answer.usage, Some(usage));
}

#[test]
fn the_total_that_is_given_overrides_the_sum() {
    for (total, expected) in
        [(json!(null), 10), (json!(0), 10), (json!(500), 500), (json!(2), 2), (json!(7.0), 7)]
    {
        let usage = json!({"input": 4, "output": 3, "cacheRead": 2, "cacheWrite": 1, "totalTokens": total});
        let answer =
            message(&json!({"role": "assistant", "content": [], "stopReason": "stop", "usage": usage}));
        assert_eq!(usable_usage(&answer).map(Usage::total_tokens), Some(expected), "{total}");
    }
}

#[test]
fn successful_results_declare_the_file_of_their_call() {
    let call = |id: &str, name: &str| json!({"type": "toolCall", "id": id, "name": name, "arguments": {"path": "f"}});
    let result = |id: &str, is_error: bool| {
        json!({"type": "message", "message":
            {"role": "toolResult", "toolCallId": id, "toolName": "x", "content": "done", "isError": is_error}})
    };
    let calls = json!([
        call("r", "read"),
        call("w", "write"),
        call("e", "edit"),
        call("b", "bash"),
        call("n", "edit")
    ]);
    let imported = chain(&[
        json!({"type": "message", "message": {"role": "assistant", "content": calls}}),
        result("r", false),
        result("w", false),
        result("e", true),
        result("b", false),
        result("orphan", false),
    ]);
    let touched: Vec<_> = imported.entries[1..]
        .iter()
        .map(|entry| match entry.kind.as_message().map(|message| &**message) {
            Some(Message::ToolResult(result)) => (result.status, result.touched.clone()),
            other => panic!("not a result: {other:?}"),
        })
        .collect();
    let file = |touch| vec![Touched { path: "f".into(), touch }];
    assert_eq!(
        touched,
        [
            (ToolStatus::Ok, file(Touch::Read)),
            (ToolStatus::Ok, file(Touch::Modified)),
            (ToolStatus::Error, vec![]),
            (ToolStatus::Ok, vec![]),
            (ToolStatus::Ok, vec![]),
        ]
    );
}

#[test]
fn other_kinds() {
    let shell = json!({"role": "bashExecution", "command": "ls", "output": "a\n", "exitCode": 2, "cancelled": false,
        "truncated": true, "excludeFromContext": true});
    assert_eq!(
        kind(json!({"type": "message", "message": shell})),
        EntryKind::Shell(Shell {
            command: "ls".into(),
            output: "a\n".into(),
            exit_code: Some(2),
            cancelled: false,
            truncated: true,
            excluded: true,
        })
    );
    let custom =
        EntryKind::Custom(Custom { kind: "q".into(), content: vec![Block::Text("t".into())], display: true });
    assert_eq!(
        kind(json!({"type": "custom_message", "customType": "q", "content": "t", "display": true})),
        custom
    );
    for role in ["custom", "hookMessage"] {
        let message = json!({"role": role, "customType": "q", "content": "t", "display": true});
        assert_eq!(kind(json!({"type": "message", "message": message})), custom);
    }
    assert_eq!(
        kind(
            json!({"type": "branch_summary", "fromId": "e0", "summary": "s", "details": {"readFiles": ["r"]}})
        ),
        EntryKind::BranchSummary {
            from: EntryId(0),
            summary: "s".into(),
            files: FileOps::new(["r"], [] as [&str; 0]),
        }
    );
    assert_eq!(
        kind(json!({"type": "model_change", "provider": "p", "modelId": "m"})),
        EntryKind::ModelChange { provider: "p".into(), model: "m".into() }
    );
    assert_eq!(
        kind(json!({"type": "label", "targetId": "e0", "label": "here"})),
        EntryKind::Label { target: EntryId(0), label: Some("here".into()) }
    );
    let note = |kind: &str, data: &str| EntryKind::Note { kind: kind.into(), data: data.into() };
    assert_eq!(
        kind(json!({"type": "thinking_level_change", "thinkingLevel": "high"})),
        note("thinking_level_change", r#"{"thinkingLevel":"high"}"#)
    );
    assert_eq!(
        kind(json!({"type": "custom", "customType": "x", "data": {"i": 1.5}})),
        note("x", r#"{"i":1.5}"#)
    );
    assert_eq!(kind(json!({"type": "session_info", "name": "n"})), note("session_info", r#"{"name":"n"}"#));
}

#[test]
fn compactions_name_what_they_kept() {
    let user = json!({"type": "message", "message": {"role": "user", "content": "hi"}});
    let compaction = |kept: &str| {
        json!({"type": "compaction", "summary": "S", "firstKeptEntryId": kept, "tokensBefore": 9, "tokensAfter": 4, "fromHook": true,
            "details": {"readFiles": ["a", "b"], "modifiedFiles": ["b"]}})
    };
    let imported = chain(&[user.clone(), user, compaction("e1"), compaction("e3"), compaction("gone")]);
    let compactions: Vec<_> =
        imported.entries.iter().filter_map(|entry| entry.kind.as_compaction()).collect();
    assert_eq!(compactions[0].first_kept, Some(EntryId(1)));
    assert_eq!(compactions[1].first_kept, None, "a compaction that names itself keeps no earlier entry");
    assert_eq!(compactions[2].first_kept, None);
    let before: Vec<_> =
        compactions.iter().map(|compaction| (compaction.base, compaction.previous)).collect();
    let [first, second] = [Some(EntryId(2)), Some(EntryId(3))];
    assert_eq!(before, [(None, None), (first, first), (second, second)]);
    assert_eq!(compactions[0].files, FileOps::new(["a"], ["b"]));
    assert_eq!((compactions[0].tokens_before, compactions[0].tokens_after), (9, 4));
    assert!(compactions[0].from_hook);
    assert_eq!((compactions[0].trigger, compactions[0].summary.as_str()), (Trigger::Hook, "S"));
}

#[test]
fn version_1_is_linear_and_counts_from_its_header() {
    let user =
        |text: &str| json!({"type": "message", "message": {"role": "user", "content": text, "timestamp": 7}});
    let imported = read(&[
        json!({"type": "session", "id": "s", "provider": "p", "modelId": "m"}),
        user("one"),
        json!({"type": "from_the_future"}),
        user("two"),
        json!({"type": "compaction", "summary": "S", "firstKeptEntryIndex": 3}),
        json!({"type": "compaction", "summary": "S", "firstKeptEntryIndex": 2}),
        json!({"type": "compaction", "summary": "S", "firstKeptEntryIndex": 0}),
    ]);
    let parents: Vec<_> = imported.entries.iter().map(|entry| entry.parent.map(|parent| parent.0)).collect();
    assert_eq!(parents, [None, Some(0), Some(1), Some(2), Some(3)]);
    let kept: Vec<_> = imported
        .entries
        .iter()
        .filter_map(|entry| entry.kind.as_compaction())
        .map(|compaction| compaction.first_kept)
        .collect();
    assert_eq!(kept, [Some(EntryId(1)), Some(EntryId(1)), None]);
    assert_eq!((imported.entries[0].at_ms, imported.skipped), (7, 1));
    assert_eq!(imported.name_of(EntryId(1)), "1", "without ids, entries have numbers for names");
}

#[test]
fn a_tree_keeps_its_branches_and_continues_from_its_newest_entry() {
    let user = |id: &str, parent: Value| {
        json!({"type": "message", "id": id, "parentId": parent, "timestamp": "2025-11-20T23:33:50.805Z",
            "message": {"role": "user", "content": id}})
    };
    let imported = read(&[
        json!({"type": "session", "version": 2, "id": "the session"}),
        user("a", Value::Null),
        user("b", json!("a")),
        user("c", json!("b")),
        json!({"type": "unheard_of", "id": "u", "parentId": "a"}),
        user("d", json!("u")),
        user("b", json!("d")),
        user("e", json!("later")),
        user("later", json!("later")),
        user("f", json!("d")),
        json!({"type": "session_info", "id": "t", "parentId": "f", "name": "A title"}),
    ]);
    assert_eq!((imported.format, imported.session_id.as_deref()), (Format::Pi, Some("the session")));
    assert_eq!(imported.title.as_deref(), Some("A title"));
    let names = |leaf: Option<EntryId>| -> Vec<String> {
        imported.path_to(leaf).iter().map(|entry| imported.name_of(entry.id)).collect()
    };
    assert_eq!(names(imported.leaf), ["a", "d", "f", "t"]);
    assert_eq!(names(imported.find("c")), ["a", "b", "c"]);
    assert_eq!(names(imported.find("e")), ["e"]);
    assert_eq!(names(imported.find("later")), ["later"]);
    assert_eq!((imported.entries.len(), imported.messages, imported.skipped), (8, 7, 2));
    assert_eq!(imported.entries[0].at_ms, 1_763_681_630_805);
    assert!(imported.entries[0].tokens > 0);
    assert_eq!(
        imported.warnings,
        [
            "a line of the unknown type `unheard_of` was left out",
            "an entry whose parent does not precede it was imported as a root (2 times)",
            "an entry with a duplicate id was skipped",
        ]
    );
}

#[test]
fn unreadable_lines_are_counted_and_nothing_else_is_lost() {
    let text = concat!(
        r#"{"type":"session","version":9,"id":"s"}"#,
        "\nnot json\n[1]\n",
        r#"{"type":"message","id":"a","message":{"role":"prophet","content":"x"}}"#,
        "\n",
        r#"{"type":"message","id":"b","parentId":"a","message":{"role":"user","content":"x"}}"#,
        "\n",
        r#"{"type":"message","id":"c","parentId":"b","message":{"ro"#,
    );
    let imported = import(text, ImportOptions::default()).expect("a pi file");
    assert_eq!((imported.entries.len(), imported.skipped, imported.repaired), (1, 4, 0));
    assert_eq!(imported.leaf, Some(EntryId(0)));
    assert_eq!(imported.warnings.len(), 4, "{:?}", imported.warnings);
}

#[test]
fn formats_are_recognised() {
    for (text, expected) in [
        (r#"{"type":"session","id":"s"}"#, Ok(Format::Pi)),
        ("torn\n{\"type\":\"message\",\"message\":{\"role\":\"user\",\"content\":\"x\"}}", Ok(Format::Pi)),
        (r#"{"type":"session_info","payload":{}}"#, Err(FormatError::Unrecognised)),
        (
            r#"{"type":"user","uuid":"u","message":{"role":"user","content":"x"}}"#,
            Err(FormatError::Unrecognised),
        ),
        (r#"{"messages":[]}"#, Err(FormatError::Unrecognised)),
        ("hello", Err(FormatError::Unrecognised)),
        ("", Err(FormatError::Empty)),
    ] {
        assert_eq!(recognise(text), expected, "{text}");
    }
}

#[test]
fn a_real_session_is_the_same_in_version_1_and_3() {
    let read = |name: &str, repair| {
        let text = corpus::read(&format!("sessions/{name}.jsonl"))?;
        Some(import(&text, ImportOptions { repair }).expect("a pi file"))
    };
    for repair in [false, true] {
        let (Some(v1), Some(v3)) = (read("pi_v1_large", repair), read("pi_v3_large", repair)) else { return };
        assert_eq!((v1.skipped, v3.skipped, v1.repaired), (0, 0, v3.repaired));
        assert_eq!(v1.repaired > 0, repair, "it has calls that were interrupted");
        let kinds = |imported: &Imported| -> Vec<_> {
            imported
                .entries
                .iter()
                .map(|entry| (entry.parent, entry.at_ms, entry.tokens, entry.kind.clone()))
                .collect()
        };
        assert_eq!(kinds(&v1), kinds(&v3));
        assert!(v1.messages > 900 && v1.leaf == v3.leaf);
        let (path_1, path_3) = (v1.path(), v3.path());
        for keep in [1, 500, 20_000, 50_000, 1_000_000] {
            let options = PlanOptions::comparison(keep, 0);
            let planned = |path: &[Arc<Entry>]| {
                let measured = measure(path, options.estimator, 0, Ratio::default(), Reports::AsRecorded);
                PlanReport::new(path, &options, measured, |id| id.to_string())
            };
            let report = planned(&path_1);
            assert_eq!(report, planned(&path_3), "keep {keep}");
            assert!(report.plan.is_some() || keep == 1_000_000, "keep {keep}");
            assert_eq!(plan(&path_1, &options).is_ok(), report.plan.is_some());
        }
    }
}
