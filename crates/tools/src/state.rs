//! The application's state: values that a program gives an agent, found by their types.
//!
//! Invariants: there is at most one value of each type; a missing type is an error that names it, never a
//! panic.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Values of a program, by type: a connection pool, a configuration, a client. Cloning is cheap.
#[derive(Clone, Default)]
pub struct AppState(Arc<HashMap<TypeId, Value>>);

#[derive(Clone)]
struct Value {
    type_name: &'static str,
    value: Arc<dyn Any + Send + Sync>,
}

impl AppState {
    /// Adds a value, replacing one of the same type.
    #[must_use]
    pub fn with<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        let value = Value { type_name: type_name::<T>(), value: Arc::new(value) };
        Arc::make_mut(&mut self.0).insert(TypeId::of::<T>(), value);
        self
    }

    /// Returns the value of this type.
    ///
    /// # Errors
    /// [`MissingState`] if there is none.
    pub fn get<T: Send + Sync + 'static>(&self) -> Result<Arc<T>, MissingState> {
        let found = self.0.get(&TypeId::of::<T>()).map(|found| Arc::clone(&found.value));
        found
            .and_then(|value| value.downcast().ok())
            .ok_or_else(|| MissingState { wanted: type_name::<T>(), known: self.names() })
    }

    /// Returns the sorted names of the types.
    fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<&'static str> = self.0.values().map(|value| value.type_name).collect();
        names.sort_unstable();
        names
    }
}

impl fmt::Debug for AppState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

/// Equal only if they are the same values, by identity.
impl PartialEq for AppState {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for AppState {}

/// The agent has no state of the requested type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the agent has no state of type `{wanted}`{}; give it one with `Agent::state`", has(known))]
#[non_exhaustive]
pub struct MissingState {
    /// The type's name.
    pub wanted: &'static str,
    /// The names of the types that are available.
    pub known: Vec<&'static str>,
}

fn has(known: &[&str]) -> String {
    if known.is_empty() { String::new() } else { format!(", only of `{}`", known.join("`, `")) }
}
