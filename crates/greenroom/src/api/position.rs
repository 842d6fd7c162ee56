//! A position in the events of one or several sessions, as a text that a program or a client keeps.
//!
//! The text is `WATERMARK`, and for each named session `,CREATED.NEXT.ID`: its creation time, the sequence number of its
//! next event, and its id with `%` for characters that a header cannot carry. Readers treat it as opaque.
//!
//! Invariants: every event of a session that is not named, and that was recorded before the watermark, has been passed;
//! of a named one, every event before its next one. The watermark stays a minute behind the time up to which the reader
//! has passed the events of all sessions: a minute is more than the recordings of two sessions overtake each other. The
//! reader knows this time ([`Follow`](crate::Follow)); it does not follow from the passed events.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::api::sessions::SessionSummary;
use crate::events::event::Event;

#[cfg(test)]
mod tests;

/// How far the watermark stays behind the newest event, in milliseconds.
const BEHIND_MS: u64 = 60_000;
/// How many sessions are named before those without new events are left out.
const NAMED_MAX: usize = 64;

/// How far a program has followed events: see [`Runtime::follow`](crate::Runtime::follow). Its text can be stored, and is the
/// id of a server-sent event. It names the sessions with new events, so it is short for any number of sessions that are
/// quiet. The default is the beginning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Position {
    watermark_ms: u64,
    sessions: BTreeMap<Arc<str>, Named>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Named {
    created_at_ms: u64,
    next: u64,
    /// When the event before `next` was recorded. If it is not known, as in a text: later than everything.
    at_ms: u64,
}

/// The place in a session's log at which reading begins, or at which an event is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum From {
    /// At the event with this sequence number.
    Event(u64),
    /// At the first event that was recorded at this time or later.
    Time(u64),
}

/// How a durable event stands to the position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// It was passed.
    Before,
    /// It is the next one.
    Next,
    /// Others of its session are missing before it.
    Later,
}

impl Position {
    /// Returns the position after a durable event, in a stream of its session alone.
    pub fn after(event: &Event) -> Self {
        let mut position = Self::default();
        position.pass(event);
        position
    }

    /// Returns the position before this event of a session alone.
    pub(crate) fn before(id: &Arc<str>, created_at_ms: u64, next: u64) -> Self {
        let named = Named { created_at_ms, next, at_ms: u64::MAX };
        Self { watermark_ms: 0, sessions: BTreeMap::from([(Arc::clone(id), named)]) }
    }

    /// Reads the text of a position; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(',');
        let watermark_ms = number(parts.next()?)?;
        let mut sessions = BTreeMap::new();
        for part in parts {
            let mut fields = part.splitn(3, '.');
            let created_at_ms = number(fields.next()?)?;
            let next = number(fields.next()?)?;
            let id = form_urlencoded::parse(fields.next()?.as_bytes()).next()?.0.into_owned();
            sessions.insert(Arc::from(id), Named { created_at_ms, next, at_ms: u64::MAX });
        }
        Some(Self { watermark_ms, sessions })
    }

    /// Returns the end of these sessions.
    pub(crate) fn end_of(sessions: &[SessionSummary]) -> Self {
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

    /// Whether a session may have events after the position.
    pub(crate) fn is_behind(&self, session: &SessionSummary) -> bool {
        match self.named(session) {
            Some(named) => named.next < session.entries,
            None => session.updated_at_ms >= self.watermark_ms,
        }
    }

    /// Returns where reading this session begins.
    pub(crate) fn next(&self, session: &SessionSummary) -> From {
        match self.named(session) {
            Some(named) => From::Event(named.next),
            None if session.created_at_ms >= self.watermark_ms => From::Event(0),
            None => From::Time(self.watermark_ms),
        }
    }

    fn named(&self, session: &SessionSummary) -> Option<&Named> {
        let named = self.sessions.get(session.id.as_str());
        named.filter(|named| named.created_at_ms >= session.created_at_ms)
    }

    /// Returns the sequence number of the next event of an event's session; `None` if it is not known.
    fn next_of(&self, event: &Event) -> Option<u64> {
        let created_at_ms = event.session_created_at_ms;
        match self.sessions.get(&event.session) {
            Some(named) => match named.created_at_ms.cmp(&created_at_ms) {
                // A late event of a deleted session.
                Ordering::Greater => Some(u64::MAX),
                Ordering::Equal => Some(named.next),
                Ordering::Less => Some(0),
            },
            None if created_at_ms >= self.watermark_ms => Some(0),
            // A late event from before the watermark.
            None if event.at_ms < self.watermark_ms => Some(u64::MAX),
            // The session had no event since the watermark.
            None => None,
        }
    }

    /// Whether it is known which event of an event's session is the next one.
    pub(crate) fn knows_next(&self, event: &Event) -> bool {
        self.next_of(event).is_some()
    }

    /// Returns how a durable event stands to the position.
    pub(crate) fn seen(&self, event: &Event) -> Seen {
        match self.next_of(event).map_or(Ordering::Equal, |next| event.seq.cmp(&next)) {
            Ordering::Less => Seen::Before,
            Ordering::Equal => Seen::Next,
            Ordering::Greater => Seen::Later,
        }
    }

    /// Whether a transient event belongs here: all durable events before it have been passed, and none after it.
    pub(crate) fn is_at(&self, event: &Event) -> bool {
        let is_first = |next: u64| next == 0 && event.seq == 0;
        self.next_of(event).is_none_or(|next| event.seq.checked_add(1) == Some(next) || is_first(next))
    }

    /// Begins a session with this event, unless it is named or the event is older than the watermark.
    pub(crate) fn begin(&mut self, event: &Event) {
        if event.at_ms >= self.watermark_ms {
            let named =
                Named { created_at_ms: event.session_created_at_ms, next: event.seq, at_ms: event.at_ms };
            self.sessions.entry(Arc::clone(&event.session)).or_insert(named);
        }
    }

    /// Moves past a durable event; a transient one moves nothing.
    pub fn pass(&mut self, event: &Event) {
        if !event.is_durable() {
            return;
        }
        let named =
            Named { created_at_ms: event.session_created_at_ms, next: event.seq + 1, at_ms: event.at_ms };
        self.sessions.insert(Arc::clone(&event.session), named);
    }

    /// Leaves out sessions without new events, if many are named. `passed_ms` is a time: of all sessions, whatever was in
    /// the log or published at that time has been passed.
    pub(crate) fn settle(&mut self, passed_ms: u64) {
        let watermark_ms = passed_ms.saturating_sub(BEHIND_MS);
        if self.sessions.len() > NAMED_MAX && watermark_ms > self.watermark_ms {
            self.watermark_ms = watermark_ms;
            // The time of a session that a text names is known when its next event comes.
            self.sessions.retain(|_, named| named.at_ms >= watermark_ms);
        }
    }

    /// Notes what is known of the sessions that a text named. If these are all sessions, others are forgotten.
    pub(crate) fn learn(&mut self, sessions: &[SessionSummary], are_all: bool) {
        let mut stored = BTreeMap::new();
        for session in sessions {
            if let Some((id, named)) = self.sessions.get_key_value(session.id.as_str()) {
                let mut named = *named;
                if named.created_at_ms == session.created_at_ms && named.next == session.entries {
                    named.at_ms = session.updated_at_ms;
                }
                stored.insert(Arc::clone(id), named);
            }
        }
        if are_all {
            self.sessions = stored;
        } else {
            self.sessions.extend(stored);
        }
    }

    /// Returns the position in the events of one session: its beginning if the session is not named.
    #[must_use]
    pub fn only(&self, session: &str) -> Self {
        let named = self.sessions.get_key_value(session);
        let sessions = named.map(|(id, named)| (Arc::clone(id), *named)).into_iter().collect();
        Self { watermark_ms: 0, sessions }
    }

    /// Takes over what another position says of the sessions that it names.
    pub(crate) fn name(&mut self, other: &Self) {
        self.sessions.extend(other.sessions.iter().map(|(id, named)| (Arc::clone(id), *named)));
    }

    /// The named sessions, each with the position in it alone.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = (&Arc<str>, Self)> {
        self.sessions.iter().map(|(id, named)| {
            (id, Self { watermark_ms: 0, sessions: BTreeMap::from([(Arc::clone(id), *named)]) })
        })
    }

    /// Compares the places in a session's log: one that is not named is the least.
    pub(crate) fn compare(&self, other: &Self, session: &str) -> Ordering {
        let place =
            |position: &Self| position.sessions.get(session).map(|named| (named.created_at_ms, named.next));
        place(self).cmp(&place(other))
    }

    /// Returns how many events of this session come after the position, as far as it is known without reading its log.
    pub(crate) fn behind(&self, session: &SessionSummary) -> u64 {
        match (self.named(session), self.is_behind(session)) {
            (Some(named), _) => session.entries.saturating_sub(named.next),
            (None, true) => session.entries,
            (None, false) => 0,
        }
    }
}

/// Reads digits: a sign would be read, too.
fn number(text: &str) -> Option<u64> {
    text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
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

impl Serialize for Position {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Position {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom(format!("{text:?} is not a position")))
    }
}
