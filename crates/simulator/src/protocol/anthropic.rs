//! Anthropic's Messages.
//!
//! Every thinking block of an answer is signed: the signature names the text, and everything that came before the
//! answer.
//!
//! Invariants: a request is refused for what the real API refuses: a signature that is not that of its block, blank
//! text, results that are not first in their message, sampling settings beside thinking, a missing version or limit.

mod writer;

use std::collections::HashMap;
use std::sync::Arc;

use greenroom_kernel::{
    AssistantMessage, Block, Image, Message, Part, StopReason, ToolCall, ToolResult, ToolSpec, ToolStatus,
};
use greenroom_provider::{ModelSettings, OutputSchema, Purpose, ReasoningEffort, ToolChoice};
use hyper::HeaderMap;
use serde_json::{Map, Value, json};

use self::writer::AnthropicWriter;
use super::chat::{FromHeaders, purpose_of};
use super::{Parsed, list, string};
use crate::check::{Broken, Rule};
use crate::fault::hash;
use crate::seen::SeenRequest;

/// The models that check the messages before a thinking block, by the beginning of their names.
const BINDING_MODELS: &[&str] = &["claude-opus-5-5", "claude-fable-5-1"];

/// The beta feature without which a request may not decide about bound thinking.
const BINDING_CONTROLS: &str = "thinking-binding-controls-2026-08-01";

/// The beta feature without which a request may neither ask for a compaction nor carry one.
const COMPACTION: &str = "compact-2026-09-04";

/// Other beta features that the API knows.
const OTHER_FEATURES: &[&str] = &[
    "code-execution-2025-05-22", "context-1m-2025-08-07", "context-management-2025-06-27",
    "extended-cache-ttl-2025-04-11", "files-api-2025-04-14", "fine-grained-tool-streaming-2025-05-14",
    "interleaved-thinking-2025-05-14", "mcp-client-2025-04-04", "structured-outputs-2025-11-13",
];

/// The fields that a request for a compaction must not have.
const NOT_WITH_COMPACTION: &[&str] = &["context_management", "stop_sequences"];

/// The fields of a body that are read. All others are extra.
const FIELDS: &[&str] = &[
    "model", "max_tokens", "messages", "system", "tools", "tool_choice", "stream", "thinking",
    "output_config", "temperature", "top_p", "stop_sequences", "metadata", "anthropic_version", "compaction",
];

/// Reads a request.
pub(super) fn parse(headers: &HeaderMap, from: FromHeaders, body: &[u8]) -> Parsed {
    let mut reader = Reader::default();
    let body_bytes = body.len() as u64;
    let body: Map<String, Value> = match serde_json::from_slice(body) {
        Ok(body) => body,
        Err(error) => {
            reader.broken.push((Rule::NotJson, error.to_string()));
            Map::new()
        }
    };
    if super::text(headers, "anthropic-version").is_none() {
        reader.breaks(Rule::Setting, "the header anthropic-version is missing");
    }
    let features = super::text(headers, "anthropic-beta").unwrap_or_default();
    let features: Vec<&str> =
        features.split(',').map(str::trim).filter(|feature| !feature.is_empty()).collect();
    let is_known = |feature: &str| {
        [BINDING_CONTROLS, COMPACTION].contains(&feature) || OTHER_FEATURES.contains(&feature)
    };
    for feature in features.iter().filter(|feature| !is_known(feature)) {
        reader.breaks(
            Rule::Setting,
            format!("Unexpected value(s) `{feature}` for the `anthropic-beta` header"),
        );
    }
    let reports_drops = features.contains(&BINDING_CONTROLS);
    let model = body.get("model").and_then(Value::as_str).unwrap_or_default().to_owned();
    reader.is_binding = BINDING_MODELS.iter().any(|binding| model.starts_with(binding));
    let behavior =
        body.get("thinking").and_then(|thinking| thinking.pointer("/block_binding/prefix_mismatch_behavior"));
    if behavior.and_then(Value::as_str) == Some("drop_block") {
        // The block is dropped, and does not fail the request.
        reader.drops = reader.is_binding;
        reader.is_binding = false;
        if !reports_drops {
            reader.breaks(Rule::Setting, "thinking.block_binding without its beta feature");
        }
    }
    let has_compaction = features.contains(&COMPACTION);
    reader.takes_compactions = has_compaction;
    let is_compaction = body.get("compaction").is_some_and(|it| it["type"] == "summarize");
    if is_compaction {
        if !has_compaction {
            reader.breaks(Rule::Setting, format!("compaction requires anthropic-beta: {COMPACTION}"));
        }
        let choice = body.get("tool_choice").map(|choice| string(choice, "type")).unwrap_or_default();
        let has_format = body.get("output_config").is_some_and(|config| config.get("format").is_some());
        let refused = NOT_WITH_COMPACTION.iter().find(|name| body.contains_key(**name));
        if refused.is_some() || has_format || matches!(&*choice, "any" | "tool") {
            reader.breaks(Rule::Setting, format!("compaction beside {refused:?}, a format or a forced tool"));
        }
    }
    let system = reader.system(body.get("system"));
    let tools = reader.tools(body.get("tools"));
    for (index, message) in list(body.get("messages").unwrap_or(&Value::Null)).iter().enumerate() {
        reader.message(index, message, &model);
    }
    if reader.first_role.as_deref() != Some("user") && !reader.has_compaction {
        reader.breaks(Rule::NoUserMessage, "the first message must be the user's");
    }
    let settings = reader.settings(&body);
    let schema = body.get("output_config").and_then(|config| config.pointer("/format/schema"));
    let output_schema =
        schema.map(|schema| Arc::new(OutputSchema { name: String::new(), schema: schema.clone() }));
    let session = body.get("metadata").and_then(|metadata| metadata.get("user_id")).and_then(Value::as_str);
    let purpose = from.purpose.unwrap_or_else(|| purpose_of(&tools, &reader.messages));
    let purpose = if is_compaction { Purpose::Compaction } else { purpose };
    let writer = AnthropicWriter {
        id: String::new(),
        model: model.clone(),
        before: reader.before,
        open: None,
        next: 0,
        thought: String::new(),
        stop: None,
        usage: None,
        compacts: is_compaction,
        transformations: reports_drops.then_some(reader.dropped),
    };
    let seen = SeenRequest {
        model,
        system,
        messages: reader.messages,
        tools,
        settings,
        output_schema,
        session: from.session.or(session.map(str::to_owned)),
        purpose,
        streamed: body.get("stream").and_then(Value::as_bool).unwrap_or(false),
        bytes: body_bytes,
        tokens: 0,
        cached_tokens: 0,
    };
    Parsed { seen, broken: reader.broken, writer: Box::new(writer) }
}

/// Returns an error in this protocol's form, if the body is one in OpenAI's.
pub(super) fn error(status: u16, body: &str) -> Option<String> {
    let body: Value = serde_json::from_str(body).ok()?;
    let message = body.pointer("/error/message")?.as_str()?;
    if body.get("type").is_some() {
        return None;
    }
    let kind = match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 | 529 => "overloaded_error",
        200 | 500.. => "api_error",
        _ => "invalid_request_error",
    };
    Some(json!({ "type": "error", "error": { "type": kind, "message": message } }).to_string())
}

/// Returns the signature of a thinking block with this text, in an answer to what has this hash.
fn signature(thinking: &str, before: u64) -> String {
    format!("Sim{:016x}{before:016x}==", hash(&[thinking.as_bytes()]))
}

/// Reads a request, and gathers what is wrong with it.
#[derive(Default)]
struct Reader {
    messages: Vec<Arc<Message>>,
    broken: Vec<Broken>,
    call_names: HashMap<String, String>,
    first_role: Option<String>,
    /// The hash of everything read so far, and what it was at the blocks of the current run of answers.
    before: u64,
    is_binding: bool,
    /// Whether it drops thinking that is bound to something else, instead of refusing it.
    drops: bool,
    /// What was dropped, as reported in the answer.
    dropped: Vec<Value>,
    /// Whether the beta feature of compactions is on.
    takes_compactions: bool,
    /// Whether a compaction was read.
    has_compaction: bool,
}

impl Reader {
    fn breaks(&mut self, rule: Rule, detail: impl Into<String>) {
        self.broken.push((rule, detail.into()));
    }

    /// Adds a value to the hash, without the marks of cache breakpoints.
    fn pass(&mut self, role: &str, value: &Value) {
        let mut value = value.clone();
        if let Some(fields) = value.as_object_mut() {
            fields.remove("cache_control");
        }
        self.before = hash(&[&self.before.to_le_bytes(), role.as_bytes(), value.to_string().as_bytes()]);
    }

    fn system(&mut self, value: Option<&Value>) -> Option<String> {
        let system = match value? {
            Value::String(text) => text.clone(),
            blocks @ (Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Array(_)
            | Value::Object(_)) => {
                let texts: Vec<String> = list(blocks).iter().map(|block| string(block, "text")).collect();
                texts.join("\n")
            }
        };
        self.pass("system", &json!(system));
        Some(system)
    }

    fn tools(&mut self, value: Option<&Value>) -> Arc<[ToolSpec]> {
        let mut specs = Vec::new();
        for tool in list(value.unwrap_or(&Value::Null)) {
            self.pass("tool", tool);
            specs.push(ToolSpec {
                name: string(tool, "name"),
                description: string(tool, "description"),
                parameters: tool.get("input_schema").cloned().unwrap_or_default(),
            });
        }
        specs.into()
    }

    fn message(&mut self, index: usize, message: &Value, model: &str) {
        let role = string(message, "role");
        self.first_role.get_or_insert_with(|| role.clone());
        let text_block;
        let content = match message.get("content") {
            Some(Value::String(text)) => {
                text_block = [json!({ "type": "text", "text": text })];
                &text_block[..]
            }
            content => list(content.unwrap_or(&Value::Null)),
        };
        if content.is_empty() {
            self.breaks(Rule::EmptyMessage, format!("message {index}"));
        }
        match role.as_str() {
            "user" => self.user(index, content),
            "assistant" => self.assistant(index, content, model),
            _ => self.breaks(Rule::UnknownRole, format!("message {index}: {role:?}")),
        }
    }

    fn user(&mut self, index: usize, content: &[Value]) {
        let mut blocks = Vec::new();
        for (at, block) in content.iter().enumerate() {
            self.pass("user", block);
            if block.get("type").and_then(Value::as_str) == Some("compaction") {
                blocks.extend(self.compaction(index, at, block).map(Block::Text));
                continue;
            }
            if block.get("type").and_then(Value::as_str) == Some("tool_result") {
                if !blocks.is_empty() {
                    self.breaks(
                        Rule::MisplacedResult,
                        format!("message {index}: a result after other content"),
                    );
                }
                let call_id = string(block, "tool_use_id");
                let mut inner = Vec::new();
                for part in list(block.get("content").unwrap_or(&Value::Null)) {
                    inner.extend(self.block(index, part));
                }
                if let Some(Value::String(text)) = block.get("content") {
                    inner.push(Block::Text(text.clone()));
                }
                let is_error = block.get("is_error").and_then(Value::as_bool) == Some(true);
                self.messages.push(Arc::new(Message::ToolResult(ToolResult {
                    tool_name: self.call_names.get(&call_id).cloned().unwrap_or_default(),
                    call_id,
                    content: inner,
                    status: if is_error { ToolStatus::Error } else { ToolStatus::Ok },
                    touched: Vec::new(),
                })));
            } else {
                blocks.extend(self.block(index, block));
            }
        }
        if !blocks.is_empty() {
            self.messages.push(Arc::new(Message::User(blocks)));
        }
    }

    /// Reads a compaction, which replaces everything before it.
    fn compaction(&mut self, index: usize, at: usize, block: &Value) -> Option<String> {
        let content = string(block, "content");
        let fields: Vec<&str> =
            block.as_object().into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        let problem = if !self.takes_compactions {
            "compaction is not one of the expected content block types"
        } else if index > 0 || at > 0 || self.has_compaction {
            "compaction_block_misplaced"
        } else if string(block, "signature") != signature(&content, 0) {
            "compaction_signature_invalid"
        } else if fields != ["type", "content", "signature"] && fields != ["content", "signature", "type"] {
            "compaction: Extra inputs are not permitted"
        } else {
            self.has_compaction = true;
            return Some(content);
        };
        self.breaks(Rule::AlteredBlock, format!("message {index}: {problem}"));
        None
    }

    /// Reads a text or an image.
    fn block(&mut self, index: usize, block: &Value) -> Option<Block> {
        match block.get("type").and_then(Value::as_str) {
            Some("text") => {
                let text = string(block, "text");
                if text.trim().is_empty() {
                    self.breaks(Rule::EmptyMessage, format!("message {index}: blank text"));
                }
                Some(Block::Text(text))
            }
            Some("image") => {
                let source = block.get("source").cloned().unwrap_or_default();
                let image =
                    Image { media_type: string(&source, "media_type"), data: string(&source, "data") };
                Some(Block::Image(image))
            }
            kind => {
                self.breaks(Rule::UnknownContent, format!("message {index}: a block of type {kind:?}"));
                None
            }
        }
    }

    fn assistant(&mut self, index: usize, content: &[Value], model: &str) {
        let mut parts = Vec::new();
        // An answer begins at the message, or after the blocks of an answer that was paused.
        let mut starts = vec![self.before];
        for (at, block) in content.iter().enumerate() {
            match block.get("type").and_then(Value::as_str) {
                Some("text") => {
                    let text = string(block, "text");
                    if text.trim().is_empty() {
                        self.breaks(Rule::EmptyMessage, format!("message {index}: blank text"));
                    }
                    parts.push(Part::Text(text));
                }
                Some("thinking") => {
                    let (thinking, signed) = (string(block, "thinking"), string(block, "signature"));
                    self.check_signature(index, &thinking, &signed, &starts);
                    if self.drops && !starts.iter().any(|start| signed == signature(&thinking, *start)) {
                        let path = format!("messages.{index}.content.{at}");
                        let reason = "prefix_binding_mismatch";
                        self.dropped
                            .push(json!({ "type": "thinking_dropped", "path": path, "reason": reason }));
                    } else {
                        parts.push(Part::Reasoning(thinking));
                    }
                }
                Some("redacted_thinking" | "server_tool_use" | "web_search_tool_result" | "compaction") => {}
                Some("tool_use") => {
                    let (id, name) = (string(block, "id"), string(block, "name"));
                    let is_clean =
                        |id: &str| id.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
                    if !is_clean(&id) {
                        self.breaks(Rule::CallId, format!("message {index}: {id:?}"));
                    }
                    let input = block.get("input").filter(|input| input.is_object());
                    if input.is_none() {
                        self.breaks(
                            Rule::ArgumentsNotJson,
                            format!("message {index}: the input is no object"),
                        );
                    }
                    self.call_names.insert(id.clone(), name.clone());
                    let arguments = input.map(Value::to_string).unwrap_or_default();
                    parts.push(Part::ToolCall(ToolCall { id, name, arguments }));
                }
                kind => {
                    self.breaks(Rule::UnknownContent, format!("message {index}: a block of type {kind:?}"))
                }
            }
            self.pass("assistant", block);
            starts.push(self.before);
        }
        self.messages.push(Arc::new(Message::Assistant(AssistantMessage::new(
            parts,
            String::new(),
            model.to_owned(),
            StopReason::Stop,
        ))));
    }

    fn check_signature(&mut self, index: usize, thinking: &str, signed: &str, starts: &[u64]) {
        let of_text = signature(thinking, 0);
        if signed.len() != of_text.len() || signed.get(..19) != of_text.get(..19) {
            let detail = format!("message {index}: invalid `signature` in `thinking` block");
            self.breaks(Rule::AlteredBlock, detail);
        } else if self.is_binding && !starts.iter().any(|start| signed == signature(thinking, *start)) {
            let detail = format!("message {index}: the thinking block is bound to a different conversation");
            self.breaks(Rule::AlteredBlock, detail);
        }
    }

    fn settings(&mut self, body: &Map<String, Value>) -> ModelSettings {
        let limit = body.get("max_tokens").and_then(Value::as_u64);
        if limit.is_none() {
            self.breaks(Rule::OutputLimit, "max_tokens is missing");
        }
        let thinking = body.get("thinking").cloned().unwrap_or_default();
        let thinks = matches!(string(&thinking, "type").as_str(), "enabled" | "adaptive");
        let number = |field: &str| body.get(field).and_then(Value::as_f64);
        if thinks && (number("temperature").is_some_and(|value| value < 1.0) || number("top_p").is_some()) {
            self.breaks(Rule::Setting, "temperature or top_p beside thinking");
        }
        let budget = thinking.get("budget_tokens").and_then(Value::as_u64);
        if budget.is_some_and(|budget| budget < 1_024 || limit.is_some_and(|limit| budget >= limit)) {
            self.breaks(Rule::Setting, "budget_tokens must be 1,024 or more, and less than max_tokens");
        }
        let choice = body.get("tool_choice").cloned().unwrap_or_default();
        let tool_choice: Option<ToolChoice> = match string(&choice, "type").as_str() {
            "any" => Some(ToolChoice::Required),
            "tool" => Some(ToolChoice::Tool(string(&choice, "name"))),
            "none" => Some(ToolChoice::None),
            _ => None,
        };
        if thinks && tool_choice.as_ref().is_some_and(ToolChoice::is_forced) {
            self.breaks(Rule::Setting, "a forced tool beside thinking");
        }
        let effort = body.get("output_config").map(|config| string(config, "effort"));
        let is_single = choice.get("disable_parallel_tool_use").and_then(Value::as_bool) == Some(true);
        let stop = body
            .get("stop_sequences")
            .map(|texts| list(texts).iter().filter_map(Value::as_str).map(str::to_owned).collect());
        ModelSettings {
            temperature: number("temperature"),
            top_p: number("top_p"),
            reasoning_effort: effort.and_then(|effort| effort.parse::<ReasoningEffort>().ok()),
            tool_choice,
            parallel_tool_calls: is_single.then_some(false),
            stop,
            output_tokens_max: limit,
            extra: body
                .iter()
                .filter(|(name, _)| !FIELDS.contains(&name.as_str()))
                .map(|(n, v)| (n.clone(), v.clone()))
                .collect(),
            ..ModelSettings::default()
        }
    }
}
