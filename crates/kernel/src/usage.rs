//! The size of the context: the provider's last report and our estimate of later messages.
//!
//! Invariants: a report is believed only within `is_believable`'s range of our own count of the same
//! request, however often it is repeated and wherever it was recorded, unless its growth reveals something
//! that our count does not know; a report from before a compaction is never used again; reports of summary
//! calls never come here; and everything is O(1) per message, whatever the history.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use crate::context_usage::{ContextUsage, Measured};
use crate::entry::{Entry, EntryKind};
use crate::message::{Message, Usage};
use crate::path::{ActivePath, as_sent, is_message};
use crate::size::{Estimator, stored_tokens};
pub use crate::window::{KnownWindows, LimitEvidence, Window, WindowSource, is_believable_limit};

mod tracker;
mod weigh;

pub use tracker::{Counting, RequestFrame, Tracker, Trust};
use weigh::Answered;

#[cfg(test)]
mod tests;

/// The minimum ratio of a provider's count to our estimate.
const FACTOR_MIN: f64 = 0.5;
/// The maximum ratio of a provider's count to our estimate.
const FACTOR_MAX: f64 = 3.0;
/// Samples below this many tokens are ignored for the ratio, and such reports need no check.
const SAMPLE_TOKENS: u64 = 400;

/// The ratio of a provider's count to our estimate, learned from its reports.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ratio(f64);

impl Default for Ratio {
    fn default() -> Self {
        Self(1.0)
    }
}

impl Ratio {
    /// Creates a ratio, clamped to the range in which reports are believed: 0.5–3. NaN becomes 1.
    pub fn new(value: f64) -> Self {
        if value.is_finite() { Self(value.clamp(FACTOR_MIN, FACTOR_MAX)) } else { Self::default() }
    }

    /// Returns the number of the provider's tokens for one of ours.
    pub fn value(self) -> f64 {
        self.0
    }

    /// Learns from one sample: `estimated` tokens of ours were `reported` ones of the provider's. Small
    /// samples are ignored.
    pub fn learn(self, estimated: u64, reported: u64) -> Self {
        if estimated < SAMPLE_TOKENS || reported == 0 {
            return self;
        }
        let sample = Self::new(to_f64(reported) / to_f64(estimated)).0;
        Self::new(self.0 * 0.7 + sample * 0.3)
    }

    /// Multiplies an estimate by the ratio.
    pub fn apply(self, estimated: u64) -> u64 {
        from_f64(to_f64(estimated) * self.0)
    }
}

/// Returns the report of a recorded answer, if it is usable: not zero, and of a whole answer.
pub fn usable_usage(message: &Message) -> Option<&Usage> {
    match message {
        Message::Assistant(assistant) => {
            assistant.usage.as_ref().filter(|usage| assistant.is_whole() && usage.total_tokens() > 0)
        }
        Message::User(_) | Message::ToolResult(_) => None,
    }
}

/// Whether a provider's count is plausible compared with ours, in tokens of each: the one rule for all
/// reports.
///
/// The range is 0.5–3 times our own count without any learned ratio, so that no series of reports widens it.
/// A report outside of it is an error of the server (a sum over several requests, a part of one, another
/// unit) or reflects something unknown to us; either way it does not measure the context, and our own count
/// is used.
pub(crate) fn is_believable(reported: u64, counted: u64) -> bool {
    let factor = to_f64(reported) / to_f64(counted.max(1));
    reported.max(counted) < SAMPLE_TOKENS || (FACTOR_MIN..=FACTOR_MAX).contains(&factor)
}

/// Returns the context's size after a recorded answer, in tokens, by its report; `None` if it has no
/// plausible one.
///
/// `counted` is the size of the context before it. The result excludes reasoning: the log does not record
/// whether it is sent back.
pub(crate) fn size_after(answer: &Entry, counted: u64) -> Option<u64> {
    let usage = answer.kind.as_message().and_then(|message| usable_usage(message))?;
    let answered = Answered { content: answer.tokens, reasoning: answer.reasoning_tokens, resent: 0 };
    is_believable(usage.input_tokens, counted)
        .then(|| usage.input_tokens.saturating_add(answered.next_input(usage, Ratio::default())))
}

/// Which recorded reports are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reports {
    /// Those that our own count does not contradict: for our own sessions.
    Believed,
    /// All: for comparisons with other systems, which use them unchecked.
    AsRecorded,
}

/// Measures a recorded path: the last usable report after the newest compaction, and the estimate of later
/// entries. For sessions that are only read; a [`Tracker`] follows active ones.
pub fn measure(
    path: &[Arc<Entry>],
    estimator: Estimator,
    overhead: u64,
    ratio: Ratio,
    reports: Reports,
) -> Measured {
    let path = &*as_sent(path);
    let active = ActivePath::of(path);
    let fresh = fresh_from(path, &active, reports);
    let mut counted = active.compaction.map_or(0, |index| stored_tokens(&path[index], estimator));
    let mut reasoning = 0u64;
    // The tokens of the last report, and the count with its answer.
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
            // The file does not record whether reasoning was sent back.
            Reports::Believed => [0, reasoning]
                .into_iter()
                .any(|sent| is_believable(usage.input_tokens, overhead.saturating_add(counted + sent)))
                .then(|| {
                    let answer = Answered { content: tokens, reasoning: entry.reasoning_tokens, resent: 0 };
                    usage.input_tokens.saturating_add(answer.next_input(usage, ratio))
                }),
        });
        counted += tokens;
        reasoning = reasoning.saturating_add(entry.reasoning_tokens);
        report = size.map(|size| (size, counted)).or(report);
    }
    match report {
        Some((usage_tokens, then)) => Measured { usage_tokens, trailing_tokens: ratio.apply(counted - then) },
        None => Measured { usage_tokens: 0, trailing_tokens: overhead.saturating_add(ratio.apply(counted)) },
    }
}

/// Returns the index from which reports are about the current context and by its model: earlier ones are about another
/// context, or count with another tokeniser.
///
/// Other systems use the reports of every model.
fn fresh_from(path: &[Arc<Entry>], active: &ActivePath<'_>, reports: Reports) -> usize {
    let is_before = |entry: &Arc<Entry>| {
        let is_rewrite = matches!(
            entry.kind,
            EntryKind::Compaction(_) | EntryKind::CompactionUndone { .. } | EntryKind::Prune(_)
        );
        let is_change = matches!(entry.kind, EntryKind::ModelChange { .. });
        is_rewrite || (is_change && reports == Reports::Believed)
    };
    path.iter().rposition(is_before).map_or(active.start, |index| (index + 1).max(active.start))
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
