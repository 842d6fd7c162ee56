//! Shared by the command line and the chat: the terminal, its rows and keys, and the formatting of numbers.
//!
//! Invariants: text reaches a terminal through [`Screen`] or as a [`Row`], which hold only its harmless form;
//! [`Row`] is the only type for styled text. Nothing here knows commands, a runtime or the configuration.
//!
//! Reading order: `row` (styled text), `screen` (the two output streams) with `progress`, `table`, `harmless` (text from outside), `draw` (the bottom of a terminal),
//! `input` and `keys` (the user's input), `theme` (colours), `format`, `text` and `time` (formatting), `compactions` (what
//! they did), `approvals` (what a person is asked to approve), `interrupt` (signals).

pub mod approvals;
pub mod compactions;
pub mod draw;
pub mod format;
mod harmless;
pub mod input;
pub mod interrupt;
mod keys;
pub mod progress;
pub mod row;
pub mod screen;
pub mod table;
pub mod text;
pub mod theme;
pub mod time;

pub use self::interrupt::Interrupts;
pub use self::row::{Look, Row};
pub use self::screen::{ColorChoice, Screen};
