//! The catalogue's data about a model.
//!
//! Invariants: one lookup, so a price and a window belong to the same model.

use greenroom_kernel::Usage;
use greenroom_provider::{Catalog, ModelInfo};

/// Returns the catalogue's data about a model.
pub(crate) fn model_info(provider: &str, model: &str) -> Option<ModelInfo> {
    Catalog::bundled().find(provider, model)
}

/// Returns the cost of a model call, in micro-dollars; `None` if the price is unknown.
pub fn call_cost(provider: &str, model: &str, usage: &Usage) -> Option<u64> {
    model_info(provider, model)?.cost_microdollars(usage)
}
