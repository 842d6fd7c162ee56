//! The reply of a prompt that was said before: what a repeated idempotency key gets.
//!
//! Invariants: it is read from the log alone, so it is the same after a restart; a prompt that has no reply is an
//! error which says how its run ended, or that it has not.

use std::sync::Arc;

use greenroom_kernel::entry::EntryKind;
use greenroom_kernel::usage::ContextUsage;
use greenroom_kernel::{Entry, EntryId, RunId, RunOutcome};

use super::SessionState;
use super::runs::{RUN_RESUMED, Told};
use crate::deps::blocking;
use crate::error::{Error, Result};
use crate::message::ReplyTo;
use crate::prompt::Reply;

impl SessionState {
    /// Tells the caller of a prompt why it was not taken. One that was said before gets the reply that it had.
    pub(super) async fn refuse_prompt(&self, reply: ReplyTo<Reply>, error: Error) {
        let told = if let Error::DuplicateKey { first, .. } = error {
            self.first_reply(first).await
        } else {
            Err(error)
        };
        let _ = reply.send(told);
    }

    async fn first_reply(&self, first: EntryId) -> Result<Reply> {
        let (store, id) = (self.deps.store.clone(), Arc::clone(&self.shared.id));
        // A prompt is repeated soon after it was said: there is not much to read from there on.
        let entries = blocking(&self.deps, move || Ok(store.load(&id, first)?)).await?;
        let mut told = FirstRun { first, ..FirstRun::default() };
        for entry in &entries {
            told.take(entry);
            if told.is_answered() {
                break;
            }
        }
        told.reply(&self.shared.id)
    }
}

/// The run of a prompt, as its log tells it.
#[derive(Default)]
struct FirstRun {
    /// The prompt's first entry: its message, or its place in the inbox.
    first: EntryId,
    /// The run that answers it: the first, or one that goes on with it.
    run: Option<RunId>,
    /// Whether the conversation went on without an answer to it.
    is_left: bool,
    told: Told,
    end: Option<(RunOutcome, Option<ContextUsage>)>,
}

impl FirstRun {
    fn is_answered(&self) -> bool {
        matches!(self.end, Some((RunOutcome::Completed, _)))
    }

    #[expect(clippy::wildcard_enum_match_arm, reason = "all other records say nothing of a run")]
    fn take(&mut self, entry: &Entry) {
        match &entry.kind {
            EntryKind::Message { inbox, .. } if entry.id == self.first || *inbox == Some(self.first) => {
                self.run = Some(entry.id);
            }
            EntryKind::Message { message, .. } if self.run.is_some() => {
                self.told.note(message);
                self.is_left |= self.end.is_some();
            }
            EntryKind::InboxCleared { items } if items.contains(&self.first) => {
                self.end = Some((RunOutcome::Aborted, None));
            }
            EntryKind::RunEnded { run, outcome, context } if Some(*run) == self.run => {
                self.end = Some((outcome.clone(), Some(*context)));
            }
            EntryKind::Note { kind, data } if kind == RUN_RESUMED && self.run.is_some() && !self.is_left => {
                self.run = data.parse().ok().map(EntryId);
                (self.told, self.end) = (Told::default(), None);
            }
            _ => {}
        }
    }

    fn reply(self, session: &str) -> Result<Reply> {
        match (self.run, self.end) {
            (Some(run), Some((RunOutcome::Completed, Some(context)))) => Ok(self.told.reply(run, context)),
            (_, end) => Err(Error::DuplicateKey {
                session: session.to_owned(),
                first: self.first,
                outcome: end.map(|(outcome, _)| outcome),
            }),
        }
    }
}
