//! Operations that observe sessions at work: all of them at a glance, and the events of one.
//!
//! Invariants: observing opens and wakes nothing.

use greenroom::{InProgress, LiveSession};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::session::SessionNamed;
use super::{Answer, CallScope, Operation, Performed, Reach, Route};

/// The sessions that are live, or that sleep in the middle of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListLive {}

/// The sessions.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct LiveListed {
    /// By id: each session's state and activity.
    pub sessions: Vec<LiveSession>,
}

impl Operation for ListLive {
    operation!("session/live", Route::read_within(Reach::Label, "/live"), LiveListed);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        Ok(Answer::Later(Box::pin(async move {
            let sessions = scope.runtime.live_sessions().await?;
            Ok(LiveListed { sessions: scope.seen(sessions, |session| &session.state.id).await? })
        })))
    }
}

/// Subscribes to a session's events from now on, and does not start it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WatchSession {
    /// The session.
    pub session_id: String,
}

impl Operation for WatchSession {
    of_session!("session/watch", Subscribe, None, SessionNamed);

    // Events over HTTP have a route of their own: `http/events.rs`.

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        scope.runtime.session(&self.session_id).await?;
        Ok(Answer::Now(SessionNamed { session_id: self.session_id }))
    }
}

/// The activity of a session that its log does not show yet.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionInProgress {
    /// The session.
    pub session_id: String,
}

impl Operation for SessionInProgress {
    of_session!("session/in_progress", Read, Route::read("/sessions/{session_id}/in_progress"), InProgress);

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        Ok(Answer::Now(scope.runtime.session(&self.session_id).await?.in_progress().await?))
    }
}
