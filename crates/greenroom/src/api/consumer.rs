//! Consumers: programs that process every durable event at least once, across restarts.
//!
//! Invariants: a position is stored only by [`Consumer::commit`], so that an event that was not committed comes again;
//! one consumer of a name is open in a runtime at a time; a shutdown closes the store only after open consumers have
//! reached the end of the events and committed it, or were dropped, or took too long.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use crate::api::consumers::{encoded, store_labels, store_positions, stored_labels, stored_position};
use crate::api::follow::Follow;
use crate::api::position::Position;
use crate::core::deps::Deps;
use crate::events::event::Event;
use crate::values::error::{ConfigError, Result};

/// The longest name, in bytes.
const NAME_BYTES_MAX: usize = 128;
/// The longest name as a part of the store's keys, in bytes.
const ENCODED_BYTES_MAX: usize = 240;

/// A named reader of the durable events of all sessions, or of those with a label: for audit logs, bills, search
/// indexes and notifications. Its positions are in the runtime's store.
///
/// Each event comes at least once. A program that stores its own results together with [`Consumer::position`] in one
/// transaction, and passes that position to [`Consumer::from`], processes each exactly once.
///
/// ```
/// # use greenroom::prelude::*;
/// # use greenroom_simulator::Simulator;
/// # #[tokio::main] async fn main() -> Result<()> {
/// # let model = Simulator::echo();
/// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
/// # runtime.open("a", &Agent::new("m")).await?.prompt("Hello").await?;
/// let mut billing = runtime.consumer("billing").await?;
/// # let _end = tokio::spawn({ let runtime = runtime.clone(); async move { runtime.shutdown().await } });
/// while let Some(event) = billing.next().await? {
///     if event.kind.event_type() == EventType::RunEnd {
///         println!("{} ran", event.session);
///     }
///     billing.commit().await?;
/// }
/// # Ok(()) }
/// ```
#[must_use]
pub struct Consumer {
    deps: Arc<Deps>,
    name: Arc<str>,
    follow: Follow,
    /// The sessions in which the returned events and the committed ones differ.
    changed: BTreeSet<Arc<str>>,
    committed: Position,
    /// Whether its labels are stored.
    is_known: bool,
    _open: Open,
}

/// The name of an open consumer, until it is dropped.
struct Open {
    deps: Arc<Deps>,
    name: Arc<str>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.deps.consumers.close(&self.name);
    }
}

impl fmt::Debug for Consumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consumer").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Consumer {
    /// Opens the consumer of this name.
    pub(crate) async fn open(deps: &Arc<Deps>, name: &str) -> Result<Self> {
        if name.is_empty() || name.len() > NAME_BYTES_MAX || encoded(name).len() > ENCODED_BYTES_MAX {
            return Err(ConfigError::ConsumerName { name: name.to_owned() }.into());
        }
        let name: Arc<str> = Arc::from(name);
        if !deps.consumers.open(&name) {
            return Err(ConfigError::ConsumerInUse { name: name.to_string() }.into());
        }
        let open = Open { deps: Arc::clone(deps), name: Arc::clone(&name) };
        let committed = stored_position(&*deps.store, &name).await?;
        let labels = stored_labels(&*deps.store, &name).await?;
        let follow = Follow::all(deps, committed.clone()).durable().exact();
        let changed = BTreeSet::new();
        let is_known = labels.is_some_and(|labels| labels.is_empty());
        Ok(Self { deps: Arc::clone(deps), name, follow, changed, committed, is_known, _open: open })
    }

    /// Reads only sessions with this label, and the sub-agents below them. Repeated calls require all of these labels.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.follow = self.follow.label(name, value);
        self.is_known = false;
        self
    }

    /// Continues from these positions of single sessions, which the program has stored itself, instead of those in the
    /// runtime's store.
    pub fn from(mut self, positions: impl IntoIterator<Item = Position>) -> Self {
        positions.into_iter().for_each(|position| self.follow.start_at(&position));
        self
    }

    /// Returns the next event, once there is one; `None` after the runtime has ended. See [`Follow::next`].
    ///
    /// # Errors
    /// As [`Follow::next`].
    pub async fn next(&mut self) -> Result<Option<Arc<Event>>> {
        let event = self.follow.next().await?;
        if event.is_none() && self.is_committed() {
            self.deps.consumers.reached_end(&self.name);
        }
        Ok(self.returned(event))
    }

    /// Returns the next event, if there is one now. See [`Follow::try_next`].
    ///
    /// # Errors
    /// As [`Follow::next`].
    pub async fn try_next(&mut self) -> Result<Option<Arc<Event>>> {
        let event = self.follow.try_next().await?;
        Ok(self.returned(event))
    }

    fn returned(&mut self, event: Option<Arc<Event>>) -> Option<Arc<Event>> {
        self.changed.extend(event.as_ref().map(|event| Arc::clone(&event.session)));
        event
    }

    /// Stores, durably, that all returned events were processed.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store). What was not stored is stored by the next call.
    pub async fn commit(&mut self) -> Result<()> {
        let mut processed = Position::default();
        self.changed.iter().for_each(|id| processed.name(&self.position(id)));
        self.commit_to(&processed).await
    }

    /// Stores, durably, that the events up to this position were processed: as [`Self::commit`], for a program that has
    /// processed a part of the returned events, and has [passed](Position::pass) each of these.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub async fn commit_to(&mut self, processed: &Position) -> Result<()> {
        let is_news = |(id, position): &(&Arc<str>, Position)| position.compare(&self.committed, id).is_gt();
        let news: Vec<_> = processed.sessions().filter(is_news).collect();
        if !self.is_known {
            store_labels(&self.deps, &self.name, self.follow.labels()).await?;
            self.is_known = true;
        }
        store_positions(&self.deps, &self.name, &news).await?;
        for (id, position) in news {
            self.committed.name(&position);
            match self.follow.position().compare(&self.committed, id) {
                Ordering::Equal => _ = self.changed.remove(id),
                Ordering::Less | Ordering::Greater => _ = self.changed.insert(Arc::clone(id)),
            }
        }
        if self.follow.has_ended() && self.is_committed() {
            self.deps.consumers.reached_end(&self.name);
        }
        Ok(())
    }

    /// Whether all returned events, and no others, are committed.
    pub fn is_committed(&self) -> bool {
        self.changed.is_empty()
    }

    /// Returns how far this session was read, the returned events included.
    pub fn position(&self, session: &str) -> Position {
        self.follow.position().only(session)
    }

    /// Returns how many durable events are in the logs and were not returned yet.
    ///
    /// # Errors
    /// [`Error::Store`](crate::Error::Store).
    pub async fn lag(&self) -> Result<u64> {
        self.follow.lag().await
    }
}
