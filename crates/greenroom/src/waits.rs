//! Who waits for whom, so that no session waits for itself.
//!
//! A run waits for its tools and hooks. One that awaits a prompt of the same session, or of a session that waits for
//! this one further up, would wait for ever: it gets [`Error::Deadlock`] instead.
//!
//! Invariants: the chain of waiting sessions follows the awaiting code: a task that a tool spawns waits for nobody, so
//! what that task awaits is never refused.

use std::sync::Arc;

use crate::error::{Error, Result};

tokio::task_local! {
    static CHAIN: Chain;
}

/// The sessions whose runs wait for what is done here, outermost first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Chain(Arc<[Arc<str>]>);

impl Chain {
    /// Those that wait for the code that asks.
    pub(crate) fn current() -> Self {
        CHAIN.try_with(Clone::clone).unwrap_or_default()
    }

    /// These, and this session besides.
    pub(crate) fn and(&self, session: &Arc<str>) -> Self {
        Self(self.0.iter().chain([session]).cloned().collect())
    }

    /// Runs a tool or a hook, for which these sessions wait.
    pub(crate) async fn scope<F: Future>(self, work: F) -> F::Output {
        CHAIN.scope(self, work).await
    }
}

/// Checks that this session does not wait for the code that is about to wait for it.
pub(crate) fn check(session: &str) -> Result<()> {
    if Chain::current().0.iter().any(|waiting| **waiting == *session) {
        return Err(Error::Deadlock { session: session.to_owned() });
    }
    Ok(())
}
