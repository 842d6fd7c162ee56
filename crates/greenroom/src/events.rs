//! Room: events, their subscribers, and the transient progress that events report.
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
