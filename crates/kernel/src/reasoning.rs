//! Which reasoning of earlier answers a request carries, and its share of the request's size.
//!
//! Invariants: this is the one rule. A provider builds its requests with [`ResentReasoning::carries`], and
//! the size of a context is computed with the same function, so that the two cannot differ.

use std::borrow::Cow;
use std::sync::Arc;

use crate::entry::Entry;
use crate::message::{AssistantMessage, Block, Message, Native, Part};
use crate::size::opaque_tokens;

#[cfg(test)]
mod tests;

/// Which reasoning of earlier answers a provider sends back to a model. The default is none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ResentReasoning {
    /// The provider whose answers are sent back with their readable reasoning; `None`: no answer is.
    pub readable_of: Option<String>,
    /// The dialect whose opaque data is sent back, together with the readable reasoning of the answers that have
    /// such data; `None`: none is.
    pub dialect: Option<String>,
    /// The only provider whose opaque data is sent back; `None`: that of every provider with the dialect.
    pub opaque_of: Option<String>,
}

impl ResentReasoning {
    /// Whether a request carries this part of this answer. Text and calls are always sent back.
    pub fn carries(&self, answer: &AssistantMessage, part: &Part) -> bool {
        match part {
            Part::Text(_) | Part::ToolCall(_) => true,
            Part::Reasoning(_) => {
                self.readable_of.as_ref() == Some(&answer.provider)
                    || answer.content.iter().any(|part| self.knows_part(answer, part))
            }
            Part::OpaqueReasoning { .. } | Part::OpaqueBlock { .. } => self.knows_part(answer, part),
        }
    }

    /// Whether a request carries this native content, in place of the text before it.
    fn carries_native(&self, native: &Native) -> bool {
        self.knows(&native.dialect, &native.provider)
    }

    /// Whether opaque data of this dialect, from this provider, is sent back.
    fn knows(&self, dialect: &String, provider: &String) -> bool {
        self.dialect.as_ref() == Some(dialect) && self.opaque_of.as_ref().is_none_or(|own| own == provider)
    }

    fn knows_part(&self, answer: &AssistantMessage, part: &Part) -> bool {
        match part {
            Part::OpaqueReasoning { dialect, .. } | Part::OpaqueBlock { dialect, .. } => {
                self.knows(dialect, &answer.provider)
            }
            Part::Text(_) | Part::Reasoning(_) | Part::ToolCall(_) => false,
        }
    }

    /// Returns the size of the reasoning that a request carries with this entry, in estimated tokens.
    ///
    /// An answer without content is not sent, and neither is its reasoning. Signed or encrypted data holds the
    /// reasoning that is readable beside it, so the larger of the two counts.
    pub fn tokens(&self, entry: &Entry) -> u64 {
        let Some(Message::Assistant(answer)) = entry.kind.as_message().map(|message| &**message) else {
            return 0;
        };
        if answer.is_empty() {
            return 0;
        }
        let is_carried = |part: &&Part| self.carries(answer, part);
        let (mut is_readable, mut opaque) = (false, 0u64);
        for part in answer.content.iter().filter(is_carried) {
            match part {
                Part::Reasoning(_) => is_readable = true,
                Part::OpaqueReasoning { data, .. } => opaque = opaque.saturating_add(opaque_tokens(data)),
                Part::Text(_) | Part::OpaqueBlock { .. } | Part::ToolCall(_) => {}
            }
        }
        opaque.max(if is_readable { entry.reasoning_tokens } else { 0 })
    }

    /// Returns an entry's size in a request, in estimated tokens: the entry, and the reasoning that is sent
    /// back with it; or the provider's own summary in place of the readable one.
    pub(crate) fn sent_tokens(&self, entry: &Entry) -> u64 {
        let native = entry.kind.as_compaction().and_then(|compaction| compaction.native.as_ref());
        match native.filter(|summary| self.carries_native(&summary.native)) {
            Some(summary) => summary.tokens,
            None => entry.tokens.saturating_add(self.tokens(entry)),
        }
    }

    /// Returns the path with each entry's size in a request, for planning. Not copied if no reasoning is
    /// sent.
    pub fn sized<'a>(&self, path: &'a [Arc<Entry>]) -> Cow<'a, [Arc<Entry>]> {
        if !path.iter().any(|entry| self.sent_tokens(entry) != entry.tokens) {
            return Cow::Borrowed(path);
        }
        let sized = |entry: &Arc<Entry>| match self.sent_tokens(entry) {
            tokens if tokens == entry.tokens => Arc::clone(entry),
            tokens => Arc::new(Entry { tokens, ..Entry::clone(entry) }),
        };
        Cow::Owned(path.iter().map(sized).collect())
    }

    /// Returns the message without the reasoning and native content that a request does not carry, and without the
    /// text that native content replaces. Not copied if it carries all.
    pub fn strip<'a>(&self, message: &'a Arc<Message>) -> Cow<'a, Arc<Message>> {
        let answer = match &**message {
            Message::Assistant(answer) => answer,
            Message::User(blocks) if blocks.iter().any(|block| matches!(block, Block::Native(_))) => {
                return Cow::Owned(Arc::new(Message::User(self.one_form(blocks))));
            }
            Message::User(_) | Message::ToolResult(_) => return Cow::Borrowed(message),
        };
        if answer.content.iter().all(|part| self.carries(answer, part)) {
            return Cow::Borrowed(message);
        }
        let mut sent = answer.clone();
        sent.content.retain(|part| self.carries(answer, part));
        Cow::Owned(Arc::new(Message::Assistant(sent)))
    }

    /// Returns the blocks with one of the two forms of each text that has a native one.
    fn one_form(&self, blocks: &[Block]) -> Vec<Block> {
        let mut sent: Vec<Block> = Vec::with_capacity(blocks.len());
        for block in blocks {
            match block {
                Block::Native(native) if self.carries_native(native) => {
                    sent.pop();
                    sent.push(block.clone());
                }
                Block::Native(_) => {}
                Block::Text(_) | Block::Image(_) => sent.push(block.clone()),
            }
        }
        sent
    }
}
