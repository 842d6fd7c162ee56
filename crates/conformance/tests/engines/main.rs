//! The points of conformance, for each engine.
//!
//! Invariants: each engine shows each point, or its table says why the point has no meaning for it.
#![expect(clippy::tests_outside_test_module, reason = "a folder of tests")]

mod one_process;
mod postgres;
