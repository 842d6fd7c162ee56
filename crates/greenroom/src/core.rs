//! Room: the common parts of actors and handles: every message on one page ([`message`]), access to a session
//! ([`door`]), the shared state of a session ([`shared`]), and the services of a runtime ([`deps`]).
//!
//! May use `agent`, `lane`, `limits`, `events` and `values`.
//!
//! Invariants: nothing here knows an actor, only the messages to actors.

pub(crate) mod agent_line;
pub(crate) mod asking;
pub(crate) mod child_work;
pub(crate) mod consumers;
pub(crate) mod deps;
pub(crate) mod door;
pub(crate) mod handover;
#[cfg(feature = "command-tools")]
pub(crate) mod kept_files;
pub(crate) mod mail;
pub(crate) mod message;
pub(crate) mod metrics;
pub(crate) mod ownership;
pub(crate) mod readiness;
pub(crate) mod running;
pub(crate) mod searches;
pub(crate) mod shared;
pub(crate) mod terms;
pub(crate) mod trace;
