//! The URL of an API, parsed once by the parser whose result the requests use.
//!
//! Invariants: a [`BaseUrl`] is an http or https URL whose scheme, host and port are exactly those that were
//! written, so that a reader cannot mistake it for another server's URL; it contains no user name, password or
//! fragment; and neither its `Display` nor its `Debug` nor an error shows its query, which may contain a key.

use std::fmt;
use std::str::FromStr;

use greenroom_kernel::text::first_chars;
use reqwest::Url;

/// The longest base URL, in bytes.
const BYTES_MAX: usize = 2_048;

/// The URL of an API, without `/chat/completions`. A query in it is sent with every request.
///
/// A slash at the end of the path makes no difference to equality.
#[derive(Clone, PartialEq, Eq)]
pub struct BaseUrl(Url);

/// Why a text is not a base URL.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the base URL {shown} is invalid: {reason}")]
pub struct BaseUrlError {
    /// The text in quotes, with escapes for unprintable characters, and without the parts that may be secrets.
    shown: String,
    /// The problem with the text.
    reason: String,
}

impl BaseUrl {
    /// Returns the host: a name, an IPv4 address, or an IPv6 address without its brackets.
    pub fn host(&self) -> &str {
        self.0.host_str().unwrap_or_default().trim_matches(['[', ']'])
    }

    /// Returns the port of the server: the scheme's default port if the URL names none.
    pub fn port(&self) -> u16 {
        self.0.port_or_known_default().unwrap_or_default()
    }

    /// Returns the whole URL with its query, which may contain a key: for requests, never to be shown.
    pub fn with_query(&self) -> &str {
        self.0.as_str()
    }

    /// Whether the URL has a query, which is sent with every request. It may contain a key and is never shown.
    pub fn has_query(&self) -> bool {
        self.0.query().is_some()
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.0.scheme() == "https"
    }

    /// Returns the path, without a slash at the end.
    pub(crate) fn path(&self) -> &str {
        self.0.path().trim_end_matches('/')
    }

    /// Returns the names and values of the query, decoded. They may contain a key.
    pub fn query(&self) -> Vec<(String, String)> {
        self.0.query_pairs().map(|(name, value)| (name.into_owned(), value.into_owned())).collect()
    }
}

impl FromStr for BaseUrl {
    type Err = BaseUrlError;

    fn from_str(text: &str) -> Result<Self, BaseUrlError> {
        let text = text.trim();
        let unusable = |reason: &str| BaseUrlError { shown: shown(text), reason: reason.to_owned() };
        if text.len() > BYTES_MAX {
            return Err(unusable("it is too long"));
        }
        // The URL parser drops or replaces some of these characters, so the result would differ from the text.
        if let Some(c) = text.chars().find(|c| !c.is_ascii_graphic() || *c == '\\') {
            let reason = format!("it holds the character {c:?}, which no URL holds");
            return Err(unusable(&reason));
        }
        let Some(rest) = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://")) else {
            return Err(unusable("it must begin with http:// or https://"));
        };
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        if authority.contains('@') {
            // The password would appear in every error message.
            return Err(unusable("it holds a user name or a password; use the key or a header instead"));
        }
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | '[' | ']');
        if !authority.chars().all(is_plain) {
            return Err(unusable("its host may only contain letters, digits, dots, hyphens and underscores"));
        }
        if text.contains('#') {
            return Err(unusable("it holds a fragment (#), which no server gets"));
        }
        let mut url = Url::parse(text).map_err(|error| unusable(&error.to_string()))?;
        let host = url.host_str().unwrap_or_default();
        let port = url.port_or_known_default().unwrap_or_default();
        let has_scheme = text.split("://").next() == Some(url.scheme());
        let is_as_written = authority == host || authority == format!("{host}:{port}");
        if !(has_scheme && is_as_written) {
            let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
            let reason = format!("it leads to {}://{host}{port}, so write it like that", url.scheme());
            return Err(unusable(&reason));
        }
        let path = url.path().trim_end_matches('/').to_owned();
        url.set_path(&path);
        Ok(Self(url))
    }
}

/// Without the query and without a slash at the end.
impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.as_str().split('?').next().unwrap_or_default();
        f.write_str(text.trim_end_matches('/'))
    }
}

impl fmt::Debug for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

/// Returns the beginning of a text that is not a URL, in quotes, without the parts that may be a password or
/// a key.
fn shown(text: &str) -> String {
    let text = text.split(['?', '#']).next().unwrap_or_default();
    let text = text.rsplit('@').next().unwrap_or_default();
    format!("{:?}", first_chars(text, 80))
}

#[cfg(test)]
mod tests;
