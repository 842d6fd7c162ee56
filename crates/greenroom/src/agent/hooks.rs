//! Hooks: functions of a program around compactions (a runtime's hooks and an agent's), and around input, model
//! calls and tool calls (an agent's).
//!
//! Invariants: hooks run in tasks and may wait; none harms the session. If a hook that only observes fails,
//! it is reported and skipped. If a hook that may refuse or withhold something fails, it has refused or
//! withheld it. Among the hooks of a compaction, any cancellation wins, and otherwise the first supplied
//! summary; each focus counts.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::text::panic_text;
use greenroom_tools::Pauses;

use crate::limits::waits::Chain;
use crate::values::compaction::{BeforeCompact, CompactionProposal, CompactionReport};

pub(crate) mod input;
pub(crate) mod model_call;
mod of_agent;
pub(crate) mod tool_call;

use input::{InputVerdict, ProposedInput};
use model_call::{BeforeModel, ModelCallProposal, ModelCallReport};
use tool_call::{AfterTool, BeforeTool, ToolCallProposal, ToolCallReport};

/// A hook with input `In` and decision `Out`.
type Hook<In, Out> = Arc<dyn Fn(In) -> BoxFuture<'static, Out> + Send + Sync>;

/// Converts a function into a hook.
pub(crate) fn hook<In, F, Fut, Out>(function: F) -> Hook<In, Out>
where
    F: Fn(In) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Out> + Send + 'static,
{
    Arc::new(move |given| function(given).boxed())
}

/// Implements methods that add a hook of the same name, each for what it is given and what it decides.
macro_rules! hook_methods {
    ($($(#[$doc:meta])* $name:ident: $given:ty => $decision:ty,)+) => {
        $(
            $(#[$doc])*
            pub fn $name<F, Fut>(mut self, hook: F) -> Self
            where
                F: Fn($given) -> Fut + Send + Sync + 'static,
                Fut: Future<Output = $decision> + Send + 'static,
            {
                self.hooks.$name.push($crate::agent::hooks::hook(hook));
                self
            }
        )+
    };
}

pub(crate) use hook_methods;

/// An agent's hooks, each kind in the order of registration.
#[derive(Clone)]
pub(crate) struct AgentHooks {
    pub(crate) guard_input: Vec<Hook<ProposedInput, InputVerdict>>,
    pub(crate) before_model: Vec<Hook<ModelCallProposal, BeforeModel>>,
    pub(crate) after_model: Vec<Hook<ModelCallReport, ()>>,
    pub(crate) before_tool: Vec<Hook<ToolCallProposal, BeforeTool>>,
    pub(crate) after_tool: Vec<Hook<ToolCallReport, AfterTool>>,
    pub(crate) before_compact: Vec<Hook<CompactionProposal, BeforeCompact>>,
    /// The time limit of each hook.
    pub(crate) timeout: Duration,
}

impl AgentHooks {
    /// The default time limit of a hook.
    pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

    /// Returns the time limit of a hook whose failure is told to the program, and not to the model.
    pub(crate) fn limit(&self) -> TimeLimit {
        TimeLimit { setting: Some("Agent::hook_timeout"), ..self.timeout.into() }
    }
}

impl Default for AgentHooks {
    fn default() -> Self {
        Self {
            guard_input: Vec::new(),
            before_model: Vec::new(),
            after_model: Vec::new(),
            before_tool: Vec::new(),
            after_tool: Vec::new(),
            before_compact: Vec::new(),
            timeout: Self::TIMEOUT,
        }
    }
}

impl fmt::Debug for AgentHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentHooks")
            .field("guard_input", &self.guard_input.len())
            .field("before_model", &self.before_model.len())
            .field("after_model", &self.after_model.len())
            .field("before_tool", &self.before_tool.len())
            .field("after_tool", &self.after_tool.len())
            .field("before_compact", &self.before_compact.len())
            .finish_non_exhaustive()
    }
}

/// A runtime's hooks.
#[derive(Clone)]
pub(crate) struct Hooks {
    pub(crate) before_compact: Vec<Hook<CompactionProposal, BeforeCompact>>,
    pub(crate) after_compact: Vec<Hook<CompactionReport, ()>>,
    pub(crate) compact_failed: Vec<Hook<CompactionReport, ()>>,
    /// The time limit of each hook.
    pub(crate) timeout: Duration,
}

impl Default for Hooks {
    fn default() -> Self {
        Self {
            before_compact: Vec::new(),
            after_compact: Vec::new(),
            compact_failed: Vec::new(),
            timeout: Self::TIMEOUT,
        }
    }
}

impl Hooks {
    /// The default time limit of a hook.
    const TIMEOUT: Duration = Duration::from_secs(10);

    /// Returns the time limit of each of its hooks.
    pub(crate) fn limit(&self) -> TimeLimit {
        TimeLimit { setting: Some("RuntimeBuilder::hook_timeout"), ..self.timeout.into() }
    }

    /// Whether the runtime has no hooks.
    pub(crate) fn is_empty(&self) -> bool {
        self.before_compact.is_empty() && self.after_compact.is_empty() && self.compact_failed.is_empty()
    }
}

/// The time limit of a hook, and what stops its clock.
pub(crate) struct TimeLimit {
    pub(crate) timeout: Duration,
    pub(crate) pauses: Pauses,
    /// The name of the setting, for the program that made the hook.
    pub(crate) setting: Option<&'static str>,
}

impl From<Duration> for TimeLimit {
    fn from(timeout: Duration) -> Self {
        Self { timeout, pauses: Pauses::default(), setting: None }
    }
}

/// Runs a hook for which these sessions wait. The error says why it made no decision. The future is boxed, so that it
/// takes no memory in calls without hooks.
pub(crate) fn guarded<'a, T: Send + 'a>(
    waiting: &Chain,
    limit: impl Into<TimeLimit>,
    hook: impl FnOnce() -> BoxFuture<'static, T> + Send + 'a,
) -> BoxFuture<'a, Result<T, String>> {
    let TimeLimit { timeout, pauses, setting } = limit.into();
    let call = waiting.clone().scope(async { hook().await });
    Box::pin(async move {
        tokio::select! {
            biased;
            ended = AssertUnwindSafe(call).catch_unwind() => {
                ended.map_err(|panic| format!("it panicked: {}", panic_text(&*panic)))
            }
            () = pauses.sleep(timeout) => {
                let by = setting.map(|setting| format!(", the limit by `{setting}`")).unwrap_or_default();
                Err(format!("it took longer than {timeout:?}{by}"))
            }
        }
    })
}

/// Adds a method for the agent's state to a hook's argument type.
macro_rules! has_state {
    ($($name:ident)+) => { $(
        impl $name {
            /// Returns the agent's state of this type: see [`Agent::state`](crate::Agent::state).
            ///
            /// # Errors
            /// The agent has no state of this type.
            pub fn state<T: Send + Sync + 'static>(&self) -> Result<std::sync::Arc<T>, greenroom_tools::MissingState> {
                self.app_state.get()
            }
        }
    )+ };
}

pub(crate) use has_state;
