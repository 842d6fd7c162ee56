//! The outcome of a run.
//!
//! Invariants: an outcome of a newer version is read as `Unknown`.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::failure::Failure;

/// How an agent's run for a prompt ended. In JSON: `outcome`, and `reason` and `failure` where there is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(try_from = "RunOutcomeJson", into = "RunOutcomeJson")]
#[non_exhaustive]
pub enum RunOutcome {
    /// The model answered without asking for more tools.
    Completed,
    /// The user or the program interrupted it; what had come is kept.
    Aborted,
    /// It could not continue.
    Failed(Box<Failure>),
    /// The process or the agent died while it ran.
    Interrupted,
    /// A guard ended it: too many steps, the same call over and over, or a budget.
    Stopped {
        /// Which guard, and its limit.
        reason: String,
    },
    /// A value that this version does not know: a newer program wrote it. It is read, and never recorded.
    Unknown,
}

impl RunOutcome {
    /// Returns the outcome in snake case.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Aborted => "aborted",
            Self::Failed(_) => "failed",
            Self::Interrupted => "interrupted",
            Self::Stopped { .. } => "stopped",
            Self::Unknown => "unknown",
        }
    }

    /// Returns why it did not complete, if a reason is known.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Completed | Self::Aborted | Self::Interrupted | Self::Unknown => None,
            Self::Failed(failure) => Some(&failure.message),
            Self::Stopped { reason } => Some(reason),
        }
    }
}

impl fmt::Display for RunOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The JSON form of [`RunOutcome`].
#[derive(Serialize, Deserialize, schemars::JsonSchema)]
struct RunOutcomeJson {
    #[schemars(extend("enum" = ["completed", "aborted", "failed", "interrupted", "stopped"]))]
    outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failure: Option<Failure>,
}

impl From<RunOutcome> for RunOutcomeJson {
    fn from(outcome: RunOutcome) -> Self {
        let (name, reason) = (outcome.as_str().to_owned(), outcome.reason().map(str::to_owned));
        let failure = if let RunOutcome::Failed(failure) = outcome { Some(*failure) } else { None };
        Self { outcome: name, reason, failure }
    }
}

impl TryFrom<RunOutcomeJson> for RunOutcome {
    type Error = String;

    fn try_from(json: RunOutcomeJson) -> Result<Self, String> {
        let RunOutcomeJson { outcome, reason, failure } = json;
        match outcome.as_str() {
            "completed" => Ok(Self::Completed),
            "aborted" => Ok(Self::Aborted),
            "failed" => failure
                .map(Box::new)
                .map(Self::Failed)
                .ok_or_else(|| "a failed run without its `failure`".into()),
            "interrupted" => Ok(Self::Interrupted),
            "stopped" => Ok(Self::Stopped { reason: reason.unwrap_or_default() }),
            _ => Ok(Self::Unknown),
        }
    }
}
