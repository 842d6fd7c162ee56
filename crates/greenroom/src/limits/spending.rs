//! Limits on spending in dollars: their periods, and what was spent within them.
//!
//! Invariants: all sums are in micro-dollars.

use crate::values::error::ConfigError;
use crate::values::names::names;

pub(crate) mod tree;
pub(crate) mod window;

#[cfg(test)]
mod tests;

names! {
    /// A period over which spending is limited or summed up.
    pub enum Period ("period") {
        /// 60 minutes; for a limit, the last 60.
        Hour = "hour",
        /// 24 hours; for a limit, the last 24.
        Day = "day",
    }
}

impl Period {
    /// The length, in milliseconds.
    pub(crate) fn ms(self) -> u64 {
        match self {
            Self::Hour => 60 * 60 * 1_000,
            Self::Day => 24 * 60 * 60 * 1_000,
        }
    }

    /// The period in words, after an amount.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Hour => "an hour",
            Self::Day => "a day",
        }
    }
}

/// Converts dollars to micro-dollars.
///
/// # Errors
/// [`ConfigError::CostLimit`] if the value is negative or not a number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "neither negative nor infinite; a cast of what is too large gives the largest"
)]
pub(crate) fn microdollars(usd: f64) -> Result<u64, ConfigError> {
    if !usd.is_finite() || usd < 0.0 {
        return Err(ConfigError::CostLimit { usd: usd.to_string() });
    }
    Ok((usd * 1e6).round() as u64)
}
