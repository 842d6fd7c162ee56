//! A position in the events of several sessions, as a text that a client keeps.
//!
//! The text is `WATERMARK`, and for each session with newer events `,CREATED.NEXT.ID`: its creation time, the sequence
//! number of its next event, and its id with `%` for characters that a header cannot carry. Clients treat it as opaque.
//!
//! Invariants: every event of a session that is not named, and that was recorded before the watermark, has been passed;
//! of a named one, every event before its next one. The watermark rises only when all sessions have been read, and stays a
//! minute behind the newest event, which is more than the recordings of two sessions overtake each other.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use greenroom::{Event, SessionSummary};

#[cfg(test)]
mod tests;

/// How far the watermark stays behind the newest event, in milliseconds.
const BEHIND_MS: u64 = 60_000;
/// How many sessions are named before those without new events are left out.
const NAMED_MAX: usize = 64;

/// The position.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Position {
    watermark_ms: u64,
    sessions: BTreeMap<Arc<str>, Named>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Named {
    created_at_ms: u64,
    next: u64,
    /// When the event before `next` was recorded. In a text, it is not known: later than everything.
    at_ms: u64,
}

/// Where reading a session begins: at this event, leaving out what was recorded before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct From {
    pub(super) seq: u64,
    pub(super) at_ms: u64,
}

/// How a durable event stands to the position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// It was passed.
    Before,
    /// It is the next one.
    Next,
    /// Others of its session are missing before it.
    Later,
}

impl Position {
    /// The end of these sessions.
    pub(super) fn of(sessions: &[SessionSummary]) -> Self {
        let newest = sessions.iter().map(|session| session.updated_at_ms).max().unwrap_or_default();
        let watermark_ms = newest.saturating_sub(BEHIND_MS);
        let named =
            sessions.iter().filter(|session| session.updated_at_ms >= watermark_ms || session.has_open_run);
        let name = |session: &SessionSummary| {
            let named = Named {
                created_at_ms: session.created_at_ms,
                next: session.entries,
                at_ms: session.updated_at_ms,
            };
            (Arc::from(session.id.as_str()), named)
        };
        Self { watermark_ms, sessions: named.map(name).collect() }
    }

    /// Whether a session may have events behind the position.
    pub(super) fn is_behind(&self, session: &SessionSummary) -> bool {
        match self.named(session) {
            Some(named) => named.next < session.entries,
            None => session.updated_at_ms >= self.watermark_ms,
        }
    }

    /// Where reading this session begins.
    pub(super) fn next(&self, session: &SessionSummary) -> From {
        match self.named(session) {
            Some(named) => From { seq: named.next, at_ms: 0 },
            None if session.created_at_ms >= self.watermark_ms => From { seq: 0, at_ms: 0 },
            None => From { seq: 0, at_ms: self.watermark_ms },
        }
    }

    fn named(&self, session: &SessionSummary) -> Option<&Named> {
        let named = self.sessions.get(session.id.as_str());
        named.filter(|named| named.created_at_ms >= session.created_at_ms)
    }

    /// How a durable event stands to the position.
    pub(super) fn seen(&self, event: &Event) -> Seen {
        // A session that is not named had no event since the watermark.
        let Some(named) = self.sessions.get(&event.session) else { return Seen::Next };
        let next = match named.created_at_ms.cmp(&event.session_created_at_ms) {
            std::cmp::Ordering::Greater => return Seen::Before,
            std::cmp::Ordering::Equal => named.next,
            std::cmp::Ordering::Less => 0,
        };
        match event.seq.cmp(&next) {
            std::cmp::Ordering::Less => Seen::Before,
            std::cmp::Ordering::Equal => Seen::Next,
            std::cmp::Ordering::Greater => Seen::Later,
        }
    }

    /// Moves behind an event; transient events move nothing.
    pub(super) fn pass(&mut self, event: &Event) {
        if !event.is_durable() {
            return;
        }
        let named =
            Named { created_at_ms: event.session_created_at_ms, next: event.seq + 1, at_ms: event.at_ms };
        self.sessions.insert(Arc::clone(&event.session), named);
    }

    /// Leaves out sessions without new events, if many are named. Only when every session has been read up to the newest
    /// event: others could have unread events before the new watermark.
    pub(super) fn settle(&mut self) {
        if self.sessions.len() <= NAMED_MAX {
            return;
        }
        // The time of a session that a text names is known when its next event comes.
        let times = self.sessions.values().map(|named| named.at_ms).filter(|at_ms| *at_ms < u64::MAX);
        let watermark_ms = times.max().unwrap_or_default().saturating_sub(BEHIND_MS);
        if watermark_ms > self.watermark_ms {
            self.watermark_ms = watermark_ms;
            self.sessions.retain(|_, named| named.at_ms >= watermark_ms);
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.watermark_ms)?;
        for (id, named) in &self.sessions {
            write!(f, ",{}.{}.", named.created_at_ms, named.next)?;
            for piece in form_urlencoded::byte_serialize(id.as_bytes()) {
                f.write_str(piece)?;
            }
        }
        Ok(())
    }
}

impl FromStr for Position {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let read = || {
            let mut parts = text.split(',');
            let watermark_ms = parts.next()?.parse().ok()?;
            let mut sessions = BTreeMap::new();
            for part in parts {
                let mut fields = part.splitn(3, '.');
                let created_at_ms = fields.next()?.parse().ok()?;
                let next = fields.next()?.parse().ok()?;
                let id = form_urlencoded::parse(fields.next()?.as_bytes()).next()?.0.into_owned();
                sessions.insert(Arc::from(id), Named { created_at_ms, next, at_ms: u64::MAX });
            }
            Some(Self { watermark_ms, sessions })
        };
        read().ok_or_else(|| format!("{text:?} is no position of these events; 0 is their beginning"))
    }
}
