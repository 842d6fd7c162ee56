//! Recovery from failed model calls: retry, request less output, compact the context, or use another model.
//!
//! Invariants: an overflow is not a retry; each overflow of one answer takes a lower rung of the ladder than
//! the previous one, and at most `overflows_max` are tried; nothing is cut merely because silence might mean
//! an overflow, except once, when the run would fail otherwise; each remaining fallback model is used at most
//! once, with all retries.

use std::sync::Arc;

use super::{After, Effect, Phase, Run, RunLimits};
use crate::entry::{RunOutcome, Trigger};
use crate::failure::{Failure, FailureClass};
use crate::path::Media;
use crate::retry::{OUTPUT_TOKENS_MIN, Retries, Retry, lowered_output};

/// The share of the window, in percent, above which a refusal without information is taken for an overflow.
const FULL_SHARE_PERCENT: u64 = 85;

/// Whether this many tokens nearly fill a window: then a refusal without information is taken for an
/// overflow.
pub fn is_full(tokens: u64, window: u64) -> bool {
    tokens.saturating_mul(100) >= window.saturating_mul(FULL_SHARE_PERCENT)
}

/// The longest wait while another model is left, in milliseconds.
const PATIENCE_MS: u64 = 10_000;

/// The models that are used when the current one fails.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fallbacks {
    /// The number of remaining models.
    pub left: u32,
    /// The failures that trigger a fallback.
    pub on: Arc<[FailureClass]>,
}

impl Fallbacks {
    fn would_take(&self, class: FailureClass) -> bool {
        self.left > 0 && self.on.contains(&class)
    }
}

/// The recovery state of the next answer.
#[derive(Debug, Clone)]
pub(super) struct Recovery {
    /// The used and remaining retries for this answer.
    pub(super) retries: Retries,
    /// How often this answer's request was too large, and the context was compacted for it.
    pub(super) overflows: u32,
    /// How often the output limit was lowered for this answer.
    pub(super) output_lowered: u32,
    /// The configured output limit of requests, in tokens.
    pub(super) output_configured: Option<u64>,
    /// The output limit of the next request, in tokens.
    pub(super) output_tokens_max: Option<u64>,
    /// The output limit with which the request that failed was sent, in tokens.
    pub(super) output_sent: Option<u64>,
    /// Whether the output limit ended an attempt at this answer before anything was said.
    pub(super) was_cut_short: bool,
    /// The images that the next request carries.
    pub(super) media: Media,
    /// Whether requests leave out the opaque data of earlier answers, because the provider refused it.
    pub(super) without_opaque: bool,
    /// Whether the request that failed began with a summary in the provider's own form.
    pub(super) has_native_summary: bool,
    /// Whether the provider silently truncated the context: compact before the next model call.
    pub(super) must_compact: bool,
    /// The failure from which the current compaction recovers.
    pub(super) last_failure: Option<Failure>,
    /// The number of consecutive silent responses to this request.
    pub(super) wordless: u32,
    /// Whether that was taken for an overflow, so that the current compaction may be unnecessary.
    pub(super) suspected: bool,
    /// Whether a compaction for such a suspicion had no effect.
    pub(super) suspected_in_vain: bool,
    /// Whether the last resort was used for it.
    pub(super) gave_way: bool,
}

impl Recovery {
    pub(super) fn new(limits: RunLimits, output_configured: Option<u64>) -> Self {
        Self {
            retries: Retries::new(limits.retries_max, limits.loading_ms_max),
            overflows: 0,
            output_lowered: 0,
            output_configured,
            output_tokens_max: output_configured,
            output_sent: None,
            was_cut_short: false,
            media: Media::All,
            without_opaque: false,
            has_native_summary: false,
            must_compact: false,
            last_failure: None,
            wordless: 0,
            suspected: false,
            suspected_in_vain: false,
            gave_way: false,
        }
    }

    /// The model answered: resets what was tried to get this answer.
    pub(super) fn answered(&mut self) {
        self.retries.renew();
        self.wordless = 0;
        self.suspected_in_vain = false;
        self.gave_way = false;
        self.overflows = 0;
        self.was_cut_short = false;
        self.restore_output();
    }

    /// Restores the configured output limit.
    fn restore_output(&mut self) {
        self.output_lowered = 0;
        self.output_tokens_max = self.output_configured;
    }
}

impl Run {
    pub(super) fn compacted(
        &mut self,
        installed: bool,
        floor: Option<Failure>,
        why: Option<&str>,
        emergency: bool,
    ) -> Vec<Effect> {
        self.recovery.must_compact = false;
        if std::mem::take(&mut self.recovery.suspected) && !installed {
            // It was not an overflow, or cannot be helped: retry, as after any failure.
            self.recovery.suspected_in_vain = true;
            let said = self.recovery.last_failure.take();
            let failure =
                said.unwrap_or_else(|| Failure::new(FailureClass::Malformed, "the model said nothing"));
            return self.retry(failure, 0);
        }
        if emergency && !installed {
            return self.unrecovered(floor, why);
        }
        // A guess must not prevent an attempt: then the provider has to refuse.
        if let Some(floor) = floor.filter(|_| !self.size.is_window_guessed) {
            return self.give_up(floor);
        }
        if installed {
            if self.recovery.gave_way {
                // The request has changed since the one that used all retries.
                self.recovery.retries.renew();
            }
            // Neither the measurement nor the lowered limits are valid any more.
            self.recovery.restore_output();
            return self.measure(After::Compaction);
        }
        self.ask()
    }

    /// Handles an overflow that no compaction could resolve: ends with the incompressible part if our own count shows
    /// it, otherwise with the provider's message and why nothing was compacted.
    fn unrecovered(&mut self, floor: Option<Failure>, why: Option<&str>) -> Vec<Effect> {
        let said = self.recovery.last_failure.take();
        let is_about_bytes =
            said.as_ref().is_some_and(|failure| failure.class == FailureClass::PayloadTooLarge);
        let failure = match (floor.filter(|_| !is_about_bytes), said) {
            (Some(floor), _) => floor,
            (None, Some(mut said)) => {
                said.message.push_str("; ");
                said.message.push_str(why.unwrap_or("there is nothing left to compact"));
                said
            }
            (None, None) => {
                Failure::new(FailureClass::ContextOverflow, "the request is larger than the model's window")
            }
        };
        self.give_up(failure)
    }

    pub(super) fn is_full(&self) -> bool {
        self.size.window.is_some_and(|window| is_full(self.size.tokens, window))
    }

    pub(super) fn failed(
        &mut self,
        failure: Failure,
        wordless: bool,
        fewer_images: Option<Media>,
        jitter: u64,
    ) -> Vec<Effect> {
        // A stream without any event, closed or broken; a refusal without a body has a status, which is more
        // informative.
        let is_silence = wordless && matches!(failure.class, FailureClass::Malformed | FailureClass::Timeout);
        self.recovery.wordless = if is_silence { self.recovery.wordless + 1 } else { 0 };
        if wordless && self.is_full() {
            let mut failure = failure;
            failure.class = FailureClass::ContextOverflow;
            return self.overflowed(failure);
        }
        if self.is_suspect() && !self.recovery.suspected_in_vain {
            // A summary shows that the provider accepts smaller requests. Nothing is cut on suspicion.
            return self.compact_for_suspicion(failure, false);
        }
        match failure.class {
            FailureClass::ContextOverflow => self.overflowed(failure),
            FailureClass::PayloadTooLarge => match fewer_images {
                Some(fewer) => {
                    self.recovery.media = fewer;
                    self.ask()
                }
                // Gateways respond this way for many reasons, and a compaction loses information.
                None if wordless => self.give_up(failure),
                None => self.compact_for(failure),
            },
            // An image in the conversation must not make every later prompt fail.
            FailureClass::ImageRefused => match fewer_images {
                Some(fewer) => {
                    self.recovery.media = fewer;
                    self.ask()
                }
                None => self.give_up(failure),
            },
            FailureClass::OpaqueRefused if !self.recovery.without_opaque => {
                self.recovery.without_opaque = true;
                self.ask()
            }
            // A refusal in unknown words may be about the summary, and would be that of every later prompt.
            FailureClass::Other
                if self.recovery.has_native_summary
                    && !self.recovery.without_opaque
                    && matches!(failure.status, Some(400 | 422)) =>
            {
                self.recovery.without_opaque = true;
                self.ask()
            }
            FailureClass::OutputLimit if self.recovery.output_lowered < 2 => {
                self.recovery.output_lowered += 1;
                let now = self.recovery.output_sent;
                self.recovery.output_tokens_max = Some(lowered_output(now, failure.limit));
                // The model's own limit: it holds for the rest of the run.
                self.recovery.output_configured = self.recovery.output_tokens_max;
                self.ask()
            }
            FailureClass::RateLimited
            | FailureClass::Overloaded
            | FailureClass::Timeout
            | FailureClass::Malformed
            | FailureClass::Loading => self.retry(failure, jitter),
            FailureClass::OutputLimit
            | FailureClass::RequestTooLargeForRateLimit
            | FailureClass::Quota
            | FailureClass::Auth
            | FailureClass::ContentFilter
            | FailureClass::ContextFloor
            | FailureClass::OpaqueRefused
            | FailureClass::Other => self.give_up(failure),
        }
    }

    /// Gives up this model: another one is used, or the run fails.
    pub(super) fn give_up(&mut self, failure: Failure) -> Vec<Effect> {
        if !self.fallbacks.would_take(failure.class) {
            return self.end(Vec::new(), RunOutcome::Failed(Box::new(failure)));
        }
        self.fallbacks.left -= 1;
        self.phase = Phase::FallingBack;
        vec![Effect::FallBack { failure }]
    }

    /// Continues with another model, whose requests have this output limit. Its window may be smaller.
    pub(super) fn fell_back(&mut self, output_tokens_max: Option<u64>) -> Vec<Effect> {
        self.recovery = Recovery::new(self.limits, output_tokens_max);
        self.measure(After::Record)
    }

    /// Whether the provider's silence may mean that the request is too large, whatever the numbers say: it
    /// happened again, and the window is a guess, or smaller requests were answered.
    fn is_suspect(&self) -> bool {
        let is_doubtful = self.size.is_window_guessed
            || self.size.window.is_none()
            || self.answered_before
            || self.steps > 0;
        is_doubtful && self.was_silent_again()
    }

    /// Whether the provider was silent again, and something can still be done about it.
    fn was_silent_again(&self) -> bool {
        self.recovery.wordless > 1 && self.may_compact && self.recovery.overflows < self.limits.overflows_max
    }

    /// Compacts because the provider was silent again.
    fn compact_for_suspicion(&mut self, failure: Failure, at_window: bool) -> Vec<Effect> {
        let failed_attempts = self.recovery.overflows;
        self.recovery.overflows += 1;
        self.recovery.suspected = true;
        // If it is silent again, that is not the first time.
        self.recovery.wordless = 1;
        self.recovery.last_failure = Some(failure);
        self.phase = Phase::Compacting { emergency: true };
        let compact = Effect::Compact { trigger: Trigger::Overflow, at_window, failed_attempts };
        vec![Effect::OverflowDetected, compact]
    }

    /// Waits and retries unchanged; or gives up.
    pub(super) fn retry(&mut self, failure: Failure, jitter: u64) -> Vec<Effect> {
        let may_fall_back = self.fallbacks.would_take(failure.class);
        // A timeout alone takes minutes.
        let is_tried_again = |retry: &Retry| failure.class != FailureClass::Timeout || retry.attempt == 1;
        let is_bearable = |retry: &Retry| {
            let is_loading = failure.class == FailureClass::Loading;
            !is_loading && retry.delay_ms <= PATIENCE_MS && is_tried_again(retry)
        };
        let retry = self.recovery.retries.next(&failure, jitter);
        let Some(Retry { delay_ms, attempt }) = retry.filter(|retry| !may_fall_back || is_bearable(retry))
        else {
            if may_fall_back {
                return self.give_up(failure);
            }
            if self.was_silent_again() && !self.recovery.gave_way {
                // Before the session becomes unusable, something gives way, once. That is done even without a
                // suspicion: if nothing was ever answered, an unanswered prompt may be too large.
                self.recovery.gave_way = true;
                return self.compact_for_suspicion(failure, true);
            }
            let mut failure = failure;
            if self.recovery.wordless > 0 {
                failure.message.push_str("; the request may be larger than the server takes");
            }
            return self.give_up(failure);
        };
        self.phase = Phase::Waiting;
        vec![Effect::Wait { delay_ms, attempt, failure }]
    }

    /// Handles a request that is larger than the window. If less output would make it fit, that is tried first.
    fn overflowed(&mut self, failure: Failure) -> Vec<Effect> {
        if let Some(room) = self.room_for_output(&failure) {
            self.recovery.output_lowered += 1;
            self.recovery.output_tokens_max = Some(room);
            return self.ask();
        }
        self.compact_for(failure)
    }

    /// Returns the output that fits beside the input, if it is less than requested and worth requesting.
    fn room_for_output(&self, failure: &Failure) -> Option<u64> {
        // Only if the request had an output limit can the sum be too large.
        let now = self.recovery.output_sent.filter(|_| self.recovery.output_lowered == 0)?;
        let limit = failure.limit.or(self.size.window)?;
        // Our estimate may be too low; the provider's own number, if it is the sum, is not.
        let said = failure.requested.map_or(0, |requested| requested.saturating_sub(now));
        let room = limit.saturating_sub((self.size.tokens + self.size.tokens / 10).max(said));
        (OUTPUT_TOKENS_MIN..now).contains(&room).then_some(room)
    }

    /// Compacts, a rung lower each time, and retries; or gives up.
    pub(super) fn compact_for(&mut self, mut failure: Failure) -> Vec<Effect> {
        if !self.may_compact {
            failure.message.push_str(
                "; automatic compaction is off (compaction.enabled): compact the conversation by hand, or turn it on",
            );
        }
        if !self.may_compact || self.recovery.overflows >= self.limits.overflows_max {
            return self.give_up(failure);
        }
        let failed_attempts = self.recovery.overflows;
        self.recovery.overflows += 1;
        self.recovery.last_failure = Some(failure);
        self.phase = Phase::Compacting { emergency: true };
        vec![Effect::Compact { trigger: Trigger::Overflow, at_window: true, failed_attempts }]
    }
}
