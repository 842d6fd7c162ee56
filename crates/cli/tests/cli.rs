//! The binary, run as a user runs it, against simulated models over real HTTP:
//!
//! - `acp`: sessions for an editor
//! - `chats`: the chat at a terminal, in tmux
//! - `closed`: the store, the token and the user's configuration are out of the file tools' reach
//! - `keeping`: backups, and sessions that are not kept
//! - `cluster`: three nodes that share a database, and faults
//! - `commands`: what a model's commands can read of us, and that none outlives us
//! - `compactions`: each is told where the user is
//! - `command_line`: every help, every id, `--json`, progress, exit codes
//! - `completions`: in the real shells
//! - `configuration`: what a file in the current folder cannot do; what cannot be read
//! - `deployed`: the templates of `deploy/`
//! - `daily`: what people type all day: approvals, going back, models, settings, a server that is down
//! - `demo`: fills and compacts; empty folders; killed in the middle
//! - `front`: without a command, without a key, with a server on this machine
//! - `going_on`: sessions are found again, gone on with, compacted; branches
//! - `host`: one process for many terminals: found, started, shared, killed, replaced
//! - `layers`: files, variables and flags over one another; single settings
//! - `canaries`: secrets in many places, and every sink without them
//! - `live`: settings are edited while a command runs
//! - `log`: what `-v` and `-vv` tell
//! - `mcp`: the tools of MCP servers
//! - `models`: limits, prices and where they come from
//! - `permissions`: by flags, by files and by answers in the chat
//! - `process`: asked to end; no file descriptors left
//! - `prompts`: system prompts, a project's instructions, skills
//! - `questions`: listed beside a program that works, answered once, and left to the program that asked
//! - `refusals`: every way a provider refuses ends with its class
//! - `resumed`: a session comes back as it was; one-shots; lists
//! - `run`: text, events, failures, interruptions
//! - `run_options`: an answer of a form, images, limits, together
//! - `serve`: clients that hold something open, tokens that others may know, a wide bind
//! - `serve_kills`: no event of a killed server is lost or doubled
//! - `simulate`: a scripted model for clients in any language
//! - `spending`: prices of the user's own, and sums by day and label
//! - `stored`: sessions, show, plan, delete; a store in use; damage
//! - `surfaces`: a manual compaction, as settings, in an export, over JSON-RPC
//! - `terminal`: what others say steers no terminal; void answers
//! - `top`: the live sessions of a host
//! - `traces`: what a collector receives
//! - `usage`: what cannot work is said in one line, with its code

#![expect(clippy::unwrap_used, reason = "tests end where something is not as it should be")]

mod cli {
    mod acp;
    mod at_work;
    mod canaries;
    pub(crate) mod chats;
    pub(crate) mod closed;
    mod cluster;
    pub(crate) mod command_line;
    pub(crate) mod commands;
    pub(crate) mod compactions;
    pub(crate) mod completions;
    pub(crate) mod configuration;
    mod daily;
    pub(crate) mod demo;
    mod deployed;
    mod front;
    pub(crate) mod going_on;
    pub(crate) mod host;
    pub(crate) mod keeping;
    mod key_command;
    pub(crate) mod layers;
    pub(crate) mod live;
    pub(crate) mod log;
    pub(crate) mod mcp;
    pub(crate) mod models;
    pub(crate) mod permissions;
    pub(crate) mod process;
    pub(crate) mod prompts;
    pub(crate) mod providers;
    pub(crate) mod questions;
    pub(crate) mod refusals;
    mod resumed;
    pub(crate) mod run;
    pub(crate) mod run_options;
    pub(crate) mod screen;
    pub(crate) mod serve;
    pub(crate) mod serve_kills;
    pub(crate) mod simulate;
    mod spending;
    pub(crate) mod stored;
    pub(crate) mod support;
    pub(crate) mod surfaces;
    pub(crate) mod terminal;
    pub(crate) mod top;
    #[cfg(feature = "otlp")]
    mod traces;
    mod undo;
    pub(crate) mod usage;
}
