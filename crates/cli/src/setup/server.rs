//! Which server is asked, with which key, and what that may cost.
//!
//! Invariants: the key of a configured provider goes to its own address only; what is missing is said before anything is
//! opened.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use greenroom::provider::catalog::Prices;
use greenroom::provider::{BaseUrl, Catalog, OpenAi, OpenAiOptions, Proxies};

use crate::config::{Config, FILE_NAME, Loaded, OPENAI, OPENAI_KEY, ProviderConfig, check_variable};
use crate::errors::usage;
use crate::options::{ModelArgs, ServerArgs};
use crate::surroundings::Surroundings;

/// The server that is asked.
pub(super) struct Server {
    /// Its name in the configuration; `None` for an address that the user gave without one.
    name: Option<String>,
    pub(super) settings: ProviderConfig,
    base_url: BaseUrl,
    surroundings: Surroundings,
}

impl Server {
    /// The one that was asked for: by a flag, else by the environment, else by the configuration.
    pub(super) fn chosen(
        config: &Config,
        args: &ServerArgs,
        may_ask_environment: bool,
        surroundings: &Surroundings,
    ) -> Result<Self> {
        let name = args.provider.as_deref().unwrap_or(&config.provider);
        let (settings, base_url) = config.provider(name)?;
        let given = args.base_url.clone().filter(|url| !url.trim().is_empty());
        let may_ask_environment = may_ask_environment && given.is_none() && args.provider.is_none();
        let (given, what) = match given {
            None if may_ask_environment => (surroundings.variable("OPENAI_BASE_URL"), "OPENAI_BASE_URL"),
            given => (given, "--base-url"),
        };
        let Some(given) = given else {
            return Ok(Self {
                name: Some(name.to_owned()),
                settings: settings.clone(),
                base_url: base_url.clone(),
                surroundings: surroundings.clone(),
            });
        };
        let base_url = given.parse().map_err(|error| usage(format!("{what}: {error}")))?;
        // The key of a configured provider goes to its own address only, whoever chose that provider.
        let settings =
            ProviderConfig { api_key_env: Some(OPENAI_KEY.to_owned()), catalog: None, ..settings.clone() };
        Ok(Self { name: None, settings, base_url, surroundings: surroundings.clone() })
    }

    fn catalog_name(&self) -> String {
        self.settings.catalog_name(self.name.as_deref().unwrap_or(OPENAI), &self.base_url)
    }

    pub(super) fn provider(&self, args: &ServerArgs, needs_key: bool) -> Result<Arc<OpenAi>> {
        if let Some(name) = &args.api_key_env {
            check_variable(name).map_err(|reason| usage(format!("--api-key-env {reason}")))?;
        }
        let key_variable = args.api_key_env.as_deref().or(self.settings.api_key_env.as_deref());
        let api_key = key_variable.and_then(|name| self.surroundings.variable(name));
        if let Some(key_variable) = key_variable.filter(|_| api_key.is_none() && needs_key) {
            let asks_openai = self.base_url == OpenAiOptions::default().base_url;
            match &self.name {
                _ if args.api_key_env.is_some() => {
                    return Err(usage(format!(
                        "the variable {key_variable}, which --api-key-env names, is not set"
                    )));
                }
                _ if asks_openai => {
                    return Err(usage(format!(
                        "there is no API key: set {key_variable}, or name another server with --base-url, or try \
                         --simulate, which needs neither"
                    )));
                }
                Some(name) if name != OPENAI => {
                    return Err(usage(format!(
                        "the variable {key_variable}, which the provider {name} names, is not set"
                    )));
                }
                Some(_) | None => {}
            }
        }
        let options = OpenAiOptions {
            name: self.catalog_name(),
            base_url: self.base_url.clone(),
            api_key: api_key.map(Into::into),
            proxies: Some(proxies(&self.surroundings)),
            first_event_timeout: Duration::from_secs(self.settings.first_event_timeout_s),
            idle_timeout: Duration::from_secs(self.settings.idle_timeout_s),
            stream: self.settings.stream,
            resend_reasoning: self.settings.resend_reasoning,
            ..OpenAiOptions::default()
        };
        OpenAi::new(options).map(Arc::new).map_err(|error| usage(error.to_string()))
    }
}

/// The proxies that the environment names. Libraries do not find them there: their addresses may hold passwords, so
/// they are hidden.
pub(super) fn proxies(surroundings: &Surroundings) -> Proxies {
    let variable = |name: &str| surroundings.variable(name);
    let either = |upper: &str| variable(upper).or_else(|| variable(&upper.to_lowercase()));
    Proxies {
        http: either("HTTP_PROXY"),
        https: either("HTTPS_PROXY"),
        all: either("ALL_PROXY"),
        no_proxy: either("NO_PROXY"),
    }
}

/// What a project's file chose must not get around the limit of cost that the user set: it would, with a model whose
/// price nobody knows. Where the user set none, a dearer model than theirs is worth a line, which is given.
pub(super) fn check_cost(
    loaded: &Loaded,
    server: &Server,
    args: &ModelArgs,
    named: Option<&str>,
) -> Result<Option<String>> {
    let (own, config) = (&loaded.own, &loaded.config);
    let catalog = server.catalog_name();
    let own_catalog = match &server.name {
        Some(_) if args.server.provider.is_none() => {
            let (settings, url) = own.provider(&own.provider)?;
            settings.catalog_name(&own.provider, url)
        }
        Some(_) | None => catalog.clone(),
    };
    let main = |config: &Config| named.map_or_else(|| config.model.clone(), str::to_owned);
    let summaries = |config: &Config| config.compaction.summary_model.clone().unwrap_or_else(|| main(config));
    let prices = |catalog: &str, model: &str| Catalog::bundled().lookup(catalog, model)?.prices;
    for (theirs, ours) in [(main(config), main(own)), (summaries(config), summaries(own))] {
        if (&theirs, &catalog) == (&ours, &own_catalog) {
            continue;
        }
        match (prices(&catalog, &theirs), prices(&own_catalog, &ours)) {
            (None, Some(_)) if own.limits.cost_usd_max.is_some() => {
                return Err(usage(format!(
                    "{FILE_NAME} chooses the model {theirs} at {catalog}, whose price is not known, so that your \
                     limits.cost_usd_max would not hold; pass --model and --provider, or choose it in your own file"
                )));
            }
            (Some(new), Some(old)) if config.limits.cost_usd_max.is_none() && is_dearer(&new, &old) => {
                return Ok(Some(format!(
                    "{FILE_NAME} chooses the model {theirs}, which costs {} for a million tokens in and out, where \
                     yours, {ours}, costs {}; limits.cost_usd_max bounds what a session may cost",
                    shown(&new),
                    shown(&old)
                )));
            }
            (Some(_) | None, Some(_) | None) => {}
        }
    }
    Ok(None)
}

fn is_dearer(new: &Prices, old: &Prices) -> bool {
    new.input > old.input || new.output > old.output
}

/// Prices in dollars.
#[expect(clippy::cast_precision_loss, reason = "prices are far below 2^52 microdollars")]
fn shown(prices: &Prices) -> String {
    format!("${:.2} and ${:.2}", prices.input as f64 / 1e6, prices.output as f64 / 1e6)
}
