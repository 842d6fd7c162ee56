//! The configuration: its settings, their checks, and its output. `layers` decides which file may set what.
//!
//! May use `error` only.
//!
//! - Sections: `model`, `limits`, `permissions`, `sandbox`, `redact`, `retention`, `rewind`, `serve`, `mcp`, `looks`,
//!   `telemetry`.
//! - Sources: `layers` (files), `overrides` (environment and `--set`), `surroundings`, `kept_keys`, `trusted` (a
//!   project's files).
//! - Reading and writing: `keys` (settings by name), `place` and `parser_messages` (errors), `folder`, `reload`,
//!   `stamp`, `digest`.
//!
//! Invariants: an unknown key or an invalid value is an error that names the file, the line and the key; a
//! provider's address is parsed when its file is read, and only the parsed one is used; an address's query is
//! never shown.

pub(crate) mod digest;
pub(crate) mod folder;
pub(crate) mod kept_keys;
pub(crate) mod keys;
pub(crate) mod layers;
mod limits;
mod looks;
mod mcp;
mod model;
pub(crate) mod overrides;
mod parser_messages;
mod permissions;
pub(crate) mod place;
pub(crate) mod redact;
mod reload;
mod retention;
mod rewind;
pub(crate) mod sandbox;
mod serve;
pub(crate) mod stamp;
pub(crate) mod surroundings;
mod telemetry;
pub(crate) mod trusted;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use greenroom::internal::Catalog;
use greenroom::provider::{Api, BaseUrl, ResendReasoning, ServerOptions};
use greenroom::{Agent, ModelPrice, ModelSettings};
use greenroom_kernel::settings::CompactionSettings;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(crate) use self::keys::names as setting_names;
pub(crate) use self::layers::{Loaded, Texts, given_prompt, load, load_held, prompt_file, users_places};
pub(crate) use self::limits::LimitsConfig;
use self::looks::{NotifyConfig, ThemeConfig};
pub(crate) use self::mcp::McpConfig;
use self::model::ModelConfig;
pub(crate) use self::overrides::Overrides;
pub(crate) use self::permissions::PermissionsConfig;
use self::redact::RedactConfig;
pub(crate) use self::reload::{Change, LiveConfig};
pub(crate) use self::retention::{DAY_S, RetentionConfig};
pub(crate) use self::rewind::RewindConfig;
pub(crate) use self::sandbox::SandboxConfig;
pub(crate) use self::serve::{AgentConfig, ServeConfig, TokenConfig, check_host_name};
use self::telemetry::TelemetryConfig;
use crate::error::usage;

/// The file's name, in the project and in the user's folder.
pub(crate) const FILE_NAME: &str = "greenroom.yaml";
/// The default model.
pub(crate) const DEFAULT_MODEL: &str = "gpt-5.5";
/// The longest system prompt in a configuration, in bytes.
pub(crate) const SYSTEM_PROMPT_BYTES_MAX: usize = 32 * 1024;
/// The default provider.
pub(crate) const OPENAI: &str = "openai";
/// The built-in providers, which a configuration need not have.
pub(crate) const BUILT_IN: [&str; 3] = [OPENAI, "anthropic", "google"];
/// The variable with the key of [`OPENAI`], and of an address that no file names.
pub(crate) const OPENAI_KEY: &str = "OPENAI_API_KEY";

/// The configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// The model.
    pub(crate) model: String,
    /// The model's window in tokens, if the catalogue has none or a wrong one.
    pub(crate) context_window: Option<u64>,
    /// The provider, by its name in `providers`; if no file, variable or flag sets it, the model's vendor.
    pub(crate) provider: String,
    /// Servers, under names that you choose; `openai`, `anthropic` and `google` always exist, and entries with these
    /// names override their defaults.
    #[serde(deserialize_with = "or_default")]
    pub(crate) providers: BTreeMap<String, ProviderConfig>,
    /// Settings of model calls; those that are not set are not sent.
    #[serde(deserialize_with = "or_default")]
    pub(crate) model_settings: ModelSettings,
    /// Settings of single models, by their names: those of `model_settings`, `context_window`, `price` and
    /// `compaction`. They take precedence over the settings for all models.
    #[serde(deserialize_with = "or_default")]
    pub(crate) models: BTreeMap<String, ModelConfig>,
    /// The system prompt, in place of the built-in one; `file:NAME` reads a file. Also `--system`.
    pub(crate) system_prompt: Option<String>,
    /// Text to append to the system prompt; `file:NAME` reads a file. Also `--append-system`.
    pub(crate) append_system_prompt: Option<String>,
    /// Whether the model gets the text of AGENTS.md (or else CLAUDE.md) in each folder from the project's
    /// root to the working folder.
    pub(crate) project_instructions: bool,
    /// Whether the model gets a list of skills: folders with a SKILL.md.
    pub(crate) skills: bool,
    /// Whether the model gets the tool `compact`, with which it asks for a compaction when a part of its work is done.
    pub(crate) model_may_compact: bool,
    /// The permissions of the agent: the actions that need no approval.
    #[serde(deserialize_with = "or_default")]
    pub(crate) permissions: PermissionsConfig,
    /// Limits of runs and sessions.
    #[serde(deserialize_with = "or_default")]
    pub(crate) limits: LimitsConfig,
    /// When and how to compact.
    #[serde(deserialize_with = "or_default")]
    pub(crate) compaction: CompactionSettings,
    /// Commands that control compactions.
    #[serde(deserialize_with = "or_default")]
    pub(crate) hooks: HooksConfig,
    /// The sandbox in which commands run.
    #[serde(deserialize_with = "or_default")]
    pub(crate) sandbox: SandboxConfig,
    /// MCP servers, under names that you choose, whose tools the agent gets as `mcp__NAME__TOOL`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) mcp_servers: BTreeMap<String, McpConfig>,
    /// The server of `serve`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) serve: ServeConfig,
    /// The process that holds the store for all terminals.
    #[serde(deserialize_with = "or_default")]
    pub(crate) host: HostConfig,
    /// Traces for a collector.
    #[serde(deserialize_with = "or_default")]
    pub(crate) telemetry: TelemetryConfig,
    /// The colours of the chat: `dark`, `light`, `high_contrast` or `colour_blind`. Also `/theme`.
    pub(crate) theme: ThemeConfig,
    /// Notifications that a run has ended or asks a question.
    #[serde(deserialize_with = "or_default")]
    pub(crate) notify: NotifyConfig,
    /// Which sessions are kept.
    #[serde(deserialize_with = "or_default")]
    pub(crate) retention: RetentionConfig,
    /// Copies of files from before tools change them, for `undo`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) rewind: RewindConfig,
    /// The secrets that are redacted.
    #[serde(deserialize_with = "or_default")]
    pub(crate) redact: RedactConfig,
    /// Folders that you trust: their AGENTS.md, skills and commands are read, and their `greenroom.yaml` may contain
    /// text for the model. Absolute paths, or `~/…`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) trusted_folders: Vec<String>,
}

impl Default for Config {
    fn default() -> Self {
        let built_in = |options: ServerOptions, variable: &str| {
            let (base_url, api_key_env) = (Some(options.base_url), Some(variable.to_owned()));
            let api = (options.api != Api::default()).then_some(options.api);
            (options.name, ProviderConfig { base_url, api, api_key_env, ..ProviderConfig::default() })
        };
        let providers = BTreeMap::from([
            built_in(ServerOptions::default(), OPENAI_KEY),
            built_in(ServerOptions::anthropic(""), "ANTHROPIC_API_KEY"),
            built_in(ServerOptions::gemini(""), "GEMINI_API_KEY"),
        ]);
        Self {
            model: DEFAULT_MODEL.to_owned(),
            context_window: None,
            provider: OPENAI.to_owned(),
            providers,
            model_settings: ModelSettings::default(),
            models: BTreeMap::new(),
            system_prompt: None,
            append_system_prompt: None,
            project_instructions: true,
            skills: true,
            model_may_compact: false,
            permissions: PermissionsConfig::default(),
            limits: LimitsConfig::default(),
            compaction: CompactionSettings::default(),
            hooks: HooksConfig::default(),
            sandbox: SandboxConfig::default(),
            mcp_servers: BTreeMap::new(),
            serve: ServeConfig::default(),
            host: HostConfig::default(),
            telemetry: TelemetryConfig::default(),
            theme: ThemeConfig::default(),
            notify: NotifyConfig::default(),
            retention: RetentionConfig::default(),
            redact: RedactConfig::default(),
            rewind: RewindConfig::default(),
            trusted_folders: Vec::new(),
        }
    }
}

impl Config {
    /// Returns the settings whose texts may name a file, each with its key.
    fn prompts(&mut self) -> [(&'static str, &mut Option<String>); 4] {
        [
            ("compaction.compact_instructions", &mut self.compaction.compact_instructions),
            ("compaction.compact_prompt", &mut self.compaction.compact_prompt),
            ("system_prompt", &mut self.system_prompt),
            ("append_system_prompt", &mut self.append_system_prompt),
        ]
    }

    /// Adds the windows and the prices of single models to the agent.
    pub(crate) fn with_models(&self, mut agent: Agent) -> Agent {
        for (model, of) in &self.models {
            if let Some(tokens) = of.context_window {
                agent = agent.context_window_for(model, tokens);
            }
            if let Some(price) = &of.price {
                agent = agent.price_for(model, price.clone());
            }
        }
        agent
    }

    /// Returns a model's window, if it is set.
    pub(crate) fn window_of(&self, model: &str) -> Option<u64> {
        self.models.get(model).and_then(|of_model| of_model.context_window).or(self.context_window)
    }

    /// Returns the provider with this name, and its address.
    pub(crate) fn provider(&self, name: &str) -> Result<(&ProviderConfig, &BaseUrl)> {
        let found = self.providers.get(name).and_then(|found| Some((found, found.base_url.as_ref()?)));
        found.ok_or_else(|| {
            let known: Vec<&str> = self.providers.keys().map(String::as_str).collect();
            usage(format!(
                "there is no provider {name:?}; there are {}; add `providers: {{ {name}: {{ base_url: \"https://…\" }} }}` to \
                 {}, or name a file that has it with --config",
                known.join(", "),
                layers::own_file_shown()
            ))
        })
    }
}

/// A server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ProviderConfig {
    /// The address of the API, without the path of requests such as `/chat/completions`. Only the built-in providers
    /// may omit it.
    #[serde(deserialize_with = "parse_url", serialize_with = "show_url")]
    #[schemars(with = "Option<String>")]
    pub(crate) base_url: Option<BaseUrl>,
    /// The API that the server offers; if it is not set, that of the vendor with this address, or else `chat`.
    pub(crate) api: Option<Api>,
    /// The environment variable with the key; `null`: no key is sent.
    pub(crate) api_key_env: Option<String>,
    /// A shell command that prints the key on its first line, instead of `api_key_env`: for access tokens that expire.
    pub(crate) key_command: Option<String>,
    /// How long a key of `key_command` is used, in seconds; one that the server refuses is replaced at once.
    pub(crate) key_command_ttl_s: u64,
    /// The provider's name in the model catalogue, for limits and prices; if it is not set, it is found by the
    /// address or the provider's own name.
    pub(crate) catalog: Option<String>,
    /// The maximum number of concurrent calls; at most half of them are for summaries.
    pub(crate) in_flight_max: usize,
    /// The maximum number of tokens per minute, input and output together, including summaries; further calls wait.
    pub(crate) tokens_per_minute: Option<u64>,
    /// How long to wait for the first piece of an answer, in seconds; without `stream`, for the whole answer.
    pub(crate) first_event_timeout_s: u64,
    /// How long to wait for each further piece, in seconds; pings do not count.
    pub(crate) idle_timeout_s: u64,
    /// Whether answers are streamed; `false` requests each as a whole.
    pub(crate) stream: bool,
    /// Whether the reasoning of earlier answers is sent back, and in which field, unless the model's own settings say.
    pub(crate) resend_reasoning: ResendReasoning,
}

impl ProviderConfig {
    /// How long a call may be silent before its slot is given to another call. The provider's own limits are
    /// stricter; this one covers cases that they miss.
    pub(crate) fn silence_max(&self) -> Duration {
        Duration::from_secs(self.first_event_timeout_s.max(self.idle_timeout_s))
    }
}

impl Default for ProviderConfig {
    fn default() -> Self {
        Self {
            base_url: None,
            api: None,
            api_key_env: None,
            key_command: None,
            key_command_ttl_s: 300,
            catalog: None,
            in_flight_max: 16,
            tokens_per_minute: None,
            first_event_timeout_s: 300,
            idle_timeout_s: 120,
            stream: true,
            resend_reasoning: ResendReasoning::Never,
        }
    }
}

impl ProviderConfig {
    /// Returns the API at `url`: the configured one, or else that of the vendor whose address it is.
    pub(crate) fn api_at(&self, url: &BaseUrl) -> Api {
        let vendors = [ServerOptions::anthropic(""), ServerOptions::gemini("")];
        let is_there = |vendor: &&ServerOptions| vendor.base_url == *url;
        self.api.or_else(|| vendors.iter().find(is_there).map(|vendor| vendor.api)).unwrap_or_default()
    }

    /// Returns the name in the model catalogue: the configured one, or else that of the provider known at
    /// `url`, or else `name`.
    pub(crate) fn catalog_name(&self, name: &str, url: &BaseUrl) -> String {
        let is_there = |known: &str| known.parse::<BaseUrl>().is_ok_and(|known| known == *url);
        let by_url = || {
            let providers = Catalog::bundled().providers();
            let known = providers.iter().find(|provider| provider.base_url.is_some_and(is_there));
            known.map(|provider| provider.id.to_owned())
        };
        self.catalog.clone().or_else(by_url).unwrap_or_else(|| name.to_owned())
    }
}

/// The user's own commands that control compactions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HooksConfig {
    /// A shell command that decides about each compaction before its summary is written: it gets the proposal as JSON
    /// and prints its decision as JSON, or nothing.
    pub(crate) before_compact: Option<String>,
    /// How long the command may take, in seconds.
    pub(crate) timeout_s: u64,
}

impl Default for HooksConfig {
    fn default() -> Self {
        Self { before_compact: None, timeout_s: 60 }
    }
}

/// The process that holds the store for all terminals.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HostConfig {
    /// Whether `chat`, `resume` and `run` start a host if there is none; `false` makes them run in their own
    /// process.
    pub(crate) start: bool,
    /// How long the host stays up without clients and work, in seconds; 0 ends it with its last client.
    pub(crate) idle_s: u64,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self { start: true, idle_s: 60 }
    }
}

/// Checks an environment variable's name. The error for a key in its place does not show the key.
pub(crate) fn check_variable(name: &str) -> Result<(), &'static str> {
    let mut chars = name.chars();
    let is_name = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || c == '_');
    if is_name {
        Ok(())
    } else {
        Err("must be the name of an environment variable that holds the key, not the key")
    }
}

/// A setting's name in its parts, and its requirement.
type Wrong = (Vec<String>, String);

fn wrong(parts: &[&str], reason: &str) -> Result<(), Wrong> {
    Err((parts.iter().map(|part| (*part).to_owned()).collect(), reason.to_owned()))
}

/// Checks that these values of a section are not zero.
fn check_at_least_one(section: &[&str], values: &[(&str, u64)]) -> Result<(), Wrong> {
    match values.iter().find(|(_, value)| *value == 0) {
        Some((key, _)) => wrong(&[section, &[key]].concat(), "must be at least 1"),
        None => Ok(()),
    }
}

/// Checks a name that the user defines; `parts` is where it stands.
fn check_name(parts: &[&str], name: &str) -> Result<(), Wrong> {
    match is_name(name) {
        true => Ok(()),
        false => wrong(parts, "must be a name of letters, digits, dots, hyphens and underscores"),
    }
}

/// Like [`check`], for the compaction settings in this section.
fn check_compaction(section: &[&str], settings: &CompactionSettings) -> Result<(), Wrong> {
    settings.check().or_else(|error| {
        let text = error.to_string();
        match text.split_once(": ") {
            Some((key, reason)) => wrong(&[section, &[key]].concat(), reason),
            None => wrong(section, &text),
        }
    })
}

/// Like [`check`], for the model settings in this section.
fn check_model_settings(section: &[&str], settings: &ModelSettings) -> Result<(), Wrong> {
    settings.check().or_else(|error| {
        let parts: Vec<&str> = section.iter().copied().chain(error.setting.split('.')).collect();
        wrong(&parts, &error.reason)
    })
}

/// Checks the values of one layer, each by itself; returns the first invalid one.
fn check(config: &Config) -> Result<(), Wrong> {
    check_compaction(&["compaction"], &config.compaction)?;
    check_model_settings(&["model_settings"], &config.model_settings)?;
    for (name, model) in &config.models {
        check_model_settings(&["models", name], &model.settings)?;
        if model.context_window == Some(0) {
            return wrong(&["models", name, "context_window"], "must be at least 1 token, or null");
        }
        if let Some(Err(error)) = model.price.as_ref().map(ModelPrice::check) {
            let parts: Vec<&str> =
                ["models", name, "price"].into_iter().chain(error.setting.split('.')).collect();
            return wrong(&parts, &error.reason);
        }
        match model.compaction_over(&config.compaction) {
            Ok(Some(compaction)) => check_compaction(&["models", name, "compaction"], &compaction)?,
            Ok(None) => {}
            Err(error) => return wrong(&["models", name, "compaction"], &error.to_string()),
        }
    }
    for (key, text) in
        [("system_prompt", &config.system_prompt), ("append_system_prompt", &config.append_system_prompt)]
    {
        if text.as_ref().is_some_and(|text| text.len() > SYSTEM_PROMPT_BYTES_MAX) {
            return wrong(&[key], &format!("must have at most {SYSTEM_PROMPT_BYTES_MAX} bytes"));
        }
    }
    if config.hooks.before_compact.as_deref().is_some_and(|command| command.trim().is_empty()) {
        return wrong(&["hooks", "before_compact"], "must be a command, or null");
    }
    check_at_least_one(&["hooks"], &[("timeout_s", config.hooks.timeout_s)])?;
    if config.model.trim().is_empty() {
        return wrong(&["model"], "must not be empty");
    }
    if config.context_window == Some(0) {
        return wrong(&["context_window"], "must be at least 1 token, or null");
    }
    check_name(&["provider"], &config.provider)?;
    for (name, provider) in &config.providers {
        check_name(&["providers", name], name)?;
        if let Some(Err(reason)) = provider.api_key_env.as_deref().map(check_variable) {
            return wrong(&["providers", name, "api_key_env"], reason);
        }
        if provider.key_command.as_deref().is_some_and(|command| command.trim().is_empty()) {
            return wrong(&["providers", name, "key_command"], "must be a command, or null");
        }
        let values = [
            ("in_flight_max", provider.in_flight_max as u64),
            ("tokens_per_minute", provider.tokens_per_minute.unwrap_or(1)),
            ("first_event_timeout_s", provider.first_event_timeout_s),
            ("idle_timeout_s", provider.idle_timeout_s),
            ("key_command_ttl_s", provider.key_command_ttl_s),
        ];
        check_at_least_one(&["providers", name], &values)?;
    }
    config.limits.check()?;
    config.serve.check()?;
    permissions::check(&config.permissions)?;
    config.sandbox.check()?;
    config.mcp_servers.iter().try_for_each(|(name, server)| server.check(name))?;
    retention::check(&config.retention)?;
    rewind::check(&config.rewind)?;
    if config.trusted_folders.iter().any(|folder| !layers::is_absolute(folder)) {
        return wrong(&["trusted_folders"], "each must be an absolute path, or begin with ~/");
    }
    Ok(())
}

/// Returns the settings that the layers together must have and do not.
fn missing(config: &Config) -> Vec<Wrong> {
    let without_url = config
        .providers
        .iter()
        .filter(|(name, provider)| provider.base_url.is_none() && !BUILT_IN.contains(&name.as_str()));
    let without_url = without_url
        .map(|(name, _)| (vec!["providers".to_owned(), name.clone()], "its base_url is missing".to_owned()));
    let unreachable = config.mcp_servers.iter().filter(|(_, server)| !server.has_transport());
    let unreachable = unreachable.map(|(name, _)| {
        (vec!["mcp_servers".to_owned(), name.clone()], "its command is missing, or its url".to_owned())
    });
    without_url.chain(unreachable).collect()
}

fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
}

/// A missing or empty value is the default: `limits:` with all its settings commented out, for example.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

fn parse_url<'de, D: Deserializer<'de>>(from: D) -> Result<Option<BaseUrl>, D::Error> {
    let text: Option<String> = Option::deserialize(from)?;
    text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
}

fn show_url<S: Serializer>(url: &Option<BaseUrl>, to: S) -> Result<S::Ok, S::Error> {
    url.as_ref().map(shown_url).serialize(to)
}

/// Returns an address without its query, which may contain a key.
pub(crate) fn shown_url(url: &BaseUrl) -> String {
    format!("{url}{}", if url.has_query() { "?***" } else { "" })
}

#[cfg(test)]
pub(crate) mod tests;
