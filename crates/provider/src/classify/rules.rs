//! The class of a refusal: an ordered table of rules; the first rule that applies decides.
//!
//! Invariants: the order of [`RULES`] is the specification, and the code walks that one table; the last rule
//! applies to everything; no rule names a provider; and a status that decides by itself ([`DECISIVE_STATUSES`]) is
//! never overruled by the words of a context overflow.

use greenroom_kernel::FailureClass::{
    self, Auth, ContentFilter, ContextOverflow, ImageRefused, Loading, OpaqueRefused, Other, OutputLimit,
    Overloaded, PayloadTooLarge, Quota, RateLimited, RequestTooLargeForRateLimit, Timeout,
};

use super::digest::Digest;
use super::{overflow_words, sizes, words};

/// A refusal as the rules see it.
pub(super) struct Refusal<'a> {
    /// The HTTP status that counts: see [`Refusal::new`].
    pub(super) status: Option<u16>,
    /// The words, codes and numbers of the body.
    pub(super) digest: &'a Digest,
}

/// One rule: a condition, and the class of the refusals that meet it.
pub(super) struct Rule {
    /// What the rule recognises, for the log and the tests.
    pub(super) name: &'static str,
    /// Whether the rule decides this refusal, provided that no earlier one does.
    pub(super) applies: fn(&Refusal<'_>) -> bool,
    verdict: Verdict,
}

/// What a rule concludes.
enum Verdict {
    /// The class itself.
    Class(FailureClass),
    /// "Not now": [`Refusal::class_of_limit`] tells a used-up quota from a rate limit.
    Limit,
    /// The class that the status has by itself: [`Refusal::class_of_status`].
    Status,
}

/// HTTP statuses that decide the class for any body, even if a gateway wraps them in another status.
const DECISIVE_STATUSES: &[u16] = &[401, 402, 403, 407, 408, 429, 529];

/// All rules, in order of precedence.
pub(super) const RULES: &[Rule] = &[
    // 1. Statuses that decide, even if the body quotes another error.
    rule("status 401 or 407", Verdict::Class(Auth), |refusal| refusal.has_status(&[401, 407])),
    rule("status 402", Verdict::Class(Quota), |refusal| refusal.has_status(&[402])),
    rule("status 403 from a content filter", Verdict::Class(ContentFilter), |refusal| {
        refusal.has_status(&[403])
            && (words::is_content_filtered(&refusal.digest.text)
                || refusal.has_code(words::CONTENT_FILTER_CODES))
    }),
    rule("status 403 for a used-up quota", Verdict::Class(Quota), |refusal| {
        refusal.has_status(&[403]) && refusal.is_quota_used_up()
    }),
    rule("status 403", Verdict::Class(Auth), |refusal| refusal.has_status(&[403])),
    rule("status 408", Verdict::Class(Timeout), |refusal| refusal.has_status(&[408])),
    rule("status 429", Verdict::Limit, |refusal| refusal.has_status(&[429])),
    rule("status 529", Verdict::Class(Overloaded), |refusal| refusal.has_status(&[529])),
    // 2. For a body without content, the status decides.
    rule("empty body", Verdict::Status, |refusal| refusal.digest.is_empty()),
    // 3. Error codes outrank the message's words.
    rule("quota or rate limit code", Verdict::Limit, |refusal| {
        refusal.has_quota_code() || refusal.has_code(words::RATE_CODES)
    }),
    rule("authentication code", Verdict::Class(Auth), |refusal| refusal.has_code(words::AUTH_CODES)),
    rule("content filter code", Verdict::Class(ContentFilter), |refusal| {
        refusal.has_code(words::CONTENT_FILTER_CODES)
    }),
    // 4. Words for a refusal that may quote the vocabulary of an overflow but is not one.
    rule("loading words", Verdict::Class(Loading), |refusal| {
        refusal.may_be_no_overflow() && !refusal.blames_request() && words::is_loading(&refusal.digest.text)
    }),
    rule("refusal of opaque data", Verdict::Class(OpaqueRefused), |refusal| {
        refusal.may_be_no_overflow()
            && (refusal.has_code(words::OPAQUE_CODES) || words::is_opaque_refused(&refusal.digest.text))
    }),
    rule("quota or rate limit words", Verdict::Limit, |refusal| {
        refusal.may_be_no_overflow()
            && (refusal.is_quota_used_up()
                || words::is_rate_limit(&refusal.digest.text)
                // A server that fails may say when it expects to be back.
                || (!refusal.blames_server() && words::asks_to_wait(&refusal.digest.text)))
    }),
    rule("authentication words", Verdict::Class(Auth), |refusal| {
        refusal.may_be_no_overflow() && words::is_authentication(&refusal.digest.text)
    }),
    rule("content filter words", Verdict::Class(ContentFilter), |refusal| {
        refusal.may_be_no_overflow() && words::is_content_filtered(&refusal.digest.text)
    }),
    rule("cancellation words", Verdict::Class(Timeout), |refusal| {
        refusal.may_be_no_overflow() && refusal.says(words::CANCELLED)
    }),
    // A larger batch, configured at server start, helps here. No size in such a message is the model's
    // window.
    rule("batch size words", Verdict::Class(Other), |refusal| refusal.is_about_batch_size()),
    rule("output limit words", Verdict::Class(OutputLimit), |refusal| {
        refusal.may_be_no_overflow() && words::is_output_limit(&refusal.digest.text)
    }),
    rule("payload size words", Verdict::Class(PayloadTooLarge), |refusal| {
        refusal.may_be_no_overflow() && words::is_payload_size(&refusal.digest.text)
    }),
    // 5. The overflow itself.
    rule("context overflow", Verdict::Class(ContextOverflow), |refusal| refusal.is_context_overflow()),
    // 6. An image that the server cannot read, or a model that sees none.
    rule("refusal of an image", Verdict::Class(ImageRefused), |refusal| {
        let text = &refusal.digest.text;
        refusal.has_code(words::IMAGE_CODES)
            || words::has_no_vision(text)
            || (!refusal.blames_server() && words::is_image_refused(text))
    }),
    // 7. A request that can never succeed is not an overload, even if its status says so.
    rule("permanent fault of the request", Verdict::Class(Other), |refusal| refusal.says(words::PERMANENT)),
    // 8. Words for a fault of the server, unless the status blames the request.
    rule("timeout words", Verdict::Class(Timeout), |refusal| {
        !refusal.blames_request() && refusal.says(words::TIMED_OUT)
    }),
    rule("overload words or code", Verdict::Class(Overloaded), |refusal| {
        !refusal.blames_request()
            && (refusal.says(words::OVERLOADED) || refusal.has_code(words::OVERLOADED_CODES))
    }),
    // 9. Nothing was recognised.
    rule("status alone", Verdict::Status, |_| true),
];

const fn rule(name: &'static str, verdict: Verdict, applies: fn(&Refusal<'_>) -> bool) -> Rule {
    Rule { name, applies, verdict }
}

impl<'a> Refusal<'a> {
    /// Creates a refusal that came with the HTTP status `status`.
    ///
    /// The body may name other statuses, because a gateway wraps an upstream's refusal in its own 200, 4xx or
    /// 5xx. A status that decides by itself counts, the outer one first. Otherwise the outer status counts,
    /// unless it is missing or means success.
    pub(super) fn new(status: Option<u16>, digest: &'a Digest) -> Self {
        let decides = |status: &u16| DECISIVE_STATUSES.contains(status);
        let inner = || digest.statuses.iter().copied();
        let fails = status.filter(|status| !(200..300).contains(status));
        let effective = status
            .filter(decides)
            .or_else(|| inner().find(decides))
            .or(fails)
            .or_else(|| inner().next())
            .or(status);
        Self { status: effective, digest }
    }

    /// Returns the class of the refusal, as concluded by the first rule that applies.
    pub(super) fn class(&self) -> FailureClass {
        let rule = self.deciding_rule();
        let class = match rule.verdict {
            Verdict::Class(class) => class,
            Verdict::Limit => self.class_of_limit(),
            Verdict::Status => self.class_of_status(),
        };
        tracing::debug!(rule = rule.name, status = self.status, class = class.as_str(), "refusal classified");
        class
    }

    /// Returns the first rule that applies.
    pub(super) fn deciding_rule(&self) -> &'static Rule {
        RULES.iter().find(|rule| (rule.applies)(self)).expect("the last rule applies to everything")
    }

    fn has_status(&self, statuses: &[u16]) -> bool {
        self.status.is_some_and(|status| statuses.contains(&status))
    }

    fn has_code(&self, list: &[&str]) -> bool {
        self.digest.codes.iter().any(|code| words::contains_any(code, list))
    }

    fn says(&self, list: &[&str]) -> bool {
        words::contains_any(&self.digest.text, list)
    }

    fn has_quota_code(&self) -> bool {
        self.has_code(words::QUOTA_CODES) || self.digest.codes.iter().any(|code| words::is_quota(code))
    }

    /// Whether an allowance for a day is used up. The wait that such a refusal names is that of a shorter limit.
    pub(super) fn is_daily(&self) -> bool {
        self.has_code(words::DAILY_CODES) || words::is_daily(&self.digest.text)
    }

    /// Whether the account has no money or allowance left, as opposed to a limit that waiting lifts.
    fn is_quota_used_up(&self) -> bool {
        self.has_quota_code()
            || self.is_daily()
            || (words::is_quota(&self.digest.text)
                && !self.says(words::SHORT_TERM)
                && !self.has_code(words::MINUTE_CODES))
    }

    /// Whether the error is named as a context overflow, by a code or by an exception's name.
    fn is_named_overflow(&self) -> bool {
        self.has_code(words::OVERFLOW_CODES)
            || words::contains_any(&self.digest.alphanumeric, words::OVERFLOW_CODES)
    }

    /// Whether the words may be about something other than an overflow: the overflow is not named as such, and
    /// the status is not 404, where neither waiting nor another key would make the missing thing appear.
    fn may_be_no_overflow(&self) -> bool {
        !self.is_named_overflow()
            && !overflow_words::has_negative_output_limit(&self.digest.lowercase)
            && self.status != Some(404)
    }

    /// Whether the request is larger than what the server processes in one batch, whatever the model's window is.
    pub(super) fn is_about_batch_size(&self) -> bool {
        !self.has_code(words::OVERFLOW_CODES) && words::is_batch_size(&self.digest.text)
    }

    /// Whether the request is larger than the context window, by name, by words or by the numbers.
    fn is_context_overflow(&self) -> bool {
        self.is_named_overflow()
            || overflow_words::has_negative_output_limit(&self.digest.lowercase)
            || self.digest.is_window_full
            || overflow_words::is_context_overflow(&self.digest.text)
            // With unknown words the numbers may still show it.
            || (words::may_count_tokens(&self.digest.text) && sizes::requested_exceeds_limit(self.digest))
            // A 413 means "too large" itself; the words need only say of what.
            || (self.has_status(&[413]) && words::is_about_tokens(&self.digest.text))
    }

    /// Whether the status blames the request and not the server.
    fn blames_request(&self) -> bool {
        self.has_status(&[400, 404, 405, 413, 415, 422])
    }

    /// Whether the status or a code blames the request.
    pub(super) fn names_fault_of_request(&self) -> bool {
        self.blames_request() || self.has_code(words::REQUEST_CODES)
    }

    /// Whether the status blames the server.
    fn blames_server(&self) -> bool {
        matches!(self.status, Some(500..=599))
    }

    /// Returns which kind of "not now" it is: a used-up quota, a rate limit, or a request that no rate limit
    /// would ever admit.
    fn class_of_limit(&self) -> FailureClass {
        if self.is_quota_used_up() {
            return Quota;
        }
        if self.says(&["request too large for", "request is too large for"]) {
            return RequestTooLargeForRateLimit;
        }
        // Waiting helps with "Limit 30000, Used 28000, Requested 4000" and with "current: 120, limit: 100". It does
        // not help with "Limit 30000, Requested 30601".
        let asks_for_too_much = self.says(&["requested "])
            && !self.says(&["used "])
            && words::is_rate_limit(&self.digest.text)
            && sizes::sizes(self.digest).exceed_limit();
        if asks_for_too_much { RequestTooLargeForRateLimit } else { RateLimited }
    }

    /// Returns the class of the status alone.
    fn class_of_status(&self) -> FailureClass {
        match self.status {
            Some(413) => PayloadTooLarge,
            Some(504 | 522 | 524) => Timeout,
            Some(500..=599) => Overloaded,
            Some(_) | None => Other,
        }
    }
}

#[cfg(test)]
mod tests;
