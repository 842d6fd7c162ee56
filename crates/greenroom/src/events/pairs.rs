//! What begins, ends: the pairs among a session's events.
//!
//! Invariants: between two starts of a run there is its end, and after it nothing transient of that run; an answer that
//! began ends as a message, or is discarded before the next one begins and before its run ends. This holds whichever
//! actor dies in between.

use greenroom_kernel::RunId;

use crate::events::event::EventKind;
use crate::events::message_view::Role;

#[cfg(test)]
mod tests;

/// What has begun and not ended.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    run: Option<RunId>,
    /// The run whose model is answering.
    answering: Option<RunId>,
}

/// What to publish in the place of one event.
#[derive(Debug, PartialEq)]
pub(crate) struct Admitted {
    /// What must be said first, of which run.
    pub(crate) first: Option<(RunId, EventKind)>,
    /// Whether the event itself is published.
    pub(crate) itself: bool,
}

impl Pairs {
    /// The run that is going on, as far as it was told.
    pub(crate) fn run(&self) -> Option<RunId> {
        self.run
    }

    /// Takes note of an event of a run that is about to be published. A durable one is published in any case.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other events stand alone, or end by themselves")]
    pub(crate) fn admit(&mut self, run: Option<RunId>, kind: &EventKind) -> Admitted {
        let mut first = None;
        // A tool that was cut off may end when its run is over.
        let mut itself = run.is_none() || run == self.run;
        match kind {
            // An agent that takes the place of one that died goes on with the same run.
            EventKind::RunStart => itself = std::mem::replace(&mut self.run, run) != run,
            EventKind::MessageStart if itself => {
                first = std::mem::replace(&mut self.answering, run).map(discarded)
            }
            EventKind::MessageDiscarded if itself => itself = self.answering.take().is_some(),
            EventKind::MessageEnd { message, .. } if message.role == Role::Assistant => self.answering = None,
            EventKind::RunEnd { .. } => {
                first = self.answering.take().map(discarded);
                self.run = None;
            }
            _ => {}
        }
        Admitted { first, itself }
    }
}

fn discarded(run: RunId) -> (RunId, EventKind) {
    (run, EventKind::MessageDiscarded)
}
