//! The price of a model that a user sets, in dollars.
//!
//! Invariants: a set price replaces the catalogue's as a whole, for requests of every size.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::catalog::{ModelInfo, PriceTier, Prices};
use crate::settings::SettingError;

#[cfg(test)]
mod tests;

/// The price of a model, in US dollars for a million tokens. It replaces the price in the model catalogue.
///
/// ```
/// use greenroom_provider::ModelPrice;
/// let price = ModelPrice { cached_input: Some(0.05), ..ModelPrice::new(0.5, 1.5) };
/// ```
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelPrice {
    /// Input that is not cached.
    pub input: f64,
    /// Output, reasoning included.
    pub output: f64,
    /// Input that is read from the provider's cache; the price of other input if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<f64>,
    /// Input that is written to the provider's cache; the price of other input if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<f64>,
    /// The prices of larger requests, by size, the smallest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub above: Vec<PriceAbove>,
}

/// The price of requests above a size, in US dollars for a million tokens. It applies to the whole request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PriceAbove {
    /// The size: requests with more input than this, in tokens.
    pub tokens: u64,
    /// Input that is not cached.
    pub input: f64,
    /// Output, reasoning included.
    pub output: f64,
    /// Input that is read from the provider's cache; the price of other input if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input: Option<f64>,
    /// Input that is written to the provider's cache; the price of other input if it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<f64>,
}

impl ModelPrice {
    /// Creates a price that is the same for cached input and for requests of every size.
    pub fn new(input: f64, output: f64) -> Self {
        Self { input, output, ..Self::default() }
    }

    /// Checks the amounts.
    ///
    /// # Errors
    /// The first amount that is negative or not a number, by its name, or sizes that are not in order.
    pub fn check(&self) -> Result<(), SettingError> {
        let of_price = |at: String, amounts: [(&str, Option<f64>); 4]| {
            let is_wrong = |(_, amount): &&(&str, Option<f64>)| {
                amount.is_some_and(|amount| !amount.is_finite() || !(0.0..=AMOUNT_MAX).contains(&amount))
            };
            match amounts.iter().find(is_wrong) {
                Some((name, _)) => {
                    let reason = "must be an amount of US dollars for a million tokens, at least 0";
                    Err(SettingError::new(format!("{at}{name}"), reason))
                }
                None => Ok(()),
            }
        };
        let Self { input, output, cached_input, cache_write, above } = self;
        of_price(String::new(), amounts(*input, *output, *cached_input, *cache_write))?;
        for (number, tier) in above.iter().enumerate() {
            let amounts = amounts(tier.input, tier.output, tier.cached_input, tier.cache_write);
            of_price(format!("above[{number}]."), amounts)?;
        }
        if !above.is_sorted_by(|one, next| one.tokens < next.tokens) {
            return Err(SettingError::new("above", "must be in the order of `tokens`, the smallest first"));
        }
        Ok(())
    }

    /// Returns what the catalogue knows about a model, with this price.
    pub fn applied(&self, known: Option<ModelInfo>) -> ModelInfo {
        let tier = |tier: &PriceAbove| PriceTier {
            above_tokens: tier.tokens,
            prices: prices(amounts(tier.input, tier.output, tier.cached_input, tier.cache_write)),
        };
        let prices = prices(amounts(self.input, self.output, self.cached_input, self.cache_write));
        let known = known.unwrap_or(ModelInfo {
            provider: "",
            model: "",
            context_tokens: None,
            input_tokens: None,
            output_tokens: None,
            reasoning: false,
            tools: false,
            structured_output: false,
            prices: None,
            tiers: Vec::new(),
        });
        ModelInfo { prices: Some(prices), tiers: self.above.iter().map(tier).collect(), ..known }
    }
}

/// A million dollars for a token is more than anything costs.
const AMOUNT_MAX: f64 = 1e12;

/// The amounts of a price, by their names.
fn amounts(
    input: f64,
    output: f64,
    cached_input: Option<f64>,
    cache_write: Option<f64>,
) -> [(&'static str, Option<f64>); 4] {
    [
        ("input", Some(input)),
        ("output", Some(output)),
        ("cached_input", cached_input),
        ("cache_write", cache_write),
    ]
}

fn prices([input, output, cached_input, cache_write]: [(&str, Option<f64>); 4]) -> Prices {
    let micro = |(_, amount): (&str, Option<f64>)| amount.map(microdollars);
    Prices {
        input: micro(input).unwrap_or_default(),
        output: micro(output).unwrap_or_default(),
        cache_read: micro(cached_input),
        cache_write: micro(cache_write),
        reasoning: None,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "checked: neither negative nor too large"
)]
fn microdollars(usd: f64) -> u64 {
    (usd * 1e6).round() as u64
}
