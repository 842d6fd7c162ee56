//! Reads answers: the events of a stream, or a whole message.
//!
//! Invariants: kinds of block, delta and event that are unknown today are kept or ignored, and never fail an answer.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};

use greenroom_kernel::{AssistantMessage, Part, StopReason, ToolCall, Usage};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::DIALECT;
use crate::call_ids::Ids;
use crate::classify::one_line;
use crate::dialect::fields::Fields;
use crate::dialect::lenient::{count, lenient};
use crate::dialect::{CallContext, Decoder, Progress, Taken, error_in_stream, with_calls};
use crate::{ProviderError, Purpose, ReplyEvent};

/// The decoder of one answer.
#[derive(Debug, Default)]
pub(super) struct AnthropicDecoder {
    blocks: Vec<Block>,
    calls: usize,
    usage: Reported,
    stop_raw: Option<String>,
    /// What the server changed in the request, by the newest event that says so.
    transformations: Vec<Transformation>,
    is_over: bool,
    output_bytes: usize,
}

/// A block of the answer.
#[derive(Debug)]
struct Block {
    index: u64,
    kind: Kind,
    /// The readable text: text, thinking, or the input of a tool as JSON text.
    text: String,
    /// All other fields.
    fields: Fields,
    has_ended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Thinking,
    /// A call of one of our tools, with its position among the answer's calls.
    Call(usize),
    /// Thinking that cannot be read.
    Redacted,
    /// A block without a readable form, or of an unknown kind.
    Other,
}

impl Kind {
    /// Returns the field that holds the readable text.
    fn field(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Thinking => "thinking",
            Self::Call(_) | Self::Redacted | Self::Other => "input",
        }
    }
}

/// The data of an event, or a whole message.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event {
    #[serde(rename = "type", deserialize_with = "lenient")]
    kind: Option<String>,
    #[serde(deserialize_with = "count")]
    index: Option<u64>,
    message: Option<Box<WholeMessage>>,
    content_block: Option<Fields>,
    delta: Option<Fields>,
    #[serde(deserialize_with = "lenient")]
    usage: Option<WireUsage>,
    error: Option<Box<RawValue>>,
    content: Option<Vec<Fields>>,
    #[serde(deserialize_with = "lenient")]
    stop_reason: Option<String>,
    #[serde(deserialize_with = "lenient")]
    input_transformations: Option<Vec<Transformation>>,
}

/// Whether this is an event without content, whose fields may have the names of others and mean something else.
fn is_of_other_kind(data: &str) -> bool {
    let Ok(fields) = serde_json::from_str::<Fields>(data) else { return false };
    let with_content =
        ["content_block_delta", "content_block_start", "message", "message_delta", "message_start"];
    let kind = fields.text("type").filter(|_| fields.value("error").is_none());
    kind.is_some_and(|kind| !with_content.contains(&kind.as_str()))
}

/// How the data of a [`Delta`] begins.
const DELTA: &str = r#"{"type":"content_block_delta""#;

/// A piece of readable text, in the form that almost all events have. Any other form is read as an [`Event`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Delta<'a> {
    #[serde(rename = "type")]
    _kind: IgnoredAny,
    index: u64,
    #[serde(borrow)]
    delta: Piece<'a>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Piece<'a> {
    #[serde(rename = "type")]
    _kind: IgnoredAny,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    thinking: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    partial_json: Option<Cow<'a, str>>,
}

/// The message of `message_start`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WholeMessage {
    #[serde(deserialize_with = "lenient")]
    usage: Option<WireUsage>,
    content: Option<Vec<Fields>>,
    #[serde(deserialize_with = "lenient")]
    input_transformations: Option<Vec<Transformation>>,
}

/// A change that the server made in the request before the model read it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Transformation {
    #[serde(rename = "type")]
    kind: String,
    reason: String,
}

/// The kind of a change that leaves a block of thinking out.
const DROPPED: &str = "thinking_dropped";

/// Token counts as sent.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireUsage {
    #[serde(deserialize_with = "count")]
    input_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    output_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    cache_read_input_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    cache_creation_input_tokens: Option<u64>,
    #[serde(deserialize_with = "lenient")]
    cache_creation: Option<WireCacheCreation>,
    #[serde(deserialize_with = "lenient")]
    output_tokens_details: Option<WireOutputDetails>,
    #[serde(deserialize_with = "lenient")]
    iterations: Option<Vec<WireUsage>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireCacheCreation {
    #[serde(deserialize_with = "count")]
    ephemeral_5m_input_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    ephemeral_1h_input_tokens: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireOutputDetails {
    #[serde(alias = "reasoning_tokens", deserialize_with = "count")]
    thinking_tokens: Option<u64>,
}

/// The newest value of each count. A later event repeats some of them, and leaves out or nulls the others.
#[derive(Debug, Default)]
struct Reported {
    has_any: bool,
    input: u64,
    output: u64,
    cache_read: u64,
    cache_write: u64,
    cache_write_hour: u64,
    thinking: u64,
    /// The passes of the model within the answer, if the report lists them.
    passes: Vec<Usage>,
}

impl Reported {
    fn add(&mut self, wire: &WireUsage) {
        self.has_any = true;
        let set = |own: &mut u64, count: Option<u64>| *own = count.unwrap_or(*own);
        set(&mut self.input, wire.input_tokens);
        set(&mut self.output, wire.output_tokens);
        set(&mut self.cache_read, wire.cache_read_input_tokens);
        set(&mut self.cache_write, wire.cache_creation_input_tokens);
        if let Some(created) = &wire.cache_creation {
            set(&mut self.cache_write_hour, created.ephemeral_1h_input_tokens);
            let both =
                created.ephemeral_5m_input_tokens.unwrap_or_default().saturating_add(self.cache_write_hour);
            self.cache_write = self.cache_write.max(both);
        }
        let details = wire.output_tokens_details.as_ref();
        set(&mut self.thinking, details.and_then(|details| details.thinking_tokens));
        if let Some(iterations) = &wire.iterations {
            let of_pass = |iteration: &WireUsage| {
                let mut pass = Self::default();
                pass.add(iteration);
                pass.top()
            };
            self.passes = iterations.iter().map(of_pass).filter(|pass| pass.total_tokens() > 0).collect();
        }
    }

    /// Returns the counts of the report itself.
    fn top(&self) -> Usage {
        let cached = self.cache_read.saturating_add(self.cache_write);
        Usage {
            input_tokens: self.input.saturating_add(cached),
            cached_tokens: self.cache_read,
            cache_write_tokens: self.cache_write,
            cache_write_hour_tokens: self.cache_write_hour.min(self.cache_write),
            output_tokens: self.output,
            reasoning_tokens: self.thinking.min(self.output),
            ..Usage::default()
        }
    }

    /// Returns the usage of the answer's last pass, which measures the context, and that of the passes before it. The
    /// report itself has only some of them: those of a compaction by the provider, for example, are only in the list.
    fn usage(mut self) -> (Option<Usage>, Vec<Usage>) {
        let top = self.top();
        let listed = self.passes.iter().map(Usage::total_tokens).fold(0, u64::saturating_add);
        match self.passes.pop().filter(|_| listed >= top.total_tokens()) {
            Some(mut last) => {
                // Some reports state the thinking of all passes together only.
                last.reasoning_tokens =
                    last.reasoning_tokens.max(top.reasoning_tokens).min(last.output_tokens);
                (Some(last), self.passes)
            }
            None => ((self.has_any && top.total_tokens() > 0).then_some(top), Vec::new()),
        }
    }
}

impl AnthropicDecoder {
    /// Begins a block.
    fn begin(&mut self, index: u64, mut fields: Fields, events: &mut VecDeque<ReplyEvent>) {
        let kind = match fields.text_ref("type").as_deref() {
            Some("text") => Kind::Text,
            Some("thinking") => Kind::Thinking,
            Some("redacted_thinking") => Kind::Redacted,
            Some("tool_use") => {
                self.calls += 1;
                Kind::Call(self.calls - 1)
            }
            Some(_) | None => Kind::Other,
        };
        self.output_bytes += fields.iter().map(|(_, value)| value.get().len()).sum::<usize>();
        let text = match kind {
            Kind::Text | Kind::Thinking => fields.take_text(kind.field()).unwrap_or_default(),
            // A stream begins with an empty object, and the input follows in pieces.
            Kind::Call(_) => fields.take_raw("input").filter(|input| input != "{}").unwrap_or_default(),
            Kind::Redacted | Kind::Other => String::new(),
        };
        let piece = text.clone();
        let name = fields.text("name");
        self.blocks.push(Block { index, kind, text, fields, has_ended: false });
        match kind {
            Kind::Text | Kind::Thinking => show(kind, piece, events),
            Kind::Call(index) => events.push_back(ReplyEvent::ToolCall { index, name, arguments: piece }),
            Kind::Redacted | Kind::Other => {}
        }
    }

    /// Adds a piece of text to its block. Returns whether it was of the plain form, and of a block of its kind.
    fn add_plain(&mut self, data: &str, events: &mut VecDeque<ReplyEvent>) -> bool {
        if !data.starts_with(DELTA) {
            return false;
        }
        let Ok(Delta { index, delta, .. }) = serde_json::from_str(data) else { return false };
        let Some(block) = self.blocks.iter_mut().rev().find(|block| block.index == index) else {
            return false;
        };
        let piece = match (block.kind, delta) {
            (Kind::Text, Piece { text: Some(piece), thinking: None, partial_json: None, .. })
            | (Kind::Thinking, Piece { text: None, thinking: Some(piece), partial_json: None, .. })
            | (Kind::Call(_), Piece { text: None, thinking: None, partial_json: Some(piece), .. }) => piece,
            _ => return false,
        };
        block.text.push_str(&piece);
        self.output_bytes += piece.len();
        match block.kind {
            Kind::Call(index) => {
                let arguments = piece.into_owned();
                events.push_back(ReplyEvent::ToolCall { index, name: None, arguments });
            }
            kind @ (Kind::Text | Kind::Thinking | Kind::Redacted | Kind::Other) => {
                show(kind, piece.into_owned(), events);
            }
        }
        true
    }

    /// Adds a delta to its block. Returns whether the block is known.
    fn add(&mut self, index: u64, delta: &Fields, events: &mut VecDeque<ReplyEvent>) -> bool {
        let Some(block) = self.blocks.iter_mut().rev().find(|block| block.index == index) else {
            return false;
        };
        for (name, value) in delta.iter() {
            let text = || serde_json::from_str::<String>(value.get()).unwrap_or_default();
            let is_input = name == "partial_json";
            self.output_bytes += match (block.kind, name) {
                (_, "type") => 0,
                (_, "citation") => block.fields.push("citations", value),
                (kind @ (Kind::Text | Kind::Thinking), _) if name == kind.field() => {
                    let piece = text();
                    block.text.push_str(&piece);
                    let bytes = piece.len();
                    show(kind, piece, events);
                    bytes
                }
                (Kind::Call(index), _) if is_input => {
                    let arguments = text();
                    block.text.push_str(&arguments);
                    let bytes = arguments.len();
                    events.push_back(ReplyEvent::ToolCall { index, name: None, arguments });
                    bytes
                }
                (Kind::Redacted | Kind::Other, _) if is_input => {
                    let piece = text();
                    block.text.push_str(&piece);
                    piece.len()
                }
                (Kind::Text | Kind::Thinking | Kind::Call(_) | Kind::Redacted | Kind::Other, _) => {
                    block.fields.append(name, value)
                }
            };
        }
        true
    }

    /// Ends a block.
    fn end(&mut self, index: u64) {
        if let Some(block) = self.blocks.iter_mut().rev().find(|block| block.index == index) {
            block.has_ended = true;
        }
    }

    /// Takes a message that came whole.
    fn take_whole(&mut self, content: Vec<Fields>, events: &mut VecDeque<ReplyEvent>) {
        for (index, fields) in (0..).zip(content) {
            self.begin(index, fields, events);
            self.end(index);
        }
    }
}

/// Shows a piece of text.
fn show(kind: Kind, piece: String, events: &mut VecDeque<ReplyEvent>) {
    if !piece.is_empty() {
        events.push_back(if kind == Kind::Thinking {
            ReplyEvent::Reasoning(piece)
        } else {
            ReplyEvent::Text(piece)
        });
    }
}

impl Decoder for AnthropicDecoder {
    fn take(&mut self, data: &str, events: &mut VecDeque<ReplyEvent>) -> Taken {
        if self.add_plain(data, events) {
            return Taken::Progress;
        }
        let event = match serde_json::from_str::<Event>(data) {
            Ok(event) => event,
            Err(_) if is_of_other_kind(data) => return Taken::Nothing,
            Err(_) => return Taken::Unreadable,
        };
        let Event {
            kind,
            index,
            message,
            content_block,
            delta,
            usage,
            error,
            content,
            stop_reason,
            input_transformations,
        } = event;
        if error.is_some() {
            return Taken::Error(data.to_owned());
        }
        let index = index.unwrap_or_default();
        let mut progress = true;
        if let Some(usage) = usage.as_ref().or(message.as_ref().and_then(|message| message.usage.as_ref())) {
            self.usage.add(usage);
        }
        if let Some(transformations) = input_transformations {
            self.transformations = transformations;
        }
        match kind.as_deref() {
            Some("message_start") => {
                let WholeMessage { content, input_transformations, .. } = *message.unwrap_or_default();
                self.transformations = input_transformations.unwrap_or_default();
                let content = content.unwrap_or_default();
                self.take_whole(content, events);
            }
            Some("content_block_start") => self.begin(index, content_block.unwrap_or_default(), events),
            Some("content_block_delta") => {
                progress = self.add(index, &delta.unwrap_or_default(), events);
            }
            Some("content_block_stop") => self.end(index),
            Some("message_delta") => {
                if let Some(reason) = delta.and_then(|delta| delta.text("stop_reason")) {
                    self.stop_raw = Some(reason);
                }
            }
            Some("message_stop") => self.is_over = true,
            Some("message") => {
                self.take_whole(content.unwrap_or_default(), events);
                self.stop_raw = stop_reason;
                self.is_over = true;
            }
            Some("error") => return Taken::Error(data.to_owned()),
            // Pings, and what a later version adds.
            Some(_) => progress = false,
            None => return Taken::Unreadable,
        }
        if progress { Taken::Progress } else { Taken::Nothing }
    }

    fn progress(&self) -> Progress {
        match (self.is_over, &self.stop_raw) {
            (true, _) => Progress::Over,
            (false, Some(_)) => Progress::Ended,
            (false, None) => Progress::Open,
        }
    }

    fn may_be_whole(&self) -> bool {
        self.has_output() && self.blocks.iter().all(|block| block.has_ended)
    }

    fn has_output(&self) -> bool {
        !self.blocks.is_empty()
    }

    fn output_bytes(&self) -> usize {
        self.output_bytes
    }

    fn output_chars(&self) -> usize {
        self.blocks.iter().map(|block| block.text.chars().count()).sum()
    }

    fn finish(
        self: Box<Self>,
        context: &CallContext<'_>,
        events: &mut VecDeque<ReplyEvent>,
    ) -> Result<AssistantMessage, ProviderError> {
        let mut dropped = BTreeMap::<String, usize>::new();
        for change in self.transformations.iter().filter(|change| change.kind == DROPPED) {
            *dropped.entry(one_line(&change.reason)).or_default() += 1;
        }
        events
            .extend(dropped.into_iter().map(|(reason, count)| ReplyEvent::ThinkingDropped { reason, count }));
        let reason = self.stop_raw.as_deref().unwrap_or_default();
        let stop = match reason {
            "max_tokens" => StopReason::Length,
            "tool_use" => StopReason::ToolCalls,
            "compaction" if context.purpose == Purpose::Compaction => StopReason::Stop,
            "pause_turn" | "compaction" => StopReason::Paused,
            "refusal" => StopReason::ContentFilter,
            "model_context_window_exceeded" if self.has_output() => StopReason::Length,
            "model_context_window_exceeded" => {
                return Err(error_in_stream(
                    r#"{"error":{"type":"invalid_request_error","code":"context_length_exceeded","message":"the answer ended with model_context_window_exceeded"}}"#,
                ));
            }
            // `end_turn`, `stop_sequence`, and reasons that are unknown today.
            _ => StopReason::Stop,
        };
        let mut ids = Ids::new(context.messages);
        let is_compaction = context.purpose == Purpose::Compaction;
        let parts = |block: Block| {
            // What the user reads is also in the block.
            let summary = block.fields.text("content").filter(|_| is_compaction && block.has_ended);
            summary.map(Part::Text).into_iter().chain(block.parts(&mut ids))
        };
        let content: Vec<Part> = self.blocks.into_iter().flat_map(parts).collect();
        let (usage, earlier) = self.usage.usage();
        events.extend(earlier.into_iter().map(ReplyEvent::Spent));
        Ok(AssistantMessage {
            stop: with_calls(stop, &content),
            content,
            provider: context.provider.to_owned(),
            model: context.model.to_owned(),
            usage,
            stop_raw: self.stop_raw,
            error: None,
        })
    }
}

impl Block {
    /// Returns the parts that keep the block: a readable one, and what has to be sent back with it.
    fn parts(self, ids: &mut Ids<'_>) -> Vec<Part> {
        let Self { kind, text, mut fields, has_ended, .. } = self;
        let opaque =
            |fields: &Fields| Part::OpaqueReasoning { dialect: DIALECT.to_owned(), data: fields.json() };
        let mut parts = Vec::with_capacity(2);
        match kind {
            Kind::Text if text.is_empty() => return parts,
            Kind::Text => parts.push(Part::Text(text)),
            // Without readable text, the signature is the thinking.
            Kind::Thinking if text.is_empty() => {
                if has_ended && fields.raw("signature").is_some() {
                    if let Ok(empty) = RawValue::from_string("\"\"".to_owned()) {
                        fields.set("thinking", empty);
                    }
                    parts.push(opaque(&fields));
                }
                return parts;
            }
            Kind::Thinking => parts.push(Part::Reasoning(text)),
            Kind::Call(_) => {
                let id = ids.unique(fields.take_text("id").unwrap_or_default());
                let name = fields.take_text("name").unwrap_or_default();
                if name.is_empty() && text.is_empty() {
                    return parts;
                }
                parts.push(Part::ToolCall(ToolCall { id, name, arguments: text }));
            }
            Kind::Redacted if has_ended => return vec![opaque(&fields)],
            Kind::Other if has_ended => {
                if let Ok(input) = RawValue::from_string(text) {
                    fields.set("input", input);
                }
                return vec![Part::OpaqueBlock { dialect: DIALECT.to_owned(), data: fields.json() }];
            }
            Kind::Redacted | Kind::Other => return parts,
        }
        let fields = fields.without_blanks();
        if has_ended && fields.iter().any(|(name, _)| name != "type") {
            parts.push(opaque(&fields));
        }
        parts
    }
}
