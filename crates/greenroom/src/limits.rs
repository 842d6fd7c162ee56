//! Room: limits: input, restarts, money, and deadlock detection.
//!
//! May use `values`.
//!
//! Invariants: a limit knows no session. A budget belongs to any type with an account
//! ([`spending::tree::Spends`]).

pub(crate) mod admission;
pub(crate) mod restarts;
pub(crate) mod spending;
pub(crate) mod waits;
