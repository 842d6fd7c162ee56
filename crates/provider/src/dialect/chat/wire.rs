//! The request as it goes over the wire: chat completions, in the form that most servers accept.
//!
//! Invariants: no message is sent empty, every call's arguments are a JSON object, and a `tool` message is
//! text. Each rule here is one that some server enforces with an error that would repeat for ever, since the
//! history is sent again with every request.

use std::borrow::Cow;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use greenroom_kernel::{AssistantMessage, Block, Image, Message, Part, ToolCall, ToolResult, ToolSpec};
use parking_lot::Mutex;
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::dialect::history::{Elements, History, Needs};
use crate::dialect::ids::{sendable_id, sendable_tool_name};
use crate::settings::ResendReasoning;
use crate::{ReasoningEffort, Request, ResentReasoning, ToolChoice, sendable_arguments};

/// The longest id of a call that servers accept, in bytes.
const CALL_ID_BYTES_MAX: usize = 40;

/// How to write a request for one server.
#[derive(Debug, Clone, Copy)]
pub(super) struct WireStyle<'a> {
    /// The provider's name: reasoning is only sent back to the provider it came from.
    pub(super) provider: &'a str,
    pub(super) max_completion_tokens: bool,
    /// What to ask for where the request names no limit.
    pub(super) output_tokens_max: Option<u64>,
    pub(super) resend_reasoning: ResendReasoning,
    pub(super) prompt_cache_key: bool,
    /// Whether the answer is asked for in pieces.
    pub(super) stream: bool,
}

/// The fields before the conversation.
#[derive(Debug, Serialize)]
struct Before<'a> {
    model: &'a str,
}

/// The fields after the conversation.
#[derive(Debug, Serialize)]
struct After<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    response_format: Option<ResponseFormat<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<WireToolChoice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parallel_tool_calls: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop: Option<&'a [String]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_cache_key: Option<&'a str>,
    // The library does not set it for types of one's own, and without it the stream would be empty.
    stream: bool,
    /// Servers refuse it where no stream is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    /// What the server knows besides. None of the fields above can be among them: see `ModelSettings::check`.
    #[serde(flatten)]
    extra: &'a serde_json::Map<String, Value>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum WireToolChoice<'a> {
    Word(&'static str),
    Tool {
        #[serde(rename = "type")]
        kind: &'static str,
        function: WireToolName<'a>,
    },
}

#[derive(Debug, Serialize)]
struct WireToolName<'a> {
    name: &'a str,
}

#[derive(Debug, Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Debug, Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
enum WireMessage<'a> {
    System {
        content: &'a str,
    },
    User {
        content: UserContent<'a>,
    },
    Assistant {
        // Left out, not null: one server answers 500 to `null` beside tool calls.
        #[serde(skip_serializing_if = "Option::is_none")]
        content: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<WireCall<'a>>,
    },
    Tool {
        tool_call_id: Cow<'a, str>,
        content: Cow<'a, str>,
    },
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum UserContent<'a> {
    Text(Cow<'a, str>),
    Parts(Vec<UserPart<'a>>),
}

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum UserPart<'a> {
    Text { text: Cow<'a, str> },
    ImageUrl { image_url: ImageUrl<'a> },
}

#[derive(Debug, Serialize)]
struct ImageUrl<'a> {
    url: DataUrl<'a>,
}

/// A picture as a URL that holds it. It is written into the request without a copy.
#[derive(Debug)]
struct DataUrl<'a>(&'a Image);

impl Serialize for DataUrl<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("data:{};base64,{}", self.0.media_type, self.0.data))
    }
}

#[derive(Debug, Serialize)]
struct WireCall<'a> {
    id: Cow<'a, str>,
    #[serde(rename = "type")]
    kind: &'static str,
    function: WireFunction<'a>,
}

#[derive(Debug, Serialize)]
struct WireFunction<'a> {
    name: Cow<'a, str>,
    arguments: Cow<'a, str>,
}

#[derive(Debug, Serialize)]
struct WireTool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: WireToolFunction<'a>,
}

#[derive(Debug, Serialize)]
struct WireToolFunction<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a Value,
}

#[derive(Debug, Serialize)]
struct ResponseFormat<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    json_schema: JsonSchema<'a>,
}

#[derive(Debug, Serialize)]
struct JsonSchema<'a> {
    name: &'a str,
    schema: &'a Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

/// Writes `request` for a server that wants it in `style`.
pub(super) fn body(
    request: &Request,
    style: &WireStyle<'_>,
    tools: &WrittenTools,
    history: &mut History,
) -> serde_json::Result<Vec<Bytes>> {
    let system = request.system.as_deref().filter(|system| !system.is_empty());
    let first = system.map(|content| serde_json::to_vec(&WireMessage::System { content })).transpose()?;
    let resend = request.settings.resend_reasoning.unwrap_or(style.resend_reasoning);
    let rule = resend.rule(style.provider);
    let conversation = history.write(request, &request.messages, |messages, elements| {
        write_messages(messages, &rule, resend, elements)
    })?;
    let before = Before { model: &request.model };
    let first = first.unwrap_or_default();
    let tools = tools.of(&request.tools)?;
    crate::dialect::body(&before, "messages", &first, conversation, &after(request, style, tools.as_deref()))
}

/// The maximum number of lists of tools whose JSON is kept.
const TOOL_LISTS_MAX: usize = 64;

/// The JSON of lists of tools. All sessions of an agent share one list.
#[derive(Debug, Default)]
pub(super) struct WrittenTools(Mutex<Vec<WrittenList>>);

/// A list of tools, and its JSON.
type WrittenList = (Weak<[ToolSpec]>, Arc<RawValue>);

impl WrittenTools {
    /// Returns these definitions as they are sent; `None` if there are none.
    fn of(&self, tools: &Arc<[ToolSpec]>) -> serde_json::Result<Option<Arc<RawValue>>> {
        if tools.is_empty() {
            return Ok(None);
        }
        let mut known = self.0.lock();
        // No other list has this address as long as there is a reference to this one.
        if let Some((_, written)) =
            known.iter().find(|(list, _)| std::ptr::addr_eq(list.as_ptr(), Arc::as_ptr(tools)))
        {
            return Ok(Some(Arc::clone(written)));
        }
        let list: Vec<WireTool<'_>> = tools.iter().map(wire_tool).collect();
        let written: Arc<RawValue> = serde_json::value::to_raw_value(&list)?.into();
        known.retain(|(list, _)| list.strong_count() > 0);
        if known.len() < TOOL_LISTS_MAX {
            known.push((Arc::downgrade(tools), Arc::clone(&written)));
        }
        Ok(Some(written))
    }
}

fn after<'a>(request: &'a Request, style: &WireStyle<'_>, tools: Option<&'a RawValue>) -> After<'a> {
    let limit = request.settings.output_tokens_max.or(style.output_tokens_max);
    let (max_tokens, max_completion_tokens) =
        if style.max_completion_tokens { (None, limit) } else { (limit, None) };
    let settings = &request.settings;
    // Servers refuse what is said about tools where none is offered.
    let has_tools = !request.tools.is_empty();
    After {
        tools,
        max_tokens,
        max_completion_tokens,
        response_format: request.output_schema.as_deref().map(|output| ResponseFormat {
            kind: "json_schema",
            json_schema: JsonSchema {
                name: &output.name,
                schema: &output.schema,
                strict: output.is_strict().then_some(true),
            },
        }),
        temperature: settings.temperature,
        top_p: settings.top_p,
        reasoning_effort: settings.reasoning_effort.map(ReasoningEffort::as_str),
        tool_choice: settings.tool_choice.as_ref().filter(|_| has_tools).map(wire_tool_choice),
        parallel_tool_calls: settings.parallel_tool_calls.filter(|_| has_tools),
        stop: settings.stop.as_deref().filter(|texts| !texts.is_empty()),
        seed: settings.seed,
        prompt_cache_key: (style.prompt_cache_key && !request.session.is_empty())
            .then_some(request.session.as_str()),
        stream: style.stream,
        stream_options: style.stream.then_some(StreamOptions { include_usage: true }),
        extra: &settings.extra,
    }
}

fn wire_tool_choice(choice: &ToolChoice) -> WireToolChoice<'_> {
    match choice {
        ToolChoice::Auto => WireToolChoice::Word("auto"),
        ToolChoice::None => WireToolChoice::Word("none"),
        ToolChoice::Required => WireToolChoice::Word("required"),
        ToolChoice::Tool(name) => WireToolChoice::Tool { kind: "function", function: WireToolName { name } },
    }
}

/// Writes the conversation.
fn write_messages(
    messages: &[Arc<Message>],
    rule: &ResentReasoning,
    resend: ResendReasoning,
    elements: &mut Elements,
) -> serde_json::Result<Needs> {
    // Images of tool results wait here until the batch of results is over: nothing may stand between results.
    let mut result_images: Vec<UserPart<'_>> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        if result_images.is_empty() {
            elements.cut(index);
        }
        match message.as_ref() {
            Message::ToolResult(result) => elements.push(&wire_result(result, &mut result_images))?,
            Message::User(blocks) => {
                push_images(&mut result_images, elements)?;
                if let Some(content) = user_content(blocks) {
                    elements.push(&WireMessage::User { content })?;
                }
            }
            Message::Assistant(assistant) => {
                push_images(&mut result_images, elements)?;
                if let Some(message) = wire_assistant(assistant, rule, resend) {
                    elements.push(&message)?;
                }
            }
        }
    }
    if result_images.is_empty() {
        elements.cut(messages.len());
    }
    push_images(&mut result_images, elements)?;
    Ok(Needs::Nothing)
}

fn push_images(images: &mut Vec<UserPart<'_>>, elements: &mut Elements) -> serde_json::Result<()> {
    if images.is_empty() {
        return Ok(());
    }
    elements.push(&WireMessage::User { content: UserContent::Parts(std::mem::take(images)) })
}

/// `None` if there is nothing to say.
fn user_content(blocks: &[Block]) -> Option<UserContent<'_>> {
    let has_image = blocks.iter().any(|block| matches!(block, Block::Image(_)));
    if !has_image {
        // Plain text stays a plain string: not every server reads parts.
        let text = text_of(blocks);
        return (!text.is_empty()).then_some(UserContent::Text(text));
    }
    let parts = blocks
        .iter()
        .filter_map(|block| match block {
            Block::Text(text) if text.is_empty() => None,
            Block::Text(text) => Some(UserPart::Text { text: Cow::Borrowed(text) }),
            Block::Image(image) => Some(image_part(image)),
            Block::Native(_) | _ => None,
        })
        .collect();
    Some(UserContent::Parts(parts))
}

/// The text of `blocks`: the very text where there is one, which is almost always.
fn text_of(blocks: &[Block]) -> Cow<'_, str> {
    match blocks {
        [Block::Text(text)] => Cow::Borrowed(text),
        _ => Cow::Owned(greenroom_kernel::message::blocks_text(blocks)),
    }
}

fn image_part(image: &Image) -> UserPart<'_> {
    UserPart::ImageUrl { image_url: ImageUrl { url: DataUrl(image) } }
}

/// `None` if nothing of it is sent: an empty assistant message is refused by most servers.
fn wire_assistant<'a>(
    assistant: &'a AssistantMessage,
    rule: &ResentReasoning,
    resend: ResendReasoning,
) -> Option<WireMessage<'a>> {
    // Joining borrows what stands alone.
    let mut text = Cow::Borrowed("");
    let mut thought = Cow::Borrowed("");
    let mut tool_calls = Vec::with_capacity(assistant.tool_calls().count());
    for part in assistant.content.iter().filter(|part| rule.carries(assistant, part)) {
        match part {
            Part::Text(more) => text += more.as_str(),
            Part::Reasoning(more) => thought += more.as_str(),
            Part::ToolCall(call) => tool_calls.push(wire_call(call)),
            // This API has no place for it.
            Part::OpaqueReasoning { .. } | _ => {}
        }
    }
    if text.is_empty() && tool_calls.is_empty() {
        return None;
    }
    let thought = (!thought.is_empty()).then_some(thought);
    let (reasoning_content, reasoning) = match resend {
        ResendReasoning::AsReasoningContent => (thought, None),
        ResendReasoning::AsReasoning => (None, thought),
        ResendReasoning::Never => (None, None),
    };
    let content = (!text.is_empty()).then_some(text);
    Some(WireMessage::Assistant { content, reasoning_content, reasoning, tool_calls })
}

fn wire_call(call: &ToolCall) -> WireCall<'_> {
    WireCall {
        id: wire_call_id(&call.id),
        kind: "function",
        function: WireFunction {
            name: sendable_tool_name(&call.name),
            arguments: sendable_arguments(&call.arguments),
        },
    }
}

fn wire_result<'a>(result: &'a ToolResult, images: &mut Vec<UserPart<'a>>) -> WireMessage<'a> {
    let mut content = text_of(&result.content);
    let pictures: Vec<&Image> = result
        .content
        .iter()
        .filter_map(|block| match block {
            Block::Image(image) => Some(image),
            Block::Text(_) | _ => None,
        })
        .collect();
    if !pictures.is_empty() {
        let count = pictures.len();
        let noun = if count == 1 { "image" } else { "images" };
        if !content.is_empty() {
            content += "\n";
        }
        content += Cow::Owned(format!("[{count} {noun}: in the user message after the tool results]"));
        images.push(UserPart::Text {
            text: Cow::Owned(format!("The {noun} that the tool {} gave:", result.tool_name)),
        });
        images.extend(pictures.into_iter().map(image_part));
    }
    if content.is_empty() {
        content = Cow::Borrowed("(no output)");
    }
    WireMessage::Tool { tool_call_id: wire_call_id(&result.call_id), content }
}

fn wire_tool(tool: &ToolSpec) -> WireTool<'_> {
    WireTool {
        kind: "function",
        function: WireToolFunction {
            name: &tool.name,
            description: &tool.description,
            parameters: &tool.parameters,
        },
    }
}

/// An id that is too long for some servers is shortened the same way for the call and for its result.
fn wire_call_id(id: &str) -> Cow<'_, str> {
    sendable_id(id, CALL_ID_BYTES_MAX, |_| true)
}

#[cfg(test)]
mod tests;
