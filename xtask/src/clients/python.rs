//! Writes the generated part of the Python client.
//!
//! Invariants: it runs on Python 3.9 with nothing but the standard library; a name that is a keyword gets a `_`.

use std::fmt::Write as _;

use super::document::{Answer, Definition, Document, Field, Form, Operation, Type, camel};

const KEYWORDS: [&str; 9] = ["as", "class", "from", "global", "import", "in", "is", "not", "with"];

/// The types: `types.py`.
pub(super) fn types(document: &Document) -> String {
    let mut text = format!(
        "# {}\n\"\"\"The types of the API: dictionaries as they are in JSON.\"\"\"\n\nfrom __future__ import annotations\n\n\
         import sys\nimport typing as t\n\nif t.TYPE_CHECKING or sys.version_info >= (3, 11):\n    \
         if sys.version_info >= (3, 11):\n        from typing import NotRequired\n    else:\n        \
         from typing_extensions import NotRequired\n",
        super::NOTICE
    );
    // Names of other types are written as texts, but a base must be defined before.
    let mut definitions: Vec<&Definition> = document.definitions.iter().collect();
    definitions.sort_by_key(|known| document.bases(known));
    for Definition { name, doc, form } in definitions {
        match form {
            Form::Alias(of) => {
                let _ = write!(
                    text,
                    "\n\n{name} = {}\n{}",
                    written(of, &|name| format!("\"{name}\"")),
                    docstring(doc, "")
                );
            }
            Form::Object(base, fields) => {
                let (keywords, plain): (Vec<_>, Vec<_>) =
                    fields.iter().partition(|field| KEYWORDS.contains(&field.name.as_str()));
                let mut bases: Vec<String> = base.iter().cloned().collect();
                if !keywords.is_empty() {
                    let _ = write!(text, "\n\n_{name} = t.TypedDict(\"_{name}\", {{\n");
                    for field in keywords {
                        let comment = field.doc.replace('\n', " ");
                        let _ =
                            writeln!(text, "    # {comment}\n    \"{}\": {:?},", field.name, of_field(field));
                    }
                    text.push_str("})\n");
                    bases.push(format!("_{name}"));
                }
                if bases.is_empty() {
                    bases.push("t.TypedDict".into());
                }
                let _ = write!(text, "\n\nclass {name}({}):\n{}", bases.join(", "), docstring(doc, "    "));
                for field in &plain {
                    let _ = write!(
                        text,
                        "\n    {}: {}\n{}",
                        field.name,
                        of_field(field),
                        docstring(&field.doc, "    ")
                    );
                }
                if plain.is_empty() && doc.is_empty() {
                    text.push_str("    pass\n");
                }
            }
        }
    }
    text
}

/// The operations: `operations.py`.
pub(super) fn operations(document: &Document) -> String {
    let mut text = format!(
        "# {}\n\"\"\"A method for each operation, in groups.\"\"\"\n\nfrom __future__ import annotations\n\n\
         import typing as t\n\nfrom . import types\nfrom .streams import EventStream, WorkStream\n\
         from .transport import Transport, given, path\n",
        super::NOTICE
    );
    for (group, operations) in document.operations.iter().filter(|(group, _)| !group.is_empty()) {
        let _ = write!(
            text,
            "\n\nclass {}Operations:\n    \"\"\"The operations `{group}/…`.\"\"\"\n\n    \
             def __init__(self, transport: Transport) -> None:\n        self._transport = transport\n",
            camel(group)
        );
        operations.iter().for_each(|operation| method(&mut text, operation));
    }
    text.push_str(
        "\n\nclass Operations:\n    \"\"\"All operations.\"\"\"\n\n    \
         def __init__(self, transport: Transport) -> None:\n        self._transport = transport\n",
    );
    for group in document.operations.keys().filter(|group| !group.is_empty()) {
        let _ = writeln!(text, "        self.{group} = {}Operations(transport)", camel(group));
    }
    document.operations.get("").into_iter().flatten().for_each(|operation| method(&mut text, operation));
    text
}

fn method(text: &mut String, operation: &Operation) {
    let name = operation.names().1;
    let mut signature = vec!["self".to_owned()];
    let parameter = |field: &Field| {
        let of = of_types(&field.of);
        let of =
            if field.is_required || of.starts_with("t.Optional") { of } else { format!("t.Optional[{of}]") };
        format!("{}: {of}{}", safe(&field.name), if field.is_required { "" } else { " = None" })
    };
    signature.extend(operation.in_path.iter().map(parameter));
    if !operation.params.is_empty() {
        signature.push("*".into());
    }
    signature.extend(operation.params.iter().map(parameter));
    let signature = signature.join(", ");
    let mut pieces = vec![format!("{:?}", operation.path)];
    pieces.extend(operation.in_path.iter().map(|field| safe(&field.name)));
    let target = format!("path({})", pieces.join(", "));
    let pair = |field: &&Field| format!("\"{}\": {}", field.name, safe(&field.name));
    let of_some = |is_required: bool| {
        let fields: Vec<_> =
            operation.params.iter().filter(|field| field.is_required == is_required).collect();
        fields.iter().map(pair).collect::<Vec<_>>().join(", ")
    };
    let params = match (of_some(true), of_some(false)) {
        (required, optional) if optional.is_empty() => format!("{{{required}}}"),
        (required, optional) if required.is_empty() => format!("given({{{optional}}})"),
        (required, optional) => format!("{{{required}, **given({{{optional}}})}}"),
    };
    let place = if operation.has_query() { "query" } else { "body" };
    let key = if operation.takes_key { ", takes_key=True" } else { "" };
    let verb = &operation.verb;
    let mut write = |suffix: &str, returned: &str, doc: &str, code: &str| {
        let name = safe(&format!("{name}{suffix}"));
        let _ = write!(
            text,
            "\n    def {name}({signature}) -> {returned}:\n{}{code}",
            docstring(doc, "        ")
        );
    };
    let mut doc = operation.doc.clone();
    let fields = operation.in_path.iter().chain(&operation.params).filter(|field| !field.doc.is_empty());
    let arguments: Vec<String> = fields
        .map(|field| format!("\n    {}: {}", safe(&field.name), field.doc.replace('\n', " ")))
        .collect();
    if !arguments.is_empty() {
        let _ = write!(doc, "\n\nArgs:{}", arguments.concat());
    }
    let call = |of: &Type, code: &str| {
        let of = of_types(of);
        format!("        answer: {of} = {code}\n        return answer\n")
    };
    match &operation.answer {
        Answer::Json(of) => {
            let code = format!("self._transport.call(\"{verb}\", {target}, {place}={params}{key})");
            write("", &of_types(of), &doc, &call(of, &code));
        }
        Answer::Text => {
            let code = format!("        return self._transport.text(\"{verb}\", {target}, query={params})\n");
            write("", "str", &doc, &code);
        }
        Answer::Events => {
            doc.push_str("\n\nThe stream reconnects by itself, and continues behind its last event.");
            let code = format!("        return EventStream(self._transport, {target}, {params})\n");
            write("", "EventStream", &doc, &code);
        }
        Answer::Work { outcome, accepted } => {
            let stream = format!("WorkStream(self._transport, {target}, {params}{key})");
            let returned = format!("WorkStream[{}]", of_types(outcome));
            write(
                "",
                &of_types(outcome),
                &doc,
                &format!("        stream: {returned} = {stream}\n        return stream.outcome()\n"),
            );
            let about = format!("As `{name}`, with the events of the session until the outcome.");
            write("_stream", &returned, &about, &format!("        return {stream}\n"));
            let code =
                format!("self._transport.call(\"{verb}\", {target}, body={params}{key}, is_async=True)");
            let about = format!("As `{name}`, but returns as soon as it is accepted, which is durable.");
            write("_submit", &of_types(accepted), &about, &call(accepted, &code));
        }
    }
}

fn safe(name: &str) -> String {
    if KEYWORDS.contains(&name) { format!("{name}_") } else { name.to_owned() }
}

fn of_field(field: &Field) -> String {
    let of = written(&field.of, &str::to_owned);
    if field.is_required { of } else { format!("NotRequired[{of}]") }
}

/// A type, as it is named outside `types.py`.
fn of_types(of: &Type) -> String {
    written(of, &|name| format!("types.{name}"))
}

/// A type, with the names of others as `named` writes them.
fn written(of: &Type, named: &dyn Fn(&str) -> String) -> String {
    let written = |of: &Type| written(of, named);
    match of {
        Type::Any => "t.Any".into(),
        Type::Text => "str".into(),
        Type::Integer => "int".into(),
        Type::Number => "float".into(),
        Type::Boolean => "bool".into(),
        Type::Null => "None".into(),
        Type::Literal(value) => format!("t.Literal[{value}]"),
        Type::List(of) => format!("t.List[{}]", written(of)),
        Type::Tuple(of) => format!("t.Tuple[{}]", of.iter().map(written).collect::<Vec<_>>().join(", ")),
        Type::Map(of) => format!("t.Dict[str, {}]", written(of)),
        Type::Named(name) => named(name),
        Type::Union(of) => {
            let is_null = of.contains(&Type::Null);
            let mut of: Vec<String> = of.iter().filter(|of| **of != Type::Null).map(written).collect();
            if of.iter().all(|of| of.starts_with("t.Literal[")) {
                let values: Vec<&str> = of.iter().map(|of| &of["t.Literal[".len()..of.len() - 1]).collect();
                of = vec![format!("t.Literal[{}]", values.join(", "))];
            }
            let all =
                if let [only] = of.as_slice() { only.clone() } else { format!("t.Union[{}]", of.join(", ")) };
            if is_null { format!("t.Optional[{all}]") } else { all }
        }
    }
}

fn docstring(doc: &str, indent: &str) -> String {
    if doc.is_empty() {
        return String::new();
    }
    let doc = doc.replace('\\', "\\\\").replace("\"\"\"", "'''").replace('\n', &format!("\n{indent}"));
    let doc: Vec<&str> = doc.lines().map(str::trim_end).collect();
    let end = if doc.len() > 1 || doc.iter().any(|line| line.ends_with('"')) {
        format!("\n{indent}")
    } else {
        String::new()
    };
    format!("{indent}\"\"\"{}{end}\"\"\"\n", doc.join("\n"))
}
