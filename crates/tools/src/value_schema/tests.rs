//! What is wrong with a schema, and with a value, is said with its place.

use serde_json::json;

use super::*;

#[test]
fn a_schema_that_is_wrong_is_refused_with_the_place() {
    for (schema, place) in [
        (json!({ "properties": { "name": { "type": "text" } } }), "/properties/name/type"),
        (json!({ "type": "object", "required": "name" }), "/required"),
        (json!({ "properties": { "n": { "minimum": "1" } } }), "/properties/n/minimum"),
        (json!({ "properties": { "n": { "$ref": "#/$defs/None" } } }), "#/$defs/None"),
        (json!({ "properties": { "n": { "pattern": "(" } } }), "/properties/n/pattern"),
        (json!({ "items": { "$ref": "https://example.com/x.json" } }), "https://example.com/x.json"),
        (json!([1]), "must be an object"),
    ] {
        let said = ValueSchema::new(&schema).expect_err("it is wrong");
        assert!(said.contains(place), "{schema}: {said}");
        assert!(!said.contains("schema:/") && !said.contains('\n'), "{schema}: {said}");
    }
}

#[test]
fn a_value_that_does_not_fit_is_refused_with_every_place() {
    let schema = json!({
        "type": "object",
        "properties": { "name": { "type": "string" }, "rain": { "type": "integer", "minimum": 0 } },
        "required": ["name", "rain"],
    });
    let schema = ValueSchema::new(&schema).expect("it is a schema");
    assert_eq!(schema.check(&json!({ "name": "Oslo", "rain": 3 })), Ok(()));
    let said = schema.check(&json!({ "name": 1, "rain": -1 })).expect_err("it does not fit");
    assert!(said.contains("/name") && said.contains("/rain"), "{said}");
    assert!(schema.check(&json!({ "name": "Oslo" })).is_err_and(|said| said.contains("rain")));
}

/// A schema that leads to itself alone is not followed for ever.
#[test]
fn a_schema_that_leads_in_a_circle_ends() {
    let circle = ValueSchema::new(&json!({ "$ref": "#" }));
    assert!(circle.is_err() || circle.is_ok_and(|circle| circle.check(&json!({})).is_err()));
}
