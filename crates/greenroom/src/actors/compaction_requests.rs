//! How hooks and tools ask for a compaction: a message to the session, for which nobody waits.
//!
//! Invariants: a request reaches a session that sleeps, and wakes it; of a session that has ended nothing is asked.

use std::sync::Arc;

use greenroom_tools::CompactionRequests;
use ractor::ActorRef;

use crate::core::deps::Deps;
use crate::core::door;
use crate::core::message::{SessionMail, SessionMessage};
use crate::core::shared::SessionShared;

/// Requests that go to this session.
pub(crate) fn requests_to(session: &ActorRef<SessionMail>) -> CompactionRequests {
    let session = session.clone();
    CompactionRequests::new(move |options| {
        // A session that has ended compacts no more.
        let _ = session.cast(SessionMessage::CompactAfterRun { options, needs_news: true }.into());
    })
}

/// How a tool asks for a compaction. A session that sleeps is woken.
pub(crate) fn requests_of(deps: &Arc<Deps>, shared: &Arc<SessionShared>) -> CompactionRequests {
    let (deps, shared) = (Arc::clone(deps), Arc::clone(shared));
    CompactionRequests::new(move |options| {
        let message = SessionMessage::CompactAfterRun { options, needs_news: true };
        let awake = shared.keep_awake();
        match shared.actor() {
            Some(actor) => drop(actor.cast(SessionMail::heard(message, awake))),
            None => {
                let (deps, shared) = (Arc::clone(&deps), Arc::clone(&shared));
                tokio::spawn(async move { door::tell(&deps, &shared, message).await });
            }
        }
    })
}
