//! What the catalogue says of a model.
//!
//! Invariants: one lookup, so that a price and a window are of the same model.

use greenroom_kernel::Usage;
use greenroom_provider::{Catalog, ModelInfo};

/// What the catalogue knows of a model.
pub(crate) fn model_info(provider: &str, model: &str) -> Option<ModelInfo> {
    Catalog::bundled().find(provider, model)
}

/// What a call of a model costs, in micro-dollars; `None` where its price is not known.
pub(crate) fn call_cost(provider: &str, model: &str, usage: &Usage) -> Option<u64> {
    model_info(provider, model)?.cost_microdollars(usage)
}
