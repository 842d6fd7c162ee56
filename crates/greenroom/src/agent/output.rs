//! Structured answers: the schema for the model, and parsing its answer.
//!
//! Invariants: the schema's root is an object, as servers require: any other schema is wrapped as `{"value":
//! …}`, and its value unwrapped. A value that satisfies a type's schema can be parsed into the type. Where
//! possible, servers can enforce the schema strictly: its objects are closed, and all their properties are
//! required. An answer is judged by the program's own schema, whatever schema was sent to the server.

use std::collections::HashSet;
use std::sync::Arc;

use greenroom_kernel::terms::OutputTerms;
use greenroom_provider::OutputSchema;
use greenroom_tools::ValueSchema;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use crate::agent::validate::{ProposedAnswer, Validators};
use crate::values::error::{ConfigError, Error, Result};
use crate::values::prompt::Reply;

#[cfg(test)]
mod tests;

/// The property that contains a wrapped value.
const VALUE: &str = "value";

/// The maximum number of characters of a schema's name that servers accept.
const NAME_MAX: usize = 64;

/// The form of a structured answer, without its type.
#[derive(Clone, Debug)]
pub(crate) struct OutputForm {
    pub(crate) schema: Arc<OutputSchema>,
    /// The name of what is wanted, for people: a type as it is written, or the schema's name.
    title: String,
    /// Whether the value is wrapped in an object.
    pub(crate) is_wrapped: bool,
    /// The program's own schema.
    own: Arc<Value>,
    judge: Judge,
}

/// Checks whether an answer has the form.
#[derive(Clone, Debug)]
enum Judge {
    /// The answer must parse into the type.
    Type(fn(&str, bool) -> serde_json::Result<()>),
    /// The answer must satisfy the program's schema.
    Schema(Arc<ValueSchema>),
}

impl OutputForm {
    /// Returns the form of a `T`.
    pub(crate) fn of<T: JsonSchema + DeserializeOwned>() -> Self {
        let own = schema_of::<T>();
        let AnswerForm { schema, is_wrapped } = rooted(own.clone());
        Self {
            schema: Arc::new(OutputSchema { name: name_of(type_name::<T>()), schema }),
            title: title_of(std::any::type_name::<T>()),
            is_wrapped,
            own: Arc::new(own),
            judge: Judge::Type(|text, is_wrapped| read::<T>(text, is_wrapped).map(drop)),
        }
    }

    /// Returns the form of a value that satisfies a JSON schema.
    ///
    /// # Errors
    /// The problem with the schema, and its place.
    pub(crate) fn of_schema(own: &Value) -> Result<Self, ConfigError> {
        let judge = ValueSchema::new(own).map_err(|reason| ConfigError::OutputSchema { reason })?;
        let name = name_of(own.get("title").and_then(Value::as_str).unwrap_or_default());
        let mut plain = own.clone();
        if let Value::Object(map) = &mut plain {
            // These keys identify a standalone schema; servers accept neither.
            map.remove("$schema");
            map.remove("$id");
        }
        let mut tidied = plain.clone();
        tidy(&mut tidied);
        let rooted = |schema| {
            let AnswerForm { schema, is_wrapped } = rooted(schema);
            (OutputSchema { name: name.clone(), schema }, is_wrapped)
        };
        // Closing the objects of an `allOf` may make a schema unsatisfiable. Such a schema is never strict.
        let (schema, is_wrapped) =
            Some(rooted(tidied)).filter(|(schema, _)| schema.is_strict()).unwrap_or_else(|| rooted(plain));
        let (schema, own, judge) = (Arc::new(schema), Arc::new(own.clone()), Judge::Schema(Arc::new(judge)));
        Ok(Self { schema, title: name, is_wrapped, own, judge })
    }

    /// Returns the form that was recorded with a prompt. The schema then judges answers, because the type is
    /// not known.
    ///
    /// # Errors
    /// The problem with the schema, and its place.
    pub(crate) fn of_terms(terms: &OutputTerms) -> Result<Self, ConfigError> {
        let form = Self::of_schema(&terms.schema)?;
        let schema = OutputSchema { name: terms.name.clone(), ..OutputSchema::clone(&form.schema) };
        Ok(Self { schema: Arc::new(schema), title: terms.name.clone(), ..form })
    }

    /// Returns the form as it is recorded with a prompt.
    pub(crate) fn terms(&self) -> OutputTerms {
        OutputTerms { name: self.schema.name.clone(), schema: Value::clone(&self.own) }
    }

    /// Adds a validator that sends back answers without this form.
    pub(crate) fn demand(&self, validators: &mut Validators) {
        let judge = self.clone();
        validators.push(move |answer: ProposedAnswer| {
            let wrong = judge
                .check(&answer.text)
                .map_err(|error| format!("it does not fit the schema {:?}: {error}", judge.title));
            std::future::ready(wrong)
        });
    }

    /// Checks an answer.
    ///
    /// # Errors
    /// Why the answer does not have the form.
    pub(crate) fn check(&self, text: &str) -> Result<(), String> {
        match &self.judge {
            Judge::Type(read) => read(text, self.is_wrapped).map_err(|error| error.to_string()),
            Judge::Schema(schema) => {
                let value = read::<Value>(text, self.is_wrapped)
                    .map_err(|error| format!("not valid JSON: {error}"))?;
                schema.check(&value)
            }
        }
    }

    /// Returns the value of an answer, as JSON.
    ///
    /// # Errors
    /// [`Error::Output`].
    pub(crate) fn value(&self, text: String) -> Result<Value> {
        let read = || read::<Value>(&text, self.is_wrapped).map_err(|error| error.to_string());
        match self.check(&text).and_then(|()| read()) {
            Ok(value) => Ok(value),
            Err(reason) => Err(self.unreadable(text, reason)),
        }
    }

    /// Checks the result of a run that required this form. If the last of several rejected answers lacks the
    /// form, the error says so; otherwise the other validator's reason is kept.
    ///
    /// # Errors
    /// [`Error::Output`], and the errors of the run.
    pub(crate) fn checked(&self, ended: Result<Reply>) -> Result<Reply> {
        match ended {
            Ok(reply) => match self.check(&reply.text) {
                Ok(()) => Ok(reply),
                Err(reason) => Err(self.unreadable(reply.text, reason)),
            },
            Err(Error::Rejected { text, reason }) => match self.check(&text) {
                Ok(()) => Err(Error::Rejected { text, reason }),
                Err(misfit) => Err(self.unreadable(text, misfit)),
            },
            Err(error) => Err(error),
        }
    }

    pub(crate) fn unreadable(&self, text: String, reason: String) -> Error {
        Error::Output { wanted: self.title.clone(), reason, text }
    }
}

fn type_name<T>() -> &'static str {
    let full = std::any::type_name::<T>();
    full.rsplit("::").next().unwrap_or(full)
}

/// Returns a type's full name without the paths in it: `Vec<u32>`.
fn title_of(full: &str) -> String {
    let full = full.replace("{{closure}}::", "");
    let mut title = String::new();
    let mut rest = full.as_str();
    while let Some(at) = rest.find(|c: char| !c.is_alphanumeric() && c != '_') {
        let after = &rest[at..];
        match after.strip_prefix("::") {
            Some(inner) => rest = inner,
            None => {
                let mark = after.chars().next().map_or(0, char::len_utf8);
                title.push_str(&rest[..at + mark]);
                rest = &after[mark..];
            }
        }
    }
    title + rest
}

/// Converts a name into one that servers accept.
fn name_of(name: &str) -> String {
    let taken = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
    let name: String = name.chars().filter(taken).take(NAME_MAX).collect();
    if name.is_empty() { "answer".to_owned() } else { name }
}

/// The schema of a structured answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AnswerForm {
    /// The schema.
    pub(crate) schema: Value,
    /// Whether the value is wrapped in an object.
    pub(crate) is_wrapped: bool,
}

/// Returns the schema of a `T` in the form that servers accept.
fn schema_of<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::draft2020_12();
    settings.inline_subschemas = true;
    settings.meta_schema = None;
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    tidy(&mut schema);
    schema
}

/// Returns the form with an object as its root.
fn rooted(schema: Value) -> AnswerForm {
    let is_object = schema.get("type").is_some_and(|kind| kind == "object")
        && ["anyOf", "oneOf", "allOf", "$ref", "enum"].iter().all(|key| schema.get(key).is_none());
    if is_object {
        AnswerForm { schema, is_wrapped: false }
    } else {
        AnswerForm { schema: wrapped(schema), is_wrapped: true }
    }
}

/// Parses an answer's text.
pub(crate) fn read<T: DeserializeOwned>(text: &str, is_wrapped: bool) -> serde_json::Result<T> {
    let text = json_text(text);
    if is_wrapped
        && let Ok(Value::Object(mut object)) = serde_json::from_str(text)
        && object.len() == 1
        && let Some(value) = object.remove(VALUE)
    {
        return serde_json::from_value(value);
    }
    // A model without support for schemas answers with the unwrapped value.
    serde_json::from_str(text)
}

/// Returns the value of an incomplete answer, as far as it has been streamed.
pub(crate) fn unwrapped(value: Value, is_wrapped: bool) -> Option<Value> {
    let is_wrapper = is_wrapped && value.as_object().is_some_and(|object| object.len() <= 1);
    if is_wrapper { value.get(VALUE).cloned() } else { Some(value) }
}

/// Returns the JSON in an answer. Models without support for schemas often put it into a fence.
pub(crate) fn json_text(text: &str) -> &str {
    let trimmed = text.trim();
    let Some(fenced) = trimmed.strip_prefix("```") else { return trimmed };
    let inner = fenced.strip_prefix("json").unwrap_or(fenced);
    inner.strip_suffix("```").unwrap_or(inner).trim()
}

/// The keywords for definitions in different drafts of JSON schema.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

fn wrapped(mut schema: Value) -> Value {
    refer_to_value(&mut schema);
    let definitions = DEFINITIONS.map(|key| schema.as_object_mut().and_then(|schema| schema.remove(key)));
    let mut object = json!({
        "type": "object",
        "properties": { VALUE: schema },
        "required": [VALUE],
        "additionalProperties": false,
    });
    for (key, definitions) in DEFINITIONS.into_iter().zip(definitions) {
        if let Some(definitions) = definitions {
            object[key] = definitions;
        }
    }
    object
}

/// Redirects references to the root, or to a part of it, to the wrapped value.
fn refer_to_value(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::String(reference)) = map.get_mut("$ref")
                && let Some(place) = reference.strip_prefix('#')
                && (place.is_empty() || place.starts_with('/'))
                && !DEFINITIONS.iter().any(|key| place.starts_with(&format!("/{key}/")))
            {
                *reference = format!("#/properties/{VALUE}{place}");
            }
            map.values_mut().for_each(refer_to_value);
        }
        Value::Array(items) => items.iter_mut().for_each(refer_to_value),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Converts a schema and its subschemas into the form that servers accept.
fn tidy(schema: &mut Value) {
    let Value::Object(map) = schema else { return };
    map.remove("title");
    let is_number = |kind: &Value| matches!(kind.as_str(), Some("integer" | "number"));
    let has_number = map.get("type").is_some_and(|kind| {
        is_number(kind) || kind.as_array().is_some_and(|kinds| kinds.iter().any(is_number))
    });
    if has_number {
        // Servers do not know formats such as `uint32`.
        map.remove("format");
    }
    // An answer that satisfies two alternatives is parsed as the first.
    if let Some(forms) = map.remove("oneOf") {
        map.entry("anyOf").or_insert(forms);
    }
    close(map);
    for key in ["items", "additionalProperties", "contains", "not"] {
        if let Some(inner) = map.get_mut(key) {
            tidy(inner);
        }
    }
    for key in ["anyOf", "allOf", "prefixItems"] {
        if let Some(Value::Array(inner)) = map.get_mut(key) {
            inner.iter_mut().for_each(tidy);
        }
    }
    for key in ["properties", "$defs", "definitions", "patternProperties"] {
        if let Some(Value::Object(inner)) = map.get_mut(key) {
            inner.values_mut().for_each(tidy);
        }
    }
}

/// Closes an object, and requires its optional properties if they may be `null`.
fn close(map: &mut Map<String, Value>) {
    let named = |required: &Value| {
        required
            .as_array()
            .map(|names| names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect())
    };
    let mut required: Vec<String> = map.get("required").and_then(named).unwrap_or_default();
    let known: HashSet<String> = required.iter().cloned().collect();
    let Some(Value::Object(properties)) = map.get_mut("properties") else { return };
    for (name, property) in properties.iter_mut() {
        if !known.contains(name) && takes_null(property) {
            if let Value::Object(property) = property {
                property.remove("default");
            }
            required.push(name.clone());
        }
    }
    map.insert("required".to_owned(), required.into());
    // The schema itself says what flattened fields may add.
    if !map.contains_key("unevaluatedProperties") {
        map.entry("additionalProperties").or_insert(Value::Bool(false));
    }
}

fn takes_null(schema: &Value) -> bool {
    let is_null = |kind: &Value| kind == "null";
    let kind = schema.get("type");
    kind.is_some_and(|kind| is_null(kind) || kind.as_array().is_some_and(|kinds| kinds.iter().any(is_null)))
        || schema
            .get("anyOf")
            .or_else(|| schema.get("oneOf"))
            .and_then(Value::as_array)
            .is_some_and(|forms| forms.iter().any(takes_null))
}
