//! A compaction from its plan to its end: which summaries to ask for, what to do when one fails, which rung of
//! the ladder comes next, and what to install.
//!
//! Life: [`Compacting::begin`] plans and asks what the hooks decide ([`Effect::Consult`]); then come requests
//! ([`Effect::Ask`]), answered in any order; then one [`Effect::Install`] or [`Effect::InstallPrune`], answered; then one
//! [`Effect::End`]. The summary of a branch ([`branch`]) ends with one [`Effect::Summarised`] in their place.
//!
//! Invariants: exactly one `End`; at most `CALLS_MAX` requests; nothing is installed that is not smaller than
//! what it replaces; below the window a failed summary changes nothing; a rung keeps less than the one before, or
//! demands less of it (the last one before the last resort), or follows a shortening of tool results, which happens
//! once: so the ladder ends; what is cut without a summary, where one was wanted, is a debt that the next summary reads.

use crate::compacting::branch::BranchRecord;
use crate::compacting::summaries::{Progress, Reaction, Source, Summaries, to_estimate};
use crate::entry::{
    Compaction, CompactionOutcome, Entry, EntryId, EntryKind, EntryRange, Prune, PrunedResult, Trigger,
};
use crate::failure::Failure;
use crate::message::{AssistantMessage, Usage};
use crate::path::{ActivePath, as_sent, is_message};
use crate::plan::{NothingToCompact, Plan, PlanOptions, plan};
use crate::settings::{CutRule, SUCCESS_SHARE, Strategy, share};
use crate::size::{Estimator, classes, entry_tokens};
use crate::summary::{self, SUMMARY_TOKENS_MIN, Style, SummaryKind};
use crate::usage::Ratio;

pub use crate::compacting::params::{CompactionParams, SummariserLimits};

pub mod branch;
mod give_way;
mod params;
mod summaries;

#[cfg(test)]
mod tests;

/// The most ranges that are remembered of what was cut without a summary.
const DEBT_RANGES_MAX: usize = 8;
/// The share of the window that an automatic compaction frees at least, where the trigger is not far below it.
const FREED_SHARE: f64 = 0.1;

/// The share of the window that a summary may have where the newest messages alone are more than a success leaves: one
/// part in this many.
const SUMMARY_USEFUL_SHARE: u64 = 16;

/// What the hooks say of a plan.
#[derive(Debug, Clone, PartialEq)]
pub enum HookDecision {
    /// Ask a model for the summary.
    Continue,
    /// Leave the history as it is.
    Cancel {
        /// Why, for the compaction's end record.
        reason: String,
    },
    /// Take this summary, and ask no model.
    Supply(Supplied),
}

/// A summary that a hook supplies.
#[derive(Debug, Clone, PartialEq)]
pub struct Supplied {
    /// The summary, without a footer.
    pub summary: String,
    /// Its own first kept entry; `None` for the plan's.
    pub first_kept: Option<EntryId>,
}

/// One request to a summariser.
#[derive(Debug, Clone, PartialEq)]
pub struct SummaryRequest {
    /// Its number within this compaction.
    pub id: u32,
    /// What the summary is of.
    pub kind: SummaryKind,
    /// The user message. The system prompt is [`summary::SYSTEM`]; there are no tools.
    pub text: String,
    /// The longest summary that is accepted, in tokens.
    pub cap_tokens: u64,
    /// The most output that the request asks for, in tokens.
    pub output_tokens_max: u64,
    /// Who is asked: an index into [`CompactionParams::summarisers`].
    pub summariser: usize,
    /// How long to wait before asking, in milliseconds.
    pub after_ms: u64,
    /// How often it was asked before.
    pub attempt: u32,
    /// Why it is asked again.
    pub failure: Option<Failure>,
}

impl SummaryRequest {
    /// What it takes of the summariser's window, its answer included, by our estimate.
    pub fn tokens(&self, ratio: Ratio) -> u64 {
        let text = classes::tokens(summary::SYSTEM) + classes::tokens(&self.text);
        ratio.apply(text) + self.output_tokens_max
    }
}

/// What to install: the segment of the path to be replaced, and what replaces it.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// The newest active compaction must still be this one.
    pub base: Option<EntryId>,
    /// The first active entry must still be this one.
    pub first: EntryId,
    /// The last entry to be replaced; must stand directly before `first_kept` on the path.
    pub last: EntryId,
    /// The first entry that stays.
    pub first_kept: EntryId,
    /// The tool results that are sent shorter from here on: to be appended before the compaction.
    pub prune: Option<Box<Prune>>,
    /// The entry to append. `previous`, `duration_ms` and the cost are filled in by who installs it.
    pub compaction: Compaction,
    /// How the compaction ends when this is installed.
    pub outcome: CompactionOutcome,
}

/// What to install where nothing is replaced: tool results that are sent shorter.
#[derive(Debug, Clone, PartialEq)]
pub struct PruneSegment {
    /// The newest active compaction must still be this one, and all results must still be active.
    pub base: Option<EntryId>,
    /// The entry to append.
    pub prune: Prune,
    /// How many messages the context has.
    pub messages: u64,
    /// What model calls used before it came to this.
    pub usage: Usage,
    /// How the compaction ends when this is installed.
    pub outcome: CompactionOutcome,
}

/// What who drives a [`Compacting`] is to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Ask the hooks; answer with [`Input::Hooks`].
    Consult(Box<Plan>),
    /// Ask a summariser; answer with [`Input::Answered`].
    Ask(SummaryRequest),
    /// A summariser is given up, and the next one is asked from now on.
    FallBack {
        /// Who is given up, by the index into [`CompactionParams::summarisers`].
        from: usize,
        /// Who is asked instead.
        to: usize,
        /// Why.
        reason: String,
    },
    /// These requests no longer count: what is under way is cancelled, and what waits is not asked. What was
    /// answered already may still be told with [`Input::Answered`], so that it is billed.
    Withdraw(Vec<u32>),
    /// Replace the segment; answer with [`Input::Installed`].
    Install(Box<Segment>),
    /// The summary of a branch is whole; nothing comes after this. See [`branch`].
    Summarised(Box<BranchRecord>),
    /// Send tool results shorter from here on; answer with [`Input::Installed`].
    InstallPrune(Box<PruneSegment>),
    /// The compaction is over; nothing comes after this.
    End(End),
}

/// What happened since the last effects.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The decision of the hooks.
    Hooks(HookDecision),
    /// A summariser's answer.
    Answered {
        /// The id of the request.
        id: u32,
        /// The answer, or why there is none.
        answer: Result<Box<AssistantMessage>, Failure>,
        /// A number in 0..1000 by which waits differ, so that many sessions do not come back at once.
        jitter: u64,
    },
    /// Whether the segment was replaced; `false`: the path had changed.
    Installed(bool),
    /// Nobody waits for it any more. What is on its way to be installed still is.
    Cancelled {
        /// Why, for the compaction's end record.
        reason: String,
    },
}

/// How a compaction ended.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// The outcome, as it is recorded.
    pub outcome: CompactionOutcome,
    /// What is incompressible, where even the last rung was not enough and our own count shows it.
    pub floor: Option<Failure>,
    /// What all its model calls used.
    pub usage: Usage,
}

/// What is tried, from the best to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rung {
    /// A model's summary, and as much kept as the settings say.
    Summarise,
    /// A model's summary, and half as much kept.
    Halve,
    /// A model's summary, as little kept as is legal, and no more demanded than that leaves: what is newest cannot give
    /// way, and must not keep the older part from being summarised.
    Least,
    /// The truncate fallback as a chosen strategy: keeps what is asked for.
    Truncate,
    /// No model at the window: old tool results give way, then as much of the oldest as must.
    LastResort,
}

/// Which input is awaited; others are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The hooks' decision.
    Hooks,
    /// The answers of summarisers.
    Answers,
    /// Whether the segment was replaced.
    Install,
    /// None: it has ended.
    Over,
}

/// Who wrote what stands in the place of the segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Author {
    /// A model.
    Model,
    /// A hook.
    Hook,
    /// Nobody, since no summary is wanted.
    Strategy,
    /// Nobody, since no summary could be had: what is cut is a debt.
    Nobody,
}

/// A compaction in progress: the ladder, from rung to rung until something is installed or nothing can be.
#[derive(Debug)]
pub struct Compacting {
    params: CompactionParams,
    rung: Rung,
    /// The newest plan; `None` while no rung found one.
    plan: Option<Plan>,
    /// The first kept entry of the rung before: the next one must keep less.
    last_first_kept: Option<EntryId>,
    /// Whether the hooks were asked.
    consulted: bool,
    phase: Phase,
    /// Tool results that are sent shorter, if what comes of this compaction is installed.
    pruned: Vec<PrunedResult>,
    /// Whether the middles of the newest results were left out already.
    shortened: bool,
    /// Why no model's summary can be had, once that is so.
    unsummarised: Option<String>,
    /// Why the rungs before [`Rung::Least`] were in vain.
    vain: Option<String>,
    /// How the compaction ends when what is on its way is installed.
    on_its_way: Option<CompactionOutcome>,
    summaries: Summaries,
}

impl Compacting {
    /// What a request to who is asked now may fill, in tokens: that summariser's window as it is known by now.
    pub fn summariser_window(&self) -> u64 {
        self.summaries.window()
    }

    /// Plans, and says what to do first.
    pub fn begin(params: CompactionParams) -> (Self, Vec<Effect>) {
        let style = Style { focus: params.focus.clone(), prompt: params.settings.compact_prompt.clone() };
        let rung = match (params.settings.strategy, params.failed_attempts) {
            (Strategy::Truncate, 0) => Rung::Truncate,
            (Strategy::Summarize, 0) => Rung::Summarise,
            (Strategy::Summarize, 1) => Rung::Halve,
            (Strategy::Truncate | Strategy::Summarize, _) if params.at_window => Rung::LastResort,
            (Strategy::Truncate, _) => Rung::Truncate,
            (Strategy::Summarize, _) => Rung::Halve,
        };
        let (summarisers, retries) = (params.summarisers.clone(), params.retries.clone());
        let summaries = Summaries::new(style, params.ratio, summarisers, retries);
        let mut this = Self {
            params,
            rung,
            plan: None,
            last_first_kept: None,
            consulted: false,
            phase: Phase::Answers,
            pruned: Vec::new(),
            shortened: false,
            unsummarised: None,
            vain: None,
            on_its_way: None,
            summaries,
        };
        let effects = match this.rung {
            Rung::LastResort => this.last_resort("the provider refused what was compacted before".to_owned()),
            Rung::Summarise | Rung::Halve | Rung::Least | Rung::Truncate => this.start_rung(),
        };
        (this, effects)
    }

    /// What it was given.
    pub fn params(&self) -> &CompactionParams {
        &self.params
    }

    /// The plan under way.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// Decides what to do next. After its end it decides nothing.
    pub fn on(&mut self, input: Input) -> Vec<Effect> {
        match (self.phase, input) {
            (Phase::Hooks, Input::Hooks(decision)) => {
                self.phase = Phase::Answers;
                match decision {
                    HookDecision::Continue => self.ask_for_summaries(),
                    HookDecision::Cancel { reason } => {
                        self.end(CompactionOutcome::Cancelled { reason }, None)
                    }
                    HookDecision::Supply(supplied) => self.install_supplied(&supplied),
                }
            }
            (Phase::Hooks | Phase::Answers | Phase::Install, Input::Answered { id, answer, jitter }) => {
                let reaction = self.summaries.answered(id, answer, jitter);
                self.follow(reaction)
            }
            (Phase::Install, Input::Installed(installed)) => {
                let outcome = self.on_its_way.take().filter(|_| installed);
                self.end(outcome.unwrap_or(CompactionOutcome::Superseded), None)
            }
            (Phase::Hooks | Phase::Answers, Input::Cancelled { reason }) => {
                self.end(CompactionOutcome::Cancelled { reason }, None)
            }
            // News of what it no longer waits for.
            (_, Input::Hooks(_) | Input::Answered { .. } | Input::Installed(_) | Input::Cancelled { .. }) => {
                Vec::new()
            }
        }
    }

    /// The options of the rung.
    fn options(&self) -> PlanOptions {
        let mut options = self.params.plan_options();
        match self.rung {
            Rung::Summarise | Rung::Truncate => {}
            Rung::Halve => {
                options.keep_recent = (options.keep_recent / 2).max(1);
                // Messages that were to be preserved give way, too.
                options.keep_max /= 2;
            }
            Rung::Least | Rung::LastResort => options = self.least_options(),
        }
        options
    }

    /// The options that keep as little as is legal.
    fn least_options(&self) -> PlanOptions {
        let options = self.params.plan_options();
        PlanOptions { keep_recent: 1, preserve_messages: 0, cut: CutRule::Nearest, force: true, ..options }
    }

    /// Plans the rung, and asks for summaries or goes on to the next one.
    fn start_rung(&mut self) -> Vec<Effect> {
        let mut effects = self.summaries.clear();
        effects.extend(match plan(&self.params.path, &self.options()) {
            Err(nothing) => self.nothing(nothing),
            Ok(next) if self.last_first_kept.is_some_and(|last| next.first_kept <= last) => {
                self.plan = Some(next);
                self.next_rung("it would keep no less")
            }
            Ok(next) => {
                let consult = !self.consulted;
                if consult && let Err(nothing) = self.params.check_gain(&next) {
                    return self.nothing(nothing);
                }
                self.consulted = true;
                self.plan = Some(next.clone());
                if consult {
                    self.phase = Phase::Hooks;
                    vec![Effect::Consult(Box::new(next))]
                } else {
                    self.ask_for_summaries()
                }
            }
        });
        effects
    }

    fn nothing(&mut self, nothing: NothingToCompact) -> Vec<Effect> {
        // At the window, a lower rung may find a cut where this one finds none.
        if self.plan.is_some() || self.params.at_window {
            return self.next_rung(&nothing.to_string());
        }
        if let Some(effects) = self.shorten_alone(&nothing.to_string()) {
            return effects;
        }
        self.end(CompactionOutcome::Nothing { reason: nothing.to_string() }, None)
    }

    fn ask_for_summaries(&mut self) -> Vec<Effect> {
        let Some(mut plan) = self.plan.clone() else { return Vec::new() };
        assert!(
            self.last_first_kept.is_none_or(|last| plan.first_kept > last),
            "each rung keeps less than the one before"
        );
        if self.rung != Rung::LastResort && self.is_crowded_by_previous(&plan) {
            plan = plan.with_one_summary();
            self.plan = Some(plan.clone());
        }
        match self.rung {
            Rung::Truncate => return self.install_truncated(&plan),
            Rung::LastResort => return self.give_way(),
            Rung::Summarise | Rung::Halve | Rung::Least => {}
        }
        let (settings, window) = (&self.params.settings, self.params.window);
        let mut wanted = Vec::new();
        if plan.messages_to_summarize() > 0 || !self.params.debt.is_empty() {
            let with_debt = self.with_debt(&plan);
            wanted.push(Source::of(&with_debt, SummaryKind::History, settings.summary_cap(window)));
        }
        if plan.is_split_turn {
            wanted.push(Source::of(&plan, SummaryKind::TurnPrefix, settings.prefix_cap(window)));
        }
        if let Some(room) = self.room_for_summary(&plan) {
            // What is kept is too much already: no summary could be small enough.
            if room < SUMMARY_TOKENS_MIN * wanted.len() as u64 {
                return self.next_rung("what is kept is too large by itself");
            }
            let sum: u64 = wanted.iter().map(|source| source.cap_tokens).sum();
            for Source { cap_tokens: cap, .. } in &mut wanted {
                *cap = (*cap).min(cap.saturating_mul(room) / sum).max(SUMMARY_TOKENS_MIN);
            }
        }
        let reaction = self.summaries.begin(wanted);
        self.follow(reaction)
    }

    /// Whether the last summary, which would stand unchanged before the split turn's, leaves that one less than half of
    /// its cap: then both are merged.
    fn is_crowded_by_previous(&self, plan: &Plan) -> bool {
        let stands = plan.previous_summary.is_some() && plan.messages_to_summarize() == 0;
        let half = self.params.settings.prefix_cap(self.params.window) / 2;
        stands && self.room_for_summary(plan).is_some_and(|room| room < half)
    }

    /// Does what the summaries ask for, and goes on when they are whole or cannot be had.
    fn follow(&mut self, reaction: Reaction) -> Vec<Effect> {
        let Reaction { mut effects, progress } = reaction;
        effects.extend(match progress {
            Progress::Waiting => Vec::new(),
            Progress::Complete => self.finish_summaries(),
            Progress::Failed(why) => self.summary_failed(&why),
        });
        effects
    }

    /// The plan with what was cut before without a summary, to be read in front of its history.
    fn with_debt(&self, plan: &Plan) -> Plan {
        let mut plan = plan.clone();
        if !self.params.debt.is_empty() {
            plan.history.splice(0..0, self.params.debt.iter().cloned());
            plan.previous_summary = plan.previous_summary.as_deref().map(summary::without_cut_note);
        }
        plan
    }

    fn finish_summaries(&mut self) -> Vec<Effect> {
        let Some(plan) = self.plan.clone() else { return Vec::new() };
        let text = summary::assemble(
            &plan,
            self.summaries.text(SummaryKind::History),
            self.summaries.text(SummaryKind::TurnPrefix),
        );
        let author = Author::Model;
        match self.segment(&plan, text, author) {
            Some(segment) if self.is_success(segment.compaction.tokens_after) => self.install(segment),
            Some(_) => self.next_rung("the context would still be too large"),
            None => self.next_rung("the context would not get smaller"),
        }
    }

    /// How many tokens (by our estimate) the summary may have for the result to count as a success; `None` where
    /// any that is smaller than what it replaces will do.
    fn room_for_summary(&self, plan: &Plan) -> Option<u64> {
        let target = self.target_tokens()?;
        let room = target.saturating_sub(self.tokens_after(plan, plan.frame_tokens()));
        let room = to_estimate(room, self.params.ratio);
        // A little is left for what is escaped in an accepted answer.
        Some(room - room / 16)
    }

    /// The largest context after that is a success, in tokens; `None` where somebody asked, and smaller is enough.
    fn target_tokens(&self) -> Option<u64> {
        if self.params.is_asked_for() {
            return None;
        }
        let window = self.params.window;
        let trigger = self.params.settings.trigger_tokens(window).unwrap_or(window);
        let by_trigger = self.params.settings.target_tokens(window, self.params.overhead);
        let target = if self.params.at_window {
            by_trigger
        } else {
            // A trigger far below the window: a tenth of the window may be more than there is.
            let freed = share(window, FREED_SHARE).min(share(trigger, 1.0 - SUCCESS_SHARE));
            by_trigger.min(self.params.tokens_before.saturating_sub(freed))
        };
        Some(if self.rung == Rung::Least { target.max(self.least_with_summary()) } else { target })
    }

    /// The context in which as little is kept as is legal, beside a useful summary, in tokens: what the newest messages
    /// take cannot give way, and must not keep the older ones from being summarised. 0 where a tenth would not be freed.
    fn least_with_summary(&self) -> u64 {
        let Ok(least) = plan(&self.params.path, &self.least_options()) else { return 0 };
        let cap = self.params.settings.summary_cap(self.params.window);
        let useful = cap.min(self.estimate_window() / SUMMARY_USEFUL_SHARE).max(2 * SUMMARY_TOKENS_MIN);
        let tokens = self.tokens_after(&least, least.frame_tokens() + useful);
        let now = self.tokens_now();
        let before = if self.pruned.is_empty() { now.max(self.params.tokens_before) } else { now };
        let is_sent = !self.params.at_window || self.can_be_sent(tokens);
        if is_sent && tokens <= before - before / 10 { tokens } else { 0 }
    }

    /// The context after, in tokens, with a summary entry of this estimated size.
    fn tokens_after(&self, plan: &Plan, summary_tokens: u64) -> u64 {
        let sent = as_sent(&self.params.path);
        let messages = || sent.iter().filter(|entry| is_message(&entry.kind));
        let sum = |is_meant: &dyn Fn(&Entry) -> bool| -> u64 {
            messages().filter(|entry| is_meant(entry)).map(|entry| entry.tokens).sum()
        };
        let kept = sum(&|entry| entry.id >= plan.first_kept);
        let pinned = sum(&|entry| entry.id < plan.first_kept && self.params.pinned.contains(&entry.id));
        // What is pinned joins the fixed part.
        self.params.overhead + pinned + self.params.ratio.apply(kept + summary_tokens)
    }

    fn install_supplied(&mut self, supplied: &Supplied) -> Vec<Effect> {
        let Some(mut plan) = self.plan.clone() else { return Vec::new() };
        if let Some(first_kept) = supplied.first_kept.filter(|id| *id != plan.first_kept) {
            match plan.moved_to(&self.params.path, first_kept) {
                Some(moved) => plan = moved,
                None if self.params.at_window => return self.ask_for_summaries(),
                None => {
                    let reason =
                        format!("the hook's first kept entry {first_kept} is not where a path may be cut");
                    return self.end(CompactionOutcome::Failed { reason }, None);
                }
            }
        }
        let text = summary::supplied(&plan, &supplied.summary);
        let segment = self.segment(&plan, text, Author::Hook).filter(|segment| {
            !supplied.summary.trim().is_empty()
                && (self.is_success(segment.compaction.tokens_after)
                    || self.can_be_sent(segment.compaction.tokens_after))
        });
        match segment {
            Some(segment) => self.install(segment),
            // At the window, something must be done: the hook is passed over.
            None if self.params.at_window => self.ask_for_summaries(),
            None => {
                let reason = "the summary that a hook supplied is empty, or too large".to_owned();
                self.end(CompactionOutcome::Failed { reason }, None)
            }
        }
    }

    /// The truncate fallback as a chosen strategy.
    fn install_truncated(&mut self, plan: &Plan) -> Vec<Effect> {
        let cap = self
            .room_for_summary(plan)
            .unwrap_or(u64::MAX)
            .min(self.params.settings.summary_cap(self.params.window));
        let text = self.truncated(plan, cap.max(SUMMARY_TOKENS_MIN));
        match self.segment(plan, text, Author::Strategy) {
            Some(segment)
                if self.is_success(segment.compaction.tokens_after)
                    || self.can_be_sent(segment.compaction.tokens_after) =>
            {
                self.install(segment)
            }
            Some(_) => self.next_rung("the context would still be too large"),
            None => self.next_rung("the context would not get smaller"),
        }
    }

    /// What stands where no model's summary does.
    fn truncated(&self, plan: &Plan, cap_tokens: u64) -> String {
        let wanted = self.params.settings.strategy == Strategy::Summarize;
        summary::truncated(plan, cap_tokens, wanted)
    }

    /// The window in tokens by our estimate.
    fn estimate_window(&self) -> u64 {
        to_estimate(self.params.window, self.params.ratio)
    }

    /// Why no model's summary stands there.
    fn reason(&self) -> String {
        self.unsummarised.clone().unwrap_or_default()
    }

    /// The segment to install; `None` if it would not be smaller than what it replaces.
    fn segment(&self, plan: &Plan, text: String, author: Author) -> Option<Box<Segment>> {
        let active = ActivePath::of(&self.params.path);
        let carried = || active.compaction().map(|compaction| compaction.debt.clone()).unwrap_or_default();
        let (debt, outcome) = match author {
            Author::Model => (self.params.debt_left.clone(), CompactionOutcome::Completed),
            // It has not read what was cut before.
            Author::Hook => (carried(), CompactionOutcome::Completed),
            Author::Strategy => {
                let reason = "no summary is wanted: the strategy is `truncate`".to_owned();
                (carried(), CompactionOutcome::Truncated { reason })
            }
            Author::Nobody => {
                let cut = EntryRange { first: plan.first, last: plan.last };
                // Who wants no summaries owes none.
                let debt = match self.params.settings.strategy {
                    Strategy::Summarize => with_range(carried(), active.compaction(), cut),
                    Strategy::Truncate => carried(),
                };
                (debt, CompactionOutcome::Truncated { reason: self.reason() })
            }
        };
        let mut compaction = Compaction {
            base: plan.base,
            previous: None,
            first: Some(plan.first),
            last: Some(plan.last),
            first_kept: Some(plan.first_kept),
            summary: text,
            active_request: plan.active_request.clone(),
            files: plan.files.clone(),
            trigger: self.params.trigger,
            truncated: matches!(author, Author::Strategy | Author::Nobody),
            from_hook: author == Author::Hook,
            is_split_turn: plan.is_split_turn,
            tokens_before: self.params.tokens_before,
            tokens_after: 0,
            messages_before: plan.messages_before,
            messages_removed: plan.messages_removed(),
            duration_ms: 0,
            model: self.summaries.model().to_owned(),
            usage: self.summaries.usage(),
            cost_microdollars: None,
            debt,
        };
        let kind = EntryKind::Compaction(Box::new(compaction.clone()));
        let summary_tokens = entry_tokens(&kind, Estimator::Classes);
        compaction.tokens_after = self.tokens_after(plan, summary_tokens);
        // By estimate against estimate; and, below the window, against what was measured too: at the window the
        // measure has just been shown to be too low.
        let smaller = summary_tokens < self.params.replaced_tokens(plan)
            && (compaction.tokens_after < self.params.tokens_before || self.params.at_window);
        // A result that is replaced needs no shorter form.
        let kept: Vec<PrunedResult> =
            self.pruned.iter().filter(|result| result.entry >= plan.first_kept).cloned().collect();
        let prune = (!kept.is_empty()).then(|| Box::new(self.prune_of(kept)));
        smaller.then(|| {
            Box::new(Segment {
                base: plan.base,
                first: plan.first,
                last: plan.last,
                first_kept: plan.first_kept,
                prune,
                compaction,
                outcome,
            })
        })
    }

    fn is_success(&self, tokens_after: u64) -> bool {
        self.target_tokens().is_none_or(|target| tokens_after <= target)
    }

    fn install(&mut self, segment: Box<Segment>) -> Vec<Effect> {
        assert!(segment.first <= segment.last && segment.last < segment.first_kept, "the kept part follows");
        self.phase = Phase::Install;
        self.on_its_way = Some(segment.outcome.clone());
        vec![Effect::Install(segment)]
    }

    fn summary_failed(&mut self, why: &str) -> Vec<Effect> {
        let reason = format!("no summary could be made: {why}");
        if self.params.at_window {
            return self.last_resort(reason);
        }
        self.end(CompactionOutcome::Failed { reason }, None)
    }

    fn next_rung(&mut self, why: &str) -> Vec<Effect> {
        self.last_first_kept = self.plan.as_ref().map(|plan| plan.first_kept);
        match self.rung {
            Rung::Summarise if self.params.trigger != Trigger::Manual || self.params.at_window => {
                self.rung = Rung::Halve;
                self.start_rung()
            }
            Rung::Halve if self.params.at_window => self.shorten_or_least(why),
            Rung::Halve => self.least(why),
            Rung::Least | Rung::Truncate if self.params.at_window => self.last_resort(self.vain(why)),
            // It is tried at the window only.
            Rung::LastResort => self.floor(),
            Rung::Summarise | Rung::Least | Rung::Truncate => match self.shorten_alone(why) {
                Some(effects) => effects,
                None => self.end_in_vain(why),
            },
        }
    }

    /// Why a summary would not help: what the first rung that knew said.
    fn vain(&self, why: &str) -> String {
        let why = self.vain.as_deref().unwrap_or(why);
        format!("a summary would not help: {why}")
    }

    fn end_in_vain(&mut self, why: &str) -> Vec<Effect> {
        let reason = format!("it would not help: {}", self.vain.as_deref().unwrap_or(why));
        // A summariser that was never asked has not failed.
        let outcome = match self.summaries.calls() {
            0 => CompactionOutcome::Nothing { reason },
            _ => CompactionOutcome::Failed { reason },
        };
        self.end(outcome, None)
    }

    /// Asks for as little as can be demanded, if that frees enough.
    fn least(&mut self, why: &str) -> Vec<Effect> {
        self.rung = Rung::Least;
        self.vain = Some(why.to_owned());
        if self.least_with_summary() == 0 {
            return self.next_rung(why);
        }
        self.last_first_kept = None;
        self.start_rung()
    }

    /// No summary helped with the results as they are: it is tried again with shorter ones, once.
    fn shorten_or_least(&mut self, why: &str) -> Vec<Effect> {
        if !self.shorten() {
            return self.least(why);
        }
        if self.has_room(self.tokens_now()) {
            self.unsummarised = Some(self.vain(why));
            return self.install_prune();
        }
        self.rung = Rung::Summarise;
        self.last_first_kept = None;
        self.start_rung()
    }

    fn end(&mut self, outcome: CompactionOutcome, floor: Option<Failure>) -> Vec<Effect> {
        assert!(self.phase != Phase::Over, "a compaction ends once");
        self.phase = Phase::Over;
        // Nothing is withdrawn: who performs this ends what is under way.
        self.summaries.clear();
        vec![Effect::End(End { outcome, floor, usage: self.summaries.usage() })]
    }
}

/// A debt with what is cut now, after `base`. Where that one was cut too, the two are one range.
fn with_range(mut debt: Vec<EntryRange>, base: Option<&Compaction>, cut: EntryRange) -> Vec<EntryRange> {
    let ended = base.and_then(|base| base.last);
    match debt.last_mut().filter(|range| Some(range.last) == ended) {
        Some(range) => range.last = cut.last,
        None => debt.push(cut),
    }
    // A summariser that keeps failing must not make it long: what lies between two ranges is read twice, at worst.
    while debt.len() > DEBT_RANGES_MAX {
        let first = debt.remove(0).first;
        debt[0].first = first;
    }
    debt
}
