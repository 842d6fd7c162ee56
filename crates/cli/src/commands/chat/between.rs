//! Events of a chat's session between its runs: compactions, warnings, and changes by others.
//!
//! Invariants: each event is shown once, either here or in the run's view, whichever receives it first.

use std::sync::Arc;

use greenroom::EventKind;
use greenroom::{Event, EventType};
use greenroom_server::{Events, Received};

/// The events shown between runs.
const TOLD: [EventType; 7] = [
    EventType::CompactionStart,
    EventType::CompactionEnd,
    EventType::Warning,
    EventType::SessionRestarted,
    EventType::SessionFailed,
    EventType::SessionDeleted,
    EventType::Recorded,
];

/// The events of one session between its runs.
#[derive(Debug)]
pub(super) struct Between {
    events: Events,
    /// The position of the newest event that was shown.
    told: Option<(u64, u64)>,
    /// The size of the context that is being compacted, in tokens.
    compacting: Option<u64>,
}

/// Something to show.
#[derive(Debug)]
pub(super) enum News {
    /// An event.
    Event(Arc<Event>),
    /// A warning for the user, for example about the configuration.
    Warning(String),
}

impl Between {
    /// Creates the reader of a connection's events.
    pub(super) fn new(events: Events) -> Self {
        Self { events, told: None, compacting: None }
    }

    /// Waits for the next news. After the end of the connection, there are none.
    pub(super) async fn next(&mut self) -> News {
        loop {
            match self.events.next().await {
                Some(received) => {
                    if let Some(news) = self.news(received) {
                        return news;
                    }
                }
                None => std::future::pending().await,
            }
        }
    }

    /// Returns the next news if it has arrived.
    pub(super) fn next_now(&mut self) -> Option<News> {
        while let Some(received) = self.events.try_next() {
            if let Some(news) = self.news(received) {
                return Some(news);
            }
        }
        None
    }

    fn news(&mut self, received: Received) -> Option<News> {
        match received {
            Received::Event(event) if !TOLD.contains(&event.kind.event_type()) => None,
            Received::Event(event) => self.is_new(&event).then_some(News::Event(event)),
            Received::Warning(text) => Some(News::Warning(text)),
            Received::Gap { .. } => None,
        }
    }

    /// Whether an event was not shown yet; from then on it counts as shown.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other events say nothing of compactions")]
    pub(super) fn is_new(&mut self, event: &Event) -> bool {
        if !TOLD.contains(&event.kind.event_type()) {
            return true;
        }
        let place = (event.seq, event.n.unwrap_or(0));
        if self.told.is_some_and(|told| place <= told) {
            return false;
        }
        self.told = Some(place);
        match &event.kind {
            EventKind::CompactionStart { tokens_before, .. } => self.compacting = Some(*tokens_before),
            EventKind::CompactionEnd(_) => self.compacting = None,
            _ => {}
        }
        true
    }

    /// The size of the context that is being compacted, in tokens, if a compaction is in progress.
    pub(super) fn compacting(&self) -> Option<u64> {
        self.compacting
    }
}
