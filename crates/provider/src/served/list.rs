//! How servers list their models, and the pages on which some of them report more.
//!
//! Servers name the same things differently; only this file knows the names. Facts observed with
//! llama-server, vLLM, SGLang, LiteLLM, OpenRouter, Groq, LM Studio and Ollama, and read in Gemini's documentation.
//!
//! Invariants: unreported values are `None` and never a guess; an implausible number is ignored; of several
//! limits on a page the smallest applies; nothing here sends or waits.

use serde_json::Value;

use super::{Served, ServedModel};
use crate::catalog::Prices;

/// No model has more tokens than this: a larger number is an error or an attack.
const TOKENS_MAX: u64 = 1 << 32;
/// The maximum number of models that are read from a list.
const MODELS_MAX: usize = 20_000;

/// A further page that reports more than the list does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MorePage {
    /// llama-server's `/props`, with the context of one slot.
    LlamaProps,
    /// Ollama's `/api/ps`, with the loaded models.
    OllamaLoaded,
    /// LM Studio's `/api/v0/models`.
    LmStudio,
}

impl MorePage {
    /// Returns the page's path relative to the server's root.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::LlamaProps => "/props",
            Self::OllamaLoaded => "/api/ps",
            Self::LmStudio => "/api/v0/models",
        }
    }

    /// Adds the content of the page.
    pub(crate) fn add(self, page: &Value, served: &mut Served) {
        match self {
            Self::LlamaProps => {
                let slot = tokens(&page["default_generation_settings"], "n_ctx");
                // The page is about the loaded model; a server with several models has no page for all of
                // them.
                if let [model] = served.models.as_mut_slice() {
                    model.window_tokens = smallest([model.window_tokens, slot]);
                }
            }
            Self::OllamaLoaded | Self::LmStudio => {
                for told in entries(page).iter().filter_map(model) {
                    let Some(known) = served.models.iter_mut().find(|known| known.id == told.id) else {
                        continue;
                    };
                    known.window_tokens = smallest([known.window_tokens, told.window_tokens]);
                    known.trained_tokens = known.trained_tokens.or(told.trained_tokens);
                }
            }
        }
    }
}

/// Returns the models of a list, and the page on which its server reports more.
pub(crate) fn read_list(list: &Value) -> (Served, Option<MorePage>) {
    let entries = entries(list);
    let models = entries.iter().take(MODELS_MAX).filter_map(model).collect();
    let more = entries.iter().find_map(|entry| match entry["owned_by"].as_str()? {
        "llamacpp" => Some(MorePage::LlamaProps),
        // Ollama names the owner of each model; only those of its own library are certain to be Ollama's.
        "library" => Some(MorePage::OllamaLoaded),
        "organization_owner" => Some(MorePage::LmStudio),
        _ => None,
    });
    let takes_any_name = more == Some(MorePage::LlamaProps);
    let knows_loaded_only = matches!(more, Some(MorePage::OllamaLoaded | MorePage::LmStudio));
    (Served { models, takes_any_name, knows_loaded_only }, more)
}

fn entries(list: &Value) -> &[Value] {
    let known = list.as_array().or_else(|| list["data"].as_array()).or_else(|| list["models"].as_array());
    known.map(Vec::as_slice).unwrap_or_default()
}

fn model(entry: &Value) -> Option<ServedModel> {
    let id = ["id", "model", "name"].into_iter().find_map(|key| entry[key].as_str())?;
    // Gemini lists a model with its folder, and requests name it without.
    let id = id.strip_prefix("models/").filter(|_| entry["id"].is_null()).unwrap_or(id);
    if id.is_empty() {
        return None;
    }
    let aliases = entry["aliases"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let (meta, best) = (&entry["meta"], &entry["top_provider"]);
    Some(ServedModel {
        id: id.to_owned(),
        aliases: aliases.filter(|alias| *alias != id).map(str::to_owned).collect(),
        window_tokens: smallest([
            tokens(entry, "max_model_len"),
            tokens(entry, "max_input_tokens"),
            tokens(entry, "context_window"),
            tokens(entry, "context_length"),
            tokens(entry, "loaded_context_length"),
            tokens(entry, "inputTokenLimit"),
            tokens(best, "context_length"),
            tokens(meta, "n_ctx"),
        ]),
        trained_tokens: smallest([tokens(entry, "max_context_length"), tokens(meta, "n_ctx_train")]),
        output_tokens: smallest([
            tokens(entry, "max_output_tokens"),
            tokens(entry, "max_completion_tokens"),
            tokens(entry, "outputTokenLimit"),
            tokens(best, "max_completion_tokens"),
        ]),
        prices: prices(entry),
    })
}

fn smallest<const N: usize>(limits: [Option<u64>; N]) -> Option<u64> {
    limits.into_iter().flatten().min()
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was looked at before")]
fn tokens(page: &Value, key: &str) -> Option<u64> {
    let value = &page[key];
    let whole = |number: &f64| *number >= 0.0 && number.fract() == 0.0 && *number < 1e15;
    let tokens = value.as_u64().or_else(|| value.as_f64().filter(whole).map(|number| number as u64))?;
    (1..=TOKENS_MAX).contains(&tokens).then_some(tokens)
}

/// Returns the prices of a list entry: dollars per token, as text (OpenRouter) or as numbers (LiteLLM).
fn prices(entry: &Value) -> Option<Prices> {
    let listed = &entry["pricing"];
    let price = |short: &str, long: &str| dollars(&listed[short]).or_else(|| dollars(&entry[long]));
    Some(Prices {
        input: price("prompt", "input_cost_per_token")?,
        output: price("completion", "output_cost_per_token")?,
        cache_read: price("input_cache_read", "cache_read_input_token_cost"),
        cache_write: price("input_cache_write", "cache_creation_input_token_cost"),
        reasoning: price("internal_reasoning", "output_cost_per_reasoning_token").filter(|price| *price > 0),
    })
}

/// Converts dollars per token to microdollars for a million tokens.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is positive and not too large"
)]
fn dollars(value: &Value) -> Option<u64> {
    let dollars = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?;
    // More than a dollar per token is not a price; OpenRouter reports -1 if the price depends on the request.
    (0.0..=1.0).contains(&dollars).then(|| (dollars * 1e12).round() as u64)
}
