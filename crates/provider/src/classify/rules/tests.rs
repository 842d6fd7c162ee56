//! The table of rules, line by line, and the order of its lines.

use greenroom_kernel::FailureClass::{
    self, Auth, ContentFilter, ContextOverflow, ImageRefused, Loading, OpaqueRefused, Other, OutputLimit,
    Overloaded, PayloadTooLarge, Quota, RateLimited, RequestTooLargeForRateLimit, Timeout,
};

use super::{RULES, Refusal};
use crate::classify::digest::Digest;

/// Returns the name of the rule that decides, and the class.
fn decide(status: Option<u16>, body: &str) -> (&'static str, FailureClass) {
    let digest = Digest::of(body);
    let refusal = Refusal::new(status, &digest);
    (refusal.deciding_rule().name, refusal.class())
}

/// One body for each rule, in the order of the table: the list must match the table.
#[test]
fn each_rule_decides_a_body() {
    let rows = [
        ("status 401 or 407", Some(401), "who are you?", Auth),
        ("status 402", Some(402), "prompt is too long", Quota),
        ("status 403 from a content filter", Some(403), "your input was flagged", ContentFilter),
        ("status 403 for a used-up quota", Some(403), "insufficient balance", Quota),
        ("status 403", Some(403), "prompt is too long", Auth),
        ("status 408", Some(408), "prompt is too long", Timeout),
        ("status 429", Some(429), "prompt is too long", RateLimited),
        ("status 529", Some(529), "prompt is too long", Overloaded),
        ("empty body", Some(413), " ", PayloadTooLarge),
        ("quota or rate limit code", Some(400), r#"{"type":"throttling","error":"no"}"#, RateLimited),
        ("authentication code", Some(400), r#"{"code":"AuthError","error":"no"}"#, Auth),
        ("content filter code", Some(400), r#"{"code":"moderation_blocked","error":"no"}"#, ContentFilter),
        ("loading words", Some(503), "Loading model", Loading),
        ("refusal of opaque data", Some(400), "Invalid `signature` in `thinking` block", OpaqueRefused),
        ("quota or rate limit words", Some(400), "too many requests", RateLimited),
        ("authentication words", Some(400), "this token expired: expired token", Auth),
        ("content filter words", Some(400), "this violates our content policy", ContentFilter),
        ("cancellation words", Some(400), "context canceled", Timeout),
        ("batch size words", Some(500), "the input exceeds the physical batch size", Other),
        ("output limit words", Some(400), "max_tokens is too large", OutputLimit),
        ("payload size words", Some(400), "the image is too large", PayloadTooLarge),
        ("context overflow", Some(400), "the context window is exceeded", ContextOverflow),
        ("refusal of an image", Some(400), "this is not a valid image", ImageRefused),
        ("permanent fault of the request", Some(500), "failed to parse the request", Other),
        ("timeout words", Some(500), "the upstream timed out", Timeout),
        ("overload words or code", None, "at capacity", Overloaded),
        ("status alone", Some(503), "oops", Overloaded),
    ];
    let names: Vec<&str> = RULES.iter().map(|rule| rule.name).collect();
    assert_eq!(rows.map(|(name, ..)| name).as_slice(), names);
    for (name, status, body, class) in rows {
        assert_eq!(decide(status, body), (name, class), "{status:?} {body}");
    }
}

/// Bodies to which two rules apply.
#[test]
fn of_two_rules_the_earlier_one_decides() {
    let rows = [
        (
            "status 403 from a content filter",
            "status 403 for a used-up quota",
            403,
            "flagged: your input was flagged; billing",
        ),
        ("status 429", "context overflow", 429, "maximum context length exceeded"),
        ("status 529", "quota or rate limit words", 529, "rate limit"),
        (
            "quota or rate limit code",
            "context overflow",
            400,
            r#"{"code":"rate_limit","error":"prompt is too long"}"#,
        ),
        (
            "quota or rate limit code",
            "authentication code",
            400,
            r#"{"code":"rate_limit","type":"auth_error"}"#,
        ),
        ("authentication code", "content filter code", 400, r#"{"code":"auth_error","type":"safety"}"#),
        ("content filter code", "context overflow", 400, r#"{"code":"safety","error":"prompt is too long"}"#),
        ("loading words", "quota or rate limit words", 503, "the model is loading: rate limit"),
        ("quota or rate limit words", "authentication words", 400, "rate limit of this api key"),
        ("authentication words", "content filter words", 400, "api key: usage guidelines"),
        ("content filter words", "cancellation words", 400, "content policy: deadline exceeded"),
        ("cancellation words", "context overflow", 500, "context deadline exceeded: prompt is too long"),
        ("batch size words", "context overflow", 500, "input is too large: increase the physical batch size"),
        ("output limit words", "context overflow", 400, "max_tokens exceeds the limit of 4096 tokens"),
        (
            "payload size words",
            "context overflow",
            400,
            "request too large: message exceeds the limit; messages too long",
        ),
        ("context overflow", "permanent fault of the request", 400, "prompt is too long: unsupported"),
        ("context overflow", "timeout words", 500, "prompt is too long, timeout"),
        ("permanent fault of the request", "timeout words", 500, "parse error: timeout"),
        ("timeout words", "overload words or code", 500, "timed out: service unavailable"),
    ];
    for (winner, loser, status, body) in rows {
        let digest = Digest::of(body);
        let refusal = Refusal::new(Some(status), &digest);
        let applicable: Vec<&str> =
            RULES.iter().filter(|rule| (rule.applies)(&refusal)).map(|rule| rule.name).collect();
        assert_eq!(refusal.deciding_rule().name, winner, "{status} {body}: {applicable:?}");
        assert!(applicable.contains(&loser), "{status} {body}: {applicable:?}");
    }
}

#[test]
fn a_named_overflow_and_a_missing_page_are_never_explained_by_other_words() {
    for (status, body) in [
        (400, r#"{"code":"context_length_exceeded","error":"rate limit of your api key"}"#),
        (400, "ContextWindowExceededError: content policy, timeout"),
        (400, "max_tokens must be at least 1, got -736: see your api key's quota"),
        (400, r#"{"code":"prompt_too_long","error":"max_tokens is too large"}"#),
    ] {
        assert_eq!(decide(Some(status), body), ("context overflow", ContextOverflow), "{body}");
    }
    for body in ["please wait, or check your api key", "the file is too large", "max_tokens at most 8"] {
        assert_eq!(decide(Some(404), body), ("status alone", Other), "{body}");
    }
}

#[test]
fn the_status_that_counts() {
    let named = |inner: u16| format!(r#"{{"error":{{"message":"oops","code":{inner}}}}}"#);
    for (outer, inner, expected) in [
        // A decisive status counts in any position, and the outer one outranks the inner one.
        (Some(401), 429, 401),
        (Some(402), 401, 402),
        (Some(403), 401, 403),
        (Some(407), 429, 407),
        (Some(408), 429, 408),
        (Some(429), 401, 429),
        (Some(529), 401, 529),
        (Some(500), 429, 429),
        (Some(400), 403, 403),
        (Some(200), 408, 408),
        (None, 529, 529),
        // Otherwise the outer status counts, unless it means success.
        (Some(500), 400, 500),
        (Some(400), 503, 400),
        (Some(300), 400, 300),
        (Some(299), 400, 400),
        (Some(200), 503, 503),
        (Some(199), 400, 199),
        (None, 404, 404),
    ] {
        let digest = Digest::of(&named(inner));
        assert_eq!(Refusal::new(outer, &digest).status, Some(expected), "{outer:?} around {inner}");
    }
    let both = Digest::of(r#"{"code":500,"error":{"code":429}}"#);
    assert_eq!(Refusal::new(Some(502), &both).status, Some(429), "the first decisive one, not the first");
    let neither = Digest::of("oops");
    assert_eq!(Refusal::new(Some(200), &neither).status, Some(200));
    assert_eq!(Refusal::new(None, &neither).status, None);
}

#[test]
fn a_status_alone() {
    for (status, class) in [
        (413, PayloadTooLarge),
        (499, Other),
        (500, Overloaded),
        (503, Overloaded),
        (504, Timeout),
        (522, Timeout),
        (524, Timeout),
        (599, Overloaded),
        (600, Other),
        (400, Other),
    ] {
        assert_eq!(decide(Some(status), "").1, class, "{status}");
        assert_eq!(decide(Some(status), "oops").1, class, "{status}");
    }
    assert_eq!(decide(None, ""), ("empty body", Other));
}

#[test]
fn kinds_of_not_now() {
    let check = |body: &str, class| assert_eq!(decide(Some(429), body).1, class, "{body}");
    // A quota, by code or by words; but not where the words name a short time.
    check(r#"{"code":"billing_not_active"}"#, Quota);
    check(r#"{"code":"insufficient_quota"}"#, Quota);
    check("your credit balance is too low", Quota);
    check("your credit balance is too low per minute", RateLimited);
    check(r#"{"code":"spend_limit","error":"try again in 3s"}"#, Quota);
    // A request that is larger than the rate limit, by words or by its numbers.
    check("Request too large for tiny-1", RequestTooLargeForRateLimit);
    check("this request is too large for tiny-1", RequestTooLargeForRateLimit);
    check("tokens per minute: Limit 30000, Requested 30601", RequestTooLargeForRateLimit);
    check("tokens per minute: Limit 30000, Requested 30000", RateLimited);
    check("tokens per minute: Limit 30000, Requested 4000", RateLimited);
    check("tokens per minute: Limit 30000, Used 28000, Requested 30601", RateLimited);
    check("tokens: limit 30000, requested 30601", RateLimited);
    check("tokens per minute: limit 30000, current 30601", RateLimited);
}

#[test]
fn only_a_status_of_the_server_may_be_explained_by_its_state() {
    for status in [400, 404, 405, 413, 415, 422] {
        for body in ["timed out", "overloaded", r#"{"code":"server_error","error":"no"}"#] {
            assert_eq!(decide(Some(status), body).0, "status alone", "{status} {body}");
        }
    }
    for status in [Some(409), Some(500), None] {
        assert_eq!(decide(status, "timed out").1, Timeout);
        assert_eq!(decide(status, "overloaded").1, Overloaded);
        assert_eq!(decide(status, r#"{"code":"server_error","error":"no"}"#).1, Overloaded);
    }
}

#[test]
fn an_overflow_in_each_of_its_forms() {
    let check =
        |status, body: &str, class| assert_eq!(decide(Some(status), body).1, class, "{status} {body}");
    check(400, r#"{"code":"prompt_too_long","error":"no"}"#, ContextOverflow);
    check(400, "ContextOverflow", ContextOverflow);
    check(400, "max_tokens must be at least 1, got -736", ContextOverflow);
    check(200, r#"{"choices":[{"finish_reason":"length"}]}"#, ContextOverflow);
    // By the numbers, if they count tokens.
    check(400, "ctx_len 40000 > 32768", ContextOverflow);
    check(400, "weight 40000 > 32768", Other);
    check(400, "ctx_len 32768 > 40000", Other);
    // By a 413 that is about tokens.
    check(413, "too many: the token count", ContextOverflow);
    check(400, "wrong: the token count", Other);
    check(413, "too many", PayloadTooLarge);
}
