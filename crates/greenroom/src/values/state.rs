//! The state of a session.
//!
//! Invariants: a state is a copy from one moment; it does not change.

use greenroom_kernel::bill::CompactionBill;
use greenroom_kernel::entry::EntryId;
use greenroom_kernel::message::is_no_count;
use greenroom_kernel::usage::ContextUsage;
use serde::{Deserialize, Serialize};

use crate::values::names::names;

names! {
    /// The activity of a session.
    pub enum Status ("status") {
        /// Nothing: the session waits for input.
        Idle = "idle",
        /// The session performs a run.
        Working = "working",
        /// A call of its run waits for a person's answer, or a sub-agent of the run does.
        Waiting = "waiting",
        /// The session compacts its context, for a run or between runs.
        Compacting = "compacting",
    }
    /// A name unknown to this version: a newer program wrote it.
    #[serde(rename = "unknown", other)]
    else Unknown
}

/// The state of a session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct State {
    /// The session's id.
    pub id: String,
    /// The model that answers.
    pub model: String,
    /// The agent to which the conversation was handed last; absent if it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// The number of entries in its log.
    pub entries: u64,
    /// The context's size.
    pub context: ContextUsage,
    /// The model's window in tokens; absent if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
    /// The size of the context, in tokens, at which it is compacted; absent if it is not compacted by itself, or
    /// if the session is read without its agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compacts_at: Option<u64>,
    /// The number of installed compactions.
    pub compactions: u64,
    /// All billed tokens of all its calls.
    pub total_tokens: u64,
    /// The cost of these tokens, in micro-dollars, as far as prices are known.
    pub cost_microdollars: u64,
    /// The part of that cost that its compactions caused, their savings, and how long callers waited for them.
    #[serde(default)]
    pub compaction_bill: CompactionBill,
    /// The part of `total_tokens` that we estimated, because the provider reported no usage or an impossible
    /// one. If it is not 0, the cost is partly an estimate too.
    #[serde(default, skip_serializing_if = "is_no_count")]
    pub estimated_tokens: u64,
    /// The activity of the session.
    pub status: Status,
    /// The number of inputs in the inbox.
    pub waiting: usize,
    /// The number of these inputs that are held back: an earlier process accepted them, and they start when
    /// the session is resumed with an agent of the same [fingerprint](crate::Agent::fingerprint), or are
    /// withdrawn.
    #[serde(default)]
    pub held_back: usize,
    /// The number of questions that wait for a person's answer: `SessionHandle::questions` lists them.
    #[serde(default)]
    pub questions: usize,
    /// The number of open questions in the sessions of sub-agents of its run, on all levels:
    /// [`Runtime::questions`](crate::Runtime::questions) lists them with those of all sessions.
    #[serde(default)]
    pub questions_below: usize,
    /// The tools whose calls wait for people, or were answered and wait for a program that continues them, in
    /// the order of the calls.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting_tools: Vec<String>,
    /// Whether the newest prompt has no complete answer: `resume` continues it.
    pub is_unanswered: bool,
    /// Whether its unfinished run was started by an agent with another
    /// [fingerprint](crate::Agent::fingerprint) than the session's: only an agent with that fingerprint
    /// continues the run. Known only for live sessions.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_held_back: bool,
    /// The first entry that the store has lost, if it is damaged. Until the loss is accepted
    /// (`Store::accept_loss`), the session can be read and accepts no input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost_from: Option<EntryId>,
}
