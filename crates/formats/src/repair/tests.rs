//! Repairs in a notation: each entry is one word, and a session is its path.

use greenroom_kernel::message::{Message, ToolStatus};
use serde_json::{Value, json};

use crate::{ImportOptions, Imported, import};

/// Imports a drawn session: `u` a user message, `a:x,y` an answer that calls `x` and `y`, `r:x` the result of `x`, `n` a
/// note, `C@2` a compaction that kept from the third entry on. `<1` after a word makes it a
/// child of the second entry.
fn draw(drawing: &str) -> Imported {
    let mut lines = vec![json!({"type": "session", "version": 3, "id": "s"})];
    for (number, word) in drawing.split_whitespace().enumerate() {
        let (word, parent) = match word.split_once('<') {
            Some((word, parent)) => (word, Some(parent.to_owned())),
            None => (word, number.checked_sub(1).map(|before| before.to_string())),
        };
        let mut line = if let Some(ids) = word.strip_prefix("a:") {
            let call = |id: &str| json!({"type": "toolCall", "id": id, "name": "t", "arguments": {}});
            let calls: Vec<Value> = ids.split(',').map(call).collect();
            json!({"type": "message", "message": {"role": "assistant", "content": calls}})
        } else if let Some(id) = word.strip_prefix("r:") {
            let content = format!("result {number}");
            json!({"type": "message", "message": {"role": "toolResult", "toolCallId": id, "content": content}})
        } else if let Some(kept) = word.strip_prefix("C@") {
            json!({"type": "compaction", "summary": "S", "firstKeptEntryId": kept})
        } else if word == "n" {
            json!({"type": "custom", "customType": "n"})
        } else {
            json!({"type": "message", "message": {"role": "user", "content": "u"}})
        };
        line["id"] = json!(number.to_string());
        line["parentId"] = json!(parent);
        lines.push(line);
    }
    let text: Vec<String> = lines.iter().map(Value::to_string).collect();
    import(&text.join("\n"), ImportOptions::default()).expect("a pi file")
}

/// Draws the path to `leaf`. `r!x` is a result that the repair made.
fn drawn(imported: &Imported, leaf: &str) -> String {
    let leaf = if leaf.is_empty() { imported.leaf } else { imported.find(leaf) };
    let word = |kind: &greenroom_kernel::EntryKind| {
        if let Some(compaction) = kind.as_compaction() {
            return format!("C@{}", compaction.first_kept.map_or("none".into(), |id| imported.name_of(id)));
        }
        match kind.as_message().map(|message| &**message) {
            Some(Message::User(_)) => "u".into(),
            Some(message @ Message::Assistant(_)) => {
                format!(
                    "a:{}",
                    message.tool_calls().map(|call| call.id.as_str()).collect::<Vec<_>>().join(",")
                )
            }
            Some(Message::ToolResult(result)) => match result.status {
                ToolStatus::Interrupted => format!("r!{}", result.call_id),
                ToolStatus::Ok | ToolStatus::Error => {
                    format!("r:{}={}", result.call_id, result.content.len())
                }
            },
            None => "n".into(),
        }
    };
    imported
        .path_to(leaf)
        .iter()
        .map(|entry| word(&entry.kind))
        .collect::<Vec<_>>()
        .join(" ")
        .replace("=1", "")
}

fn check(drawing: &str, expected: &str, repairs: u64) {
    let imported = draw(drawing);
    assert_eq!(drawn(&imported, ""), expected, "{drawing}");
    assert_eq!(imported.repaired, repairs, "{drawing}");
}

#[test]
fn every_call_gets_exactly_one_result() {
    check("u a:x r:x u", "u a:x r:x u", 0);
    check("u a:x,y n r:y r:x u", "u a:x,y n r:y r:x u", 0);
    check("u a:x,y r:y u", "u a:x,y r:y r!x u", 1);
    check("u a:x a:y r:y", "u a:x r!x a:y r:y", 1);
    check("u a:x,y", "u a:x,y r!x r!y", 2);
    check("u a:x n", "u a:x n r!x", 1);
}

#[test]
fn results_without_an_open_call_are_dropped() {
    check("r:x u", "u", 1);
    check("u r:x a:x r:x r:x u", "u a:x r:x u", 2);
    check("r:x", "", 1);
}

#[test]
fn a_late_result_moves_to_its_call() {
    check("u a:x u r:x u", "u a:x r:x u u", 1);
    check("u a:x,y u r:y n r:x", "u a:x,y r:x r:y u n", 2);
    check("u a:x a:y r:x r:y", "u a:x r!x a:y r:y", 2);
}

#[test]
fn calls_are_told_apart() {
    check("a:x,x r:x", "a:x r:x", 1);
    check("a:x r:x a:x r:x", "a:x r:x a:x_2 r:x_2", 1);
    check("a:x r:x a:x", "a:x r:x a:x_2 r!x_2", 2);
}

#[test]
fn each_branch_is_repaired_by_itself() {
    let imported = draw("u a:x r:x u u<1 r:x<1 n");
    assert_eq!(drawn(&imported, "3"), "u a:x r:x u");
    assert_eq!(drawn(&imported, "4"), "u a:x r!x u");
    assert_eq!(drawn(&imported, ""), "u a:x r:x n");
}

#[test]
fn entries_name_each_other_by_their_new_ids() {
    check("r:x u a:y u C@3 u", "u a:y r!y u C@3 u", 2);
    // The first kept entry was dropped, so its parent is kept.
    check("u r:x u C@1 u", "u u C@0 u", 1);
    check("r:x u C@0 u", "u C@none u", 1);
}
