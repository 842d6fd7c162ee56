//! Time limits that stand still while a person is asked.
//!
//! Invariants: a limit counts only the time in which nobody is asked; a pause ends with its guard, and pauses what it is
//! within.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

#[cfg(test)]
mod tests;

/// Counts who is asked; a [`Self::sleep`] stands still meanwhile. Clones count together.
#[derive(Debug, Clone)]
pub struct Pauses {
    asked: Arc<watch::Sender<u32>>,
    /// What is paused with these.
    outer: Option<Arc<Pauses>>,
}

impl Default for Pauses {
    fn default() -> Self {
        Self { asked: Arc::new(watch::Sender::new(0)), outer: None }
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
        self.asked.send_modify(|asked| *asked += 1);
        PauseGuard {
            asked: Arc::clone(&self.asked),
            _outer: self.outer.as_ref().map(|outer| Box::new(outer.pause())),
        }
    }

    /// Whether somebody is asked right now.
    pub fn is_paused(&self) -> bool {
        *self.asked.borrow() > 0
    }

    /// Sleeps this long, pauses apart.
    pub async fn sleep(&self, mut left: Duration) {
        let mut asked = self.asked.subscribe();
        loop {
            // The sender lives as long as `self`.
            let _ = asked.wait_for(|asked| *asked == 0).await;
            let began = Instant::now();
            tokio::select! {
                biased;
                _ = asked.wait_for(|asked| *asked > 0) => left = left.saturating_sub(began.elapsed()),
                () = tokio::time::sleep(left) => return,
            }
        }
    }

    /// Pauses `others` whenever these are paused, for as long as it is polled.
    pub async fn pause_with(&self, others: &Self) -> std::convert::Infallible {
        let mut asked = self.asked.subscribe();
        loop {
            // The sender lives as long as `self`.
            let _ = asked.wait_for(|asked| *asked > 0).await;
            let _pause = others.pause();
            let _ = asked.wait_for(|asked| *asked == 0).await;
        }
    }
}

/// A pause. It ends when this is dropped.
#[derive(Debug)]
pub struct PauseGuard {
    asked: Arc<watch::Sender<u32>>,
    _outer: Option<Box<PauseGuard>>,
}

impl Drop for PauseGuard {
    fn drop(&mut self) {
        self.asked.send_modify(|asked| *asked -= 1);
    }
}
