//! The open consumers of a runtime, for which a shutdown waits.
//!
//! Invariants: a name is open at most once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// The open consumers, by their names.
#[derive(Debug, Default)]
pub(crate) struct Consumers {
    /// Whether each has processed all events that there will be.
    open: Mutex<HashMap<Arc<str>, bool>>,
    changed: Notify,
}

impl Consumers {
    /// Opens a name; `false` if it is open.
    pub(crate) fn open(&self, name: &Arc<str>) -> bool {
        let mut open = self.open.lock();
        let is_new = !open.contains_key(name);
        if is_new {
            open.insert(Arc::clone(name), false);
        }
        is_new
    }

    /// Whether a name is open.
    pub(crate) fn is_open(&self, name: &str) -> bool {
        self.open.lock().contains_key(name)
    }

    /// Notes that a consumer has processed all events that there will be.
    pub(crate) fn reached_end(&self, name: &str) {
        if let Some(has_ended) = self.open.lock().get_mut(name) {
            *has_ended = true;
        }
        self.changed.notify_waiters();
    }

    /// Closes a name.
    pub(crate) fn close(&self, name: &str) {
        self.open.lock().remove(name);
        self.changed.notify_waiters();
    }

    /// Waits until every open consumer has processed all events, or was closed. Returns the names of those that have not
    /// after this time.
    pub(crate) async fn ended(&self, at_most: Duration) -> Vec<Arc<str>> {
        let unfinished = || -> Vec<Arc<str>> {
            let open = self.open.lock();
            open.iter().filter(|(_, has_ended)| !**has_ended).map(|(name, _)| Arc::clone(name)).collect()
        };
        let all = async {
            loop {
                let changed = self.changed.notified();
                if unfinished().is_empty() {
                    return;
                }
                changed.await;
            }
        };
        let _is_late = tokio::time::timeout(at_most, all).await;
        unfinished()
    }
}
