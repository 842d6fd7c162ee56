//! The consumers that a store knows, for the operators of a runtime.
//!
//! Invariants: a consumer is known from its first commit on, until it is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::join_all;
use greenroom_store::Engine;
use serde::{Deserialize, Serialize};

use crate::api::position::Position;
use crate::api::runtime::Runtime;
use crate::api::within::sessions_within;
use crate::core::deps::Deps;
use crate::values::error::{ConfigError, Error, Result};

/// A stored consumer: see [`Runtime::consumers`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[non_exhaustive]
pub struct ConsumerSummary {
    /// Its name.
    pub name: String,
    /// The labels of the sessions that it reads; it reads all if there are none.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// How many durable events are in the logs and were not committed.
    pub lag: u64,
    /// Whether a program has it open.
    pub is_open: bool,
}

impl Runtime {
    /// Returns the consumers that have committed something, in the order of their names, and how far each is behind.
    /// This reads the heads of all sessions.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn consumers(&self) -> Result<Vec<ConsumerSummary>> {
        let deps = self.deps();
        let store = &*deps.store;
        let mut sessions = BTreeMap::new();
        let mut found = Vec::new();
        for name in names(store).await? {
            let labels = stored_labels(store, &name).await?.unwrap_or_default();
            if !sessions.contains_key(&labels) {
                sessions.insert(labels.clone(), sessions_within(store, &labels).await?);
            }
            let position = stored_position(store, &name).await?;
            let lag = sessions[&labels].iter().map(|session| position.behind(session)).sum();
            found.push(ConsumerSummary { labels, lag, is_open: deps.consumers.is_open(&name), name });
        }
        Ok(found)
    }

    /// Forgets what a consumer has committed; `false` if it is not known. A consumer that is opened under the name
    /// begins with the oldest events.
    ///
    /// # Errors
    /// [`ConfigError::ConsumerInUse`]; [`Error::Store`].
    pub async fn delete_consumer(&self, name: &str) -> Result<bool> {
        let deps = self.deps();
        let held: Arc<str> = Arc::from(name);
        if !deps.consumers.open(&held) {
            return Err(ConfigError::ConsumerInUse { name: name.to_owned() }.into());
        }
        let deleted = delete(deps, name).await;
        deps.consumers.close(name);
        deleted
    }
}

async fn delete(deps: &Deps, name: &str) -> Result<bool> {
    let mut keys = deps.store.fact_keys(&key(name, "")).await?;
    // Last, so that a deletion that is interrupted can be repeated.
    keys.extend(stored_labels(&*deps.store, name).await?.map(|_| labels_key(name)));
    for done in join_all(keys.iter().map(|key| deps.store.fact_put(key, &[]))).await {
        done?;
    }
    Ok(!keys.is_empty())
}

/// Forgets how far a deleted session was processed. If that fails, a few bytes are left.
pub(super) async fn forget_session(deps: &Deps, session: &str) {
    let forget = async {
        let mut keys = Vec::new();
        for name in names(&*deps.store).await? {
            let key = key(&name, session);
            if deps.store.fact_get(&key).await?.is_some() {
                keys.push(key);
            }
        }
        for done in join_all(keys.iter().map(|key| deps.store.fact_put(key, &[]))).await {
            done?;
        }
        Ok::<_, Error>(())
    };
    if let Err(error) = forget.await {
        tracing::debug!(%error, session, "the positions of a deleted session are still stored");
    }
}

/// The name as a part of a key, without a slash.
pub(super) fn encoded(name: &str) -> String {
    form_urlencoded::byte_serialize(name.as_bytes()).collect()
}

fn key(name: &str, session: &str) -> String {
    format!("consumer/{}/{session}", encoded(name))
}

fn labels_key(name: &str) -> String {
    format!("consumers/{}", encoded(name))
}

async fn names(store: &dyn Engine) -> Result<Vec<String>> {
    let prefix = labels_key("");
    let keys = store.fact_keys(&prefix).await?;
    let decoded = keys.iter().flat_map(|key| form_urlencoded::parse(&key.as_bytes()[prefix.len()..]).take(1));
    let names: BTreeSet<String> = decoded.map(|(name, _)| name.into_owned()).collect();
    Ok(names.into_iter().collect())
}

/// Returns the labels with which a consumer has committed; `None` if it is not known.
pub(super) async fn stored_labels(
    store: &dyn Engine,
    name: &str,
) -> Result<Option<BTreeMap<String, String>>> {
    let value = store.fact_get(&labels_key(name)).await?;
    Ok(value.and_then(|value| serde_json::from_slice(&value).ok()))
}

/// Returns what a consumer has committed.
pub(super) async fn stored_position(store: &dyn Engine, name: &str) -> Result<Position> {
    let mut position = Position::default();
    for key in store.fact_keys(&key(name, "")).await? {
        let value = store.fact_get(&key).await?.unwrap_or_default();
        if let Some(stored) = std::str::from_utf8(&value).ok().and_then(Position::parse) {
            position.name(&stored);
        }
    }
    Ok(position)
}

/// Stores the labels of a consumer.
pub(super) async fn store_labels(deps: &Deps, name: &str, labels: &BTreeMap<String, String>) -> Result<()> {
    let value = serde_json::to_vec(labels).map_err(|error| Error::internal("storing labels", &error))?;
    Ok(deps.store.fact_put(&labels_key(name), &value).await?)
}

/// Stores how far single sessions were processed.
pub(super) async fn store_positions(
    deps: &Deps,
    name: &str,
    positions: &[(&Arc<str>, Position)],
) -> Result<()> {
    let put = async |(id, position): &(&Arc<str>, Position)| {
        deps.store.fact_put(&key(name, id), position.to_string().as_bytes()).await
    };
    // Together, so that one write to the disk serves all.
    for done in join_all(positions.iter().map(put)).await {
        done?;
    }
    Ok(())
}
