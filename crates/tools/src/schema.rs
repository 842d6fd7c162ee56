//! A type's JSON schema in the form that models are sent for function calling.
//!
//! Invariants: it is an object schema with everything inlined (a recursive type keeps its `$defs`), without
//! `$schema`, without `title`s, and without the `format`s of numbers, which some providers reject. Doc comments lose
//! the line breaks of the source.

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
    if let Some(Value::String(text)) = schema.get_mut("description") {
        *text = unwrap_lines(text);
    }
    if let Some("integer" | "number") = schema.get("type").and_then(Value::as_str) {
        schema.remove("format");
    }
    if let Some(Value::Array(kinds)) = schema.get("type")
        && kinds.iter().any(|kind| matches!(kind.as_str(), Some("integer" | "number")))
    {
        schema.remove("format");
    }
    let required: Vec<String> = match schema.get("required") {
        Some(Value::Array(names)) => {
            names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect()
        }
        Some(_) | None => Vec::new(),
    };
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for (name, property) in properties.iter_mut() {
            if !required.contains(name) {
                leave_out_null(property);
            }
        }
    }
}

/// What may be left out need not be null as well: two ways to say nothing are one too many for a model.
fn leave_out_null(property: &mut Value) {
    let Some(Value::Array(kinds)) = property.get("type") else { return };
    let mut others = kinds.iter().filter(|kind| kind.as_str() != Some("null"));
    if let (2, Some(only), None) = (kinds.len(), others.next().cloned(), others.next()) {
        property["type"] = only;
    }
}

/// Paragraphs become one line each; what is set in lines, such as a list or code, stays.
fn unwrap_lines(text: &str) -> String {
    let set_in_lines = |paragraph: &str| {
        paragraph.lines().any(|line| {
            line.starts_with(char::is_whitespace)
                || ["- ", "* ", "+ ", "|", "#", "> ", "```"].iter().any(|mark| line.starts_with(mark))
                || line.split_once('.').is_some_and(|(number, _)| number.parse::<u32>().is_ok())
        })
    };
    let paragraphs = text.split("\n\n");
    let unwrapped = paragraphs.map(|paragraph| {
        if set_in_lines(paragraph) { paragraph.to_owned() } else { paragraph.replace('\n', " ") }
    });
    unwrapped.collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests;
