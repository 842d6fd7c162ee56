//! How far a session is in its life, as the supervisor knows it, and who waits for it.
//!
//! Invariants: whoever wants something of a session that is neither live nor failed waits in its phase, and is heard when the
//! phase ends.

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
    /// Where its run is while it sleeps.
    pub(super) parking: ParkingPlace,
    pub(super) phase: Phase,
    pub(super) restarts: Restarts,
    /// Whether it is being started again after it died.
    pub(super) is_restart: bool,
    /// Which start this is: news of an earlier one is late.
    pub(super) generation: u64,
    /// The definition before the one that it is being started with; it holds again where that one cannot work.
    pub(super) agent_before: Option<Arc<Agent>>,
    /// Whether what was interrupted is to be finished as soon as it is up.
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
    /// The session's actors run and were told to fall asleep: they end, or say that they stay awake.
    Drowsy(ActorRef<SessionMail>, Wanted),
    /// The session is ending in order.
    Closing(Wanted),
    /// The session has no actors, and is changed or deleted in the store.
    Held(Wanted),
    /// The session died too often and was given up.
    Failed(String),
}

/// Who waits for a session.
#[derive(Default)]
pub(super) struct Wanted {
    /// The session is to be live, with these definitions.
    pub(super) live: Vec<OpenRequest>,
    /// The session is to be closed.
    pub(super) closed: Vec<oneshot::Sender<()>>,
    /// The session is to be deleted when it is closed.
    pub(super) deleted: Vec<ReplyTo<()>>,
    /// The session is to be changed.
    pub(super) amended: Vec<AmendRequest>,
}

impl Phase {
    /// The session's actor, while it runs and was not told to end.
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

/// What ends with a session's actors.
pub(super) enum Closer {
    /// Nobody waits for it.
    Nobody,
    /// Somebody is told when the actors are gone.
    Told(oneshot::Sender<()>),
    /// The session is deleted when the actors are gone.
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
