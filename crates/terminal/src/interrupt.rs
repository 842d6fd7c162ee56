//! Ctrl-C and the requests to end: SIGTERM, the terminal that closes (SIGHUP), Ctrl-\ (SIGQUIT).
//!
//! Invariants: from the moment this exists, the first one is for the command to act on, and the second ends the
//! process at once. A signal that was ignored when the program was started, as `nohup` does, stays ignored.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};

/// The exit code of a process that was interrupted.
pub const INTERRUPTED: u8 = 130;

/// Interruptions, as they come. Clones hear the same ones; each is given out once.
#[derive(Debug, Clone)]
pub struct Interrupts {
    came: Arc<Notify>,
    /// How many came.
    count: watch::Sender<u64>,
    /// One came and has not been settled: the next one is the second.
    is_pending: Arc<AtomicBool>,
    /// The process was asked to end, not only what it is doing.
    is_ending: Arc<AtomicBool>,
}

impl Interrupts {
    /// From now on, these signals no longer end the process by themselves.
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

    /// As if the user had pressed Ctrl-C.
    pub fn interrupt(&self) {
        self.is_pending.store(true, Ordering::SeqCst);
        self.count.send_modify(|count| *count += 1);
        self.came.notify_one();
    }

    /// How many have come, for those who look on: it changes with each, whoever is given it.
    pub fn count(&self) -> watch::Receiver<u64> {
        self.count.subscribe()
    }

    /// What comes of this, unless an interruption comes first.
    ///
    /// # Errors
    /// The interruption, or its own.
    pub async fn unless<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            biased;
            () = self.next() => Err(greenroom::Error::Aborted.into()),
            done = work => done,
        }
    }

    /// Whether one has come, and what there was to interrupt is not over.
    pub fn is_pending(&self) -> bool {
        self.is_pending.load(Ordering::SeqCst)
    }

    /// Whether the process was asked to end.
    pub fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// What there was to interrupt is over: the next interruption is a first one again.
    pub async fn settle(&self) {
        tokio::select! {
            biased;
            () = self.came.notified() => {}
            () = std::future::ready(()) => {}
        }
        self.is_pending.store(false, Ordering::SeqCst);
    }
}

/// `None` for a signal that stays ignored.
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

/// The signals that this process ignores, a bit each, from 1. None are known on systems that do not say it.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}
