//! Where the database is, who this node is, and how long it waits.
//!
//! Invariants: the URL, which may have a password, is in no error, no log and no `Debug` output.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use greenroom_store::StoreError;
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::Notify;
use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, SslNegotiation};

use crate::tls::{Tls, Trust};

/// The settings of a [`Postgres`](crate::Postgres).
#[derive(Clone)]
pub struct PostgresOptions {
    url: SecretString,
    /// The schema that holds the tables: lower-case letters, digits and `_`. It is created if it does not exist. The
    /// default is `greenroom`.
    pub schema: String,
    /// The name of this node, which it keeps across restarts. Each process that uses the schema at the same time needs
    /// its own.
    pub node: String,
    /// The URL at which other nodes reach this one; `None`, the default, for a program that serves nothing.
    pub address: Option<String>,
    /// How long a node that is not heard of keeps its sessions: after that, others may take them over. It is renewed
    /// three times as often. The default is 10 seconds; the minimum is 100 ms.
    pub lease: Duration,
    /// The number of connections for appends. Each has its share of the sessions, and what waits for one is written
    /// together, up to 256 appends in a statement. The default is 2; more are useful only for thousands of sessions at
    /// work where a commit takes long.
    pub writers: usize,
    /// The number of connections for everything else. The default is 2.
    pub readers: usize,
    /// How long an operation waits for a database that does not answer before it fails. The default is 10 seconds.
    pub patience: Duration,
    /// Whether a server is used that may lose what it has acknowledged: `fsync`, `full_page_writes` or
    /// `synchronous_commit` are off. The default is false. For tests and for sessions that may be lost.
    pub allows_loss: bool,
}

impl PostgresOptions {
    /// Returns the default settings for the database with this URL, such as
    /// `postgres://user:password@host:5432/database?sslmode=verify-full`, and the node with this name.
    ///
    /// `sslmode` is `disable`, `prefer` (the default: encrypted if the server can, without checking who it is),
    /// `require` (encrypted, without checking who it is) or `verify-full`. The last checks the certificate against the
    /// system's authorities, or those of the file `sslrootcert`.
    pub fn new(url: impl Into<String>, node: impl Into<String>) -> Self {
        Self {
            url: SecretString::from(url.into()),
            schema: "greenroom".to_owned(),
            node: node.into(),
            address: None,
            lease: Duration::from_secs(10),
            writers: 2,
            readers: 2,
            patience: Duration::from_secs(10),
            allows_loss: false,
        }
    }

    /// Checks the settings, and returns how the server is reached.
    pub(crate) fn server(&self) -> Result<Server, StoreError> {
        let is_letter =
            |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_';
        let begins_well =
            self.schema.starts_with(|letter: char| letter.is_ascii_lowercase() || letter == '_');
        if !begins_well || self.schema.len() > 40 || !self.schema.chars().all(is_letter) {
            return Err(unsuitable(format!(
                "`{}` cannot be a schema's name; use lower-case letters, digits and `_`, at most 40",
                self.schema.escape_debug()
            )));
        }
        if self.node.is_empty() || self.node.len() > 200 || self.node.chars().any(char::is_control) {
            return Err(unsuitable("a node needs a name of at most 200 bytes without control characters"));
        }
        if self.lease < Duration::from_millis(100) {
            return Err(unsuitable("a lease is at least 100 ms long"));
        }
        if self.writers == 0 || self.readers == 0 {
            return Err(unsuitable("at least one connection is needed for appends and one for the rest"));
        }
        Server::new(self)
    }
}

impl fmt::Debug for PostgresOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url: _, schema, node, address, lease, writers, readers, patience, allows_loss } = self;
        f.debug_struct("PostgresOptions")
            .field("url", &"(hidden)")
            .field("schema", schema)
            .field("node", node)
            .field("address", address)
            .field("lease", lease)
            .field("writers", writers)
            .field("readers", readers)
            .field("patience", patience)
            .field("allows_loss", allows_loss)
            .finish()
    }
}

/// How the server is reached. Its `Debug` output shows hosts and the database only.
#[derive(Clone)]
pub(crate) struct Server {
    pub(crate) config: Config,
    pub(crate) tls: Tls,
    /// Notified of each new connection: a pause before another attempt can end.
    pub(crate) reached: Arc<Notify>,
}

impl Server {
    fn new(options: &PostgresOptions) -> Result<Self, StoreError> {
        let mut url = options.url.expose_secret().to_owned();
        let is_url = url.starts_with("postgres://") || url.starts_with("postgresql://");
        if is_url && url.split(['?', '/']).nth(2).unwrap_or_default().matches('@').count() > 1 {
            return Err(unsuitable(
                "the database's URL has more than one `@`; write those of the password as `%40`",
            ));
        }
        let mode = cut(&mut url, "sslmode", is_url);
        let authorities = cut(&mut url, "sslrootcert", is_url);
        let (mode, trust) = match mode.as_deref() {
            Some("disable") => (SslMode::Disable, Trust::Anyone),
            None | Some("prefer") => (SslMode::Prefer, Trust::Anyone),
            Some("require") => (SslMode::Require, Trust::Anyone),
            Some("verify-full") => {
                (SslMode::Require, authorities.map_or(Trust::System, |path| Trust::File(path.into())))
            }
            Some(_) => {
                let modes = "`disable`, `prefer`, `require` or `verify-full`";
                return Err(unsuitable(format!("the database's URL has another `sslmode` than {modes}")));
            }
        };
        if is_url && let Some(unknown) = unknown_parameter(&url) {
            return Err(unsuitable(format!(
                "the database's URL has the parameter `{unknown}`, which is unknown"
            )));
        }
        // What a parser says may quote what it could not read.
        let mut config: Config = url.parse().map_err(|_| {
            unsuitable(
                "the database's URL cannot be read; it has the form `postgres://user:password@host:5432/database`, and \
                 special characters of the password are percent-encoded",
            )
        })?;
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(unsuitable("the database's URL names no host"));
        }
        config.ssl_mode(mode).ssl_negotiation(SslNegotiation::Postgres);
        config.application_name(format!("greenroom {}", options.node));
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(options.patience.min(Duration::from_secs(5)));
        }
        config.tcp_user_timeout(options.patience.max(Duration::from_secs(1)));
        config.keepalives_idle(Duration::from_secs(15)).keepalives_interval(Duration::from_secs(5));
        Ok(Self { config, tls: Tls::new(&trust)?, reached: Arc::default() })
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = |host: &Host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        };
        let hosts: Vec<_> = self.config.get_hosts().iter().map(host).collect();
        write!(f, "{} at {}", self.config.get_dbname().unwrap_or("(default)"), hosts.join(", "))
    }
}

/// The parameters of a URL that are left to the client library.
const PARAMETERS: &[&str] = &[
    "application_name", "channel_binding", "connect_timeout", "dbname", "host", "hostaddr", "keepalives",
    "keepalives_idle", "keepalives_interval", "keepalives_retries", "load_balance_hosts", "options",
    "password", "port", "sslnegotiation", "target_session_attrs", "tcp_user_timeout", "user",
];

/// Returns a parameter of a URL that has no meaning. What does not look like a name, or comes before an `@`, may be a
/// part of a password.
fn unknown_parameter(url: &str) -> Option<&str> {
    let (_, parameters) = url.split_once('?').filter(|(_, parameters)| !parameters.contains('@'))?;
    let is_name = |name: &str| name.chars().all(|letter| letter.is_ascii_lowercase() || letter == '_');
    let names = parameters.split('&').filter_map(|parameter| Some(parameter.split_once('=')?.0));
    names.into_iter().find(|name| is_name(name) && !PARAMETERS.contains(name))
}

/// Takes a parameter out of a URL or a list of `name=value`, and returns its value.
fn cut(url: &mut String, name: &str, is_url: bool) -> Option<String> {
    let (begin, ends): (_, &[char]) =
        if is_url { (url.find('?')? + 1, &['&']) } else { (0, &[' ', '\t', '\n']) };
    let mut at = begin;
    while at < url.len() {
        let end = url[at..].find(ends).map_or(url.len(), |end| at + end);
        if let Some(value) = url[at..end].strip_prefix(name).and_then(|rest| rest.strip_prefix('=')) {
            let value = value.trim_matches('\'').to_owned();
            url.replace_range(at..(end + 1).min(url.len()), "");
            if is_url && url.ends_with(['&', '?']) {
                url.pop();
            }
            return Some(if is_url { decoded(&value) } else { value });
        }
        at = end + 1;
    }
    None
}

/// Decodes `%2F` and the like.
fn decoded(value: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = value.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after.get(..2).and_then(|code| std::str::from_utf8(code).ok());
        let code = code.and_then(|code| u8::from_str_radix(code, 16).ok()).filter(|_| first == b'%');
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Creates the error that something cannot be used as it is.
pub(crate) fn unsuitable(detail: impl Into<String>) -> StoreError {
    StoreError::Unsuitable { detail: detail.into() }
}

#[cfg(test)]
mod tests;
