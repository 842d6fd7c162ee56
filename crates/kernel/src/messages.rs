//! A conversation that is shared and extended, not copied.
//!
//! Invariants: cloning costs the same whatever the length; of two conversations with the same line, the shorter one begins
//! the longer one, so a [`Beginning`] is recognised without reading a message. Each message is counted once, however often
//! the conversation is extended and counted.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::message::Message;
use crate::path::media_bytes;
use crate::reasoning::ResentReasoning;
use crate::size::text_tokens_max;
use crate::unreported::Counted;

#[cfg(test)]
mod tests;

/// The messages of a conversation, oldest first. Reads as a slice.
///
/// Clones share the list. [`push`](Self::push) extends it in place if nobody else holds it, and otherwise copies the list
/// (not the messages) first.
#[derive(Clone, Default)]
pub struct Messages {
    list: Arc<Vec<Arc<Message>>>,
    /// The same for all lists that began as this one and were only extended.
    line: Line,
    media_bytes: u64,
    text_tokens_max: u64,
}

/// The beginning of a conversation, without its messages.
#[derive(Debug, Clone, Default)]
pub struct Beginning {
    line: Line,
    len: usize,
}

/// An identity, which equals its clones only, with what was counted of the conversations that have it.
#[derive(Debug, Clone, Default)]
struct Line(Arc<Mutex<Known>>);

/// The count of the first `len` messages, with the reasoning that is sent with them.
#[derive(Debug, Clone, Default)]
struct Known {
    len: usize,
    resent: ResentReasoning,
    counted: Counted,
}

impl Line {
    fn known(&self) -> MutexGuard<'_, Known> {
        // A count is replaced as a whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns another identity, for a conversation that has the first `len` messages of this one.
    fn branch(&self, len: usize) -> Self {
        let known = self.known();
        let kept = if known.len <= len { known.clone() } else { Known::default() };
        Self(Arc::new(Mutex::new(kept)))
    }
}

impl PartialEq for Line {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Messages {
    /// Adds a message at the end.
    pub fn push(&mut self, message: Arc<Message>) {
        self.media_bytes += media_bytes(&message);
        self.text_tokens_max += text_tokens_max(&message);
        if Arc::get_mut(&mut self.list).is_none() {
            // Whoever holds the old list may extend it otherwise.
            self.line = self.line.branch(self.list.len());
        }
        Arc::make_mut(&mut self.list).push(message);
    }

    /// Removes all messages from this position on.
    pub fn truncate(&mut self, len: usize) {
        if len < self.list.len() {
            let removed = &self.list[len..];
            self.media_bytes -= removed.iter().map(|message| media_bytes(message)).sum::<u64>();
            self.text_tokens_max -= removed.iter().map(|message| text_tokens_max(message)).sum::<u64>();
            self.line = self.line.branch(len);
            match Arc::get_mut(&mut self.list) {
                Some(list) => list.truncate(len),
                None => self.list = Arc::new(self.list[..len].to_vec()),
            }
        }
    }

    /// Replaces all messages from this position on. What stays the same there stays the same messages.
    pub fn replace_from(&mut self, at: usize, new: Vec<Arc<Message>>) {
        let old = &self.list[at..];
        let is_same = |(old, new): &(&Arc<Message>, &Arc<Message>)| Arc::ptr_eq(old, new) || old == new;
        let kept = old.iter().zip(&new).take_while(is_same).count();
        self.truncate(at + kept);
        new.into_iter().skip(kept).for_each(|message| self.push(message));
    }

    /// Returns the size of all images, in bytes.
    pub(crate) fn media_bytes(&self) -> u64 {
        self.media_bytes
    }

    /// Returns a bound of the estimated tokens without images, which is known without reading the messages.
    pub(crate) fn text_tokens_max(&self) -> u64 {
        self.text_tokens_max
    }

    /// Returns the sum of what `count` says of each message. Only messages that were not counted before are read, unless
    /// other reasoning is sent with them now.
    pub(crate) fn counted(&self, resent: &ResentReasoning, count: impl Fn(&Message) -> Counted) -> Counted {
        let mut known = self.line.known();
        let mut sum = match known.len <= self.list.len() && known.resent == *resent {
            true => std::mem::take(&mut *known),
            false => Known { resent: resent.clone(), ..Known::default() },
        };
        for message in &self.list[sum.len..] {
            sum.counted = sum.counted.plus(count(message));
        }
        sum.len = self.list.len();
        let counted = sum.counted;
        *known = sum;
        counted
    }

    /// Returns what identifies this conversation as the beginning of longer ones.
    pub fn beginning(&self) -> Beginning {
        Beginning { line: self.line.clone(), len: self.list.len() }
    }

    /// Whether this conversation is known to begin with that one, by identity alone: it may begin with equal messages even
    /// if not.
    pub fn continues(&self, beginning: &Beginning) -> bool {
        self.line == beginning.line && beginning.len <= self.list.len()
    }

    /// Returns the messages as a vector, which is copied if it is shared.
    pub fn into_vec(self) -> Vec<Arc<Message>> {
        Arc::unwrap_or_clone(self.list)
    }
}

impl Beginning {
    /// Returns the number of messages.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no messages.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Deref for Messages {
    type Target = [Arc<Message>];

    fn deref(&self) -> &Self::Target {
        &self.list
    }
}

impl From<Vec<Arc<Message>>> for Messages {
    fn from(list: Vec<Arc<Message>>) -> Self {
        let media_bytes = list.iter().map(|message| media_bytes(message)).sum();
        let text_tokens_max = list.iter().map(|message| text_tokens_max(message)).sum();
        Self { list: Arc::new(list), line: Line::default(), media_bytes, text_tokens_max }
    }
}

impl FromIterator<Arc<Message>> for Messages {
    fn from_iter<T: IntoIterator<Item = Arc<Message>>>(messages: T) -> Self {
        messages.into_iter().collect::<Vec<_>>().into()
    }
}

impl<'a> IntoIterator for &'a Messages {
    type Item = &'a Arc<Message>;
    type IntoIter = std::slice::Iter<'a, Arc<Message>>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.iter()
    }
}

impl PartialEq for Messages {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.list, &other.list) || self.list == other.list
    }
}

impl fmt::Debug for Messages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.list.fmt(f)
    }
}
