//! Where HTTP offers an operation, and what a token needs to call it.
//!
//! Invariants: each operation states its route, or that it has none; a route that concerns no single session is closed
//! to tokens that are confined to a label, unless the operation says that it keeps within the label.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The method of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verb {
    /// Reads, and starts nothing. Parameters are in the path and the query.
    Get,
    /// Removes. Parameters are in the path and the query.
    Delete,
    /// Does something. Parameters are in the path and the body.
    Post,
    /// Sets a value: repeating the request changes nothing more. Parameters are in the path and the body.
    Put,
}

impl Verb {
    /// Whether parameters are in the query, and not in the body.
    pub fn has_query(self) -> bool {
        matches!(self, Self::Get | Self::Delete)
    }
}

/// A right of a token. Each right includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Right {
    /// Read the metrics of the server, and nothing of its sessions.
    Observe,
    /// Read sessions and their events.
    Read,
    /// Work with sessions: prompt, steer, compact, branch, answer questions, set titles and labels.
    Prompt,
    /// Delete sessions, import them, and change the server.
    Administer,
}

impl Right {
    /// The name, as in the configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observe => "observe",
            Self::Read => "read",
            Self::Prompt => "prompt",
            Self::Administer => "administer",
        }
    }
}

/// The sessions that an operation without a `session_id` concerns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Those of the token's label: the operation keeps to [`CallScope::within`](super::CallScope::within).
    Label,
    /// None: it tells only of the agent.
    Agent,
    /// All, or the server itself.
    Server,
}

/// The route of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The method.
    pub verb: Verb,
    /// The path below `/v1`. `{name}` is the parameter of that name.
    pub path: &'static str,
    /// The right that it needs.
    pub right: Right,
    /// Its reach if it names no session.
    pub reach: Reach,
}

impl Route {
    /// A route that reads.
    pub(crate) const fn read(path: &'static str) -> Option<Self> {
        Some(Self { verb: Verb::Get, path, right: Right::Read, reach: Reach::Server })
    }

    /// A route that works with a session.
    pub(crate) const fn prompt(verb: Verb, path: &'static str) -> Option<Self> {
        Some(Self { verb, path, right: Right::Prompt, reach: Reach::Server })
    }

    /// A route that administers.
    pub(crate) const fn administer(verb: Verb, path: &'static str) -> Option<Self> {
        Some(Self { verb, path, right: Right::Administer, reach: Reach::Server })
    }

    /// As [`Self::read`], for an operation with another reach.
    pub(crate) const fn read_within(reach: Reach, path: &'static str) -> Option<Self> {
        Some(Self { verb: Verb::Get, path, right: Right::Read, reach })
    }
}

/// A label that sessions have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Label {
    /// The label's name.
    pub name: String,
    /// The label's value.
    pub value: String,
}

impl std::str::FromStr for Label {
    type Err = String;

    /// Reads `NAME:VALUE`.
    fn from_str(text: &str) -> Result<Self, String> {
        let Some((name, value)) = text.split_once(':').filter(|(name, _)| !name.is_empty()) else {
            return Err(format!("label={text:?} is not NAME:VALUE"));
        };
        Ok(Self { name: name.to_owned(), value: value.to_owned() })
    }
}
