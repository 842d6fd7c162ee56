//! All of a conversation is written, and no message ends its block.

use greenroom_kernel::EntryId;
use serde_json::json;

use super::*;

fn said(speech: &serde_json::Value) -> Said {
    let mut value = json!({ "entry_id": EntryId(1), "at_ms": 1_000 });
    for (name, part) in speech.as_object().expect("an object") {
        value[name] = part.clone();
    }
    serde_json::from_value(value).expect("a message")
}

fn session() -> SessionSummary {
    let usage = greenroom_kernel::Usage::default();
    serde_json::from_value(json!({
        "id": "mine", "provider": "p", "model": "big", "entries": 3, "leaf": 2, "context_tokens": 9, "compactions": 0,
        "usage": usage, "cost_microdollars": 0, "waiting": 0, "has_open_run": false, "created_at_ms": 0,
        "updated_at_ms": 0, "title": "Fix\n# it", "labels": { "folder": "/work" },
    }))
    .expect("a summary")
}

#[test]
fn a_conversation_is_written_whole_and_no_message_ends_its_block() {
    let conversation = [
        said(&json!({ "role": "user", "text": "fix it" })),
        said(&json!({
            "role": "assistant", "text": "I look.", "model": "big", "stop": "tool_calls", "usage": null,
            "tool_calls": [{ "call_id": "1", "name": "read", "arguments": "{\"path\":\"a\"}" }],
        })),
        said(&json!({ "role": "tool", "call_id": "1", "status": "error", "text": "a\n```\n````\nb\n" })),
        said(
            &json!({ "role": "summary", "first": 1, "last": 2, "text": "Goal", "tokens_before": 9, "tokens_after": 5 }),
        ),
    ];
    let wanted = "# Fix # it\n\n- session: `mine`\n- started: `1970-01-01T00:00:00.000Z`\n- model: `big`\n- folder: \
                  `/work`\n\n## User\n\n<sub>1970-01-01T00:00:01.000Z</sub>\n\nfix it\n\n## Assistant (big)\n\n\
                  <sub>1970-01-01T00:00:01.000Z</sub>\n\nI look.\n\n**Tool** `read` (failed)\n\n```json\n{\"path\":\"a\"}\n\
                  ```\n\n`````\na\n```\n````\nb\n`````\n\n## Compaction: 9 → 5 tokens\n\n\
                  <sub>1970-01-01T00:00:01.000Z</sub>\n\nGoal\n";
    assert_eq!(markdown(&session(), &conversation), wanted);
}

#[test]
fn names_with_backticks_stay_code() {
    for (text, wanted) in [("a", "`a`"), ("`a`", "`` `a` ``"), ("a``b", "```a``b```"), ("a\nb", "`a b`")] {
        assert_eq!(code(text), wanted);
    }
}
