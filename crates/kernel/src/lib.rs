//! The decisions: given what happened, what to do next. Messages, entries, paths, sizes, plans and runs.
//!
//! The one key decision: **this crate only decides.** Every function here is a plain function of its
//! arguments; the actors of `greenroom` carry out its decisions. What is absent, and stays so: tokio, ractor,
//! sled, clocks, unseeded random numbers, files and the network. Time (`at_ms`, Unix milliseconds), ids and seeds are
//! arguments.
//!
//! Reading order:
//!
//! - A conversation: [`message`] (with [`image`]), [`messages`] (a shared list), [`entry`] (the records; [`terms`] of
//!   prompts), [`path`] (the active records), [`render`] (what is sent for records that are no messages), [`log`] (a
//!   session's records in memory, and additions to them), [`head`] (their summary), [`session_id`], [`search`].
//! - Sizes: [`size`], [`reasoning`], `window`, [`usage`], [`context_usage`], [`unreported`].
//! - Costs: [`cost`] (limits), [`bill`] (what was spent).
//! - Compaction: [`settings`] and [`due`] (when and how), [`plan`] (where to cut), [`narrowing`] (what the next agent
//!   of a team sees), [`prune`] (which tool results are sent shorter), [`words`], `skills`, [`ledger`] and [`files`]
//!   (what is [`carried`] verbatim), [`summary`] (what to request and what to accept), [`compacting`] (from the plan to
//!   the end), [`compactions`] (what each one did).
//! - Runs: [`run`] (what to do next), [`failure`] and [`retry`], [`question`] (questions to people).
//! - Beside these: [`redact`] (secrets), [`text`] (truncation, characters that mislead), [`random`] (numbers from a
//!   seed that is given; for tests and simulations), and the `notation` of paths in `tests`.

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
pub mod messages;
pub mod narrowing;
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
mod skills;
pub mod summary;
pub mod terms;
#[cfg(test)]
mod tests;
pub mod text;
pub mod unreported;
pub mod usage;
mod window;
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
pub use messages::Messages;
