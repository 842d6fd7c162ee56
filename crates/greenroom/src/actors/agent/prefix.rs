//! Whether each request of a session extends the one before it, as providers' prompt caches need it.
//!
//! Invariants: requests before and after a rewrite of the context (a compaction, an undo, a branch, a hand-off) are not
//! compared; a list that was only extended is not compared at all, and other messages by their identity first.

use std::sync::Arc;

use greenroom_kernel::messages::Beginning;
use greenroom_kernel::{Block, Message, ToolSpec};
use greenroom_provider::Request;

use crate::core::shared::SessionShared;
use crate::events::reasons::PrefixChange;

#[cfg(test)]
mod tests;

/// The newest request of a session, as far as the next one must repeat it.
#[derive(Debug, Default)]
pub(super) struct Prefix(Option<Sent>);

#[derive(Debug)]
struct Sent {
    /// How often the context had been rewritten.
    rewrites: u64,
    model: String,
    system: Option<String>,
    tools: Arc<[ToolSpec]>,
    /// The messages, and the identity of their list: if the next request continues it, no message is read.
    messages: Vec<Arc<Message>>,
    list: Beginning,
}

impl Prefix {
    /// Takes the next request, and returns why it does not extend the one before it, and how many messages it repeats;
    /// `None` if it does, or the context was rewritten in between. `has_hook` says whether hooks may have changed it.
    pub(super) fn next(
        &mut self,
        request: &Request,
        shared: &SessionShared,
        has_hook: bool,
    ) -> Option<(PrefixChange, u64)> {
        self.follow(request, shared.rewrites(), has_hook)
    }

    fn follow(&mut self, request: &Request, rewrites: u64, has_hook: bool) -> Option<(PrefixChange, u64)> {
        let mut before = self.0.take();
        let continued = before.as_mut().filter(|before| request.messages.continues(&before.list));
        let is_continued = continued.is_some();
        // The list of the request itself is not kept: it could not be extended then.
        let messages = match continued {
            Some(before) => {
                let mut messages = std::mem::take(&mut before.messages);
                messages.extend_from_slice(&request.messages[messages.len()..]);
                messages
            }
            None => request.messages.to_vec(),
        };
        self.0 = Some(Sent {
            rewrites,
            model: request.model.clone(),
            system: request.system.clone(),
            tools: Arc::clone(&request.tools),
            messages,
            list: request.messages.beginning(),
        });
        let before = before.filter(|before| before.rewrites == rewrites)?;
        if before.model != request.model {
            return Some((PrefixChange::Model, 0));
        }
        if before.system != request.system {
            return Some((PrefixChange::Instructions, 0));
        }
        if !Arc::ptr_eq(&before.tools, &request.tools) && before.tools != request.tools {
            return Some((PrefixChange::Tools, 0));
        }
        if is_continued {
            return None;
        }
        let is_same = |(one, other): (&Arc<Message>, &Arc<Message>)| Arc::ptr_eq(one, other) || one == other;
        let pairs = || before.messages.iter().zip(&request.messages);
        let kept = pairs().take_while(|pair| is_same(*pair)).count();
        if kept == before.messages.len() {
            return None;
        }
        let images = |message: Option<&Arc<Message>>| message.map_or(0, |message| images(message));
        let reason = if has_hook {
            PrefixChange::Hook
        } else if images(before.messages.get(kept)) > images(request.messages.get(kept)) {
            PrefixChange::Images
        } else {
            PrefixChange::Messages
        };
        Some((reason, kept as u64))
    }
}

fn images(message: &Message) -> usize {
    let blocks = match message {
        Message::User(blocks) => blocks,
        Message::ToolResult(result) => &result.content,
        Message::Assistant(_) => return 0,
    };
    blocks.iter().filter(|block| matches!(block, Block::Image(_))).count()
}
