//! Extracts the content of a refusal from any encoding of its body.
//!
//! A body may be JSON, JSON inside a JSON string, text that contains JSON, Python's repr of a dictionary, lines of an
//! event stream, a web page or plain text.
//!
//! Invariants: only the fields that hold the provider's own words are read, because a validation error may echo the
//! whole prompt; nesting deeper than [`DEPTH_MAX`] and text beyond [`TEXT_BYTES_MAX`] are ignored; and no body makes
//! the extraction panic.

use greenroom_kernel::text::joined_words;
use serde_json::{Map, Value};

/// How many levels of nesting are followed.
const DEPTH_MAX: usize = 24;
/// How many items of a JSON array are read.
const ARRAY_ITEMS_MAX: usize = 16;
/// How much of the message is searched for words, in bytes. Text after that is usually a quotation.
const TEXT_BYTES_MAX: usize = 6_000;

/// JSON fields that hold messages, or objects with messages in them. In lower case.
const MESSAGE_FIELDS: &[&str] = &[
    "message", "msg", "error", "errors", "detail", "details", "error_message", "error_msg", "errormessage",
    "errormsg", "status_msg", "description", "error_description", "raw", "body", "cause", "reason", "title",
    "metadata", "base_resp", "external_model_error", "inner_error", "innererror", "data", "response",
    "result", "originalmessage", "original_message", "upstream_error", "provider_error", "exception",
    "fault", "faultstring", "choices", "violations",
];
/// JSON fields that hold an error code, the name of an error type, or an HTTP status. In lower case.
const CODE_FIELDS: &[&str] = &[
    "code", "type", "error_type", "error_code", "errorcode", "errortype", "status", "status_code",
    "statuscode", "__type", "name", "kind", "reason", "http_code", "http_status", "httpstatus", "error_name",
    "quotaid",
];

/// The words, codes and numbers of a refusal.
#[derive(Debug, Default)]
pub(super) struct Digest {
    /// All messages in lower case, with `_` and `-` as spaces and without quotation marks, for phrases.
    pub(super) text: String,
    /// All messages in lower case without quotation marks, for numbers: `_` and `-` are as the provider wrote them.
    pub(super) lowercase: String,
    /// All messages reduced to lower case letters and digits, for names such as `ContextWindowExceededError`.
    pub(super) alphanumeric: String,
    /// Error codes and names of error types, reduced to lower case letters and digits.
    pub(super) codes: Vec<String>,
    /// HTTP statuses that the body names, in the order in which they were found.
    pub(super) statuses: Vec<u16>,
    /// The innermost message as the provider wrote it, for the user.
    pub(super) message: String,
    /// The context window, in tokens, where a JSON field names it.
    pub(super) limit: Option<u64>,
    /// The request's size, in tokens, where a JSON field names it.
    pub(super) requested: Option<u64>,
    /// Whether the body is an answer that ended because the prompt filled the window.
    pub(super) is_window_full: bool,
}

impl Digest {
    /// Extracts the content of `body`.
    pub(super) fn of(body: &str) -> Self {
        let mut collector = Collector::default();
        collector.add_text(body);
        let Collector { mut digest, messages, .. } = collector;
        let messages = without_urls(&messages[..messages.floor_char_boundary(TEXT_BYTES_MAX)]);
        digest.codes.extend(exception_names(&messages));
        digest.lowercase = messages
            .to_lowercase()
            .chars()
            .map(|c| if c.is_whitespace() { ' ' } else { c })
            .filter(|c| {
                !matches!(c, '`' | '"' | '\'' | '\u{2018}' | '\u{2019}' | '\u{201c}' | '\u{201d}' | '\\')
            })
            .collect();
        digest.text = digest
            .lowercase
            .replace(['_', '-'], " ")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            // The name of a setting that some gateways list in every error.
            .replace("context window fallback", "fallback");
        digest.alphanumeric = alphanumeric(&digest.lowercase);
        digest
    }

    /// Whether the body has no content.
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.codes.is_empty() && !self.is_window_full
    }
}

/// Returns `text` without URLs: a link to a page about the context window says nothing about this request.
fn without_urls(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(colon) = rest.find("://") {
        // The scheme consists of the ASCII letters directly before the colon.
        let before_scheme = rest[..colon].trim_end_matches(|c: char| c.is_ascii_alphabetic());
        kept.push_str(before_scheme);
        let ends = |c: char| c.is_whitespace() || !c.is_ascii() || matches!(c, '"' | '\'' | ')' | '>' | '\\');
        let end = rest[colon..].find(ends).map_or(rest.len(), |length| colon + length);
        rest = &rest[end..];
    }
    kept.push_str(rest);
    kept
}

/// Yields the names of exceptions in a message, such as `AccessDeniedException` or `RateLimitError`, as
/// codes.
fn exception_names(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_ascii_alphanumeric())
        .filter(|name| name.ends_with("Exception") || name.ends_with("Error"))
        .filter(|name| {
            let pairs = name.as_bytes().windows(2);
            pairs.into_iter().any(|pair| pair[0].is_ascii_lowercase() && pair[1].is_ascii_uppercase())
        })
        .map(alphanumeric)
}

/// Returns the ASCII letters and digits of `text`, in lower case.
fn alphanumeric(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// Collects the words, codes and numbers of a body while walking through its levels of nesting.
#[derive(Default)]
struct Collector {
    digest: Digest,
    /// All messages, separated by full stops.
    messages: String,
    /// The current level of nesting.
    depth: usize,
}

impl Collector {
    /// Calls `read` one level deeper, unless that level is too deep.
    fn nested(&mut self, read: impl FnOnce(&mut Self)) {
        if self.depth < DEPTH_MAX {
            self.depth += 1;
            read(self);
            self.depth -= 1;
        }
    }

    /// Adds text that may be JSON, contain JSON, or be a message.
    fn add_text(&mut self, text: &str) {
        let text = text.trim();
        if let Ok(value @ (Value::Object(_) | Value::Array(_) | Value::String(_))) =
            serde_json::from_str(text)
        {
            self.nested(|collector| collector.add_value(&value));
            return;
        }
        if text.starts_with("data:") || text.starts_with("event:") {
            for line in text.lines() {
                if let Some(data) = line.strip_prefix("data:").filter(|data| data.trim() != "[DONE]") {
                    self.nested(|collector| collector.add_text(data));
                }
            }
            return;
        }
        if let Some((start, end)) = text.find('{').zip(text.rfind('}'))
            && let Some(json) = text.get(start..=end)
            && let Ok(value @ Value::Object(_)) = serde_json::from_str(json)
        {
            self.add_message(&text[..start]);
            self.nested(|collector| collector.add_value(&value));
            return;
        }
        self.add_message(text);
    }

    /// Adds a message, which may be a web page.
    fn add_message(&mut self, text: &str) {
        let text = without_tags(text);
        let text = text.trim();
        if text.is_empty() {
            return;
        }
        self.digest.statuses.extend(leading_status(text));
        if !self.messages.is_empty() {
            self.messages.push_str(". ");
        }
        self.messages.push_str(text);
        // The innermost message comes last. A single word after a message is a name.
        if text.contains(' ') || self.digest.message.is_empty() {
            self.digest.message = python_message(text).unwrap_or(text).to_owned();
        }
    }

    fn add_value(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.nested(|collector| collector.add_text(text)),
            Value::Array(items) => {
                for item in items.iter().take(ARRAY_ITEMS_MAX) {
                    self.nested(|collector| collector.add_value(item));
                }
            }
            Value::Object(map) => self.add_object(map),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn add_object(&mut self, map: &Map<String, Value>) {
        self.digest.is_window_full |= is_empty_answer_at_length_limit(map) || ends_at_full_window(map);
        for (field, value) in map {
            let field = field.to_ascii_lowercase();
            if CODE_FIELDS.contains(&field.as_str()) {
                self.add_code(value);
            } else if is_exception(&field, value) {
                self.digest.codes.push(alphanumeric(&field));
            }
            match field.as_str() {
                "n_ctx" | "max_context_length" | "context_length" | "context_window" | "max_model_len"
                | "max_input_tokens" => {
                    self.digest.limit = self.digest.limit.or(value.as_u64());
                }
                "n_prompt_tokens" | "prompt_tokens" | "input_tokens" => {
                    self.digest.requested = self.digest.requested.or(value.as_u64());
                }
                _ => {}
            }
        }
        // Plain messages first and nested ones second, so that the innermost message comes last.
        for nested in [false, true] {
            for (field, value) in map {
                let is_nested = match value {
                    Value::Object(_) | Value::Array(_) => true,
                    Value::String(text) => text.trim_start().starts_with(['{', '[']),
                    Value::Null | Value::Bool(_) | Value::Number(_) => continue,
                };
                let name = field.to_ascii_lowercase();
                let is_message = MESSAGE_FIELDS.contains(&name.as_str()) || is_exception(&name, value);
                if is_nested == nested && is_message {
                    self.nested(|collector| collector.add_value(value));
                }
            }
        }
    }

    fn add_code(&mut self, value: &Value) {
        let text = match value {
            Value::Number(number) => number.to_string(),
            Value::String(text) if text.len() <= 100 => text.clone(),
            Value::String(_) | Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return,
        };
        if let Ok(status) = text.parse::<u16>()
            && (400..600).contains(&status)
        {
            self.digest.statuses.push(status);
            return;
        }
        self.digest.codes.push(alphanumeric(&text));
    }
}

/// Whether a field is named after an exception and holds what it says.
fn is_exception(lowercase: &str, value: &Value) -> bool {
    lowercase.ends_with("exception") && value.is_object()
}

/// Returns the HTTP status at the front of a message: "429 …", "HTTP 429: …", "Error code: 429 - …", "status
/// code 429".
fn leading_status(text: &str) -> Option<u16> {
    const SEARCHED_BYTES: usize = 48;
    let head = text[..text.floor_char_boundary(SEARCHED_BYTES)].to_ascii_lowercase();
    let (label, rest) = head.split_at(head.find(|c: char| c.is_ascii_digit())?);
    let label = label.trim_end_matches([' ', ':', '=', '(', '[', '#', '/', '<']);
    let is_labelled =
        label.is_empty() || ["http", "code", "status", "error"].iter().any(|name| label.ends_with(name));
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (number, rest) = rest.split_at(digits);
    // "429.5", "400-499", "1,024" and "404th" hold no status.
    let goes_on = rest.starts_with(|c: char| matches!(c, '.' | ',' | '-') || c.is_alphanumeric());
    if !is_labelled || goes_on {
        return None;
    }
    number.parse().ok().filter(|status| (400..600).contains(status))
}

/// Returns the message in Python's repr of a dictionary: `{'error': {'message': '…', …`.
fn python_message(text: &str) -> Option<&str> {
    let (_, message) = text.split_once("'message': ")?;
    let quote = message.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let message = &message[1..];
    let ends = [format!("{quote}, '"), format!("{quote}}}")];
    let end = ends.iter().filter_map(|end| message.find(end.as_str())).min()?;
    Some(&message[..end])
}

/// Returns the text of a web page; other text is returned unchanged.
fn without_tags(text: &str) -> String {
    const SEARCHED_BYTES: usize = 256;
    let head = text[..text.floor_char_boundary(SEARCHED_BYTES)].to_ascii_lowercase();
    if !head.contains("<html") && !head.contains("<!doctype") {
        return text.to_owned();
    }
    let mut words = String::new();
    let mut in_tag = false;
    for c in text.chars() {
        match c {
            '<' => in_tag = true,
            '>' => {
                in_tag = false;
                words.push(' ');
            }
            _ if in_tag => {}
            _ => words.push(c),
        }
    }
    joined_words(&words)
}

/// Whether an answer's finish reason says that the context window was full.
fn ends_at_full_window(map: &Map<String, Value>) -> bool {
    let reasons = ["finish_reason", "stop_reason"].iter().filter_map(|field| map.get(*field)?.as_str());
    reasons
        .map(alphanumeric)
        .any(|reason| reason.contains("contextwindowexceeded") || reason.contains("contextlengthexceeded"))
}

/// Whether an answer ended at its length limit with nothing in it, because the prompt alone filled the window.
fn is_empty_answer_at_length_limit(map: &Map<String, Value>) -> bool {
    let Some([choice, ..]) = map.get("choices").and_then(Value::as_array).map(Vec::as_slice) else {
        return false;
    };
    let is_blank = |value: Option<&Value>| match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(_) | Value::Bool(_) | Value::Number(_)) => false,
    };
    let has_output = ["message", "delta"].iter().filter_map(|field| choice.get(field)).any(|message| {
        ["content", "tool_calls", "reasoning_content", "reasoning"]
            .iter()
            .any(|field| !is_blank(message.get(field)))
    });
    let output_tokens =
        map.get("usage").and_then(|usage| usage.get("completion_tokens")).and_then(Value::as_u64);
    choice.get("finish_reason").is_some_and(|reason| reason == "length")
        && !has_output
        && is_blank(choice.get("text"))
        // Some servers count the end-of-text token.
        && output_tokens.is_none_or(|tokens| tokens <= 1)
}

#[cfg(test)]
mod tests;
