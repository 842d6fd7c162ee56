//! The modes, which decide about calls that match no rule.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The modes, which decide about calls that match no rule. Each mode permits more than the one before it.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Tools that change nothing run. Everything else is denied, even what a rule allows.
    ReadOnly,
    /// Tools that change nothing run. Everything else asks, unless a rule allows it.
    #[default]
    Ask,
    /// As `ask`, and the tools that change files of the workspace run.
    AcceptEdits,
    /// Everything runs, except what a rule denies or asks about.
    Everything,
}

impl Mode {
    /// All modes, from the strictest on.
    pub const ALL: [Self; 4] = [Self::ReadOnly, Self::Ask, Self::AcceptEdits, Self::Everything];

    /// Returns the mode's name, as in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ReadOnly => "read_only",
            Self::Ask => "ask",
            Self::AcceptEdits => "accept_edits",
            Self::Everything => "everything",
        }
    }

    /// Returns what the mode does, as a clause for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::ReadOnly => "the agent reads, and changes nothing",
            Self::Ask => "the agent asks before it changes a file or runs a command",
            Self::AcceptEdits => {
                "the agent changes files of the workspace, and asks before it runs a command"
            }
            Self::Everything => "the agent changes files and runs commands without asking",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The text names no mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no mode `{0}`; the modes are read_only, ask, accept_edits and everything")]
pub struct UnknownMode(String);

impl FromStr for Mode {
    type Err = UnknownMode;

    /// Hyphens count as underscores.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let name = text.replace('-', "_");
        Self::ALL.into_iter().find(|mode| mode.as_str() == name).ok_or_else(|| UnknownMode(text.to_owned()))
    }
}
