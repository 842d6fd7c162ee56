//! Google's `generateContent`.
//!
//! The first call of an answer is signed, or else its end: the signature names the call, or the text.
//!
//! Invariants: a request is refused for what the real API refuses: a signature that is not that of its part, a call of
//! the current turn without one at Gemini 3 and later, results that are not alone in the content after their calls, and
//! fields that the API does not have.

use std::collections::VecDeque;
use std::sync::Arc;

use greenroom_kernel::{
    AssistantMessage, Block, Image, Message, Part, StopReason, ToolCall, ToolResult, ToolSpec, ToolStatus,
    Usage,
};
use greenroom_provider::{ModelSettings, OutputSchema, ReasoningEffort, ToolChoice};
use serde_json::{Map, Value, json};

use super::chat::{FromHeaders, purpose_of};
use super::{Parsed, Writer, list, string};
use crate::answer::{Piece, Raw, SERVER_ERROR};
use crate::check::{Broken, Rule};
use crate::fault::hash;
use crate::seen::SeenRequest;

/// The signature that the API accepts on any call.
const ANY_SIGNATURE: &str = "skip_thought_signature_validator";

/// The fields of a body. The API refuses all others.
const FIELDS: &[&str] = &[
    "contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "safetySettings",
    "cachedContent", "labels", "serviceTier", "store",
];

/// Returns the model's name and whether a stream is asked for, if the path is one of this API.
pub(super) fn call_of(path: &str) -> Option<(&str, bool)> {
    let name = path.strip_prefix("/v1beta/models/").or_else(|| path.strip_prefix("/v1/models/"))?;
    match name.rsplit_once(':')? {
        (model, "generateContent") => Some((model, false)),
        (model, "streamGenerateContent") => Some((model, true)),
        _ => None,
    }
}

/// Reads a request.
pub(super) fn parse(path: &str, from: FromHeaders, body: &[u8]) -> Parsed {
    let (model, streamed) = call_of(path).unwrap_or_default();
    let mut reader = Reader { is_new: model.starts_with("gemini-3"), ..Reader::default() };
    let bytes = body.len() as u64;
    let body: Map<String, Value> = match serde_json::from_slice(body) {
        Ok(body) => body,
        Err(error) => {
            reader.breaks(Rule::NotJson, error.to_string());
            Map::new()
        }
    };
    for field in body.keys().filter(|field| !FIELDS.contains(&field.as_str())) {
        reader.breaks(Rule::Setting, format!("Unknown name {field:?}: Cannot find field."));
    }
    let system = body.get("systemInstruction").map(|instruction| {
        let texts: Vec<String> =
            list(&instruction["parts"]).iter().map(|part| string(part, "text")).collect();
        texts.join("\n")
    });
    let tools: Arc<[ToolSpec]> = list(body.get("tools").unwrap_or(&Value::Null))
        .iter()
        .flat_map(|tools| list(&tools["functionDeclarations"]))
        .map(|tool| ToolSpec {
            name: string(tool, "name"),
            description: string(tool, "description"),
            parameters: tool["parametersJsonSchema"].clone(),
        })
        .collect();
    reader.contents(list(body.get("contents").unwrap_or(&Value::Null)), model);
    let generation = body.get("generationConfig").cloned().unwrap_or_default();
    let settings = reader.settings(&body, &generation);
    let schema = generation.get("responseJsonSchema").cloned();
    if schema.is_some() && generation["responseMimeType"] != "application/json" {
        reader.breaks(Rule::Setting, "responseJsonSchema without its responseMimeType");
    }
    let purpose = from.purpose.unwrap_or_else(|| purpose_of(&tools, &reader.messages));
    let seen = SeenRequest {
        model: model.to_owned(),
        system,
        messages: reader.messages,
        tools,
        settings,
        output_schema: schema.map(|schema| Arc::new(OutputSchema { name: String::new(), schema })),
        session: from.session,
        purpose,
        streamed,
        bytes,
        tokens: 0,
        cached_tokens: 0,
    };
    let writer = GeminiWriter { model: model.to_owned(), ..GeminiWriter::default() };
    Parsed { seen, broken: reader.broken, writer: Box::new(writer) }
}

/// Returns an error in this protocol's form, if the body is one in OpenAI's.
pub(super) fn error(status: u16, body: &str) -> Option<String> {
    let body: Value = serde_json::from_str(body).ok()?;
    let error = body.get("error")?;
    if error.get("status").is_some() {
        return None;
    }
    let name = match status {
        401 => "UNAUTHENTICATED",
        403 => "PERMISSION_DENIED",
        404 => "NOT_FOUND",
        429 => "RESOURCE_EXHAUSTED",
        503 => "UNAVAILABLE",
        504 => "DEADLINE_EXCEEDED",
        200 | 500.. => "INTERNAL",
        _ => "INVALID_ARGUMENT",
    };
    let code = if status == 200 { 500 } else { status };
    let message = error.get("message")?.as_str()?;
    Some(json!({ "error": { "code": code, "message": message, "status": name } }).to_string())
}

fn signature(signed: &str) -> String {
    format!("Sim{:016x}=", hash(&[signed.as_bytes()]))
}

/// Returns the signature of a call.
fn call_signature(call: &Value) -> String {
    signature(&format!("{}({})", call["name"], call["args"]))
}

/// A call that has no result yet.
struct OpenCall {
    /// The id in the messages that the script sees, which the API need not have.
    id: String,
    wire_id: Option<String>,
    name: String,
}

/// Reads a request, and gathers what is wrong with it.
#[derive(Default)]
struct Reader {
    messages: Vec<Arc<Message>>,
    broken: Vec<Broken>,
    /// Whether calls must be signed, and results may hold images.
    is_new: bool,
    calls: usize,
    open: VecDeque<OpenCall>,
}

impl Reader {
    fn breaks(&mut self, rule: Rule, detail: impl Into<String>) {
        self.broken.push((rule, detail.into()));
    }

    fn contents(&mut self, contents: &[Value], model: &str) {
        let has_result = |content: &Value| {
            list(&content["parts"]).iter().any(|part| part.get("functionResponse").is_some())
        };
        let begins_turn = |content: &Value| content["role"] == "user" && !has_result(content);
        let turn = contents.iter().rposition(begins_turn).unwrap_or_default();
        for (index, content) in contents.iter().enumerate() {
            let parts = list(&content["parts"]);
            if parts.is_empty() {
                self.breaks(Rule::EmptyMessage, format!("content {index}"));
            }
            let role = content["role"].as_str().unwrap_or_default();
            if index == 0 && role != "user" {
                self.breaks(Rule::NoUserMessage, "the first content must be the user's");
            }
            match role {
                "user" if has_result(content) => self.results(index, parts),
                "user" => self.user(index, parts),
                "model" => self.model(index, parts, model, index > turn),
                _ => self.breaks(Rule::UnknownRole, format!("content {index}: {role:?}")),
            }
        }
    }

    fn user(&mut self, index: usize, parts: &[Value]) {
        let mut blocks = Vec::new();
        for part in parts {
            match (part.get("text"), part.get("inlineData")) {
                (Some(Value::String(text)), None) => blocks.push(Block::Text(text.clone())),
                (None, Some(data)) => blocks.push(image(data)),
                _ => self.breaks(Rule::UnknownContent, format!("content {index}: {part}")),
            }
        }
        self.messages.push(Arc::new(Message::User(blocks)));
    }

    fn results(&mut self, index: usize, parts: &[Value]) {
        let is_result = |part: &Value| part.get("functionResponse").is_some();
        if parts.len() != self.open.len() || !parts.iter().all(is_result) {
            let detail = format!("content {index}: {} parts for {} calls", parts.len(), self.open.len());
            self.breaks(Rule::MisplacedResult, detail);
        }
        for result in parts.iter().filter_map(|part| part.get("functionResponse")) {
            let (name, wire_id) = (string(result, "name"), result["id"].as_str());
            let id = match self.open.pop_front() {
                Some(call) if call.name == name && call.wire_id.as_deref() == wire_id => call.id,
                Some(_) | None => {
                    self.breaks(Rule::OrphanResult, format!("content {index}: {name} {wire_id:?}"));
                    continue;
                }
            };
            let response = &result["response"];
            let (said, status) = match (response["output"].as_str(), response["error"].as_str()) {
                (Some(output), None) => (output, ToolStatus::Ok),
                (None, Some(error)) => (error, ToolStatus::Error),
                _ => {
                    self.breaks(Rule::UnknownContent, format!("content {index}: the response {response}"));
                    continue;
                }
            };
            let images: Vec<Block> =
                list(&result["parts"]).iter().map(|part| image(&part["inlineData"])).collect();
            if !images.is_empty() && !self.is_new {
                let detail = "`function_response.parts` is not supported for this model";
                self.breaks(Rule::UnknownContent, format!("content {index}: {detail}"));
            }
            self.messages.push(Arc::new(Message::ToolResult(ToolResult {
                call_id: id,
                tool_name: name,
                content: std::iter::once(Block::Text(said.to_owned())).chain(images).collect(),
                status,
                touched: Vec::new(),
            })));
        }
        self.open.clear();
    }

    fn model(&mut self, index: usize, parts: &[Value], model: &str, is_of_turn: bool) {
        let mut content = Vec::new();
        let mut is_first_call = true;
        let mut text_before = "";
        self.open.clear();
        for part in parts {
            let signed = part.get("thoughtSignature").map(|_| string(part, "thoughtSignature"));
            let is_thought = part["thought"] == true;
            let mut expected = None;
            if let Some(call) = part.get("functionCall") {
                expected = Some(call_signature(call));
                let is_unsigned = signed.is_none() && std::mem::take(&mut is_first_call);
                if is_unsigned && self.is_new && is_of_turn {
                    let detail = "Function call is missing a thought_signature in functionCall parts.";
                    self.breaks(Rule::AlteredBlock, format!("content {index}: {detail}"));
                }
                is_first_call = false;
                content.push(Part::ToolCall(self.call(index, call)));
            } else if let Some(text) = part["text"].as_str() {
                expected = Some(signature(text_before));
                if is_thought {
                    content.push(Part::Reasoning(text.to_owned()));
                } else if !text.is_empty() {
                    text_before = text;
                    content.push(Part::Text(text.to_owned()));
                }
            } else if part.get("executableCode").is_none() && part.get("codeExecutionResult").is_none() {
                self.breaks(Rule::UnknownContent, format!("content {index}: {part}"));
            }
            if let Some(signed) = signed {
                let is_any = signed == ANY_SIGNATURE && part.get("functionCall").is_some();
                if !is_any && Some(&signed) != expected.as_ref() {
                    self.breaks(
                        Rule::AlteredBlock,
                        format!("content {index}: Thought signature is not valid."),
                    );
                }
            }
        }
        self.messages.push(Arc::new(Message::Assistant(AssistantMessage::new(
            content,
            String::new(),
            model.to_owned(),
            StopReason::Stop,
        ))));
    }

    fn call(&mut self, index: usize, call: &Value) -> ToolCall {
        let name = string(call, "name");
        let wire_id = call["id"].as_str().map(str::to_owned);
        if !call["args"].is_object() {
            self.breaks(Rule::ArgumentsNotJson, format!("content {index}: the arguments are no object"));
        }
        let id = wire_id.clone().unwrap_or_else(|| format!("unnamed-{}", self.calls));
        self.calls += 1;
        self.open.push_back(OpenCall { id: id.clone(), wire_id, name: name.clone() });
        ToolCall { id, name, arguments: call["args"].to_string() }
    }

    fn settings(&mut self, body: &Map<String, Value>, generation: &Value) -> ModelSettings {
        let config = body.get("toolConfig").map(|config| &config["functionCallingConfig"]);
        let config = config.unwrap_or(&Value::Null);
        let tool_choice = match (config["mode"].as_str(), config["allowedFunctionNames"][0].as_str()) {
            (Some("AUTO"), _) => Some(ToolChoice::Auto),
            (Some("NONE"), _) => Some(ToolChoice::None),
            (Some("ANY"), None) => Some(ToolChoice::Required),
            (Some("ANY"), Some(name)) => Some(ToolChoice::Tool(name.to_owned())),
            (None, _) => None,
            (Some(mode), _) => {
                self.breaks(Rule::Setting, format!("the mode {mode:?}"));
                None
            }
        };
        let thinking = &generation["thinkingConfig"];
        if thinking.get("thinkingLevel").is_some() && thinking.get("thinkingBudget").is_some() {
            self.breaks(Rule::Setting, "both thinkingLevel and thinkingBudget");
        }
        let level = thinking["thinkingLevel"].as_str();
        let stop = generation["stopSequences"].as_array();
        ModelSettings {
            temperature: generation["temperature"].as_f64(),
            top_p: generation["topP"].as_f64(),
            reasoning_effort: level.and_then(|level| level.parse::<ReasoningEffort>().ok()),
            tool_choice,
            stop: stop
                .map(|texts| texts.iter().map(|text| text.as_str().unwrap_or_default().to_owned()).collect()),
            seed: generation["seed"].as_i64(),
            output_tokens_max: generation["maxOutputTokens"].as_u64(),
            ..ModelSettings::default()
        }
    }
}

fn image(data: &Value) -> Block {
    Block::Image(Image { media_type: string(data, "mimeType"), data: string(data, "data") })
}

/// Writes one answer.
#[derive(Default)]
struct GeminiWriter {
    id: String,
    model: String,
    /// A call whose arguments still come.
    call: Option<(Value, String)>,
    has_signed: bool,
    /// The text since the last part of another kind.
    text: String,
    stop: Option<&'static str>,
    usage: Option<Value>,
}

impl GeminiWriter {
    /// Returns the parts that a piece completes.
    fn parts(&mut self, piece: &Piece) -> Vec<Value> {
        let mut parts = Vec::new();
        if !matches!(piece, Piece::CallArguments { .. }) {
            parts.extend(self.finished_call());
        }
        match piece {
            Piece::Role => {}
            Piece::Reasoning(thought) => {
                self.text.clear();
                parts.push(json!({ "text": thought, "thought": true }));
            }
            Piece::Text(text) => {
                self.text.push_str(text);
                parts.push(json!({ "text": text }));
            }
            Piece::CallStart { id, name, .. } => {
                let mut call = json!({ "name": name });
                if let Some(id) = id {
                    call["id"] = id.as_str().into();
                }
                self.call = Some((call, String::new()));
            }
            Piece::CallArguments { arguments, .. } => {
                if let Some((_, so_far)) = &mut self.call {
                    so_far.push_str(arguments);
                }
            }
            Piece::Finish(stop) => {
                if !std::mem::replace(&mut self.has_signed, true) && !self.text.is_empty() {
                    parts.push(json!({ "text": "", "thoughtSignature": signature(&self.text) }));
                }
                self.stop = Some(finish_reason(*stop));
            }
            Piece::Usage(counts) => self.usage = Some(usage(*counts)),
            Piece::Done => {}
        }
        parts
    }

    /// Returns the part of the call that was written last. Arguments that were cut off cannot be written in this
    /// protocol.
    fn finished_call(&mut self) -> Option<Value> {
        let (mut call, arguments) = self.call.take()?;
        call["args"] = serde_json::from_str(&arguments).ok()?;
        let signed = call_signature(&call);
        let mut part = json!({ "functionCall": call });
        if !std::mem::replace(&mut self.has_signed, true) {
            part["thoughtSignature"] = signed.into();
        }
        self.text.clear();
        Some(part)
    }

    /// Returns a chunk. The last one has the reason and the usage.
    fn chunk(&mut self, parts: &[Value], is_last: bool) -> Value {
        let mut candidate = json!({ "content": { "role": "model", "parts": parts }, "index": 0 });
        let mut chunk = json!({ "responseId": self.id, "modelVersion": self.model });
        if is_last {
            candidate["finishReason"] = self.stop.into();
            if let Some(usage) = self.usage.take() {
                chunk["usageMetadata"] = usage;
            }
        }
        chunk["candidates"] = json!([candidate]);
        chunk
    }
}

fn finish_reason(stop: StopReason) -> &'static str {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the API has no word for the others")]
    match stop {
        StopReason::Length => "MAX_TOKENS",
        StopReason::ContentFilter => "SAFETY",
        _ => "STOP",
    }
}

fn usage(usage: Usage) -> Value {
    json!({
        "promptTokenCount": usage.input_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
        "candidatesTokenCount": usage.output_tokens.saturating_sub(usage.reasoning_tokens),
        "thoughtsTokenCount": usage.reasoning_tokens,
        "totalTokenCount": usage.total_tokens(),
    })
}

fn event(data: &Value, out: &mut Vec<u8>) {
    out.extend_from_slice(format!("data: {data}\r\n\r\n").as_bytes());
}

impl Writer for GeminiWriter {
    fn begin(&mut self, call: u64) {
        self.id = format!("resp-{call:08}");
    }

    fn piece(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        let parts = self.parts(piece);
        let is_last = matches!(piece, Piece::Done) && self.stop.is_some();
        if is_last || !parts.is_empty() {
            event(&self.chunk(&parts, is_last), out);
        }
    }

    fn raw(&mut self, raw: &Raw, out: &mut Vec<u8>) {
        match raw {
            Raw::BrokenJson => out.extend_from_slice(b"data: {\"candidates\":[{\"content\":{\"par\r\n\r\n"),
            Raw::BadUtf8 => {
                out.extend_from_slice(b"data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"");
                out.extend_from_slice(&[0xff, 0xfe, 0xc3]);
                out.extend_from_slice(b"\"}]}}]}\r\n\r\n");
            }
            Raw::ErrorEvent => {
                event(
                    &json!({ "error": { "code": 500, "message": SERVER_ERROR, "status": "INTERNAL" } }),
                    out,
                );
            }
            Raw::PlainText(text) => out.extend_from_slice(format!("data: {text}\r\n\r\n").as_bytes()),
        }
    }

    fn whole(&mut self, pieces: Vec<Piece>) -> Value {
        let mut parts: Vec<Value> = Vec::new();
        for part in pieces.iter().flat_map(|piece| self.parts(piece)) {
            let is_text = |part: &Value| part.get("text").is_some() && part.get("thoughtSignature").is_none();
            match parts.last_mut() {
                Some(last) if is_text(last) && is_text(&part) && last["thought"] == part["thought"] => {
                    last["text"] = (string(last, "text") + &string(&part, "text")).into();
                }
                _ => parts.push(part),
            }
        }
        self.chunk(&parts, true)
    }
}

#[cfg(test)]
mod tests;
