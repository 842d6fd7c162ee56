//! Values of labels that come from outside: names of providers, models and tools.
//!
//! Invariants: there are at most `max` values and [`OTHER`]; the first ones that occur are kept.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::RwLock;

/// The value for all names that are not kept.
pub(super) const OTHER: &str = "other";
/// The longest name that is kept, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// The values of one label.
pub(super) struct Names {
    max: usize,
    known: RwLock<HashSet<Arc<str>>>,
    other: Arc<str>,
}

impl Names {
    pub(super) fn new(max: usize) -> Self {
        Self { max, known: RwLock::default(), other: OTHER.into() }
    }

    /// Returns the value for a name.
    pub(super) fn of(&self, name: &str) -> Arc<str> {
        if name.len() > NAME_BYTES_MAX {
            return self.other();
        }
        {
            let known = self.known.read();
            if let Some(known) = known.get(name) {
                return Arc::clone(known);
            }
            if known.len() >= self.max {
                return self.other();
            }
        }
        let mut known = self.known.write();
        match known.get(name) {
            Some(known) => Arc::clone(known),
            None if known.len() >= self.max => self.other(),
            None => {
                let name: Arc<str> = name.into();
                known.insert(Arc::clone(&name));
                name
            }
        }
    }

    /// Returns the value for names that are not kept.
    pub(super) fn other(&self) -> Arc<str> {
        Arc::clone(&self.other)
    }
}
