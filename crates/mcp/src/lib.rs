//! The tools of MCP servers (Model Context Protocol) as tools of an agent.
//!
//! The one key decision: **a server is the user's own program or service, and its words are data**. It is started or
//! reached as the user configured it, with the user's rights; its descriptions, results and errors go to the model like
//! those of other tools, and what it says about itself ("this tool only reads") counts only where the user trusts it.
//! The protocol itself is the business of `rmcp`, the official library. What is absent: sessions, actors, configuration.
//!
//! Invariants: a call has exactly one result, whatever the server does. A server that ended is started again by the next
//! call, and a call that may have taken effect is never repeated. A server ends with the last of its tools.
//!
//! ```no_run
//! use greenroom::prelude::*;
//!
//! # #[tokio::main] async fn main() -> anyhow::Result<()> {
//! let files = greenroom_mcp::Server::program("files", "npx")
//!     .arguments(["-y", "@modelcontextprotocol/server-filesystem", "."])
//!     .connect()
//!     .await?;
//! let agent = Agent::new("gpt-5.5").tools(&files.tools());
//! # drop(agent);
//! # Ok(()) }
//! ```
//!
//! | part | modules |
//! |---|---|
//! | what the user sets | `server` |
//! | a connection, and calls over it | `link`, `handler` |
//! | a server's tools, their names, their results | `tool`, `name`, `content` |
//! | errors | `error` |

mod content;
mod error;
mod handler;
mod link;
mod name;
mod server;
mod tool;

use std::sync::{Arc, Weak};

use greenroom_tools::{Registry, ToolsError, WeakRegistry};

pub use self::error::McpError;
pub use self::link::closed;
use self::link::{Link, Listed, TOOLS_MAX, tool_bytes};
pub use self::name::is_server_name;
pub use self::server::Server;
use self::tool::McpTool;

/// A server that was connected, with the tools that it had then. Cloning is cheap.
#[derive(Clone)]
pub struct Connection {
    link: Arc<Link>,
    tools: Registry,
    left_out: Arc<[String]>,
    about: Arc<About>,
}

/// The maximum size of a tool's description and schema, in bytes: they are part of each request.
const TOOL_BYTES_MAX: usize = 64 * 1024;

/// What a server says about itself.
#[derive(Debug, Default)]
pub(crate) struct About {
    title: Option<String>,
    instructions: Option<String>,
}

impl Server {
    /// Connects to the server, and reads its tools. The server stays connected as long as the connection or one of its
    /// tools is in use.
    ///
    /// # Errors
    /// The server could not be started or reached, or did not answer in time.
    pub async fn connect(self) -> Result<Connection, McpError> {
        let (link, Listed { tools: found, is_cut, mut left_out }, about) = Link::connect(self).await?;
        let (link, about) = (Arc::new(link), Arc::new(about));
        let mut tools = Registry::new();
        if is_cut {
            left_out.push(format!("it lists too many tools; only the first {TOOLS_MAX} are read"));
        }
        let own_names: Vec<String> = found.iter().map(|found| found.name.to_string()).collect();
        for found in found {
            if !link.server().offers(&found.name) {
                continue;
            }
            let own_name = found.name.to_string();
            let bytes = tool_bytes(&found);
            if bytes > TOOL_BYTES_MAX {
                left_out
                    .push(format!("its tool `{own_name}` is not offered: its description has {bytes} bytes"));
                continue;
            }
            let name = name::tool_name(link.server().name(), &own_name);
            if tools.get(&name).is_some() {
                left_out.push(format!("its tool `{own_name}` is listed twice"));
                continue;
            }
            if let Err(error) = tools.insert(McpTool::new(Arc::clone(&link), name, found)) {
                let why = if let ToolsError::NotAnObject { found, .. } = error {
                    format!("its arguments are {found}, and have no names")
                } else {
                    error.to_string()
                };
                left_out.push(format!("its tool `{own_name}` is not offered: {why}"));
            }
        }
        for pattern in link.server().patterns_without(&own_names) {
            left_out.push(format!("no tool of it is named `{pattern}`"));
        }
        Ok(Connection { link, tools, left_out: left_out.into(), about })
    }
}

impl Connection {
    /// Returns the server's name in the configuration.
    pub fn name(&self) -> &str {
        self.link.server().name()
    }

    /// Returns the tools. Their names begin with `mcp__` and the server's name.
    pub fn tools(&self) -> Registry {
        self.tools.clone()
    }

    /// Returns why tools were left out, a clause each.
    pub fn left_out(&self) -> &[String] {
        &self.left_out
    }

    /// Returns a reference that does not keep the server connected.
    pub fn downgrade(&self) -> WeakConnection {
        let Self { link, tools, left_out, about } = self.clone();
        WeakConnection { link: Arc::downgrade(&link), tools: tools.downgrade(), left_out, about }
    }

    /// Returns what the server calls itself, with its version.
    pub fn title(&self) -> Option<&str> {
        self.about.title.as_deref()
    }

    /// Returns what the server says about the use of its tools, for a model. It is the server's text, of any length.
    pub fn instructions(&self) -> Option<&str> {
        self.about.instructions.as_deref()
    }
}

/// A reference that does not keep the server connected.
#[derive(Clone)]
pub struct WeakConnection {
    link: Weak<Link>,
    tools: WeakRegistry,
    left_out: Arc<[String]>,
    about: Arc<About>,
}

impl WeakConnection {
    /// Returns the connection, if it is still in use.
    pub fn upgrade(&self) -> Option<Connection> {
        let (link, tools) = (self.link.upgrade()?, self.tools.upgrade()?);
        Some(Connection { link, tools, left_out: self.left_out.clone(), about: self.about.clone() })
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("name", &self.name())
            .field("tools", &self.tools)
            .finish_non_exhaustive()
    }
}
