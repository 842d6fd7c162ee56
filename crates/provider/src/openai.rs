//! The provider for OpenAI's chat completions API, which gateways and local servers offer too.
//!
//! Invariants: a call sends one HTTP request, and the same once more only where a reused connection turned out to be
//! closed before an answer began (`connection`); it follows no redirect, so that the key reaches no other host; every
//! stream ends with one `Done` or one error; dropping the future or the stream closes the connection; and no key
//! appears in an error or in `Debug` output.

mod assemble;
mod body;
mod chunk;
mod connection;
mod listing;
mod pattern;
mod reader;
mod template;
mod think;
mod transport;
mod wire;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_openai::config::Config;
use futures_util::future::{BoxFuture, FutureExt};
use http::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use secrecy::SecretString;

use self::template::Template;
pub(crate) use self::transport::ERROR_BODY_BYTES_MAX;
use crate::{
    BaseUrl, ModelSettings, Provider, ProviderError, ReplyStream, Request, ResendReasoning, ResentReasoning,
    Served,
};

/// The base URL of OpenAI's own API.
pub const OPENAI_BASE_URL: &str = "https://api.openai.com/v1";

/// An API key that cannot be printed by accident: its `Debug` output is `"***"`, and it has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// The key in plain text, for a header.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for ApiKey {
    fn from(key: String) -> Self {
        Self(key)
    }
}

impl From<&str> for ApiKey {
    fn from(key: &str) -> Self {
        Self(key.to_owned())
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("\"***\"")
    }
}

/// The request field that carries the output limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum MaxTokensField {
    /// `max_tokens`: the old name, which all servers accept except for OpenAI's reasoning models.
    MaxTokens,
    /// `max_completion_tokens`: the name that OpenAI's reasoning models require.
    MaxCompletionTokens,
}

/// Through which proxies servers are reached. An address may hold a user's name and password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    /// The proxy of servers that are reached by `http`.
    pub http: Option<String>,
    /// The proxy of servers that are reached by `https`.
    pub https: Option<String>,
    /// The proxy of those that have no proxy above.
    pub all: Option<String>,
    /// The hosts that are reached without a proxy, separated by commas.
    pub no_proxy: Option<String>,
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The addresses are left out because they may hold passwords.
        f.debug_struct("Proxies").field("no_proxy", &self.no_proxy).finish_non_exhaustive()
    }
}

impl Proxies {
    fn client(&self, mut client: reqwest::ClientBuilder) -> Result<reqwest::ClientBuilder, OptionsError> {
        type Make = fn(&str) -> reqwest::Result<reqwest::Proxy>;
        let makes: [(&Option<String>, Make); 3] = [
            (&self.http, |url| reqwest::Proxy::http(url)),
            (&self.https, |url| reqwest::Proxy::https(url)),
            (&self.all, |url| reqwest::Proxy::all(url)),
        ];
        client = client.no_proxy();
        for (url, make) in makes {
            let Some(url) = url else { continue };
            let proxy = make(url).map_err(|_| OptionsError::Proxy)?;
            let without = self.no_proxy.as_deref().and_then(reqwest::NoProxy::from_string);
            client = client.proxy(proxy.no_proxy(without));
        }
        Ok(client)
    }
}

/// How to reach a server, and which form of request it expects.
#[derive(Clone, PartialEq, Eq)]
pub struct OpenAiOptions {
    /// The provider's name in the model catalogue.
    pub name: String,
    /// The URL of the API.
    pub base_url: BaseUrl,
    /// The key, which is sent as a bearer token. Local servers usually need none.
    pub api_key: Option<ApiKey>,
    /// The proxies; `None` means those that the environment names.
    pub proxies: Option<Proxies>,
    /// Additional headers. A header with the name of one of ours replaces it.
    pub headers: Vec<(String, String)>,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long the first piece of an answer may take, from the start of the request on; without `stream`, the whole
    /// answer. A server that queues requests, or a model whose reasoning is hidden, may send nothing for minutes.
    pub first_event_timeout: Duration,
    /// How long the next piece of an answer may take. Comments and empty pieces are not progress.
    pub idle_timeout: Duration,
    /// Whether answers are asked for in pieces, as the model writes them. `false` asks for each answer as a whole, for
    /// servers that cannot stream, do not stream tool calls properly, or refuse to stream some models.
    pub stream: bool,
    /// The output limit of requests that name none, in tokens; `None` leaves the limit to the server.
    pub output_tokens_max: Option<u64>,
    /// The field of the output limit; `None` means `max_completion_tokens` at OpenAI and Azure, and `max_tokens`
    /// elsewhere.
    pub max_tokens_field: Option<MaxTokensField>,
    /// Whether the reasoning of earlier answers is sent back, where the settings of a model do not say so
    /// ([`ModelSettings::resend_reasoning`](crate::ModelSettings)).
    pub resend_reasoning: ResendReasoning,
    /// Whether the session's id is sent as `prompt_cache_key`; `None` means at OpenAI and Azure only, because strict
    /// servers refuse unknown fields.
    pub prompt_cache_key: Option<bool>,
    /// The largest answer on the wire, in bytes. Each token takes a few hundred bytes there. Apart from that, the
    /// answer's text is limited to 4 MiB and a line to 8 MiB. An answer that is larger is given up and not retried.
    pub response_bytes_max: usize,
}

impl Default for OpenAiOptions {
    fn default() -> Self {
        Self {
            name: "openai".to_owned(),
            base_url: OPENAI_BASE_URL.parse().expect("it is a constant, and a test parses it"),
            api_key: None,
            proxies: None,
            headers: Vec::new(),
            connect_timeout: Duration::from_secs(10),
            first_event_timeout: Duration::from_secs(300),
            idle_timeout: Duration::from_secs(120),
            stream: true,
            output_tokens_max: None,
            max_tokens_field: None,
            resend_reasoning: ResendReasoning::Never,
            prompt_cache_key: None,
            response_bytes_max: 64 * 1024 * 1024,
        }
    }
}

impl fmt::Debug for OpenAiOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The values of headers are left out because they may be keys.
        let header_names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("OpenAiOptions")
            .field("name", &self.name)
            .field("base_url", &self.base_url)
            .field("api_key", &self.api_key)
            .field("proxies", &self.proxies)
            .field("header_names", &header_names)
            .field("connect_timeout", &self.connect_timeout)
            .field("first_event_timeout", &self.first_event_timeout)
            .field("idle_timeout", &self.idle_timeout)
            .field("stream", &self.stream)
            .field("output_tokens_max", &self.output_tokens_max)
            .field("max_tokens_field", &self.max_tokens_field)
            .field("resend_reasoning", &self.resend_reasoning)
            .field("prompt_cache_key", &self.prompt_cache_key)
            .field("response_bytes_max", &self.response_bytes_max)
            .finish()
    }
}

/// Why no request can be made with some options.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The key contains characters that a header cannot carry, such as a line break.
    #[error("the API key contains characters that a header cannot carry")]
    ApiKey,
    /// A header's name or value contains characters that cannot be sent.
    #[error("the header {name:?} cannot be sent")]
    Header {
        /// The name of the header.
        name: String,
    },
    /// The address of a proxy cannot be used. It is not shown because it may hold a password.
    #[error("invalid proxy address; a valid one is http://proxy.example:3128")]
    Proxy,
    /// The HTTP client cannot be set up. The most frequent cause is that no certificates are installed.
    #[error("the HTTP client cannot be set up: {reason}")]
    Client {
        /// The client's error.
        reason: String,
    },
}

/// A provider for OpenAI's chat completions API. Cloning is cheap; clones share connections.
#[derive(Debug, Clone)]
pub struct OpenAi {
    server: Arc<Server>,
}

/// What all calls of a provider share.
#[derive(Debug)]
struct Server {
    options: OpenAiOptions,
    client: reqwest::Client,
    /// A client that reuses no connection, made when it is first needed; `None` if it cannot be made.
    without_pool: OnceLock<Option<reqwest::Client>>,
    endpoint: Arc<Endpoint>,
    template: OnceLock<Template>,
    max_tokens_field: MaxTokensField,
    prompt_cache_key: bool,
}

/// Where requests go. async-openai's own configuration is not used because it reads the environment.
struct Endpoint {
    base: String,
    query: Vec<(String, String)>,
    headers: HeaderMap,
    // The trait requires a key; the real one is in `headers`, marked as sensitive.
    no_key: SecretString,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The query may carry a key too.
        f.debug_struct("Endpoint").field("base", &self.base).finish_non_exhaustive()
    }
}

impl Config for Endpoint {
    fn headers(&self) -> HeaderMap {
        self.headers.clone()
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    fn query(&self) -> Vec<(&str, &str)> {
        self.query.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    fn api_base(&self) -> &str {
        &self.base
    }

    fn api_key(&self) -> &SecretString {
        &self.no_key
    }
}

impl OpenAi {
    /// A provider with these options. No connection is opened.
    ///
    /// # Errors
    /// Fails if no request can be made with the options: see [`OptionsError`].
    pub fn new(options: OpenAiOptions) -> Result<Self, OptionsError> {
        let client = connection::client(&options, true)?;
        let host = options.base_url.host();
        let is_openai = host == "api.openai.com" || host.ends_with(".openai.azure.com");
        let server = Server {
            client,
            without_pool: OnceLock::new(),
            template: OnceLock::new(),
            endpoint: Arc::new(endpoint(&options)?),
            max_tokens_field: options.max_tokens_field.unwrap_or(if is_openai {
                MaxTokensField::MaxCompletionTokens
            } else {
                MaxTokensField::MaxTokens
            }),
            prompt_cache_key: options.prompt_cache_key.unwrap_or(is_openai),
            options,
        };
        Ok(Self { server: Arc::new(server) })
    }

    /// The options that the provider was made with.
    pub fn options(&self) -> &OpenAiOptions {
        &self.server.options
    }
}

impl Provider for OpenAi {
    fn name(&self) -> &str {
        &self.server.options.name
    }

    fn stream(&self, request: Request) -> BoxFuture<'static, Result<ReplyStream, ProviderError>> {
        reader::open(Arc::clone(&self.server), request).boxed()
    }

    fn address(&self) -> Option<&str> {
        Some(&self.server.endpoint.base)
    }

    fn served(&self) -> BoxFuture<'static, Result<Served, ProviderError>> {
        listing::served(Arc::clone(&self.server)).boxed()
    }

    fn resent_reasoning(&self, settings: &ModelSettings) -> ResentReasoning {
        let options = &self.server.options;
        settings.resend_reasoning.unwrap_or(options.resend_reasoning).rule(&options.name)
    }

    fn output_tokens_max(&self) -> Option<u64> {
        self.server.options.output_tokens_max
    }
}

impl Server {
    fn wire_style(&self) -> wire::WireStyle<'_> {
        wire::WireStyle {
            provider: &self.options.name,
            max_tokens_field: self.max_tokens_field,
            output_tokens_max: self.options.output_tokens_max,
            resend_reasoning: self.options.resend_reasoning,
            prompt_cache_key: self.prompt_cache_key,
            stream: self.options.stream,
        }
    }
}

impl Server {
    /// Removes the key from an error, because some servers repeat the key that they refuse.
    fn without_key(&self, mut error: ProviderError) -> ProviderError {
        let key = self.options.api_key.as_ref().map(|key| key.expose().trim()).unwrap_or_default();
        if !key.is_empty() {
            error.body = without_key(&error.body, key);
            error.failure.message = without_key(&error.failure.message, key);
        }
        error
    }
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

fn endpoint(options: &OpenAiOptions) -> Result<Endpoint, OptionsError> {
    let mut headers = HeaderMap::new();
    if !options.stream {
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    }
    if let Some(key) = options.api_key.as_ref().filter(|key| !key.expose().is_empty()) {
        let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose().trim()))
            .map_err(|_| OptionsError::ApiKey)?;
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
    }
    for (name, value) in &options.headers {
        let unusable = || OptionsError::Header { name: name.clone() };
        let header = HeaderName::try_from(name.as_str()).map_err(|_| unusable())?;
        let mut value = HeaderValue::from_str(value).map_err(|_| unusable())?;
        value.set_sensitive(true);
        headers.insert(header, value);
    }
    Ok(Endpoint {
        base: options.base_url.to_string(),
        query: options.base_url.query(),
        headers,
        no_key: SecretString::from(String::new()),
    })
}

#[cfg(test)]
mod random;
#[cfg(test)]
mod tests;
