//! What the user sets about a server: how it is reached, what is offered of it, and how long it may take.
//!
//! Invariants: neither `Debug` nor an error shows a value of a variable or a header.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use greenroom_provider::{BaseUrl, BaseUrlError, Proxies};
use greenroom_tools::builtin::bash::Helper;
use greenroom_tools::server_process::Program;
use http::{HeaderName, HeaderValue};

use crate::error::McpError;
use crate::name;

/// How long a server may take to start and list its tools. A package manager may download it first.
const START_MAX: Duration = Duration::from_secs(30);

/// An MCP server: a program that speaks the protocol on its standard streams, or a service that speaks it over HTTP.
#[derive(Clone)]
#[must_use]
pub struct Server {
    name: String,
    pub(crate) transport: Transport,
    pub(crate) start_max: Duration,
    pub(crate) call_max: Option<Duration>,
    only: Vec<String>,
    pub(crate) trusts_annotations: bool,
    pub(crate) root: Option<PathBuf>,
}

#[derive(Clone)]
pub(crate) enum Transport {
    Program(Program),
    Http(Box<Http>),
}

/// A service that is reached over HTTP ("streamable HTTP").
#[derive(Clone)]
pub(crate) struct Http {
    pub(crate) url: BaseUrl,
    pub(crate) proxies: Option<Proxies>,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

impl Server {
    /// Returns a server that is a program, with the environment of this process. It runs with the rights of this process,
    /// in its folder. `name` is 1 to 32 letters, digits, `-` and single `_`.
    pub fn program(name: impl Into<String>, program: impl Into<OsString>) -> Self {
        let folder = std::env::current_dir().unwrap_or_default();
        let environment = std::env::vars_os().collect();
        let (program, arguments, helper) = (program.into(), Vec::new(), None);
        Self::new(name, Transport::Program(Program { program, arguments, folder, environment, helper }))
    }

    /// Returns a server that is reached over HTTP.
    ///
    /// # Errors
    /// It is not an http or https URL.
    pub fn http(name: impl Into<String>, url: &str) -> Result<Self, BaseUrlError> {
        let http = Http { url: url.parse()?, proxies: None, headers: Vec::new() };
        Ok(Self::new(name, Transport::Http(Box::new(http))))
    }

    fn new(name: impl Into<String>, transport: Transport) -> Self {
        Self {
            name: name.into(),
            transport,
            start_max: START_MAX,
            call_max: None,
            only: Vec::new(),
            trusts_annotations: false,
            root: None,
        }
    }

    /// Sets the arguments of the program.
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        if let Transport::Program(program) = &mut self.transport {
            program.arguments = arguments.into_iter().map(Into::into).collect();
        }
        self
    }

    /// Sets the complete environment of the program, instead of that of this process.
    pub fn environment(
        mut self,
        variables: impl IntoIterator<Item = (impl Into<OsString>, impl Into<OsString>)>,
    ) -> Self {
        if let Transport::Program(program) = &mut self.transport {
            program.environment =
                variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        }
        self
    }

    /// Sets the working folder of the program.
    pub fn folder(mut self, folder: impl Into<PathBuf>) -> Self {
        if let Transport::Program(program) = &mut self.transport {
            program.folder = folder.into();
        }
        self
    }

    /// Sets the folder that the server is told to work in (its only root). By default it is told none.
    pub fn root(mut self, folder: impl Into<PathBuf>) -> Self {
        self.root = Some(folder.into());
        self
    }

    /// Ends the program together with this process, even if this process is killed. The helper is this program itself,
    /// which calls [`run_if_requested`](greenroom_tools::helper::run_if_requested) at the beginning of `main`.
    pub fn helper(mut self, helper: Option<Helper>) -> Self {
        if let Transport::Program(program) = &mut self.transport {
            program.helper = helper;
        }
        self
    }

    /// Sends a header with each request. It is not shown anywhere.
    ///
    /// # Errors
    /// The name or the value cannot be sent.
    pub fn header(mut self, header: &str, value: &str) -> Result<Self, McpError> {
        let refused = |what| {
            McpError::new(&self.name, format!("cannot get the header {header:?}: {what} is not valid"))
        };
        let parsed = HeaderName::from_bytes(header.as_bytes()).map_err(|_| refused("its name"))?;
        let mut value = HeaderValue::from_str(value).map_err(|_| refused("its value"))?;
        value.set_sensitive(true);
        if let Transport::Http(http) = &mut self.transport {
            http.headers.push((parsed, value));
        }
        Ok(self)
    }

    /// Sends this token with each request (`Authorization: Bearer …`).
    ///
    /// # Errors
    /// The token cannot be sent in a header.
    pub fn bearer_token(self, token: &str) -> Result<Self, McpError> {
        self.header("authorization", &format!("Bearer {token}"))
    }

    /// Sets the proxies for requests; by default those of the environment.
    pub fn proxies(mut self, proxies: Proxies) -> Self {
        if let Transport::Http(http) = &mut self.transport {
            http.proxies = Some(proxies);
        }
        self
    }

    /// Offers only the tools with these names, as the server names them; `*` stands for any text.
    pub fn only(mut self, tools: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.only = tools.into_iter().map(Into::into).collect();
        self
    }

    /// Sets how long the server may take to start and to list its tools. The default is 30 s.
    pub fn start_max(mut self, limit: Duration) -> Self {
        self.start_max = limit;
        self
    }

    /// Sets how long a call may take. By default the agent's limit applies.
    pub fn call_max(mut self, limit: Duration) -> Self {
        self.call_max = Some(limit);
        self
    }

    /// Believes the server about which of its tools only read: such calls run without approval, in every mode.
    pub fn trust_annotations(mut self, trusts: bool) -> Self {
        self.trusts_annotations = trusts;
        self
    }

    /// Returns the server's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn check(&self) -> Result<(), McpError> {
        if name::is_server_name(&self.name) {
            return Ok(());
        }
        Err(McpError::new(
            &self.name,
            "needs another name: 1 to 32 letters, digits, `-` and single `_`, not at the end",
        ))
    }

    /// Returns the patterns of [`Self::only`] that match none of these tools.
    pub(crate) fn patterns_without(&self, tools: &[String]) -> Vec<String> {
        let is_unused = |pattern: &&String| !tools.iter().any(|tool| name::matches(pattern, tool));
        self.only.iter().filter(is_unused).cloned().collect()
    }

    pub(crate) fn offers(&self, tool: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|pattern| name::matches(pattern, tool))
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("name", &self.name).finish_non_exhaustive()
    }
}
