//! What is wrong in a file is shown where it stands; every setting has a rule; files are put over one another.

use std::path::PathBuf;

use serde_norway::Value;

use super::layers::{Author, Rule, Source, checked, line_of, load, merge, rule};
use super::{Config, to_yaml};

fn problem(text: &str, author: Author) -> String {
    let source = Source { path: PathBuf::from("greenroom.yaml"), text: text.to_owned(), author };
    checked(&source, author == Author::User).err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn problems_name_the_file_the_line_and_the_key() {
    for (text, parts) in [
        ("modle: x\n", &["greenroom.yaml", "modle", "line 1"][..]),
        ("model: x\ncompaction:\n  thresold: 0.7\n", &["compaction", "thresold", "line 3"]),
        ("model: x\ncompaction:\n  threshold: much\n", &["threshold", "line 3"]),
        ("model: x\ncompaction:\n  threshold: 7\n", &["greenroom.yaml, line 3: threshold", "fraction"]),
        ("providers:\n  openai: { max_in_flight: 0 }\n", &["line 2: max_in_flight"]),
        ("providers: { x: { base_url: 'http://x', max_in_flight: 0 } }\n", &["line 1: max_in_flight"]),
        ("providers: { openai: { idle_timeout_s: 0 } }\n", &["line 1: idle_timeout_s"]),
        ("model: x\nproviders:\n  local: { max_in_flight: 2 }\n", &["line 3: local", "base_url is missing"]),
        ("model: x\nproviders: { x: { base_url: 'http:x' } }\n", &["line 2", "base URL", "http://"]),
        ("model: x\nproviders: { 'a b': { base_url: 'http://x' } }\n", &["line 2: providers", "letters"]),
        ("model: x\nproviders: { openai: { api_key_env: sk-1 } }\n", &["line 2: api_key_env", "not the key"]),
        (
            "provider: { base_url: 'http://x/v1' }\n",
            &["line 1: provider", "providers: { NAME: { base_url: \"http://x/v1\" } }"],
        ),
        ("provider: 'a b'\n", &["line 1: provider", "letters"]),
        ("trusted_folders: [x]\n", &["line 1: trusted_folders", "absolute"]),
        ("model_settings:\n  temperature: 3\n", &["line 2: temperature", "0 to 2"]),
        ("model_settings:\n  temprature: 1\n", &["line 2", "temprature"]),
        ("model_settings: { reasoning_effort: huge }\n", &["line 1", "huge"]),
        ("models:\n  gpt-5.5:\n    extra: { messages: [] }\n", &["line 3: messages", "cannot be set here"]),
        ("limits:\n  steps_max: 0\n", &["line 2: steps_max"]),
        ("limits:\n  retries: 1\n", &["limits", "retries", "line 2"]),
        ("limits: { cost_usd_max: -1 }\n", &["line 1: cost_usd_max", "dollars"]),
        ("limits: { cost_usd_max: .nan }\n", &["line 1: cost_usd_max", "dollars"]),
        ("compaction: [\n", &["greenroom.yaml", "line"]),
        ("model: ''\n", &["line 1: model"]),
        ("context_window: -3\n", &["context_window", "line 1"]),
        ("model: !x y\n", &["greenroom.yaml", "tag"]),
    ] {
        let problem = problem(text, Author::User);
        for part in parts {
            assert!(problem.contains(part), "{text:?}: {problem:?} does not name {part:?}");
        }
    }
    for text in ["", "# nothing yet\n", "compaction: { threshold: null }\n", "compaction: {}\n", "limits:\n"]
    {
        assert_eq!(problem(text, Author::User), "", "{text:?}");
    }
}

#[test]
fn every_setting_has_a_rule_for_files_of_projects() {
    let users_alone = ["model_settings", "models", "providers", "serve", "trusted_folders"];
    let mut seen = 0;
    let Value::Mapping(defaults) = serde_norway::to_value(Config::default()).expect("YAML") else { return };
    for (name, value) in &defaults {
        let name = name.as_str().expect("a name");
        if matches!(name, "limits" | "compaction") {
            for key in value.as_mapping().expect("a section").keys() {
                let key = format!("{name}.{}", key.as_str().expect("a name"));
                assert_ne!(rule(&key), Rule::UsersAlone, "{key}: what may a project's file do with it?");
                seen += 1;
            }
        } else {
            assert_eq!(rule(name) == Rule::UsersAlone, users_alone.contains(&name), "{name}");
            seen += 1;
        }
    }
    assert!(seen >= 25, "{seen}");
    let limits = defaults.get("limits").and_then(Value::as_mapping).expect("a section");
    assert!(limits.len() >= 8, "{limits:?}");
    for limit in limits.keys().filter_map(Value::as_str) {
        assert_eq!(rule(&format!("limits.{limit}")), Rule::Lower, "{limit}");
    }
}

#[test]
fn files_are_merged_key_by_key() {
    let value = |text: &str| serde_norway::from_str::<Value>(text).expect("YAML");
    let mut base =
        value("model: a\nlimits: { steps_max: 3 }\ncompaction: { threshold: 0.7, background: false }\n");
    merge(&mut base, value("context_window: 9\nlimits:\ncompaction: { threshold: null, cut: nearest }\n"));
    let expect = value(
        "model: a\nlimits: { steps_max: 3 }\ncompaction: { threshold: null, background: false, cut: nearest }\n\
         context_window: 9\n",
    );
    // `null` turns a setting off; an empty section says nothing.
    assert_eq!(base, expect);
}

#[test]
fn the_defaults_can_be_written_and_read() {
    let text = to_yaml(&Config::default()).expect("YAML");
    assert_eq!(problem(&text, Author::User), "");
    let read: Config = serde_norway::from_str(&text).expect("what was written");
    assert_eq!(read, Config::default());
    assert_eq!(line_of(&text, "model"), Some(1));
}

#[test]
fn a_missing_file_is_named() {
    let error = load(Some(&PathBuf::from("no/such.yaml"))).err().expect("it is missing");
    assert!(error.to_string().contains("no/such.yaml"), "{error}");
}
