//! The summaries of a compaction: their requests, the handling of answers, and when they are complete.
//!
//! A transcript that is too large for the summariser is sent in parts, and the parts' summaries are merged,
//! level by level, until one is left. Both halves of a split turn are requested at the same time.
//!
//! There may be several summarisers: when one fails, for whatever reason, the next one continues with the
//! unanswered requests. Each has a turn's retries for every request.
//!
//! Invariants: a withdrawn or answered request is no longer in `pending`; all of a compaction's requests are
//! sent at most `CALLS_MAX` times; when one half has to start over, the other half's results are kept; no
//! request asks for more output than its summariser can produce.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::compacting::{Effect, SummariserLimits, SummaryRequest};
use crate::entry::Entry;
use crate::failure::{Failure, FailureClass};
use crate::message::{AssistantMessage, Usage};
use crate::plan::Plan;
use crate::retry::{Retries, Retry, lowered_output};
use crate::settings::share;
use crate::size::classes;
use crate::summary::{self, Rejected, SUMMARY_TOKENS_MIN, Style, SummaryKind};
use crate::usage::Ratio;

#[cfg(test)]
mod tests;

/// How often a summariser is asked again at once, if a wait would not help: the request says what was wrong.
const CORRECTIONS_MAX: u32 = 1;
/// How often a request may turn out too large for a summariser before the summariser is given up.
const SHRINKS_MAX: u32 = 4;
/// How often a summariser's output limit may turn out lower before the summariser is given up.
const OUTPUT_LOWERED_MAX: u32 = 2;
/// The maximum number of parts of one transcript: a summariser that needs more is too small for it.
const PARTS_MAX: usize = 128;
/// The maximum number of requests of one compaction: the parts of both halves, their merges, and retries.
pub(super) const CALLS_MAX: usize = 512;
/// The maximum share of the summariser's window for one answer, or for the previous summary, so that two
/// summaries to be merged, or a transcript beside the previous one, always have room: one part in this many.
const WINDOW_SHARE: u64 = 4;
/// The size of the frame around one part in a merge request, in tokens.
const MERGED_PART_TOKENS: u64 = 16;

/// The material of one summary.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) kind: SummaryKind,
    /// The summary's cap, in tokens.
    pub(super) cap_tokens: u64,
    /// The entries whose messages are summarised.
    entries: Vec<Arc<Entry>>,
    /// The previous summary, without its footer, to be merged.
    previous: Option<String>,
}

impl Source {
    /// Returns one half of a plan: the history, or the beginning of the split turn.
    pub(super) fn of(plan: &Plan, kind: SummaryKind, cap_tokens: u64) -> Self {
        let (entries, previous) = match kind {
            SummaryKind::History => {
                (&plan.history, plan.previous_summary.as_deref().map(summary::without_footer))
            }
            SummaryKind::TurnPrefix | SummaryKind::Branch => (&plan.turn_prefix, None),
        };
        let previous = previous.filter(|previous| !previous.is_empty()).map(str::to_owned);
        Self { kind, cap_tokens, entries: entries.clone(), previous }
    }

    /// Returns the material of a branch that is left.
    pub(super) fn branch(entries: Vec<Arc<Entry>>, cap_tokens: u64) -> Self {
        Self { kind: SummaryKind::Branch, cap_tokens, entries, previous: None }
    }
}

/// The result of an input: effects, and progress.
#[derive(Debug, PartialEq)]
pub(super) struct Reaction {
    /// Only [`Effect::Ask`] and [`Effect::Withdraw`].
    pub(super) effects: Vec<Effect>,
    pub(super) progress: Progress,
}

/// The progress of the summaries.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Waiting for answers; or the input was about a request that no longer counts.
    Waiting,
    /// All summaries are complete.
    Complete,
    /// They are impossible, for this reason.
    Failed(String),
}

/// The summaries of a compaction, in progress.
#[derive(Debug)]
pub(super) struct Summaries {
    style: Style,
    /// The number of the provider's tokens for each token of our estimate.
    ratio: Ratio,
    /// The summarisers in order. Refusals lower the limits of the current one.
    summarisers: Vec<SummariserLimits>,
    /// The index of the current summariser.
    current: usize,
    /// The retries of one request.
    retries: Retries,
    /// The wanted summaries, complete or not.
    jobs: Vec<Job>,
    /// The unanswered requests, by number.
    pending: BTreeMap<u32, PendingRequest>,
    /// The number of the next request.
    next_id: u32,
    /// How often a request was too large for the current summariser.
    shrinks: u32,
    /// How often the output limit of the current summariser turned out lower.
    output_lowered: u32,
    /// The number of requests sent.
    calls: usize,
    /// The usage of all answers, in tokens, including those to withdrawn requests.
    usage: Usage,
    /// The model of the newest answer; empty if there was none.
    model: String,
}

/// One summary in progress: its texts, level by level, until one is left.
#[derive(Debug)]
struct Job {
    source: Source,
    /// The cap of each text, in tokens.
    cap_tokens: u64,
    /// The answers of the current level, in order; `None` for pending ones.
    parts: Vec<Option<String>>,
}

/// An unanswered request, and where its answer belongs.
#[derive(Debug)]
struct PendingRequest {
    job: usize,
    part: usize,
    request: SummaryRequest,
    /// Its text without the correction of an earlier answer.
    text: String,
    /// Its remaining retries.
    retries: Retries,
    /// How often it was asked again at once.
    corrections: u32,
}

/// A transcript split into parts.
struct Parts {
    texts: Vec<String>,
    /// The cap of each answer, in tokens.
    cap_tokens: u64,
    /// The room for data in each request, in tokens by our estimate.
    room: u64,
}

/// A possible smaller window of the summariser, in tokens, and the parts for it.
struct Smaller {
    window: u64,
    parts: Parts,
}

impl Summaries {
    /// Creates empty summaries for these summarisers, with these retries for each request and summariser.
    pub(super) fn new(
        style: Style,
        ratio: Ratio,
        summarisers: Vec<SummariserLimits>,
        retries: Retries,
    ) -> Self {
        assert!(!summarisers.is_empty(), "somebody writes the summaries");
        Self {
            style,
            ratio,
            summarisers,
            current: 0,
            retries,
            jobs: Vec::new(),
            pending: BTreeMap::new(),
            next_id: 0,
            shrinks: 0,
            output_lowered: 0,
            calls: 0,
            usage: Usage::default(),
            model: String::new(),
        }
    }

    /// Returns the known window of the current summariser, in tokens.
    pub(super) fn window(&self) -> u64 {
        self.limits().window
    }

    /// Returns the limits of the current summariser.
    fn limits(&self) -> SummariserLimits {
        self.summarisers[self.current]
    }

    /// Sets the focus of the requests that follow.
    pub(super) fn focus_on(&mut self, focus: Option<String>) {
        self.style.focus = focus;
    }

    /// Returns the style of its requests.
    pub(super) fn style(&self) -> &Style {
        &self.style
    }

    /// Returns the number of the next request, and uses it up.
    pub(super) fn next_id(&mut self) -> u32 {
        self.next_id += 1;
        self.next_id - 1
    }

    /// Adds an answer to the usage.
    pub(super) fn bill(&mut self, answer: &AssistantMessage) {
        if let Some(usage) = &answer.usage {
            self.usage.add(usage);
        }
        self.model.clone_from(&answer.model);
    }

    /// Returns the number of requests sent.
    pub(super) fn calls(&self) -> usize {
        self.calls
    }

    /// Returns the usage of all answers, in tokens.
    pub(super) fn usage(&self) -> Usage {
        self.usage
    }

    /// Returns the model of the newest answer; empty if there was none.
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// Returns the whole summary of this kind, if there is one.
    pub(super) fn text(&self, kind: SummaryKind) -> Option<&str> {
        let job = self.jobs.iter().find(|job| job.source.kind == kind)?;
        job.parts.first()?.as_deref()
    }

    /// Requests these summaries. Nothing else is in progress.
    pub(super) fn begin(&mut self, sources: Vec<Source>) -> Reaction {
        assert!(self.jobs.is_empty() && self.pending.is_empty(), "one rung's summaries at a time");
        let mut effects = Vec::new();
        loop {
            let parts = |source: &Source| self.parts(source, source.cap_tokens, self.window());
            let Some(parts) = sources.iter().map(parts).collect::<Option<Vec<Parts>>>() else {
                match self.fall_back(&too_small()) {
                    Ok(told) => effects.push(told),
                    Err(why) => return Reaction { effects, progress: Progress::Failed(why) },
                }
                continue;
            };
            for (source, parts) in sources.into_iter().zip(parts) {
                // Messages without text leave nothing to summarise.
                if !parts.texts.is_empty() {
                    effects.extend(self.start(source, parts));
                }
            }
            return self.reaction(effects);
        }
    }

    /// Handles an answer or a failure. `jitter` is a number in 0..1000 that spreads waits.
    pub(super) fn answered(
        &mut self,
        id: u32,
        answer: Result<Box<AssistantMessage>, Failure>,
        jitter: u64,
    ) -> Reaction {
        // Answers that no longer count are billed nevertheless.
        if let Ok(answer) = &answer {
            self.bill(answer);
        }
        let Some(pending) = self.pending.remove(&id) else {
            return Reaction { effects: Vec::new(), progress: Progress::Waiting };
        };
        let job = &self.jobs[pending.job];
        let kind = job.source.kind;
        // A user's own prompt asks for its own form.
        let check_headings = self.style.prompt.is_none();
        let result = match answer {
            Ok(answer) => match summary::accept(&answer, kind, job.cap_tokens, check_headings) {
                Ok(text) => {
                    self.jobs[pending.job].parts[pending.part] = Some(text);
                    Ok(self.merge_if_complete(pending.job))
                }
                Err(rejected) => self.rejected(pending, &rejected, jitter),
            },
            Err(failure) => self.failed(pending, failure, jitter),
        };
        match result {
            Ok(effects) => self.reaction(effects),
            Err(why) => Reaction { effects: Vec::new(), progress: Progress::Failed(why) },
        }
    }

    /// Handles a summariser that has failed for too long: its requests are withdrawn, and the next one is used.
    pub(super) fn late(&mut self, why: &str) -> Reaction {
        let first = self.pending.keys().next().copied().and_then(|id| self.pending.remove_entry(&id));
        let Some((id, pending)) = first else {
            return Reaction { effects: Vec::new(), progress: Progress::Failed(why.to_owned()) };
        };
        let mut effects = vec![Effect::Withdraw(vec![id])];
        match self.ask_next(pending, why) {
            Ok(asked) => {
                effects.extend(asked);
                self.reaction(effects)
            }
            Err(why) => {
                effects.extend(self.clear());
                Reaction { effects, progress: Progress::Failed(why) }
            }
        }
    }

    /// Drops all wanted summaries, and withdraws unanswered requests.
    pub(super) fn clear(&mut self) -> Vec<Effect> {
        let effects = self.withdraw(|_| true);
        self.jobs.clear();
        effects
    }

    /// Returns these effects, and the progress after them. A compaction with too many requests has failed.
    fn reaction(&mut self, mut effects: Vec<Effect>) -> Reaction {
        let id = |effect: &Effect| if let Effect::Ask(request) = effect { Some(request.id) } else { None };
        let asks: Vec<u32> = effects.iter().filter_map(id).collect();
        self.calls += asks.len();
        if !asks.is_empty() && self.calls > CALLS_MAX {
            effects.retain(|effect| id(effect).is_none());
            self.pending.retain(|id, _| !asks.contains(id));
            let why = format!("it takes more than {CALLS_MAX} calls");
            return Reaction { effects, progress: Progress::Failed(why) };
        }
        let progress = if self.pending.is_empty() { Progress::Complete } else { Progress::Waiting };
        Reaction { effects, progress }
    }

    /// Withdraws these requests, if there are any.
    fn withdraw(&mut self, is_meant: impl Fn(&PendingRequest) -> bool) -> Vec<Effect> {
        let ids: Vec<u32> =
            self.pending.extract_if(.., |_, pending| is_meant(pending)).map(|(id, _)| id).collect();
        if ids.is_empty() { Vec::new() } else { vec![Effect::Withdraw(ids)] }
    }

    /// Returns the requests for one summary to a summariser with this window; `None` if there are too many.
    fn parts(&self, source: &Source, cap_tokens: u64, window: u64) -> Option<Parts> {
        let kind = source.kind;
        let mut previous = source.previous.as_deref();
        let mut pieces = summary::transcript(&source.entries);
        let most = window.min(to_estimate(window, self.ratio)) / WINDOW_SHARE;
        if let Some(body) = previous.filter(|body| !pieces.is_empty() && classes::tokens(body) > most) {
            // Too large to be sent whole beside a transcript: it is split and merged like the rest.
            pieces.insert(0, format!("[Record]: {}", summary::escape_tags(body)));
            previous = None;
        }
        let cap_tokens = cap_tokens.min(most).min(self.cap_max()).max(SUMMARY_TOKENS_MIN);
        let frame = summary::request_text(kind, "", previous, &self.style, cap_tokens);
        let room = self.room_in_request(&frame, cap_tokens, window);
        let chunks = summary::chunks(&pieces, room.max(SUMMARY_TOKENS_MIN));
        if chunks.len() > PARTS_MAX {
            return None;
        }
        // The previous summary goes with the oldest part.
        let text = |(part, chunk): (usize, &String)| {
            let previous = previous.filter(|_| part == 0);
            summary::request_text(kind, chunk, previous, &self.style, cap_tokens)
        };
        Some(Parts { texts: chunks.iter().enumerate().map(text).collect(), cap_tokens, room })
    }

    /// Returns the largest cap with which a summary fits the output limit of the current summariser, in
    /// tokens.
    fn cap_max(&self) -> u64 {
        self.limits().output_tokens_max.map_or(u64::MAX, summary::cap_within)
    }

    /// Returns how many tokens of data (by our estimate) fit into one request beside `frame`, the request
    /// without them.
    fn room_in_request(&self, frame: &str, cap_tokens: u64, window: u64) -> u64 {
        let input = window.saturating_sub(summary::output_tokens(cap_tokens));
        let fixed = classes::tokens(summary::SYSTEM) + classes::tokens(frame);
        let room = to_estimate(input, self.ratio).saturating_sub(fixed);
        // A tenth is reserved for estimation errors.
        room - room / 10
    }

    /// Requests one summary. If it was in progress, it starts over.
    fn start(&mut self, source: Source, parts: Parts) -> Vec<Effect> {
        let Parts { texts, cap_tokens, .. } = parts;
        let kind = source.kind;
        let job = self.jobs.iter().position(|job| job.source.kind == kind).unwrap_or(self.jobs.len());
        let mut effects = self.withdraw(|pending| pending.job == job);
        let begun = Job { source, cap_tokens, parts: vec![None; texts.len()] };
        if job < self.jobs.len() {
            self.jobs[job] = begun;
        } else {
            self.jobs.push(begun);
        }
        for (part, text) in texts.into_iter().enumerate() {
            effects.push(self.ask(job, part, text));
        }
        effects
    }

    fn ask(&mut self, job: usize, part: usize, text: String) -> Effect {
        let id = self.next_id();
        let Job { source: Source { kind, .. }, cap_tokens, .. } = self.jobs[job];
        let output_tokens_max =
            summary::output_tokens(cap_tokens).min(self.limits().output_tokens_max.unwrap_or(u64::MAX));
        let request = SummaryRequest {
            id,
            kind,
            text: text.clone(),
            cap_tokens,
            output_tokens_max,
            summariser: self.current,
            after_ms: 0,
            attempt: 0,
            failure: None,
            native: None,
        };
        let retries = self.retries.clone();
        self.pending.insert(
            id,
            PendingRequest { job, part, request: request.clone(), text, retries, corrections: 0 },
        );
        Effect::Ask(request)
    }

    fn failed(
        &mut self,
        pending: PendingRequest,
        failure: Failure,
        jitter: u64,
    ) -> Result<Vec<Effect>, String> {
        match failure.class {
            FailureClass::ContextOverflow
            | FailureClass::PayloadTooLarge
            | FailureClass::RequestTooLargeForRateLimit => self.shrink(pending, failure),
            FailureClass::OutputLimit => self.lower_output(pending, &failure),
            FailureClass::RateLimited
            | FailureClass::Overloaded
            | FailureClass::Timeout
            | FailureClass::Malformed
            | FailureClass::Loading => self.try_again(pending, failure, None, jitter),
            FailureClass::Other | FailureClass::ImageRefused => self.correct(pending, failure, None),
            FailureClass::Auth
            | FailureClass::Quota
            | FailureClass::ContentFilter
            | FailureClass::OpaqueRefused
            | FailureClass::ContextFloor => self.ask_next(pending, &failure.message),
        }
    }

    /// Handles an unusable answer: repeats the request, and says what was wrong with the answer.
    fn rejected(
        &mut self,
        pending: PendingRequest,
        rejected: &Rejected,
        jitter: u64,
    ) -> Result<Vec<Effect>, String> {
        let failure = Failure::new(FailureClass::Malformed, rejected.to_string());
        let correction = rejected.correction();
        match rejected {
            // As in a turn.
            Rejected::Empty | Rejected::Incomplete => self.try_again(pending, failure, correction, jitter),
            Rejected::Filtered => self.ask_next(pending, &failure.message),
            Rejected::CutOff
            | Rejected::ToolCalls
            | Rejected::TooLong { .. }
            | Rejected::Hollow
            | Rejected::Headings { .. } => self.correct(pending, failure, correction),
        }
    }

    /// Repeats the same request after a turn's wait, alone; other results are kept. If it was sent as often
    /// as a turn's would be, the next summariser is used.
    fn try_again(
        &mut self,
        mut pending: PendingRequest,
        failure: Failure,
        correction: Option<String>,
        jitter: u64,
    ) -> Result<Vec<Effect>, String> {
        match pending.retries.next(&failure, jitter) {
            Some(Retry { delay_ms, .. }) => Ok(self.send_again(pending, failure, correction, delay_ms)),
            None => self.ask_next(pending, &failure.message),
        }
    }

    /// Repeats the same request once more, at once.
    fn correct(
        &mut self,
        mut pending: PendingRequest,
        failure: Failure,
        correction: Option<String>,
    ) -> Result<Vec<Effect>, String> {
        if pending.corrections >= CORRECTIONS_MAX {
            return self.ask_next(pending, &failure.message);
        }
        pending.corrections += 1;
        Ok(self.send_again(pending, failure, correction, 0))
    }

    fn send_again(
        &mut self,
        mut pending: PendingRequest,
        failure: Failure,
        correction: Option<String>,
        after_ms: u64,
    ) -> Vec<Effect> {
        pending.request.text = match correction {
            Some(correction) => format!("{}\n\n{correction}", pending.text),
            None => pending.text.clone(),
        };
        pending.request.attempt += 1;
        pending.request.after_ms = after_ms;
        pending.request.failure = Some(failure);
        let request = pending.request.clone();
        self.pending.insert(request.id, pending);
        vec![Effect::Ask(request)]
    }

    /// Gives up the current summariser: the next one is used from now on.
    fn fall_back(&mut self, why: &str) -> Result<Effect, String> {
        if self.current + 1 >= self.summarisers.len() {
            return Err(why.to_owned());
        }
        let from = self.current;
        self.current += 1;
        (self.shrinks, self.output_lowered) = (0, 0);
        Ok(Effect::FallBack { from, to: self.current, reason: why.to_owned() })
    }

    /// Sends this and all other unanswered requests to the next summariser; answers are kept, unless the
    /// missing part does not fit the next one's limits.
    fn ask_next(&mut self, pending: PendingRequest, why: &str) -> Result<Vec<Effect>, String> {
        let mut effects = vec![self.fall_back(why)?];
        let failed = pending.request.id;
        self.pending.insert(failed, pending);
        let anew = loop {
            if let Some(anew) = self.parts_of_misfits() {
                break anew;
            }
            match self.fall_back(&too_small()) {
                Ok(told) => effects.push(told),
                Err(why) => {
                    self.pending.remove(&failed);
                    return Err(why);
                }
            }
        };
        let open = std::mem::take(&mut self.pending);
        let under_way: Vec<u32> = open.keys().copied().filter(|id| *id != failed).collect();
        if !under_way.is_empty() {
            effects.push(Effect::Withdraw(under_way));
        }
        for (job, parts) in anew.into_iter().enumerate() {
            if let Some(parts) = parts {
                let source = self.jobs[job].source.clone();
                effects.extend(self.start(source, parts));
                continue;
            }
            for pending in open.values().filter(|pending| pending.job == job) {
                effects.push(self.ask(job, pending.part, pending.text.clone()));
            }
        }
        Ok(effects)
    }

    /// Returns, for each summary with a request that does not fit the current summariser, the parts to start
    /// over with. `None` if one needs too many.
    fn parts_of_misfits(&self) -> Option<Vec<Option<Parts>>> {
        let (window, cap_max) = (self.window(), self.cap_max());
        let fits = |pending: &PendingRequest| {
            pending.request.cap_tokens <= cap_max && pending.request.tokens(self.ratio) <= window
        };
        let of = |(index, job): (usize, &Job)| {
            if self.pending.values().filter(|pending| pending.job == index).all(fits) {
                return Some(None);
            }
            self.parts(&job.source, job.source.cap_tokens, window).map(Some)
        };
        self.jobs.iter().enumerate().map(of).collect()
    }

    /// Handles an output limit that was too high for the summariser: the same summary is requested with a lower one.
    fn lower_output(&mut self, pending: PendingRequest, failure: &Failure) -> Result<Vec<Effect>, String> {
        let refused = pending.request.output_tokens_max;
        let known = self.limits().output_tokens_max.filter(|known| *known < refused);
        let lower = known.unwrap_or_else(|| lowered_output(Some(refused), failure.limit));
        let is_last = known.is_none() && self.output_lowered >= OUTPUT_LOWERED_MAX;
        if is_last || lower >= refused {
            return self.ask_next(pending, &failure.message);
        }
        self.output_lowered += u32::from(known.is_none());
        self.summarisers[self.current].output_tokens_max = Some(lower);
        self.begin_anew(pending, &failure.message)
    }

    /// Starts over the summary of this request, with the current limits. The other half's results are kept.
    fn begin_anew(&mut self, pending: PendingRequest, why: &str) -> Result<Vec<Effect>, String> {
        let source = self.jobs[pending.job].source.clone();
        match self.parts(&source, self.jobs[pending.job].cap_tokens, self.window()) {
            Some(parts) => Ok(self.start(source, parts)),
            None => self.ask_next(pending, why),
        }
    }

    /// Handles a request that was too large for the summariser: the same summary is requested in smaller parts.
    fn shrink(&mut self, pending: PendingRequest, failure: Failure) -> Result<Vec<Effect>, String> {
        match self.smaller_parts(&pending, failure.limit) {
            Some(Smaller { window, parts }) if self.shrinks < SHRINKS_MAX => {
                self.shrinks += 1;
                self.summarisers[self.current].window = window;
                // Only this half starts over; the other half's results are kept.
                let source = self.jobs[pending.job].source.clone();
                Ok(self.start(source, parts))
            }
            None if self.shrinks == 0 => self.correct(pending, failure, None),
            Some(_) | None => self.ask_next(pending, &failure.message),
        }
    }

    /// Returns a smaller possible window of the summariser after it rejected this request: the one it named,
    /// if plausible; otherwise half of the request.
    fn smaller_parts(&self, pending: &PendingRequest, limit: Option<u64>) -> Option<Smaller> {
        let Job { source, cap_tokens, .. } = &self.jobs[pending.job];
        let sent = pending.request.tokens(self.ratio);
        let named = limit.filter(|limit| *limit < sent && *limit <= self.window());
        [named, Some(sent.min(self.window()) / 2)].into_iter().flatten().find_map(|window| {
            let parts = self.parts(source, *cap_tokens, window)?;
            // A request that is mostly instruction is not worth sending.
            (parts.room >= to_estimate(window, self.ratio) / WINDOW_SHARE)
                .then_some(Smaller { window, parts })
        })
    }

    /// Requests the next level of a summary whose current level is complete: groups of its texts, merged.
    fn merge_if_complete(&mut self, job: usize) -> Vec<Effect> {
        let Some(parts) = self.jobs[job].parts.iter().cloned().collect::<Option<Vec<String>>>() else {
            return Vec::new();
        };
        if parts.len() == 1 {
            return Vec::new();
        }
        let Job { source: Source { kind, .. }, cap_tokens, .. } = self.jobs[job];
        let frame = summary::merge_text(kind, &[], &self.style, cap_tokens);
        let groups = groups(parts, self.room_in_request(&frame, cap_tokens, self.window()));
        self.jobs[job].parts = vec![None; groups.len()];
        let mut effects = Vec::new();
        for (part, mut group) in groups.into_iter().enumerate() {
            if group.len() == 1 {
                self.jobs[job].parts[part] = group.pop();
            } else {
                let text = summary::merge_text(kind, &group, &self.style, cap_tokens);
                effects.push(self.ask(job, part, text));
            }
        }
        effects
    }
}

/// Returns the reason for giving up a summariser whose window needs too many parts.
fn too_small() -> String {
    format!("the summariser is too small: it takes more than {PARTS_MAX} parts")
}

/// Groups these texts into about `budget` tokens each, in order: at least two in each but the last, so that
/// every level has fewer.
fn groups(parts: Vec<String>, budget: u64) -> Vec<Vec<String>> {
    let mut groups: Vec<Vec<String>> = Vec::new();
    let mut size = 0;
    for part in parts {
        let tokens = classes::tokens(&part) + MERGED_PART_TOKENS;
        match groups.last_mut() {
            Some(group) if group.len() < 2 || size + tokens <= budget => {
                size += tokens;
                group.push(part);
            }
            Some(_) | None => {
                size = tokens;
                groups.push(vec![part]);
            }
        }
    }
    groups
}

/// Converts the provider's tokens to tokens of our estimate.
pub(super) fn to_estimate(tokens: u64, ratio: Ratio) -> u64 {
    share(tokens, 1.0 / ratio.value())
}
