//! What is wrong in a file is shown where it stands; every setting has a rule; files are put over one another.

use std::path::{Path, PathBuf};

use serde_norway::Value;

use super::edit::edited;
use super::layers::{Author, Files, Rule, Source, assemble, leaves, load, merge, rule};
use super::overrides::{self, variable_of};
use super::place::line_of;
use super::{Config, Overrides, keys, show};
use crate::surroundings::Surroundings;

fn problem(text: &str) -> String {
    let source =
        Source { path: PathBuf::from("greenroom.yaml"), text: text.to_owned(), author: Author::User };
    let (warnings, overrides) = (Vec::new(), Overrides::default());
    let files = Files { own: Some(source), project: None, warnings, overrides };
    let used = files.checked().and_then(|[own, project]| assemble(&files, own, project));
    used.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn problems_name_the_file_the_line_and_the_key() {
    for (text, parts) in [
        ("modle: x\n", &["greenroom.yaml", "modle", "line 1"][..]),
        ("model: x\ncompaction:\n  thresold: 0.7\n", &["compaction", "thresold", "line 3"]),
        ("model: x\ncompaction:\n  threshold: much\n", &["line 3: compaction.threshold: must be a number"]),
        (
            "model: x\ncompaction:\n  threshold: 7\n",
            &["greenroom.yaml, line 3: compaction.threshold: ", "fraction"],
        ),
        ("providers:\n  openai: { max_in_flight: 0 }\n", &["line 2: providers.openai.max_in_flight: "]),
        (
            "providers: { x: { base_url: 'http://x', max_in_flight: 0 } }\n",
            &["line 1: providers.x.max_in_flight: "],
        ),
        ("providers: { openai: { idle_timeout_s: 0 } }\n", &["line 1: providers.openai.idle_timeout_s: "]),
        (
            "model: x\nproviders:\n  local: { max_in_flight: 2 }\n",
            &["line 3: providers.local: ", "base_url is missing"],
        ),
        ("model: x\nproviders: { x: { base_url: 'http:x' } }\n", &["line 2", "base URL", "http://"]),
        (
            "model: x\nproviders: { 'a b': { base_url: 'http://x' } }\n",
            &["line 2: providers.a b: ", "letters"],
        ),
        (
            "model: x\nproviders: { openai: { api_key_env: sk-1 } }\n",
            &["line 2: providers.openai.api_key_env: ", "not the key"],
        ),
        (
            "provider: { base_url: 'http://x/v1' }\n",
            &["line 1: provider", "providers: { NAME: { base_url: \"http://x/v1\" } }"],
        ),
        ("provider: 'a b'\n", &["line 1: provider", "letters"]),
        ("trusted_folders: [x]\n", &["line 1: trusted_folders", "absolute"]),
        ("model_settings:\n  temperature: 3\n", &["line 2: model_settings.temperature: ", "0 to 2"]),
        ("model_settings:\n  temprature: 1\n", &["line 2", "temprature"]),
        ("model_settings: { reasoning_effort: huge }\n", &["line 1", "huge"]),
        (
            "models:\n  gpt-5.5:\n    extra: { messages: [] }\n",
            &["line 3: models.gpt-5.5.extra.messages: ", "cannot be set here"],
        ),
        ("limits:\n  steps_max: 0\n", &["line 2: limits.steps_max: "]),
        ("limits:\n  inputs_max: 0\n", &["line 2: limits.inputs_max: ", "at least 1"]),
        ("limits:\n  live_sessions_max: -1\n", &["line 2: limits.live_sessions_max: must be"]),
        (
            "providers: { openai: { tokens_per_minute: 0 } }\n",
            &["line 1: providers.openai.tokens_per_minute: ", "at least 1"],
        ),
        ("limits:\n  retries: 1\n", &["limits", "retries", "line 2"]),
        ("limits: { cost_usd_max: -1 }\n", &["line 1: limits.cost_usd_max: ", "dollars"]),
        ("limits: { cost_usd_max: .nan }\n", &["line 1: limits.cost_usd_max: ", "dollars"]),
        ("compaction: [\n", &["greenroom.yaml", "line"]),
        ("model: ''\n", &["line 1: model"]),
        ("context_window: -3\n", &["line 1: context_window: must be a whole number"]),
        // Keys of one name in several sections: the one that is wrong.
        (
            "compaction: { context_window: 9000 }\nmodels:\n  a: { context_window: 9000 }\n  b:\n    context_window: x\n",
            &["line 5: models.b.context_window: must be"],
        ),
        ("models:\n  m:\n    temperature: 'x'\n", &["line 3: models.m.temperature: must be a number"]),
        (
            "models:\n  m.n:\n    # a comment\n    compaction:\n      threshold: 'x'\n",
            &["line 5: models.m.n.compaction.threshold: must be a number"],
        ),
        ("models:\n  m:\n    temprature: 1\n", &["line 3: models.m", "temprature"]),
        ("serve:\n  connections_max: 1\n", &["line 2: serve.connections_max: must be at least 2"]),
        (
            "limits:\n  run_timeout_s: 99999999999999999999\n",
            &["line 2: limits.run_timeout_s: must be a smaller number"],
        ),
        (
            "limits:\n  steps_max: 3\n  steps_max: 4\n",
            &["greenroom.yaml, line ", "limits: twice there: steps_max"],
        ),
        ("model: !x y\n", &["greenroom.yaml", "tag"]),
        ("model: !!python/object:os.system ls\n", &["greenroom.yaml", "tag"]),
        ("limits: { steps_max: !!int \"5\" }\n", &["greenroom.yaml", "tag"]),
        ("limits:\n  steps_max: !<tag:yaml.org,2002:int> 5\n", &["greenroom.yaml", "tag"]),
        ("%TAG ! tag:yaml.org,2002:\n---\nmodel: !str 5\n", &["greenroom.yaml", "tag"]),
    ] {
        let problem = problem(text);
        for part in parts {
            assert!(problem.contains(part), "{text:?}: {problem:?} does not name {part:?}");
        }
    }
    for text in ["", "# nothing yet\n", "compaction: { threshold: null }\n", "compaction: {}\n", "limits:\n"]
    {
        assert_eq!(problem(text), "", "{text:?}");
    }
}

#[test]
fn every_setting_has_a_rule_for_files_of_projects() {
    let users_alone = [
        "host",
        "model_settings",
        "models",
        "project_instructions",
        "providers",
        "serve",
        "skills",
        "trusted_folders",
    ];
    // They hold for all sessions of a process, those of other folders too.
    let of_the_process = ["limits.inputs_max", "limits.live_sessions_max"];
    let mut seen = 0;
    let Value::Mapping(defaults) = serde_norway::to_value(Config::default()).expect("YAML") else { return };
    for (name, value) in &defaults {
        let name = name.as_str().expect("a name");
        if matches!(name, "limits" | "compaction") {
            for key in value.as_mapping().expect("a section").keys() {
                let key = format!("{name}.{}", key.as_str().expect("a name"));
                if of_the_process.contains(&key.as_str()) {
                    assert_eq!(rule(&key), Rule::UsersAlone, "{key}");
                    continue;
                }
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
    for limit in limits.keys().filter_map(Value::as_str).map(|limit| format!("limits.{limit}")) {
        let of_the_process = of_the_process.contains(&limit.as_str());
        assert_eq!(rule(&limit) == Rule::Lower, !of_the_process, "{limit}");
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
    let text = show::defaults().expect("YAML");
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

#[test]
fn every_setting_has_a_name_and_a_variable_of_its_own() {
    let settings = keys::settings();
    let defaults = serde_norway::to_value(Config::default()).expect("YAML");
    let mut seen = 0;
    for (parts, _) in leaves(&defaults) {
        let key = parts.join(".");
        if !matches!(key.as_str(), "model_settings" | "models") {
            assert_eq!(keys::parts(&key), Some(parts), "{key}");
            seen += 1;
        }
    }
    assert!(seen >= 40, "{seen}");
    let mut variables: Vec<String> = settings.iter().map(|setting| variable_of(&setting.key)).collect();
    variables.sort();
    variables.dedup();
    assert_eq!(variables.len(), settings.len());
    let parts = |key: &str| keys::parts(key).map(|parts| parts.join("|"));
    for (key, wanted) in [
        ("model", Some("model")),
        ("providers.a.b.base_url", Some("providers|a.b|base_url")),
        ("models.gpt-5.5.temperature", Some("models|gpt-5.5|temperature")),
        ("models.gpt-5.5.compaction.threshold", Some("models|gpt-5.5|compaction|threshold")),
        ("models.gpt-5.5.compaction", Some("models|gpt-5.5|compaction")),
        ("compaction", Some("compaction")),
        ("compaction.thresold", None),
        ("models..temperature", None),
        ("models.temperature", None),
        ("providers.base_url", None),
        ("", None),
    ] {
        assert_eq!(parts(key).as_deref(), wanted, "{key}");
    }
    assert_eq!(keys::similar("compaction.thresold"), Some("compaction.threshold"));
    assert_eq!(keys::similar("threshold"), Some("compaction.threshold"));
    assert_eq!(keys::similar("weather"), None);
}

#[test]
fn a_value_from_outside_a_file_is_read_as_in_one() {
    let read = |key: &str, text: &str| {
        let parts = keys::parts(key).expect("a setting");
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let value =
            overrides::read("here", &parts, text, Path::new("")).map_err(|error| error.to_string())?;
        Ok::<_, String>(show::flow(&value).expect("a line"))
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

#[test]
fn settings_without_effect_are_warned_of() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("own.yaml");
    let text = "compaction:\n  threshold: 0.7\n  soft_threshold: 0.5\nmodels: { m: { compaction: { background: true } } }\n";
    std::fs::write(&path, text).expect("written");
    let flags = ["compaction.background=false".to_owned()];
    let overrides = Overrides::read(&flags, &Surroundings::default()).expect("a setting");
    let mut warnings = load(Some(&path), overrides).expect("it is valid").warnings;
    // Whoever runs this may have variables of their own.
    warnings.retain(|warning| !warning.starts_with("the variable "));
    let starts: Vec<String> = [
        format!("{}, line 3: compaction.soft_threshold: ", path.display()),
        format!("{}, line 4: models.m.compaction.background: ", path.display()),
        "--set compaction.background: ".to_owned(),
    ]
    .into();
    assert_eq!(warnings.len(), starts.len(), "{warnings:?}");
    for (warning, start) in warnings.iter().zip(starts) {
        assert!(
            warning.starts_with(&start) && warning.contains("has no effect yet"),
            "{start}: {warnings:?}"
        );
    }
}

#[test]
fn a_model_has_settings_of_its_own() {
    let config: Config =
        serde_norway::from_str("context_window: 9000\nmodels: { m: { context_window: 32000, temperature: 1, compaction: { threshold: 0.5 } } }\n")
            .expect("it is usable");
    assert_eq!((config.window_of("m"), config.window_of("n")), (Some(32_000), Some(9_000)));
    let over = config.models["m"].compaction_over(&config.compaction).expect("usable").expect("it differs");
    assert_eq!(over.threshold, Some(0.5));
    assert_eq!(over.reserve_tokens, config.compaction.reserve_tokens);
    for (text, parts) in [
        ("models:\n  m:\n    compaction: { thresold: 1 }\n", &["line 3", "thresold"][..]),
        (
            "models:\n  m:\n    compaction: { threshold: 7 }\n",
            &["line 3: models.m.compaction.threshold: ", "fraction"],
        ),
        ("models:\n  m:\n    context_window: 0\n", &["line 3: models.m.context_window: "]),
        ("models:\n  m:\n    temprature: 1\n", &["line 3", "temprature"]),
    ] {
        let problem = problem(text);
        assert!(parts.iter().all(|part| problem.contains(part)), "{text:?}: {problem:?}");
    }
}

#[test]
fn a_missing_file_is_named() {
    let error =
        load(Some(&PathBuf::from("no/such.yaml")), Overrides::default()).err().expect("it is missing");
    assert!(error.to_string().contains("no/such.yaml"), "{error}");
}

#[test]
fn exclamation_marks_in_texts_and_comments_are_no_tags() {
    for (text, prompt) in [
        ("compact_prompt: \"Be brief!! {messages}\" # now !!\n", "Be brief!! {messages}"),
        ("compact_prompt: |\n  !! {messages}\n  !!str x\n", "!! {messages}\n!!str x\n"),
        ("# !!str\ncompact_prompt: Well!!done {messages}\n", "Well!!done {messages}"),
    ] {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("greenroom.yaml");
        std::fs::write(&path, format!("compaction:\n  {}", text.replace('\n', "\n  "))).expect("written");
        let loaded =
            load(Some(&path), Overrides::default()).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(loaded.config.compaction.compact_prompt.as_deref(), Some(prompt), "{text}");
    }
}
