//! What is known of a session without reading its log.
//!
//! Invariants: a head is stored with every append, as it is after it, so that the newest record gives it back.

use greenroom_kernel::{EntryId, RunId, Usage};

/// The state of a session after its newest entry. What the fields mean is decided above; the store counts
/// `entries` and sets `lost_from`, and keeps the rest as it is given.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// How many entries it has, which is also the next entry's sequence number.
    pub entries: u64,
    /// The entry at which its path ends; `None` for the empty path.
    pub leaf: Option<EntryId>,
    /// The lowest entry that is needed to rebuild the context.
    pub live_from: EntryId,
    /// The newest compaction that counts.
    pub active_compaction: Option<EntryId>,
    /// The newest compaction in the log, whether it counts or not.
    pub last_compaction: Option<EntryId>,
    /// How many compactions were installed.
    pub compactions: u64,
    /// Input that waits for its boundary, oldest first.
    pub inbox: Vec<EntryId>,
    /// The run that has not ended.
    pub open_run: Option<RunId>,
    /// The start of a compaction that has not ended.
    pub open_compaction: Option<EntryId>,
    /// Entries that every compaction keeps verbatim.
    pub pins: Vec<EntryId>,
    /// The provider's name.
    pub provider: String,
    /// The model's name.
    pub model: String,
    /// The size of the context, in tokens.
    pub context_tokens: u64,
    /// The model's context window, in tokens, where it is known.
    pub window: Option<u64>,
    /// What all its model calls used, together.
    pub total_usage: Usage,
    /// What they cost, in micro-dollars, where the prices were known.
    pub cost_microdollars: u64,
    /// How many automatic compactions failed in a row.
    pub automatic_compaction_failures: u32,
    /// When it was created, in unix milliseconds.
    pub created_at_ms: u64,
    /// When it was last appended to, in unix milliseconds.
    pub updated_at_ms: u64,
    /// Its name, for people.
    pub title: Option<String>,
    /// The session that it was started by or branched from.
    pub parent_session: Option<String>,
    /// What it is doing.
    pub state: SessionState,
    /// The first entry that was lost with a damaged disk; the session is then quarantined. Set and cleared by the
    /// store alone, ignored in an append.
    pub lost_from: Option<EntryId>,
}

/// What a session is doing, as far as its log tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum SessionState {
    /// It waits for input.
    #[default]
    Idle,
    /// A run is going on, or was when the process ended.
    Working,
    /// It cannot go on.
    Failed {
        /// Why.
        reason: String,
    },
}

/// The head of a session without entries.
impl Default for Head {
    fn default() -> Self {
        Self {
            entries: 0,
            leaf: None,
            live_from: EntryId(0),
            active_compaction: None,
            last_compaction: None,
            compactions: 0,
            inbox: Vec::new(),
            open_run: None,
            open_compaction: None,
            pins: Vec::new(),
            provider: String::new(),
            model: String::new(),
            context_tokens: 0,
            window: None,
            total_usage: Usage::default(),
            cost_microdollars: 0,
            automatic_compaction_failures: 0,
            created_at_ms: 0,
            updated_at_ms: 0,
            title: None,
            parent_session: None,
            state: SessionState::Idle,
            lost_from: None,
        }
    }
}
