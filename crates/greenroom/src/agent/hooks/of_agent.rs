//! The registration of an agent's validators, guards and hooks.
//!
//! Invariants: each call adds one, and those of one kind run in the order of registration.

use std::time::Duration;

use super::hook_methods;
use super::input::{InputVerdict, ProposedInput};
use super::model_call::{BeforeModel, ModelCallProposal, ModelCallReport};
use super::tool_call::{AfterTool, BeforeTool, ToolCallProposal, ToolCallReport};
use crate::agent::Agent;
use crate::agent::validate::{ProposedAnswer, Rejection, Validators};
use crate::values::compaction::{BeforeCompact, CompactionProposal};

impl Agent {
    /// Adds a validator, which judges every answer without tool calls before it counts. An `Err` with a text
    /// sends the answer back to the model with this reason, both as messages of the conversation;
    /// [`Rejection::end_run`] ends the run at once. At most
    /// [`rejections_max`](crate::RunLimits::rejections_max) answers (2 by default) are sent back; the next
    /// rejection ends the run, too. In both cases the error is [`Error::Rejected`](crate::Error::Rejected).
    /// Several validators are called in order. One that panics or takes longer than [`Self::hook_timeout`] stops the
    /// run ([`Error::Stopped`](crate::Error::Stopped)), because an answer counts only after it was judged.
    ///
    /// ```
    /// use greenroom::{Rejection, prelude::*};
    /// let agent = Agent::new("gpt-5.5")
    ///     .validate(|answer| async move {
    ///         match answer.text.len() {
    ///             0..=500 => Ok(()),
    ///             length => Err(format!("it has {length} bytes, and at most 500 are wanted")),
    ///         }
    ///     })
    ///     .validate(|answer| async move {
    ///         if answer.text.contains("password") {
    ///             return Err(Rejection::end_run("it reveals a password"));
    ///         }
    ///         Ok(())
    ///     });
    /// ```
    pub fn validate<F, Fut, E>(mut self, judge: F) -> Self
    where
        F: Fn(ProposedAnswer) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Rejection>,
    {
        self.validators.push(judge);
        self
    }

    /// Adds a validator like [`Self::validate`], but only for prompts that name it:
    /// [`RunRequest::validated_by`](crate::RunRequest::validated_by). The name is recorded with the prompt,
    /// so the same validator judges its answers after a restart. A second validator with the same name
    /// replaces the first.
    ///
    /// ```
    /// use greenroom::prelude::*;
    /// let agent = Agent::new("gpt-5.5").validator("names_a_city", |answer| async move {
    ///     if answer.text.contains("Bergen") { Ok(()) } else { Err("it names no city") }
    /// });
    /// ```
    pub fn validator<F, Fut, E>(mut self, name: impl Into<String>, judge: F) -> Self
    where
        F: Fn(ProposedAnswer) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<Rejection>,
    {
        let mut validator = Validators::default();
        validator.push(judge);
        self.named_validators.insert(name.into(), validator);
        self
    }

    hook_methods! {
        /// Adds a guard, which judges input before it is recorded: prompts, steers, follow-ups, and the tasks
        /// from agents that call this one. Refused input is not recorded, and its sender gets
        /// [`Error::InputRefused`](crate::Error::InputRefused). Several guards are called in order, each with the
        /// result of the previous one. One that panics or takes longer than [`Self::hook_timeout`] has refused
        /// the input. A guard runs in the caller's task.
        ///
        /// ```
        /// use greenroom::{InputVerdict, prelude::*};
        /// let agent = Agent::new("gpt-5.5").guard_input(|input| async move {
        ///     let text = input.prompt.text();
        ///     if text.contains("ignore your instructions") {
        ///         return InputVerdict::Refuse("that is not for you to say".into());
        ///     }
        ///     match text.contains("4111 1111 1111 1111") {
        ///         true => InputVerdict::Replace(
        ///             input.prompt.map_text(|text| text.replace("4111 1111 1111 1111", "[card]")),
        ///         ),
        ///         false => InputVerdict::Accept,
        ///     }
        /// });
        /// ```
        guard_input: ProposedInput => InputVerdict,

        /// Adds a hook before every model call. It may refuse the call, change its settings or its messages'
        /// text, or answer in the model's place. It sees every request before it is sent: each attempt of a step,
        /// and the calls for summaries, which [`Request::purpose`](crate::provider::Request) distinguishes.
        /// Several hooks are called in order. One that panics or takes longer than [`Self::hook_timeout`] has
        /// refused the call, which ends the run.
        ///
        /// ```
        /// use greenroom::{BeforeModel, prelude::*};
        /// # async fn cached(_: &str) -> Option<String> { None }
        /// let agent = Agent::new("gpt-5.5").before_model(|call| async move {
        ///     let asked = call.request.messages.last().map(|message| message.text()).unwrap_or_default();
        ///     match cached(&asked).await {
        ///         Some(answer) => BeforeModel::Answer(answer),
        ///         None => BeforeModel::Continue,
        ///     }
        /// });
        /// ```
        before_model: ModelCallProposal => BeforeModel,

        /// Adds a hook after every model call that was answered or failed. It sees the answer, the usage and the
        /// duration. The run waits for it. One that panics or takes longer than [`Self::hook_timeout`] is
        /// reported and skipped.
        ///
        /// ```
        /// use greenroom::prelude::*;
        /// let agent = Agent::new("gpt-5.5").after_model(|call| async move {
        ///     if let Ok(answer) = &call.result {
        ///         println!("{} took {:?}: {:?}", call.model, call.duration, answer.usage);
        ///     }
        /// });
        /// ```
        after_model: ModelCallReport => (),

        /// Adds a hook before every tool call. It may refuse the call, with a reason for the model, change its
        /// arguments, or answer in the tool's place. Its time does not count towards the tool's time limit.
        /// Several hooks are called in order, each with the result of the previous one. One that panics or takes
        /// longer than [`Self::hook_timeout`] has refused the call.
        ///
        /// ```
        /// use greenroom::{BeforeTool, prelude::*};
        /// let agent = Agent::new("gpt-5.5").before_tool(|call| async move {
        ///     match call.tool.as_str() {
        ///         "delete" => BeforeTool::Refuse("nothing is deleted on a Sunday".into()),
        ///         _ => BeforeTool::Continue,
        ///     }
        /// });
        /// ```
        before_tool: ToolCallProposal => BeforeTool,

        /// Adds a hook after every tool call, before its result is recorded. It sees the output for the model,
        /// and may replace it. Several hooks are called in order. One that panics or takes longer than
        /// [`Self::hook_timeout`] has withheld the output, because the hook might have removed something from it.
        ///
        /// ```
        /// use greenroom::{AfterTool, prelude::*};
        /// let agent = Agent::new("gpt-5.5").after_tool(|call| async move {
        ///     match call.output.content_text().contains("SECRET") {
        ///         true => AfterTool::Replace(ToolOutput::error("the output has a secret")),
        ///         false => AfterTool::Keep,
        ///     }
        /// });
        /// ```
        after_tool: ToolCallReport => AfterTool,

        /// Adds a hook before every compaction of its sessions, which may cancel it, give it a focus, or supply the
        /// summary. It is asked after those of the runtime
        /// ([`RuntimeBuilder::before_compact`](crate::RuntimeBuilder::before_compact)). One that panics or takes longer
        /// than [`Self::hook_timeout`] is skipped, with a warning.
        ///
        /// ```
        /// use greenroom::{BeforeCompact, prelude::*};
        /// let agent = Agent::new("gpt-5.5").before_compact(|proposal| async move {
        ///     match proposal.plan.messages_removed() {
        ///         0..20 => BeforeCompact::Cancel("too little to compact".into()),
        ///         _ => BeforeCompact::Focus("the measurements, with their units".into()),
        ///     }
        /// });
        /// ```
        before_compact: CompactionProposal => BeforeCompact,
    }

    /// Sets the time limit of each of its hooks, guards and validators; the default is one minute. The time
    /// in which a `before_tool` hook asks a person ([`ToolCallProposal::ask`](crate::ToolCallProposal::ask))
    /// does not count.
    pub fn hook_timeout(mut self, timeout: Duration) -> Self {
        self.hooks.timeout = timeout;
        self
    }
}
