//! The points of conformance, for each engine.
//!
//! Invariants: each engine shows each point, or its table says why the point has no meaning for it.

mod one_process;
mod postgres;
