//! Reads answers: the events of a stream, or a whole response.
//!
//! Invariants: kinds of item, part and event that are unknown today are kept or ignored, and never fail an answer; and
//! an item is known by its position alone, because some servers change its id between two events.

use std::borrow::Cow;
use std::collections::VecDeque;

use greenroom_kernel::{AssistantMessage, Part, ToolCall, Usage};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::DIALECT;
use super::item::{Kind, raw, take_text};
use crate::call_ids::Ids;
use crate::dialect::chat::stop_reason;
use crate::dialect::fields::Fields;
use crate::dialect::lenient::count_of;
use crate::dialect::{CallContext, Decoder, Progress, Taken, with_calls, with_refusal};
use crate::{ProviderError, Purpose, ReplyEvent};

/// The decoder of one answer.
#[derive(Debug, Default)]
pub(super) struct ResponsesDecoder {
    items: Vec<Item>,
    calls: usize,
    usage: Option<Usage>,
    stop_raw: Option<String>,
    is_over: bool,
    output_bytes: usize,
}

/// An item of the answer.
#[derive(Debug)]
struct Item {
    index: Option<u64>,
    kind: Kind,
    /// The readable text: the text, the reasoning, or the arguments of a call.
    text: String,
    /// The part that the newest piece of text belongs to, and where it begins.
    part: Option<Position>,
    part_start: usize,
    /// The position of a call among the answer's calls.
    call: usize,
    name: String,
    call_id: String,
    /// The item as it came at its end.
    ended: Option<Ended>,
    output_bytes: usize,
}

#[derive(Debug)]
struct Ended {
    whole: Box<RawValue>,
    attachment: Option<Fields>,
}

/// The list of an item's parts that a part is in, and its position there.
type Position = (&'static str, u64);

/// A piece of readable text.
struct Piece<'a> {
    kind: Kind,
    index: Option<u64>,
    part: Position,
    text: &'a str,
    /// Whether it is the whole text of its part.
    is_whole: bool,
}

/// The data of an event, or a whole response. No field is parsed here, since none may fail an answer by its form.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event<'a> {
    #[serde(rename = "type", borrow)]
    kind: Option<&'a RawValue>,
    #[serde(borrow)]
    output_index: Option<&'a RawValue>,
    #[serde(borrow)]
    content_index: Option<&'a RawValue>,
    #[serde(borrow)]
    summary_index: Option<&'a RawValue>,
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    refusal: Option<&'a RawValue>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow)]
    item: Option<&'a RawValue>,
    #[serde(borrow)]
    response: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    detail: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    output: Option<&'a RawValue>,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
}

/// A piece of readable text, in the form that almost all events have. Any other form is read as an [`Event`].
#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    output_index: Option<u64>,
    content_index: Option<u64>,
    summary_index: Option<u64>,
    #[serde(borrow)]
    delta: Cow<'a, str>,
}

impl Delta<'_> {
    /// How far into an event its type is looked for, in bytes.
    const TYPE_WITHIN: usize = 64;

    /// Returns the piece of an event that has this form.
    fn of(data: &str) -> Option<Delta<'_>> {
        let start = &data[..data.floor_char_boundary(Self::TYPE_WITHIN)];
        start.contains(".delta\"").then(|| serde_json::from_str(data).ok())?
    }

    fn piece(&self) -> Option<Piece<'_>> {
        let part = |list, number: Option<u64>| (list, number.unwrap_or_default());
        let (kind, part) = match self.kind {
            "response.output_text.delta" | "response.refusal.delta" => {
                (Kind::Message, part("content", self.content_index))
            }
            "response.reasoning_summary_text.delta" => (Kind::Reasoning, part("summary", self.summary_index)),
            "response.reasoning_text.delta" => (Kind::Reasoning, part("content", self.content_index)),
            "response.function_call_arguments.delta" => (Kind::Call, ("", 0)),
            _ => return None,
        };
        Some(Piece { kind, index: self.output_index, part, text: &self.delta, is_whole: false })
    }
}

/// A response, whole or at its end.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Response<'a> {
    #[serde(borrow)]
    status: Option<&'a RawValue>,
    #[serde(borrow)]
    output: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    incomplete_details: Option<&'a RawValue>,
}

impl ResponsesDecoder {
    fn push(&mut self, index: Option<u64>, kind: Kind) -> &mut Item {
        let call = self.calls;
        self.calls += usize::from(kind == Kind::Call);
        self.items.push(Item {
            index,
            kind,
            text: String::new(),
            part: None,
            part_start: 0,
            call,
            name: String::new(),
            call_id: String::new(),
            ended: None,
            output_bytes: 0,
        });
        self.items.last_mut().expect("it was pushed")
    }

    /// Returns the item that a piece or an end belongs to, by its position in `items`: the newest one that is open. Some
    /// servers leave the index out.
    fn position(&self, kind: Kind, index: Option<u64>) -> Option<usize> {
        let find = |fits: &dyn Fn(&Item) -> bool| {
            self.items.iter().rposition(|item| item.ended.is_none() && item.kind == kind && fits(item))
        };
        find(&|item| item.index == index).or_else(|| find(&|item| index.is_none() || item.index.is_none()))
    }

    /// Begins an item.
    fn begin(&mut self, index: Option<u64>, fields: &Fields, events: &mut VecDeque<ReplyEvent>) {
        let kind = Kind::of(fields);
        let item = self.push(index, kind);
        if kind == Kind::Call {
            item.name = fields.text("name").unwrap_or_default();
            item.call_id = fields.text("call_id").unwrap_or_default();
            let name = Some(item.name.clone()).filter(|name| !name.is_empty());
            events.push_back(ReplyEvent::ToolCall { index: item.call, name, arguments: String::new() });
        }
    }

    /// Adds a piece of text.
    fn add_piece(&mut self, piece: &Piece<'_>, events: &mut VecDeque<ReplyEvent>) -> Taken {
        if self.add(piece, events) { Taken::Progress } else { Taken::Nothing }
    }

    /// Adds a piece of text. Returns whether it is a part of the answer.
    fn add(&mut self, piece: &Piece<'_>, events: &mut VecDeque<ReplyEvent>) -> bool {
        let &Piece { kind, index, part, text, is_whole } = piece;
        let at = match self.position(kind, index) {
            Some(at) => at,
            // The item has ended, or is of another kind.
            None if index.is_some() && self.items.iter().any(|item| item.index == index) => return false,
            None => {
                self.push(index, kind);
                self.items.len() - 1
            }
        };
        let item = &mut self.items[at];
        let is_new_part = item.part != Some(part);
        let so_far = if is_new_part { "" } else { &item.text[item.part_start..] };
        let more = if is_whole { text.strip_prefix(so_far).unwrap_or_default() } else { text };
        if more.is_empty() {
            return !is_whole;
        }
        let mut shown = String::new();
        if is_new_part {
            if !item.text.is_empty() {
                shown.push_str(kind.separator());
            }
            item.part = Some(part);
            item.part_start = item.text.len() + shown.len();
        }
        shown.push_str(more);
        item.text.push_str(&shown);
        item.output_bytes += shown.len();
        self.output_bytes += shown.len();
        item.show(shown, events);
        true
    }

    /// Ends an item, which comes whole.
    fn end(&mut self, index: Option<u64>, whole: &RawValue, events: &mut VecDeque<ReplyEvent>) {
        let Ok(mut fields) = serde_json::from_str::<Fields>(whole.get()) else { return };
        let kind = Kind::of(&fields);
        let at = match self.position(kind, index) {
            Some(at) => at,
            None => {
                self.begin(index, &fields, events);
                self.items.len() - 1
            }
        };
        let item = &mut self.items[at];
        if kind == Kind::Call {
            // Some servers send the arguments as an object.
            if let Some(arguments) = fields.value("arguments").filter(|value| value.get().starts_with('{')) {
                fields.set("arguments", raw(arguments.get()));
            }
            let call_id = fields.text("call_id").filter(|id| !id.is_empty()).or_else(|| fields.text("id"));
            item.call_id = call_id.unwrap_or_default();
            let name = fields.text("name").unwrap_or_default();
            if name != item.name {
                item.name.clone_from(&name);
                let (index, name) = (item.call, Some(name));
                events.push_back(ReplyEvent::ToolCall { index, name, arguments: String::new() });
            }
        }
        let text = take_text(kind, &mut fields);
        // Some gateways leave out what came in pieces.
        let is_left_out = text.is_empty() && !item.text.is_empty();
        if !is_left_out {
            let rest = text.strip_prefix(&*item.text).unwrap_or_default().to_owned();
            item.text = text;
            item.show(rest, events);
        }
        if kind == Kind::Call {
            fields.set("call_id", raw(&item.call_id.len()));
            fields.set("name", raw(&item.name.len()));
            fields.set("arguments", raw(&item.text.len()));
        }
        self.output_bytes = self.output_bytes - item.output_bytes + whole.get().len();
        item.output_bytes = whole.get().len();
        // Such a message has no place for its text.
        let attachment = (kind != Kind::Message || !is_left_out).then_some(fields);
        item.ended = Some(Ended { whole: whole.to_owned(), attachment });
    }

    /// Takes the end of a response. Returns what it means to the answer.
    fn take_response(
        &mut self,
        response: &Response<'_>,
        status: &str,
        events: &mut VecDeque<ReplyEvent>,
    ) -> Taken {
        let status = text(response.status).unwrap_or_else(|| status.to_owned());
        let reason = match status.as_str() {
            "in_progress" | "queued" => return Taken::Nothing,
            "failed" | "cancelled" => return Taken::Error(failure(response.error, &status)),
            "incomplete" => response
                .incomplete_details
                .and_then(|details| serde_json::from_str::<Fields>(details.get()).ok())
                .and_then(|details| details.text("reason")),
            _ => None,
        };
        let output: Vec<&RawValue> =
            response.output.and_then(|output| serde_json::from_str(output.get()).ok()).unwrap_or_default();
        // Some servers send an item's end only here.
        if self.items.iter().filter(|item| item.ended.is_some()).count() < output.len() {
            for (index, whole) in (0..).zip(output) {
                let is_it =
                    |(at, item): (u64, &Item)| item.ended.is_some() && item.index.unwrap_or(at) == index;
                if !(0..).zip(&self.items).any(is_it) {
                    self.end(Some(index), whole, events);
                }
            }
            if self.items.iter().all(|item| item.index.is_some()) {
                self.items.sort_by_key(|item| item.index);
            }
        }
        self.usage = response.usage.and_then(usage).or(self.usage);
        self.stop_raw = Some(reason.unwrap_or(status));
        self.is_over = true;
        Taken::Progress
    }
}

impl Item {
    /// Shows a piece of readable text.
    fn show(&self, piece: String, events: &mut VecDeque<ReplyEvent>) {
        if piece.is_empty() {
            return;
        }
        match self.kind {
            Kind::Message => events.push_back(ReplyEvent::Text(piece)),
            Kind::Reasoning => events.push_back(ReplyEvent::Reasoning(piece)),
            Kind::Call => {
                events.push_back(ReplyEvent::ToolCall { index: self.call, name: None, arguments: piece });
            }
            Kind::Other => {}
        }
    }

    /// Whether its end came, and it stands for what was before it.
    fn is_compaction(&self) -> bool {
        let attachment = self.ended.as_ref().and_then(|ended| ended.attachment.as_ref());
        attachment
            .and_then(|fields| fields.text_ref("type"))
            .is_some_and(|name| name.starts_with("compaction"))
    }

    /// Whether its end came, and the model says in it that it refuses.
    fn is_refusal(&self) -> bool {
        let Some(ended) = self.ended.as_ref().filter(|_| self.kind == Kind::Message) else { return false };
        let whole = ended.whole.get();
        whole.contains("\"refusal\"") && {
            let fields = serde_json::from_str::<Fields>(whole).unwrap_or_default();
            let parts =
                fields.raw("content").and_then(|parts| serde_json::from_str::<Vec<Fields>>(parts).ok());
            let refusals = parts.iter().flatten().filter_map(|part| part.text("refusal"));
            refusals.into_iter().any(|refusal| !refusal.is_empty())
        }
    }

    /// Returns the item as it came, if its end came.
    fn whole(self) -> Option<Part> {
        let data = self.ended?.whole.get().to_owned();
        Some(Part::OpaqueBlock { dialect: DIALECT.to_owned(), data })
    }

    /// Returns the parts that keep the item: a readable one, and what has to be sent back with it.
    fn parts(self, ids: &mut Ids<'_>) -> Vec<Part> {
        let Self { kind, text, name, call_id, ended, .. } = self;
        let dialect = || DIALECT.to_owned();
        let opaque = |data: String| Part::OpaqueReasoning { dialect: dialect(), data };
        let readable = match kind {
            Kind::Message if !text.is_empty() => Part::Text(text),
            Kind::Reasoning if !text.is_empty() => Part::Reasoning(text),
            Kind::Call if name.is_empty() && text.is_empty() => return Vec::new(),
            Kind::Call => {
                let id = ids.unique(call_id.clone());
                let is_changed = id != call_id;
                let call = Part::ToolCall(ToolCall { id, name, arguments: text });
                if is_changed {
                    // A server that repeats the ids of its calls repeats those of its items.
                    return vec![call];
                }
                call
            }
            Kind::Message | Kind::Reasoning | Kind::Other => {
                let Some(Ended { whole, .. }) = ended else { return Vec::new() };
                let data = whole.get().to_owned();
                return vec![match kind {
                    // A message with parts that this version does not know is content, and an empty one is not.
                    Kind::Message if !has_parts(&whole) => opaque(data),
                    Kind::Reasoning => opaque(data),
                    Kind::Message | Kind::Call | Kind::Other => {
                        Part::OpaqueBlock { dialect: dialect(), data }
                    }
                }];
            }
        };
        let mut parts = vec![readable];
        parts.extend(ended.and_then(|ended| ended.attachment).map(|fields| opaque(fields.json())));
        parts
    }
}

/// Whether a message without text has other parts than empty texts.
fn has_parts(whole: &RawValue) -> bool {
    let content = serde_json::from_str::<Fields>(whole.get())
        .ok()
        .and_then(|fields| serde_json::from_str::<Vec<Fields>>(fields.raw("content")?).ok());
    content.unwrap_or_default().iter().any(|part| part.text("text").or(part.text("refusal")).is_none())
}

/// Returns a string; `None` if it is something else.
fn text(value: Option<&RawValue>) -> Option<String> {
    serde_json::from_str(value?.get()).ok()
}

/// Returns a count; `None` if it is something else.
fn count(value: Option<&RawValue>) -> Option<u64> {
    count_of(value?)
}

/// Returns the body of a failure for the classifier.
fn failure(error: Option<&RawValue>, status: &str) -> String {
    match error {
        Some(error) => format!("{{\"error\":{}}}", error.get()),
        None => format!("{{\"error\":{{\"message\":\"the response ended with the status {status}\"}}}}"),
    }
}

/// Returns the usage that the server reported; `None` if it reported none.
fn usage(wire: &RawValue) -> Option<Usage> {
    let wire: Fields = serde_json::from_str(wire.get()).ok()?;
    let detail = |list: &str, name: &str| {
        let details: Fields = serde_json::from_str(wire.raw(list)?).ok()?;
        count(details.value(name))
    };
    let input = count(wire.value("input_tokens")).unwrap_or_default();
    let output_tokens = count(wire.value("output_tokens")).unwrap_or_default();
    let cached_tokens = detail("input_tokens_details", "cached_tokens").unwrap_or_default();
    // Some gateways count cached input apart.
    let input_tokens = if cached_tokens > input { input.saturating_add(cached_tokens) } else { input };
    let cache_write_tokens = detail("input_tokens_details", "cache_write_tokens").unwrap_or_default();
    let reasoning_tokens = detail("output_tokens_details", "reasoning_tokens").unwrap_or_default();
    let usage = Usage {
        input_tokens,
        cached_tokens,
        cache_write_tokens: cache_write_tokens.min(input_tokens),
        output_tokens,
        reasoning_tokens: reasoning_tokens.min(output_tokens),
        ..Usage::default()
    };
    (usage.total_tokens() > 0).then_some(usage)
}

impl Decoder for ResponsesDecoder {
    fn take(&mut self, data: &str, events: &mut VecDeque<ReplyEvent>) -> Taken {
        if let Some(piece) = Delta::of(data).as_ref().and_then(Delta::piece) {
            return self.add_piece(&piece, events);
        }
        let Ok(event) = serde_json::from_str::<Event<'_>>(data) else { return Taken::Unreadable };
        let index = count(event.output_index);
        let has_error = event.error.is_some() || event.message.is_some() || event.detail.is_some();
        let response = || {
            let own = event.response.map_or(data, RawValue::get);
            serde_json::from_str::<Response<'_>>(own).unwrap_or_default()
        };
        let Some(kind) = text(event.kind) else {
            let is_response = event.output.is_some() || text(event.object).as_deref() == Some("response");
            return match (is_response, has_error) {
                (true, _) if event.error.is_some() => Taken::Error(failure(event.error, "failed")),
                (true, _) => self.take_response(&response(), "completed", events),
                (false, true) => Taken::Error(data.to_owned()),
                (false, false) => Taken::Unreadable,
            };
        };
        let Some(name) = kind.strip_prefix("response.") else {
            // Besides `error`, errors come with their own types. Anything else is a ping, or new.
            return if kind == "error" || has_error { Taken::Error(data.to_owned()) } else { Taken::Nothing };
        };
        let part = |list, number| (list, count(number).unwrap_or_default());
        let in_content = part("content", event.content_index);
        let in_summary = part("summary", event.summary_index);
        let (kind, part, piece, is_whole) = match name {
            "output_item.added" => {
                let fields = event.item.and_then(|item| serde_json::from_str(item.get()).ok());
                self.begin(index, &fields.unwrap_or_default(), events);
                return Taken::Progress;
            }
            "output_item.done" => {
                if let Some(item) = event.item {
                    self.end(index, item, events);
                }
                return Taken::Progress;
            }
            "output_text.delta" | "refusal.delta" => (Kind::Message, in_content, event.delta, false),
            "output_text.done" => (Kind::Message, in_content, event.text, true),
            "refusal.done" => (Kind::Message, in_content, event.refusal, true),
            "reasoning_summary_text.delta" => (Kind::Reasoning, in_summary, event.delta, false),
            "reasoning_summary_text.done" => (Kind::Reasoning, in_summary, event.text, true),
            "reasoning_text.delta" => (Kind::Reasoning, in_content, event.delta, false),
            "reasoning_text.done" => (Kind::Reasoning, in_content, event.text, true),
            "function_call_arguments.delta" => (Kind::Call, ("", 0), event.delta, false),
            "function_call_arguments.done" => (Kind::Call, ("", 0), event.arguments, true),
            "completed" | "incomplete" | "failed" | "cancelled" => {
                return self.take_response(&response(), name, events);
            }
            "created" | "queued" | "in_progress" => return Taken::Nothing,
            // The progress of a tool that the provider runs, or of what is new.
            _ => return Taken::Progress,
        };
        let text = text(piece).unwrap_or_default();
        self.add_piece(&Piece { kind, index, part, text: &text, is_whole }, events)
    }

    fn progress(&self) -> Progress {
        if self.is_over { Progress::Over } else { Progress::Open }
    }

    fn may_be_whole(&self) -> bool {
        let is_valid = |text: &str| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok();
        self.has_output()
            && self
                .items
                .iter()
                .all(|item| item.ended.is_some() || item.kind != Kind::Call || is_valid(&item.text))
    }

    fn has_output(&self) -> bool {
        self.items.iter().any(|item| item.ended.is_some() || item.kind == Kind::Call || !item.text.is_empty())
    }

    fn output_bytes(&self) -> usize {
        self.output_bytes
    }

    fn output_chars(&self) -> usize {
        self.items.iter().map(|item| item.text.chars().count()).sum()
    }

    fn finish(
        self: Box<Self>,
        context: &CallContext<'_>,
        _: &mut VecDeque<ReplyEvent>,
    ) -> Result<AssistantMessage, ProviderError> {
        let reason = match self.stop_raw.as_deref() {
            // It does not say at which limit.
            Some("incomplete") => "length",
            reason => reason.unwrap_or_default(),
        };
        let stop = stop_reason(reason, self.has_output())?;
        let is_refusal = self.items.iter().any(Item::is_refusal);
        let mut ids = Ids::new(context.messages);
        let content: Vec<Part> = if context.purpose == Purpose::Compaction {
            // Without the item of a compaction, the others stand for nothing that was before them.
            let compacts = self.items.iter().any(Item::is_compaction);
            let items = self.items.into_iter().filter(|item| compacts && item.kind != Kind::Call);
            items.filter_map(Item::whole).collect()
        } else {
            self.items.into_iter().flat_map(|item| item.parts(&mut ids)).collect()
        };
        Ok(AssistantMessage {
            stop: with_refusal(with_calls(stop, &content), is_refusal),
            content,
            provider: context.provider.to_owned(),
            model: context.model.to_owned(),
            usage: self.usage,
            stop_raw: self.stop_raw,
            error: None,
        })
    }
}
