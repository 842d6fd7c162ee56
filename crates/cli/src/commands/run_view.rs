//! A run as a command shows it: its events as they arrive, and Ctrl-C.
//!
//! Invariants: the first interruption ends the run and keeps partial output; the second ends the process; the
//! first interruption and the time limit also apply while the prompt is being sent.

use std::time::Duration;

use anyhow::Result;
use greenroom::EventKind;
use greenroom::{EntryId, Error, Event, RunItem};
use greenroom_server::operations::{Abort, Accepted, Operation, PromptOutcome};
use greenroom_server::{Client, ClientError, Events, Problem, Received};
use greenroom_terminal::Interrupts;
use tokio::time::{Instant, sleep_until};

use crate::error::{self, CliError};

#[cfg(test)]
mod tests;

/// The run was aborted because its reader has gone: `greenroom run --json … | head -1`.
#[derive(Debug)]
pub(crate) struct Unread(CliError);

impl Unread {
    fn new() -> Self {
        let text = "the run was aborted because nothing reads its output any more";
        Self(CliError::new(error::INTERRUPTED, text))
    }
}

impl std::fmt::Display for Unread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Unread {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// How long sending a prompt may still take after an interruption, so that its run is aborted in order.
const SENT_WITHIN: Duration = Duration::from_secs(2);
/// The message after an interruption before the prompt was accepted.
const NOT_TAKEN_ON: &str = "the prompt was still being sent, so the session may not have it";

/// Runs a prompt or a continuation to its end, and passes on the items of its run. `events`
/// are those of its session, from a moment before this call. `recorded` begins when the work is accepted, and has
/// ended when this returns. If `on` fails, the run is aborted. If it is not accepted within `timeout`, the connection
/// is closed.
pub(crate) async fn play<O>(
    client: &Client,
    mut events: Events,
    work: O,
    timeout: Option<Duration>,
    interrupts: &Interrupts,
    recorded: impl Future<Output = ()>,
    mut on: impl FnMut(&RunItem) -> Result<()>,
) -> Result<Played>
where
    O: Operation<Output = Accepted, Outcome = PromptOutcome>,
{
    let session_id = work.session_id().unwrap_or_default().to_owned();
    let mut is_interrupted = false;
    let working = client.work(work);
    tokio::pin!(working);
    let (begun, mut interrupted) = (Instant::now(), None);
    let work = loop {
        tokio::select! {
            biased;
            () = interrupts.next() => {
                is_interrupted = true;
                interrupted.get_or_insert_with(|| Instant::now() + SENT_WITHIN);
            }
            work = &mut working => break work,
            () = until(interrupted) => {
                client.give_up(NOT_TAKEN_ON);
                break Err(ClientError::Silent(NOT_TAKEN_ON.to_owned()));
            }
            () = until(timeout.map(|timeout| begun + timeout)) => {
                client.give_up(NOT_TAKEN_ON);
                let timed_out = Error::TimedOut { timeout: timeout.unwrap_or_default() };
                break Err(ClientError::Refused(Box::new(Problem::from(&timed_out))));
            }
        }
    };
    let work = match work {
        Ok(work) => work,
        Err(error) => return Ok(Played { reply: Err(error), is_accepted: false, is_interrupted }),
    };
    let entry_id = work.accepted.entry_id;
    let abort = async || {
        // Without a connection, the run ends anyway.
        let _ = client.call(Abort { session_id: session_id.clone(), entry_id }).await;
    };
    if is_interrupted {
        abort().await;
    }
    let mut own = OwnRun { entry: entry_id, run: None, is_over: false };
    let outcome = work.outcome();
    tokio::pin!(outcome, recorded);
    let mut is_recorded = false;
    let reply = loop {
        let taken = tokio::select! {
            biased;
            () = interrupts.next() => {
                is_interrupted = true;
                abort().await;
                Ok(())
            }
            () = &mut recorded, if !is_recorded => {
                is_recorded = true;
                Ok(())
            }
            Some(received) = events.next() => own.take(received, &mut on),
            reply = &mut outcome => break reply,
        };
        if let Err(error) = taken {
            // The reader has gone. The log should have the run's end.
            abort().await;
            let is_aborted = outcome.await.is_err();
            if !is_recorded {
                recorded.await;
            }
            return Err(if is_aborted && error::is_closed_pipe(&error) {
                Unread::new().into()
            } else {
                error
            });
        }
    };
    while let Some(received) = events.try_next() {
        own.take(received, &mut on)?;
    }
    if !is_recorded {
        recorded.await;
    }
    interrupts.settle().await;
    Ok(Played { reply, is_accepted: true, is_interrupted })
}

/// Waits for this time; forever if there is none.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct Played {
    /// The reply, or why there is none.
    pub(crate) reply: Result<PromptOutcome, ClientError>,
    /// Whether the prompt is durable.
    pub(crate) is_accepted: bool,
    /// Whether the user interrupted the run.
    pub(crate) is_interrupted: bool,
}

impl Played {
    /// Whether the host died before it accepted the work, so that another one can be asked.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_gone() && !self.is_accepted && !self.is_interrupted
    }

    /// Whether the host died before the end of accepted work.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.is_gone() && !self.is_lost()
    }

    fn is_gone(&self) -> bool {
        matches!(&self.reply, Err(error) if error.is_gone())
    }
}

/// Selects the events of one prompt's run.
struct OwnRun {
    /// The entry of the prompt: of its message, or of the inbox item; for a continued run, of the note about
    /// that.
    entry: Option<EntryId>,
    /// The run, once it has started.
    run: Option<EntryId>,
    is_over: bool,
}

impl OwnRun {
    fn take(&mut self, received: Received, on: &mut impl FnMut(&RunItem) -> Result<()>) -> Result<()> {
        match received {
            Received::Event(event) if self.is_told(&event) => on(&RunItem::Event(event)),
            Received::Gap { from_seq, .. } if !self.is_over => on(&RunItem::Gap { from_seq }),
            // Changes of the configuration concern other runs.
            Received::Event(_) | Received::Gap { .. } | Received::Warning(_) => Ok(()),
        }
    }

    /// Whether an event is shown: events of the run, and before that the session's own.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other events are of runs")]
    fn is_told(&mut self, event: &Event) -> bool {
        if self.is_over {
            return false;
        }
        if let Some(run) = self.run {
            self.is_over = event.run == Some(run) && matches!(event.kind, EventKind::RunEnd { .. });
            return event.run.is_none_or(|of| of == run);
        }
        if self.entry.is_some() && event.run.map(|run| EntryId(run.0)) == self.entry {
            self.run = event.run;
            return true;
        }
        match &event.kind {
            EventKind::MessageEnd { entry_id, queued, .. }
                if self.entry.is_some() && (Some(*entry_id) == self.entry || *queued == self.entry) =>
            {
                self.run = event.run;
                true
            }
            EventKind::CompactionStart { .. }
            | EventKind::CompactionEnd(_)
            | EventKind::SessionCompacted { .. }
            | EventKind::Warning { .. }
            | EventKind::SessionRestarted { .. }
            | EventKind::SessionFailed { .. } => true,
            _ => false,
        }
    }
}
