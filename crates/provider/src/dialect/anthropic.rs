//! Anthropic's Messages API, at Anthropic and, by address, at Bedrock, Vertex and Foundry.
//!
//! Invariants: a block of an answer is kept whole only if its end came; a thinking block is sent back with exactly the
//! signature it came with, or not at all; a model that binds its thinking to what came before is told to ignore thinking
//! whose beginning has changed (a compaction, a shortened result, other instructions), instead of refusing the request.

mod decode;
mod encode;

use std::borrow::Cow;

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};

use super::fields::Fields;
use super::{Decoder, Dialect, Encoded, History};
use crate::transport::ServerOptions;
use crate::{ModelSettings, NativeCompaction, Request, ResentReasoning};

/// The name of the dialect in stored parts.
const DIALECT: &str = "anthropic";
/// The version of the API that requests are written for.
const VERSION: &str = "2023-06-01";
/// The version that Vertex takes in the body.
const VERTEX_VERSION: &str = "vertex-2023-10-16";
/// The header that turns beta features on.
const BETA: &str = "anthropic-beta";
/// The beta feature that decides about thinking whose beginning of the conversation has changed.
const BINDING_CONTROLS: &str = "thinking-binding-controls-2026-08-01";
/// The beta feature of a conversation that the API compacts, and of later requests that carry the result.
const COMPACTION: &str = "compact-2026-09-04";
/// The fields of a request that a request to count it has too.
const COUNTED: &[&str] = &[
    "model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "context_management",
];
/// The output limit of requests that name none, in tokens: the API requires a limit.
const OUTPUT_TOKENS_MAX: u64 = 32_000;

/// The ends of the names of Bedrock's hosts: its older endpoint, that in China, and its newer endpoint.
const BEDROCK_HOSTS: [&str; 3] = [".amazonaws.com", ".amazonaws.com.cn", ".api.aws"];

/// The dialect of one server.
#[derive(Debug)]
pub(crate) struct Anthropic {
    platform: Platform,
}

/// Where the API is offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Platform {
    /// Anthropic, Foundry, and other servers of the same form.
    Anthropic,
    /// Bedrock takes the key as a bearer token.
    Bedrock,
    /// Vertex takes the key as a bearer token, and the model in the path.
    Vertex,
}

impl Anthropic {
    /// Creates the dialect of a server with these options.
    pub(crate) fn new(options: &ServerOptions) -> Self {
        let host = options.base_url.host();
        let platform = if host.ends_with("aiplatform.googleapis.com") {
            Platform::Vertex
        } else if BEDROCK_HOSTS.iter().any(|end| host.ends_with(end)) {
            Platform::Bedrock
        } else {
            Platform::Anthropic
        };
        Self { platform }
    }
}

impl Dialect for Anthropic {
    fn encode(
        &self,
        request: &Request,
        options: &ServerOptions,
        history: &mut History,
    ) -> Result<Encoded, String> {
        let is_vertex = self.platform == Platform::Vertex;
        let output_tokens_max = self.output_tokens_max(options).unwrap_or(OUTPUT_TOKENS_MAX);
        let names_session = options.prompt_cache_key == Some(true) && !request.session.is_empty();
        let style = encode::Style { is_vertex, stream: options.stream, names_session, output_tokens_max };
        let body = encode::body(request, &style, history).map_err(|error| error.to_string())?;
        let path = match (is_vertex, options.stream) {
            (false, _) => Cow::Borrowed("messages"),
            (true, true) => format!("{}:streamRawPredict", request.model).into(),
            (true, false) => format!("{}:rawPredict", request.model).into(),
        };
        let mut headers = HeaderMap::new();
        let mut features = Vec::new();
        features.extend(encode::has_bound_thinking(request).then_some(BINDING_CONTROLS));
        features.extend(encode::needs_compaction(request).then_some(COMPACTION));
        if !features.is_empty() {
            // The user's own beta features stay on.
            let own = options.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(BETA));
            let features = own.map(|(_, value)| value.as_str()).chain(features).collect::<Vec<_>>();
            let value = HeaderValue::from_str(&features.join(",")).map_err(|error| error.to_string())?;
            headers.insert(BETA, value);
        }
        Ok(Encoded { path, headers, body })
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::<decode::AnthropicDecoder>::default()
    }

    fn resent_reasoning(&self, _: &ModelSettings, _: &ServerOptions) -> ResentReasoning {
        ResentReasoning { readable_of: None, dialect: Some(DIALECT.to_owned()), opaque_of: None }
    }

    fn encode_count(&self, request: &Request, options: &ServerOptions) -> Result<Option<Encoded>, String> {
        // Bedrock and Vertex have operations of their own.
        if self.platform != Platform::Anthropic {
            return Ok(None);
        }
        let whole = self.encode(request, options, &mut History::default())?;
        let fields: Fields =
            serde_json::from_slice(&whole.body.concat()).map_err(|error| error.to_string())?;
        let body = vec![fields.only(COUNTED).json().into()];
        Ok(Some(Encoded { path: "messages/count_tokens".into(), body, ..whole }))
    }

    fn native_compaction(&self, model: &str) -> Option<NativeCompaction> {
        // Bedrock does not offer it, and older models cannot.
        let can = self.platform != Platform::Bedrock && !encode::takes_budget(model);
        can.then_some(NativeCompaction::Readable)
    }

    fn output_tokens_max(&self, options: &ServerOptions) -> Option<u64> {
        Some(options.output_tokens_max.unwrap_or(OUTPUT_TOKENS_MAX))
    }

    fn key_header(&self, key: &str) -> (HeaderName, String) {
        match self.platform {
            Platform::Anthropic => (HeaderName::from_static("x-api-key"), key.to_owned()),
            Platform::Bedrock | Platform::Vertex => (AUTHORIZATION, format!("Bearer {key}")),
        }
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("anthropic-version", HeaderValue::from_static(VERSION));
        headers
    }
}

#[cfg(test)]
mod tests;
