//! The looks of the chat, and its notices.
//!
//! Invariants: only the user's own file sets them: they are the user's terminal's.

use greenroom_chat::notice::{Notify, Signal};
use greenroom_terminal::screen::variable;
use greenroom_terminal::theme::Theme;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The colours of the chat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ThemeConfig {
    /// The terminal's own palette, for a dark background.
    #[default]
    Dark,
    /// Darker colours, for a light background.
    Light,
    /// Bright and bold colours, and no dim text.
    HighContrast,
    /// Blue and orange in place of green and red.
    ColourBlind,
}

impl ThemeConfig {
    /// Returns the theme.
    pub(crate) fn theme(self) -> Theme {
        match self {
            Self::Dark => Theme::Dark,
            Self::Light => Theme::Light,
            Self::HighContrast => Theme::HighContrast,
            Self::ColourBlind => Theme::ColourBlind,
        }
    }
}

/// Notifications that a run has ended or asks a question, while the terminal does not have the focus.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct NotifyConfig {
    /// The kind of notification: `auto` (a desktop notification in terminals that support it, otherwise the bell),
    /// `bell`, `desktop` (OSC 9) or `off`.
    pub(crate) method: NotifyMethod,
    /// Whether the title of the terminal window shows the session's state. The previous title comes back at the end.
    pub(crate) title: bool,
    /// The minimum duration of a run for a notification, in seconds. In a terminal that does not report the focus, also
    /// the minimum time without a key press.
    pub(crate) after_s: u64,
}

/// How a notice is given.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NotifyMethod {
    /// As the terminal can.
    #[default]
    Auto,
    /// The terminal's bell.
    Bell,
    /// A notification of the desktop.
    Desktop,
    /// Not at all.
    Off,
}

impl Default for NotifyConfig {
    fn default() -> Self {
        Self { method: NotifyMethod::Auto, title: true, after_s: 10 }
    }
}

impl NotifyConfig {
    /// Returns what the chat does.
    pub(crate) fn notify(&self) -> Notify {
        let signal = match self.method {
            NotifyMethod::Auto => Signal::of_terminal(variable),
            NotifyMethod::Bell => Signal::Bell,
            NotifyMethod::Desktop => Signal::Desktop,
            NotifyMethod::Off => Signal::Off,
        };
        Notify { signal, title: self.title, after_ms: self.after_s.saturating_mul(1_000) }
    }
}
