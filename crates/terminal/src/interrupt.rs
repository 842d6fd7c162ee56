//! Ctrl-C and the requests to exit: SIGTERM, a closing terminal (SIGHUP), Ctrl-\ (SIGQUIT).
//!
//! Invariants: while an [`Interrupts`] exists, the command handles the first signal, and the second ends the
//! process at once. A signal that was ignored when the program started, as under `nohup`, stays ignored.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};

/// The exit code of an interrupted process.
pub const INTERRUPTED: u8 = 130;

/// The interruptions, as they arrive. Clones share one queue: each interruption is delivered once.
#[derive(Debug, Clone)]
pub struct Interrupts {
    came: Arc<Notify>,
    /// The number of interruptions so far.
    count: watch::Sender<u64>,
    /// An interruption has arrived and is not settled: the next one is the second.
    is_pending: Arc<AtomicBool>,
    /// The process was asked to exit, not only to stop its current work.
    is_ending: Arc<AtomicBool>,
}

impl Interrupts {
    /// Starts handling these signals, which then no longer end the process by themselves.
    ///
    /// # Errors
    /// A signal handler cannot be installed.
    pub fn new() -> Result<Self> {
        let ignored = ignored_signals();
        let mut interrupt = listen(SignalKind::interrupt(), ignored)?;
        let mut terminate = listen(SignalKind::terminate(), ignored)?;
        let mut hangup = listen(SignalKind::hangup(), ignored)?;
        let mut quit = listen(SignalKind::quit(), ignored)?;
        let this = Self {
            came: Arc::default(),
            count: watch::Sender::default(),
            is_pending: Arc::default(),
            is_ending: Arc::default(),
        };
        let listener = this.clone();
        tokio::spawn(async move {
            loop {
                let is_ending = tokio::select! {
                    () = next(&mut interrupt) => false,
                    () = next(&mut terminate) => true,
                    () = next(&mut hangup) => true,
                    () = next(&mut quit) => true,
                };
                listener.is_ending.fetch_or(is_ending, Ordering::SeqCst);
                if listener.is_pending.swap(true, Ordering::SeqCst) {
                    std::process::exit(INTERRUPTED.into());
                }
                listener.count.send_modify(|count| *count += 1);
                listener.came.notify_one();
            }
        });
        Ok(this)
    }

    /// Waits for the next interruption.
    pub async fn next(&self) {
        self.came.notified().await;
    }

    /// Acts like a Ctrl-C from the user.
    pub fn interrupt(&self) {
        self.is_pending.store(true, Ordering::SeqCst);
        self.count.send_modify(|count| *count += 1);
        self.came.notify_one();
    }

    /// Returns the number of interruptions as a watch. It counts every interruption, whichever clone receives
    /// it.
    pub fn count(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }

    /// Runs `work` until it ends or an interruption arrives.
    ///
    /// # Errors
    /// The error of `work`, or [`Aborted`](greenroom::Error::Aborted) after an interruption.
    pub async fn unless<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.next() => Err(greenroom::Error::Aborted.into()),
            done = work => done,
        }
    }

    /// Whether an interruption has arrived and the interrupted work has not ended.
    pub fn is_pending(&self) -> bool {
        self.is_pending.load(Ordering::SeqCst)
    }

    /// Whether the process was asked to exit.
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// Marks the interrupted work as ended: the next interruption counts as the first again.
    pub async fn settle(&self) {
        tokio::select! {
            biased;
            () = self.came.notified() => {}
            () = std::future::ready(()) => {}
        }
        self.is_pending.store(false, Ordering::SeqCst);
    }
}

/// Listens for a signal; returns `None` if it stays ignored.
fn listen(kind: SignalKind, ignored: u64) -> Result<Option<Signal>> {
    if ignored & (1 << (kind.as_raw_value() - 1)) != 0 {
        return Ok(None);
    }
    signal(kind).map(Some).with_context(|| format!("listen for the signal {}", kind.as_raw_value()))
}

async fn next(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => std::future::pending().await,
    }
}

/// Returns the signals that this process ignores, as a bit mask whose lowest bit is signal 1; 0 on systems
/// that do not report them.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
