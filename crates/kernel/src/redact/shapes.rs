//! Texts that look like a secret, by the forms that services give to their keys.
//!
//! Invariants: what is replaced begins with, or follows, a literal text that hardly anything else has, and is
//! long enough to be a secret; the text around it stays. A replacement is no shape.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use aho_corasick::{AhoCorasick, MatchKind};

use super::put;

/// The characters that a secret consists of.
type Set = fn(u8) -> bool;

/// How a secret is recognised after its literal beginning.
#[derive(Clone, Copy)]
enum Rule {
    /// The literal and these characters are the secret, if there are as many; among them is a digit.
    Token { set: Set, min: usize, max: usize },
    /// The same, and the literal stays.
    After { set: Set, min: usize },
    /// An assignment: after the literal come quotes, spaces, `:` or `=`, and then the secret.
    Assigned { set: Set, min: usize },
    /// A block in PEM.
    PrivateKey,
    /// Three parts in base64, the first two of them JSON objects.
    Jwt,
    /// The password before the host of a URL.
    Url,
}

const ALNUM: Set = |byte| byte.is_ascii_alphanumeric();
const WORD: Set = |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
const UPPER: Set = |byte| byte.is_ascii_uppercase() || byte.is_ascii_digit();
const BASE64: Set = |byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=');
const BEARER: Set = |byte| byte.is_ascii_alphanumeric() || b"._~+/=-".contains(&byte);
const DOTTED: Set = |byte| WORD(byte) || byte == b'.';

const fn token(set: Set, min: usize) -> Rule {
    Rule::Token { set, min, max: usize::MAX }
}

/// The name of a private key.
pub(super) const PRIVATE_KEY: &str = "private-key";

/// Whether a private key begins in this line and does not end in it.
pub(super) fn begins_key(line: &str) -> bool {
    let begun = line.rfind("-----BEGIN ").map(|start| &line[start..]);
    begun.is_some_and(|begun| begun.contains("PRIVATE KEY") && !begun.contains("-----END"))
}

/// Whether a line ends a private key.
pub(super) fn ends_key(line: &str) -> bool {
    line.contains("-----END")
}

/// Whether a line can belong to a private key that began before it.
pub(super) fn goes_on(line: &str) -> bool {
    ends_key(line) || line.bytes().all(|byte| looks_like_key(&byte))
}

/// Whether a character can stand in a block of a key: also in a header, and in the numbers and bars of tools that show files.
fn looks_like_key(byte: &u8) -> bool {
    BASE64(*byte) || byte.is_ascii_whitespace() || b"\\-:,|".contains(byte)
}

/// The longest block of a private key, and the longest user name and password of a URL, in bytes.
const BLOCK_BYTES_MAX: usize = 16 * 1024;
const LOGIN_BYTES_MAX: usize = 512;
/// The longest shape that is looked for around a cut, in bytes: a private key with its labels. A longer token is no
/// secret that anybody has.
pub(super) const BYTES_MAX: usize = BLOCK_BYTES_MAX + 256;

/// The names, the literals, and the rules.
const SHAPES: &[(&str, &[&str], Rule)] = &[
    (PRIVATE_KEY, &["-----BEGIN "], Rule::PrivateKey),
    ("api-key", &["sk-"], token(WORD, 20)),
    ("github-token", &["ghp_", "gho_", "ghu_", "ghs_", "ghr_"], token(ALNUM, 30)),
    ("github-token", &["github_pat_"], token(WORD, 40)),
    ("gitlab-token", &["glpat-"], token(WORD, 20)),
    ("slack-token", &["xoxb-", "xoxp-", "xoxa-", "xoxr-", "xoxs-"], token(WORD, 20)),
    ("aws-key-id", &["AKIA", "ASIA"], Rule::Token { set: UPPER, min: 16, max: 16 }),
    (
        "aws-secret-key",
        &["aws_secret_access_key", "AWS_SECRET_ACCESS_KEY", "SecretAccessKey", "aws_session_token"],
        Rule::Assigned { set: BASE64, min: 40 },
    ),
    ("google-key", &["AIza"], Rule::Token { set: WORD, min: 35, max: 35 }),
    ("google-token", &["ya29."], token(DOTTED, 30)),
    ("stripe-key", &["sk_live_", "rk_live_", "sk_test_", "rk_test_", "whsec_"], token(ALNUM, 16)),
    ("npm-token", &["npm_"], Rule::Token { set: ALNUM, min: 36, max: 36 }),
    ("pypi-token", &["pypi-AgE"], token(WORD, 50)),
    ("hugging-face-token", &["hf_"], token(ALNUM, 30)),
    ("digitalocean-token", &["dop_v1_", "doo_v1_", "dor_v1_"], token(ALNUM, 40)),
    ("sendgrid-key", &["SG."], token(DOTTED, 60)),
    ("shopify-token", &["shpat_", "shpss_", "shpca_"], token(ALNUM, 32)),
    ("jwt", &["eyJ"], Rule::Jwt),
    ("bearer-token", &["Bearer ", "bearer ", "BEARER ", "Bearer%20"], Rule::After { set: BEARER, min: 16 }),
    (
        "basic-login",
        &["uthorization: Basic ", "uthorization: basic ", "UTHORIZATION: Basic "],
        Rule::After { set: BASE64, min: 8 },
    ),
    (
        "api-key",
        &["x-api-key", "X-Api-Key", "X-API-Key", "X-API-KEY", "x-goog-api-key", "X-Goog-Api-Key"],
        Rule::Assigned { set: BEARER, min: 16 },
    ),
    ("password", &["://"], Rule::Url),
];

/// Whether a replacement has this name.
pub(super) fn is_name(name: &str) -> bool {
    SHAPES.iter().any(|(known, ..)| *known == name)
}

/// Replaces what looks like a secret.
pub(super) fn replaced(text: &str) -> Cow<'_, str> {
    let mut redacted = String::new();
    let mut end = 0;
    for (name, secret) in secrets(text.as_bytes()) {
        redacted.push_str(&text[end..secret.start]);
        put(&mut redacted, name);
        end = secret.end;
    }
    if end == 0 {
        return Cow::Borrowed(text);
    }
    redacted.push_str(&text[end..]);
    Cow::Owned(redacted)
}

/// Returns what looks like a secret, with the names, in the order of the text.
pub(super) fn secrets(text: &[u8]) -> impl Iterator<Item = (&'static str, Range<usize>)> {
    recognised(text).map(|(name, secret, _)| (name, secret))
}

/// Returns what it takes to recognise each secret: also the words before it, and the `@` behind a password.
pub(super) fn extents(text: &[u8]) -> impl Iterator<Item = Range<usize>> {
    recognised(text).map(|(_, _, extent)| extent)
}

/// Returns the names, the secrets, and what they are recognised by.
fn recognised(text: &[u8]) -> impl Iterator<Item = (&'static str, Range<usize>, Range<usize>)> {
    let (finder, shapes) = finder();
    let (mut end, mut at) = (0, 0);
    std::iter::from_fn(move || {
        loop {
            let found = finder.find(aho_corasick::Input::new(text).span(at..text.len()))?;
            let (name, _, rule) = SHAPES[shapes[found.pattern().as_usize()]];
            match secret(text, found.range(), rule) {
                Some(secret) if secret.start >= end => {
                    (end, at) = (secret.end, secret.end);
                    let behind = usize::from(matches!(rule, Rule::Url));
                    let extent = found.start().min(secret.start)..secret.end + behind;
                    return Some((name, secret, extent));
                }
                Some(_) | None => at = found.end(),
            }
        }
    })
}

/// Returns what finds the literals, and the shape of each of them.
fn finder() -> &'static (AhoCorasick, Vec<usize>) {
    static FINDER: OnceLock<(AhoCorasick, Vec<usize>)> = OnceLock::new();
    FINDER.get_or_init(|| {
        let literals = SHAPES.iter().enumerate();
        let literals =
            literals.flat_map(|(at, (_, literals, _))| literals.iter().map(move |text| (text, at)));
        let (literals, shapes): (Vec<&str>, Vec<usize>) = literals.map(|(text, at)| (*text, at)).unzip();
        let finder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(literals);
        (finder.expect("a few short literals are few enough"), shapes)
    })
}

/// Returns where the secret is, if there is one at this literal. Its ends are ASCII characters.
fn secret(text: &[u8], literal: Range<usize>, rule: Rule) -> Option<Range<usize>> {
    let run = |from: usize, set: Set| from + text[from..].iter().take_while(|byte| set(**byte)).count();
    let has_digit = |range: Range<usize>| text[range].iter().any(u8::is_ascii_digit);
    let is_inside = literal.start.checked_sub(1).is_some_and(|before| WORD(text[before]));
    match rule {
        Rule::Token { set, min, max } => {
            let end = run(literal.end, set);
            let length = end - literal.end;
            let fits = (min..=max).contains(&length) && has_digit(literal.end..end);
            (!is_inside && fits).then_some(literal.start..end)
        }
        Rule::After { set, min } => {
            let end = run(literal.end, set);
            (end - literal.end >= min && has_digit(literal.end..end)).then_some(literal.end..end)
        }
        Rule::Assigned { set, min } => {
            let between =
                |byte: &&u8| matches!(byte, b' ' | b'\t' | b'"' | b'\'' | b':' | b'=' | b'\\' | b'>');
            let separated = text[literal.end..].iter().take(12).take_while(between).count();
            let start = literal.end + separated;
            let end = run(start, set);
            (separated > 0 && end - start >= min && has_digit(start..end)).then_some(start..end)
        }
        Rule::PrivateKey => private_key(text, literal),
        Rule::Jwt => {
            let first = run(literal.start, WORD);
            let second = run((first + 1).min(text.len()), WORD);
            let third = run((second + 1).min(text.len()), WORD);
            let is_object = text.get(first..first + 4) == Some(b".eyJ".as_slice());
            let is_signed = text.get(second) == Some(&b'.') && third > second + 10;
            (!is_inside && first > literal.start + 10 && is_object && is_signed)
                .then_some(literal.start..third)
        }
        Rule::Url => {
            let rest = &text[literal.end..];
            let is_over = |byte: &u8| {
                byte.is_ascii_whitespace()
                    || matches!(byte, b'/' | b'?' | b'#' | b'"' | b'\'' | b'<' | b'>' | b'`')
            };
            let length = rest
                .iter()
                .take(LOGIN_BYTES_MAX)
                .position(is_over)
                .unwrap_or(rest.len().min(LOGIN_BYTES_MAX));
            let login = &rest[..length];
            let host = login.iter().rposition(|byte| *byte == b'@')?;
            let colon = login[..host].iter().position(|byte| *byte == b':')?;
            let password = &login[colon + 1..host];
            // Templates, and what was replaced already.
            let is_template = password.is_empty()
                || matches!(password[0], b'$' | b'{' | b'[' | b'%' | b'*' | b'<')
                || password == b"PASSWORD"
                || password.iter().all(|byte| matches!(byte, b'x' | b'X' | b'.'));
            let start = literal.end + colon + 1;
            (!is_template).then_some(start..start + password.len())
        }
    }
}

/// Returns the block of a private key, up to its end or to where it stops to look like one.
fn private_key(text: &[u8], literal: Range<usize>) -> Option<Range<usize>> {
    const LABEL: &[u8] = b"PRIVATE KEY";
    const DASHES: &[u8] = b"-----";
    let at = |from: usize, wanted: &[u8], max: usize| {
        let end = (from + max).min(text.len());
        text[from..end].windows(wanted.len()).position(|window| window == wanted).map(|found| from + found)
    };
    let label = at(literal.end, LABEL, 32)?;
    let content = at(label, DASHES, 32)? + DASHES.len();
    let end = at(content, b"-----END", BLOCK_BYTES_MAX).and_then(|end| {
        let label = at(end, LABEL, 48)?;
        Some(at(label, DASHES, 32)? + DASHES.len())
    });
    let end = end.unwrap_or_else(|| {
        content + text[content..].iter().take(BLOCK_BYTES_MAX).take_while(|byte| looks_like_key(byte)).count()
    });
    // A label without a key, for example in a program's text.
    (end - content >= 40).then_some(literal.start..end)
}
