//! What a refusal says, taken out of whatever it is wrapped in.
//!
//! Bodies come as JSON, as JSON inside a string of JSON, as text with JSON in it, as Python's repr of a
//! dictionary, as event stream lines and as plain text. Only fields that hold the provider's words are read: a
//! validation error may echo the whole prompt, and its words must not be taken for the provider's.

use serde_json::{Map, Value};

/// How deep wrappings are followed.
const DEPTH_MAX: usize = 24;
/// How much text is read, in bytes: words far behind are quotations.
const TEXT_BYTES_MAX: usize = 6_000;

/// Fields that hold words.
const MESSAGE_FIELDS: &[&str] = &[
    "message",
    "msg",
    "error",
    "errors",
    "detail",
    "details",
    "error_message",
    "error_msg",
    "errormessage",
    "errormsg",
    "status_msg",
    "description",
    "error_description",
    "raw",
    "body",
    "cause",
    "reason",
    "title",
    "metadata",
    "base_resp",
    "external_model_error",
    "inner_error",
    "innererror",
    "data",
    "response",
    "result",
    "originalmessage",
    "original_message",
    "upstream_error",
    "provider_error",
    "exception",
    "fault",
    "faultstring",
    "choices",
];
/// Fields that hold a code or the name of a type.
const CODE_FIELDS: &[&str] = &[
    "code",
    "type",
    "error_type",
    "error_code",
    "errorcode",
    "errortype",
    "status",
    "status_code",
    "statuscode",
    "__type",
    "name",
    "kind",
    "reason",
    "http_code",
    "http_status",
    "httpstatus",
    "error_name",
];

/// The words, codes and numbers of a refusal.
#[derive(Debug, Default)]
pub(super) struct Digest {
    /// All words: lower case, `_` and `-` as spaces, no quotes.
    pub(super) text: String,
    /// All words in lower case with their numbers as they were written.
    pub(super) plain: String,
    /// All words with nothing but letters and digits, to find names such as `ContextWindowExceededError`.
    pub(super) squeezed: String,
    /// Codes and names of types, nothing but letters and digits.
    pub(super) codes: Vec<String>,
    /// HTTP statuses inside the body.
    pub(super) statuses: Vec<u16>,
    /// The innermost message, for people.
    pub(super) message: String,
    /// A window that has a field of its own.
    pub(super) limit: Option<u64>,
    /// A request's size that has a field of its own.
    pub(super) requested: Option<u64>,
    /// An answer, not an error, that ended since the prompt filled the window.
    pub(super) window_filled: bool,
}

impl Digest {
    pub(super) fn of(body: &str) -> Self {
        let mut collector = Collector::default();
        collector.text(body, 0);
        let mut digest = collector.digest;
        let raw = without_addresses(super::cut(&collector.words, TEXT_BYTES_MAX));
        digest.codes.extend(names_of_errors(&raw));
        digest.plain = raw
            .to_lowercase()
            .chars()
            .map(|c| if c.is_whitespace() { ' ' } else { c })
            .filter(|c| {
                !matches!(c, '`' | '"' | '\'' | '\u{2018}' | '\u{2019}' | '\u{201c}' | '\u{201d}' | '\\')
            })
            .collect();
        digest.text = digest
            .plain
            .replace(['_', '-'], " ")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ")
            // Names of settings that gateways list in every error.
            .replace("context window fallback", "fallback");
        digest.squeezed = squeeze(&digest.plain);
        digest
    }

    /// Whether it says nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.codes.is_empty() && !self.window_filled
    }
}

/// Without web addresses: a link to a page about the context window says nothing about this request.
fn without_addresses(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let start = rest[..at]
            .rfind(|c: char| !c.is_ascii_alphabetic())
            .map_or(0, |before| before + rest[before..].chars().next().map_or(0, char::len_utf8));
        kept.push_str(&rest[..start]);
        let ends = |c: char| c.is_whitespace() || !c.is_ascii() || matches!(c, '"' | '\'' | ')' | '>' | '\\');
        let end = rest[at..].find(ends).map_or(rest.len(), |end| at + end);
        rest = &rest[end..];
    }
    kept.push_str(rest);
    kept
}

/// Names of exceptions that stand in the words: `AccessDeniedException`, `litellm.RateLimitError`.
fn names_of_errors(text: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_alphabetic()) {
        rest = &rest[start..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let (name, behind) = rest.split_at(end);
        let is_camel = name.as_bytes().windows(2).any(|pair| {
            matches!(pair, [first, second] if first.is_ascii_lowercase() && second.is_ascii_uppercase())
        });
        if is_camel && (name.ends_with("Exception") || name.ends_with("Error")) {
            names.push(squeeze(name));
        }
        rest = behind;
    }
    names
}

fn squeeze(text: &str) -> String {
    text.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

#[derive(Default)]
struct Collector {
    digest: Digest,
    words: String,
}

impl Collector {
    /// Text that may be JSON, hold JSON, or be just text.
    fn text(&mut self, text: &str, depth: usize) {
        let text = text.trim();
        if text.is_empty() || depth > DEPTH_MAX {
            return;
        }
        if let Ok(value @ (Value::Object(_) | Value::Array(_) | Value::String(_))) =
            serde_json::from_str(text)
        {
            self.value(&value, depth + 1);
            return;
        }
        if text.starts_with("data:") || text.starts_with("event:") {
            for line in text.lines() {
                if let Some(data) = line.strip_prefix("data:").filter(|data| data.trim() != "[DONE]") {
                    self.text(data, depth + 1);
                }
            }
            return;
        }
        let json = text.find('{').zip(text.rfind('}')).filter(|(start, end)| start < end);
        if let Some((start, end)) = json
            && let Ok(value @ Value::Object(_)) = serde_json::from_str(&text[start..=end])
        {
            self.words(&text[..start]);
            self.value(&value, depth + 1);
            return;
        }
        self.words(text);
    }

    /// Plain words.
    fn words(&mut self, words: &str) {
        let words = without_tags(words);
        let words = words.trim();
        if words.is_empty() {
            return;
        }
        self.digest.statuses.extend(status_in_front(words));
        if self.words.len() < TEXT_BYTES_MAX {
            if !self.words.is_empty() {
                self.words.push_str(". ");
            }
            self.words.push_str(words);
        }
        // The innermost message comes last; a single word there is a name, not a message.
        if words.contains(' ') || self.digest.message.is_empty() {
            self.digest.message = python_message(words).unwrap_or(words).to_owned();
        }
    }

    fn value(&mut self, value: &Value, depth: usize) {
        if depth > DEPTH_MAX {
            return;
        }
        match value {
            Value::String(text) => self.text(text, depth + 1),
            Value::Array(items) => items.iter().take(16).for_each(|item| self.value(item, depth + 1)),
            Value::Object(map) => self.object(map, depth),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn object(&mut self, map: &Map<String, Value>, depth: usize) {
        self.digest.window_filled |= is_cut_off_before_output(map) || names_full_window(map);
        for (field, value) in map {
            let field = field.to_ascii_lowercase();
            if CODE_FIELDS.contains(&field.as_str()) {
                self.code(value);
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
        // Wrappers first, so that the innermost message is the last one.
        for nested in [false, true] {
            for (field, value) in map {
                let is_nested = match value {
                    Value::Object(_) | Value::Array(_) => true,
                    Value::String(text) => text.trim_start().starts_with(['{', '[']),
                    Value::Null | Value::Bool(_) | Value::Number(_) => continue,
                };
                if is_nested == nested && MESSAGE_FIELDS.contains(&field.to_ascii_lowercase().as_str()) {
                    self.value(value, depth + 1);
                }
            }
        }
    }

    fn code(&mut self, value: &Value) {
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
        self.digest.codes.push(squeeze(&text));
    }
}

/// A status in front of a text: "429 …", "HTTP 429: …", "Error code: 429 - …", "status code 429".
fn status_in_front(words: &str) -> Option<u16> {
    let head: String = super::cut(words, 48).to_ascii_lowercase();
    let digits_at = head.find(|c: char| c.is_ascii_digit())?;
    let lead = head[..digits_at].trim_end_matches([' ', ':', '=', '(', '[', '#', '/', '<']);
    let number: String = head[digits_at..].chars().take_while(char::is_ascii_digit).collect();
    let after = head[digits_at + number.len()..].chars().next();
    let named = lead.is_empty()
        || ["http", "code", "status", "error", "status code"].iter().any(|name| lead.ends_with(name));
    if !named
        || number.len() != 3
        || after.is_some_and(|c| matches!(c, '.' | ',' | '-') || c.is_alphanumeric())
    {
        return None;
    }
    number.parse().ok().filter(|status| (400..600).contains(status))
}

/// The message in Python's repr of a dictionary: `{'error': {'message': '…', …`.
fn python_message(text: &str) -> Option<&str> {
    let start = text.find("'message': ")?.checked_add("'message': ".len())?;
    let quote = text[start..].chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let message = &text[start + 1..];
    let ends = [format!("{quote}, '"), format!("{quote}}}")];
    let end = ends.iter().filter_map(|end| message.find(end.as_str())).min()?;
    Some(&message[..end])
}

/// A web page's words.
fn without_tags(text: &str) -> String {
    let lower = super::cut(text, 256).to_ascii_lowercase();
    if !lower.contains("<html") && !lower.contains("<!doctype") {
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
            _ if !in_tag => words.push(c),
            _ => {}
        }
    }
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// An answer that says that the window was full when it ended.
fn names_full_window(map: &Map<String, Value>) -> bool {
    ["finish_reason", "stop_reason"].iter().filter_map(|field| map.get(*field)).filter_map(Value::as_str).any(
        |reason| {
            let reason = squeeze(reason);
            reason.contains("contextwindowexceeded") || reason.contains("contextlengthexceeded")
        },
    )
}

/// An answer that ended for its length with nothing in it: the prompt alone filled the window.
fn is_cut_off_before_output(map: &Map<String, Value>) -> bool {
    let Some([choice, ..]) = map.get("choices").and_then(Value::as_array).map(Vec::as_slice) else {
        return false;
    };
    let is_blank = |value: Option<&Value>| match value {
        None | Some(Value::Null) => true,
        Some(Value::String(text)) => text.is_empty(),
        Some(Value::Array(items)) => items.is_empty(),
        Some(Value::Object(_) | Value::Bool(_) | Value::Number(_)) => false,
    };
    let said = ["message", "delta"].iter().filter_map(|field| choice.get(field)).any(|message| {
        ["content", "tool_calls", "reasoning_content", "reasoning"]
            .iter()
            .any(|field| !is_blank(message.get(field)))
    });
    let output = map.get("usage").and_then(|usage| usage.get("completion_tokens")).and_then(Value::as_u64);
    choice.get("finish_reason").is_some_and(|reason| reason == "length")
        && !said
        && is_blank(choice.get("text"))
        && output.is_none_or(|tokens| tokens <= 1)
}
