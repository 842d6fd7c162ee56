//! Closures become tools; wrong arguments never reach them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use greenroom_kernel::ToolStatus;
use greenroom_kernel::message::blocks_text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{FunctionTool, Json, ToolError, typed, typed_with};
use crate::{CompactionRequests, Progress, Tool, ToolContext, ToolOutput};

/// Current weather for one city.
#[derive(Deserialize, JsonSchema)]
struct Weather {
    /// City name, e.g. "Oslo"
    city: String,
}

/// Plans a trip.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Trip {
    stops: Vec<Stop>,
    days: Option<u32>,
}

#[derive(Deserialize, JsonSchema)]
struct Stop {
    title: String,
}

fn context() -> ToolContext {
    ToolContext {
        session: "s".into(),
        call_id: "c".into(),
        cancel: tokio_util::sync::CancellationToken::new(),
        progress: Progress::default(),
        compaction: CompactionRequests::default(),
    }
}

async fn run(tool: &FunctionTool, arguments: Value) -> (ToolStatus, String) {
    let output = tool.call(arguments, context()).await;
    (output.status, blocks_text(&output.content))
}

#[tokio::test]
async fn a_closure_needs_no_annotations() {
    let tool = typed("weather", |w: Weather| async move { Ok(format!("{}: 12 °C, rain", w.city)) });
    assert_eq!(run(&tool, json!({"city": "Oslo"})).await, (ToolStatus::Ok, "Oslo: 12 °C, rain".to_owned()));
    let spec = tool.spec();
    assert_eq!(spec.description, "Current weather for one city.");
    assert_eq!(
        spec.parameters,
        json!({
            "type": "object",
            "properties": {"city": {"type": "string", "description": "City name, e.g. \"Oslo\""}},
            "required": ["city"],
        })
    );
}

#[tokio::test]
async fn every_kind_of_output_converts() {
    #[derive(Serialize)]
    struct Answer {
        degrees: i32,
    }
    async fn check(tool: FunctionTool, status: ToolStatus, text: &str) {
        assert_eq!(run(&tool, json!({"city": "5"})).await, (status, text.to_owned()));
    }
    use ToolStatus::{Error, Interrupted, Ok as Done};
    check(typed("t", |w: Weather| async move { Ok(w.city) }), Done, "5").await;
    check(typed("t", |_: Weather| async move { Ok("text") }), Done, "text").await;
    check(typed("t", |_: Weather| async move { Ok(()) }), Done, "done").await;
    check(typed("t", |_: Weather| async move { Ok(json!([1])) }), Done, "[1]").await;
    check(typed("t", |_: Weather| async move { Ok(json!("a")) }), Done, "a").await;
    check(typed("t", |_: Weather| async move { Ok(Json(Answer { degrees: 3 })) }), Done, r#"{"degrees":3}"#)
        .await;
    check(typed("t", |_: Weather| async move { Ok(ToolOutput::interrupted("x")) }), Interrupted, "x").await;
    check(typed("t", |w: Weather| async move { Ok((w.city.parse::<i32>()? + 1).to_string()) }), Done, "6")
        .await;
    let fails = typed("t", |_: Weather| async move { Ok("no".parse::<i32>()?.to_string()) });
    check(fails, Error, "invalid digit found in string").await;
    let refuses = typed("t", |_: Weather| async move { Err::<String, _>(ToolError::new("closed")) });
    check(refuses, Error, "closed").await;
    check(typed_with("t", |_: Weather, c: ToolContext| async move { Ok(c.call_id) }), Done, "c").await;
    let described = FunctionTool::new("t", "other words", |w: Weather| async move { Ok(w.city) });
    assert_eq!((described.spec().name.as_str(), described.spec().description.as_str()), ("t", "other words"));
    check(described, Done, "5").await;
}

#[tokio::test]
async fn wrong_arguments_name_the_field_and_never_run_the_handler() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let tool = typed("trip", move |trip: Trip| {
        counted.fetch_add(1, Ordering::Relaxed);
        async move { Ok(format!("{} {:?} {}", trip.stops.len(), trip.days, trip.stops[0].title)) }
    });
    for (arguments, expect) in [
        (json!({}), "at the top: missing field `stops`"),
        (
            json!({"stops": [{"title": "a"}, {"title": 5}]}),
            "at `stops[1].title`: invalid type: integer `5`, expected a string",
        ),
        (json!({"stops": [{}]}), "at `stops[0]`: missing field `title`"),
        (json!({"stops": [], "days": -1}), "at `days`: invalid value: integer `-1`, expected u32"),
        (json!({"stops": [], "when": 1}), "at `when`: unknown field `when`, expected `stops` or `days`"),
        (json!([]), "at the top: [], expected an object"),
        (json!("stops"), "at the top: \"stops\", expected an object"),
    ] {
        let (status, text) = run(&tool, arguments.clone()).await;
        assert_eq!(status, ToolStatus::Error);
        assert!(text.starts_with(&format!("invalid arguments {expect}")), "{arguments} -> {text}");
        assert!(text.contains("\nexpected: {"), "{text}");
    }
    assert_eq!(runs.load(Ordering::Relaxed), 0);
    let (status, text) = run(&tool, json!({"stops": [{"title": "Oslo"}], "days": 2})).await;
    assert_eq!((status, text.as_str()), (ToolStatus::Ok, "1 Some(2) Oslo"));
}

#[test]
fn schemas_are_plain_objects() {
    let trip = typed("trip", |_: Trip| async move { Ok("") }).spec().parameters;
    // A property called `title` stays; the titles of schemas go.
    assert_eq!(
        trip,
        json!({
            "type": "object",
            "properties": {
                "stops": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"title": {"type": "string"}},
                        "required": ["title"],
                    },
                },
                "days": {"type": "integer", "minimum": 0},
            },
            "required": ["stops"],
            "additionalProperties": false,
        })
    );
    let nothing = typed("now", |(): ()| async move { Ok("") }).spec().parameters;
    assert_eq!(nothing, json!({"type": "object", "properties": {}}));
}

#[tokio::test]
async fn no_arguments_are_an_empty_object() {
    let tool = typed("now", |(): ()| async move { Ok("noon") });
    assert_eq!(run(&tool, json!({})).await, (ToolStatus::Ok, "noon".to_owned()));
}
