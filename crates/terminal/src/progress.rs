//! How far long work is: a line on standard error, where a person watches.
//!
//! Invariants: a pipe or a file gets nothing of it; quick work shows nothing; the line is gone before anything else is
//! written.

use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::row::{Look, Row};
use crate::screen::{ColorChoice, Screen, one_line};

/// Work that ends before this is not told of.
const QUIET: Duration = Duration::from_millis(150);
/// How often the line is drawn anew.
const TICK: Duration = Duration::from_millis(200);

/// Work that is told of until [`Self::end`].
pub struct Progress {
    task: Option<(oneshot::Sender<()>, JoinHandle<()>)>,
}

impl Progress {
    /// Begins to tell. `text` is what is being done; the time that it takes is added.
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
                // Who closed standard error wants to see nothing.
                let _ = screen.live(Row::styled(Look::DIM, line));
            }
            let _ = screen.clear_live();
        });
        Self { task: Some((stop, task)) }
    }

    /// Ends it, and takes the line away.
    pub async fn end(self) {
        if let Some((stop, task)) = self.task {
            drop(stop);
            let _ = task.await;
        }
    }
}
