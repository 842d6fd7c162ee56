//! Operations on the store as a whole: a backup, and the deletion of sessions that are not kept.
//!
//! Invariants: a path on the server is named only over a connection on the same machine, never over HTTP.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use greenroom::{DeletionReason, DueSession, Retention, RetentionRule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Access, Answer, CallScope, Nothing, Operation, Performed, Refused, Route, Verb};

/// Backs up the store to a directory of the server's machine, while it is used. The answer comes when the backup is
/// whole.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BackUpStore {
    /// The directory, as an absolute path. It is created, or replaced if it has a backup of this store.
    pub dir: PathBuf,
}

/// A backup.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct BackedUp {
    /// The directory.
    pub dir: PathBuf,
    /// When it was made, in Unix milliseconds.
    pub made_at_ms: u64,
    /// The number of sessions.
    pub sessions: u64,
    /// The number of their entries.
    pub entries: u64,
    /// The size of the journal in bytes.
    pub bytes: u64,
}

impl Operation for BackUpStore {
    const METHOD: &'static str = "store/backup";
    // A caller of this method can write to any directory of the server's user.
    const ROUTE: Option<Route> = None;
    const ACCESS: Access = Access::Modify;
    type Output = BackedUp;
    type Outcome = Nothing;

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let dir = self.dir;
        if !dir.is_absolute() {
            return Err(Refused::Parameters(format!("`dir` is {dir:?}; it must be an absolute path")));
        }
        Ok(Answer::Later(Box::pin(async move {
            let info = scope.runtime.backup(&dir, &Arc::default()).await?;
            let (made_at_ms, sessions) = (info.made_at_ms, info.sessions);
            Ok(BackedUp { dir, made_at_ms, sessions, entries: info.entries, bytes: info.bytes })
        })))
    }
}

/// Deletes sessions that are too old, or more than are kept, with those of their sub-agents, and erases their bytes.
/// Sessions that are live, have unfinished work or an open question, or are damaged are kept in any case. Without
/// limits and rules, the server's own policy is applied.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PruneSessions {
    /// Whether the sessions are only listed.
    #[serde(default)]
    pub dry_run: bool,
    /// How long a session is kept after its last activity, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_max_s: Option<u64>,
    /// How many sessions are kept, those with the newest activity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions_max: Option<usize>,
    /// Other limits for sessions with certain labels: only the first rule that matches a session applies to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<PruneSessionsRule>,
}

/// Limits for sessions with certain labels. A rule without limits keeps them.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "PruneRule")]
pub struct PruneSessionsRule {
    /// The labels that a session must have, all of them.
    pub labels: BTreeMap<String, String>,
    /// How long a session is kept after its last activity, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age_max_s: Option<u64>,
    /// How many of these sessions are kept, those with the newest activity.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions_max: Option<usize>,
}

/// The sessions that were deleted, or would be.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Pruned")]
pub struct PrunedSessions {
    /// Whether they were only listed.
    pub dry_run: bool,
    /// The sessions, the one with the oldest activity first.
    pub sessions: Vec<PrunedSession>,
    /// How many were used again in the meantime, and kept.
    pub used_again: usize,
    /// Whether the bytes of all deleted sessions are erased from the disk. If not, the store erases them as soon as it
    /// can.
    pub erased: bool,
    /// Why their bytes are still on the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A session that was deleted, or would be.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct PrunedSession {
    /// Its id.
    pub session_id: String,
    /// Its title, or the start of its first message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Its labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// The last activity in it and in the sessions of its sub-agents, in Unix milliseconds.
    pub active_at_ms: u64,
    /// How many sessions of sub-agents go with it.
    pub below: usize,
    /// Why it is deleted.
    pub reason: DeletionReason,
}

impl From<DueSession> for PrunedSession {
    fn from(due: DueSession) -> Self {
        let DueSession { id: session_id, title, labels, active_at_ms, below, reason, .. } = due;
        Self { session_id, title, labels, active_at_ms, below, reason }
    }
}

impl PruneSessions {
    /// The policy that the parameters describe; `None` if they describe none.
    fn policy(&self) -> Option<Retention> {
        let Self { age_max_s, sessions_max, rules, .. } = self;
        let seconds = |age: Option<u64>| age.map(Duration::from_secs);
        let rule = |rule: &PruneSessionsRule| RetentionRule {
            labels: rule.labels.clone(),
            age_max: seconds(rule.age_max_s),
            sessions_max: rule.sessions_max,
        };
        let policy = Retention {
            age_max: seconds(*age_max_s),
            sessions_max: *sessions_max,
            rules: rules.iter().map(rule).collect(),
        };
        (policy != Retention::default()).then_some(policy)
    }
}

impl Operation for PruneSessions {
    const METHOD: &'static str = "session/prune";
    const ROUTE: Option<Route> = Route::administer(Verb::Post, "/prune");
    const ACCESS: Access = Access::Modify;
    const TAKES_TIME: bool = true;
    type Output = PrunedSessions;
    type Outcome = Nothing;

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let policy = self.policy().unwrap_or_else(|| scope.runtime.retention().clone());
        if policy == Retention::default() {
            let none =
                "there is no limit: give `age_max_s`, `sessions_max` or `rules`, or configure a retention";
            return Err(Refused::Parameters(none.to_owned()));
        }
        Ok(Answer::Later(Box::pin(async move {
            let (dry_run, runtime) = (self.dry_run, scope.runtime);
            let (sessions, used_again, reason) = if dry_run {
                (runtime.due_for_deletion(&policy).await?, 0, None)
            } else {
                let retained = runtime.retain(&policy).await?;
                (retained.deleted, retained.used_again, retained.not_erased)
            };
            let sessions = sessions.into_iter().map(PrunedSession::from).collect();
            Ok(PrunedSessions { dry_run, sessions, used_again, erased: !dry_run && reason.is_none(), reason })
        })))
    }
}
