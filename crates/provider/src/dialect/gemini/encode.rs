//! Writes requests.
//!
//! Invariants: the results of an answer's calls are alone in the content after it, in the order of the calls, because the
//! API counts them; and a message is written the same way whatever follows it.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use greenroom_kernel::{AssistantMessage, Block, Image, Message, Part, ToolCall, ToolResult, ToolStatus};
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::model::{Generation, Model};
use super::{DIALECT, Owner};
use crate::dialect::fields::Fields;
use crate::dialect::history::{Elements, History, Needs};
use crate::dialect::ids::sendable_tool_name;
use crate::dialect::with_values;
use crate::{ReasoningEffort, Request, ToolChoice, sendable_arguments};

/// The documented signature for calls that have none, because another provider's model wrote them, for example.
const NO_SIGNATURE: &str = "skip_thought_signature_validator";

/// The fields before the conversation.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Before<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    system_instruction: Option<Instruction<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<[Tools<'a>; 1]>,
}

#[derive(Serialize)]
struct Instruction<'a> {
    parts: Vec<WirePart<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Tools<'a> {
    function_declarations: Vec<WireTool<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct WireTool<'a> {
    name: &'a str,
    description: &'a str,
    // Unlike `parameters`, which takes a subset of OpenAPI's schema and refuses a request with any other keyword
    // (`$ref`, `const`, `exclusiveMinimum` …), this field takes JSON Schema and ignores the keywords that it does not
    // know.
    parameters_json_schema: &'a Value,
}

#[derive(Serialize)]
struct Content<'a> {
    role: &'static str,
    parts: Vec<WirePart<'a>>,
    #[serde(skip)]
    kind: Kind,
    /// The position of the first message in it.
    #[serde(skip)]
    first_message: usize,
}

/// What a content holds. Contents of one kind in a row become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    User,
    Results,
    Model,
}

impl Kind {
    fn role(self) -> &'static str {
        match self {
            Self::User | Self::Results => "user",
            Self::Model => "model",
        }
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum WirePart<'a> {
    Text {
        text: Cow<'a, str>,
    },
    #[serde(rename_all = "camelCase")]
    Image {
        inline_data: InlineData<'a>,
    },
    #[serde(rename_all = "camelCase")]
    Result {
        function_response: WireResult<'a>,
    },
    #[serde(rename_all = "camelCase")]
    Call {
        function_call: WireCall<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        thought_signature: Option<&'static str>,
    },
    /// A part with fields that came with it.
    Raw(Box<RawValue>),
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InlineData<'a> {
    mime_type: &'a str,
    data: &'a str,
}

#[derive(Serialize)]
struct WireCall<'a> {
    name: Cow<'a, str>,
    args: Box<RawValue>,
}

#[derive(Serialize)]
struct WireResult<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    name: Cow<'a, str>,
    response: Response<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    parts: Vec<WirePart<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum Response<'a> {
    Output(Cow<'a, str>),
    Error(Cow<'a, str>),
}

/// Writes a request.
pub(super) fn body(
    request: &Request,
    model: &Model<'_>,
    output_tokens_max: Option<u64>,
    history: &mut History,
) -> serde_json::Result<Vec<Bytes>> {
    let tools: Vec<WireTool<'_>> = request
        .tools
        .iter()
        .map(|tool| WireTool {
            name: &tool.name,
            description: &tool.description,
            parameters_json_schema: &tool.parameters,
        })
        .collect();
    let conversation = history
        .write(request, &request.messages, |messages, elements| write_contents(messages, model, elements))?;
    let before = Before {
        system_instruction: instruction(request, model),
        tools: (!tools.is_empty()).then_some([Tools { function_declarations: tools }]),
    };
    let settings = wire_settings(request, model, output_tokens_max);
    crate::dialect::body(&before, "contents", &[], conversation, &settings)
}

/// Whether the API enforces the schema of the answer. Models before Gemini 3 refuse a schema beside tools.
fn enforces_schema(request: &Request, model: &Model<'_>) -> bool {
    request.tools.is_empty() || model.generation() >= Generation::Level
}

fn instruction<'a>(request: &'a Request, model: &Model<'_>) -> Option<Instruction<'a>> {
    let system = request.system.as_deref().filter(|system| !system.is_empty()).map(text);
    let output = request.output_schema.as_deref().filter(|_| !enforces_schema(request, model));
    let asked = output.map(|output| {
        let schema = &output.schema;
        WirePart::Text {
            text: format!("Your final answer must be only JSON that follows this schema: {schema}").into(),
        }
    });
    let parts: Vec<WirePart<'_>> = system.into_iter().chain(asked).collect();
    (!parts.is_empty()).then_some(Instruction { parts })
}

/// Returns the fields that the settings mean, with the user's own.
fn wire_settings(request: &Request, model: &Model<'_>, output_tokens_max: Option<u64>) -> Map<String, Value> {
    let settings = &request.settings;
    let output = request.output_schema.as_deref().filter(|_| enforces_schema(request, model));
    let stop = settings.stop.as_deref().filter(|texts| !texts.is_empty());
    let generation = with_values([
        ("temperature", settings.temperature.map(Value::from)),
        ("topP", settings.top_p.map(Value::from)),
        ("maxOutputTokens", settings.output_tokens_max.or(output_tokens_max).map(Value::from)),
        ("stopSequences", stop.map(|texts| json!(texts))),
        ("seed", settings.seed.map(Value::from)),
        ("responseMimeType", output.map(|_| "application/json".into())),
        ("responseJsonSchema", output.map(|output| output.schema.clone())),
        ("thinkingConfig", thinking(settings.reasoning_effort, model)),
    ]);
    let mut wire = with_values([
        ("toolConfig", tool_config(request)),
        ("generationConfig", (!generation.is_empty()).then_some(Value::Object(generation))),
    ]);
    crate::dialect::merge(&mut wire, &settings.extra);
    wire
}

fn tool_config(request: &Request) -> Option<Value> {
    let choice = request.settings.tool_choice.as_ref().filter(|_| !request.tools.is_empty())?;
    let config = match choice {
        ToolChoice::Auto => json!({ "mode": "AUTO" }),
        ToolChoice::None => json!({ "mode": "NONE" }),
        ToolChoice::Required => json!({ "mode": "ANY" }),
        ToolChoice::Tool(name) => json!({ "mode": "ANY", "allowedFunctionNames": [name] }),
    };
    Some(json!({ "functionCallingConfig": config }))
}

/// Returns how the model thinks. Its thoughts can be read only if they are asked for.
fn thinking(effort: Option<ReasoningEffort>, model: &Model<'_>) -> Option<Value> {
    let mut config = json!({ "includeThoughts": true });
    let always = model.always_thinks();
    match (model.generation(), effort) {
        (Generation::Plain, None) => return None,
        (_, None) => {}
        (Generation::Level, Some(effort)) => {
            config["thinkingLevel"] = match effort {
                ReasoningEffort::None | ReasoningEffort::Minimal if !always => "minimal",
                ReasoningEffort::None | ReasoningEffort::Minimal | ReasoningEffort::Low => "low",
                ReasoningEffort::Medium => "medium",
                ReasoningEffort::High | ReasoningEffort::XHigh => "high",
            }
            .into();
        }
        // A model that does not think says so.
        (Generation::Plain | Generation::Budget, Some(effort)) => {
            config["thinkingBudget"] = match effort {
                ReasoningEffort::None if always => 128,
                ReasoningEffort::None => 0,
                ReasoningEffort::Minimal => 512,
                ReasoningEffort::Low => 1_024,
                ReasoningEffort::Medium => 8_192,
                ReasoningEffort::High | ReasoningEffort::XHigh => 24_576,
            }
            .into();
        }
    }
    Some(config)
}

/// Writes the conversation.
fn write_contents(
    messages: &[Arc<Message>],
    model: &Model<'_>,
    elements: &mut Elements,
) -> serde_json::Result<Needs> {
    let takes_images = model.generation() >= Generation::Level;
    let mut wire = Contents(Vec::with_capacity(messages.len()));
    let mut calls = Calls::default();
    let mut rest = messages.iter().enumerate().map(|(index, message)| (index, &**message)).peekable();
    while let Some((index, message)) = rest.next() {
        match message {
            Message::User(blocks) => {
                wire.add(Kind::User, index, blocks.iter().filter_map(block_part).collect());
            }
            Message::Assistant(answer) => {
                wire.add(Kind::Model, index, answer_parts(answer, model, &mut calls)?);
            }
            Message::ToolResult(first) => {
                let mut results = vec![first];
                while let Some((_, Message::ToolResult(next))) =
                    rest.next_if(|(_, next)| matches!(next, Message::ToolResult(_)))
                {
                    results.push(next);
                }
                let is_known = |result: &&ToolResult| calls.by_id.contains_key(&*result.call_id);
                if elements.is_continued() && !results.iter().all(is_known) {
                    return Ok(Needs::Beginning);
                }
                // Calls without ids are told apart by their order.
                results.sort_by_key(|result| calls.position(&result.call_id));
                // A model that takes no images in results gets them after the results.
                let mut images = Vec::new();
                for result in results {
                    let part = result_part(result, &calls, (!takes_images).then_some(&mut images));
                    wire.add(Kind::Results, index, vec![part]);
                }
                wire.add(Kind::User, index, images);
            }
        }
    }
    // What comes before ends with the user, so that more of the user's would be one content with it.
    if elements.is_continued() && wire.0.first().is_some_and(|first| first.kind != Kind::Model) {
        return Ok(Needs::Beginning);
    }
    // A conversation begins with the user.
    if !elements.is_continued() && wire.0.first().is_none_or(|first| first.kind != Kind::User) {
        let continued =
            Content { role: "user", parts: vec![text("(continued)")], kind: Kind::User, first_message: 0 };
        wire.0.insert(0, continued);
    }
    let mut before = Kind::Model;
    for content in wire.0 {
        // Results belong to calls of the answer before them.
        if before != Kind::Model && content.kind == Kind::Model {
            elements.cut(content.first_message);
        }
        before = content.kind;
        elements.push(&content)?;
    }
    Ok(Needs::Nothing)
}

struct Contents<'a>(Vec<Content<'a>>);

impl<'a> Contents<'a> {
    fn add(&mut self, kind: Kind, first_message: usize, mut parts: Vec<WirePart<'a>>) {
        if parts.is_empty() {
            return;
        }
        match self.0.last_mut().filter(|last| last.kind == kind) {
            Some(last) => last.parts.append(&mut parts),
            None => self.0.push(Content { role: kind.role(), parts, kind, first_message }),
        }
    }
}

/// The calls that were written.
#[derive(Default)]
struct Calls<'a> {
    count: usize,
    by_id: HashMap<&'a str, Written>,
}

/// A call that was written.
struct Written {
    position: usize,
    /// The id that the API gave it.
    id: Option<String>,
}

impl<'a> Calls<'a> {
    fn add(&mut self, call: &'a ToolCall, id: Option<String>) {
        self.by_id.insert(&call.id, Written { position: self.count, id });
        self.count += 1;
    }

    fn position(&self, id: &str) -> usize {
        self.by_id.get(id).map_or(usize::MAX, |call| call.position)
    }
}

fn text(text: &str) -> WirePart<'_> {
    WirePart::Text { text: text.into() }
}

fn image(image: &Image) -> WirePart<'_> {
    WirePart::Image { inline_data: InlineData { mime_type: &image.media_type, data: &image.data } }
}

/// Writes a block; nothing is written for an empty text.
fn block_part(block: &Block) -> Option<WirePart<'_>> {
    match block {
        Block::Text(said) if said.is_empty() => None,
        Block::Text(said) => Some(text(said)),
        Block::Image(shown) => Some(image(shown)),
        Block::Native(_) | _ => None,
    }
}

/// Writes a result. Its images go into it, or to `apart`.
fn result_part<'a>(
    result: &'a ToolResult,
    calls: &Calls<'_>,
    apart: Option<&mut Vec<WirePart<'a>>>,
) -> WirePart<'a> {
    let mut said = match &*result.content {
        [Block::Text(only)] => Cow::Borrowed(only.as_str()),
        blocks => Cow::Owned(greenroom_kernel::message::blocks_text(blocks)),
    };
    if said.is_empty() {
        said = Cow::Borrowed("(no output)");
    }
    let is_image = |part: &WirePart<'_>| matches!(part, WirePart::Image { .. });
    let mut parts: Vec<WirePart<'_>> =
        result.content.iter().filter_map(block_part).filter(is_image).collect();
    if let Some(apart) = apart
        && !parts.is_empty()
    {
        let title = format!("Images that the tool {} returned:", result.tool_name);
        apart.push(WirePart::Text { text: title.into() });
        apart.append(&mut parts);
    }
    let response = match result.status {
        ToolStatus::Ok => Response::Output(said),
        ToolStatus::Error | ToolStatus::Interrupted => Response::Error(said),
    };
    let id = calls.by_id.get(&*result.call_id).and_then(|call| call.id.clone());
    let name = sendable_tool_name(&result.tool_name);
    WirePart::Result { function_response: WireResult { id, name, response, parts } }
}

/// Writes an answer: each readable part with the fields that came with it.
fn answer_parts<'a>(
    answer: &'a AssistantMessage,
    model: &Model<'_>,
    calls: &mut Calls<'a>,
) -> serde_json::Result<Vec<WirePart<'a>>> {
    let mut wire = Vec::with_capacity(answer.content.len());
    // Thoughts alone are no answer.
    if answer.is_empty() {
        return Ok(wire);
    }
    let mut is_first_call = true;
    let mut parts = answer.content.iter().peekable();
    while let Some(part) = parts.next() {
        let mut attached = |owner: Owner| {
            let next = parts.peek().filter(|next| matches!(next, Part::OpaqueReasoning { .. }))?;
            let fields = own_fields(next)?;
            (Owner::of(&fields) == owner).then_some(fields)
        };
        match part {
            Part::Text(said) => match attached(Owner::Text) {
                _ if said.is_empty() => {}
                Some(fields) => wire.push(with_text(fields, said)?),
                None => wire.push(text(said)),
            },
            // Another provider's reasoning is left out.
            Part::Reasoning(thought) => {
                if let Some(fields) = attached(Owner::Thought) {
                    wire.push(with_text(fields, thought)?);
                }
            }
            Part::ToolCall(call) => {
                let needs_signature = is_first_call && model.generation() >= Generation::Level;
                is_first_call = false;
                let fields = attached(Owner::Call);
                calls.add(call, fields.as_ref().and_then(call_id));
                wire.push(call_part(call, fields, needs_signature)?);
            }
            Part::OpaqueReasoning { .. } => {
                // What belongs to a readable part is sent with it, and not alone.
                let whole = own_fields(part).filter(|fields| Owner::of(fields) == Owner::Itself);
                if let Some(fields) = whole.filter(|fields| fields.raw("thoughtSignature").is_some()) {
                    wire.push(raw(&fields)?);
                }
            }
            Part::OpaqueBlock { .. } => {
                if let Some(fields) = own_fields(part) {
                    wire.push(raw(&fields)?);
                }
            }
            _ => {}
        }
    }
    Ok(wire)
}

/// Returns the fields of opaque data of this dialect, without a signature that the API would refuse.
fn own_fields(part: &Part) -> Option<Fields> {
    let (Part::OpaqueReasoning { dialect, data } | Part::OpaqueBlock { dialect, data }) = part else {
        return None;
    };
    if dialect != DIALECT {
        return None;
    }
    let mut fields: Fields = serde_json::from_str(data).ok()?;
    if !fields.text_ref("thoughtSignature").is_some_and(|signature| is_base64(&signature)) {
        fields.remove("thoughtSignature");
    }
    Some(fields)
}

/// Whether a text is base64, in either alphabet, with or without padding.
fn is_base64(text: &str) -> bool {
    let digits = text.trim_end_matches('=');
    let padding = text.len() - digits.len();
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || b"+/-_".contains(&byte);
    !digits.is_empty()
        && digits.bytes().all(is_digit)
        && digits.len() % 4 != 1
        && (padding == 0 || (padding <= 2 && text.len().is_multiple_of(4)))
}

fn raw(fields: &Fields) -> serde_json::Result<WirePart<'static>> {
    to_raw_value(fields).map(WirePart::Raw)
}

fn with_text(mut fields: Fields, said: &str) -> serde_json::Result<WirePart<'static>> {
    fields.set("text", to_raw_value(said)?);
    raw(&fields)
}

/// Returns the id that the API gave a call.
fn call_id(fields: &Fields) -> Option<String> {
    fields.parsed::<Fields>("functionCall")?.text("id")
}

fn call_part<'a>(
    call: &'a ToolCall,
    fields: Option<Fields>,
    needs_signature: bool,
) -> serde_json::Result<WirePart<'a>> {
    let name = sendable_tool_name(&call.name);
    let args = RawValue::from_string(sendable_arguments(&call.arguments).trim().to_owned())?;
    let Some(mut fields) = fields else {
        let thought_signature = needs_signature.then_some(NO_SIGNATURE);
        return Ok(WirePart::Call { function_call: WireCall { name, args }, thought_signature });
    };
    let mut wire = fields.parsed::<Fields>("functionCall").unwrap_or_default();
    wire.set("name", to_raw_value(&name)?);
    wire.set("args", args);
    fields.set("functionCall", wire.into_raw());
    if needs_signature && fields.raw("thoughtSignature").is_none() {
        fields.set("thoughtSignature", to_raw_value(NO_SIGNATURE)?);
    }
    raw(&fields)
}
