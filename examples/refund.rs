//! A refund that waits for an approval across a restart: the program asks, ends before the answer, is started again,
//! and is answered. The money is paid once.
//!
//! The first half ends without a shutdown, as a crash would end it. Its question is in the log, so the second half finds
//! it, and the tool, which is `resumable`, is run again with the answer.
#![expect(clippy::print_stdout, reason = "an example shows its result")]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

use greenroom::prelude::*;
use greenroom::{AskError, PendingQuestion, Role};
use greenroom_simulator::{Answer as Said, CallInfo, Function, SeenRequest, Simulator, SimulatorOptions};
use serde_json::json;

/// The bank, which outlives the program. It knows each payment by its key.
#[derive(Clone, Default)]
struct Bank(Arc<Mutex<BTreeMap<String, u32>>>);

impl Bank {
    /// Pays, once for each key: what was paid before is not paid again.
    fn pay(&self, key: &str, euros: u32) {
        self.0.lock().expect("nobody panics here").entry(key.to_owned()).or_insert(euros);
    }

    fn paid(&self) -> Vec<u32> {
        self.0.lock().expect("nobody panics here").values().copied().collect()
    }
}

/// Pays an order back.
#[derive(Deserialize, JsonSchema)]
struct Refund {
    /// The order's number.
    order: u32,
    /// How much, in euros.
    euros: u32,
}

async fn refund(refund: Refund, cx: ToolContext) -> Result<String, ToolError> {
    let question =
        Question::choice(format!("Refund {} EUR for order {}?", refund.euros, refund.order), ["yes", "no"])
            .expires_in(std::time::Duration::from_secs(7 * 24 * 3600));
    match cx.ask(question).await {
        Ok(answer) if answer.is("yes") => {
            // The effect comes after the last question and uses the call's key, so it happens once.
            cx.state::<Bank>()?.pay(cx.call_key(), refund.euros);
            Ok(format!("{} EUR are on their way", refund.euros))
        }
        Ok(_) => Ok("the refund was not approved".to_owned()),
        Err(AskError::Expired) => Ok("nobody approved it within a week".to_owned()),
        Err(error) => Err(error.into()),
    }
}

fn agent(bank: &Bank) -> Agent {
    Agent::new("simulated")
        .context_window(128_000)
        .state(bank.clone())
        .add_tool(tool("refund", refund).resumable())
}

/// A model that requests the refund, and then reports the result.
fn model() -> Simulator {
    Simulator::new(SimulatorOptions::new(Function(|request: &SeenRequest, _: CallInfo| {
        match request.messages.last() {
            Some(last) if last.role() == "tool" => Said::text(format!("Order 7: {}.", last.text())),
            _ => Said::call("refund", &json!({ "order": 7, "euros": 120 })),
        }
    })))
}

async fn start(dir: &Path) -> Result<Runtime> {
    Runtime::builder().provider(model().provider()).data_dir(dir).start().await
}

/// The first question that waits, as soon as there is one.
async fn next_question(runtime: &Runtime) -> Result<PendingQuestion> {
    loop {
        if let Some(question) = runtime.questions().await?.pop() {
            return Ok(question);
        }
        tokio::task::yield_now().await;
    }
}

fn main() -> anyhow::Result<()> {
    let (dir, bank) = (tempfile::tempdir()?, Bank::default());
    let first_half = tokio::runtime::Runtime::new()?;
    first_half.block_on(async {
        let runtime = start(dir.path()).await?;
        let session = runtime.open("order-7", agent(&bank)).await?;
        session.prompt("The parcel came back. Refund order 7, please.").start().await?.detach();
        println!("asked: {}", next_question(&runtime).await?.question.text);
        anyhow::Ok(())
    })?;
    drop(first_half);
    println!("-- everything is gone but the store --");
    assert!(bank.paid().is_empty());

    tokio::runtime::Runtime::new()?.block_on(async {
        let runtime = start(dir.path()).await?;
        let question = next_question(&runtime).await?;
        let session = runtime.open(&question.session, agent(&bank)).await?;
        let mut events = session.subscribe();
        session.answer(question.id, greenroom::GivenAnswer::from("yes").by("ada")).await?;
        while let Some(delivery) = events.next().await {
            if let Delivery::Event(event) = delivery
                && let EventKind::MessageEnd { message, .. } = &event.kind
                && message.role == Role::Assistant
            {
                println!("{}", message.text);
                assert_eq!(message.text, "Order 7: 120 EUR are on their way.");
                break;
            }
        }
        let again = session.answer(question.id, "yes").await;
        println!("once more: {}", again.expect_err("a question is answered once"));
        assert_eq!(bank.paid(), [120], "the money went out once");
        runtime.shutdown().await?;
        Ok(())
    })
}
