//! Time limits that stand still while a person is asked.
//!
//! Invariants: a limit counts only the time in which nobody is asked; a pause ends with its guard, and pauses what it is
//! within.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

#[cfg(test)]
mod tests;

/// Counts who is asked; a [`Self::sleep`] stands still meanwhile. Clones count together.
#[derive(Debug, Clone, Default)]
pub struct Pauses {
    asked: Arc<Asked>,
    /// What is paused with these.
    outer: Option<Arc<Pauses>>,
}

/// How many people are asked. Each call has one, and few ask.
#[derive(Debug, Default)]
struct Asked {
    count: AtomicU32,
    changed: Notify,
}

impl Asked {
    fn is_any(&self) -> bool {
        self.count.load(Ordering::SeqCst) > 0
    }

    /// Waits until somebody is asked, or until nobody is.
    async fn until(&self, is_any: bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // A change between the look and the wait is heard.
            changed.as_mut().enable();
            if self.is_any() == is_any {
                return;
            }
            changed.await;
        }
    }
}

impl Pauses {
    /// Pauses that pause `outer` too: those of a call within those of its run.
    #[must_use]
    pub fn within(outer: &Self) -> Self {
        Self { outer: Some(Arc::new(outer.clone())), ..Self::default() }
    }

    /// Time limits stand still until the guard is dropped.
    #[must_use = "the pause ends with the guard"]
    pub fn pause(&self) -> PauseGuard {
        self.asked.count.fetch_add(1, Ordering::SeqCst);
        self.asked.changed.notify_waiters();
        PauseGuard {
            asked: Arc::clone(&self.asked),
            _outer: self.outer.as_ref().map(|outer| Box::new(outer.pause())),
        }
    }

    /// Whether somebody is asked right now.
    pub fn is_paused(&self) -> bool {
        self.asked.is_any()
    }

    /// Sleeps this long, pauses apart.
    pub async fn sleep(&self, mut left: Duration) {
        loop {
            self.asked.until(false).await;
            let began = Instant::now();
            tokio::select! {
                biased;
                () = self.asked.until(true) => left = left.saturating_sub(began.elapsed()),
                () = tokio::time::sleep(left) => return,
            }
        }
    }

    /// Pauses `others` whenever these are paused, for as long as it is polled.
    pub async fn pause_with(&self, others: &Self) -> std::convert::Infallible {
        loop {
            self.asked.until(true).await;
            let _pause = others.pause();
            self.asked.until(false).await;
        }
    }
}

/// A pause. It ends when this is dropped.
#[derive(Debug)]
pub struct PauseGuard {
    asked: Arc<Asked>,
    _outer: Option<Box<PauseGuard>>,
}

impl Drop for PauseGuard {
    fn drop(&mut self) {
        self.asked.count.fetch_sub(1, Ordering::SeqCst);
        self.asked.changed.notify_waiters();
    }
}
