//! Every kind of type has a form that servers accept, and their answers can be parsed.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::{BTreeMap, HashMap};

use serde::{Deserialize, Serialize};

use super::*;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Person {
    name: String,
    age: Option<u32>,
    home: Option<Home>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Home {
    street: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
enum Verdict {
    Yes,
    No,
}

/// With data, and with docs on the variants.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind")]
enum Shape {
    /// A round one.
    Circle { radius: f64 },
    /// One with corners.
    Square { side: f64 },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Defaulted {
    #[serde(default)]
    count: u32,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
struct Tree {
    label: String,
    children: Vec<Tree>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
enum Expression {
    Number(f64),
    Negated(Box<Expression>),
}

/// A type is named as in the program; servers get a name of letters and digits.
#[test]
fn the_type_of_an_answer_is_named_as_it_is_written() {
    fn check<T: JsonSchema + DeserializeOwned>(title: &str, name: &str) {
        let form = OutputForm::of::<T>();
        assert_eq!((form.title.as_str(), form.schema.name.as_str()), (title, name));
        let error = form.unreadable(String::new(), "no".to_owned());
        assert_eq!(error.to_string(), format!("the answer does not fit the schema {title:?}: no"));
    }
    check::<Person>("Person", "Person");
    check::<Vec<u32>>("Vec<u32>", "Vecu32");
    check::<Vec<Person>>("Vec<Person>", "Person");
    check::<BTreeMap<String, Option<Vec<Home>>>>("BTreeMap<String, Option<Vec<Home>>>", "Home");
    check::<(u8, Home)>("(u8, Home)", "Home");
    check::<bool>("bool", "bool");
}

/// Whether `value` satisfies the schema, for the keywords in these tests.
fn satisfies(value: &Value, schema: &Value, root: &Value) -> bool {
    let Value::Object(map) = schema else { return schema != &Value::Bool(false) };
    if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
        return satisfies(value, root.pointer(reference.strip_prefix('#').unwrap()).unwrap(), root);
    }
    let is_kind = |kind: &str| match kind {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("{other}"),
    };
    let kind = map.get("type").is_none_or(|kind| match kind.as_str() {
        Some(kind) => is_kind(kind),
        None => kind.as_array().unwrap().iter().any(|kind| is_kind(kind.as_str().unwrap())),
    });
    let any = map
        .get("anyOf")
        .is_none_or(|forms| forms.as_array().unwrap().iter().any(|form| satisfies(value, form, root)));
    let listed = map.get("enum").is_none_or(|values| values.as_array().unwrap().contains(value));
    let constant = map.get("const").is_none_or(|wanted| wanted == value);
    let required = map.get("required").and_then(Value::as_array);
    let has_all = value.as_object().is_none_or(|object| {
        required.is_none_or(|names| names.iter().all(|name| object.contains_key(name.as_str().unwrap())))
    });
    let properties = map.get("properties").and_then(Value::as_object);
    let each = value.as_object().is_none_or(|object| {
        object.iter().all(|(name, value)| match properties.and_then(|properties| properties.get(name)) {
            Some(property) => satisfies(value, property, root),
            None => map.get("additionalProperties").is_none_or(|more| satisfies(value, more, root)),
        })
    });
    let items = value.as_array().is_none_or(|items| {
        map.get("items").is_none_or(|item| items.iter().all(|value| satisfies(value, item, root)))
    });
    kind && any && listed && constant && has_all && each && items
}

fn form_of<T: JsonSchema>() -> AnswerForm {
    rooted(schema_of::<T>())
}

fn check<T>(is_wrapped: bool, value: &T)
where
    T: JsonSchema + DeserializeOwned + Serialize + PartialEq + std::fmt::Debug,
{
    let form = form_of::<T>();
    assert_eq!(form.is_wrapped, is_wrapped, "{}", form.schema);
    assert_eq!(form.schema["type"], "object", "{}", form.schema);
    assert!(
        form.schema.get("anyOf").is_none() && !form.schema.to_string().contains("oneOf"),
        "{}",
        form.schema
    );
    let plain = serde_json::to_value(value).unwrap();
    let answer = if is_wrapped { json!({ "value": plain }) } else { plain.clone() };
    assert!(satisfies(&answer, &form.schema, &form.schema), "{answer} against {}", form.schema);
    assert!(
        !satisfies(&json!({ "other": 1 }), &form.schema, &form.schema) || answer == json!({}),
        "{}",
        form.schema
    );
    for text in [answer.to_string(), plain.to_string(), format!("```json\n{answer}\n```")] {
        assert_eq!(&read::<T>(&text, is_wrapped).unwrap(), value, "{text}");
    }
    // The recorded form, as used after a restart.
    let recorded = OutputForm::of_terms(&OutputForm::of::<T>().terms()).unwrap();
    assert_eq!(
        (recorded.schema.as_ref(), recorded.is_wrapped),
        (OutputForm::of::<T>().schema.as_ref(), is_wrapped)
    );
    recorded.check(&answer.to_string()).unwrap();
    assert!(recorded.check(r#"{"value":{"other":[]}}"#).is_err());
    assert_eq!(unwrapped(answer, is_wrapped), Some(plain));
}

#[test]
fn every_kind_of_type_has_an_object_that_it_is_read_from() {
    let person = Person { name: "Ada".to_owned(), age: None, home: Some(Home { street: "x".to_owned() }) };
    check(false, &person);
    check(true, &vec![person.clone()]);
    check(true, &Some(person));
    check(true, &Verdict::No);
    check(true, &true);
    check(true, &7_u8);
    check(true, &1.5_f64);
    check(true, &"text".to_owned());
    check(true, &vec!["a".to_owned()]);
    check(true, &Shape::Circle { radius: 1.0 });
    check(true, &vec![Shape::Square { side: 2.0 }]);
    let leaf = Tree { label: "leaf".to_owned(), children: Vec::new() };
    check(false, &Tree { label: "root".to_owned(), children: vec![leaf] });
    check(true, &Expression::Negated(Box::new(Expression::Number(1.0))));
    let form = form_of::<BTreeMap<String, u32>>();
    assert!(!form.is_wrapped && form.schema["additionalProperties"]["type"] == "integer", "{}", form.schema);
    assert_eq!(read::<HashMap<String, u32>>(r#"{"value":3}"#, false).unwrap()["value"], 3);
}

#[test]
fn what_may_be_null_is_required_and_what_has_a_default_may_be_left_out() {
    let schema = form_of::<Person>().schema;
    assert_eq!(schema["additionalProperties"], false);
    let mut required: Vec<&str> =
        schema["required"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    required.sort_unstable();
    assert_eq!(required, ["age", "home", "name"]);
    assert!(!schema.to_string().contains("uint32"), "{schema}");
    assert_eq!(form_of::<Defaulted>().schema["required"], json!([]));
    assert_eq!(read::<Defaulted>("{}", false).unwrap(), Defaulted { count: 0 });
}

#[test]
fn what_cannot_be_read_says_why() {
    assert!(read::<Verdict>(r#"{"value":"Perhaps"}"#, true).unwrap_err().to_string().contains("Perhaps"));
    assert!(read::<bool>("yes", true).is_err());
    assert_eq!(unwrapped(json!({}), true), None, "nothing has come yet");
}

fn sent(schema: &Value) -> OutputForm {
    OutputForm::of_schema(schema).unwrap()
}

#[test]
fn a_schema_is_sent_strict_where_that_means_the_same() {
    let open = json!({ "title": "The city!", "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": { "name": { "type": "string" }, "rain": { "type": ["integer", "null"] } },
        "required": ["name"] });
    let form = sent(&open);
    assert_eq!(
        (form.schema.name.as_str(), form.is_wrapped, form.schema.is_strict()),
        ("Thecity", false, true)
    );
    assert_eq!(form.schema.schema["required"], json!(["name", "rain"]));
    assert_eq!(form.schema.schema["additionalProperties"], json!(false));
    // The program's own schema judges the answer.
    assert!(form.check(r#"{"name": "Oslo", "country": "Norway"}"#).is_ok());
    assert!(form.check(r#"{"rain": 3}"#).is_err_and(|reason| reason.contains("name")));
    assert!(form.check("Oslo").is_err_and(|reason| reason.contains("not valid JSON")));

    // A schema that strict mode cannot express is sent unchanged: if they were closed, the two parts would
    // exclude each other.
    let part = |name: &str| json!({ "type": "object", "properties": { name: { "type": "string" } }, "required": [name] });
    let both = json!({ "type": "object", "properties": { "c": { "allOf": [part("a"), part("b")] } }, "required": ["c"] });
    let form = sent(&both);
    assert_eq!((&form.schema.schema, form.schema.is_strict()), (&both, false));
    assert!(form.check(r#"{"c": {"a": "1", "b": "2"}}"#).is_ok());
    let optional = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
    assert_eq!(sent(&optional).schema.schema, optional);
}

#[test]
fn a_schema_that_is_no_object_is_wrapped_and_its_references_lead_where_they_did() {
    let tree = json!({ "definitions": { "leaf": { "type": "string" } }, "type": "array",
        "items": { "anyOf": [{ "$ref": "#" }, { "$ref": "#/definitions/leaf" }, { "$ref": "#/items/anyOf/1" }] } });
    let form = sent(&tree);
    assert!(form.is_wrapped);
    let schema = ValueSchema::new(&form.schema.schema).unwrap();
    for (value, fits) in [(json!([["a"], "b"]), true), (json!([[["a"]], 1]), false), (json!("a"), false)] {
        assert_eq!(schema.check(&json!({ "value": value })).is_ok(), fits, "{value}");
        assert_eq!(form.check(&json!({ "value": value }).to_string()).is_ok(), fits, "{value}");
        assert_eq!(form.check(&value.to_string()).is_ok(), fits, "{value}");
    }
    let one = sent(&json!({ "oneOf": [{ "type": "integer" }, { "type": "number", "minimum": 3 }] }));
    assert!(one.is_wrapped && one.schema.is_strict(), "{}", one.schema.schema);
    assert!(one.check("5").is_err() && one.check("2").is_ok(), "what fits both forms fits not one");
    assert_eq!(one.schema.name, "answer");
}
