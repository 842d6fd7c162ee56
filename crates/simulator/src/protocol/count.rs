//! Requests to count the tokens of another request.
//!
//! Invariants: a field that the operation does not have is refused; apart from that the request is read, and refused,
//! like the one that it is about.

use serde_json::{Map, Value};

use super::Protocol;
use crate::check::{Broken, Rule};

/// The fields of a request to count, by protocol.
const ANTHROPIC: &[&str] = &[
    "model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "context_management",
];
const RESPONSES: &[&str] = &[
    "model", "instructions", "input", "tools", "tool_choice", "parallel_tool_calls", "reasoning", "text",
    "truncation", "conversation", "previous_response_id",
];

/// Returns the path and the body of the request that is counted, and what is wrong with the one that asks.
pub(super) fn counted(protocol: Protocol, path: &str, body: &[u8]) -> (String, Vec<u8>, Vec<Broken>) {
    let mut broken = Vec::new();
    let Ok(mut fields) = serde_json::from_slice::<Map<String, Value>>(body) else {
        // The reader of the request refuses it.
        return (path.to_owned(), body.to_vec(), broken);
    };
    let (allowed, path) = match protocol {
        Protocol::Anthropic => (ANTHROPIC, "/v1/messages".to_owned()),
        Protocol::Responses => (RESPONSES, "/v1/responses".to_owned()),
        Protocol::Gemini | Protocol::Chat => {
            (&["generateContentRequest"][..], path.replace(":countTokens", ":generateContent"))
        }
    };
    for name in fields.keys().filter(|name| !allowed.contains(&name.as_str())) {
        broken.push((Rule::Setting, format!("{name}: Extra inputs are not permitted")));
    }
    match protocol {
        // Fields that only a request for an answer must have.
        Protocol::Anthropic => {
            fields.insert("max_tokens".to_owned(), u32::MAX.into());
        }
        Protocol::Responses => {
            fields.insert("store".to_owned(), false.into());
        }
        Protocol::Gemini | Protocol::Chat => {
            let Some(Value::Object(mut whole)) = fields.remove("generateContentRequest") else {
                broken.push((Rule::NotJson, "generateContentRequest is missing".to_owned()));
                return (path, body.to_vec(), broken);
            };
            let model = whole.remove("model").unwrap_or_default();
            let named = model.as_str().unwrap_or_default();
            if !path.contains(&format!("/{named}:")) {
                broken.push((Rule::Setting, format!("generateContentRequest.model: {named:?}")));
            }
            fields = whole;
        }
    }
    (path, Value::Object(fields).to_string().into_bytes(), broken)
}
