//! Access control: the bearer token, one of our own host names, and no web pages.
//!
//! Invariants: the token is compared in constant time and is in no error; a refused request's body is not read.

use std::net::SocketAddr;

use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::Response;
use serde_json::Value;

use super::problem;

/// The shortest token, in characters: 128 bits, if it is hexadecimal.
pub const TOKEN_CHARS_MIN: usize = 32;

/// Why a token cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenError {
    /// It is too short.
    TooShort {
        /// How many characters it has.
        chars: usize,
    },
    /// It holds a blank, a line break or another character that no `Authorization` header can carry.
    NotVisible,
}

impl std::fmt::Display for TokenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooShort { chars } => {
                write!(f, "the token has {chars} characters and can be guessed; it needs {TOKEN_CHARS_MIN}")
            }
            Self::NotVisible => f.write_str(
                "the token must be one line of visible ASCII characters, since no header can carry anything else",
            ),
        }
    }
}

impl std::error::Error for TokenError {}

/// Whether a token can guard a server.
///
/// # Errors
/// It is too short, or cannot be sent in a header.
pub fn check_token(token: &str) -> Result<(), TokenError> {
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(TokenError::NotVisible);
    }
    if token.len() < TOKEN_CHARS_MIN {
        return Err(TokenError::TooShort { chars: token.len() });
    }
    Ok(())
}

/// Checks a request.
pub(super) struct Guard {
    token: String,
    port: u16,
    hosts: Vec<String>,
    further: Vec<String>,
}

impl Guard {
    pub(super) fn new(token: String, address: SocketAddr, further: &[String]) -> Self {
        let port = address.port();
        let hosts = ["127.0.0.1", "localhost", "[::1]"].map(|name| format!("{name}:{port}"));
        let further = further.iter().map(|name| name.to_ascii_lowercase()).collect();
        Self { token, port, hosts: [vec![address.to_string()], hosts.into()].concat(), further }
    }

    /// The response to a refused request. `local` is the address that the client connected to.
    pub(super) fn turned_away(&self, uri: &Uri, headers: &HeaderMap, local: SocketAddr) -> Option<Response> {
        let refuse = |status, detail: &str| Some(problem(status, detail, Value::Null));
        let Some(host) = only(headers, header::HOST) else {
            return refuse(StatusCode::BAD_REQUEST, "a request must have exactly one Host header");
        };
        // In the absolute form the target counts, so it must be ours as well.
        let target = uri.authority().map(|authority| authority.as_str());
        if !self.is_ours(host, local) || target.is_some_and(|target| !self.is_ours(target, local)) {
            return refuse(
                StatusCode::MISDIRECTED_REQUEST,
                "the request names another host; a further name of this server is given with --host-name",
            );
        }
        if headers.contains_key(header::ORIGIN) {
            return refuse(StatusCode::FORBIDDEN, "requests from web pages are refused");
        }
        let token = only(headers, header::AUTHORIZATION).and_then(bearer);
        if !token.is_some_and(|token| same(token.as_bytes(), self.token.as_bytes())) {
            let detail = "the bearer token is missing or wrong";
            let mut refusal = problem(StatusCode::UNAUTHORIZED, detail, Value::Null);
            refusal.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            return Some(refusal);
        }
        None
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

/// Compares in a time that does not depend on where the difference is.
fn same(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}
