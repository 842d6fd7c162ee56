//! What the store holds, whole: for commands of this program that show a session as the log has it.
//!
//! Invariants: nothing is opened or woken; a damaged session is given with what it has lost.

use std::collections::HashMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use greenroom::{State, Status};
use greenroom_kernel::{EntryId, Head};
use greenroom_store::{Notice, SessionCopy, StoreError, head_from_bytes, head_to_bytes};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answer, Asked, Nothing, Operation, Performed, Refused};

/// One session with its log, in the form that the store has it in, which another version of the program may not know.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CopySession {
    /// The session.
    pub session_id: String,
}

/// A session with its log.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SessionCopied {
    /// Its head and its entries: a record of the journal, base64 encoded.
    pub record: String,
    /// The ranges of entries that are lost: the first one, and the one after the last.
    pub lost: Vec<(EntryId, EntryId)>,
    /// Whether it is live.
    pub is_live: bool,
    /// What it does, where it is live and that is known of the log that is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
    /// What the store is known to lack.
    #[serde(flatten)]
    pub losses: StoreLosses,
}

/// All sessions, without their logs, in the form that the store has them in.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CopyHeads {}

/// All sessions.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct HeadsCopied {
    /// By id.
    pub sessions: Vec<CopiedHead>,
    /// What the store is known to lack.
    #[serde(flatten)]
    pub losses: StoreLosses,
}

/// How a session stands.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct CopiedHead {
    /// Its id.
    pub id: String,
    /// Its head: base64 encoded.
    pub head: String,
    /// Whether it is live.
    pub is_live: bool,
    /// What it does, where it is live and that is known of the head that is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

/// What a live session does that has this log. One that has written since, or is about to, may do something else.
fn status_of(state: &State, head: &Head) -> Option<Status> {
    Some(state.status).filter(|_| state.entries == head.entries)
}

/// What a store is known to lack.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StoreLosses {
    /// Whether nobody knows what a damaged part of the journal held: sessions may lack their newest entries, or be missing.
    pub is_uncertain: bool,
    /// What was found when the store was opened and still holds, a line each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notices: Vec<String>,
}

impl StoreLosses {
    fn of(asked: &Asked) -> Self {
        let still_holds = |notice: &&Notice| match notice {
            Notice::TailLost { .. } | Notice::Damaged { .. } | Notice::IndexInMemory { .. } => true,
            Notice::TailCut { .. }
            | Notice::IndexRebuilt { .. }
            | Notice::ReadOnly { .. }
            | Notice::InUse { .. }
            | Notice::ManifestRebuilt { .. }
            | Notice::SetAside { .. } => false,
        };
        let notices = asked.runtime.notices().iter().filter(still_holds).map(ToString::to_string).collect();
        Self { is_uncertain: !asked.runtime.store().unknown_losses().is_empty(), notices }
    }
}

impl SessionCopied {
    /// The session.
    ///
    /// # Errors
    /// When the bytes are of another version, or none of ours.
    pub fn copy(&self) -> Result<SessionCopy, StoreError> {
        SessionCopy::from_bytes(&decoded(&self.record)?, self.lost.clone())
    }
}

impl CopiedHead {
    /// The head.
    ///
    /// # Errors
    /// As [`SessionCopied::copy`].
    pub fn head(&self) -> Result<Head, StoreError> {
        head_from_bytes(&decoded(&self.head)?)
    }
}

fn decoded(text: &str) -> Result<Vec<u8>, StoreError> {
    let wrong = |error: base64::DecodeError| StoreError::Record { detail: error.to_string() };
    STANDARD.decode(text).map_err(wrong)
}

impl Operation for CopySession {
    const METHOD: &'static str = "session/copy";
    type Output = SessionCopied;
    type Outcome = Nothing;

    fn session_id(&self) -> Option<&str> {
        Some(&self.session_id)
    }

    async fn perform(self, asked: Asked) -> Performed<Self> {
        Ok(Answer::Later(Box::pin(async move {
            let id = self.session_id;
            let live = asked.runtime.session(&id).await?;
            let is_live = live.is_live();
            let state = if is_live { live.state().await.ok() } else { None };
            let (store, session) = (asked.runtime.store().clone(), id.clone());
            let copying = move || match store.copy(&session)? {
                Some(copy) => {
                    let status = state.and_then(|state| status_of(&state, &copy.head));
                    Ok(Some((STANDARD.encode(copy.to_bytes()?), copy.lost, status)))
                }
                None => Ok(None),
            };
            let copied: Option<_> = blocking(copying).await?;
            let (record, lost, status) = copied.ok_or(greenroom::Error::NoSession { session: id })?;
            Ok(SessionCopied { record, lost, is_live, status, losses: StoreLosses::of(&asked) })
        })))
    }
}

impl Operation for CopyHeads {
    const METHOD: &'static str = "session/heads";
    type Output = HeadsCopied;
    type Outcome = Nothing;

    async fn perform(self, asked: Asked) -> Performed<Self> {
        Ok(Answer::Later(Box::pin(async move {
            let live = asked.runtime.live_sessions().await?.into_iter();
            let live: HashMap<String, State> =
                live.map(|session| (session.state.id.clone(), session.state)).collect();
            let store = asked.runtime.store().clone();
            let copying = move || {
                let heads = store.list()?.into_iter().map(|(id, head)| {
                    let state = live.get(&id);
                    let (is_live, status) =
                        (state.is_some(), state.and_then(|state| status_of(state, &head)));
                    Ok(CopiedHead { head: STANDARD.encode(head_to_bytes(&head)?), is_live, status, id })
                });
                heads.collect::<Result<Vec<_>, StoreError>>()
            };
            let sessions: Vec<CopiedHead> = blocking(copying).await?;
            Ok(HeadsCopied { sessions, losses: StoreLosses::of(&asked) })
        })))
    }
}

async fn blocking<T: Send + 'static>(
    reads: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Refused> {
    let read = tokio::task::spawn_blocking(reads).await.map_err(|_| greenroom::Error::Closed)?;
    Ok(read.map_err(greenroom::Error::from)?)
}
