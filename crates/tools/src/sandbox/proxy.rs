//! The proxy for commands that may reach some hosts: HTTP, and HTTPS by `CONNECT`.
//!
//! Invariants: a connection is made only to a host and port on the list, and to an address that was resolved once and
//! verified. An address that is not public is used only if it is on the list itself, so that no host's name leads
//! into the user's network. A connection serves one request, or one tunnel.

use std::fmt;
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// The largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 32 * 1024;
/// How long a request's head and a connection may take.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of connections at once; further ones wait.
const CONNECTIONS_MAX: usize = 128;

/// A host, or all hosts below a domain, that a command may reach: `crates.io`, `*.crates.io`, `example.org:8443`,
/// `10.0.0.7:80`. Without a port, 80 and 443.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPattern {
    host: Host,
    port: Option<u16>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Name(String),
    /// All names that end with a dot and this.
    Below(String),
    Address(IpAddr),
}

impl FromStr for HostPattern {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        const WRONG: &str = "must be a host, such as crates.io, *.crates.io, example.org:8443 or 10.0.0.7:80, without \
                             http:// and a path";
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self { host: Host::Address(address), port: None });
        }
        let (host, port) = split_port(text).ok_or(WRONG)?;
        if let Ok(address) = host.parse::<IpAddr>() {
            return Ok(Self { host: Host::Address(address), port });
        }
        let host = host.to_ascii_lowercase();
        let (is_below, name) = match host.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, &*host),
        };
        let is_label = |label: &str| {
            !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
        };
        // `*.com` would be nearly everything.
        if !name.split('.').all(is_label) || (is_below && !name.contains('.')) {
            return Err(WRONG);
        }
        let host = if is_below { Host::Below(name.to_owned()) } else { Host::Name(name.to_owned()) };
        Ok(Self { host, port })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.host, self.port) {
            (Host::Name(name), _) => f.write_str(name)?,
            (Host::Below(name), _) => write!(f, "*.{name}")?,
            (Host::Address(IpAddr::V6(address)), Some(_)) => write!(f, "[{address}]")?,
            (Host::Address(address), _) => write!(f, "{address}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl HostPattern {
    fn is_of(&self, host: &str, port: u16) -> bool {
        let is_host = match &self.host {
            Host::Name(name) => host == name,
            Host::Below(domain) => host.strip_suffix(&**domain).is_some_and(|rest| rest.ends_with('.')),
            Host::Address(address) => host.parse::<IpAddr>().is_ok_and(|host| host == *address),
        };
        is_host && self.has_port(port)
    }

    fn has_port(&self, port: u16) -> bool {
        self.port.map_or(matches!(port, 80 | 443), |own| own == port)
    }

    /// Whether all that this pattern allows is allowed by another one.
    pub fn is_within(&self, other: &Self) -> bool {
        let has_ports = other.port.is_none_or(|port| self.port == Some(port))
            && (other.port.is_some() || self.port.is_none_or(|port| other.has_port(port)));
        let is_host = match (&self.host, &other.host) {
            (Host::Name(name) | Host::Below(name), Host::Below(domain)) => {
                (name == domain && matches!(self.host, Host::Below(_)))
                    || name.strip_suffix(&**domain).is_some_and(|rest| rest.ends_with('.'))
            }
            (own, other) => own == other,
        };
        is_host && has_ports
    }
}

/// Splits `host:port` and `[address]:port`; returns `None` if it is neither a host nor that.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        return match rest.strip_prefix(':') {
            Some(port) => Some((host, Some(port.parse().ok()?))),
            None => rest.is_empty().then_some((host, None)),
        };
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => Some((host, Some(port.parse().ok()?))),
        Some(_) => None,
        None => Some((text, None)),
    }
}

/// A running proxy. Dropping it ends it and all its connections.
#[derive(Debug)]
pub(crate) struct Proxy {
    task: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Proxy {
    /// Starts a proxy for these hosts on a new socket.
    pub(crate) fn start(socket: &Path, hosts: Vec<HostPattern>) -> Result<Self> {
        let listener = UnixListener::bind(socket)?;
        let hosts: Arc<[HostPattern]> = hosts.into();
        let task = tokio::spawn(async move {
            let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
            // The set ends its connections when it is dropped.
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
                let Ok((client, _)) = listener.accept().await else {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                while connections.try_join_next().is_some() {}
                let hosts = Arc::clone(&hosts);
                connections.spawn(async move {
                    let _permit = permit;
                    if let Err(error) = serve(client, &hosts).await {
                        tracing::debug!(%error, "a connection of a command's proxy failed");
                    }
                });
            }
        });
        Ok(Self { task })
    }
}

async fn serve(mut client: UnixStream, hosts: &[HostPattern]) -> Result<()> {
    let head = match tokio::time::timeout(TIMEOUT, read_head(&mut client)).await {
        Ok(Ok(head)) => head,
        Ok(Err(error)) => return refuse(client, 400, &error.to_string()).await,
        Err(_) => return Ok(()),
    };
    let request = match Request::parse(&head.0) {
        Ok(request) => request,
        Err(text) => return refuse(client, 400, text).await,
    };
    let Target { host, port } = &request.target;
    if !hosts.iter().any(|pattern| pattern.is_of(host, *port)) {
        return refuse(client, 403, &format!("{host}:{port} is not in sandbox.network")).await;
    }
    let addresses = match resolve(host, *port, hosts).await {
        Ok(addresses) => addresses,
        Err(error) => {
            let status = if error.kind() == ErrorKind::PermissionDenied { 403 } else { 502 };
            return refuse(client, status, &error.to_string()).await;
        }
    };
    let connected = tokio::time::timeout(TIMEOUT, TcpStream::connect(&*addresses)).await;
    let mut server = match connected.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into())) {
        Ok(server) => server,
        Err(error) => return refuse(client, 502, &format!("cannot reach {host}:{port}: {error}")).await,
    };
    match &request.forwarded {
        None => client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?,
        Some(head) => server.write_all(head.as_bytes()).await?,
    }
    server.write_all(&head.1).await?;
    copy_bidirectional(&mut client, &mut server).await.map(drop)
}

/// Reads the head of a request; returns it, and what came after it.
async fn read_head(client: &mut UnixStream) -> Result<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = bytes.split_off(end + 4);
            let head = String::from_utf8(bytes);
            let head = head.map_err(|_| Error::new(ErrorKind::InvalidData, "the request is not text"))?;
            return Ok((head, rest));
        }
        if bytes.len() >= HEAD_BYTES_MAX {
            return Err(Error::new(ErrorKind::InvalidData, "the head of the request is too large"));
        }
        if client.read_buf(&mut bytes).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
}

async fn refuse(mut client: UnixStream, status: u16, text: &str) -> Result<()> {
    let phrase = match status {
        400 => "Bad Request",
        403 => "Forbidden",
        _ => "Bad Gateway",
    };
    let body = format!("greenroom: {text}\n");
    let answer = format!(
        "HTTP/1.1 {status} {phrase}\r\ncontent-type: text/plain\r\ncontent-length: {}\r\nconnection: close\r\n\
         x-greenroom: {text}\r\n\r\n{body}",
        body.len()
    );
    client.write_all(answer.as_bytes()).await?;
    client.shutdown().await
}

/// Resolves a host, once; the result is what is connected to.
async fn resolve(host: &str, port: u16, hosts: &[HostPattern]) -> Result<Vec<SocketAddr>> {
    let is_listed = |address: IpAddr| {
        hosts.iter().any(|pattern| pattern.host == Host::Address(address) && pattern.has_port(port))
    };
    let found: Vec<SocketAddr> = tokio::net::lookup_host((host, port)).await?.collect();
    let usable: Vec<SocketAddr> =
        found.iter().copied().filter(|at| is_public(at.ip()) || is_listed(at.ip().to_canonical())).collect();
    match (usable.is_empty(), found.first()) {
        (true, Some(first)) => {
            let text = format!(
                "{host} has the address {}, which is not public and not in sandbox.network",
                first.ip()
            );
            Err(Error::new(ErrorKind::PermissionDenied, text))
        }
        (true, None) => Err(Error::new(ErrorKind::NotFound, format!("{host} has no address"))),
        (false, _) => Ok(usable),
    }
}

/// Whether an address is one of the public internet.
fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    !(address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_broadcast()
        || address.is_documentation()
        || address.is_multicast()
        || a == 0
        || a >= 240
        // Shared by customers of a carrier (RFC 6598), protocol assignments (RFC 6890), benchmarks (RFC 2544).
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (18..20).contains(&b)))
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    // Addresses that carry one of IPv4: NAT64 (RFC 6052), 6to4 (RFC 3056), and those compatible with it.
    let embedded = |high: u16, low: u16| {
        let [[a, b], [c, d]] = [high, low].map(u16::to_be_bytes);
        is_public_v4(Ipv4Addr::new(a, b, c, d))
    };
    match segments {
        [0, 0, 0, 0, 0, 0, ..] => false,
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => embedded(high, low),
        [0x64, 0xff9b, ..] => false,
        [0x2002, high, low, ..] => embedded(high, low),
        [0x2001, 0xdb8, ..] => false,
        // Teredo.
        [0x2001, 0, ..] => false,
        // Global unicast is what is public; all other ranges are local or reserved.
        [first, ..] => (0x2000..0x4000).contains(&first),
    }
}

/// Where a request goes.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    host: String,
    port: u16,
}

/// A request to the proxy.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    target: Target,
    /// The head for the server. `None`: a tunnel.
    forwarded: Option<String>,
}

impl Request {
    fn parse(head: &str) -> std::result::Result<Self, &'static str> {
        const FORM: &str = "the request must be CONNECT HOST:PORT, or have a whole http:// address";
        let (line, headers) = head.split_once("\r\n").ok_or(FORM)?;
        let mut words = line.split(' ');
        let (Some(method), Some(target), Some(version), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(FORM);
        };
        if !version.starts_with("HTTP/1.") || head.contains('\0') {
            return Err(FORM);
        }
        let target_of = |authority: &str, port: u16| {
            let (host, named) = split_port(authority)?;
            // A name with a dot at its end is the same name.
            let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
            let is_host = !host.is_empty()
                && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':'));
            is_host.then_some(Target { host, port: named.unwrap_or(port) })
        };
        if method == "CONNECT" {
            let target = target_of(target, 443).ok_or(FORM)?;
            return Ok(Self { target, forwarded: None });
        }
        let rest = target.strip_prefix("http://").ok_or(FORM)?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let target = target_of(authority, 80).ok_or(FORM)?;
        let slash = if path.starts_with('/') { "" } else { "/" };
        let mut forwarded = format!("{method} {slash}{path} {version}\r\nHost: {authority}\r\n");
        for header in headers.split("\r\n").take_while(|header| !header.is_empty()) {
            let name = header.split(':').next().unwrap_or_default().trim().to_ascii_lowercase();
            // One request per connection: the next one may be for another host.
            if !matches!(&*name, "host" | "connection" | "keep-alive" | "upgrade")
                && !name.starts_with("proxy-")
            {
                forwarded.push_str(header);
                forwarded.push_str("\r\n");
            }
        }
        forwarded.push_str("Connection: close\r\n\r\n");
        Ok(Self { target, forwarded: Some(forwarded) })
    }
}

#[cfg(test)]
mod tests;
