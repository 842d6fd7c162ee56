//! The choice of the server and its key, and limits on their cost.
//!
//! Invariants: the key of a configured provider is sent only to its own address, and if that address comes
//! from a file, only after the user has confirmed it; missing settings are reported before anything is
//! opened.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use greenroom::internal::Catalog;
use greenroom::provider::Prices;
use greenroom::provider::{BaseUrl, HttpProvider, KeySource, Proxies, ServerOptions};
use greenroom_tools::origin;

use super::{confirmed, key_command, local};
use crate::args::{ModelArgs, ServerArgs};
use crate::config::surroundings::Surroundings;
use crate::config::{
    BUILT_IN, Config, FILE_NAME, Loaded, OPENAI, OPENAI_KEY, ProviderConfig, check_variable,
};
use crate::error::{secrets, usage};

/// The variable with the address of Anthropic's API, or of a gateway to it.
const ANTHROPIC_ADDRESS: &str = "ANTHROPIC_BASE_URL";

/// The chosen server.
pub(crate) struct Server {
    /// Its name in the configuration; `None` for an address that the user gave without a name.
    name: Option<String>,
    pub(crate) settings: ProviderConfig,
    base_url: BaseUrl,
    /// Whether its address or its key's variable comes from a file.
    is_of_file: bool,
    surroundings: Surroundings,
}

impl Server {
    /// Chooses the server: by a flag, or else the environment, or else the configuration, or else by the vendor of
    /// `model`.
    pub(crate) fn chosen(
        loaded: &Loaded,
        args: &ServerArgs,
        model: &str,
        may_ask_environment: bool,
        surroundings: &Surroundings,
    ) -> Result<Self> {
        let config = &loaded.config;
        let sets_server = |key: &Vec<String>| {
            let key: Vec<&str> = key.iter().map(String::as_str).collect();
            matches!(key[..], ["provider"] | ["providers", OPENAI, "base_url"])
        };
        let is_set = loaded.origins.keys().any(sets_server)
            || (may_ask_environment && surroundings.variable("OPENAI_BASE_URL").is_some());
        let of_model = || vendor(model).filter(|_| !is_set && args.base_url.is_none());
        let name = args.provider.as_deref().or_else(of_model).unwrap_or(&config.provider);
        let (settings, base_url) = config.provider(name)?;
        let of_environment = vendors_address(loaded, name, surroundings).filter(|_| may_ask_environment);
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
                base_url: of_environment.transpose()?.unwrap_or_else(|| base_url.clone()),
                is_of_file: is_of_file(loaded, name, base_url),
                surroundings: surroundings.clone(),
            });
        };
        let base_url = given.parse().map_err(|error| usage(format!("{what}: {error}")))?;
        // The key of a configured provider is sent only to its own address, whoever chose the provider.
        let settings = ProviderConfig {
            api_key_env: Some(OPENAI_KEY.to_owned()),
            key_command: None,
            catalog: None,
            ..settings.clone()
        };
        let is_of_file = args.is_kept;
        Ok(Self { name: None, settings, base_url, is_of_file, surroundings: surroundings.clone() })
    }

    /// Returns its name in the configuration; `None` for an address without one.
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns its address.
    pub(crate) fn base_url(&self) -> &BaseUrl {
        &self.base_url
    }

    /// Confirms that its key may be sent to its address, which the user has typed: a session keeps the address, and
    /// a file could be changed.
    pub(crate) fn confirm_typed(&self, args: &ServerArgs, data_dir: &Path) -> Result<()> {
        let variable = args.api_key_env.as_deref().or(self.settings.api_key_env.as_deref());
        match variable.and_then(|variable| self.surroundings.variable(variable)) {
            Some(key) if self.name.is_none() && !args.is_kept => {
                confirmed::confirm(data_dir, &key, &self.base_url)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Confirms that this key may be sent to its address, which the user has seen.
    pub(crate) fn confirm(&self, key: &str, data_dir: &Path) -> Result<()> {
        confirmed::confirm(data_dir, key, &self.base_url)
    }

    /// Whether it is a vendor's own server.
    pub(crate) fn is_built_in(&self) -> bool {
        let defaults = Config::default();
        let built_in = self.name.as_ref().and_then(|name| defaults.providers.get(name));
        built_in.is_some_and(|built_in| built_in.base_url.as_ref() == Some(&self.base_url))
    }

    /// Returns further variables that usually have the vendor's key.
    fn other_variables(&self) -> &'static [&'static str] {
        match self.is_built_in().then(|| Catalog::bundled().provider(&self.catalog_name())).flatten() {
            Some(provider) => &provider.key_variables,
            None => &[],
        }
    }

    /// Returns where the keys come from, if a command prints them.
    fn key_source(&self) -> Option<KeySource> {
        let command = self.settings.key_command.clone()?;
        let ttl = Duration::from_secs(self.settings.key_command_ttl_s);
        Some(key_command::source(command, self.surroundings.for_own_commands()).ttl(ttl))
    }

    /// Returns its name in the model catalogue. An address of the user's own network without a name has no entry: its
    /// models are not those of a vendor, whatever they are called, and cost nothing that is known.
    fn catalog_name(&self) -> String {
        let name = match &self.name {
            Some(name) => name,
            None if local::is_local(&self.base_url) => local::NAME,
            None => OPENAI,
        };
        self.settings.catalog_name(name, &self.base_url)
    }

    /// Whether it is a vendor's own server, and no key of that vendor is there.
    pub(crate) fn lacks_key(&self, args: &ServerArgs) -> bool {
        if !self.is_built_in() || args.api_key_env.is_some() || self.settings.key_command.is_some() {
            return false;
        }
        let own = self.settings.api_key_env.as_deref();
        let mut variables = own.into_iter().chain(self.other_variables().iter().copied());
        own.is_some() && !variables.any(|name| self.surroundings.variable(name).is_some())
    }

    /// Creates the provider. `data_dir` is the store's directory, which has the confirmed addresses.
    pub(crate) fn provider(
        &self,
        args: &ServerArgs,
        needs_key: bool,
        data_dir: &Path,
    ) -> Result<Arc<HttpProvider>> {
        if let Some(name) = &args.api_key_env {
            check_variable(name).map_err(|reason| usage(format!("--api-key-env {reason}")))?;
        }
        // No confirmation: what can change the user's file can run the command itself.
        let key_source = self.key_source().filter(|_| args.api_key_env.is_none());
        let of_settings = self.settings.api_key_env.as_deref().filter(|_| key_source.is_none());
        let key_variable = args.api_key_env.as_deref().or(of_settings);
        let is_usual = self.settings.api_key_env.as_deref() == key_variable;
        let others = if is_usual && key_source.is_none() { self.other_variables() } else { &[] };
        let mut variables = key_variable.into_iter().chain(others.iter().copied());
        let found = variables.find_map(|name| Some((name, self.surroundings.variable(name)?)));
        let (key_variable, api_key) = match found {
            Some((name, key)) => {
                secrets::note(name, &key);
                (Some(name), Some(key))
            }
            None => (key_variable, None),
        };
        let is_confirmed =
            |key: &String| !self.is_of_file || confirmed::is_confirmed(data_dir, key, &self.base_url);
        if let (Some(key), Some(key_variable), true) = (&api_key, key_variable, needs_key)
            && !is_confirmed(key)
        {
            return Err(usage(format!(
                "a configuration file sends the key in {key_variable} to {}, which you have not confirmed; if the \
                 address is right, run `greenroom config trust{}` once, with the same variables, files and store",
                self.base_url,
                shown_flags(args)
            )));
        }
        let api_key = api_key.filter(is_confirmed);
        if let Some(key_variable) = key_variable.filter(|_| api_key.is_none() && needs_key) {
            let asks_openai = self.base_url == ServerOptions::default().base_url;
            match &self.name {
                _ if args.api_key_env.is_some() => {
                    return Err(usage(format!(
                        "the variable {key_variable}, which --api-key-env names, is not set"
                    )));
                }
                _ if asks_openai || self.is_built_in() => return Err(usage(without_key(key_variable))),
                Some(name) if name != OPENAI => {
                    return Err(usage(format!(
                        "the variable {key_variable}, which the provider {name} names, is not set"
                    )));
                }
                Some(_) | None => {}
            }
        }
        self.http(api_key, key_source)
    }

    /// Creates the provider with a key that the user has just given.
    ///
    /// # Errors
    /// A file says where the key would be sent, and the user has not confirmed it.
    pub(crate) fn provider_with_key(
        &self,
        args: &ServerArgs,
        key: String,
        data_dir: &Path,
    ) -> Result<Arc<HttpProvider>> {
        if self.is_of_file && !confirmed::is_confirmed(data_dir, &key, &self.base_url) {
            return Err(usage(format!(
                "a configuration file sends this key to {}, which you have not confirmed; if the address is right, set its \
                 variable, and run `greenroom config trust{}` once",
                self.base_url,
                shown_flags(args)
            )));
        }
        self.http(Some(key), None)
    }

    fn http(&self, api_key: Option<String>, key_source: Option<KeySource>) -> Result<Arc<HttpProvider>> {
        let options = ServerOptions {
            name: self.catalog_name(),
            api: self.settings.api_at(&self.base_url),
            base_url: self.base_url.clone(),
            api_key: api_key.map(Into::into),
            key_source,
            proxies: Some(proxies(&self.surroundings)),
            first_event_timeout: Duration::from_secs(self.settings.first_event_timeout_s),
            idle_timeout: Duration::from_secs(self.settings.idle_timeout_s),
            stream: self.settings.stream,
            resend_reasoning: self.settings.resend_reasoning,
            ..ServerOptions::default()
        };
        HttpProvider::new(options).map(Arc::new).map_err(|error| usage(error.to_string()))
    }
}

/// Returns the address that Anthropic's own variable names, unless the configuration has one. It is given without the
/// version, as the vendor's programs expect it.
fn vendors_address(loaded: &Loaded, name: &str, surroundings: &Surroundings) -> Option<Result<BaseUrl>> {
    let is_set = |key: &Vec<String>| matches!(&**key, [first, second, third] if first == "providers" && second == name && third == "base_url");
    let address = surroundings.variable(ANTHROPIC_ADDRESS).filter(|_| name == "anthropic")?;
    if loaded.origins.keys().any(is_set) {
        return None;
    }
    let address = address.trim_end_matches('/');
    let address = if address.ends_with("/v1") { address.to_owned() } else { format!("{address}/v1") };
    Some(address.parse().map_err(|error| usage(format!("{ANTHROPIC_ADDRESS}: {error}"))))
}

/// Returns the variables that usually have the keys of the built-in providers.
pub(crate) fn usual_variables() -> impl Iterator<Item = String> {
    let vendors = BUILT_IN.into_iter().filter_map(|name| Catalog::bundled().provider(name));
    vendors.flat_map(|vendor| vendor.key_variables.iter().map(|variable| (*variable).to_owned()))
}

/// Returns the built-in provider that has this model, if it is not the default one.
fn vendor(model: &str) -> Option<&'static str> {
    let catalog = Catalog::bundled();
    let others = || BUILT_IN.into_iter().filter(|name| *name != OPENAI);
    if catalog.find(OPENAI, model).is_some() {
        return None;
    }
    let families = [("claude-", "anthropic"), ("gemini-", "google")];
    others()
        .find(|name| catalog.find(name, model).is_some())
        .or_else(|| families.into_iter().find(|(family, _)| model.starts_with(family)).map(|(_, name)| name))
}

/// Returns what can be done without an API key, a line each.
fn without_key(variable: &str) -> String {
    let found: Vec<String> = local::running_now()
        .iter()
        .map(|found| {
            format!("{} is running on this machine; to use it, add --base-url {}", found.name, found.address)
        })
        .collect();
    let local = match &*found.join("\n  ") {
        "" => "for a local server such as Ollama, add --base-url http://127.0.0.1:11434/v1".to_owned(),
        found => found.to_owned(),
    };
    format!(
        "No API key found. Use one of these:\n  \
         a key of this provider: set {variable}, or store one with `greenroom login`\n  \
         another provider: --model claude-… with ANTHROPIC_API_KEY, --model gemini-… with GEMINI_API_KEY\n  \
         {local}\n  \
         the simulated model, which needs neither: --simulate"
    )
}

/// Whether a file sets this provider's address or its key's variable. Repeating a default does not count.
fn is_of_file(loaded: &Loaded, name: &str, base_url: &BaseUrl) -> bool {
    let settings = loaded.config.providers.get(name);
    let key = settings.and_then(|settings| settings.api_key_env.as_deref());
    let built_in = Config::default().providers;
    let is_default =
        |own: &ProviderConfig| own.base_url.as_ref() == Some(base_url) && own.api_key_env.as_deref() == key;
    if built_in.values().any(is_default) {
        return false;
    }
    let is_file = |source: &String| loaded.files.iter().any(|file| file.display().to_string() == *source);
    let of_setting = |setting: &str| {
        let parts = ["providers", name, setting].map(str::to_owned).to_vec();
        loaded.origins.get(&parts).is_some_and(is_file)
    };
    of_setting("base_url") || of_setting("api_key_env")
}

/// Returns the flags that choose the same provider and key.
fn shown_flags(args: &ServerArgs) -> String {
    let flag = |name: &str, value: &Option<String>| {
        value.as_ref().map(|value| format!(" {name} {value}")).unwrap_or_default()
    };
    flag("--provider", &args.provider) + &flag("--api-key-env", &args.api_key_env)
}

/// Confirms that the provider's key may be sent to its configured address. Returns the key's variable and the
/// address.
///
/// # Errors
/// The provider or the key is unknown, or the confirmation cannot be stored.
pub(crate) fn confirm(
    config: &Config,
    args: &ServerArgs,
    surroundings: &Surroundings,
    data_dir: &Path,
) -> Result<(String, BaseUrl)> {
    if origin::is_of_command() {
        return Err(usage("a command of a tool started this process, so it may not confirm an address"));
    }
    if args.base_url.is_some() {
        return Err(usage("an address given with --base-url needs no confirmation"));
    }
    let name = args.provider.as_deref().unwrap_or(&config.provider);
    let (settings, base_url) = config.provider(name)?;
    let variable = args.api_key_env.as_deref().or(settings.api_key_env.as_deref());
    let variable = variable.ok_or_else(|| usage(format!("the provider {name} has no key")))?;
    check_variable(variable).map_err(|reason| usage(format!("--api-key-env {reason}")))?;
    let key = surroundings.variable(variable);
    let key = key.ok_or_else(|| usage(format!("the variable {variable} is not set; set it to the key")))?;
    confirmed::confirm(data_dir, &key, base_url)?;
    Ok((variable.to_owned(), base_url.clone()))
}

/// Returns the proxies of the environment. Libraries do not find them there, because their addresses may
/// contain passwords, and are hidden.
pub(crate) fn proxies(surroundings: &Surroundings) -> Proxies {
    let variable = |name: &str| surroundings.variable(name);
    let either = |upper: &str| variable(upper).or_else(|| variable(&upper.to_lowercase()));
    Proxies {
        http: either("HTTP_PROXY"),
        https: either("HTTPS_PROXY"),
        all: either("ALL_PROXY"),
        no_proxy: either("NO_PROXY"),
    }
}

/// Checks that a project's choice of model does not evade the user's cost limit, as a model without a known
/// price would. If the user has no limit, a more expensive model than the user's own gives a warning, which
/// is returned.
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
    // Only the user's own file sets prices.
    let prices = |catalog: &str, model: &str| {
        let set = own.models.get(model).and_then(|of_model| of_model.price.as_ref());
        let known = Catalog::bundled().lookup(catalog, model);
        set.map_or(known.clone(), |price| Some(price.applied(known)))?.prices
    };
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

/// Formats prices in dollars.
#[expect(clippy::cast_precision_loss, reason = "prices are far below 2^52 microdollars")]
fn shown(prices: &Prices) -> String {
    format!("${:.2} and ${:.2}", prices.input as f64 / 1e6, prices.output as f64 / 1e6)
}
