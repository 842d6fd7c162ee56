//! The session files of Codex: a `session_meta` line, then items of the conversation in their order, without ids.
//!
//! An answer is several items (reasoning, text, calls), up to the next result or message of the user. The usage of an
//! answer is a line of its own: before the items of the answer in older versions, behind them in newer ones.
//!
//! Invariants: each entry's parent is the entry before it; what is written a second time for the screen (`event_msg`) is
//! left out; a count of tokens belongs to one answer, and a repeated one to none; an unknown line is counted and reported
//! in a warning.

mod content;

#[cfg(test)]
mod tests;

use greenroom_kernel::entry::{Compaction, EntryId, EntryKind};
use greenroom_kernel::message::{AssistantMessage, Message, Part, StopReason, ToolCall, Usage};
use serde_json::Value;

use crate::calls::Calls;
use crate::fields::{filled, items, str_of, text};
use crate::log::{Log, Source, quoted};
use crate::{Format, Imported, lines, timestamp};

/// The type of the first line.
const HEADER: &str = "session_meta";

/// The types of lines that say nothing about the conversation.
const OTHER_TYPES: [&str; 8] = [
    "inter_agent_communication", "inter_agent_communication_metadata", "token_usage_record", "world_state",
    "security_risk_score", "retained_context", "realtime_item", HEADER,
];

/// The types of items without a readable form, and of those that the server handled itself.
const OTHER_ITEMS: [&str; 6] = [
    "web_search_call", "image_generation_call", "ghost_snapshot", "compaction", "compaction_summary",
    "compaction_trigger",
];

/// The summary of a compaction that the file does not tell.
const NO_SUMMARY: &str = "The conversation before this point was compacted. Its summary was kept by the server and is not in the file.";

/// Whether the text looks like one of Codex' files, by its first line.
pub(crate) fn is_codex(text: &str) -> bool {
    let first = lines::values(text).flatten().next();
    first.is_some_and(|first| str_of(&first, "type") == Some(HEADER))
}

/// Reads a file without repair.
pub(crate) fn import(text: &str) -> Imported {
    let mut reader = Reader { provider: "openai".into(), ..Reader::default() };
    for line in lines::values(text) {
        match line {
            Some(line) => reader.line(&line),
            None => reader.log.skip(None, None, "a line that is not JSON was left out".into()),
        }
    }
    reader.close();
    let source = Source { session_id: reader.session_id, title: None };
    reader.log.imported(Format::Codex, source, reader.leaf)
}

/// The state of an import after the lines read so far.
#[derive(Default)]
struct Reader {
    log: Log,
    calls: Calls,
    session_id: Option<String>,
    provider: String,
    /// The model of the turn.
    model: String,
    leaf: Option<EntryId>,
    /// The answer whose items are being read, and when its first one came.
    open: Option<(AssistantMessage, u64)>,
    /// The newest answer, if its usage may still follow its results.
    closed: Option<EntryId>,
    /// The newest count of tokens.
    counted: Option<content::Counted>,
    /// That count, if its answer did not come yet.
    ahead: Option<Usage>,
}

impl Reader {
    fn line(&mut self, line: &Value) {
        let payload = line.get("payload").unwrap_or(&Value::Null);
        let at_ms = str_of(line, "timestamp").and_then(timestamp::unix_ms).unwrap_or(0);
        match str_of(line, "type").unwrap_or_default() {
            HEADER if self.session_id.is_none() => {
                self.session_id = filled(payload, "id").map(str::to_owned);
                if let Some(provider) = filled(payload, "model_provider") {
                    provider.clone_into(&mut self.provider);
                }
            }
            "turn_context" => {
                if let Some(model) = filled(payload, "model") {
                    model.clone_into(&mut self.model);
                }
            }
            "response_item" => self.item(payload, at_ms),
            "event_msg" if str_of(payload, "type") == Some("token_count") => self.count(payload),
            "event_msg" => {}
            "compacted" => self.compacted(payload, at_ms),
            kind if OTHER_TYPES.contains(&kind) => {}
            unknown => {
                let why = format!("a line of the unknown type {} was left out", quoted(unknown));
                self.log.skip(None, None, why);
            }
        }
    }

    /// Reads an item of the conversation.
    fn item(&mut self, item: &Value, at_ms: u64) {
        match str_of(item, "type").unwrap_or_default() {
            "message" => self.message(item, at_ms),
            "reasoning" => self.add(content::reasoning(item), at_ms),
            "function_call" => {
                let arguments = str_of(item, "arguments").unwrap_or("{}").to_owned();
                self.call(item, text(item, "name"), arguments, at_ms);
            }
            "custom_tool_call" => {
                // The kernel's calls have JSON arguments.
                let arguments = serde_json::json!({ "input": text(item, "input") }).to_string();
                self.call(item, text(item, "name"), arguments, at_ms);
            }
            "local_shell_call" => {
                let arguments = item.get("action").map_or_else(|| "{}".into(), Value::to_string);
                self.call(item, "local_shell".into(), arguments, at_ms);
            }
            "function_call_output" | "custom_tool_call_output" => {
                let (content, status) = content::output(item.get("output").unwrap_or(&Value::Null));
                let result = self.calls.result(text(item, "call_id"), content, status);
                self.close();
                self.push(Message::ToolResult(result), at_ms);
            }
            kind if OTHER_ITEMS.contains(&kind) => {}
            unknown => {
                let why = format!("an item of the unknown type {} was left out", quoted(unknown));
                self.log.skip(None, None, why);
            }
        }
    }

    fn message(&mut self, item: &Value, at_ms: u64) {
        match str_of(item, "role").unwrap_or_default() {
            "user" => {
                let said = content::said(item);
                if !said.is_empty() {
                    self.close();
                    self.closed = None;
                    self.push(Message::User(said), at_ms);
                }
            }
            "assistant" => self.add(content::texts(item).map(Part::Text), at_ms),
            "developer" | "system" => {}
            unknown => {
                let why = format!("a message of the unknown role {} was left out", quoted(unknown));
                self.log.skip(None, None, why);
            }
        }
    }

    fn call(&mut self, item: &Value, name: String, arguments: String, at_ms: u64) {
        let call = ToolCall { id: text(item, "call_id"), name, arguments };
        self.calls.add(&call, content::touches(&call));
        self.add([Part::ToolCall(call)], at_ms);
    }

    /// Adds parts to the open answer, or opens one.
    fn add(&mut self, parts: impl IntoIterator<Item = Part>, at_ms: u64) {
        let mut parts = parts.into_iter().peekable();
        if parts.peek().is_none() {
            return;
        }
        let (answer, _) = self.open.get_or_insert_with(|| {
            let answer = AssistantMessage::new(
                Vec::new(),
                self.provider.clone(),
                self.model.clone(),
                StopReason::Stop,
            );
            (answer, at_ms)
        });
        answer.content.extend(parts);
        answer.usage = self.ahead.take().or(answer.usage);
    }

    /// Ends the open answer.
    fn close(&mut self) {
        let Some((mut answer, at_ms)) = self.open.take() else { return };
        if answer.tool_calls().next().is_some() {
            answer.stop = StopReason::ToolCalls;
        }
        let has_usage = answer.usage.is_some();
        let id = self.push(Message::Assistant(answer), at_ms);
        self.closed = (!has_usage).then_some(id);
    }

    fn push(&mut self, message: Message, at_ms: u64) -> EntryId {
        let id = self.log.push(None, self.leaf, at_ms, EntryKind::message(message));
        self.leaf = Some(id);
        id
    }

    /// Reads a count of tokens: of the open answer, or of the closed one if it has none, or else of the next one.
    fn count(&mut self, payload: &Value) {
        let Some(counted) = content::counted(payload) else { return };
        if self.counted.replace(counted) == Some(counted) {
            return;
        }
        let usage = counted.last;
        if let Some((answer, _)) = &mut self.open {
            answer.usage = Some(usage);
        } else if let Some(answer) = self.closed.take().and_then(|id| self.log.answer_mut(id)) {
            answer.usage = Some(usage);
        } else {
            self.ahead = Some(usage);
        }
    }

    fn compacted(&mut self, payload: &Value, at_ms: u64) {
        self.close();
        self.closed = None;
        // A count that was ahead was the count of the compaction itself.
        self.ahead = None;
        let told = || {
            let history = items(payload, "replacement_history");
            let of_user = history.filter(|item| str_of(item, "role") == Some("user"));
            let said: Vec<String> = of_user.map(|item| Message::User(content::said(item)).text()).collect();
            let said: Vec<&str> =
                said.iter().map(String::as_str).filter(|text| !text.trim().is_empty()).collect();
            if said.is_empty() { NO_SUMMARY.to_owned() } else { said.join("\n\n") }
        };
        let summary = filled(payload, "message").map_or_else(told, str::to_owned);
        let compaction = Compaction {
            files: self.log.files_before(self.leaf),
            tokens_before: self.counted.map_or(0, |counted| counted.last.total_tokens()),
            ..self.log.compaction(self.leaf, summary)
        };
        let kind = EntryKind::Compaction(Box::new(compaction));
        self.leaf = Some(self.log.push(None, self.leaf, at_ms, kind));
    }
}
