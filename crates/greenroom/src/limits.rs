//! Room: what there may be only so much of: inputs, restarts, money, and waits for one another.
//!
//! May touch `values`.
//!
//! Invariants: a limit knows no session. A budget belongs to whatever has an account ([`spending::tree::Spends`]).

pub(crate) mod admission;
pub(crate) mod restarts;
pub(crate) mod spending;
pub(crate) mod waits;
