//! The wire form of a streamed chunk or of a whole answer.
//!
//! Invariants: reading is lenient, so that every field may be missing, null or in an older form; the types hold only
//! the fields that are used; and text that is no chunk at all is an error of the stream, which carries the text.

use std::fmt;
use std::ops::Range;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::dialect::lenient::{count, lenient};

/// The JSON of one `data:` line. What few chunks have is boxed, since each piece of an answer is a chunk.
#[derive(Debug, Default, serde::Deserialize)]
pub(super) struct Chunk {
    #[serde(default)]
    pub(super) choices: Choices,
    #[serde(default, deserialize_with = "lenient")]
    pub(super) usage: Option<Box<WireUsage>>,
    /// An error, which may come after a good beginning.
    pub(super) error: Option<Box<Value>>,
    // The fields of an error that has no `error` object, such as `{"message": …, "code": …}`.
    message: Option<Box<Value>>,
    detail: Option<Box<Value>>,
    code: Option<Box<Value>>,
    #[serde(rename = "type")]
    kind: Option<Box<Value>>,
}

impl Chunk {
    /// The text of a chunk that carries a piece of the first choice's text and nothing else.
    pub(super) fn only_text(&self) -> Option<&Content> {
        let Self { choices, usage: None, error: None, message: None, detail: None, code: None, kind: None } =
            self
        else {
            return None;
        };
        let Choices { first: Some(choice), others } = choices else { return None };
        let Choice {
            index: None | Some(0),
            delta: Some(delta),
            message: None,
            finish_reason: None,
            usage,
            error,
        } = choice
        else {
            return None;
        };
        let Delta { content, reasoning_content, reasoning, refusal, tool_calls } = delta;
        let has_more = usage.is_some()
            || error.is_some()
            || !others.is_empty()
            || !content.reasoning.is_empty()
            || reasoning_content.is_some()
            || reasoning.is_some()
            || refusal.is_some()
            || !tool_calls.is_empty();
        (!has_more && !content.text.is_empty()).then_some(content)
    }

    /// The error as a body for the classifier, if this chunk is an error.
    pub(super) fn error_body(&self) -> Option<String> {
        let choice_error =
            self.choices.iter().find_map(|choice| choice.error.as_deref().filter(|error| is_present(error)));
        let flat = [&self.message, &self.detail].into_iter().flatten().any(|value| is_present(value));
        let nested = self.error.as_deref().filter(|error| is_present(error));
        if nested.is_none() && choice_error.is_none() && !(flat && self.choices.is_empty()) {
            return None;
        }
        let mut body = serde_json::Map::new();
        let fields = [
            ("error", nested.or(choice_error)),
            ("message", self.message.as_deref()),
            ("detail", self.detail.as_deref()),
            ("code", self.code.as_deref()),
            ("type", self.kind.as_deref()),
        ];
        for (name, value) in fields {
            if let Some(value) = value {
                body.insert(name.to_owned(), value.clone());
            }
        }
        Some(Value::Object(body).to_string())
    }
}

/// Whether a field of an error holds anything.
fn is_present(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

/// The choices of a chunk: almost always one, which lies here and not in memory of its own.
#[derive(Debug, Default)]
pub(super) struct Choices {
    first: Option<Choice>,
    others: Vec<Choice>,
}

impl Choices {
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    fn iter(&self) -> impl Iterator<Item = &Choice> {
        self.first.iter().chain(&self.others)
    }
}

impl IntoIterator for Choices {
    type Item = Choice;
    type IntoIter = std::iter::Chain<std::option::IntoIter<Choice>, std::vec::IntoIter<Choice>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.others)
    }
}

impl<'de> Deserialize<'de> for Choices {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ChoicesVisitor;

        impl<'de> Visitor<'de> for ChoicesVisitor {
            type Value = Choices;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of choices or null")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Choices, A::Error> {
                let mut choices = Choices { first: items.next_element()?, others: Vec::new() };
                while let Some(choice) = items.next_element()? {
                    choices.others.push(choice);
                }
                Ok(choices)
            }

            fn visit_unit<E>(self) -> Result<Choices, E> {
                Ok(Choices::default())
            }
        }

        deserializer.deserialize_any(ChoicesVisitor)
    }
}

#[derive(Debug, Default, serde::Deserialize)]
pub(super) struct Choice {
    #[serde(default, deserialize_with = "count")]
    pub(super) index: Option<u64>,
    delta: Option<Delta>,
    // A whole answer has `message` where a chunk has `delta`. They are two fields because some servers send both.
    message: Option<Box<Delta>>,
    #[serde(default, deserialize_with = "lenient")]
    pub(super) finish_reason: Option<String>,
    #[serde(default, deserialize_with = "lenient")]
    pub(super) usage: Option<Box<WireUsage>>,
    error: Option<Box<Value>>,
}

impl Choice {
    /// The part of the answer that this choice carries.
    pub(super) fn take_delta(&mut self) -> Delta {
        self.delta.take().or_else(|| self.take_message()).unwrap_or_default()
    }

    /// The whole answer. Each of its calls is whole too, with or without an id: by its index it is not taken for the
    /// rest of the call before it.
    fn take_message(&mut self) -> Option<Delta> {
        let mut message = *self.message.take()?;
        for (index, call) in (0..).zip(&mut message.tool_calls) {
            call.index = Some(index);
        }
        Some(message)
    }
}

#[derive(Debug, Default, serde::Deserialize)]
pub(super) struct Delta {
    #[serde(default)]
    pub(super) content: Content,
    #[serde(default, deserialize_with = "lenient")]
    pub(super) reasoning_content: Option<Box<Content>>,
    #[serde(default, deserialize_with = "lenient")]
    pub(super) reasoning: Option<Box<Content>>,
    #[serde(default, deserialize_with = "lenient")]
    pub(super) refusal: Option<Box<str>>,
    #[serde(default, deserialize_with = "calls")]
    pub(super) tool_calls: Vec<CallDelta>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct CallDelta {
    #[serde(deserialize_with = "count")]
    pub(super) index: Option<u64>,
    pub(super) id: Option<String>,
    #[serde(deserialize_with = "null_is_default")]
    pub(super) function: FunctionDelta,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct FunctionDelta {
    pub(super) name: Option<String>,
    #[serde(deserialize_with = "arguments_text")]
    pub(super) arguments: String,
}

/// Token counts under all the names that servers use.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct WireUsage {
    #[serde(deserialize_with = "count")]
    pub(super) prompt_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    pub(super) completion_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    pub(super) total_tokens: Option<u64>,
    #[serde(deserialize_with = "lenient")]
    pub(super) prompt_tokens_details: PromptDetails,
    #[serde(deserialize_with = "lenient")]
    pub(super) completion_tokens_details: CompletionDetails,
    #[serde(deserialize_with = "count")]
    cached_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    prompt_cache_hit_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    cache_read_input_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    cache_creation_input_tokens: Option<u64>,
}

impl WireUsage {
    /// The part of the prompt that came from the cache.
    pub(super) fn cached(&self) -> u64 {
        let places = [
            self.prompt_tokens_details.cached_tokens, self.cached_tokens, self.prompt_cache_hit_tokens,
            self.cache_read_input_tokens,
        ];
        places.into_iter().flatten().max().unwrap_or_default()
    }

    /// The part of the prompt that was written to the cache.
    pub(super) fn cache_written(&self) -> u64 {
        let details = &self.prompt_tokens_details;
        let places =
            [details.cache_write_tokens, details.cache_creation_tokens, self.cache_creation_input_tokens];
        places.into_iter().flatten().max().unwrap_or_default()
    }
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct PromptDetails {
    #[serde(deserialize_with = "count")]
    cached_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    cache_write_tokens: Option<u64>,
    #[serde(deserialize_with = "count")]
    cache_creation_tokens: Option<u64>,
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
pub(super) struct CompletionDetails {
    #[serde(deserialize_with = "count")]
    pub(super) reasoning_tokens: Option<u64>,
}

/// A message's content, which is a string, null or a list of typed parts, split into text and reasoning.
#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) text: String,
    pub(super) reasoning: Box<str>,
    /// The address of the text within the chunk, if the chunk contains it without escapes.
    at: Option<usize>,
}

impl Content {
    /// Returns where the text stands in the chunk that was read, without its quotation marks; `None` if it has escapes, or is
    /// one of several parts.
    pub(super) fn place_in(&self, chunk: &str) -> Option<Range<usize>> {
        let start = self.at?.checked_sub(chunk.as_ptr().addr())?;
        let place = start..start + self.text.len();
        (chunk.get(place.clone()) == Some(&self.text)).then_some(place)
    }
}

#[derive(Debug, Default, serde::Deserialize)]
#[serde(default)]
struct ContentPart {
    text: Option<String>,
    thinking: Option<Content>,
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("text, null or a list of parts")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Content, E> {
        Ok(Content { text: text.to_owned(), at: Some(text.as_ptr().addr()), ..Content::default() })
    }

    fn visit_str<E>(self, text: &str) -> Result<Content, E> {
        Ok(Content { text: text.to_owned(), ..Content::default() })
    }

    fn visit_string<E>(self, text: String) -> Result<Content, E> {
        Ok(Content { text, ..Content::default() })
    }

    fn visit_unit<E>(self) -> Result<Content, E> {
        Ok(Content::default())
    }

    fn visit_bool<E>(self, _: bool) -> Result<Content, E> {
        Ok(Content::default())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Content, A::Error> {
        let (mut text, mut reasoning) = (String::new(), String::new());
        while let Some(part) = parts.next_element::<ContentPart>()? {
            text.push_str(part.text.as_deref().unwrap_or_default());
            if let Some(thinking) = part.thinking {
                reasoning.push_str(&thinking.text);
            }
        }
        Ok(Content { text, reasoning: reasoning.into(), at: None })
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Content, A::Error> {
        let part = ContentPart::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Content { text: part.text.unwrap_or_default(), ..Content::default() })
    }
}

/// Reads `null` as the default.
fn null_is_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads tool calls. Only what stands for none may be something else than a list: a call is never passed over.
fn calls<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<CallDelta>, D::Error> {
    match <&RawValue>::deserialize(deserializer)?.get() {
        "null" | "{}" | "\"\"" | "false" => Ok(Vec::new()),
        text => serde_json::from_str(text).map_err(D::Error::custom),
    }
}

/// Reads arguments from JSON text or from a JSON object.
fn arguments_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    deserializer.deserialize_any(ArgumentsVisitor)
}

struct ArgumentsVisitor;

impl<'de> Visitor<'de> for ArgumentsVisitor {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("arguments as text or as an object")
    }

    fn visit_str<E>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }

    fn visit_string<E>(self, text: String) -> Result<String, E> {
        Ok(text)
    }

    fn visit_unit<E>(self) -> Result<String, E> {
        Ok(String::new())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<String, A::Error> {
        Value::deserialize(MapAccessDeserializer::new(map)).map(|value| value.to_string())
    }
}
