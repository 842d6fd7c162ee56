//! Operations that look on while sessions work: all of them at a glance, and one's events.
//!
//! Invariants: nothing is opened or woken by looking on.

use greenroom::{InProgress, LiveSession};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::session::SessionNamed;
use super::{Access, Answer, Asked, Nothing, Operation, Performed};

/// The sessions that are live, or sleep in the middle of a run.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListLive {}

/// Those sessions.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct LiveListed {
    /// By id: how each stands, and what it does.
    pub sessions: Vec<LiveSession>,
}

impl Operation for ListLive {
    const METHOD: &'static str = "session/live";
    type Output = LiveListed;
    type Outcome = Nothing;

    async fn perform(self, asked: Asked) -> Performed<Self> {
        Ok(Answer::Later(Box::pin(async move {
            Ok(LiveListed { sessions: asked.runtime.live_sessions().await? })
        })))
    }
}

/// Has a session's events told from now on, and does not start it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WatchSession {
    /// The session.
    pub session_id: String,
}

impl Operation for WatchSession {
    const METHOD: &'static str = "session/watch";
    const ACCESS: Access = Access::Watches;
    type Output = SessionNamed;
    type Outcome = Nothing;

    fn session_id(&self) -> Option<&str> {
        Some(&self.session_id)
    }

    async fn perform(self, asked: Asked) -> Performed<Self> {
        asked.runtime.session(&self.session_id).await?;
        Ok(Answer::Now(SessionNamed { session_id: self.session_id }))
    }
}

/// What goes on in a session that its log does not say yet.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SessionInProgress {
    /// The session.
    pub session_id: String,
}

impl Operation for SessionInProgress {
    const METHOD: &'static str = "session/in_progress";
    type Output = InProgress;
    type Outcome = Nothing;

    fn session_id(&self) -> Option<&str> {
        Some(&self.session_id)
    }

    async fn perform(self, asked: Asked) -> Performed<Self> {
        Ok(Answer::Now(asked.runtime.session(&self.session_id).await?.in_progress().await?))
    }
}
