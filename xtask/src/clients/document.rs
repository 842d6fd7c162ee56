//! Reads the OpenAPI document into what the generators of both languages write: types and operations.
//!
//! Invariants: only types that an operation uses are read. An inline object gets a name of its own, and so does each variant
//! of a union of objects; two types never share a name.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};

/// A type of a field, a parameter or an answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Type {
    Any,
    Text,
    Integer,
    Number,
    Boolean,
    Null,
    /// Exactly this value.
    Literal(String),
    List(Box<Type>),
    Tuple(Vec<Type>),
    /// From texts to these.
    Map(Box<Type>),
    Named(String),
    Union(Vec<Type>),
}

/// A field of an object, or a parameter of an operation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) doc: String,
    pub(super) is_required: bool,
    pub(super) of: Type,
}

/// What a named type is.
#[derive(Debug, PartialEq)]
pub(super) enum Form {
    /// These fields, and those of the base.
    Object(Option<String>, Vec<Field>),
    Alias(Type),
}

/// A named type.
#[derive(Debug, PartialEq)]
pub(super) struct Definition {
    pub(super) name: String,
    pub(super) doc: String,
    pub(super) form: Form,
}

/// What an operation answers.
#[derive(Debug)]
pub(super) enum Answer {
    Json(Type),
    Text,
    /// A stream of events without an end.
    Events,
    /// The outcome, or that it was accepted; its stream ends with the outcome.
    Work {
        outcome: Type,
        accepted: Type,
    },
}

/// A route.
#[derive(Debug)]
pub(super) struct Operation {
    /// Its id, whose first part, if it has two, is its group: `session_prompt`.
    pub(super) id: String,
    pub(super) verb: String,
    pub(super) path: String,
    pub(super) doc: String,
    pub(super) in_path: Vec<Field>,
    /// The parameters in the query or the body, required ones first.
    pub(super) params: Vec<Field>,
    /// Whether `key` makes it safe to send again.
    pub(super) takes_key: bool,
    pub(super) answer: Answer,
}

impl Operation {
    /// Its group and its name.
    pub(super) fn names(&self) -> (&str, &str) {
        self.id.split_once('_').unwrap_or(("", &self.id))
    }

    pub(super) fn has_query(&self) -> bool {
        matches!(self.verb.as_str(), "GET" | "DELETE")
    }
}

/// The document.
#[derive(Debug)]
pub(super) struct Document {
    pub(super) definitions: Vec<Definition>,
    /// By group.
    pub(super) operations: BTreeMap<String, Vec<Operation>>,
}

impl Document {
    pub(super) fn read(document: &Value) -> Result<Self> {
        let schemas = document["components"]["schemas"].as_object().context("there are no schemas")?;
        let mut reader = Reader { schemas, definitions: BTreeMap::new() };
        let mut operations: BTreeMap<String, Vec<Operation>> = BTreeMap::new();
        let paths = document["paths"].as_object().context("there are no paths")?;
        for (path, verbs) in paths {
            for (verb, operation) in verbs.as_object().into_iter().flatten() {
                let operation =
                    reader.operation(path, verb, operation).with_context(|| format!("{verb} {path}"))?;
                operations.entry(operation.names().0.to_owned()).or_default().push(operation);
            }
        }
        reader.read(
            &document["components"]["responses"]["Problem"]["content"]["application/problem+json"]["schema"],
            "Problem",
        )?;
        Ok(Self { definitions: reader.definitions.into_values().flatten().collect(), operations })
    }

    /// The number of bases of a type: its own, and those of that.
    pub(super) fn bases(&self, definition: &Definition) -> usize {
        let Form::Object(Some(base), _) = &definition.form else { return 0 };
        self.definitions.iter().find(|known| known.name == *base).map_or(0, |base| 1 + self.bases(base))
    }
}

struct Reader<'a> {
    schemas: &'a Map<String, Value>,
    /// By name; `None` while it is read.
    definitions: BTreeMap<String, Option<Definition>>,
}

impl Reader<'_> {
    fn operation(&mut self, path: &str, verb: &str, operation: &Value) -> Result<Operation> {
        let id = text(&operation["operationId"]);
        let prefix = camel(&id);
        let (mut in_path, mut params, mut takes_key) = (Vec::new(), Vec::new(), false);
        for parameter in operation["parameters"].as_array().into_iter().flatten() {
            let name = text(&parameter["name"]);
            let is_label = name == "label";
            let of = self.read(&parameter["schema"], &format!("{prefix}{}", camel(&name)))?;
            let field = Field {
                doc: if is_label {
                    "Only sessions with all of these labels.".into()
                } else {
                    prose(parameter)
                },
                is_required: parameter["required"] == true,
                of: if is_label { Type::Map(Box::new(Type::Text)) } else { of },
                name: if is_label { "labels".into() } else { name },
            };
            match parameter["in"].as_str() {
                Some("path") => in_path.push(field),
                Some("query") => params.push(field),
                _ => takes_key |= field.name == "Idempotency-Key",
            }
        }
        let body = &operation["requestBody"]["content"]["application/json"]["schema"];
        params.extend(self.fields(body, &format!("{prefix}Params"))?);
        params.sort_by_key(|field| !field.is_required);
        let content = &operation["responses"]["200"]["content"];
        let (json, stream) = (&content["application/json"]["schema"], &content["text/event-stream"]);
        let answer = match (json.is_null(), stream.is_null()) {
            (false, true) => Answer::Json(self.read(json, &format!("{prefix}Result"))?),
            (false, false) => {
                let accepted = &operation["responses"]["202"]["content"]["application/json"]["schema"];
                let accepted = self.read(accepted, &format!("{prefix}Accepted"))?;
                Answer::Work { outcome: self.read(json, &format!("{prefix}Result"))?, accepted }
            }
            (true, false) => {
                self.read(&stream["x-event"], "Event")?;
                Answer::Events
            }
            (true, true) => Answer::Text,
        };
        let (summary, description) = (text(&operation["summary"]), prose(operation));
        let is_whole = description.starts_with(summary.trim_end_matches('.'));
        let doc = if is_whole { description } else { format!("{summary}\n\n{description}") };
        let doc = doc.trim_end().to_owned();
        Ok(Operation {
            id,
            verb: verb.to_uppercase(),
            path: path.into(),
            doc,
            in_path,
            params,
            takes_key,
            answer,
        })
    }

    /// The type that a schema describes; `name` is for what has none.
    fn read(&mut self, schema: &Value, name: &str) -> Result<Type> {
        let object = schema["properties"].as_object().is_some_and(|properties| !properties.is_empty());
        let reference = schema["$ref"].as_str();
        if let (Some(reference), false) = (reference, object) {
            let name = reference.rsplit('/').next().unwrap_or_default().to_owned();
            if !self.definitions.contains_key(&name) {
                self.definitions.insert(name.clone(), None);
                let referred =
                    self.schemas.get(&name).with_context(|| format!("there is no type {name}"))?.clone();
                let of = self.read(&referred, &name)?;
                if of != Type::Named(name.clone()) {
                    self.define(name.clone(), described(&referred), Form::Alias(of));
                }
            }
            return Ok(Type::Named(name));
        }
        if object || reference.is_some() {
            self.object(schema, name, None)?;
            return Ok(Type::Named(name.to_owned()));
        }
        if let Some(value) = schema.get("const") {
            return Ok(Type::Literal(value.to_string()));
        }
        if let Some(values) = schema["enum"].as_array() {
            return Ok(union(values.iter().map(|value| Type::Literal(value.to_string())).collect()));
        }
        if let Some(choices) = choices(schema) {
            let of: Result<_> =
                choices.iter().map(|choice| self.read(choice, &variant(name, choice))).collect();
            return of.map(union);
        }
        if let Some(kinds) = schema["type"].as_array() {
            let of = kinds.iter().map(|kind| {
                let mut only = schema.clone();
                only["type"] = kind.clone();
                self.read(&only, name)
            });
            return of.collect::<Result<_>>().map(union);
        }
        Ok(match schema["type"].as_str() {
            Some("string") => Type::Text,
            Some("integer") => Type::Integer,
            Some("number") => Type::Number,
            Some("boolean") => Type::Boolean,
            Some("null") => Type::Null,
            Some("array") => match schema["prefixItems"].as_array() {
                Some(items) => {
                    Type::Tuple(items.iter().map(|item| self.read(item, name)).collect::<Result<_>>()?)
                }
                None => Type::List(Box::new(self.read(&schema["items"], name)?)),
            },
            Some("object") => Type::Map(Box::new(self.read(&schema["additionalProperties"], name)?)),
            _ => Type::Any,
        })
    }

    /// Defines an object; with variants, a union of objects that share a base.
    fn object(&mut self, schema: &Value, name: &str, base: Option<String>) -> Result<()> {
        // A type that is extended is copied, because it may be a union itself.
        let mut whole = schema.clone();
        if let Some(extended) =
            schema["$ref"].as_str().and_then(|to| self.schemas.get(to.rsplit('/').next()?))
        {
            whole = extended.clone();
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                whole["properties"][name] = property.clone();
            }
            let required =
                [&extended["required"], &schema["required"]].map(|names| names.as_array().cloned());
            whole["required"] = required.into_iter().flatten().flatten().collect();
            whole["description"] = schema["description"].clone();
        }
        let fields = self.fields(&whole, name)?;
        let Some(choices) = choices(&whole) else {
            self.define(name.to_owned(), described(&whole), Form::Object(base, fields));
            return Ok(());
        };
        let shared = format!("{name}Fields");
        self.define(shared.clone(), format!("The fields of every `{name}`."), Form::Object(base, fields));
        let mut variants = Vec::new();
        for choice in choices {
            let variant = variant(name, choice);
            ensure!(!self.definitions.contains_key(&variant), "two types have the name {variant}");
            self.object(choice, &variant, Some(shared.clone()))?;
            variants.push(Type::Named(variant));
        }
        self.define(name.to_owned(), described(&whole), Form::Alias(union(variants)));
        Ok(())
    }

    fn fields(&mut self, schema: &Value, name: &str) -> Result<Vec<Field>> {
        let is_required = |field: &str| {
            schema["required"].as_array().is_some_and(|names| names.iter().any(|name| name == field))
        };
        let properties = schema["properties"].as_object();
        let fields = properties.into_iter().flatten().map(|(field, property)| {
            let of = self.read(property, &format!("{name}{}", camel(field)))?;
            Ok(Field { name: field.clone(), doc: prose(property), is_required: is_required(field), of })
        });
        fields.collect()
    }

    fn define(&mut self, name: String, doc: String, form: Form) {
        self.definitions.insert(name.clone(), Some(Definition { name, doc, form }));
    }
}

fn choices(schema: &Value) -> Option<&Vec<Value>> {
    schema["oneOf"].as_array().or(schema["anyOf"].as_array())
}

/// The name of a variant: by the value of its tag, or by its only field.
fn variant(name: &str, choice: &Value) -> String {
    let properties = choice["properties"].as_object();
    let tag =
        properties.and_then(|properties| properties.values().find_map(|property| property["const"].as_str()));
    let only = properties.and_then(|properties| properties.keys().next());
    format!("{name}{}", camel(tag.or(only.map(String::as_str)).unwrap_or_default()))
}

fn union(types: Vec<Type>) -> Type {
    let mut flat: Vec<Type> = Vec::new();
    for of in types {
        let parts = if let Type::Union(parts) = of { parts } else { vec![of] };
        for part in parts {
            if !flat.contains(&part) {
                flat.push(part);
            }
        }
    }
    if let [_] = flat.as_slice() { flat.remove(0) } else { Type::Union(flat) }
}

/// `session_id` as `SessionId`.
pub(super) fn camel(name: &str) -> String {
    let parts = name.split(|letter: char| !letter.is_alphanumeric());
    let upper = parts.map(|part| {
        let mut letters = part.chars();
        letters
            .next()
            .map(|first| first.to_uppercase().chain(letters).collect::<String>())
            .unwrap_or_default()
    });
    upper.collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn prose(schema: &Value) -> String {
    schema["description"].as_str().map(cleaned).unwrap_or_default()
}

/// The description of a type, with those of its values.
fn described(schema: &Value) -> String {
    let values = choices(schema).into_iter().flatten().filter(|choice| choice["description"].is_string());
    let values =
        values.filter_map(|choice| Some(format!("\n- `{}`: {}", choice["const"].as_str()?, prose(choice))));
    let values: Vec<String> = values.collect();
    let separator = if values.is_empty() { "" } else { "\n" };
    format!("{}{separator}{}", prose(schema), values.concat())
}

/// A description without examples in Rust and links into its documentation.
fn cleaned(text: &str) -> String {
    let text = text.split("\n\n```").next().unwrap_or_default();
    let mut cleaned = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once('[') {
        let Some((shown, after)) = link.split_once(']') else { break };
        cleaned.push_str(before);
        cleaned.push_str(shown);
        let target = after.strip_prefix('(').and_then(|target| target.split_once(')'));
        rest = target.map_or(after, |(_, after)| after);
    }
    cleaned.push_str(rest);
    cleaned
}
