//! The conversation of a request in its wire form, whose beginning is kept from the request before it.
//!
//! A request repeats the conversation of the one before it and adds a little. What it repeats is written once, in blocks
//! that requests share.
//!
//! Invariants: the bytes are those of writing the whole conversation anew (a test compares them); a block is used only for
//! equal messages in the same place, written in the same form; no message is read for that if its list was only extended;
//! and a block ends only where no message that follows changes what was written before.

use std::sync::Arc;

use bytes::Bytes;
use greenroom_kernel::Message;
use greenroom_kernel::messages::Beginning;
use serde::Serialize;

use super::size_hint;
use crate::Request;
use crate::settings::ResendReasoning;

#[cfg(test)]
pub(crate) mod tests;

/// A block grows to this size before the next one begins, in bytes. A block that grows is copied.
const BLOCK_BYTES: usize = 32 * 1024;

/// A conversation as it was written last.
#[derive(Debug, Default)]
pub(crate) struct History {
    form: Option<Form>,
    blocks: Vec<Block>,
    /// The conversation that begins with the blocks.
    of: Beginning,
}

/// The settings that decide how messages are written, besides those of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Form {
    model: String,
    resend_reasoning: Option<ResendReasoning>,
}

/// Some messages in a row, written.
#[derive(Debug)]
struct Block {
    messages: Vec<Arc<Message>>,
    /// The elements of the list, each with a comma before it unless it is the first of the conversation.
    bytes: Bytes,
}

/// A part of a conversation, while it is written.
#[derive(Debug, Default)]
pub(crate) struct Elements {
    bytes: Vec<u8>,
    /// Whether other elements come before these.
    is_continued: bool,
    cuts: Vec<Cut>,
}

/// A place where a block may end.
#[derive(Debug, Clone, Copy)]
struct Cut {
    /// The number of messages before it.
    messages: usize,
    bytes: usize,
}

/// What a part of a conversation needs to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Needs {
    /// It was written apart.
    Nothing,
    /// It depends on what comes before it, which has to be written together with it.
    Beginning,
}

impl Elements {
    /// Whether this is not the beginning of the conversation.
    pub(crate) fn is_continued(&self) -> bool {
        self.is_continued
    }

    /// Adds an element.
    pub(crate) fn push(&mut self, element: &impl Serialize) -> serde_json::Result<()> {
        if self.is_continued || !self.bytes.is_empty() {
            self.bytes.push(b',');
        }
        serde_json::to_writer(&mut self.bytes, element)
    }

    /// Notes that what was written so far, which is of the first `messages` messages, does not change with those that
    /// follow.
    pub(crate) fn cut(&mut self, messages: usize) {
        self.cuts.push(Cut { messages, bytes: self.bytes.len() });
    }
}

impl History {
    /// Writes the conversation of a request: as elements of a list, separated by commas, in pieces.
    ///
    /// `write` writes some messages in a row, after others or as the beginning.
    pub(crate) fn write(
        &mut self,
        request: &Request,
        messages: &[Arc<Message>],
        write: impl Fn(&[Arc<Message>], &mut Elements) -> serde_json::Result<Needs>,
    ) -> serde_json::Result<Vec<Bytes>> {
        self.keep_beginning_of(request, messages);
        let (mut at, mut elements) = (0, Elements::default());
        if !self.blocks.is_empty() {
            at = self.blocks.iter().map(|block| block.messages.len()).sum();
            elements.is_continued = self.blocks.iter().any(|block| !block.bytes.is_empty());
        }
        let size = messages[at..].iter().map(|message| size_hint(message)).sum::<usize>();
        elements.bytes.reserve(size * 17 / 16);
        if write(&messages[at..], &mut elements)? == Needs::Beginning {
            self.blocks.clear();
            (at, elements) = (0, Elements::default());
            write(messages, &mut elements)?;
        }
        let Elements { bytes, cuts, .. } = elements;
        let bytes = Bytes::from(bytes);
        let mut pieces = Vec::with_capacity(self.blocks.len() + 1);
        pieces.extend(self.blocks.iter().map(|block| block.bytes.clone()));
        pieces.push(bytes.clone());
        pieces.retain(|piece| !piece.is_empty());
        self.keep(&messages[at..], &bytes, &cuts);
        Ok(pieces)
    }

    /// Returns the size of everything that is kept, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.blocks.iter().map(|block| block.bytes.len()).sum()
    }

    /// Drops everything but the blocks that begin this conversation.
    fn keep_beginning_of(&mut self, request: &Request, messages: &[Arc<Message>]) {
        let is_form = self.form.as_ref().is_some_and(|form| {
            form.model == request.model && form.resend_reasoning == request.settings.resend_reasoning
        });
        if !is_form {
            self.blocks.clear();
            let (model, resend_reasoning) = (request.model.clone(), request.settings.resend_reasoning);
            self.form = Some(Form { model, resend_reasoning });
        }
        let is_beginning = messages.as_ptr() == request.messages.as_ptr();
        let now = if is_beginning { request.messages.beginning() } else { Beginning::default() };
        let of = std::mem::replace(&mut self.of, now);
        let written: usize = self.blocks.iter().map(|block| block.messages.len()).sum();
        if is_beginning && request.messages.continues(&of) && written <= messages.len() {
            return;
        }
        let (mut rest, mut count) = (messages, 0);
        for block in &mut self.blocks {
            let Some((own, after)) = rest.split_at_checked(block.messages.len()) else { break };
            if !own.iter().zip(&block.messages).all(|(own, kept)| Arc::ptr_eq(own, kept) || own == kept) {
                break;
            }
            // Equal messages are found by their identity the next time, and are not held twice.
            block.messages.clone_from_slice(own);
            (rest, count) = (after, count + 1);
        }
        self.blocks.truncate(count);
    }

    /// Keeps what was written of these messages, up to the last place where a block may end.
    fn keep(&mut self, messages: &[Arc<Message>], bytes: &Bytes, cuts: &[Cut]) {
        let mut from = Cut { messages: 0, bytes: 0 };
        for (index, cut) in cuts.iter().enumerate() {
            let is_last = index + 1 == cuts.len();
            if cut.messages == from.messages || (!is_last && cut.bytes - from.bytes < BLOCK_BYTES) {
                continue;
            }
            let new = &bytes[from.bytes..cut.bytes];
            let added = &messages[from.messages..cut.messages];
            match self.blocks.last_mut().filter(|last| last.bytes.len() < BLOCK_BYTES) {
                Some(last) => {
                    last.bytes = [&*last.bytes, new].concat().into();
                    last.messages.extend_from_slice(added);
                }
                // A copy, because a slice would keep the rest of the request in memory.
                None => {
                    self.blocks.push(Block { messages: added.to_vec(), bytes: Bytes::copy_from_slice(new) })
                }
            }
            from = *cut;
        }
    }
}
