//! Google's `generateContent`, at the Gemini API and, by address, at Vertex.
//!
//! Invariants: a thought signature stays on the part that it came with; a signature that is not base64 is never sent,
//! because it would fail the whole request; and a call has an id on the wire only if the API gave it one.

mod decode;
mod encode;
mod model;

use greenroom_kernel::Part;
use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName};
use serde_json::value::to_raw_value;

use self::model::Model;
use super::fields::Fields;
use super::{Decoder, Dialect, Encoded, History};
use crate::transport::ServerOptions;
use crate::{ModelSettings, Request, ResentReasoning};

/// The name of the dialect in stored parts.
const DIALECT: &str = "gemini";

/// The fields of a request that Vertex takes to count it.
const COUNTED_AT_VERTEX: &[&str] = &["contents", "systemInstruction", "tools", "generationConfig"];

/// The dialect of one server.
#[derive(Debug)]
pub(crate) struct Gemini {
    /// Vertex takes the key as a bearer token.
    is_vertex: bool,
}

impl Gemini {
    /// Creates the dialect of a server with these options.
    pub(crate) fn new(options: &ServerOptions) -> Self {
        Self { is_vertex: options.base_url.host().ends_with("aiplatform.googleapis.com") }
    }
}

impl Dialect for Gemini {
    fn encode(
        &self,
        request: &Request,
        options: &ServerOptions,
        history: &mut History,
    ) -> Result<Encoded, String> {
        let model = Model::new(&request.model);
        let method = if options.stream { "streamGenerateContent?alt=sse" } else { "generateContent" };
        let path = format!("{}:{method}", model.path());
        let body = encode::body(request, &model, options.output_tokens_max, history)
            .map_err(|error| error.to_string())?;
        Ok(Encoded { path: path.into(), headers: HeaderMap::new(), body })
    }

    fn decoder(&self) -> Box<dyn Decoder> {
        Box::<decode::GeminiDecoder>::default()
    }

    fn resent_reasoning(&self, _: &ModelSettings, _: &ServerOptions) -> ResentReasoning {
        ResentReasoning { readable_of: None, dialect: Some(DIALECT.to_owned()), opaque_of: None }
    }

    fn encode_count(&self, request: &Request, options: &ServerOptions) -> Result<Option<Encoded>, String> {
        let model = Model::new(&request.model);
        let body = encode::body(request, &model, options.output_tokens_max, &mut History::default())
            .map_err(|error| error.to_string())?;
        let fields: Fields = serde_json::from_slice(&body.concat()).map_err(|error| error.to_string())?;
        let json = if self.is_vertex {
            fields.only(COUNTED_AT_VERTEX).json()
        } else {
            // Without this form, instructions and tools would not count.
            let mut whole = fields;
            let name = to_raw_value(&model.path()).map_err(|error| error.to_string())?;
            whole.set("model", name);
            let mut count = Fields::default();
            count.set("generateContentRequest", whole.into_raw());
            count.json()
        };
        let path = format!("{}:countTokens", model.path());
        Ok(Some(Encoded { path: path.into(), headers: HeaderMap::new(), body: vec![json.into()] }))
    }

    fn count_field(&self) -> &'static str {
        "totalTokens"
    }

    fn key_header(&self, key: &str) -> (HeaderName, String) {
        if self.is_vertex {
            (AUTHORIZATION, format!("Bearer {key}"))
        } else {
            (HeaderName::from_static("x-goog-api-key"), key.to_owned())
        }
    }

    fn models_path(&self) -> &'static str {
        // The largest page; the default has 50 models.
        "models?pageSize=1000"
    }
}

/// What the fields of a stored part belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// The text directly before it.
    Text,
    /// The reasoning directly before it.
    Thought,
    /// The call directly before it.
    Call,
    /// Nothing: it is a whole part.
    Itself,
}

impl Owner {
    /// Returns what these fields belong to.
    fn of(fields: &Fields) -> Self {
        if fields.raw("text").is_some() {
            Self::Itself
        } else if fields.raw("functionCall").is_some() {
            Self::Call
        } else if is_thought(fields) {
            Self::Thought
        } else {
            Self::Text
        }
    }
}

/// Whether the part with these fields is a thought.
fn is_thought(fields: &Fields) -> bool {
    fields.parsed("thought") == Some(true)
}

/// Returns these fields as data that belongs to the readable part before it, or that is a whole reasoning part.
fn opaque_reasoning(fields: &Fields) -> Part {
    Part::OpaqueReasoning { dialect: DIALECT.to_owned(), data: fields.json() }
}

#[cfg(test)]
mod tests;
