//! MCP servers: the user's own programs and services with tools for the agent.
//!
//! Invariants: only the user's own file has them, because a program of theirs runs with the user's rights; a secret is
//! never a value of the configuration, only the name of its variable.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use greenroom::provider::{BaseUrl, Proxies};
use greenroom_mcp::Server;
use greenroom_tools::builtin::bash::Helper;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::digest::digest;
use super::layers::expanded;
use super::surroundings::Surroundings;
use super::{Wrong, check_variable, layers, or_default, parse_url, redact, show_url, wrong};

/// The prefix of a value that names an environment variable.
const VARIABLE: &str = "env:";
/// The placeholder for the folder of the agent's tools.
const WORKSPACE: &str = "{workspace}";
/// The variables that a program gets besides its own, with a host and without.
const INHERITED: [&str; 6] = ["PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER"];

/// An MCP server: a program (`command`), or a service over HTTP (`url`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct McpConfig {
    /// The program, which speaks MCP on its standard streams: a name in `PATH`, or a path. It runs with your rights,
    /// outside the sandbox.
    pub(crate) command: Option<String>,
    /// The program's arguments. `{workspace}` in them stands for the folder of the agent's tools.
    #[serde(deserialize_with = "or_default")]
    pub(crate) args: Vec<String>,
    /// Environment variables of the program, besides `PATH`, `HOME`, `LANG`, `TERM`, `TMPDIR` and `USER`. The value
    /// `env:NAME` is that of your variable NAME; secrets must be given so.
    #[serde(deserialize_with = "or_default")]
    pub(crate) env: BTreeMap<String, String>,
    /// The program's working folder: an absolute path, `~/…`, or `{workspace}`, the folder of the agent's tools; by default
    /// your home folder, because files in a project can change the behaviour of programs that start there.
    pub(crate) folder: Option<String>,
    /// The address of the service ("streamable HTTP").
    #[serde(deserialize_with = "parse_url", serialize_with = "show_url")]
    #[schemars(with = "Option<String>")]
    pub(crate) url: Option<BaseUrl>,
    /// The environment variable with the token that the service gets (`Authorization: Bearer`).
    pub(crate) token_env: Option<String>,
    /// Headers of requests to the service. The value `env:NAME` is that of your variable NAME; secrets must be given so.
    #[serde(deserialize_with = "or_default")]
    pub(crate) headers: BTreeMap<String, String>,
    /// The tools that the agent gets, by the server's names for them, in which `*` stands for any text; none named: all.
    #[serde(deserialize_with = "or_default")]
    pub(crate) tools: Vec<String>,
    /// Whether to believe the server about which tools only read: their calls run without approval, in every mode.
    pub(crate) trust_annotations: bool,
    /// How long the server may take to start and to list its tools, in seconds.
    pub(crate) start_timeout_s: u64,
    /// The time limit of a call, in seconds. `null`: that of `limits.tool_timeout_s`.
    pub(crate) call_timeout_s: Option<u64>,
    /// Whether the server is used.
    pub(crate) enabled: bool,
}

impl Default for McpConfig {
    fn default() -> Self {
        Self {
            command: None,
            args: Vec::new(),
            env: BTreeMap::new(),
            folder: None,
            url: None,
            token_env: None,
            headers: BTreeMap::new(),
            tools: Vec::new(),
            trust_annotations: false,
            start_timeout_s: 30,
            call_timeout_s: None,
            enabled: true,
        }
    }
}

impl McpConfig {
    /// Checks the values of one layer.
    pub(super) fn check(&self, name: &str) -> Result<(), Wrong> {
        let section = ["mcp_servers", name];
        let wrong_at = |key: &[&str], reason: &str| wrong(&[&section, key].concat(), reason);
        if !greenroom_mcp::is_server_name(name) {
            return wrong_at(
                &[],
                "must be a name of 1 to 32 letters, digits, hyphens and single underscores, with no underscore at its end",
            );
        }
        if self.command.as_deref().is_some_and(|command| command.trim().is_empty()) {
            return wrong_at(&["command"], "must be a program, or null");
        }
        if self
            .command
            .as_deref()
            .is_some_and(|command| command.trim().contains(' ') && !command.contains('/'))
        {
            return wrong_at(&["command"], "must be the program alone; its arguments are in `args`");
        }
        let of_program =
            self.command.is_some() || !self.args.is_empty() || !self.env.is_empty() || self.folder.is_some();
        if of_program && (self.url.is_some() || self.token_env.is_some() || !self.headers.is_empty()) {
            return wrong_at(
                &[],
                "must be a program (command, args, env, folder) or a service (url, token_env, headers), \
                                  not both",
            );
        }
        if self.folder.as_deref().is_some_and(|folder| folder != WORKSPACE && !layers::is_absolute(folder)) {
            return wrong_at(&["folder"], "must be an absolute path, begin with ~/, or be {workspace}");
        }
        if self.token_env.as_deref().is_some_and(|name| check_variable(name).is_err()) {
            return wrong_at(
                &["token_env"],
                "must be the name of an environment variable that holds the token, not the token",
            );
        }
        for (key, values) in [("env", &self.env), ("headers", &self.headers)] {
            for (name, value) in values {
                if key == "env" && check_variable(name).is_err() {
                    return wrong_at(&[key, name], "is not the name of an environment variable");
                }
                match value.strip_prefix(VARIABLE) {
                    Some(variable) if check_variable(variable).is_err() => {
                        return wrong_at(&[key, name], "must name an environment variable behind `env:`");
                    }
                    None if redact::is_secret(&name.replace('-', "_"), value) => {
                        return wrong_at(
                            &[key, name],
                            "looks like a secret, which does not belong in this file: put it \
                                                       into an environment variable NAME, and write `env:NAME` here",
                        );
                    }
                    Some(_) | None => {}
                }
            }
        }
        if !(1..=86_400).contains(&self.start_timeout_s) {
            return wrong_at(&["start_timeout_s"], "must be from 1 to 86400");
        }
        if self.call_timeout_s == Some(0) {
            return wrong_at(&["call_timeout_s"], "must be at least 1, or null");
        }
        Ok(())
    }

    /// Whether it has a command or an address.
    pub(super) fn has_transport(&self) -> bool {
        self.command.is_some() || self.url.is_some()
    }

    /// Returns the names of the user's variables that the server gets.
    pub(crate) fn variables(&self) -> impl Iterator<Item = &str> {
        let values = self.env.values().chain(self.headers.values());
        values.filter_map(|value| value.strip_prefix(VARIABLE)).chain(self.token_env.as_deref())
    }

    /// Returns the server for an agent whose tools work in `root`, and a key that is the same for the same server.
    ///
    /// # Errors
    /// Why it cannot be used, for the user.
    pub(crate) fn server(
        &self,
        name: &str,
        root: &Path,
        helper: Option<Helper>,
        proxies: Proxies,
        surroundings: &Surroundings,
    ) -> Result<(Server, String), String> {
        let unusable = |reason: String| format!("the MCP server `{name}` is not used: {reason}");
        let variable = |name: &str| {
            surroundings
                .variable(name)
                .ok_or_else(|| unusable(format!("the environment variable {name} is not set")))
        };
        let resolved = |values: &BTreeMap<String, String>| -> Result<Vec<(String, String)>, String> {
            let value =
                |value: &String| value.strip_prefix(VARIABLE).map_or_else(|| Ok(value.clone()), variable);
            values.iter().map(|(name, text)| Ok((name.clone(), value(text)?))).collect()
        };
        let (mut env, headers) = (resolved(&self.env)?, resolved(&self.headers)?);
        let token = self.token_env.as_deref().map(variable).transpose()?;
        let inherited = INHERITED.into_iter().filter(|name| !self.env.contains_key(*name));
        env.extend(inherited.filter_map(|name| Some((name.to_owned(), surroundings.variable(name)?))));
        let folder = match self.folder.as_deref() {
            Some(WORKSPACE) => Some(root.to_owned()),
            folder => expanded(folder.unwrap_or("~/"), surroundings),
        };
        let folder = folder.unwrap_or_else(|| "/".into());
        let url = self.url.as_ref().map(BaseUrl::with_query);
        let Proxies { http, https, all, no_proxy } = &proxies;
        let proxy = [http, https, all, no_proxy];
        let key = serde_json::json!([name, self, root, folder, env, url, headers, token, proxy]);
        let key = digest(&key.to_string());
        let server = match (&self.command, &self.url) {
            (Some(command), _) => {
                let command = match command.starts_with("~/") {
                    true => expanded(command, surroundings).map(|path| path.display().to_string()),
                    false => None,
                }
                .unwrap_or_else(|| command.trim().to_owned());
                let arguments =
                    self.args.iter().map(|text| text.replace(WORKSPACE, &root.display().to_string()));
                Server::program(name, command)
                    .arguments(arguments)
                    .environment(env)
                    .folder(folder)
                    .helper(helper)
            }
            (None, Some(url)) => {
                let mut server =
                    Server::http(name, url.with_query()).map_err(|error| unusable(error.to_string()))?;
                for (header, value) in headers {
                    server = server.header(&header, &value).map_err(|error| error.to_string())?;
                }
                if let Some(token) = token {
                    server = server.bearer_token(&token).map_err(|error| error.to_string())?;
                }
                server.proxies(proxies)
            }
            (None, None) => return Err(unusable("its command is missing, or its url".to_owned())),
        };
        let server = server
            .root(root)
            .only(&self.tools)
            .trust_annotations(self.trust_annotations)
            .start_max(Duration::from_secs(self.start_timeout_s));
        let limit = self.call_timeout_s.map(Duration::from_secs);
        Ok((limit.into_iter().fold(server, Server::call_max), key))
    }
}

#[cfg(test)]
mod tests;
