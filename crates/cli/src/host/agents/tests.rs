//! What a client may say of its agent.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use serde_json::json;

use super::Definition;

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
