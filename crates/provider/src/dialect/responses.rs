//! OpenAI's Responses API, without storage at the server: every request carries the whole conversation, and reasoning
//! comes and goes encrypted.
//!
//! Invariants: an item of an answer is kept whole only if its end came; a reasoning item is sent back with exactly the
//! content it came with, and never as the last item of its answer.

mod decode;
mod encode;

use http::HeaderMap;

use super::{Decoder, Dialect, Encoded};
use crate::transport::ServerOptions;
use crate::{ModelSettings, Request, ResentReasoning};

/// The name of the dialect in stored parts.
const DIALECT: &str = "responses";

/// The dialect of one server.
#[derive(Debug)]
pub(crate) struct Responses {
    /// Whether the session's id is sent, as a key for the cache.
    prompt_cache_key: bool,
}

impl Responses {
    /// Creates the dialect of a server with these options.
    pub(crate) fn new(options: &ServerOptions) -> Self {
        let host = options.base_url.host();
        let is_openai = host == "api.openai.com" || host.ends_with(".azure.com");
        Self { prompt_cache_key: options.prompt_cache_key.unwrap_or(is_openai) }
    }
}

impl Dialect for Responses {
    fn encode(&self, request: &Request, options: &ServerOptions) -> Result<Encoded, String> {
        let style = encode::Style {
            stream: options.stream,
            prompt_cache_key: self.prompt_cache_key,
            output_tokens_max: options.output_tokens_max,
        };
        let body = encode::body(request, &style).map_err(|error| error.to_string())?;
        Ok(Encoded { path: "responses".to_owned(), headers: HeaderMap::new(), body })
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::<decode::ResponsesDecoder>::default()
    }

    fn resent_reasoning(&self, _: &ModelSettings, _: &ServerOptions) -> ResentReasoning {
        ResentReasoning { readable_of: None, dialect: Some(DIALECT.to_owned()) }
    }
}

#[cfg(test)]
mod tests;
