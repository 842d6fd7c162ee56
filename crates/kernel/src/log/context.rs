//! The context that is sent, extended by what is new.
//!
//! Invariants: it equals the projection of the path; only the messages from the newest answer on can still change when the
//! path grows, because an answer closes what pairing changes before it. Whatever changes earlier messages makes the log
//! drop it.

use std::sync::Arc;

use crate::entry::Entry;
use crate::message::Message;
use crate::messages::Messages;
use crate::path::{entry_message, pair, unpaired};

/// The context of a path.
#[derive(Debug, Clone)]
pub(super) struct SentContext {
    messages: Messages,
    /// The number of messages before the newest answer.
    closed: usize,
    /// The newest answer and what follows it, before pairing.
    open: Vec<Arc<Message>>,
    /// The number of entries of the path in it.
    entries: usize,
}

impl SentContext {
    /// Makes the context of a path.
    pub(super) fn new(path: &[Arc<Entry>], pinned: &[Arc<Entry>]) -> Self {
        let mut closed = unpaired(path, pinned);
        let newest = closed.iter().rposition(|message| is_answer(message)).unwrap_or(0);
        let open = closed.split_off(newest);
        let messages = Messages::from(pair(&closed));
        let mut context = Self { closed: messages.len(), messages, open, entries: path.len() };
        context.pair_open();
        context
    }

    /// Adds the entries that the path has gained.
    pub(super) fn extend(&mut self, path: &[Arc<Entry>]) {
        let new = &path[self.entries..];
        self.entries = path.len();
        let mut has_new = false;
        for message in new.iter().filter_map(|entry| entry_message(&entry.kind)) {
            if is_answer(&message) {
                self.pair_open();
                self.closed = self.messages.len();
                self.open.clear();
            }
            self.open.push(message.into_owned());
            has_new = true;
        }
        if has_new {
            self.pair_open();
        }
    }

    /// Returns the messages.
    pub(super) fn messages(&self) -> Messages {
        self.messages.clone()
    }

    fn pair_open(&mut self) {
        self.messages.replace_from(self.closed, pair(&self.open));
    }
}

/// Whether pairing closes what is before this message.
fn is_answer(message: &Message) -> bool {
    message.as_answer().is_some_and(|answer| !answer.is_empty())
}
