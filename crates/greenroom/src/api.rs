//! Room: what programs hold and call: a runtime, sessions, requests and their streams, and what lists them.
//!
//! May touch every other room; no other room may touch this one.
//!
//! Invariants: what is here turns a call into a message and waits for the answer. It decides nothing.

pub(crate) mod children;
pub(crate) mod deletion;
pub(crate) mod env;
pub(crate) mod models;
pub(crate) mod questions;
pub(crate) mod request;
pub(crate) mod resume;
pub(crate) mod run_stream;
pub(crate) mod runtime;
pub(crate) mod session;
pub(crate) mod sessions;
