//! Reads answers: the events of a stream, or a whole response.
//!
//! Invariants: kinds of item and event that are unknown today are kept or ignored, and never fail an answer.

use std::collections::{HashSet, VecDeque};

use greenroom_kernel::{AssistantMessage, Part, StopReason, ToolCall, Usage};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::DIALECT;
use crate::dialect::fields::Fields;
use crate::dialect::{Asked, Decoder, Ids, Progress, Taken, with_calls};
use crate::{ProviderError, ReplyEvent};

/// The decoder of one answer.
#[derive(Debug, Default)]
pub(super) struct ResponsesDecoder {
    items: Vec<Item>,
    calls: usize,
    usage: Option<Usage>,
    stop_raw: Option<String>,
    output_bytes: usize,
}

/// An item of the answer.
#[derive(Debug, Default)]
struct Item {
    index: u64,
    /// Its type, once it is known.
    kind: String,
    /// The text, the reasoning or the arguments that were shown.
    shown: String,
    /// The number of the summary's part that is being shown.
    summary: u64,
    /// The position among the answer's calls.
    call: Option<usize>,
    /// The name of a call.
    name: String,
    /// The item as it came, once its end came.
    whole: Option<Fields>,
}

/// The data of an event, or a whole response.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event {
    #[serde(rename = "type")]
    kind: Option<String>,
    object: Option<String>,
    output_index: Option<u64>,
    summary_index: Option<u64>,
    item: Option<Fields>,
    delta: Option<Box<RawValue>>,
    response: Option<Box<Response>>,
    error: Option<Box<RawValue>>,
}

/// A response.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Response {
    status: Option<String>,
    output: Option<Vec<Fields>>,
    usage: Option<WireUsage>,
    error: Option<Value>,
    incomplete_details: Option<Incomplete>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Incomplete {
    reason: Option<String>,
}

/// Token counts as sent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireUsage {
    input_tokens: Option<u64>,
    output_tokens: Option<u64>,
    input_tokens_details: Option<InputDetails>,
    output_tokens_details: Option<OutputDetails>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct InputDetails {
    cached_tokens: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct OutputDetails {
    reasoning_tokens: Option<u64>,
}

/// A part of a message's content.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Texts {
    text: Option<String>,
    refusal: Option<String>,
}

impl ResponsesDecoder {
    /// Returns the item at this place, which begins if it is new.
    fn item(&mut self, index: u64, kind: &str) -> &mut Item {
        let at = match self.items.iter().rposition(|item| item.index == index) {
            Some(at) => at,
            None => {
                self.items.push(Item { index, ..Item::default() });
                self.items.len() - 1
            }
        };
        let item = &mut self.items[at];
        if item.kind.is_empty() {
            kind.clone_into(&mut item.kind);
        }
        if item.kind == "function_call" && item.call.is_none() {
            item.call = Some(self.calls);
            self.calls += 1;
        }
        item
    }

    fn begin(&mut self, index: u64, fields: &Fields, events: &mut VecDeque<ReplyEvent>) {
        let kind = fields.text("type").unwrap_or_default();
        let item = self.item(index, &kind);
        if let (Some(call), Some(name), true) = (item.call, fields.text("name"), item.name.is_empty()) {
            item.name.clone_from(&name);
            events.push_back(ReplyEvent::ToolCall {
                index: call,
                name: Some(name),
                arguments: String::new(),
            });
        }
    }

    /// Shows a piece of an item of this type.
    fn show(&mut self, index: u64, kind: &str, piece: &str, events: &mut VecDeque<ReplyEvent>) {
        if piece.is_empty() {
            return;
        }
        self.output_bytes += piece.len();
        let item = self.item(index, kind);
        item.shown.push_str(piece);
        let piece = piece.to_owned();
        events.push_back(match (kind, item.call) {
            ("reasoning", _) => ReplyEvent::Reasoning(piece),
            (_, Some(call)) => ReplyEvent::ToolCall { index: call, name: None, arguments: piece },
            (_, None) => ReplyEvent::Text(piece),
        });
    }

    /// Ends an item. What was not shown of it is shown now.
    fn end(&mut self, index: u64, fields: Fields, events: &mut VecDeque<ReplyEvent>) {
        self.begin(index, &fields, events);
        let kind = fields.text("type").unwrap_or_default();
        self.output_bytes += fields.iter().map(|(_, value)| value.get().len()).sum::<usize>();
        if self.item(index, &kind).shown.is_empty() {
            let whole = match kind.as_str() {
                "message" => texts(&fields).concat(),
                "reasoning" => reasoning(&fields),
                "function_call" => fields.text("arguments").unwrap_or_default(),
                _ => String::new(),
            };
            self.show(index, &kind, &whole, events);
        }
        self.item(index, &kind).whole = Some(fields);
    }

    fn take_response(&mut self, response: Response, events: &mut VecDeque<ReplyEvent>) -> Taken {
        if let Some(error) = response.error.filter(|error| !error.is_null()) {
            return Taken::Error(json!({ "error": error }).to_string());
        }
        if let Some(usage) = response.usage {
            self.usage = usage.usage();
        }
        // Some gateways send the items here only.
        if self.items.iter().all(|item| item.whole.is_none()) {
            for (index, item) in (0..).zip(response.output.unwrap_or_default()) {
                self.end(index, item, events);
            }
        }
        let reason = response.incomplete_details.and_then(|details| details.reason);
        self.stop_raw = reason.or(response.status).or_else(|| Some("completed".to_owned()));
        Taken::Progress
    }
}

impl WireUsage {
    fn usage(&self) -> Option<Usage> {
        let (input, output) = (self.input_tokens.unwrap_or_default(), self.output_tokens.unwrap_or_default());
        let cached = self.input_tokens_details.as_ref().and_then(|details| details.cached_tokens);
        let reasoning = self.output_tokens_details.as_ref().and_then(|details| details.reasoning_tokens);
        (input > 0 || output > 0).then(|| Usage {
            input_tokens: input,
            cached_tokens: cached.unwrap_or_default().min(input),
            output_tokens: output,
            reasoning_tokens: reasoning.unwrap_or_default().min(output),
            ..Usage::default()
        })
    }
}

/// Returns the texts of a message's content, one for each part.
fn texts(message: &Fields) -> Vec<String> {
    let parts: Vec<Texts> =
        message.raw("content").and_then(|content| serde_json::from_str(content).ok()).unwrap_or_default();
    parts.into_iter().map(|part| part.text.or(part.refusal).unwrap_or_default()).collect()
}

/// Returns the readable part of a reasoning item: its summary, or else its content.
fn reasoning(item: &Fields) -> String {
    let texts = |field: &str| -> Vec<String> {
        let parts: Vec<Texts> =
            item.raw(field).and_then(|parts| serde_json::from_str(parts).ok()).unwrap_or_default();
        parts.into_iter().filter_map(|part| part.text).filter(|text| !text.is_empty()).collect()
    };
    let summary = texts("summary");
    if summary.is_empty() { texts("content").concat() } else { summary.join("\n\n") }
}

impl Decoder for ResponsesDecoder {
    fn take(&mut self, data: &str, events: &mut VecDeque<ReplyEvent>) -> Taken {
        let Ok(event) = serde_json::from_str::<Event>(data) else { return Taken::Unreadable };
        let Event { kind, object, output_index, summary_index, item, delta, response, error } = event;
        let Some(kind) = kind else {
            let is_whole = object.as_deref() == Some("response");
            return match (error, is_whole) {
                (_, true) => match serde_json::from_str(data) {
                    Ok(response) => self.take_response(response, events),
                    Err(_) => Taken::Unreadable,
                },
                (Some(_), false) => Taken::Error(data.to_owned()),
                (None, false) => Taken::Unreadable,
            };
        };
        let index = output_index.unwrap_or_default();
        let delta =
            delta.and_then(|delta| serde_json::from_str::<String>(delta.get()).ok()).unwrap_or_default();
        match (kind.as_str(), item) {
            ("response.output_item.added", Some(item)) => self.begin(index, &item, events),
            ("response.output_item.done", Some(item)) => self.end(index, item, events),
            ("response.output_text.delta" | "response.refusal.delta", _) => {
                self.show(index, "message", &delta, events);
            }
            ("response.reasoning_summary_text.delta", _) => {
                let part = summary_index.unwrap_or_default();
                let item = self.item(index, "reasoning");
                let is_next = part > std::mem::replace(&mut item.summary, part) && !item.shown.is_empty();
                if is_next {
                    self.show(index, "reasoning", "\n\n", events);
                }
                self.show(index, "reasoning", &delta, events);
            }
            ("response.reasoning_text.delta", _) => self.show(index, "reasoning", &delta, events),
            ("response.function_call_arguments.delta", _) => {
                self.show(index, "function_call", &delta, events);
            }
            ("response.completed" | "response.incomplete" | "response.failed" | "response.done", _) => {
                return self.take_response(response.map(|response| *response).unwrap_or_default(), events);
            }
            ("error", _) => return Taken::Error(data.to_owned()),
            _ => return Taken::Nothing,
        }
        Taken::Progress
    }

    fn progress(&self) -> Progress {
        if self.stop_raw.is_some() { Progress::Over } else { Progress::Open }
    }

    fn may_be_whole(&self) -> bool {
        self.has_output() && self.items.iter().all(|item| item.whole.is_some())
    }

    fn has_output(&self) -> bool {
        !self.items.is_empty()
    }

    fn output_bytes(&self) -> usize {
        self.output_bytes
    }

    fn output_chars(&self) -> usize {
        self.items.iter().map(|item| item.shown.chars().count()).sum()
    }

    fn finish(
        self: Box<Self>,
        asked: &Asked<'_>,
        _: &mut VecDeque<ReplyEvent>,
    ) -> Result<AssistantMessage, ProviderError> {
        let stop = match self.stop_raw.as_deref() {
            Some("max_output_tokens" | "max_tokens") => StopReason::Length,
            Some("content_filter") => StopReason::ContentFilter,
            Some(_) | None => StopReason::Stop,
        };
        let used_ids = if self.calls > 0 { asked.call_ids() } else { HashSet::new() };
        let mut ids = Ids::new(used_ids);
        let content: Vec<Part> = self.items.into_iter().flat_map(|item| item.parts(&mut ids)).collect();
        Ok(AssistantMessage {
            stop: with_calls(stop, &content),
            content,
            provider: asked.provider.to_owned(),
            model: asked.model.to_owned(),
            usage: self.usage,
            stop_raw: self.stop_raw,
            error: None,
        })
    }
}

impl Item {
    /// Returns the parts that keep the item: the readable ones, and what has to be sent back with them.
    fn parts(self, ids: &mut Ids<'_>) -> Vec<Part> {
        let opaque =
            |fields: &Fields| Part::OpaqueReasoning { dialect: DIALECT.to_owned(), data: fields.json() };
        let Some(mut fields) = self.whole else {
            // Its end did not come, so that only what was shown is kept.
            return match (self.kind.as_str(), self.call) {
                (_, Some(_)) if !self.name.is_empty() => {
                    let id = ids.unique(String::new());
                    vec![Part::ToolCall(ToolCall { id, name: self.name, arguments: self.shown })]
                }
                _ if self.shown.is_empty() => Vec::new(),
                ("reasoning", _) => vec![Part::Reasoning(self.shown)],
                _ => vec![Part::Text(self.shown)],
            };
        };
        let mut parts = Vec::new();
        match self.kind.as_str() {
            "message" => {
                let texts = texts(&fields);
                // The parts of the content without their texts: they follow the texts that they belong to.
                let content: Vec<Fields> = fields
                    .take_raw("content")
                    .and_then(|content| serde_json::from_str(&content).ok())
                    .unwrap_or_default();
                let mut frames = Vec::new();
                for (text, mut frame) in texts.into_iter().zip(content) {
                    if !text.is_empty() {
                        frame.take_raw("text");
                        frame.take_raw("refusal");
                        frames.push(frame.json());
                        parts.push(Part::Text(text));
                    }
                }
                if let (false, Ok(frames)) =
                    (parts.is_empty(), RawValue::from_string(format!("[{}]", frames.join(","))))
                {
                    fields.set("content", frames);
                    parts.push(opaque(&fields));
                }
            }
            "reasoning" => {
                let readable = reasoning(&fields);
                if !readable.is_empty() {
                    parts.push(Part::Reasoning(readable));
                }
                parts.push(opaque(&fields));
            }
            "function_call" => {
                let id = ids.unique(fields.take_text("call_id").unwrap_or_default());
                let name = fields.take_text("name").unwrap_or_default();
                let arguments = fields.take_text("arguments").unwrap_or_default();
                if !name.is_empty() || !arguments.is_empty() {
                    parts.push(Part::ToolCall(ToolCall { id, name, arguments }));
                    parts.push(opaque(&fields));
                }
            }
            _ => parts.push(Part::OpaqueBlock { dialect: DIALECT.to_owned(), data: fields.json() }),
        }
        parts
    }
}
