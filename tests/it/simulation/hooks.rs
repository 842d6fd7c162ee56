//! The hooks of a simulated life: they refuse, change, answer, replace, panic and hang, at random.
//!
//! Invariants: a call that a hook refused or answered counts as run, so that running it as well is detected;
//! a guard's refusals are recorded, so that refused input must be nowhere.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use greenroom::prelude::*;
use greenroom::{AfterTool, BeforeModel, BeforeTool, InputVerdict, Message, Rejection};
use greenroom_store::faults::Random;
use serde_json::json;

use super::tools::Runs;

/// The random decisions, and their record.
#[derive(Clone)]
pub(crate) struct Dice {
    random: Arc<Mutex<Random>>,
    /// How often each action was taken.
    pub(crate) done: Arc<Mutex<BTreeMap<&'static str, u64>>>,
}

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: Arc::new(Mutex::new(Random::new(seed))), done: Arc::default() }
    }

    /// Returns a number below `sides`; most numbers mean that nothing is done.
    fn roll(&self, sides: u64) -> u64 {
        self.random.lock().unwrap().below(sides)
    }

    /// Returns a unique number.
    fn number(&self) -> u64 {
        self.random.lock().unwrap().number()
    }

    fn did(&self, what: &'static str) {
        *self.done.lock().unwrap().entry(what).or_default() += 1;
    }
}

/// Adds hooks of every kind to the agent.
pub(crate) fn hooked(agent: Agent, dice: &Dice, runs: &Runs) -> Agent {
    let agent = around_tools(agent, dice, runs);
    let agent = around_models(agent, dice);
    let (guard, judge) = (dice.clone(), dice.clone());
    agent
        .guard_input(move |_| {
            let dice = guard.clone();
            async move {
                match dice.roll(24) {
                    0 => {
                        dice.did("a guard refused input");
                        InputVerdict::Refuse("not now".into())
                    }
                    1 => {
                        dice.did("a guard panicked");
                        panic!("injected in a guard")
                    }
                    _ => InputVerdict::Accept,
                }
            }
        })
        .validate(move |_| {
            let dice = judge.clone();
            async move {
                match dice.roll(12) {
                    0 => {
                        dice.did("a validator ended a run");
                        Err(Rejection::end_run("not this"))
                    }
                    // No text is repeated.
                    1 | 2 => Err(Rejection::send_back(format!("not this, {}", dice.number()))),
                    3 => {
                        tokio::time::sleep(std::time::Duration::from_secs(7)).await;
                        Ok(())
                    }
                    _ => Ok(()),
                }
            }
        })
}

fn around_tools(agent: Agent, dice: &Dice, runs: &Runs) -> Agent {
    let (before, after, runs) = (dice.clone(), dice.clone(), Arc::clone(runs));
    agent
        .before_tool(move |call| {
            let (dice, runs) = (before.clone(), Arc::clone(&runs));
            async move {
                // It counts as if the call was run.
                let taken = || {
                    // A resumable call passes its hooks again after a restart, and may have taken effect.
                    if call.tool == "confirm" {
                        return;
                    }
                    let mut runs = runs.lock().unwrap();
                    let call = (call.session.to_string(), call.call_id.clone());
                    *runs.times.entry(call.clone()).or_default() += 1;
                    runs.fresh.push(call);
                };
                match dice.roll(16) {
                    0 => {
                        dice.did("a hook refused a tool call");
                        taken();
                        BeforeTool::Refuse("not now".into())
                    }
                    1 => {
                        dice.did("a hook answered a tool call");
                        taken();
                        BeforeTool::Answer(ToolOutput::text("as before"))
                    }
                    2 => {
                        dice.did("a hook changed a tool call");
                        BeforeTool::Change(json!({ "size": 1, "token": "changed" }))
                    }
                    3 => {
                        dice.did("a hook before a tool call panicked");
                        taken();
                        panic!("injected before a tool call")
                    }
                    4 => {
                        dice.did("a hook before a tool call hung");
                        taken();
                        std::future::pending().await
                    }
                    _ => BeforeTool::Continue,
                }
            }
        })
        .after_tool(move |_| {
            let dice = after.clone();
            async move {
                match dice.roll(16) {
                    0 => {
                        dice.did("a hook replaced a result");
                        AfterTool::Replace(ToolOutput::text("replaced"))
                    }
                    1 => {
                        dice.did("a hook after a tool call panicked");
                        panic!("injected after a tool call")
                    }
                    2 => std::future::pending().await,
                    _ => AfterTool::Keep,
                }
            }
        })
}

fn around_models(agent: Agent, dice: &Dice) -> Agent {
    let (before, after) = (dice.clone(), dice.clone());
    agent
        .before_model(move |call| {
            let dice = before.clone();
            async move {
                match dice.roll(32) {
                    0 => {
                        dice.did("a hook refused a model call");
                        BeforeModel::Refuse("not now".into())
                    }
                    1 => {
                        dice.did("a hook answered a model call");
                        BeforeModel::Answer("as a hook says".into())
                    }
                    2 => {
                        dice.did("a hook changed settings");
                        BeforeModel::Settings(ModelSettings::new().temperature(0.0).output_tokens_max(200))
                    }
                    3..=6 => {
                        dice.did("a hook changed messages");
                        let shouted = |message: &Arc<Message>| match &**message {
                            Message::User(_) => {
                                Arc::new(Message::user(message.text().replace("stone", "STONE")))
                            }
                            Message::Assistant(_) | Message::ToolResult(_) => Arc::clone(message),
                        };
                        BeforeModel::Messages(call.request.messages.iter().map(shouted).collect())
                    }
                    7 => {
                        dice.did("a hook before a model call panicked");
                        panic!("injected before a model call")
                    }
                    _ => BeforeModel::Continue,
                }
            }
        })
        .after_model(move |_| {
            let dice = after.clone();
            async move {
                if dice.roll(16) == 0 {
                    dice.did("a hook after a model call panicked");
                    panic!("injected after a model call");
                }
            }
        })
}
