//! What a session says to its children: all that one handler decides comes to a child as one mail, so that it is woken once.
//!
//! Invariants: what is said to a child reaches it in the order in which it was said; nothing is kept back while its sender
//! waits for the disk, or longer than its handler.

use ractor::ActorRef;

#[cfg(test)]
mod tests;

/// One message, or several that were said in one go.
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
    /// These messages; `None` where there are none.
    pub(crate) fn of(mut messages: Vec<T>) -> Option<Self> {
        match messages.len() {
            0 => None,
            1 => messages.pop().map(Self::One),
            _ => Some(Self::Several(messages)),
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

/// What is to be said to a child.
pub(crate) struct Outbox<T> {
    to: ActorRef<Mail<T>>,
    unsent: Vec<T>,
}

impl<T: Send + 'static> Outbox<T> {
    pub(crate) fn new(to: ActorRef<Mail<T>>) -> Self {
        Self { to, unsent: Vec::new() }
    }

    /// The child.
    pub(crate) fn actor(&self) -> &ActorRef<Mail<T>> {
        &self.to
    }

    /// Says this to the child with the next [`Self::send`].
    pub(crate) fn tell(&mut self, message: T) {
        if self.unsent.is_empty() {
            // Two is what most handlers say, and an idle session holds no memory for it.
            self.unsent.reserve_exact(2);
        }
        self.unsent.push(message);
    }

    /// Sends what was said since the last time.
    pub(crate) fn send(&mut self) {
        if let Some(mail) = Mail::of(std::mem::take(&mut self.unsent)) {
            // A child that died is replaced, and told anew what matters.
            let _ = self.to.cast(mail);
        }
    }
}
