//! Random sessions of Claude Code and Codex, whole and damaged, and properties that every import of them must have.
//!
//! Invariants: a failure names its seed, and the same seed gives the same session.

use std::collections::HashSet;
use std::sync::Arc;

use greenroom_kernel::entry::Entry;
use greenroom_kernel::message::Message;
use greenroom_kernel::plan::{NothingToCompact, Plan, plan};
use serde_json::{Value, json};

use super::random::{Random, SEEDS, check_log, check_repaired, damaged, options};
use crate::{Format, ImportOptions, Imported, import};

/// A session, and what an import of it must find.
struct Session {
    text: String,
    /// How many answers it has.
    answers: usize,
    /// How many lines no importer knows.
    unknown: u64,
}

impl Session {
    fn new(lines: &[Value], answers: usize, unknown: u64) -> Self {
        let text = lines.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
        Self { text, answers, unknown }
    }
}

/// A session of Claude Code in the making.
#[derive(Default)]
struct Claude {
    lines: Vec<Value>,
    /// The ids of the lines of the conversation so far.
    ids: Vec<String>,
}

impl Claude {
    /// Adds a line and returns its id.
    fn add(&mut self, kind: &str, parent: &str, fields: &Value) -> String {
        let id = format!("u{}", self.lines.len());
        let mut line = json!({"type": kind, "uuid": id, "sessionId": "s", "isSidechain": false,
            "timestamp": "2026-02-12T14:48:36.922Z",
            "parentUuid": if parent.is_empty() { Value::Null } else { json!(parent) }});
        for (key, value) in fields.as_object().expect("an object") {
            line[key] = value.clone();
        }
        self.lines.push(line);
        id
    }

    fn user(&mut self, parent: &str, content: &Value) -> String {
        self.add("user", parent, &json!({"message": {"role": "user", "content": content}}))
    }

    /// Adds an answer of several lines with the results of its calls, which come in any order between them; returns the
    /// line from which the conversation continues.
    fn answer(&mut self, random: &mut Random, parent: &str) -> String {
        let message = format!("m{}", self.lines.len());
        let mut at = parent.to_owned();
        let mut open: Vec<(String, String)> = Vec::new();
        for block in 0..=random.below(4) {
            let call = format!("{message}c{block}");
            let (content, is_call) = match random.below(3) {
                0 => (json!({"type": "text", "text": random.text()}), false),
                1 => (json!({"type": "thinking", "thinking": random.text(), "signature": "x"}), false),
                _ => {
                    let (name, file) = (random.pick(&["Read", "Edit", "Bash"]), random.pick(&["/a", "/b"]));
                    (
                        json!({"type": "tool_use", "id": call, "name": name, "input": {"file_path": file}}),
                        true,
                    )
                }
            };
            let usage = json!({"input_tokens": random.below(9_000), "output_tokens": random.below(900)});
            let body = json!({"id": message, "role": "assistant", "model": "m", "content": [content], "usage": usage});
            at = self.add("assistant", &at, &json!({ "message": body }));
            if is_call {
                open.push((call, at.clone()));
            }
            if random.percent(30) {
                at = self.add("progress", &at, &json!({}));
            }
            if random.percent(30) && !open.is_empty() {
                at = self.result(random, &mut open);
            }
        }
        while !open.is_empty() && random.percent(97) {
            at = self.result(random, &mut open);
        }
        at
    }

    fn result(&mut self, random: &mut Random, open: &mut Vec<(String, String)>) -> String {
        let (call, parent) = open.remove(random.below(open.len()));
        let call = if random.percent(2) { "orphan".to_owned() } else { call };
        let block = json!({"type": "tool_result", "tool_use_id": call, "content": random.text(),
            "is_error": random.percent(20)});
        self.user(&parent, &json!([block]))
    }
}

/// Returns a session as Claude Code could have written it, with a few errors that it would not make.
fn claude(seed: u64) -> Session {
    let mut random = Random::new(seed);
    let mut session = Claude::default();
    let (mut answers, mut unknown) = (0, 0);
    let mut at = session.user("", &json!("first"));
    session.ids.push(at.clone());
    let length = random.pick(&[6, 40, 60]);
    for _ in 0..=random.below(length) {
        if random.percent(5) {
            at = session.ids[random.below(session.ids.len())].clone();
        }
        let text = json!(format!("- {}", random.text()));
        at = match random.below(100) {
            0..30 => session.user(&at, &text),
            30..70 => {
                answers += 1;
                session.answer(&mut random, &at)
            }
            70..76 => session.add("system", &at, &json!({"subtype": "turn_duration"})),
            76..80 => session.user(&at, &json!("<command-name>/x</command-name>")),
            80..84 => {
                let mut beside = json!({"isSidechain": true});
                beside["message"] = json!({"role": "user", "content": text});
                session.add("user", &at, &beside);
                at
            }
            84..88 => {
                unknown += 1;
                session.add("from-the-future", &at, &json!({}))
            }
            88..92 => session.user("gone", &text),
            _ => {
                let boundary = json!({"subtype": "compact_boundary", "logicalParentUuid": at,
                    "compactMetadata": {"trigger": "auto", "preTokens": 9}});
                let boundary = session.add("system", "", &boundary);
                let summary = json!({"isCompactSummary": true, "message": {"role": "user", "content": text}});
                session.add("user", &boundary, &summary)
            }
        };
        session.ids.push(at.clone());
    }
    Session::new(&session.lines, answers, unknown)
}

/// Returns a session as Codex could have written it, with a few errors that it would not make.
fn codex(seed: u64) -> Session {
    let mut random = Random::new(seed);
    let line = |kind: &str, payload: Value| json!({"timestamp": "", "type": kind, "payload": payload});
    let mut lines = vec![line("session_meta", json!({"id": "s"}))];
    let (mut answers, mut unknown) = (0, 0);
    let mut is_open = false;
    let mut open: Vec<String> = Vec::new();
    let length = random.pick(&[6, 40, 150]);
    for number in 0..=random.below(length) {
        let mut message = |role: &str| {
            let text = format!("- {}", random.text());
            json!({"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]})
        };
        let (user, assistant, summary) = (message("user"), message("assistant"), message("summary"));
        let payload = match random.below(100) {
            0..15 => {
                is_open = false;
                user
            }
            15..25 => line("event_msg", json!({"type": "agent_message", "message": "x"})),
            25..35 => {
                let usage = |n: usize| json!({"input_tokens": n, "output_tokens": 5, "total_tokens": n + 5});
                let (last, total) = (usage(random.below(9_000)), usage(number * random.below(2)));
                let info = json!({"last_token_usage": last, "total_token_usage": total});
                line("event_msg", json!({"type": "token_count", "info": info}))
            }
            35..38 => line("turn_context", json!({"model": "m"})),
            38..41 => {
                unknown += 1;
                line("from_the_future", json!({}))
            }
            41..45 => {
                is_open = false;
                let text = if random.percent(50) { "so far" } else { "" };
                line("compacted", json!({"message": text, "replacement_history": [summary]}))
            }
            45..75 => {
                answers += usize::from(!is_open);
                is_open = true;
                let id = if random.percent(3) { "again".to_owned() } else { format!("c{number}") };
                match random.below(4) {
                    0 => assistant,
                    1 => json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}),
                    2 => {
                        open.push(id.clone());
                        json!({"type": "function_call", "call_id": id, "name": "shell", "arguments": "{"})
                    }
                    _ => {
                        open.push(id.clone());
                        json!({"type": "custom_tool_call", "call_id": id, "name": "apply_patch",
                            "input": "*** Add File: a"})
                    }
                }
            }
            _ => {
                is_open = false;
                let id =
                    if open.is_empty() { "orphan".to_owned() } else { open.remove(random.below(open.len())) };
                json!({"type": "function_call_output", "call_id": id, "output": "out"})
            }
        };
        let is_item = payload.get("payload").is_none();
        lines.push(if is_item { line("response_item", payload) } else { payload });
    }
    Session::new(&lines, answers, unknown)
}

/// The session of a seed.
type Sessions = fn(u64) -> Session;

/// The formats, and a session of each for a seed.
const FORMATS: [(Format, Sessions); 2] = [(Format::ClaudeCode, claude), (Format::Codex, codex)];

fn imported(text: &str, repair: bool) -> Imported {
    import(text, ImportOptions { repair }).expect("a known format")
}

/// Panics if an entry's size is not that of its content.
fn check_sizes(seed: u64, imported: &Imported) {
    for entry in &imported.entries {
        let again = Entry::recorded(entry.id, entry.parent, entry.at_ms, entry.kind.clone());
        assert_eq!(
            (again.tokens, again.reasoning_tokens),
            (entry.tokens, entry.reasoning_tokens),
            "seed {seed}"
        );
    }
}

#[test]
fn every_answer_is_one_entry_and_every_call_has_one_result() {
    for (format, session) in FORMATS {
        let (mut repairs, mut results) = (0, 0);
        for seed in 0..SEEDS {
            let session = session(seed);
            let before = imported(&session.text, false);
            assert_eq!((before.format, before.skipped), (format, session.unknown), "{:?}", before.warnings);
            let answers = before.entries.iter().filter(|entry| entry.kind.as_answer().is_some()).count();
            assert_eq!(answers, session.answers, "{format:?}, seed {seed}: answers");
            check_log(seed, &before);
            check_sizes(seed, &before);
            let after = imported(&session.text, true);
            repairs += after.repaired;
            results += after.entries.iter().filter(|entry| is_result(entry)).count();
            check_repaired(seed, &after);
        }
        assert!(results > 1_000 && repairs > SEEDS / 10, "{format:?}: {results} results, {repairs} repairs");
    }
}

fn is_result(entry: &Arc<Entry>) -> bool {
    entry.kind.as_message().is_some_and(|message| matches!(**message, Message::ToolResult(_)))
}

/// Where Claude Code's results stand beside one another, none of those on the path is lost.
#[test]
fn every_result_of_a_call_on_the_path_is_on_the_path() {
    let mut results = 0;
    for seed in 0..SEEDS {
        let imported = imported(&claude(seed).text, false);
        let path = imported.path();
        let on_path: HashSet<_> = path.iter().map(|entry| entry.id).collect();
        let calls: HashSet<String> = path
            .iter()
            .filter_map(|entry| entry.kind.as_message())
            .flat_map(|message| message.tool_calls().map(|call| call.id.clone()).collect::<Vec<_>>())
            .collect();
        for entry in imported.entries.iter().filter(|entry| is_result(entry)) {
            let Some(Message::ToolResult(result)) = entry.kind.as_message().map(|message| &**message) else {
                continue;
            };
            results += 1;
            let is_called = calls.contains(&result.call_id);
            assert!(!is_called || on_path.contains(&entry.id), "seed {seed}: {}", result.call_id);
        }
    }
    assert!(results > 1_000, "{results} results");
}

#[test]
fn a_damaged_file_is_imported_or_refused() {
    for (format, session) in FORMATS {
        let mut imports = 0;
        for seed in 0..SEEDS {
            let mut random = Random::new(seed);
            let text = damaged(session(seed).text, &mut random);
            for repair in [false, true] {
                let Ok(imported) = import(&text, ImportOptions { repair }) else { continue };
                imports += 1;
                check_log(seed, &imported);
                check_sizes(seed, &imported);
                if repair {
                    check_repaired(seed, &imported);
                }
                let _: Result<Plan, NothingToCompact> = plan(&imported.path(), &options(&mut random));
            }
        }
        assert!(imports > SEEDS, "{format:?}: {imports} imports");
    }
}
