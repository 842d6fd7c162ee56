//! Room: events ([`event`], with [`message_view`] and [`reasons`]; [`entry_events`] of a log's entries; [`redact`]), their
//! subscribers ([`bus`]), the events of one run ([`run_link`]), and what they say about a session's present work ([`activity`],
//! [`pairs`]).
//!
//! May use `values`.
//!
//! Invariants: an event is a copy. Publishing an event waits for no subscriber.

pub(crate) mod activity;
pub(crate) mod bus;
pub(crate) mod entry_events;
pub(crate) mod event;
pub(crate) mod message_view;
pub(crate) mod pairs;
pub(crate) mod reasons;
pub(crate) mod redact;
pub(crate) mod run_link;
