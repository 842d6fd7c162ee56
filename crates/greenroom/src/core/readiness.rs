//! Whether the store takes on new entries.
//!
//! Invariants: a healthy store is not written to for the sake of the answer; a store that has refused an append is tried
//! again for each answer, so that it is known to have recovered even if nobody uses it.

use std::sync::atomic::{AtomicBool, Ordering};

use greenroom_store::{Engine, StoreError};

/// The fact that is written to try the store.
const TRIAL: &str = "readiness";

/// Whether the newest write to the store failed.
#[derive(Debug, Default)]
pub(crate) struct Readiness {
    is_broken: AtomicBool,
}

impl Readiness {
    /// Notes the result of a write.
    pub(crate) fn note<T>(&self, result: &Result<T, StoreError>) {
        let is_broken = match result {
            Ok(_) => false,
            Err(error) if concerns_store(error) => true,
            Err(_) => return,
        };
        // Written only if it changes: all sessions share it.
        if self.is_broken.load(Ordering::Relaxed) != is_broken
            && self.is_broken.swap(is_broken, Ordering::Relaxed) != is_broken
        {
            match result {
                Ok(_) => tracing::warn!("the store can be written again"),
                Err(error) => tracing::error!(%error, "the store cannot be written"),
            }
        }
    }

    /// Returns the reason if the store cannot be written.
    pub(crate) async fn check(&self, store: &dyn Engine, now_ms: u64) -> Result<(), StoreError> {
        if !self.is_broken.load(Ordering::Relaxed) {
            return Ok(());
        }
        let tried = store.fact_put(TRIAL, &now_ms.to_le_bytes()).await;
        self.note(&tried);
        tried
    }
}

/// Whether an error is the store's, and not one of the request or of one session.
fn concerns_store(error: &StoreError) -> bool {
    !matches!(
        error,
        StoreError::Sequence { .. }
            | StoreError::Head { .. }
            | StoreError::SessionId { .. }
            | StoreError::TooLarge { .. }
            | StoreError::NotFound { .. }
            | StoreError::Quarantined { .. }
            | StoreError::Damaged { .. }
            | StoreError::Fenced { .. }
            | StoreError::Elsewhere { .. }
    )
}
