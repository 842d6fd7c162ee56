//! The model catalogue: limits, prices and abilities of known models, compiled into the crate.
//!
//! The data comes from models.dev, in the compact form that `data/README.md` describes.
//!
//! Invariants: an unknown value is `None` and never a guess; a model of an unknown provider gets the smallest
//! limit that any provider lists for it, and no price.

use std::ops::Range;
use std::sync::OnceLock;

use greenroom_kernel::Usage;
use greenroom_kernel::cost::CallPrice;

/// All known models and providers.
#[derive(Debug)]
pub struct Catalog {
    /// All models, sorted by provider and model.
    models: Vec<ModelInfo>,
    /// All providers, sorted by id.
    providers: Vec<ProviderInfo>,
    /// For each provider, the positions of its models.
    own: Vec<Range<usize>>,
}

/// A provider in the catalogue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderInfo {
    /// The provider's id, such as `openai`.
    pub id: &'static str,
    /// The provider's name, for people.
    pub name: &'static str,
    /// The environment variables that hold the provider's key, the usual one first.
    pub key_variables: Vec<&'static str>,
    /// The URL of the provider's API, if the catalogue has one.
    pub base_url: Option<&'static str>,
}

/// A model at one provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelInfo {
    /// The provider's id.
    pub provider: &'static str,
    /// The model's id in the catalogue. The name that was looked up may have had a date at its end.
    pub model: &'static str,
    /// The context window, in tokens.
    pub context_tokens: Option<u64>,
    /// The input limit, in tokens, where it is smaller than the context window.
    pub input_tokens: Option<u64>,
    /// The output limit, in tokens.
    pub output_tokens: Option<u64>,
    /// Whether the model reasons before it answers.
    pub reasoning: bool,
    /// Whether the model can call tools.
    pub tools: bool,
    /// Whether the model can follow a JSON schema in its answer.
    pub structured_output: bool,
    /// The prices of small requests; `None` if they are not known.
    pub prices: Option<Prices>,
    /// The prices of larger requests, by size, the smallest first.
    pub tiers: Vec<PriceTier>,
}

/// Prices in microdollars (millionths of a US dollar) for a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prices {
    /// The price of input that is not cached.
    pub input: u64,
    /// The price of output.
    pub output: u64,
    /// The price of input that is read from the cache; `None` means the price of other input.
    pub cache_read: Option<u64>,
    /// The price of input that is written to the cache; `None` means the price of other input.
    pub cache_write: Option<u64>,
    /// The price of reasoning; `None` means the price of other output.
    pub reasoning: Option<u64>,
}

/// The prices of requests above a size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PriceTier {
    /// The prices apply to requests with more input than this, in tokens.
    pub above_tokens: u64,
    /// The prices, which apply to the whole request.
    pub prices: Prices,
}

impl Catalog {
    /// Returns the built-in catalogue, which is parsed on first use.
    pub fn bundled() -> &'static Self {
        static BUNDLED: OnceLock<Catalog> = OnceLock::new();
        BUNDLED.get_or_init(|| Self::parse(include_str!("../data/models.tsv")))
    }

    fn parse(text: &'static str) -> Self {
        let mut catalog = Self { models: Vec::new(), providers: Vec::new(), own: Vec::new() };
        let mut provider = "";
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let mut columns = line.split('\t');
            let mut column = || columns.next().unwrap_or_default();
            let first = column();
            if let Some(id) = first.strip_prefix('@') {
                provider = id;
                let name = column();
                let key_variables = column().split(',').filter(|variable| !variable.is_empty()).collect();
                let base_url = Some(column()).filter(|url| !url.is_empty());
                catalog.providers.push(ProviderInfo { id, name, key_variables, base_url });
                catalog.own.push(catalog.models.len()..catalog.models.len());
                continue;
            }
            let (context_tokens, input_tokens, output_tokens) =
                (number(column()), number(column()), number(column()));
            let flags = column();
            let prices = prices([column(), column(), column(), column(), column()]);
            catalog.models.push(ModelInfo {
                provider,
                model: first,
                context_tokens,
                input_tokens,
                output_tokens,
                reasoning: flags.contains('r'),
                tools: flags.contains('t'),
                structured_output: flags.contains('s'),
                prices,
                tiers: column().split(';').filter_map(tier).collect(),
            });
            catalog.own.iter_mut().last().into_iter().for_each(|own| own.end += 1);
        }
        catalog
    }

    /// Returns all models, sorted by provider and model.
    pub fn models(&self) -> &[ModelInfo] {
        &self.models
    }

    /// Returns all providers, sorted by id.
    pub fn providers(&self) -> &[ProviderInfo] {
        &self.providers
    }

    /// Returns a provider by its id.
    pub fn provider(&self, id: &str) -> Option<&ProviderInfo> {
        self.providers.binary_search_by(|info| info.id.cmp(id)).ok().and_then(|at| self.providers.get(at))
    }

    /// Returns `model` at `provider` if that provider is known, and otherwise at any provider
    /// (`find_any`).
    pub fn lookup(&self, provider: &str, model: &str) -> Option<ModelInfo> {
        match self.provider(provider) {
            Some(_) => self.find(provider, model),
            None => self.find_any(model),
        }
    }

    /// Finds a provider's model by its name, with or without a date at its end, such as `gpt-5-2025-08-07`.
    pub fn find(&self, provider: &str, model: &str) -> Option<ModelInfo> {
        let at = self.providers.binary_search_by(|info| info.id.cmp(provider)).ok()?;
        let own = self.models.get(self.own.get(at)?.clone())?;
        let model = model
            .strip_prefix(provider)
            .and_then(|rest| rest.strip_prefix('/'))
            .filter(|_| provider != "openrouter")
            .unwrap_or(model);
        names(model).find_map(|name| own.iter().find(|info| info.model.eq_ignore_ascii_case(name))).cloned()
    }

    /// Finds a model whose provider is unknown: of all models with this name, with or without a vendor's
    /// prefix, the one with the smallest window. It has no price, because prices differ between providers.
    pub(crate) fn find_any(&self, model: &str) -> Option<ModelInfo> {
        let wanted = model.rsplit('/').next().unwrap_or(model);
        let found = names(wanted).find_map(|name| {
            let same = self.models.iter().filter(|info| is_named(info.model, name));
            same.filter(|info| info.context_tokens.is_some()).min_by_key(|info| info.window_tokens())
        })?;
        Some(ModelInfo { prices: None, tiers: Vec::new(), ..found.clone() })
    }
}

impl ModelInfo {
    /// Returns the most tokens that a request may have: the input limit if it is smaller than the context
    /// window, otherwise the window.
    pub fn window_tokens(&self) -> Option<u64> {
        match (self.context_tokens, self.input_tokens) {
            (Some(context), Some(input)) => Some(context.min(input)),
            (context, input) => context.or(input),
        }
    }

    /// Returns the maximum cost of a call with at most this much input; `None` if the prices are not known.
    pub fn call_price(&self, input_tokens: u64) -> Option<CallPrice> {
        let prices = self.prices_of(input_tokens)?;
        let input = prices.input.max(prices.cache_write.unwrap_or_default());
        let cost = (u128::from(input_tokens) * u128::from(input)).div_ceil(1_000_000);
        Some(CallPrice {
            input_microdollars: u64::try_from(cost).unwrap_or(u64::MAX),
            output_per_million: prices.output.max(prices.reasoning.unwrap_or_default()),
        })
    }

    /// Returns the prices of a request of this size.
    fn prices_of(&self, input_tokens: u64) -> Option<Prices> {
        let tier = self.tiers.iter().rev().find(|tier| input_tokens > tier.above_tokens);
        tier.map(|tier| tier.prices).or(self.prices)
    }

    /// Returns the cost of a call, rounded to the nearest microdollar; `None` if the prices are not known.
    ///
    /// Tokens beyond the model's window are an error in the report and cost nothing: otherwise they would
    /// exhaust a budget at once.
    pub fn cost_microdollars(&self, usage: &Usage) -> Option<u64> {
        let possible = self.context_tokens.into_iter().chain(self.input_tokens).max().unwrap_or(u64::MAX);
        let (input, output) = (usage.input_tokens.min(possible), usage.output_tokens.min(possible));
        let prices = self.prices_of(input)?;
        let cached = usage.cached_tokens.min(input);
        let written = usage.cache_write_tokens.min(input.saturating_sub(cached));
        let written_hour = usage.cache_write_hour_tokens.min(written);
        let write_price = prices.cache_write.unwrap_or(prices.input);
        let fresh = input.saturating_sub(cached).saturating_sub(written);
        let reasoning = usage.reasoning_tokens.min(output);
        let parts = [
            (fresh, prices.input),
            (cached, prices.cache_read.unwrap_or(prices.input)),
            (written.saturating_sub(written_hour), write_price),
            // An entry that is kept for an hour costs twice the input's price, and the usual one 1.25 times.
            (written_hour, write_price.saturating_mul(8) / 5),
            (output.saturating_sub(reasoning), prices.output),
            (reasoning, prices.reasoning.unwrap_or(prices.output)),
        ];
        let total: u128 = parts.iter().map(|(tokens, price)| u128::from(*tokens) * u128::from(*price)).sum();
        u64::try_from((total + 500_000) / 1_000_000).ok()
    }
}

/// Yields the name, and if it ends in a date or in `latest`, the name without that.
fn names(model: &str) -> impl Iterator<Item = &str> {
    [Some(model), without_date(model)].into_iter().flatten()
}

/// Whether a model has this name, with or without a vendor's prefix. It is asked of every model for each request of some
/// APIs, so it looks at the end only.
fn is_named(model: &str, name: &str) -> bool {
    let (model, name) = (model.as_bytes(), name.as_bytes());
    let Some((prefix, own)) = model.len().checked_sub(name.len()).map(|at| model.split_at(at)) else {
        return false;
    };
    prefix.last().is_none_or(|last| *last == b'/') && own.eq_ignore_ascii_case(name)
}

/// Returns the name without the date or `latest` at its end; `None` if there is neither. Only a date with a
/// year counts: `gpt-4-0613` is a model of its own.
fn without_date(model: &str) -> Option<&str> {
    if let Some(base) = model.strip_suffix("-latest") {
        return Some(base);
    }
    if !model.ends_with(|last: char| last.is_ascii_digit()) {
        return None;
    }
    let digits_only = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let at = model.rfind("-20").into_iter().chain(model.rfind("@20")).max()?;
    let date = model.get(at + 1..)?;
    let is_date = match date.len() {
        8 => digits_only(date),
        10 => date.split('-').map(str::len).eq([4, 2, 2]) && date.split('-').all(digits_only),
        _ => false,
    };
    (is_date && at > 0).then(|| &model[..at])
}

fn number(column: &str) -> Option<u64> {
    column.parse().ok()
}

fn prices([input, output, cache_read, cache_write, reasoning]: [&str; 5]) -> Option<Prices> {
    Some(Prices {
        input: number(input)?,
        output: number(output)?,
        cache_read: number(cache_read),
        cache_write: number(cache_write),
        reasoning: number(reasoning),
    })
}

fn tier(text: &str) -> Option<PriceTier> {
    let mut fields = text.split(':');
    let above_tokens = number(fields.next()?)?;
    let mut field = || fields.next().unwrap_or_default();
    let prices = prices([field(), field(), field(), field(), field()])?;
    Some(PriceTier { above_tokens, prices })
}

#[cfg(test)]
mod tests;
