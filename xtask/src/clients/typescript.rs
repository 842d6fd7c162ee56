//! Writes the generated part of the TypeScript client.
//!
//! Invariants: fields have the names that they have in JSON; methods and arguments are in camel case.

use std::fmt::Write as _;

use super::document::{Answer, Definition, Document, Field, Form, Operation, Type, camel};

/// The types: `types.ts`.
pub(super) fn types(document: &Document) -> String {
    let mut text =
        format!("// {}\n/** The types of the API: objects as they are in JSON. */\n", super::NOTICE);
    for Definition { name, doc, form } in &document.definitions {
        match form {
            Form::Alias(of) => {
                let _ = write!(text, "\n{}export type {name} = {};\n", comment(doc, ""), written(of));
            }
            Form::Object(base, fields) => {
                let extends = base.as_ref().map(|base| format!(" extends {base}")).unwrap_or_default();
                let _ = write!(text, "\n{}export interface {name}{extends} {{\n", comment(doc, ""));
                fields.iter().for_each(|field| member(&mut text, field));
                text.push_str("}\n");
            }
        }
    }
    for operation in document.operations.values().flatten().filter(|operation| !operation.params.is_empty()) {
        let name = camel(&operation.id);
        let _ = write!(
            text,
            "\n/** The parameters of `{}`. */\nexport interface {name}Params {{\n",
            operation.id
        );
        operation.params.iter().for_each(|field| member(&mut text, field));
        text.push_str("}\n");
    }
    text
}

/// The operations: `operations.ts`.
pub(super) fn operations(document: &Document) -> String {
    let mut text = format!(
        "// {}\n/** A method for each operation, in groups. */\n\nimport type * as types from \"./types.js\";\n\
         import {{ EventStream, WorkStream }} from \"./streams.js\";\n\
         import {{ path, type RequestOptions, type Transport }} from \"./transport.js\";\n",
        super::NOTICE
    );
    for (group, operations) in document.operations.iter().filter(|(group, _)| !group.is_empty()) {
        let name = camel(group);
        let _ = write!(text, "\n/** The operations `{group}/…`. */\nexport class {name}Operations {{\n");
        text.push_str("  readonly #transport: Transport;\n\n  constructor(transport: Transport) {\n");
        text.push_str("    this.#transport = transport;\n  }\n");
        operations.iter().for_each(|operation| method(&mut text, operation));
        text.push_str("}\n");
    }
    text.push_str("\n/** All operations. */\nexport class Operations {\n  readonly #transport: Transport;\n");
    let groups: Vec<&String> = document.operations.keys().filter(|group| !group.is_empty()).collect();
    for group in &groups {
        let _ = writeln!(text, "  readonly {group}: {}Operations;", camel(group));
    }
    text.push_str("\n  constructor(transport: Transport) {\n    this.#transport = transport;\n");
    for group in &groups {
        let _ = writeln!(text, "    this.{group} = new {}Operations(transport);", camel(group));
    }
    text.push_str("  }\n");
    document.operations.get("").into_iter().flatten().for_each(|operation| method(&mut text, operation));
    text.push_str("}\n");
    text
}

fn method(text: &mut String, operation: &Operation) {
    let name = lower(operation.names().1);
    let in_path = &operation.in_path;
    let mut signature: Vec<String> =
        in_path.iter().map(|field| format!("{}: {}", lower(&field.name), of_types(&field.of))).collect();
    let has_params = !operation.params.is_empty();
    if has_params {
        let is_optional = operation.params.iter().all(|field| !field.is_required);
        let default = if is_optional { " = {}" } else { "" };
        signature.push(format!("params: types.{}Params{default}", camel(&operation.id)));
    }
    signature.push("options: RequestOptions = {}".into());
    let signature = signature.join(", ");
    let mut pieces = vec![format!("{:?}", operation.path)];
    pieces.extend(in_path.iter().map(|field| lower(&field.name)));
    let target = format!("path({})", pieces.join(", "));
    let params = if has_params { "params" } else { "{}" };
    let verb = &operation.verb;
    let (place, key) = (if operation.has_query() { "query" } else { "body" }, operation.takes_key);
    let key = if key { ", takesKey: true" } else { "" };
    let mut write = |suffix: &str, returned: &str, doc: &str, code: &str| {
        let comment = comment(doc, "  ");
        let _ = write!(
            text,
            "\n{comment}  {name}{suffix}({signature}): {returned} {{\n    return {code};\n  }}\n"
        );
    };
    let mut doc = operation.doc.clone();
    let documented: Vec<String> = in_path
        .iter()
        .filter(|field| !field.doc.is_empty())
        .map(|field| format!("\n@param {} {}", lower(&field.name), field.doc.replace('\n', " ")))
        .collect();
    if !documented.is_empty() {
        let _ = write!(doc, "\n{}", documented.concat());
    }
    match &operation.answer {
        Answer::Json(of) => write(
            "",
            &format!("Promise<{}>", of_types(of)),
            &doc,
            &format!("this.#transport.call(\"{verb}\", {target}, {{ {place}: {params}{key} }}, options)"),
        ),
        Answer::Text => {
            write(
                "",
                "Promise<string>",
                &doc,
                &format!("this.#transport.text(\"{verb}\", {target}, {params}, options)"),
            );
        }
        Answer::Events => {
            let doc = format!(
                "{}\n\nThe stream reconnects by itself, and continues behind its last event.",
                operation.doc
            );
            write(
                "",
                "EventStream",
                &doc,
                &format!("new EventStream(this.#transport, {target}, {params}, options)"),
            );
        }
        Answer::Work { outcome, accepted } => {
            let (outcome, accepted) = (of_types(outcome), of_types(accepted));
            let is_repeatable = if operation.takes_key { "true" } else { "false" };
            let stream = format!(
                "new WorkStream<{outcome}>(this.#transport, {target}, {params}, {is_repeatable}, options)"
            );
            write("", &format!("Promise<{outcome}>"), &doc, &format!("{stream}.outcome()"));
            let about = format!("As `{name}`, with the events of the session until the outcome.");
            write("Stream", &format!("WorkStream<{outcome}>"), &about, &stream);
            let about = format!("As `{name}`, but returns as soon as it is accepted, which is durable.");
            let code = format!(
                "this.#transport.call(\"{verb}\", {target}, {{ body: {params}{key}, isAsync: true }}, options)"
            );
            write("Submit", &format!("Promise<{accepted}>"), &about, &code);
        }
    }
}

fn member(text: &mut String, field: &Field) {
    let mark = if field.is_required { "" } else { "?" };
    let _ = writeln!(text, "{}  {}{mark}: {};", comment(&field.doc, "  "), field.name, written(&field.of));
}

/// `session_id` as `sessionId`.
fn lower(name: &str) -> String {
    let camel = camel(name);
    let mut letters = camel.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

/// A type, as it is named outside `types.ts`.
fn of_types(of: &Type) -> String {
    if let Type::Named(name) = of { format!("types.{name}") } else { written(of) }
}

fn written(of: &Type) -> String {
    let all = |of: &[Type], separator: &str| of.iter().map(written).collect::<Vec<_>>().join(separator);
    match of {
        Type::Any => "unknown".into(),
        Type::Text => "string".into(),
        Type::Integer | Type::Number => "number".into(),
        Type::Boolean => "boolean".into(),
        Type::Null => "null".into(),
        Type::Literal(value) => value.clone(),
        Type::List(of) => format!("Array<{}>", written(of)),
        Type::Tuple(of) => format!("[{}]", all(of, ", ")),
        Type::Map(of) => format!("Record<string, {}>", written(of)),
        Type::Named(name) => name.clone(),
        Type::Union(of) => all(of, " | "),
    }
}

fn comment(doc: &str, indent: &str) -> String {
    if doc.is_empty() {
        return String::new();
    }
    let doc = doc.replace("*/", "* /").replace("`None`", "`null`");
    if !doc.contains('\n') {
        return format!("{indent}/** {doc} */\n");
    }
    let lines: Vec<String> =
        doc.lines().map(|line| format!("{indent} * {line}").trim_end().to_owned()).collect();
    format!("{indent}/**\n{}\n{indent} */\n", lines.join("\n"))
}
