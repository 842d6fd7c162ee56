//! A compaction from its plan to its end: which summaries to request, how to handle failures, which rung of
//! the ladder comes next, and what to install.
//!
//! Life cycle: [`Compacting::begin`] plans and consults the hooks ([`Effect::Consult`]); then come requests
//! ([`Effect::Ask`]), answered in any order; then one [`Effect::Install`] or [`Effect::InstallPrune`],
//! answered; then one [`Effect::End`]. The summary of a branch ([`branch`]) ends with one
//! [`Effect::Summarised`] instead.
//!
//! Invariants: exactly one `End`; at most `CALLS_MAX` requests; nothing is installed unless it is smaller
//! than what it replaces; below the window a failed summary changes nothing; each rung keeps less than the
//! previous one, or has a lower target (the last one before the last resort), or follows a shortening of tool
//! results, which happens once: so the ladder ends; if messages are cut without a wanted summary, they are
//! recorded as a debt, which the next summary reads.

use crate::compacting::branch::BranchRecord;
use crate::compacting::install::Author;
use crate::compacting::native::NativeWork;
use crate::compacting::summaries::{Progress, Reaction, Source, Summaries, to_estimate};
use crate::entry::{Compaction, CompactionOutcome, Entry, EntryId, Prune, PrunedResult};
use crate::failure::Failure;
use crate::message::{AssistantMessage, Usage};
use crate::path::{as_sent, is_message};
use crate::plan::{NothingToCompact, Plan, PlanOptions, plan};
use crate::settings::{CutRule, FACTS_ROOM_PARTS, SKILLS_ROOM_PARTS, SUCCESS_SHARE, WORDS_ROOM_PARTS, share};
use crate::size::classes;
use crate::summary::{self, SUMMARY_TOKENS_MIN, Style, SummaryKind};
use crate::usage::Ratio;

pub use crate::compacting::native::{NativeInput, NativeSupport};
pub use crate::compacting::params::{CompactionParams, SummariserLimits};

pub mod branch;
mod give_way;
mod install;
mod native;
mod params;
mod prepare;
mod summaries;

#[cfg(test)]
mod tests;

/// The name of the tool with which a model asks for a compaction. Its call has what the model wants to be kept, which
/// the ledger reads.
pub const COMPACT: &str = "compact";

/// The minimum share of the window that an automatic compaction frees, if the trigger is not far below it.
const FREED_SHARE: f64 = 0.1;

/// The share of the window for a summary if the newest messages alone exceed the target: one part in this
/// many.
const SUMMARY_USEFUL_SHARE: u64 = 16;

/// The size of a summary that takes precedence over the user's words and facts, in tokens.
const SUMMARY_FIRST_TOKENS: u64 = 256;

/// The hooks' decision about a plan.
#[derive(Debug, Clone, PartialEq)]
pub enum HookDecision {
    /// Ask a model for the summary.
    Continue,
    /// Leave the history as it is.
    Cancel {
        /// The reason, for the compaction's end record.
        reason: String,
    },
    /// Ask a model for the summary, with this focus in addition to that of the request.
    Focus(String),
    /// Use this summary instead of asking a model.
    Supply(Supplied),
}

/// A summary that a hook supplies.
#[derive(Debug, Clone, PartialEq)]
pub struct Supplied {
    /// The summary, without a footer.
    pub summary: String,
    /// An alternative first kept entry, at which the path may be cut; `None` for the plan's.
    pub first_kept: Option<EntryId>,
}

/// One request to a summariser.
#[derive(Debug, Clone, PartialEq)]
pub struct SummaryRequest {
    /// Its number within this compaction.
    pub id: u32,
    /// What is summarised.
    pub kind: SummaryKind,
    /// The user message. The system prompt is [`summary::SYSTEM`]; there are no tools. With `native`, the instruction
    /// for the provider's own compaction; empty if there is none.
    pub text: String,
    /// The longest accepted summary, in tokens.
    pub cap_tokens: u64,
    /// The output limit of the request, in tokens.
    pub output_tokens_max: u64,
    /// The index of the summariser in [`CompactionParams::summarisers`].
    pub summariser: usize,
    /// The wait before the request, in milliseconds.
    pub after_ms: u64,
    /// The number of earlier attempts.
    pub attempt: u32,
    /// The reason for the retry.
    pub failure: Option<Failure>,
    /// The conversation, as the session sends it, if the provider is to compact it.
    pub native: Option<NativeInput>,
}

impl SummaryRequest {
    /// Returns the size of the request including its answer, in tokens by our estimate.
    pub fn tokens(&self, ratio: Ratio) -> u64 {
        let input = match &self.native {
            Some(native) => native.tokens + ratio.apply(classes::tokens(&self.text)),
            None => ratio.apply(classes::tokens(summary::SYSTEM) + classes::tokens(&self.text)),
        };
        input + self.output_tokens_max
    }
}

/// The segment of the path to be replaced, and its replacement.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// The newest active compaction must still be this one.
    pub base: Option<EntryId>,
    /// The first active entry must still be this one.
    pub first: EntryId,
    /// The last entry to be replaced; must be directly before `first_kept` on the path.
    pub last: EntryId,
    /// The first entry that stays.
    pub first_kept: EntryId,
    /// The tool results that are sent shorter from here on: this entry is appended before the compaction.
    pub prune: Option<Box<Prune>>,
    /// The entry to append. The installer fills in `previous`, `duration_ms` and the cost.
    pub compaction: Compaction,
    /// The outcome of the compaction once this is installed.
    pub outcome: CompactionOutcome,
}

/// An installation that replaces nothing: tool results that are sent shorter.
#[derive(Debug, Clone, PartialEq)]
pub struct PruneSegment {
    /// The newest active compaction must still be this one, and all results must still be active.
    pub base: Option<EntryId>,
    /// The entry to append.
    pub prune: Prune,
    /// The number of messages in the context.
    pub messages: u64,
    /// The usage of model calls so far.
    pub usage: Usage,
    /// The outcome of the compaction once this is installed.
    pub outcome: CompactionOutcome,
}

/// An instruction to the driver of a [`Compacting`].
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Ask the hooks; answer with [`Input::Hooks`].
    Consult(Box<Plan>),
    /// Ask a summariser; answer with [`Input::Answered`].
    Ask(SummaryRequest),
    /// Give up a summariser and use the next one from now on.
    FallBack {
        /// The abandoned summariser, as an index into [`CompactionParams::summarisers`].
        from: usize,
        /// The new summariser.
        to: usize,
        /// The reason.
        reason: String,
    },
    /// The provider's own compaction is not possible, or has failed: summaries of our own are made instead.
    NativeFailed {
        /// The reason, as a clause.
        reason: String,
    },
    /// These requests no longer count: cancel those in progress, and do not send the waiting ones. Answers
    /// that already arrived may still be reported with [`Input::Answered`], so that they are billed.
    Withdraw(Vec<u32>),
    /// Replace the segment; answer with [`Input::Installed`].
    Install(Box<Segment>),
    /// The summary of a branch is whole; nothing comes after this. See [`branch`].
    Summarised(Box<BranchRecord>),
    /// What a preparation would install is held until it is adopted or cancelled. See [`Compacting::prepare`].
    Prepared,
    /// Send tool results shorter from here on; answer with [`Input::Installed`].
    InstallPrune(Box<PruneSegment>),
    /// The compaction is over; nothing comes after this.
    End(End),
}

/// An event since the last effects.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// The decision of the hooks.
    Hooks(HookDecision),
    /// A summariser's answer.
    Answered {
        /// The id of the request.
        id: u32,
        /// The answer, or the failure.
        answer: Result<Box<AssistantMessage>, Failure>,
        /// A number in 0..1000 that spreads waits, so that many sessions do not retry at once.
        jitter: u64,
    },
    /// The summariser has failed for too long: the next one is used, if there is one.
    Late {
        /// Why it is given up, as a part of a sentence.
        reason: String,
    },
    /// Whether the segment was replaced; `false` if the path had changed.
    Installed(bool),
    /// The compaction is no longer needed. An installation in progress still completes.
    Cancelled {
        /// The reason, for the compaction's end record.
        reason: String,
    },
}

/// How a compaction ended.
#[derive(Debug, Clone, PartialEq)]
pub struct End {
    /// The recorded outcome.
    pub outcome: CompactionOutcome,
    /// The incompressible part, if even the last rung was not enough and our own count shows it.
    pub floor: Option<Failure>,
    /// The usage of all its model calls.
    pub usage: Usage,
}

/// The rungs of the ladder, from the best to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rung {
    /// A summary by a model, keeping as much as the settings say.
    Summarise,
    /// A summary by a model, keeping half as much.
    Halve,
    /// A summary by a model, keeping as little as is legal, with the target lowered accordingly: the newest
    /// messages cannot give way, and must not prevent the older part from being summarised.
    Least,
    /// The truncate fallback as a chosen strategy: keeps what the settings say.
    Truncate,
    /// No model, at the window: old tool results give way, then as much of the oldest messages as necessary.
    LastResort,
}

/// The awaited input; others are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The hooks' decision.
    Hooks,
    /// The answers of summarisers.
    Answers,
    /// The adoption of what is prepared.
    Held,
    /// The result of the installation.
    Install,
    /// None: it has ended.
    Over,
}

/// A compaction in progress: proceeds from rung to rung until something is installed or nothing can be.
#[derive(Debug)]
pub struct Compacting {
    params: CompactionParams,
    rung: Rung,
    /// The newest plan; `None` until a rung finds one.
    plan: Option<Plan>,
    /// The first kept entry of the previous rung: the next one must keep less.
    last_first_kept: Option<EntryId>,
    /// Whether the hooks were consulted.
    consulted: bool,
    phase: Phase,
    /// Tool results that are sent shorter if this compaction installs anything.
    pruned: Vec<PrunedResult>,
    /// Whether the middles of the newest results were already left out.
    shortened: bool,
    /// Why no model can provide a summary, once that is known.
    unsummarised: Option<String>,
    /// Why the rungs before [`Rung::Least`] were of no use.
    vain: Option<String>,
    /// What a preparation would install.
    held: Option<Box<Segment>>,
    /// The outcome of the compaction once the installation in progress is complete.
    on_its_way: Option<CompactionOutcome>,
    summaries: Summaries,
    native: NativeWork,
}

impl Compacting {
    /// Returns the known window of the current summariser, in tokens, which limits a request to it.
    pub fn summariser_window(&self) -> u64 {
        self.summaries.window()
    }

    /// Plans, and returns the first effects.
    pub fn begin(params: CompactionParams) -> (Self, Vec<Effect>) {
        let style = Style::new(&params.settings, params.focus.clone());
        let rung = match (params.settings.strategy.wants_summary(), params.failed_attempts) {
            (false, 0) => Rung::Truncate,
            (true, 0) => Rung::Summarise,
            (true, 1) => Rung::Halve,
            (_, _) if params.at_window => Rung::LastResort,
            (false, _) => Rung::Truncate,
            (true, _) => Rung::Halve,
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
            held: None,
            on_its_way: None,
            summaries,
            native: NativeWork::default(),
        };
        let effects = match this.rung {
            Rung::LastResort => this.last_resort("the provider refused what was compacted before".to_owned()),
            Rung::Summarise | Rung::Halve | Rung::Least | Rung::Truncate => this.start_rung(),
        };
        (this, effects)
    }

    /// Returns the parameters.
    pub fn params(&self) -> &CompactionParams {
        &self.params
    }

    /// Returns the current plan.
    pub fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref()
    }

    /// Handles an input and returns the next effects; none after its end.
    pub fn on(&mut self, input: Input) -> Vec<Effect> {
        match (self.phase, input) {
            (Phase::Hooks, Input::Hooks(decision)) => {
                self.phase = Phase::Answers;
                match decision {
                    HookDecision::Continue => {
                        self.prune_instead().unwrap_or_else(|| self.ask_for_summaries())
                    }
                    HookDecision::Cancel { reason } => {
                        self.end(CompactionOutcome::Cancelled { reason }, None)
                    }
                    HookDecision::Focus(focus) => {
                        self.params.add_focus(&focus);
                        self.summaries.focus_on(self.params.focus.clone());
                        self.ask_for_summaries()
                    }
                    HookDecision::Supply(supplied) => self.install_supplied(&supplied),
                }
            }
            (
                Phase::Hooks | Phase::Answers | Phase::Held | Phase::Install,
                Input::Answered { id, answer, jitter },
            ) => {
                if let Some(effects) = self.native_answered(id, &answer, jitter) {
                    return effects;
                }
                let reaction = self.summaries.answered(id, answer, jitter);
                self.follow(reaction)
            }
            (Phase::Answers, Input::Late { reason }) => self.native_late(&reason).unwrap_or_else(|| {
                let reaction = self.summaries.late(&reason);
                self.follow(reaction)
            }),
            (Phase::Install, Input::Installed(installed)) => {
                let outcome = self.on_its_way.take().filter(|_| installed);
                self.end(outcome.unwrap_or(CompactionOutcome::Superseded), None)
            }
            (Phase::Hooks | Phase::Answers | Phase::Held, Input::Cancelled { reason }) => {
                self.end(CompactionOutcome::Cancelled { reason }, None)
            }
            // A late message that is no longer awaited.
            (
                _,
                Input::Hooks(_)
                | Input::Answered { .. }
                | Input::Late { .. }
                | Input::Installed(_)
                | Input::Cancelled { .. },
            ) => Vec::new(),
        }
    }

    /// Returns the options of the rung.
    fn options(&self) -> PlanOptions {
        let mut options = self.params.plan_options();
        match self.rung {
            Rung::Summarise | Rung::Truncate => {}
            Rung::Halve => {
                options.keep_recent = (options.keep_recent / 2).max(1);
                // Messages to be preserved give way, too.
                options.keep_max /= 2;
            }
            Rung::Least | Rung::LastResort => options = self.least_options(),
        }
        options
    }

    /// Returns the options that keep as little as is legal.
    fn least_options(&self) -> PlanOptions {
        let options = self.params.plan_options();
        PlanOptions { keep_recent: 1, preserve_messages: 0, cut: CutRule::Nearest, force: true, ..options }
    }

    /// Plans the rung, and requests summaries or moves on to the next rung.
    fn start_rung(&mut self) -> Vec<Effect> {
        let mut effects = self.summaries.clear();
        effects.extend(self.native.clear());
        effects.extend(match plan(&self.params.path, &self.options()) {
            Err(nothing) => self.prune_instead().unwrap_or_else(|| self.nothing(nothing)),
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
                let next = self.with_room(next);
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
        // At the window, a lower rung may find a cut if this one finds none.
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
            // Too much is kept already: no summary could be small enough.
            if room < SUMMARY_TOKENS_MIN * wanted.len() as u64 {
                return self.next_rung("what is kept is too large by itself");
            }
            let sum: u64 = wanted.iter().map(|source| source.cap_tokens).sum();
            for Source { cap_tokens: cap, .. } in &mut wanted {
                *cap = (*cap).min(cap.saturating_mul(room) / sum).max(SUMMARY_TOKENS_MIN);
            }
        }
        let (mut effects, is_ours_wanted) = self.ask_natively(&plan);
        if is_ours_wanted {
            let reaction = self.summaries.begin(wanted);
            effects.extend(self.follow(reaction));
        }
        effects
    }

    /// Whether the previous summary, which would remain unchanged before the split turn's, leaves that one
    /// less than half of its cap: then both are merged.
    fn is_crowded_by_previous(&self, plan: &Plan) -> bool {
        let stands = plan.previous_summary.is_some() && plan.messages_to_summarize() == 0;
        let half = self.params.settings.prefix_cap(self.params.window) / 2;
        stands && self.room_for_summary(plan).is_some_and(|room| room < half)
    }

    /// Follows the progress of the summaries, and continues when they are complete or impossible.
    fn follow(&mut self, reaction: Reaction) -> Vec<Effect> {
        let Reaction { mut effects, progress } = reaction;
        effects.extend(match progress {
            Progress::Waiting => Vec::new(),
            Progress::Complete => self.summaries_ended(Ok(())),
            Progress::Failed(why) => self.summaries_ended(Err(why)),
        });
        effects
    }

    /// Returns the plan with messages cut earlier without a summary added in front of its history.
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
        let history = self.native.text().or_else(|| self.summaries.text(SummaryKind::History));
        let text = summary::assemble(&plan, history, self.summaries.text(SummaryKind::TurnPrefix));
        let facts_max = self.facts_max_beside(&plan, &text);
        match self.segment(&plan, text, Author::Model, facts_max) {
            Some(segment) if self.is_success(segment.compaction.tokens_after) => self.install(segment),
            // Ours may be smaller than the provider's.
            Some(_) | None if self.native.is_done() => {
                let is_readable = self.native.text().is_some();
                self.native.clear();
                let reason = "its summary is too large".to_owned();
                let mut effects = vec![Effect::NativeFailed { reason }];
                effects.extend(if is_readable { self.ask_for_summaries() } else { self.finish_summaries() });
                effects
            }
            Some(_) => self.next_rung("the context would still be too large"),
            None => self.next_rung("the context would not get smaller"),
        }
    }

    /// Returns the plan with no more of the user's words and of facts than leave half of the room to the summary, a third
    /// where skills are in use, and none where the room is only enough for a short one.
    fn with_room(&self, mut plan: Plan) -> Plan {
        let Some(target) = self.target_tokens() else { return plan };
        let mut bare = plan.clone();
        bare.hide_carried();
        let room = target.saturating_sub(self.tokens_after(&bare, bare.frame_tokens()));
        let summaries = 1 + u64::from(plan.is_split_turn);
        let room = to_estimate(room, self.params.ratio).saturating_sub(SUMMARY_FIRST_TOKENS * summaries);
        plan.options.facts_max = plan.options.facts_max.min(room / FACTS_ROOM_PARTS);
        plan.words.limit(room / WORDS_ROOM_PARTS);
        plan.skills.limit(room / SKILLS_ROOM_PARTS);
        plan
    }

    /// Returns how many tokens (by our estimate) the summary may have for the result to count as a success;
    /// `None` if any reduction is enough.
    fn room_for_summary(&self, plan: &Plan) -> Option<u64> {
        let target = self.target_tokens()?;
        let room = target.saturating_sub(self.tokens_after(plan, plan.frame_tokens() + plan.facts_max()));
        let room = to_estimate(room, self.params.ratio);
        // A small reserve for escapes in an accepted answer.
        Some(room - room / 16)
    }

    /// Returns the largest resulting context that is a success, in tokens; `None` if the compaction was
    /// requested, as then any reduction is enough.
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
            // If the trigger is far below the window, a tenth of the window may be more than there is.
            let freed = share(window, FREED_SHARE).min(share(trigger, 1.0 - SUCCESS_SHARE));
            let before = self.params.prepared_for.unwrap_or(self.params.tokens_before);
            // Messages that are added until then are kept, too.
            let added = before.saturating_sub(self.params.tokens_before);
            by_trigger.min(before.saturating_sub(freed)).saturating_sub(added)
        };
        Some(if self.rung == Rung::Least { target.max(self.least_with_summary()) } else { target })
    }

    /// Returns the size of the context that keeps as little as is legal, plus a useful summary, in tokens:
    /// the newest messages cannot give way, and must not prevent the older ones from being summarised.
    /// Returns 0 if that would not free a tenth.
    fn least_with_summary(&self) -> u64 {
        let Ok(mut least) = plan(&self.params.path, &self.least_options()) else { return 0 };
        least.hide_carried();
        let cap = self.params.settings.summary_cap(self.params.window);
        let useful = cap.min(self.estimate_window() / SUMMARY_USEFUL_SHARE).max(2 * SUMMARY_TOKENS_MIN);
        let tokens = self.tokens_after(&least, least.frame_tokens() + useful);
        let now = self.tokens_now();
        let before = if self.pruned.is_empty() { now.max(self.params.tokens_before) } else { now };
        let is_sent = !self.params.at_window || self.can_be_sent(tokens);
        if is_sent && tokens <= before - before / 10 { tokens } else { 0 }
    }

    /// Returns the resulting context's size, in tokens, with a summary entry of this estimated size.
    fn tokens_after(&self, plan: &Plan, summary_tokens: u64) -> u64 {
        let sent = as_sent(&self.params.path);
        let messages = || sent.iter().filter(|entry| is_message(&entry.kind));
        let sum = |is_meant: &dyn Fn(&Entry) -> bool| -> u64 {
            messages().filter(|entry| is_meant(entry)).map(|entry| entry.tokens).sum()
        };
        let kept = sum(&|entry| entry.id >= plan.first_kept);
        let pinned = sum(&|entry| entry.id < plan.first_kept && self.params.pinned.contains(&entry.id));
        // Pinned entries join the fixed part.
        self.params.overhead + pinned + self.params.ratio.apply(kept + summary_tokens)
    }

    /// Returns the window in tokens by our estimate.
    fn estimate_window(&self) -> u64 {
        to_estimate(self.params.window, self.params.ratio)
    }

    fn is_success(&self, tokens_after: u64) -> bool {
        self.target_tokens().is_none_or(|target| tokens_after <= target)
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
            Rung::Summarise if !self.params.trigger.may_fail() || self.params.at_window => {
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

    /// Lowers the target as far as possible, if that frees enough.
    fn least(&mut self, why: &str) -> Vec<Effect> {
        self.rung = Rung::Least;
        self.vain = Some(why.to_owned());
        if self.least_with_summary() == 0 {
            return self.next_rung(why);
        }
        self.last_first_kept = None;
        self.start_rung()
    }

    /// No summary helped with the results as they are: retries with shorter results, once.
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
        // Nothing is withdrawn: the driver ends everything in progress.
        self.summaries.clear();
        self.native.clear();
        vec![Effect::End(End { outcome, floor, usage: self.summaries.usage() })]
    }
}
