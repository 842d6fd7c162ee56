//! When erasing deleted data is tried again.
//!
//! Invariants: each failure doubles the pause, up to a limit.

/// The maximum number of idle moments between two attempts to erase deleted data.
const ERASE_PAUSE_MAX: u32 = 1_024;

/// The schedule for retries of erasing deleted data: after a number of moments in which the writer was idle,
/// and after twice as many if that fails too. So a disk that stays full costs little.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EraseAgain {
    left: u32,
    pause: u32,
}

impl EraseAgain {
    /// Returns the schedule after another failure.
    pub(crate) fn after(failed: Option<Self>) -> Self {
        let pause = failed.map_or(2, |failed| failed.pause.saturating_mul(2).min(ERASE_PAUSE_MAX));
        Self { left: pause, pause }
    }

    /// Counts an idle moment, and returns whether a retry is due.
    pub(super) fn is_due(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }
}
