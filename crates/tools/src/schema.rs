//! Generates a type's JSON schema in the form sent to models for function calling.
//!
//! Invariants: everything is inlined (a recursive type keeps its `$defs`), without `$schema`, without
//! `title`s, and without the `format`s of numbers, which some providers reject. Line breaks in doc comments
//! are removed.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde_json::Value;

/// How many references are followed from a type to its definition.
const REFERENCES_MAX: usize = 16;

/// Returns the schema of a tool's arguments, and their description. If they are not an object, the schema
/// states their actual type, and the tool is rejected.
pub(crate) fn of_arguments<T: JsonSchema>() -> (Value, Option<String>) {
    let (schema, description) = plain_schema::<T>();
    let value = schema.as_value();
    if takes_object(value, value, 0) {
        (as_object(schema), description)
    } else {
        (schema.to_value(), description)
    }
}

/// Returns the actual type of a tool's parameters, with an article, if it is not an object schema; otherwise
/// `None`.
pub(crate) fn not_an_object(parameters: &Value) -> Option<&'static str> {
    match parameters.get("type").and_then(Value::as_str) {
        Some("object") => None,
        Some("string") => Some("a string"),
        Some("array") => Some("a list"),
        Some("boolean") => Some("a boolean"),
        Some("integer" | "number") => Some("a number"),
        Some(_) | None => Some("something that is not always an object"),
    }
}

fn plain_schema<T: JsonSchema>() -> (Schema, Option<String>) {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    RecursiveTransform(plain).transform(&mut schema);
    let description = match schema.remove("description") {
        Some(Value::String(text)) => Some(text),
        Some(_) | None => None,
    };
    (schema, description)
}

fn as_object(mut schema: Schema) -> Value {
    // Enums have no type at their root; `()` means no arguments at all.
    schema.insert("type".to_owned(), "object".into());
    if schema.get("oneOf").is_none() && schema.get("anyOf").is_none() && schema.get("properties").is_none() {
        schema.insert("properties".to_owned(), Value::Object(serde_json::Map::new()));
    }
    schema.to_value()
}

/// Whether every form of the schema accepts an object or nothing. `root` resolves its references.
fn takes_object(schema: &Value, root: &Value, depth: usize) -> bool {
    let Value::Object(map) = schema else { return schema != &Value::Bool(false) };
    if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
        let pointer = reference.strip_prefix('#').unwrap_or(reference);
        // A type that only refers to itself has no form at all.
        let target = root.pointer(pointer).filter(|_| depth < REFERENCES_MAX);
        return target.is_some_and(|target| takes_object(target, root, depth + 1));
    }
    let is_object_or_nothing = |kind: &Value| matches!(kind.as_str(), Some("object" | "null"));
    match map.get("type") {
        Some(Value::Array(kinds)) => kinds.iter().all(is_object_or_nothing),
        Some(kind) => is_object_or_nothing(kind),
        None => {
            let forms = ["oneOf", "anyOf", "allOf"].iter().filter_map(|key| map.get(*key)?.as_array());
            let mut forms = forms.flatten().peekable();
            if forms.peek().is_none() {
                return !map.contains_key("enum") && !map.contains_key("const");
            }
            forms.all(|form| takes_object(form, root, depth))
        }
    }
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

/// Optional properties need not be nullable as well: two ways to omit a value are one too many for a model.
fn leave_out_null(property: &mut Value) {
    let Some(Value::Array(kinds)) = property.get("type") else { return };
    let mut others = kinds.iter().filter(|kind| kind.as_str() != Some("null"));
    if let (2, Some(only), None) = (kinds.len(), others.next().cloned(), others.next()) {
        property["type"] = only;
    }
}

/// Joins each paragraph into one line; lists and code keep their lines.
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
