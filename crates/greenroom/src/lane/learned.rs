//! Learned facts about models: limits that servers named when they refused a request, and token ratios.
//!
//! Invariants: a fact belongs to a server's address and a model, so two servers never share one; facts are
//! kept in the store; a limit that the server no longer confirms is doubted, and one request may then exceed
//! it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use greenroom_kernel::usage::{LimitEvidence, Ratio, is_believable_limit};
use greenroom_store::{Engine, StoreError};
use parking_lot::Mutex;

/// The fact that a server named a limit.
const LIMIT: &str = "limit";
/// The ratio of a model's tokens to those that are estimated.
const RATIO: &str = "ratio";
/// After this time, a limit is doubted if its server reports no windows: its configuration may have changed.
const DOUBT_AFTER_MS: u64 = 24 * 60 * 60 * 1_000;

/// The learned facts of one runtime.
pub(crate) struct Learned {
    store: Arc<dyn Engine>,
    facts: Arc<Mutex<BTreeMap<String, Vec<u8>>>>,
    /// The observations of this process about each model.
    seen: Mutex<HashMap<String, SeenLimits>>,
    /// Serialises writes. Each writes the facts known at that time, so an older fact never replaces a newer
    /// one.
    writing: Arc<tokio::sync::Mutex<()>>,
}

/// A limit that a server named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LearnedLimit {
    tokens: u64,
    /// When the server named it, in Unix milliseconds.
    at_ms: u64,
    /// The window that the server reported then; `None` if it reported none.
    served: Option<u64>,
}

/// The observations of one process about a model's limits.
#[derive(Debug, Clone, Copy, Default)]
struct SeenLimits {
    /// The largest request that the server accepted, in tokens.
    accepted: u64,
    /// The limit that the server named last, whether believed or not.
    named: Option<u64>,
    /// Whether the server was unreachable and came back after it had named the limit.
    reconnected: bool,
}

impl Learned {
    /// Reads the facts. What cannot be read is learned again.
    pub(crate) async fn read(store: Arc<dyn Engine>) -> Self {
        let mut facts = BTreeMap::new();
        for what in [LIMIT, RATIO] {
            match stored(&*store, what).await {
                Ok(found) => facts.extend(found),
                Err(error) => {
                    tracing::warn!(%error, "learned facts could not be read; they will be learned again");
                }
            }
        }
        Self::new(store, facts)
    }

    /// Creates it with facts that are known.
    pub(crate) fn new(store: Arc<dyn Engine>, facts: BTreeMap<String, Vec<u8>>) -> Self {
        let facts = Arc::new(Mutex::new(facts));
        Self { store, facts, seen: Mutex::default(), writing: Arc::default() }
    }

    /// Returns the limit, in tokens, that a server named last for this model; `None` if there is none or it
    /// is doubted. `served` is the window that the server reports now.
    pub(crate) fn limit(&self, origin: &str, model: &str, served: Option<u64>, now_ms: u64) -> Option<u64> {
        let key = key(LIMIT, origin, model);
        let limit = self.stored_limit(&key)?;
        let is_doubted = match served {
            // The server reports a larger window than at the refusal.
            Some(now) => now > limit.tokens && limit.served.is_none_or(|then| now > then),
            None => now_ms.saturating_sub(limit.at_ms) >= DOUBT_AFTER_MS || self.seen(&key).reconnected,
        };
        (!is_doubted).then_some(limit.tokens)
    }

    /// Stores a limit that a server named when it refused `sent` tokens, if the limit is plausible. Returns
    /// whether it differs from the limit before.
    pub(crate) fn learn_limit(
        &self,
        origin: &str,
        model: &str,
        limit: u64,
        sent: u64,
        served: Option<u64>,
        now_ms: u64,
    ) -> bool {
        if self.limit(origin, model, served, now_ms) == Some(limit) {
            return false;
        }
        let key = key(LIMIT, origin, model);
        let is_known = self.stored_limit(&key).is_some_and(|known| known.tokens == limit);
        let evidence = {
            let mut seen = self.seen.lock();
            let SeenLimits { accepted, named, .. } = seen.entry(key.clone()).or_default();
            LimitEvidence { sent, accepted: *accepted, named_before: named.replace(limit) }
        };
        if !(is_known || is_believable_limit(limit, evidence)) {
            tracing::warn!(origin, model, limit, ?evidence, "a limit that the server named is not plausible");
            return false;
        }
        self.seen.lock().entry(key.clone()).or_default().reconnected = false;
        self.put(key, LearnedLimit { tokens: limit, at_ms: now_ms, served }.to_bytes());
        true
    }

    /// Notes that the server accepted a request of this size, by a trusted report. A smaller limit is
    /// removed.
    pub(crate) fn accepted(&self, origin: &str, model: &str, tokens: u64) {
        let key = key(LIMIT, origin, model);
        {
            let mut seen = self.seen.lock();
            match seen.get_mut(&key) {
                Some(seen) => seen.accepted = tokens.max(seen.accepted),
                None => {
                    _ = seen.insert(key.clone(), SeenLimits { accepted: tokens, ..SeenLimits::default() })
                }
            }
        }
        if self.stored_limit(&key).is_some_and(|limit| limit.tokens < tokens) {
            self.put(key, Vec::new());
        }
    }

    /// Notes that the server was unreachable and came back: its configuration may have changed.
    pub(crate) fn reconnected(&self, origin: &str) {
        let of_origin = key(LIMIT, origin, "");
        let mut seen = self.seen.lock();
        for (_, seen) in seen.iter_mut().filter(|(key, _)| key.starts_with(&of_origin)) {
            seen.reconnected = true;
        }
    }

    /// Returns all stored limits of a server with their models, including doubted ones.
    pub(crate) fn limits(&self, origin: &str) -> Vec<(String, u64)> {
        let of_origin = key(LIMIT, origin, "");
        let facts = self.facts.lock();
        let limits = facts.range(of_origin.clone()..).take_while(|(key, _)| key.starts_with(&of_origin));
        let limit = |(key, fact): (&String, &Vec<u8>)| {
            Some((key[of_origin.len()..].to_owned(), LearnedLimit::from_bytes(fact)?.tokens))
        };
        limits.filter_map(limit).collect()
    }

    /// Removes the limit of a model. Returns whether there was one.
    ///
    /// # Errors
    /// The store cannot be written.
    pub(crate) async fn forget_limit(&self, origin: &str, model: &str) -> Result<bool, StoreError> {
        let key = key(LIMIT, origin, model);
        if self.stored_limit(&key).is_none() {
            return Ok(false);
        }
        self.facts.lock().remove(&key);
        let _turn = self.writing.lock().await;
        self.store.fact_put(&key, &[]).await?;
        Ok(true)
    }

    pub(crate) fn ratio(&self, origin: &str, model: &str) -> Ratio {
        self.stored_ratio(&key(RATIO, origin, model)).map(Ratio::new).unwrap_or_default()
    }

    /// Stores a ratio if it changed by 0.01 or more.
    pub(crate) fn learn_ratio(&self, origin: &str, model: &str, ratio: Ratio) {
        let key = key(RATIO, origin, model);
        let known = self.stored_ratio(&key).unwrap_or(1.0);
        if (known - ratio.value()).abs() >= 0.01 {
            self.put(key, ratio.value().to_le_bytes().to_vec());
        }
    }

    fn stored_limit(&self, key: &str) -> Option<LearnedLimit> {
        LearnedLimit::from_bytes(self.facts.lock().get(key)?)
    }

    fn stored_ratio(&self, key: &str) -> Option<f64> {
        self.facts.lock().get(key)?.as_slice().try_into().ok().map(f64::from_le_bytes)
    }

    fn seen(&self, key: &str) -> SeenLimits {
        self.seen.lock().get(key).copied().unwrap_or_default()
    }

    fn put(&self, key: String, value: Vec<u8>) {
        if value.is_empty() {
            self.facts.lock().remove(&key);
        } else {
            self.facts.lock().insert(key.clone(), value);
        }
        let (store, facts, writing) =
            (self.store.clone(), Arc::clone(&self.facts), Arc::clone(&self.writing));
        tokio::spawn(async move {
            let _turn = writing.lock().await;
            let value = facts.lock().get(&key).cloned().unwrap_or_default();
            if let Err(error) = store.fact_put(&key, &value).await {
                tracing::warn!(%error, key, "learned facts could not be stored; they will be learned again");
            }
        });
    }
}

impl LearnedLimit {
    fn to_bytes(self) -> Vec<u8> {
        [self.tokens, self.at_ms, self.served.unwrap_or(0)].into_iter().flat_map(u64::to_le_bytes).collect()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; 24] = bytes.try_into().ok()?;
        let number = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        Some(Self { tokens: number(0)?, at_ms: number(8)?, served: number(16).filter(|served| *served > 0) })
    }
}

/// Returns the stored facts of one kind.
async fn stored(store: &dyn Engine, what: &str) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
    let mut facts = Vec::new();
    for key in store.fact_keys(&format!("{what} ")).await? {
        if let Some(fact) = store.fact_get(&key).await?.filter(|fact| !fact.is_empty()) {
            facts.push((key, fact));
        }
    }
    Ok(facts)
}

fn key(what: &str, origin: &str, model: &str) -> String {
    // An address contains no spaces. Built at once, since every model call looks several facts up.
    [what, " ", origin, " ", model].concat()
}

#[cfg(test)]
mod tests;
