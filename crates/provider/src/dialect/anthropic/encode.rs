//! Writes requests.
//!
//! Invariants: results come first in the message after their calls; no text is blank; a message is written the same way
//! whatever follows it, except for marks of cache breakpoints, which change nothing in what the model reads.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use greenroom_kernel::{AssistantMessage, Block, Image, Message, Part, ToolCall, ToolResult, ToolStatus};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::{DIALECT, VERTEX_VERSION};
use crate::dialect::fields::Fields;
use crate::dialect::history::{Elements, History, Needs};
use crate::dialect::ids::{is_name_byte, sendable_id, sendable_tool_name};
use crate::dialect::with_values;
use crate::{Purpose, ReasoningEffort, Request, ToolChoice, sendable_arguments};

/// The longest id of a call that the API accepts, in bytes.
const CALL_ID_BYTES_MAX: usize = 64;
/// The fewest tokens that older models take for thinking.
const THINKING_TOKENS_MIN: u64 = 1_024;
/// The longest instruction for a compaction, in characters.
const INSTRUCTION_CHARS_MAX: usize = 16_384;

/// How requests are written for one server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    /// Whether the model is named in the path, and the version in the body.
    pub(super) is_vertex: bool,
    pub(super) stream: bool,
    /// Whether the session's id is sent as the user's.
    pub(super) names_session: bool,
    /// The output limit of requests that name none, in tokens.
    pub(super) output_tokens_max: u64,
}

/// The fields before the conversation.
#[derive(Serialize)]
struct Before<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    anthropic_version: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<&'a str>,
    max_tokens: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<WireTool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<[Content<'a>; 1]>,
}

/// The fields after the conversation.
#[derive(Serialize)]
struct After<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<Metadata<'a>>,
    stream: bool,
    /// The settings, and what the user adds to them.
    #[serde(flatten)]
    settings: Map<String, Value>,
}

#[derive(Serialize)]
struct Metadata<'a> {
    user_id: &'a str,
}

#[derive(Serialize)]
struct WireTool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheControl>,
}

#[derive(Serialize)]
struct WireMessage<'a> {
    role: &'static str,
    content: Vec<Content<'a>>,
    /// The position of the first message in it.
    #[serde(skip)]
    first_message: usize,
}

/// A block of a message.
#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(Tagged<Text<'a>>),
    Image(Tagged<WireImage<'a>>),
    Result(Tagged<WireResult<'a>>),
    Call(Tagged<WireCall<'a>>),
    /// A block as it came.
    Raw(Box<RawValue>),
}

/// A block with its type.
#[derive(Serialize)]
struct Tagged<T> {
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    block: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheControl>,
}

#[derive(Serialize)]
struct Text<'a> {
    text: Cow<'a, str>,
}

#[derive(Serialize)]
struct WireImage<'a> {
    source: Source<'a>,
}

#[derive(Serialize)]
struct Source<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    media_type: &'a str,
    data: &'a str,
}

#[derive(Serialize)]
struct WireResult<'a> {
    tool_use_id: Cow<'a, str>,
    content: Vec<Content<'a>>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_error: bool,
}

#[derive(Serialize)]
struct WireCall<'a> {
    id: Cow<'a, str>,
    name: Cow<'a, str>,
    input: Box<RawValue>,
}

/// The mark of a cache breakpoint: the provider keeps everything up to it.
#[derive(Debug, Clone, Copy, Serialize)]
struct CacheControl {
    #[serde(rename = "type")]
    kind: &'static str,
}

/// The roles of messages.
const USER: &str = "user";
const ASSISTANT: &str = "assistant";

const CACHED: CacheControl = CacheControl { kind: "ephemeral" };

/// Writes a request.
pub(super) fn body(
    request: &Request,
    style: &Style,
    history: &mut History,
) -> serde_json::Result<Vec<Bytes>> {
    let settings = &request.settings;
    let limit = settings.output_tokens_max.unwrap_or_else(|| most_output(&request.model, style));
    let system = request.system.as_deref().filter(|system| !system.trim().is_empty());
    let mut tools: Vec<WireTool<'_>> = request
        .tools
        .iter()
        .map(|tool| WireTool {
            name: &tool.name,
            description: &tool.description,
            input_schema: &tool.parameters,
            cache_control: None,
        })
        .collect();
    // The instructions come after the tools, so that one mark serves both.
    if let (None, Some(last)) = (system, tools.last_mut()) {
        last.cache_control = Some(CACHED);
    }
    let (conversation, compaction) = match request.purpose {
        Purpose::Compaction => split_instruction(&request.messages),
        Purpose::Step | Purpose::Summary => (&*request.messages, None),
    };
    let mut settings = wire_settings(request, limit);
    if let Some(compaction) = compaction {
        // The API refuses the two together.
        settings.remove("context_management");
        settings.insert("compaction".to_owned(), compaction);
    }
    // A mark costs a write to the cache, and the messages of a summary's request are never sent again.
    let marks = if request.purpose == Purpose::Summary { 0 } else { MARKED };
    let written = history
        .write(request, conversation, |messages, elements| write_messages(messages, elements, marks))?;
    let before = Before {
        anthropic_version: style.is_vertex.then_some(VERTEX_VERSION),
        model: (!style.is_vertex).then_some(&*request.model),
        max_tokens: limit,
        tools,
        system: system.map(|system| [text(system.into(), Some(CACHED))]),
    };
    let after = After {
        metadata: style.names_session.then(|| Metadata { user_id: &request.session }),
        stream: style.stream,
        settings,
    };
    crate::dialect::body(&before, "messages", &[], written, &after)
}

/// Returns the output limit of a request that names none. Claude 3 had lower limits than what is asked for by default.
fn most_output(model: &str, style: &Style) -> u64 {
    let own = if model.contains("claude-3-7") {
        64_000
    } else if model.contains("claude-3-5") {
        8_192
    } else if model.contains("claude-3") {
        4_096
    } else {
        u64::MAX
    };
    own.min(style.output_tokens_max)
}

/// Whether a model takes a budget for its thinking, in tokens, instead of an effort: Claude 3.7 to 4.5.
pub(super) fn takes_budget(model: &str) -> bool {
    let Some(at) = model.find("claude-") else { return false };
    let mut numbers = model[at..].split(['-', '.', '@', ':']).filter_map(|word| word.parse::<u32>().ok());
    // A date at the end is not a part of the version.
    let version =
        (numbers.next().unwrap_or(u32::MAX), numbers.next().filter(|minor| *minor < 100).unwrap_or(0));
    version < (4, 6)
}

/// Whether a request carries thinking to a model that binds it to everything before it, by the names of the first such
/// models.
pub(super) fn has_bound_thinking(request: &Request) -> bool {
    let binds = ["claude-opus-5-5", "claude-fable-5-1"].iter().any(|name| request.model.contains(name));
    let is_thinking =
        |part: &Part| matches!(part, Part::OpaqueReasoning { dialect, .. } if dialect == DIALECT);
    let answers = || request.messages.iter().filter_map(|message| message.as_answer());
    binds && answers().any(|answer| answer.content.iter().any(is_thinking))
}

/// Whether a request asks for a compaction, or carries the result of one.
pub(super) fn needs_compaction(request: &Request) -> bool {
    let is_own = |block: &Block| matches!(block, Block::Native(native) if native.dialect == DIALECT);
    let carries = |message: &Message| match message {
        Message::User(blocks) => blocks.iter().any(is_own),
        Message::Assistant(_) | Message::ToolResult(_) => false,
    };
    // It must be the first message.
    request.purpose == Purpose::Compaction || request.messages.first().is_some_and(|first| carries(first))
}

/// Takes the instruction for a compaction off a conversation, which ends with it.
fn split_instruction(messages: &[Arc<Message>]) -> (&[Arc<Message>], Option<Value>) {
    let Some((last, conversation)) = messages.split_last() else { return (messages, None) };
    let text = last.text();
    let mut compaction = json!({ "type": "summarize" });
    // The API's own instruction serves where ours would be refused.
    if (1..=INSTRUCTION_CHARS_MAX).contains(&text.chars().count()) {
        compaction["instructions"] = text.into();
    }
    (conversation, Some(compaction))
}

/// Returns the fields that the settings mean, with the user's own.
fn wire_settings(request: &Request, limit: u64) -> Map<String, Value> {
    let settings = &request.settings;
    let forced =
        settings.tool_choice.as_ref().is_some_and(ToolChoice::is_forced) && !request.tools.is_empty();
    let thinking = match settings.reasoning_effort {
        None => None,
        Some(ReasoningEffort::None) => Some(json!({ "type": "disabled" })),
        // The API refuses thinking together with a forced call.
        Some(_) if forced => None,
        Some(effort) if takes_budget(&request.model) => {
            let wanted = match effort {
                ReasoningEffort::None | ReasoningEffort::Minimal => THINKING_TOKENS_MIN,
                ReasoningEffort::Low => 4_096,
                ReasoningEffort::Medium => 10_000,
                ReasoningEffort::High => 20_000,
                ReasoningEffort::XHigh => 32_000,
            };
            // The budget is a part of the output limit, and something must be left for the answer.
            let budget = wanted.min(limit / 2);
            (budget >= THINKING_TOKENS_MIN).then(|| json!({ "type": "enabled", "budget_tokens": budget }))
        }
        // The newer models leave the text of their thinking out unless a summary is asked for.
        Some(_) => Some(json!({ "type": "adaptive", "display": "summarized" })),
    };
    let thinking = match thinking {
        Some(mut thinking) if has_bound_thinking(request) => {
            thinking["block_binding"] = json!({ "prefix_mismatch_behavior": "drop_block" });
            Some(thinking)
        }
        None if has_bound_thinking(request) && !forced => {
            Some(json!({ "type": "adaptive", "block_binding": { "prefix_mismatch_behavior": "drop_block" } }))
        }
        other => other,
    };
    let thinks = thinking.as_ref().is_some_and(|thinking| thinking["type"] != "disabled");
    let mut output = Map::new();
    if let (Some(effort), true, false) = (settings.reasoning_effort, thinks, takes_budget(&request.model)) {
        let effort = match effort {
            ReasoningEffort::None | ReasoningEffort::Minimal | ReasoningEffort::Low => "low",
            ReasoningEffort::Medium => "medium",
            ReasoningEffort::High => "high",
            ReasoningEffort::XHigh => "xhigh",
        };
        output.insert("effort".to_owned(), effort.into());
    }
    if let Some(schema) = &request.output_schema {
        output.insert("format".to_owned(), json!({ "type": "json_schema", "schema": schema.schema }));
    }
    let choice = tool_choice(request);
    let sampling = |value: Option<f64>| value.filter(|_| !thinks).map(Value::from);
    let stop = settings.stop.as_deref().filter(|texts| !texts.is_empty()).map(|texts| json!(texts));
    let mut wire = with_values([
        ("tool_choice", choice),
        ("thinking", thinking),
        ("output_config", (!output.is_empty()).then_some(Value::Object(output))),
        // The API refuses both while the model thinks.
        ("temperature", sampling(settings.temperature)),
        ("top_p", sampling(settings.top_p)),
        ("stop_sequences", stop),
    ]);
    crate::dialect::merge(&mut wire, &settings.extra);
    wire
}

fn tool_choice(request: &Request) -> Option<Value> {
    let settings = &request.settings;
    if request.tools.is_empty() {
        return None;
    }
    let one_only = settings.parallel_tool_calls == Some(false);
    let mut choice = match (settings.tool_choice.as_ref(), one_only) {
        (None, false) => return None,
        (None | Some(ToolChoice::Auto), _) => json!({ "type": "auto" }),
        (Some(ToolChoice::None), _) => return Some(json!({ "type": "none" })),
        (Some(ToolChoice::Required), _) => json!({ "type": "any" }),
        (Some(ToolChoice::Tool(name)), _) => json!({ "type": "tool", "name": name }),
    };
    if one_only {
        choice["disable_parallel_tool_use"] = true.into();
    }
    Some(choice)
}

/// The number of the user's newest messages that are marked.
const MARKED: usize = 2;

/// Writes the conversation. Messages of one role in a row become one, as the API requires of results.
fn write_messages(
    messages: &[Arc<Message>],
    elements: &mut Elements,
    marks: usize,
) -> serde_json::Result<Needs> {
    let mut wire: Vec<WireMessage<'_>> = Vec::with_capacity(messages.len());
    for (first_message, message) in messages.iter().enumerate() {
        let (role, mut content) = match &**message {
            Message::User(blocks) => (USER, contents(blocks)),
            Message::ToolResult(result) => (USER, vec![wire_result(result)]),
            Message::Assistant(answer) => (ASSISTANT, wire_answer(answer)?),
        };
        if content.is_empty() {
            continue;
        }
        match wire.last_mut().filter(|last| last.role == role) {
            Some(last) => last.content.append(&mut content),
            None => wire.push(WireMessage { role, content, first_message }),
        }
    }
    // What comes before ends with the user, so that more of the user's would be one message with it.
    if elements.is_continued() && wire.first().is_some_and(|first| first.role == USER) {
        return Ok(Needs::Beginning);
    }
    // A conversation begins with the user.
    if !elements.is_continued() && wire.first().is_none_or(|first| first.role == ASSISTANT) {
        let content = vec![text("(continued)".into(), None)];
        wire.insert(0, WireMessage { role: USER, content, first_message: 0 });
    }
    // The newest message of the user ends what this request adds to the cache, and the one before it ended what the
    // request before added: it is found there, however many blocks lie between them.
    let (mut marked, mut last_cut) = (0, 0);
    let of_user = wire.iter_mut().enumerate().rev().filter(|(_, message)| message.role == USER);
    for (index, message) in of_user.take(marks) {
        if let Some(last) = message.content.last_mut() {
            last.mark();
        }
        (marked, last_cut) = (marked + 1, index);
    }
    if elements.is_continued() && marked < MARKED {
        return Ok(Needs::Beginning);
    }
    let mut before = ASSISTANT;
    for (index, message) in wire.iter().enumerate() {
        // A mark moves on, so nothing from the first one on is kept.
        if before == USER && message.role == ASSISTANT && index < last_cut {
            elements.cut(message.first_message);
        }
        before = message.role;
        elements.push(message)?;
    }
    Ok(Needs::Nothing)
}

impl Content<'_> {
    fn mark(&mut self) {
        let mark = match self {
            Self::Text(block) => &mut block.cache_control,
            Self::Image(block) => &mut block.cache_control,
            Self::Result(block) => &mut block.cache_control,
            Self::Call(block) => &mut block.cache_control,
            Self::Raw(_) => return,
        };
        *mark = Some(CACHED);
    }
}

fn text(text: Cow<'_, str>, cache_control: Option<CacheControl>) -> Content<'_> {
    Content::Text(Tagged { kind: "text", block: Text { text }, cache_control })
}

/// Writes text and images. The API refuses text that is blank.
fn contents(blocks: &[Block]) -> Vec<Content<'_>> {
    let mut wire = Vec::with_capacity(blocks.len());
    for block in blocks {
        match block {
            Block::Text(said) => wire.extend((!said.trim().is_empty()).then(|| text(said.into(), None))),
            Block::Image(image) => wire.push(wire_image(image)),
            // The API's own form of the text before it.
            Block::Native(native) if native.dialect == DIALECT => {
                wire.pop();
                let raw = |block: &String| RawValue::from_string(block.clone()).ok().map(Content::Raw);
                wire.extend(native.blocks.iter().filter_map(raw));
            }
            Block::Native(_) | _ => {}
        }
    }
    wire
}

fn wire_image(image: &Image) -> Content<'_> {
    let source = Source { kind: "base64", media_type: &image.media_type, data: &image.data };
    Content::Image(Tagged { kind: "image", block: WireImage { source }, cache_control: None })
}

fn wire_result(result: &ToolResult) -> Content<'_> {
    let block = WireResult {
        tool_use_id: wire_id(&result.call_id),
        content: contents(&result.content),
        is_error: result.status != ToolStatus::Ok,
    };
    Content::Result(Tagged { kind: "tool_result", block, cache_control: None })
}

fn wire_id(id: &str) -> Cow<'_, str> {
    sendable_id(id, CALL_ID_BYTES_MAX, is_name_byte)
}

/// Writes an answer: each readable part with the data that came with it.
fn wire_answer(answer: &AssistantMessage) -> serde_json::Result<Vec<Content<'_>>> {
    let mut wire = Vec::with_capacity(answer.content.len());
    let mut parts = answer.content.iter().peekable();
    while let Some(part) = parts.next() {
        let mut attached = |kind: &str, readable: &str| {
            let Some(Part::OpaqueReasoning { dialect, data }) = parts.peek() else { return None };
            let fields: Fields = serde_json::from_str(data).ok().filter(|_| dialect == DIALECT)?;
            let is_attached =
                fields.text_ref("type").as_deref() == Some(kind) && fields.raw(readable).is_none();
            is_attached.then_some(fields)
        };
        match part {
            Part::Text(said) => match attached("text", "text") {
                _ if said.trim().is_empty() => {}
                Some(mut fields) => {
                    fields.set("text", to_raw_value(said)?);
                    wire.push(Content::Raw(to_raw_value(&fields)?));
                }
                None => wire.push(text(said.into(), None)),
            },
            // Thinking without its signature is refused.
            Part::Reasoning(thought) => {
                if let Some(mut fields) = attached("thinking", "thinking") {
                    fields.set("thinking", to_raw_value(thought)?);
                    wire.push(Content::Raw(to_raw_value(&fields)?));
                }
            }
            Part::ToolCall(call) => {
                let call_fields = attached("tool_use", "input");
                wire.push(wire_call(call, call_fields)?);
            }
            Part::OpaqueReasoning { dialect, data } | Part::OpaqueBlock { dialect, data }
                if dialect == DIALECT =>
            {
                // An attachment is sent with its part, and not alone.
                let fields: Fields = serde_json::from_str(data).unwrap_or_default();
                let readable = match fields.text_ref("type").as_deref() {
                    Some("text") => Some("text"),
                    Some("thinking") => Some("thinking"),
                    Some("tool_use") => Some("input"),
                    Some(_) => None,
                    None => continue,
                };
                if readable.is_none_or(|name| fields.raw(name).is_some()) {
                    wire.push(Content::Raw(to_raw_value(&fields)?));
                }
            }
            // Data of other dialects.
            Part::OpaqueReasoning { .. } | Part::OpaqueBlock { .. } | _ => {}
        }
    }
    Ok(wire)
}

fn wire_call(call: &ToolCall, attached: Option<Fields>) -> serde_json::Result<Content<'_>> {
    let input = RawValue::from_string(sendable_arguments(&call.arguments).trim().to_owned())?;
    let (id, name) = (wire_id(&call.id), sendable_tool_name(&call.name));
    if let Some(mut fields) = attached {
        fields.set("id", to_raw_value(&id)?);
        fields.set("name", to_raw_value(&name)?);
        fields.set("input", input);
        return Ok(Content::Raw(to_raw_value(&fields)?));
    }
    let block = WireCall { id, name, input };
    Ok(Content::Call(Tagged { kind: "tool_use", block, cache_control: None }))
}
