//! Sessions for editors: an agent of the Agent Client Protocol (ACP) on a pair of streams.
//!
//! The key decision: **like the chat, it reaches sessions only through the server's client**. The surrounding program
//! ([`Program`]) connects to them, and provides its settings.
//!
//! Invariants: only the protocol is written to the output; all updates of a turn precede the response to its prompt; a
//! call that needs an approval runs only after an answer of the person at the editor, or at another client.
//!
//! Reading order: `program` ([`Program`]), `agent` (the methods), `session` (an open session and its turns), `events`
//! (what is forwarded to the editor meanwhile), `updates` (events as session updates); then the conversions: `calls`, `prompt`, `questions`, `options`.

mod agent;
mod calls;
mod events;
mod options;
mod program;
mod prompt;
mod questions;
mod session;
mod updates;

pub use self::agent::serve;
pub use self::program::{Connected, Problem, Program, Server, ServerKind, Wanted};
