//! Ctrl-C and the polite request to end.
//!
//! Invariants: from the moment this exists, the first one is for the command to act on, and the second ends the
//! process at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;

use crate::errors;

/// Interruptions, as they come. Clones hear the same ones; each is given out once.
#[derive(Debug, Clone)]
pub(crate) struct Interrupts {
    came: Arc<Notify>,
    /// One came and has not been settled: the next one is the second.
    is_pending: Arc<AtomicBool>,
    /// The process was asked to end, not only what it is doing.
    is_ending: Arc<AtomicBool>,
}

impl Interrupts {
    /// From now on, SIGINT and SIGTERM no longer end the process by themselves.
    pub(crate) fn new() -> Result<Self> {
        let mut interrupt = signal(SignalKind::interrupt()).context("listen for Ctrl-C")?;
        let mut terminate = signal(SignalKind::terminate()).context("listen for the request to end")?;
        let this = Self { came: Arc::default(), is_pending: Arc::default(), is_ending: Arc::default() };
        let listener = this.clone();
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => listener.is_ending.store(true, Ordering::SeqCst),
                }
                if listener.is_pending.swap(true, Ordering::SeqCst) {
                    std::process::exit(errors::INTERRUPTED.into());
                }
                listener.came.notify_one();
            }
        });
        Ok(this)
    }

    /// Waits for the next interruption.
    pub(crate) async fn next(&self) {
        self.came.notified().await;
    }

    /// Whether the process was asked to end.
    pub(crate) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::SeqCst)
    }

    /// What there was to interrupt is over: the next interruption is a first one again.
    pub(crate) async fn settle(&self) {
        tokio::select! {
            biased;
            () = self.came.notified() => {}
            () = std::future::ready(()) => {}
        }
        self.is_pending.store(false, Ordering::SeqCst);
    }
}
