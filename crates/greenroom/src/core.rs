//! Room: what all actors and handles share: every message on one page ([`message`]), the way to a session ([`door`]), what
//! is shared of a session ([`shared`]), and the services of a runtime ([`deps`]).
//!
//! May touch `agent`, `lane`, `limits`, `events` and `values`.
//!
//! Invariants: nothing here knows an actor, only the messages that actors take.

pub(crate) mod agent_line;
pub(crate) mod asking;
pub(crate) mod child_work;
pub(crate) mod deps;
pub(crate) mod door;
pub(crate) mod handover;
pub(crate) mod mail;
pub(crate) mod message;
pub(crate) mod running;
pub(crate) mod shared;
pub(crate) mod terms;
pub(crate) mod trace;
