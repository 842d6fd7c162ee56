//! Room: limits: [`admission`] (of input), [`restarts`], [`spending`] (the budget of a tree of sub-agents), [`labels`] (limits
//! by label), [`accounts`] (what was spent, stored), and [`waits`] (deadlock detection).
//!
//! May use `values`.
//!
//! Invariants: a limit holds no session; what was spent is kept in the store. A budget belongs to any type with an account
//! ([`spending::tree::Spends`]).

pub(crate) mod accounts;
pub(crate) mod admission;
pub(crate) mod labels;
pub(crate) mod restarts;
pub(crate) mod spending;
pub(crate) mod waits;
