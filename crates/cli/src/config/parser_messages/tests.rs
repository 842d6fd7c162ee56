//! The parser's messages before and after translation.

use super::plain;
use crate::config::Config;

#[test]
fn types_are_told_in_words() {
    for (said, told) in [
        (
            "limits.steps_max: invalid type: string \"x\", expected u32 at line 1 column 22",
            "limits.steps_max: must be a whole number that is not negative, not the text \"x\"",
        ),
        (
            "limits.steps_max: invalid value: integer `-1`, expected u32 at line 1 column 22",
            "limits.steps_max: must be a whole number that is not negative, not -1",
        ),
        (
            "limits: invalid type: sequence, expected struct LimitsConfig",
            "limits: must be a section with keys of its own, not a list",
        ),
        ("model: invalid type: map, expected a string", "model: must be a text, not a section"),
        ("model: invalid type: unit value, expected a string", "model: must be a text, not nothing"),
        (
            "data did not match any variant of untagged enum UnknownWindowText",
            "must be a number of tokens, or `disable`",
        ),
        ("unknown field `treshold`, expected `a`", "unknown key `treshold`, expected `a`"),
        ("did not find expected node content", "did not find expected node content"),
    ] {
        assert_eq!(plain(said), told);
    }
}

/// Every setting with values of all wrong types: no message names a type of the program.
#[test]
fn no_message_names_a_type() {
    const TYPES: [&str; 14] = [
        "u8", "u16", "u32", "u64", "usize", "i64", "f64", "struct", "enum", "Config", "Settings", "Text",
        "Option", "untagged",
    ];
    let mut messages = 0;
    let keys = [
        "model", "context_window", "provider", "providers", "providers: { p", "model_settings", "models",
        "models: { m", "limits", "compaction", "retention", "rewind", "serve", "trusted_folders",
        "limits: { steps_max", "limits: { cost_usd_max", "limits: { run_timeout_s", "compaction: { enabled",
        "compaction: { threshold", "compaction: { reserve_tokens", "compaction: { strategy",
        "compaction: { cut", "compaction: { unknown_window", "compaction: { estimator",
        "compaction: { summary_model", "serve: { listen", "serve: { host_names", "serve: { connections_max",
        "model_settings: { temperature", "model_settings: { reasoning_effort",
        "model_settings: { tool_choice", "model_settings: { stop", "model_settings: { seed",
        "model_settings: { extra", "model_settings: { resend_reasoning", "providers: { p: { base_url",
        "providers: { p: { in_flight_max", "providers: { p: { api_key_env",
    ];
    for key in keys {
        for value in ["some text", "-1", "1.5", "true", "[1]", "{ a: 1 }", "[]", "99999999999999999999999"] {
            let closing = "}".repeat(key.matches('{').count());
            let text = format!("{key}: {value} {closing}");
            let Err(error) = serde_norway::from_str::<Config>(&text) else { continue };
            messages += 1;
            let told = plain(&error.to_string());
            let words: Vec<&str> = told.split(|c: char| !c.is_alphanumeric()).collect();
            for name in TYPES {
                let is_named =
                    words.iter().any(|word| *word == name || (name.len() > 5 && word.ends_with(name)));
                assert!(!is_named, "{text}: {told} ({error})");
            }
            assert!(!told.contains("invalid type") && !told.contains("invalid value"), "{text}: {told}");
        }
    }
    assert!(messages >= 150, "{messages}");
}
