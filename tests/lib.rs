//! Tests across crates (`it/`) and benchmarks (`bench/`).
