//! The actors. Each owns what no other may touch, and they speak only in [`crate::message`].
//!
//! ```text
//! Supervisor ── Session ──┬── Agent ── (tasks: one model stream, the tools of one answer)
//!                         ├── UsageTracker
//!                         └── Compactor ── Summary, Summary … (one child a question)
//! ```
//!
//! Invariants: a handler waits for no other actor, no model and no tool; only Session waits for the disk; every
//! parent writes out what it does when a child ends.

pub(crate) mod agent;
pub(crate) mod compactor;
pub(crate) mod session;
pub(crate) mod supervisor;
pub(crate) mod usage_tracker;
