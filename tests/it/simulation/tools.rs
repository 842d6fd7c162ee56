//! The tools of a life: each records its runs, and waits, asks, fails, panics or takes effect once.
//!
//! Invariants: a call is recorded when it takes effect, so a check sees whether one did so twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::BoxFuture;
use greenroom::prelude::*;
use greenroom_kernel::ToolSpec;
use greenroom_store::faults::Random;
use greenroom_tools::{Tool, ToolContext, ToolOutput};

use super::model;

/// The calls that were run, by session and call.
pub(crate) type Runs = Arc<Mutex<Ran>>;

#[derive(Debug, Default)]
pub(crate) struct Ran {
    /// The keys of calls that took effect after their answer.
    pub(crate) effects: BTreeSet<String>,
    /// How often an earlier effect was recognised.
    pub(crate) recognised: u64,
    /// How often each was run.
    pub(crate) times: BTreeMap<(String, String), u64>,
    /// Those run since the last check.
    pub(crate) fresh: Vec<(String, String)>,
}

/// A tool that records each run.
pub(crate) struct Recorded {
    pub(crate) kind: &'static str,
    pub(crate) runs: Runs,
    pub(crate) panics: Arc<AtomicU64>,
}

impl Tool for Recorded {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: self.kind.to_owned(),
            description: "Does something.".to_owned(),
            parameters: serde_json::json!({
                "type": "object",
                "properties": { "size": { "type": "integer" }, "token": { "type": "string" } },
                "required": ["size", "token"],
            }),
        }
    }

    fn call(&self, arguments: serde_json::Value, context: ToolContext) -> BoxFuture<'static, ToolOutput> {
        let call = (context.session.clone(), context.call_id.clone());
        if self.kind == "confirm" {
            return Box::pin(confirm(call, context, Arc::clone(&self.runs)));
        }
        let mut runs = self.runs.lock().unwrap();
        *runs.times.entry(call.clone()).or_default() += 1;
        runs.fresh.push(call);
        drop(runs);
        let size = arguments["size"].as_u64().unwrap_or(1);
        let (kind, panics) = (self.kind, Arc::clone(&self.panics));
        Box::pin(async move {
            match kind {
                "wait" => tokio::select! {
                    biased;
                    () = context.cancel.cancelled() => return ToolOutput::interrupted("cancelled"),
                    () = tokio::time::sleep(Duration::from_millis(size * 40)) => {}
                },
                // It is never run again, whatever interrupts it.
                "ask" => {
                    let question = Question::choice("May it?", ["yes", "no"]);
                    // Half of the questions expire.
                    let question = match size % 2 {
                        0 => question.expires_in(Duration::from_secs(60 + size)),
                        _ => question,
                    };
                    return match context.ask(question).await {
                        Ok(answer) => ToolOutput::text(answer.to_string()),
                        Err(error) => ToolOutput::error(error.to_string()),
                    };
                }
                "fail" => return ToolOutput::error("it failed"),
                "explode" => {
                    panics.fetch_add(1, Ordering::Relaxed);
                    panic!("injected in a tool");
                }
                _ => {}
            }
            let mut random = Random::new(size);
            ToolOutput::text(model::words(&mut random, size + 1))
        })
    }

    fn is_read_only(&self) -> bool {
        self.kind == "look"
    }

    fn is_resumable(&self) -> bool {
        self.kind == "confirm"
    }
}

/// Asks twice and then takes effect, once: an effect before a crash is recognised by its key. Then it takes a
/// while, in which it may be interrupted.
async fn confirm(call: (String, String), context: ToolContext, runs: Runs) -> ToolOutput {
    for text in ["First?", "Second?"] {
        match context.ask(Question::choice(text, ["yes", "no"])).await {
            Ok(answer) if answer.is("yes") => {}
            Ok(_) => return ToolOutput::text("no"),
            Err(error) => return ToolOutput::error(error.to_string()),
        }
    }
    {
        let mut runs = runs.lock().unwrap();
        if runs.effects.insert(context.call_key().to_owned()) {
            *runs.times.entry(call.clone()).or_default() += 1;
            runs.fresh.push(call);
        } else {
            runs.recognised += 1;
        }
    }
    tokio::time::sleep(Duration::from_secs(20)).await;
    ToolOutput::text("confirmed")
}
