//! The phase of a session's life, as the supervisor knows it, and the requests that wait for it.
//!
//! Invariants: requests to a session that is neither live nor failed wait in its phase, and are handled when
//! the phase ends.

use std::sync::Arc;

use ractor::ActorRef;
use tokio::sync::oneshot;

use crate::actors::session::parked::ParkingPlace;
use crate::agent::Agent;
use crate::core::message::{AmendRequest, OpenRequest, ReplyTo, SessionMail};
use crate::core::shared::SessionShared;
use crate::limits::restarts::Restarts;

pub(super) struct Supervised {
    pub(super) shared: Arc<SessionShared>,
    /// The place of its run while it sleeps.
    pub(super) parking: ParkingPlace,
    pub(super) phase: Phase,
    pub(super) restarts: Restarts,
    /// Whether it is being restarted after a crash.
    pub(super) is_restart: bool,
    /// The number of this start: messages about an earlier one are late.
    pub(super) generation: u64,
    /// The definition before the one that it is being started with; it applies again if the new one is
    /// unusable.
    pub(super) agent_before: Option<Arc<Agent>>,
    /// Whether interrupted work must be finished as soon as it has started.
    pub(super) finishes: bool,
}

impl Supervised {
    pub(super) fn new(shared: Arc<SessionShared>, phase: Phase) -> Self {
        Self {
            shared,
            parking: ParkingPlace::default(),
            phase,
            restarts: Restarts::default(),
            is_restart: false,
            generation: 0,
            agent_before: None,
            finishes: false,
        }
    }
}

pub(super) enum Phase {
    /// The session's actor is being started.
    Starting(Wanted),
    /// The session's actors run.
    Live(ActorRef<SessionMail>),
    /// The session's actors run and were told to sleep: they end, or report that they stay awake.
    Drowsy(ActorRef<SessionMail>, Wanted),
    /// The session is stopping in order.
    Closing(Wanted),
    /// The session has no actors, and is changed or deleted in the store.
    Held(Wanted),
    /// The session crashed too often.
    Failed(String),
}

/// The requests that wait for a session.
#[derive(Default)]
pub(super) struct Wanted {
    /// The session should be live, with these definitions.
    pub(super) live: Vec<OpenRequest>,
    /// The session should be closed.
    pub(super) closed: Vec<oneshot::Sender<()>>,
    /// The session should be deleted when it is closed.
    pub(super) deleted: Vec<ReplyTo<()>>,
    /// The session should be changed.
    pub(super) amended: Vec<AmendRequest>,
}

impl Phase {
    /// Returns the session's actor, while it runs and was not told to end.
    pub(super) fn actor(&self) -> Option<&ActorRef<SessionMail>> {
        match self {
            Self::Live(actor) | Self::Drowsy(actor, _) => Some(actor),
            Self::Starting(_) | Self::Closing(_) | Self::Held(_) | Self::Failed(_) => None,
        }
    }
}

impl Wanted {
    pub(super) fn live(opener: OpenRequest) -> Self {
        Self { live: vec![opener], ..Self::default() }
    }
}

/// What to do when a session's actors have ended.
pub(super) enum Closer {
    /// Nothing.
    Nobody,
    /// Notify a caller.
    Told(oneshot::Sender<()>),
    /// Delete the session.
    Deletes(ReplyTo<()>),
}

impl Wanted {
    pub(super) fn add(&mut self, closer: Closer) {
        match closer {
            Closer::Nobody => {}
            Closer::Told(done) => self.closed.push(done),
            Closer::Deletes(reply) => self.deleted.push(reply),
        }
    }
}
