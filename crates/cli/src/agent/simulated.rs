//! A simulated model in this process, reached over HTTP like any other: for the demo and for trying things out.
//!
//! Invariants: it listens on the loopback interface only, ends with the process, and looks at nothing but the
//! requests that it gets.

use std::sync::Arc;

use anyhow::{Context, Result};
use greenroom::provider::{OpenAi, OpenAiOptions, Purpose};
use greenroom_kernel::Message;
use greenroom_kernel::render::SUMMARY_LEAD;
use greenroom_simulator::{
    Answer, CallInfo, CodingAgent, Pace, Script, SeenRequest, Simulator, SimulatorOptions, SimulatorServer,
};
use serde_json::Value;

/// So many lines of a file are read at once: the context grows in steps that one can watch.
const LINES_AT_ONCE: u64 = 120;
/// So many of a file of data, whose lines are long.
const DATA_LINES_AT_ONCE: u64 = 5;
/// How the names of such files end.
const DATA_ENDINGS: [&str; 9] =
    [".json", ".jsonl", ".csv", ".lock", ".xml", ".svg", ".html", ".min.js", ".map"];
/// The simulated model's name.
pub(crate) const MODEL: &str = "simulated";

/// A running simulated model. Dropping it ends it.
pub(crate) struct Simulated {
    simulator: Simulator,
    server: SimulatorServer,
}

impl Simulated {
    /// Starts one with this window, whose runs have at most so many steps with tool calls.
    pub(crate) async fn start(window: u64, steps_per_run: u64, pace: Pace) -> Result<Self> {
        let agent = CodingAgent { seed: 0, steps_per_run, pace };
        let options =
            SimulatorOptions { window, max_output: window / 4, ..SimulatorOptions::new(Reader(agent)) };
        let simulator = Simulator::new(options);
        let server = simulator.serve().await.context("start the simulated model")?;
        Ok(Self { simulator, server })
    }

    /// A provider that talks to it over HTTP.
    pub(crate) fn provider(&self) -> Result<Arc<OpenAi>> {
        let options = OpenAiOptions {
            name: "simulator".to_owned(),
            base_url: self.server.base_url(),
            // The simulated model tells sessions apart by it.
            prompt_cache_key: Some(true),
            ..OpenAiOptions::default()
        };
        Ok(Arc::new(OpenAi::new(options)?))
    }

    /// The base URL of the simulated server.
    pub(crate) fn address(&self) -> String {
        self.server.base_url().to_string()
    }

    /// The rules of the protocol that requests broke; none, if the runtime does its work.
    pub(crate) fn violations(&self) -> Vec<String> {
        self.simulator.violations().iter().map(ToString::to_string).collect()
    }
}

/// The simulator's coding agent, which reads large files in parts, and begins anew with every prompt once it
/// knows the whole folder.
struct Reader(CodingAgent);

impl Script for Reader {
    fn reply(&self, request: &SeenRequest, call: CallInfo) -> Answer {
        let reply = self.agent_reply(request, call);
        if request.purpose == Purpose::Summary || !reply.calls.is_empty() {
            return reply;
        }
        // What was read before this prompt is forgotten, and so is there to be read.
        let prompt = request.messages.iter().rposition(|message| is_prompt(message));
        match prompt {
            Some(prompt) if prompt > 0 => {
                let mut fresh = request.clone();
                fresh.messages.drain(..prompt);
                self.agent_reply(&fresh, call)
            }
            Some(_) | None => reply,
        }
    }
}

impl Reader {
    fn agent_reply(&self, request: &SeenRequest, call: CallInfo) -> Answer {
        let mut reply = self.0.reply(request, call);
        for call in &mut reply.calls {
            let Ok(Value::Object(mut arguments)) = serde_json::from_str(&call.arguments) else { continue };
            if call.name == "read" {
                let path = arguments.get("path").and_then(Value::as_str).unwrap_or_default();
                let is_data = DATA_ENDINGS.iter().any(|ending| path.ends_with(ending));
                let lines = if is_data { DATA_LINES_AT_ONCE } else { LINES_AT_ONCE };
                arguments.insert("limit".to_owned(), lines.into());
            } else if call.name == "grep"
                && let Some(folder) = newest_folder(request)
            {
                arguments.insert("path".to_owned(), folder.into());
            }
            call.arguments = Value::Object(arguments).to_string();
        }
        reply
    }
}

/// The folder of the file that was read last, if it was in one.
fn newest_folder(request: &SeenRequest) -> Option<String> {
    let calls = request.messages.iter().rev().flat_map(|message| message.tool_calls());
    let arguments = calls.filter(|call| call.name == "read").find_map(|call| {
        let arguments: Value = serde_json::from_str(&call.arguments).ok()?;
        arguments.get("path")?.as_str().map(str::to_owned)
    });
    arguments.and_then(|path| path.rsplit_once('/').map(|(folder, _)| folder.to_owned()))
}

fn is_prompt(message: &Message) -> bool {
    matches!(message, Message::User(_)) && !message.text().starts_with(lead())
}

/// The beginning of what a summary is introduced with: enough to know it by.
fn lead() -> &'static str {
    SUMMARY_LEAD.split('.').next().unwrap_or(SUMMARY_LEAD)
}
