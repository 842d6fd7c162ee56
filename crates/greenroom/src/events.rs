//! Room: what sessions tell: events, who subscribes to them, and what is in progress as far as they tell.
//!
//! May touch `values`.
//!
//! Invariants: an event is a copy. Publishing one waits for no subscriber.

pub(crate) mod activity;
pub(crate) mod bus;
pub(crate) mod entry_events;
pub(crate) mod event;
pub(crate) mod message_view;
pub(crate) mod pairs;
pub(crate) mod run_link;
