//! The summaries of a compaction: which requests they take, what becomes of the answers, and when they are whole.
//!
//! A transcript that is too large for the summariser is asked for in parts, and the parts' summaries are merged, level
//! by level, until one is left. Both halves of a split turn are asked for at the same time.
//!
//! Several summarisers may be there: when the first one fails, for whatever reason, the next one goes on with what is
//! not answered. Each has a turn's retries for every request.
//!
//! Invariants: a request that was withdrawn or answered is in `asked` no more; all of a compaction's requests are sent
//! at most `CALLS_MAX` times; when one half has to begin anew, what the other half gave is kept; no request asks for
//! more output than its summariser gives.

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

/// How often a summariser is asked again at once, where no wait would help: it is told what was wrong.
const CORRECTIONS_MAX: u32 = 1;
/// How often a request may turn out too large for a summariser before it is given up.
const SHRINKS_MAX: u32 = 4;
/// How often a summariser's output limit may turn out lower before it is given up.
const OUTPUT_LOWERED_MAX: u32 = 2;
/// The most parts that one transcript is asked in: a summariser that needs more is too small for it.
const PARTS_MAX: usize = 128;
/// The most requests of one compaction: the parts of both halves, their merges, and what is sent again.
pub(super) const CALLS_MAX: usize = 512;
/// The share of the summariser's window that one answer, or the previous summary, takes at most: so that two
/// summaries to be merged, or a transcript beside the previous one, always have room. One part in this many.
const WINDOW_SHARE: u64 = 4;
/// What the frame of one part in a merge request counts, in tokens.
const MERGED_PART_TOKENS: u64 = 16;

/// What one summary is made of.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) kind: SummaryKind,
    /// The summary's cap, in tokens.
    pub(super) cap_tokens: u64,
    /// The entries whose messages are summarised.
    entries: Vec<Arc<Entry>>,
    /// The summary before it, without its footer, to be merged.
    previous: Option<String>,
}

impl Source {
    /// One half of a plan: the history, or the beginning of the split turn.
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

    /// A branch that is left.
    pub(super) fn branch(entries: Vec<Arc<Entry>>, cap_tokens: u64) -> Self {
        Self { kind: SummaryKind::Branch, cap_tokens, entries, previous: None }
    }
}

/// What follows from an input: what to do, and how far the summaries are.
#[derive(Debug, PartialEq)]
pub(super) struct Reaction {
    /// Only [`Effect::Ask`] and [`Effect::Withdraw`].
    pub(super) effects: Vec<Effect>,
    pub(super) progress: Progress,
}

/// How far the summaries are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Answers are awaited; or the input was about a request that no longer counts.
    Waiting,
    /// All summaries are whole.
    Complete,
    /// They cannot be had: why.
    Failed(String),
}

/// The summaries of a compaction, in the making.
#[derive(Debug)]
pub(super) struct Summaries {
    style: Style,
    /// What the provider counts for each token that we estimate.
    ratio: Ratio,
    /// Who is asked, one after another. Refusals lower the limits of who is asked now.
    summarisers: Vec<SummariserLimits>,
    /// Which of them is asked now.
    current: usize,
    /// What one request may be tried again.
    retries: Retries,
    /// The summaries that are wanted, whole or not.
    jobs: Vec<Job>,
    /// The requests that are not answered, by their number.
    asked: BTreeMap<u32, Asked>,
    /// The number of the next request.
    next_id: u32,
    /// How often a request was too large for who is asked now.
    shrinks: u32,
    /// How often the output limit of who is asked now turned out lower.
    output_lowered: u32,
    /// How many requests were sent.
    calls: usize,
    /// What all answers used, in tokens, those of withdrawn requests included.
    usage: Usage,
    /// The model of the newest answer; empty if there was none.
    model: String,
}

/// One summary in the making: its texts, level by level, until one is left.
#[derive(Debug)]
struct Job {
    source: Source,
    /// The cap of each text, in tokens.
    cap_tokens: u64,
    /// The answers of the level under way, in order; one that is asked for is `None`.
    parts: Vec<Option<String>>,
}

/// A request that is not answered, and where its answer belongs.
#[derive(Debug)]
struct Asked {
    job: usize,
    part: usize,
    request: SummaryRequest,
    /// Its text without what was wrong with an answer to it.
    text: String,
    /// What may still be tried with it.
    retries: Retries,
    /// How often it was asked again at once.
    corrections: u32,
}

/// A transcript, to be asked for in parts.
struct Parts {
    texts: Vec<String>,
    /// The cap of each answer, in tokens.
    cap_tokens: u64,
    /// The room for data in each request, in tokens by our estimate.
    room: u64,
}

/// A smaller window that the summariser may have, in tokens, and the parts for it.
struct Smaller {
    window: u64,
    parts: Parts,
}

impl Summaries {
    /// None yet, by these summarisers, each of which may try a request again as `retries` says.
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
            asked: BTreeMap::new(),
            next_id: 0,
            shrinks: 0,
            output_lowered: 0,
            calls: 0,
            usage: Usage::default(),
            model: String::new(),
        }
    }

    /// The window of who is asked now, as it is known by now, in tokens.
    pub(super) fn window(&self) -> u64 {
        self.limits().window
    }

    /// The limits of who is asked now.
    fn limits(&self) -> SummariserLimits {
        self.summarisers[self.current]
    }

    /// How many requests were sent.
    pub(super) fn calls(&self) -> usize {
        self.calls
    }

    /// What all answers used, in tokens.
    pub(super) fn usage(&self) -> Usage {
        self.usage
    }

    /// The model of the newest answer; empty if there was none.
    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// The whole summary of this kind, if there is one.
    pub(super) fn text(&self, kind: SummaryKind) -> Option<&str> {
        let job = self.jobs.iter().find(|job| job.source.kind == kind)?;
        job.parts.first()?.as_deref()
    }

    /// Asks for these summaries. Nothing else is under way.
    pub(super) fn begin(&mut self, sources: Vec<Source>) -> Reaction {
        assert!(self.jobs.is_empty() && self.asked.is_empty(), "one rung's summaries at a time");
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
                // Messages without words (empty ones, say) leave nothing to ask for.
                if !parts.texts.is_empty() {
                    effects.extend(self.start(source, parts));
                }
            }
            return self.reaction(effects);
        }
    }

    /// Takes an answer, or the failure to get one. `jitter` is a number in 0..1000 by which waits differ.
    pub(super) fn answered(
        &mut self,
        id: u32,
        answer: Result<Box<AssistantMessage>, Failure>,
        jitter: u64,
    ) -> Reaction {
        // What no longer counts was paid for all the same.
        if let Ok(answer) = &answer {
            if let Some(usage) = &answer.usage {
                self.usage.add(usage);
            }
            self.model.clone_from(&answer.model);
        }
        let Some(asked) = self.asked.remove(&id) else {
            return Reaction { effects: Vec::new(), progress: Progress::Waiting };
        };
        let job = &self.jobs[asked.job];
        let kind = job.source.kind;
        // A prompt of the user's asks for a form of its own.
        let check_headings = self.style.prompt.is_none();
        let result = match answer {
            Ok(answer) => match summary::accept(&answer, kind, job.cap_tokens, check_headings) {
                Ok(text) => {
                    self.jobs[asked.job].parts[asked.part] = Some(text);
                    Ok(self.merge_if_complete(asked.job))
                }
                Err(rejected) => self.rejected(asked, &rejected, jitter),
            },
            Err(failure) => self.failed(asked, failure, jitter),
        };
        match result {
            Ok(effects) => self.reaction(effects),
            Err(why) => Reaction { effects: Vec::new(), progress: Progress::Failed(why) },
        }
    }

    /// Forgets everything that was wanted, and withdraws what is not answered.
    pub(super) fn clear(&mut self) -> Vec<Effect> {
        let effects = self.withdraw(|_| true);
        self.jobs.clear();
        effects
    }

    /// These effects, and how far the summaries are with them. A compaction that asks on and on has failed.
    fn reaction(&mut self, mut effects: Vec<Effect>) -> Reaction {
        let id = |effect: &Effect| if let Effect::Ask(request) = effect { Some(request.id) } else { None };
        let asks: Vec<u32> = effects.iter().filter_map(id).collect();
        self.calls += asks.len();
        if !asks.is_empty() && self.calls > CALLS_MAX {
            effects.retain(|effect| id(effect).is_none());
            self.asked.retain(|id, _| !asks.contains(id));
            let why = format!("it takes more than {CALLS_MAX} calls");
            return Reaction { effects, progress: Progress::Failed(why) };
        }
        let progress = if self.asked.is_empty() { Progress::Complete } else { Progress::Waiting };
        Reaction { effects, progress }
    }

    /// Withdraws these requests, if there are any.
    fn withdraw(&mut self, is_meant: impl Fn(&Asked) -> bool) -> Vec<Effect> {
        let ids: Vec<u32> = self.asked.extract_if(.., |_, asked| is_meant(asked)).map(|(id, _)| id).collect();
        if ids.is_empty() { Vec::new() } else { vec![Effect::Withdraw(ids)] }
    }

    /// The requests for one summary to a summariser of this window; `None` where there are too many of them.
    fn parts(&self, source: &Source, cap_tokens: u64, window: u64) -> Option<Parts> {
        let kind = source.kind;
        let mut previous = source.previous.as_deref();
        let mut pieces = summary::transcript(&source.entries);
        let most = window.min(to_estimate(window, self.ratio)) / WINDOW_SHARE;
        if let Some(body) = previous.filter(|body| !pieces.is_empty() && classes::tokens(body) > most) {
            // Too large to stand whole beside a transcript: it is split and merged like the rest.
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

    /// The largest cap with which a summary fits the output limit of who is asked now, in tokens.
    fn cap_max(&self) -> u64 {
        self.limits().output_tokens_max.map_or(u64::MAX, summary::cap_within)
    }

    /// How many tokens of data (by our estimate) fit into one request beside `frame`, the request without them.
    fn room_in_request(&self, frame: &str, cap_tokens: u64, window: u64) -> u64 {
        let input = window.saturating_sub(summary::output_tokens(cap_tokens));
        let fixed = classes::tokens(summary::SYSTEM) + classes::tokens(frame);
        let room = to_estimate(input, self.ratio).saturating_sub(fixed);
        // A tenth is left for what the estimate misses.
        room - room / 10
    }

    /// Asks for one summary. Where it was under way, it begins anew.
    fn start(&mut self, source: Source, parts: Parts) -> Vec<Effect> {
        let Parts { texts, cap_tokens, .. } = parts;
        let kind = source.kind;
        let job = self.jobs.iter().position(|job| job.source.kind == kind).unwrap_or(self.jobs.len());
        let mut effects = self.withdraw(|asked| asked.job == job);
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
        let id = self.next_id;
        self.next_id += 1;
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
        };
        let retries = self.retries.clone();
        self.asked.insert(id, Asked { job, part, request: request.clone(), text, retries, corrections: 0 });
        Effect::Ask(request)
    }

    fn failed(&mut self, asked: Asked, failure: Failure, jitter: u64) -> Result<Vec<Effect>, String> {
        match failure.class {
            FailureClass::ContextOverflow
            | FailureClass::PayloadTooLarge
            | FailureClass::RequestTooLargeForRateLimit => self.shrink(asked, failure),
            FailureClass::OutputLimit => self.lower_output(asked, &failure),
            FailureClass::RateLimited
            | FailureClass::Overloaded
            | FailureClass::Timeout
            | FailureClass::Malformed
            | FailureClass::Loading => self.try_again(asked, failure, None, jitter),
            FailureClass::Other => self.correct(asked, failure, None),
            FailureClass::Auth
            | FailureClass::Quota
            | FailureClass::ContentFilter
            | FailureClass::ContextFloor => self.ask_next(asked, &failure.message),
        }
    }

    /// The answer cannot be used: it is asked for again, and the second request says what was wrong with the first.
    fn rejected(&mut self, asked: Asked, rejected: &Rejected, jitter: u64) -> Result<Vec<Effect>, String> {
        let failure = Failure::new(FailureClass::Malformed, rejected.to_string());
        let correction = rejected.correction();
        match rejected {
            // As in a turn.
            Rejected::Empty | Rejected::Incomplete => self.try_again(asked, failure, correction, jitter),
            Rejected::Filtered => self.ask_next(asked, &failure.message),
            Rejected::CutOff | Rejected::ToolCalls | Rejected::TooLong { .. } | Rejected::Headings { .. } => {
                self.correct(asked, failure, correction)
            }
        }
    }

    /// Sends the same request again after a turn's wait, alone; what the others gave is kept. Where it was sent as often
    /// as a turn's would be, the next summariser is asked.
    fn try_again(
        &mut self,
        mut asked: Asked,
        failure: Failure,
        correction: Option<String>,
        jitter: u64,
    ) -> Result<Vec<Effect>, String> {
        match asked.retries.next(&failure, jitter) {
            Some(Retry { delay_ms, .. }) => Ok(self.send_again(asked, failure, correction, delay_ms)),
            None => self.ask_next(asked, &failure.message),
        }
    }

    /// Sends the same request once more, at once.
    fn correct(
        &mut self,
        mut asked: Asked,
        failure: Failure,
        correction: Option<String>,
    ) -> Result<Vec<Effect>, String> {
        if asked.corrections >= CORRECTIONS_MAX {
            return self.ask_next(asked, &failure.message);
        }
        asked.corrections += 1;
        Ok(self.send_again(asked, failure, correction, 0))
    }

    fn send_again(
        &mut self,
        mut asked: Asked,
        failure: Failure,
        correction: Option<String>,
        after_ms: u64,
    ) -> Vec<Effect> {
        asked.request.text = match correction {
            Some(correction) => format!("{}\n\n{correction}", asked.text),
            None => asked.text.clone(),
        };
        asked.request.attempt += 1;
        asked.request.after_ms = after_ms;
        asked.request.failure = Some(failure);
        let request = asked.request.clone();
        self.asked.insert(request.id, asked);
        vec![Effect::Ask(request)]
    }

    /// Who is asked now cannot do it: the next one is asked from now on.
    fn fall_back(&mut self, why: &str) -> Result<Effect, String> {
        if self.current + 1 >= self.summarisers.len() {
            return Err(why.to_owned());
        }
        let from = self.current;
        self.current += 1;
        (self.shrinks, self.output_lowered) = (0, 0);
        Ok(Effect::FallBack { from, to: self.current, reason: why.to_owned() })
    }

    /// Asks the next summariser for this and for all else that is not answered; what was answered is kept, unless what
    /// is missing does not fit the next one's limits.
    fn ask_next(&mut self, asked: Asked, why: &str) -> Result<Vec<Effect>, String> {
        let mut effects = vec![self.fall_back(why)?];
        let failed = asked.request.id;
        self.asked.insert(failed, asked);
        let anew = loop {
            if let Some(anew) = self.parts_of_misfits() {
                break anew;
            }
            match self.fall_back(&too_small()) {
                Ok(told) => effects.push(told),
                Err(why) => {
                    self.asked.remove(&failed);
                    return Err(why);
                }
            }
        };
        let open = std::mem::take(&mut self.asked);
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
            for asked in open.values().filter(|asked| asked.job == job) {
                effects.push(self.ask(job, asked.part, asked.text.clone()));
            }
        }
        Ok(effects)
    }

    /// For each summary of which a request does not fit who is asked now: the parts in which it is asked for anew.
    /// `None` where one takes too many.
    fn parts_of_misfits(&self) -> Option<Vec<Option<Parts>>> {
        let (window, cap_max) = (self.window(), self.cap_max());
        let fits =
            |asked: &Asked| asked.request.cap_tokens <= cap_max && asked.request.tokens(self.ratio) <= window;
        let of = |(index, job): (usize, &Job)| {
            if self.asked.values().filter(|asked| asked.job == index).all(fits) {
                return Some(None);
            }
            self.parts(&job.source, job.source.cap_tokens, window).map(Some)
        };
        self.jobs.iter().enumerate().map(of).collect()
    }

    /// More output was asked for than the summariser gives: the same summary is asked for in less.
    fn lower_output(&mut self, asked: Asked, failure: &Failure) -> Result<Vec<Effect>, String> {
        let refused = asked.request.output_tokens_max;
        let known = self.limits().output_tokens_max.filter(|known| *known < refused);
        let lower = known.unwrap_or_else(|| lowered_output(Some(refused), failure.limit));
        let is_last = known.is_none() && self.output_lowered >= OUTPUT_LOWERED_MAX;
        if is_last || lower >= refused {
            return self.ask_next(asked, &failure.message);
        }
        self.output_lowered += u32::from(known.is_none());
        self.summarisers[self.current].output_tokens_max = Some(lower);
        self.begin_anew(asked, &failure.message)
    }

    /// Asks for the summary of this request anew, by the limits as they are known by now. What the other half gave is
    /// kept.
    fn begin_anew(&mut self, asked: Asked, why: &str) -> Result<Vec<Effect>, String> {
        let source = self.jobs[asked.job].source.clone();
        match self.parts(&source, self.jobs[asked.job].cap_tokens, self.window()) {
            Some(parts) => Ok(self.start(source, parts)),
            None => self.ask_next(asked, why),
        }
    }

    /// The request was too large for the summariser: the same summary is asked for in smaller parts.
    fn shrink(&mut self, asked: Asked, failure: Failure) -> Result<Vec<Effect>, String> {
        match self.smaller_parts(&asked, failure.limit) {
            Some(Smaller { window, parts }) if self.shrinks < SHRINKS_MAX => {
                self.shrinks += 1;
                self.summarisers[self.current].window = window;
                // Only this half begins anew; what the other gave is kept.
                let source = self.jobs[asked.job].source.clone();
                Ok(self.start(source, parts))
            }
            None if self.shrinks == 0 => self.correct(asked, failure, None),
            Some(_) | None => self.ask_next(asked, &failure.message),
        }
    }

    /// A smaller window that the summariser may have after it refused this: the one that it names, if that can be;
    /// else half of what was sent.
    fn smaller_parts(&self, asked: &Asked, limit: Option<u64>) -> Option<Smaller> {
        let Job { source, cap_tokens, .. } = &self.jobs[asked.job];
        let sent = asked.request.tokens(self.ratio);
        let named = limit.filter(|limit| *limit < sent && *limit <= self.window());
        [named, Some(sent.min(self.window()) / 2)].into_iter().flatten().find_map(|window| {
            let parts = self.parts(source, *cap_tokens, window)?;
            // A request that is mostly instruction is not worth asking.
            (parts.room >= to_estimate(window, self.ratio) / WINDOW_SHARE)
                .then_some(Smaller { window, parts })
        })
    }

    /// Asks for the next level of a summary whose level under way is complete: groups of its texts, merged.
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

/// Why a summariser is given up whose window takes too many parts.
fn too_small() -> String {
    format!("the summariser is too small: it takes more than {PARTS_MAX} parts")
}

/// These texts in groups of about `budget` tokens, in order: at least two in each but the last, so that every level
/// has fewer.
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

/// How many of our estimated tokens are `tokens` of the provider's.
pub(super) fn to_estimate(tokens: u64, ratio: Ratio) -> u64 {
    share(tokens, 1.0 / ratio.value())
}
