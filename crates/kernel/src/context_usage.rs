//! The size of a context in its window, as recorded and shown. How it is measured: see [`crate::usage`].
//!
//! Invariants: an unknown window is `None`, never a substitute number.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::window::{Window, WindowSource};

#[cfg(test)]
mod tests;

/// How large the context is, as events and states show it.
///
/// Its JSON form has a field `percent` besides, and leaves `window` and `percent` out where nothing knows the window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(into = "ContextUsageJson", from = "ContextUsageJson")]
pub struct ContextUsage {
    /// The context's size in tokens: `usage_tokens + trailing_tokens`.
    pub tokens: u64,
    /// The part that the provider reported (prompt and completion of its last call), in tokens.
    pub usage_tokens: u64,
    /// The part that was estimated, since it was appended after that report, in tokens.
    pub trailing_tokens: u64,
    /// The model's window in tokens; `None` where nothing knows it.
    pub window: Option<u64>,
    /// Where the window comes from.
    pub window_source: WindowSource,
}

/// The two parts of a context's size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// The part that the provider reported, in tokens.
    pub usage_tokens: u64,
    /// The estimated part, in tokens.
    pub trailing_tokens: u64,
}

impl Measured {
    /// Returns both parts together, in tokens.
    pub fn tokens(self) -> u64 {
        self.usage_tokens.saturating_add(self.trailing_tokens)
    }
}

impl ContextUsage {
    /// Creates the usage from a measured size and a window.
    pub fn new(measured: Measured, window: Window) -> Self {
        Self {
            tokens: measured.tokens(),
            usage_tokens: measured.usage_tokens,
            trailing_tokens: measured.trailing_tokens,
            window: window.tokens,
            window_source: window.source,
        }
    }

    /// Returns `tokens` as a percentage of the window, to a tenth; `None` if the window is unknown or 0.
    #[expect(clippy::cast_precision_loss, reason = "token counts are far below 2^52")]
    pub fn percent(&self) -> Option<f64> {
        let window = self.window.filter(|window| *window > 0)?;
        Some((self.tokens as f64 / window as f64 * 1000.0).round() / 10.0)
    }
}

/// `1250 of 10000 tokens`, or `1250 tokens` if the window is unknown.
impl fmt::Display for ContextUsage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.window {
            Some(window) => write!(f, "{} of {window} tokens", self.tokens),
            None => write!(f, "{} tokens", self.tokens),
        }
    }
}

/// The JSON form of [`ContextUsage`].
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
struct ContextUsageJson {
    tokens: u64,
    usage_tokens: u64,
    trailing_tokens: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    window: Option<u64>,
    window_source: WindowSource,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    percent: Option<f64>,
}

impl From<ContextUsage> for ContextUsageJson {
    fn from(context: ContextUsage) -> Self {
        let percent = context.percent();
        let ContextUsage { tokens, usage_tokens, trailing_tokens, window, window_source } = context;
        Self { tokens, usage_tokens, trailing_tokens, window, window_source, percent }
    }
}

impl From<ContextUsageJson> for ContextUsage {
    fn from(json: ContextUsageJson) -> Self {
        // The sum and the percentage are computed again.
        let ContextUsageJson { usage_tokens, trailing_tokens, window, window_source, .. } = json;
        Self::new(
            Measured { usage_tokens, trailing_tokens },
            Window { tokens: window, source: window_source },
        )
    }
}
