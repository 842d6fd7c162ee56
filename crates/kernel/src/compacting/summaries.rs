//! The summaries of a compaction: which requests they take, what becomes of the answers, and when they are whole.
//!
//! A transcript that is too large for the summariser is asked for in parts, and the parts' summaries are merged, level
//! by level, until one is left. Both halves of a split turn are asked for at the same time.
//!
//! Invariants: a request that was withdrawn or answered is in `asked` no more; one request is sent at most
//! `ATTEMPTS` times, and all of a compaction at most `CALLS_MAX` times; when one half has to begin anew, what the
//! other half gave is kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::compacting::{Effect, SummaryRequest};
use crate::entry::Entry;
use crate::failure::{Failure, FailureClass};
use crate::message::{AssistantMessage, Usage};
use crate::plan::Plan;
use crate::retry::BACKOFF_MS_MAX;
use crate::settings::share;
use crate::size::classes;
use crate::summary::{self, Style, SummaryKind};
use crate::usage::Ratio;

#[cfg(test)]
mod tests;

/// How often one request is sent, in all.
const ATTEMPTS: u32 = 3;
/// How often one request is sent, in all, where a failure says nothing of a provider that is busy.
const ATTEMPTS_IN_VAIN: u32 = 2;
/// The first wait before a request is sent again because the provider was busy, in milliseconds.
const BACKOFF_MS: u64 = 1_000;
/// How often a request may turn out too large for the summariser before the compaction gives up.
const SHRINKS_MAX: u32 = 4;
/// The most parts that one transcript is asked in: a summariser that needs more is too small for it.
const PARTS_MAX: usize = 128;
/// The most requests of one compaction: the parts of both halves, their merges, and what is sent again.
pub(super) const CALLS_MAX: usize = 512;
/// The least room, in tokens, in which a summary is worth asking for.
pub(super) const SUMMARY_TOKENS_MIN: u64 = 64;
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
    /// The summariser's window as it is known by now, in tokens: refusals lower it.
    window: u64,
    /// The summaries that are wanted, whole or not.
    jobs: Vec<Job>,
    /// The requests that are not answered, by their number.
    asked: BTreeMap<u32, Asked>,
    /// The number of the next request.
    next_id: u32,
    /// How often a request was too large.
    shrinks: u32,
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
    /// None yet. `window` is the summariser's, in tokens.
    pub(super) fn new(style: Style, ratio: Ratio, window: u64) -> Self {
        Self {
            style,
            ratio,
            window,
            jobs: Vec::new(),
            asked: BTreeMap::new(),
            next_id: 0,
            shrinks: 0,
            calls: 0,
            usage: Usage::default(),
            model: String::new(),
        }
    }

    /// The summariser's window as it is known by now, in tokens.
    pub(super) fn window(&self) -> u64 {
        self.window
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
        let mut jobs = Vec::new();
        for source in sources {
            let Some(parts) = self.parts(&source, source.cap_tokens, self.window) else {
                let why = format!("the summariser is too small: it takes more than {PARTS_MAX} parts");
                return Reaction { effects, progress: Progress::Failed(why) };
            };
            jobs.push((source, parts));
        }
        for (source, parts) in jobs {
            // Messages without words (empty ones, say) leave nothing to ask for.
            if !parts.texts.is_empty() {
                effects.extend(self.start(source, parts));
            }
        }
        self.reaction(effects)
    }

    /// Takes an answer, or the failure to get one.
    pub(super) fn answered(&mut self, id: u32, answer: Result<Box<AssistantMessage>, Failure>) -> Reaction {
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
        let check_headings = self.style.prompt.is_none() || kind != SummaryKind::History;
        let result = match answer {
            Ok(answer) => match summary::accept(&answer, kind, job.cap_tokens, check_headings) {
                Ok(text) => {
                    self.jobs[asked.job].parts[asked.part] = Some(text);
                    Ok(self.merge_if_complete(asked.job))
                }
                Err(rejected) => self.ask_again(asked, &rejected.to_string(), 0, ATTEMPTS_IN_VAIN),
            },
            Err(failure) => self.failed(asked, &failure),
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
        let cap_tokens = cap_tokens.min(most).max(SUMMARY_TOKENS_MIN);
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
        let request = SummaryRequest { id, kind, text, cap_tokens, after_ms: 0, attempt: 0 };
        self.asked.insert(id, Asked { job, part, request: request.clone() });
        Effect::Ask(request)
    }

    fn failed(&mut self, asked: Asked, failure: &Failure) -> Result<Vec<Effect>, String> {
        match failure.class {
            FailureClass::ContextOverflow
            | FailureClass::PayloadTooLarge
            | FailureClass::RequestTooLargeForRateLimit => self.shrink(asked, failure),
            FailureClass::Auth | FailureClass::Quota | FailureClass::ContextFloor => {
                Err(failure.message.clone())
            }
            FailureClass::RateLimited
            | FailureClass::Overloaded
            | FailureClass::Timeout
            | FailureClass::Loading => {
                let backoff = BACKOFF_MS << asked.request.attempt.min(6);
                let wait = failure.retry_after_ms.unwrap_or(0).max(backoff).min(BACKOFF_MS_MAX);
                self.ask_again(asked, &failure.message, wait, ATTEMPTS)
            }
            FailureClass::OutputLimit
            | FailureClass::Malformed
            | FailureClass::ContentFilter
            | FailureClass::Other => self.ask_again(asked, &failure.message, 0, ATTEMPTS_IN_VAIN),
        }
    }

    /// The request was too large for the summariser: the same summary is asked for in smaller parts.
    fn shrink(&mut self, asked: Asked, failure: &Failure) -> Result<Vec<Effect>, String> {
        match self.smaller_parts(&asked, failure.limit) {
            Some(Smaller { window, parts }) if self.shrinks < SHRINKS_MAX => {
                self.shrinks += 1;
                self.window = window;
                // Only this half begins anew; what the other gave is kept.
                let source = self.jobs[asked.job].source.clone();
                Ok(self.start(source, parts))
            }
            None if self.shrinks == 0 => self.ask_again(asked, &failure.message, 0, ATTEMPTS_IN_VAIN),
            Some(_) | None => Err(failure.message.clone()),
        }
    }

    /// A smaller window that the summariser may have after it refused this: the one that it names, if that can be;
    /// else half of what was sent.
    fn smaller_parts(&self, asked: &Asked, limit: Option<u64>) -> Option<Smaller> {
        let Job { source, cap_tokens, .. } = &self.jobs[asked.job];
        let sent = asked.request.tokens(self.ratio);
        let named = limit.filter(|limit| *limit < sent && *limit <= self.window);
        [named, Some(sent.min(self.window) / 2)].into_iter().flatten().find_map(|window| {
            let parts = self.parts(source, *cap_tokens, window)?;
            // A request that is mostly instruction is not worth asking.
            (parts.room >= to_estimate(window, self.ratio) / WINDOW_SHARE)
                .then_some(Smaller { window, parts })
        })
    }

    /// Sends the same request again, alone; what the others gave is kept.
    fn ask_again(
        &mut self,
        mut asked: Asked,
        why: &str,
        after_ms: u64,
        attempts: u32,
    ) -> Result<Vec<Effect>, String> {
        asked.request.attempt += 1;
        if asked.request.attempt >= attempts {
            return Err(why.to_owned());
        }
        asked.request.after_ms = after_ms;
        let request = asked.request.clone();
        self.asked.insert(request.id, asked);
        Ok(vec![Effect::Ask(request)])
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
        let groups = groups(parts, self.room_in_request(&frame, cap_tokens, self.window));
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
