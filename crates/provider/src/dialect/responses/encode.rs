//! Writes requests.
//!
//! Invariants: a message is written the same way whatever follows it; no message is empty; a call and its result have
//! the same id; and an answer's opaque data goes to the provider that sent it and to no other, which would refuse it.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use greenroom_kernel::{AssistantMessage, Block, Image, Message, Part, ToolCall, ToolResult};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::DIALECT;
use super::item::{Kind, filled, has_reasoning, is_attachment, raw};
use crate::dialect::fields::Fields;
use crate::dialect::history::{Elements, History, Needs};
use crate::dialect::ids::{sendable_id, sendable_tool_name};
use crate::dialect::{merge, with_values};
use crate::{ReasoningEffort, Request, ToolChoice, sendable_arguments};

/// The longest id of a call that the API accepts, in bytes.
const CALL_ID_BYTES_MAX: usize = 64;
/// The smallest output limit that the API accepts, in tokens.
const OUTPUT_TOKENS_MIN: u64 = 16;

/// How requests are written for one server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style<'a> {
    /// The provider's name.
    pub(super) provider: &'a str,
    /// The output limit of requests that name none, in tokens.
    pub(super) output_tokens_max: Option<u64>,
    pub(super) prompt_cache_key: bool,
    pub(super) stream: bool,
    /// Whether the model can reason.
    pub(super) reasons: bool,
}

/// The fields before the conversation.
#[derive(Serialize)]
struct Before<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<&'a str>,
}

/// The fields after the conversation.
#[derive(Serialize)]
struct After<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<WireTool<'a>>,
    stream: bool,
    /// The settings, and what the user adds to them.
    #[serde(flatten)]
    settings: Map<String, Value>,
}

#[derive(Serialize)]
struct WireTool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
    strict: bool,
}

/// An item of the conversation.
#[derive(Serialize)]
#[serde(untagged)]
enum Item<'a> {
    Written(Written<'a>),
    /// An item as it came, which was kept whole.
    Whole(&'a RawValue),
    /// An item as it came, put together again.
    Filled(Fields),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Written<'a> {
    Message { role: &'static str, content: Vec<Content<'a>> },
    FunctionCall { call_id: Cow<'a, str>, name: Cow<'a, str>, arguments: Cow<'a, str> },
    FunctionCallOutput { call_id: Cow<'a, str>, output: Output<'a> },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content<'a> {
    InputText { text: &'a str },
    InputImage { image_url: DataUrl<'a>, detail: &'static str },
    OutputText { text: &'a str },
}

/// A tool's result.
#[derive(Serialize)]
#[serde(untagged)]
enum Output<'a> {
    Text(Cow<'a, str>),
    Contents(Vec<Content<'a>>),
}

/// An image as a URL that holds it. It is written into the request without a copy.
struct DataUrl<'a>(&'a Image);

impl Serialize for DataUrl<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("data:{};base64,{}", self.0.media_type, self.0.data))
    }
}

impl<'a> Before<'a> {
    fn of(request: &'a Request) -> Self {
        let instructions = request.system.as_deref().filter(|system| !system.is_empty());
        Self { model: &request.model, instructions }
    }
}

/// Writes a request.
pub(super) fn body(
    request: &Request,
    style: &Style<'_>,
    history: &mut History,
) -> serde_json::Result<Vec<Bytes>> {
    let conversation = history.write(request, &request.messages, |messages, elements| {
        write_items(messages, style.provider, elements)
    })?;
    let after = After {
        tools: request
            .tools
            .iter()
            .map(|tool| WireTool {
                kind: "function",
                name: &tool.name,
                description: &tool.description,
                parameters: &tool.parameters,
                // The API rewrites the schema otherwise, or refuses it.
                strict: false,
            })
            .collect(),
        stream: style.stream,
        settings: wire_settings(request, style),
    };
    crate::dialect::body(&Before::of(request), "input", &[], conversation, &after)
}

/// The fields after the conversation in a request to compact it.
#[derive(Serialize)]
struct AfterCompacted<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_key: Option<&'a str>,
}

/// Writes a request to compact a conversation. Its last message is an instruction, which the API does not take.
pub(super) fn compact_body(
    request: &Request,
    provider: &str,
    names_session: bool,
    history: &mut History,
) -> serde_json::Result<Vec<Bytes>> {
    let messages = request.messages.split_last().map_or(&[][..], |(_, messages)| messages);
    let conversation =
        history.write(request, messages, |messages, elements| write_items(messages, provider, elements))?;
    let prompt_cache_key = (names_session && !request.session.is_empty()).then_some(&*request.session);
    let after = AfterCompacted { prompt_cache_key };
    crate::dialect::body(&Before::of(request), "input", &[], conversation, &after)
}

/// Returns the fields that the settings mean, with the user's own. The API has no `stop` and no `seed`.
fn wire_settings(request: &Request, style: &Style<'_>) -> Map<String, Value> {
    let settings = &request.settings;
    let limit = settings.output_tokens_max.or(style.output_tokens_max);
    let has_tools = !request.tools.is_empty();
    let format = request.output_schema.as_deref().map(|output| {
        json!({ "format": {
            "type": "json_schema",
            "name": output.name,
            "schema": output.schema,
            "strict": output.is_strict(),
        } })
    });
    let has_key = style.prompt_cache_key && !request.session.is_empty();
    let mut wire = with_values([
        ("store", Some(false.into())),
        // Without its encrypted content, reasoning cannot be sent back. A model that does not reason refuses to include it.
        ("include", style.reasons.then(|| json!(["reasoning.encrypted_content"]))),
        ("max_output_tokens", limit.map(|limit| limit.max(OUTPUT_TOKENS_MIN).into())),
        ("temperature", settings.temperature.map(Value::from)),
        ("top_p", settings.top_p.map(Value::from)),
        ("reasoning", settings.reasoning_effort.map(reasoning)),
        ("text", format),
        ("tool_choice", settings.tool_choice.as_ref().filter(|_| has_tools).map(tool_choice)),
        ("parallel_tool_calls", settings.parallel_tool_calls.filter(|_| has_tools).map(Value::from)),
        ("prompt_cache_key", has_key.then(|| request.session.as_str().into())),
    ]);
    merge(&mut wire, &settings.extra);
    wire
}

fn reasoning(effort: ReasoningEffort) -> Value {
    match effort {
        ReasoningEffort::None => json!({ "effort": effort.as_str() }),
        ReasoningEffort::Minimal
        | ReasoningEffort::Low
        | ReasoningEffort::Medium
        | ReasoningEffort::High
        | ReasoningEffort::XHigh => json!({ "effort": effort.as_str(), "summary": "auto" }),
    }
}

fn tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => "auto".into(),
        ToolChoice::None => "none".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Tool(name) => json!({ "type": "function", "name": name }),
    }
}

/// Writes the conversation.
fn write_items(
    messages: &[Arc<Message>],
    provider: &str,
    elements: &mut Elements,
) -> serde_json::Result<Needs> {
    let mut items = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        match &**message {
            Message::User(blocks) => user_items(blocks, provider, &mut items),
            Message::ToolResult(result) => items.push(wire_result(result)),
            Message::Assistant(answer) => items.extend(answer_items(answer, answer.provider == provider)),
        }
        items.drain(..).try_for_each(|item| elements.push(&item))?;
        elements.cut(index + 1);
    }
    Ok(Needs::Nothing)
}

/// Writes a message of the user, with the provider's own form of a text in place of the text.
fn user_items<'a>(blocks: &'a [Block], provider: &str, items: &mut Vec<Item<'a>>) {
    let mut content = Vec::new();
    for block in blocks {
        let Block::Native(native) = block else {
            content.extend(self::content(block));
            continue;
        };
        if native.dialect == DIALECT && native.provider == provider {
            content.pop();
            if !content.is_empty() {
                let content = std::mem::take(&mut content);
                items.push(Item::Written(Written::Message { role: "user", content }));
            }
            let whole = |block: &'a String| serde_json::from_str(block).ok().map(Item::Whole);
            items.extend(native.blocks.iter().filter_map(whole));
        }
    }
    if !content.is_empty() {
        items.push(Item::Written(Written::Message { role: "user", content }));
    }
}

fn contents(blocks: &[Block]) -> Vec<Content<'_>> {
    blocks.iter().filter_map(content).collect()
}

fn content(block: &Block) -> Option<Content<'_>> {
    match block {
        Block::Text(text) => (!text.is_empty()).then_some(Content::InputText { text }),
        Block::Image(image) => Some(Content::InputImage { image_url: DataUrl(image), detail: "auto" }),
        Block::Native(_) | _ => None,
    }
}

fn wire_result(result: &ToolResult) -> Item<'_> {
    let has_image = result.content.iter().any(|block| matches!(block, Block::Image(_)));
    let output = match &*result.content {
        blocks if has_image => Output::Contents(contents(blocks)),
        [Block::Text(text)] if !text.is_empty() => Output::Text(text.into()),
        blocks => {
            let text = greenroom_kernel::message::blocks_text(blocks);
            Output::Text(if text.is_empty() { "(no output)".into() } else { text.into() })
        }
    };
    Item::Written(Written::FunctionCallOutput { call_id: wire_id(&result.call_id), output })
}

fn wire_id(id: &str) -> Cow<'_, str> {
    sendable_id(id, CALL_ID_BYTES_MAX, |_| true)
}

/// What becomes of an item of an answer.
enum Fate<'a> {
    Sent(Item<'a>),
    /// Reasoning, which is sent if the item that followed it is.
    Reasoning(Item<'a>),
    /// The item had readable content, which is gone.
    Dropped,
}

/// Writes an answer: each readable part as the item that it came from.
fn answer_items<'a>(answer: &'a AssistantMessage, is_own: bool) -> Vec<Item<'a>> {
    if answer.is_empty() {
        return Vec::new();
    }
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others are not of this API")]
    let own = |part: &'a Part| match part {
        Part::OpaqueReasoning { dialect, data } | Part::OpaqueBlock { dialect, data }
            if is_own && dialect == DIALECT =>
        {
            Some(data.as_str())
        }
        _ => None,
    };
    let mut fates: Vec<Fate<'_>> = Vec::with_capacity(answer.content.len());
    let mut parts = answer.content.iter().peekable();
    while let Some(part) = parts.next() {
        let mut attached = |kind: Kind| {
            let data = parts.peek().copied().and_then(own)?;
            let fields: Fields = serde_json::from_str(data).ok()?;
            let is_its_own = Kind::of(&fields) == kind && is_attachment(kind, &fields);
            is_its_own.then(|| {
                parts.next();
                fields
            })
        };
        match part {
            Part::Text(text) => {
                let item = attached(Kind::Message).and_then(|fields| filled(Kind::Message, fields, text));
                match item {
                    Some(fields) => fates.push(Fate::Sent(Item::Filled(fields))),
                    None if text.is_empty() => {}
                    None => {
                        let content = vec![Content::OutputText { text }];
                        fates
                            .push(Fate::Sent(Item::Written(Written::Message { role: "assistant", content })));
                    }
                }
            }
            Part::Reasoning(thought) => {
                let item =
                    attached(Kind::Reasoning).and_then(|fields| filled(Kind::Reasoning, fields, thought));
                if let Some(fields) = item.filter(has_reasoning) {
                    fates.push(Fate::Reasoning(Item::Filled(fields)));
                }
            }
            Part::ToolCall(call) => fates.push(Fate::Sent(wire_call(call, attached(Kind::Call)))),
            Part::OpaqueReasoning { .. } | Part::OpaqueBlock { .. } => {
                fates.extend(own(part).and_then(whole))
            }
            _ => {}
        }
    }
    let mut items = Vec::with_capacity(fates.len());
    let mut is_followed = false;
    for fate in fates.into_iter().rev() {
        match fate {
            Fate::Sent(item) => {
                is_followed = true;
                items.push(item);
            }
            Fate::Reasoning(item) if is_followed => items.push(item),
            Fate::Reasoning(_) => {}
            Fate::Dropped => is_followed = false,
        }
    }
    items.reverse();
    items
}

/// Returns what becomes of an item that was kept whole, or of an attachment whose part is not there.
fn whole(data: &str) -> Option<Fate<'_>> {
    let fields: Fields = serde_json::from_str(data).ok()?;
    let kind = Kind::of(&fields);
    if is_attachment(kind, &fields) {
        return Some(Fate::Dropped);
    }
    let item = Item::Whole(serde_json::from_str(data).ok()?);
    match kind {
        Kind::Reasoning => has_reasoning(&fields).then_some(Fate::Reasoning(item)),
        Kind::Message | Kind::Call | Kind::Other => Some(Fate::Sent(item)),
    }
}

fn wire_call(call: &ToolCall, attached: Option<Fields>) -> Item<'_> {
    let (call_id, name) = (wire_id(&call.id), sendable_tool_name(&call.name));
    let arguments = sendable_arguments(&call.arguments);
    match attached {
        Some(mut fields) => {
            fields.set("call_id", raw(&*call_id));
            fields.set("name", raw(&*name));
            fields.set("arguments", raw(&*arguments));
            Item::Filled(fields)
        }
        None => Item::Written(Written::FunctionCall { call_id, name, arguments }),
    }
}
