//! The store from the callers' perspective: normal operation (`basics`, `model`), backups (`backup`), disk failures (`failing`),
//! batches of several frames (`parts`), power failures (`power`), the end of the process (`crash`), damaged
//! or lost bytes (`damage`, `loss`), decisions on opening a damaged store (`opening`), which segments count
//! (`listing`), deletion (`deletion`), read-only stores (`read_only`), moved directories (`moved`), and a
//! truncated end while the index is behind (`tail`). The helpers are in `world`.
//!
//! Invariants: a random test names its seed when it fails, and fails if too few of its cases tested anything.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod backup;
mod basics;
mod crash;
mod damage;
mod deletion;
mod failing;
mod handles;
mod listing;
mod loss;
mod model;
mod moved;
mod opening;
mod parts;
mod power;
mod read_only;
mod tail;
pub(crate) mod world;
