//! Errors in a schema or a value are reported with their location, and neither costs more than was counted.

use serde_json::{Map, json};

use super::rules::Rule;
use super::*;

#[test]
fn a_schema_that_is_wrong_is_refused_with_the_place() {
    for (schema, place) in [
        (json!({ "properties": { "name": { "type": "text" } } }), "/properties/name/type"),
        (json!({ "type": "object", "required": "name" }), "/required"),
        (json!({ "required": [1] }), "/required/0"),
        (json!({ "properties": { "n": { "minimum": "1" } } }), "/properties/n/minimum"),
        (json!({ "properties": { "n": { "$ref": "#/$defs/None" } } }), "#/$defs/None"),
        (json!({ "properties": { "n": { "pattern": "(" } } }), "/properties/n/pattern"),
        (json!({ "items": { "$ref": "https://example.com/x.json" } }), "https://example.com/x.json"),
        (json!({ "items": { "multipleOf": 0 } }), "/items/multipleOf"),
        (json!({ "maxLength": -1 }), "/maxLength"),
        (json!({ "minItems": 1.5 }), "/minItems"),
        (json!({ "anyOf": { "type": "string" } }), "/anyOf"),
        (json!({ "allOf": [{ "not": 3 }] }), "/allOf/0/not"),
        (json!({ "items": [{}] }), "prefixItems"),
        (json!({ "uniqueItems": 1 }), "/uniqueItems"),
        (json!({ "enum": "a" }), "/enum"),
        (json!({ "$defs": { "unused": { "type": 7 } } }), "/$defs/unused/type"),
        (json!({ "patternProperties": { "[": {} } }), "/patternProperties/["),
        (json!({ "items": { "$dynamicRef": "#x" } }), "`$dynamicRef` is not supported"),
        (json!({ "$schema": "https://example.com/mine" }), "/$schema"),
        (json!({ "properties": { "a/b~c": { "type": 1 } } }), "/properties/a~1b~0c/type"),
        (json!([1]), "must be an object"),
    ] {
        let said = ValueSchema::new(&schema).expect_err("it is wrong");
        assert!(said.contains(place), "{schema}: {said}");
        assert!(!said.contains("schema:/") && !said.contains('\n'), "{schema}: {said}");
    }
}

#[test]
fn a_value_that_does_not_fit_is_refused_with_every_place() {
    let schema = json!({
        "type": "object",
        "properties": { "name": { "type": "string" }, "rain": { "type": "integer", "minimum": 0 } },
        "required": ["name", "rain"],
    });
    let schema = ValueSchema::new(&schema).expect("it is a schema");
    assert_eq!(schema.check(&json!({ "name": "Oslo", "rain": 3 })), Ok(()));
    let said = schema.check(&json!({ "name": 1, "rain": -1 })).expect_err("it does not fit");
    assert_eq!(said, "at `/name`: want string, but got number; at `/rain`: must be >= 0, but got -1");
    assert!(schema.check(&json!({ "name": "Oslo" })).is_err_and(|said| said.contains("rain")));
}

/// Checks which values a schema accepts, and with which messages it rejects others.
fn check(schema: &Value, fits: &[Value], misfits: &[(Value, &str)]) {
    let read = ValueSchema::new(schema).expect("it is a schema");
    for value in fits {
        assert_eq!(read.check(value), Ok(()), "{schema}: {value}");
    }
    for (value, words) in misfits {
        let said = read.check(value).expect_err("it does not fit");
        assert!(said.contains(words), "{schema}: {value}: {said}");
    }
}

#[test]
fn values_and_bounds_are_compared_as_json_schema_says() {
    check(
        &json!({ "type": "integer" }),
        &[json!(1), json!(1.0)],
        &[(json!(1.5), "want integer, but got 1.5")],
    );
    check(
        &json!({ "type": ["null", "array"] }),
        &[json!(null), json!([])],
        &[(json!({}), "want null or array")],
    );
    check(
        &json!({ "enum": [1, "a", { "x": [1, 2] }] }),
        &[json!(1.0), json!("a"), json!({ "x": [1.0, 2] })],
        &[(json!({ "x": [2, 1] }), "want one of 1, \"a\", an object"), (json!([]), "got an array")],
    );
    check(
        &json!({ "const": { "a": 1, "b": 2 } }),
        &[json!({ "b": 2, "a": 1 })],
        &[(json!(3), "want an object")],
    );
    check(
        &json!({ "minimum": 1, "exclusiveMaximum": 3 }),
        &[json!(1), json!(2.9), json!("a")],
        &[(json!(0), ">= 1"), (json!(3), "< 3")],
    );
    check(
        &json!({ "exclusiveMinimum": 1, "maximum": 3 }),
        &[json!(1.5), json!(3)],
        &[(json!(1), "> 1"), (json!(3.5), "<= 3")],
    );
    check(
        &json!({ "multipleOf": 0.01 }),
        &[json!(0.07), json!(3)],
        &[(json!(0.075), "not a multiple of 0.01")],
    );
    check(&json!({ "multipleOf": 3 }), &[json!(-9)], &[(json!(10), "not a multiple of 3")]);
    check(
        &json!({ "minLength": 2, "maxLength": 3.0 }),
        &[json!("éé"), json!("ééé"), json!(1)],
        &[
            (json!("é"), "at least 2 characters, but has 1"),
            (json!("éééé"), "at most 3 characters, but has 4"),
        ],
    );
    check(
        &json!({ "minItems": 1, "maxItems": 2, "minProperties": 1, "maxProperties": 2 }),
        &[json!([1]), json!([1, 2]), json!({ "a": 1 })],
        &[
            (json!([]), "at least 1 items"),
            (json!([1, 2, 3]), "at most 2 items"),
            (json!({}), "at least 1 properties"),
            (json!({ "a": 1, "b": 2, "c": 3 }), "at most 2 properties"),
        ],
    );
    check(
        &json!({ "pattern": "^a+$" }),
        &[json!("aa"), json!(1)],
        &[(json!("b"), "does not match the pattern \"^a+$\"")],
    );
    check(
        &json!({ "uniqueItems": true }),
        &[json!([1, "1", [1], { "a": 1 }])],
        &[(json!([{ "a": 1, "b": 2 }, { "b": 2, "a": 1.0 }]), "two of its items are equal")],
    );
    check(
        &json!({ "uniqueItems": false, "format": "email", "unknown": 7 }),
        &[json!([1, 1]), json!("x")],
        &[],
    );
}

#[test]
fn members_and_items_are_checked_as_json_schema_says() {
    let closed = json!({
        "properties": { "a": { "type": "string" } },
        "patternProperties": { "^x": { "type": "number" } },
        "additionalProperties": false,
    });
    check(
        &closed,
        &[json!({ "a": "1", "x1": 1 }), json!([1])],
        &[
            (json!({ "b": 1 }), "at `/b`: it is not allowed here"),
            (json!({ "x": "" }), "at `/x`: want number"),
        ],
    );
    check(
        &json!({ "propertyNames": { "maxLength": 2 } }),
        &[json!({ "ab": 1 })],
        &[(json!({ "o": 1, "abc": 1 }), "at `/abc`: must have at most 2 characters")],
    );
    check(
        &json!({ "dependentRequired": { "a": ["b", "c"] }, "dependentSchemas": { "d": { "required": ["e"] } } }),
        &[json!({ "b": 1 }), json!({ "a": 1, "b": 1, "c": 1 }), json!({ "d": 1, "e": 1 })],
        &[
            (json!({ "a": 1, "b": 1 }), "missing properties \"c\", which \"a\" requires"),
            (json!({ "d": 1 }), "\"e\""),
        ],
    );
    check(
        &json!({ "dependentRequired": { "x": ["y"], "a": ["b"] } }),
        &[json!({ "y": 1 })],
        &[(json!({ "a": 1 }), "missing properties \"b\", which \"a\" requires")],
    );
    check(
        &json!({ "prefixItems": [{ "type": "string" }, true], "items": { "type": "number" } }),
        &[json!(["a"]), json!(["a", null, 1])],
        &[(json!([1]), "at `/0`: want string"), (json!(["a", "b", "c"]), "at `/2`: want number")],
    );
    check(
        &json!({ "contains": { "type": "string" }, "minContains": 2, "maxContains": 3 }),
        &[json!(["a", "b"]), json!(["a", "b", "c", 1]), json!({})],
        &[(json!(["a"]), "at least 2 must"), (json!(["a", "b", "c", "d"]), "at most 3 may")],
    );
    check(&json!({ "contains": true }), &[json!([1])], &[(json!([]), "at least 1 must")]);
    let never = json!({ "contains": true, "minContains": 3, "maxContains": 2 });
    check(&never, &[], &[(json!([1, 2]), "2 items fit the schema of `contains`, and at least 3 must")]);
    let rest = json!({
        "allOf": [{ "properties": { "a": true } }, { "anyOf": [{ "required": ["b"], "properties": { "b": true } }, true] }],
        "if": { "required": ["c"], "properties": { "c": true } },
        "then": { "properties": { "d": true } },
        "else": { "properties": { "e": true } },
        "not": { "not": { "properties": { "g": true } } },
        "unevaluatedProperties": { "type": "null" },
    });
    check(
        &rest,
        &[json!({ "a": 1, "b": 1, "c": 1, "d": 1, "f": null }), json!({ "e": 1 })],
        &[
            (json!({ "c": 1, "e": 1 }), "at `/e`: want null"),
            (json!({ "d": 1 }), "at `/d`: want null"),
            (json!({ "g": 1 }), "at `/g`: want null"),
        ],
    );
    check(
        &json!({ "allOf": [{ "prefixItems": [true] }, { "contains": { "type": "string" } }], "unevaluatedItems": false }),
        &[json!([1, "a"]), json!(["a"])],
        &[(json!([1, "a", 2]), "at `/2`: it is not allowed here")],
    );
    check(&json!({ "unevaluatedProperties": false }), &[json!([1])], &[(json!({ "a": 1 }), "`/a`")]);
    check(&json!({ "unevaluatedItems": false }), &[json!({ "a": 1 })], &[(json!([1]), "`/0`")]);
    check(
        &json!({ "allOf": [{ "unevaluatedProperties": true }], "unevaluatedProperties": false }),
        &[json!({ "a": 1 })],
        &[],
    );
}

#[test]
fn forms_are_combined_as_json_schema_says() {
    check(
        &json!({ "anyOf": [{ "type": "string" }, { "minimum": 3 }] }),
        &[json!("a"), json!(3)],
        &[(json!(2), "want string, but got number; must be >= 3, but got 2")],
    );
    for none in [json!({ "anyOf": [] }), json!({ "oneOf": [] })] {
        check(&none, &[], &[(json!(1), "no form is allowed here")]);
    }
    check(
        &json!({ "oneOf": [{ "type": "integer" }, { "minimum": 3 }] }),
        &[json!(2), json!(3.5)],
        &[
            (json!(3), "fits more than one of the forms"),
            (json!(2.5), "want integer, but got 2.5; must be >= 3"),
        ],
    );
    check(
        &json!({ "not": { "type": "string" } }),
        &[json!(1)],
        &[(json!("a"), "it fits what `not` excludes")],
    );
    check(
        &json!({ "if": { "type": "string" }, "then": { "minLength": 2 }, "else": { "minimum": 2 } }),
        &[json!("ab"), json!(2)],
        &[(json!("a"), "at least 2 characters"), (json!(1), ">= 2")],
    );
}

#[test]
fn references_lead_to_places_anchors_and_ids() {
    let schema = json!({
        "$id": "https://example.com/root",
        "properties": {
            "place": { "$ref": "#/$defs/a~1b%25/items/0" },
            "anchor": { "$ref": "#number" },
            "id": { "$ref": "inner#/$defs/text" },
            "root": { "$ref": "https://example.com/root#/$defs/text" },
            "itself": { "$ref": "#" },
        },
        "$defs": {
            "a/b%": { "items": [{ "type": "boolean" }] },
            "number": { "$anchor": "number", "type": "number" },
            "text": { "type": "null" },
            "inner": { "$id": "inner", "$defs": { "text": { "type": "string" } } },
        },
        "$schema": "https://json-schema.org/draft/2019-09/schema",
    });
    check(
        &schema,
        &[json!({ "place": true, "anchor": 1, "id": "a", "root": null, "itself": { "anchor": 2 } })],
        &[
            (json!({ "place": 1 }), "want boolean"),
            (json!({ "anchor": "1" }), "want number"),
            (json!({ "id": 1 }), "want string"),
            (json!({ "root": "1" }), "want null"),
            (json!({ "itself": { "itself": { "anchor": "1" } } }), "at `/itself/itself/anchor`: want number"),
        ],
    );
}

/// References inside a schema with an `$id` resolve there; outside they mean another schema.
#[test]
fn references_within_an_id_stay_there() {
    let inner = json!({ "type": "string" });
    let schema = json!({
        "properties": { "inner": { "$ref": "inner" }, "outer": { "$ref": "#t" }, "deep": { "$ref": "inner#/not" } },
        "$defs": {
            "inner": { "$id": "inner", "$defs": { "t": inner }, "allOf": [{ "$ref": "#/$defs/t" }], "not": { "$ref": "#t" } },
            "named": { "$id": "named", "$defs": { "t": { "$anchor": "t", "type": "boolean" } } },
            "t": { "$anchor": "t", "type": "number" },
        },
    });
    assert!(
        ValueSchema::new(&schema).is_err_and(|said| said.contains("`#t` leads to nothing")),
        "it is outside"
    );
    let mut schema = schema;
    schema["$defs"]["inner"]["$defs"]["t"]["$anchor"] = json!("t");
    schema["$defs"]["inner"]["not"] = json!({ "$ref": "named#t" });
    check(
        &schema,
        &[json!({ "inner": "a", "outer": 1, "deep": true })],
        &[
            (json!({ "inner": 1 }), "at `/inner`: want string"),
            (json!({ "outer": "a" }), "at `/outer`: want number"),
            (json!({ "deep": 1 }), "at `/deep`: want boolean"),
        ],
    );
}

#[test]
fn older_drafts_mean_what_they_say() {
    let seventh = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "definitions": { "text": { "$id": "#text", "type": "string" } },
        "items": [{ "$ref": "#text", "maxLength": 0 }, { "$ref": "#/definitions/text" }],
        "additionalItems": { "type": "number" },
        "dependencies": { "a": ["b"], "c": { "required": ["d"] } },
    });
    check(
        &seventh,
        &[json!(["beside a reference nothing counts", "b", 1]), json!({ "a": 1, "b": 1 })],
        &[
            (json!(["a", "b", "c"]), "at `/2`: want number"),
            (json!({ "a": 1 }), "\"b\""),
            (json!({ "c": 1 }), "\"d\""),
        ],
    );
    let fourth = json!({
        "$schema": "http://json-schema.org/draft-04/schema#", "id": "x",
        "minimum": 1, "exclusiveMinimum": true, "maximum": 3, "exclusiveMaximum": false,
    });
    check(&fourth, &[json!(1.5), json!(3)], &[(json!(1), "> 1"), (json!(3.5), "<= 3")]);
}

/// A schema that refers only to itself is not followed for ever.
#[test]
fn a_schema_that_leads_in_a_circle_is_refused() {
    for circle in [
        json!({ "$ref": "#" }),
        json!({ "allOf": [{ "anyOf": [{ "not": { "$ref": "#" } }] }] }),
        json!({ "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "if": { "$ref": "#/$defs/a" } } } }),
        json!({ "dependentSchemas": { "a": { "$ref": "#" } } }),
    ] {
        let said = ValueSchema::new(&circle).expect_err("it is a circle");
        assert!(said.contains("in a circle"), "{circle}: {said}");
    }
    let twice = json!({ "$defs": { "a": { "type": "null" } }, "allOf": [{ "$ref": "#/$defs/a" }, { "$ref": "#/$defs/a" }] });
    check(&twice, &[json!(null)], &[(json!(1), "want null")]);
}

#[test]
fn what_is_said_is_short() {
    let name = "n".repeat(1_000);
    let many: Map<String, Value> = (0..100).map(|n| (format!("{n}{name}"), json!(name))).collect();
    let read =
        ValueSchema::new(&json!({ "additionalProperties": { "pattern": "^x" } })).expect("it is a schema");
    let said = read.check(&Value::Object(many)).expect_err("none fits");
    assert!(said.len() < 5_000 && said.ends_with("; and more"), "{} bytes: {said}", said.len());
    let mut deep = json!({ "b": 1 });
    for _ in 0..60 {
        deep = json!({ name.clone(): deep });
    }
    let read = ValueSchema::new(&json!({ "additionalProperties": { "$ref": "#" }, "type": "object" }));
    let said = read.expect("it is a schema").check(&deep).expect_err("it does not fit");
    assert!(said.contains("`/…/n") && said.len() < 1_000, "{said}");
}

#[test]
fn what_is_nested_too_deep_or_too_large_is_refused() {
    let nested = |depth: usize, inner: Value| (0..depth).fold(inner, |value, _| json!({ "items": value }));
    assert!(ValueSchema::new(&nested(128, json!({}))).is_ok());
    assert!(ValueSchema::new(&nested(129, json!({}))).is_err_and(|said| said.contains("more than 128 deep")));
    let read = ValueSchema::new(&json!({})).expect("it is a schema");
    assert_eq!(read.check(&nested(128, json!(1))), Ok(()));
    assert!(read.check(&nested(129, json!(1))).is_err_and(|said| said.contains("more than 128 deep")));
    let wide = json!({ "enum": vec![0; 300_000] });
    assert!(ValueSchema::new(&wide).is_err_and(|said| said.contains("reading it takes more than")));
    assert!(
        read.check(&json!(vec![0; 600_000]))
            .is_err_and(|said| said.contains("checking it against the schema"))
    );
}

/// Returns the number of steps of a check that ends with a verdict.
fn steps_of(schema: &Value, value: &Value) -> Option<u64> {
    let read = ValueSchema::new(schema).ok()?;
    let mut judge = Judge::new(&read.nodes, value, Steps::new(CHECKING_MAX)).ok()?;
    judge.fits().ok()?;
    Some(CHECKING_MAX - judge.steps_left())
}

/// Each place and each access to it is a visit, and so is each rule, both before and after its inner schemas.
#[test]
fn small_checks_cost_what_they_do() {
    let number = json!({ "type": "number" });
    for (schema, value, visits) in [
        (json!({}), json!(1), 2),
        (json!({}), json!([1, 2]), 4),
        (number.clone(), json!(1), 2 + 2),
        // Two accesses to the place itself, one for the other schema, which is counted when it is evaluated.
        (json!({ "allOf": [true] }), json!(1), 1 + 3 + 2 * (1 + 1) + 1),
        (json!({ "allOf": [true], "type": "number" }), json!(1), 1 + 3 + 2 * (1 + 1) + 1 + 2),
    ] {
        assert_eq!(steps_of(&schema, &value), Some(visits * 10), "{schema} {value}");
    }
    let read = ValueSchema::new(&number).expect("it is a schema");
    assert_eq!(format!("{read:?}"), "ValueSchema { .. }");
}

/// The cost of a name, a text or a list grows with its length, wherever it is.
#[test]
fn what_is_long_costs_more() {
    let long = "n".repeat(40_000);
    let object = json!({ "a": 1, "b": 2 });
    for (what, schema, value) in [
        ("required", json!({ "required": [long.clone()] }), object.clone()),
        ("dependentRequired", json!({ "dependentRequired": { long.clone(): ["a"] } }), object.clone()),
        ("dependentRequired's", json!({ "dependentRequired": { "a": [long.clone()] } }), object.clone()),
        ("dependentSchemas", json!({ "dependentSchemas": { long.clone(): true } }), object.clone()),
        ("properties", json!({ "properties": { "a": true } }), json!({ long.clone(): 1 })),
        ("propertyNames", json!({ "propertyNames": { "type": "string" } }), json!({ long.clone(): 1 })),
        ("pattern", json!({ "pattern": "x" }), json!(long)),
        ("maxLength", json!({ "maxLength": 3 }), json!(long)),
        ("enum", json!({ "enum": ["a"] }), json!(long)),
        ("uniqueItems", json!({ "uniqueItems": true }), json!([long])),
        ("uniqueItems' names", json!({ "uniqueItems": true }), json!([{ long.clone(): 1 }])),
        ("uniqueItems' members", json!({ "uniqueItems": true }), json!([vec![1; 1_000]])),
        ("enum's items", json!({ "enum": [[1]] }), json!(vec![1; 1_000])),
    ] {
        let steps = steps_of(&schema, &value).expect("it has a verdict");
        assert!(steps >= 10_000, "{what}: {steps}");
    }
    let read = ValueSchema::new(&json!({ "type": vec!["string"; 1_000] })).expect("it is a schema");
    assert!(matches!(read.nodes[0].as_slice(), [Rule::Types(types)] if types.len() == 1));
    let far = json!({ "$ref": format!("#{}", "a".repeat(2_100_000)) });
    assert!(ValueSchema::new(&far).is_err_and(|said| said.contains("reading it takes more than")));
}

/// Each level can be read in two ways; without memoisation all 2^60 would be tried.
#[test]
fn an_answer_60_levels_deep_costs_a_little_more_than_one_30_levels_deep() {
    let part = |op: &str| json!({ "type": "object", "properties": { "op": { "const": op }, "arg": { "$ref": "#/$defs/n" } }, "required": ["op"] });
    let schema = json!({ "$defs": { "n": { "anyOf": [part("a"), part("b"), { "type": "number" }] } }, "$ref": "#/$defs/n" });
    let answer =
        |depth: usize| (0..depth).fold(json!({ "op": "c" }), |arg, _| json!({ "op": "b", "arg": arg }));
    let steps = |depth: usize| steps_of(&schema, &answer(depth)).expect("it has a verdict");
    assert!(steps(60) < 2 * steps(30) + 1_000, "{} and {}", steps(60), steps(30));
    let read = ValueSchema::new(&schema).expect("it is a schema");
    assert!(read.check(&answer(60)).is_err_and(|said| said.contains("want \"a\", but got \"b\"")));
    let good = (0..60).fold(json!(1), |arg, _| json!({ "op": "b", "arg": arg }));
    assert_eq!(read.check(&good), Ok(()));
}

/// Each of forty schemas refers ten times to the next: followed one by one, that is 10^40.
#[test]
fn schemas_that_share_others_are_asked_once() {
    let next = |n: usize| json!({ "allOf": vec![json!({ "$ref": format!("#/$defs/d{}", n + 1) }); 10] });
    let mut defs: Map<String, Value> = (0..40).map(|n| (format!("d{n}"), next(n))).collect();
    defs.insert("d40".to_owned(), json!({ "type": "object" }));
    let schema = json!({ "$defs": defs, "$ref": "#/$defs/d0" });
    assert!(steps_of(&schema, &json!({})).expect("it has a verdict") < 100_000);
    check(&schema, &[json!({})], &[(json!(1), "want object, but got number")]);
}

/// A seeded generator of numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).expect("it is small")
    }
}

/// Returns a schema of many that refer to one another, about the same value or about parts of it, with
/// hostile patterns.
fn hostile_schema(dice: &mut Dice) -> Value {
    let count = 2 + dice.below(30);
    let mut defs = Map::new();
    for n in 0..count {
        let mut schema = Map::new();
        for _ in 0..=dice.below(4) {
            // About the same value only forwards, so that there is no circle; one in forty is one.
            let later = if dice.below(40) == 0 { 0 } else { (n + 1).min(count) };
            let inner = json!({ "$ref": format!("#/$defs/d{later}") });
            let any = json!({ "$ref": format!("#/$defs/d{}", dice.below(count + 1)) });
            let all = vec![inner.clone(); 1 + dice.index(12)];
            let (key, value) = match dice.below(14) {
                0 => ("allOf", json!(all)),
                1 => ("anyOf", json!(all)),
                2 => ("oneOf", json!(all)),
                3 => ("not", inner),
                4 => ("properties", json!({ "a": any, "b": any, "c": any })),
                5 => ("additionalProperties", any),
                6 => ("items", any),
                7 => ("contains", any),
                8 => ("unevaluatedProperties", any),
                9 => ("propertyNames", json!({ "pattern": "(a?){40}a{40}$" })),
                10 => (
                    "pattern",
                    json!(["(a*)*b", "((a|b)?){200}c", "(.*)(.*)(.*)x$", r"\w+\s\d{1,300}$"][dice.index(4)]),
                ),
                11 => ("uniqueItems", json!(true)),
                12 => ("patternProperties", json!({ "^(a|b|ab)*$": any, "(.?){30}c": any })),
                _ => ("enum", json!((0..dice.below(300)).collect::<Vec<_>>())),
            };
            schema.insert(key.to_owned(), value);
        }
        defs.insert(format!("d{n}"), Value::Object(schema));
    }
    defs.insert(format!("d{count}"), json!({ "type": ["object", "number"] }));
    json!({ "$defs": defs, "$ref": "#/$defs/d0" })
}

/// Deep, wide, or long.
fn hostile_answer(dice: &mut Dice) -> Value {
    let mut value = match dice.below(4) {
        0 => json!(dice.below(400)),
        1 => json!("ab".repeat(dice.index(3_000))),
        2 => json!((0..dice.below(1_000)).map(|n| n / 2).collect::<Vec<_>>()),
        _ => Value::Object((0..dice.below(300)).map(|n| (format!("ab{n}"), json!(n))).collect()),
    };
    for _ in 0..dice.below(100) {
        value = match dice.below(3) {
            0 => json!([value]),
            1 => json!({ "a": value, "b": 1 }),
            _ => json!({ "c": value, "ab": "aaaa" }),
        };
    }
    value
}

/// How much CPU time this thread has used, in nanoseconds; 0 where the system does not tell.
fn cpu_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// Reads so many hostile schemas and checks an answer with each. Each ends with a verdict or with the budget, which bounds
/// the time that a thread is held. Returns the longest time of one, in nanoseconds, and its seed.
fn check_hostile(count: u64) -> (u64, u64) {
    let (mut refused, mut judged, mut spent, mut slowest) = (0, 0, 0, (0, 0));
    for seed in 0..count {
        let mut dice = Dice(seed);
        let (schema, answer) = (hostile_schema(&mut dice), hostile_answer(&mut dice));
        let before = cpu_ns();
        let read = ValueSchema::new(&schema);
        let verdict = read.as_ref().ok().map(|read| read.check(&answer));
        slowest = slowest.max((cpu_ns() - before, seed));
        match (read, verdict) {
            (Err(reason), _) => {
                assert!(reason.contains("in a circle"), "seed {seed}: {reason}");
                refused += 1;
            }
            (Ok(_), Some(Err(reason))) if reason.contains("takes more than") => spent += 1,
            (Ok(_), Some(Err(reason))) => {
                assert!(!reason.is_empty() && reason.len() < 8_000, "seed {seed}: {reason}");
                judged += 1;
            }
            (Ok(_), _) => judged += 1,
        }
    }
    assert!(
        refused * 50 >= count && judged * 10 >= count * 6,
        "{refused} refused, {judged} judged, {spent} spent"
    );
    slowest
}

#[test]
fn a_thousand_hostile_schemas_and_answers_end() {
    check_hostile(1_000);
}

/// Prints how long the slowest takes. Run it in release, after a change to the budget of steps.
#[test]
#[ignore = "measures"]
#[expect(clippy::print_stdout, reason = "it measures")]
fn the_time_of_10_000_hostile_schemas() {
    let (nanoseconds, seed) = check_hostile(10_000);
    println!("the slowest of 10,000: {} µs (seed {seed})", nanoseconds / 1_000);
}
