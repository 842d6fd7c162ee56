//! What a client may say of its agent.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use serde_json::json;

use super::Definition;

fn fingerprint(definition: &serde_json::Value) -> String {
    serde_json::from_value::<Definition>(definition.clone()).unwrap().fingerprint()
}

/// `GREENROOM_WRITE_SCHEMAS=1 cargo test -p greenroom-cli definition` writes it anew.
#[test]
fn the_checked_in_schema_is_that_of_the_definition() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schema/definition.json");
    let generator = schemars::generate::SchemaSettings::draft2020_12().into_generator();
    let schema = generator.into_root_schema_for::<Definition>();
    let wanted = format!("{}\n", serde_json::to_string_pretty(&schema).unwrap());
    #[expect(
        clippy::disallowed_methods,
        reason = "whoever changes the type says so, and the file is written"
    )]
    if std::env::var_os("GREENROOM_WRITE_SCHEMAS").is_some() {
        std::fs::write(path, &wanted).unwrap();
    }
    assert!(
        std::fs::read_to_string(path).unwrap_or_default() == wanted,
        "docs/schema/definition.json is not what the type says; write it with GREENROOM_WRITE_SCHEMAS=1"
    );
}

#[test]
fn a_definition_needs_a_folder_and_a_umask_and_may_say_the_rest() {
    let whole = json!({ "surroundings": { "folder": "/work", "umask": 18 }, "model": {} });
    let definition: Definition = serde_json::from_value(whole.clone()).unwrap();
    assert_eq!(definition.model.workspace.to_str(), Some("."));
    assert!(!definition.model.allow_shell && !definition.model.allow_write && !definition.checks_server);
    for missing in ["/surroundings/folder", "/surroundings/umask"] {
        let mut part = whole.clone();
        let (above, name) = missing.rsplit_once('/').unwrap();
        part.pointer_mut(above).unwrap().as_object_mut().unwrap().remove(name);
        assert!(serde_json::from_value::<Definition>(part).is_err(), "{missing}");
    }
}

#[test]
fn what_an_agent_may_do_and_where_it_asks_are_in_its_fingerprint_and_its_model_is_not() {
    let plain = json!({
        "surroundings": { "folder": "/project", "umask": 18, "variables": { "OPENAI_API_KEY": "k1", "TERM": "xterm" } },
        "model": { "server": { "base_url": "https://one.example/v1" } },
    });
    let known = fingerprint(&plain);
    // A stored one still stands for the same agent after a field of ours was renamed.
    assert_eq!(known, "4c909913fb7b50312d8540cd26cac04c7216300c96a7965d45e48a7e1ee86918");
    for (place, value, is_same) in [
        ("/model/model", json!("other"), true),
        ("/model/seed", json!(7), true),
        ("/surroundings/variables/TERM", json!("dumb"), true),
        ("/surroundings/folder", json!("/other"), false),
        ("/surroundings/variables/OPENAI_API_KEY", json!("k2"), false),
        ("/surroundings/variables/OPENAI_BASE_URL", json!("https://two.example"), false),
        ("/config", json!("/project/other.yaml"), false),
        ("/settings", json!(["limits.inputs_max=1"]), false),
        ("/model/server/provider", json!("local"), false),
        ("/model/server/base_url", json!("https://two.example/v1"), false),
        ("/model/server/api_key_env", json!("KEY"), false),
        ("/model/workspace", json!("/project/below"), false),
        ("/model/no_tools", json!(true), false),
        ("/model/allow_write", json!(true), false),
        ("/model/allow_shell", json!(true), false),
        ("/model/simulate", json!(true), false),
    ] {
        let mut other = plain.clone();
        let (above, name) = place.rsplit_once('/').unwrap();
        other.pointer_mut(above).unwrap().as_object_mut().unwrap().insert(name.to_owned(), value);
        assert_eq!(fingerprint(&other) == known, is_same, "{place}");
    }
    // What stands in one place of the form cannot stand for another one.
    let named = |flag: &str| {
        let mut definition = plain.clone();
        definition["model"]["server"] = json!({ flag: "x" });
        fingerprint(&definition)
    };
    assert_ne!(named("provider"), named("api_key_env"));
}
