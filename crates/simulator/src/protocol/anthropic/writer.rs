//! Writes answers.
//!
//! Invariants: a block that has begun ends before the next one begins, and a thinking block ends with its signature.

use greenroom_kernel::{StopReason, Usage};
use serde_json::{Value, json};

use super::super::Writer;
use super::{signature, string};
use crate::answer::{Piece, Raw, SERVER_ERROR};

/// Writes one answer.
pub(super) struct AnthropicWriter {
    pub(super) id: String,
    pub(super) model: String,
    /// The hash of everything that is answered.
    pub(super) before: u64,
    /// The type of the block that has begun.
    pub(super) open: Option<&'static str>,
    /// The index of the next block.
    pub(super) next: u64,
    /// The thinking of the block that has begun.
    pub(super) thought: String,
    pub(super) stop: Option<&'static str>,
    pub(super) usage: Option<Value>,
    /// Whether the answer is a compaction: its text is gathered in `thought`.
    pub(super) compacts: bool,
    /// What was changed in the request, if the answer is to say so.
    pub(super) transformations: Option<Vec<Value>>,
}

impl AnthropicWriter {
    fn event(kind: &str, mut data: Value, out: &mut Vec<u8>) {
        data["type"] = kind.into();
        out.extend_from_slice(format!("event: {kind}\ndata: {data}\n\n").as_bytes());
    }

    fn delta(&self, delta: &Value, out: &mut Vec<u8>) {
        Self::event("content_block_delta", json!({ "index": self.next - 1, "delta": delta }), out);
    }

    /// Begins a block of this type, unless it has begun.
    fn begin_block(&mut self, kind: &'static str, block: &Value, out: &mut Vec<u8>) {
        if self.open == Some(kind) && kind != "tool_use" {
            return;
        }
        self.end_block(out);
        self.open = Some(kind);
        self.next += 1;
        let data = json!({ "index": self.next - 1, "content_block": block });
        Self::event("content_block_start", data, out);
    }

    /// Returns the block of a compaction; `None` if there is no summary.
    fn compaction_block(&mut self, stop: StopReason) -> Option<Value> {
        let content = std::mem::take(&mut self.thought);
        let is_whole = stop == StopReason::Stop && !content.trim().is_empty();
        let signature = signature(&content, 0);
        is_whole.then(|| json!({ "type": "compaction", "content": content, "signature": signature }))
    }

    fn end_block(&mut self, out: &mut Vec<u8>) {
        let Some(kind) = self.open.take() else { return };
        if kind == "thinking" {
            let signature = signature(&std::mem::take(&mut self.thought), self.before);
            self.delta(&json!({ "type": "signature_delta", "signature": signature }), out);
        }
        Self::event("content_block_stop", json!({ "index": self.next - 1 }), out);
    }
}

fn stop_reason(stop: StopReason) -> &'static str {
    match stop {
        StopReason::Length => "max_tokens",
        StopReason::ToolCalls => "tool_use",
        StopReason::ContentFilter => "refusal",
        StopReason::Paused => "pause_turn",
        StopReason::Stop | StopReason::Aborted | StopReason::Error | StopReason::Unknown | _ => "end_turn",
    }
}

fn usage(usage: Usage) -> Value {
    let fresh = usage.input_tokens.saturating_sub(usage.cached_tokens);
    json!({
        "input_tokens": fresh, "cache_read_input_tokens": usage.cached_tokens, "cache_creation_input_tokens": 0,
        "output_tokens": usage.output_tokens,
        "output_tokens_details": { "thinking_tokens": usage.reasoning_tokens },
    })
}

/// Returns the usage of a compaction: what it took is among the iterations only.
fn compaction_usage(counts: Usage) -> Value {
    let mut iteration = usage(counts);
    iteration["type"] = "compaction".into();
    json!({ "input_tokens": 0, "output_tokens": 0, "iterations": [iteration] })
}

impl Writer for AnthropicWriter {
    fn begin(&mut self, call: u64) {
        self.id = format!("msg_{call:08}");
    }

    fn piece(&mut self, piece: &Piece, out: &mut Vec<u8>) {
        match piece {
            Piece::Text(text) if self.compacts => self.thought.push_str(text),
            Piece::Reasoning(_) | Piece::CallStart { .. } | Piece::CallArguments { .. } if self.compacts => {}
            Piece::Finish(stop) if self.compacts => {
                let block = self.compaction_block(*stop);
                self.stop = Some(if block.is_some() { "compaction" } else { stop_reason(*stop) });
                if let Some(block) = block {
                    self.begin_block("compaction", &block, out);
                    self.end_block(out);
                }
            }
            Piece::Usage(counts) if self.compacts => self.usage = Some(compaction_usage(*counts)),
            Piece::Role => {
                let mut message = json!({
                    "id": self.id, "type": "message", "role": "assistant", "model": self.model, "content": [],
                    "stop_reason": null, "usage": { "input_tokens": 0, "output_tokens": 0 },
                });
                if let Some(transformations) = self.transformations.take() {
                    message["input_transformations"] = transformations.into();
                }
                Self::event("message_start", json!({ "message": message }), out);
                Self::event("ping", json!({}), out);
            }
            Piece::Reasoning(text) => {
                self.begin_block(
                    "thinking",
                    &json!({ "type": "thinking", "thinking": "", "signature": "" }),
                    out,
                );
                self.thought.push_str(text);
                self.delta(&json!({ "type": "thinking_delta", "thinking": text }), out);
            }
            Piece::Text(text) => {
                self.begin_block("text", &json!({ "type": "text", "text": "" }), out);
                self.delta(&json!({ "type": "text_delta", "text": text }), out);
            }
            Piece::CallStart { id, name, .. } => {
                let mut block = json!({ "type": "tool_use", "name": name, "input": {} });
                if let Some(id) = id {
                    block["id"] = id.as_str().into();
                }
                self.begin_block("tool_use", &block, out);
            }
            Piece::CallArguments { arguments, .. } => {
                self.delta(&json!({ "type": "input_json_delta", "partial_json": arguments }), out);
            }
            Piece::Finish(stop) => {
                self.end_block(out);
                self.stop = Some(stop_reason(*stop));
            }
            Piece::Usage(counts) => self.usage = Some(usage(*counts)),
            Piece::Done => {
                if let Some(stop) = self.stop {
                    let mut data = json!({ "delta": { "stop_reason": stop, "stop_sequence": null } });
                    if let Some(usage) = self.usage.take() {
                        data["usage"] = usage;
                    }
                    Self::event("message_delta", data, out);
                    Self::event("message_stop", json!({}), out);
                }
            }
        }
    }

    fn raw(&mut self, raw: &Raw, out: &mut Vec<u8>) {
        match raw {
            Raw::BrokenJson => out.extend_from_slice(b"data: {\"type\":\"content_block_delta\",\"ind\n\n"),
            Raw::BadUtf8 => {
                self.begin_block("text", &json!({ "type": "text", "text": "" }), out);
                let head = format!(
                    "data: {{\"type\":\"content_block_delta\",\"index\":{},\"delta\":",
                    self.next - 1
                );
                out.extend_from_slice(head.as_bytes());
                out.extend_from_slice(b"{\"type\":\"text_delta\",\"text\":\"");
                out.extend_from_slice(&[0xff, 0xfe, 0xc3]);
                out.extend_from_slice(b"\"}}\n\n");
            }
            Raw::ErrorEvent => {
                let error = json!({ "error": { "type": "api_error", "message": SERVER_ERROR } });
                Self::event("error", error, out);
            }
            Raw::PlainText(text) => out.extend_from_slice(format!("data: {text}\n\n").as_bytes()),
        }
    }

    fn whole(&mut self, pieces: Vec<Piece>) -> Value {
        let mut content: Vec<Value> = Vec::new();
        let mut body = json!({ "id": self.id, "type": "message", "role": "assistant", "model": self.model });
        let mut inputs: Vec<(usize, String)> = Vec::new();
        for piece in pieces {
            match piece {
                Piece::Role | Piece::Done => {}
                Piece::Text(text) if self.compacts => self.thought.push_str(&text),
                Piece::Finish(stop) if self.compacts => {
                    content = self.compaction_block(stop).into_iter().collect();
                    let is_whole = !content.is_empty();
                    body["stop_reason"] = if is_whole { "compaction" } else { stop_reason(stop) }.into();
                }
                Piece::Usage(counts) if self.compacts => body["usage"] = compaction_usage(counts),
                Piece::Reasoning(text) => append(&mut content, "thinking", "thinking", &text),
                Piece::Text(text) => append(&mut content, "text", "text", &text),
                Piece::CallStart { id, name, .. } => {
                    inputs.push((content.len(), String::new()));
                    content.push(json!({ "type": "tool_use", "id": id, "name": name, "input": {} }));
                }
                Piece::CallArguments { index, arguments } => {
                    if let Some((_, input)) = inputs.get_mut(index) {
                        input.push_str(&arguments);
                    }
                }
                Piece::Finish(stop) => body["stop_reason"] = stop_reason(stop).into(),
                Piece::Usage(counts) => body["usage"] = usage(counts),
            }
        }
        for (at, input) in inputs {
            content[at]["input"] = serde_json::from_str(&input).unwrap_or_else(|_| json!({}));
        }
        for block in content.iter_mut().filter(|block| block["type"] == "thinking") {
            block["signature"] = signature(&string(block, "thinking"), self.before).into();
        }
        body["content"] = content.into();
        if let Some(transformations) = self.transformations.take() {
            body["input_transformations"] = transformations.into();
        }
        body
    }
}

/// Appends text to the last block of this type, or begins one.
fn append(content: &mut Vec<Value>, kind: &str, field: &str, text: &str) {
    match content.last_mut().filter(|last| last["type"] == kind) {
        Some(last) => last[field] = (string(last, field) + text).into(),
        None => {
            let mut block = json!({ "type": kind });
            block[field] = text.into();
            content.push(block);
        }
    }
}
