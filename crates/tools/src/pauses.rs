//! Time limits that are paused while a person is asked.
//!
//! Invariants: a limit counts only the time without open questions; a pause ends with its guard, and also
//! pauses the enclosing limits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

#[cfg(test)]
mod tests;

/// Counts open questions; [`Self::sleep`] is paused while there are any. Clones share the count.
#[derive(Debug, Clone, Default)]
pub struct Pauses {
    questions: Arc<OpenQuestions>,
    /// The enclosing limits, which are paused too.
    outer: Option<Arc<Pauses>>,
}

/// The number of open questions. Each call has its own, and few ask.
#[derive(Debug, Default)]
struct OpenQuestions {
    count: AtomicU32,
    changed: Notify,
}

impl OpenQuestions {
    fn is_any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Waits until there is an open question, or until there is none.
    async fn until(&self, is_any: bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // A change between the check and the wait is not missed.
            changed.as_mut().enable();
            if self.is_any() == is_any {
                return;
            }
            changed.await;
        }
    }
}

impl Pauses {
    /// Creates pauses that also pause `outer`: those of a call within those of its run.
    #[must_use]
    pub fn within(outer: &Self) -> Self {
        Self::default().and(outer)
    }

    /// Returns these pauses, which also pause `outer` from now on.
    pub(crate) fn and(self, outer: &Self) -> Self {
        Self { outer: Some(Arc::new(outer.clone())), ..self }
    }

    /// Pauses time limits until the guard is dropped.
    #[must_use = "the pause ends with the guard"]
    pub fn pause(&self) -> PauseGuard {
        self.questions.count.fetch_add(1, Ordering::SeqCst);
        self.questions.changed.notify_waiters();
        PauseGuard {
            questions: Arc::clone(&self.questions),
            _outer: self.outer.as_ref().map(|outer| Box::new(outer.pause())),
        }
    }

    /// Whether a question is open right now.
    pub fn is_paused(&self) -> bool {
        self.questions.is_any()
    }

    /// Sleeps for this long, not counting pauses.
    pub async fn sleep(&self, mut left: Duration) {
        loop {
            self.questions.until(false).await;
            let began = Instant::now();
            tokio::select! {
                biased;
                () = self.questions.until(true) => left = left.saturating_sub(began.elapsed()),
                () = tokio::time::sleep(left) => return,
            }
        }
    }

    /// Pauses `others` whenever these are paused, as long as the future is polled.
    pub async fn pause_with(&self, others: &Self) -> std::convert::Infallible {
        loop {
            self.questions.until(true).await;
            let _pause = others.pause();
            self.questions.until(false).await;
        }
    }
}

/// A pause. It ends when the guard is dropped.
#[derive(Debug)]
pub struct PauseGuard {
    questions: Arc<OpenQuestions>,
    _outer: Option<Box<PauseGuard>>,
}

impl Drop for PauseGuard {
    fn drop(&mut self) {
        self.questions.count.fetch_sub(1, Ordering::SeqCst);
        self.questions.changed.notify_waiters();
    }
}
