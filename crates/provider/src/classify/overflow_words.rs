//! The words with which providers refuse a request because it exceeds the context window.
//!
//! Invariants: no list names a provider; texts are `Digest::text` or `Digest::lowercase`.

use super::words::{CONTEXT, contains_any, is_about_tokens, up_to};

/// Phrases that mean a context overflow and nothing else.
const UNAMBIGUOUS: &[&str] = &[
    "context shift", "context overflow", "context exceeded", "out of context", "not enough context",
    "too much context", "cannot truncate",
];

/// Whether `text` says that the request is larger than the context window.
pub(super) fn is_context_overflow(text: &str) -> bool {
    if contains_any(
        text,
        &[
            "string too long", "array too long", "minimum token", "input should be greater",
            "input should be less", "must be greater", "greater than or equal",
        ],
    ) {
        return false;
    }
    exceeds_context(text)
        || input_too_long(text)
        || too_many_tokens(text)
        || is_overflow_in_chinese(text)
        || contains_any(text, UNAMBIGUOUS)
        || is_placeholder_for_empty_body(text)
}

/// Whether `text` names the context window and says that it is exceeded.
fn exceeds_context(text: &str) -> bool {
    const MORE: &[&str] = &[
        "exceed", "too long", "too large", "too big", "too many", "longer than", "greater than",
        "larger than", "bigger than", "more than", "less than", "smaller than", "overflow", "beyond",
        "surpass", "at most", "is only", "of only", "just ", "reached", " fit", "reduce", "shorten",
        "not possible", "<=", " > ", "maximum context length is", "maximum prompt length is", "is full",
        "ran out", "run out", "cannot be processed", "over the", "limited to", "only supports",
    ];
    contains_any(text, CONTEXT) && contains_any(text, MORE)
}

/// Whether `text` names the prompt and says, in the same sentence and soon after, that it is too long.
fn input_too_long(text: &str) -> bool {
    const INPUT: &[&str] = &[
        "prompt", "input", "messages", "conversation", "chat history", "transcript", "message you submitted",
        "your message",
    ];
    const TOO_LONG: &[&str] = &[
        "exceed", "too long", "longer than", "larger than", "is greater than", "is more than", "too large",
        "too big", "overflow", "over the limit", "surpass", "should be [1",
    ];
    const OTHER_NOUNS: &[&str] = &[
        "image", "audio", "video", "file", "document", "temperature", "top p", "top k", "penalty", "logprob",
        ".name", "tool name", "function name", "description", "metadata", "schema", "stop sequence",
    ];
    const DISTANCE_BYTES_MAX: usize = 90;
    if contains_any(
        text,
        &[
            "length of the messages", "length of the prompt", "length of the input", "length of your prompt",
            "length of messages",
        ],
    ) && text.contains("reduce")
    {
        return true;
    }
    // Media, parameters and small fields have limits of their own.
    if contains_any(text, OTHER_NOUNS) && !is_about_tokens(text) {
        return false;
    }
    INPUT.iter().any(|noun| {
        text.match_indices(noun).any(|(at, _)| {
            let rest = up_to(&text[at..], DISTANCE_BYTES_MAX);
            let sentence = rest.split(". ").next().unwrap_or(rest);
            contains_any(sentence, TOO_LONG)
        })
    })
}

/// Whether `text` says that there are more tokens than the model accepts.
fn too_many_tokens(text: &str) -> bool {
    const MORE: &[&str] = &[
        "exceed", "longer than", "larger than", "more than", "greater than", "only supports",
        "must have less than", "must be <=",
    ];
    const LIMIT: &[&str] = &["maximum", "max ", "limit", "allowed", "supports up to", "less than", "<="];
    if contains_any(text, &["budget", "not enough", "notenough"]) {
        return false;
    }
    (contains_any(
        text,
        &["too many tokens", "too many input tokens", "too many prompt tokens", "tokens too long"],
    ) && !text.contains("processed"))
        || (text.contains("token") && contains_any(text, MORE) && contains_any(text, LIMIT))
        || (text.contains("max tokens of") && text.contains("exceed"))
}

/// Whether `text` says in Chinese that the length, the context or the input exceeds a limit.
fn is_overflow_in_chinese(text: &str) -> bool {
    contains_any(text, &["超过", "超出", "超长", "过长", "太长", "超限", "压缩上下文"])
        && contains_any(text, &["长度", "上下文", "token", "输入", "对话", "prompt", "超长"])
}

/// Whether `lowercase` names a negative output limit. No client requests one: the server subtracted the
/// prompt from the window. A limit of -1 does not count, because some clients send it for "no limit".
pub(super) fn has_negative_output_limit(lowercase: &str) -> bool {
    const NAMES: &[&str] = &["max_tokens", "max_completion_tokens", "max_new_tokens", "max_output_tokens"];
    const DISTANCE_BYTES_MAX: usize = 60;
    NAMES.iter().flat_map(|name| lowercase.match_indices(name)).any(|(at, _)| {
        let near = up_to(&lowercase[at..], DISTANCE_BYTES_MAX);
        near.match_indices('-').any(|(sign, _)| {
            let is_minus = near[..sign].ends_with([' ', '(', '=', ':']);
            is_minus && near[sign + 1..].chars().take_while(char::is_ascii_digit).count() > 1
        })
    })
}

/// Whether `text` is a placeholder of a client library or a gateway for the empty body of a 400 or 413.
fn is_placeholder_for_empty_body(text: &str) -> bool {
    let reason = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ' || c == ':');
    let has_no_body = text.ends_with("(no body)") && (text.starts_with("400") || text.starts_with("413"));
    has_no_body || reason == "content too large" || reason == "content too large."
}
