//! The store as its callers see it: when nothing goes wrong (`basics`, `model`), when the disk fails (`failing`),
//! when the power goes (`power`) or the process ends (`crash`), when bytes are damaged or lost (`damage`), and when sessions are deleted (`deletion`).
//!
//! Helpers are in `world`. Random tests print their seed when they fail.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod basics;
mod crash;
mod damage;
mod deletion;
mod failing;
mod model;
mod power;
pub(crate) mod world;
