//! The words that tell the classes apart. All are compared with text in lower case whose `_` and `-` are
//! spaces and whose quotes are gone; codes are compared with nothing but letters and digits.

/// Codes and names of types, squeezed.
pub(super) const OVERFLOW_CODES: &[&str] = &[
    "contextlengthexceeded",
    "contextwindowexceeded",
    "contextsizeexceeded",
    "contextlimitexceeded",
    "exceedcontextsize",
    "exceededcontextwindow",
    "exceededcontextlength",
    "maxcontextlengthexceeded",
    "contextoverflow",
    "prompttoolong",
    "inputtoolong",
    "tokenstoolong",
    "maxprompttokensexceeded",
    "inputtokensexceeded",
    "tokenslimitreached",
    "toomanyinputtokens",
    "promptlengthexceeded",
    "inputlengthexceeded",
    "contexttoolong",
    "modelcontextwindow",
];
pub(super) const RATE_CODES: &[&str] = &[
    "ratelimit",
    "throttl",
    "toomanyrequests",
    "resourceexhausted",
    "requestlimit",
    "quotaexceeded",
    "tpmexceeded",
    "rpmexceeded",
];
pub(super) const QUOTA_CODES: &[&str] = &[
    "billing",
    "creditbalance",
    "overdue",
    "arrearage",
    "paymentrequired",
    "spendlimit",
    "budgetexceeded",
    "usagelimitreached",
];
pub(super) const AUTH_CODES: &[&str] = &[
    "authentication",
    "invalidapikey",
    "permissionerror",
    "permissiondenied",
    "unauthorized",
    "unauthenticated",
    "accessdenied",
    "authfail",
    "autherror",
    "unrecognizedclient",
];
pub(super) const CONTENT_FILTER_CODES: &[&str] = &[
    "contentfilter",
    "contentpolicy",
    "responsibleai",
    "datainspection",
    "moderation",
    "safety",
    "promptblocked",
    "sensitivecontent",
];
pub(super) const OVERLOADED_CODES: &[&str] = &[
    "overloaded",
    "servererror",
    "unavailable",
    "internalerror",
    "apierror",
    "internalservererror",
    "internal",
    "capacityexceeded",
    "streamerror",
];

/// Credit and spending.
pub(super) const QUOTA: &[&str] = &[
    "credit balance",
    "exceeded your current quota",
    "billing",
    "spend limit",
    "spending limit",
    "usage limits",
    "usage limit",
    "payment required",
    "key limit exceeded",
    "can only afford",
    "more credits",
    "out of credits",
    "no credits",
    "run out of credit",
    "recharge",
    "top up",
    "overdue",
    "arrearage",
    "good standing",
    "budget has been exceeded",
    "exceeded budget",
    "budget exceeded",
    "over budget",
    "monthly limit",
    "allocated quota exceeded",
    "free tier limit",
    "free tier only",
    "monthly quota",
    "余额",
    "欠费",
    "extra usage",
    "daily free allocation",
];
/// Signs that waiting helps, in what sounds like a spent quota.
pub(super) const SHORT_TERM: &[&str] = &[
    "per minute",
    "perminute",
    "per min",
    "per second",
    "per hour",
    "retry in",
    "try again in",
    "(tpm)",
    "(rpm)",
];
pub(super) const AUTH: &[&str] = &[
    "api key",
    "apikey",
    "unauthorized",
    "unauthenticated",
    "authentication",
    "permission denied",
    "not authorized",
    "access denied",
    "invalid token",
    "token expired",
    "expired token",
    "invalid credentials",
    "security token",
];
pub(super) const CONTENT_FILTER: &[&str] = &[
    "content management policy",
    "content policy",
    "content filter",
    "safety system",
    "was flagged",
    "been flagged",
    "moderation",
    "inappropriate content",
    "usage guidelines",
    "sensitive content",
    "sensitive information",
    "new sensitive",
    "prohibited content",
    "usage policies",
    "safety reasons",
    "敏感",
    "不安全",
];
/// A cancelled call has a "context" too.
pub(super) const CANCELLED: &[&str] =
    &["context deadline exceeded", "context canceled", "context cancelled", "deadline exceeded"];
pub(super) const TIMED_OUT: &[&str] = &[
    "timed out",
    "timeout",
    "time out",
    "took too long",
    "connection reset",
    "econnreset",
    "econnrefused",
    "connection refused",
    "closed connection",
    "connection closed",
    "disconnected",
    "socket hang up",
    "broken pipe",
    "connection error",
    "network error",
];
pub(super) const OVERLOADED: &[&str] = &[
    "overloaded",
    "over capacity",
    "at capacity",
    "capacity exceeded",
    "temporarily unavailable",
    "currently unavailable",
    "service unavailable",
    "internal server error",
    "server error",
    "internal error",
    "unexpected error",
    "bad gateway",
    "high demand",
    "no healthy upstream",
    "an error occurred while processing",
];
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
/// Requests that no waiting mends, even where a server calls them its own failure.
pub(super) const PERMANENT: &[&str] = &[
    "failed to parse",
    "parse error",
    "invalid json",
    "json decode",
    "model not found",
    "unknown model",
    "no such model",
    "is not a valid model",
    "does not exist",
    "more system memory",
    "syntax error",
    "invalid params",
    "unsupported",
    "not supported",
    "does not support",
    " requires ",
];

/// Whether `text` contains one of `list`.
pub(super) fn contains_any(text: &str, list: &[&str]) -> bool {
    list.iter().any(|word| text.contains(word))
}

/// Whether `text` (or a code, which has no spaces) says that the money is spent.
pub(super) fn says_spent(text: &str) -> bool {
    contains_any(text, QUOTA)
        || (contains_any(text, &["insufficient", "not enough", "notenough"])
            && contains_any(text, &["balance", "fund", "credit", "quota"]))
}

/// Whether `text` is about the key, or the account that it belongs to.
pub(super) fn says_refused(text: &str) -> bool {
    const HOLDERS: &[&str] = &["account", "organization", "credential", "access token"];
    const STATES: &[&str] =
        &["disabled", "deactivated", "suspended", " locked", "revoked", "expired", "no longer valid"];
    contains_any(text, AUTH) || (contains_any(text, HOLDERS) && contains_any(text, STATES))
}

/// Whether `text` says that a filter did not like the content.
pub(super) fn says_filtered(text: &str) -> bool {
    contains_any(text, CONTENT_FILTER)
        || (contains_any(text, &[" risk"]) && contains_any(text, &["content", "rejected", "flagged"]))
}

/// Whether `text` is about so much in a time.
pub(super) fn says_rate_limit(text: &str) -> bool {
    const RATE: &[&str] = &[
        "rate limit",
        "ratelimit",
        "too many requests",
        "request rate",
        "request limit reached",
        "request limit exceeded",
        "frequency limit",
        "per minute",
        "perminute",
        "per min",
        "per day",
        "perday",
        "per hour",
        "per second",
        "per month",
        "per week",
        "daily",
        "weekly",
        "monthly",
        "hourly",
        "(tpm)",
        "(rpm)",
        "(tpd)",
        "tpm limit",
        "rpm limit",
        "tpm rate",
        "throttl",
        "quota",
        "resource exhausted",
        "please wait",
        "try again in",
        "retry in",
        "retry after",
        "requests per",
        "concurrency",
        "concurrent",
        "限流",
        "频率",
        "并发",
    ];
    contains_any(text, RATE)
}

/// Whether `text` says that the output that was asked for is too large by itself. Input and output together
/// over the window is an overflow.
pub(super) fn is_output_limit(text: &str) -> bool {
    const OUTPUT: &[&str] = &[
        "max tokens",
        "max completion tokens",
        "max output tokens",
        "max new tokens",
        "maxoutputtokens",
        "maxtokens",
        "maximum tokens you requested",
        "completion tokens",
        "output tokens",
        "output limit",
        "num predict",
    ];
    const LIMITED: &[&str] = &[
        "too large",
        "too high",
        "at most",
        "less than",
        "cannot be greater",
        "can not be greater",
        "must be <=",
        "range",
        "exceed",
        "maximum",
        "limit",
        "cannot be larger",
        "must not be greater",
        " > ",
        "smaller than",
        "up to",
        "out of range",
    ];
    const OTHER: &[&str] = &[
        "unsupported",
        "not supported",
        "at least",
        "below minimum",
        "must be greater",
        "positive",
        "budget",
        "max tokens of",
    ];
    const TOGETHER: &[&str] = &[
        "input",
        "prompt",
        "messages",
        "total",
        "sum of",
        " + ",
        "however you requested",
        "however, you requested",
        "request has",
    ];
    const WINDOW_REACH_BYTES: usize = 30;
    // What a server calls its checks is not what they found.
    let text = &text.replace("input validation error", "");
    let exceeds_window = text
        .match_indices("exceed")
        .any(|(at, _)| super::cut(&text[at..], WINDOW_REACH_BYTES).contains("context"));
    if !contains_any(text, OUTPUT)
        || !contains_any(text, LIMITED)
        || contains_any(text, OTHER)
        || exceeds_window
    {
        return false;
    }
    // One server says that the output alone is larger than the whole window.
    contains_any(text, &["cannot be greater than max model len", "fewer output tokens"])
        || !contains_any(text, TOGETHER)
}

/// Whether `text` is about the size of something that is not counted in tokens.
pub(super) fn is_about_bytes(text: &str) -> bool {
    const NAMED: &[&str] = &[
        "string too long",
        "array too long",
        "string above max length",
        "expected maxlength",
        "entity too large",
        "request too large",
        "request is too large",
        "request exceeds the maximum size",
        "body too large",
        "body is too large",
        "should have at most",
    ];
    const THINGS: &[&str] = &[
        "byte",
        " mb",
        "mib",
        "payload",
        "pixel",
        "header",
        "characters",
        "image",
        "pdf",
        "audio",
        "video",
        "file",
        "request size",
        "message size",
        "document",
    ];
    const MORE: &[&str] = &[
        "exceed",
        "too large",
        "too long",
        "too big",
        "too many",
        "larger than",
        "more than",
        "longer than",
        "at most",
        "may have",
    ];
    // These have limits of their own, and no smaller request would keep them.
    const SMALL_FIELDS: &[&str] = &[
        ".name",
        "tool name",
        "tools name",
        "function name",
        "call id",
        "description",
        "metadata",
        "stop sequence",
        "schema",
    ];
    if contains_any(text, SMALL_FIELDS) {
        return false;
    }
    let named = contains_any(text, NAMED) || (contains_any(text, THINGS) && contains_any(text, MORE));
    named && !text.contains("memory") && !is_about_tokens(text)
}

/// Whether numbers in `text` may be counts of the tokens of a request.
pub(super) fn may_count_tokens(text: &str) -> bool {
    contains_any(text, &["token", "context", "ctx"])
        && !contains_any(text, &["budget", "minimum", "must be greater", "greater than or equal"])
}

pub(super) fn is_about_tokens(text: &str) -> bool {
    contains_any(text, CONTEXT) || contains_any(text, &["tokens", "token limit", "token count"])
}

/// What a window is called.
const CONTEXT: &[&str] = &[
    "context length",
    "context window",
    "context size",
    "context limit",
    "contextlength",
    "contextwindow",
    "max model len",
    "model length",
    "model max length",
    "max seq len",
    "sequence length",
    "total length should",
    "n ctx",
    "num ctx",
    "token limit",
    "tokens limit",
    "maximum prompt length",
    "max prompt length",
    "maximum input length",
    "max input length",
    "maximum allowed input length",
    "maximum allowed length",
    "kv size",
    "kv cache",
    "max message tokens",
    "input limit",
    "context tokens",
    "model context",
    "max context",
    "maximum context",
    "into the context",
    "context the overflows",
];

/// What nobody says of anything else.
const BY_NAME: &[&str] = &[
    "context shift",
    "context overflow",
    "context exceeded",
    "out of context",
    "not enough context",
    "too much context",
    "cannot truncate",
];

/// Whether `text` says that the request is larger than the window.
pub(super) fn is_overflow(text: &str) -> bool {
    if contains_any(
        text,
        &[
            "string too long",
            "array too long",
            "minimum token",
            "input should be greater",
            "input should be less",
            "must be greater",
            "greater than or equal",
        ],
    ) {
        return false;
    }
    exceeds_context(text)
        || input_too_long(text)
        || too_many_tokens(text)
        || in_chinese(text)
        || contains_any(text, BY_NAME)
        || is_bare(text)
}

/// A window and a word for "more than that".
fn exceeds_context(text: &str) -> bool {
    const MORE: &[&str] = &[
        "exceed",
        "too long",
        "too large",
        "too big",
        "too many",
        "longer than",
        "greater than",
        "larger than",
        "bigger than",
        "more than",
        "less than",
        "smaller than",
        "overflow",
        "beyond",
        "surpass",
        "at most",
        "is only",
        "of only",
        "just ",
        "reached",
        " fit",
        "reduce",
        "shorten",
        "not possible",
        "<=",
        " > ",
        "maximum context length is",
        "maximum prompt length is",
        "is full",
        "ran out",
        "run out",
        "cannot be processed",
        "over the",
        "limited to",
        "only supports",
    ];
    contains_any(text, CONTEXT) && contains_any(text, MORE)
}

/// The prompt, by any of its names, and soon after it that it is too long.
fn input_too_long(text: &str) -> bool {
    const INPUT: &[&str] = &[
        "prompt",
        "input",
        "messages",
        "conversation",
        "chat history",
        "transcript",
        "message you submitted",
        "your message",
    ];
    const TOO_LONG: &[&str] = &[
        "exceed",
        "too long",
        "longer than",
        "larger than",
        "is greater than",
        "is more than",
        "too large",
        "too big",
        "overflow",
        "over the limit",
        "surpass",
        "should be [1",
    ];
    const OTHER_THINGS: &[&str] = &[
        "image",
        "audio",
        "video",
        "file",
        "document",
        "temperature",
        "top p",
        "top k",
        "penalty",
        "logprob",
        ".name",
        "tool name",
        "function name",
        "description",
        "metadata",
        "schema",
        "stop sequence",
    ];
    const REACH_BYTES: usize = 90;
    if contains_any(
        text,
        &[
            "length of the messages",
            "length of the prompt",
            "length of the input",
            "length of your prompt",
            "length of messages",
        ],
    ) && text.contains("reduce")
    {
        return true;
    }
    // Media and parameters have limits of their own.
    if contains_any(text, OTHER_THINGS) && !is_about_tokens(text) {
        return false;
    }
    INPUT.iter().any(|noun| {
        text.match_indices(noun).any(|(at, _)| {
            let rest = super::cut(&text[at..], REACH_BYTES);
            let sentence = rest.split(". ").next().unwrap_or(rest);
            contains_any(sentence, TOO_LONG)
        })
    })
}

/// Tokens, and that they are too many for the model.
fn too_many_tokens(text: &str) -> bool {
    const MORE: &[&str] = &[
        "exceed",
        "longer than",
        "larger than",
        "more than",
        "greater than",
        "only supports",
        "must have less than",
        "must be <=",
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
        || (contains_any(text, &["max tokens of"]) && text.contains("exceed"))
}

fn in_chinese(text: &str) -> bool {
    contains_any(text, &["超过", "超出", "超长", "过长", "太长", "超限", "压缩上下文"])
        && contains_any(text, &["长度", "上下文", "token", "输入", "对话", "prompt", "超长"])
}

/// Less than no room for an answer: the server subtracted the prompt from the window, since nobody asks for a
/// negative number of tokens, but for the -1 that some read as "all". `plain` still has its signs.
pub(super) fn has_negative_room(plain: &str) -> bool {
    const ASKED: &[&str] = &["max_tokens", "max_completion_tokens", "max_new_tokens", "max_output_tokens"];
    const REACH_BYTES: usize = 60;
    let is_negative = |near: &str, at: usize| {
        let stands_alone = near[..at].ends_with([' ', '(', '=', ':']);
        stands_alone && near[at + 1..].chars().take_while(char::is_ascii_digit).count() > 1
    };
    ASKED.iter().flat_map(|name| plain.match_indices(name)).any(|(at, _)| {
        let near = super::cut(&plain[at..], REACH_BYTES);
        near.match_indices('-').any(|(sign, _)| is_negative(near, sign))
    })
}

/// What is left of a refusal without a word of its own, as two kinds of gateway put it.
fn is_bare(text: &str) -> bool {
    let bare = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ' || c == ':');
    let no_body = text.ends_with("(no body)") && (text.starts_with("400") || text.starts_with("413"));
    no_body || bare == "content too large" || bare == "content too large."
}
