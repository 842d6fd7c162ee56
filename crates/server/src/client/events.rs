//! The events that a client receives.
//!
//! Invariants: a listener's queue is bounded; events that do not fit are reported as a gap, at their place.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};

use greenroom::Event;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// How many events may wait for a slow listener.
pub(super) const EVENTS_MAX: usize = 8_192;

/// A notification about a session.
#[derive(Debug, Clone, PartialEq)]
pub enum Received {
    /// An event.
    Event(Arc<Event>),
    /// Some events are missing here, as a reader on the way was too slow.
    Gap {
        /// The session.
        session_id: String,
        /// The first durable event that is missing, if one is: [`Replay`](crate::operations::Replay) returns the events
        /// from there on.
        from_seq: Option<u64>,
    },
    /// A note for this client's user, such as why an edit of the configuration is not used. It belongs to no session.
    Warning(String),
}

/// The events of the sessions that a client has opened. Dropping it unsubscribes.
#[derive(Debug)]
pub struct Events {
    listener: Arc<Listener>,
}

impl Events {
    /// The next event; `None` when the connection has ended and all were read.
    pub async fn next(&mut self) -> Option<Received> {
        loop {
            let news = self.listener.news.notified();
            {
                let mut queue = self.listener.queue.lock();
                match queue.pop() {
                    Some(received) => return Some(received),
                    None if queue.is_over => return None,
                    None => {}
                }
            }
            news.await;
        }
    }

    /// The next event, if one is there.
    pub fn try_next(&mut self) -> Option<Received> {
        self.listener.queue.lock().pop()
    }
}

/// The listeners.
#[derive(Debug, Default)]
pub(super) struct Listeners(Vec<Weak<Listener>>);

#[derive(Debug)]
struct Listener {
    /// The session; `None` for all.
    session_id: Option<String>,
    queue: Mutex<Queue>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Received>,
    /// The gaps after the queued events, by session.
    missing: BTreeMap<String, Option<u64>>,
    is_over: bool,
}

impl Queue {
    fn push(&mut self, received: Received) {
        if self.waiting.len() + self.missing.len() < EVENTS_MAX {
            let missing = std::mem::take(&mut self.missing);
            let gap = |(session_id, from_seq)| Received::Gap { session_id, from_seq };
            self.waiting.extend(missing.into_iter().map(gap));
            self.waiting.push_back(received);
            return;
        }
        let (session_id, from_seq) = match received {
            Received::Event(event) => {
                (event.session.to_string(), Some(event.seq).filter(|_| event.is_durable()))
            }
            Received::Gap { session_id, from_seq } => (session_id, from_seq),
            // These are few and short.
            warning @ Received::Warning(_) => return self.waiting.push_back(warning),
        };
        let known = self.missing.entry(session_id).or_default();
        // Events arrive in order, so that the first missing one stays the first.
        *known = known.or(from_seq);
    }

    fn pop(&mut self) -> Option<Received> {
        self.waiting.pop_front().or_else(|| {
            let (session_id, from_seq) = self.missing.pop_first()?;
            Some(Received::Gap { session_id, from_seq })
        })
    }
}

impl Listeners {
    pub(super) fn add(&mut self, session_id: Option<String>, is_over: bool) -> Events {
        let queue = Mutex::new(Queue { is_over, ..Queue::default() });
        let listener = Arc::new(Listener { session_id, queue, news: Notify::new() });
        self.0.push(Arc::downgrade(&listener));
        Events { listener }
    }

    pub(super) fn event(&mut self, event: &Arc<Event>) {
        self.tell(Some(&event.session), || Received::Event(Arc::clone(event)));
    }

    pub(super) fn gap(&mut self, session_id: &str, from_seq: Option<u64>) {
        self.tell(Some(session_id), || Received::Gap { session_id: session_id.to_owned(), from_seq });
    }

    /// Sends a note for the user.
    pub(super) fn warning(&mut self, message: &str) {
        self.tell(None, || Received::Warning(message.to_owned()));
    }

    /// Ends all subscriptions.
    pub(super) fn end(&mut self) {
        for listener in self.0.drain(..).filter_map(|listener| listener.upgrade()) {
            listener.queue.lock().is_over = true;
            listener.news.notify_waiters();
        }
    }

    fn tell(&mut self, session_id: Option<&str>, received: impl Fn() -> Received) {
        self.0.retain(|listener| {
            let Some(listener) = listener.upgrade() else { return false };
            if listener
                .session_id
                .as_deref()
                .is_none_or(|wanted| session_id.is_none_or(|session| session == wanted))
            {
                listener.queue.lock().push(received());
                listener.news.notify_waiters();
            }
            true
        });
    }
}
