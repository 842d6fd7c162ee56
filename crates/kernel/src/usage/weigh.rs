//! Interprets a usage report, and decides whether it is plausible.
//!
//! A report is compared with our count of the same request. If the two differ, there may be a reason other
//! than an error, which is searched for: the server drops reasoning that it was sent, counts cached tokens
//! separately from the input, adds its own text before ours, or counts images as far less than we do.
//!
//! Invariants: the explanation of a report must explain its growth too, so that no false report is believed
//! because it is repeated.

use super::tracker::RequestFrame;
use super::{Ratio, SAMPLE_TOKENS, from_f64, is_believable, to_f64};
use crate::entry::{Custom, Entry, EntryKind};
use crate::message::{Usage, images_in};
use crate::size::IMAGE_TOKENS;

#[cfg(test)]
mod tests;

/// The maximum number of tokens that a server is believed to add by itself, and never more than half of the window: so
/// no series of reports makes a session unusable.
const HIDDEN_TOKENS_MAX: u64 = 32_768;
/// The minimum number of tokens added between two reports for their growth to be evidence.
const GROWTH_TOKENS_MIN: i64 = 8;
/// The factor by which a report must be below the expectation to be considered a report on a part of the
/// request.
const CUT_FACTOR: f64 = 1.25;

/// How much of the received reasoning a server passes to the model. A model's template may drop it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Reads {
    /// All.
    #[default]
    All,
    /// That of the current turn: since the newest message in the user's role.
    Turn,
    /// None.
    Nothing,
}

impl Reads {
    /// Returns the size of an answer's reasoning, when sent back, until the user's next message.
    pub(super) fn of(self, resent: u64) -> u64 {
        match self {
            Self::All | Self::Turn => resent,
            Self::Nothing => 0,
        }
    }
}

/// The sizes of a request's messages, in estimated tokens.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// All but reasoning.
    content: u64,
    /// The part of `content` for images, which is a guess.
    images: u64,
    /// The reasoning of earlier turns that is sent back.
    earlier: u64,
    /// The reasoning of the current turn that is sent back.
    turn: u64,
}

impl Counts {
    pub(super) fn summary(tokens: u64) -> Self {
        Self { content: tokens, ..Self::default() }
    }

    /// Adds an entry with the reasoning that is sent back with it.
    pub(super) fn add(&mut self, entry: &Entry, resent: u64, is_of_user: bool) {
        if is_of_user {
            self.earlier = self.earlier.saturating_add(std::mem::take(&mut self.turn));
        }
        self.content = self.content.saturating_add(entry.tokens);
        self.images = self.images.saturating_add(images(entry).saturating_mul(IMAGE_TOKENS));
        self.turn = self.turn.saturating_add(resent);
    }

    pub(super) fn of(self, reads: Reads) -> u64 {
        let reasoning = match reads {
            Reads::All => self.earlier.saturating_add(self.turn),
            Reads::Turn => self.turn,
            Reads::Nothing => 0,
        };
        self.content.saturating_add(reasoning)
    }
}

fn images(entry: &Entry) -> u64 {
    if let EntryKind::Custom(Custom { content, .. }) = &entry.kind {
        return images_in(content);
    }
    entry.kind.as_message().map_or(0, |message| message.images())
}

/// An answer, in estimated tokens.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Answered {
    /// Its text and calls.
    pub(super) content: u64,
    /// The visible reasoning.
    pub(super) reasoning: u64,
    /// The part of that reasoning that the next request carries.
    pub(super) resent: u64,
}

impl Answered {
    /// Returns the size of the answer in the next request, in the provider's tokens, by its own report.
    ///
    /// Output includes reasoning, whether or not the report states it. Reasoning that is not sent back is not
    /// part of the context, and an implausible excess is hidden reasoning.
    pub(super) fn next_input(self, usage: &Usage, ratio: Ratio) -> u64 {
        let Self { content, reasoning, resent } = self;
        let output = usage.output_tokens;
        let told = usage.reasoning_tokens.min(output);
        let all = content.saturating_add(reasoning);
        let said = if told > 0 {
            output - told
        } else if reasoning > 0 && is_believable(output, all) {
            share(output, content, all)
        } else {
            output
        };
        let said = if is_believable(said, content) { said } else { ratio.apply(content) };
        let thought = if told > 0 && resent > 0 && is_believable(told, resent) {
            told
        } else if told == 0 && is_believable(output, all) {
            share(output, resent, all)
        } else {
            ratio.apply(resent)
        };
        said.saturating_add(thought)
    }
}

/// Returns the share of `tokens` that corresponds to `part` of `all`.
fn share(tokens: u64, part: u64, all: u64) -> u64 {
    if part == all { tokens } else { from_f64(to_f64(tokens) * to_f64(part) / to_f64(all.max(1))) }
}

/// A provider's count of the input of a request, together with ours.
#[derive(Debug, Clone, Copy)]
struct Sample {
    /// In the provider's tokens, including cached ones.
    reported: u64,
    counts: Counts,
    /// The fixed part of the request, in estimated tokens.
    overhead: u64,
}

impl Sample {
    /// Returns the growth since an earlier request of the same path, in the provider's tokens and by our
    /// count. `None` if the fixed part differs.
    fn growth(&self, before: &Self, reads: Reads) -> Option<Growth> {
        let of = |sample: &Self| signed(sample.counts.of(reads));
        let reported = signed(self.reported).saturating_sub(signed(before.reported));
        let counted = of(self).saturating_sub(of(before));
        (self.overhead == before.overhead).then_some(Growth { reported, counted })
    }
}

/// The growth of a context from one request to another, in tokens; it may be negative.
#[derive(Debug, Clone, Copy)]
struct Growth {
    reported: i64,
    counted: i64,
}

impl Growth {
    /// Whether the report's growth is plausible: between a third of the addition and three times as much.
    fn fits(self) -> bool {
        let most = self.reported.saturating_abs().max(self.counted.saturating_abs());
        self.distance() <= signed(SAMPLE_TOKENS).max(most / 3 * 2)
    }

    /// Whether it grew by the addition, and the addition was large enough to be evidence.
    fn shows_it(self) -> bool {
        let Self { reported, counted } = self;
        counted >= GROWTH_TOKENS_MIN && reported >= counted / 2 && reported <= counted.saturating_mul(3)
    }

    /// Whether the report's growth is much smaller than the addition.
    fn is_missing(self) -> bool {
        self.counted >= signed(SAMPLE_TOKENS) && self.reported.saturating_mul(3) < self.counted
    }

    /// Whether the addition is too small for a sample of the ratio, and the report's growth is plausible.
    fn is_too_small(self) -> bool {
        (0..signed(SAMPLE_TOKENS)).contains(&self.counted) && self.fits()
    }

    fn distance(self) -> i64 {
        self.reported.saturating_sub(self.counted).saturating_abs()
    }
}

fn signed(tokens: u64) -> i64 {
    i64::try_from(tokens).unwrap_or(i64::MAX)
}

/// The verdict on one report.
#[derive(Debug, Clone, Copy)]
pub(super) enum Verdict {
    /// True: the whole input, in the provider's tokens.
    Believed { input: u64 },
    /// Too large, unless the server adds text of its own.
    Suspended,
    /// Not true.
    Contradicted { reported: u64, counted: u64, is_first: bool },
}

/// The learned properties of a server's counting.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Server {
    reads: Reads,
    /// The tokens that it adds to every request invisibly.
    hidden: u64,
    /// The last believed report that had grown by the addition, and after which enough was added for a sample.
    base: Option<Sample>,
    /// The last report that was not believed, if its growth may show that it is true.
    suspect: Option<Sample>,
    told_too_large: bool,
    told_too_small: bool,
}

impl Server {
    pub(super) fn reads(&self) -> Reads {
        self.reads
    }

    pub(super) fn hidden(&self) -> u64 {
        self.hidden
    }

    /// Returns the properties that remain valid for another context.
    pub(super) fn of_another_path(&self) -> Self {
        Self { base: None, suspect: None, ..*self }
    }

    /// Weighs a report against our count of the messages of its request, and learns the ratio from a believed
    /// one.
    pub(super) fn weigh(
        &mut self,
        usage: &Usage,
        counts: Counts,
        frame: &RequestFrame,
        ratio: &mut Ratio,
    ) -> Verdict {
        let overhead = frame.overhead;
        let (reads, reported) = self.meaning(usage, counts, overhead, *ratio);
        let sample = Sample { reported, counts, overhead };
        let counted = overhead.saturating_add(counts.of(reads));
        // By our own count: learned properties widen no range.
        let hidden_max = frame.window.map_or(HIDDEN_TOKENS_MAX, |window| HIDDEN_TOKENS_MAX.min(window / 2));
        let may_be_hidden = reported.saturating_sub(counted) <= hidden_max;
        let suspect = self.suspect.take();
        // A difference that does not grow with the context is text added by the server, or was left out
        // before.
        let is_confirmed =
            suspect.and_then(|before| sample.growth(&before, reads)).is_some_and(Growth::shows_it);
        if is_confirmed && may_be_hidden && reported > counted {
            let visible = overhead.saturating_add(ratio.apply(counts.of(reads)));
            self.hidden = reported.saturating_sub(visible);
        }
        let can_be = self.can_be(sample, counted);
        if can_be && (is_confirmed || !self.is_cut(sample, reads, *ratio)) {
            if is_confirmed {
                // The server counts in its own way from here on.
                self.base = suspect;
            }
            self.believe(sample, reads, ratio);
            return Verdict::Believed { input: reported };
        }
        let is_too_large = reported > counted;
        if can_be || (is_too_large && may_be_hidden) {
            self.suspect = Some(sample);
        }
        let told = if is_too_large { &mut self.told_too_large } else { &mut self.told_too_small };
        if is_too_large && may_be_hidden && suspect.is_none() && !*told {
            return Verdict::Suspended;
        }
        let is_first = !std::mem::replace(told, true);
        Verdict::Contradicted { reported, counted, is_first }
    }

    fn believe(&mut self, sample: Sample, reads: Reads, ratio: &mut Ratio) {
        self.reads = reads;
        let Some(base) = self.base else {
            let fixed = sample.overhead.saturating_add(self.hidden);
            *ratio = ratio.learn(sample.counts.of(reads), sample.reported.saturating_sub(fixed));
            self.base = Some(sample);
            return;
        };
        let growth = sample.growth(&base, reads);
        if let Some(growth) = growth
            && let (Ok(counted), Ok(reported)) = (growth.counted.try_into(), growth.reported.try_into())
        {
            *ratio = ratio.learn(counted, reported);
        }
        // The additions of several short turns are one sample together.
        if !growth.is_some_and(|growth| growth.is_missing() || growth.is_too_small()) {
            self.base = Some(sample);
        }
    }

    /// Returns the most likely meaning of a report: how much reasoning the server reads, and the size of the
    /// whole input. The previous meaning is kept unless it is impossible.
    fn meaning(&self, usage: &Usage, counts: Counts, overhead: u64, ratio: Ratio) -> (Reads, u64) {
        let apart = usage.input_tokens.saturating_add(usage.cached_tokens);
        let apart = apart.saturating_add(usage.cache_write_tokens);
        let meanings = [self.reads, Reads::All, Reads::Turn, Reads::Nothing]
            .into_iter()
            .flat_map(|reads| [(reads, usage.input_tokens), (reads, apart)]);
        let is_possible = |(reads, reported): &(Reads, u64)| {
            let sample = Sample { reported: *reported, counts, overhead };
            self.can_be(sample, overhead.saturating_add(counts.of(*reads)))
                && self.growth(sample, *reads).is_none_or(Growth::fits)
        };
        let distance = |(reads, reported): &(Reads, u64)| {
            let sample = Sample { reported: *reported, counts, overhead };
            let counted = overhead.saturating_add(self.hidden).saturating_add(ratio.apply(counts.of(*reads)));
            self.growth(sample, *reads).map_or(signed(reported.abs_diff(counted)), Growth::distance)
        };
        let as_before = (self.reads, usage.input_tokens);
        if is_possible(&as_before) {
            return as_before;
        }
        meanings.filter(is_possible).min_by_key(distance).unwrap_or(as_before)
    }

    fn growth(&self, sample: Sample, reads: Reads) -> Option<Growth> {
        sample.growth(self.base.as_ref()?, reads)
    }

    /// Whether a report is compatible with our count. Images may count far less than we think, or be left
    /// out.
    fn can_be(&self, sample: Sample, counted: u64) -> bool {
        let reported = sample.reported.saturating_sub(self.hidden);
        let without_images = counted.saturating_sub(sample.counts.images);
        is_believable(reported, counted)
            || (without_images..=counted).contains(&reported)
            || (reported < without_images && is_believable(reported, without_images))
    }

    /// Whether a report fell so far behind the additions that the server seems to drop a part of the request.
    fn is_cut(&self, sample: Sample, reads: Reads, ratio: Ratio) -> bool {
        let (Some(base), Some(growth)) = (self.base, self.growth(sample, reads)) else { return false };
        let added = u64::try_from(growth.counted).map_or(0, |added| ratio.apply(added));
        let expected = base.reported.saturating_add(added).saturating_sub(ratio.apply(sample.counts.images));
        growth.is_missing() && to_f64(sample.reported) * CUT_FACTOR < to_f64(expected)
    }
}
