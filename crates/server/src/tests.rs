//! An agent whose tool asks a person, for tests.

use greenroom::prelude::*;
use greenroom_simulator::{Answer, CallInfo, Function, SeenRequest, Simulator, SimulatorOptions};
use serde_json::json;

/// A model that calls `refund`, and reports the result.
pub(crate) fn simulator() -> Simulator {
    Simulator::new(SimulatorOptions::new(Function(|request: &SeenRequest, _: CallInfo| {
        match request.messages.last() {
            Some(last) if last.role() == "tool" => Answer::text(last.text()),
            _ => Answer::call("refund", &json!({})),
        }
    })))
}

pub(crate) fn agent() -> Agent {
    Agent::new("simulated").context_window(100_000).add_tool(
        tool("refund", |(): (), cx: ToolContext| async move {
            let answer = cx.ask(Question::choice("Refund?", ["yes", "no"])).await?;
            Ok(format!("The answer was {answer}"))
        })
        .describe("Pays back."),
    )
}
