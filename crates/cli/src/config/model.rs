//! The configuration of one model: its model settings, its window, and its compaction settings.
//!
//! Invariants: an absent setting leaves the one for all models in effect.

use greenroom::{ModelPrice, ModelSettings};
use greenroom_kernel::settings::CompactionSettings;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_norway::{Mapping, Value};

use super::layers::{located, merge};

/// The configuration of one model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub(crate) struct ModelConfig {
    /// The model's window in tokens, if the catalogue does not know it or is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) context_window: Option<u64>,
    /// What it costs, in US dollars for a million tokens, if the catalogue does not know it or is wrong: `input`,
    /// `output`, and if they differ `cached_input` and `cache_write`; `above` has the prices of larger requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) price: Option<ModelPrice>,
    /// Compaction settings for its sessions; they take precedence over `compaction`.
    #[serde(skip_serializing_if = "Mapping::is_empty")]
    #[schemars(with = "CompactionSettings")]
    pub(crate) compaction: Mapping,
    /// Its model settings; they take precedence over `model_settings`.
    #[serde(flatten)]
    pub(crate) settings: ModelSettings,
}

impl ModelConfig {
    /// Returns the compaction settings for this model, if they differ from those for all models.
    ///
    /// # Errors
    /// The combination of both is invalid.
    pub(crate) fn compaction_over(
        &self,
        all: &CompactionSettings,
    ) -> Result<Option<CompactionSettings>, serde_norway::Error> {
        if self.compaction.is_empty() {
            return Ok(None);
        }
        let mut merged = serde_norway::to_value(all)?;
        merge(&mut merged, Value::Mapping(self.compaction.clone()));
        let compaction = serde_path_to_error::deserialize(&merged);
        compaction.map(Some).map_err(|error| serde_norway::Error::custom(located(&error)))
    }
}

impl<'de> Deserialize<'de> for ModelConfig {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let mut map = Option::<Mapping>::deserialize(from)?.unwrap_or_default();
        let mut take = |key: &str| map.remove(key).unwrap_or_default();
        let in_section =
            |section: &str, error: &dyn std::fmt::Display| D::Error::custom(format!("{section}: {error}"));
        let context_window = serde_norway::from_value(take("context_window"))
            .map_err(|error| in_section("context_window", &error))?;
        let price = serde_norway::from_value(take("price")).map_err(|error| in_section("price", &error))?;
        let compaction: Option<Mapping> =
            serde_norway::from_value(take("compaction")).map_err(|error| in_section("compaction", &error))?;
        let config = Self {
            context_window,
            price,
            compaction: compaction.unwrap_or_default(),
            settings: ModelSettings::default(),
        };
        // Unknown keys and wrong types are reported here, where the file is read.
        config
            .compaction_over(&CompactionSettings::default())
            .map_err(|error| in_section("compaction", &error))?;
        let settings = serde_path_to_error::deserialize(&Value::Mapping(map))
            .map_err(|error| D::Error::custom(located(&error)))?;
        Ok(Self { settings, ..config })
    }
}
