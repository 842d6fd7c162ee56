//! The mode of the session: what this chat and others set, and what is shown.
//!
//! Invariants: the newest event is shown, or the reply to a request if no event has come since; an event is this
//! chat's own only if a request of this chat for the same mode waits for it; a choice of this chat ends when another
//! one changes the mode after it.

use greenroom::permissions::Mode;

#[cfg(test)]
mod tests;

/// A request of this chat, until it is refused, or until both its reply and its event have come.
#[derive(Debug)]
struct Request {
    ticket: u64,
    mode: Mode,
    is_accepted: bool,
    /// Whether its event has come, or none comes because the session has the mode already.
    is_heard: bool,
    /// Whether an event has come since it was sent.
    has_event_since: bool,
    /// Whether a later event has another mode.
    is_over: bool,
}

/// The session's mode.
#[derive(Debug, Default)]
pub(super) struct Modes {
    shown: Option<Mode>,
    /// The mode that the user chose in this chat, as long as it holds.
    chosen: Option<Mode>,
    requests: Vec<Request>,
    /// The ticket of the last request, and of the newest accepted one.
    last: u64,
    accepted: u64,
}

impl Modes {
    /// The mode to show.
    pub(super) fn shown(&self) -> Option<Mode> {
        self.shown
    }

    /// The mode that the user chose in this chat, as long as it holds.
    pub(super) fn chosen(&self) -> Option<Mode> {
        self.chosen
    }

    /// Notes the mode of the session when it is opened, also again. Nothing of the old connection counts any more.
    pub(super) fn opened(&mut self, mode: Option<Mode>) {
        self.requests.clear();
        self.shown = mode;
    }

    /// Leaves the session.
    pub(super) fn leaves(&mut self) {
        self.requests.clear();
        (self.shown, self.chosen) = (None, None);
    }

    /// Notes that events were missed, perhaps those of accepted requests.
    pub(super) fn missed(&mut self) {
        self.requests.retain(|request| !request.is_accepted);
    }

    /// Notes that this chat sets a mode. Returns the request's ticket.
    pub(super) fn sets(&mut self, mode: Mode) -> u64 {
        self.last += 1;
        self.requests.push(Request {
            ticket: self.last,
            mode,
            is_accepted: false,
            is_heard: self.shown == Some(mode),
            has_event_since: false,
            is_over: false,
        });
        self.last
    }

    /// Handles the reply that accepts a request; `now` is the session's mode. Returns the mode if it is the user's
    /// choice from now on.
    pub(super) fn accepted(&mut self, ticket: u64, now: Option<Mode>) -> Option<Mode> {
        // After a switch to another session, the reply means nothing.
        let place = self.requests.iter().position(|request| request.ticket == ticket)?;
        let request = self.requests.get_mut(place)?;
        request.is_accepted = true;
        let (mode, is_over, has_event_since) = (request.mode, request.is_over, request.has_event_since);
        if is_over || request.is_heard || now.is_none() {
            self.requests.remove(place);
        }
        if is_over || ticket < self.accepted {
            return None;
        }
        (self.accepted, self.chosen) = (ticket, Some(mode));
        if !has_event_since {
            self.shown = now;
        }
        Some(mode)
    }

    /// Handles the refusal of a request. Returns the mode if its event was another terminal's.
    pub(super) fn refused(&mut self, ticket: u64) -> Option<Mode> {
        let place = self.requests.iter().position(|request| request.ticket == ticket)?;
        let Request { mode, is_heard, has_event_since, is_over, .. } = self.requests.remove(place);
        let is_own = self.requests.iter().any(|request| request.mode == mode) || self.chosen == Some(mode);
        if !is_heard || !has_event_since || is_over || is_own {
            return None;
        }
        self.chosen = None;
        Some(mode)
    }

    /// Handles the event of a mode. Returns the mode if another terminal has changed it.
    pub(super) fn changed(&mut self, mode: Mode) -> Option<Mode> {
        let before = self.shown.replace(mode);
        let own = self.requests.iter().rposition(|request| request.mode == mode);
        if self.requests.iter().any(|request| request.mode == mode && request.is_accepted) {
            // Also if another terminal has changed it before.
            self.chosen = Some(mode);
        }
        let mut place = 0;
        self.requests.retain_mut(|request| {
            request.has_event_since = true;
            request.is_over = request.mode != mode && (request.is_over || request.is_heard);
            request.is_heard |= request.mode == mode;
            place += 1;
            // What was accepted before it was heard before it, or never will be.
            !(request.is_accepted && own.is_some_and(|own| place <= own + 1))
        });
        if own.is_some() {
            return None;
        }
        self.chosen = None;
        (before != Some(mode)).then_some(mode)
    }
}
