//! Validation of forms, and questions asked by a test of a tool.

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::json;

use super::*;
use crate::ToolContext;

/// A booking.
#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Booking {
    seats: u8,
    class: Class,
    #[serde(default)]
    note: Option<String>,
    guests: Vec<Guest>,
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum Class {
    First,
    Second,
}

#[derive(Debug, PartialEq, Deserialize, JsonSchema)]
struct Guest {
    name: String,
}

#[test]
fn a_value_fits_the_schema_of_its_type_or_says_where_it_does_not() {
    let schema = schemars::schema_for!(Booking).to_value();
    let good = json!({ "seats": 2, "class": "first", "guests": [{ "name": "Ada" }] });
    assert_eq!(fits(&schema, &good), Ok(()));
    let table = [
        ("seats", json!("two"), "/seats"),
        ("seats", json!(-1), "/seats"),
        ("seats", json!(300), "/seats"),
        ("seats", json!(1.5), "/seats"),
        ("class", json!("third"), "/class"),
        ("note", json!(7), "/note"),
        ("guests", json!([{ "name": 1 }]), "/guests/0/name"),
        ("guests", json!([{}]), "name"),
    ];
    for (field, value, place) in table {
        let mut bad = good.clone();
        bad[field] = value;
        let reason = fits(&schema, &bad).expect_err("it does not fit");
        assert!(reason.contains(place), "{field}: {reason}");
    }
    assert!(fits(&schema, &json!({})).is_err_and(|reason| reason.contains("seats")));
    assert!(fits(&json!({ "type": 7 }), &json!({})).is_err_and(|reason| reason.contains("broken")));
}

#[tokio::test]
async fn a_test_of_a_tool_answers_its_questions() {
    let booking = json!({ "seats": 1, "class": "second", "guests": [] });
    let context =
        ToolContext::new("s", "c").with_answers([GivenAnswer::from("yes"), booking.into(), "no".into()]);
    assert!(context.ask("Sure?").await.is_ok_and(|answer| answer.is("yes")));
    let booking: Booking = context.ask_as("Which seats?").await.expect("it is a booking");
    assert_eq!(booking.class, Class::Second);
    let unreadable = context.ask_as::<Booking>("Again?").await;
    assert!(matches!(unreadable, Err(AskError::Unreadable(_))), "{unreadable:?}");
    assert_eq!(context.ask("More?").await, Err(AskError::Nobody));
    assert_eq!(ToolContext::default().ask("Anybody?").await, Err(AskError::Nobody));
    assert!(matches!(context.ask(" ").await, Err(AskError::Invalid(_))));
}

/// A schema that no value could fit, or that refers beyond itself, is rejected before anybody is asked.
#[test]
fn a_form_that_is_broken_or_reaches_out_is_refused() {
    let dir = std::env::current_dir().unwrap_or_default();
    let outside = format!("file://{}/Cargo.toml", dir.display());
    for schema in [
        json!({ "type": "nonsense" }),
        json!(5),
        json!(false),
        json!({ "$ref": "#/nope" }),
        json!({ "properties": { "a": { "$ref": outside } } }),
        json!({ "$ref": "https://example.com/schema.json" }),
        json!({ "properties": { "a": { "pattern": "(" } } }),
    ] {
        let refused = check_form(&schema).expect_err("it is broken");
        let reaches_out = schema.to_string().contains("://");
        assert_eq!(refused.contains("leads outside"), reaches_out, "{schema}: {refused}");
        assert!(!refused.contains("schema:/"), "{schema}: {refused}");
        assert!(fits(&schema, &json!({})).is_err(), "{schema}");
    }
    assert_eq!(check_form(&schemars::schema_for!(Booking).to_value()), Ok(()));
}
