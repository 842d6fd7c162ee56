//! How hooks and tools request a compaction: by a message to the session, without waiting.
//!
//! Invariants: a request to a sleeping session wakes it; a request to a session that has ended is dropped.

use std::sync::Arc;

use greenroom_tools::CompactionRequests;
use ractor::ActorRef;

use crate::core::deps::Deps;
use crate::core::door;
use crate::core::message::{SessionMail, SessionMessage};
use crate::core::shared::SessionShared;

/// Returns the interface for requests to this session.
pub(crate) fn requests_to(session: &ActorRef<SessionMail>) -> CompactionRequests {
    let session = session.clone();
    CompactionRequests::new(move |options| {
        // A session that has ended compacts no more.
        let _ = session.cast(SessionMessage::CompactAfterRun { options, needs_news: true }.into());
    })
}

/// Returns the interface for a tool's requests. A sleeping session is woken.
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
