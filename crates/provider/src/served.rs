//! What a server says of the models that it serves: its list of models, and the pages on which some servers say more.
//!
//! Servers name the same things differently; this file is the one place that knows the names. Facts observed at
//! llama-server, vLLM, SGLang, LiteLLM, OpenRouter, Groq, LM Studio and Ollama.
//!
//! Invariants: what a server does not say is `None` and never a guess; a number that no model could have is not
//! believed; of several limits on a page the smallest holds; nothing here sends or waits.

use serde_json::Value;

use crate::catalog::Prices;

/// No model has more tokens than this: a larger number is a mistake or an attack.
const TOKENS_MAX: u64 = 1 << 32;
/// No list is longer than this.
const MODELS_MAX: usize = 20_000;

/// A model, as its server describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServedModel {
    /// The name by which it is asked for.
    pub id: String,
    /// Other names for it.
    pub aliases: Vec<String>,
    /// The most tokens that a request may have, as the server is set up now.
    pub window_tokens: Option<u64>,
    /// The longest context that the model was made for. The server may be set up for less.
    pub trained_tokens: Option<u64>,
    /// The output limit, in tokens.
    pub output_tokens: Option<u64>,
    /// The prices.
    pub prices: Option<Prices>,
}

/// What a server serves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Served {
    /// Its models.
    pub models: Vec<ServedModel>,
    /// Whether it answers under every name with the only model that it has.
    pub takes_any_name: bool,
    /// Whether it knows a model's window only while that model is loaded, so that asking again after the first answer
    /// may tell more.
    pub knows_loaded_only: bool,
}

impl Served {
    /// The model that answers under this name.
    pub fn find(&self, name: &str) -> Option<&ServedModel> {
        let is_named = |id: &String| id.eq_ignore_ascii_case(name);
        // Ollama adds the tag that is meant where none is given.
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

/// Which further page says more than the list does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MorePage {
    /// llama-server's `/props`, with the context of one slot.
    LlamaProps,
    /// Ollama's `/api/ps`, with the models that are loaded.
    OllamaLoaded,
    /// LM Studio's `/api/v0/models`.
    LmStudio,
}

impl MorePage {
    /// The page's path from the server's root.
    pub(crate) fn path(self) -> &'static str {
        match self {
            Self::LlamaProps => "/props",
            Self::OllamaLoaded => "/api/ps",
            Self::LmStudio => "/api/v0/models",
        }
    }

    /// Adds what the page says.
    pub(crate) fn add(self, page: &Value, served: &mut Served) {
        match self {
            Self::LlamaProps => {
                let slot = tokens(&page["default_generation_settings"], "n_ctx");
                // The page is about the model that is loaded; a server with several has no page for all.
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

/// The models of a list, and where its server says more.
pub(crate) fn read_list(list: &Value) -> (Served, Option<MorePage>) {
    let entries = entries(list);
    let models = entries.iter().take(MODELS_MAX).filter_map(model).collect();
    let more = entries.iter().find_map(|entry| match entry["owned_by"].as_str()? {
        "llamacpp" => Some(MorePage::LlamaProps),
        // Ollama names the owner of each model; only those of its own library are sure to be Ollama's.
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
            tokens(best, "context_length"),
            tokens(meta, "n_ctx"),
        ]),
        trained_tokens: smallest([tokens(entry, "max_context_length"), tokens(meta, "n_ctx_train")]),
        output_tokens: smallest([
            tokens(entry, "max_output_tokens"),
            tokens(entry, "max_completion_tokens"),
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

/// The prices of a list: dollars a token, as text (OpenRouter) or as numbers (LiteLLM).
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

/// Dollars a token, as microdollars for a million tokens.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "it is positive and not too large"
)]
fn dollars(value: &Value) -> Option<u64> {
    let dollars = value.as_f64().or_else(|| value.as_str()?.trim().parse().ok())?;
    // More than a dollar a token is no price; OpenRouter says -1 where the price depends on the request.
    (0.0..=1.0).contains(&dollars).then(|| (dollars * 1e12).round() as u64)
}

#[cfg(test)]
mod tests;
