//! Room: the common parts of actors and handles.
//!
//! - Messages: [`message`] (all of them), [`mail`] (what one handler sends to a child, together), [`agent_line`] (from a run's
//!   tasks to its agent, even while the session sleeps).
//! - Reaching a session: [`door`] (its mailbox, waking, asking), [`handover`] (a prompt and its reply), [`ownership`] (which
//!   node runs it).
//! - The bill of a model call: [`flight`].
//! - The state of a session: [`shared`], [`running`] (the run in progress), [`child_work`] (calls of sub-agents), [`terms`] (of
//!   a prompt), [`asking`] (open questions in its tree).
//! - The services of a runtime: [`deps`], [`consumers`] (the open ones), [`searches`], [`kept_files`], [`readiness`],
//!   [`metrics`], [`trace`].
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
pub(crate) mod flight;
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
