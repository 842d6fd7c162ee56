//! The vendors' first models.

#![expect(clippy::unwrap_used, reason = "tests end where something is not as it should be")]

use greenroom::internal::Catalog;

use super::first_model;
use crate::config::BUILT_IN;

#[test]
fn the_catalogue_knows_the_first_model_of_each_vendor() {
    for provider in BUILT_IN {
        let model = first_model(provider).unwrap();
        let known = Catalog::bundled().find(provider, model).unwrap();
        assert!(known.prices.is_some() && known.window_tokens().is_some(), "{provider}: {model}");
    }
    assert_eq!(first_model("mine"), None);
}
