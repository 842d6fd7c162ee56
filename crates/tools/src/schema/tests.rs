//! Schemas of types that are more complex than a list of fields.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::{of_arguments, unwrap_lines};

/// Moves
/// something.
#[derive(Deserialize, JsonSchema)]
#[serde(tag = "to", rename_all = "snake_case")]
#[expect(dead_code, reason = "only its schema is of interest")]
enum Move {
    Folder { path: Option<String>, depth: Vec<Option<f64>> },
    Trash,
}

#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "only its schema is of interest")]
struct Tree {
    children: Vec<Tree>,
}

#[test]
fn enums_are_objects_too() {
    let (schema, description) = of_arguments::<Move>();
    assert_eq!(description.as_deref(), Some("Moves something."));
    assert_eq!(
        schema,
        json!({
            "type": "object",
            "oneOf": [
                {
                    "type": "object",
                    "properties": {
                        "to": {"type": "string", "const": "folder"},
                        "path": {"type": "string"},
                        "depth": {"type": "array", "items": {"type": ["number", "null"]}},
                    },
                    "required": ["to", "depth"],
                },
                {
                    "type": "object",
                    "properties": {"to": {"type": "string", "const": "trash"}},
                    "required": ["to"],
                },
            ],
        })
    );
}

#[test]
fn recursive_types_end() {
    let (schema, description) = of_arguments::<Tree>();
    assert_eq!((description, schema["type"].as_str()), (None, Some("object")));
    assert!(schema.to_string().len() < 400, "{schema}");
}

#[test]
fn wrapped_lines_are_joined() {
    for (text, expect) in [
        ("one\ntwo", "one two"),
        ("one\ntwo\n\nthree\nfour", "one two\n\nthree four"),
        ("see\n`this` one", "see `this` one"),
        ("either:\n- a\n- b\n\nend\n.", "either:\n- a\n- b\n\nend ."),
        ("1. a\n2. b", "1. a\n2. b"),
        ("```\ncode\n```", "```\ncode\n```"),
    ] {
        assert_eq!(unwrap_lines(text), expect);
    }
}
