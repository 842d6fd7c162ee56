//! Waits of sessions for each other: no session waits for itself, and one that another session waits for needs no slot.
//!
//! A run waits for its tools and hooks. A tool that awaits a reply of the same session, or of a session that
//! waits for this one, would wait forever; it gets [`Error::Deadlock`] instead. Waits are known in two ways:
//! the awaiting code carries the chain of sessions that wait for it, and the runtime counts each wait for a
//! reply.
//!
//! Invariants: the counted waits contain no cycle. A task that a tool spawns counts as awaited by nobody
//! unless it was passed to [`within_call`], so its waits are never refused, and its deadlocks are not
//! detected.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::values::error::{Error, Result};

tokio::task_local! {
    static CHAIN: Chain;
}

/// The sessions whose runs wait for the current code, outermost first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chain(Arc<[Arc<str>]>);

impl Chain {
    /// Returns the sessions that wait for the calling code.
    pub(crate) fn current() -> Self {
        CHAIN.try_with(Clone::clone).unwrap_or_default()
    }

    /// Whether another session waits for the run of the last one.
    pub(crate) fn is_awaited(&self) -> bool {
        self.0.len() > 1
    }

    /// Whether no session waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns this chain with another session.
    pub(crate) fn and(&self, session: &Arc<str>) -> Self {
        Self(self.0.iter().chain([session]).cloned().collect())
    }

    /// Runs a tool or a hook for which these sessions wait.
    pub(crate) fn scope<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        CHAIN.scope(self, work)
    }
}

/// Marks a task that a tool or hook spawns and awaits as a part of the call. A prompt in the task whose reply
/// would require the end of the call's own run then fails at once with [`Error::Deadlock`]. Without this
/// function, the runtime does not know that the call waits for the task, and both wait until a time limit
/// ends them.
///
/// ```
/// use greenroom::prelude::*;
/// use greenroom::within_call;
///
/// #[derive(Deserialize, JsonSchema)]
/// struct Ask {
///     question: String,
/// }
///
/// # fn tools(agent: Agent, colleague: SessionHandle) -> Agent {
/// agent.tool("ask_colleague", move |ask: Ask| {
///     let colleague = colleague.clone();
///     async move {
///         let asked = tokio::spawn(within_call(async move { colleague.prompt(ask.question).await }));
///         Ok(asked.await.map_err(|panic| ToolError::new(panic.to_string()))??.text)
///     }
/// })
/// # }
/// ```
pub fn within_call<F: Future>(work: F) -> impl Future<Output = F::Output> {
    Chain::current().scope(work)
}

/// The counted waits between the sessions of one runtime.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    counts: Mutex<Counts>,
    /// Notified when a wait begins.
    has_begun: Notify,
}

#[derive(Debug, Default)]
struct Counts {
    /// The sessions for which each session waits, with the number of waits.
    targets: HashMap<Arc<str>, HashMap<Arc<str>, usize>>,
    /// The number of waits for each session.
    awaited: HashMap<Arc<str>, usize>,
}

impl Waits {
    /// Registers that the calling code starts to wait for this session. The wait counts until the returned
    /// guard is dropped.
    ///
    /// # Errors
    /// [`Error::Deadlock`] if the session waits for the calling code.
    pub(crate) fn begin(self: &Arc<Self>, session: &Arc<str>) -> Result<Waiting> {
        let chain = Chain::current();
        if !chain.0.is_empty() {
            let mut counts = self.counts.lock();
            if reaches(&counts, session, &chain.0) {
                return Err(Error::Deadlock { session: session.to_string() });
            }
            for waiting in chain.0.iter() {
                let targets = counts.targets.entry(Arc::clone(waiting)).or_default();
                *targets.entry(Arc::clone(session)).or_default() += 1;
            }
            *counts.awaited.entry(Arc::clone(session)).or_default() += 1;
            drop(counts);
            self.has_begun.notify_waiters();
        }
        Ok(Waiting { waits: Arc::clone(self), chain, session: Arc::clone(session) })
    }

    /// Waits until a run of another session waits for this one.
    pub(crate) async fn awaited(&self, session: &str) {
        loop {
            // It notices every wait that begins from now on.
            let has_begun = self.has_begun.notified();
            if self.counts.lock().awaited.contains_key(session) {
                return;
            }
            has_begun.await;
        }
    }
}

/// Whether this session is one of `waiting`, or waits for one of them.
fn reaches(counts: &Counts, session: &Arc<str>, waiting: &[Arc<str>]) -> bool {
    let (mut open, mut seen) = (vec![session], HashSet::from([session]));
    while let Some(next) = open.pop() {
        if waiting.contains(next) {
            return true;
        }
        open.extend(
            counts.targets.get(next).into_iter().flat_map(HashMap::keys).filter(|target| seen.insert(target)),
        );
    }
    false
}

/// A counted wait, until this is dropped.
pub(crate) struct Waiting {
    waits: Arc<Waits>,
    chain: Chain,
    session: Arc<str>,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.chain.0.is_empty() {
            return;
        }
        let mut counts = self.waits.counts.lock();
        if let Some(count) = counts.awaited.get_mut(&self.session) {
            *count -= 1;
            if *count == 0 {
                counts.awaited.remove(&self.session);
            }
        }
        for waiting in self.chain.0.iter() {
            let Some(targets) = counts.targets.get_mut(waiting) else { continue };
            if let Some(count) = targets.get_mut(&self.session) {
                *count -= 1;
                targets.retain(|_, count| *count > 0);
            }
            if targets.is_empty() {
                counts.targets.remove(waiting);
            }
        }
    }
}

/// Suggests what may have delayed a call, or the run that waits for it, to the reader of a time-out.
pub(crate) fn suspicion(prompts: usize) -> Option<String> {
    let waited = match prompts {
        0 => return None,
        1 => "a prompt of this session waited".to_owned(),
        prompts => format!("{prompts} prompts of this session waited"),
    };
    Some(format!(
        "{waited} for this run to end; a tool that awaits the reply to such a prompt in a task of its own waits for itself"
    ))
}

#[cfg(test)]
mod tests;
