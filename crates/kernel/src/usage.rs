//! How large the context is: the provider's last report and our estimate of what came since.
//!
//! Invariants: a report from before a compaction is never used again; reports of summary calls never come
//! here; and everything is O(1) per message, whatever the history.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::entry::{Entry, EntryKind};
use crate::message::{Message, StopReason, Usage};
use crate::path::{Live, is_message};
use crate::settings::{CompactionSettings, UnknownWindow};
use crate::size::{Estimator, stored_tokens};

#[cfg(test)]
mod tests;

/// A live report this many times away from our own estimate is distrusted once.
const DISTRUST_FACTOR: f64 = 1.8;
/// Below this many estimated tokens a sample says nothing about the ratio, nor a report about its trust.
const SAMPLE_TOKENS: u64 = 400;

/// How large the context is, as events and states show it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ContextUsage {
    /// The context's size in tokens: `usage_tokens + trailing_tokens`.
    pub tokens: u64,
    /// The part that the provider reported (prompt and completion of its last call).
    pub usage_tokens: u64,
    /// The part that was estimated: what was appended since.
    pub trailing_tokens: u64,
    /// The model's window in tokens; 0 where nothing knows it.
    pub window: u64,
    /// Where the window comes from.
    pub window_source: WindowSource,
    /// `tokens` as a percentage of the window.
    pub percent: Option<f64>,
}

/// Where a window comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WindowSource {
    /// `compaction.context_window`.
    CompactionSetting,
    /// The configuration's or the agent's `context_window`.
    Setting,
    /// The model catalogue.
    Catalog,
    /// A limit that the provider named in an error.
    Learned,
    /// Nothing knows it; the setting `unknown_window` says what to take.
    Assumed,
    /// Nothing knows it, and nothing is assumed.
    Unknown,
}

/// A model's window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Its size in tokens.
    pub tokens: Option<u64>,
    /// Where that comes from.
    pub source: WindowSource,
}

/// What is known of a model's window, besides the settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KnownWindows {
    /// The configuration's or the agent's `context_window`.
    pub setting: Option<u64>,
    /// The catalogue's limit: its input limit where it has one, else its context.
    pub catalog: Option<u64>,
    /// A limit that the provider named in an error.
    pub learned: Option<u64>,
}

impl Window {
    /// The first that is known: the settings, then the catalogue lowered by what was learned, then an assumption.
    pub fn resolve(settings: &CompactionSettings, known: KnownWindows) -> Self {
        let found = |tokens, source| Self { tokens: Some(tokens), source };
        if let Some(tokens) = settings.context_window {
            return found(tokens, WindowSource::CompactionSetting);
        }
        if let Some(tokens) = known.setting {
            return found(tokens, WindowSource::Setting);
        }
        match (known.catalog, known.learned) {
            (Some(catalog), Some(learned)) if learned < catalog => found(learned, WindowSource::Learned),
            (Some(catalog), _) => found(catalog, WindowSource::Catalog),
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
    /// A ratio, clamped to 0.5–3. What is not a number becomes 1.
    pub fn new(value: f64) -> Self {
        if value.is_finite() { Self(value.clamp(0.5, 3.0)) } else { Self::default() }
    }

    /// Its value.
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

/// The two parts of a context's size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// What the provider reported.
    pub usage_tokens: u64,
    /// What was estimated.
    pub trailing_tokens: u64,
}

impl Measured {
    /// Both parts together.
    pub fn tokens(self) -> u64 {
        self.usage_tokens.saturating_add(self.trailing_tokens)
    }
}

/// Whether a recorded answer's usage may be used: reported, not zero, of an answer that neither failed nor was
/// interrupted.
pub fn usable_usage(message: &Message) -> Option<&Usage> {
    match message {
        Message::Assistant(assistant) => {
            let usable = !matches!(assistant.stop, StopReason::Aborted | StopReason::Error);
            assistant.usage.as_ref().filter(|usage| usable && usage.total_tokens() > 0)
        }
        Message::User(_) | Message::ToolResult(_) => None,
    }
}

/// Measures a path as it was recorded: the last usable usage after the newest compaction, and the estimate of
/// what follows it. For sessions that are read, not live; those are followed by a [`Tracker`].
pub fn measure(path: &[Arc<Entry>], estimator: Estimator, overhead: u64, ratio: Ratio) -> Measured {
    let live = Live::of(path);
    let reported = (fresh_from(path, &live)..path.len()).rev().find_map(|index| {
        let usage = usable_usage(path[index].kind.as_message()?)?;
        Some((index, usage.total_tokens()))
    });
    let estimate = |entries: &[Arc<Entry>]| -> u64 {
        entries
            .iter()
            .filter(|entry| is_message(&entry.kind))
            .map(|entry| stored_tokens(entry, estimator))
            .sum()
    };
    match reported {
        Some((index, tokens)) => {
            Measured { usage_tokens: tokens, trailing_tokens: ratio.apply(estimate(&path[index + 1..])) }
        }
        None => {
            let summary = live.compaction.map_or(0, |index| stored_tokens(&path[index], estimator));
            Measured {
                usage_tokens: 0,
                trailing_tokens: overhead + ratio.apply(summary + estimate(live.entries())),
            }
        }
    }
}

/// Follows a live session's context size, one message at a time.
#[derive(Debug, Clone)]
pub struct Tracker {
    /// The fixed part of every request, in tokens by our estimate: system prompt, tools, instructions, pins.
    overhead: u64,
    /// Our estimate of the live messages and the summary.
    estimate: u64,
    /// The last report, and `estimate` at that time.
    report: Option<(u64, u64)>,
    ratio: Ratio,
    /// A report was distrusted, and none has come near our own estimate since: what is said twice is believed.
    distrusted: bool,
    /// What `report` was for the input alone, and the estimate of that input: the base of the next sample.
    sample_base: Option<(u64, u64)>,
}

/// Whether a provider's count may be true of what we estimate. One that is not is believed only when the next
/// says the same: see [`Trust`].
pub fn is_plausible(reported: u64, estimated: u64) -> bool {
    let factor = to_f64(reported.max(1)) / to_f64(estimated.max(1));
    (1.0 / DISTRUST_FACTOR..=DISTRUST_FACTOR).contains(&factor)
}

/// What a report was worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// It is the new base.
    Used,
    /// It was zero, of a failed or interrupted answer, or missing.
    Unusable,
    /// It is too far from our own estimate (both in tokens); the next one will be believed.
    Distrusted {
        /// What was reported.
        reported: u64,
        /// What we estimate.
        estimated: u64,
    },
}

impl Tracker {
    /// Starts from a path as it was recorded, and takes its reports for what they were worth then.
    pub fn open(path: &[Arc<Entry>], overhead: u64, ratio: Ratio) -> Self {
        let live = Live::of(path);
        let summary = live.compaction.map_or(0, |index| path[index].tokens);
        let mut tracker =
            Self { overhead, estimate: summary, report: None, ratio, distrusted: false, sample_base: None };
        let fresh = fresh_from(path, &live);
        for (index, entry) in path.iter().enumerate().skip(live.start) {
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
        let tokens = usage.total_tokens() - not_resent;
        let input_estimate = self.estimate.saturating_sub(answer_tokens);
        let estimated = self.overhead + self.ratio.apply(input_estimate);
        let far = !is_plausible(usage.input_tokens, estimated);
        if far && !self.distrusted && estimated.max(usage.input_tokens) >= SAMPLE_TOKENS {
            self.distrusted = true;
            return Trust::Distrusted { reported: usage.input_tokens, estimated };
        }
        self.distrusted &= far;
        let (base_reported, base_estimate) = self.sample_base.unwrap_or((self.overhead, 0));
        if usage.input_tokens > base_reported && input_estimate > base_estimate {
            self.ratio = self.ratio.learn(input_estimate - base_estimate, usage.input_tokens - base_reported);
        }
        self.sample_base = Some((usage.input_tokens, input_estimate));
        self.report = Some((tokens, self.estimate));
        Trust::Used
    }

    /// The context was rewritten (compaction, undo, branch): from here on `path` counts, and no earlier report.
    pub fn rewritten(&mut self, path: &[Arc<Entry>]) {
        // Another branch, or an import, has reports of its own; a compacted path has none yet.
        *self = Self { distrusted: self.distrusted, ..Self::open(path, self.overhead, self.ratio) };
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
        self.sample_base = None;
    }

    /// The size now.
    pub fn measured(&self) -> Measured {
        match self.report {
            Some((usage_tokens, at)) => {
                Measured { usage_tokens, trailing_tokens: self.ratio.apply(self.estimate.saturating_sub(at)) }
            }
            None => {
                Measured { usage_tokens: 0, trailing_tokens: self.overhead + self.ratio.apply(self.estimate) }
            }
        }
    }

    /// The size now, with its window.
    pub fn context_usage(&self, window: Window) -> ContextUsage {
        let measured = self.measured();
        ContextUsage::new(measured, window)
    }
}

impl ContextUsage {
    /// A measured size in a window.
    pub fn new(measured: Measured, window: Window) -> Self {
        let tokens = measured.tokens();
        let percent = window
            .tokens
            .filter(|window| *window > 0)
            .map(|window| (to_f64(tokens) / to_f64(window) * 1000.0).round() / 10.0);
        Self {
            tokens,
            usage_tokens: measured.usage_tokens,
            trailing_tokens: measured.trailing_tokens,
            window: window.tokens.unwrap_or(0),
            window_source: window.source,
            percent,
        }
    }
}

/// From where on reports are of the context as it is: an earlier one is of another.
fn fresh_from(path: &[Arc<Entry>], live: &Live<'_>) -> usize {
    let is_rewrite = |entry: &Arc<Entry>| {
        matches!(entry.kind, EntryKind::Compaction(_) | EntryKind::CompactionUndone { .. })
    };
    path.iter().rposition(is_rewrite).map_or(live.start, |index| (index + 1).max(live.start))
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
