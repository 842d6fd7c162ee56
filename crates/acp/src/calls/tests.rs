//! Tests of `calls`.

use agent_client_protocol::v1::schema::ToolKind;
use greenroom_kernel::ToolStatus;
use serde_json::{Value, json};

use super::{block, call, result};

#[test]
fn a_call_says_what_it_does_and_where() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("old.txt"), "before").expect("a file");
    let path = |name: &str| folder.path().join(name);
    let rows = [
        (
            "read",
            json!({ "path": "a", "offset": 7 }),
            ToolKind::Read,
            json!({ "path": path("a"), "line": 7 }),
            Value::Null,
        ),
        (
            "grep",
            json!({ "pattern": "x", "path": "src" }),
            ToolKind::Search,
            json!({ "path": path("src") }),
            Value::Null,
        ),
        ("list", json!({ "path": "." }), ToolKind::Read, json!({ "path": folder.path() }), Value::Null),
        ("bash", json!({ "command": "ls", "path": "a" }), ToolKind::Execute, Value::Null, Value::Null),
        ("mcp__a__b", json!({ "path": "a" }), ToolKind::Other, Value::Null, Value::Null),
        (
            "edit",
            json!({ "path": "a", "old": "x", "new": "y" }),
            ToolKind::Edit,
            json!({ "path": path("a") }),
            json!({ "type": "diff", "path": path("a"), "oldText": "x", "newText": "y" }),
        ),
        (
            "write",
            json!({ "path": "old.txt", "content": "after" }),
            ToolKind::Edit,
            json!({ "path": path("old.txt") }),
            json!({ "type": "diff", "path": path("old.txt"), "oldText": "before", "newText": "after" }),
        ),
        (
            "write",
            json!({ "path": "new.txt", "content": "after" }),
            ToolKind::Edit,
            json!({ "path": path("new.txt") }),
            json!({ "type": "diff", "path": path("new.txt"), "newText": "after" }),
        ),
        // What no tool could read.
        ("edit", json!({ "path": 3 }), ToolKind::Edit, Value::Null, Value::Null),
        ("edit", json!("nonsense"), ToolKind::Edit, Value::Null, Value::Null),
    ];
    for (name, arguments, kind, place, change) in rows {
        let call = call("id", name, &arguments.to_string(), folder.path(), false);
        let shown = serde_json::to_value(&call).expect("JSON");
        let first = |key: &str| shown.get(key).and_then(|list| list.get(0)).cloned().unwrap_or_default();
        assert_eq!(call.kind, kind, "{name}");
        assert_eq!((first("locations"), first("content")), (place, change), "{name} {arguments}");
    }
    // Of the past, nobody knows what was there before.
    let past = call("id", "write", r#"{"path":"old.txt","content":"after"}"#, folder.path(), true);
    assert!(!serde_json::to_string(&past).expect("JSON").contains("before"));
}

#[test]
fn a_result_replaces_all_but_a_change() {
    let rows = [
        ("read", ToolStatus::Ok, "completed", true),
        ("edit", ToolStatus::Ok, "completed", false),
        ("edit", ToolStatus::Error, "failed", true),
        ("bash", ToolStatus::Interrupted, "failed", true),
    ];
    for (name, status, shown, has_content) in rows {
        let update = serde_json::to_value(result("id", name, status, "text")).expect("JSON");
        assert_eq!(
            (&update["status"], update.get("content").is_some()),
            (&json!(shown), has_content),
            "{name}"
        );
    }
}

#[test]
fn a_text_cannot_end_its_block() {
    assert_eq!(block("\u{1b}[1;31mred\u{1b}[0m, plain\u{1b}[K"), "```\nred, plain\n```");
    for (text, fence) in [("plain", "```"), ("a ```` b", "`````"), ("``", "```")] {
        let shown = block(text);
        assert!(
            shown.starts_with(&format!("{fence}\n")) && shown.ends_with(&format!("\n{fence}")),
            "{shown}"
        );
        assert_eq!(shown.matches(fence).count(), 2, "{shown}");
    }
}
