//! Names and values of variables that are secrets, and that are not.

use super::{can_be_secret, is_secret_name, password_of};

#[test]
fn secrets_are_recognised_by_name_and_value() {
    let secret = [
        "OPENAI_API_KEY", "GH_TOKEN", "aws_secret_access_key", "DB_PASSWORD", "PGPASSWORD_FILE",
        "SENTRY_DSN", "GOOGLE_APPLICATION_CREDENTIALS",
    ];
    let other = ["HOME", "TOKENIZERS_PARALLELISM", "KEYBOARD", "PATH", "PWD", "OLDPWD", "MAX_TOKENS"];
    for (names, expected) in [(&secret[..], true), (&other[..], false)] {
        names.iter().for_each(|name| assert_eq!(is_secret_name(name), expected, "{name}"));
    }
    let secret = ["a1b2c3d4", "correct horse battery staple", "Hunter2Hunter2", "xkcd-correct-horse-battery"];
    let other = ["disabled", "/home/me/.keys", "~/.netrc", "12345678", "none", "not-needed", "$OTHER"];
    for (values, expected) in [(&secret[..], true), (&other[..], false)] {
        values.iter().for_each(|value| assert_eq!(can_be_secret(value), expected, "{value}"));
    }
}

#[test]
fn the_password_of_a_url_is_a_secret() {
    for (value, expected) in [
        ("http://me:p%40ss@proxy:3128/", Some("p%40ss")),
        ("postgres://u:a:b@host/db?x=@", Some("a:b")),
        ("http://proxy:3128", None),
        ("ssh://git@host/a:b@c", None),
        ("plain", None),
    ] {
        assert_eq!(password_of(value), expected, "{value}");
    }
}
