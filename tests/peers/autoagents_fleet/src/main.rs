//! The fleet with autoagents: the same agents, model and tool as in the benchmark `fleet`. Its conversations are in memory.

use std::sync::Arc;

use async_trait::async_trait;
use autoagents::core::agent::memory::SlidingWindowMemory;
use autoagents::core::agent::prebuilt::executor::{ReActAgent, ReActAgentOutput};
use autoagents::core::agent::task::Task;
use autoagents::core::agent::{AgentBuilder, AgentOutputT, DirectAgent, DirectAgentHandle};
use autoagents::core::tool::{ToolCallError, ToolRuntime, ToolT};
use autoagents::llm::LLMProvider;
use autoagents::llm::backends::openai::{OpenAI, OpenAIApiMode};
use autoagents::llm::builder::LLMBuilder;
use autoagents_derive::{AgentHooks, AgentOutput, ToolInput, agent, tool};
use futures_util::StreamExt;
use peers_fleet::{Workload, measured};
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Serialize, Deserialize, ToolInput, Debug)]
struct LookArgs {
    #[input(description = "The text to work on.")]
    up: String,
}

#[tool(name = "look", description = "Looks something up.", input = LookArgs)]
struct Look {}

#[async_trait]
impl ToolRuntime for Look {
    async fn execute(&self, args: Value) -> Result<Value, ToolCallError> {
        let look: LookArgs = serde_json::from_value(args)?;
        Ok(format!("{} is on page 7", look.up).into())
    }
}

#[derive(Debug, Serialize, Deserialize, AgentOutput)]
struct Said {
    #[output(description = "The answer")]
    text: String,
}

impl From<ReActAgentOutput> for Said {
    fn from(output: ReActAgentOutput) -> Self {
        Self { text: output.response }
    }
}

#[agent(name = "look_agent", description = "Look things up.", tools = [Look], output = Said)]
#[derive(Default, Clone, AgentHooks)]
struct LookAgent {}

type Handle = DirectAgentHandle<ReActAgent<LookAgent>>;

#[tokio::main]
async fn main() {
    let workload = Workload::of_command_line();
    let streams = workload.streams;
    // It joins paths to the URL, which therefore ends with a slash.
    let builder = LLMBuilder::<OpenAI>::new().api_key("any").model("simulated");
    let builder = builder.base_url(format!("{}/", workload.url)).api_mode(OpenAIApiMode::ChatCompletions);
    let llm: Arc<OpenAI> = builder.build().expect("a client");
    // All messages of all runs are kept.
    let window = workload.runs * 4 + 1;
    let make = || {
        let llm: Arc<dyn LLMProvider> = llm.clone();
        async move {
            let builder = AgentBuilder::<_, DirectAgent>::new(ReActAgent::new(LookAgent {})).llm(llm);
            let builder = builder.memory(Box::new(SlidingWindowMemory::new(window))).stream(streams);
            let mut handle = builder.build().await.map_err(|_| "no agent").expect("an agent");
            // Nobody listens to its events.
            handle.rx = Box::pin(futures_util::stream::empty());
            handle
        }
    };
    measured(&workload, make, move |handle: Handle| async move {
        let task = Task::new("Where is the word?");
        if streams {
            let mut stream = handle.agent.run_stream(task).await.expect("a stream");
            while let Some(said) = stream.next().await {
                said.map_err(|error| error.to_string()).expect("an answer");
            }
        } else {
            let said = handle.agent.run(task).await.map_err(|error| error.to_string());
            assert!(said.expect("an answer").text.contains("word"), "it says what the model said");
        }
        handle
    })
    .await;
}
