//! The chat at a terminal: a client of a greenroom server that draws a few rows and leaves the rest to the terminal.
//!
//! The one key decision: **the chat knows sessions through the server's client alone** ([`Backend`]). Its folder, its
//! settings and another connection come from the program around it ([`Program`]), so that it is the same beside a host and
//! in one process.
//!
//! Invariants: no key waits for the runtime; what was said keeps its order; the terminal is given back however it ends.
//!
//! Reading order: [`Program`], `backend` (what is asked), `model` (what is seen, and what a key does), `live` (what is
//! done), `commands` (the slash commands); then what the model is made of: `editor`, `ask`, `picker`, `calls`, `markdown`,
//! `status`.

mod ask;
mod attached;
mod backend;
mod calls;
pub mod commands;
mod editor;
pub mod figures;
mod follow;
mod highlight;
mod history;
mod live;
mod markdown;
mod model;
mod picker;
mod program;
mod status;

use std::time::Duration;

use greenroom_terminal::input::Input;
use tokio::sync::mpsc;

pub use self::backend::{Backend, HowToCompact};
pub use self::live::{Ended, Opened, open, talk};
pub use self::program::{Place, Program, Reconnected, Silence};

/// What is said where the host has ended, by itself, stopped or killed.
pub const NEXT_HOST: &str = "the host exited; starting another one, where this session continues";
/// How long a host may say nothing before that is said.
pub const SILENCE_MAX: Duration = Duration::from_secs(2);
/// How much is shown of an input that waits from before, in columns.
pub const HELD_COLUMNS: usize = 60;

/// What was typed before the chat could be drawn.
#[derive(Debug, Default)]
pub struct Typed {
    /// The keys so far.
    pub before: Vec<Input>,
    /// Where what follows comes from, if that is read already.
    pub inputs: Option<mpsc::Receiver<Input>>,
}
