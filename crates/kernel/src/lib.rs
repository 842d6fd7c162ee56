//! Given what happened, what next: messages, entries, paths, sizes, plans and runs.
//!
//! The one key decision: **this crate only decides.** Every function here is a plain function of its
//! arguments; the actors of `greenroom` perform what it decides. What is absent, and stays so: tokio, ractor,
//! sled, clocks, random numbers, files and the network. Time (`at_ms`, unix milliseconds) and ids are
//! arguments.
//!
//! Reading order: [`message`] (what is said), [`entry`] (what is recorded), [`path`] (which of it counts now),
//! [`size`], [`reasoning`] and [`usage`] (how large it is), [`unreported`] and [`cost`] (what it costs), [`settings`] and [`due`] (when and how to compact), [`plan`] (where to
//! cut), [`prune`] (which tool results are sent shorter), [`summary`] (what to ask for and what to accept), [`compacting`] (a compaction from its plan to its end),
//! [`question`] (what people are asked), [`log`] (what a session holds of its records, and how it adds to them), [`failure`] (what went
//! wrong), [`run`] (what to do next).

pub mod bill;
pub mod compacting;
pub mod context_usage;
pub mod cost;
pub mod due;
pub mod entry;
pub mod failure;
pub mod files;
pub mod head;
pub mod image;
pub mod log;
pub mod message;
#[cfg(test)]
mod notation;
pub mod path;
pub mod plan;
pub mod prune;
pub mod question;
pub mod reasoning;
pub mod render;
pub mod retry;
pub mod run;
pub mod session_id;
pub mod settings;
pub mod size;
pub mod summary;
pub mod terms;
pub mod text;
pub mod unreported;
pub mod usage;

pub use entry::{Compaction, Entry, EntryId, EntryKind, RunId, RunOutcome};
pub use failure::{Failure, FailureClass};
pub use files::{FileOps, Touch, Touched};
pub use head::Head;
pub use message::{
    AssistantMessage, Block, Image, ImageError, Message, Part, StopReason, ToolCall, ToolResult, ToolSpec,
    ToolStatus, Usage,
};
