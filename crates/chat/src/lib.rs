//! The chat at a terminal: a client of a Greenroom server that draws a few rows and leaves the rest to the
//! terminal.
//!
//! The key decision: **the chat reaches sessions only through the server's client** ([`Backend`]). The
//! surrounding program ([`Program`]) provides its folder, its settings and other connections, so the chat is
//! the same with a host and in one process.
//!
//! Invariants: no key waits for the runtime; inputs keep their order; the terminal is restored however the
//! chat ends.
//!
//! Reading order: `program` ([`Program`]), `backend` (requests), `model` (what is shown, and what a key does), `live`
//! (the effects), `follow` (the order of events), `commands` (the slash commands) and `told` (those that are answered
//! with text); then the parts of the model: `editor`, `history` (earlier prompts), `attached` (files in prompts),
//! `ask`, `picker`, `calls`, `viewer`, `markdown`, `highlight`, `status`, `figures`, `notice`; before a chat: `choose`.

mod ask;
pub mod attached;
mod backend;
mod calls;
pub mod choose;
pub mod commands;
mod editor;
pub mod figures;
mod follow;
mod highlight;
mod history;
mod live;
mod markdown;
mod model;
pub mod notice;
mod picker;
mod program;
mod status;
mod told;
mod viewer;

use std::time::Duration;

use greenroom_terminal::input::Input;
use tokio::sync::mpsc;

pub use self::backend::{Backend, HowToCompact, new_key};
pub use self::commands::INIT;
pub use self::live::{Ended, Opened, open, talk};
pub use self::program::{
    Chosen, Environment, Origin, OtherModel, Program, PromptPart, Reconnected, Silence, Skill,
};
pub use self::told::Told;

/// The message after the host has ended, by itself, stopped or killed.
pub const NEXT_HOST: &str = "The host ended; starting another one";
/// How long a host may be silent before the user is told.
pub const SILENCE_MAX: Duration = Duration::from_secs(2);
/// How many columns of an input that was held back are shown.
pub const HELD_COLUMNS: usize = 60;

/// The input from before the chat could be drawn.
#[derive(Debug, Default)]
pub struct Typed {
    /// The keys so far.
    pub before: Vec<Input>,
    /// The source of further input, if a thread reads it already.
    pub inputs: Option<mpsc::Receiver<Input>>,
}
