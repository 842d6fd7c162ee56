//! What the command line and the chat share: the terminal, its rows and keys, and figures in words.
//!
//! Invariants: text reaches a terminal through [`Screen`] or as a [`Row`], which hold only its harmless form; there is one
//! type for styled text, [`Row`]. Nothing here knows a command, a session or a configuration.
//!
//! Reading order: `row` (styled text), `screen` (the two output streams), `draw` (the bottom of a terminal), `input` and
//! `keys` (what the user types), `format`, `text` and `time` (numbers in words), `interrupt` (signals), `files` (files that
//! are read whole).

pub mod draw;
pub mod files;
pub mod format;
mod harmless;
pub mod input;
pub mod interrupt;
mod keys;
pub mod progress;
pub mod row;
pub mod screen;
pub mod text;
pub mod time;

pub use self::interrupt::Interrupts;
pub use self::row::{Look, Row};
pub use self::screen::{ColorChoice, Screen};
