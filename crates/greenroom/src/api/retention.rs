//! Deleting the sessions that a retention policy does not keep.
//!
//! Invariants: the decision is `values/retention.rs`'s, from heads; no log is read and no session is woken. A session
//! is deleted only if it has no actors and has not changed since the decision: its own entries go first, in one step in
//! which no request reaches it, and those of its sub-agents after it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use greenroom_kernel::Head;
use greenroom_store::{Engine, Heads, StoreError};

use crate::api::deletion;
use crate::api::runtime::Runtime;
use crate::api::sessions::{LoggedWork, PAGE, SessionSummary};
use crate::values::error::{Error, Result};
use crate::values::family;
use crate::values::retention::{DeletionReason, KeptTree, Retention, due};

/// How often a runtime applies its own policy, the first time a while after its start.
const EVERY: Duration = Duration::from_secs(3_600);
const FIRST_AFTER: Duration = Duration::from_secs(60);

/// A session that a policy does not keep.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DueSession {
    /// Its id.
    pub id: String,
    /// Its title, or the start of its first message.
    pub title: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// The last activity in it and in the sessions of its sub-agents, in Unix milliseconds.
    pub active_at_ms: u64,
    /// How many sessions of sub-agents go with it.
    pub below: usize,
    /// Why it is due.
    pub reason: DeletionReason,
}

/// The result of [`Runtime::retain`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retained {
    /// The deleted sessions, the one with the oldest activity first.
    pub deleted: Vec<DueSession>,
    /// How many sessions were due, but were used again in the meantime, or are live on another node, and were not deleted.
    pub used_again: usize,
    /// Why the bytes of the deleted sessions are still on the disk, if they are. The store erases them as soon as it
    /// can.
    pub not_erased: Option<String>,
}

/// What is read of a session for the decision.
struct Known {
    parent: Option<String>,
    labels: BTreeMap<String, String>,
    title: Option<String>,
    active_at_ms: u64,
    entries: u64,
    /// Whether it is live, waits for a person, or is damaged.
    is_in_use: bool,
    /// Whether its log has work without an end, queued input, or sub-agents without an end.
    has_open_work: bool,
}

impl Known {
    fn of(id: &str, head: Head, live: &HashSet<String>) -> Self {
        let has_children = !head.open_children.is_empty();
        let summary = SessionSummary::new(id.to_owned(), head);
        let is_at_rest = matches!(summary.work, LoggedWork::Idle | LoggedWork::Failed);
        Self {
            is_in_use: summary.questions > 0 || summary.lost_from.is_some() || live.contains(id),
            has_open_work: !is_at_rest || summary.is_unfinished || has_children,
            title: summary.shown_title().map(str::to_owned),
            parent: summary.parent,
            labels: summary.labels,
            active_at_ms: summary.updated_at_ms,
            entries: summary.entries,
        }
    }
}

/// A session that is due, with the number of its entries when that was decided.
struct Due {
    session: DueSession,
    entries: u64,
}

impl Runtime {
    /// Returns the policy of this runtime: see [`RuntimeBuilder::retention`](crate::RuntimeBuilder::retention).
    pub fn retention(&self) -> &Retention {
        &self.deps().retention
    }

    /// Returns the sessions that [`Self::retain`] would delete now, the one with the oldest activity first. Nothing is
    /// changed.
    ///
    /// # Errors
    /// Those of [`Self::retain`].
    pub async fn due_for_deletion(&self, policy: &Retention) -> Result<Vec<DueSession>> {
        Ok(self.due(policy).await?.into_iter().map(|due| due.session).collect())
    }

    /// Deletes the sessions that the policy does not keep, with the sessions of their sub-agents, and erases their
    /// bytes. For each there is an event, [`SessionDeleted`](crate::EventKind::SessionDeleted) with the reason, and a
    /// log line.
    ///
    /// A session is kept, whatever the policy says, while it is live (an idle session falls asleep after
    /// [`RuntimeBuilder::idle_after`](crate::RuntimeBuilder::idle_after)), while it has unfinished work, queued input
    /// or an open question, and if entries of it are lost; also while one of its sub-agents is live, has an open
    /// question or lost entries. A sub-agent's interrupted work and queued input keep it only until its caller has
    /// continued without them. Consumers are not waited for.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use greenroom::prelude::*;
    /// # use greenroom::Retention;
    /// # use greenroom_simulator::Simulator;
    /// # #[tokio::main] async fn main() -> Result<()> {
    /// # let model = Simulator::echo();
    /// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    /// let policy = Retention { age_max: Some(Duration::from_secs(90 * 86_400)), ..Retention::default() };
    /// for session in runtime.due_for_deletion(&policy).await? {
    ///     println!("{} would be deleted: {}", session.id, session.reason);
    /// }
    /// let retained = runtime.retain(&policy).await?;
    /// println!("{} sessions were deleted", retained.deleted.len());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Store`]: also if the store has a loss that nobody has accepted and that may concern any session,
    /// because then nothing tells which sessions are old. [`Error::Closed`].
    pub async fn retain(&self, policy: &Retention) -> Result<Retained> {
        let due = self.due(policy).await?;
        let runtime = self.clone();
        // A deletion completes even if the caller is dropped.
        let deleting = tokio::spawn(async move { runtime.delete_due(due).await });
        deleting.await.unwrap_or_else(|panic| Err(Error::internal("deleting sessions", &panic)))
    }

    async fn due(&self, policy: &Retention) -> Result<Vec<Due>> {
        if policy.keeps_all() {
            return Ok(Vec::new());
        }
        // Sessions that wake after this have another number of entries when they are deleted, or are live.
        let live = self.at_work().await?;
        read_due(&*self.deps().store, policy, &live, self.deps().now_ms()).await
    }

    async fn delete_due(&self, due: Vec<Due>) -> Result<Retained> {
        let (mut deleted, mut used_again) = (Vec::new(), 0);
        for Due { session, entries } in due {
            let DueSession { id, reason, .. } = &session;
            let is_deleted = match deletion::delete_unused(self, id, entries, *reason).await {
                // Another node runs it.
                Err(Error::Store(error)) if matches!(*error, StoreError::Elsewhere { .. }) => false,
                ended => ended?,
            };
            if is_deleted {
                tracing::info!(session = %id, %reason, below = session.below, "retention deleted a session");
                deleted.push(session);
            } else {
                used_again += 1;
            }
        }
        let mut not_erased = None;
        if !deleted.is_empty() {
            if let Some(store) = self.deps().store.as_store() {
                not_erased = store.reclaim().await.err().map(|error| error.to_string());
            }
            tracing::info!(deleted = deleted.len(), used_again, "retention has ended");
        }
        Ok(Retained { deleted, used_again, not_erased })
    }
}

/// Returns what is due.
async fn read_due(
    store: &dyn Engine,
    policy: &Retention,
    live: &HashSet<String>,
    now_ms: u64,
) -> Result<Vec<Due>> {
    #[cfg(feature = "disk")]
    if let Some(segment) = store.as_store().and_then(|store| store.unknown_losses().first().copied()) {
        return Err(StoreError::UnknownLoss { segment }.into());
    }
    let mut known: HashMap<String, Known> = HashMap::new();
    let mut heads = Heads::new(store, None, PAGE);
    while let Some(page) = heads.next().await? {
        for (id, head) in page {
            let session = Known::of(&id, head, live);
            known.insert(id, session);
        }
    }
    let mut trees: HashMap<&str, (KeptTree, usize)> = HashMap::new();
    for (id, session) in &known {
        let root = root_of(&known, id);
        let (tree, below) = trees.entry(root).or_insert_with(|| {
            let labels = known.get(root).map(|root| root.labels.clone()).unwrap_or_default();
            (KeptTree { root: root.to_owned(), labels, active_at_ms: 0, is_protected: false }, 0)
        });
        tree.active_at_ms = tree.active_at_ms.max(session.active_at_ms);
        // The log of the session at the top has an end for each of its sub-agents, or is open itself. After that end,
        // nobody continues what a sub-agent left, at any depth.
        let is_top = root == id;
        tree.is_protected |= session.is_in_use || is_top && session.has_open_work;
        *below += usize::from(!is_top);
    }
    let below: HashMap<&str, usize> = trees.iter().map(|(root, (_, below))| (*root, *below)).collect();
    let all = trees.into_values().map(|(tree, _)| tree).collect();
    let found = due(policy, all, now_ms).into_iter().filter_map(|(tree, reason)| {
        let KeptTree { root: id, labels, active_at_ms, .. } = tree;
        let Known { title, entries, .. } = known.get(&id)?;
        let below = below.get(id.as_str()).copied().unwrap_or_default();
        let session = DueSession { title: title.clone(), below, id, labels, active_at_ms, reason };
        Some(Due { session, entries: *entries })
    });
    Ok(found.collect())
}

/// Returns the session at the top, above this one. One whose caller was deleted is at the top itself.
fn root_of<'a>(known: &'a HashMap<String, Known>, id: &'a str) -> &'a str {
    let mut root = id;
    for _ in 0..family::ABOVE_MAX {
        let parent = known.get(root).and_then(|session| session.parent.as_deref());
        match parent.and_then(|parent| known.get_key_value(parent)) {
            Some((parent, _)) if root.starts_with(&family::prefix(parent)) => root = parent,
            Some(_) | None => break,
        }
    }
    root
}

/// Applies the runtime's policy again and again, as long as the runtime exists.
pub(crate) fn keep_applying(runtime: &Runtime) {
    let weak = runtime.weak();
    tokio::spawn(async move {
        let mut wait = FIRST_AFTER;
        loop {
            tokio::time::sleep(wait).await;
            wait = EVERY;
            // The runtime is not kept alive by this task.
            let Some(runtime) = weak.upgrade() else { return };
            match runtime.retain(runtime.retention()).await {
                Ok(Retained { not_erased: Some(reason), .. }) => {
                    tracing::warn!(reason, "the bytes of deleted sessions are not erased yet");
                }
                Ok(_) => {}
                Err(Error::Closed) => return,
                Err(error) => {
                    tracing::warn!(%error, "retention could not be applied; it is tried again in an hour")
                }
            }
        }
    });
}
