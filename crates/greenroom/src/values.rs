//! Room: values, and rules that need nothing else.
//!
//! - In and out of sessions: [`prompt`], [`state`], [`compaction`], [`recalled`], [`metadata`], [`hook`], [`rewind`], [`error`].
//! - Rules: [`retention`] (which sessions are kept), [`family`] (the tree of sub-agents' sessions in a store), [`rate`] (amounts
//!   per minute, of lanes and of labels), [`model_info`] (what a model costs).
//! - Forms: [`names`] (enums as names), [`partial_json`], [`clock`].
//!
//! May use no other room.
//!
//! Invariants: a value holds no connection, no task and no lock.

pub(crate) mod clock;
pub(crate) mod compaction;
pub(crate) mod error;
pub(crate) mod family;
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
