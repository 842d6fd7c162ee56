//! The summary of a session that is available without reading its log.
//!
//! Invariants: every append stores the head as of after the append, so the newest record of a session has its
//! head.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::bill::{Bill, CompactionBill};
use crate::{EntryId, RunId, Usage};

mod fold;

/// The state of a session after its newest entry. A store checks `entries` and sets `lost_from`; it stores
/// the other fields without interpreting them.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// The number of entries, which is also the id of the next entry.
    pub entries: u64,
    /// The leaf: the entry at which the session's path ends; `None` for the empty path.
    pub leaf: Option<EntryId>,
    /// The first entry that is needed to rebuild the context.
    pub active_from: EntryId,
    /// The newest active compaction: the newest one that was not undone.
    pub active_compaction: Option<EntryId>,
    /// The newest compaction in the log, active or not.
    pub last_compaction: Option<EntryId>,
    /// The number of installed compactions.
    pub compactions: u64,
    /// The inbox entries that are not delivered yet, oldest first.
    pub inbox: Vec<EntryId>,
    /// The run that has begun and not ended.
    pub open_run: Option<RunId>,
    /// The start of the compaction that has begun and not ended.
    pub open_compaction: Option<EntryId>,
    /// The pinned entries of the path, which every compaction keeps verbatim.
    pub pins: Vec<EntryId>,
    /// The provider's name.
    pub provider: Arc<str>,
    /// The model's name.
    pub model: Arc<str>,
    /// The size of the context, in tokens.
    pub context_tokens: u64,
    /// The model's context window, in tokens; `None` if it is not known.
    pub window: Option<u64>,
    /// The total tokens of all model calls.
    pub total_usage: Usage,
    /// The cost of all model calls whose price is known, in micro-dollars.
    pub cost_microdollars: u64,
    /// The cost and the savings of compactions.
    pub compaction_bill: CompactionBill,
    /// What had been spent when the newest run began.
    pub run_began_with: Bill,
    /// What the newest compaction freed, in tokens: what each call saves. 0 after an undo, and on another branch.
    pub saves_tokens: u64,
    /// The number of consecutive failed automatic compactions.
    pub automatic_compaction_failures: u32,
    /// When the session was created, in Unix milliseconds.
    pub created_at_ms: u64,
    /// When the session was last appended to, in Unix milliseconds.
    pub updated_at_ms: u64,
    /// The session's name, for people.
    pub title: Option<String>,
    /// The session's labels, by which programs find it: names and values.
    pub labels: BTreeMap<String, String>,
    /// The start of the session's first message.
    pub opening: Option<Arc<str>>,
    /// The last interrupted run, as long as it is unanswered and there is no message after it.
    pub interrupted: Option<RunId>,
    /// The fingerprint of the agent that began the newest run; `None` if it has none.
    pub run_fingerprint: Option<String>,
    /// The entry with the requirements of the newest run besides its prompt's content; `None` if there are
    /// none, or the run is completed.
    pub run_terms: Option<EntryId>,
    /// The open questions, oldest first.
    pub questions: Vec<EntryId>,
    /// The session that started this one, or that this one was branched from.
    pub parent_session: Option<String>,
    /// The starts of agents called as tools whose ends are not recorded.
    pub open_children: Vec<EntryId>,
    /// The name of the agent of the last hand-off; `None` if there was none.
    pub agent: Option<String>,
    /// The entries before this one are hidden from the current agent, which took the conversation over with a
    /// part of it.
    pub hidden_before: EntryId,
    /// The state of the session.
    pub state: LoggedState,
    /// The first entry that was lost with a damaged disk. The session is then quarantined. Only the store
    /// sets and clears it; an append ignores it.
    pub lost_from: Option<EntryId>,
}

/// The state of a session according to its log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum LoggedState {
    /// The session waits for input.
    #[default]
    Idle,
    /// A run has begun and not ended. Perhaps the process has exited meanwhile.
    Working,
    /// The session cannot continue.
    Failed {
        /// The reason, in a sentence for people.
        reason: String,
    },
}

impl Head {
    /// Whether this is the session's model, by provider name and model name.
    pub fn is_model(&self, provider: &str, model: &str) -> bool {
        (&*self.provider, &*self.model) == (provider, model)
    }

    /// Returns the head of the same session with its first `entries` entries and none of them in its context.
    pub fn without_context(&self, entries: u64) -> Self {
        Self {
            entries,
            created_at_ms: self.created_at_ms,
            updated_at_ms: self.updated_at_ms,
            title: self.title.clone(),
            labels: self.labels.clone(),
            opening: self.opening.clone(),
            parent_session: self.parent_session.clone(),
            provider: self.provider.clone(),
            model: self.model.clone(),
            agent: self.agent.clone(),
            hidden_before: self.hidden_before,
            ..Self::default()
        }
    }
}

/// The head of a session without entries.
impl Default for Head {
    fn default() -> Self {
        Self {
            entries: 0,
            leaf: None,
            active_from: EntryId(0),
            active_compaction: None,
            last_compaction: None,
            compactions: 0,
            inbox: Vec::new(),
            open_run: None,
            open_compaction: None,
            pins: Vec::new(),
            provider: Arc::default(),
            model: Arc::default(),
            context_tokens: 0,
            window: None,
            total_usage: Usage::default(),
            cost_microdollars: 0,
            compaction_bill: CompactionBill::default(),
            run_began_with: Bill::default(),
            saves_tokens: 0,
            automatic_compaction_failures: 0,
            created_at_ms: 0,
            updated_at_ms: 0,
            title: None,
            labels: BTreeMap::new(),
            opening: None,
            interrupted: None,
            run_fingerprint: None,
            run_terms: None,
            questions: Vec::new(),
            parent_session: None,
            open_children: Vec::new(),
            agent: None,
            hidden_before: EntryId(0),
            state: LoggedState::Idle,
            lost_from: None,
        }
    }
}
