//! The secrets in the environment, and what is redacted besides them.
//!
//! Invariants: keys of providers and tokens of servers are always redacted; other variables by their names. A value
//! that could be an ordinary word, a number or a path is not taken for a secret, unless the user names its variable.

use greenroom::provider::BaseUrl;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::surroundings::Surroundings;
use super::{Config, McpConfig, or_default};
use crate::error::secrets;

/// The secrets that are replaced by `[redacted:NAME]` in logs, events, exports, errors, summaries and model input.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RedactConfig {
    /// Further environment variables with secrets. Keys of providers, tokens of `serve`, and variables with names like
    /// `…_KEY`, `…_TOKEN`, `…_SECRET` and `…PASSWORD…` are redacted anyway.
    #[serde(deserialize_with = "or_default")]
    pub(crate) variables: Vec<String>,
    /// Environment variables that are not secret although their names suggest it.
    #[serde(deserialize_with = "or_default")]
    pub(crate) not_secret: Vec<String>,
    /// Whether strings that look like secrets, such as private keys and tokens of known services, are redacted in
    /// results of commands, exports, logs, errors and summaries.
    pub(crate) shapes: bool,
}

impl Default for RedactConfig {
    fn default() -> Self {
        Self { variables: Vec::new(), not_secret: Vec::new(), shapes: true }
    }
}

/// Whether a variable with this name and this value is a secret.
pub(crate) fn is_secret(name: &str, value: &str) -> bool {
    is_secret_name(name) && can_be_secret(value)
}

/// Whether a variable with this name has a secret.
pub(super) fn is_secret_name(name: &str) -> bool {
    let name = name.to_uppercase();
    let ends = ["KEY", "TOKEN", "SECRET", "PASSWD", "PASSPHRASE", "CREDENTIALS", "_PAT", "_PWD", "_DSN"];
    name.contains("PASSWORD") || name.contains("SECRET") || ends.iter().any(|end| name.ends_with(end))
}

/// Whether a value can be a secret: not a word, a number, a path or an address.
fn can_be_secret(value: &str) -> bool {
    let is_word = value.len() < 16 && value.chars().all(|c| c.is_ascii_lowercase() || matches!(c, '-' | '_'));
    let is_place = value.starts_with(['/', '~', '.', '$']);
    let is_number = value.chars().all(|c| c.is_ascii_digit()) && value.len() < 12;
    !(is_word || is_place || is_number)
}

/// Notes the secrets of an environment with this configuration.
pub(crate) fn note(config: &Config, surroundings: &Surroundings) {
    secrets::redactor().replace_shapes(config.redact.shapes);
    secrets::redactor().add(secrets(config, surroundings));
}

/// Returns the secrets of an environment with this configuration, with the names of their variables.
pub(crate) fn secrets(config: &Config, surroundings: &Surroundings) -> Vec<(String, String)> {
    let RedactConfig { variables, not_secret, shapes: _ } = &config.redact;
    let of_providers = config.providers.values().filter_map(|provider| provider.api_key_env.as_ref());
    let of_tokens = config.serve.tokens.values().filter_map(|token| token.token_env.as_ref());
    let of_mcp = config.mcp_servers.values().flat_map(McpConfig::variables);
    let named = of_providers.chain(of_tokens).chain(variables).map(String::as_str).chain(of_mcp);
    let named: Vec<&str> = named.collect();
    let mut found = Vec::new();
    for (name, server) in &config.mcp_servers {
        let values = server.url.iter().flat_map(BaseUrl::query).map(|(_, value)| value);
        found.extend(
            values.filter(|value| can_be_secret(value)).map(|value| (format!("url of {name}"), value)),
        );
    }
    for (name, value) in surroundings.all() {
        let is_named = named.contains(&name.as_str());
        let is_secret = is_secret_name(&name) && !not_secret.contains(&name) && can_be_secret(&value);
        if variables.contains(&name) || (is_named && can_be_secret(&value)) || is_secret {
            found.push((name, value));
        } else if let Some(password) = password_of(&value) {
            found.push((name, password.to_owned()));
        }
    }
    found
}

/// Returns the password in a URL, such as that of a proxy.
fn password_of(value: &str) -> Option<&str> {
    let (_, rest) = value.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (login, _) = authority.rsplit_once('@')?;
    login.split_once(':').map(|(_, password)| password)
}

#[cfg(test)]
mod tests;
