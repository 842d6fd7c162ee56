//! Time limits that stand still while a person is asked.
//!
//! Invariants: a limit counts only the time in which nobody is asked; a pause ends with its guard.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

#[cfg(test)]
mod tests;

/// Counts who is asked; a [`Self::sleep`] stands still meanwhile. Clones count together.
#[derive(Debug, Clone)]
pub struct Pauses(Arc<watch::Sender<u32>>);

impl Default for Pauses {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Pauses {
    /// Time limits stand still until the guard is dropped.
    #[must_use = "the pause ends with the guard"]
    pub fn pause(&self) -> PauseGuard {
        self.0.send_modify(|asked| *asked += 1);
        PauseGuard(self.clone())
    }

    /// Whether somebody is asked right now.
    pub fn is_paused(&self) -> bool {
        *self.0.borrow() > 0
    }

    /// Sleeps this long, pauses apart.
    pub async fn sleep(&self, mut left: Duration) {
        let mut asked = self.0.subscribe();
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
}

/// A pause. It ends when this is dropped.
#[derive(Debug)]
pub struct PauseGuard(Pauses);

impl Drop for PauseGuard {
    fn drop(&mut self) {
        self.0.0.send_modify(|asked| *asked -= 1);
    }
}
