//! Follows a session's context size, one message at a time.
//!
//! Invariants: a report is weighed against our count of exactly the request that it is about, including the
//! reasoning that the request carried; and everything is O(1) per message.

use std::sync::Arc;

use super::weigh::{Answered, Counts, Server, Verdict};
use super::{ContextUsage, Measured, Ratio, Reports, Window, fresh_from, usable_usage};
use crate::entry::Entry;
use crate::message::{Message, Usage};
use crate::path::{ActivePath, as_sent, entry_message, is_message};
use crate::reasoning::ResentReasoning;

/// The smallest estimated part that is worth a request to count: one part of the trigger in this many. An error in less
/// would move a compaction by at most half of that.
const COUNT_SHARE: u64 = 32;

/// The common properties of every request of a session.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RequestFrame {
    /// The fixed part of every request, in estimated tokens: system prompt, tools, instructions, pins.
    pub overhead: u64,
    /// Which reasoning of earlier answers it carries.
    pub resent: ResentReasoning,
    /// The model's window, in tokens; `None` if unknown.
    pub window: Option<u64>,
}

/// Follows a session's context size, one message at a time.
#[derive(Debug, Clone)]
pub struct Tracker {
    frame: RequestFrame,
    /// Our estimate of the active messages and the summary.
    counts: Counts,
    /// The last report used.
    report: Option<Report>,
    ratio: Ratio,
    /// The learned properties of the server's counting.
    server: Server,
    /// [`Self::counted`] when the provider was last asked to count.
    asked_at: Option<u64>,
}

/// A provider's report on the whole context, and our count at that time.
#[derive(Debug, Clone, Copy)]
struct Report {
    /// The size of the context with the last answer, in the provider's tokens.
    tokens: u64,
    /// [`Tracker::counts`] at that time.
    counts: Counts,
}

/// The judgement of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// It is the new base.
    Used,
    /// It was zero, of a failed or interrupted answer, or missing; or the entry was not an answer.
    Unusable,
    /// It is too large, unless the server adds text of its own: the next report decides that.
    Suspended,
    /// Our own count contradicts it: see `is_believable`.
    Contradicted {
        /// The input that the provider reported, in its tokens.
        reported: u64,
        /// The same input by our own count, in tokens.
        counted: u64,
        /// Whether it is the first of this model's in this session that is too large, or the first that is
        /// too small: the user is told once of each.
        is_first: bool,
    },
}

/// What a tracker has learned of how a server counts for a model. It holds for every path.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counting {
    ratio: Ratio,
    server: Server,
}

impl Counting {
    /// Creates the knowledge of a server of which only the ratio is known.
    pub fn of(ratio: Ratio) -> Self {
        Self { ratio, server: Server::default() }
    }

    /// The ratio of the provider's count to our estimate.
    pub fn ratio(&self) -> Ratio {
        self.ratio
    }

    /// The tokens that the server adds to each request invisibly.
    pub fn hidden(&self) -> u64 {
        self.server.hidden()
    }
}

impl Tracker {
    /// Starts from a recorded path, and judges its reports as when they arrived.
    pub fn open(path: &[Arc<Entry>], frame: RequestFrame, ratio: Ratio) -> Self {
        Self::open_with(path, frame, Counting::of(ratio))
    }

    /// Like [`Self::open`], with what another tracker has learned. It measures a path as that tracker will if the path
    /// becomes its context.
    pub fn open_with(path: &[Arc<Entry>], frame: RequestFrame, counting: Counting) -> Self {
        Self::start(path, frame, counting.ratio, counting.server)
    }

    fn start(path: &[Arc<Entry>], frame: RequestFrame, ratio: Ratio, server: Server) -> Self {
        let path = &*as_sent(path);
        let active = ActivePath::of(path);
        let counts = summary_counts(&frame, path, &active);
        let mut tracker = Self { frame, counts, report: None, ratio, server, asked_at: None };
        let fresh = fresh_from(path, &active, Reports::Believed);
        for (index, entry) in path.iter().enumerate().skip(active.start) {
            if index >= fresh {
                tracker.appended(entry);
                // It was learned when they arrived.
                tracker.ratio = ratio;
            } else {
                tracker.count(entry);
            }
        }
        tracker
    }

    /// Adds an entry to the path. If it is an answer, its report is judged.
    pub fn appended(&mut self, entry: &Entry) -> Trust {
        let before = self.counts;
        let answered = self.count(entry);
        let Some(usage) = entry.kind.as_message().and_then(|message| usable_usage(message)) else {
            return Trust::Unusable;
        };
        let input = match self.server.weigh(usage, before, &self.frame, &mut self.ratio) {
            Verdict::Believed { input } => input,
            Verdict::Suspended => return Trust::Suspended,
            Verdict::Contradicted { reported, counted, is_first } => {
                return Trust::Contradicted { reported, counted, is_first };
            }
        };
        let answered = Answered { resent: self.server.reads().of(answered.resent), ..answered };
        let tokens = input.saturating_add(answered.next_input(usage, self.ratio));
        self.report = Some(Report { tokens, counts: self.counts });
        Trust::Used
    }

    fn count(&mut self, entry: &Entry) -> Answered {
        if !is_message(&entry.kind) {
            return Answered::default();
        }
        let resent = self.frame.resent.tokens(entry);
        // Everything except answers and results is sent in the user's role.
        let is_of_user =
            entry_message(&entry.kind).is_some_and(|message| matches!(**message, Message::User(_)));
        self.counts.add(entry, resent, is_of_user);
        Answered { content: entry.tokens, reasoning: entry.reasoning_tokens.max(resent), resent }
    }

    /// Restarts after the context was rewritten (compaction, undo, branch): from here on `path` counts, and
    /// no earlier report.
    pub fn rewritten(&mut self, path: &[Arc<Entry>]) {
        // Another branch, or an import, has reports of its own; a compacted path has none yet.
        *self = Self::open_with(path, self.frame.clone(), self.counting());
    }

    /// Changes the common properties of requests. If they carry other reasoning than before, `path` is
    /// counted again.
    pub fn set_frame(&mut self, frame: RequestFrame, path: &[Arc<Entry>]) {
        let is_counted_anew = frame.resent != self.frame.resent;
        self.frame = frame;
        if is_counted_anew {
            let path = &*as_sent(path);
            let active = ActivePath::of(path);
            self.counts = summary_counts(&self.frame, path, &active);
            for entry in active.entries() {
                self.count(entry);
            }
            self.report = None;
            self.server = self.server.of_another_path();
        }
    }

    /// Returns what was learned of the server's counting.
    pub fn counting(&self) -> Counting {
        Counting { ratio: self.ratio, server: self.server.of_another_path() }
    }

    /// Returns the ratio learned so far.
    pub fn ratio(&self) -> Ratio {
        self.ratio
    }

    /// Continues with another model: its own ratio, and no report yet.
    pub fn switch_model(&mut self, ratio: Ratio) {
        self.ratio = ratio;
        self.report = None;
        self.server = Server::default();
        self.asked_at = None;
    }

    /// Whether only the provider can tell if the context has reached this trigger, in tokens, so that it is worth a
    /// request to count.
    ///
    /// The estimated part may be as small as two thirds of the estimate, or as large as one and a half times. A small
    /// one is not worth a request, and neither is an addition of that size since the last time, so the provider is asked
    /// a bounded number of times on the way to the trigger, whether or not it answers.
    pub fn is_uncertain(&self, trigger: u64) -> bool {
        let Measured { usage_tokens, trailing_tokens } = self.measured();
        let worth = trigger / COUNT_SHARE;
        let least = usage_tokens.saturating_add(trailing_tokens / 3 * 2);
        let most = usage_tokens.saturating_add(trailing_tokens.saturating_mul(3) / 2);
        let has_grown = |at: u64| self.counted().abs_diff(at) > worth;
        least < trigger && most >= trigger && trailing_tokens > worth && self.asked_at.is_none_or(has_grown)
    }

    /// Uses the provider's count of a request, in tokens, like the input of a report; `None` if there was no answer.
    /// `counted` was [`Self::counted`] for that request; the count is of no use if it is another number now.
    pub fn provider_counted(&mut self, counted: u64, tokens: Option<u64>) -> Trust {
        if counted != self.counted() {
            return Trust::Unusable;
        }
        self.asked_at = Some(counted);
        let Some(tokens) = tokens.filter(|tokens| *tokens > 0) else { return Trust::Unusable };
        let usage = Usage { input_tokens: tokens, ..Usage::default() };
        match self.server.weigh(&usage, self.counts, &self.frame, &mut self.ratio) {
            Verdict::Believed { input } => {
                self.report = Some(Report { tokens: input, counts: self.counts });
                Trust::Used
            }
            Verdict::Suspended => Trust::Suspended,
            Verdict::Contradicted { reported, counted, is_first } => {
                Trust::Contradicted { reported, counted, is_first }
            }
        }
    }

    /// Returns the tokens that the server adds to each request invisibly, as far as its reports have revealed
    /// them.
    pub fn hidden(&self) -> u64 {
        self.server.hidden()
    }

    /// Returns the context's size by our own count alone, in estimated tokens: without reports and learned
    /// ratio, but with the server's known additions.
    pub fn counted(&self) -> u64 {
        let fixed = self.frame.overhead.saturating_add(self.server.hidden());
        fixed.saturating_add(self.counts.of(self.server.reads()))
    }

    /// Returns the context's current size.
    pub fn measured(&self) -> Measured {
        let reads = self.server.reads();
        let now = self.counts.of(reads);
        let Some(report) = self.report else {
            let fixed = self.frame.overhead.saturating_add(self.server.hidden());
            let trailing_tokens = fixed.saturating_add(self.ratio.apply(now));
            return Measured { usage_tokens: 0, trailing_tokens };
        };
        let then = report.counts.of(reads);
        // With a new turn, a server may drop the reasoning of the one before.
        let dropped = self.ratio.apply(then.saturating_sub(now));
        Measured {
            usage_tokens: report.tokens.saturating_sub(dropped),
            trailing_tokens: self.ratio.apply(now.saturating_sub(then)),
        }
    }

    /// Returns the current size, with its window.
    pub fn context_usage(&self, window: Window) -> ContextUsage {
        ContextUsage::new(self.measured(), window)
    }
}

/// Returns the counts of the summary in front of the active entries.
fn summary_counts(frame: &RequestFrame, path: &[Arc<Entry>], active: &ActivePath<'_>) -> Counts {
    Counts::summary(active.compaction.map_or(0, |index| frame.resent.sent_tokens(&path[index])))
}
