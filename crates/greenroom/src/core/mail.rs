//! Messages from a session to its children: all messages that one handler decides on reach a child as one
//! mail, so it is woken once.
//!
//! Invariants: messages reach a child in order; no message waits for the disk, or longer than its handler.

use ractor::ActorRef;

#[cfg(test)]
mod tests;

/// As many messages as are usually sent together.
const SEVERAL: usize = 4;

/// One message, or several that were sent together.
#[derive(Debug)]
pub(crate) enum Mail<T> {
    One(T),
    Several(Vec<T>),
}

impl<T> From<T> for Mail<T> {
    fn from(message: T) -> Self {
        Self::One(message)
    }
}

impl<T> Mail<T> {
    /// Creates a mail of these messages; returns `None` if there are none.
    pub(crate) fn of(mut messages: Vec<T>) -> Option<Self> {
        match messages.len() {
            0 => None,
            1 => messages.pop().map(Self::One),
            _ => Some(Self::Several(messages)),
        }
    }

    /// Adds a message.
    fn and(self, message: T) -> Self {
        match self {
            Self::One(first) => {
                let mut messages = Vec::with_capacity(SEVERAL);
                messages.extend([first, message]);
                Self::Several(messages)
            }
            Self::Several(mut messages) => {
                messages.push(message);
                Self::Several(messages)
            }
        }
    }

    /// Handles each message, in order.
    pub(crate) fn each(self, mut handle: impl FnMut(T)) {
        match self {
            Self::One(message) => handle(message),
            Self::Several(messages) => messages.into_iter().for_each(handle),
        }
    }
}

/// The unsent messages to a child.
pub(crate) struct Outbox<T> {
    to: ActorRef<Mail<T>>,
    unsent: Option<Mail<T>>,
}

impl<T: Send + 'static> Outbox<T> {
    pub(crate) fn new(to: ActorRef<Mail<T>>) -> Self {
        Self { to, unsent: None }
    }

    /// The child.
    pub(crate) fn actor(&self) -> &ActorRef<Mail<T>> {
        &self.to
    }

    /// Adds a message for the next [`Self::send`].
    pub(crate) fn tell(&mut self, message: T) {
        self.unsent = Some(match self.unsent.take() {
            Some(mail) => mail.and(message),
            None => Mail::One(message),
        });
    }

    /// Sends the added messages.
    pub(crate) fn send(&mut self) {
        if let Some(mail) = self.unsent.take() {
            // A crashed child is replaced, and its successor gets the relevant state again.
            let _ = self.to.cast(mail);
        }
    }
}
