//! Writes requests.
//!
//! Invariants: an item is written the same way whatever follows it in the conversation; nothing is stored at the server.

use std::borrow::Cow;

use greenroom_kernel::{AssistantMessage, Block, Message, Part, ToolCall, ToolResult};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::DIALECT;
use crate::dialect::fields::Fields;
use crate::dialect::ids::{sendable_id, sendable_tool_name};
use crate::{ReasoningEffort, Request, ToolChoice, sendable_arguments};

/// The longest id of a call that the API accepts, in bytes.
const CALL_ID_BYTES_MAX: usize = 64;

/// How requests are written for one server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Style {
    pub(super) stream: bool,
    pub(super) prompt_cache_key: bool,
    /// The output limit of requests that name none, in tokens.
    pub(super) output_tokens_max: Option<u64>,
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<&'a str>,
    input: Vec<Item<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<WireTool<'a>>,
    store: bool,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_key: Option<&'a str>,
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
    Message {
        #[serde(rename = "type")]
        kind: &'static str,
        role: &'static str,
        content: Vec<Content<'a>>,
    },
    Call {
        #[serde(rename = "type")]
        kind: &'static str,
        call_id: Cow<'a, str>,
        name: Cow<'a, str>,
        arguments: Cow<'a, str>,
    },
    Result {
        #[serde(rename = "type")]
        kind: &'static str,
        call_id: Cow<'a, str>,
        output: Output<'a>,
    },
    /// An item as it came.
    Raw(Box<RawValue>),
}

/// A part of a message or of a result.
#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text {
        #[serde(rename = "type")]
        kind: &'static str,
        text: Cow<'a, str>,
    },
    Image {
        #[serde(rename = "type")]
        kind: &'static str,
        image_url: String,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Output<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<Content<'a>>),
}

/// Writes a request.
pub(super) fn body(request: &Request, style: &Style) -> serde_json::Result<Vec<u8>> {
    let mut input = Vec::with_capacity(request.messages.len());
    for message in &request.messages {
        match &**message {
            Message::User(blocks) => {
                let content = contents(blocks);
                if !content.is_empty() {
                    input.push(Item::Message { kind: "message", role: "user", content });
                }
            }
            Message::ToolResult(result) => input.push(wire_result(result)),
            Message::Assistant(answer) => wire_answer(answer, &mut input)?,
        }
    }
    let tool = |tool: &'_ greenroom_kernel::ToolSpec| tool.parameters.to_string().len();
    let tools_bytes: usize = request.tools.iter().map(tool).sum();
    let wire = Body {
        model: &request.model,
        instructions: request.system.as_deref().filter(|system| !system.is_empty()),
        input,
        tools: request
            .tools
            .iter()
            .map(|tool| WireTool {
                kind: "function",
                name: &tool.name,
                description: &tool.description,
                parameters: &tool.parameters,
                strict: false,
            })
            .collect(),
        store: false,
        stream: style.stream,
        prompt_cache_key: (style.prompt_cache_key && !request.session.is_empty())
            .then_some(&*request.session),
        settings: wire_settings(request, style),
    };
    let mut bytes = Vec::with_capacity(4_096 + tools_bytes);
    serde_json::to_writer(&mut bytes, &wire)?;
    Ok(bytes)
}

/// Returns the fields that the settings mean, with the user's own.
fn wire_settings(request: &Request, style: &Style) -> Map<String, Value> {
    let settings = &request.settings;
    let has_tools = !request.tools.is_empty();
    let choice = settings.tool_choice.as_ref().filter(|_| has_tools).map(|choice| match choice {
        ToolChoice::Auto => json!("auto"),
        ToolChoice::None => json!("none"),
        ToolChoice::Required => json!("required"),
        ToolChoice::Tool(name) => json!({ "type": "function", "name": name }),
    });
    let reasoning = settings.reasoning_effort.map(|effort| match effort {
        ReasoningEffort::None => json!({ "effort": "none" }),
        ReasoningEffort::Minimal
        | ReasoningEffort::Low
        | ReasoningEffort::Medium
        | ReasoningEffort::High
        | ReasoningEffort::XHigh => json!({ "effort": effort.as_str(), "summary": "auto" }),
    });
    let format = request.output_schema.as_deref().map(|output| {
        let (name, schema) = (&output.name, &output.schema);
        let strict = output.is_strict();
        json!({ "format": { "type": "json_schema", "name": name, "schema": schema, "strict": strict } })
    });
    let fields = [
        ("include", Some(json!(["reasoning.encrypted_content"]))),
        ("max_output_tokens", settings.output_tokens_max.or(style.output_tokens_max).map(Value::from)),
        ("temperature", settings.temperature.map(Value::from)),
        ("top_p", settings.top_p.map(Value::from)),
        ("reasoning", reasoning),
        ("text", format),
        ("tool_choice", choice),
        ("parallel_tool_calls", settings.parallel_tool_calls.filter(|_| has_tools).map(Value::from)),
    ];
    let mut wire = Map::new();
    for (name, value) in fields {
        if let Some(value) = value {
            wire.insert(name.to_owned(), value);
        }
    }
    crate::dialect::merge(&mut wire, &settings.extra);
    wire
}

fn contents(blocks: &[Block]) -> Vec<Content<'_>> {
    fn content(block: &Block) -> Option<Content<'_>> {
        match block {
            Block::Text(text) => {
                (!text.is_empty()).then(|| Content::Text { kind: "input_text", text: text.into() })
            }
            Block::Image(image) => {
                let image_url = format!("data:{};base64,{}", image.media_type, image.data);
                Some(Content::Image { kind: "input_image", image_url })
            }
            _ => None,
        }
    }
    blocks.iter().filter_map(content).collect()
}

fn wire_result(result: &ToolResult) -> Item<'_> {
    let has_image = result.content.iter().any(|block| matches!(block, Block::Image(_)));
    let output = match &*result.content {
        blocks if has_image => Output::Parts(contents(blocks)),
        [Block::Text(text)] => Output::Text(text.into()),
        blocks => Output::Text(greenroom_kernel::message::blocks_text(blocks).into()),
    };
    Item::Result { kind: "function_call_output", call_id: wire_id(&result.call_id), output }
}

fn wire_id(id: &str) -> Cow<'_, str> {
    sendable_id(id, CALL_ID_BYTES_MAX, |_| true)
}

/// Writes the items of an answer: each readable part with the data that came with it.
fn wire_answer<'a>(answer: &'a AssistantMessage, input: &mut Vec<Item<'a>>) -> serde_json::Result<()> {
    let mut items: Vec<(bool, Item<'a>)> = Vec::with_capacity(answer.content.len());
    // Texts whose item is not known yet.
    let mut texts: Vec<&str> = Vec::new();
    let mut call: Option<&ToolCall> = None;
    for part in &answer.content {
        if !matches!(part, Part::OpaqueReasoning { dialect, .. } if dialect == DIALECT) {
            items.extend(call.take().map(|call| (false, wire_call(call))));
        }
        match part {
            Part::Text(text) if !text.is_empty() => texts.push(text),
            Part::ToolCall(next) => {
                flush(&mut texts, &mut items);
                call = Some(next);
            }
            Part::OpaqueReasoning { dialect, data } if dialect == DIALECT => {
                let fields: Fields = serde_json::from_str(data).unwrap_or_default();
                match fields.text("type").as_deref() {
                    Some("message") => {
                        items.extend(call.take().map(|call| (false, wire_call(call))));
                        message(fields, &mut texts, &mut items)?;
                    }
                    Some("function_call") => {
                        if let Some(call) = call.take() {
                            items.push((false, raw_call(call, fields)?));
                        }
                    }
                    Some("reasoning") => {
                        items.extend(call.take().map(|call| (false, wire_call(call))));
                        flush(&mut texts, &mut items);
                        // Nothing is stored at the server, so that without its content an item says nothing.
                        if fields.raw("encrypted_content").is_some_and(|content| content != "null") {
                            items.push((true, Item::Raw(RawValue::from_string(data.clone())?)));
                        }
                    }
                    Some(_) | None => {}
                }
            }
            Part::OpaqueBlock { dialect, data } if dialect == DIALECT => {
                flush(&mut texts, &mut items);
                items.extend(RawValue::from_string(data.clone()).ok().map(|raw| (false, Item::Raw(raw))));
            }
            // Empty text, readable reasoning, and data of other dialects.
            Part::Text(_)
            | Part::Reasoning(_)
            | Part::OpaqueReasoning { .. }
            | Part::OpaqueBlock { .. }
            | _ => {}
        }
    }
    items.extend(call.take().map(|call| (false, wire_call(call))));
    flush(&mut texts, &mut items);
    // Reasoning belongs to the item after it, and is refused without one.
    while items.last().is_some_and(|(is_reasoning, _)| *is_reasoning) {
        items.pop();
    }
    input.extend(items.into_iter().map(|(_, item)| item));
    Ok(())
}

/// Writes texts that belong to no item of this API.
fn flush<'a>(texts: &mut Vec<&'a str>, items: &mut Vec<(bool, Item<'a>)>) {
    if !texts.is_empty() {
        let text = |text: &'a str| Content::Text { kind: "output_text", text: text.into() };
        let content = texts.drain(..).map(text).collect();
        items.push((false, Item::Message { kind: "message", role: "assistant", content }));
    }
}

/// Writes a message as it came: its content has a frame for each of the newest texts.
fn message<'a>(
    mut fields: Fields,
    texts: &mut Vec<&'a str>,
    items: &mut Vec<(bool, Item<'a>)>,
) -> serde_json::Result<()> {
    let frames: Vec<Fields> =
        fields.raw("content").and_then(|content| serde_json::from_str(content).ok()).unwrap_or_default();
    // The runtime dropped some of the texts.
    let Some(first) = texts.len().checked_sub(frames.len()).filter(|_| !frames.is_empty()) else {
        return Ok(());
    };
    let own = texts.split_off(first);
    flush(texts, items);
    let mut content = Vec::with_capacity(own.len());
    for (mut frame, text) in frames.into_iter().zip(own) {
        let field = if frame.text("type").as_deref() == Some("refusal") { "refusal" } else { "text" };
        frame.set(field, to_raw_value(text)?);
        content.push(frame.json());
    }
    fields.set("content", RawValue::from_string(format!("[{}]", content.join(",")))?);
    items.push((false, Item::Raw(RawValue::from_string(fields.json())?)));
    Ok(())
}

fn wire_call(call: &ToolCall) -> Item<'_> {
    Item::Call {
        kind: "function_call",
        call_id: wire_id(&call.id),
        name: sendable_tool_name(&call.name),
        arguments: sendable_arguments(&call.arguments),
    }
}

fn raw_call<'a>(call: &ToolCall, mut fields: Fields) -> serde_json::Result<Item<'a>> {
    fields.set("call_id", to_raw_value(&wire_id(&call.id))?);
    fields.set("name", to_raw_value(&sendable_tool_name(&call.name))?);
    fields.set("arguments", to_raw_value(&sendable_arguments(&call.arguments))?);
    Ok(Item::Raw(RawValue::from_string(fields.json())?))
}
