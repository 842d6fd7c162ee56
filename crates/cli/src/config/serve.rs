//! The server of `serve`: its address, limits, tokens and agents.
//!
//! Invariants: a token is never a value of the configuration, only the name of its source; what cannot work is refused
//! with its key.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use greenroom::permissions::Mode;
use greenroom_server::HttpOptions;
use greenroom_server::operations::{Label, Right};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sandbox::ModeConfig;
use super::{Wrong, check_name, check_variable, layers, or_default, wrong};

/// The server of `serve`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ServeConfig {
    /// The address and port to listen on. Also `--listen`.
    #[schemars(with = "String")]
    pub(crate) listen: SocketAddr,
    /// Additional names that the Host header of a request may have, with or without a port. Also `--host-name`.
    #[serde(deserialize_with = "or_default")]
    pub(crate) host_names: Vec<String>,
    /// The maximum number of open connections; never more than half of `ulimit -n`.
    pub(crate) connections_max: usize,
    /// The time limit for a request's head and body, each, and for an idle connection or one whose client does not
    /// read, in seconds.
    pub(crate) request_timeout_s: u64,
    /// The time limit for runs in progress to end after SIGTERM, in seconds; the remaining runs are interrupted, and
    /// can be resumed.
    pub(crate) drain_timeout_s: u64,
    /// Additional tokens, under names that you choose.
    #[serde(deserialize_with = "or_default")]
    pub(crate) tokens: BTreeMap<String, TokenConfig>,
    /// Agents, under names that you choose. The label `agent` of a session names its agent; sessions without the label
    /// use the agent of the command's flags.
    #[serde(deserialize_with = "or_default")]
    pub(crate) agents: BTreeMap<String, AgentConfig>,
}

/// An agent of `serve`: what differs from the configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct AgentConfig {
    /// The model.
    pub(crate) model: Option<String>,
    /// The provider, by its name in `providers`.
    pub(crate) provider: Option<String>,
    /// The system prompt, in place of the built-in text; `file:NAME` reads a file.
    pub(crate) system: Option<String>,
    /// Text to append to the system prompt; `file:NAME` reads a file.
    pub(crate) append_system: Option<String>,
    /// The folder of the tools, an absolute path or one that begins with `~/`; by default the one of the command.
    pub(crate) workspace: Option<String>,
    /// Whether it has no tools at all.
    pub(crate) no_tools: bool,
    /// Whether it has the tools that change files.
    pub(crate) allow_write: bool,
    /// Whether it has the tool that runs commands, and those that change files.
    pub(crate) allow_shell: bool,
    /// The decision about tool calls that match no rule of `permissions`. Calls that ask wait for an answer from the
    /// server's clients.
    pub(crate) mode: Option<Mode>,
    /// The sandbox of its commands, in place of `sandbox.mode`. If `serve` was started with `--sandbox`, this can only
    /// restrict that mode further. Other sandbox settings are in `settings`: `sandbox.network=none`.
    pub(crate) sandbox: Option<ModeConfig>,
    /// Other settings, as for `--set`: `limits.cost_usd_max=1`.
    pub(crate) settings: Vec<String>,
}

/// A token of `serve`, and the rights of its bearer. It comes from exactly one of `token_env`, `token_file` and
/// `token_command`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenConfig {
    /// The right of the token's bearer. Each right includes those before it.
    pub(crate) right: Right,
    /// The label of the sessions to which the token's bearer is confined; without it, all sessions.
    #[serde(default)]
    pub(crate) label: Option<Label>,
    /// The environment variable with the token.
    #[serde(default)]
    pub(crate) token_env: Option<String>,
    /// The file with the token: an absolute path, or one that begins with `~/`. Only you may be able to read it.
    #[serde(default)]
    pub(crate) token_file: Option<String>,
    /// A shell command that prints the token on its first line, when the server starts.
    #[serde(default)]
    pub(crate) token_command: Option<String>,
}

impl ServeConfig {
    /// Checks the values of one layer, each by itself.
    pub(super) fn check(&self) -> Result<(), Wrong> {
        for (key, value, min, reason) in [
            ("connections_max", self.connections_max as u64, 2, "must be at least 2"),
            ("request_timeout_s", self.request_timeout_s, 1, "must be at least 1"),
        ] {
            if value < min {
                return wrong(&["serve", key], reason);
            }
        }
        if let Some(Err(reason)) =
            self.host_names.iter().map(|name| check_host_name(name)).find(Result::is_err)
        {
            return wrong(&["serve", "host_names"], &format!("each {reason}"));
        }
        for (name, agent) in &self.agents {
            check_name(&["serve", "agents", name], name)?;
            if agent.workspace.as_deref().is_some_and(|folder| !layers::is_absolute(folder)) {
                return wrong(
                    &["serve", "agents", name, "workspace"],
                    "must be an absolute path, or begin with ~/",
                );
            }
            if agent.no_tools && (agent.allow_write || agent.allow_shell || agent.mode.is_some()) {
                return wrong(
                    &["serve", "agents", name, "no_tools"],
                    "contradicts allow_write, allow_shell and mode",
                );
            }
            if agent.mode.is_some() && (agent.allow_write || agent.allow_shell) {
                return wrong(&["serve", "agents", name, "mode"], "contradicts allow_write and allow_shell");
            }
        }
        self.tokens.iter().try_for_each(|(name, token)| check_token(name, token))
    }

    /// The names of the labels to which tokens are confined.
    pub(crate) fn labels(&self) -> Vec<String> {
        let labels = self.tokens.values().filter_map(|token| token.label.as_ref());
        labels.map(|label| label.name.clone()).collect()
    }
}

impl Default for ServeConfig {
    fn default() -> Self {
        let listen = SocketAddr::from(([127, 0, 0, 1], 7878));
        let HttpOptions { connections_max, request_timeout, .. } = HttpOptions::new(listen, "");
        Self {
            listen,
            host_names: Vec::new(),
            connections_max,
            request_timeout_s: request_timeout.as_secs(),
            drain_timeout_s: 5,
            tokens: BTreeMap::new(),
            agents: BTreeMap::new(),
        }
    }
}

/// Checks a host name for `serve`: a host, with or without a port.
pub(crate) fn check_host_name(name: &str) -> Result<(), &'static str> {
    let host = match name.rsplit_once(':') {
        Some((host, port)) if port.parse::<u16>().is_ok() => host,
        Some(_) | None => name,
    };
    let is_name = host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'));
    let is_address = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .is_some_and(|host| host.parse::<std::net::Ipv6Addr>().is_ok());
    if (is_name && !host.is_empty()) || is_address {
        Ok(())
    } else {
        Err("must be a host's name, such as build.example or build.example:8443, without http:// and a path")
    }
}

/// Checks a token.
fn check_token(name: &str, token: &TokenConfig) -> Result<(), Wrong> {
    let key = |key: &'static str| ["serve", "tokens", name, key];
    check_name(&["serve", "tokens", name], name)?;
    let sources = [&token.token_env, &token.token_file, &token.token_command];
    if sources.iter().filter(|source| source.is_some()).count() != 1 {
        let reason = "must have exactly one of token_env, token_file and token_command";
        return wrong(&["serve", "tokens", name], reason);
    }
    if let Some(Err(_)) = token.token_env.as_deref().map(check_variable) {
        return wrong(
            &key("token_env"),
            "must be the name of an environment variable that holds the token, not the token",
        );
    }
    if token.token_file.as_deref().is_some_and(|file| !layers::is_absolute(file)) {
        return wrong(&key("token_file"), "must be an absolute path, or begin with ~/");
    }
    if token.token_command.as_deref().is_some_and(|command| command.trim().is_empty()) {
        return wrong(&key("token_command"), "must be a command");
    }
    if token.label.as_ref().is_some_and(|label| label.name.trim().is_empty() || label.value.is_empty()) {
        return wrong(&key("label"), "must have a name and a value");
    }
    Ok(())
}
