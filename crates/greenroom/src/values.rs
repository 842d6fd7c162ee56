//! Room: values: errors, prompts and replies, states, compactions, retention, names and times.
//!
//! May use no other room.
//!
//! Invariants: a value holds no connection, no task and no lock.

pub(crate) mod clock;
pub(crate) mod compaction;
pub(crate) mod error;
pub(crate) mod hook;
pub(crate) mod metadata;
pub(crate) mod model_info;
pub(crate) mod names;
pub(crate) mod partial_json;
pub(crate) mod prompt;
pub(crate) mod rate;
pub(crate) mod recalled;
pub(crate) mod retention;
#[cfg(feature = "command-tools")]
pub(crate) mod rewind;
pub(crate) mod state;
