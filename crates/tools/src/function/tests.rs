//! Closures become tools; wrong arguments never reach them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use greenroom_kernel::ToolStatus;
use greenroom_kernel::message::blocks_text;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{FunctionTool, ToolError, tool};
use crate::{Registry, Tool, ToolContext, ToolOutput, ToolsError};

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

async fn run(tool: &FunctionTool, arguments: Value) -> (ToolStatus, String) {
    let output = tool.call(arguments, ToolContext::new("s", "c")).await;
    (output.status, blocks_text(&output.content))
}

#[tokio::test]
async fn a_closure_needs_no_annotations() {
    let tool = tool("weather", |w: Weather| async move { Ok(format!("{}: 12 °C, rain", w.city)) });
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
    check(tool("t", |w: Weather| async move { Ok(w.city) }), Done, "5").await;
    check(tool("t", |_: Weather| async move { Ok("text") }), Done, "text").await;
    check(tool("t", |_: Weather| async move { Ok(()) }), Done, "done").await;
    check(tool("t", |_: Weather| async move { Ok(json!([1])) }), Done, "[1]").await;
    check(tool("t", |_: Weather| async move { Ok(json!("a")) }), Done, "a").await;
    check(tool("t", |_: Weather| async move { Ok(Answer { degrees: 3 }) }), Done, r#"{"degrees":3}"#).await;
    check(tool("t", |_: Weather| async move { Ok(ToolOutput::interrupted("x")) }), Interrupted, "x").await;
    check(tool("t", |w: Weather| async move { Ok((w.city.parse::<i32>()? + 1).to_string()) }), Done, "6")
        .await;
    let fails = tool("t", |_: Weather| async move { Ok("no".parse::<i32>()?.to_string()) });
    check(fails, Error, "invalid digit found in string").await;
    let refuses = tool("t", |_: Weather| async move { Err::<String, _>(ToolError::new("closed")) });
    check(refuses, Error, "closed").await;
    check(tool("t", |_: Weather, c: ToolContext| async move { Ok(c.call_id) }), Done, "c").await;
    let described = tool("t", |w: Weather| async move { Ok(w.city) }).describe("other words");
    assert_eq!((described.spec().name.as_str(), described.spec().description.as_str()), ("t", "other words"));
    check(described, Done, "5").await;
}

#[tokio::test]
async fn wrong_arguments_name_the_field_and_never_run_the_handler() {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let tool = tool("trip", move |trip: Trip| {
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
    let trip = tool("trip", |_: Trip| async move { Ok("") }).spec().parameters;
    // A property called `title` stays; the titles of schemas are removed.
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
    let nothing = tool("now", |(): ()| async move { Ok("") }).spec().parameters;
    assert_eq!(nothing, json!({"type": "object", "properties": {}}));
}

#[tokio::test]
async fn no_arguments_are_an_empty_object() {
    let tool = tool("now", |(): ()| async move { Ok("noon") });
    // Arguments that a model makes up are no reason to fail.
    for arguments in [json!({}), json!({"zone": "UTC"})] {
        assert_eq!(run(&tool, arguments).await, (ToolStatus::Ok, "noon".to_owned()));
    }
    #[derive(Deserialize, JsonSchema)]
    struct Nothing;
    let tool = super::tool("now", |_: Nothing| async { Ok("noon") });
    assert_eq!(run(&tool, json!({"zone": "UTC"})).await.1, "noon");
}

/// The forms in which a function may be written. Compiling without annotations is half of the test.
#[tokio::test]
async fn a_function_is_written_as_it_comes() {
    #[derive(Debug, thiserror::Error)]
    #[error("the station is silent")]
    struct Silent(#[source] std::io::Error);

    async fn named(w: Weather) -> Result<String, ToolError> {
        Ok(w.city)
    }
    async fn with_context(w: Weather, context: ToolContext) -> Result<String, ToolError> {
        Ok(w.city + &context.call_id)
    }
    async fn typed_error(w: Weather) -> Result<String, Silent> {
        Err(Silent(std::io::Error::other(w.city)))
    }
    async fn text_error(w: Weather) -> Result<String, String> {
        Err(format!("{} is closed", w.city))
    }
    async fn boxed_error(w: Weather) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        w.city.parse::<u32>()?;
        Ok(())
    }
    async fn anyhow_error(w: Weather) -> anyhow::Result<()> {
        use anyhow::Context as _;
        w.city.parse::<u32>().context("the city's number")?;
        Ok(())
    }
    let suffix = Arc::new("!".to_owned());
    use ToolStatus::{Error, Ok as Done};
    for (tool, status, text) in [
        (tool("t", named), Done, "x"),
        (tool("t", with_context), Done, "xc"),
        (tool("t", async |w: Weather| Ok(w.city)), Done, "x"),
        (tool("t", async |w: Weather, context: ToolContext| Ok(w.city + &context.session)), Done, "xs"),
        (tool("t", || async { Ok("noon") }), Done, "noon"),
        (
            tool("t", move |w: Weather| {
                let suffix = Arc::clone(&suffix);
                async move { Ok(w.city + &suffix) }
            }),
            Done,
            "x!",
        ),
        (tool("t", |w| async move { Ok(typed_error(w).await?) }), Error, "the station is silent: x"),
        (tool("t", |w| async move { Ok(text_error(w).await?) }), Error, "x is closed"),
        (tool("t", |w| async move { Ok(boxed_error(w).await?) }), Error, "invalid digit found in string"),
        (
            tool("t", |w| async move { Ok(anyhow_error(w).await?) }),
            Error,
            "the city's number: invalid digit found in string",
        ),
        (
            tool("t", |w: Weather| async move {
                if w.city == "x" {
                    return Err("no such city".into());
                }
                Ok(w.city.len())
            }),
            Error,
            "no such city",
        ),
        (
            tool("t", |w: Weather| async move {
                Err::<(), _>(format!("no {}", w.city))?;
                Ok(())
            }),
            Error,
            "no x",
        ),
    ] {
        assert_eq!(run(&tool, json!({"city": "x"})).await, (status, text.to_owned()));
    }
}

#[tokio::test]
async fn whatever_can_be_serialized_is_a_result() {
    #[derive(Serialize)]
    enum Sky {
        Clear,
    }
    let numbers = std::collections::BTreeMap::from([((1, 2), 3)]);
    for (tool, text) in [
        (tool("t", || async { Ok(vec![1.5, 2.0]) }), "[1.5,2.0]"),
        (tool("t", || async { Ok(Some(7)) }), "7"),
        (tool("t", || async { Ok(None::<u8>) }), "null"),
        (tool("t", || async { Ok(true) }), "true"),
        (tool("t", || async { Ok(Sky::Clear) }), "Clear"),
        (tool("t", || async { Ok(std::borrow::Cow::Borrowed("as it is")) }), "as it is"),
        (tool("t", || async { Ok(()) }), "done"),
        (
            tool("t", move || {
                let numbers = numbers.clone();
                async move { Ok(numbers) }
            }),
            "the call took effect, and its result cannot be shown, since it is not JSON: key must be a string",
        ),
    ] {
        assert_eq!(run(&tool, json!({})).await.1, text);
    }
}

#[tokio::test]
async fn a_tool_reads_the_state_of_its_type() {
    struct Pool(u32);
    let tool = tool("t", |(): (), context: ToolContext| async move { Ok(context.state::<Pool>()?.0) });
    let context = || ToolContext::new("s", "c");
    let output = tool.call(json!({}), context().with_state(Pool(5))).await;
    assert_eq!(output, ToolOutput::text("5"));
    let output = tool.call(json!({}), context()).await;
    assert_eq!(output.status, ToolStatus::Error);
    let text = blocks_text(&output.content);
    assert!(text.starts_with("the agent has no state of type `") && text.contains("::Pool`"), "{text}");
}

/// Models send named arguments. A tool that takes anything else could not be called.
#[test]
fn arguments_that_are_no_object_are_refused() {
    #[derive(Deserialize, JsonSchema)]
    struct City(#[expect(dead_code, reason = "only its schema is of interest")] String);
    #[derive(Deserialize, JsonSchema)]
    enum Unit {
        Celsius,
    }
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is of interest")]
    enum Mixed {
        Now,
        On { day: String },
    }
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is of interest")]
    #[serde(untagged)]
    enum Either {
        Text(String),
        Fields { text: String },
    }
    fn check<T: serde::de::DeserializeOwned + JsonSchema + 'static>(found: Option<&str>) {
        let refused = Registry::new().insert(tool("t", |_: T| async { Ok("") })).err();
        let found = found.map(|found| format!(
            "the tool `t` takes {found}, but models call tools with named arguments: use a struct with a field for \
             each of them"
        ));
        assert_eq!(refused.map(|error| error.to_string()), found, "{}", std::any::type_name::<T>());
    }
    check::<String>(Some("a string"));
    check::<City>(Some("a string"));
    check::<Unit>(Some("a string"));
    check::<Vec<Weather>>(Some("a list"));
    check::<(u8, u8)>(Some("a list"));
    check::<u64>(Some("a number"));
    check::<f32>(Some("a number"));
    check::<bool>(Some("a boolean"));
    check::<Option<String>>(Some("something that is not always an object"));
    check::<Mixed>(Some("something that is not always an object"));
    check::<Either>(Some("something that is not always an object"));

    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is of interest")]
    #[serde(tag = "kind")]
    enum Tagged {
        Now,
        On { day: String },
    }
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is of interest")]
    enum Outside {
        On { day: String },
        After { day: String },
    }
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is of interest")]
    struct Flat {
        all: bool,
        #[serde(flatten)]
        when: Tagged,
    }
    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is of interest")]
    struct Tree {
        children: Vec<Tree>,
    }
    #[derive(Deserialize, JsonSchema)]
    struct Nothing;
    check::<Weather>(None);
    check::<Option<Weather>>(None);
    check::<Box<Weather>>(None);
    check::<Tagged>(None);
    check::<Outside>(None);
    check::<Flat>(None);
    check::<Tree>(None);
    check::<Nothing>(None);
    check::<()>(None);
    check::<Value>(None);
    check::<std::collections::HashMap<String, u8>>(None);
}

/// Custom tools follow the same rule.
#[test]
fn parameters_that_are_no_object_schema_are_refused() {
    struct Own(Value);
    impl Tool for Own {
        fn spec(&self) -> greenroom_kernel::ToolSpec {
            greenroom_kernel::ToolSpec {
                name: "own".into(),
                description: String::new(),
                parameters: self.0.clone(),
            }
        }

        fn call(&self, _: Value, _: ToolContext) -> futures_util::future::BoxFuture<'static, ToolOutput> {
            Box::pin(std::future::ready(ToolOutput::text("")))
        }
    }
    for (parameters, is_valid) in [
        (json!({"type": "object"}), true),
        (json!({}), false),
        (json!({"type": "array"}), false),
        (json!({"type": ["object", "null"]}), false),
        (Value::Null, false),
    ] {
        let inserted = Registry::new().insert(Own(parameters.clone()));
        assert_eq!(inserted.is_ok(), is_valid, "{parameters}");
        assert!(matches!(inserted, Ok(()) | Err(ToolsError::NotAnObject { .. })));
    }
}
