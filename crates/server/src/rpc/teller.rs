//! The teller of a session: sends its events, and the outcomes of the work that was started in it.
//!
//! Invariants: an outcome follows every event that was published before it, and that of a compaction the event of its
//! end; each promised outcome is sent, whatever happens to the session.

use greenroom::EventKind;
use greenroom::{Delivery, Event, Subscription};
use greenroom_kernel::EntryId;
use serde_json::json;
use tokio::sync::mpsc;

use super::{send, wire};

/// A message to a teller.
pub(super) enum Telling {
    /// An outcome.
    Result {
        /// The line to send.
        line: String,
        /// The entry of the compaction's start, if it concerns one.
        compaction: Option<EntryId>,
    },
    /// No more events are sent.
    NoMoreEvents,
}

/// The teller of one session. It ends when its senders are gone.
pub(super) struct Teller {
    session: String,
    events: Subscription,
    telling: mpsc::Receiver<Telling>,
    out: mpsc::Sender<String>,
    /// Whether events are no longer sent.
    is_quiet: bool,
    /// The newest compaction whose end was sent, by the entry of its start.
    newest_end: Option<EntryId>,
    /// Whether events are missing since the end of the last compaction: the end that an outcome waits for may be among
    /// them.
    is_gapped: bool,
    /// Outcomes of compactions whose end was not sent yet.
    held: Vec<(EntryId, String)>,
}

impl Teller {
    pub(super) fn new(
        session: &str,
        events: Subscription,
        telling: mpsc::Receiver<Telling>,
        out: mpsc::Sender<String>,
    ) -> Self {
        let session = session.to_owned();
        Self {
            session,
            events,
            telling,
            out,
            is_quiet: false,
            newest_end: None,
            is_gapped: false,
            held: Vec::new(),
        }
    }

    pub(super) async fn run(mut self) {
        loop {
            tokio::select! {
                biased;
                telling = self.telling.recv() => match telling {
                    Some(Telling::Result { line, compaction }) => {
                        self.catch_up().await;
                        let is_coming = |id: &EntryId| {
                            !self.is_quiet && !self.is_gapped && self.newest_end < Some(*id)
                        };
                        match compaction.filter(is_coming) {
                            Some(id) => self.held.push((id, line)),
                            None => send(&self.out, line).await,
                        }
                    }
                    Some(Telling::NoMoreEvents) => {
                        self.catch_up().await;
                        self.is_quiet = true;
                        self.release(None).await;
                    }
                    None => break,
                },
                delivery = self.events.next(), if !self.is_quiet => match delivery {
                    Some(delivery) => self.tell(delivery).await,
                    // The runtime has ended.
                    None => self.is_quiet = true,
                },
            }
        }
        self.catch_up().await;
        self.release(None).await;
    }

    /// Sends the events that are there already, and does not wait for more.
    async fn catch_up(&mut self) {
        for _ in 0..self.events.waiting() {
            match self.events.try_next() {
                Some(delivery) if !self.is_quiet => self.tell(delivery).await,
                Some(_) | None => return,
            }
        }
    }

    async fn tell(&mut self, delivery: Delivery) {
        match delivery {
            Delivery::Event(event) => {
                send(&self.out, wire::notification("event", &json!(*event))).await;
                self.note(&event).await;
            }
            Delivery::Gap { from, to, sessions } => {
                let mut params = json!({ "type": "gap", "session_id": self.session, "from": from, "to": to });
                if let Some((_, from_seq)) = sessions.first() {
                    params["from_seq"] = json!(from_seq);
                }
                send(&self.out, wire::notification("event", &params)).await;
                self.is_gapped = true;
                self.release(None).await;
            }
        }
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "all other events say nothing of compactions")]
    async fn note(&mut self, event: &Event) {
        match &event.kind {
            EventKind::CompactionStart { .. } => self.is_gapped = false,
            EventKind::CompactionEnd(end) => {
                self.is_gapped = false;
                self.newest_end = self.newest_end.max(end.started);
                self.release(end.started).await;
            }
            // Another session may get the id.
            EventKind::SessionDeleted { .. } => self.newest_end = None,
            _ => {}
        }
    }

    /// Sends the outcomes of compactions that began up to this entry; all of them if there is none.
    async fn release(&mut self, up_to: Option<EntryId>) {
        for (id, line) in std::mem::take(&mut self.held) {
            if up_to.is_none_or(|up_to| id <= up_to) {
                send(&self.out, line).await;
            } else {
                self.held.push((id, line));
            }
        }
    }
}
