//! Room: the API for programs: runtime, sessions, requests and their streams, and listings.
//!
//! May use every other room; no other room may use this one.
//!
//! - The runtime: `runtime` and its builder, `env` (from the environment), `models`, `metrics`, `backup`, `spending`.
//! - Sessions: `session` (the handle), `sessions` (listings), `children`, `within` (the sessions of a label), `fork`, `deletion`,
//!   `retention`, `rewind`, `questions`.
//! - Requests: `request` and `run_stream` (its events), `resume`, `take_over` (work of other nodes).
//! - Durable events: `follow` and `position`; `consumer` and `consumers` (with stored positions).
//!
//! Invariants: the API turns a call into a message and waits for the answer; it decides nothing about runs and
//! compactions. Deletions, which concern several sessions, are carried out here, one at a time.

#[cfg(feature = "disk")]
mod backup;
pub(crate) mod children;
pub(crate) mod consumer;
pub(crate) mod consumers;
pub(crate) mod deletion;
#[cfg(feature = "disk")]
pub(crate) mod env;
pub(crate) mod follow;
pub(crate) mod fork;
#[cfg(feature = "metrics")]
mod metrics;
pub(crate) mod models;
pub(crate) mod position;
pub(crate) mod questions;
pub(crate) mod request;
pub(crate) mod resume;
pub(crate) mod retention;
#[cfg(feature = "command-tools")]
mod rewind;
pub(crate) mod run_stream;
pub(crate) mod runtime;
pub(crate) mod session;
pub(crate) mod sessions;
pub(crate) mod spending;
pub(crate) mod take_over;
mod within;
