//! The commands: a file for each, and the view of a run.
//!
//! May use `host`, `agent`, `config`, `args` and `error`. No other room knows a command.
//!
//! - Conversations: `chat`, `run`, `demo`, `questions`; `run_view` and `view` show a run, `confirm` asks the user.
//! - Stored sessions: `sessions`, `show` (with `tree`), `compact` (with `plan`), `undo`, `fork`, `recall`, `export`,
//!   `import`, `prune`, `usage`.
//! - Services: `serve`, `rpc`, `acp`, `host`, `simulate`, `top`.
//! - Set-up: `config`, `login`, `models`, `mcp`, `doctor`, `store`, `completions`; `eval` measures summaries.
//!
//! Invariants: a command reads its flags, uses a runtime or a store through `host`, and prints through a
//! `Screen`. Completion reads the store directly, because it must not start or wait for anything, and so does `store`,
//! which is about its files.

pub(crate) mod acp;
pub(crate) mod chat;
pub(crate) mod compact;
pub(crate) mod completions;
pub(crate) mod config;
mod confirm;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod eval;
pub(crate) mod export;
pub(crate) mod fork;
pub(crate) mod host;
pub(crate) mod import;
pub(crate) mod login;
pub(crate) mod mcp;
pub(crate) mod models;
pub(crate) mod plan;
pub(crate) mod prune;
pub(crate) mod questions;
pub(crate) mod recall;
pub(crate) mod rpc;
pub(crate) mod run;
mod run_view;
pub(crate) mod serve;
pub(crate) mod sessions;
pub(crate) mod show;
pub(crate) mod simulate;
pub(crate) mod store;
pub(crate) mod top;
pub(crate) mod tree;
pub(crate) mod undo;
pub(crate) mod usage;
mod view;
