//! The fleet with rig: the same agents, model and tool as in the benchmark `fleet`. Its conversations are in memory.

use std::convert::Infallible;
use std::sync::Arc;

use futures_util::StreamExt;
use peers_fleet::{Workload, measured};
use rig::AgentBuilder;
use rig::agent::MultiTurnStreamItem;
use rig::completion::Message;
use rig::prelude::*;
use rig::providers::openai::OpenAIConfig;
use serde::Deserialize;

#[derive(Deserialize)]
struct LookArgs {
    up: String,
}

#[derive(Clone)]
struct Look;

impl Tool for Look {
    const NAME: &'static str = "look";
    type Args = LookArgs;
    type Output = String;
    type Error = Infallible;

    fn description(&self) -> String {
        "Looks something up.".to_owned()
    }

    fn parameters(&self) -> serde_json::Value {
        serde_json::json!({
            "type": "object", "properties": { "up": { "type": "string" } }, "required": ["up"],
        })
    }

    async fn call(&self, _context: &mut ToolContext, look: LookArgs) -> Result<String, Infallible> {
        Ok(format!("{} is on page 7", look.up))
    }
}

#[tokio::main]
async fn main() {
    let workload = Workload::of_command_line();
    let streams = workload.streams;
    let mut config = OpenAIConfig::new("any");
    config.base_url.clone_from(&workload.url);
    let model = config.client().chat("simulated");
    let make = || {
        let agent = AgentBuilder::new(model.clone()).preamble("Look things up.").tool(Look).build();
        async move { (Arc::new(agent), Vec::<Message>::new()) }
    };
    measured(&workload, make, move |(agent, mut history): (Arc<Agent>, Vec<Message>)| async move {
        let prompt = "Where is the word?";
        if streams {
            let runner = agent.prompt(prompt).history(history.clone()).max_turns(3);
            let mut stream = runner.stream();
            let mut end = None;
            while let Some(item) = stream.next().await {
                if let MultiTurnStreamItem::FinalResponse(response) = item.expect("an answer") {
                    end = Some(response);
                }
            }
            history.extend(end.expect("an end").messages.iter().cloned());
        } else {
            let runner = agent.prompt(prompt).history(history.clone()).max_turns(3);
            history.extend(runner.await.expect("an answer").messages.iter().cloned());
        }
        (agent, history)
    })
    .await;
}
