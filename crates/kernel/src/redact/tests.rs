//! Tests of redaction. Keys here are put together from two halves, so that no scanner takes them for real ones.
//!
//! Invariants: each shape has a text that is replaced and one that is not.

use std::borrow::Cow;
use std::sync::Arc;

use super::{RedactedLines, RedactedStream, Redactor};
use crate::entry::EntryKind;
use crate::log::Log;
use crate::message::{Block, Message, ToolCall, ToolResult, ToolStatus};
use crate::random::Random;

const KEY: &str = "sk-proj-Zx81\"qT/9+mw kL";

fn redactor() -> Redactor {
    let redactor = Redactor::with_shapes();
    redactor.add([("OPENAI_API_KEY".to_owned(), KEY.to_owned()), ("short".to_owned(), "abc1234".to_owned())]);
    redactor
}

fn check_value(form: &str) {
    let text = format!("before {form} after");
    let redacted = redactor().values(&text).into_owned();
    assert!(redacted.starts_with("before ") && redacted.ends_with(" after"), "{redacted}");
    assert!(redacted.contains("[redacted:OPENAI_API_KEY]"), "{form}: {redacted}");
    assert_eq!(redactor().all(&redacted), redacted, "twice");
}

#[test]
fn a_value_is_found_in_each_of_its_forms() {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    check_value(KEY);
    check_value("sk-proj-Zx81%22qT%2F9%2Bmw%20kL");
    check_value("sk-proj-Zx81%22qT%2f9%2bmw%20kL");
    // Python's `quote`, `encodeURI`, and the body of a form.
    check_value("sk-proj-Zx81%22qT/9%2Bmw%20kL");
    check_value("sk-proj-Zx81%22qT/9+mw%20kL");
    check_value("sk-proj-Zx81%22qT%2F9%2Bmw+kL");
    check_value(r#"sk-proj-Zx81\"qT/9+mw kL"#);
    check_value(r#"sk-proj-Zx81\"qT\/9+mw kL"#);
    check_value(r#"sk-proj-Zx81\\\"qT/9+mw kL"#);
    for before in ["", "a", "me", "me:", "user:", "someone:"] {
        check_value(&STANDARD.encode(format!("{before}{KEY}")));
        check_value(&URL_SAFE_NO_PAD.encode(format!("{before}{KEY} and what follows")));
    }
}

#[test]
fn a_value_is_found_where_json_is_made_safe_for_html_or_ascii() {
    let redactor = Redactor::default();
    redactor.add([("PASSWORD".to_owned(), "it's<p&w>w\u{f6}rd\u{1f980}".to_owned())]);
    for form in [
        r"it\u0027s\u003cp\u0026w\u003ew\u00f6rd\ud83e\udd80",
        r"it\u0027s\u003Cp\u0026w\u003Ew\u00F6rd\uD83E\uDD80",
        // Go, and Python.
        "it's\\u003cp\\u0026w\\u003ew\u{f6}rd\u{1f980}",
        r"it's<p&w>w\u00f6rd\ud83e\udd80",
    ] {
        assert_eq!(redactor.values(form), "[redacted:PASSWORD]");
    }
}

#[test]
fn short_values_and_clean_texts_stay_as_they_are() {
    let redactor = redactor();
    for text in ["abc1234", "", "sk-proj-Zx81", "ordinary text"] {
        assert!(matches!(redactor.all(text), Cow::Borrowed(_)), "{text}");
    }
    assert!(Redactor::default().is_off());
    assert!(!format!("{redactor:?}").contains("Zx81"));
}

#[test]
fn the_lines_of_a_value_are_found_one_by_one() {
    let redactor = Redactor::default();
    let value =
        "-----BEGIN OPENSSH-----\nAAAAB3NzaC1yc2EAAAADAQAB\nQyVt9kPzWm4hLx0aTfJq\n-----END OPENSSH-----";
    redactor.add([("DEPLOY_KEY".to_owned(), value.to_owned())]);
    let shown = "1  -----BEGIN OPENSSH-----\n2  AAAAB3NzaC1yc2EAAAADAQAB\n3  QyVt9kPzWm4hLx0aTfJq";
    let expected = "1  -----BEGIN OPENSSH-----\n2  [redacted:DEPLOY_KEY]\n3  [redacted:DEPLOY_KEY]";
    assert_eq!(redactor.values(shown), expected);
}

/// Each `|` is left out: it is where a text is divided so that it is no secret in this file.
fn check_shape(name: &str, secret: &str, kept: &str) {
    let secret = secret.replace('|', "");
    let (before, after) = kept.split_once('…').unwrap_or(("", ""));
    let text = format!("x = {before}{secret}{after} # end");
    let redacted = Redactor::with_shapes().all(&text).into_owned();
    assert_eq!(redacted, format!("x = {before}[redacted:{name}]{after} # end"));
    assert_eq!(Redactor::with_shapes().all(&redacted), redacted, "twice");
    assert_eq!(Redactor::default().all(&text), text, "off");
}

const TOKEN: &str = "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8";

#[test]
fn shapes_are_replaced() {
    let t = TOKEN;
    check_shape("api-key", &format!("sk-|ant-api03-{t}"), "\"…\"");
    check_shape("api-key", &format!("sk-|{t}"), "");
    check_shape("github-token", &format!("ghp_|{t}"), "(…)");
    check_shape("github-token", &format!("github_pat_|{t}_{t}"), "");
    check_shape("gitlab-token", "glpat-|x1y2z3x1y2z3x1y2z3x1", "");
    check_shape("slack-token", "xoxb-|123456789012-abcdefABCDEF", "");
    check_shape("aws-key-id", "AKIA|IOSFODNN7EXAMPLE", "");
    check_shape("aws-secret-key", "wJalrXUtnFEMI/K7MDENG/bPxRfiCY|EXAMPLEKEY", "aws_secret_access_key = …");
    check_shape("aws-secret-key", "wJalrXUtnFEMI/K7MDENG/bPxRfiCY|EXAMPLEKEY", "\"SecretAccessKey\": \"…\"");
    check_shape("google-key", &format!("AIza|{}", &t[..35]), "");
    check_shape("google-token", &format!("ya29.|{t}"), "");
    check_shape("stripe-key", "sk_live_|4eC39HqLyjWDarjtT1zdp7dc", "");
    check_shape("npm-token", &format!("npm_|{t}"), "");
    check_shape("pypi-token", &format!("pypi-|AgEIcHlwaS5vcmc{t}{t}"), "");
    check_shape("hugging-face-token", &format!("hf_|{t}"), "");
    check_shape("digitalocean-token", &format!("dop_v1_|{t}0123"), "");
    check_shape("sendgrid-key", &format!("SG.|{}.{t}0123456", &t[..22]), "");
    check_shape("shopify-token", "shpat_|0123456789abcdef0123456789abcdef", "");
    check_shape("jwt", &format!("eyJ|hbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.{t}"), "");
    check_shape("bearer-token", t, "Authorization: Bearer …\"");
    check_shape("basic-login", "dXNlcjpodW50ZXIyMTIz", "Authorization: Basic …");
    check_shape("api-key", t, "x-api-key: …");
    check_shape("password", "hunt|er2", "postgres://user:…@db.example.com/x");
    check_shape("password", "p@ss", "https://:…@example.com");
    let body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC|BKcwggSjAgEAAoIBAQC7\n".repeat(3);
    check_shape(
        "private-key",
        &format!("-----BEGIN RSA |PRIVATE KEY-----\n{body}-----END RSA PRIVATE KEY-----"),
        "",
    );
    check_shape(
        "private-key",
        &format!("-----BEGIN |PRIVATE KEY-----\\n{}", body.replace('\n', "\\n").replace('|', "")),
        "'…'",
    );
    check_shape(
        "private-key",
        &format!("-----BEGIN PGP |PRIVATE KEY BLOCK-----\n{body}-----END PGP PRIVATE KEY BLOCK-----"),
        "",
    );
}

#[test]
fn what_only_resembles_a_shape_stays() {
    let texts = [
        "task-force-of-the-year-2024-and-more".to_owned(),
        "disk-usage-of-the-whole-machine-in-2024".to_owned(),
        "sk-SK, sk-short1, sk-learn-is-a-library-of-python".to_owned(),
        format!("https://example.com/ghp/{TOKEN}"),
        "http://localhost:8080/a@b, see https://docs.rs/x:y".to_owned(),
        "postgres://user:${PASSWORD}@host, x://USER:PASSWORD@HOST, https://user:xxxx@host, redis://u:[redacted:password]@h"
            .to_owned(),
        "git@github.com:me/repo.git ssh://git@github.com:22/me".to_owned(),
        "Bearer token, the bearer of good news in 2024".to_owned(),
        "grep -r -- '-----BEGIN PRIVATE KEY-----' . finds keys".to_owned(),
        "XAKIAIOSFODNN7EXAMPLE AKIAIOSFODNN7EXAMPLEX".to_owned(),
        "eyJ.eyJ.eyJ eyJhbGciOi.not.jwt".to_owned(),
        "x-api-key: $KEY; SecretAccessKey is a field".to_owned(),
        "commit 9d581951a1b2c3d4e5f60718293a4b5c6d7e8f90, sha512-abc/def==".to_owned(),
    ];
    for text in &texts {
        assert_eq!(Redactor::with_shapes().all(text), *text);
    }
    assert_eq!(texts.len(), 13);
}

/// Streams a text with the key at random places in random pieces, and returns what was shown.
fn check_stream(seed: u64, redactor: &Redactor) -> usize {
    let words =
        [KEY, "sk-proj-Zx99-and-so-on", "sk-proj-", "sk-proj-Zx81", "é ", "s", "plain text ", "sk-proj-Zx9"];
    let mut random = Random::new(seed);
    let mut next = |below: usize| usize::try_from(random.below(below as u64)).expect("it is below a length");
    let text: String = (0..12).map(|_| words[next(words.len())]).collect();
    let (mut stream, mut shown, mut rest) = (RedactedStream::default(), String::new(), text.as_str());
    while !rest.is_empty() {
        let (piece, later) = rest.split_at(rest.ceil_char_boundary(1 + next(9)));
        rest = later;
        shown.push_str(&stream.push(redactor, piece.to_owned()));
        let whole = redactor.values(&text);
        assert!(whole.starts_with(&shown), "seed {seed}: {shown:?} is not the start of {whole:?}");
    }
    shown.push_str(&stream.end(redactor));
    assert_eq!(shown, redactor.values(&text), "seed {seed}");
    usize::from(shown != text)
}

#[test]
fn a_stream_never_shows_the_beginning_of_a_value_that_goes_on() {
    let redactor = redactor();
    redactor.add([("OTHER".to_owned(), "sk-proj-Zx99-and-so-on".to_owned())]);
    let redacted: usize = (0..2000).map(|seed| check_stream(seed, &redactor)).sum();
    assert!(redacted > 1000, "{redacted} of 2000 texts had a value");
}

#[test]
fn a_private_key_that_comes_line_by_line_is_hidden_to_its_end() {
    let check = |lines: &[&str], expected: &[&str]| {
        let (redactor, mut state) = (Redactor::with_shapes(), RedactedLines::default());
        let shown: Vec<String> =
            lines.iter().map(|line| state.redact(&redactor, line.replace('|', ""))).collect();
        assert_eq!(shown, expected);
    };
    let (begin, end, hidden) =
        ("-----BEGIN |PRIVATE KEY-----", "-----END PRIVATE KEY-----", "[redacted:private-key]");
    let begun = &begin.replace('|', "");
    check(&["a", begin, "MIIEvQIB", "c2VjcmV0", end, "b"], &["a", begun, hidden, hidden, hidden, "b"]);
    // What does not look like a key ends it.
    check(&[begin, "MIIEvQIB", "(no key)", "MIIEvQIB"], &[begun, hidden, "(no key)", "MIIEvQIB"]);
    check(&["-----BEGIN CERTIFICATE-----", "MIIEvQIB"], &["-----BEGIN CERTIFICATE-----", "MIIEvQIB"]);
}

#[test]
fn a_replacement_is_recognised_by_the_names_that_can_occur() {
    let redactor = redactor();
    let found = |text| redactor.replacement_in(text);
    assert_eq!(found("KEY=[redacted:OPENAI_API_KEY]\n"), Some("[redacted:OPENAI_API_KEY]"));
    assert_eq!(found("[redacted:x] [redacted:github-token]"), Some("[redacted:github-token]"));
    assert_eq!(found("[redacted:unknown] [redacted:"), None);
}

#[test]
fn what_a_log_records_has_no_value() {
    let mut log = Log::new(|_: &str, _: &str, _: &crate::Usage| None);
    log.set_redactor(redactor());
    let mut draft = log.draft(1);
    draft.message(Message::user(format!("my key is {KEY}")));
    draft.message_of_run(
        Message::ToolResult(ToolResult::synthetic(
            &ToolCall { id: format!("1 {KEY}"), name: "read".into(), arguments: String::new() },
            ToolStatus::Ok,
            format!("KEY={KEY}\n").repeat(20_000),
        )),
        Some(10_000),
    );
    let mut plain = Log::new(|_: &str, _: &str, _: &crate::Usage| None).draft(1);
    let text = "my key is [redacted:OPENAI_API_KEY]";
    plain.message(Message::user(text));
    assert_eq!(draft.entries().len(), 3, "the message, the whole result, the short one");
    assert_eq!(draft.entries()[0], plain.entries()[0], "its size is that of what is recorded");
    for entry in draft.entries() {
        assert!(!format!("{entry:?}").contains("Zx81"));
    }
    // A shared message is not changed for others.
    let shared = Arc::new(Message::User(vec![Block::Text(KEY.to_owned())]));
    draft.push(EntryKind::Message {
        message: Arc::clone(&shared),
        inbox: None,
        steer: false,
        cost_microdollars: None,
    });
    assert_eq!(shared.text(), KEY);
}
