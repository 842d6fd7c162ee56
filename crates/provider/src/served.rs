//! The models that a server reports.
//!
//! Invariants: unreported values are `None` and never a guess.

use crate::catalog::Prices;

#[cfg(feature = "http")]
pub(crate) mod list;

/// A model, as described by its server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServedModel {
    /// The name used in requests.
    pub id: String,
    /// Other names of the model.
    pub aliases: Vec<String>,
    /// The maximum number of tokens that a request may have in the server's current configuration.
    pub window_tokens: Option<u64>,
    /// The longest context that the model was trained for. The server may be configured for less.
    pub trained_tokens: Option<u64>,
    /// The output limit, in tokens.
    pub output_tokens: Option<u64>,
    /// The prices.
    pub prices: Option<Prices>,
}

/// The models that a server serves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Served {
    /// Its models.
    pub models: Vec<ServedModel>,
    /// Whether the server has only one model, which answers under every name.
    pub takes_any_name: bool,
    /// Whether the server knows a model's window only while that model is loaded, so that asking again after
    /// the first answer may reveal more.
    pub knows_loaded_only: bool,
}

impl Served {
    /// Returns the model that answers under this name.
    pub fn find(&self, name: &str) -> Option<&ServedModel> {
        let is_named = |id: &String| id.eq_ignore_ascii_case(name);
        // Ollama adds the tag that is the default if none is given.
        let is_latest = |id: &String| {
            id.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
                && &id[name.len()..] == ":latest"
        };
        let named = |is: &dyn Fn(&String) -> bool| {
            self.models.iter().find(|model| is(&model.id) || model.aliases.iter().any(is))
        };
        named(&is_named)
            .or_else(|| named(&is_latest))
            .or_else(|| self.models.first().filter(|_| self.takes_any_name && self.models.len() == 1))
    }
}

#[cfg(all(test, feature = "http"))]
mod tests;
