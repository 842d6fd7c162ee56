//! What programs and people ask of a session besides prompts: compact, plan, undo, branch, pin, import.
//!
//! Invariants: each of these happens while nothing else is under way, plans and pins apart; one that is refused changed
//! nothing.

use std::collections::HashSet;
use std::sync::Arc;

use greenroom_kernel::EntryId;
use greenroom_kernel::entry::{Entry, EntryKind, Trigger};
use greenroom_kernel::message::Message;
use greenroom_kernel::path::Live;
use greenroom_kernel::plan::{Nothing, Plan, PlanOptions, plan};
use greenroom_kernel::settings::Occasion;
use greenroom_kernel::size::Estimator;
use greenroom_kernel::usage::{ContextUsage, Measured};

use super::SessionState;
use super::open_compaction::CompactionRequest;
use super::opening::{blocking, shared};
use crate::error::{Error, Result};
use crate::message::{BranchSummary, LeftBranch, ReplyTo, TrackerMessage};
use crate::session::{CompactOptions, Compacted};

/// The most that may be pinned, as a share of the window: one part in this many.
const PIN_SHARE: u64 = 8;

impl SessionState {
    pub(super) fn compact_manually(&mut self, options: CompactOptions, reply: ReplyTo<Compacted>) {
        if let Err(error) = self.check_idle("compact it") {
            let _ = reply.send(Err(error));
            return;
        }
        let reply = Some(reply);
        self.measure_for(CompactionRequest { options, reply, ..CompactionRequest::new(Trigger::Manual) });
    }

    pub(super) fn plan_manually(&self, options: &CompactOptions) -> Result<Plan, Nothing> {
        let context = self.shared.context();
        let window = self.definition.window.tokens.unwrap_or(context.tokens.max(1));
        let mut wanted = PlanOptions::new(
            &self.definition.settings,
            window,
            Occasion::Manual,
            context.tokens,
            self.overhead(),
        );
        wanted.force |= options.force;
        if let Some(keep) = options.keep_recent {
            wanted.keep_recent = keep.max(1);
        }
        plan(self.log.path(), &wanted)
    }

    pub(super) async fn undo(&mut self) -> Result<ContextUsage> {
        self.check_idle("undo a compaction")?;
        let active = self
            .log
            .head()
            .active_compaction
            .ok_or_else(|| Error::Invalid("there is no compaction to undo".into()))?;
        // What the compaction replaced is read from the log.
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.push(EntryKind::CompactionUndone { compaction: active });
        let undone = draft.entries[0].clone();
        let path = self.read_path(undone.parent).await?;
        let mut after = path;
        after.push(Arc::clone(&undone));
        let size = self.measure_path(&after);
        if let Some(window) = self.definition.window.tokens.filter(|window| size.tokens() > *window) {
            return Err(Error::Invalid(format!(
                "the context would have {} tokens without this compaction, and the window has {window}",
                size.tokens()
            )));
        }
        draft.follow_path(&after, size.tokens());
        self.append(draft, None).await?;
        self.take_path(after);
        self.compaction.only_at_window = true;
        self.limits_changed();
        Ok(ContextUsage::new(size, self.definition.window))
    }

    pub(super) async fn branch(&mut self, to: Option<EntryId>, summary: Option<BranchSummary>) -> Result<()> {
        self.check_idle("branch it")?;
        if to.is_some_and(|to| to.0 >= self.log.head().entries) {
            return Err(Error::Invalid(format!(
                "there is no entry {}; the session has {}",
                to.unwrap_or(EntryId(0)),
                self.log.head().entries
            )));
        }
        let path = self.read_path(to).await?;
        if path.last().map(|entry| entry.id) != to {
            return Err(Error::Invalid(
                "a branch must begin at an entry of a path; this one stands beside it".into(),
            ));
        }
        if !greenroom_kernel::path::open_calls(&path).is_empty() {
            return Err(Error::Invalid(
                "a branch cannot begin between a tool call and its result; take the entry before or after"
                    .into(),
            ));
        }
        let left = self.log.head().leaf;
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.push(EntryKind::LeafMoved { to });
        let mut path = path;
        if let (Some(BranchSummary { summary, files }), Some(from)) = (summary, left) {
            draft.push(EntryKind::BranchSummary { from, summary, files });
            path.extend(draft.entries.last().map(Arc::clone));
        }
        draft.follow_path(&path, self.measure_path(&path).tokens());
        self.append(draft, None).await?;
        self.take_path(path);
        self.limits_changed();
        Ok(())
    }

    /// The size of a path that is not the session's yet.
    fn measure_path(&self, path: &[Arc<Entry>]) -> Measured {
        let ratio = self.deps.learned.ratio(self.definition.provider(), self.definition.model());
        greenroom_kernel::usage::measure(path, Estimator::Classes, self.overhead(), ratio)
    }

    /// The context is another path's from now on.
    fn take_path(&mut self, path: Vec<Arc<Entry>>) {
        self.log.replace_path(path);
        let _ = self.tracker.cast(TrackerMessage::Rewritten(self.log.path().to_vec()));
    }

    /// What stands on the path now and would not, if it ended at `to`.
    pub(super) async fn left_branch(&mut self, to: Option<EntryId>) -> Result<LeftBranch> {
        self.check_idle("branch it")?;
        let kept: HashSet<EntryId> = self.read_path(to).await?.iter().map(|entry| entry.id).collect();
        let entries = self.log.path().iter().filter(|entry| !kept.contains(&entry.id)).cloned().collect();
        let window = self.definition.window.tokens.unwrap_or(128_000);
        Ok(LeftBranch {
            entries,
            model: self
                .definition
                .settings
                .summary_model
                .clone()
                .unwrap_or_else(|| self.definition.model().to_owned()),
            cap_tokens: self.definition.settings.prefix_cap(window),
            summariser_window: window,
            definition: Arc::clone(&self.definition.agent),
        })
    }

    /// The path to an entry, back to what the newest active compaction on it kept.
    async fn read_path(&self, leaf: Option<EntryId>) -> Result<Vec<Arc<Entry>>> {
        let (store, id) = (self.deps.store.clone(), Arc::clone(&self.shared.id));
        let read = move || -> Result<Vec<Arc<Entry>>> {
            let all = shared(store.load(&id, EntryId(0))?);
            Ok(crate::log::path_within(&all, leaf))
        };
        blocking(&self.deps, read).await
    }

    pub(super) async fn pin(&mut self, entry: EntryId, pinned: bool) -> Result<()> {
        if pinned {
            let found = self.log.path().iter().find(|other| other.id == entry);
            let found = found.ok_or_else(|| {
                Error::Invalid(format!("entry {entry} is not in the live context, so it cannot be pinned"))
            })?;
            let stands_alone = match found.kind.as_message().map(|message| &**message) {
                Some(Message::User(_)) => true,
                Some(Message::Assistant(answer)) => answer.tool_calls().next().is_none(),
                Some(Message::ToolResult(_)) => false,
                None => greenroom_kernel::path::is_message(&found.kind),
            };
            if !stands_alone {
                return Err(Error::Invalid(format!(
                    "entry {entry} is not a message that can stand alone: only words can be pinned, not tool calls or \
                     their results"
                )));
            }
            let budget = self.definition.window.tokens.unwrap_or(u64::MAX) / PIN_SHARE;
            let all = self.log.pins_tokens() + found.tokens;
            if all > budget {
                return Err(Error::Invalid(format!(
                    "pins would take {all} tokens, and at most {budget} may be pinned in this window"
                )));
            }
        }
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.push(EntryKind::Pin { entry, pinned });
        self.append(draft, None).await?;
        self.limits_changed();
        Ok(())
    }

    pub(super) async fn import(&mut self, entries: &[Arc<Entry>], leaf: Option<EntryId>) -> Result<()> {
        self.check_idle("import into it")?;
        if !self.log.is_empty() {
            return Err(Error::Invalid("only an empty session can take over another's entries".into()));
        }
        let mut draft = self.log.draft(self.deps.now_ms());
        entries.iter().for_each(|entry| draft.import(entry));
        let imported = draft.entries.clone();
        draft.head.leaf = leaf;
        let path = crate::log::path_within(&imported, leaf);
        let begins = path.first().and_then(|entry| entry.parent);
        if let Some(missing) = begins.filter(|_| Live::of(&path).compaction_id().is_none()) {
            return Err(Error::Invalid(format!(
                "the path to import has no entry {missing}; end it before that entry"
            )));
        }
        draft.follow_path(&path, self.measure_path(&path).tokens());
        self.append(draft, None).await?;
        self.take_path(path);
        self.limits_changed();
        Ok(())
    }
}
