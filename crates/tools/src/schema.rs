//! A type's JSON schema in the form that models are sent for function calling.
//!
//! Always true: it is an object schema with everything inlined (a recursive type keeps its `$defs`), without
//! `$schema`, without `title`s, and without the `format`s of numbers, which some providers reject.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::Value;

/// The schema of `T`, and its description: the doc comment of the type.
pub(crate) fn of<T: JsonSchema>() -> (Value, Option<String>) {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    RecursiveTransform(plain).transform(&mut schema);
    let description = match schema.remove("description") {
        Some(Value::String(text)) => Some(text),
        Some(_) | None => None,
    };
    let kind = schema.get("type").and_then(Value::as_str).map(str::to_owned);
    // Enums have no type at their root; no arguments at all is `()`.
    if kind.as_deref() != Some("object") {
        schema.insert("type".to_owned(), "object".into());
    }
    if schema.get("oneOf").is_none() && schema.get("anyOf").is_none() && schema.get("properties").is_none() {
        schema.insert("properties".to_owned(), Value::Object(serde_json::Map::new()));
    }
    (schema.to_value(), description)
}

fn plain(schema: &mut Schema) {
    schema.remove("title");
    if let Some("integer" | "number") = schema.get("type").and_then(Value::as_str) {
        schema.remove("format");
    }
    if let Some(Value::Array(kinds)) = schema.get("type")
        && kinds.iter().any(|kind| matches!(kind.as_str(), Some("integer" | "number")))
    {
        schema.remove("format");
    }
}
