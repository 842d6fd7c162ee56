//! The wire formats of model APIs: for each, an encoder of requests and a decoder of answers.
//!
//! Invariants: a dialect knows nothing of connections, deadlines and retries, which are the transport's; a decoder is
//! lenient, so that a kind of event, block or field that this version does not know never fails an answer; and what an
//! encoder writes for a stored message does not depend on the messages after it, except for marks of cache
//! breakpoints, because providers cache, and some sign, the beginning of a request.

mod anthropic;
pub(crate) mod chat;
mod fields;
mod gemini;
pub(crate) mod history;
pub(crate) mod ids;
mod lenient;
mod responses;

use std::borrow::Cow;
use std::collections::VecDeque;
use std::fmt;
use std::io::Write as _;
use std::sync::Arc;

use bytes::Bytes;
use greenroom_kernel::{AssistantMessage, Block, FailureClass, Message, Part, StopReason};
use http::HeaderMap;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub(crate) use self::history::History;
use crate::classify::{blames_request, classify, one_line};
use crate::transport::{Endpoint, ServerOptions};
use crate::{ModelSettings, NativeCompaction, ProviderError, Purpose, ReplyEvent, Request, ResentReasoning};

/// How much of a refusal's body is kept, in bytes.
pub(crate) const ERROR_BODY_BYTES_MAX: usize = 16 * 1024;

/// The API that a server offers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Api {
    /// OpenAI's chat completions, which most gateways and local servers offer.
    #[default]
    Chat,
    /// OpenAI's Responses, at OpenAI or Azure.
    Responses,
    /// Anthropic's Messages, at Anthropic, Bedrock, Vertex or Foundry.
    Anthropic,
    /// Google's `generateContent`, at the Gemini API or Vertex.
    Gemini,
}

impl Api {
    /// Returns the dialect of a server with these options.
    pub(crate) fn dialect(self, options: &ServerOptions) -> Box<dyn Dialect> {
        match self {
            Self::Chat => Box::new(chat::Chat::new(options)),
            Self::Responses => Box::new(responses::Responses::new(options)),
            Self::Anthropic => Box::new(anthropic::Anthropic::new(options)),
            Self::Gemini => Box::new(gemini::Gemini::new(options)),
        }
    }
}

/// A request in its wire format.
#[derive(Debug)]
pub(crate) struct Encoded {
    /// The path below the base URL, without a slash in front. It may have a query, which comes before that of the base
    /// URL.
    pub(crate) path: Cow<'static, str>,
    /// Headers of this request alone.
    pub(crate) headers: HeaderMap,
    /// The body, in pieces.
    pub(crate) body: Vec<Bytes>,
}

/// A wire format.
pub(crate) trait Dialect: fmt::Debug + Send + Sync {
    /// Encodes a request. `history` holds what was written for the request before it, if there was one.
    ///
    /// # Errors
    /// The reason why it cannot be sent, as a clause.
    fn encode(
        &self,
        request: &Request,
        options: &ServerOptions,
        history: &mut History,
    ) -> Result<Encoded, String>;

    /// Creates the decoder of one answer.
    fn decoder(&self) -> Box<dyn Decoder>;

    /// Returns which reasoning and which opaque data a request with these settings carries.
    fn resent_reasoning(&self, settings: &ModelSettings, options: &ServerOptions) -> ResentReasoning;

    /// Returns how the API compacts conversations with this model by itself; `None` if it does not.
    fn native_compaction(&self, _model: &str) -> Option<NativeCompaction> {
        None
    }

    /// Encodes a request to count the input tokens of this request; `None` if the API does not count.
    ///
    /// # Errors
    /// The reason why it cannot be sent, as a clause.
    fn encode_count(&self, _request: &Request, _options: &ServerOptions) -> Result<Option<Encoded>, String> {
        Ok(None)
    }

    /// Returns the name of the field with the number in the answer to such a request.
    fn count_field(&self) -> &'static str {
        "input_tokens"
    }

    /// Returns the output limit, in tokens, of requests that name none.
    fn output_tokens_max(&self, options: &ServerOptions) -> Option<u64> {
        options.output_tokens_max
    }

    /// Returns the header that carries the API key, and its value.
    fn key_header(&self, key: &str) -> (HeaderName, String) {
        (AUTHORIZATION, format!("Bearer {key}"))
    }

    /// Returns the path of the list of models, below the base URL. It may have a query.
    fn models_path(&self) -> &'static str {
        "models"
    }

    /// Returns the headers of all requests.
    fn headers(&self) -> HeaderMap {
        HeaderMap::new()
    }

    /// Makes a request without a body to this path.
    ///
    /// # Errors
    /// The reason, as a clause.
    fn request(
        &self,
        _client: &reqwest::Client,
        endpoint: &Arc<Endpoint>,
        path: &str,
    ) -> Result<reqwest::Request, String> {
        let url = reqwest::Url::parse(&format!("{}/{path}", endpoint.base)).map_err(|e| e.to_string())?;
        let mut request = reqwest::Request::new(reqwest::Method::POST, url);
        if !endpoint.query.is_empty() {
            request.url_mut().query_pairs_mut().extend_pairs(&endpoint.query);
        }
        *request.headers_mut() = endpoint.headers.clone();
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(request)
    }
}

/// The effect of a piece of an answer on its decoder.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It advanced the answer.
    Progress,
    /// It carried nothing, such as a ping.
    Nothing,
    /// It is an error, with a body for the classifier.
    Error(String),
    /// It is not of this format.
    Unreadable,
}

/// How far an answer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The answer has not ended.
    Open,
    /// The answer has ended; a usage report may follow.
    Ended,
    /// Nothing follows.
    Over,
}

/// The call that an answer belongs to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallContext<'a> {
    /// The provider's name in the model catalogue.
    pub(crate) provider: &'a str,
    /// The model's name in the request.
    pub(crate) model: &'a str,
    pub(crate) purpose: Purpose,
    /// The conversation that is answered.
    pub(crate) messages: &'a [Arc<Message>],
}

/// The decoder of one answer, streamed or whole.
pub(crate) trait Decoder: Send {
    /// Adds the data of an event, or a whole answer, and appends what it shows to `events`.
    fn take(&mut self, data: &str, events: &mut VecDeque<ReplyEvent>) -> Taken;

    /// Returns how far the answer has come.
    fn progress(&self) -> Progress;

    /// Whether an answer that the server declared over, without a reason, could be whole.
    fn may_be_whole(&self) -> bool;

    /// Whether any text, reasoning or call has arrived.
    fn has_output(&self) -> bool;

    /// Returns the size of everything that has arrived and is kept, in bytes.
    fn output_bytes(&self) -> usize;

    /// Returns the size of the text, reasoning and arguments that have arrived, in characters.
    fn output_chars(&self) -> usize;

    /// Returns the finished answer, and appends its last events to `events`.
    ///
    /// # Errors
    /// The answer's end is a failure.
    fn finish(
        self: Box<Self>,
        context: &CallContext<'_>,
        events: &mut VecDeque<ReplyEvent>,
    ) -> Result<AssistantMessage, ProviderError>;
}

/// Whether a server is OpenAI's own or Azure's, which know what other servers refuse. A Foundry resource of Azure's offers
/// OpenAI's API below `/openai` alone.
pub(crate) fn is_openai(options: &ServerOptions) -> bool {
    let host = options.base_url.host();
    host == "api.openai.com"
        || host.ends_with(".openai.azure.com")
        || (host.ends_with(".services.ai.azure.com") && options.base_url.path().starts_with("/openai/"))
}

/// Returns the failure that an error in place of a piece of an answer means: as classified, or `Malformed` if the
/// classifier does not recognise it and nothing in it blames the request.
pub(crate) fn error_in_stream(body: &str) -> ProviderError {
    let body = &body[..body.floor_char_boundary(ERROR_BODY_BYTES_MAX)];
    let mut failure = classify(Some(200), body, None);
    if failure.class == FailureClass::Other && !blames_request(body) {
        failure.class = FailureClass::Malformed;
        failure.message =
            format!("the provider sent an error in the middle of the answer: {}", one_line(&failure.message));
    }
    ProviderError::new(failure, body)
}

/// Returns why an answer ended in which the model may have said, in a form of its own, that it refuses: that is the
/// reason if the end is a normal one.
pub(crate) fn with_refusal(stop: StopReason, is_refusal: bool) -> StopReason {
    if is_refusal && stop == StopReason::Stop { StopReason::ContentFilter } else { stop }
}

/// Returns the fields that have a value.
pub(crate) fn with_values<const N: usize>(fields: [(&str, Option<Value>); N]) -> Map<String, Value> {
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// Returns why an answer with these parts ended: whether it calls tools overrules what the server says.
pub(crate) fn with_calls(stop: StopReason, content: &[Part]) -> StopReason {
    let calls_tools = content.iter().any(|part| part.as_tool_call().is_some());
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others say nothing of calls")]
    match stop {
        StopReason::Stop if calls_tools => StopReason::ToolCalls,
        StopReason::ToolCalls if !calls_tools => StopReason::Stop,
        _ => stop,
    }
}

/// Returns about how many bytes a message has on the wire, so that its text need not move while the request grows.
pub(crate) fn size_hint(message: &Message) -> usize {
    const FRAME: usize = 128;
    let of_blocks = |blocks: &[Block]| -> usize {
        let of_block = |block: &Block| match block {
            Block::Text(text) => FRAME + text.len(),
            Block::Image(image) => FRAME + image.data.len(),
            Block::Native(native) => native.blocks.iter().map(String::len).sum(),
            _ => 0,
        };
        blocks.iter().map(of_block).sum()
    };
    let of_part = |part: &Part| match part {
        Part::Text(text) | Part::Reasoning(text) => FRAME + text.len(),
        Part::OpaqueReasoning { data, .. } | Part::OpaqueBlock { data, .. } => data.len(),
        Part::ToolCall(call) => FRAME + call.arguments.len(),
        _ => 0,
    };
    FRAME
        + match message {
            Message::User(blocks) => of_blocks(blocks),
            Message::Assistant(answer) => answer.content.iter().map(of_part).sum(),
            Message::ToolResult(result) => FRAME + of_blocks(&result.content),
        }
}

/// Below this size of the conversation a body is sent in one piece, in bytes: copying it costs less than sending pieces.
const PIECES_BYTES_MIN: usize = 64 * 1024;

/// Room for the fields of a request besides its conversation, in bytes. More of them let the memory grow.
const FIELDS_BYTES: usize = 1024;

/// Returns a body in pieces: an object with the fields of `before`, the conversation as a list under `name`, and the
/// fields of `after`. `first` is an element in front of the conversation, or empty.
pub(crate) fn body(
    before: &impl Serialize,
    name: &str,
    first: &[u8],
    conversation: Vec<Bytes>,
    after: &impl Serialize,
) -> serde_json::Result<Vec<Bytes>> {
    let conversation_bytes = conversation.iter().map(Bytes::len).sum::<usize>();
    let is_small = conversation_bytes < PIECES_BYTES_MIN;
    let mut body =
        Vec::with_capacity(FIELDS_BYTES + first.len() + if is_small { conversation_bytes } else { 0 });
    serde_json::to_writer(&mut body, before)?;
    // The closing brace.
    body.pop();
    if body.len() > 1 {
        body.push(b',');
    }
    write!(body, "\"{name}\":[").map_err(serde_json::Error::io)?;
    body.extend_from_slice(first);
    if !first.is_empty() && !conversation.is_empty() {
        body.push(b',');
    }
    let mut pieces = Vec::new();
    if is_small {
        conversation.iter().for_each(|piece| body.extend_from_slice(piece));
    } else {
        pieces.reserve_exact(conversation.len() + 2);
        pieces.push(Bytes::from(body));
        pieces.extend(conversation);
        body = Vec::with_capacity(FIELDS_BYTES);
    }
    body.push(b']');
    let brace = body.len();
    serde_json::to_writer(&mut body, after)?;
    if body.len() - brace > 2 {
        body[brace] = b',';
    } else {
        body.remove(brace);
    }
    pieces.push(body.into());
    Ok(pieces)
}

/// Adds the user's own fields to a body. Objects are merged, and otherwise the user's value replaces ours.
pub(crate) fn merge(body: &mut Map<String, Value>, own: &Map<String, Value>) {
    for (name, value) in own {
        match (body.get_mut(name), value) {
            (Some(Value::Object(ours)), Value::Object(own)) => merge(ours, own),
            _ => {
                body.insert(name.clone(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests;
