//! The decisions: given what happened, what to do next. Messages, entries, paths, sizes, plans and runs.
//!
//! The one key decision: **this crate only decides.** Every function here is a plain function of its
//! arguments; the actors of `greenroom` carry out its decisions. What is absent, and stays so: tokio, ractor,
//! sled, clocks, random numbers, files and the network. Time (`at_ms`, unix milliseconds) and ids are
//! arguments.
//!
//! Reading order: [`message`] (the content of a conversation), [`entry`] (the records), [`path`] (the active
//! records), [`size`], [`reasoning`], [`window`] and [`usage`] (sizes), [`unreported`] and [`cost`] (costs), [`settings`]
//! and [`due`] (when and how to compact), [`plan`] (where to cut), [`narrowing`] (what the next agent of a team sees), [`prune`] (which tool results are sent
//! shorter), [`words`], [`skills`] and [`ledger`] (what is carried verbatim), [`summary`] (what to request and what to accept), [`compacting`] (a compaction from its plan to
//! its end), [`compactions`] (what each one did), [`question`] (questions to people), [`log`] (a session's records in memory, and additions to
//! them), [`failure`] (failures), [`run`] (what to do next).

pub mod bill;
pub mod carried;
pub mod compacting;
pub mod compactions;
pub mod context_usage;
pub mod cost;
pub mod due;
pub mod entry;
pub mod failure;
pub mod files;
pub mod head;
pub mod image;
pub mod ledger;
pub mod log;
pub mod message;
pub mod narrowing;
#[cfg(test)]
mod notation;
pub mod path;
pub mod plan;
pub mod prune;
pub mod question;
pub mod random;
pub mod reasoning;
pub mod redact;
pub mod render;
pub mod retry;
pub mod run;
pub mod search;
pub mod session_id;
pub mod settings;
pub mod size;
pub mod skills;
pub mod summary;
pub mod terms;
pub mod text;
pub mod unreported;
pub mod usage;
pub mod window;
pub mod words;

pub use carried::{Carried, Fact, FactKind, FactRecall, Quote, SkillText};
pub use entry::{Compaction, Entry, EntryId, EntryKind, RunId, RunOutcome};
pub use failure::{Failure, FailureClass};
pub use files::{FileOps, Touch, Touched};
pub use head::Head;
pub use message::{
    AssistantMessage, Block, Image, ImageError, Message, Native, Part, StopReason, ToolCall, ToolResult,
    ToolSpec, ToolStatus, Usage,
};
