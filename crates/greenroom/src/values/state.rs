//! How a session stands.
//!
//! Invariants: a state is a copy, taken at one moment; it changes no more.

use greenroom_kernel::entry::EntryId;
use greenroom_kernel::message::is_no_count;
use greenroom_kernel::usage::ContextUsage;
use serde::{Deserialize, Serialize};

use crate::values::names::names;

names! {
    /// What a session is doing.
    pub enum Status ("status") {
        /// Nothing: it waits for input.
        Idle = "idle",
        /// It works on a run.
        Working = "working",
        /// A call of its run waits for a person's answer, or an agent that it called as a tool does.
        Waiting = "waiting",
        /// It compacts its context, for a run or between runs.
        Compacting = "compacting",
    }
    /// A name that this version does not know: a newer program wrote it.
    #[serde(rename = "unknown", other)]
    else Unknown
}

/// How a session stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct State {
    /// The session's id.
    pub id: String,
    /// The model that answers.
    pub model: String,
    /// The name of the agent to which the conversation was handed last; absent where it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// How many entries its log has.
    pub entries: u64,
    /// The context's size.
    pub context: ContextUsage,
    /// The model's window in tokens; absent where nothing knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
    /// How many compactions were installed.
    pub compactions: u64,
    /// All tokens of all its calls: what is billed.
    pub total_tokens: u64,
    /// What they cost, in micro-dollars, as far as prices are known.
    pub cost_microdollars: u64,
    /// The part of `total_tokens` that is our own estimate, since the provider reported nothing, or something that cannot
    /// be. Where it is not 0, the cost is partly an estimate too.
    #[serde(default, skip_serializing_if = "is_no_count")]
    pub estimated_tokens: u64,
    /// What the session is doing.
    pub status: Status,
    /// How many inputs wait.
    pub waiting: usize,
    /// How many of these are held back: they are of an earlier process, and begin when the session is resumed with an agent
    /// of the same [fingerprint](crate::Agent::fingerprint), or are withdrawn.
    #[serde(default)]
    pub held_back: usize,
    /// How many questions wait for a person's answer: `SessionHandle::questions` lists them.
    #[serde(default)]
    pub questions: usize,
    /// How many questions wait in the sessions of agents that its run called as tools, on all levels:
    /// [`Runtime::questions`](crate::Runtime::questions) lists them with those of all sessions.
    #[serde(default)]
    pub questions_below: usize,
    /// The tools whose calls wait for people, or were answered and wait for a program that goes on with them, in the order
    /// of the calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting_tools: Vec<String>,
    /// Whether the newest prompt has no complete answer: `resume` goes on with it.
    pub is_unanswered: bool,
    /// Whether its run, which was cut off or waits for people, was begun by an agent of another
    /// [fingerprint](crate::Agent::fingerprint) than the session's: it goes on with such an agent only. Known of sessions that
    /// are live.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_held_back: bool,
    /// The first entry that the store has lost, where it is damaged: until that is accepted (`Store::accept_loss`), the
    /// session can be read and takes nothing more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_from: Option<EntryId>,
}
