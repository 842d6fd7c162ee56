//! Reads answers: the chunks of a stream, or a whole answer.
//!
//! Invariants: a part without a readable form, and a field of a kind that is unknown today, is kept or ignored and
//! never fails an answer; text in pieces is joined only where no signature would move.

use std::collections::VecDeque;

use greenroom_kernel::{AssistantMessage, Failure, FailureClass, Part, StopReason, ToolCall, Usage};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{DIALECT, is_thought, opaque_reasoning};
use crate::call_ids::Ids;
use crate::classify::one_line;
use crate::dialect::fields::Fields;
use crate::dialect::lenient::count_of;
use crate::dialect::{CallContext, Decoder, Progress, Taken, with_calls};
use crate::{ProviderError, ReplyEvent};

/// The decoder of one answer.
#[derive(Debug, Default)]
pub(super) struct GeminiDecoder {
    pieces: Vec<Piece>,
    calls: usize,
    usage: Reported,
    /// Why the answer ended, and what the server says about it.
    finish: Option<String>,
    finish_message: String,
    /// Why the prompt was blocked.
    blocked: Option<String>,
    output_bytes: usize,
}

/// A part of the answer.
#[derive(Debug)]
enum Piece {
    /// Text or a thought, and the part's other fields.
    Text { text: String, fields: Fields },
    /// A call of one of our tools, and the part's other fields.
    Call { call: ToolCall, fields: Fields },
    /// A signature without readable text.
    Signature(Fields),
    /// A part without a readable form.
    Other(Fields),
}

/// The newest value of each count. Several chunks report them, and not every chunk reports all.
#[derive(Debug, Default)]
struct Reported {
    prompt: u64,
    tool_prompt: u64,
    cached: u64,
    candidates: u64,
    thoughts: u64,
}

/// A chunk of an answer, or a whole answer. No field is parsed here, since none may fail an answer by its form.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Chunk<'a> {
    #[serde(borrow)]
    candidates: Option<&'a RawValue>,
    #[serde(borrow)]
    prompt_feedback: Option<&'a RawValue>,
    #[serde(borrow)]
    usage_metadata: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Candidate<'a> {
    #[serde(borrow)]
    index: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    finish_reason: Option<&'a RawValue>,
    #[serde(borrow)]
    finish_message: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Content<'a> {
    #[serde(borrow)]
    parts: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct WireUsage<'a> {
    #[serde(borrow)]
    prompt_token_count: Option<&'a RawValue>,
    #[serde(borrow)]
    tool_use_prompt_token_count: Option<&'a RawValue>,
    #[serde(borrow)]
    cached_content_token_count: Option<&'a RawValue>,
    #[serde(borrow)]
    candidates_token_count: Option<&'a RawValue>,
    #[serde(borrow)]
    thoughts_token_count: Option<&'a RawValue>,
}

/// Returns a value; `None` if it is missing or something else.
fn parsed<'a, T: Deserialize<'a>>(value: Option<&'a RawValue>) -> Option<T> {
    serde_json::from_str(value?.get()).ok()
}

impl Reported {
    fn add(&mut self, wire: &WireUsage<'_>) {
        let counts = [
            (&mut self.prompt, wire.prompt_token_count),
            (&mut self.tool_prompt, wire.tool_use_prompt_token_count),
            (&mut self.cached, wire.cached_content_token_count),
            (&mut self.candidates, wire.candidates_token_count),
            (&mut self.thoughts, wire.thoughts_token_count),
        ];
        for (count, reported) in counts {
            *count = reported.and_then(count_of).unwrap_or(*count);
        }
    }

    /// Returns the usage; `None` if nothing was reported.
    fn usage(&self) -> Option<Usage> {
        let usage = Usage {
            input_tokens: self.prompt.saturating_add(self.tool_prompt),
            cached_tokens: self.cached.min(self.prompt),
            // Candidates do not include thoughts.
            output_tokens: self.candidates.saturating_add(self.thoughts),
            reasoning_tokens: self.thoughts,
            ..Usage::default()
        };
        (usage.total_tokens() > 0).then_some(usage)
    }
}

impl GeminiDecoder {
    /// Adds a chunk. Returns whether it advanced the answer.
    fn take_chunk(&mut self, chunk: &Chunk<'_>, events: &mut VecDeque<ReplyEvent>) -> bool {
        let mut progress = false;
        if let Some(usage) = parsed(chunk.usage_metadata) {
            self.usage.add(&usage);
            progress = true;
        }
        if let Some(feedback) = parsed::<Fields>(chunk.prompt_feedback)
            && let Some(reason) = feedback.text("blockReason").and_then(named)
        {
            let words = feedback.text("blockReasonMessage").unwrap_or_default();
            self.blocked = Some(with_words(&reason, &words));
            progress = true;
        }
        for candidate in parsed::<Vec<Candidate<'_>>>(chunk.candidates).unwrap_or_default() {
            // Only one candidate was requested.
            if parsed::<u64>(candidate.index).unwrap_or_default() > 0 {
                continue;
            }
            let content: Content<'_> = parsed(candidate.content).unwrap_or_default();
            for part in parsed::<Vec<&RawValue>>(content.parts).unwrap_or_default() {
                if let Ok(fields) = serde_json::from_str(part.get()) {
                    progress |= self.take_part(fields, events);
                }
            }
            if let Some(reason) = parsed(candidate.finish_reason).and_then(named) {
                self.finish = Some(reason);
                self.finish_message = parsed(candidate.finish_message).unwrap_or_default();
                progress = true;
            }
        }
        progress
    }

    /// Adds a part. Returns whether it holds anything.
    fn take_part(&mut self, mut fields: Fields, events: &mut VecDeque<ReplyEvent>) -> bool {
        let is_signed = fields.text_ref("thoughtSignature").is_some_and(|signature| !signature.is_empty());
        if !is_signed {
            fields.remove("thoughtSignature");
        }
        if !is_thought(&fields) {
            fields.remove("thought");
        }
        let size = fields.iter().map(|(_, value)| value.get().len()).sum::<usize>();
        let has_data =
            fields.iter().any(|(name, _)| !matches!(name, "thought" | "thoughtSignature" | "text"));
        let text = fields.text("text");
        if let Some(text) = text.as_deref().filter(|text| !text.is_empty()) {
            fields.remove("text");
            self.take_text(text, fields, events);
        } else if fields.parsed::<Fields>("functionCall").is_some() {
            self.take_call(fields, events);
        } else if text.is_none() && has_data {
            self.pieces.push(Piece::Other(fields));
        } else if is_signed {
            // The API refuses a part without any content, so the empty text is written out.
            if let Ok(empty) = RawValue::from_string("\"\"".to_owned()) {
                fields.set("text", empty);
            }
            self.pieces.push(Piece::Signature(fields));
        } else {
            return false;
        }
        self.output_bytes += size;
        true
    }

    fn take_text(&mut self, piece: &str, fields: Fields, events: &mut VecDeque<ReplyEvent>) {
        let is_bare = |fields: &Fields| fields.iter().all(|(name, _)| name == "thought");
        let is_of_thought = is_thought(&fields);
        match self.pieces.last_mut() {
            Some(Piece::Text { text, fields: before })
                if is_bare(&fields) && is_bare(before) && is_thought(before) == is_of_thought =>
            {
                text.push_str(piece);
            }
            _ => self.pieces.push(Piece::Text { text: piece.to_owned(), fields }),
        }
        let piece = piece.to_owned();
        events.push_back(if is_of_thought { ReplyEvent::Reasoning(piece) } else { ReplyEvent::Text(piece) });
    }

    fn take_call(&mut self, mut fields: Fields, events: &mut VecDeque<ReplyEvent>) {
        let mut wire = fields.parsed::<Fields>("functionCall").unwrap_or_default().without_blanks();
        let name = wire.take_text("name").unwrap_or_default();
        let arguments = wire.take_raw("args").unwrap_or_else(|| "{}".to_owned());
        let call = ToolCall { id: wire.text("id").unwrap_or_default(), name, arguments };
        // What remains is sent back. An id is among it only if the API gave one.
        fields.set("functionCall", wire.into_raw());
        events.push_back(ReplyEvent::ToolCall {
            index: self.calls,
            name: Some(call.name.clone()),
            arguments: call.arguments.clone(),
        });
        self.calls += 1;
        self.pieces.push(Piece::Call { call, fields });
    }
}

/// Returns a reason; `None` if it says nothing.
fn named(reason: String) -> Option<String> {
    Some(reason).filter(|reason| !reason.is_empty() && !reason.ends_with("_UNSPECIFIED"))
}

/// Returns a reason with the server's words.
fn with_words(reason: &str, words: &str) -> String {
    if words.is_empty() { one_line(reason) } else { one_line(&format!("{reason}: {words}")) }
}

impl Decoder for GeminiDecoder {
    fn take(&mut self, data: &str, events: &mut VecDeque<ReplyEvent>) -> Taken {
        // Servers that cannot stream events send a list of chunks.
        let chunks = if data.trim_start().starts_with('[') {
            serde_json::from_str::<Vec<&RawValue>>(data)
                .map(|chunks| chunks.into_iter().map(RawValue::get).collect())
        } else {
            Ok(vec![data])
        };
        let Ok(chunks) = chunks else { return Taken::Unreadable };
        let mut progress = false;
        for whole in chunks {
            let Ok(chunk) = serde_json::from_str::<Chunk<'_>>(whole) else { return Taken::Unreadable };
            // Some gateways leave out the frame of an error.
            if chunk.error.is_some() || (chunk.message.is_some() && chunk.candidates.is_none()) {
                return Taken::Error(whole.to_owned());
            }
            progress |= self.take_chunk(&chunk, events);
        }
        if progress { Taken::Progress } else { Taken::Nothing }
    }

    fn progress(&self) -> Progress {
        match (&self.finish, &self.blocked) {
            (None, None) => Progress::Open,
            (Some(_), _) | (_, Some(_)) => Progress::Ended,
        }
    }

    fn may_be_whole(&self) -> bool {
        self.has_output()
    }

    fn has_output(&self) -> bool {
        !self.pieces.is_empty()
    }

    fn output_bytes(&self) -> usize {
        self.output_bytes
    }

    fn output_chars(&self) -> usize {
        let chars = |piece: &Piece| match piece {
            Piece::Text { text, .. } => text.chars().count(),
            Piece::Call { call, .. } => call.arguments.chars().count(),
            Piece::Signature(_) | Piece::Other(_) => 0,
        };
        self.pieces.iter().map(chars).sum()
    }

    fn finish(
        self: Box<Self>,
        context: &CallContext<'_>,
        _: &mut VecDeque<ReplyEvent>,
    ) -> Result<AssistantMessage, ProviderError> {
        let failed = |class, message| Err(ProviderError::new(Failure::new(class, message), ""));
        if let Some(reason) = self.blocked.as_ref().filter(|_| !self.has_output()) {
            let message = format!("the provider's content filter blocked the prompt: {reason}");
            return failed(FailureClass::ContentFilter, message);
        }
        let reason = self.finish.as_deref().unwrap_or_default();
        let stop = match reason {
            "MAX_TOKENS" => StopReason::Length,
            "SAFETY"
            | "RECITATION"
            | "LANGUAGE"
            | "BLOCKLIST"
            | "PROHIBITED_CONTENT"
            | "SPII"
            | "MODEL_ARMOR"
            | "IMAGE_SAFETY"
            | "IMAGE_PROHIBITED_CONTENT"
            | "IMAGE_RECITATION" => StopReason::ContentFilter,
            // The model wrote something that the API cannot read. Another attempt usually succeeds.
            "MALFORMED_FUNCTION_CALL"
            | "UNEXPECTED_TOOL_CALL"
            | "TOO_MANY_TOOL_CALLS"
            | "MALFORMED_RESPONSE" => {
                let reason = with_words(reason, &self.finish_message);
                let message = format!("the model wrote a call that the provider could not read: {reason}");
                return failed(FailureClass::Malformed, message);
            }
            "MISSING_THOUGHT_SIGNATURE" => {
                let reason = with_words(reason, &self.finish_message);
                let message = format!("the provider requires the signature of an earlier call: {reason}");
                return failed(FailureClass::Other, message);
            }
            "" if self.blocked.is_some() => StopReason::ContentFilter,
            // `STOP`, `OTHER`, and reasons that are unknown today.
            _ => StopReason::Stop,
        };
        let mut ids = Ids::new(context.messages);
        let content: Vec<Part> = self.pieces.into_iter().flat_map(|piece| piece.parts(&mut ids)).collect();
        Ok(AssistantMessage {
            stop: with_calls(stop, &content),
            content,
            provider: context.provider.to_owned(),
            model: context.model.to_owned(),
            usage: self.usage.usage(),
            stop_raw: self.finish.or(self.blocked),
            error: None,
        })
    }
}

impl Piece {
    /// Returns the parts that keep the piece: a readable one, and what has to be sent back with it.
    fn parts(self, ids: &mut Ids<'_>) -> Vec<Part> {
        match self {
            Self::Text { text, fields } => {
                let part = if is_thought(&fields) { Part::Reasoning(text) } else { Part::Text(text) };
                with_fields(part, &fields)
            }
            Self::Call { mut call, mut fields } => {
                call.id = ids.unique(call.id);
                if fields.raw("functionCall") == Some("{}") && fields.iter().count() == 1 {
                    fields.remove("functionCall");
                }
                with_fields(Part::ToolCall(call), &fields)
            }
            Self::Signature(fields) => vec![opaque_reasoning(&fields)],
            Self::Other(fields) => {
                vec![Part::OpaqueBlock { dialect: DIALECT.to_owned(), data: fields.json() }]
            }
        }
    }
}

/// Returns a readable part and its other fields, if it has any.
fn with_fields(part: Part, fields: &Fields) -> Vec<Part> {
    let attachment = fields.iter().next().is_some().then(|| opaque_reasoning(fields));
    std::iter::once(part).chain(attachment).collect()
}
