//! What programs and people ask of a session besides prompts: compact, plan, undo, branch, pin, adopt.

use greenroom_kernel::plan::Nothing;

use super::opening::{blocking, shared};
use super::*;
use crate::error::{BranchPointError, PinError};
use crate::message::{BranchSummary, LeftBranch};

/// The most that may be pinned, as a share of the window: one part in this many.
const PIN_SHARE: u64 = 8;
/// The most entries of an import that are appended at once: half of what the store takes.
const ADOPTED_ENTRIES_MAX: usize = 8_192;
/// The most bytes, about, that are appended at once: half of what the store takes (16 MiB).
const ADOPTED_BYTES_MAX: u64 = 16 << 20;

impl SessionState {
    pub(super) fn compact_manually(&mut self, options: CompactOptions, reply: ReplyTo<Compacted>) {
        if let Err(error) = self.check_idle("compact it") {
            let _ = reply.send(Err(error));
            return;
        }
        let reply = Some(reply);
        self.open_compaction(OpenCompaction { options, reply, ..OpenCompaction::new(Trigger::Manual) });
    }

    pub(super) fn plan_manually(&self, options: &CompactOptions) -> Result<Plan, Nothing> {
        let context = self.shared.context();
        let window = self.window.tokens.unwrap_or(context.tokens.max(1));
        let mut wanted =
            PlanOptions::new(&self.settings, window, Occasion::Manual, context.tokens, self.overhead());
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
            .ok_or_else(|| Error::NothingToUndo { session: self.shared.id.to_string() })?;
        // What the compaction replaced is read from the log.
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.push(EntryKind::CompactionUndone { compaction: active });
        let undone = draft.entries[0].clone();
        let path = self.read_path(undone.parent).await?;
        let mut after = path;
        after.push(Arc::clone(&undone));
        let live = Live::of(&after);
        let size = greenroom_kernel::usage::measure(
            &after,
            Estimator::Classes,
            self.overhead(),
            self.deps.learned.ratio(self.provider(), &self.definition.model),
        );
        if let Some(window) = self.window.tokens.filter(|window| size.tokens() > *window) {
            return Err(Error::UndoTooLarge { tokens: size.tokens(), window });
        }
        draft.head.active_compaction = live.compaction_id();
        draft.head.live_from = live.entries().first().map_or(EntryId(0), |entry| entry.id);
        if let Some(compaction) = live.compaction_id() {
            draft.head.live_from = draft.head.live_from.min(compaction);
        }
        draft.head.context_tokens = size.tokens();
        self.append(draft, None).await?;
        self.log.replace_path(after);
        self.only_at_window = true;
        let _ = self.tracker.cast(TrackerMessage::Rewritten(self.log.path().to_vec()));
        self.limits_changed();
        Ok(ContextUsage::new(size, self.window))
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
        let live = Live::of(&path);
        let left = self.log.head().leaf;
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.push(EntryKind::LeafMoved { to });
        draft.head.active_compaction = live.compaction_id();
        draft.head.live_from = live
            .entries()
            .first()
            .map_or(EntryId(draft.head.entries), |entry| entry.id)
            .min(live.compaction_id().unwrap_or(EntryId(u64::MAX)));
        let mut path = path;
        if let (Some(BranchSummary { summary, files }), Some(from)) = (summary, left) {
            draft.push(EntryKind::BranchSummary { from, summary, files });
            path.extend(draft.entries.last().map(Arc::clone));
        }
        self.append(draft, None).await?;
        self.log.replace_path(path);
        let _ = self.tracker.cast(TrackerMessage::Rewritten(self.log.path().to_vec()));
        self.limits_changed();
        Ok(())
    }

    /// What stands on the path now and would not, if it ended at `to`.
    pub(super) async fn left_branch(&mut self, to: Option<EntryId>) -> Result<LeftBranch> {
        self.check_idle("branch it")?;
        let kept: std::collections::HashSet<EntryId> =
            self.read_path(to).await?.iter().map(|entry| entry.id).collect();
        let entries = self.log.path().iter().filter(|entry| !kept.contains(&entry.id)).cloned().collect();
        let window = self.window.tokens.unwrap_or(128_000);
        Ok(LeftBranch {
            entries,
            model: self.settings.summary_model.clone().unwrap_or_else(|| self.definition.model.clone()),
            cap_tokens: self.settings.prefix_cap(window),
            summariser_window: window,
            definition: Arc::clone(&self.definition),
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
            let tokens_max = self.window.tokens.unwrap_or(u64::MAX) / PIN_SHARE;
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
        let begun = self.adopted_before(entries).await?;
        let mut adopted = entries[..begun].to_vec();
        let mut rest = &entries[begun..];
        // Until the last batch there is no leaf: a crash leaves an empty path, and the import can be done again.
        while let Some(batch) = first_batch(rest).filter(|batch| *batch < rest.len()) {
            let mut draft = self.log.draft(self.deps.now_ms());
            rest[..batch].iter().for_each(|entry| draft.import(entry));
            adopted.extend(draft.entries.iter().cloned());
            draft.head.leaf = None;
            draft.head.active_compaction = None;
            draft.head.live_from = EntryId(draft.head.entries);
            self.append(draft, None).await?;
            self.log.replace_path(Vec::new());
            rest = &rest[batch..];
        }
        let mut draft = self.log.draft(self.deps.now_ms());
        rest.iter().for_each(|entry| draft.import(entry));
        adopted.extend(draft.entries.iter().cloned());
        draft.head.leaf = leaf;
        let path = crate::log::path_within(&adopted, leaf);
        let live = Live::of(&path);
        draft.head.active_compaction = live.compaction_id();
        draft.head.live_from = live
            .entries()
            .first()
            .map_or(EntryId(0), |entry| entry.id)
            .min(live.compaction_id().unwrap_or(EntryId(u64::MAX)));
        let ratio = self.deps.learned.ratio(self.provider(), &self.definition.model);
        let size = greenroom_kernel::usage::measure(&path, Estimator::Classes, self.overhead(), ratio);
        draft.head.context_tokens = size.tokens();
        self.append(draft, None).await?;
        self.log.replace_path(path);
        let _ = self.tracker.cast(TrackerMessage::Rewritten(self.log.path().to_vec()));
        self.limits_changed();
        Ok(())
    }

    /// How many of these entries an import that was broken off left here.
    async fn adopted_before(&self, entries: &[Arc<Entry>]) -> Result<usize> {
        let refused = || Error::NotEmpty { session: self.shared.id.to_string() };
        if self.log.is_empty() {
            return Ok(0);
        }
        if self.log.head().leaf.is_some() {
            return Err(refused());
        }
        let (store, id) = (self.deps.store.clone(), Arc::clone(&self.shared.id));
        let stored = blocking(&self.deps, move || Ok(store.load(&id, EntryId(0))?)).await?;
        let same = stored.len() <= entries.len()
            && stored
                .iter()
                .zip(entries)
                .all(|(old, new)| (old.parent, old.at_ms) == (new.parent, new.at_ms));
        if same { Ok(stored.len()) } else { Err(refused()) }
    }
}

/// How many of these entries fit into one batch of the store; `None` if there are none.
fn first_batch(entries: &[Arc<Entry>]) -> Option<usize> {
    let mut bytes = 0;
    let fits = entries.iter().take(ADOPTED_ENTRIES_MAX).take_while(|entry| {
        bytes += weight(entry);
        bytes <= ADOPTED_BYTES_MAX
    });
    // One that is too large by itself is the store's to refuse.
    (!entries.is_empty()).then(|| fits.count().max(1))
}

/// About how many bytes an entry has.
fn weight(entry: &Entry) -> u64 {
    let images = |blocks: &[Block]| -> u64 {
        let bytes = |block: &Block| match block {
            Block::Image(image) => image.data.len() as u64,
            Block::Text(_) => 0,
        };
        blocks.iter().map(bytes).sum()
    };
    let images = match entry.kind.as_message().map(|message| &**message) {
        Some(Message::User(blocks)) => images(blocks),
        Some(Message::ToolResult(result)) => images(&result.content),
        Some(Message::Assistant(_)) | None => 0,
    };
    512 + entry.tokens * 12 + images
}
