//! Calls the hooks around a tool call, and applies their decisions.
//!
//! Invariants: a hook that fails before a call has refused it, and one that fails after it has withheld the
//! output. The result of a call with changed arguments says so, so the model and the log know what was done.
//! Hooks see only calls that would run: calls of unknown tools or with invalid JSON are answered without
//! them.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::message::Block;
use greenroom_kernel::{RunId, ToolCall, ToolResult, ToolStatus};
use greenroom_tools::{Questions, Tool, ToolOutput};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::agent::hooks::tool_call::{AfterTool, BeforeTool, ToolCallProposal, ToolCallReport};
use crate::agent::hooks::{TimeLimit, guarded};
use crate::core::deps::Deps;
use crate::core::shared::SessionShared;
use crate::events::event::EventKind;
use crate::limits::waits::Chain;
use crate::values::hook::{HookAction, HookPoint};

#[cfg(feature = "permissions")]
mod permission;
#[cfg(test)]
mod tests;

#[cfg(feature = "permissions")]
use permission::Permitted;

/// How much of changed arguments the model sees, in bytes.
const TOLD_BYTES_MAX: usize = 4_096;

/// The decision of the hooks before a call.
pub(crate) enum Decision<'a> {
    /// Run this call: the model's own, or one with other arguments.
    Run(Cow<'a, ToolCall>),
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
    /// Calls the hooks before a call.
    pub(crate) async fn before<'a>(
        &self,
        call: &'a ToolCall,
        tool: &dyn Tool,
        questions: &Questions,
    ) -> Decision<'a> {
        let hooks = &self.agent.hooks;
        #[cfg(feature = "permissions")]
        let is_permitted = self.agent.permissions.is_none();
        #[cfg(not(feature = "permissions"))]
        let is_permitted = true;
        if hooks.before_tool.is_empty() && is_permitted {
            return Decision::Run(Cow::Borrowed(call));
        }
        let is_read_only = tool.is_read_only();
        let Ok(mut arguments) = greenroom_tools::parse_arguments(&call.arguments) else {
            return Decision::Run(Cow::Borrowed(call));
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
            let limit = TimeLimit { pauses: questions.pauses().clone(), ..hooks.timeout.into() };
            let decided = guarded(self.waiting, limit, || hook(proposal)).await;
            let Judged { then, told, warning } = judge_before(decided, call);
            self.say(HookPoint::BeforeTool, call, told, warning);
            match then {
                Before::GoOn => {}
                Before::With(changed) => (arguments, is_changed) = (changed, true),
                Before::Instead(output) => return Decision::Instead(output),
            }
        }
        if let Some(refused) = Box::pin(self.permit(call, tool, &arguments, questions)).await {
            return Decision::Instead(refused);
        }
        Decision::Run(match is_changed {
            true => Cow::Owned(ToolCall { arguments: arguments.to_string(), ..call.clone() }),
            false => Cow::Borrowed(call),
        })
    }

    /// Judges a call by the agent's permissions. Returns what the model reads in place of a call that does not run.
    #[cfg(feature = "permissions")]
    async fn permit(
        &self,
        call: &ToolCall,
        tool: &dyn Tool,
        arguments: &Value,
        questions: &Questions,
    ) -> Option<ToolOutput> {
        let permissions = self.agent.permissions.as_ref()?;
        let proposed =
            permission::ProposedCall { session: &self.shared.id, tool, name: &call.name, arguments };
        let (refused, warning) = match permission::permit(permissions, &proposed, questions).await {
            Permitted::Yes => return None,
            Permitted::Approved { warning } => (None, warning),
            Permitted::No(reason) => (Some(reason), None),
            Permitted::Outdated => {
                let warning = format!("{} did not run: {}", call.name, permission::CHANGED);
                (Some(permission::CHANGED.to_owned()), Some(warning))
            }
        };
        let told = refused.clone().map(|reason| Told { action: HookAction::Refused, detail: Some(reason) });
        self.say(HookPoint::Permissions, call, told, warning);
        refused.map(|reason| not_run(call, &reason))
    }

    #[cfg(not(feature = "permissions"))]
    #[expect(clippy::unused_async, reason = "as with permissions")]
    async fn permit(&self, _: &ToolCall, _: &dyn Tool, _: &Value, _: &Questions) -> Option<ToolOutput> {
        None
    }

    /// Calls the hooks after a call; returns the output for the model.
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
                // Nobody waits for the hook any more, and the run may end before it.
                () = cancel.cancelled() => Err("the run was cancelled before it ended".to_owned()),
            };
            let is_broken = decided.is_err();
            let Judged { then, told, warning } = judge_after(decided, output, &tool_name);
            output = then;
            // A cancelled run may be over by now, and so its events.
            if !is_broken || !cancel.is_cancelled() {
                self.say(HookPoint::AfterTool, asked, told, warning);
            }
            if is_broken {
                break;
            }
        }
        if was_run {
            note_changed_arguments(&mut output, asked, called);
        }
        greenroom_tools::Registry::result(asked, output, &self.deps.redactor)
    }

    /// Reports a hook's action, and its failure.
    fn say(&self, hook: HookPoint, call: &ToolCall, told: Option<Told>, warning: Option<String>) {
        let (deps, run) = (self.deps, self.run);
        if let Some(message) = warning {
            self.shared.publish_of_run(&deps.bus, run, EventKind::Warning { message });
        }
        if let Some(Told { action, detail }) = told {
            let (call_id, name) = (Some(call.id.clone()), Some(call.name.clone()));
            let told = EventKind::Hook { hook, action, call_id, name, detail };
            self.shared.publish_of_run(&deps.bus, run, told);
        }
    }
}

/// The result of a hook's decision, and its report.
#[derive(Debug, PartialEq)]
struct Judged<T> {
    then: T,
    told: Option<Told>,
    warning: Option<String>,
}

/// A hook's action.
#[derive(Debug, PartialEq)]
struct Told {
    action: HookAction,
    detail: Option<String>,
}

impl<T> Judged<T> {
    /// Creates a result without a report.
    fn quiet(then: T) -> Self {
        Self { then, told: None, warning: None }
    }

    fn told(then: T, action: HookAction, detail: Option<String>) -> Self {
        Self { told: Some(Told { action, detail }), ..Self::quiet(then) }
    }
}

/// What happens to a call before it is run.
#[derive(Debug, PartialEq)]
enum Before {
    GoOn,
    /// It gets other arguments.
    With(Value),
    /// It is not run; the model reads this.
    Instead(ToolOutput),
}

/// Applies the decision of a hook before a call, or its failure.
fn judge_before(decided: Result<BeforeTool, String>, call: &ToolCall) -> Judged<Before> {
    match decided {
        Ok(BeforeTool::Continue) => Judged::quiet(Before::GoOn),
        Ok(BeforeTool::Change(changed)) => {
            let detail = Some(changed.to_string());
            Judged::told(Before::With(changed), HookAction::Changed, detail)
        }
        Ok(BeforeTool::Refuse(reason)) => {
            Judged::told(Before::Instead(not_run(call, &reason)), HookAction::Refused, Some(reason))
        }
        Ok(BeforeTool::Answer(output)) => Judged::told(Before::Instead(output), HookAction::Answered, None),
        // The hook might have refused the call.
        Err(problem) => {
            let reason = format!("a before_tool hook failed: {problem}");
            let warning = Some(format!("the call of `{}` was not run: {reason}", call.name));
            let then = Before::Instead(not_run(call, &reason));
            Judged { warning, ..Judged::told(then, HookAction::Refused, Some(reason)) }
        }
    }
}

/// Applies the decision of a hook after a call, or its failure. Returns the output for the model.
fn judge_after(
    decided: Result<AfterTool, String>,
    output: ToolOutput,
    tool_name: &str,
) -> Judged<ToolOutput> {
    match decided {
        Ok(AfterTool::Keep) => Judged::quiet(output),
        Ok(AfterTool::Replace(other)) => Judged::told(other, HookAction::Replaced, None),
        // The hook might have removed something.
        Err(problem) => {
            let reason = format!("an after_tool hook failed: {problem}");
            let warning = Some(format!("the output of `{tool_name}` was withheld: {reason}"));
            let ended = match output.status {
                ToolStatus::Ok => "succeeded",
                ToolStatus::Error => "failed",
                ToolStatus::Interrupted => "was interrupted",
            };
            let text = format!("The call {ended}, and its output is withheld: {reason}.");
            let withheld = ToolOutput::error(text);
            let withheld = ToolOutput::new(withheld.content, withheld.status, output.touched);
            Judged { warning, ..Judged::told(withheld, HookAction::Replaced, Some(reason)) }
        }
    }
}

/// Notes in the output of a call the arguments with which it was run, if they differ from the model's.
fn note_changed_arguments(output: &mut ToolOutput, asked: &ToolCall, called: &ToolCall) {
    if called.arguments != asked.arguments {
        let note =
            format!("[The program changed the arguments of the call to: {}]", shortened(&called.arguments));
        output.content.insert(0, Block::Text(note));
    }
}

/// Returns the output of a refused call for the model.
fn not_run(call: &ToolCall, reason: &str) -> ToolOutput {
    let reason = reason.trim().trim_end_matches('.');
    let reason = if reason.is_empty() { "no reason was given" } else { reason };
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
