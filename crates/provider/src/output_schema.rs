//! The schema that an answer's text must follow, and whether servers can enforce it.
//!
//! Invariants: a schema reported as strict has no keyword that strict mode rejects.

use std::collections::HashSet;

use serde_json::Value;

#[cfg(test)]
mod tests;

/// A JSON schema for an answer's text.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputSchema {
    /// The schema's name, of letters, digits, `_` and `-`.
    pub name: String,
    /// The JSON schema itself.
    pub schema: Value,
}

impl OutputSchema {
    /// Whether OpenAI's strict mode accepts the schema: every object closed, all its properties required, and
    /// no keyword that is not listed for it (<https://platform.openai.com/docs/guides/structured-outputs>, as
    /// of November 2026). If so, the server is told to enforce it.
    pub fn is_strict(&self) -> bool {
        is_strict_schema(&self.schema)
    }
}

/// The text formats that strict mode knows.
const STRICT_FORMATS: [&str; 9] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];

fn is_strict_schema(schema: &Value) -> bool {
    // `true` and `{}` allow anything, which no server enforces.
    let Value::Object(map) = schema else { return false };
    let says_what =
        ["type", "$ref", "anyOf", "enum", "const"].iter().any(|keyword| map.contains_key(*keyword));
    let is_object = map.get("type").is_some_and(|kind| kind == "object") || map.contains_key("properties");
    let closed = map.get("additionalProperties") == Some(&Value::Bool(false));
    let required = map.get("required").and_then(Value::as_array);
    let required: HashSet<&str> = required.into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = map.get("properties").and_then(Value::as_object);
    let all_required =
        properties.is_none_or(|properties| properties.keys().all(|key| required.contains(key.as_str())));
    let is_string = map.get("type").is_some_and(|kind| kind == "string");
    says_what
        && (!is_object || (closed && all_required))
        && map.iter().all(|(keyword, rule)| match keyword.as_str() {
            "$schema" | "title" | "description" | "type" | "enum" | "const" | "$ref" | "required"
            | "pattern" | "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf"
            | "minItems" | "maxItems" => true,
            "format" => !is_string || rule.as_str().is_some_and(|format| STRICT_FORMATS.contains(&format)),
            "additionalProperties" => rule == &Value::Bool(false),
            "items" => is_strict_schema(rule),
            "anyOf" => rule.as_array().is_some_and(|all| all.iter().all(is_strict_schema)),
            "properties" | "$defs" | "definitions" => {
                rule.as_object().is_some_and(|all| all.values().all(is_strict_schema))
            }
            _ => false,
        })
}
