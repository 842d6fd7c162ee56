//! Tests across crates (`it/`) and benchmarks (`bench/`); here is what the benchmarks share.
//!
//! Invariants: a benchmark gives its results as ratios to a baseline of the same run, since the machine's own
//! speed is nobody's merit; nothing here asserts a time.

#[path = "bench/history.rs"]
pub mod history;
#[path = "bench/measure.rs"]
pub mod measure;
