//! What a program may say while a session works: about compactions (a runtime's hooks), and about input, model calls and
//! tool calls (an agent's).
//!
//! Invariants: hooks run in tasks and may wait; none harms the session. One that only observes and fails is reported and
//! skipped. One that may refuse or withhold something and fails has refused or withheld it. Of the hooks of a compaction
//! any cancel wins, else the first supplied summary.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::compacting::HookDecision;
use greenroom_tools::{Pauses, panic_text};

use crate::limits::waits::Chain;
use crate::values::compaction::{BeforeCompact, CompactionProposal, CompactionReport};

pub(crate) mod input;
pub(crate) mod model_call;
mod of_agent;
pub(crate) mod tool_call;

use input::{InputVerdict, ProposedInput};
use model_call::{BeforeModel, ModelCallProposal, ModelCallReport};
use tool_call::{AfterTool, BeforeTool, ToolCallProposal, ToolCallReport};

/// How long a hook of a compaction may take.
const HOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// A hook that gets `In` and decides `Out`.
type Hook<In, Out> = Arc<dyn Fn(In) -> BoxFuture<'static, Out> + Send + Sync>;

/// A function as a hook.
pub(crate) fn hook<In, F, Fut, Out>(function: F) -> Hook<In, Out>
where
    F: Fn(In) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Out> + Send + 'static,
{
    Arc::new(move |given| function(given).boxed())
}

/// An agent's hooks, each kind in the order in which it was given.
#[derive(Clone)]
pub(crate) struct AgentHooks {
    pub(crate) guard_input: Vec<Hook<ProposedInput, InputVerdict>>,
    pub(crate) before_model: Vec<Hook<ModelCallProposal, BeforeModel>>,
    pub(crate) after_model: Vec<Hook<ModelCallReport, ()>>,
    pub(crate) before_tool: Vec<Hook<ToolCallProposal, BeforeTool>>,
    pub(crate) after_tool: Vec<Hook<ToolCallReport, AfterTool>>,
    /// How long each may take.
    pub(crate) timeout: Duration,
}

impl AgentHooks {
    /// How long a hook may take where nothing else is said.
    pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
}

impl Default for AgentHooks {
    fn default() -> Self {
        Self {
            guard_input: Vec::new(),
            before_model: Vec::new(),
            after_model: Vec::new(),
            before_tool: Vec::new(),
            after_tool: Vec::new(),
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
            .finish_non_exhaustive()
    }
}

/// A runtime's hooks.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    pub(crate) before_compact: Vec<Hook<CompactionProposal, BeforeCompact>>,
    pub(crate) after_compact: Vec<Hook<CompactionReport, ()>>,
    pub(crate) compact_failed: Vec<Hook<CompactionReport, ()>>,
}

impl Hooks {
    /// Whether the runtime has no hooks.
    pub(crate) fn is_empty(&self) -> bool {
        self.before_compact.is_empty() && self.after_compact.is_empty() && self.compact_failed.is_empty()
    }

    /// Asks all hooks before a compaction. Gives their decision, and a warning for each hook that was skipped.
    pub(crate) async fn before(&self, proposal: &CompactionProposal) -> (HookDecision, Vec<String>) {
        let mut warnings = Vec::new();
        let mut supplied = None;
        // The compaction waits for the hook, and the session's next run for the compaction.
        let waiting = Chain::default().and(&proposal.session);
        for hook in &self.before_compact {
            match guarded(&waiting, HOOK_TIMEOUT, || hook(proposal.clone())).await {
                Ok(BeforeCompact::Continue) => {}
                Ok(BeforeCompact::Cancel(reason)) => return (HookDecision::Cancel { reason }, warnings),
                Ok(BeforeCompact::Supply(summary)) => supplied = supplied.or(Some(summary)),
                Err(problem) => warnings.push(format!("a before_compact hook was skipped: {problem}")),
            }
        }
        (supplied.map_or(HookDecision::Continue, HookDecision::Supply), warnings)
    }

    /// Tells all hooks that a compaction ended. Gives a warning for each hook that was skipped.
    pub(crate) async fn ended(&self, report: CompactionReport) -> Vec<String> {
        let hooks = if report.entry.is_some() { &self.after_compact } else { &self.compact_failed };
        let mut warnings = Vec::new();
        for hook in hooks {
            // Nobody waits for it.
            if let Err(problem) = guarded(&Chain::default(), HOOK_TIMEOUT, || hook(report.clone())).await {
                warnings.push(format!("a hook after a compaction was skipped: {problem}"));
            }
        }
        warnings
    }
}

/// How long a hook may take, and what that time stands still for.
pub(crate) struct TimeLimit {
    pub(crate) timeout: Duration,
    pub(crate) pauses: Pauses,
}

impl From<Duration> for TimeLimit {
    fn from(timeout: Duration) -> Self {
        Self { timeout, pauses: Pauses::default() }
    }
}

/// Runs a hook, for which these sessions wait. The error says why it gave nothing.
pub(crate) async fn guarded<T>(
    waiting: &Chain,
    limit: impl Into<TimeLimit>,
    hook: impl FnOnce() -> BoxFuture<'static, T>,
) -> Result<T, String> {
    let TimeLimit { timeout, pauses } = limit.into();
    let call = waiting.clone().scope(async { hook().await });
    tokio::select! {
        biased;
        ended = AssertUnwindSafe(call).catch_unwind() => {
            ended.map_err(|panic| format!("it panicked: {}", panic_text(&*panic)))
        }
        () = pauses.sleep(timeout) => Err(format!("it took longer than {timeout:?}")),
    }
}

/// Gives a type what its hooks are told with a method for the agent's state.
macro_rules! has_state {
    ($($name:ident)+) => { $(
        impl $name {
            /// The agent's state of this type: see `Agent::state`.
            ///
            /// # Errors
            /// The agent was given none.
            pub fn state<T: Send + Sync + 'static>(&self) -> Result<std::sync::Arc<T>, greenroom_tools::MissingState> {
                self.app_state.get()
            }
        }
    )+ };
}

pub(crate) use has_state;
