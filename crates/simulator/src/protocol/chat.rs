//! The chat-completions protocol on the wire: reading and writing.
//!
//! Invariants: reading is lenient about form (unknown fields, nulls, string or parts) and strict about
//! meaning: content that cannot be understood is a broken rule, never silently dropped.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use greenroom_kernel::message::blocks_text;
use greenroom_kernel::{
    AssistantMessage, Block, Message, Part, StopReason, ToolCall, ToolResult, ToolSpec, ToolStatus, Usage,
};
use greenroom_provider::{ModelSettings, OutputSchema, Purpose, ToolChoice};
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use super::{Parsed, Writer, image_of};
use crate::answer::{Piece, Raw, SERVER_ERROR};
use crate::check::{Broken, Rule};
use crate::seen::{SeenRequest, TRANSCRIPT_TAG};

/// The fields that [`WireRequest`] reads. All others are extra.
const FIELDS: &[&str] = &[
    "model", "messages", "tools", "stream", "stream_options", "max_tokens", "max_completion_tokens",
    "response_format", "temperature", "top_p", "reasoning_effort", "tool_choice", "parallel_tool_calls",
    "stop", "seed", "prompt_cache_key", "user",
];

/// The fields of a body that are not among [`FIELDS`]. Read in a separate pass, since a flattened map would
/// copy every long text once more.
#[derive(Debug, Default)]
pub(crate) struct Extra(serde_json::Map<String, serde_json::Value>);

impl<'de> Deserialize<'de> for Extra {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ExtraVisitor;
        impl<'de> Visitor<'de> for ExtraVisitor {
            type Value = Extra;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut fields: A) -> Result<Extra, A::Error> {
                let mut extra = Extra::default();
                while let Some(field) = fields.next_key::<Cow<'de, str>>()? {
                    if FIELDS.contains(&&*field) {
                        fields.next_value::<serde::de::IgnoredAny>()?;
                    } else {
                        extra.0.insert(field.into_owned(), fields.next_value()?);
                    }
                }
                Ok(extra)
            }
        }
        deserializer.deserialize_map(ExtraVisitor)
    }
}

/// One text, or several.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Several(Vec<String>),
}

/// The JSON body of a chat-completions request.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct WireRequest {
    #[serde(default)]
    pub(crate) model: String,
    #[serde(default)]
    messages: Vec<WireMessage>,
    #[serde(default)]
    tools: Option<Vec<WireTool>>,
    #[serde(default)]
    stream: Option<bool>,
    #[serde(default)]
    stream_options: Option<StreamOptions>,
    #[serde(default)]
    max_tokens: Option<u64>,
    #[serde(default)]
    max_completion_tokens: Option<u64>,
    #[serde(default)]
    response_format: Option<serde_json::Value>,
    #[serde(default)]
    temperature: Option<f64>,
    #[serde(default)]
    top_p: Option<f64>,
    #[serde(default)]
    reasoning_effort: Option<String>,
    #[serde(default)]
    tool_choice: Option<serde_json::Value>,
    #[serde(default)]
    parallel_tool_calls: Option<bool>,
    #[serde(default)]
    stop: Option<Stop>,
    #[serde(default)]
    seed: Option<i64>,
    #[serde(default)]
    prompt_cache_key: Option<String>,
    #[serde(default)]
    user: Option<String>,
}

#[derive(Debug, Deserialize)]
struct StreamOptions {
    #[serde(default)]
    include_usage: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct WireMessage {
    #[serde(default)]
    role: String,
    #[serde(default)]
    content: Content,
    #[serde(default)]
    tool_calls: Option<Vec<WireCall>>,
    #[serde(default)]
    tool_call_id: Option<String>,
    #[serde(default)]
    reasoning_content: Option<String>,
    #[serde(default)]
    reasoning: Option<String>,
}

#[derive(Debug, Deserialize)]
struct WireCall {
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    function: WireFunctionCall,
}

#[derive(Debug, Default, Deserialize)]
struct WireFunctionCall {
    #[serde(default)]
    name: String,
    #[serde(default)]
    arguments: String,
}

#[derive(Debug, Deserialize)]
struct WireTool {
    #[serde(default)]
    function: WireFunction,
}

#[derive(Debug, Default, Deserialize)]
struct WireFunction {
    #[serde(default)]
    name: String,
    #[serde(default)]
    description: Option<String>,
    #[serde(default)]
    parameters: Option<serde_json::Value>,
}

/// A message's content: null, a string, or parts. Read by hand, since an untagged enum would copy every long
/// text once more.
#[derive(Debug, Default)]
struct Content(Vec<WirePart>);

#[derive(Debug, Deserialize)]
struct WirePart {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    refusal: Option<String>,
    #[serde(default)]
    image_url: Option<ImageUrl>,
}

#[derive(Debug, Deserialize)]
struct ImageUrl {
    url: String,
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;
        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = Content;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("null, a string, or a list of parts")
            }
            fn visit_unit<E: serde::de::Error>(self) -> Result<Content, E> {
                Ok(Content::default())
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Content, E> {
                self.visit_string(text.to_owned())
            }
            fn visit_string<E: serde::de::Error>(self, text: String) -> Result<Content, E> {
                let part = WirePart { kind: "text".into(), text: Some(text), refusal: None, image_url: None };
                Ok(Content(vec![part]))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
                let mut content = Vec::new();
                while let Some(part) = parts.next_element()? {
                    content.push(part);
                }
                Ok(Content(content))
            }
        }
        deserializer.deserialize_any(ContentVisitor)
    }
}

/// Reads a request.
pub(super) fn parse(headers: FromHeaders, body: &[u8]) -> Parsed {
    let (wire, not_json) = match serde_json::from_slice::<WireRequest>(body) {
        Ok(wire) => (wire, None),
        Err(error) => (WireRequest::default(), Some((Rule::NotJson, error.to_string()))),
    };
    let extra = serde_json::from_slice(body).unwrap_or_default();
    let (seen, form, mut broken) = wire.into_seen(headers, extra, body.len() as u64);
    broken.extend(not_json);
    let writer = ChatWriter { id: String::new(), model: seen.model.clone(), form };
    Parsed { seen, broken, writer: Box::new(writer) }
}

/// Information about a request from its headers.
#[derive(Debug, Default)]
pub(crate) struct FromHeaders {
    pub(crate) session: Option<String>,
    pub(crate) purpose: Option<Purpose>,
}

/// Further information for writing the answer.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct AnswerForm {
    pub(crate) includes_usage: bool,
}

impl WireRequest {
    /// Converts the request to our own types, and returns the errors in its form.
    pub(crate) fn into_seen(
        self,
        headers: FromHeaders,
        extra: Extra,
        bytes: u64,
    ) -> (SeenRequest, AnswerForm, Vec<Broken>) {
        let mut broken = Vec::new();
        let mut system = None;
        let mut messages: Vec<Arc<Message>> = Vec::with_capacity(self.messages.len());
        let mut call_names: HashMap<String, String> = HashMap::new();
        for (index, message) in self.messages.into_iter().enumerate() {
            match message.role.as_str() {
                "system" | "developer" => {
                    if system.is_some() {
                        broken.push((Rule::SecondSystem, format!("message {index}")));
                    } else if index > 0 {
                        broken.push((Rule::SystemNotFirst, format!("message {index}")));
                    }
                    let text = blocks_text(&message.content.into_blocks(index, &mut broken));
                    system = Some(system.map_or(text.clone(), |before: String| format!("{before}\n{text}")));
                }
                "user" => {
                    messages.push(Arc::new(Message::User(message.content.into_blocks(index, &mut broken))));
                }
                "assistant" => {
                    let assistant = message.into_assistant(&self.model, index, &mut broken);
                    for call in assistant.tool_calls() {
                        call_names.insert(call.id.clone(), call.name.clone());
                    }
                    messages.push(Arc::new(Message::Assistant(assistant)));
                }
                "tool" => {
                    let call_id = message.tool_call_id.unwrap_or_default();
                    messages.push(Arc::new(Message::ToolResult(ToolResult {
                        tool_name: call_names.get(&call_id).cloned().unwrap_or_default(),
                        call_id,
                        content: message.content.into_blocks(index, &mut broken),
                        status: ToolStatus::Ok,
                        touched: Vec::new(),
                    })));
                }
                role => broken.push((Rule::UnknownRole, format!("message {index}: {role:?}"))),
            }
        }
        let tools: Arc<[ToolSpec]> = self
            .tools
            .unwrap_or_default()
            .into_iter()
            .map(|tool| ToolSpec {
                name: tool.function.name,
                description: tool.function.description.unwrap_or_default(),
                parameters: tool
                    .function
                    .parameters
                    .unwrap_or_else(|| serde_json::json!({ "type": "object", "properties": {} })),
            })
            .collect();
        let purpose = headers.purpose.unwrap_or_else(|| purpose_of(&tools, &messages));
        let settings = ModelSettings {
            temperature: self.temperature,
            top_p: self.top_p,
            reasoning_effort: self.reasoning_effort.as_deref().and_then(|effort| match effort.parse() {
                Ok(effort) => Some(effort),
                Err(error) => {
                    broken.push((Rule::Setting, error));
                    None
                }
            }),
            tool_choice: self.tool_choice.as_ref().and_then(tool_choice),
            parallel_tool_calls: self.parallel_tool_calls,
            stop: self.stop.map(|stop| match stop {
                Stop::One(text) => vec![text],
                Stop::Several(texts) => texts,
            }),
            seed: self.seed,
            output_tokens_max: self.max_completion_tokens.or(self.max_tokens),
            // Visible in the messages.
            resend_reasoning: None,
            extra: extra.0,
        };
        let seen = SeenRequest {
            model: self.model,
            system,
            messages,
            tools,
            settings,
            output_schema: self.response_format.as_ref().and_then(output_schema),
            session: headers.session.or(self.prompt_cache_key).or(self.user),
            purpose,
            streamed: self.stream.unwrap_or(false),
            bytes,
            tokens: 0,
            cached_tokens: 0,
        };
        let includes_usage = self.stream_options.and_then(|options| options.include_usage).unwrap_or(false);
        (seen, AnswerForm { includes_usage }, broken)
    }
}

/// Reads the tool choice: a word, or `{"type":"function","function":{"name":"…"}}`.
fn tool_choice(value: &serde_json::Value) -> Option<ToolChoice> {
    let name = value.as_str().or_else(|| value.get("function")?.get("name")?.as_str());
    name.map(|name| name.to_owned().into())
}

impl WireMessage {
    fn into_assistant(self, model: &str, index: usize, broken: &mut Vec<Broken>) -> AssistantMessage {
        let mut content = Vec::new();
        let reasoning = self.reasoning_content.or(self.reasoning);
        content.extend(reasoning.filter(|text| !text.is_empty()).map(Part::Reasoning));
        for block in self.content.into_blocks(index, broken) {
            match block {
                Block::Text(text) if text.is_empty() => {}
                Block::Text(text) => content.push(Part::Text(text)),
                Block::Image(_) | _ => {
                    broken.push((Rule::UnknownContent, format!("message {index}: an image in an answer")));
                }
            }
        }
        let calls = self.tool_calls.unwrap_or_default();
        let has_calls = !calls.is_empty();
        content.extend(calls.into_iter().map(|call| {
            Part::ToolCall(ToolCall {
                id: call.id.unwrap_or_default(),
                name: call.function.name,
                arguments: call.function.arguments,
            })
        }));
        AssistantMessage::new(
            content,
            String::new(),
            model.to_owned(),
            if has_calls { StopReason::ToolCalls } else { StopReason::Stop },
        )
    }
}

impl Content {
    fn into_blocks(self, index: usize, broken: &mut Vec<Broken>) -> Vec<Block> {
        let mut blocks = Vec::with_capacity(self.0.len());
        for part in self.0 {
            match part {
                WirePart { text: Some(text), .. } | WirePart { refusal: Some(text), .. } => {
                    blocks.push(Block::Text(text));
                }
                WirePart { image_url: Some(image), .. } => blocks.push(Block::Image(image_of(&image.url))),
                WirePart { kind, .. } => {
                    broken.push((Rule::UnknownContent, format!("message {index}: a part of type {kind:?}")));
                }
            }
        }
        blocks
    }
}

pub(super) fn purpose_of(tools: &[ToolSpec], messages: &[Arc<Message>]) -> Purpose {
    let is_summary = tools.is_empty()
        && messages
            .last()
            .is_some_and(|last| matches!(**last, Message::User(_)) && last.text().contains(TRANSCRIPT_TAG));
    if is_summary { Purpose::Summary } else { Purpose::Step }
}

fn output_schema(format: &serde_json::Value) -> Option<Arc<OutputSchema>> {
    let schema = format.get("json_schema")?;
    Some(Arc::new(OutputSchema {
        name: schema.get("name").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned(),
        schema: schema.get("schema").cloned().unwrap_or_default(),
    }))
}

/// Returns the protocol's finish reason.
pub(crate) fn finish_reason(stop: StopReason) -> &'static str {
    match stop {
        StopReason::Length => "length",
        StopReason::ToolCalls => "tool_calls",
        StopReason::ContentFilter => "content_filter",
        StopReason::Aborted => "aborted",
        StopReason::Error => "error",
        StopReason::Stop | StopReason::Paused | StopReason::Unknown | _ => "stop",
    }
}

/// One chunk of a streamed answer.
#[derive(Serialize)]
pub(crate) struct WireChunk<'a> {
    pub(crate) id: &'a str,
    pub(crate) object: &'static str,
    pub(crate) created: u64,
    pub(crate) model: &'a str,
    pub(crate) choices: Vec<WireChoice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<WireUsage>,
}

#[derive(Serialize)]
pub(crate) struct WireChoice<'a> {
    pub(crate) index: u32,
    pub(crate) delta: WireDelta<'a>,
    pub(crate) finish_reason: Option<&'static str>,
}

#[derive(Serialize, Default)]
pub(crate) struct WireDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) content: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reasoning_content: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) tool_calls: Vec<WireDeltaCall<'a>>,
}

#[derive(Serialize)]
pub(crate) struct WireDeltaCall<'a> {
    pub(crate) index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<&'static str>,
    pub(crate) function: WireDeltaFunction<'a>,
}

#[derive(Serialize)]
pub(crate) struct WireDeltaFunction<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<&'a str>,
    pub(crate) arguments: &'a str,
}

#[derive(Serialize)]
pub(crate) struct WireUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
    total_tokens: u64,
    prompt_tokens_details: WirePromptDetails,
    completion_tokens_details: WireCompletionDetails,
}

#[derive(Serialize)]
struct WirePromptDetails {
    cached_tokens: u64,
}

#[derive(Serialize)]
struct WireCompletionDetails {
    reasoning_tokens: u64,
}

impl From<Usage> for WireUsage {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.input_tokens,
            completion_tokens: usage.output_tokens,
            total_tokens: usage.total_tokens(),
            prompt_tokens_details: WirePromptDetails { cached_tokens: usage.cached_tokens },
            completion_tokens_details: WireCompletionDetails { reasoning_tokens: usage.reasoning_tokens },
        }
    }
}

/// Returns an error's body in OpenAI's form.
pub(crate) fn error_body(message: &str, kind: &str, code: Option<&str>) -> String {
    serde_json::json!({ "error": { "message": message, "type": kind, "param": null, "code": code } })
        .to_string()
}

/// A whole answer, gathered from its pieces.
#[derive(Default)]
struct WholeMessage {
    text: String,
    reasoning: String,
    calls: Vec<serde_json::Value>,
    finish: Option<&'static str>,
    usage: Option<WireUsage>,
}

impl WholeMessage {
    fn add(&mut self, piece: Piece) {
        match piece {
            Piece::Role | Piece::Done => {}
            Piece::Reasoning(text) => self.reasoning.push_str(&text),
            Piece::Text(text) => self.text.push_str(&text),
            Piece::CallStart { id, name, .. } => {
                let function = serde_json::json!({ "name": name, "arguments": "" });
                self.calls.push(match id {
                    Some(id) => serde_json::json!({ "id": id, "type": "function", "function": function }),
                    None => serde_json::json!({ "type": "function", "function": function }),
                });
            }
            Piece::CallArguments { index, arguments } => {
                if let Some(serde_json::Value::String(text)) =
                    self.calls.get_mut(index).and_then(|call| call.pointer_mut("/function/arguments"))
                {
                    text.push_str(&arguments);
                }
            }
            Piece::Finish(stop) => self.finish = Some(finish_reason(stop)),
            Piece::Usage(usage) => self.usage = Some(usage.into()),
        }
    }

    fn body(self, id: &str, model: &str) -> serde_json::Value {
        let mut message = serde_json::json!({ "role": "assistant", "content": self.text });
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.into();
        }
        if !self.calls.is_empty() {
            message["tool_calls"] = self.calls.into();
        }
        let choice = serde_json::json!({ "index": 0, "message": message, "finish_reason": self.finish });
        serde_json::json!({
            "id": id, "object": "chat.completion", "created": 0, "model": model,
            "choices": [choice], "usage": self.usage,
        })
    }
}

/// Writes one answer.
struct ChatWriter {
    id: String,
    model: String,
    form: AnswerForm,
}

impl Writer for ChatWriter {
    fn begin(&mut self, call: u64) {
        self.id = format!("chatcmpl-{call:08}");
    }

    fn piece(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        let delta = |delta: WireDelta<'_>, out: &mut Vec<u8>| self.chunk(Some((delta, None)), None, out);
        let call = |call: WireDeltaCall<'_>, out: &mut Vec<u8>| {
            self.chunk(Some((WireDelta { tool_calls: vec![call], ..WireDelta::default() }, None)), None, out);
        };
        match piece {
            Piece::Role => {
                let role =
                    WireDelta { role: Some("assistant"), content: Some("".into()), ..WireDelta::default() };
                delta(role, out);
            }
            Piece::Reasoning(text) => {
                delta(WireDelta { reasoning_content: Some(text.into()), ..WireDelta::default() }, out);
            }
            Piece::Text(text) => delta(WireDelta { content: Some(text.into()), ..WireDelta::default() }, out),
            Piece::CallStart { index, id, name } => {
                let function = WireDeltaFunction { name: Some(name), arguments: "" };
                call(
                    WireDeltaCall { index: *index, id: id.as_deref(), kind: Some("function"), function },
                    out,
                );
            }
            Piece::CallArguments { index, arguments } => {
                let function = WireDeltaFunction { name: None, arguments };
                call(WireDeltaCall { index: *index, id: None, kind: None, function }, out);
            }
            Piece::Finish(stop) => {
                self.chunk(Some((WireDelta::default(), Some(finish_reason(*stop)))), None, out);
            }
            Piece::Usage(usage) => {
                if self.form.includes_usage {
                    self.chunk(None, Some((*usage).into()), out);
                }
            }
            Piece::Done => out.extend_from_slice(b"data: [DONE]\n\n"),
        }
    }

    fn raw(&mut self, raw: &Raw, out: &mut Vec<u8>) {
        match raw {
            Raw::BrokenJson => {
                out.extend_from_slice(b"data: {\"id\":\"chatcmpl-broken\",\"choices\":[{\"ind\n\n")
            }
            Raw::BadUtf8 => {
                out.extend_from_slice(b"data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"");
                out.extend_from_slice(&[0xff, 0xfe, 0xc3]);
                out.extend_from_slice(b"\"},\"finish_reason\":null}]}\n\n");
            }
            Raw::ErrorEvent => {
                let body = error_body(SERVER_ERROR, "server_error", Some("500"));
                out.extend_from_slice(format!("data: {body}\n\n").as_bytes());
            }
            Raw::PlainText(text) => out.extend_from_slice(format!("data: {text}\n\n").as_bytes()),
        }
    }

    fn whole(&mut self, pieces: Vec<Piece>) -> serde_json::Value {
        let mut message = WholeMessage::default();
        for piece in pieces {
            message.add(piece);
        }
        message.body(&self.id, &self.model)
    }
}

impl ChatWriter {
    fn chunk(
        &self,
        choice: Option<(WireDelta<'_>, Option<&'static str>)>,
        usage: Option<WireUsage>,
        out: &mut Vec<u8>,
    ) {
        let choices = choice
            .into_iter()
            .map(|(delta, finish_reason)| WireChoice { index: 0, delta, finish_reason })
            .collect();
        let chunk = WireChunk {
            id: &self.id,
            object: "chat.completion.chunk",
            created: 0,
            model: &self.model,
            choices,
            usage,
        };
        out.extend_from_slice(b"data: ");
        serde_json::to_writer(&mut *out, &chunk).expect("a chunk of strings and numbers is JSON");
        out.extend_from_slice(b"\n\n");
    }
}
