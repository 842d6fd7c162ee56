//! Which tool calls may run: rules on tools, paths and commands, and the mode of a session.
//!
//! The one key decision: **a call is allowed only by what was understood of it**. A command is taken apart by a
//! parser of the shell's language, each of its simple commands is judged by its words, and what the parser does
//! not understand asks. This crate decides and does nothing: it reads no file and runs no command. What an
//! allowed command then does is confined elsewhere, by the sandbox of `greenroom-tools`.
//!
//! Invariants: a rule that denies wins over every other one, in every mode; a rule that asks wins over those
//! that allow and over the mode; a policy that cannot be read denies everything.
//!
//! Reading order: `policy` (the rules and the mode), `rule`, `pattern` (of a command's words) and `path` (of paths), `mode`,
//! `shell` (the parser of commands), `programs` (what is known of them), `judge` (the decision), `offer` (the rules
//! that a person is offered).

mod judge;
mod mode;
mod offer;
mod path;
mod pattern;
mod policy;
mod programs;
mod rule;
mod shell;

pub use judge::{Call, Question, Verdict};
pub use mode::{Mode, UnknownMode};
pub use policy::Policy;
pub use rule::{Effect, InvalidRule, PolicyRule, Subject};
pub use shell::{Script, Simple, Unreadable, Word, parse};
