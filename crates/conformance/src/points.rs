//! The points, by subject.
//!
//! Invariants: nothing here asserts how long something takes, except for leases, which are about time.

pub mod copies;
pub mod faults;
pub mod log;
pub mod owners;
