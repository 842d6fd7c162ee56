//! The themes: which codes of a terminal the colours of a [`Look`](crate::Look) are.
//!
//! Invariants: a theme changes colours and weights, and never text; [`Theme::Dark`] uses only the sixteen colours of
//! the terminal's own palette.

use crate::row::Color;

/// A set of colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Theme {
    /// The terminal's own palette, for a dark background.
    #[default]
    Dark,
    /// Darker colours, for a light background.
    Light,
    /// Bright and bold colours, and no dim text.
    HighContrast,
    /// Blue and orange in place of green and red, which many people cannot tell apart.
    ColourBlind,
}

impl Theme {
    /// All themes.
    pub const ALL: [Self; 4] = [Self::Dark, Self::Light, Self::HighContrast, Self::ColourBlind];

    /// The name, as in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Dark => "dark",
            Self::Light => "light",
            Self::HighContrast => "high_contrast",
            Self::ColourBlind => "colour_blind",
        }
    }

    /// What it is for.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Dark => "the terminal's own colours",
            Self::Light => "darker colours, for a light background",
            Self::HighContrast => "bright and bold, nothing dim",
            Self::ColourBlind => "blue and orange in place of green and red",
        }
    }

    /// Finds the theme with this name; hyphens and the American spelling are accepted.
    pub fn named(name: &str) -> Option<Self> {
        let name = name.replace('-', "_").replace("color", "colour");
        Self::ALL.into_iter().find(|theme| theme.as_str() == name)
    }

    /// Whether dim text is shown dim.
    pub(crate) fn dims(self) -> bool {
        self != Self::HighContrast
    }

    /// Returns the parameters of the code that selects a colour.
    pub(crate) fn code(self, color: Color) -> &'static str {
        match (self, color) {
            (Self::Dark, Color::Red) => "31",
            (Self::Dark, Color::Green) => "32",
            (Self::Dark, Color::Yellow) => "33",
            (Self::Dark, Color::Blue) => "34",
            (Self::Dark, Color::Magenta) => "35",
            (Self::Dark, Color::Cyan) => "36",
            (Self::Light, Color::Red) => "38;5;124",
            (Self::Light, Color::Green) => "38;5;22",
            (Self::Light, Color::Yellow) => "38;5;94",
            (Self::Light, Color::Blue) => "38;5;19",
            (Self::Light, Color::Magenta) => "38;5;90",
            (Self::Light, Color::Cyan) => "38;5;24",
            (Self::HighContrast, Color::Red) => "1;91",
            (Self::HighContrast, Color::Green) => "1;92",
            (Self::HighContrast, Color::Yellow) => "1;93",
            (Self::HighContrast, Color::Blue) => "1;94",
            (Self::HighContrast, Color::Magenta) => "1;95",
            (Self::HighContrast, Color::Cyan) => "1;96",
            // After the palette of Okabe and Ito.
            (Self::ColourBlind, Color::Red) => "38;5;208",
            (Self::ColourBlind, Color::Green) => "38;5;39",
            (Self::ColourBlind, Color::Yellow) => "38;5;227",
            (Self::ColourBlind, Color::Blue) => "38;5;33",
            (Self::ColourBlind, Color::Magenta) => "38;5;175",
            (Self::ColourBlind, Color::Cyan) => "38;5;117",
        }
    }
}

#[cfg(test)]
mod tests;
