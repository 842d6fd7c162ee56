//! What programs and people ask of a session besides prompts: compact, plan, undo, branch, pin, import.
//!
//! Invariants: each of these happens while nothing else is under way, plans and pins apart; one that is refused changed
//! nothing.

use std::collections::HashSet;
use std::sync::Arc;

use greenroom_kernel::EntryId;
use greenroom_kernel::due::Size;
use greenroom_kernel::entry::{Entry, EntryKind, Trigger};
use greenroom_kernel::message::Message;
use greenroom_kernel::path::ActivePath;
use greenroom_kernel::plan::{NothingToCompact, Plan, plan};
use greenroom_kernel::size::Estimator;
use greenroom_kernel::usage::{ContextUsage, Measured, Ratio, Reports, measure};

use super::SessionState;
use super::open_compaction::CompactionRequest;
use super::opening::shared;
use crate::compaction::{CompactOptions, Compacted};
use crate::deps::blocking;
use crate::error::{BranchPointError, Error, PinError, Result};
use crate::message::{BranchSummary, LeftBranch, Measurement, ReplyTo, TrackerMessage};

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

    pub(super) fn plan_manually(&self, options: &CompactOptions) -> Result<Plan, NothingToCompact> {
        let usage = self.shared.context();
        let size = Size { tokens: usage.tokens, ..Size::default() };
        let measured = Measurement { size, usage, ratio: Ratio::default() };
        let request =
            CompactionRequest { options: options.clone(), ..CompactionRequest::new(Trigger::Manual) };
        plan(self.log.path(), &self.compaction_params(&request, &measured).plan_options())
    }

    pub(super) async fn undo(&mut self) -> Result<ContextUsage> {
        self.check_idle("undo a compaction")?;
        let active = self
            .log
            .head()
            .active_compaction
            .ok_or_else(|| Error::NothingToUndo { session: self.shared.id.to_string() })?;
        // What the compaction replaced is read from the log.
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.push(EntryKind::CompactionUndone { compaction: active });
        let undone = draft.entries[0].clone();
        let path = self.read_path(undone.parent).await?;
        let mut after = path;
        after.push(Arc::clone(&undone));
        let size = self.measure_path(&after);
        if let Some(window) = self.definition.window.tokens.filter(|window| size.tokens() > *window) {
            return Err(Error::UndoTooLarge { tokens: size.tokens(), window });
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
        let entries = self.log.head().entries;
        if let Some(entry) = to.filter(|to| to.0 >= entries) {
            return Err(Error::NoEntry { entry, entries });
        }
        let path = self.read_path(to).await?;
        if let Some(entry) = to.filter(|to| path.last().map(|entry| entry.id) != Some(*to)) {
            return Err(Error::BranchPoint(BranchPointError::BesidePath { entry }));
        }
        if !greenroom_kernel::path::open_calls(&path).is_empty() {
            return Err(Error::BranchPoint(BranchPointError::InsideCall));
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
        let ratio = self.deps.learned.ratio(self.definition.lane.origin(), self.definition.model());
        let overhead = self.definition.overhead(self.log.pinned_tokens_before(path));
        measure(path, Estimator::Classes, overhead, ratio, Reports::Believed)
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
            output_tokens_max: self.deps.summary_output_max(
                &self.definition.agent,
                &self.definition.lane,
                self.definition.settings.summary_model.as_deref().unwrap_or(self.definition.model()),
            ),
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
            let found = found.ok_or(Error::Pin(PinError::NotActive { entry }))?;
            let stands_alone = match found.kind.as_message().map(|message| &**message) {
                Some(Message::User(_)) => true,
                Some(Message::Assistant(answer)) => answer.tool_calls().next().is_none(),
                Some(Message::ToolResult(_)) => false,
                None => greenroom_kernel::path::is_message(&found.kind),
            };
            if !stands_alone {
                return Err(Error::Pin(PinError::NotAlone { entry }));
            }
            let tokens_max = self.definition.window.tokens.unwrap_or(u64::MAX) / PIN_SHARE;
            let tokens = self.log.pins_tokens() + found.tokens;
            if tokens > tokens_max {
                return Err(Error::Pin(PinError::TooLarge { tokens, tokens_max }));
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
            return Err(Error::NotEmpty { session: self.shared.id.to_string() });
        }
        let mut draft = self.log.draft(self.deps.now_ms());
        entries.iter().for_each(|entry| draft.import(entry));
        let imported = draft.entries.clone();
        draft.head.leaf = leaf;
        let path = crate::log::path_within(&imported, leaf);
        let begins = path.first().and_then(|entry| entry.parent);
        if let Some(missing) = begins.filter(|_| ActivePath::of(&path).compaction_id().is_none()) {
            return Err(Error::BranchPoint(BranchPointError::MissingParent { entry: missing }));
        }
        draft.follow_path(&path, self.measure_path(&path).tokens());
        self.append(draft, None).await?;
        self.take_path(path);
        self.limits_changed();
        Ok(())
    }
}
