//! Values of labels that come from outside: names of providers, models and tools.
//!
//! Invariants: there are at most `max` values and [`OTHER`]; the first ones that occur are kept.

use std::sync::Arc;

use parking_lot::RwLock;

/// The value for all names that are not kept.
pub(super) const OTHER: &str = "other";
/// The longest name that is kept, in bytes.
const NAME_BYTES_MAX: usize = 128;

/// The values of one label.
pub(super) struct Names {
    max: usize,
    known: RwLock<Vec<Arc<str>>>,
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
            if let Some(known) = find(&known, name) {
                return known;
            }
            if known.len() >= self.max {
                return self.other();
            }
        }
        let mut known = self.known.write();
        match find(&known, name) {
            Some(known) => known,
            None if known.len() >= self.max => self.other(),
            None => {
                let name: Arc<str> = name.into();
                known.push(Arc::clone(&name));
                name
            }
        }
    }

    /// Returns the value for names that are not kept.
    pub(super) fn other(&self) -> Arc<str> {
        Arc::clone(&self.other)
    }
}

/// Returns a known name. They are few, and differ in length: nothing is hashed.
fn find(known: &[Arc<str>], name: &str) -> Option<Arc<str>> {
    known.iter().find(|known| ***known == *name).cloned()
}
