//! OpenAI's Responses API, at OpenAI, Azure and other servers that offer it.
//!
//! Nothing is stored at the server: each request carries the whole conversation, with the items of earlier answers as
//! they came.
//!
//! Invariants: an item of an answer is kept whole only if its end came; opaque data is sent back only to the provider
//! that sent it; and a reasoning item is sent back only together with the item that followed it.

mod decode;
mod encode;
mod item;

use http::HeaderMap;
use http::header::{ACCEPT, HeaderValue};
use parking_lot::Mutex;

use super::fields::Fields;
use super::{Decoder, Dialect, Encoded, History, is_openai};
use crate::transport::ServerOptions;
use crate::{Catalog, ModelSettings, NativeCompaction, Purpose, Request, ResentReasoning};

/// The name of the dialect in stored parts.
const DIALECT: &str = "responses";
/// The path of the API.
const PATH: &str = "responses";
/// The path of the operation that compacts a conversation.
const COMPACT_PATH: &str = "responses/compact";

/// The path of the operation that counts the tokens of a request.
const COUNT_PATH: &str = "responses/input_tokens";
/// The fields of a request that a request to count it has too.
const COUNTED: &[&str] = &[
    "model", "instructions", "input", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "text",
    "truncation",
];

/// The dialect of one server.
#[derive(Debug)]
pub(crate) struct Responses {
    prompt_cache_key: bool,
    /// The model of the newest request, and whether it can reason, as far as the catalogue knows.
    newest: Mutex<(String, bool)>,
}

impl Responses {
    /// Creates the dialect of a server with these options.
    pub(crate) fn new(options: &ServerOptions) -> Self {
        let prompt_cache_key = options.prompt_cache_key.unwrap_or_else(|| is_openai(options));
        Self { prompt_cache_key, newest: Mutex::new((String::new(), false)) }
    }

    /// Whether a model can reason, as far as the catalogue knows.
    fn reasons(&self, provider: &str, model: &str) -> bool {
        let mut newest = self.newest.lock();
        if newest.0 != model {
            let known = Catalog::bundled().lookup(provider, model);
            *newest = (model.to_owned(), known.is_none_or(|model| model.reasoning));
        }
        newest.1
    }
}

impl Dialect for Responses {
    fn encode(
        &self,
        request: &Request,
        options: &ServerOptions,
        history: &mut History,
    ) -> Result<Encoded, String> {
        if request.purpose == Purpose::Compaction {
            let body = encode::compact_body(request, &options.name, self.prompt_cache_key, history);
            let body = body.map_err(|error| error.to_string())?;
            // The answer is never streamed.
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))]);
            return Ok(Encoded { path: COMPACT_PATH.into(), headers, body });
        }
        let style = encode::Style {
            provider: &options.name,
            output_tokens_max: options.output_tokens_max,
            prompt_cache_key: self.prompt_cache_key,
            stream: options.stream,
            reasons: self.reasons(&options.name, &request.model),
        };
        let body = encode::body(request, &style, history).map_err(|error| error.to_string())?;
        Ok(Encoded { path: PATH.into(), headers: HeaderMap::new(), body })
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::<decode::ResponsesDecoder>::default()
    }

    fn resent_reasoning(&self, _: &ModelSettings, options: &ServerOptions) -> ResentReasoning {
        ResentReasoning {
            readable_of: None,
            dialect: Some(DIALECT.to_owned()),
            opaque_of: Some(options.name.clone()),
        }
    }

    fn encode_count(&self, request: &Request, options: &ServerOptions) -> Result<Option<Encoded>, String> {
        let whole = self.encode(request, options, &mut History::default())?;
        let fields: Fields =
            serde_json::from_slice(&whole.body.concat()).map_err(|error| error.to_string())?;
        let body = vec![fields.only(COUNTED).json().into()];
        Ok(Some(Encoded { path: COUNT_PATH.into(), body, ..whole }))
    }

    fn native_compaction(&self, _: &str) -> Option<NativeCompaction> {
        Some(NativeCompaction::Opaque)
    }
}

#[cfg(test)]
mod tests;
