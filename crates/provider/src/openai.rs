//! The provider for everything that speaks OpenAI's chat completions: OpenAI itself, gateways, local servers.
//!
//! Invariants: a call sends one HTTP request, never more, and follows no redirect, so the key reaches no other
//! host; every stream ends with one `Done` or one error; and dropping the future or the stream closes the
//! connection.

mod assemble;
mod chunk;
mod reader;
mod transport;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_openai::config::Config;
use futures_util::future::{BoxFuture, FutureExt};
use greenroom_kernel::Message;
use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use secrecy::SecretString;

pub(crate) use self::transport::ERROR_BODY_BYTES_MAX;
use crate::{BaseUrl, Provider, ProviderError, ReplyStream, Request};

/// Where OpenAI's own API is.
pub const OPENAI_BASE_URL: &str = "https://api.openai.com/v1";

/// A key that never shows itself: its `Debug` is `"***"`, and it has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// The key itself, for a header.
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

/// The name under which a server wants the limit of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaxTokensField {
    /// `max_tokens`: the old name, which every server but OpenAI's reasoning models reads.
    MaxTokens,
    /// `max_completion_tokens`: the name that OpenAI's reasoning models insist on.
    MaxCompletionTokens,
}

/// Whether and how reasoning of earlier answers is sent back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResendReasoning {
    /// It is not: what most servers expect.
    Never,
    /// As `reasoning_content`, to the provider it came from.
    AsReasoningContent,
    /// As `reasoning`, to the provider it came from.
    AsReasoning,
}

/// How to reach a server, and what it wants.
#[derive(Clone)]
pub struct OpenAiOptions {
    /// The provider's name in the model catalogue.
    pub name: String,
    /// Where the API is.
    pub base_url: BaseUrl,
    /// The key, sent as a bearer token; local servers need none.
    pub api_key: Option<ApiKey>,
    /// More headers; one that is named here replaces ours.
    pub headers: Vec<(String, String)>,
    /// How long a connection may take, in milliseconds.
    pub connect_timeout_ms: u64,
    /// How long the first piece of an answer may take from the sending of the request on, in milliseconds. A
    /// server that queues, or a model that thinks without saying so, sends nothing for minutes.
    pub first_event_timeout_ms: u64,
    /// How long the next piece of an answer may take, in milliseconds. Comments and empty pieces do not count.
    pub idle_timeout_ms: u64,
    /// The most output to ask for where a request names no limit, in tokens; `None` leaves it to the server.
    pub output_tokens_max: Option<u64>,
    /// The name of that limit; `None`: `max_completion_tokens` at OpenAI and Azure, else `max_tokens`.
    pub max_tokens_field: Option<MaxTokensField>,
    /// Whether reasoning is sent back.
    pub resend_reasoning: ResendReasoning,
    /// Whether the session is sent as `prompt_cache_key`; `None`: at OpenAI and Azure only, since strict servers
    /// refuse fields that they do not know.
    pub prompt_cache_key: Option<bool>,
    /// The most bytes that one answer may have on the wire, where each token comes in a frame of a few hundred. What
    /// the model says in it may have 4 MiB, and one line 8 MiB. An answer that is larger is given up and not asked
    /// for again.
    pub response_bytes_max: usize,
}

impl Default for OpenAiOptions {
    fn default() -> Self {
        Self {
            name: "openai".to_owned(),
            base_url: OPENAI_BASE_URL.parse().expect("it is a constant, and a test parses it"),
            api_key: None,
            headers: Vec::new(),
            connect_timeout_ms: 10_000,
            first_event_timeout_ms: 300_000,
            idle_timeout_ms: 120_000,
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
        // Headers may carry keys too.
        let header_names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("OpenAiOptions")
            .field("name", &self.name)
            .field("base_url", &self.base_url)
            .field("api_key", &self.api_key)
            .field("header_names", &header_names)
            .field("connect_timeout_ms", &self.connect_timeout_ms)
            .field("first_event_timeout_ms", &self.first_event_timeout_ms)
            .field("idle_timeout_ms", &self.idle_timeout_ms)
            .field("output_tokens_max", &self.output_tokens_max)
            .field("max_tokens_field", &self.max_tokens_field)
            .field("resend_reasoning", &self.resend_reasoning)
            .field("prompt_cache_key", &self.prompt_cache_key)
            .field("response_bytes_max", &self.response_bytes_max)
            .finish()
    }
}

/// Options that no request can be made with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// The key holds characters that no header can carry, such as a line break.
    #[error("the API key holds characters that a header cannot carry")]
    ApiKey,
    /// A header's name or value cannot be sent.
    #[error("the header {name:?} cannot be sent")]
    Header {
        /// Its name.
        name: String,
    },
    /// The HTTP client could not be set up: most often no certificates are installed.
    #[error("the HTTP client cannot be set up: {reason}")]
    Client {
        /// What the client said.
        reason: String,
    },
}

/// A provider that speaks OpenAI's chat completions. Cloning is cheap; clones share connections.
#[derive(Debug, Clone)]
pub struct OpenAi {
    server: Arc<Server>,
}

/// What all calls share.
#[derive(Debug)]
struct Server {
    options: OpenAiOptions,
    client: reqwest::Client,
    endpoint: Endpoint,
    max_tokens_field: MaxTokensField,
    prompt_cache_key: bool,
}

/// Where requests go. Written by hand instead of taken from async-openai, whose own reads the environment.
#[derive(Clone)]
struct Endpoint {
    base: String,
    query: Vec<(String, String)>,
    headers: HeaderMap,
    // The trait asks for one; the real key is in `headers`, marked as sensitive.
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
    /// A provider with these options. Opens no connection.
    ///
    /// # Errors
    /// If no request could ever be made: see [`OptionsError`].
    pub fn new(options: OpenAiOptions) -> Result<Self, OptionsError> {
        let mut client = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .connect_timeout(Duration::from_millis(options.connect_timeout_ms))
            .pool_max_idle_per_host(64)
            .user_agent(concat!("greenroom/", env!("CARGO_PKG_VERSION")));
        if !options.base_url.is_encrypted() {
            // No certificate is ever looked at: a machine that has none installed still reaches its own server.
            client = client.tls_certs_only([]);
        }
        let client =
            client.build().map_err(|error| OptionsError::Client { reason: transport::root_cause(&error) })?;
        let host = options.base_url.host();
        let is_openai = host == "api.openai.com" || host.ends_with(".openai.azure.com");
        let server = Server {
            client,
            endpoint: endpoint(&options)?,
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

    /// The options it was made with.
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

    fn resends_reasoning(&self) -> bool {
        self.server.options.resend_reasoning != ResendReasoning::Never
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
        }
    }
}

impl Server {
    /// Takes the key out of an error: some servers repeat it when they refuse it.
    fn without_key(&self, mut error: ProviderError) -> ProviderError {
        // A shorter one is no key, and could be a part of any word.
        const KEY_BYTES_MIN: usize = 8;
        let key = self.options.api_key.as_ref().map(|key| key.expose().trim()).unwrap_or_default();
        if key.len() >= KEY_BYTES_MIN {
            error.body = error.body.replace(key, "***");
            error.failure.message = error.failure.message.replace(key, "***");
        }
        error
    }
}

/// The ids of all calls in a request.
fn call_ids(request: &Request) -> std::collections::HashSet<String> {
    request
        .messages
        .iter()
        .flat_map(|message: &Arc<Message>| message.tool_calls())
        .map(|call| call.id.clone())
        .collect()
}

fn endpoint(options: &OpenAiOptions) -> Result<Endpoint, OptionsError> {
    let mut headers = HeaderMap::new();
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
mod tests;
