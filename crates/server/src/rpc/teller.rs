//! Tells one session's events, and the results of what was asked of it.
//!
//! Invariants: a result follows every event that was published before it, and that of a compaction the event of its end;
//! each promised result is told, whatever becomes of the session.

use greenroom::event::EventKind;
use greenroom::{Delivery, Event, Subscription};
use greenroom_kernel::EntryId;
use serde_json::json;
use tokio::sync::mpsc;

use super::{send, wire};

/// What a teller is to tell besides events.
pub(super) enum Telling {
    /// A result.
    Result {
        /// The line that says it.
        line: String,
        /// The start's entry of the compaction that it is about, if it is about one.
        compaction: Option<EntryId>,
    },
    /// The events end here.
    NoMoreEvents,
}

/// The teller of one session. It ends when nobody can ask it for more.
pub(super) struct Teller {
    session: String,
    events: Subscription,
    telling: mpsc::Receiver<Telling>,
    out: mpsc::Sender<String>,
    /// Whether no more events are told.
    is_quiet: bool,
    /// The newest compaction whose end was told, by the entry of its start.
    newest_end: Option<EntryId>,
    /// Whether events are missing since the last one of a compaction: the end that a result waits for may be among them.
    is_gapped: bool,
    /// Results of compactions whose end was not told yet.
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

    /// Tells the events that are there already. More may come meanwhile: those are not waited for.
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
            _ => {}
        }
    }

    /// Tells the results of compactions that began up to this entry; all of them where there is none.
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
