//! How large the context is: the provider's last report and our estimate of what came since.
//!
//! Invariants: a report is believed only within [`is_believable`]'s range of our own count, however often it is
//! repeated and wherever it was recorded; a report from before a compaction is never used again; reports of summary
//! calls never come here; and everything is O(1) per message, whatever the history.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use crate::context_usage::{ContextUsage, Measured, Window, WindowSource};
use crate::entry::{Entry, EntryKind};
use crate::message::{Message, Usage};
use crate::path::{ActivePath, as_sent, is_message};
use crate::settings::{CompactionSettings, UnknownWindow};
use crate::size::{Estimator, stored_tokens};

#[cfg(test)]
mod tests;

/// The fewest tokens that a provider may count for each one that we estimate.
const FACTOR_MIN: f64 = 0.5;
/// The most tokens that a provider may count for each one that we estimate.
const FACTOR_MAX: f64 = 3.0;
/// Below this many tokens a sample says nothing about the ratio, and a report needs no belief.
const SAMPLE_TOKENS: u64 = 400;

/// What is known of a model's window, besides the settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KnownWindows {
    /// The configuration's or the agent's `context_window`.
    pub setting: Option<u64>,
    /// What the server says that it takes, as it is set up now.
    pub served: Option<u64>,
    /// The catalogue's limit: its input limit where it has one, else its context.
    pub catalog: Option<u64>,
    /// What the server says that the model was made for. The server may take less.
    pub trained: Option<u64>,
    /// A limit that the provider named in an error.
    pub learned: Option<u64>,
}

impl Window {
    /// The first that is known: the settings; then what the server takes, the catalogue or what the model was made for,
    /// lowered by what was learned; then an assumption.
    pub fn resolve(settings: &CompactionSettings, known: KnownWindows) -> Self {
        let found = |tokens, source| Self { tokens: Some(tokens), source };
        if let Some(tokens) = settings.context_window {
            return found(tokens, WindowSource::CompactionSetting);
        }
        if let Some(tokens) = known.setting {
            return found(tokens, WindowSource::Setting);
        }
        let told = [
            (known.served, WindowSource::Server),
            (known.catalog, WindowSource::Catalog),
            (known.trained, WindowSource::Trained),
        ];
        let told = told.into_iter().find_map(|(tokens, source)| Some((tokens?, source)));
        match (told, known.learned) {
            (Some((told, _)), Some(learned)) if learned < told => found(learned, WindowSource::Learned),
            (Some((told, source)), _) => found(told, source),
            (None, Some(learned)) => found(learned, WindowSource::Learned),
            (None, None) => match settings.unknown_window {
                UnknownWindow::Assume(tokens) => found(tokens, WindowSource::Assumed),
                UnknownWindow::Disable => Self { tokens: None, source: WindowSource::Unknown },
            },
        }
    }
}

/// What is known when a provider names a limit in an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitEvidence {
    /// What was sent, by our own count, in tokens; 0 where that is not known.
    pub sent: u64,
    /// The largest request that the provider took before, by its own report, in tokens.
    pub accepted: u64,
    /// What it named before, and was not believed.
    pub named_before: Option<u64>,
}

/// Whether a limit that a provider named in an error, in tokens, is to be taken for the model's window.
///
/// Numbers are read out of prose, and what is remembered holds for every session of that model: one that is
/// smaller than any window in use, or that what was sent was far below, is no window. One below what the
/// provider took before is believed when it is named again, as by a server that was started with less.
pub fn is_believable_limit(limit: u64, evidence: LimitEvidence) -> bool {
    const LIMIT_MIN: u64 = 1_024;
    const SENT_FACTOR_MAX: u64 = 4;
    let LimitEvidence { sent, accepted, named_before } = evidence;
    limit >= LIMIT_MIN
        && (sent == 0 || limit <= sent.saturating_mul(SENT_FACTOR_MAX))
        && (limit >= accepted || named_before == Some(limit))
}

/// How many tokens a provider counts for each one that we estimate, learned from its reports.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ratio(f64);

impl Default for Ratio {
    fn default() -> Self {
        Self(1.0)
    }
}

impl Ratio {
    /// A ratio, clamped to the range in which reports are believed: 0.5–3. What is not a number becomes 1.
    pub fn new(value: f64) -> Self {
        if value.is_finite() { Self(value.clamp(FACTOR_MIN, FACTOR_MAX)) } else { Self::default() }
    }

    /// How many of the provider's tokens one of ours is.
    pub fn value(self) -> f64 {
        self.0
    }

    /// Learns from one sample: `estimated` tokens of ours were `reported` ones of the provider's.
    /// Small samples are ignored.
    pub fn learn(self, estimated: u64, reported: u64) -> Self {
        if estimated < SAMPLE_TOKENS || reported == 0 {
            return self;
        }
        let sample = Self::new(to_f64(reported) / to_f64(estimated)).0;
        Self::new(self.0 * 0.7 + sample * 0.3)
    }

    /// An estimate, multiplied.
    pub fn apply(self, estimated: u64) -> u64 {
        from_f64(to_f64(estimated) * self.0)
    }
}

/// The report of a recorded answer, if it may be used: it is not zero, and the answer is whole.
pub fn usable_usage(message: &Message) -> Option<&Usage> {
    match message {
        Message::Assistant(assistant) => {
            assistant.usage.as_ref().filter(|usage| !assistant.stop.is_partial() && usage.total_tokens() > 0)
        }
        Message::User(_) | Message::ToolResult(_) => None,
    }
}

/// Whether a provider's count may be true of what we count, in tokens of each: the one rule for all reports.
///
/// The range is 0.5–3 times our own count without any learned ratio, so that no series of reports widens it. What
/// lies outside is a mistake of the server (a sum over several requests, a part of one, another unit) or something
/// that we cannot know of; either way it is no measure of the context, and our own count is used.
pub fn is_believable(reported: u64, counted: u64) -> bool {
    let factor = to_f64(reported) / to_f64(counted.max(1));
    reported.max(counted) < SAMPLE_TOKENS || (FACTOR_MIN..=FACTOR_MAX).contains(&factor)
}

/// The context's size that an answer's report stands for: its believed input, and its output.
///
/// `answer` is our count of the answer, in tokens. Output beyond belief is reasoning that nobody shows us, which is
/// not sent again: then our count of the answer stands.
fn size_after(usage: &Usage, not_resent: u64, answer: u64, ratio: Ratio) -> u64 {
    let output = usage.output_tokens.saturating_sub(not_resent);
    let output = if is_believable(output, answer) { output } else { ratio.apply(answer) };
    usage.input_tokens.saturating_add(output)
}

/// Which recorded reports count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reports {
    /// Those that our own count does not contradict: for sessions of ours.
    Believed,
    /// All: for comparisons with other systems, which take them as they are.
    AsRecorded,
}

/// Measures a path as it was recorded: the last usable usage after the newest compaction, and the estimate of what
/// follows it. For sessions that are read; those that are at work are followed by a [`Tracker`].
pub fn measure(
    path: &[Arc<Entry>],
    estimator: Estimator,
    overhead: u64,
    ratio: Ratio,
    reports: Reports,
) -> Measured {
    let path = &*as_sent(path);
    let active = ActivePath::of(path);
    let fresh = fresh_from(path, &active);
    let mut counted = active.compaction.map_or(0, |index| stored_tokens(&path[index], estimator));
    // The tokens of the last report, and what was counted with its answer.
    let mut report: Option<(u64, u64)> = None;
    for (index, entry) in path.iter().enumerate().skip(active.start) {
        if !is_message(&entry.kind) {
            continue;
        }
        let tokens = stored_tokens(entry, estimator);
        let usage =
            entry.kind.as_message().filter(|_| index >= fresh).and_then(|message| usable_usage(message));
        let size = usage.and_then(|usage| match reports {
            Reports::AsRecorded => Some(usage.total_tokens()),
            Reports::Believed => is_believable(usage.input_tokens, overhead.saturating_add(counted))
                .then(|| size_after(usage, 0, tokens, ratio)),
        });
        counted += tokens;
        report = size.map(|size| (size, counted)).or(report);
    }
    match report {
        Some((usage_tokens, then)) => Measured { usage_tokens, trailing_tokens: ratio.apply(counted - then) },
        None => Measured { usage_tokens: 0, trailing_tokens: overhead.saturating_add(ratio.apply(counted)) },
    }
}

/// Follows a session's context size, one message at a time.
#[derive(Debug, Clone)]
pub struct Tracker {
    /// The fixed part of every request, in tokens by our estimate: system prompt, tools, instructions, pins.
    overhead: u64,
    /// Our estimate of the active messages and the summary.
    estimate: u64,
    /// The last report that was used.
    report: Option<Report>,
    ratio: Ratio,
    /// A report of this model was beyond our own count before.
    contradicted: bool,
    /// The input of that report: the ratio is learned from what was added to it.
    sample_base: Option<Sample>,
}

/// What a provider reported of the whole context, and what we estimated then.
#[derive(Debug, Clone, Copy)]
struct Report {
    /// Input and output of its last call, in its tokens.
    tokens: u64,
    /// [`Tracker::estimate`] at that time.
    estimate: u64,
}

/// A provider's count of some input beside ours.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// In the provider's tokens.
    reported: u64,
    /// In our estimated tokens.
    estimated: u64,
}

/// What a report was worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// It is the new base.
    Used,
    /// It was zero, of a failed or interrupted answer, or missing.
    Unusable,
    /// Our own count contradicts it: see [`is_believable`].
    Contradicted {
        /// The input that the provider reported, in its tokens.
        reported: u64,
        /// The same input by our own count, in tokens.
        counted: u64,
        /// Whether it is the first of this model's in this session that is too large: the user is told once. Of one
        /// that is too small nothing need be said, since our count of images is a guess.
        is_first: bool,
    },
}

impl Tracker {
    /// Starts from a path as it was recorded, and judges its reports as when they came.
    pub fn open(path: &[Arc<Entry>], overhead: u64, ratio: Ratio) -> Self {
        let path = &*as_sent(path);
        let active = ActivePath::of(path);
        let summary = active.compaction.map_or(0, |index| path[index].tokens);
        let mut tracker =
            Self { overhead, estimate: summary, report: None, ratio, contradicted: false, sample_base: None };
        let fresh = fresh_from(path, &active);
        for (index, entry) in path.iter().enumerate().skip(active.start) {
            if !is_message(&entry.kind) {
                continue;
            }
            tracker.appended(entry.tokens);
            if let Some(message) = entry.kind.as_message().filter(|_| index >= fresh) {
                tracker.reported(message, entry.tokens, true);
                // It was learned when they came.
                tracker.ratio = ratio;
            }
        }
        tracker
    }

    /// A message of `tokens` (by the default estimator) joined the context.
    pub fn appended(&mut self, tokens: u64) {
        self.estimate = self.estimate.saturating_add(tokens);
    }

    /// The provider reported on `answer`, which has joined the context already.
    ///
    /// `answer_tokens` is its estimate; reasoning that the provider does not take back is subtracted unless
    /// `resends_reasoning`.
    pub fn reported(&mut self, answer: &Message, answer_tokens: u64, resends_reasoning: bool) -> Trust {
        let Some(usage) = usable_usage(answer) else { return Trust::Unusable };
        let not_resent = if resends_reasoning { 0 } else { usage.reasoning_tokens.min(usage.output_tokens) };
        let input_estimate = self.estimate.saturating_sub(answer_tokens);
        let counted = self.overhead.saturating_add(input_estimate);
        if !is_believable(usage.input_tokens, counted) {
            let is_too_large = usage.input_tokens > counted;
            let is_first = is_too_large && !std::mem::replace(&mut self.contradicted, true);
            return Trust::Contradicted { reported: usage.input_tokens, counted, is_first };
        }
        let tokens = size_after(usage, not_resent, answer_tokens, self.ratio);
        let base = self.sample_base.unwrap_or(Sample { reported: self.overhead, estimated: 0 });
        let sample = Sample { reported: usage.input_tokens, estimated: input_estimate };
        if sample.reported > base.reported && sample.estimated > base.estimated {
            self.ratio = self.ratio.learn(sample.estimated - base.estimated, sample.reported - base.reported);
        }
        self.sample_base = Some(sample);
        self.report = Some(Report { tokens, estimate: self.estimate });
        Trust::Used
    }

    /// The context was rewritten (compaction, undo, branch): from here on `path` counts, and no earlier report.
    pub fn rewritten(&mut self, path: &[Arc<Entry>]) {
        // Another branch, or an import, has reports of its own; a compacted path has none yet.
        *self = Self { contradicted: self.contradicted, ..Self::open(path, self.overhead, self.ratio) };
    }

    /// The fixed part changed.
    pub fn set_overhead(&mut self, overhead: u64) {
        self.overhead = overhead;
    }

    /// The ratio as it was learned so far.
    pub fn ratio(&self) -> Ratio {
        self.ratio
    }

    /// Goes on with another model: its own ratio, and no report yet.
    pub fn switch_model(&mut self, ratio: Ratio) {
        self.ratio = ratio;
        self.report = None;
        self.contradicted = false;
        self.sample_base = None;
    }

    /// The context's size by our own count alone, in estimated tokens: no report and no learned ratio is in it.
    pub fn counted(&self) -> u64 {
        self.overhead.saturating_add(self.estimate)
    }

    /// The context's size now.
    pub fn measured(&self) -> Measured {
        match self.report {
            Some(report) => Measured {
                usage_tokens: report.tokens,
                trailing_tokens: self.ratio.apply(self.estimate.saturating_sub(report.estimate)),
            },
            None => Measured {
                usage_tokens: 0,
                trailing_tokens: self.overhead.saturating_add(self.ratio.apply(self.estimate)),
            },
        }
    }

    /// The size now, with its window.
    pub fn context_usage(&self, window: Window) -> ContextUsage {
        let measured = self.measured();
        ContextUsage::new(measured, window)
    }
}

/// From where on reports are of the context as it is: an earlier one is of another.
fn fresh_from(path: &[Arc<Entry>], active: &ActivePath<'_>) -> usize {
    let is_rewrite = |entry: &Arc<Entry>| {
        matches!(
            entry.kind,
            EntryKind::Compaction(_) | EntryKind::CompactionUndone { .. } | EntryKind::Prune(_)
        )
    };
    path.iter().rposition(is_rewrite).map_or(active.start, |index| (index + 1).max(active.start))
}

#[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
fn to_f64(tokens: u64) -> f64 {
    tokens as f64
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "token counts are positive and far below 2^52"
)]
fn from_f64(tokens: f64) -> u64 {
    tokens.round() as u64
}
