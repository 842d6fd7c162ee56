//! Start and end events: each start has its end.
//!
//! Invariants: a run's end comes before the next run's start, and no transient event of a run comes after its
//! end; an answer that started ends as a message, or is discarded before the next one starts and before its
//! run ends. This holds whichever actor crashes in between.

use greenroom_kernel::RunId;

use crate::events::event::EventKind;
use crate::events::message_view::Role;

#[cfg(test)]
mod tests;

/// The starts without an end.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    run: Option<RunId>,
    /// The run whose model is answering.
    answering: Option<RunId>,
}

/// The events to publish for one event.
#[derive(Debug, PartialEq)]
pub(crate) struct Admitted {
    /// The run whose answer is discarded first: an event to publish before it.
    pub(crate) discarded: Option<RunId>,
    /// Whether the event itself is published.
    pub(crate) itself: bool,
}

impl Pairs {
    /// The run in progress, as published.
    pub(crate) fn run(&self) -> Option<RunId> {
        self.run
    }

    /// Applies an event that is about to be published. Durable events are always published.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other events stand alone, or end by themselves")]
    pub(crate) fn admit(&mut self, run: Option<RunId>, kind: &EventKind) -> Admitted {
        let mut discarded = None;
        // A tool that was aborted may end after its run.
        let mut itself = run.is_none() || run == self.run;
        match kind {
            // An agent that replaces a crashed one continues the same run.
            EventKind::RunStart => itself = std::mem::replace(&mut self.run, run) != run,
            EventKind::MessageStart if itself => {
                discarded = std::mem::replace(&mut self.answering, run);
            }
            EventKind::MessageDiscarded if itself => itself = self.answering.take().is_some(),
            EventKind::MessageEnd { message, .. } if message.role == Role::Assistant => self.answering = None,
            EventKind::RunEnd { .. } => {
                discarded = self.answering.take();
                self.run = None;
            }
            _ => {}
        }
        Admitted { discarded, itself }
    }
}
