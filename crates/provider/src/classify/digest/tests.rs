//! The parts of a body that are read, in each encoding.

use serde_json::{Value, json};

use super::{ARRAY_ITEMS_MAX, DEPTH_MAX, Digest, TEXT_BYTES_MAX};

fn check_text(body: &str, expected: &str) {
    assert_eq!(Digest::of(body).text, expected, "{body}");
}

fn check_message(body: &str, expected: &str) {
    assert_eq!(Digest::of(body).message, expected, "{body}");
}

fn check_statuses(body: &str, expected: &[u16]) {
    assert_eq!(Digest::of(body).statuses, expected, "{body}");
}

fn check_codes(body: &str, expected: &[&str]) {
    assert_eq!(Digest::of(body).codes, expected, "{body}");
}

#[test]
fn texts_are_normalised() {
    let digest = Digest::of("Max_Tokens-limit  of\n`gpt‘s’ “model” 'X' \\ \"y\"` is 4,096");
    assert_eq!(digest.lowercase, "max_tokens-limit  of gpts model x  y is 4,096");
    assert_eq!(digest.text, "max tokens limit of gpts model x y is 4,096");
    assert_eq!(digest.alphanumeric, "maxtokenslimitofgptsmodelxyis4096");
    check_text("the context_window_fallbacks are none", "the fallbacks are none");
}

#[test]
fn bodies_of_every_encoding() {
    check_text("plain words", "plain words");
    check_text(r#"{"error":"words"}"#, "words");
    check_text(r#"["words", {"message":"and more"}]"#, "words. and more");
    check_text(r#""words""#, "words");
    check_text(r#""{\"error\":{\"message\":\"words\"}}""#, "words");
    check_text(r#"upstream said: {"error":"words"}"#, "upstream said:. words");
    check_text(r#"upstream said: {"error":"words"} and closed"#, "upstream said:. words");
    check_text("data: {\"error\":\"words\"}\n\ndata: [DONE]\n", "words");
    check_text("event: error\ndata: words\nid: 7", "words");
    check_text("data: {\"error\":\"one\"}\ndata: {\"error\":\"two\"}", "one. two");
    // A number, a truth value and null are not messages, but text.
    check_text("429", "429");
    check_text("null", "null");
    // Braces that hold no JSON object belong to the message.
    check_text("expected {x}", "expected {x}");
    check_text("} {", "} {");
    check_text("a }{ b", "a }{ b");
    check_text("{", "{");
}

#[test]
fn web_pages_lose_their_tags() {
    check_text("<html><head><title>502 Bad</title></head>\n<body>Gateway</body></html>", "502 bad gateway");
    check_text("<!DOCTYPE html><p>Gone</p>", "gone");
    check_text("a < b and c > d", "a < b and c > d");
    check_text("<400> InternalError", "<400> internalerror");
    // A page is recognised by its beginning.
    let late = format!("{}<html>", "x".repeat(256));
    check_text(&late, &late);
}

#[test]
fn only_fields_with_the_provider_s_words_are_read() {
    check_text(r#"{"input":"echo","prompt":"echo","message":"words"}"#, "words");
    check_text(r#"{"Message":"words"}"#, "words");
    check_text(r#"{"error":{"message":"words","param":"echo"}}"#, "words");
    check_text(r#"{"detail":[{"loc":["body"],"msg":"words","input":"echo"}]}"#, "words");
    let many: Vec<String> = (0..ARRAY_ITEMS_MAX + 3).map(|number| format!("item {number}")).collect();
    check_text(&json!(many).to_string(), &many[..ARRAY_ITEMS_MAX].join(". "));
}

#[test]
fn the_innermost_message_is_for_the_user() {
    check_message(
        r#"{"error":{"message":"inner words","metadata":{"raw":"{\"message\":\"innermost words\"}"}}}"#,
        "innermost words",
    );
    // Nested messages come after plain ones, wherever they are in the object.
    check_message(r#"{"error":{"message":"inner words"},"message":"outer words"}"#, "inner words");
    check_message(r#"{"message":"the words","cause":{"reason":"name"}}"#, "the words");
    check_message(r#"{"message":"name"}"#, "name");
    check_message("Error code: 400 - {'error': {'message': 'it is \"bad\"', 'type': None}}", "it is \"bad\"");
    check_message("{'error': {'message': \"it's bad\"}}", "it's bad");
    check_message("{'message': 'a', 'b': 'c'}, 'd'}", "a");
    check_message("'message': unquoted', '", "'message': unquoted', '");
    check_message("x 'message': 'no end", "x 'message': 'no end");
}

#[test]
fn texts_are_read_up_to_a_limit() {
    let long = "word ".repeat(TEXT_BYTES_MAX / 5);
    assert_eq!(long.len(), TEXT_BYTES_MAX);
    let digest = Digest::of(&format!("{long}tail"));
    assert_eq!(digest.text, long.trim_end());
    // A message that begins after that many bytes is not searched for words.
    let exact = "x".repeat(TEXT_BYTES_MAX);
    assert_eq!(
        Digest::of(&json!({ "message": exact, "cause": { "message": "late words" } }).to_string()).text,
        exact
    );
    let almost = "x".repeat(TEXT_BYTES_MAX - 4);
    let both = Digest::of(&json!({ "message": almost, "cause": { "message": "yz late" } }).to_string());
    assert_eq!(both.text, format!("{almost}. yz"));
    // The limit may lie inside a character.
    let wide = format!("{}é tail", "x".repeat(TEXT_BYTES_MAX - 1));
    assert_eq!(Digest::of(&wide).text, "x".repeat(TEXT_BYTES_MAX - 1));
}

#[test]
fn nesting_is_followed_up_to_a_limit() {
    // The string is one level below the innermost list, and its text one level below the string.
    let lists = |depth: usize| (0..depth).fold(json!("deep words"), |inner, _| json!([inner]));
    check_text(&lists(DEPTH_MAX - 2).to_string(), "deep words");
    check_text(&lists(DEPTH_MAX - 1).to_string(), "");
    let objects = |depth: usize| (0..depth).fold(json!("deep words"), |inner, _| json!({ "error": inner }));
    check_text(&objects(DEPTH_MAX - 2).to_string(), "deep words");
    check_text(&objects(DEPTH_MAX - 1).to_string(), "");
    let lines = |depth: usize| format!("{}deep words", "data: ".repeat(depth));
    check_text(&lines(DEPTH_MAX), "deep words");
    check_text(&lines(DEPTH_MAX + 1), "");
    // Siblings do not add depth.
    let wide: Vec<Value> = (0..ARRAY_ITEMS_MAX).map(|_| json!([["x"], ["x"], ["x"]])).collect();
    assert_eq!(Digest::of(&json!(wide).to_string()).text.matches('x').count(), 3 * ARRAY_ITEMS_MAX);
}

#[test]
fn urls_are_left_out() {
    check_text("see https://docs.example/context-window for more", "see for more");
    check_text("(https://a.example/rate-limit) words", "() words");
    check_text("see éhttps://a.example/quota words", "see é words");
    check_text("<https://a.example> words", "<> words");
    check_text("https://a.example", "");
    check_text("https://a.example\"words", "words");
    check_text("https://a.example'words", "words");
    check_text("https://a.example\\words", "words");
    check_text("https://a.example超words", "超words");
    check_text("a http://b.example c ftp://d.example e", "a c e");
    check_text("1://x words", "1 words");
}

#[test]
fn codes_and_statuses_in_fields() {
    check_codes(
        r#"{"code":"Rate_Limit-Exceeded","type":"x","Status":"INVALID"}"#,
        &["ratelimitexceeded", "x", "invalid"],
    );
    check_codes(r#"{"code":1113}"#, &["1113"]);
    check_codes(r#"{"message":"x","param":"y"}"#, &[]);
    check_codes(&json!({ "code": "x".repeat(100) }).to_string(), &["x".repeat(100).as_str()]);
    check_codes(&json!({ "code": "x".repeat(101) }).to_string(), &[]);
    check_codes(r#"{"code":null,"type":true,"status":[1],"name":{}}"#, &[]);
    check_statuses(r#"{"code":429}"#, &[429]);
    check_statuses(r#"{"status":"503","error":{"code":400}}"#, &[503, 400]);
    check_statuses(r#"{"code":399,"status":600}"#, &[]);
    check_statuses(r#"{"code":599}"#, &[599]);
    check_codes(r#"{"code":600}"#, &["600"]);
}

#[test]
fn exceptions_are_codes() {
    check_codes("AccessDeniedException: no", &["accessdeniedexception"]);
    check_codes("x litellm.RateLimitError - y", &["ratelimiterror"]);
    check_codes("an Exception, an Error, a TERROR, a miniError", &["minierror"]);
    check_codes("ErrorPage InternalServer", &[]);
    check_codes("a1Error 2Error", &[]);
}

#[test]
fn a_status_at_the_front_of_a_message() {
    for (message, expected) in [
        ("429 slow down", Some(429)),
        ("429", Some(429)),
        ("(429) slow down", Some(429)),
        ("HTTP 503: oops", Some(503)),
        ("http/ 503", Some(503)),
        ("Error code: 400 - oops", Some(400)),
        ("failed with status code 599", Some(599)),
        ("status=[404]", Some(404)),
        ("error #500", Some(500)),
        ("error <500>", Some(500)),
        ("413 status code (no body)", Some(413)),
        // Other numbers.
        ("limit 429 reached", None),
        ("429.5 seconds", None),
        ("429,000 tokens", None),
        ("400-499 are bad", None),
        ("429th request", None),
        ("4290 requests", None),
        ("399 x", None),
        ("600 x", None),
        ("42 x", None),
        ("99999999999 x", None),
        ("no number", None),
    ] {
        check_statuses(message, expected.as_slice());
    }
    // A number that far from the start is no longer at the front.
    let behind = |blanks: usize| format!("status{}429", " ".repeat(blanks));
    check_statuses(&behind(48 - 9), &[429]);
    check_statuses(&behind(48 - 6), &[]);
}

#[test]
fn sizes_with_fields_of_their_own() {
    for field in [
        "n_ctx", "max_context_length", "context_length", "context_window", "max_model_len",
        "max_input_tokens",
    ] {
        let digest = Digest::of(&json!({ "error": { field: 4096, "Context_Window": 1 } }).to_string());
        assert_eq!((digest.limit, digest.requested), (Some(4096), None), "{field}: the first counts");
    }
    for field in ["n_prompt_tokens", "prompt_tokens", "input_tokens"] {
        let digest = Digest::of(&json!({ "error": { field: 5000, "INPUT_TOKENS": 1 } }).to_string());
        assert_eq!((digest.limit, digest.requested), (None, Some(5000)), "{field}: the first counts");
    }
}

#[test]
fn a_body_that_says_nothing() {
    for body in ["", " \n", "{}", "[]", r#"{"message":""}"#, r#"{"input":"echo"}"#, "data: [DONE]"] {
        assert!(Digest::of(body).is_empty(), "{body}");
    }
    for body in ["x", r#"{"code":"x"}"#, r#"{"choices":[{"finish_reason":"length"}]}"#] {
        assert!(!Digest::of(body).is_empty(), "{body}");
    }
}

#[test]
fn answers_that_ended_because_the_window_was_full() {
    let check =
        |body: Value, expected| assert_eq!(Digest::of(&body.to_string()).is_window_full, expected, "{body}");
    for field in ["finish_reason", "stop_reason"] {
        check(json!({ field: "model_context_window_exceeded" }), true);
        check(json!({ field: "Context-Length-Exceeded" }), true);
        check(json!({ field: "stop" }), false);
        check(json!({ field: null }), false);
    }
    let answer = |choice: Value, output: Value| json!({ "choices": [choice], "usage": { "completion_tokens": output } });
    let length = |field: &str, message: Value| json!({ "finish_reason": "length", field: message });
    check(answer(json!({ "finish_reason": "length" }), json!(null)), true);
    check(answer(json!({ "finish_reason": "length" }), json!(1)), true);
    check(answer(json!({ "finish_reason": "length" }), json!(2)), false);
    check(answer(json!({ "finish_reason": "stop" }), json!(0)), false);
    check(answer(json!({}), json!(0)), false);
    check(json!({ "choices": [] }), false);
    for field in ["message", "delta"] {
        let empty = json!({ "content": "", "tool_calls": [], "reasoning": null });
        check(answer(length(field, empty), json!(0)), true);
        for (name, value) in [
            ("content", json!("words")),
            ("content", json!(["words"])),
            ("content", json!({})),
            ("tool_calls", json!([{}])),
            ("reasoning_content", json!("words")),
            ("reasoning", json!("words")),
        ] {
            check(answer(length(field, json!({ name: value })), json!(0)), false);
        }
    }
    check(answer(length("text", json!("words")), json!(0)), false);
    check(answer(length("text", json!("")), json!(0)), true);
}
