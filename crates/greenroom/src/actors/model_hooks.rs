//! Calls the hooks around a model call, and applies their decisions.
//!
//! Invariants: hooks see every request before a provider does, including requests for summaries, and each
//! attempt again. A hook changes nothing that affects the size or the structure of the conversation: not the
//! system prompt, not the tools, and no message's position, kind or calls. A hook that fails before a call
//! has refused it.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::{AssistantMessage, Failure, Message, RunId};
use greenroom_provider::{ModelSettings, Purpose, Request, ToolChoice};

use crate::agent::Agent;
use crate::agent::hooks::guarded;
use crate::agent::hooks::model_call::{BeforeModel, ModelCallProposal, ModelCallReport};
use crate::core::deps::Deps;
use crate::core::shared::SessionShared;
use crate::events::event::EventKind;
use crate::limits::waits::Chain;
use crate::values::hook::{HookAction, HookPoint};

#[cfg(test)]
mod tests;

/// The decision of the hooks before a call.
pub(crate) enum Decision {
    /// Send this request.
    Ask(Box<Request>),
    /// Send nothing; this is the answer's text.
    Answered(String),
    /// Send nothing, for this reason.
    Refused(String),
}

/// The hooks around the model calls of a session.
pub(crate) struct ModelHooks<'a> {
    pub(crate) agent: &'a Agent,
    pub(crate) deps: &'a Deps,
    pub(crate) shared: &'a SessionShared,
    /// The run, if the call is a step of one.
    pub(crate) run: Option<RunId>,
    pub(crate) waiting: &'a Chain,
}

/// A finished call.
pub(crate) struct Finished<'a> {
    pub(crate) provider: &'a str,
    pub(crate) model: &'a str,
    pub(crate) purpose: Purpose,
    pub(crate) result: Result<&'a AssistantMessage, &'a Failure>,
    pub(crate) was_asked: bool,
    pub(crate) duration: Duration,
}

impl ModelHooks<'_> {
    /// Calls the hooks before a call.
    pub(crate) async fn before(&self, provider: &str, mut request: Box<Request>) -> Decision {
        let hooks = &self.agent.hooks;
        for hook in &hooks.before_model {
            let proposal = ModelCallProposal {
                session: Arc::clone(&self.shared.id),
                run: self.run,
                provider: provider.to_owned(),
                request: (*request).clone(),
                app_state: self.agent.state.clone(),
            };
            let decided = guarded(self.waiting, hooks.limit(), || hook(proposal)).await;
            let changed = match decided {
                Ok(BeforeModel::Continue) => continue,
                Ok(BeforeModel::Settings(settings)) => with_settings(request, settings),
                Ok(BeforeModel::Messages(messages)) => with_messages(request, messages),
                Ok(BeforeModel::Answer(text)) if text.trim().is_empty() => {
                    Err("a before_model hook answered with an empty text".to_owned())
                }
                Ok(BeforeModel::Answer(text)) => {
                    self.tell(HookAction::Answered, None);
                    return Decision::Answered(text);
                }
                Ok(BeforeModel::Refuse(reason)) => {
                    self.tell(HookAction::Refused, Some(reason.clone()));
                    return Decision::Refused(format!("a before_model hook refused the call: {reason}"));
                }
                // The hook might have refused the call or removed something.
                Err(problem) => Err(format!("a before_model hook failed: {problem}")),
            };
            match changed {
                Ok(changed) => {
                    self.tell(HookAction::Changed, None);
                    request = changed;
                }
                Err(reason) => {
                    self.tell(HookAction::Refused, Some(reason.clone()));
                    return Decision::Refused(reason);
                }
            }
        }
        Decision::Ask(request)
    }

    /// Calls the hooks after a call.
    pub(crate) async fn after(&self, call: Finished<'_>) {
        let hooks = &self.agent.hooks;
        for hook in &hooks.after_model {
            let report = ModelCallReport {
                session: Arc::clone(&self.shared.id),
                run: self.run,
                provider: call.provider.to_owned(),
                model: call.model.to_owned(),
                purpose: call.purpose,
                result: call.result.cloned().map_err(Clone::clone),
                was_asked: call.was_asked,
                duration: call.duration,
                app_state: self.agent.state.clone(),
            };
            if let Err(problem) = guarded(self.waiting, hooks.limit(), || hook(report)).await {
                let message = format!("an after_model hook was skipped: {problem}");
                self.publish(EventKind::Warning { message });
            }
        }
    }

    fn tell(&self, action: HookAction, detail: Option<String>) {
        let hook = HookPoint::BeforeModel;
        self.publish(EventKind::Hook { hook, action, call_id: None, name: None, detail });
    }

    fn publish(&self, kind: EventKind) {
        match self.run {
            Some(run) => self.shared.publish_of_run(&self.deps.bus, run, kind),
            None => self.shared.publish(&self.deps.bus, kind),
        }
    }
}

/// Returns the request with other settings.
fn with_settings(mut request: Box<Request>, settings: ModelSettings) -> Result<Box<Request>, String> {
    let limit = request.settings.output_tokens_max;
    let merged = request.settings.clone().merged(settings);
    merged
        .check()
        .map_err(|error| format!("a before_model hook returned settings that no model accepts: {error}"))?;
    if let Some(ToolChoice::Tool(name)) = &merged.tool_choice
        && !request.tools.iter().any(|tool| tool.name == *name)
    {
        return Err(format!("a before_model hook chose an unknown tool: {name:?}"));
    }
    request.settings = merged;
    // A limit that was lowered to fit the window is kept.
    request.settings.output_tokens_max = match (limit, request.settings.output_tokens_max) {
        (Some(before), Some(now)) => Some(before.min(now)),
        (before, now) => before.or(now),
    };
    Ok(request)
}

/// Returns the request with other texts in its messages.
fn with_messages(mut request: Box<Request>, messages: Vec<Arc<Message>>) -> Result<Box<Request>, String> {
    let (before, now) = (request.messages.len(), messages.len());
    if before != now {
        return Err(format!("a before_model hook returned {now} messages instead of {before}"));
    }
    let is_same = |(before, now): (&Arc<Message>, &Arc<Message>)| match (&**before, &**now) {
        (Message::User(_), Message::User(now)) => !now.is_empty(),
        (Message::Assistant(before), Message::Assistant(now)) => {
            let ids = |answer: &AssistantMessage| -> Vec<(String, String)> {
                answer.tool_calls().map(|call| (call.id.clone(), call.name.clone())).collect()
            };
            ids(before) == ids(now)
        }
        (Message::ToolResult(before), Message::ToolResult(now)) => before.call_id == now.call_id,
        (Message::User(_) | Message::Assistant(_) | Message::ToolResult(_), _) => false,
    };
    match request.messages.iter().zip(&messages).position(|pair| !is_same(pair)) {
        Some(place) => Err(format!(
            "a before_model hook changed more than the text of message {place}: its kind, its calls, or what it answers"
        )),
        None => {
            request.messages = messages.into();
            Ok(request)
        }
    }
}
