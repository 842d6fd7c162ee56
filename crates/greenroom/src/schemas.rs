//! The JSON schemas in `docs/schema/`: for programs in other languages that read events, replies, states and
//! options.
//!
//! Invariants: the files agree with the types, and every possible event is valid by its schema.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::path::Path;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::events::event::tests::{all, event};
use crate::{CompactOptions, Compacted, Event, ModelSettings, PendingQuestion, Reply, SessionSummary, State};

/// Returns each file's name and its expected content.
fn schemas() -> Vec<(&'static str, Value)> {
    fn of<T: JsonSchema>() -> Value {
        let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
        serde_json::to_value(generator.into_root_schema_for::<T>()).unwrap()
    }
    vec![
        ("event", of::<Event>()),
        ("reply", of::<Reply>()),
        ("state", of::<State>()),
        ("session_summary", of::<SessionSummary>()),
        ("compacted", of::<Compacted>()),
        ("compact_options", of::<CompactOptions>()),
        ("model_settings", of::<ModelSettings>()),
        ("pending_question", of::<PendingQuestion>()),
    ]
}

/// `GREENROOM_WRITE_SCHEMAS=1 cargo test -p greenroom schemas` rewrites the files.
#[test]
fn the_checked_in_schemas_are_those_of_the_types() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema");
    #[expect(
        clippy::disallowed_methods,
        reason = "whoever changes a type says so, and the files are written"
    )]
    let writes = std::env::var_os("GREENROOM_WRITE_SCHEMAS").is_some();
    for (name, schema) in schemas() {
        let path = dir.join(format!("{name}.json"));
        let wanted = format!("{}\n", serde_json::to_string_pretty(&schema).unwrap());
        if writes {
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(&path, &wanted).unwrap();
        }
        let there = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            there == wanted,
            "docs/schema/{name}.json does not say what the type says; write it with GREENROOM_WRITE_SCHEMAS=1, and say in \
             the changelog what is different for its readers"
        );
    }
}

#[test]
fn every_event_is_valid_by_the_schema_and_what_is_no_event_is_not() {
    let (_, schema) = schemas().remove(0);
    let mut seen = 0;
    for kind in all() {
        let value = json!(event(kind));
        assert_eq!(invalid(&schema, &schema, &value, ""), None, "{value}");
        seen += 1;
        for (field, wrong) in
            [("seq", json!("three")), ("type", json!("no_such_event")), ("at_ms", Value::Null)]
        {
            let mut spoilt = value.clone();
            spoilt[field] = wrong;
            assert!(invalid(&schema, &schema, &spoilt, "").is_some(), "{spoilt} passes");
        }
        let mut spoilt = value.clone();
        spoilt.as_object_mut().unwrap().remove("session_id");
        assert!(invalid(&schema, &schema, &spoilt, "").is_some(), "{spoilt} passes");
    }
    assert!(seen > 40, "{seen} events");
}

/// Returns where a value violates a schema, for the keywords that our schemas use.
fn invalid(root: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    let Some(rules) = schema.as_object() else {
        return (schema == &Value::Bool(false)).then(|| format!("{at}: nothing may be here"));
    };
    let valid_for = |schema: &&Value| invalid(root, schema, value, at).is_none();
    for (keyword, rule) in rules {
        let failure = match keyword.as_str() {
            "$ref" => {
                let target = root.pointer(rule.as_str().unwrap().trim_start_matches('#')).unwrap();
                invalid(root, target, value, at)
            }
            "type" => {
                let types: Vec<&str> = match rule.as_array() {
                    Some(all) => all.iter().filter_map(Value::as_str).collect(),
                    None => rule.as_str().into_iter().collect(),
                };
                let is = |name: &&str| match *name {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "integer" => value.is_i64() || value.is_u64(),
                    "number" => value.is_number(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    other => panic!("the type {other:?} is not known here"),
                };
                (!types.iter().any(is)).then(|| format!("{at}: {value} is no {types:?}"))
            }
            "const" => (rule != value).then(|| format!("{at}: {value} is not {rule}")),
            "enum" => (!rule.as_array().unwrap().contains(value))
                .then(|| format!("{at}: {value} is none of {rule}")),
            "required" => rule
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_str)
                .find(|name| value.get(name).is_none())
                .map(|name| format!("{at}: {name} is missing")),
            "properties" => rule
                .as_object()
                .unwrap()
                .iter()
                .find_map(|(name, rule)| invalid(root, rule, value.get(name)?, &format!("{at}.{name}"))),
            "items" => {
                value.as_array().and_then(|items| items.iter().find_map(|item| invalid(root, rule, item, at)))
            }
            "allOf" => rule.as_array().unwrap().iter().find_map(|rule| invalid(root, rule, value, at)),
            "anyOf" => (!rule.as_array().unwrap().iter().any(|rule| valid_for(&rule)))
                .then(|| format!("{at}: none fits")),
            "oneOf" => {
                let fit = rule.as_array().unwrap().iter().filter(valid_for).count();
                (fit != 1).then(|| format!("{at}: {fit} alternatives fit {value}"))
            }
            "minimum" => (value.is_number() && value.as_f64() < rule.as_f64())
                .then(|| format!("{at}: {value} is below {rule}")),
            "maximum" => (value.is_number() && value.as_f64() > rule.as_f64())
                .then(|| format!("{at}: {value} is above {rule}")),
            // Readers rely on none of the other keywords; some are only descriptions.
            "additionalProperties"
            | "unevaluatedProperties"
            | "$schema"
            | "$defs"
            | "title"
            | "description"
            | "format"
            | "default" => None,
            other => panic!("the keyword {other:?} is not known here"),
        };
        if failure.is_some() {
            return failure;
        }
    }
    None
}
