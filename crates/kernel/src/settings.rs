//! When and how to compact: the settings, and their consequences for a window.
//!
//! Invariants: every configured trigger is obeyed and the earliest wins; with `enabled: false` nothing
//! compacts automatically. Syntax is checked when settings are loaded ([`CompactionSettings::check`]),
//! feasibility when a window and an overhead are known ([`CompactionSettings::feasible`]).

use serde::{Deserialize, Serialize};

use crate::size::Estimator;
use crate::words::WordsMax;

#[cfg(test)]
mod tests;

/// How one compaction is to be done, as the person, the tool or the hook that asks for it says.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CompactOptions {
    /// The focus of the summary.
    pub focus: Option<String>,
    /// How much of the newest conversation to keep, in tokens.
    pub keep_recent: Option<u64>,
    /// Compact also where no cut is in reach of what is kept.
    pub force: bool,
}

/// The maximum of `reserve_tokens`, as a share of the window.
const RESERVE_SHARE: f64 = 0.25;
/// The maximum of a configured `keep_recent_tokens`, as a share of the window.
const KEEP_SHARE: f64 = 0.35;
/// The default for what is kept, of the window or of the conversation: one part in this many.
const KEEP_PARTS: u64 = 4;
/// The maximum size of a context after an automatic compaction, as a share of the trigger.
pub(crate) const SUCCESS_SHARE: f64 = 0.7;
/// The maximum size of a context if the fixed part takes most of the trigger, as a share of the range between
/// both: one part in this many.
const SUCCESS_ROOM_SHARE: u64 = 2;
/// The share of a summary in the room beside the fixed part, before the kept part: one part in this many.
const SUMMARY_ROOM_SHARE: u64 = 3;
/// The maximum of `user_words` and of `ledger`, as a share of the window.
const CARRIED_SHARE_MAX: f64 = 0.25;
/// The maximum share of the space for the replacement of the older part that the user's words take: one part in this
/// many.
pub(crate) const WORDS_ROOM_PARTS: u64 = 3;
/// The maximum share of that space that facts take beside a summary: one part in this many.
pub(crate) const FACTS_ROOM_PARTS: u64 = 6;
/// The maximum share of that space that the skills in use take: one part in this many.
pub(crate) const SKILLS_ROOM_PARTS: u64 = 6;
/// The largest soft threshold, as a share of the trigger: a preparation takes time.
const SOFT_SHARE_MAX: f64 = 0.8;
/// The share of the window for the texts of skills.
const SKILLS_SHARE: f64 = 0.05;
/// The minimum room beside the fixed part in which a compaction can work, in tokens: a short summary with its
/// leading sentence, and the newest messages.
const ROOM_TOKENS_MIN: u64 = 128;
/// The longest `compact_prompt` and `compact_instructions`, in bytes.
pub const COMPACT_PROMPT_BYTES_MAX: usize = 32 * 1024;
/// The placeholder for the transcript in a `compact_prompt`.
pub(crate) const MESSAGES_PLACE: &str = "{messages}";

/// How compaction behaves. Every field has a default; unknown fields are errors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct CompactionSettings {
    /// Whether anything is compacted automatically, overflow recovery included. A manual request always works.
    pub enabled: bool,
    /// The window in tokens; overrides every other source. `null`: the model's own.
    pub context_window: Option<u64>,
    /// Compact when the context is larger than the window minus this many tokens, which leave space for the answer;
    /// limited to a quarter of the window. The largest size of a summary depends on it, too. `null`: this trigger is
    /// off.
    pub reserve_tokens: Option<u64>,
    /// Compact when the context reaches this fraction of the window. `null`: this trigger is off.
    pub threshold: Option<f64>,
    /// Compact when the context reaches this many tokens; clamped to the window. `null`: this trigger is off.
    #[serde(alias = "model_auto_compact_token_limit")]
    pub auto_compact_token_limit: Option<u64>,
    /// How much of the newest conversation stays verbatim, in tokens; at most 35 % of the window. `null`: a quarter of
    /// the window; in a manual compaction, of the conversation.
    pub keep_recent_tokens: Option<u64>,
    /// At least this many of the newest messages stay verbatim.
    pub preserve_messages: Option<u64>,
    /// The author of the summary: a model, the provider's own compaction, or no model.
    pub strategy: Strategy,
    /// Whether a compaction leaves out old tool results, instead of summarising, if that alone frees enough space.
    pub prune: bool,
    /// The maximum share of the window that a compaction fills with quotes of the user's own words, as a fraction up to
    /// 0.25. `null`: none are quoted.
    pub user_words: Option<f64>,
    /// The maximum share of the window that a compaction fills with facts that the summary lacks, as a fraction up to
    /// 0.25. `null`: no facts are collected.
    pub ledger: Option<f64>,
    /// The model that writes summaries; if it fails, the session's model does. `null`: the session's model.
    pub summary_model: Option<String>,
    /// How the position of the cut is chosen.
    pub cut: CutRule,
    /// If a cut splits a turn, a beginning of fewer messages gets no summary of its own.
    pub min_split_prefix: u64,
    /// The window to assume if it is unknown, in tokens, also of the summary model; or `disable`.
    pub unknown_window: UnknownWindow,
    /// The maximum number of bytes of a request; above it, older images become placeholders.
    pub max_request_bytes: u64,
    /// The fraction of the window above which a compaction is prepared; limited to 0.8 of the trigger.
    pub soft_threshold: f64,
    /// Whether a compaction is prepared in the background between `soft_threshold` and the trigger.
    pub background: bool,
    /// Replaces the instruction for the summary; `{messages}` marks the position of the transcript. `file:NAME` reads a
    /// file.
    pub compact_prompt: Option<String>,
    /// Text to add to the instruction, such as "Keep every measured value."; `file:NAME` reads a file.
    pub compact_instructions: Option<String>,
    /// How sizes are estimated; `char4` is for comparing plans.
    pub estimator: Estimator,
}

impl Default for CompactionSettings {
    fn default() -> Self {
        Self {
            enabled: true,
            context_window: None,
            reserve_tokens: Some(16_384),
            threshold: Some(0.80),
            auto_compact_token_limit: None,
            keep_recent_tokens: None,
            preserve_messages: None,
            strategy: Strategy::Summarize,
            prune: true,
            user_words: Some(0.10),
            ledger: Some(0.05),
            summary_model: None,
            cut: CutRule::TurnFirst,
            min_split_prefix: 5,
            unknown_window: UnknownWindow::Assume(128_000),
            max_request_bytes: 18 * 1024 * 1024,
            soft_threshold: 0.65,
            background: true,
            compact_prompt: None,
            compact_instructions: None,
            estimator: Estimator::Classes,
        }
    }
}

/// The author of the summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Strategy {
    /// The model of the session, or `summary_model`.
    Summarize,
    /// No model: the facts and the user's words, verbatim, as much as a summary may have.
    Digest,
    /// No model: counts, the previous summary, the active request and the files.
    Truncate,
    /// The provider of the session's model, by its own compaction; as `summarize` if it has none, or if that fails.
    Native,
    /// As `native`, without a warning if the provider has no compaction of its own.
    Auto,
}

impl Strategy {
    /// Whether a summary is wanted, so that a cut without one is a debt.
    pub fn wants_summary(self) -> bool {
        match self {
            Self::Summarize | Self::Native | Self::Auto => true,
            Self::Digest | Self::Truncate => false,
        }
    }

    /// Whether the provider's own compaction is wanted.
    pub(crate) fn is_native(self) -> bool {
        match self {
            Self::Native | Self::Auto => true,
            Self::Summarize | Self::Digest | Self::Truncate => false,
        }
    }
}

/// How the cut is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CutRule {
    /// The first legal cut at or after the point where enough is kept.
    Nearest,
    /// A turn's start near that point, if there is one; else as `nearest`.
    TurnFirst,
}

/// The assumption about an unknown window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(try_from = "UnknownWindowText", into = "UnknownWindowText")]
#[non_exhaustive]
pub enum UnknownWindow {
    /// A window of this many tokens.
    Assume(u64),
    /// Nothing: compaction by threshold is off until a window is known.
    Disable,
}

/// How [`UnknownWindow`] is written: a number, or `disable`.
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
#[serde(untagged)]
enum UnknownWindowText {
    Tokens(u64),
    Word(String),
}

impl TryFrom<UnknownWindowText> for UnknownWindow {
    type Error = String;

    fn try_from(text: UnknownWindowText) -> Result<Self, String> {
        match text {
            UnknownWindowText::Tokens(tokens) => Ok(Self::Assume(tokens)),
            UnknownWindowText::Word(word) if word == "disable" => Ok(Self::Disable),
            UnknownWindowText::Word(word) => {
                Err(format!("`{word}` is neither a number of tokens nor `disable`"))
            }
        }
    }
}

impl From<UnknownWindow> for UnknownWindowText {
    fn from(window: UnknownWindow) -> Self {
        match window {
            UnknownWindow::Assume(tokens) => Self::Tokens(tokens),
            UnknownWindow::Disable => Self::Word("disable".into()),
        }
    }
}

/// The occasion for which the kept part is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occasion {
    /// A trigger was reached.
    Automatic,
    /// A person or program requested it.
    Manual,
    /// The provider rejected the request.
    Emergency,
}

/// Settings that cannot work, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A value outside its range.
    #[error("{key}: {reason}")]
    Value {
        /// The setting's name.
        key: &'static str,
        /// The requirement on the value.
        reason: String,
    },
    /// The window leaves no room for a summary and the newest messages, whatever the fixed part.
    #[error(
        "a window of {window} tokens is too small: with these settings compaction needs one of at least {least}; check \
         the window that is set, or set enabled to false"
    )]
    SmallWindow {
        /// The window, in tokens.
        window: u64,
        /// The smallest window in which compaction can work, in tokens.
        least: u64,
    },
    /// The trigger leaves no room for a summary and the newest messages beside the fixed part.
    #[error(
        "compaction triggers at {trigger} of {window} tokens and must then reduce the context to {target}, but the fixed part of \
         every request (system prompt, tools, instructions, pins) has {overhead}, and a summary with the newest \
         messages needs at least {needed} more; shorten the fixed part, raise the trigger (threshold, reserve_tokens, \
         auto_compact_token_limit), or use a model with a larger window"
    )]
    NoRoom {
        /// The trigger, in tokens.
        trigger: u64,
        /// The largest context that a compaction must reach, in tokens.
        target: u64,
        /// The window, in tokens.
        window: u64,
        /// The fixed part, in tokens.
        overhead: u64,
        /// The room needed beside the fixed part, in tokens.
        needed: u64,
    },
}

impl CompactionSettings {
    /// Checks everything that does not depend on a window.
    ///
    /// # Errors
    /// The first value outside its range.
    pub fn check(&self) -> Result<(), SettingsError> {
        let value = |key, reason: &str| Err(SettingsError::Value { key, reason: reason.into() });
        let fraction = |share: f64| share > 0.0 && share <= 1.0;
        if self.threshold.is_some_and(|threshold| !fraction(threshold)) {
            return value("threshold", "must be a fraction above 0 and at most 1");
        }
        if !fraction(self.soft_threshold) {
            return value("soft_threshold", "must be a fraction above 0 and at most 1");
        }
        for (key, share) in [("user_words", self.user_words), ("ledger", self.ledger)] {
            if share.is_some_and(|share| !(share > 0.0 && share <= CARRIED_SHARE_MAX)) {
                return value(key, "must be a fraction above 0 and at most 0.25, or null");
            }
        }
        for (key, tokens) in [
            ("context_window", self.context_window),
            ("auto_compact_token_limit", self.auto_compact_token_limit),
            ("keep_recent_tokens", self.keep_recent_tokens),
        ] {
            if tokens == Some(0) {
                return value(key, "must be at least 1 token, or null");
            }
        }
        if self.unknown_window == UnknownWindow::Assume(0) {
            return value("unknown_window", "must be at least 1 token, or `disable`");
        }
        if self.max_request_bytes < 1024 {
            return value("max_request_bytes", "must be at least 1024");
        }
        let limit_min = least_trigger();
        if self.auto_compact_token_limit.is_some_and(|limit| limit < limit_min) {
            let reason = format!("must be at least {limit_min} tokens, or no summary has room below it");
            return value("auto_compact_token_limit", &reason);
        }
        for (key, text) in
            [("compact_prompt", &self.compact_prompt), ("compact_instructions", &self.compact_instructions)]
        {
            text.as_deref().map_or(Ok(()), |text| check_prompt(key, text))?;
        }
        Ok(())
    }

    /// Checks that compaction can work in this window beside this fixed overhead (both in tokens).
    ///
    /// # Errors
    /// The first reason why it cannot.
    pub fn feasible(&self, window: u64, overhead: u64) -> Result<(), SettingsError> {
        self.check()?;
        let Some(trigger) = self.trigger_tokens(window).filter(|_| self.enabled) else { return Ok(()) };
        // The kept part shrinks automatically, whether configured or not: rejected only if nothing sensible
        // could be kept.
        let target = self.target_tokens(window, overhead);
        if self.target_tokens(window, 0) < ROOM_TOKENS_MIN
            && let Some(least) = self.least_window()
        {
            return Err(SettingsError::SmallWindow { window, least });
        }
        if overhead.saturating_add(ROOM_TOKENS_MIN) > target {
            return Err(SettingsError::NoRoom { trigger, target, window, overhead, needed: ROOM_TOKENS_MIN });
        }
        Ok(())
    }

    /// Returns the smallest window in which a summary and the newest messages have room without a fixed part,
    /// in tokens; `None` if no window is large enough.
    fn least_window(&self) -> Option<u64> {
        let has_room = |window: &u64| self.target_tokens(*window, 0) >= ROOM_TOKENS_MIN;
        let large = (0..u64::BITS).map(|bits| 1_u64 << bits).find(has_room)?;
        let (mut small, mut large) = (large / 2, large);
        while small + 1 < large {
            let middle = u64::midpoint(small, large);
            *(if has_room(&middle) { &mut large } else { &mut small }) = middle;
        }
        Some(large)
    }

    /// Returns the reserve for the next answer, in tokens: at most a quarter of the window.
    pub fn reserve(&self, window: u64) -> u64 {
        self.reserve_tokens.unwrap_or(16_384).min(share(window, RESERVE_SHARE))
    }

    /// Returns the smallest context, in tokens, at which compaction is due; `None` if no trigger is set.
    pub fn trigger_tokens(&self, window: u64) -> Option<u64> {
        let by_reserve =
            self.reserve_tokens.map(|_| window.saturating_sub(self.reserve(window)).saturating_add(1));
        let by_threshold = self.threshold.map(|threshold| share_up(window, threshold));
        let by_limit = self.auto_compact_token_limit.map(|limit| limit.min(window));
        [by_reserve, by_threshold, by_limit].into_iter().flatten().min().map(|tokens| tokens.max(1))
    }

    /// Returns the largest context, in tokens, that is a success of an automatic compaction beside this fixed
    /// part: 0.7 × the trigger; or, if the fixed part is large, half of the compactable part.
    pub(crate) fn target_tokens(&self, window: u64, overhead: u64) -> u64 {
        let trigger = self.trigger_tokens(window).unwrap_or(window);
        let by_room = overhead.saturating_add(trigger.saturating_sub(overhead) / SUCCESS_ROOM_SHARE);
        share(trigger, SUCCESS_SHARE).max(by_room.min(trigger))
    }

    /// Returns the most of the newest conversation that can be kept if a compaction is to succeed, in tokens:
    /// the rest of the target beside the fixed part and a useful summary.
    pub(crate) fn keep_max(&self, window: u64, overhead: u64) -> u64 {
        let room = self.target_tokens(window, overhead).saturating_sub(overhead);
        room - self.summary_cap(window).min(room / SUMMARY_ROOM_SHARE)
    }

    /// Returns how much of the newest conversation to keep verbatim, in tokens, if the trigger leaves room
    /// for it (`keep_max`). `conversation` is the size of everything beside the fixed part, in
    /// tokens: a requested compaction takes place however much of the window is free.
    pub fn keep_recent(&self, window: u64, occasion: Occasion, conversation: u64) -> u64 {
        match (occasion, self.keep_recent_tokens) {
            (Occasion::Emergency, _) => window / 5,
            (Occasion::Automatic | Occasion::Manual, Some(set)) => set.min(share(window, KEEP_SHARE)),
            (Occasion::Automatic, None) => window / KEEP_PARTS,
            (Occasion::Manual, None) => window.min(conversation) / KEEP_PARTS,
        }
        .max(1)
    }

    /// Returns the size from which on a compaction is prepared, in tokens, if it will be due at `trigger`.
    pub fn soft_tokens(&self, window: u64, trigger: u64) -> u64 {
        share(window, self.soft_threshold).min(share(trigger, SOFT_SHARE_MAX))
    }

    /// Returns how much of the user's own words a compaction quotes if it keeps `keep_recent`.
    pub(crate) fn words_max(&self, window: u64, overhead: u64, keep_recent: u64) -> WordsMax {
        let carried = self.user_words.map_or(0, |of| share(window, of));
        let shown = self.carried_max(self.user_words, WORDS_ROOM_PARTS, window, overhead, keep_recent);
        WordsMax { carried, shown }
    }

    /// Returns how many tokens of facts a compaction adds to a summary, if it keeps `keep_recent`.
    pub(crate) fn facts_max(&self, window: u64, overhead: u64, keep_recent: u64) -> u64 {
        self.carried_max(self.ledger, FACTS_ROOM_PARTS, window, overhead, keep_recent)
    }

    /// Returns how many tokens of skills' texts a compaction tells again, if it keeps `keep_recent`.
    pub(crate) fn skills_max(&self, window: u64, overhead: u64, keep_recent: u64) -> u64 {
        self.carried_max(Some(SKILLS_SHARE), SKILLS_ROOM_PARTS, window, overhead, keep_recent)
    }

    /// Returns this share of the window, in tokens, or a part of the room beside what is kept if that is less.
    fn carried_max(&self, of: Option<f64>, parts: u64, window: u64, overhead: u64, keep: u64) -> u64 {
        let room = self.target_tokens(window, overhead).saturating_sub(overhead.saturating_add(keep));
        of.map_or(0, |of| share(window, of).min(room / parts))
    }

    /// Returns the cap of the history summary, in tokens: 0.8 × the reserve.
    pub fn summary_cap(&self, window: u64) -> u64 {
        share(self.reserve(window), 0.8).max(256)
    }

    /// Returns the cap of a turn prefix's summary, in tokens: 0.5 × the reserve.
    pub fn prefix_cap(&self, window: u64) -> u64 {
        share(self.reserve(window), 0.5).max(160)
    }
}

/// Returns the smallest trigger below which a summary has room, in tokens.
fn least_trigger() -> u64 {
    share_up(ROOM_TOKENS_MIN, 1.0 / SUCCESS_SHARE)
}

/// Checks a user's own prompt, or additions to it.
fn check_prompt(key: &'static str, prompt: &str) -> Result<(), SettingsError> {
    let wrong = |reason: &str| Err(SettingsError::Value { key, reason: reason.into() });
    if prompt.trim().is_empty() {
        return wrong("must not be empty; use null for none of your own");
    }
    if prompt.len() > COMPACT_PROMPT_BYTES_MAX {
        return wrong(&format!(
            "has {} bytes, and at most {COMPACT_PROMPT_BYTES_MAX} are taken",
            prompt.len()
        ));
    }
    if key == "compact_instructions" && prompt.contains(MESSAGES_PLACE) {
        return wrong("has no {messages}; only compact_prompt may place the transcript");
    }
    if prompt.matches(MESSAGES_PLACE).count() > 1 {
        return wrong("names {messages} more than once; the transcript can stand in one place only");
    }
    if prompt.trim_start().starts_with("file:") {
        return wrong("names a file, which only a configuration file may do; give the text itself");
    }
    Ok(())
}

/// Returns `part` of `tokens`, rounded down.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "windows are far below 2^52 tokens, and fractions are in 0..=1"
)]
pub(crate) fn share(tokens: u64, part: f64) -> u64 {
    (tokens as f64 * part) as u64
}

/// Returns `part` of `tokens`, rounded up.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "windows are far below 2^52 tokens, and fractions are in 0..=1"
)]
fn share_up(tokens: u64, part: f64) -> u64 {
    // 0.8 × 200,000 is 160,000.00000000003 in binary: such a small excess does not count.
    (tokens as f64 * part - 1e-6).ceil() as u64
}
