//! The protocols that the simulated server speaks: for each, a reader of requests and a writer of answers.
//!
//! Invariants: a reader reports everything that the real API refuses as a broken rule; a protocol changes the form of an
//! answer, and nothing else.

pub(crate) mod anthropic;
pub(crate) mod chat;
mod count;
mod gemini;
mod responses;

use greenroom_kernel::Image;
use greenroom_provider::Purpose;
use hyper::{HeaderMap, header};
use serde_json::Value;

use self::chat::FromHeaders;
use crate::answer::{Piece, Raw};
use crate::check::Broken;
use crate::seen::SeenRequest;

/// Returns the elements of a list; none, if it is something else.
fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns the text in a field; an empty one, if it has none.
fn string(value: &Value, field: &str) -> String {
    value.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Returns an inline image, or one that is only named by its address.
fn image_of(url: &str) -> Image {
    match url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,")) {
        Some((media_type, data)) => Image { media_type: media_type.to_owned(), data: data.to_owned() },
        None => Image { media_type: "text/uri-list".to_owned(), data: url.to_owned() },
    }
}

/// A protocol, by the path of its requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// OpenAI's chat completions.
    Chat,
    /// OpenAI's Responses.
    Responses,
    /// Anthropic's Messages.
    Anthropic,
    /// Google's `generateContent`.
    Gemini,
}

/// A request that was read.
pub(crate) struct Parsed {
    pub(crate) seen: SeenRequest,
    /// What the real API refuses about its form.
    pub(crate) broken: Vec<Broken>,
    /// Writes the answer.
    pub(crate) writer: Box<dyn Writer>,
}

/// Writes one answer in a protocol's form.
pub(crate) trait Writer: Send {
    /// Takes the number of the call, before anything is written.
    fn begin(&mut self, call: u64);

    /// Writes a piece of a streamed answer.
    fn piece(&mut self, piece: &Piece, out: &mut Vec<u8>);

    /// Writes something outside the protocol into a stream.
    fn raw(&mut self, raw: &Raw, out: &mut Vec<u8>);

    /// Returns a whole answer.
    fn whole(&mut self, pieces: Vec<Piece>) -> serde_json::Value;
}

impl Protocol {
    /// Returns the protocol of requests to this path.
    pub(crate) fn of(path: &str) -> Option<Self> {
        match path {
            "/v1/chat/completions" => Some(Self::Chat),
            "/v1/responses" | responses::COMPACT_PATH => Some(Self::Responses),
            "/v1/messages" => Some(Self::Anthropic),
            _ => gemini::call_of(path).map(|_| Self::Gemini),
        }
    }

    /// Returns the protocol of requests to this path, if they ask for a count of tokens.
    pub(crate) fn counting(path: &str) -> Option<Self> {
        match path {
            "/v1/responses/input_tokens" => Some(Self::Responses),
            "/v1/messages/count_tokens" => Some(Self::Anthropic),
            _ => path.ends_with(":countTokens").then_some(Self::Gemini),
        }
    }

    /// Reads a request to count the tokens of another one, as that other one.
    pub(crate) fn parse_count(self, path: &str, headers: &HeaderMap, body: &[u8]) -> Parsed {
        let (path, body, broken) = count::counted(self, path, body);
        let mut parsed = self.parse(&path, headers, &body);
        parsed.broken.extend(broken);
        parsed
    }

    /// Returns the answer to such a request.
    pub(crate) fn count(self, tokens: u64) -> serde_json::Value {
        match self {
            Self::Gemini => serde_json::json!({ "totalTokens": tokens }),
            Self::Responses => {
                serde_json::json!({ "object": "response.input_tokens", "input_tokens": tokens })
            }
            Self::Anthropic | Self::Chat => serde_json::json!({ "input_tokens": tokens }),
        }
    }

    /// Returns the API key that a request presents.
    pub(crate) fn key(self, headers: &HeaderMap) -> Option<&str> {
        match self {
            Self::Chat | Self::Responses => {
                text(headers, header::AUTHORIZATION.as_str())?.strip_prefix("Bearer ")
            }
            Self::Anthropic => text(headers, "x-api-key"),
            Self::Gemini => text(headers, "x-goog-api-key"),
        }
    }

    /// Reads a request.
    pub(crate) fn parse(self, path: &str, headers: &HeaderMap, body: &[u8]) -> Parsed {
        let from_headers = FromHeaders {
            session: text(headers, "x-greenroom-session").map(str::to_owned),
            purpose: match text(headers, "x-greenroom-purpose") {
                Some("summary") => Some(Purpose::Summary),
                Some("run") => Some(Purpose::Step),
                Some(_) | None => None,
            },
        };
        match self {
            Self::Chat => chat::parse(from_headers, body),
            Self::Responses => responses::parse(path, from_headers, body),
            Self::Anthropic => anthropic::parse(headers, from_headers, body),
            Self::Gemini => gemini::parse(path, from_headers, body),
        }
    }

    /// Returns the body of an error, given in OpenAI's form, in the protocol's own form. A body that has another form
    /// stays as it is.
    pub(crate) fn error(self, status: u16, body: String) -> String {
        match self {
            Self::Chat | Self::Responses => body,
            Self::Anthropic => anthropic::error(status, &body).unwrap_or(body),
            Self::Gemini => gemini::error(status, &body).unwrap_or(body),
        }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
