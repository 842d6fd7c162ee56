//! Room: the actors, and the tasks that they start. Each actor owns its state, and they exchange only the
//! messages of [`crate::core::message`].
//!
//! May use `core`, `agent`, `lane`, `limits`, `events` and `values`.
//!
//! ```text
//! Supervisor ── Session ──┬── Agent ── (tasks: one model stream, the tools of one answer)
//!                         ├── UsageTracker
//!                         └── Compactor ── Summary, Summary … (one child per request)
//! ```
//!
//! - Actors: `supervisor`, `session`, `agent`, `usage_tracker`, `compactor`.
//! - Model calls: `call_path` (their waits and answers), `answer_checks` (checks of every answer), `summary_call` (calls for
//!   summaries).
//! - Hooks of the program: `model_hooks`, `tool_hooks`, `compaction_hooks`.
//! - Tools: `tools_of` (all of an agent's), `sub_agent`, `compact_tool`, `recall`; `compaction_requests` (of hooks and tools).
//!
//! Invariants: a handler waits for no other actor, no model and no tool; only Session waits for the disk;
//! every parent handles the end of a child explicitly.

pub(crate) mod agent;
mod answer_checks;
pub(crate) mod call_path;
pub(crate) mod compact_tool;
pub(crate) mod compaction_hooks;
pub(crate) mod compaction_requests;
pub(crate) mod compactor;
pub(crate) mod model_hooks;
pub(crate) mod recall;
pub(crate) mod session;
pub(crate) mod sub_agent;
pub(crate) mod summary_call;
pub(crate) mod supervisor;
pub(crate) mod tool_hooks;
pub(crate) mod tools_of;
pub(crate) mod usage_tracker;
