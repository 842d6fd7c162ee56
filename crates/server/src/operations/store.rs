//! Operations on the store as a whole: a backup, and the deletion of sessions that are not kept.
//!
//! Invariants: a path on the server is named only over a connection on the same machine, never over HTTP.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use greenroom::{DeletionReason, DueSession, Progress, Retention, RetentionRule, Runtime};
use greenroom_store::{StoreDamage, StoreError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Access, Answer, CallScope, Operation, Performed, Refused, Route, Verb};

/// Backs up the store to a directory of the server's machine, while it is used. The answer comes when the backup is
/// whole, or refused because the store is damaged.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BackUpStore {
    /// The directory, as an absolute path. It is created, or replaced if it has a backup of this store.
    pub dir: PathBuf,
    /// Whether a damaged store is backed up, too. The backup before may have what the store lost.
    #[serde(default)]
    pub damaged: bool,
}

/// What became of a backup.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "result", rename_all = "snake_case")]
pub enum BackedUp {
    /// It was made.
    Made(StoreBackup),
    /// The store is damaged, so it was not made. A backup that was there before is unchanged.
    Refused {
        /// What is damaged.
        #[serde(flatten)]
        damage: DamageOfStore,
        /// The reason, for a person.
        message: String,
    },
}

/// What is damaged of a store, and was not accepted.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
pub struct DamageOfStore {
    /// The sessions that lost entries.
    pub damaged_sessions: Vec<String>,
    /// The numbers of the segments that lost entries of unknown sessions, or whose damage was found by the backup.
    pub damaged_segments: Vec<u64>,
}

impl From<StoreDamage> for DamageOfStore {
    fn from(StoreDamage { sessions, segments, .. }: StoreDamage) -> Self {
        Self { damaged_sessions: sessions, damaged_segments: segments }
    }
}

/// A backup.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct StoreBackup {
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
    /// What is damaged of the store.
    #[serde(flatten)]
    pub damage: DamageOfStore,
}

impl BackedUp {
    /// Backs up the store of a runtime to a directory; a damaged one only if that is wanted.
    ///
    /// # Errors
    /// Those of [`Runtime::backup`], except that the store is damaged.
    pub async fn make(
        runtime: &Runtime,
        dir: PathBuf,
        damaged: bool,
        progress: &Arc<Progress>,
    ) -> Result<Self, greenroom::Error> {
        let made = match damaged {
            true => runtime.backup_damaged(&dir, progress).await,
            false => runtime.backup(&dir, progress).await,
        };
        match made {
            Ok(info) => Ok(Self::Made(StoreBackup {
                dir,
                made_at_ms: info.made_at_ms,
                sessions: info.sessions,
                entries: info.entries,
                bytes: info.bytes,
                damage: info.damage.into(),
            })),
            Err(error) => refusal(&error).ok_or(error),
        }
    }
}

/// Returns the refusal to back up a damaged store, if the error is that.
fn refusal(error: &greenroom::Error) -> Option<BackedUp> {
    let greenroom::Error::Store(error) = error else { return None };
    let StoreError::DamagedStore { damage } = &**error else { return None };
    Some(BackedUp::Refused { message: error.to_string(), damage: StoreDamage::clone(damage).into() })
}

impl Operation for BackUpStore {
    operation!("store/backup", None, BackedUp);

    // A caller of this method can write to any directory of the server's user.
    const ACCESS: Access = Access::Modify;

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let Self { dir, damaged } = self;
        if !dir.is_absolute() {
            return Err(Refused::Parameters(format!("`dir` is {dir:?}; it must be an absolute path")));
        }
        Ok(Answer::Later(Box::pin(async move {
            Ok(BackedUp::make(&scope.runtime, dir, damaged, &Arc::default()).await?)
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
    operation!("session/prune", Route::administer(Verb::Post, "/prune"), PrunedSessions);
    const ACCESS: Access = Access::Modify;
    const TAKES_TIME: bool = true;

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
