//! The results of background tasks, as the chat handles them.
//!
//! Invariants: what a task learned of a session, or changed in it, counts only while that session is open: another one
//! may have been opened meanwhile, whose entries have the same numbers.

use greenroom::permissions::Mode;
use greenroom::{EntryId, Event, SessionSummary};
use greenroom_server::operations::{RewindScope, Sent};
use greenroom_terminal::row::{Look, Row};
use tokio::sync::mpsc::UnboundedSender;

use super::Opened;
use crate::picker::{Picker, Purpose};

#[cfg(test)]
mod tests;

/// The result of a background task.
pub(super) enum Done {
    /// A result that counts only while the session with this id is open.
    Of(String, Box<Done>),
    /// Input was accepted or refused.
    Sent(u64, Result<Sent, String>),
    /// Inputs that had not been sent when the user interrupted.
    TakenBack(Vec<u64>),
    /// Rows to show.
    Rows(Vec<Row>),
    /// A line to show.
    Note(Look, String),
    /// Text for the user to edit and send.
    Write(String),
    /// Text that is inserted at the cursor.
    Insert(String),
    /// Other sessions that work in the folder.
    AtWork(Vec<SessionSummary>),
    /// A list to choose from.
    Pick(Picker),
    /// The chat switches to another session.
    Opened(Box<Opened>),
    /// The session stays; its agent has this model now.
    Changed(Box<Opened>, String),
    /// The context's size after a change that no event reports.
    Context(greenroom_kernel::usage::ContextUsage),
    /// The session's state, as it is now.
    State(Box<greenroom::State>),
    /// An answer was refused.
    Refused(EntryId, String),
    Files(String, Vec<String>),
    /// A line that the running user command has just printed.
    Prints(String),
    /// The summary of the compaction with this entry.
    Summary(EntryId, String),
    /// The output of a user command, for the next prompt of this session.
    Told(String, String),
    /// The user command has ended.
    Rest,
    /// Events that had been missed.
    Missed(Vec<Event>),
    /// A hint until the next key.
    Hint(String),
    /// The conversation or its files went back, from this entry.
    WentBack(EntryId, RewindScope),
    /// An `/undo` was taken back.
    CameBack,
    /// The command that was to move the conversation did not.
    StaysThere,
    /// The request with this ticket has set the mode, which is this one now.
    ModeSet(u64, Option<Mode>),
    /// The request to set the mode was refused.
    ModeRefused(u64),
}

impl Done {
    /// Binds a result of a task of this session to it, if it counts only there.
    fn of(self, session: &str) -> Self {
        let is_bound = match &self {
            Self::Context(_)
            | Self::State(_)
            | Self::Changed(..)
            | Self::Refused(..)
            | Self::Summary(..)
            | Self::Missed(_)
            | Self::WentBack(..)
            | Self::CameBack
            | Self::StaysThere => true,
            Self::Pick(picker) => {
                matches!(picker.purpose, Purpose::Branch { .. } | Purpose::GoBack(_) | Purpose::Export)
            }
            Self::Of(..)
            | Self::Sent(..)
            | Self::TakenBack(_)
            | Self::Rows(_)
            | Self::Note(..)
            | Self::Write(_)
            | Self::Insert(_)
            | Self::AtWork(_)
            | Self::Opened(_)
            | Self::Files(..)
            | Self::Prints(_)
            | Self::Told(..)
            | Self::Rest
            | Self::Hint(_)
            | Self::ModeSet(..)
            | Self::ModeRefused(_) => false,
        };
        if is_bound { Self::Of(session.to_owned(), Box::new(self)) } else { self }
    }

    /// Returns the result if it counts while this session is open.
    pub(super) fn within(self, session: &str) -> Option<Self> {
        if let Self::Of(of, done) = self { (of == session).then_some(*done) } else { Some(self) }
    }
}

/// Takes the results of a task that was started in a session.
#[derive(Clone)]
pub(super) struct Results {
    session: String,
    done: UnboundedSender<Done>,
}

impl Results {
    pub(super) fn new(session: &str, done: UnboundedSender<Done>) -> Self {
        Self { session: session.to_owned(), done }
    }

    /// Gives a result to the chat. A chat that is over shows nothing more.
    pub(super) fn send(&self, done: Done) {
        let _ = self.done.send(done.of(&self.session));
    }
}
