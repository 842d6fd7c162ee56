//! A model's window: where it is known from, and whether a limit that a provider names is believed.
//!
//! Invariants: an unknown window is `None`, never a substitute number.

use serde::{Deserialize, Serialize};

use crate::settings::{CompactionSettings, UnknownWindow};

#[cfg(test)]
mod tests;

/// Where a window comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
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
    /// The server says that it takes so much.
    Server,
    /// The server says that the model was made for so much; the server may take less.
    Trained,
    /// Nothing knows it, and nothing is assumed. A source of a newer program reads as this one.
    #[serde(other)]
    Unknown,
}

/// A model's window, and its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Its size in tokens; `None` if unknown.
    pub tokens: Option<u64>,
    /// The source.
    pub source: WindowSource,
}

/// The known windows of a model, besides the settings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KnownWindows {
    /// The configuration's or the agent's `context_window`.
    pub setting: Option<u64>,
    /// The server's reported limit, in its current configuration.
    pub served: Option<u64>,
    /// The catalogue's limit: its input limit if it has one, otherwise its context.
    pub catalog: Option<u64>,
    /// The model's trained context, as reported by the server. The server may accept less.
    pub trained: Option<u64>,
    /// A limit that the provider named in an error.
    pub learned: Option<u64>,
}

impl Window {
    /// Returns the first known one: the settings; then the server's limit, the catalogue or the trained
    /// context, lowered by the learned limit; then an assumption.
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

/// The evidence when a provider names a limit in an error.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LimitEvidence {
    /// The size of the request, by our own count, in tokens; 0 if unknown.
    pub sent: u64,
    /// The largest request that the provider accepted before, by its own report, in tokens.
    pub accepted: u64,
    /// The limit that it named before, if that was not believed.
    pub named_before: Option<u64>,
}

/// Whether a limit that a provider named in an error, in tokens, is believed to be the model's window.
///
/// Numbers are read from prose, and a learned limit applies to every session of that model: one that is
/// smaller than any window in use, or far above the size of the request, is not a window. One below the
/// largest accepted request is believed when it is named again, as by a server that was restarted with less.
pub fn is_believable_limit(limit: u64, evidence: LimitEvidence) -> bool {
    const LIMIT_MIN: u64 = 1_024;
    const SENT_FACTOR_MAX: u64 = 4;
    let LimitEvidence { sent, accepted, named_before } = evidence;
    limit >= LIMIT_MIN
        && (sent == 0 || limit <= sent.saturating_mul(SENT_FACTOR_MAX))
        && (limit >= accepted || named_before == Some(limit))
}
