//! The limit of a model's silence.
//!
//! Invariants: the time counts from the start of the wait for the next piece; one timer serves a whole
//! answer, and is reset when it fires and not for each piece, because pieces are many and long waits are
//! rare.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use greenroom_kernel::{Failure, FailureClass};
use tokio::time::{Instant, Sleep, sleep_until};

#[cfg(test)]
mod tests;

/// The maximum limit, which is as good as none: the time at which a longer one ends may not be representable.
const CENTURY: Duration = Duration::from_secs(100 * 365 * 86_400);

/// The timer for the pieces of one answer.
pub(crate) struct Silence {
    /// Zero: no limit.
    max: Duration,
    /// Fires when the awaited piece is late, or earlier.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Silence {
    pub(super) fn new(max: Duration) -> Self {
        Self { max: max.min(CENTURY), timer: None }
    }

    /// Waits for the next piece of an answer, up to the limit.
    ///
    /// # Errors
    /// A time-out after too long a silence.
    pub(crate) async fn unless_silent<T>(&mut self, piece: impl Future<Output = T>) -> Result<T, Failure> {
        let mut piece = pin!(piece);
        let mut late_at = None;
        poll_fn(|context| {
            if let Poll::Ready(piece) = piece.as_mut().poll(context) {
                return Poll::Ready(Ok(piece));
            }
            if self.max.is_zero() {
                return Poll::Pending;
            }
            let late_at = *late_at.get_or_insert_with(|| Instant::now() + self.max);
            let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(late_at)));
            while timer.as_mut().poll(context).is_ready() {
                if Instant::now() >= late_at {
                    let message = format!("the model was silent for {}", shown(self.max));
                    return Poll::Ready(Err(Failure::new(FailureClass::Timeout, message)));
                }
                timer.as_mut().reset(late_at);
            }
            Poll::Pending
        })
        .await
    }
}

/// Returns a time in seconds, or below one in milliseconds.
fn shown(time: Duration) -> String {
    match time.as_secs() {
        0 => format!("{} ms", time.as_millis()),
        seconds => format!("{seconds} s"),
    }
}
