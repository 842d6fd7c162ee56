//! How a program's own agent is tested: with a scripted model, no key and no network. The clock stands still, so that
//! waits cost no time.

use std::time::Duration;

use greenroom::prelude::*;
use greenroom_simulator::*;
use serde_json::json;

#[derive(Deserialize, JsonSchema)]
struct Order {
    number: u32,
}

/// The agent under test.
fn shop() -> Agent {
    let refund = |order: Order| async move {
        let is_known = order.number < 100;
        if is_known {
            Ok(format!("order {} is paid back", order.number))
        } else {
            Err(ToolError::new("no such order"))
        }
    };
    Agent::new("any").instructions("You serve a shop.").tool("refund", refund)
}

/// A session of the agent with this model, and its runtime, which must outlive it.
async fn open(model: &ScriptedModel) -> Result<(Runtime, SessionHandle)> {
    let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    let session = runtime.open("customer", &shop()).await?;
    Ok((runtime, session))
}

#[tokio::test(start_paused = true)]
async fn it_pays_back() -> Result<()> {
    let model = ScriptedModel::new([
        Answer::call("refund", &json!({ "number": 7 })).expect_user("money back").expect_instructions("shop"),
        Answer::text("Done.").expect_tool_result("refund", "order 7 is paid back"),
    ]);
    let (_runtime, session) = open(&model).await?;
    let reply = session.prompt("I want my money back for order 7.").await?;
    assert_eq!(reply.text, "Done.");
    assert_eq!(reply.tool_calls()[0].name, "refund");
    assert_eq!(model.calls_of("refund"), [json!({ "number": 7 })]);
    model.assert_done();
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn it_hears_of_a_mistake_and_asks() -> Result<()> {
    let model = ScriptedModel::new([
        Answer::call("refund", &json!({ "number": 700 })),
        Answer::text("Which order?").expect_tool_result("refund", "no such order"),
    ]);
    let (_runtime, session) = open(&model).await?;
    assert_eq!(session.prompt("Money back for 700!").await?.text, "Which order?");
    model.assert_done();
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn it_goes_on_with_a_conversation() -> Result<()> {
    let model = ScriptedModel::new([Answer::text("On Monday.").expect(|request| {
        (request.messages.len() == 5).then_some(()).ok_or_else(|| "the history is not there".into())
    })]);
    let (_runtime, session) = open(&model).await?;
    let before = History::new()
        .user("Pay back order 7.")
        .tool("refund", &json!({ "number": 7 }), "order 7 is paid back")
        .assistant("Done.");
    session.import(before.entries(), before.leaf()).await?;
    assert_eq!(session.prompt("When?").await?.text, "On Monday.");
    model.assert_done();
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn it_waits_for_a_server_that_is_too_busy() -> Result<()> {
    let model = ScriptedModel::new([
        Answer::fault(Fault::RateLimited(RetryAfter::Seconds(30))),
        Answer::text("Here I am."),
    ]);
    let (_runtime, session) = open(&model).await?;
    let began = tokio::time::Instant::now();
    assert_eq!(session.prompt("Hello?").await?.text, "Here I am.");
    assert!(began.elapsed() >= Duration::from_secs(30));
    model.assert_done();
    Ok(())
}
