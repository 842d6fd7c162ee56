//! Schemas that strict mode accepts and rejects.

use serde_json::json;

use super::*;

#[test]
fn strict_schemas() {
    let closed = json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": false});
    assert!(is_strict_schema(&closed));
    let mut open = closed.clone();
    open["additionalProperties"] = json!(true);
    assert!(!is_strict_schema(&open));
    let optional = json!({"type": "object", "properties": {"a": {}}, "additionalProperties": false});
    assert!(!is_strict_schema(&json!({"type": "array", "items": optional})));
    let text = || json!({ "type": "string" });
    for accepted in [
        json!({ "type": "array", "items": text(), "minItems": 1 }),
        json!({ "anyOf": [text(), { "type": "null" }] }),
        json!({ "$ref": "#/$defs/A", "$defs": { "A": text() } }),
        json!({ "type": "string", "format": "date-time", "pattern": "x" }),
        json!({ "type": "integer", "format": "uint32", "minimum": 0 }),
        json!({ "enum": ["a", "b"] }),
    ] {
        assert!(is_strict_schema(&accepted), "{accepted}");
    }
    for refused in [
        json!({}),
        json!(true),
        json!({ "type": "array", "prefixItems": [text()] }),
        json!({ "type": "array", "items": text(), "uniqueItems": true }),
        json!({ "type": "string", "minLength": 1, "maxLength": 1 }),
        json!({ "type": "string", "format": "ip" }),
        json!({ "type": "string", "default": "a" }),
        json!({ "oneOf": [text()] }),
        json!({ "type": "object", "additionalProperties": text() }),
        json!({ "type": "array", "items": true }),
        json!({ "$ref": "#/$defs/A", "$defs": { "A": {} } }),
    ] {
        assert!(!is_strict_schema(&refused), "{refused}");
    }
}
