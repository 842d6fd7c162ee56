//! The printed configuration is valid, and an edit changes only one setting.

use std::path::Path;

use serde_norway::Value;

use super::edit::edited;
use super::{defaults, flow, meaning, with_model_settings};
use crate::config::layers::{Rule, get, rule};
use crate::config::place::line_of;
use crate::config::tests::problem;
use crate::config::{Config, ProviderConfig, keys, overrides};

#[test]
fn the_defaults_can_be_written_and_read() {
    let text = defaults().expect("YAML");
    assert_eq!(problem(&text), "");
    let read: Config = serde_norway::from_str(&text).expect("what was written");
    assert_eq!(read, Config::default());
    for setting in keys::settings().iter().filter(|setting| !setting.is_named()) {
        let parts: Vec<&str> = setting.key.split('.').collect();
        let line = line_of(&text, &parts).unwrap_or_else(|| panic!("{} is not in it", setting.key));
        let before = text.lines().nth(line - 2).expect("a line before");
        assert!(before.trim_start().starts_with("# "), "{}: {before:?}", setting.key);
        assert!(!setting.about.is_empty(), "{}: what does it mean?", setting.key);
    }
}

/// `GREENROOM_WRITE_SCHEMAS=1 cargo test -p greenroom-cli schema` rewrites both.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a change of a setting is intended, and the files are rewritten"
)]
fn the_checked_in_schema_and_the_tables_of_settings_are_those_of_the_types() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let page = std::fs::read_to_string(docs.join("configuration.md")).expect("the page");
    let (before, rest) = page.split_once("<!-- settings -->\n").expect("the beginning of the tables");
    let (_, after) = rest.split_once("<!-- end of settings -->").expect("the end of the tables");
    let page = format!("{before}<!-- settings -->\n{}<!-- end of settings -->{after}", tables());
    let schema = format!("{}\n", serde_json::to_string_pretty(&keys::schema()).expect("JSON"));
    for (name, wanted) in [("configuration.md", page), ("schema/config.json", schema)] {
        let path = docs.join(name);
        if std::env::var_os("GREENROOM_WRITE_SCHEMAS").is_some() {
            std::fs::write(&path, &wanted).expect("the file is written");
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            there == wanted,
            "docs/{name} is not what the types say; write it with GREENROOM_WRITE_SCHEMAS=1"
        );
    }
}

/// A table for each section of the settings, and one for the others.
fn tables() -> String {
    let provider = serde_norway::to_value(ProviderConfig::default()).expect("YAML");
    let mut all = with_model_settings(serde_norway::to_value(Config::default()).expect("YAML"));
    all["providers"] = Value::Mapping([(keys::NAME.into(), provider)].into_iter().collect());
    let (mut of_none, mut of_sections) = (String::new(), String::new());
    for setting in keys::settings() {
        let parts: Vec<String> = setting.key.split('.').map(str::to_owned).collect();
        let text = meaning(setting).replace('|', "\\|");
        let default = get(&all, &parts).map(|value| flow(value).expect("a line"));
        let row = || {
            let may = match rule(&setting.key) {
                Rule::Choose => "sets",
                Rule::Lower => "lowers",
                Rule::Add => "adds",
                Rule::Stricter => "tightens",
                Rule::Restrict => "restricts",
                Rule::Text => "if trusted",
                Rule::UsersAlone => "",
            };
            format!("| `{}` | `{}` | {may} | {text} |\n", setting.key, default.clone().unwrap_or_default())
        };
        match setting.key.split_once('.') {
            // They are explained where they apply to all models.
            Some(("models", _)) => {}
            Some(_) => of_sections.push_str(&row()),
            None if keys::settings()
                .iter()
                .any(|other| other.key.starts_with(&format!("{}.", setting.key))) =>
            {
                of_sections.push_str(&format!("\n### Settings of `{}`\n\n{text}\n", setting.key));
                if setting.key != "models" {
                    of_sections.push_str(&format!("\n{HEAD}"));
                }
            }
            None => of_none.push_str(&row()),
        }
    }
    format!("\n{HEAD}{of_none}{of_sections}\n")
}

/// The head of a table.
const HEAD: &str = "| setting | default | project's file | |\n|---|---|---|---|\n";

#[test]
fn a_value_from_outside_a_file_is_read_as_in_one() {
    let read = |key: &str, text: &str| {
        let parts = keys::parts(key).expect("a setting");
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let value =
            overrides::read("here", &parts, text, Path::new("")).map_err(|error| error.to_string())?;
        Ok::<_, String>(flow(&value).expect("a line"))
    };
    for (key, text, wanted) in [
        ("model", "123", r#"{"model":"123"}"#),
        ("model", "'a'", r#"{"model":"a"}"#),
        ("system_prompt", "a: b\nc", r#"{"system_prompt":"a: b\nc"}"#),
        ("compaction.threshold", "0.7", r#"{"compaction":{"threshold":0.7}}"#),
        ("compaction.threshold", "null", r#"{"compaction":{"threshold":null}}"#),
        ("compaction.unknown_window", "disable", r#"{"compaction":{"unknown_window":"disable"}}"#),
        ("compaction.unknown_window", "9000", r#"{"compaction":{"unknown_window":9000}}"#),
        ("model_settings.stop", "[a, b]", r#"{"model_settings":{"stop":["a","b"]}}"#),
        ("limits.inputs_max", "null", r#"{"limits":{"inputs_max":null}}"#),
        (
            "providers.openai.tokens_per_minute",
            "9000",
            r#"{"providers":{"openai":{"tokens_per_minute":9000}}}"#,
        ),
        ("models.x.y.temperature", "1", r#"{"models":{"x.y":{"temperature":1}}}"#),
        ("models.\"x.y\".temperature", "1", r#"{"models":{"x.y":{"temperature":1}}}"#),
        ("models.'x.y'.temperature", "1", r#"{"models":{"x.y":{"temperature":1}}}"#),
        ("providers", "{l: {base_url: 'http://l/v1'}}", r#"{"providers":{"l":{"base_url":"http://l/v1"}}}"#),
    ] {
        assert_eq!(read(key, text).as_deref(), Ok(wanted), "{key}={text}");
    }
    for (key, text, wanted) in [
        ("compaction.threshold", "much", "here: must be a number, not the text \"much\""),
        ("compaction.threshold", "7", "here: must be a fraction"),
        ("limits.steps_max", "-1", "here: must be a whole number"),
        ("models.x.y.temperature", "warm", "here: must be a number"),
        ("context_window", "[", "here: "),
        ("limits.inputs_max", "0", "here: must be at least 1"),
    ] {
        let problem = read(key, text).expect_err(key);
        assert!(problem.starts_with(wanted) && !problem.contains("line"), "{key}={text}: {problem}");
    }
    for unknown in ["models.x.compaction.thresold", "limits.inputs", "providers.l.tokens"] {
        assert_eq!(keys::parts(unknown), None, "{unknown}");
    }
}

#[test]
fn an_edit_changes_one_setting_and_leaves_the_text() {
    let check = |before: &str, key: &str, value: Option<&str>, after: Option<&str>| {
        let parts = keys::parts(key).expect("a setting");
        let value = value.map(|text| serde_norway::from_str::<Value>(text).expect("YAML"));
        assert_eq!(edited(before, &parts, value.as_ref()).as_deref(), after, "{before:?}: {key}");
    };
    let file = "# mine\nmodel: a  # why\n\ncompaction:\n    # early\n    threshold: 0.7\n\n# limits\nlimits:\n  steps_max: 3\n";
    check(file, "model", Some("b"), Some(&file.replace("model: a  # why", "model: b  # why")));
    check(file, "compaction.threshold", Some("0.5"), Some(&file.replace("0.7", "0.5")));
    check(file, "compaction.cut", Some("nearest"), Some(&file.replace("0.7\n", "0.7\n    cut: nearest\n")));
    check(file, "limits.retries_max", Some("1"), Some(&format!("{file}  retries_max: 1\n")));
    check(file, "context_window", Some("9"), Some(&format!("{file}context_window: 9\n")));
    check(file, "compaction.threshold", None, Some(&file.replace("    threshold: 0.7\n", "")));
    check(file, "provider", None, Some(file));
    check(
        "",
        "providers.l.base_url",
        Some("http://l/v1"),
        Some("providers:\n  l:\n    base_url: http://l/v1\n"),
    );
    check("model: a\r\n# b\r\n", "model", Some("c"), Some("model: c\r\n# b\r\n"));
    check("model: a\n", "model", None, Some(""));
    check("# mine\nmodel: a\n", "model", None, Some("# mine\n"));
    check("models:\n  m:\n    temperature: 1\n", "models.m.temperature", None, Some("models:\n  m:\n"));
    check("limits:\n", "limits.steps_max", Some("2"), Some("limits:\n  steps_max: 2\n"));
    check("limits: {}\n", "limits.steps_max", Some("2"), Some("limits:\n  steps_max: 2\n"));
    check("limits: { steps_max: 3 }\n", "limits.steps_max", Some("2"), None);
    check("model: 'a # b'\n", "model", Some("c"), Some("model: c\n"));
    check("compact: [\n", "model", Some("c"), None);
    check(
        "system_prompt: |\n  one\n  two\nmodel: a\n",
        "system_prompt",
        Some("x"),
        Some("system_prompt: x\nmodel: a\n"),
    );
    check(
        "model: a\nmodel_settings:\n  stop:\n  - x\n  - y\n",
        "model_settings.stop",
        None,
        Some("model: a\nmodel_settings:\n"),
    );
}
