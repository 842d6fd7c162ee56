//! Taking over the work of nodes that have ended, where several share one storage.
//!
//! Invariants: a session is taken over only if nobody owns it, or its owner's lease has run out, and by the node that the
//! placement names; one that cannot be resumed is retried with growing delays, and delays no other one. A session that is
//! opened for another reason before it is taken over finishes its interrupted run first, too.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::agent::Agent;
use crate::api::resume::finish;
use crate::api::runtime::{Runtime, WeakRuntime};
use crate::api::sessions::SessionSummary;
use crate::values::error::{Error, Result};

/// How often abandoned sessions are looked for: each time those that follow the ones of the last time.
const EVERY: Duration = Duration::from_secs(1);
/// The maximum number of sessions that are looked at each time.
const AT_A_TIME: usize = 256;
/// How many sessions are resumed concurrently.
const AT_ONCE: usize = 16;
/// How long a session that could not be resumed is left alone, at first and at most.
const AGAIN_AFTER: Duration = Duration::from_secs(2);
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(300);

/// Chooses the agent that resumes a session; `None` leaves it to others.
pub(crate) type Chooser = Box<dyn FnMut(&SessionSummary) -> Option<Arc<Agent>> + Send>;

/// The sessions that could not be resumed: when each is tried again, and how long it is left alone after that.
type Failed = HashMap<String, (Instant, Duration)>;

/// Takes work over until it is dropped: see [`Runtime::take_over`].
#[must_use = "dropping it ends taking over"]
pub struct TakeOver {
    _tasks: JoinSet<()>,
    taking_over: Arc<AtomicUsize>,
}

impl Drop for TakeOver {
    fn drop(&mut self) {
        self.taking_over.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for TakeOver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakeOver").finish_non_exhaustive()
    }
}

impl Runtime {
    /// Where several nodes share one storage: resumes the interrupted runs of nodes that have ended, until the returned value
    /// is dropped. `agent` chooses the agent of each session, as for [`Self::resume_all`]. A session is resumed by one node.
    /// One that is opened before it was taken over, for example because of a prompt, resumes its interrupted run first.
    /// With a store of this process alone, nothing happens.
    pub fn take_over<A: Into<Arc<Agent>>>(
        &self,
        mut agent: impl FnMut(&SessionSummary) -> Option<A> + Send + 'static,
    ) -> TakeOver {
        TakeOver::begin(self, Box::new(move |session| agent(session).map(Into::into)))
    }
}

impl TakeOver {
    pub(crate) fn begin(runtime: &Runtime, choose: Chooser) -> Self {
        let mut tasks = JoinSet::new();
        if runtime.deps().store.placement().is_some() {
            tasks.spawn(keep_taking(runtime.weak(), choose));
        }
        let taking_over = Arc::clone(&runtime.deps().taking_over);
        taking_over.fetch_add(1, Ordering::Relaxed);
        Self { _tasks: tasks, taking_over }
    }
}

async fn keep_taking(weak: WeakRuntime, mut choose: Chooser) {
    let (mut failed, mut resuming, mut after) = (Failed::new(), JoinSet::new(), None);
    let slots = Arc::new(Semaphore::new(AT_ONCE));
    let mut underway: HashMap<tokio::task::Id, String> = HashMap::new();
    loop {
        while let Some(ended) = resuming.try_join_next_with_id() {
            let (task, is_resumed) = match ended {
                Ok((task, is_resumed)) => (task, is_resumed),
                Err(panic) => (panic.id(), false),
            };
            let Some(id) = underway.remove(&task) else { continue };
            note(&mut failed, id, is_resumed);
        }
        let Some(runtime) = weak.upgrade() else { return };
        match abandoned(&runtime, &failed, &mut after).await {
            Ok(summaries) => {
                for summary in summaries {
                    if underway.values().any(|id| *id == summary.id) {
                        continue;
                    }
                    let Some(agent) = choose(&summary) else { continue };
                    let (runtime, slots, id) = (runtime.clone(), Arc::clone(&slots), summary.id.clone());
                    let task = resuming.spawn(async move {
                        let Ok(_slot) = slots.acquire().await else { return false };
                        is_settled(&summary.id, resume(&runtime, &summary.id, agent).await)
                    });
                    underway.insert(task.id(), id);
                }
            }
            Err(error) => tracing::warn!(%error, "abandoned sessions could not be looked for"),
        }
        drop(runtime);
        tokio::time::sleep(EVERY).await;
    }
}

/// Returns those of the next abandoned sessions that this node should resume now. `after` is the last one that was looked
/// at; after the end, the next look begins at the first one. What is left alone stays abandoned, and may be any number.
async fn abandoned(
    runtime: &Runtime,
    failed: &Failed,
    after: &mut Option<String>,
) -> Result<Vec<SessionSummary>> {
    let store = &runtime.deps().store;
    let Some(placement) = store.placement() else { return Ok(Vec::new()) };
    let (mut found, now) = (Vec::new(), Instant::now());
    let page = placement.abandoned(after.as_deref(), AT_A_TIME).await?;
    *after = page.last().filter(|_| page.len() == AT_A_TIME).cloned();
    for id in page {
        let is_due = failed.get(&id).is_none_or(|(again, _)| *again <= now);
        if !is_due || placement.place(&id).await?.node != store.node() {
            continue;
        }
        // A sub-agent's work continues with that of its caller.
        let summary = match runtime.summary(&id).await {
            Ok(summary) => summary,
            Err(error) => {
                tracing::warn!(session = %id, %error, "an abandoned session could not be read");
                continue;
            }
        };
        found.extend(summary.filter(|summary| summary.is_unfinished && summary.parent.is_none()));
    }
    Ok(found)
}

async fn resume(runtime: &Runtime, id: &str, agent: Arc<Agent>) -> Result<()> {
    let session = runtime.session(id).await?;
    finish(runtime, &session, agent).await.map(drop)
}

/// Whether the session need not be tried again soon.
fn is_settled(id: &str, resumed: Result<()>) -> bool {
    match resumed {
        Ok(()) => tracing::info!(session = %id, "the run of another node was resumed"),
        // It waits for a person here, was complete, or is gone.
        Err(
            Error::Waiting { .. } | Error::NothingToResume { .. } | Error::NoSession { .. } | Error::Closed,
        ) => {}
        Err(error) => {
            tracing::warn!(session = %id, %error, "the run of another node could not be resumed");
            return false;
        }
    }
    true
}

fn note(failed: &mut Failed, id: String, is_resumed: bool) {
    if is_resumed {
        failed.remove(&id);
        return;
    }
    let wait = failed.get(&id).map_or(AGAIN_AFTER, |(_, wait)| (*wait * 2).min(AGAIN_AFTER_MAX));
    failed.insert(id, (Instant::now() + wait, wait));
}
