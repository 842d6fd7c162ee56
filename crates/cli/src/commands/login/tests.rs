//! Whose a key is.

use super::provider_of;

#[test]
fn the_form_of_a_key_says_whose_it_is() {
    for (key, expected) in [
        ("sk-ant-api03-x", Some("anthropic")),
        ("AIzaSyX", Some("google")),
        ("sk-proj-x", Some("openai")),
        ("sk-x", Some("openai")),
        ("sk-or-v1-x", None),
        ("gsk_x", None),
        ("", None),
    ] {
        assert_eq!(provider_of(key), expected, "{key}");
    }
}
