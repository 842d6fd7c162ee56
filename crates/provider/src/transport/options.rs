//! How a server is reached, and which form of request it expects.
//!
//! Invariants: no key, no header's value and no address of a proxy appears in `Debug` output or in an error.

use std::fmt;
use std::time::Duration;

use super::KeySource;
use crate::{Api, BaseUrl, ResendReasoning};

/// The base URL of OpenAI's own API.
pub const OPENAI_BASE_URL: &str = "https://api.openai.com/v1";
/// The base URL of Anthropic's own API.
pub const ANTHROPIC_BASE_URL: &str = "https://api.anthropic.com/v1";
/// The base URL of Google's Gemini API.
pub const GEMINI_BASE_URL: &str = "https://generativelanguage.googleapis.com/v1beta";

/// An API key that cannot be printed by accident: its `Debug` output is `"***"`, and it has no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// The key in plain text, for a header.
    pub(crate) fn expose(&self) -> &str {
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
    pub(super) fn client(
        &self,
        mut client: reqwest::ClientBuilder,
    ) -> Result<reqwest::ClientBuilder, OptionsError> {
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
pub struct ServerOptions {
    /// The provider's name in the model catalogue.
    pub name: String,
    /// The API that the server offers.
    pub api: Api,
    /// The URL of the API.
    pub base_url: BaseUrl,
    /// The key, which is sent in the header that the API expects, by default as a bearer token. Local servers usually
    /// need none.
    pub api_key: Option<ApiKey>,
    /// Where keys come from that change, such as access tokens that expire; in place of `api_key`.
    pub key_source: Option<KeySource>,
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
    /// Whether the output limit is sent as `max_completion_tokens`, which OpenAI's reasoning models require, and not as
    /// `max_tokens`, the old name, which all other servers accept; `None`: at OpenAI and Azure only.
    pub max_completion_tokens: Option<bool>,
    /// Whether the reasoning of earlier answers is sent back, where the settings of a model do not say so
    /// ([`ModelSettings::resend_reasoning`](crate::ModelSettings)).
    pub resend_reasoning: ResendReasoning,
    /// Whether the session's id is sent, as `prompt_cache_key` or as the API's own field for it (Anthropic:
    /// `metadata.user_id`); `None` means at OpenAI and Azure only, because strict servers refuse unknown fields.
    pub prompt_cache_key: Option<bool>,
    /// The largest answer on the wire, in bytes. Each token takes a few hundred bytes there. Apart from that, the
    /// answer's text is limited to 4 MiB and a line to 8 MiB. An answer that is larger is given up and not retried.
    pub response_bytes_max: usize,
    /// How much is kept of what requests repeat, for all sessions together, in bytes: the conversations of awake sessions as
    /// they were written last, the least recently used first to go. What is not kept is written anew; 0 keeps nothing.
    pub histories_bytes_max: usize,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            name: "openai".to_owned(),
            api: Api::default(),
            base_url: OPENAI_BASE_URL.parse().expect("it is a constant, and a test parses it"),
            api_key: None,
            key_source: None,
            proxies: None,
            headers: Vec::new(),
            connect_timeout: Duration::from_secs(10),
            first_event_timeout: Duration::from_secs(300),
            idle_timeout: Duration::from_secs(120),
            stream: true,
            output_tokens_max: None,
            max_completion_tokens: None,
            resend_reasoning: ResendReasoning::Never,
            prompt_cache_key: None,
            response_bytes_max: 64 * 1024 * 1024,
            histories_bytes_max: 256 * 1024 * 1024,
        }
    }
}

impl ServerOptions {
    /// Creates the options of Anthropic's own server, with this key.
    pub fn anthropic(key: impl Into<ApiKey>) -> Self {
        Self {
            name: "anthropic".to_owned(),
            api: Api::Anthropic,
            base_url: ANTHROPIC_BASE_URL.parse().expect("it is a constant, and a test parses it"),
            api_key: Some(key.into()),
            ..Self::default()
        }
    }

    /// Creates the options of OpenAI's own server and its Responses API, with this key. Azure offers the same API: set
    /// `name` and `base_url` (`https://RESOURCE.openai.azure.com/openai/v1`).
    pub fn responses(key: impl Into<ApiKey>) -> Self {
        Self { api: Api::Responses, api_key: Some(key.into()), ..Self::default() }
    }

    /// Creates the options of Google's Gemini API, with this key.
    ///
    /// For Vertex, set `base_url` to an address that ends with `/publishers/google`; the key is an access token there.
    pub fn gemini(key: impl Into<ApiKey>) -> Self {
        Self {
            name: "google".to_owned(),
            api: Api::Gemini,
            base_url: GEMINI_BASE_URL.parse().expect("it is a constant, and a test parses it"),
            api_key: Some(key.into()),
            ..Self::default()
        }
    }
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The values of headers are left out because they may be keys.
        let header_names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("ServerOptions")
            .field("name", &self.name)
            .field("api", &self.api)
            .field("base_url", &self.base_url)
            .field("api_key", &self.api_key)
            .field("key_source", &self.key_source)
            .field("proxies", &self.proxies)
            .field("header_names", &header_names)
            .field("connect_timeout", &self.connect_timeout)
            .field("first_event_timeout", &self.first_event_timeout)
            .field("idle_timeout", &self.idle_timeout)
            .field("stream", &self.stream)
            .field("output_tokens_max", &self.output_tokens_max)
            .field("max_completion_tokens", &self.max_completion_tokens)
            .field("resend_reasoning", &self.resend_reasoning)
            .field("prompt_cache_key", &self.prompt_cache_key)
            .field("response_bytes_max", &self.response_bytes_max)
            .field("histories_bytes_max", &self.histories_bytes_max)
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
    #[error("the HTTP client cannot be created: {reason}")]
    Client {
        /// The client's error.
        reason: String,
    },
}
