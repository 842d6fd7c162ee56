//! One run as a command plays it: its events as they come, and Ctrl-C.
//!
//! Invariants: the first interruption ends the run and keeps what had come; the second ends the process.

use anyhow::Result;
use greenroom::{Error, Reply, RunItem, RunStream};

use crate::interrupt::Interrupts;

/// How a run ended.
#[derive(Debug)]
pub(crate) struct Played<R = Reply> {
    /// The reply, or why there is none.
    pub(crate) reply: greenroom::Result<R>,
    /// Whether the user interrupted it.
    pub(crate) is_interrupted: bool,
}

/// Plays a run to its end, and hands on what comes. If `on` fails the run is cancelled.
pub(crate) async fn play<R>(
    mut stream: RunStream<R>,
    interrupts: &Interrupts,
    mut on: impl FnMut(&RunItem<R>) -> Result<()>,
) -> Result<Played<R>> {
    let mut is_interrupted = false;
    let reply = loop {
        tokio::select! {
            biased;
            () = interrupts.next() => {
                is_interrupted = true;
                stream.abort();
            }
            item = stream.next() => match item {
                Some(Ok(RunItem::Reply(reply))) => break Ok(reply),
                Some(Ok(item)) => on(&item)?,
                Some(Err(error)) => break Err(error),
                None => break Err(Error::Closed),
            },
        }
    };
    interrupts.settle().await;
    Ok(Played { reply, is_interrupted })
}
