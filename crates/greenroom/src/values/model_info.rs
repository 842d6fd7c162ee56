//! The known properties of a model: the catalogue's data, with the prices that were set.
//!
//! Invariants: one lookup, so a price and a window belong to the same model; a set price replaces the catalogue's.

use std::collections::BTreeMap;
use std::sync::Arc;

use greenroom_kernel::Usage;
use greenroom_kernel::bill::CallCost;
use greenroom_provider::{Catalog, ModelInfo, ModelPrice};

use crate::values::error::ConfigError;

/// Prices that were set, by model.
pub(crate) type PriceList = Arc<BTreeMap<String, ModelPrice>>;

/// Returns the catalogue's data about a model.
pub(crate) fn model_info(provider: &str, model: &str) -> Option<ModelInfo> {
    Catalog::bundled().find(provider, model)
}

/// Returns the known data about a model, with its price in the first of these lists that has one.
pub(crate) fn priced(lists: [&PriceList; 2], provider: &str, model: &str) -> Option<ModelInfo> {
    let known = model_info(provider, model);
    match lists.iter().find_map(|list| list.get(model)) {
        Some(price) => Some(price.applied(known)),
        None => known,
    }
}

/// Returns the costs of calls with these prices, and otherwise those of the catalogue.
pub(crate) fn call_cost_of(lists: [PriceList; 2]) -> CallCost {
    let [first, second] = lists;
    CallCost::from(move |provider: &str, model: &str, usage: &Usage| {
        priced([&first, &second], provider, model)?.cost_microdollars(usage)
    })
}

/// Checks a price that was set.
///
/// # Errors
/// [`ConfigError::Price`].
pub(crate) fn check_price(model: &str, price: &ModelPrice) -> Result<(), ConfigError> {
    price.check().map_err(|error| ConfigError::Price { model: model.to_owned(), error })
}

/// Returns the costs of calls by the catalogue.
pub fn call_cost() -> CallCost {
    call_cost_of([PriceList::default(), PriceList::default()])
}
