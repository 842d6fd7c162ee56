//! Recorded sessions as entries: pi's through the importer, Claude Code's and Codex' as far as these tests need them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use greenroom_formats::ImportOptions;
use greenroom_kernel::path::{entry_message, is_message};
use greenroom_kernel::{
    AssistantMessage, Block, EntryKind, Message, Part, StopReason, ToolCall, ToolResult, ToolStatus,
};
use serde_json::Value;

/// The messages of a session, in order.
pub(super) struct Session {
    pub(super) kinds: Vec<EntryKind>,
}

impl Session {
    /// What each message says.
    pub(super) fn texts(&self) -> impl Iterator<Item = String> {
        self.kinds.iter().filter_map(|kind| Some(entry_message(kind)?.said()))
    }
}

/// Returns the session of this name; `None` if it is a recorded one and absent.
pub(super) fn read(name: &str) -> Option<Session> {
    if let Some(session) = super::synthetic::read(name) {
        return Some(session);
    }
    let text = corpus(&format!("sessions/{name}.jsonl"))?;
    let kinds = if name.starts_with("pi") {
        let imported = greenroom_formats::import(&text, ImportOptions::default()).unwrap();
        imported.path().iter().map(|entry| entry.kind.clone()).filter(is_message).collect()
    } else {
        let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
        let mut told = Told::default();
        lines.for_each(
            |line: Value| if name.starts_with("codex") { told.codex(&line) } else { told.claude(&line) },
        );
        told.kinds()
    };
    Some(Session { kinds })
}

/// Returns a file of the corpus, in the folder that `GREENROOM_CORPUS` names or beside the workspace.
fn corpus(name: &str) -> Option<String> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpus");
    #[expect(clippy::disallowed_methods, reason = "only tests read the location of the corpus")]
    let root = std::env::var_os("GREENROOM_CORPUS").map_or_else(beside, PathBuf::from);
    let text = std::fs::read_to_string(root.join(name)).ok();
    if text.is_none() {
        #[expect(clippy::print_stderr, reason = "a skipped test says so")]
        {
            eprintln!("skipped: {name} is not in the corpus at {}", root.display());
        }
    }
    text
}

/// Messages as they are read, line by line.
#[derive(Default)]
struct Told {
    messages: Vec<Message>,
    /// The tool of each call.
    tools: HashMap<String, String>,
    /// The message of the newest answer, which several lines may make up.
    answer: Option<String>,
}

impl Told {
    /// The messages, each call with one result.
    fn kinds(self) -> Vec<EntryKind> {
        let messages: Vec<Arc<Message>> = self.messages.into_iter().map(Arc::new).collect();
        let paired = greenroom_kernel::path::pair(&messages);
        paired.into_iter().map(|message| EntryKind::Message { message, inbox: None, steer: false }).collect()
    }

    fn add(&mut self, part: Part) {
        if let Some(Message::Assistant(answer)) = self.messages.last_mut() {
            answer.content.push(part);
            return;
        }
        self.messages.push(Message::Assistant(AssistantMessage {
            content: vec![part],
            provider: "recorded".into(),
            model: "recorded".into(),
            usage: None,
            stop: StopReason::Stop,
            stop_raw: None,
            error: None,
        }));
    }

    fn call(&mut self, id: &str, name: &str, arguments: String) {
        self.tools.insert(id.to_owned(), name.to_owned());
        self.add(Part::ToolCall(ToolCall { id: id.to_owned(), name: name.to_owned(), arguments }));
    }

    fn result(&mut self, id: &str, text: String, is_error: bool) {
        let tool_name = self.tools.get(id).cloned().unwrap_or_default();
        let status = if is_error { ToolStatus::Error } else { ToolStatus::Ok };
        let content = vec![Block::Text(text)];
        self.messages.push(Message::ToolResult(ToolResult {
            call_id: id.to_owned(),
            tool_name,
            content,
            status,
            touched: Vec::new(),
        }));
    }

    fn codex(&mut self, line: &Value) {
        if line["type"] != "response_item" {
            return;
        }
        let item = &line["payload"];
        let text = |key: &str| item[key].as_str().unwrap_or_default().to_owned();
        match item["type"].as_str().unwrap_or_default() {
            "message" => {
                let said = joined(&item["content"]);
                match item["role"].as_str() {
                    // What the program adds is not the user's.
                    Some("user") if said.trim_start().starts_with("<environment_context>") => {}
                    Some("user") => self.messages.push(Message::user(said)),
                    Some("assistant") => self.add(Part::Text(said)),
                    _ => {}
                }
            }
            "function_call" => self.call(&text("call_id"), &text("name"), text("arguments")),
            "function_call_output" => {
                let output = text("output");
                let inner: Value = serde_json::from_str(&output).unwrap_or_default();
                let is_error = inner["metadata"]["exit_code"].as_i64().is_some_and(|code| code != 0);
                let said = inner["output"].as_str().map_or(output.clone(), str::to_owned);
                self.result(&text("call_id"), said, is_error);
            }
            _ => {}
        }
    }

    fn claude(&mut self, line: &Value) {
        // The other system's own summary is left out, too.
        let is_beside = ["isSidechain", "isMeta", "isCompactSummary"].iter().any(|mark| line[mark] == true);
        let message = &line["message"];
        let role = line["type"].as_str().unwrap_or_default();
        if is_beside || !matches!(role, "user" | "assistant") {
            return;
        }
        let id = message["id"].as_str().map(str::to_owned);
        if role == "assistant" && id != self.answer {
            self.answer = id;
        }
        let text = [message["content"].clone()];
        let blocks = message["content"].as_array().map_or(&text[..], Vec::as_slice);
        let mut said = Vec::new();
        for block in blocks {
            let field = |key: &str| block[key].as_str().unwrap_or_default().to_owned();
            match (role, block["type"].as_str()) {
                ("user", None) => said.extend(block.as_str().map(str::to_owned)),
                ("user", Some("text")) => said.push(field("text")),
                ("user", Some("tool_result")) => {
                    let text =
                        block["content"].as_str().map_or_else(|| joined(&block["content"]), str::to_owned);
                    self.result(&field("tool_use_id"), text, block["is_error"] == true);
                }
                ("assistant", Some("text")) => self.add(Part::Text(field("text"))),
                ("assistant", Some("tool_use")) => {
                    self.call(&field("id"), &field("name"), block["input"].to_string());
                }
                _ => {}
            }
        }
        let said = said.join("\n");
        // What the program adds is not the user's.
        let is_noise =
            ["<command-name>", "<local-command", "<system-reminder>", "Caveat:", "[Request interrupted"]
                .iter()
                .any(|mark| said.trim_start().starts_with(mark));
        if !said.trim().is_empty() && !is_noise {
            self.messages.push(Message::user(said));
        }
    }
}

/// The texts of a list of blocks.
fn joined(blocks: &Value) -> String {
    let texts = blocks.as_array().into_iter().flatten().filter_map(|block| block["text"].as_str());
    texts.collect::<Vec<_>>().join("\n")
}
