//! Lists of questions that wait for people.
//!
//! Invariants: only heads and the questions' entries are read; no session is opened. Expired questions are
//! not listed.

use std::sync::Arc;

use greenroom_kernel::question::{Asker, Question};
use greenroom_kernel::{EntryId, EntryKind, RunId};
use greenroom_store::{Engine, StoreError};
use serde::{Deserialize, Serialize};

use crate::core::deps::Deps;
use crate::values::error::Result;

/// A question that waits for a person's answer: see [`SessionHandle::answer`](crate::SessionHandle::answer).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct PendingQuestion {
    /// The session that asks.
    #[serde(rename = "session_id")]
    pub session: String,
    /// The question's id: its entry in the session's log.
    #[serde(rename = "question_id")]
    pub id: EntryId,
    /// The run that waits for the answer.
    pub run: RunId,
    /// The call that asks.
    pub call_id: String,
    /// The name of the called tool.
    pub tool: String,
    /// The source of the question.
    pub asker: Asker,
    /// The question: in JSON, `text`, `details`, and `kind` with its fields.
    #[serde(flatten)]
    pub question: Question,
    /// When the question was asked, in Unix milliseconds.
    pub asked_at_ms: u64,
    /// When the question expires, in Unix milliseconds; absent if it stays open as long as its call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
}

/// Returns the open questions of one session, oldest first.
pub(crate) async fn of_session(deps: &Deps, session: &str) -> Result<Vec<PendingQuestion>> {
    Ok(list_stored(&*deps.store, session, deps.now_ms()).await?)
}

/// Returns the open questions of a stored session at this time, in Unix milliseconds, oldest first. The list is
/// empty if the session does not exist.
async fn list_stored(
    store: &dyn Engine,
    session: &str,
    now_ms: u64,
) -> std::result::Result<Vec<PendingQuestion>, StoreError> {
    let Some(head) = store.head(session).await? else { return Ok(Vec::new()) };
    let entries = store.get(session, &head.questions).await?;
    let pending = entries.into_iter().filter_map(|entry| {
        let EntryKind::Question(asked) = &entry.kind else { return None };
        let asked = Arc::clone(asked);
        Some(PendingQuestion {
            session: session.to_owned(),
            id: entry.id,
            run: asked.run,
            call_id: asked.call_id.clone(),
            tool: asked.tool.clone(),
            asker: asked.asker,
            question: asked.question.clone(),
            asked_at_ms: entry.at_ms,
            expires_at_ms: asked.expires_at_ms,
        })
    });
    Ok(pending.filter(|pending| pending.expires_at_ms.is_none_or(|at_ms| at_ms > now_ms)).collect())
}
