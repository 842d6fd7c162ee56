//! How the hooks around one tool call are asked, and what comes of what they decide.
//!
//! Invariants: a hook that fails before a call has refused it, and one that fails after it has withheld its output. A call
//! that was run with changed arguments says so in its result, so that the model and the log know what was done. Hooks are
//! asked about calls that would run: an unknown tool and arguments that are no JSON are answered without them.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::message::Block;
use greenroom_kernel::{RunId, ToolCall, ToolResult, ToolStatus};
use greenroom_tools::{Questions, ToolOutput};
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::agent::hooks::tool_call::{AfterTool, BeforeTool, ToolCallProposal, ToolCallReport};
use crate::agent::hooks::{TimeLimit, guarded};
use crate::core::deps::Deps;
use crate::core::shared::SessionShared;
use crate::events::event::EventKind;
use crate::limits::waits::Chain;
use crate::values::hook::{HookAction, HookPoint};

/// How much of changed arguments the model is told, in bytes.
const TOLD_BYTES_MAX: usize = 4_096;

/// What the hooks before a call decided.
pub(crate) enum Decision {
    /// Run this call.
    Run(ToolCall),
    /// Run nothing; the model reads this.
    Instead(ToolOutput),
}

/// The hooks around the tool calls of one run.
pub(crate) struct ToolHooks<'a> {
    pub(crate) agent: &'a Agent,
    pub(crate) deps: &'a Deps,
    pub(crate) shared: &'a SessionShared,
    pub(crate) run: RunId,
    pub(crate) waiting: &'a Chain,
}

impl ToolHooks<'_> {
    /// Asks the hooks before a call.
    pub(crate) async fn before(
        &self,
        call: &ToolCall,
        is_read_only: bool,
        questions: &Questions,
    ) -> Decision {
        let hooks = &self.agent.hooks;
        let Ok(mut arguments) = greenroom_tools::parse_arguments(&call.arguments) else {
            return Decision::Run(call.clone());
        };
        let mut is_changed = false;
        for hook in &hooks.before_tool {
            let proposal = ToolCallProposal {
                session: Arc::clone(&self.shared.id),
                run: self.run,
                call_id: call.id.clone(),
                tool: call.name.clone(),
                arguments: arguments.clone(),
                is_read_only,
                questions: questions.clone(),
                app_state: self.agent.state.clone(),
            };
            let limit = TimeLimit { timeout: hooks.timeout, pauses: questions.pauses().clone() };
            let decided = guarded(self.waiting, limit, || hook(proposal)).await;
            match decided {
                Ok(BeforeTool::Continue) => {}
                Ok(BeforeTool::Change(changed)) => {
                    self.tell(HookPoint::BeforeTool, HookAction::Changed, call, Some(changed.to_string()));
                    (arguments, is_changed) = (changed, true);
                }
                Ok(BeforeTool::Refuse(reason)) => {
                    self.tell(HookPoint::BeforeTool, HookAction::Refused, call, Some(reason.clone()));
                    return Decision::Instead(not_run(call, &reason));
                }
                Ok(BeforeTool::Answer(output)) => {
                    self.tell(HookPoint::BeforeTool, HookAction::Answered, call, None);
                    return Decision::Instead(output);
                }
                // It may have been about to refuse.
                Err(problem) => {
                    let reason = format!("a before_tool hook failed: {problem}");
                    self.warn(format!("the call of `{}` was not run: {reason}", call.name));
                    self.tell(HookPoint::BeforeTool, HookAction::Refused, call, Some(reason.clone()));
                    return Decision::Instead(not_run(call, &reason));
                }
            }
        }
        let mut call = call.clone();
        if is_changed {
            call.arguments = arguments.to_string();
        }
        Decision::Run(call)
    }

    /// Asks the hooks after a call; gives what the model reads.
    pub(crate) async fn after(
        &self,
        asked: &ToolCall,
        called: &ToolCall,
        result: ToolResult,
        was_run: bool,
        duration: Duration,
        cancel: &CancellationToken,
    ) -> ToolResult {
        let hooks = &self.agent.hooks;
        let ToolResult { call_id, tool_name, content, status, touched } = result;
        let mut output = ToolOutput::new(content, status, touched);
        for hook in &hooks.after_tool {
            let report = ToolCallReport {
                session: Arc::clone(&self.shared.id),
                run: self.run,
                call_id: call_id.clone(),
                tool: tool_name.clone(),
                arguments: called.arguments.clone(),
                output: output.clone(),
                was_run,
                duration,
                app_state: self.agent.state.clone(),
            };
            let decided = tokio::select! {
                biased;
                decided = guarded(self.waiting, hooks.timeout, || hook(report)) => decided,
                // Nobody waits for it any more, and the run may be over before it is.
                () = cancel.cancelled() => Err("the run was cancelled before it ended".to_owned()),
            };
            match decided {
                Ok(AfterTool::Keep) => {}
                Ok(AfterTool::Replace(other)) => {
                    self.tell(HookPoint::AfterTool, HookAction::Replaced, asked, None);
                    output = other;
                }
                // It may have been about to take something out.
                Err(problem) => {
                    let reason = format!("an after_tool hook failed: {problem}");
                    // A run that was cancelled may be over by now, and its events with it.
                    if !cancel.is_cancelled() {
                        self.warn(format!("the output of `{tool_name}` was withheld: {reason}"));
                        self.tell(HookPoint::AfterTool, HookAction::Replaced, asked, Some(reason.clone()));
                    }
                    let ended = match output.status {
                        ToolStatus::Ok => "succeeded",
                        ToolStatus::Error => "failed",
                        ToolStatus::Interrupted => "was interrupted",
                    };
                    let text = format!("The call {ended}, and its output is withheld: {reason}.");
                    let withheld = ToolOutput::error(text);
                    output = ToolOutput::new(withheld.content, withheld.status, output.touched);
                    break;
                }
            }
        }
        if was_run && called.arguments != asked.arguments {
            let told = shortened(&called.arguments);
            let note = format!("[The call was run with changed arguments: {told}]");
            output.content.insert(0, Block::Text(note));
        }
        greenroom_tools::Registry::result(asked, output)
    }

    fn tell(&self, hook: HookPoint, action: HookAction, call: &ToolCall, detail: Option<String>) {
        let (call_id, name) = (Some(call.id.clone()), Some(call.name.clone()));
        let told = EventKind::Hook { hook, action, call_id, name, detail };
        self.shared.publish_of_run(&self.deps.bus, self.run, told);
    }

    fn warn(&self, message: String) {
        self.shared.publish_of_run(&self.deps.bus, self.run, EventKind::Warning { message });
    }
}

/// What the model reads of a call that was refused.
fn not_run(call: &ToolCall, reason: &str) -> ToolOutput {
    let reason = reason.trim().trim_end_matches('.');
    let ToolResult { content, status, touched, .. } = ToolResult::not_run(call, reason);
    ToolOutput::new(content, status, touched)
}

fn shortened(arguments: &str) -> String {
    if arguments.len() <= TOLD_BYTES_MAX {
        return arguments.to_owned();
    }
    let end = arguments.floor_char_boundary(TOLD_BYTES_MAX);
    format!("{} … ({} bytes in all)", &arguments[..end], arguments.len())
}
