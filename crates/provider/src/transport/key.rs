//! Keys that change, such as access tokens that expire.
//!
//! Invariants: the source is asked when the first key is needed, when a key has become too old, and until it has
//! answered once for each key that a server refused; one call asks it, and the others wait for that answer; no key
//! appears in an error.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::ApiKey;

/// How long a key is used, if the source does not say.
const TTL: Duration = Duration::from_secs(300);

type Get = dyn Fn() -> BoxFuture<'static, Result<ApiKey, String>> + Send + Sync;

/// Where the keys of a server come from, if they change: for
/// [`ServerOptions::key_source`](super::ServerOptions::key_source). Clones are the same source.
///
/// ```
/// use std::time::Duration;
/// use greenroom_provider::{ApiKey, KeySource, ServerOptions};
///
/// let tokens = KeySource::new(|| async { Ok(ApiKey::from("a fresh token")) }).ttl(Duration::from_secs(3_000));
/// let options = ServerOptions { key_source: Some(tokens), ..ServerOptions::default() };
/// ```
#[derive(Clone)]
pub struct KeySource {
    get: Arc<Get>,
    ttl: Duration,
}

impl KeySource {
    /// Creates a source that calls `get` for a key. A failure is the reason, as a clause for the user, without the key.
    /// A call to a model that waits for the key may be cancelled, and `get` with it.
    pub fn new<F, Fut>(get: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<ApiKey, String>> + Send + 'static,
    {
        Self { get: Arc::new(move || get().boxed()), ttl: TTL }
    }

    /// Returns this source with a limit on the age of its keys; five minutes by default.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }
}

/// Two sources are equal if they are clones.
impl PartialEq for KeySource {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.get, &other.get) && self.ttl == other.ttl
    }
}

impl Eq for KeySource {}

impl fmt::Debug for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeySource").field("ttl", &self.ttl).finish_non_exhaustive()
    }
}

/// The keys of one server.
#[derive(Debug)]
pub(super) struct Keys {
    source: Option<KeySource>,
    held: Mutex<Held>,
    /// Held while the source is asked.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Held {
    /// The newest key, and when it came.
    key: Option<(ApiKey, Instant)>,
    /// The newest key that the server refused.
    refused: Option<ApiKey>,
}

impl Keys {
    pub(super) fn new(source: Option<KeySource>) -> Self {
        Self { source, held: Mutex::default(), asking: tokio::sync::Mutex::default() }
    }

    /// Returns the newest key without asking the source, to remove it from texts.
    pub(super) fn newest(&self) -> Option<ApiKey> {
        self.held.lock().key.as_ref().map(|(key, _)| key.clone())
    }

    /// Returns the key for the next request; `None` if there is no source.
    pub(super) async fn current(&self) -> Result<Option<ApiKey>, String> {
        let Some(source) = &self.source else { return Ok(None) };
        let _one = self.asking.lock().await;
        let known = self.held.lock().key.clone();
        match known {
            Some((key, since)) if since.elapsed() < source.ttl => Ok(Some(key)),
            Some(_) | None => self.ask(source).await.map(Some),
        }
    }

    /// Returns the key that replaces one that the server refused; `None` if there is no other.
    pub(super) async fn in_place_of(&self, refused: &ApiKey) -> Result<Option<ApiKey>, String> {
        let Some(source) = &self.source else { return Ok(None) };
        let _one = self.asking.lock().await;
        let (known, was_refused) = {
            let held = self.held.lock();
            (held.key.as_ref().map(|(key, _)| key.clone()), held.refused.as_ref() == Some(refused))
        };
        if known.as_ref() != Some(refused) {
            // Another call has replaced it.
            return Ok(known);
        }
        if was_refused {
            return Ok(None);
        }
        // Not before: a refresh that fails or is cancelled is no answer, and the next call asks again.
        let fresh = self.ask(source).await?;
        self.held.lock().refused = Some(refused.clone());
        Ok((fresh != *refused).then_some(fresh))
    }

    async fn ask(&self, source: &KeySource) -> Result<ApiKey, String> {
        let key = (source.get)().await?;
        self.held.lock().key = Some((key.clone(), Instant::now()));
        Ok(key)
    }
}

#[cfg(test)]
mod tests;
