//! The progress of long work: a line on standard error, if that is a terminal.
//!
//! Invariants: a pipe or a file gets nothing; short work shows nothing; the line is removed before other
//! output is written.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::row::{Look, Row};
use crate::screen::{ColorChoice, Screen, one_line};

/// Shorter work shows no progress.
const QUIET: Duration = Duration::from_millis(150);
/// How often the line is redrawn.
const TICK: Duration = Duration::from_millis(200);

/// A progress line, shown until [`Self::end`].
pub struct Progress {
    task: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Starts the line. `text` describes the work; the elapsed seconds are added.
    pub fn start(color: ColorChoice, text: impl Fn() -> String + Send + 'static) -> Self {
        let mut screen = Screen::stderr(color);
        if !screen.is_terminal() {
            return Self { task: None };
        }
        let (stop, mut stopped) = oneshot::channel();
        let began = Instant::now();
        let task = tokio::spawn(async move {
            let mut pause = QUIET;
            while tokio::time::timeout(pause, &mut stopped).await.is_err() {
                pause = TICK;
                let seconds = began.elapsed().as_secs();
                let time = if seconds == 0 { String::new() } else { format!(" {seconds} s") };
                let line = one_line(&format!("{} …{time}", text()), screen.width());
                // If standard error is closed, nobody needs the line.
                let _ = screen.live(Row::styled(Look::DIM, line));
            }
            let _ = screen.clear_live();
        });
        Self { task: Some((stop, task)) }
    }

    /// Removes the line.
    pub async fn end(self) {
        if let Some((stop, task)) = self.task {
            drop(stop);
            let _ = task.await;
        }
    }
}
