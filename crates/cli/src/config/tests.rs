//! What is wrong in a file is shown where it stands; and a file that lies about does not get the key.

use std::path::PathBuf;

use serde_norway::Value;

use super::{Config, Source, check, is_local, line_of, load, merge, to_yaml};

fn problem(text: &str, is_trusted: bool) -> String {
    let source = Source { path: PathBuf::from("greenroom.yaml"), text: text.to_owned(), is_trusted };
    check(&source).err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn problems_name_the_file_the_line_and_the_key() {
    for (text, parts) in [
        ("modle: x\n", &["greenroom.yaml", "modle", "line 1"][..]),
        ("model: x\ncompaction:\n  thresold: 0.7\n", &["compaction", "thresold", "line 3"]),
        ("model: x\ncompaction:\n  threshold: much\n", &["threshold", "line 3"]),
        ("model: x\ncompaction:\n  threshold: 7\n", &["greenroom.yaml, line 3: threshold", "fraction"]),
        ("provider:\n  max_in_flight: 0\n", &["line 2: max_in_flight"]),
        ("provider: { base_url: 'http://x', max_in_flight: 0 }\n", &["line 1: max_in_flight"]),
        ("provider: { idle_timeout_s: 0 }\n", &["line 1: idle_timeout_s"]),
        ("limits:\n  steps_max: 0\n", &["line 2: steps_max"]),
        ("limits:\n  retries: 1\n", &["limits", "retries", "line 2"]),
        ("limits: { cost_usd_max: -1 }\n", &["line 1: cost_usd_max", "dollars"]),
        ("compaction: [\n", &["greenroom.yaml", "line"]),
        ("model: ''\n", &["line 1: model"]),
        ("context_window: -3\n", &["context_window", "line 1"]),
    ] {
        let problem = problem(text, true);
        for part in parts {
            assert!(problem.contains(part), "{text:?}: {problem:?} does not name {part:?}");
        }
    }
    for text in ["", "# nothing yet\n", "compaction: { threshold: null }\n", "compaction: {}\n"] {
        assert_eq!(problem(text, true), "", "{text:?}");
    }
}

#[test]
fn a_file_that_lies_about_does_not_get_the_key() {
    for (text, is_refused) in [
        ("provider: { base_url: 'https://elsewhere.example/v1' }\n", true),
        ("provider: { base_url: 'http://localhost@elsewhere.example/v1' }\n", true),
        ("provider: { base_url: 'http://localhost.elsewhere.example/v1' }\n", true),
        ("provider: { api_key_env: AWS_SECRET_ACCESS_KEY }\n", true),
        ("provider: { base_url: 'http://127.0.0.1:8080/v1' }\n", false),
        ("provider: { base_url: 'http://[::1]:8080/v1' }\n", false),
        ("provider: { base_url: 'http://localhost/v1' }\n", false),
        ("model: other\n", false),
    ] {
        assert_eq!(!problem(text, false).is_empty(), is_refused, "{text:?}");
        assert_eq!(problem(text, true), "", "{text:?}");
    }
    assert!(!is_local("https://api.openai.com/v1"));
}

#[test]
fn files_are_merged_key_by_key() {
    let value = |text: &str| serde_norway::from_str::<Value>(text).expect("YAML");
    let mut base = value("model: a\ncompaction: { threshold: 0.7, background: false }\n");
    merge(&mut base, value("context_window: 9\ncompaction: { threshold: null, cut: nearest }\n"));
    let expect = value(
        "model: a\ncompaction: { threshold: 0.7, background: false, cut: nearest }\ncontext_window: 9\n",
    );
    // `null` over a value leaves it: a file that says nothing changes nothing.
    assert_eq!(base, expect);
}

#[test]
fn the_defaults_can_be_written_and_read() {
    let text = to_yaml(&Config::default()).expect("YAML");
    assert_eq!(problem(&text, false), "");
    let read: Config = serde_norway::from_str(&text).expect("what was written");
    assert_eq!(read, Config::default());
    assert_eq!(line_of(&text, "model"), Some(1));
}

#[test]
fn a_missing_file_is_named() {
    let error = load(Some(&PathBuf::from("no/such.yaml"))).expect_err("it is missing");
    assert!(error.to_string().contains("no/such.yaml"), "{error}");
}
