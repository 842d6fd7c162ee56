//! The configuration: the project's `greenroom.yaml` over the user's own, over the defaults.
//!
//! Invariants: an unknown key or a bad value is an error that names the file, the line and the key; and a file
//! that merely lies in the current folder cannot send the user's key to another machine, nor raise what the user
//! said a session may cost.

use std::path::{Path, PathBuf};

use anyhow::Result;
use greenroom::kernel::run::RunLimits;
use greenroom::kernel::settings::CompactionSettings;
use serde::{Deserialize, Serialize};
use serde_norway::Value;

use crate::errors::usage;
use crate::options::{ConfigArgs, Global};
use crate::terminal::{Screen, variable};

/// The file's name, in the project and in the user's folder.
const FILE_NAME: &str = "greenroom.yaml";
/// The model where nothing names one.
pub(crate) const DEFAULT_MODEL: &str = "gpt-5.5";

/// What can be configured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// The model that answers.
    pub(crate) model: String,
    /// Its window in tokens, where the catalogue does not know it or is wrong.
    pub(crate) context_window: Option<u64>,
    /// Which server to ask.
    pub(crate) provider: ProviderConfig,
    /// What runs and sessions may take.
    pub(crate) limits: LimitsConfig,
    /// When and how to compact.
    pub(crate) compaction: CompactionSettings,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            model: DEFAULT_MODEL.to_owned(),
            context_window: None,
            provider: ProviderConfig::default(),
            limits: LimitsConfig::default(),
            compaction: CompactionSettings::default(),
        }
    }
}

/// Which server to ask.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ProviderConfig {
    /// Where the API is, up to and without `/chat/completions`.
    pub(crate) base_url: String,
    /// The environment variable that holds the key.
    pub(crate) api_key_env: String,
    /// The provider's name in the model catalogue.
    pub(crate) catalog: String,
    /// How many calls may be under way at a time.
    pub(crate) max_in_flight: usize,
    /// How long the first piece of an answer may take, in seconds.
    pub(crate) first_event_timeout_s: u64,
    /// How long each further piece may take, in seconds.
    pub(crate) idle_timeout_s: u64,
}

impl Default for ProviderConfig {
    fn default() -> Self {
        Self {
            base_url: greenroom::provider::openai::OPENAI_BASE_URL.to_owned(),
            api_key_env: "OPENAI_API_KEY".to_owned(),
            catalog: "openai".to_owned(),
            max_in_flight: 16,
            first_event_timeout_s: 300,
            idle_timeout_s: 120,
        }
    }
}

/// What runs and sessions may take.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LimitsConfig {
    /// The most answers of the model in one run.
    pub(crate) steps_max: u32,
    /// The most times that the same tool calls may follow one another.
    pub(crate) repeats_max: u32,
    /// How often one model call is tried again.
    pub(crate) retries_max: u32,
    /// The most one session may cost, in US dollars, as far as prices are known.
    pub(crate) cost_usd_max: Option<f64>,
    /// How long one tool call may take, in seconds.
    pub(crate) tool_timeout_s: Option<u64>,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let RunLimits { steps_max, repeats_max, retries_max, .. } = RunLimits::default();
        Self { steps_max, repeats_max, retries_max, cost_usd_max: None, tool_timeout_s: None }
    }
}

impl LimitsConfig {
    /// Those of a run.
    pub(crate) fn of_run(&self) -> RunLimits {
        RunLimits {
            steps_max: self.steps_max,
            repeats_max: self.repeats_max,
            retries_max: self.retries_max,
            ..RunLimits::default()
        }
    }

    /// The most one session may cost, in micro-dollars.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "checked to be neither negative nor infinite; a cast of what is too large gives the largest"
    )]
    pub(crate) fn cost_microdollars_max(&self) -> Option<u64> {
        self.cost_usd_max.map(|dollars| (dollars * 1e6).round() as u64)
    }
}

/// One file, and whether the user chose it.
struct Source {
    path: PathBuf,
    text: String,
    is_trusted: bool,
}

/// The configuration that holds here: `explicit` alone, or the user's file with the project's over it. Gives the
/// files that were read, too.
pub(crate) fn load(explicit: Option<&Path>) -> Result<(Config, Vec<PathBuf>)> {
    let mut sources = Vec::new();
    if let Some(path) = explicit {
        let text = std::fs::read_to_string(path)
            .map_err(|error| usage(format!("cannot read the configuration {}: {error}", path.display())))?;
        sources.push(Source { path: path.to_owned(), text, is_trusted: true });
    } else {
        let own = user_file();
        for (path, is_trusted) in [(own, true), (Some(PathBuf::from(FILE_NAME)), false)] {
            let Some(path) = path else { continue };
            match std::fs::read_to_string(&path) {
                Ok(text) => sources.push(Source { path, text, is_trusted }),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => {
                    return Err(usage(format!("cannot read the configuration {}: {error}", path.display())));
                }
            }
        }
    }
    let mut merged = Value::Null;
    let mut own_cost: Option<f64> = None;
    for source in &sources {
        let checked = check(source)?;
        if source.is_trusted {
            own_cost = checked.limits.cost_usd_max;
        }
        let value: Value = serde_norway::from_str(&source.text).map_err(|error| wrong(source, &error))?;
        merge(&mut merged, value);
    }
    let mut config = if merged == Value::Null {
        Config::default()
    } else {
        serde_norway::from_value(merged).map_err(|error| usage(format!("the configuration: {error}")))?
    };
    if let Some(own) = own_cost {
        config.limits.cost_usd_max = Some(config.limits.cost_usd_max.map_or(own, |cost| cost.min(own)));
    }
    Ok((config, sources.into_iter().map(|source| source.path).collect()))
}

/// Checks one file alone, so that what is wrong can be shown where it stands.
fn check(source: &Source) -> Result<Config> {
    let path = &source.path;
    let config: Option<Config> =
        serde_norway::from_str(&source.text).map_err(|error| wrong(source, &error))?;
    let Some(config) = config else { return Ok(Config::default()) };
    let at = |key: &str, reason: &str| {
        let line = line_of(&source.text, key).map(|line| format!(", line {line}")).unwrap_or_default();
        usage(format!("{}{line}: {key}: {reason}", path.display()))
    };
    if let Err(error) = config.compaction.check() {
        let text = error.to_string();
        let (key, reason) = text.split_once(": ").unwrap_or(("compaction", &text));
        return Err(at(key, reason));
    }
    if config.model.trim().is_empty() {
        return Err(at("model", "must not be empty"));
    }
    if config.context_window == Some(0) {
        return Err(at("context_window", "must be at least 1 token, or null"));
    }
    for (key, value) in [
        ("max_in_flight", config.provider.max_in_flight as u64),
        ("first_event_timeout_s", config.provider.first_event_timeout_s),
        ("idle_timeout_s", config.provider.idle_timeout_s),
        ("steps_max", config.limits.steps_max.into()),
        ("repeats_max", config.limits.repeats_max.into()),
        ("tool_timeout_s", config.limits.tool_timeout_s.unwrap_or(1)),
    ] {
        if value == 0 {
            return Err(at(key, "must be at least 1"));
        }
    }
    if config.limits.cost_usd_max.is_some_and(|dollars| !dollars.is_finite() || dollars < 0.0) {
        return Err(at("cost_usd_max", "must be an amount of US dollars, or null"));
    }
    let default = ProviderConfig::default();
    if !source.is_trusted
        && !is_local(&config.provider.base_url)
        && config.provider.base_url != default.base_url
    {
        return Err(at(
            "base_url",
            &format!(
                "would send what you say, and your key, to {}; if you trust this file, pass --config {}",
                config.provider.base_url,
                path.display()
            ),
        ));
    }
    if !source.is_trusted && config.provider.api_key_env != default.api_key_env {
        return Err(at(
            "api_key_env",
            &format!(
                "would send the variable {} as a key; if you trust this file, pass --config {}",
                config.provider.api_key_env,
                path.display()
            ),
        ));
    }
    Ok(config)
}

/// What the parser said, with the line: at the top level it names the key alone.
fn wrong(source: &Source, error: &serde_norway::Error) -> anyhow::Error {
    let text = error.to_string();
    let key = if text.contains(" at line ") { None } else { text.split('`').nth(1) };
    let line = key.and_then(|key| line_of(&source.text, key));
    let line = line.map(|line| format!(", line {line}")).unwrap_or_default();
    usage(format!("{}{line}: {text}", source.path.display()))
}

/// Whether a URL leads to this machine.
fn is_local(url: &str) -> bool {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    if authority.contains('@') {
        return false;
    }
    let host = if let Some(rest) = authority.strip_prefix('[') {
        rest.split(']').next().unwrap_or_default()
    } else {
        authority.split(':').next().unwrap_or_default()
    };
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// The line on which a key stands, from 1.
fn line_of(text: &str, key: &str) -> Option<usize> {
    let is_key = |line: &str| {
        line.split([',', '{']).any(|part| {
            part.trim().split_once(':').is_some_and(|(name, _)| name.trim().trim_matches(['"', '\'']) == key)
        })
    };
    text.lines().position(is_key).map(|index| index + 1)
}

/// Puts `over` on top of `base`, key by key.
fn merge(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Mapping(base), Value::Mapping(over)) => {
            for (key, value) in over {
                match base.get_mut(&key) {
                    Some(known) => merge(known, value),
                    None => {
                        base.insert(key, value);
                    }
                }
            }
        }
        (_, Value::Null) => {}
        (base, over) => *base = over,
    }
}

fn user_file() -> Option<PathBuf> {
    let base = variable("XDG_CONFIG_HOME")
        .map(PathBuf::from)
        .or_else(|| variable("HOME").map(|home| PathBuf::from(home).join(".config")))?;
    Some(base.join("greenroom").join(FILE_NAME))
}

/// `greenroom config`: the configuration that holds here, or the defaults, as a file's text.
pub(crate) fn show(global: &Global, args: &ConfigArgs) -> Result<u8> {
    let mut screen = Screen::stdout(global.color);
    let (config, files) =
        if args.default { (Config::default(), Vec::new()) } else { load(global.config.as_deref())? };
    let names: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    screen.line(&match (args.default, names.is_empty()) {
        (true, _) => {
            format!("# The defaults. Put what you change into ./{FILE_NAME}, or name a file with --config.")
        }
        (false, true) => "# The defaults: there is no configuration file here.".to_owned(),
        (false, false) => format!("# From {}; the rest are the defaults.", names.join(" and ")),
    })?;
    screen.line(to_yaml(&config)?.trim_end())?;
    Ok(0)
}

fn to_yaml(config: &Config) -> Result<String> {
    Ok(serde_norway::to_string(config)?)
}

#[cfg(test)]
mod tests;
