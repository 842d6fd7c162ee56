//! The user's files: configurations, keys, histories. Reading them within limits, writing them so that only the user can
//! read them, and who else can have read or changed one.
//!
//! The one key decision: **these rules have one home.** What is absent: what the files contain, and the files of tools and
//! of the store, which have their own rules.
//!
//! Reading order: [`read`] (bounded reads of regular files), [`access`] (who else has access), [`private`] (writing).

pub mod access;
pub mod private;
mod read;

pub use read::{FileError, open, read, read_all, read_line, read_start};
