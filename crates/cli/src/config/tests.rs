//! Errors in files with their positions, a rule for every setting, and merging.

use std::path::PathBuf;

use serde_norway::Value;

use super::layers::{Author, Files, Source, assemble, leaves, load, merge};
use super::layers::{Rule, is_section, rule};
use super::overrides::variable_of;
use super::{Config, Overrides, keys};

/// Returns the problem with a file, or an empty text.
pub(crate) fn problem(text: &str) -> String {
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
        ("providers:\n  openai: { in_flight_max: 0 }\n", &["line 2: providers.openai.in_flight_max: "]),
        (
            "providers: { x: { base_url: 'http://x', in_flight_max: 0 } }\n",
            &["line 1: providers.x.in_flight_max: "],
        ),
        ("providers: { openai: { idle_timeout_s: 0 } }\n", &["line 1: providers.openai.idle_timeout_s: "]),
        (
            "model: x\nproviders:\n  local: { in_flight_max: 2 }\n",
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
        ("provider: { base_url: 'http://x/v1' }\n", &["line 1: provider: must be"]),
        ("provider: 'a b'\n", &["line 1: provider", "letters"]),
        ("permissions:\n  deny: ['rm -rf']\n", &["line 2: permissions.deny", "begins with a tool's name"]),
        ("permissions:\n  mode: yolo\n", &["line 2: permissions.mode", "accept_edits"]),
        ("trusted_folders: [x]\n", &["line 1: trusted_folders", "absolute"]),
        ("model_settings:\n  temperature: 3\n", &["line 2: model_settings.temperature: ", "0 to 2"]),
        ("model_settings:\n  temprature: 1\n", &["line 2", "temprature"]),
        ("model_settings: { reasoning_effort: huge }\n", &["line 1", "huge"]),
        ("providers: { openai: { resend_reasoning: always } }\n", &["line 1", "`reasoning_content`"]),
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
        (
            "limits:\n  labels:\n    tenant: { runs_max: 0 }\n",
            &["line 3: limits.labels.tenant.runs_max: ", "at least 1"],
        ),
        (
            "limits:\n  labels:\n    tenant=north: { cost_usd_per_day: -1 }\n",
            &["line 3: limits.labels.tenant=north.cost_usd_per_day: ", "dollars"],
        ),
        ("limits:\n  labels: { '=x': {} }\n", &["limits.labels.=x: ", "NAME=VALUE"]),
        ("limits:\n  labels: { a: { runs: 1 } }\n", &["line 2: limits.labels.a", "runs"]),
        ("limits:\n  fair_by: ''\n", &["line 2: limits.fair_by: ", "label"]),
        ("limits:\n  retries: 1\n", &["limits", "retries", "line 2"]),
        ("limits: { cost_usd_max: -1 }\n", &["line 1: limits.cost_usd_max: ", "dollars"]),
        ("limits: { cost_usd_max: .nan }\n", &["line 1: limits.cost_usd_max: ", "dollars"]),
        ("compaction: [\n", &["greenroom.yaml", "line"]),
        ("model: ''\n", &["line 1: model"]),
        ("context_window: -3\n", &["line 1: context_window: must be a whole number"]),
        // Keys with the same name in several sections: the invalid one.
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
        (
            "models:\n  m:\n    price: { input: -1, output: 2 }\n",
            &["line 3: models.m.price.input: ", "dollars for a million tokens"],
        ),
        ("models:\n  m:\n    price: { input: 1, output: .nan }\n", &["line 3: models.m.price.output: "]),
        ("models:\n  m:\n    price: { input: 1 }\n", &["models.m", "price", "output"]),
        ("serve:\n  connections_max: 1\n", &["line 2: serve.connections_max: must be at least 2"]),
        (
            "limits:\n  run_timeout_s: 99999999999999999999\n",
            &["line 2: limits.run_timeout_s: must be a smaller number"],
        ),
        (
            "limits:\n  steps_max: 3\n  steps_max: 4\n",
            &["greenroom.yaml, line ", "limits: duplicate key: steps_max"],
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
        "hooks", "host", "mcp_servers", "model_may_compact", "model_settings", "models", "notify",
        "project_instructions", "providers", "redact", "retention", "rewind", "serve", "skills", "telemetry",
        "theme", "trusted_folders",
    ];
    // They apply to all sessions of a process, in other folders too.
    let of_the_process = [
        "limits.inputs_max", "limits.live_sessions_max", "limits.labels", "limits.fair_by",
        "limits.spending_by", // A project allows nothing.
        "permissions.allow",
    ];
    let mut seen = 0;
    let Value::Mapping(defaults) = serde_norway::to_value(Config::default()).expect("YAML") else { return };
    for (name, value) in &defaults {
        let name = name.as_str().expect("a name");
        if is_section(name) {
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
    // `null` disables a setting; an empty section has no effect.
    assert_eq!(base, expect);
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
        ("providers.a.in_flight_max", Some("providers|a|in_flight_max")),
        ("models.gpt-5.5.temperature", Some("models|gpt-5.5|temperature")),
        ("models.gpt-5.5.compaction.threshold", Some("models|gpt-5.5|compaction|threshold")),
        ("models.gpt-5.5.compaction", Some("models|gpt-5.5|compaction")),
        ("compaction", Some("compaction")),
        ("limits.labels.tenant.runs_max", Some("limits|labels|tenant|runs_max")),
        ("limits.labels.tenant=north.runs_max", Some("limits|labels|tenant=north|runs_max")),
        ("serve.tokens.ada.right", Some("serve|tokens|ada|right")),
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
fn a_model_has_settings_of_its_own() {
    let config: Config = serde_norway::from_str(
        "context_window: 9000\nmodels: { m: { context_window: 32000, temperature: 1, \
            compaction: { threshold: 0.5 } } }\n",
    )
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
