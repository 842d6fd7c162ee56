//! What the catalogue says of a model.
//!
//! Invariants: one lookup, so that a price and a window are of the same model.

use greenroom_provider::{Catalog, ModelInfo};

/// What the catalogue knows of a model.
pub(crate) fn model_info(provider: &str, model: &str) -> Option<ModelInfo> {
    Catalog::bundled().find(provider, model)
}
