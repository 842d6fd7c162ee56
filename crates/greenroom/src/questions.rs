//! The questions that wait for people, as programs list them.
//!
//! Invariants: only heads and the questions' own entries are read; nothing is opened. A question whose time has passed is
//! not listed.

use std::sync::Arc;

use greenroom_kernel::question::{Asker, Question, Questions};
use greenroom_kernel::{EntryId, EntryKind, RunId};
use greenroom_store::{Head, Store, StoreError};
use serde::{Deserialize, Serialize};

use crate::deps::{Deps, blocking};
use crate::error::Result;

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
    /// The run that waits.
    pub run: RunId,
    /// The call that asks.
    pub call_id: String,
    /// The name of the tool that is called.
    pub tool: String,
    /// Who asks.
    pub asker: Asker,
    /// What is asked: in JSON `text`, `details`, and `kind` with its fields.
    #[serde(flatten)]
    pub question: Question,
    /// When it was asked, in unix milliseconds.
    pub asked_at_ms: u64,
    /// When it expires, in unix milliseconds; absent where it stays open as long as its call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at_ms: Option<u64>,
}

/// The open questions of one session, oldest first.
pub(crate) async fn of_session(deps: &Deps, session: &str) -> Result<Vec<PendingQuestion>> {
    let (store, session, now_ms) = (deps.store.clone(), session.to_owned(), deps.now_ms());
    blocking(deps, move || Ok(list_stored(&store, &session, now_ms)?)).await
}

/// The open questions of a stored session at this time, in unix milliseconds, oldest first: for programs that look into a
/// store without a runtime. None where there is no such session.
///
/// # Errors
/// What the store says.
pub fn list_stored(
    store: &Store,
    session: &str,
    now_ms: u64,
) -> std::result::Result<Vec<PendingQuestion>, StoreError> {
    let Some(head) = store.head(session)? else { return Ok(Vec::new()) };
    let entries = store.get(session, &head.questions)?;
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

/// Whether a stored session's run waits for tools that asked a person, or for agents whose tools did, answered or not: it
/// goes on when the program that has those tools opens the session, and with another's agent the answers would be lost to
/// it. For programs that look into a store without a runtime. This blocks on the disk.
///
/// # Errors
/// What the store says.
pub fn is_waiting_stored(store: &Store, session: &str) -> std::result::Result<bool, StoreError> {
    any_in_tree(store, session, |session, head| {
        let Some(run) = head.open_run else { return Ok(false) };
        if !head.questions.is_empty() {
            return Ok(true);
        }
        let mut questions = Questions::default();
        match store.load(session, EntryId(run.0)) {
            Ok(entries) => entries.iter().for_each(|entry| questions.follow(entry)),
            // Opening it says what is lost.
            Err(StoreError::Damaged { .. } | StoreError::Quarantined { .. }) => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(!questions.is_empty())
    })
}

/// Whether this holds of the session or of one of the agents that work for it, on all levels.
fn any_in_tree(
    store: &Store,
    session: &str,
    mut holds: impl FnMut(&str, &Head) -> std::result::Result<bool, StoreError>,
) -> std::result::Result<bool, StoreError> {
    let mut sessions = vec![session.to_owned()];
    let mut next = 0;
    while let Some(session) = sessions.get(next).cloned() {
        next += 1;
        let Some(head) = store.head(&session)? else { continue };
        if holds(&session, &head)? {
            return Ok(true);
        }
        if head.open_children.is_empty() {
            continue;
        }
        for entry in store.get(&session, &head.open_children)? {
            // A damaged log must not make a circle.
            if let EntryKind::Child(child) = entry.kind
                && !sessions.contains(&child.session)
            {
                sessions.push(child.session);
            }
        }
    }
    Ok(false)
}

/// How many questions are open in the sessions of the agents that work for this one, on all levels.
pub(crate) async fn below(deps: &Deps, session: &str) -> Result<usize> {
    let (store, session) = (deps.store.clone(), session.to_owned());
    blocking(deps, move || {
        let asking = asking_below(&store, &session)?;
        Ok(asking.iter().map(|(_, questions)| questions).sum())
    })
    .await
}

/// The sessions of the agents that work for this one, on all levels, in which questions are open, and how many. Only heads
/// and the starts of agents without an end are read. This blocks on the disk.
fn asking_below(store: &Store, session: &str) -> Result<Vec<(String, usize)>, StoreError> {
    let mut asking = asking_in_tree(store, session)?;
    asking.retain(|(asking, _)| asking != session);
    Ok(asking)
}

/// As [`asking_below`], with the session itself.
pub(crate) fn asking_in_tree(store: &Store, session: &str) -> Result<Vec<(String, usize)>, StoreError> {
    let mut asking = Vec::new();
    any_in_tree(store, session, |session, head| {
        if !head.questions.is_empty() {
            asking.push((session.to_owned(), head.questions.len()));
        }
        Ok(false)
    })?;
    Ok(asking)
}
