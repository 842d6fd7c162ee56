//! OpenAI's Responses, without storage.
//!
//! The items of an answer have ids that name the call and their place in it, and the encrypted content of reasoning
//! names its summary.
//!
//! Invariants: a request is refused for what the real API refuses: encrypted content that is not that of its item,
//! reasoning without the item that followed it, an item of no known type, storage.

use std::collections::HashMap;
use std::sync::Arc;

use greenroom_kernel::{
    AssistantMessage, Block, Message, Part, StopReason, ToolCall, ToolResult, ToolSpec, ToolStatus, Usage,
};
use greenroom_provider::{ModelSettings, OutputSchema, Purpose, ReasoningEffort, ToolChoice};
use serde_json::{Map, Value, json};

use super::chat::{self, FromHeaders, purpose_of};
use super::{Parsed, Writer, image_of, list, string};
use crate::answer::{Piece, Raw, SERVER_ERROR};
use crate::check::{Broken, Rule};
use crate::fault::hash;
use crate::sealed;
use crate::seen::SeenRequest;

/// The path of requests to compact a conversation.
pub(super) const COMPACT_PATH: &str = "/v1/responses/compact";

/// The fields of a request to compact a conversation.
const COMPACT_FIELDS: &[&str] =
    &["model", "instructions", "input", "prompt_cache_key", "previous_response_id"];

/// The fields of a body that are read. All others are extra.
const FIELDS: &[&str] = &[
    "model", "instructions", "input", "tools", "tool_choice", "parallel_tool_calls", "stream", "store",
    "include", "max_output_tokens", "temperature", "top_p", "reasoning", "text", "prompt_cache_key",
];

/// Reads a request.
pub(super) fn parse(path: &str, from: FromHeaders, body: &[u8]) -> Parsed {
    let is_compaction = path == COMPACT_PATH;
    let mut reader = Reader::default();
    let bytes = body.len() as u64;
    let body: Map<String, Value> = serde_json::from_slice(body).unwrap_or_else(|error| {
        reader.broken.push((Rule::NotJson, error.to_string()));
        Map::new()
    });
    let field = |name: &str| body.get(name).cloned().unwrap_or_default();
    let model = string(&Value::Object(body.clone()), "model");
    if is_compaction {
        let unknown = body.keys().find(|name| !COMPACT_FIELDS.contains(&name.as_str()));
        if let Some(name) = unknown {
            reader.breaks(Rule::Setting, format!("unknown parameter: {name}"));
        }
    } else if field("store") != json!(false) {
        reader.breaks(Rule::Setting, "the conversation would be stored at the server");
    }
    let tools: Arc<[ToolSpec]> = list(&field("tools"))
        .iter()
        .map(|tool| ToolSpec {
            name: string(tool, "name"),
            description: string(tool, "description"),
            parameters: tool.get("parameters").cloned().unwrap_or_default(),
        })
        .collect();
    for (index, item) in list(&field("input")).iter().enumerate() {
        reader.item(index, item);
    }
    reader.end_answer(&model);
    let choice = field("tool_choice");
    let tool_choice = choice.as_str().or_else(|| choice.get("name")?.as_str());
    let reasoning = field("reasoning");
    let effort = reasoning.get("effort").and_then(Value::as_str);
    let settings = ModelSettings {
        temperature: field("temperature").as_f64(),
        top_p: field("top_p").as_f64(),
        reasoning_effort: effort.and_then(|effort| effort.parse::<ReasoningEffort>().ok()),
        tool_choice: tool_choice.map(|name| ToolChoice::from(name.to_owned())),
        parallel_tool_calls: field("parallel_tool_calls").as_bool(),
        output_tokens_max: field("max_output_tokens").as_u64(),
        extra: body
            .iter()
            .filter(|(name, _)| !FIELDS.contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect(),
        ..ModelSettings::default()
    };
    let output_schema = field("text").pointer("/format/schema").map(|schema| {
        let name =
            field("text").pointer("/format/name").and_then(Value::as_str).unwrap_or_default().to_owned();
        Arc::new(OutputSchema { name, schema: schema.clone() })
    });
    let purpose = from.purpose.unwrap_or_else(|| purpose_of(&tools, &reader.messages));
    let purpose = if is_compaction { Purpose::Compaction } else { purpose };
    let session = field("prompt_cache_key").as_str().map(str::to_owned);
    let seen = SeenRequest {
        system: field("instructions").as_str().map(str::to_owned),
        messages: reader.messages,
        tools,
        settings,
        output_schema,
        session: from.session.or(session),
        purpose,
        streamed: field("stream").as_bool().unwrap_or(false),
        bytes,
        tokens: 0,
        cached_tokens: 0,
        model,
    };
    let said = field("input");
    let said = list(&said).iter().filter(|item| item["role"] == "user").cloned().collect();
    let writer = ResponsesWriter { compacts: is_compaction.then_some(said), ..ResponsesWriter::default() };
    Parsed { seen, broken: reader.broken, writer: Box::new(writer) }
}

/// The beginning of the encrypted content of a compaction.
const SEALED: &str = "gCMP";

/// Returns the encrypted content of reasoning with this summary.
fn encrypted(summary: &str) -> String {
    format!("gSIM+/{:016x}==", hash(&[summary.as_bytes()]))
}

fn item_id(kind: &str, call: u64, place: usize) -> String {
    format!("{kind}_{call:08}_{place}")
}

/// Returns the call and the place that an item's id names.
fn place_of(id: &str) -> Option<(&str, usize)> {
    let (of_call, place) = id.rsplit_once('_')?;
    Some((of_call.split_once('_')?.1, place.parse().ok()?))
}

/// Reads the conversation, and gathers what is wrong with it.
#[derive(Default)]
struct Reader {
    messages: Vec<Arc<Message>>,
    broken: Vec<Broken>,
    call_names: HashMap<String, String>,
    /// The parts of the answer that is being read.
    answer: Vec<Part>,
    /// The id of the reasoning that was read last, whose next item must follow.
    reasoning: Option<String>,
}

impl Reader {
    fn breaks(&mut self, rule: Rule, detail: impl Into<String>) {
        self.broken.push((rule, detail.into()));
    }

    fn end_answer(&mut self, model: &str) {
        self.follow("");
        if !self.answer.is_empty() {
            self.messages.push(Arc::new(Message::Assistant(AssistantMessage::new(
                std::mem::take(&mut self.answer),
                String::new(),
                model.to_owned(),
                StopReason::Stop,
            ))));
        }
    }

    /// Checks that an item with this id may come after what was read.
    fn follow(&mut self, id: &str) {
        let Some(reasoning) = self.reasoning.take() else { return };
        let next = place_of(&reasoning).map(|(call, place)| (call, place + 1));
        if next.is_none() || next != place_of(id) {
            let detail =
                format!("item {reasoning:?} of type 'reasoning' without its required following item");
            self.breaks(Rule::AlteredBlock, detail);
        }
    }

    fn item(&mut self, index: usize, item: &Value) {
        let id = string(item, "id");
        let role = string(item, "role");
        match item.get("type").and_then(Value::as_str) {
            Some("message") | None if role == "user" => {
                self.end_answer("");
                let blocks = self.blocks(index, item.get("content").unwrap_or(&Value::Null));
                self.messages.push(Arc::new(Message::User(blocks)));
            }
            Some("message") | None if role == "assistant" => {
                self.follow(&id);
                for part in list(item.get("content").unwrap_or(&Value::Null)) {
                    let text = string(part, "text") + &string(part, "refusal");
                    if text.is_empty() {
                        self.breaks(Rule::EmptyMessage, format!("item {index}"));
                    }
                    self.answer.push(Part::Text(text));
                }
            }
            Some("reasoning") => {
                self.follow(&id);
                let texts = list(item.get("summary").unwrap_or(&Value::Null));
                let summary: String = texts.iter().map(|part| string(part, "text")).collect();
                if string(item, "encrypted_content") != encrypted(&summary) {
                    self.breaks(
                        Rule::AlteredBlock,
                        format!("item {index}: the encrypted content is not its own"),
                    );
                }
                self.answer.push(Part::Reasoning(summary));
                self.reasoning = Some(id);
            }
            Some("function_call") => {
                self.follow(&id);
                let (call_id, name) = (string(item, "call_id"), string(item, "name"));
                self.call_names.insert(call_id.clone(), name.clone());
                let arguments = string(item, "arguments");
                self.answer.push(Part::ToolCall(ToolCall { id: call_id, name, arguments }));
            }
            Some("function_call_output") => {
                self.end_answer("");
                let call_id = string(item, "call_id");
                let content = match item.get("output") {
                    Some(Value::String(text)) => vec![Block::Text(text.clone())],
                    output => self.blocks(index, output.unwrap_or(&Value::Null)),
                };
                self.messages.push(Arc::new(Message::ToolResult(ToolResult {
                    tool_name: self.call_names.get(&call_id).cloned().unwrap_or_default(),
                    call_id,
                    content,
                    status: ToolStatus::Ok,
                    touched: Vec::new(),
                })));
            }
            Some("compaction") => {
                self.end_answer("");
                let text = string(item, "encrypted_content");
                match text.strip_prefix(SEALED).and_then(sealed::open) {
                    Some(text) => self.messages.push(Arc::new(Message::user(text))),
                    None => self.breaks(
                        Rule::AlteredBlock,
                        format!("item {index}: the encrypted content could not be verified"),
                    ),
                }
            }
            Some("web_search_call") => self.follow(&id),
            kind => {
                self.breaks(Rule::UnknownContent, format!("item {index} of type {kind:?}, role {role:?}"))
            }
        }
    }

    fn blocks(&mut self, index: usize, content: &Value) -> Vec<Block> {
        let mut blocks = Vec::new();
        if let Some(text) = content.as_str() {
            blocks.push(Block::Text(text.to_owned()));
        }
        for part in list(content) {
            match part.get("type").and_then(Value::as_str) {
                Some("input_text") => blocks.push(Block::Text(string(part, "text"))),
                Some("input_image") => blocks.push(Block::Image(image_of(&string(part, "image_url")))),
                kind => self.breaks(Rule::UnknownContent, format!("item {index}: a part of type {kind:?}")),
            }
        }
        blocks
    }
}

/// Writes one answer.
#[derive(Default)]
struct ResponsesWriter {
    call: u64,
    /// The items that have ended.
    items: Vec<Value>,
    /// The item that has begun.
    open: Option<Value>,
    stop: Option<StopReason>,
    usage: Option<Value>,
    /// The user's messages in the conversation that is compacted: they stay.
    compacts: Option<Vec<Value>>,
}

impl ResponsesWriter {
    fn event(kind: &str, mut data: Value, out: &mut Vec<u8>) {
        data["type"] = kind.into();
        out.extend_from_slice(format!("event: {kind}\ndata: {data}\n\n").as_bytes());
    }

    /// Begins an item of this type, unless it has begun.
    fn begin_item(&mut self, kind: &str, mut item: Value, out: &mut Vec<u8>) {
        let is_open = self.open.as_ref().is_some_and(|open| open["type"] == kind && kind != "function_call");
        if is_open {
            return;
        }
        self.end_item(out);
        let short = match kind {
            "message" => "msg",
            "reasoning" => "rs",
            _ => "fc",
        };
        item["id"] = item_id(short, self.call, self.items.len()).into();
        item["type"] = kind.into();
        let data = json!({ "output_index": self.items.len(), "item": item });
        Self::event("response.output_item.added", data, out);
        self.open = Some(item);
    }

    fn end_item(&mut self, out: &mut Vec<u8>) {
        let Some(mut item) = self.open.take() else { return };
        if item["type"] == "reasoning" {
            let summary = item["summary"][0]["text"].as_str().unwrap_or_default().to_owned();
            item["encrypted_content"] = encrypted(&summary).into();
        } else {
            item["status"] = "completed".into();
        }
        let data = json!({ "output_index": self.items.len(), "item": item });
        Self::event("response.output_item.done", data, out);
        self.items.push(item);
    }

    fn delta(&self, kind: &str, delta: &str, out: &mut Vec<u8>) {
        let data = json!({ "output_index": self.items.len(), "content_index": 0, "summary_index": 0, "delta": delta });
        Self::event(&format!("response.{kind}.delta"), data, out);
    }

    /// Appends to a text of the open item.
    fn append(&mut self, pointer: &str, text: &str) {
        if let Some(Value::String(so_far)) = self.open.as_mut().and_then(|item| item.pointer_mut(pointer)) {
            so_far.push_str(text);
        }
    }

    /// Returns a compacted conversation.
    fn compaction(&mut self, mut output: Vec<Value>) -> Value {
        let texts = self.items.iter().filter_map(|item| item.pointer("/content/0/text")?.as_str());
        let encrypted = format!("{SEALED}{}", sealed::seal(&texts.collect::<String>()));
        for (place, item) in output.iter_mut().enumerate() {
            item["id"] = item_id("msg", self.call, place).into();
        }
        let id = item_id("cmp", self.call, output.len());
        output.push(json!({ "id": id, "type": "compaction", "encrypted_content": encrypted }));
        json!({
            "id": format!("resp_{:08}", self.call), "object": "response.compaction", "created_at": 0,
            "output": output, "usage": self.usage.take(),
        })
    }

    /// Returns the type of the last event, and the response.
    fn response(&mut self) -> (&'static str, Value) {
        let mut response = json!({
            "id": format!("resp_{:08}", self.call), "object": "response", "error": null, "output": self.items,
            "usage": self.usage.take(),
        });
        let reason = match self.stop {
            Some(StopReason::Length) => Some("max_output_tokens"),
            Some(StopReason::ContentFilter) => Some("content_filter"),
            _ => None,
        };
        response["status"] = if reason.is_some() { "incomplete" } else { "completed" }.into();
        response["incomplete_details"] = reason.map_or(Value::Null, |reason| json!({ "reason": reason }));
        (if reason.is_some() { "response.incomplete" } else { "response.completed" }, response)
    }
}

fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.input_tokens, "input_tokens_details": { "cached_tokens": usage.cached_tokens },
        "output_tokens": usage.output_tokens,
        "output_tokens_details": { "reasoning_tokens": usage.reasoning_tokens }, "total_tokens": usage.total_tokens(),
    })
}

impl Writer for ResponsesWriter {
    fn begin(&mut self, call: u64) {
        self.call = call;
    }

    fn piece(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Role => {
                Self::event("response.created", json!({ "response": { "status": "in_progress" } }), out)
            }
            Piece::Reasoning(text) => {
                self.begin_item(
                    "reasoning",
                    json!({ "summary": [{ "type": "summary_text", "text": "" }] }),
                    out,
                );
                self.append("/summary/0/text", text);
                self.delta("reasoning_summary_text", text, out);
            }
            Piece::Text(text) => {
                let content = json!([{ "type": "output_text", "annotations": [], "text": "" }]);
                self.begin_item("message", json!({ "role": "assistant", "content": content }), out);
                self.append("/content/0/text", text);
                self.delta("output_text", text, out);
            }
            Piece::CallStart { id, name, .. } => {
                let item = json!({ "call_id": id, "name": name, "arguments": "" });
                self.begin_item("function_call", item, out);
            }
            Piece::CallArguments { arguments, .. } => {
                self.append("/arguments", arguments);
                self.delta("function_call_arguments", arguments, out);
            }
            Piece::Finish(stop) => {
                self.end_item(out);
                self.stop = Some(*stop);
            }
            Piece::Usage(counts) => self.usage = Some(usage(*counts)),
            Piece::Done => {
                let (kind, response) = self.response();
                Self::event(kind, json!({ "response": response }), out);
            }
        }
    }

    fn raw(&mut self, raw: &Raw, out: &mut Vec<u8>) {
        match raw {
            Raw::BrokenJson => {
                out.extend_from_slice(b"data: {\"type\":\"response.output_text.delta\",\"out\n\n")
            }
            Raw::BadUtf8 => {
                out.extend_from_slice(b"data: {\"type\":\"response.output_text.delta\",\"delta\":\"");
                out.extend_from_slice(&[0xff, 0xfe, 0xc3]);
                out.extend_from_slice(b"\"}\n\n");
            }
            Raw::ErrorEvent => {
                let body = chat::error_body(SERVER_ERROR, "server_error", Some("server_error"));
                let body: Value = serde_json::from_str(&body).unwrap_or_default();
                Self::event("error", body, out);
            }
            Raw::PlainText(text) => out.extend_from_slice(format!("data: {text}\n\n").as_bytes()),
        }
    }

    fn whole(&mut self, pieces: Vec<Piece>) -> Value {
        // The events are written to nowhere: the items are what remains of them.
        let mut nowhere = Vec::new();
        for piece in pieces.iter().filter(|piece| !matches!(piece, Piece::Done)) {
            self.piece(piece, &mut nowhere);
        }
        match self.compacts.take() {
            Some(said) => self.compaction(said),
            None => self.response().1,
        }
    }
}
