//! The words and error codes that distinguish the classes, and predicates over them.
//!
//! Invariants: no list names a provider. Phrases are compared with `Digest::text` (lower case, `_` and `-` as spaces, no quotation marks), codes
//! with `Digest::codes` (lower case letters and digits only). A phrase that starts or ends with a space matches only
//! at a word boundary.

/// Codes of a context overflow.
pub(super) const OVERFLOW_CODES: &[&str] = &[
    "contextlengthexceeded", "contextwindowexceeded", "contextsizeexceeded", "contextlimitexceeded",
    "exceedcontextsize", "exceededcontextwindow", "exceededcontextlength", "maxcontextlengthexceeded",
    "contextoverflow", "prompttoolong", "inputtoolong", "tokenstoolong", "maxprompttokensexceeded",
    "inputtokensexceeded", "tokenslimitreached", "toomanyinputtokens", "promptlengthexceeded",
    "inputlengthexceeded", "contexttoolong", "modelcontextwindow",
];
/// Codes of a rate limit.
pub(super) const RATE_CODES: &[&str] = &[
    "ratelimit", "throttl", "toomanyrequests", "resourceexhausted", "requestlimit", "quotaexceeded",
    "tpmexceeded", "rpmexceeded", "slowdown",
];
/// Codes of a used-up quota.
pub(super) const QUOTA_CODES: &[&str] = &[
    "billing", "creditbalance", "overdue", "arrearage", "paymentrequired", "spendlimit", "budgetexceeded",
    "usagelimitreached", "quotaexhausted",
];
/// The names of quotas for a day: waiting for as long as the refusal says does not help.
pub(super) const DAILY_CODES: &[&str] = &["perday"];
/// The names of quotas for a minute, which refusals name although their words are about the plan.
pub(super) const MINUTE_CODES: &[&str] = &["perminute"];
/// Codes of a missing, wrong or unauthorised key.
pub(super) const AUTH_CODES: &[&str] = &[
    "authentication", "invalidapikey", "permissionerror", "permissiondenied", "unauthorized",
    "unauthenticated", "accessdenied", "authfail", "autherror", "unrecognizedclient",
];
/// Codes of a content filter.
pub(super) const CONTENT_FILTER_CODES: &[&str] = &[
    "contentfilter", "contentpolicy", "responsibleai", "datainspection", "moderation", "safety",
    "promptblocked", "sensitivecontent",
];
/// Codes of a refusal of signed or encrypted content that the provider sent itself.
pub(super) const OPAQUE_CODES: &[&str] = &[
    "invalidencryptedcontent", "compactionsignatureinvalid", "compactioncontentmismatch",
    "compactionblockmisplaced",
];
/// Codes of a fault of the request.
pub(super) const REQUEST_CODES: &[&str] = &[
    "invalidrequest", "invalidargument", "invalidvalue", "invalidimage", "invalidbase64", "imageparse",
    "imagetoo", "badrequest", "validation", "failedprecondition", "unsupported",
];
/// Codes of an overloaded or failing server.
pub(super) const OVERLOADED_CODES: &[&str] = &[
    "overloaded", "servererror", "unavailable", "internalerror", "apierror", "internalservererror",
    "internal", "capacityexceeded", "streamerror",
];

/// Whether a text refuses signed or encrypted content that the provider sent itself.
pub(super) fn is_opaque_refused(text: &str) -> bool {
    let has = |phrase: &str| text.contains(phrase);
    let is_bad = || {
        has("invalid") || has("not valid") || has("could not be verified") || has("could not be decrypted")
    };
    ((has("encrypted content") || has("thought signature")) && is_bad())
        || (has("signature") && has("thinking") && is_bad())
        || has("bound to a different conversation")
        || (has("redacted thinking") && has("cannot be modified"))
        // A reasoning item without the item that followed it, or the reverse.
        || (has("without its required") && has("reasoning"))
}

/// Codes for an image that cannot be read.
pub(super) const IMAGE_CODES: &[&str] = &[
    "imageparseerror", "invalidbase64image", "invalidimage", "invalidimageformat", "invalidimageurl",
    "unsupportedimagemediatype",
];

/// Whether a text says that the model sees no images.
pub(super) fn has_no_vision(text: &str) -> bool {
    let has = |phrase: &str| text.contains(phrase);
    let is_about_images = has("image") || has("vision") || has("multimodal");
    let is_lacking = has("not support")
        || has("only supported by certain models")
        || has("that support image")
        || has("not a multimodal")
        || has("missing data required for image");
    is_about_images && is_lacking
}

/// Whether a text says that an image cannot be read.
pub(super) fn is_image_refused(text: &str) -> bool {
    let has = |phrase: &str| text.contains(phrase);
    let is_unreadable = has("invalid image")
        || has("image is not valid")
        || has("valid image")
        || has("unsupported image")
        || has("corrupt")
        || ["could not", "cannot", "unable to", "failed to"].iter().any(|cannot| {
            ["process", "decode", "load", "read", "parse", "identify", "open"]
                .iter()
                .any(|verb| has(&format!("{cannot} {verb}")) || has(&format!("{cannot} be {verb}")))
        });
    has("image") && is_unreadable
}

/// Phrases for a used-up quota: credit, balance or spending limit.
const QUOTA: &[&str] = &[
    "credit balance", "exceeded your current quota", "billing", "spend limit", "spending limit",
    "spending cap", "usage limits", "usage limit", "payment required", "key limit exceeded",
    "can only afford", "more credits", "out of credits", "no credits", "run out of credit", "recharge",
    "top up", "overdue", "arrearage", "good standing", "budget has been exceeded", "exceeded budget",
    "budget exceeded", "over budget", "monthly limit", "allocated quota exceeded", "free tier limit",
    "free tier only", "monthly quota", "余额", "欠费", "extra usage", "daily free allocation",
];
/// Phrases for a limit that waiting lifts, in messages that otherwise sound like a used-up quota.
pub(super) const SHORT_TERM: &[&str] = &[
    "per minute", "perminute", "per min", "per second", "per hour", "retry in", "try again in", "(tpm)",
    "(rpm)",
];
/// Phrases for a missing, wrong or unauthorised key.
const AUTH: &[&str] = &[
    "api key", "apikey", "unauthorized", "unauthenticated", "authentication", "permission denied",
    "not authorized", "access denied", "invalid token", "token expired", "expired token",
    "invalid credentials", "security token",
];
/// Phrases for a content filter.
const CONTENT_FILTER: &[&str] = &[
    "content management policy", "content policy", "content filter", "safety system", "was flagged",
    "been flagged", "moderation", "inappropriate content", "usage guidelines", "sensitive content",
    "sensitive information", "new sensitive", "prohibited content", "usage policies", "safety reasons",
    "敏感", "不安全",
];
/// Phrases for a call that was cancelled. Some contain "context exceeded", and are about another kind of context.
pub(super) const CANCELLED: &[&str] = &[
    "context deadline exceeded", "context canceled", "context cancelled", "deadline exceeded",
    "operation was cancelled",
];
/// Phrases for a timeout or a broken connection.
pub(super) const TIMED_OUT: &[&str] = &[
    "timed out", "timeout", "time out", "took too long", "connection reset", "econnreset", "econnrefused",
    "connection refused", "closed connection", "connection closed", "disconnected", "socket hang up",
    "broken pipe", "connection error", "network error",
];
/// Phrases for an overloaded or failing server.
pub(super) const OVERLOADED: &[&str] = &[
    "overloaded", "over capacity", "at capacity", "capacity exceeded", "temporarily unavailable",
    "currently unavailable", "service unavailable", "internal server error", "server error",
    "internal error", "unexpected error", "bad gateway", "high demand", "no healthy upstream",
    "an error occurred while processing",
];
/// Phrases for a model that the provider does not have.
pub(super) const UNKNOWN_MODEL: &[&str] = &[
    "model not found",
    "model does not exist",
    "unknown model",
    "no such model",
    "model not exist",
    "invalid model",
    "is not a valid model",
    "no endpoints found",
    "does not exist or you do not have access",
    "modelnotfound",
];
/// Phrases for a request that fails every time, even if the status blames the server.
pub(super) const PERMANENT: &[&str] = &[
    "failed to parse", "parse error", "invalid json", "json decode", "model not found", "unknown model",
    "no such model", "is not a valid model", "does not exist", "more system memory", "syntax error",
    "invalid params", "unsupported", "not supported", "does not support", " requires ",
];

/// Whether `text` contains a phrase of `list`.
pub(super) fn contains_any(text: &str, list: &[&str]) -> bool {
    list.iter().any(|word| text.contains(word))
}

/// Whether a message or a code says that a quota or the credit is used up.
pub(super) fn is_quota(text: &str) -> bool {
    contains_any(text, QUOTA)
        || (contains_any(text, &["insufficient", "not enough", "notenough"])
            && contains_any(text, &["balance", "fund", "credit", "quota"]))
}

/// Whether `text` is about the key, or about the state of the account that it belongs to.
pub(super) fn is_authentication(text: &str) -> bool {
    const HOLDERS: &[&str] = &["account", "organization", "credential", "access token"];
    const STATES: &[&str] =
        &["disabled", "deactivated", "suspended", " locked", "revoked", "expired", "no longer valid"];
    contains_any(text, AUTH) || (contains_any(text, HOLDERS) && contains_any(text, STATES))
}

/// Whether `text` says that a content filter refused the request.
pub(super) fn is_content_filtered(text: &str) -> bool {
    contains_any(text, CONTENT_FILTER)
        || (text.contains(" risk") && contains_any(text, &["content", "rejected", "flagged"]))
}

/// Whether `text` is about an allowance for a day that is used up, without a time after which there is a new one.
pub(super) fn is_daily(text: &str) -> bool {
    text.contains("per day") && !contains_any(text, SHORT_TERM)
}

/// Whether `text` asks to wait, without the reason.
pub(super) fn asks_to_wait(text: &str) -> bool {
    contains_any(text, &["please wait", "try again in", "retry in", "retry after"])
}

/// Whether `text` is about a limit per unit of time.
pub(super) fn is_rate_limit(text: &str) -> bool {
    const RATE: &[&str] = &[
        "rate limit", "ratelimit", "too many requests", "request rate", "request limit reached",
        "request limit exceeded", "frequency limit", "per minute", "perminute", "per min", "per day",
        "perday", "per hour", "per second", "per month", "per week", "daily", "weekly", "monthly", "hourly",
        "(tpm)", "(rpm)", "(tpd)", "tpm limit", "rpm limit", "tpm rate", "throttl", "quota",
        "resource exhausted", "requests per", "concurrency", "concurrent", "限流", "频率", "并发",
    ];
    contains_any(text, RATE)
}

/// Whether `text` says that the requested output is too large by itself. Input and output that exceed the
/// window together are an overflow.
pub(super) fn is_output_limit(text: &str) -> bool {
    const OUTPUT: &[&str] = &[
        "max tokens", "max completion tokens", "max output tokens", "max new tokens", "maxoutputtokens",
        "maxtokens", "maximum tokens you requested", "completion tokens", "output tokens", "output limit",
        "num predict",
    ];
    const LIMITED: &[&str] = &[
        "too large", "too high", "at most", "less than", "cannot be greater", "can not be greater",
        "must be <=", "range", "exceed", "maximum", "limit", "cannot be larger", "must not be greater",
        " > ", "smaller than", "up to", "out of range",
    ];
    // Output settings that are rejected for another reason than their size.
    const OTHER_REASONS: &[&str] = &[
        "unsupported", "not supported", "at least", "below minimum", "must be greater", "positive", "budget",
        "max tokens of",
    ];
    // Words that name the input beside the output.
    const WITH_INPUT: &[&str] = &[
        "input", "prompt", "messages", "total", "sum of", " + ", "however you requested",
        "however, you requested", "request has",
    ];
    const CONTEXT_DISTANCE_BYTES_MAX: usize = 30;
    // "input" in the name of a server's check says nothing about the input's size.
    let text = &text.replace("input validation error", "");
    let exceeds_window = text
        .match_indices("exceed")
        .any(|(at, _)| up_to(&text[at..], CONTEXT_DISTANCE_BYTES_MAX).contains("context"));
    if !contains_any(text, OUTPUT)
        || !contains_any(text, LIMITED)
        || contains_any(text, OTHER_REASONS)
        || exceeds_window
    {
        return false;
    }
    // The output alone may be larger than the whole window.
    contains_any(text, &["cannot be greater than max model len", "fewer output tokens"])
        || !contains_any(text, WITH_INPUT)
}

/// Whether `text` says that something not counted in tokens is too large.
pub(super) fn is_payload_size(text: &str) -> bool {
    const PHRASES: &[&str] = &[
        "string too long", "array too long", "string above max length", "expected maxlength",
        "entity too large", "request too large", "request is too large", "request exceeds the maximum size",
        "body too large", "body is too large", "should have at most",
    ];
    const NOUNS: &[&str] = &[
        "byte", " mb", "mib", "payload", "pixel", "header", "characters", "image", "pdf", "audio", "video",
        "file", "request size", "message size", "document",
    ];
    const MORE: &[&str] = &[
        "exceed", "too large", "too long", "too big", "too many", "larger than", "more than", "longer than",
        "at most", "may have",
    ];
    // These fields have limits of their own, which a smaller conversation does not help with.
    const SMALL_FIELDS: &[&str] = &[
        ".name", "tool name", "tools name", "function name", "call id", "description", "metadata",
        "stop sequence", "schema",
    ];
    if contains_any(text, SMALL_FIELDS) {
        return false;
    }
    let is_too_large = contains_any(text, PHRASES) || (contains_any(text, NOUNS) && contains_any(text, MORE));
    is_too_large && !text.contains("memory") && !is_about_tokens(text)
}

/// Whether `text` says that the request is larger than the batch that the server processes at once. Where another kind
/// of batch may be meant, the text must be about the request's tokens and not about the context window.
pub(super) fn is_batch_size(text: &str) -> bool {
    const PHYSICAL: &[&str] = &["physical batch", "ubatch"];
    const BATCH: &[&str] = &["batch size", "n batch"];
    const TOKENS: &[&str] = &["token", "prompt", "input"];
    const MORE: &[&str] = &[
        "too large", "too long", "too big", "exceed", "larger than", "longer than", "greater than",
        "more than", " > ", "increase", "raise",
    ];
    let names_batch = contains_any(text, PHYSICAL)
        || (contains_any(text, BATCH) && contains_any(text, TOKENS) && !contains_any(text, CONTEXT));
    names_batch && contains_any(text, MORE)
}

/// Whether `text` says that the server is not ready because it is still loading its model, as opposed to
/// having failed to load it.
pub(super) fn is_loading(text: &str) -> bool {
    const LOADING: &[&str] = &[
        "loading model", "loading the model", "loading checkpoint", "model is loading", "model loading",
        "is currently loading", "is still loading", "still being loaded", "is being loaded",
        "model is not ready", "model not ready", "model is warming up", "model is starting",
    ];
    const FAILED: &[&str] = &["fail", "error loading", "unable", "cannot", "could not", "couldn t", "can t"];
    contains_any(text, LOADING) && !contains_any(text, FAILED)
}

/// Whether numbers in `text` may count the tokens of the request.
pub(super) fn may_count_tokens(text: &str) -> bool {
    contains_any(text, &["token", "context", "ctx"])
        && !contains_any(text, &["budget", "minimum", "must be greater", "greater than or equal"])
}

/// Whether `text` mentions tokens or the context window.
pub(super) fn is_about_tokens(text: &str) -> bool {
    contains_any(text, CONTEXT) || contains_any(text, &["tokens", "token limit", "token count"])
}

/// Names of the context window and of its size.
pub(super) const CONTEXT: &[&str] = &[
    "context length", "context window", "context size", "context limit", "contextlength", "contextwindow",
    "max model len", "model length", "model max length", "max seq len", "sequence length",
    "total length should", "n ctx", "num ctx", "token limit", "tokens limit", "maximum prompt length",
    "max prompt length", "maximum input length", "max input length", "maximum allowed input length",
    "maximum allowed length", "kv size", "kv cache", "max message tokens", "input limit", "context tokens",
    "model context", "max context", "maximum context", "into the context", "context the overflows",
];

/// Returns the beginning of `text`, at most `bytes_max` bytes long.
pub(super) fn up_to(text: &str, bytes_max: usize) -> &str {
    &text[..text.floor_char_boundary(bytes_max)]
}
