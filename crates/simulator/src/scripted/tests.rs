//! The scripted model: what fails a test, and the message.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use futures_util::StreamExt;
use greenroom_kernel::{Message, ToolSpec};
use greenroom_provider::{ModelSettings, ProviderError, ReplyEvent, Request};
use serde_json::json;

use super::*;
use crate::History;
use crate::fault::RetryAfter;

fn request(session: &str, model: &str, messages: &[Message]) -> Request {
    Request {
        model: model.into(),
        system: Some("Be kind.".into()),
        messages: messages.iter().cloned().map(Arc::new).collect(),
        tools: Arc::new([ToolSpec {
            name: "look".into(),
            description: "Looks.".into(),
            parameters: json!({ "type": "object", "properties": {} }),
        }]),
        settings: ModelSettings::default(),
        output_schema: None,
        purpose: Purpose::Step,
        session: session.into(),
    }
}

/// Makes a request, and returns the answer's text.
async fn ask(model: &ScriptedModel, request: Request) -> Result<String, ProviderError> {
    let mut stream = model.provider().stream(request).await?;
    let mut text = String::new();
    while let Some(event) = stream.next().await {
        if let ReplyEvent::Text(piece) = event? {
            text.push_str(&piece);
        }
    }
    Ok(text)
}

fn says(text: &str) -> Request {
    request("s", "m", &[Message::user(text)])
}

/// Returns the text of the panic.
fn panic_of(action: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(action)).expect_err("it should panic");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_script_that_is_asked_for_all_it_has_is_done() {
    let model = ScriptedModel::new([Answer::text("one").expect_user("first"), Answer::text("two")]);
    assert_eq!(ask(&model, says("the first")).await.unwrap(), "one");
    assert_eq!(ask(&model, request("other", "m", &[Message::user("x")])).await.unwrap(), "two");
    assert_eq!(model.requests().len(), 2);
    model.assert_done();
}

#[tokio::test(start_paused = true)]
async fn a_script_that_is_too_short_fails_the_call_and_the_test() {
    let model = ScriptedModel::new([Answer::text("one")]);
    ask(&model, says("first")).await.unwrap();
    let error = ask(&model, says("and now?")).await.unwrap_err();
    assert_eq!(error.failure.status, Some(400), "{error:?}");
    assert!(!error.failure.class.is_retryable(), "{error:?}");
    let told = panic_of(|| model.assert_done());
    for part in ["the script has 1 answer,", "requested number 2", "and now?"] {
        assert!(told.contains(part), "{told}");
    }
    // This was reported; later problems are reported when the model is dropped, for a test that asks no more.
    assert!(ask(&model, says("and now?!")).await.is_err());
    let told = panic_of(|| drop(model));
    assert!(told.contains("requested number 3"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_left_over_are_told_when_it_is_asked() {
    let model = ScriptedModel::new([
        Answer::text("one"),
        Answer::call("refund", &json!({ "order": 7 })),
        Answer::text("three"),
    ]);
    ask(&model, says("first")).await.unwrap();
    let told = panic_of(|| model.assert_done());
    assert!(
        told.contains("2 of the script's 3 answers") && told.contains(r#"refund({"order":7})"#),
        "{told}"
    );
    drop(model);
}

#[tokio::test(start_paused = true)]
async fn expectations_that_are_not_met_say_where_they_stand_and_what_was_there() {
    let results = History::new().user("hi").tool("order", &json!({}), "lost at sea");
    let cases: [(Answer, &[&str]); 5] = [
        (Answer::text("x").expect_user("money back"), &["the user says", "money back", "    hi"]),
        (Answer::text("x").expect_tool_result("order", "shipped"), &["\"order\"", "shipped", "lost at sea"]),
        (Answer::text("x").expect_tool_result("refund", "paid"), &["\"refund\"", "paid", "order gave one"]),
        (Answer::text("x").expect_instructions("brief"), &["the instructions", "brief", "Be kind."]),
        (
            Answer::text("x").expect(|request| match request.has_tool("refund") {
                false => Err("no refund is offered".into()),
                true => Ok(()),
            }),
            &["no refund is offered"],
        ),
    ];
    for (answer, parts) in cases {
        let model = ScriptedModel::new([answer]);
        assert!(ask(&model, request("s", "m", results.messages())).await.is_err());
        let told = panic_of(|| model.assert_done());
        for part in parts.iter().chain(&["answer 1 expects another request", "scripted/tests.rs:"]) {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
    let met = ScriptedModel::new([Answer::text("x")
        .expect_user("hi")
        .expect_tool_result("order", "sea")
        .expect_instructions("kind")
        .expect(|request| (request.messages.len() == 3).then_some(()).ok_or_else(|| "not three".into()))]);
    ask(&met, request("s", "m", results.messages())).await.unwrap();
    met.assert_done();
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_a_fault_of_the_plan_spoiled_is_given_again_and_a_scripted_fault_is_an_answer() {
    let model = ScriptedModel::new([
        Answer::fault(Fault::RateLimited(RetryAfter::Seconds(1))),
        Answer::text("at last"),
        Answer::call("look", &json!({ "at": "a" })),
    ]);
    let error = ask(&model, says("go")).await.unwrap_err();
    assert_eq!(error.failure.retry_after_ms, Some(1_000));
    assert_eq!(ask(&model, says("go")).await.unwrap(), "at last");
    ask(&model, says("go")).await.unwrap();
    assert_eq!(model.calls_of("look"), [json!({ "at": "a" })]);
    assert!(model.calls_of("refund").is_empty());
    model.assert_done();
}

#[tokio::test(start_paused = true)]
async fn models_can_have_answers_of_their_own() {
    let model = ScriptedModel::new([Answer::text("large")]).for_model("small", [Answer::text("little")]);
    assert_eq!(ask(&model, request("a", "small", &[Message::user("x")])).await.unwrap(), "little");
    assert_eq!(ask(&model, request("b", "any", &[Message::user("x")])).await.unwrap(), "large");
    model.assert_done();
}

#[tokio::test(start_paused = true)]
async fn a_request_that_breaks_a_rule_fails_the_test() {
    let model = ScriptedModel::new([Answer::text("x")]);
    assert!(ask(&model, request("s", "m", &[])).await.is_err());
    assert!(panic_of(|| drop(model)).contains("a request broke a rule"));
}

/// A check that panics is an unmet expectation, and its message is the panic's.
#[tokio::test(start_paused = true)]
async fn a_check_that_panics_fails_the_test() {
    let model = ScriptedModel::new([Answer::text("one").expect(|request| {
        assert_eq!(request.messages.len(), 7, "the history is short");
        Ok(())
    })]);
    assert!(ask(&model, says("hello")).await.is_err());
    let said = panic_of(|| model.assert_done());
    assert!(said.contains("the history is short") && said.contains("scripted/tests.rs"), "{said}");
}

/// A script from a file names no code location.
#[tokio::test(start_paused = true)]
async fn an_answer_from_a_file_names_no_place_in_the_code() {
    let model = ScriptedModel::new([Answer::text("one").expect_user("umbrella").without_locations()]);
    assert!(ask(&model, says("hello")).await.is_err());
    let said = panic_of(|| model.assert_done());
    assert!(said.contains("umbrella") && !said.contains(".rs"), "{said}");
}

/// A wrong tool name in the script would otherwise make the test meaningless.
#[tokio::test(start_paused = true)]
async fn a_call_of_a_tool_that_the_agent_lacks_fails_the_test() {
    let model = ScriptedModel::new([Answer::call("refnd", &json!({}))]);
    ask(&model, says("money back")).await.unwrap();
    let said = panic_of(|| model.assert_done());
    assert!(said.contains("answer 1 calls the tool \"refnd\"") && said.contains("it offers: look"), "{said}");
}
