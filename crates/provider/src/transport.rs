//! The provider for servers that are reached by HTTP: connections, deadlines, limits and errors, for every dialect.
//!
//! `options` says how a server is reached. A call goes through `key`, `send`, `connection` and `direct`, and its answer through
//! `body` and `reader`; `histories` keeps what was written, `limits` what the server states. Other requests: `count`, `listing`, `post`.
//!
//! Invariants: a call sends one HTTP request, and the same once more only where a reused connection turned out to be
//! closed before an answer began (`connection`, `direct`); it follows no redirect, so that the key reaches no other host; every
//! stream ends with one `Done` or one error; dropping the future or the stream closes the connection; and no key
//! appears in an error or in `Debug` output.

mod body;
mod connection;
mod count;
mod direct;
mod histories;
mod key;
mod limits;
mod listing;
mod options;
mod post;
mod reader;
mod send;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use futures_util::future::{BoxFuture, FutureExt};
use greenroom_kernel::retry::BACKOFF_MS_MAX;
use http::header::{ACCEPT, HeaderMap, HeaderName, HeaderValue};
use parking_lot::Mutex;
use tokio::time::Instant;

use self::direct::Direct;
use self::histories::Histories;
pub use self::key::KeySource;
use self::key::Keys;
pub use self::options::{
    ANTHROPIC_BASE_URL, ApiKey, GEMINI_BASE_URL, OPENAI_BASE_URL, OptionsError, Proxies, ServerOptions,
};
pub use self::post::{Poster, ServiceFailure, service_client, service_failure};
use self::send::Template;
use crate::dialect::{Dialect, Encoded, History};
use crate::{
    ModelSettings, NativeCompaction, Provider, ProviderError, Purpose, ReplyStream, Request, ResentReasoning,
    Served,
};

/// The longest wait because of a limit that a server states: as long as a `Retry-After` is followed.
const LIMIT_WAIT_MAX: Duration = Duration::from_millis(BACKOFF_MS_MAX);

/// A provider for a server that is reached by HTTP. Cloning is cheap; clones share connections.
#[derive(Debug, Clone)]
pub struct HttpProvider {
    server: Arc<Server>,
}

/// What all calls of a provider share.
#[derive(Debug)]
struct Server {
    options: ServerOptions,
    dialect: Box<dyn Dialect>,
    client: reqwest::Client,
    /// The connections for model calls; `None` if they go through a proxy, by the client.
    direct: Option<Direct>,
    /// A client that reuses no connection, made when it is first needed; `None` if it cannot be made.
    without_pool: OnceLock<Option<reqwest::Client>>,
    endpoint: Arc<Endpoint>,
    /// The requests without a body that were made so far, by their paths.
    templates: Mutex<HashMap<String, Arc<Template>>>,
    /// The conversations of sessions, as they were written last.
    histories: Mutex<Histories>,
    /// The models for which the server refused to compact a conversation, because it cannot.
    no_compaction: Mutex<HashSet<String>>,
    /// The keys, if they change.
    keys: Keys,
    /// Until when one of the server's own limits is used up.
    used_up_until: Mutex<Option<Instant>>,
    /// Whether the server does not have the operation that counts tokens.
    no_count: AtomicBool,
}

/// Where requests go, and what they all carry.
pub(crate) struct Endpoint {
    /// The base URL, without its query and without a slash at the end.
    pub(crate) base: String,
    /// The query of the base URL.
    pub(crate) query: Vec<(String, String)>,
    /// The headers, with the key among them.
    pub(crate) headers: HeaderMap,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The query may carry a key too.
        f.debug_struct("Endpoint").field("base", &self.base).finish_non_exhaustive()
    }
}

impl HttpProvider {
    /// Creates a provider with these options. No connection is opened.
    ///
    /// # Errors
    /// Fails if no request can be made with the options: see [`OptionsError`].
    pub fn new(options: ServerOptions) -> Result<Self, OptionsError> {
        let dialect = options.api.dialect(&options);
        let server = Server {
            direct: Direct::new(&options, connection::tls_for(&options)?),
            client: connection::client(&options, true)?,
            without_pool: OnceLock::new(),
            endpoint: Arc::new(endpoint(&options, &*dialect)?),
            templates: Mutex::default(),
            histories: Mutex::new(Histories::new(options.histories_bytes_max)),
            no_compaction: Mutex::default(),
            keys: Keys::new(options.key_source.clone()),
            used_up_until: Mutex::new(None),
            no_count: AtomicBool::new(false),
            dialect,
            options,
        };
        Ok(Self { server: Arc::new(server) })
    }

    /// Returns the options that the provider was made with.
    pub fn options(&self) -> &ServerOptions {
        &self.server.options
    }
}

impl Provider for HttpProvider {
    fn name(&self) -> &str {
        &self.server.options.name
    }

    fn stream(&self, request: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>> {
        reader::open(Arc::clone(&self.server), Box::new(request)).boxed()
    }

    fn address(&self) -> Option<&str> {
        Some(&self.server.endpoint.base)
    }

    fn served(&self) -> BoxFuture<'static, Result<Served, ProviderError>> {
        listing::served(Arc::clone(&self.server)).boxed()
    }

    fn has_unique_ids(&self) -> bool {
        true
    }

    fn resent_reasoning(&self, settings: &ModelSettings) -> ResentReasoning {
        self.server.dialect.resent_reasoning(settings, &self.server.options)
    }

    fn native_compaction(&self, model: &str) -> Option<NativeCompaction> {
        let own = self.server.dialect.native_compaction(model)?;
        (!self.server.no_compaction.lock().contains(model)).then_some(own)
    }

    fn count_tokens(&self, request: Request) -> BoxFuture<'static, Result<Option<u64>, ProviderError>> {
        count::count(Arc::clone(&self.server), request).boxed()
    }

    fn limited_for(&self) -> Option<Duration> {
        let until = (*self.server.used_up_until.lock())?;
        Some(until.saturating_duration_since(Instant::now())).filter(|wait| !wait.is_zero())
    }

    fn release(&self, session: &str) {
        self.server.histories.lock().take(session);
    }

    fn output_tokens_max(&self) -> Option<u64> {
        self.server.dialect.output_tokens_max(&self.server.options)
    }
}

impl Server {
    /// Encodes a request of a session, with what was written for the request before it.
    fn encode(&self, request: &Request) -> Result<Encoded, String> {
        // Requests for summaries have conversations of their own.
        let is_kept = request.purpose == Purpose::Step && !request.session.is_empty();
        let mut history = match is_kept {
            true => self.histories.lock().take(&request.session),
            false => History::default(),
        };
        let encoded = self.dialect.encode(request, &self.options, &mut history);
        if is_kept && encoded.is_ok() {
            self.histories.lock().put(&request.session, history);
        }
        encoded
    }

    /// Removes the key from an error, because some servers repeat the key that they refuse.
    fn without_key(&self, mut error: ProviderError) -> ProviderError {
        for key in [self.options.api_key.clone(), self.keys.newest()].into_iter().flatten() {
            let key = key.expose().trim();
            if !key.is_empty() {
                error.body = without_key(&error.body, key);
                error.failure.message = without_key(&error.failure.message, key);
            }
        }
        error
    }

    /// Adds a key that changes to the headers of a request, unless the user's own headers have its place.
    fn add_key(&self, key: &ApiKey, headers: &mut HeaderMap) -> Result<(), String> {
        let (name, value) = key_header(&*self.dialect, key)
            .map_err(|_| "the key of its source has characters that a header cannot carry".to_owned())?;
        let is_own = |(own, _): &(String, String)| own.eq_ignore_ascii_case(name.as_str());
        if !self.options.headers.iter().any(is_own) {
            headers.insert(name, value);
        }
        Ok(())
    }

    /// Notes what an answer says about the server's own limits.
    fn note_limits(&self, headers: &HeaderMap) {
        let Some(wait) = limits::wait(headers, SystemTime::now()) else { return };
        let until = Instant::now() + wait.min(LIMIT_WAIT_MAX);
        let mut known = self.used_up_until.lock();
        *known = Some(known.map_or(until, |known| known.max(until)));
    }
}

/// Returns the header with a key.
fn key_header(
    dialect: &dyn Dialect,
    key: &ApiKey,
) -> Result<(HeaderName, HeaderValue), http::header::InvalidHeaderValue> {
    let (name, value) = dialect.key_header(key.expose().trim());
    let mut value = HeaderValue::from_str(&value)?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// A text with `***` in place of the key. A short one may be a part of any word, so it is looked for as a whole word.
fn without_key(text: &str, key: &str) -> String {
    const KEY_BYTES_MIN: usize = 8;
    if key.len() >= KEY_BYTES_MIN {
        return text.replace(key, "***");
    }
    let is_in_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    let (mut out, mut from) = (String::with_capacity(text.len()), 0);
    for (at, _) in text.match_indices(key) {
        let end = at + key.len();
        if !is_in_word(text[..at].chars().next_back()) && !is_in_word(text[end..].chars().next()) {
            out.push_str(&text[from..at]);
            out.push_str("***");
            from = end;
        }
    }
    out.push_str(&text[from..]);
    out
}

fn endpoint(options: &ServerOptions, dialect: &dyn Dialect) -> Result<Endpoint, OptionsError> {
    let mut headers = dialect.headers();
    if !options.stream {
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    }
    if let Some(key) = options.api_key.as_ref().filter(|key| !key.expose().is_empty()) {
        let (name, value) = key_header(dialect, key).map_err(|_| OptionsError::ApiKey)?;
        headers.insert(name, value);
    }
    for (name, value) in &options.headers {
        let unusable = || OptionsError::Header { name: name.clone() };
        let header = HeaderName::try_from(name.as_str()).map_err(|_| unusable())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| unusable())?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    let (base, query) = (options.base_url.to_string(), options.base_url.query());
    Ok(Endpoint { base, query, headers })
}

#[cfg(test)]
mod tests;
