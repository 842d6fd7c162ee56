//! Programs to read and run: `cargo run --example NAME`. Each is offline and short.
