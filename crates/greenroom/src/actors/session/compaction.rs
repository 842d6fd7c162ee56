//! Compactions, as the session sees them: started, installed by compare-and-swap, ended exactly once.

use greenroom_kernel::compacting::{End, Segment};

use super::*;

/// Whether a segment may be replaced: its base is still the newest active compaction, it begins with the first
/// live entry, and it ends directly before the first kept one.
pub(crate) fn accepts(path: &[Arc<Entry>], segment: &Segment) -> bool {
    let live = Live::of(path);
    let place = |id: EntryId| live.entries().iter().position(|entry| entry.id == id);
    live.compaction_id() == segment.base
        && place(segment.first) == Some(0)
        && place(segment.last).is_some_and(|last| place(segment.first_kept) == Some(last + 1))
}

/// Why a compaction was cancelled by whoever works with the session.
const ABORTED: &str = "it was aborted";

impl SessionState {
    /// The run needs a compaction. One that runs for an agent that died is waited for.
    pub(super) fn compact_for_run(
        &mut self,
        stamp: RunAttempt,
        trigger: Trigger,
        at_window: bool,
        failed_attempts: u32,
    ) {
        if let Some(running) = &mut self.compaction {
            running.stamp = Some(stamp);
            running.or_else = (at_window && !running.at_window).then_some((trigger, failed_attempts));
            return;
        }
        if trigger == Trigger::Threshold && !self.message_since_compaction {
            self.tell_agent(AgentMessage::Compacted { stamp, installed: false, floor: None });
            return;
        }
        let stamp = Some(stamp);
        self.open_compaction(OpenCompaction {
            at_window,
            failed_attempts,
            stamp,
            ..OpenCompaction::new(trigger)
        });
    }

    /// Begins the compaction that was asked for while a run was running, if it can begin now.
    pub(super) fn compact_if_requested(&mut self) {
        if self.is_idle()
            && !self.is_stopping
            && let Some(options) = self.requested.take()
        {
            self.open_compaction(OpenCompaction { options, ..OpenCompaction::new(Trigger::Hook) });
        }
    }

    /// After a run: compacts if that is due, so that the next prompt need not wait for it.
    pub(super) fn compact_if_due(&mut self, size: &Size) {
        let is_free = self.is_idle() && !self.is_stopping && self.inbox().next().is_none();
        if size.is_due && is_free && self.message_since_compaction {
            self.open_compaction(OpenCompaction::new(Trigger::Threshold));
        }
    }

    pub(super) fn open_compaction(&mut self, compaction: OpenCompaction) {
        self.compaction = Some(compaction);
        let _ = self.tracker.cast(TrackerMessage::MeasureFor(MeasureFor::Compaction));
    }

    fn params(&self, compaction: &OpenCompaction, size: &Size, ratio: Ratio) -> CompactionParams {
        let mut window = self.window.tokens.unwrap_or(size.tokens.max(1));
        if compaction.trigger == Trigger::Overflow {
            // Whatever was set: the provider says what fits.
            window = window
                .min(self.deps.learned.limit(self.provider(), &self.definition.model).unwrap_or(window));
        }
        // The summariser's own window: that of the chosen model, of the one that is being left, or of ours; and what
        // its provider said of it, whatever was set.
        let (Summariser { lane, model }, _) = self.summarisers(compaction);
        let summariser = if self.settings.summary_model.is_some() {
            let settings = CompactionSettings::default();
            self.deps.window(&Agent::new(model.clone()), self.provider(), &model, &settings, 0).tokens
        } else {
            let own = compaction.leaving.as_ref().map_or(window, |leaving| leaving.window);
            Some(self.deps.learned.limit(lane.provider.name(), &model).map_or(own, |limit| limit.min(own)))
        };
        CompactionParams {
            path: self.log.path().to_vec(),
            settings: CompactionSettings::clone(&self.settings),
            trigger: compaction.trigger,
            window,
            summariser_window: summariser.unwrap_or(window),
            overhead: self.overhead(),
            tokens_before: size.tokens,
            ratio,
            at_window: compaction.at_window || (size.at_window && compaction.trigger != Trigger::Manual),
            keep_recent: compaction.options.keep_recent,
            force: compaction.options.force,
            focus: compaction.options.focus.clone(),
            failed_attempts: compaction.failed_attempts,
        }
    }

    /// Who writes the summaries: the chosen model, the one that is being left, or ours; and ours, where that fails.
    fn summarisers(&self, compaction: &OpenCompaction) -> (Summariser, Summariser) {
        let ours = |model: &String| Summariser { lane: Arc::clone(&self.lane), model: model.clone() };
        let leaving = compaction.leaving.as_ref().map(|leaving| leaving.summariser.clone());
        let chosen = self.settings.summary_model.as_ref().map(ours).or(leaving);
        (chosen.unwrap_or_else(|| ours(&self.definition.model)), ours(&self.definition.model))
    }

    /// The size is known: says that it begins, and lets the compactor begin.
    pub(super) async fn start_compaction(&mut self, size: &Size, usage: ContextUsage, ratio: Ratio) {
        let Some(compaction) = self.compaction.take_if(|compaction| compaction.started.is_none()) else {
            return;
        };
        // Whoever asked for it is gone while its size was measured.
        let is_over = |stamp: RunAttempt| {
            self.run.as_ref().is_none_or(|run| run.stamp != stamp || run.closing.is_some())
        };
        if compaction.stamp.is_some_and(is_over) || self.is_stopping {
            return;
        }
        let params = self.params(&compaction, size, ratio);
        // A switch to a window that is large enough all the same.
        if params.trigger == Trigger::ModelSwitch && !size.is_due {
            return;
        }
        // Nothing to do, and nothing that must be done: no start, no end.
        if !params.at_window {
            let occasion =
                if params.trigger == Trigger::Manual { Occasion::Manual } else { Occasion::Automatic };
            let mut options =
                PlanOptions::new(&self.settings, params.window, occasion, usage.tokens, params.overhead);
            options.force |= params.force;
            if let Some(keep) = params.keep_recent {
                options.keep_recent = keep.max(1);
            }
            if let Err(nothing) = plan(&params.path, &options) {
                self.compaction = Some(compaction);
                let reason = nothing.to_string();
                let ended = self.ended(CompactionOutcome::Nothing { reason }, None, usage.tokens);
                self.finish_compaction(&ended, None);
                return;
            }
        }
        let mut draft = self.log.draft(self.deps.now_ms());
        // One whose end the store refused.
        draft.close_compaction(&self.log);
        let started = draft.push(EntryKind::CompactionStarted(CompactionStarted {
            trigger: compaction.trigger,
            tokens_before: size.tokens,
            messages_before: self.log.messages(),
        }));
        let (summariser, fallback) = self.summarisers(&compaction);
        self.compaction = Some(OpenCompaction { started: Some(started), ..compaction });
        if let Err(error) = self.append(draft, None).await {
            let reason = error.to_string();
            let ended = self.ended(CompactionOutcome::Failed { reason }, None, size.tokens);
            self.finish_compaction(&ended, None);
            return;
        }
        let order = CompactionOrder { params, summariser, fallback };
        match self.compactor().await {
            Ok(compactor) => {
                let _ = compactor.cast(CompactorMessage::Begin(Box::new(order)));
            }
            Err(error) => {
                self.end_compaction(CompactionOutcome::Failed { reason: error.to_string() }, None).await
            }
        }
    }

    /// The compactor, started when it is first needed.
    async fn compactor(&mut self) -> Result<ActorRef<CompactorMessage>> {
        if let Some(compactor) = &self.compactor {
            return Ok(compactor.clone());
        }
        let arguments = CompactorArguments {
            deps: Arc::clone(&self.deps),
            shared: Arc::clone(&self.shared),
            session: self.myself.clone(),
        };
        let (compactor, _) = Actor::spawn_linked(None, Compactor, arguments, self.myself.get_cell())
            .await
            .map_err(|error| Error::internal("starting the compactor", error))?;
        self.compactor = Some(compactor.clone());
        Ok(compactor)
    }

    /// Replaces a segment of the path, in the model's view, by its summary: compare, then one atomic append.
    pub(super) async fn replace_path_segment(
        &mut self,
        mut segment: Segment,
        duration_ms: u64,
        cost_microdollars: Option<u64>,
    ) {
        let Some(open) = self.compaction.as_ref().filter(|open| open.started.is_some()) else {
            self.tell_compactor(false);
            return;
        };
        if !accepts(self.log.path(), &segment) {
            self.tell_compactor(false);
            return;
        }
        self.deps.at(&self.shared.id, "install/1_accepted");
        segment.compaction.previous = self.log.head().last_compaction;
        segment.compaction.duration_ms = duration_ms;
        segment.compaction.cost_microdollars = cost_microdollars;
        let compaction = &segment.compaction;
        let usage = compaction.usage;
        let mut draft = self.log.draft(self.deps.now_ms());
        let path = self.log.path();
        let start = path.iter().position(|entry| Some(entry.id) == compaction.first_kept);
        let after = Live { path, compaction: Some(0), start: start.unwrap_or(path.len()) };
        let ended = CompactionEnded {
            started: open.started.unwrap_or(EntryId(0)),
            trigger: open.trigger,
            outcome: if compaction.truncated {
                CompactionOutcome::Truncated
            } else {
                CompactionOutcome::Completed
            },
            // The end comes first, so that the start's end is told before what follows from it.
            entry: Some(EntryId(self.log.head().entries + 1)),
            tokens_before: compaction.tokens_before,
            tokens_after: compaction.tokens_after,
            messages_before: compaction.messages_before,
            messages_after: after.messages(),
            messages_removed: compaction.messages_removed,
            duration_ms,
            summary_usage: usage,
            cost_microdollars,
        };
        draft.push(EntryKind::CompactionEnded(ended.clone()));
        draft.push(EntryKind::Compaction(Box::new(segment.compaction)));
        let _ = self.tracker.cast(TrackerMessage::SummaryCalls { usage, cost_microdollars });
        self.deps.at(&self.shared.id, "install/2_drafted");
        if let Err(error) = self.append(draft, None).await {
            self.tell_compactor(false);
            let reason = error.to_string();
            let ended = self.ended(CompactionOutcome::Failed { reason }, None, ended.tokens_before);
            self.finish_compaction(&ended, None);
            return;
        }
        self.deps.at(&self.shared.id, "install/3_durable");
        self.only_at_window = false;
        let _ = self.tracker.cast(TrackerMessage::Rewritten(self.log.path().to_vec()));
        self.limits_changed();
        self.deps.at(&self.shared.id, "install/4_measured");
        self.tell_compactor(true);
        self.finish_compaction(&ended, None);
    }

    /// Whoever works with the session wants no compaction now. One that a run waits for goes with its run.
    pub(super) fn abort_compaction(&mut self) {
        let Some(compaction) = self.compaction.as_ref().filter(|compaction| compaction.stamp.is_none())
        else {
            return;
        };
        if compaction.started.is_some() {
            return self.cancel_compaction(ABORTED);
        }
        let outcome = CompactionOutcome::Cancelled { reason: ABORTED.into() };
        let ended = self.ended(outcome, None, self.shared.context().tokens);
        self.finish_compaction(&ended, None);
    }

    pub(super) fn cancel_compaction(&self, reason: &str) {
        if let (Some(_), Some(compactor)) = (&self.compaction, &self.compactor) {
            let _ = compactor.cast(CompactorMessage::Cancel { reason: reason.to_owned() });
        }
    }

    fn tell_compactor(&self, installed: bool) {
        if let Some(compactor) = &self.compactor {
            let _ = compactor.cast(CompactorMessage::Installed { installed });
        }
    }

    /// The compactor is done; where nothing was installed, that is recorded.
    pub(super) async fn compaction_over(&mut self, end: End, cost_microdollars: Option<u64>) {
        if self.compaction.is_none() {
            return;
        }
        let usage = end.usage;
        let _ = self.tracker.cast(TrackerMessage::SummaryCalls { usage, cost_microdollars });
        self.end_compaction_with(end.outcome, end.floor, usage, cost_microdollars).await;
    }

    pub(super) async fn compactor_died(&mut self, reason: &str) {
        if self.compaction.is_some() {
            tracing::warn!(session = %self.shared.id, reason, "the compaction was interrupted");
            self.end_compaction(CompactionOutcome::Interrupted, None).await;
        }
    }

    async fn end_compaction(&mut self, outcome: CompactionOutcome, floor: Option<Failure>) {
        self.end_compaction_with(outcome, floor, Usage::default(), None).await;
    }

    async fn end_compaction_with(
        &mut self,
        outcome: CompactionOutcome,
        floor: Option<Failure>,
        usage: Usage,
        cost_microdollars: Option<u64>,
    ) {
        let tokens = self.log.open_compaction().map_or(0, |(_, started)| started.tokens_before);
        let mut ended = self.ended(outcome, None, tokens);
        ended.summary_usage = usage;
        ended.cost_microdollars = cost_microdollars;
        let mut draft = self.log.draft(self.deps.now_ms());
        draft.push(EntryKind::CompactionEnded(ended.clone()));
        if let Err(error) = self.append(draft, None).await {
            self.warn(format!("a compaction's end could not be recorded: {error}"));
        }
        let is_automatic = ended.trigger != Trigger::Manual;
        if is_automatic && self.log.head().automatic_compaction_failures == PAUSE_AFTER_FAILURES {
            self.warn(format!(
                "{PAUSE_AFTER_FAILURES} compactions in a row failed; none is tried by itself until one by hand works, \
                 or the model or the settings change"
            ));
        }
        self.limits_changed();
        self.finish_compaction(&ended, floor);
    }

    fn ended(&self, outcome: CompactionOutcome, entry: Option<EntryId>, tokens: u64) -> CompactionEnded {
        let open = self.compaction.as_ref();
        let messages = self.log.messages();
        let duration = open.map_or(std::time::Duration::ZERO, |open| open.began.elapsed());
        CompactionEnded {
            started: open.and_then(|open| open.started).unwrap_or(EntryId(0)),
            trigger: open.map_or(Trigger::Threshold, |open| open.trigger),
            outcome,
            entry,
            tokens_before: tokens,
            tokens_after: tokens,
            messages_before: messages,
            messages_after: messages,
            messages_removed: 0,
            duration_ms: u64::try_from(duration.as_millis()).unwrap_or(u64::MAX),
            summary_usage: Usage::default(),
            cost_microdollars: None,
        }
    }

    /// Tells whoever waits.
    fn finish_compaction(&mut self, ended: &CompactionEnded, floor: Option<Failure>) {
        let Some(open) = self.compaction.take() else { return };
        self.message_since_compaction = false;
        if let Some(stamp) = open.stamp {
            let installed = ended.outcome.is_installed();
            match open.or_else.filter(|_| !installed && self.current(stamp).is_some()) {
                Some((trigger, failed_attempts)) => {
                    self.compact_for_run(stamp, trigger, true, failed_attempts)
                }
                None => self.tell_agent(AgentMessage::Compacted { stamp, installed, floor }),
            }
        }
        let told = Compacted::new(ended, open.started);
        if !self.deps.hooks.is_empty() && !matches!(ended.outcome, CompactionOutcome::Nothing { .. }) {
            let (deps, shared, told) = (Arc::clone(&self.deps), Arc::clone(&self.shared), told.clone());
            tokio::spawn(async move {
                for message in deps.hooks.ended(&shared.id, told).await {
                    shared.publish(&deps.bus, EventKind::Warning { message });
                }
            });
        }
        if let Some(reply) = open.reply {
            let _ = reply.send(Ok(told));
        }
    }
}
