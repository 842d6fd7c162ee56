//! The description of the routes: OpenAPI 3.1, made from the operations' declarations and types.
//!
//! Invariants: every route is in it, and none besides. `docs/schema/openapi.json` is the same, and a test compares what is
//! served with it.

use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::answers::HttpProblem;
use super::calls::ROOT;
use super::events::{AFTER, DURABLE, MEDIA_TYPE, TREE};
use super::probes;
use crate::operations::{self, LABEL, Method, Right, Route, Verb};
use greenroom::Event;

/// Where the schemas are in the document.
const SCHEMAS: &str = "/components/schemas";
/// What is added to the name of a type whose values are written differently from how they may be sent.
const SENT: &str = "Sent";
/// What positions look like.
const POSITION: &str = "^([0-9]+(,.*)?)?$";

/// The document.
pub(super) fn openapi() -> Value {
    let settings =
        || SchemaSettings::draft2020_12().with(|settings| settings.definitions_path = SCHEMAS.into());
    let mut sent = settings().into_generator();
    let mut answered = settings().for_serialize().into_generator();
    let problem = answered.subschema_for::<HttpProblem>();
    let mut paths = Map::new();
    for method in operations::methods() {
        if let Some(route) = method.route {
            let described = operation(&method, &route, &mut sent, &mut answered);
            add(&mut paths, &format!("{ROOT}{}", route.path), verb(route.verb), described);
        }
    }
    add_events(&mut paths, &mut answered);
    add_probes(&mut paths);
    let document = json!({ "200": { "description": "This document.", "content": { "application/json": { "schema": { "type": "object" } } } },
        "default": { "$ref": "#/components/responses/Problem" } });
    add(
        &mut paths,
        "/openapi.json",
        "get",
        json!({ "operationId": "openapi", "summary": "This document.", "responses": document }),
    );
    let (paths, schemas) = joined(Value::Object(paths), sent, answered);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Greenroom",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Sessions of agents. Work such as a prompt is answered by its outcome; with `Accept: \
                text/event-stream` by its events and then the outcome, and with `Prefer: respond-async` when it is accepted.",
            "license": { "name": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "http://127.0.0.1:7878" }],
        "security": [{ "bearer": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": { "bearer": { "type": "http", "scheme": "bearer" } },
            "responses": { "TooMany": {
                "description": "Too much is in progress or waits, or the sessions of a label got as many messages as they may.",
                "headers": { "Retry-After": {
                    "description": "When to try again, in seconds.",
                    "schema": { "type": "integer" },
                } },
                "content": { "application/problem+json": { "schema": problem } },
            }, "Problem": {
                "description": "The request was refused, or its work failed.",
                "content": { "application/problem+json": { "schema": problem } },
            } },
            "schemas": schemas,
        },
    })
}

fn verb(verb: Verb) -> &'static str {
    match verb {
        Verb::Get => "get",
        Verb::Delete => "delete",
        Verb::Post => "post",
        Verb::Put => "put",
    }
}

fn add(paths: &mut Map<String, Value>, path: &str, verb: &str, operation: Value) {
    paths.entry(path).or_insert_with(|| json!({}))[verb] = operation;
}

fn operation(
    method: &Method,
    route: &Route,
    sent: &mut SchemaGenerator,
    answered: &mut SchemaGenerator,
) -> Value {
    let schema = method.params(sent);
    let schemas = method.schemas(answered);
    let mut body = schema.clone();
    let required = |name: &str| {
        let required = schema["required"].as_array();
        required.is_some_and(|required| required.iter().any(|known| known == name))
    };
    let mut parameters = Vec::new();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let is_in_path = route.path.contains(&format!("{{{name}}}"));
        if !is_in_path && !route.verb.has_query() {
            continue;
        }
        if let Some(properties) = body.get_mut("properties").and_then(Value::as_object_mut) {
            properties.shift_remove(name);
        }
        if let Some(required) = body.get_mut("required").and_then(Value::as_array_mut) {
            required.retain(|known| known != name);
        }
        parameters.push(match (is_in_path, property["additionalProperties"].is_object()) {
            (false, true) => label_parameter(),
            (_, _) => {
                let place = if is_in_path { "path" } else { "query" };
                parameter(name, place, is_in_path || required(name), property)
            }
        });
    }
    if method.takes_key {
        let key = json!({ "type": "string", "minLength": 1, "description": "As `key` in the body." });
        parameters.push(parameter("Idempotency-Key", "header", false, &key));
    }
    if !schemas["outcome"]["params"].is_null() {
        let last = json!({ "type": "string", "pattern": POSITION, "description": "With `Accept: text/event-stream`: the stream \
            begins behind this event, and not now. So a prompt that is sent again with its key continues its stream." });
        parameters.push(parameter("Last-Event-ID", "header", false, &last));
    }
    let (summary, description) = texts(&schema, route.right);
    let mut described = json!({
        "operationId": method.name.replace('/', "_"),
        "summary": summary,
        "description": description,
        "parameters": parameters,
        "responses": responses(&schemas, route.right),
    });
    if !route.verb.has_query() {
        if let Some(body) = body.as_object_mut() {
            body.shift_remove("description");
            body.shift_remove("title");
            body.shift_remove("$schema");
        }
        let is_required = body["required"].as_array().is_some_and(|required| !required.is_empty());
        described["requestBody"] =
            json!({ "required": is_required, "content": { "application/json": { "schema": body } } });
    }
    described
}

/// The summary and the description.
fn texts(schema: &Value, right: Right) -> (String, String) {
    let text = schema["description"].as_str().unwrap_or_default();
    let summary = text.split_once(". ").map_or(text, |(first, _)| first).trim_end_matches('.');
    (format!("{summary}."), format!("{text}\n\nNeeds the right `{}`.", right.as_str()))
}

fn parameter(name: &str, place: &str, is_required: bool, schema: &Value) -> Value {
    let mut schema = without_null(schema.clone());
    let description = schema.as_object_mut().and_then(|schema| schema.shift_remove("description"));
    let mut parameter = json!({ "name": name, "in": place, "required": is_required, "schema": schema });
    if let Some(description) = description {
        parameter["description"] = description;
    }
    parameter
}

fn label_parameter() -> Value {
    json!({
        "name": LABEL,
        "in": "query",
        "required": false,
        "description": "Only sessions with this label, `NAME:VALUE`; repeated for several labels.",
        "schema": { "type": "array", "items": { "type": "string", "pattern": "^[^:]+:" } },
        "style": "form",
        "explode": true,
    })
}

/// A parameter of a URL is text, and absent rather than null.
fn without_null(mut schema: Value) -> Value {
    if let Some(types) = schema.get_mut("type").and_then(Value::as_array_mut) {
        types.retain(|kind| kind != "null");
        if let [only] = types.as_slice() {
            schema["type"] = only.clone();
        }
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let kept: Vec<Value> = choices.iter().filter(|choice| choice["type"] != "null").cloned().collect();
        if let ([only], Some(schema)) = (kept.as_slice(), schema.as_object_mut()) {
            schema.shift_remove("anyOf");
            schema.extend(only.as_object().cloned().unwrap_or_default());
        }
    }
    if schema.get("default") == Some(&Value::Null)
        && let Some(schema) = schema.as_object_mut()
    {
        schema.shift_remove("default");
    }
    schema
}

fn responses(schemas: &Value, right: Right) -> Value {
    let outcome = &schemas["outcome"]["params"];
    let json = |schema: &Value| json!({ "application/json": { "schema": schema } });
    let mut responses = json!({});
    if outcome.is_null() {
        responses["200"] = json!({ "description": "It is done.", "content": json(&schemas["result"]) });
    } else {
        let mut content = json(outcome);
        content[MEDIA_TYPE] = json!({ "schema": {
            "type": "string",
            "description": "`accepted`, the session's events, and `result` or `problem`.",
        } });
        responses["200"] = json!({ "description": "The outcome.", "content": content });
        responses["202"] = json!({
            "description": "It is accepted, and continues: with `Prefer: respond-async`.",
            "content": json(&schemas["result"]),
        });
    }
    if right >= Right::Prompt {
        responses["429"] = json!({ "$ref": "#/components/responses/TooMany" });
    }
    responses["default"] = json!({ "$ref": "#/components/responses/Problem" });
    responses
}

fn add_probes(paths: &mut Map<String, Value>) {
    let text = |description: &str, schema: Value| {
        json!({
            "200": { "description": description, "content": { "text/plain": { "schema": schema } } },
            "default": { "$ref": "#/components/responses/Problem" },
        })
    };
    let open = json!([]);
    for (path, id, summary, description, responses, security) in [
        (
            probes::HEALTH,
            "healthz",
            "Health check.",
            "Needs no token.".to_owned(),
            text("The process answers.", json!({ "const": "ok" })),
            Some(&open),
        ),
        (
            probes::READY,
            "readyz",
            "Readiness check.",
            "503 while the server stops or its store cannot be written. Needs no token.".to_owned(),
            text("The server accepts work.", json!({ "const": "ready" })),
            Some(&open),
        ),
        (
            probes::METRICS,
            "metrics",
            "Metrics in Prometheus' text format.",
            format!("Needs the right `{}`, and a token without a label.", Right::Observe.as_str()),
            text("The metrics.", json!({ "type": "string" })),
            None,
        ),
    ] {
        let mut described = json!({
            "operationId": id, "summary": summary, "description": description, "responses": responses,
        });
        if let Some(security) = security {
            described["security"] = security.clone();
        }
        add(paths, path, "get", described);
    }
}

fn add_events(paths: &mut Map<String, Value>, answered: &mut SchemaGenerator) {
    let event = answered.subschema_for::<Event>();
    let flag = |name: &str, what: &str| {
        parameter(name, "query", false, &json!({ "type": "boolean", "description": what }))
    };
    let position = json!({
        "type": "string",
        "pattern": POSITION,
        "description": "The `id` of the last event that the client has seen: the stream continues behind it. 0 is the \
            beginning. Without it, the stream begins now.",
    });
    let common = [
        parameter("Last-Event-ID", "header", false, &position),
        parameter(AFTER, "query", false, &position),
        flag(DURABLE, "Only durable events, which are in the log."),
    ];
    let session = json!({ "type": "string", "description": "The session." });
    let of_session =
        [parameter("session_id", "path", true, &session), flag(TREE, "Also events of the sub-agents below.")];
    for (path, id, summary, more) in [
        ("/sessions/{session_id}/events", "session_events", "Events of a session.", of_session.to_vec()),
        (
            "/events",
            "events",
            "Events of all sessions, or of those with these labels.",
            vec![label_parameter()],
        ),
    ] {
        let parameters = [more, common.to_vec()].concat();
        let described = json!({
            "operationId": id,
            "summary": summary,
            "description": format!(
                "Server-sent events. The `data` of each is an event; a gap has the type `gap`. Needs the right `{}`.",
                Right::Read.as_str()
            ),
            "parameters": parameters,
            "responses": {
                "200": { "description": "The stream.", "content": { MEDIA_TYPE: {
                    "schema": { "type": "string" }, "x-event": event,
                } } },
                "default": { "$ref": "#/components/responses/Problem" },
            },
        });
        add(paths, &format!("{ROOT}{path}"), "get", described);
    }
}

/// The schemas of both generators. A type that is sent and answered in different forms has two names.
fn joined(
    paths: Value,
    mut sent: SchemaGenerator,
    mut answered: SchemaGenerator,
) -> (Value, Map<String, Value>) {
    let mut schemas = answered.take_definitions(true);
    let mut of_sent = sent.take_definitions(true);
    let mut paths = paths;
    // A type that refers to a differing one differs, too.
    let mut differing: Vec<String> = Vec::new();
    while let Some(next) = of_sent.iter().find_map(|(name, schema)| {
        let is_new = !differing.contains(name) && schemas.get(name).is_some_and(|known| known != schema);
        is_new.then(|| name.clone())
    }) {
        of_sent.values_mut().for_each(|schema| renamed(schema, &next));
        differing.push(next);
    }
    let rename = |value: &mut Value| differing.iter().for_each(|name| renamed(value, name));
    // Parameters and bodies refer to what is sent, and responses to what is answered.
    for path in paths.as_object_mut().into_iter().flat_map(|paths| paths.values_mut()) {
        for operation in path.as_object_mut().into_iter().flat_map(|path| path.values_mut()) {
            for part in ["parameters", "requestBody"] {
                operation.get_mut(part).into_iter().for_each(rename);
            }
        }
    }
    for (name, schema) in of_sent {
        let name = if differing.contains(&name) { format!("{name}{SENT}") } else { name };
        schemas.insert(name, schema);
    }
    schemas.sort_keys();
    (paths, schemas)
}

/// Adds [`SENT`] to the references to this type.
fn renamed(value: &mut Value, name: &str) {
    match value {
        Value::Object(object) => {
            for (key, value) in object.iter_mut() {
                match value.as_str() {
                    Some(to) if key == "$ref" && *to == format!("#{SCHEMAS}/{name}") => {
                        *value = format!("#{SCHEMAS}/{name}{SENT}").into();
                    }
                    Some(_) | None => renamed(value, name),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| renamed(item, name)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}
