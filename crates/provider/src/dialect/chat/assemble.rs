//! Assembles one answer from chunks.
//!
//! Invariants: the finished answer holds exactly what was emitted as events, and every tool call in it has an id that
//! no other call in the conversation has.

use std::collections::HashMap;
use std::sync::Arc;

use greenroom_kernel::{AssistantMessage, Message, Part, StopReason, ToolCall, Usage};

use super::chunk::{CallDelta, Choice, Chunk, WireUsage};
use super::think::{Split, Think};
use crate::ReplyEvent;
use crate::call_ids::Ids;
use crate::dialect::{with_calls, with_refusal};

/// Room for a short text, in bytes: it comes in small pieces.
const TEXT_BYTES: usize = 512;

/// An answer that is still arriving.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    pieces: Vec<Piece>,
    calls: Vec<CallInProgress>,
    think: Think,
    /// The newest call of each index, by its position in `calls`: an answer may have very many.
    by_index: HashMap<u64, usize>,
    /// The newest call of each id, likewise.
    by_id: HashMap<String, usize>,
    finish: Option<String>,
    /// Whether the model has said that it refuses.
    is_refusal: bool,
    usage: Option<Usage>,
    output_bytes: usize,
}

/// A part of the answer, in the order of arrival.
#[derive(Debug)]
enum Piece {
    Text(String),
    Reasoning(String),
    /// A tool call, by its position in `calls`.
    Call(usize),
}

#[derive(Debug, Default)]
struct CallInProgress {
    id: String,
    name: String,
    arguments: String,
}

/// Returns a text that begins with this piece.
fn begun(piece: &str) -> String {
    let mut text = String::with_capacity(TEXT_BYTES.max(piece.len()));
    text.push_str(piece);
    text
}

impl CallInProgress {
    fn is_complete(&self) -> bool {
        !self.name.is_empty() && serde_json::from_str::<serde::de::IgnoredAny>(&self.arguments).is_ok()
    }

    /// Whether a fragment with this id repeats the whole call, as some servers do at the end.
    fn is_repeated(&self, id: &str, arguments: &str) -> bool {
        !id.is_empty()
            && id == self.id
            && begins_object(arguments)
            && arguments == self.arguments
            && self.is_complete()
    }
}

fn begins_object(json: &str) -> bool {
    json.trim_start().starts_with('{')
}

impl Assembler {
    /// Adds a chunk to the answer and its events to `events`. Returns whether the chunk made progress; an empty delta
    /// or a role alone does not.
    pub(super) fn take(&mut self, chunk: Chunk, events: &mut impl Extend<ReplyEvent>) -> bool {
        let mut progress = self.take_usage(chunk.usage.as_deref());
        for choice in chunk.choices {
            // Only one choice was requested.
            if choice.index.is_none_or(|index| index == 0) {
                progress |= self.take_choice(choice, events);
            }
        }
        progress
    }

    fn take_choice(&mut self, mut choice: Choice, events: &mut impl Extend<ReplyEvent>) -> bool {
        let mut progress = self.take_usage(choice.usage.as_deref());
        let delta = choice.take_delta();
        // Some servers send the same text under both names.
        let reasoning = [delta.reasoning_content, delta.reasoning].into_iter().flatten();
        let reasoning = reasoning.map(|content| content.text).find(|text| !text.is_empty());
        for thought in [reasoning.unwrap_or_default(), delta.content.reasoning.into()] {
            if !thought.is_empty() {
                progress = true;
                self.output_bytes += thought.len();
                self.end_of_text(events);
                self.add(Split { reasoning: thought, ..Split::default() }, events);
            }
        }
        let refusal = delta.refusal.unwrap_or_default();
        self.is_refusal |= !refusal.is_empty();
        for text in [delta.content.text, refusal.into()] {
            progress |= self.take_text(text, events);
        }
        for call in delta.tool_calls {
            progress = true;
            self.end_of_text(events);
            let event = self.take_call(call);
            events.extend([event]);
        }
        if let Some(finish) = choice.finish_reason.filter(|finish| !finish.is_empty()) {
            progress = true;
            self.finish = Some(finish);
        }
        progress
    }

    /// Adds a piece of text. Returns whether it has any.
    pub(super) fn take_text(&mut self, text: String, events: &mut impl Extend<ReplyEvent>) -> bool {
        if text.is_empty() {
            return false;
        }
        self.output_bytes += text.len();
        let split = self.think.take(text);
        self.add(split, events);
        true
    }

    /// No reasoning follows in the text.
    fn end_of_text(&mut self, events: &mut impl Extend<ReplyEvent>) {
        let held = self.think.end();
        self.add(held, events);
    }

    /// Adds reasoning and text, and their events.
    fn add(&mut self, Split { reasoning, text }: Split, events: &mut impl Extend<ReplyEvent>) {
        if !reasoning.is_empty() {
            match self.pieces.last_mut() {
                Some(Piece::Reasoning(so_far)) => so_far.push_str(&reasoning),
                Some(Piece::Text(_) | Piece::Call(_)) | None => {
                    self.pieces.push(Piece::Reasoning(reasoning.clone()));
                }
            }
            events.extend([ReplyEvent::Reasoning(reasoning)]);
        }
        if !text.is_empty() {
            match self.pieces.last_mut() {
                Some(Piece::Text(so_far)) => so_far.push_str(&text),
                Some(Piece::Reasoning(_) | Piece::Call(_)) | None => {
                    self.pieces.push(Piece::Text(begun(&text)));
                }
            }
            events.extend([ReplyEvent::Text(text)]);
        }
    }

    fn take_usage(&mut self, wire: Option<&WireUsage>) -> bool {
        match wire.and_then(usage) {
            // Servers that report while they generate send zeros first.
            Some(usage) => {
                self.usage = Some(usage);
                true
            }
            None => false,
        }
    }

    fn take_call(&mut self, delta: CallDelta) -> ReplyEvent {
        let name = delta.function.name.unwrap_or_default();
        let id = delta.id.unwrap_or_default();
        let found = self.find_call(delta.index, &id, &name, &delta.function.arguments);
        let position = found.unwrap_or_else(|| {
            self.pieces.push(Piece::Call(self.calls.len()));
            self.calls.push(CallInProgress::default());
            let position = self.calls.len() - 1;
            if let Some(index) = delta.index {
                self.by_index.insert(index, position);
            }
            position
        });
        let call = &mut self.calls[position];
        if call.id.is_empty() && !id.is_empty() {
            self.output_bytes += id.len();
            self.by_id.insert(id.clone(), position);
            call.id = id;
        }
        // A name may come in pieces, or whole again with every fragment.
        let repeated = call.name == name;
        if name.len() > call.name.len() && name.starts_with(&call.name) {
            call.name.clone_from(&name);
        } else if !repeated && call.arguments.is_empty() {
            call.name.push_str(&name);
        }
        let mut arguments = delta.function.arguments;
        if call.is_repeated(&call.id, &arguments) {
            arguments.clear();
        }
        call.arguments.push_str(&arguments);
        self.output_bytes += name.len() + arguments.len();
        let name = (!name.is_empty() && !repeated).then_some(name);
        ReplyEvent::ToolCall { index: position, name, arguments }
    }

    /// The position of the call that a fragment belongs to; `None` if the fragment begins a new call.
    fn find_call(&self, index: Option<u64>, id: &str, name: &str, arguments: &str) -> Option<usize> {
        let position = match index {
            Some(index) => self.by_index.get(&index).copied(),
            None if !id.is_empty() => self.by_id.get(id).copied(),
            None => self.calls.len().checked_sub(1),
        }?;
        let call = &self.calls[position];
        let begins = if name.is_empty() {
            false
        } else if !id.is_empty() && !call.id.is_empty() && id != call.id {
            // Some servers give every call the index 0.
            true
        } else if index.is_some() {
            // The same index and no other id continue the call, unless a complete call follows a complete call.
            let is_other = || call.name != name || begins_object(arguments);
            !arguments.is_empty() && is_other() && call.is_complete() && !call.is_repeated(id, arguments)
        } else {
            call.is_complete() || (!call.name.is_empty() && !arguments.is_empty())
        };
        (!begins).then_some(position)
    }

    /// Why the server says the answer ended; `None` as long as it has not ended.
    pub(super) fn finish_reason(&self) -> Option<&str> {
        self.finish.as_deref()
    }

    /// Takes it, at the end.
    pub(super) fn take_finish_reason(&mut self) -> Option<String> {
        self.finish.take()
    }

    /// Whether any text, reasoning or call has arrived.
    pub(super) fn has_output(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Whether there is an answer that could be whole: no call breaks off in its arguments.
    pub(super) fn may_be_whole(&self) -> bool {
        self.has_output() && self.calls.iter().all(CallInProgress::is_complete)
    }

    /// How much text, reasoning, ids and arguments have arrived, in bytes.
    pub(super) fn output_bytes(&self) -> usize {
        self.output_bytes
    }

    /// How much text, reasoning and arguments have arrived, in characters.
    pub(super) fn output_chars(&self) -> usize {
        self.pieces
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) | Piece::Reasoning(text) => text.chars().count(),
                Piece::Call(position) => self.calls[*position].arguments.chars().count(),
            })
            .sum()
    }

    /// The finished answer, whose last events are added to `events`. `stop` is what the server says; whether the answer calls
    /// tools overrules it. Its calls get other ids than those of the conversation.
    pub(super) fn finish(
        mut self,
        stop: StopReason,
        provider: &str,
        model: &str,
        conversation: &[Arc<Message>],
        events: &mut impl Extend<ReplyEvent>,
    ) -> AssistantMessage {
        self.end_of_text(events);
        let mut ids = Ids::new(conversation);
        let mut content = Vec::with_capacity(self.pieces.len());
        for piece in std::mem::take(&mut self.pieces) {
            match piece {
                Piece::Text(text) => content.push(Part::Text(text)),
                Piece::Reasoning(text) => content.push(Part::Reasoning(text)),
                Piece::Call(position) => {
                    let call = std::mem::take(&mut self.calls[position]);
                    if !call.name.is_empty() || !call.arguments.is_empty() {
                        let id = ids.unique(call.id);
                        content.push(Part::ToolCall(ToolCall {
                            id,
                            name: call.name,
                            arguments: call.arguments,
                        }));
                    }
                }
            }
        }
        let stop = with_refusal(with_calls(stop, &content), self.is_refusal);
        AssistantMessage { usage: self.usage, ..AssistantMessage::new(content, provider, model, stop) }
    }
}

/// The usage that the server reported; `None` if it reported none.
fn usage(wire: &WireUsage) -> Option<Usage> {
    let prompt = wire.prompt_tokens.unwrap_or_default();
    let completion = wire.completion_tokens.unwrap_or_default();
    if prompt == 0 && completion == 0 {
        return None;
    }
    let input_tokens = if counts_cached_apart(wire, prompt, completion) {
        prompt.saturating_add(wire.cached()).saturating_add(wire.cache_written())
    } else {
        prompt
    };
    let reasoning_tokens = wire.completion_tokens_details.reasoning_tokens.unwrap_or_default();
    // Some servers count reasoning in the total but not in the completion.
    let uncounted =
        wire.total_tokens.unwrap_or_default().saturating_sub(input_tokens.saturating_add(completion));
    let output_tokens = if reasoning_tokens > 0 {
        completion.saturating_add(uncounted.min(reasoning_tokens))
    } else {
        completion
    };
    Some(Usage {
        input_tokens,
        cached_tokens: wire.cached().min(input_tokens),
        cache_write_tokens: wire.cache_written(),
        output_tokens,
        reasoning_tokens: reasoning_tokens.min(output_tokens),
        ..Usage::default()
    })
}

/// Whether the prompt's tokens are only those that did not come from the cache, as some gateways count: more is said to be
/// cached than the prompt has, or the total is right only with what is cached.
fn counts_cached_apart(wire: &WireUsage, prompt: u64, completion: u64) -> bool {
    let cached = wire.cached().saturating_add(wire.cache_written());
    let all = prompt.saturating_add(completion).saturating_add(cached);
    wire.cached() > prompt || (cached > 0 && wire.total_tokens == Some(all))
}

#[cfg(test)]
mod tests;
