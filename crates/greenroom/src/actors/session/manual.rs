//! Requests of programs and people besides prompts: compact, plan, undo, branch, pin, import.
//!
//! Invariants: each is performed while no other work is in progress, except plans and pins; a refused request
//! changes nothing.

use std::collections::HashSet;
use std::sync::Arc;

use greenroom_kernel::EntryId;
use greenroom_kernel::compacting::Effect;
use greenroom_kernel::compacting::branch::{BranchParams, BranchRecord, BranchSummary};
use greenroom_kernel::due::Size;
use greenroom_kernel::entry::{
    CompactionEnded, CompactionOutcome, CompactionStarted, Entry, EntryKind, Trigger,
};
use greenroom_kernel::log::{Draft, Unfit};
use greenroom_kernel::message::Message;
use greenroom_kernel::path::{ActivePath, PinnedPath, newest_rewrite};
use greenroom_kernel::plan::{NothingToCompact, Plan, plan};
use greenroom_kernel::retry::Retries;
use greenroom_kernel::settings::CompactionSettings;
use greenroom_kernel::usage::{ContextUsage, Counting, Measured, Ratio, RequestFrame, Tracker};
use greenroom_provider::ResentReasoning;

use super::SessionState;
use super::compaction::Spending;
use super::definition::Definition;
use super::open_compaction::CompactionRequest;
use super::opening::shared;
use crate::agent::Agent;
use crate::core::message::{
    CompactionOrder, CompactionWork, Effort, Measurement, ReplyTo, Summariser, WorkId,
};
use crate::core::trace;
use crate::values::compaction::{CompactOptions, Compacted};
use crate::values::error::{BranchPointError, Error, PinError, Result};

/// The assumed window for the summary of a branch if the model's window is unknown, in tokens.
const WINDOW_ASSUMED: u64 = 128_000;
/// The maximum that may be pinned: one part in this many of the window.
const PIN_SHARE: u64 = 8;

impl SessionState {
    pub(super) fn compact_manually(
        &mut self,
        trigger: Trigger,
        options: CompactOptions,
        agent: Option<&Arc<Agent>>,
        reply: ReplyTo<Compacted>,
    ) {
        let may_begin = self.check_idle("compact it").and_then(|()| self.adopt(agent));
        if let Err(error) = may_begin {
            let _ = reply.send(Err(error));
            return;
        }
        self.refresh_settings();
        let reply = Some(reply);
        self.measure_for(CompactionRequest { options, reply, ..CompactionRequest::new(trigger) });
    }

    pub(super) fn plan_manually(&self, options: &CompactOptions) -> Result<Plan, NothingToCompact> {
        // The shared state has the tracker's newest measurement.
        let (usage, counting) = (self.shared.context(), self.counting(&self.definition));
        let size = Size { tokens: usage.tokens, ..Size::default() };
        let measured = Measurement { size, usage, ratio: counting.ratio(), hidden: counting.hidden() };
        let request =
            CompactionRequest { options: options.clone(), ..CompactionRequest::new(Trigger::Manual) };
        let params = self.compaction_params(&request, &measured);
        plan(&params.path, &params.plan_options())
    }

    /// Undoes the newest compaction, or with `back_to` all compactions from the newest back to that one, or nothing.
    pub(super) async fn undo(&mut self, back_to: Option<EntryId>) -> Result<ContextUsage> {
        self.check_idle("undo a compaction")?;
        let nothing = || Error::NothingToUndo { session: self.shared.id.to_string() };
        let newest = |path: &[Arc<Entry>]| newest_rewrite(path).map(|index| path[index].id);
        // The log in memory has everything since the newest compaction, and so every later prune.
        newest(self.log.path()).ok_or_else(nothing)?;
        // The entries that the compactions replaced are read from the store.
        let mut draft = self.log.draft(self.deps.now_ms());
        let mut after = self.read_path(self.log.head().leaf).await?;
        loop {
            let compaction = newest(&after.path).filter(|newest| back_to.is_none_or(|to| *newest >= to));
            let compaction = compaction.ok_or_else(nothing)?;
            draft.push(EntryKind::CompactionUndone { compaction });
            after.path.extend(draft.entries().last().map(Arc::clone));
            if back_to.is_none_or(|to| compaction == to) {
                break;
            }
        }
        let size = self.measure_path(&after);
        if let Some(window) = self.definition.window.tokens.filter(|window| size.tokens() > *window) {
            return Err(Error::UndoTooLarge { tokens: size.tokens(), window });
        }
        draft.follow_path(&after.path, size.tokens());
        self.append(draft, None).await?;
        self.compaction.only_at_window = true;
        self.take_path(after, size);
        Ok(ContextUsage::new(size, self.definition.window))
    }

    pub(super) async fn branch(&mut self, to: Option<EntryId>) -> Result<()> {
        self.check_idle("branch it")?;
        let path = self.branch_path(to).await?;
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.push(EntryKind::LeafMoved { to });
        self.follow_branch(draft, path).await
    }

    /// Returns the path of a branch that starts after this entry.
    pub(super) async fn branch_path(&self, to: Option<EntryId>) -> Result<PinnedPath> {
        let entries = self.log.head().entries;
        if let Some(entry) = to.filter(|to| to.0 >= entries) {
            return Err(Error::NoEntry { entry, entries });
        }
        let branch = self.read_path(to).await?;
        let path = &branch.path;
        if let Some(entry) = to.filter(|to| path.last().map(|entry| entry.id) != Some(*to)) {
            return Err(Error::BranchPoint(BranchPointError::BesidePath { entry }));
        }
        if !greenroom_kernel::path::open_calls(path).is_empty() {
            return Err(Error::BranchPoint(BranchPointError::InsideCall));
        }
        Ok(branch)
    }

    /// Records a branch or an import: the context becomes this path, and the agent that answered there
    /// continues.
    async fn follow_branch(&mut self, mut draft: Box<Draft>, path: PinnedPath) -> Result<()> {
        let size = self.measure_path(&path);
        draft.follow_branch(&path, size.tokens());
        let is_other_agent = draft.head().agent != self.log.head().agent;
        self.append(draft, None).await?;
        self.take_path(path, size);
        if is_other_agent && let Some(agent) = self.shared.agent() {
            self.configure(agent)?;
        }
        Ok(())
    }

    /// Lets the abandoned branch be summarised, and branches when the summary arrives.
    pub(super) async fn branch_with_summary(
        &mut self,
        to: Option<EntryId>,
        agent: Option<&Arc<Agent>>,
        reply: ReplyTo<Compacted>,
    ) {
        if self.is_idle()
            && let Err(error) = self.adopt(agent)
        {
            let _ = reply.send(Err(error));
            return;
        }
        let begun = self.begin_branch_summary(to).await;
        let mut request = CompactionRequest::new(Trigger::Branch);
        let (work, effects, summarisers) = match begun {
            Ok(Some(begun)) => begun,
            Ok(None) => {
                let branched = self.branch(to).await;
                let outcome =
                    CompactionOutcome::Nothing { reason: "nothing was said on the branch".to_owned() };
                let told = self.unchanged(&request, outcome, self.log.head().context_tokens);
                let _ = reply.send(branched.map(|()| told));
                return;
            }
            Err(error) => {
                let _ = reply.send(Err(error));
                return;
            }
        };
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.close_compaction(&self.log);
        let started = CompactionStarted {
            trigger: Trigger::Branch,
            tokens_before: self.log.head().context_tokens,
            messages_before: self.log.messages(),
        };
        let id = draft.push(EntryKind::CompactionStarted(started.clone()));
        if let Err(error) = self.append(draft, None).await {
            let _ = reply.send(Err(error));
            return;
        }
        (request.reply, request.branch_to) = (Some(reply), to);
        let span = trace::compaction(self.work_span(), &self.shared.id, id, &started);
        request.span = span.clone();
        self.compaction.begin(id, request);
        let ratio = self.ratio();
        let work = CompactionWork::Branch(Box::new(work));
        let doubts_window = self.log.has_answers();
        let head = self.definition.request_head(self.request_settings().into_owned());
        let order = CompactionOrder {
            id: WorkId::Compaction(id),
            adopts: false,
            span,
            work,
            effects,
            ratio,
            doubts_window,
            summarisers,
            agent: Arc::clone(&self.definition.agent),
            head,
        };
        self.order(id, order).await;
    }

    /// Returns the requests for the summary of the abandoned branch, and their models; `None` if the branch
    /// has no messages.
    async fn begin_branch_summary(
        &self,
        to: Option<EntryId>,
    ) -> Result<Option<(BranchSummary, Vec<Effect>, Vec<Summariser>)>> {
        self.check_idle("branch it")?;
        let kept: HashSet<EntryId> = self.branch_path(to).await?.path.iter().map(|entry| entry.id).collect();
        let path = self.log.path();
        let is_left = |id: EntryId| !kept.contains(&id);
        let active = ActivePath::of(path);
        // Messages that it replaced before the branch started are kept verbatim.
        let compaction = active.compaction.map(|index| &path[index]).filter(|entry| {
            let first_kept = entry.kind.as_compaction().and_then(|compaction| compaction.first_kept);
            is_left(entry.id) && first_kept.is_none_or(is_left)
        });
        let settings = CompactionSettings::clone(&self.definition.settings);
        let window = self.definition.window.tokens.unwrap_or(WINDOW_ASSUMED);
        let writers = self.writers(window);
        let limits = writers.iter().map(|writer| writer.limits).collect();
        let run_limits = &self.definition.agent.limits;
        let begun = BranchSummary::begin(BranchParams {
            left: active.entries().iter().filter(|entry| is_left(entry.id)).cloned().collect(),
            compaction: compaction.cloned(),
            settings,
            window,
            summarisers: limits,
            retries: Retries::new(run_limits.retries_max, run_limits.loading_ms_max),
            ratio: self.ratio(),
        });
        let summarisers = writers.into_iter().map(|writer| writer.summariser).collect();
        Ok(begun.map(|(work, effects)| (work, effects, summarisers)))
    }

    /// Handles the summary of the abandoned branch: branches, with the summary, its end and its cost in one
    /// append.
    pub(super) async fn branch_summarised(
        &mut self,
        id: EntryId,
        record: BranchRecord,
        cost_microdollars: Option<u64>,
    ) {
        let Some(request) = self.compaction.of(id) else { return };
        let (to, duration_ms, waited_ms) = (request.branch_to, request.duration_ms(), request.waited_ms());
        let BranchRecord { summary, files, usage } = record;
        let (Ok(mut branch), Some(from)) = (self.branch_path(to).await, self.log.head().leaf) else {
            let reason = "the abandoned branch cannot be read".to_owned();
            let effort = Effort { cost_microdollars, prepared_ms: None };
            let spending = Spending { usage, effort };
            self.end_compaction(id, CompactionOutcome::Failed { reason }, None, spending).await;
            return;
        };
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.push(EntryKind::LeafMoved { to });
        let entry = draft.push(EntryKind::BranchSummary { from, summary, files });
        branch.path.extend(draft.entries().last().map(Arc::clone));
        let pinned: Vec<EntryId> = branch.pinned.iter().map(|entry| entry.id).collect();
        let messages_after = ActivePath::of(&branch.path).messages(&pinned);
        let started = self.log.interrupted_compaction().expect("a compaction that runs is open in the log");
        let ended = CompactionEnded {
            outcome: CompactionOutcome::Completed,
            entry: Some(entry),
            tokens_after: self.measure_path(&branch).tokens(),
            messages_after,
            messages_removed: started.messages_before.saturating_sub(messages_after),
            duration_ms,
            waited_ms,
            summary_usage: usage,
            cost_microdollars,
            ..started
        };
        draft.push(EntryKind::CompactionEnded(Box::new(ended.clone())));
        let told = match self.follow_branch(draft, branch).await {
            Ok(()) => Ok(Compacted::from(&ended)),
            Err(error) => Err(error),
        };
        let Some(mut request) = self.compaction.end(id) else { return };
        match told {
            Ok(told) => self.tell_compacted(request, told, None),
            Err(error) => {
                if let Some(reply) = request.reply.take() {
                    let _ = reply.send(Err(error));
                }
                self.compaction.ended();
            }
        }
    }

    fn ratio(&self) -> Ratio {
        self.counting(&self.definition).ratio()
    }

    /// Returns what is known of how the server of this definition's model counts: as the tracker has learned it, if it
    /// follows this model.
    fn counting(&self, definition: &Definition) -> Counting {
        let (origin, model) = (definition.lane.origin(), definition.model());
        let learned = || Counting::of(self.deps.learned.ratio(origin, model));
        self.shared.counting(origin, model).unwrap_or_else(learned)
    }

    /// Measures a path as the tracker will when it is the session's.
    pub(super) fn measure_path(&self, path: &PinnedPath) -> Measured {
        self.measure_path_for(&self.definition, self.resent_reasoning(), path)
    }

    /// Measures a path as a context of the agent with this definition.
    pub(super) fn measure_path_for(
        &self,
        definition: &Definition,
        resent: ResentReasoning,
        path: &PinnedPath,
    ) -> Measured {
        let overhead = definition.overhead(path.pinned_tokens());
        let frame = RequestFrame { overhead, resent, window: definition.window.tokens };
        Tracker::open_with(&path.path, frame, self.counting(definition)).measured()
    }

    /// Replaces the context's path by one that was measured.
    fn take_path(&mut self, path: PinnedPath, size: Measured) {
        self.log.replace_path(path);
        // The tracker counts the path with its own fixed part.
        self.limits_changed();
        self.context_rewritten();
        self.shared.set_context(ContextUsage::new(size, self.definition.window));
    }

    /// Reads the path to an entry, with the messages that are pinned on it.
    pub(super) async fn read_path(&self, leaf: Option<EntryId>) -> Result<PinnedPath> {
        if leaf.is_none() {
            // A session without entries is not in the store yet.
            return Ok(PinnedPath::default());
        }
        let all = shared(self.deps.store.load(&self.shared.id, EntryId(0)).await?);
        Ok(PinnedPath::within(&all, leaf))
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
            if self.log.head().pins.contains(&entry) {
                // A client repeats a request of which it lost the answer.
                return Ok(());
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
        let path = draft.import(entries, leaf);
        let path = path.map_err(|unfit| {
            Error::BranchPoint(match unfit {
                Unfit::Missing(entry) => BranchPointError::MissingParent { entry },
                Unfit::OutOfOrder(entry) => BranchPointError::OutOfOrder { entry },
            })
        })?;
        self.follow_branch(draft, path).await
    }
}
