//! The contents of the orders to agents and compactors.
//!
//! Invariants: an order is complete: whoever gets it asks the session for nothing else before it begins.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::compacting::branch::BranchSummary;
use greenroom_kernel::compacting::{Compacting, Effect};
use greenroom_kernel::plan::{NothingToCompact, Plan};
use greenroom_kernel::run::Fallbacks;
use greenroom_kernel::usage::Ratio;
use greenroom_kernel::{EntryId, ToolSpec};
use greenroom_provider::{ModelSettings, OutputSchema};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tracing::Span;

use super::{PendingCall, ReplyTo, RunAttempt, TrackerMessage};
use crate::agent::Agent;
use crate::agent::validate::Validators;
use crate::core::mail::Mail;
use crate::events::run_link::RunLink;
use crate::lane::Lane;
use crate::limits::waits::Chain;
use crate::values::error::Result;
use crate::values::prompt::Reply;

/// What a compaction would do.
pub(crate) type Planned = Result<Box<Plan>, NothingToCompact>;

/// A run to perform.
pub(crate) struct BeginRun {
    pub(crate) attempt: RunAttempt,
    /// The run's span in the trace.
    pub(crate) span: Span,
    pub(crate) agent: Arc<Agent>,
    pub(crate) model: String,
    pub(crate) tools: greenroom_tools::Registry,
    pub(crate) schema: Option<Arc<OutputSchema>>,
    pub(crate) validators: Validators,
    pub(crate) settings: ModelSettings,
    /// The fallbacks when this model fails.
    pub(crate) fallbacks: Fallbacks,
    /// The instructions, which are the same in every request of the run.
    pub(crate) instructions: Arc<str>,
    /// The size of the instructions in estimated tokens, if they differ from those of the previous run.
    pub(crate) instructions_changed: Option<u64>,
    pub(crate) cancel: CancellationToken,
    /// The time limit of the run, if it is lower than the agent's.
    pub(crate) time_limit: Option<Duration>,
    /// The link to the caller that streams the run.
    pub(crate) link: Arc<RunLink>,
    /// The sessions that wait for the run's tools and hooks: this one, and those that wait for it.
    pub(crate) waiting: Chain,
    pub(crate) tracker: ractor::ActorRef<Mail<TrackerMessage>>,
    pub(crate) may_compact: bool,
    /// For a resumed run: the calls that continue, the number of its answers, and the newest of them.
    pub(crate) pending: Vec<PendingCall>,
    pub(crate) steps: u32,
    pub(crate) answer: Option<EntryId>,
    /// Whether the model has answered in this context before.
    pub(crate) answered_before: bool,
    /// Whether the run begins once the session says that something was recorded: until then its conversation may be handed
    /// to another agent.
    pub(crate) is_held: bool,
    /// Whether the tracker is measuring the context for the first step already.
    pub(crate) is_measuring: bool,
    pub(crate) max_request_bytes: u64,
}

/// The end of a run, reported once: by the agent, or, if it crashes before, by its successor.
#[derive(Clone)]
pub(crate) struct RunCompletion(Arc<Mutex<Option<Box<Answer>>>>);

impl RunCompletion {
    pub(crate) fn new(answer: Box<Answer>) -> Self {
        Self(Arc::new(Mutex::new(Some(answer))))
    }

    /// Takes the reply, unless it was taken before.
    pub(crate) fn take(&self) -> Option<Box<Answer>> {
        self.0.lock().take()
    }
}

/// The reply to a run's prompt, and the callers that wait for it: of the prompt, and of input that joined the
/// run.
pub(crate) struct Answer {
    pub(crate) to: Vec<ReplyTo<Reply>>,
    pub(crate) reply: Result<Reply>,
}

/// What a compactor works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkId {
    /// A compaction that has started, by the entry of its start.
    Compaction(EntryId),
    /// A preparation, by its number in the session.
    Preparation(u64),
}

/// The result's price.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Effort {
    /// The cost of the model calls, in micro-dollars; `None` if a price is unknown.
    pub(crate) cost_microdollars: Option<u64>,
    /// How long the compaction was prepared before it started, in milliseconds; `None` if it was not.
    pub(crate) prepared_ms: Option<u64>,
}

/// A compaction that has started, or one that is prepared.
pub(crate) struct CompactionOrder {
    pub(crate) id: WorkId,
    /// Whether a preparation may be adopted in place of `work`.
    pub(crate) adopts: bool,
    /// The compaction's span in the trace.
    pub(crate) span: Span,
    /// The work to do.
    pub(crate) work: CompactionWork,
    /// The first effects to perform.
    pub(crate) effects: Vec<Effect>,
    /// The provider's tokens per token of our estimate.
    pub(crate) ratio: Ratio,
    /// Whether another silence of the provider may mean that the request is too large, whatever the numbers
    /// say.
    pub(crate) doubts_window: bool,
    /// The models that write the summaries, in order: each is used after the previous one failed.
    pub(crate) summarisers: Vec<Summariser>,
    /// The session's agent, whose hooks are asked.
    pub(crate) agent: Arc<Agent>,
    /// What the session's requests begin with, for the provider's own compaction.
    pub(crate) head: RequestHead,
}

/// What every request of a session begins with.
#[derive(Clone)]
pub(crate) struct RequestHead {
    pub(crate) system: Arc<str>,
    pub(crate) tools: Arc<[ToolSpec]>,
    pub(crate) settings: ModelSettings,
}

/// The work of a compactor.
#[derive(Debug)]
pub(crate) enum CompactionWork {
    /// Replace the older part of the context.
    Replace(Box<Compacting>),
    /// Summarise an abandoned branch.
    Branch(Box<BranchSummary>),
}

/// A model that writes summaries, and its provider. An order names it, because the session may switch to
/// another one.
#[derive(Clone)]
pub(crate) struct Summariser {
    pub(crate) lane: Arc<Lane>,
    pub(crate) model: String,
    /// The model settings.
    pub(crate) settings: ModelSettings,
    /// The agent whose hooks see its calls.
    pub(crate) agent: Arc<Agent>,
}
