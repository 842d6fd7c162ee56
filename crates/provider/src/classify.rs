//! What a provider's refusal means, by rules over its status, codes and words.
//!
//! Invariants: the status decides first (401, 402, 403, 408, 429 and 529 are never a context overflow, even
//! when they quote its words, nor when a gateway wraps them); the rules name no provider; and only what the
//! provider said is read, never what it echoes of the request. An empty body says nothing: 400 becomes `Other`,
//! 413 `PayloadTooLarge` and 429 `RateLimited`, and whether it was an overflow is decided by our own estimate
//! ([`crate::is_empty_body_overflow_candidate`]).

mod digest;
mod sizes;
mod words;

use greenroom_kernel::{Failure, FailureClass};

use self::digest::Digest;
use crate::retry_after::retry_after_in_text_ms;

/// How much of a provider's own words is repeated in a message, in characters.
const MESSAGE_CHARS_MAX: usize = 300;

/// Classifies a refusal.
///
/// `status` is the HTTP status, where it is known; 200 for an error in the place of an answer. `body` is the
/// refusal as it came: JSON of any nesting, text, or nothing. `retry_after_ms` is what the headers ask for; the
/// body's words are read where it is `None`.
pub fn classify(status: Option<u16>, body: &str, retry_after_ms: Option<u64>) -> Failure {
    let digest = Digest::of(body);
    let class = class(status, &digest);
    let (limit, requested) = match class {
        FailureClass::ContextOverflow
        | FailureClass::OutputLimit
        | FailureClass::RequestTooLargeForRateLimit
        | FailureClass::RateLimited => sizes::sizes(&digest),
        FailureClass::PayloadTooLarge
        | FailureClass::Quota
        | FailureClass::Auth
        | FailureClass::Overloaded
        | FailureClass::Timeout
        | FailureClass::Malformed
        | FailureClass::ContentFilter
        | FailureClass::ContextFloor
        | FailureClass::Other => (None, None),
    };
    let retry_after_ms = retry_after_ms.or_else(|| {
        let may_wait =
            matches!(class, FailureClass::RateLimited | FailureClass::Overloaded | FailureClass::Quota);
        may_wait.then(|| retry_after_in_text_ms(body)).flatten()
    });
    let message = message(class, effective_status(status, &digest), &digest, limit, requested);
    Failure { class, message, status, limit, requested, retry_after_ms }
}

/// The status that counts: a gateway's 200, 4xx or 5xx may wrap a status that says more.
fn effective_status(status: Option<u16>, digest: &Digest) -> Option<u16> {
    let decisive = |status: &u16| matches!(status, 401 | 402 | 403 | 408 | 429 | 529);
    match status {
        Some(outer) if decisive(&outer) => Some(outer),
        None | Some(200..=299) => {
            digest.statuses.iter().copied().find(decisive).or(digest.statuses.first().copied()).or(status)
        }
        Some(_) => digest.statuses.iter().copied().find(decisive).or(status),
    }
}

fn class(status: Option<u16>, digest: &Digest) -> FailureClass {
    let effective = effective_status(status, digest);
    let says = |list: &[&str]| words::contains_any(&digest.text, list);
    let code = |list: &[&str]| digest.codes.iter().any(|code| words::contains_any(code, list));
    match effective {
        Some(401 | 407) => return FailureClass::Auth,
        Some(402) => return FailureClass::Quota,
        Some(403) if words::says_filtered(&digest.text) || code(words::CONTENT_FILTER_CODES) => {
            return FailureClass::ContentFilter;
        }
        Some(403) if is_spent(digest) => return FailureClass::Quota,
        Some(403) => return FailureClass::Auth,
        Some(408) => return FailureClass::Timeout,
        Some(429) => return rate_class(digest),
        Some(529) => return FailureClass::Overloaded,
        Some(_) | None => {}
    }
    if digest.is_empty() {
        return class_of_status(effective);
    }
    // A code that says rate limit, quota or key outranks every word.
    if is_spent_by_code(digest) || code(words::RATE_CODES) {
        return rate_class(digest);
    }
    if code(words::AUTH_CODES) {
        return FailureClass::Auth;
    }
    if code(words::CONTENT_FILTER_CODES) {
        return FailureClass::ContentFilter;
    }
    let named_overflow =
        code(words::OVERFLOW_CODES) || words::contains_any(&digest.squeezed, words::OVERFLOW_CODES);
    let negative_room = words::has_negative_room(&digest.plain);
    // What is not there does not come by waiting.
    if !named_overflow && !negative_room && effective != Some(404) {
        if is_spent(digest) || words::says_rate_limit(&digest.text) {
            return rate_class(digest);
        }
        if words::says_refused(&digest.text) {
            return FailureClass::Auth;
        }
        if words::says_filtered(&digest.text) {
            return FailureClass::ContentFilter;
        }
        if says(words::CANCELLED) {
            return FailureClass::Timeout;
        }
        if words::is_output_limit(&digest.text) {
            return FailureClass::OutputLimit;
        }
        if words::is_about_bytes(&digest.text) {
            return FailureClass::PayloadTooLarge;
        }
    }
    // Where no words are known, the numbers may say it; and 413 says it of whatever the words are about.
    let counted = words::may_count_tokens(&digest.text) && sizes::exceed(digest)
        || effective == Some(413) && words::is_about_tokens(&digest.text);
    if named_overflow || negative_room || digest.window_filled || words::is_overflow(&digest.text) || counted
    {
        return FailureClass::ContextOverflow;
    }
    // Waiting does not mend a request that the server cannot read, whatever its status says.
    if says(words::PERMANENT) {
        return FailureClass::Other;
    }
    // These statuses blame the request, whatever the words.
    if !matches!(effective, Some(400 | 404 | 405 | 413 | 415 | 422)) {
        if says(words::TIMED_OUT) {
            return FailureClass::Timeout;
        }
        if says(words::OVERLOADED) || code(words::OVERLOADED_CODES) {
            return FailureClass::Overloaded;
        }
    }
    class_of_status(effective)
}

/// The class of a status alone.
fn class_of_status(status: Option<u16>) -> FailureClass {
    match status {
        Some(413) => FailureClass::PayloadTooLarge,
        Some(504 | 522 | 524) => FailureClass::Timeout,
        Some(500..=599) => FailureClass::Overloaded,
        Some(_) | None => FailureClass::Other,
    }
}

fn is_spent_by_code(digest: &Digest) -> bool {
    digest.codes.iter().any(|code| words::contains_any(code, words::QUOTA_CODES) || words::says_spent(code))
}

/// Whether the money is spent, and not just a limit that waiting lifts.
fn is_spent(digest: &Digest) -> bool {
    is_spent_by_code(digest)
        || (words::says_spent(&digest.text) && !words::contains_any(&digest.text, words::SHORT_TERM))
}

/// Which of the three kinds of "not now" it is.
fn rate_class(digest: &Digest) -> FailureClass {
    let says = |list: &[&str]| words::contains_any(&digest.text, list);
    if is_spent(digest) {
        return FailureClass::Quota;
    }
    if says(&["request too large for", "request is too large for"]) {
        return FailureClass::RequestTooLargeForRateLimit;
    }
    match sizes::sizes(digest) {
        // "Limit 30000, Used 28000, Requested 4000" heals, and so does "current: 120, limit: 100"; "Limit 30000,
        // Requested 30601" does not.
        (Some(limit), Some(requested))
            if requested > limit
                && words::says_rate_limit(&digest.text)
                && says(&["requested "])
                && !says(&["used "]) =>
        {
            FailureClass::RequestTooLargeForRateLimit
        }
        _ => FailureClass::RateLimited,
    }
}

/// One line for a user: what it is, the status, the provider's words, and what to do where that is known.
fn message(
    class: FailureClass,
    status: Option<u16>,
    digest: &Digest,
    limit: Option<u64>,
    requested: Option<u64>,
) -> String {
    let status_text = match status {
        Some(status) if !(200..300).contains(&status) => format!(" ({status})"),
        Some(_) | None => String::new(),
    };
    let said = one_line(&digest.message);
    let colon_said = if said.is_empty() { String::new() } else { format!(": {said}") };
    let unknown_model = words::contains_any(&digest.text, words::UNKNOWN_MODEL);
    match class {
        FailureClass::ContextOverflow => match (requested, limit) {
            (Some(requested), Some(limit)) => {
                format!(
                    "the request ({requested} tokens) exceeds the model's context window ({limit} tokens)"
                )
            }
            (None, Some(limit)) => format!("the request exceeds the model's context window ({limit} tokens)"),
            (_, None) => format!("the request exceeds the model's context window{status_text}{colon_said}"),
        },
        FailureClass::OutputLimit => {
            format!(
                "more output was asked for than the model can give{status_text}{colon_said}; lower the output limit"
            )
        }
        FailureClass::PayloadTooLarge => {
            format!(
                "the request is too large in bytes{status_text}{colon_said}; images and long texts take most"
            )
        }
        FailureClass::RateLimited => format!("the provider's rate limit is reached{status_text}{colon_said}"),
        FailureClass::RequestTooLargeForRateLimit => {
            format!("this one request is larger than the rate limit allows at all{status_text}{colon_said}")
        }
        FailureClass::Quota => format!(
            "no credit is left or a spending limit is reached{status_text}{colon_said}; check the account at the provider"
        ),
        FailureClass::Auth if status == Some(403) => {
            format!("the provider refused access (403){colon_said}; check what the key is allowed to do")
        }
        FailureClass::Auth => {
            format!(
                "the provider refused the key{status_text}{colon_said}; check that the key is set, complete and for this provider"
            )
        }
        FailureClass::Overloaded => format!("the provider is overloaded or failing{status_text}{colon_said}"),
        FailureClass::Timeout => format!("the provider timed out{status_text}{colon_said}"),
        FailureClass::ContentFilter => {
            format!("the provider's content filter refused{status_text}{colon_said}")
        }
        FailureClass::Other if unknown_model => {
            format!("the provider does not know the model{status_text}{colon_said}; check the model's name")
        }
        FailureClass::Other if status == Some(404) => {
            format!(
                "there is nothing at this address (404){colon_said}; check the base URL and the model's name"
            )
        }
        FailureClass::Malformed | FailureClass::ContextFloor | FailureClass::Other => {
            format!("the provider refused the request{status_text}{colon_said}")
        }
    }
}

/// `text` in one line of at most 300 characters.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::new();
    let mut length = 0;
    for (count, word) in text.split_whitespace().enumerate() {
        if count > 0 {
            line.push(' ');
            length += 1;
        }
        for c in word.chars().filter(|c| !c.is_control()) {
            if length >= MESSAGE_CHARS_MAX {
                line.push('…');
                return line;
            }
            line.push(c);
            length += 1;
        }
    }
    line
}

/// At most `bytes_max` bytes of `text`, cut between characters.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = bytes_max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests;
