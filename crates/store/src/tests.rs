//! The store as its callers see it: when nothing goes wrong (`basics`, `model`), when the disk fails (`failing`), when
//! a batch takes several frames (`parts`), when the power fails (`power`), when the process ends (`crash`), when bytes
//! are damaged or lost (`damage`, `loss`), what opening a damaged store decides (`opening`), which segments
//! count (`listing`), when sessions are deleted (`deletion`), when nothing may be written (`read_only`), and when the end is
//! cut off while the index is behind (`tail`). The helpers are in `world`.
//!
//! Invariants: a random test names its seed when it fails, and fails if too few of its cases tested anything.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod basics;
mod crash;
mod damage;
mod deletion;
mod failing;
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
