//! Classifies a provider's refusal by its status, its error codes and its words.
//!
//! The steps: `digest` extracts what the provider said from the body, `rules` finds the class with the word lists of
//! `words`, and `sizes` reads the limit and the request's size out of the message.
//!
//! Invariants: a body of any length and content is classified without a panic; only what the provider said is
//! read, never what it echoes of the request; and a message is one line. A refusal with an empty body is classified
//! by its status alone: whether it was a context overflow is decided by our own estimate of the request's size
//! (`is_empty_body_overflow_candidate`).

mod digest;
mod overflow_words;
mod rules;
mod sizes;
mod words;

use greenroom_kernel::text::{first_chars, joined_words};
use greenroom_kernel::{AssistantMessage, Failure, FailureClass, StopReason};

use self::digest::Digest;
use self::rules::Refusal;
use self::sizes::Sizes;
use crate::retry_after::retry_after_in_text_ms;

/// How much of the provider's message is quoted, in characters.
const QUOTED_CHARS_MAX: usize = 300;

/// Classifies a refusal.
///
/// `status` is the HTTP status, or `None` if it is not known; an error inside a stream has status 200. `body`
/// is the body as received: JSON of any nesting, plain text, or nothing. `retry_after_ms` is the wait that
/// the headers request, in milliseconds; if it is `None`, the wait is read from the body.
pub fn classify(status: Option<u16>, body: &str, retry_after_ms: Option<u64>) -> Failure {
    let digest = Digest::of(body);
    let refusal = Refusal::new(status, &digest);
    let class = refusal.class();
    #[expect(clippy::wildcard_enum_match_arm, reason = "only sizes cause the refusals above")]
    let Sizes { limit, requested } = match class {
        // Rate limits also count requests and connections.
        FailureClass::RateLimited if !words::may_count_tokens(&digest.text) => Sizes::default(),
        FailureClass::ContextOverflow
        | FailureClass::OutputLimit
        | FailureClass::RequestTooLargeForRateLimit
        | FailureClass::RateLimited => sizes::sizes(&digest),
        _ => Sizes::default(),
    };
    let retry_after_ms = retry_after_ms.or_else(|| {
        let may_wait = matches!(
            class,
            FailureClass::RateLimited
                | FailureClass::Overloaded
                | FailureClass::Loading
                | FailureClass::Quota
        );
        (may_wait && !(class == FailureClass::Quota && refusal.is_daily()))
            .then(|| retry_after_in_text_ms(body))
            .flatten()
    });
    let message = message(class, &refusal, limit, requested);
    Failure { class, message, status, limit, requested, retry_after_ms }
}

/// Classifies an answer that its provider did not finish ([`StopReason::is_partial`]); `None` if it is whole.
///
/// The words of [`AssistantMessage::error`] decide like those of an error inside a stream; without a class of
/// their own, the call may be repeated.
pub fn classify_answer(answer: &AssistantMessage) -> Option<Failure> {
    if answer.is_whole() {
        return None;
    }
    let said = answer.error.as_deref().unwrap_or_default();
    let failure = classify(Some(200), said, None);
    if !said.trim().is_empty() && (failure.class != FailureClass::Other || blames_request(said)) {
        return Some(Failure { status: None, ..failure });
    }
    let how = if answer.stop == StopReason::Aborted {
        "broke off the answer"
    } else {
        "failed in the middle of the answer"
    };
    let quoted = one_line(said);
    let colon = if quoted.is_empty() { "" } else { ": " };
    Some(Failure::new(FailureClass::Overloaded, format!("the provider {how}{colon}{quoted}")))
}

/// Whether an error in place of an answer says that the request is at fault, so that asking again is of no use.
pub(crate) fn blames_request(body: &str) -> bool {
    Refusal::new(Some(200), &Digest::of(body)).names_fault_of_request()
}

/// Returns one line for the user: what happened, the status, the provider's own words, and advice if there is
/// any.
fn message(class: FailureClass, refusal: &Refusal<'_>, limit: Option<u64>, requested: Option<u64>) -> String {
    let status = refusal.status;
    let status_text = match status {
        Some(status) if !(200..300).contains(&status) => format!(" ({status})"),
        Some(_) | None => String::new(),
    };
    let quoted = one_line(&refusal.digest.message);
    // Advice may follow; an ellipsis is kept.
    let quoted = quoted.strip_suffix('.').filter(|text| !text.ends_with('.')).unwrap_or(&quoted);
    let colon_quoted = if quoted.is_empty() { String::new() } else { format!(": {quoted}") };
    let is_unknown_model = words::contains_any(&refusal.digest.text, words::UNKNOWN_MODEL);
    match class {
        FailureClass::ContextOverflow => match (requested, limit) {
            (Some(requested), Some(limit)) => {
                format!(
                    "the request ({requested} tokens) exceeds the model's context window ({limit} tokens)"
                )
            }
            (None, Some(limit)) => format!("the request exceeds the model's context window ({limit} tokens)"),
            (_, None) => format!("the request exceeds the model's context window{status_text}{colon_quoted}"),
        },
        FailureClass::OutputLimit => {
            format!(
                "more output was requested than the model can produce{status_text}{colon_quoted}; lower the output limit"
            )
        }
        FailureClass::PayloadTooLarge => {
            format!(
                "the request is too large in bytes{status_text}{colon_quoted}; images and long texts take most"
            )
        }
        FailureClass::RateLimited => {
            format!("the provider's rate limit is reached{status_text}{colon_quoted}")
        }
        FailureClass::RequestTooLargeForRateLimit => {
            format!("this one request is larger than the rate limit allows at all{status_text}{colon_quoted}")
        }
        FailureClass::Quota => format!(
            "no credit is left or a spending limit is reached{status_text}{colon_quoted}; check the account at the provider"
        ),
        FailureClass::Auth if status == Some(403) => {
            format!("the provider refused access (403){colon_quoted}; check what the key is allowed to do")
        }
        FailureClass::Auth => {
            format!(
                "the provider refused the key{status_text}{colon_quoted}; check that the key is set, complete and for this provider"
            )
        }
        FailureClass::Overloaded => {
            format!("the provider is overloaded or failing{status_text}{colon_quoted}")
        }
        FailureClass::Loading => format!("the server is loading its model{status_text}{colon_quoted}"),
        FailureClass::Timeout => format!("the provider timed out{status_text}{colon_quoted}"),
        FailureClass::ContentFilter => {
            format!("the provider's content filter refused{status_text}{colon_quoted}")
        }
        FailureClass::OpaqueRefused => format!(
            "the provider refused content that it sent itself earlier in the conversation{status_text}{colon_quoted}"
        ),
        FailureClass::ImageRefused => format!("the provider refused an image{status_text}{colon_quoted}"),
        FailureClass::Other if refusal.is_about_batch_size() => {
            format!(
                "the server cannot process the request in one batch{status_text}{colon_quoted}; raise the server's batch size (`-ub` or `--ubatch-size` on llama-server)"
            )
        }
        FailureClass::Other if is_unknown_model => {
            format!("the provider does not know the model{status_text}{colon_quoted}; check the model's name")
        }
        FailureClass::Other if status == Some(404) => {
            format!(
                "there is nothing at this address (404){colon_quoted}; check the base URL and the model's name"
            )
        }
        FailureClass::Malformed | FailureClass::ContextFloor | FailureClass::Other | _ => {
            format!("the provider refused the request{status_text}{colon_quoted}")
        }
    }
}

/// Returns `text` as one line of at most [`QUOTED_CHARS_MAX`] characters, without control characters.
pub(crate) fn one_line(text: &str) -> String {
    first_chars(&joined_words(text).replace(char::is_control, ""), QUOTED_CHARS_MAX)
}

#[cfg(test)]
mod tests;
