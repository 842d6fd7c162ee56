//! The store as its callers see it.
//!
//! Each file here is one kind of trouble; the helpers they share are in `world`. Random tests print their seed.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod basics;
mod world;
