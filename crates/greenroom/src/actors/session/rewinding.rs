//! Going back: the files first, then the conversation.
//!
//! Invariants: one that aborts the work in progress waits for its end, and goes before queued input. It happens while the
//! session is idle, and nothing starts before it is over. If the process ends in between, the files are back and the
//! conversation is not: the same request does the rest. What is refused changes nothing.

use greenroom_kernel::EntryId;
use greenroom_kernel::entry::EntryKind;
use greenroom_kernel::message::Message;
use greenroom_tools::rewind::{FileRewind, Moment, RewindFiles};

use super::SessionState;
use crate::core::message::ReplyTo;
use crate::values::error::{Error, Result};
use crate::values::rewind::{Rewind, RewindTarget, Rewound};

/// Rewinds that wait for the end of the work that they aborted.
pub(super) type WaitingRewinds = Vec<(Rewind, ReplyTo<Rewound>)>;

impl SessionState {
    /// Goes back now, or when the work in progress has ended, if it is to be aborted.
    pub(super) async fn rewind_in_turn(&mut self, rewind: Rewind, reply: ReplyTo<Rewound>) {
        if rewind.aborts && !self.is_at_rest() && !self.life.is_stopping() {
            self.shared.abort();
            self.rewinds.push((rewind, reply));
        } else {
            let _ = reply.send(self.rewind(rewind).await);
        }
    }

    /// Goes back for those that wait: the session is at rest.
    pub(super) async fn waiting_rewinds(&mut self) {
        for (rewind, reply) in std::mem::take(&mut self.rewinds) {
            let _ = reply.send(self.rewind(rewind).await);
        }
    }

    async fn rewind(&mut self, rewind: Rewind) -> Result<Rewound> {
        self.check_idle("rewind it")?;
        let (prompt, to, moment) = match rewind.target {
            RewindTarget::Entry(Some(to)) => (None, Some(to), Moment::After(to.0)),
            RewindTarget::Entry(None) => (None, None, Moment::Before(0)),
            RewindTarget::LastTurn => match self.last_prompt().await? {
                Some((prompt, before)) => (Some(prompt), before, Moment::Before(prompt.0)),
                None => return Ok(self.rewound(None, None)),
            },
        };
        let mut rewound = self.rewound(prompt, to);
        // Checked first: files must not go back to a place that is refused.
        self.branch_path(to).await?;
        if rewind.files {
            rewound.files = self.rewind_files(moment, rewind).await?;
        }
        rewound.conversation = rewind.conversation;
        if rewind.conversation && !rewind.dry_run && rewound.from != to {
            self.branch(to).await?;
        }
        Ok(rewound)
    }

    fn rewound(&self, prompt: Option<EntryId>, to: Option<EntryId>) -> Rewound {
        Rewound {
            prompt,
            to,
            from: self.log.head().leaf,
            conversation: false,
            files: Vec::new(),
            keeps_files: self.deps.files.is_some(),
        }
    }

    /// Returns the newest prompt of the conversation, and the entry before it. The model may not see it any more: a
    /// compaction can replace the prompt of the newest turn, and keep an older one that is pinned.
    async fn last_prompt(&self) -> Result<Option<(EntryId, Option<EntryId>)>> {
        let is_prompt = |kind: &EntryKind| {
            matches!(kind, EntryKind::Message { message, steer: false, .. }
                if matches!(**message, Message::User(_)))
        };
        let whole = self.read_path(self.log.head().leaf).await?.path;
        let prompt = whole.iter().rev().find(|entry| is_prompt(&entry.kind));
        Ok(prompt.map(|prompt| (prompt.id, prompt.parent)))
    }

    async fn rewind_files(&self, to: Moment, rewind: Rewind) -> Result<Vec<FileRewind>> {
        let Some(history) = self.deps.files.clone() else { return Ok(Vec::new()) };
        let Some(entry) = self.log.head().entries.checked_sub(1) else { return Ok(Vec::new()) };
        let wanted = RewindFiles { to, entry, overwrites: rewind.overwrites, dry_run: rewind.dry_run };
        let session = self.shared.id.to_string();
        let done = tokio::task::spawn_blocking(move || history.rewind(&session, wanted)).await;
        let done = done.map_err(|panic| Error::internal("bringing files back", &panic))?;
        done.map_err(|error| Error::internal("reading the kept files", &error))
    }
}
