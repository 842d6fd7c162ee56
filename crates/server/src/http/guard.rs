//! The first checks of a request: one of this server's host names, no web page as its origin, and a known token.
//!
//! Invariants: a refused request's body is not read.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::Response;

use super::access::{Bearer, Tokens};
use super::answers::problem;
use super::forward::{Secret, principal_header as principal};

/// Checks a request.
pub(super) struct Guard {
    tokens: Tokens,
    cluster: Option<Secret>,
    port: u16,
    hosts: Vec<String>,
    further: Vec<String>,
}

impl Guard {
    pub(super) fn new(
        tokens: Tokens,
        cluster: Option<Secret>,
        address: SocketAddr,
        further: &[String],
    ) -> Self {
        let port = address.port();
        let hosts = ["127.0.0.1", "localhost", "[::1]"].map(|name| format!("{name}:{port}"));
        let further = further.iter().map(|name| name.to_ascii_lowercase()).collect();
        Self { tokens, cluster, port, hosts: [vec![address.to_string()], hosts.into()].concat(), further }
    }

    /// Checks that the request is meant for this server and is not a web page's. `local` is the address that the client
    /// connected to.
    pub(super) fn check_place(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        local: SocketAddr,
    ) -> Result<(), Box<Response>> {
        let refuse = |status, detail: &str| Err(Box::new(problem(status, detail)));
        let Some(host) = only(headers, header::HOST) else {
            return refuse(StatusCode::BAD_REQUEST, "a request must have exactly one Host header");
        };
        // In the absolute form the target counts, so it must be ours as well.
        let target = uri.authority().map(|authority| authority.as_str());
        if !self.is_ours(host, local) || target.is_some_and(|target| !self.is_ours(target, local)) {
            return refuse(
                StatusCode::MISDIRECTED_REQUEST,
                "the Host header names another host; --host-name adds a name of this server",
            );
        }
        if headers.contains_key(header::ORIGIN) {
            return refuse(StatusCode::FORBIDDEN, "requests from web pages are refused");
        }
        Ok(())
    }

    /// The sender of the request, or the response that refuses it.
    pub(super) fn let_in(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        local: SocketAddr,
    ) -> Result<Arc<Bearer>, Box<Response>> {
        self.check_place(uri, headers, local)?;
        let token = only(headers, header::AUTHORIZATION).and_then(bearer);
        if let (Some(cluster), Some(token)) = (&self.cluster, token)
            && let Some(forwarded) = cluster.bearer(token, principal(headers))
        {
            let refuse = |reason| Box::new(problem(StatusCode::FORBIDDEN, reason));
            return forwarded.map(Arc::new).map_err(refuse);
        }
        match token.and_then(|token| self.tokens.bearer(token)) {
            Some(bearer) => Ok(Arc::clone(bearer)),
            None => {
                let mut refusal = problem(StatusCode::UNAUTHORIZED, "the bearer token is missing or wrong");
                let challenge = HeaderValue::from_static("Bearer");
                refusal.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
                Err(Box::new(refusal))
            }
        }
    }

    /// Whether the sender is another node of the cluster.
    pub(super) fn is_node(&self, headers: &HeaderMap) -> bool {
        let token = only(headers, header::AUTHORIZATION).and_then(bearer);
        self.cluster.as_ref().zip(token).is_some_and(|(cluster, token)| cluster.is(token))
    }

    /// Whether a host is one of our names. Web pages send a name of their own, even if that resolves to us, and never a
    /// bare address: so the address that the client connected to counts as a name, too.
    fn is_ours(&self, host: &str, local: SocketAddr) -> bool {
        let host = host.to_ascii_lowercase();
        let local = SocketAddr::new(local.ip().to_canonical(), local.port()).to_string();
        let is_further = |name: &String| {
            // A name without a port matches any: a proxy in front has its own.
            host == *name || host.rsplit_once(':').is_some_and(|(host, port)| host == name && is_port(port))
        };
        let full =
            if self.port == 80 && !host.ends_with(":80") { format!("{host}:80") } else { host.clone() };
        full == local || self.hosts.contains(&full) || self.further.iter().any(is_further)
    }
}

fn is_port(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The value of a header that may be there only once.
fn only(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    values.next().is_none().then(|| first.to_str().ok()).flatten()
}

/// The token of an `Authorization` header; the scheme's name may be in any case.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim_matches(' '))
}
