//! Copies of sessions: forks, and new sessions that continue another one with a goal.
//!
//! Invariants: the original is unchanged; a copy is one moment of its original, which may be at work, and has the whole
//! log up to its leaf, so that everything can be recalled in it; nothing is written if the new id is in use.

use std::sync::Arc;

use greenroom_kernel::entry::{Entry, EntryId};

use crate::agent::Agent;
use crate::api::runtime::{Runtime, no_session};
use crate::api::session::SessionHandle;
use crate::values::compaction::{CompactOptions, Compacted};
use crate::values::error::{Error, Result};

/// The longest title made of a goal, in characters.
const TITLE_CHARS_MAX: usize = 80;

/// A new session that continues another one.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Continued {
    /// The new session.
    pub session: SessionHandle,
    /// How the conversation so far was summarised. If [nothing was](Compacted::is_installed), the new session has the
    /// whole conversation.
    pub compacted: Compacted,
}

impl Continued {
    /// The label of a session that continues another one: the other one's id.
    pub const FROM_LABEL: &str = "continued_from";
}

impl Runtime {
    /// Copies a session under another id: its active context continues there; the original is unchanged. A
    /// session that works is copied as it is at this moment, and one in which nothing was said has an empty copy.
    ///
    /// # Errors
    /// [`Error::NoSession`]; [`Error::Deleted`]; [`Error::NotEmpty`] if the new id is in use: then nothing is changed.
    pub async fn fork(&self, from: &str, to: &str, agent: impl Into<Arc<Agent>>) -> Result<SessionHandle> {
        self.check_unused(to).await?;
        let Some(head) = self.head(from).await? else {
            self.held(from).await?.ok_or_else(|| no_session(from))?.door.check_deleted()?;
            return self.open(to, agent).await;
        };
        let mut entries = self.entries(from, EntryId(0)).await?;
        // The log may have grown since the head was read: what is newer belongs to a later moment.
        entries.truncate(entries.partition_point(|entry| entry.id.0 < head.entries));
        self.copied(entries, to, head.leaf, agent.into()).await
    }

    /// Like [`Self::fork`], with the path that ends at an entry, as after [`SessionHandle::branch`]; this also works
    /// for a session whose log cannot be opened.
    ///
    /// # Errors
    /// Those of [`Self::fork`]; [`Error::NoEntry`]; [`Error::BranchPoint`] if an entry of that path is missing.
    pub async fn fork_at(
        &self,
        from: &str,
        to: &str,
        at: EntryId,
        agent: impl Into<Arc<Agent>>,
    ) -> Result<SessionHandle> {
        self.check_unused(to).await?;
        let entries = self.entries(from, EntryId(0)).await?;
        self.copied(entries, to, Some(at), agent.into()).await
    }

    /// Returns [`Error::NotEmpty`] if a session with this id has entries.
    async fn check_unused(&self, to: &str) -> Result<()> {
        match self.head(to).await?.is_some_and(|taken| taken.entries > 0) {
            true => Err(Error::NotEmpty { session: to.to_owned() }),
            false => Ok(()),
        }
    }

    /// Opens a session with these entries, whose path ends at `leaf`.
    async fn copied(
        &self,
        entries: Vec<Entry>,
        to: &str,
        leaf: Option<EntryId>,
        agent: Arc<Agent>,
    ) -> Result<SessionHandle> {
        if let Some(entry) = leaf {
            let at = entries.binary_search_by_key(&entry, |entry| entry.id);
            at.map_err(|_| Error::NoEntry { entry, entries: entries.len() as u64 })?;
        }
        let session = self.open(to, agent).await?;
        session.import(entries.into_iter().map(Arc::new).collect(), leaf).await?;
        Ok(session)
    }

    /// Continues a session in a new one with a goal: the new session has the conversation so far, replaced in the
    /// model's view by a summary that focuses on the goal, with the newest messages. Its title is the goal, and its
    /// label [`continued_from`](Continued::FROM_LABEL) names the session. The goal is not a prompt: send one to begin.
    ///
    /// ```
    /// # use greenroom::prelude::*;
    /// # use greenroom_simulator::{Echo, Simulator};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<()> {
    /// # let model = Simulator::new(greenroom_simulator::SimulatorOptions::new(Echo));
    /// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    /// # let agent = Agent::new("any");
    /// # runtime.open("design", &agent).await?.prompt("Design the parser.").await?;
    /// let continued = runtime.continue_in("design", "tests", "Write the parser's tests.", &agent).await?;
    /// continued.session.prompt("Begin with the empty file.").await?;
    /// # runtime.shutdown().await
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Self::fork`]. A summary that fails is not an error: see [`Continued::compacted`].
    pub async fn continue_in(
        &self,
        from: &str,
        to: &str,
        goal: &str,
        agent: impl Into<Arc<Agent>>,
    ) -> Result<Continued> {
        let session = self.fork(from, to, agent).await?;
        let goal = goal.trim();
        // A text that cannot be a title or does not fit a label is not a failure.
        if let Some(line) = goal.lines().next() {
            let _ = session.set_title(line.chars().take(TITLE_CHARS_MAX).collect::<String>()).await;
        }
        let _ = session.set_label(Continued::FROM_LABEL, from).await;
        let focus = match goal {
            "" => "the conversation continues in a new session".to_owned(),
            goal => format!("the conversation continues in a new session, whose goal is: {goal}"),
        };
        let options = CompactOptions { focus: Some(focus), keep_recent: Some(1), force: true };
        let compacted = session.compact(options).await?;
        Ok(Continued { session, compacted })
    }
}
