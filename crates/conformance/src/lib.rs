//! The conformance suite for storage engines, and the tools that it needs: a PostgreSQL server of their own, and a
//! proxy that breaks connections.
//!
//! Invariants: a point is one function, which takes a [`Fixture`] and panics if the engine behind it fails. No point knows an
//! engine. Random ones print their seed, can be run again with it, count what they did and demand a minimum.
//!
//! | point | what | function |
//! |---|---|---|
//! | 1 | ids are dense, a batch is there entirely or not at all | [`points::log::batches`], [`points::faults::kills`] |
//! | 2 | a key writes once | [`points::log::keys`], [`points::faults::cuts`] |
//! | 3 | of two owners, only the newer one writes | [`points::owners::newer_owner_writes`] |
//! | 4 | a takeover that races an append | [`points::owners::takeover_races`] |
//! | 5 | epochs grow | [`points::owners::epochs_grow`] |
//! | 6 | an owner that was frozen | [`points::owners::frozen_owner`] |
//! | 7 | a lease is never longer than granted | [`points::owners::lease_ends_in_time`] |
//! | 8 | claims that race | [`points::owners::claims_race`] |
//! | 9 | a read sees every acknowledged append | [`points::log::reads`], [`points::owners::reads_by_others`] |
//! | 10 | deleted stays deleted | [`points::log::deletion`], [`points::owners::deleted_for_others`] |
//! | 11 | a failed append wrote nothing, or is settled by its repetition | [`points::faults::cuts`] |
//! | 12 | large entries, and 10,000 sessions | [`points::log::sizes`], [`points::log::walk`] |
//! | 13 | an engine that went back in time | [`points::faults::set_back`] |
//! | 14 | a power cut | by hand: `GREENROOM_POWER_CUTS=20`, for files in the store's own test, for PostgreSQL in `postgres::power_cut` |

pub mod kit;
pub mod points;
pub mod proxy;
pub mod server;

use std::sync::Arc;
use std::time::Duration;

use greenroom_store::{Answer, Engine};

/// A place where sessions are stored, for the duration of a test.
pub trait Fixture: Sync {
    /// Opens it for the node of this name, as a process does that starts. What an earlier one acknowledged is there.
    fn open<'a>(&'a self, node: &'a str) -> Answer<'a, Arc<dyn Engine>>;
}

/// A place that several nodes share.
pub trait Cluster: Fixture {
    /// How long a node's lease is.
    fn lease(&self) -> Duration;

    /// Holds everything that passes between the node and the engine, as if the node were frozen, or lets it pass again.
    fn hold(&self, node: &str, is_held: bool);

    /// Lets the node's lease run out in the engine at once. The node does not know.
    fn expire<'a>(&'a self, node: &'a str) -> Answer<'a, ()>;
}
