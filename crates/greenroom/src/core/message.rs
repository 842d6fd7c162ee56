//! Every message between the actors, on one page. These may change daily; the public events
//! ([`crate::events::event`]) may not.
//!
//! Invariants: a handler decides and returns; the answer to a message is another message. Every message about
//! a run carries its [`RunAttempt`], and late messages are dropped where it is compared.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::bill::Bill;
use greenroom_kernel::compacting::branch::BranchRecord;
use greenroom_kernel::compacting::{End, HookDecision, PruneSegment, Segment};
use greenroom_kernel::due::ContextLimits;
use greenroom_kernel::entry::{ChildRecord, EntryId, InboxDelivery, RunId, RunOutcome, Sees, Trigger};
use greenroom_kernel::log::Amendment;
use greenroom_kernel::message::{AssistantMessage, Block, Message, ToolCall, ToolResult};
use greenroom_kernel::question::{Asker, GivenAnswer, KnownQuestion, Question, QuestionEnd};
use greenroom_kernel::run::{AbortCause, Boundary, Size, Verdict};
use greenroom_kernel::settings::{CompactOptions, CompactionSettings};
use greenroom_kernel::usage::{ContextUsage, Ratio, RequestFrame};
use greenroom_kernel::{Entry, Failure, Head, Messages, Usage};
use greenroom_provider::{ModelSettings, ProviderError, ResentReasoning};
use greenroom_tools::AskError;
use tokio::sync::{OwnedSemaphorePermit, SetOnce, oneshot};
use tokio_util::sync::CancellationToken;

use crate::agent::Agent;
use crate::agent::output::OutputForm;
use crate::agent::validate::Validators;
use crate::core::flight::Summarised;
use crate::core::mail::Mail;
#[cfg(feature = "metrics")]
use crate::core::metrics::Census;
use crate::core::running::Running;
use crate::core::shared::{KeptAwake, Parking, SessionShared};
use crate::core::trace::CalledFrom;
use crate::events::entry_events::Due;
use crate::events::run_link::RunLink;
use crate::lane::Lane;
use crate::limits::admission::Admitted;
use crate::limits::waits::Chain;
use crate::values::compaction::Compacted;
use crate::values::error::{Error, Result};
use crate::values::prompt::Reply;
use crate::values::retention::DeletionReason;
#[cfg(feature = "command-tools")]
use crate::values::rewind::{Rewind, Rewound};
use crate::values::state::State;

pub(crate) use orders::{
    Answer, BeginRun, CompactionOrder, CompactionWork, Effort, Planned, RequestHead, RunCompletion,
    Summariser, WorkId,
};

mod orders;

/// A run, and the attempt at it: a run that continues after its agent crashed is the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunAttempt {
    pub(crate) run: RunId,
    pub(crate) number: u32,
}

/// The channel for a reply to a caller outside the actors.
pub(crate) type ReplyTo<T> = oneshot::Sender<Result<T>>;

/// Sends the same result to all waiting callers.
pub(crate) fn tell_all<T>(waiting: Vec<ReplyTo<T>>, result: impl Fn() -> Result<T>) {
    for reply in waiting {
        let _ = reply.send(result());
    }
}

/// Adds a caller to those that wait, and forgets those that no longer do.
pub(crate) fn add_waiting<T>(waiting: &mut Vec<ReplyTo<T>>, caller: ReplyTo<T>) {
    waiting.retain(|reply| !reply.is_closed());
    waiting.push(caller);
}

/// Messages to the supervisor.
pub(crate) enum SupervisorMessage {
    /// From a task: a session that sleeps during its run cannot be woken; callers of this run get the error.
    GiveUp { id: Arc<str>, parking: Parking, error: Error },
    /// Open or resume a session, once.
    Open(OpenRequest),
    /// A session actor has started, or could not be started.
    Opened { id: Arc<str>, generation: u64, result: Result<ractor::ActorRef<SessionMail>> },
    /// The wait before a restart is over.
    Restart { id: Arc<str>, generation: u64 },
    /// A session has been idle for a while and may sleep.
    Idle { id: Arc<str> },
    /// The last work of a session has ended. Sent only where the number of live sessions is limited.
    Rests { id: Arc<str> },
    /// A session that was told to sleep has work to do, and stays awake.
    StaysAwake { id: Arc<str> },
    /// Stop a session's actors, and reply when they have ended; if it is being opened, afterwards.
    Close { id: Arc<str>, done: oneshot::Sender<()> },
    /// Stop a session's actors, and delete it from the store.
    Delete { id: Arc<str>, reply: ReplyTo<()> },
    /// Delete a session if it has no actors and still has this many entries; otherwise the reply is `Ok(false)`.
    DeleteUnused { id: Arc<str>, entries: u64, reason: DeletionReason, reply: ReplyTo<bool> },
    /// Change a session without starting work in it: through its actor, or in the store if it has none.
    Amend(AmendRequest),
    /// An operation in the store on a session without actors has finished.
    Released { id: Arc<str>, generation: u64, done: HeldWork },
    /// Ask all sessions whether they could work with these new settings. Returns their answers.
    CheckSettings {
        settings: Arc<CompactionSettings>,
        reply: oneshot::Sender<Vec<oneshot::Receiver<Result<()>>>>,
    },
    /// The runtime's settings have changed: notify all sessions.
    Reconfigure(oneshot::Sender<()>),
    /// Return the shared state of a session that has actors, or to which a handle exists.
    Find { id: Arc<str>, reply: oneshot::Sender<Option<Arc<SessionShared>>> },
    /// Return the shared state of a stored session. This starts nothing.
    Attach { id: Arc<str>, parent: Option<Arc<str>>, reply: oneshot::Sender<Arc<SessionShared>> },
    /// Return the sessions that sleep while their run waits for its tools.
    Suspended(oneshot::Sender<Vec<Arc<str>>>),
    /// Return the sessions with work in progress, or with queued input that may start, awake or asleep.
    Awaited(oneshot::Sender<Vec<Arc<str>>>),
    /// Return what all sessions in memory do.
    #[cfg(feature = "metrics")]
    Census(oneshot::Sender<(Census, Vec<Arc<Agent>>)>),
    /// Return the live sessions.
    Live(oneshot::Sender<Vec<Arc<str>>>),
    /// This node lost its lease: everything that it ran belongs to other nodes.
    LeaseLost,
    /// Shut everything down cleanly: runs are interrupted, logs are complete.
    Shutdown(oneshot::Sender<()>),
}

/// A request to open a session.
pub(crate) struct OpenRequest {
    pub(crate) id: Arc<str>,
    pub(crate) agent: Arc<Agent>,
    pub(crate) parent: Option<Arc<str>>,
    pub(crate) reason: OpenReason,
    pub(crate) reply: ReplyTo<Arc<SessionShared>>,
}

/// The reason to open a session.
#[derive(Clone)]
pub(crate) enum OpenReason {
    /// A program opens it, with this agent. A failed session is resumed.
    Open,
    /// A program opens it in addition to others that may be working in it: they keep their agents.
    Join,
    /// A program opens it to finish interrupted work before queued input.
    Finish,
    /// A request through a handle reached a sleeping session.
    Wake(Arc<SessionShared>),
}

/// A change of a session that starts no work.
pub(crate) struct AmendRequest {
    pub(crate) shared: Arc<SessionShared>,
    pub(crate) amendment: Amendment,
    /// Receives the number of withdrawn inputs.
    pub(crate) reply: ReplyTo<usize>,
}

/// The result of an operation in the store on a session without actors, and the waiting callers.
pub(crate) enum HeldWork {
    /// It was to be deleted. The result is its last head.
    Delete { result: Result<Box<Head>>, replies: Vec<ReplyTo<()>> },
    /// It was to be deleted if it had not changed. The result is its last head if it was.
    DeleteUnused { result: Result<Option<Box<Head>>>, reason: DeletionReason, reply: ReplyTo<bool> },
    /// It was to be changed.
    Amend { result: Result<usize>, reply: ReplyTo<usize> },
}

/// A slot in a session's mailbox.
pub(crate) struct MailPlace {
    /// Keeps the session awake until it has handled the message.
    pub(crate) _awake: KeptAwake,
    /// `None` for messages that are never refused, because they withdraw something.
    pub(crate) _mailbox: Option<OwnedSemaphorePermit>,
    /// The accepted input of a request; a query has none.
    pub(crate) input: Option<Admitted>,
}

/// An item in a session's mailbox: a message, and the slot that it occupies until it is handled.
pub(crate) struct SessionMail {
    pub(crate) message: SessionMessage,
    /// `None` for internal messages, whose number is limited anyway.
    pub(crate) place: Option<MailPlace>,
}

impl SessionMail {
    /// Creates a message that the session handles before it sleeps, however full its mailbox is.
    pub(crate) fn heard(message: SessionMessage, awake: KeptAwake) -> Self {
        Self { message, place: Some(MailPlace { _awake: awake, _mailbox: None, input: None }) }
    }
}

impl From<SessionMessage> for SessionMail {
    fn from(message: SessionMessage) -> Self {
        Self { message, place: None }
    }
}

/// Messages to a session, the only writer of its log.
pub(crate) enum SessionMessage {
    /// From outside: a prompt. It starts a run, or waits in the inbox.
    Prompt { content: Vec<Block>, options: Box<PromptOptions>, reply: ReplyTo<Reply> },
    /// From outside: a prompt whose key was used before, by a batch that starts with this entry.
    Repeat { first: EntryId, options: Box<PromptOptions>, reply: ReplyTo<Reply> },
    /// From outside: continue with the newest prompt.
    Resume { options: Box<PromptOptions>, reply: ReplyTo<Reply> },
    /// From outside: finish interrupted work and queued input. Returns the reply of the last of these runs.
    Finish(ReplyTo<Reply>),
    /// From outside: input for the current run.
    Input {
        content: Vec<Block>,
        delivery: InboxDelivery,
        early_aborts: u64,
        /// The sender's own agent, if there is one.
        agent: Option<Arc<Agent>>,
        from: CalledFrom,
        reply: ReplyTo<QueuedInput>,
    },
    /// From outside: a prompt's caller has gone or withdraws it: cancel its run, or leave the inbox.
    Withdraw { ticket: u64 },
    /// From outside: change the session without starting work.
    Amend { amendment: Amendment, reply: ReplyTo<usize> },
    /// From outside: a person answers a question.
    Answer { question: EntryId, answer: GivenAnswer, reply: ReplyTo<()> },
    /// From a tool or a hook: ask a person. The reply says how the question ended.
    Ask(Box<AskRequest>),
    /// From the tool task: reply with this call's questions when all of them have ended.
    AwaitQuestions { attempt: RunAttempt, call_id: String, reply: ReplyTo<Vec<KnownQuestion>> },
    /// From the tool task: the tool of a call starts, after a hook had asked. Reply when this is durable.
    CallStarts { attempt: RunAttempt, call_id: String, reply: ReplyTo<()> },
    /// From the tasks of a run while the session sleeps: continue the run.
    Wake,
    /// From the agent: the run waits only for its tools and is handed over; `None` if there is work to do.
    Suspended { attempt: RunAttempt, running: Option<Box<Running>> },
    /// From the supervisor: sleep if there is still nothing to do; otherwise reply that the session stays
    /// awake. The supervisor sends nothing else until then.
    Sleep,
    /// From the questions' timer: a question has expired.
    ExpireQuestions,
    /// From outside: compact now, with the caller's own agent, if there is one; also for a hand-off.
    CompactManually {
        trigger: Trigger,
        options: CompactOptions,
        agent: Option<Arc<Agent>>,
        reply: ReplyTo<Compacted>,
    },
    /// From outside, a tool or a hook: compact after the current run, or now. A request from a compaction's
    /// own hook requires new messages, so a hook cannot loop.
    CompactAfterRun { options: CompactOptions, needs_news: bool },
    /// From outside: return what a compaction would do.
    PlanManually { options: CompactOptions, agent: Option<Arc<Agent>>, reply: ReplyTo<Planned> },
    /// From outside: undo the newest compaction.
    Undo { back_to: Option<EntryId>, reply: ReplyTo<ContextUsage> },
    /// From outside: continue after another entry.
    Branch { to: Option<EntryId>, reply: ReplyTo<()> },
    /// From outside: go back, with the files.
    #[cfg(feature = "command-tools")]
    Rewind { rewind: Rewind, reply: ReplyTo<Rewound> },
    /// From outside: continue with another agent of the team.
    HandOff { to: String, sees: Sees, reply: ReplyTo<()> },
    /// From outside: continue after another entry, with a summary of the abandoned branch.
    BranchWithSummary { to: Option<EntryId>, agent: Option<Arc<Agent>>, reply: ReplyTo<Compacted> },
    /// From outside: pin or unpin an entry.
    Pin { entry: EntryId, pinned: bool, reply: ReplyTo<()> },
    /// From outside: append the records of an import or a fork, to an empty session.
    Import { entries: Vec<Arc<Entry>>, leaf: Option<EntryId>, reply: ReplyTo<()> },
    /// From outside: reply when nothing is in progress and no input waits.
    WhenIdle(ReplyTo<()>),
    /// From outside: return the state.
    State(oneshot::Sender<State>),
    /// From outside: return the context as the model would get it.
    Context(oneshot::Sender<Vec<Arc<Message>>>),
    /// From the supervisor: continue with this definition, or with changed settings. The opener waits for the
    /// reply; an unusable definition changes nothing. For a joining caller, only an idle session changes.
    Configure { agent: Arc<Agent>, only_if_idle: bool, reply: Option<ReplyTo<Arc<SessionShared>>> },
    /// From the supervisor: could the session work with these settings of the runtime?
    CheckSettings { settings: Arc<CompactionSettings>, reply: ReplyTo<()> },
    /// From outside: abort the compaction for which no run waits.
    AbortCompaction,
    /// From the supervisor: end cleanly.
    Stop,
    /// From the session's own timer: retry writes that the store refused.
    TryAgain,
    /// From a timer, or from the supervisor when it needs room: sleep if nothing has happened since the
    /// counter had this value. Otherwise a timer checks `again` later.
    IdleCheck { activity: u64, again: bool },

    /// From a sub-agent's call: record the sub-agent's start. Returns the entry.
    ChildStarted { record: ChildRecord, reply: ReplyTo<EntryId> },
    /// From a sub-agent's call: the sub-agent has ended and has spent this much.
    ChildEnded { started: EntryId, outcome: RunOutcome, spent: Box<Bill> },

    /// From the agent: record these messages, deliver queued input at this boundary, and confirm.
    Record { attempt: RunAttempt, messages: Vec<Message>, boundary: Boundary },
    /// From the agent: record these messages and the run's end.
    End {
        attempt: RunAttempt,
        messages: Vec<Message>,
        outcome: RunOutcome,
        /// Why the last answer was rejected, if that ended the run.
        rejected: Option<String>,
    },
    /// From the agent: the model has finally failed; continue with the next fallback.
    FallBack { attempt: RunAttempt, failure: Box<Failure> },
    /// From the agent: measure the context by the current settings. The tracker replies.
    Measure { attempt: RunAttempt },
    /// From the agent: return the context to send to the model.
    Project { attempt: RunAttempt },
    /// From the agent: compact.
    Compact {
        attempt: RunAttempt,
        trigger: Trigger,
        at_window: bool,
        failed_attempts: u32,
        measured: Box<Measurement>,
    },
    /// From the agent: the context has passed the soft threshold.
    Nears { attempt: RunAttempt, measured: Box<Measurement> },
    /// From a finished model call: costs that the log does not record with its answer. `has_summary`: its answer
    /// is a summary, whose cost the budgets count already.
    Spent { attempt: Option<RunAttempt>, usage: Usage, cost_microdollars: Option<u64>, has_summary: bool },
    /// From the agent: all events were published, and each answered prompt has its reply.
    EventsFlushed,
    /// From the agent or the compactor: a provider named a limit of a model when it refused `sent` tokens.
    LimitLearned { lane: Arc<Lane>, model: String, limit: u64, sent: u64 },

    /// From the usage tracker: the measured size for a compaction, a run's end or a state.
    Measured { purpose: MeasureFor, measured: Box<Measurement> },

    /// From the compactor: replace the segment if it is unchanged.
    ReplacePathSegment { compaction: EntryId, segment: Box<Segment>, effort: Effort },
    /// From the compactor: the summary of the abandoned branch.
    BranchSummarised { compaction: EntryId, record: Box<BranchRecord>, cost_microdollars: Option<u64> },
    /// From the compactor: shorten these results if they are unchanged.
    PruneResults { compaction: EntryId, segment: Box<PruneSegment>, effort: Effort },
    /// From the compactor: the compaction is over.
    CompactionOver { compaction: EntryId, end: Box<End>, effort: Effort },
    /// From the compactor: a preparation is over, and no compaction uses it.
    PreparationOver { number: u64, end: Box<End>, cost_microdollars: Option<u64> },
}

impl SessionMessage {
    /// Returns the message's name: the point at which a probe is called.
    pub(crate) fn point(&self) -> &'static str {
        match self {
            Self::Prompt { .. } => "session/prompt",
            Self::Repeat { .. } => "session/repeat",
            Self::Resume { .. } => "session/resume",
            Self::Finish(..) => "session/finish",
            Self::Input { .. } => "session/input",
            Self::Withdraw { .. } => "session/withdraw",
            Self::Amend { .. } => "session/amend",
            Self::CompactManually { .. } => "session/compact_manually",
            Self::CompactAfterRun { .. } => "session/compact_after_run",
            Self::PlanManually { .. } => "session/plan_manually",
            Self::Answer { .. } => "session/answer",
            Self::Ask(..) => "session/ask",
            Self::AwaitQuestions { .. } => "session/await_questions",
            Self::CallStarts { .. } => "session/call_starts",
            Self::ExpireQuestions => "session/expire_questions",
            Self::Wake => "session/wake",
            Self::Suspended { .. } => "session/suspended",
            Self::Sleep => "session/sleep",
            Self::Undo { .. } => "session/undo",
            Self::Branch { .. } => "session/branch",
            #[cfg(feature = "command-tools")]
            Self::Rewind { .. } => "session/rewind",
            Self::HandOff { .. } => "session/hand_off",
            Self::BranchWithSummary { .. } => "session/branch_with_summary",
            Self::Pin { .. } => "session/pin",
            Self::Import { .. } => "session/import",
            Self::WhenIdle(..) => "session/when_idle",
            Self::State(..) => "session/state",
            Self::Context(..) => "session/context",
            Self::Configure { .. } => "session/configure",
            Self::CheckSettings { .. } => "session/check_settings",
            Self::AbortCompaction => "session/abort_compaction",
            Self::Stop => "session/stop",
            Self::TryAgain => "session/try_again",
            Self::IdleCheck { .. } => "session/idle_check",
            Self::ChildStarted { .. } => "session/child_started",
            Self::ChildEnded { .. } => "session/child_ended",
            Self::Record { .. } => "session/record",
            Self::End { .. } => "session/end",
            Self::FallBack { .. } => "session/fall_back",
            Self::Measure { .. } => "session/measure",
            Self::Project { .. } => "session/project",
            Self::Compact { .. } => "session/compact",
            Self::Nears { .. } => "session/nears",
            Self::Spent { .. } => "session/spent",
            Self::EventsFlushed => "session/events_flushed",
            Self::LimitLearned { .. } => "session/limit_learned",
            Self::Measured { .. } => "session/measured",
            Self::ReplacePathSegment { .. } => "session/replace_path_segment",
            Self::BranchSummarised { .. } => "session/branch_summarised",
            Self::PruneResults { .. } => "session/prune_results",
            Self::CompactionOver { .. } => "session/compaction_over",
            Self::PreparationOver { .. } => "session/preparation_over",
        }
    }
}

/// A call's question for a person.
pub(crate) struct AskRequest {
    pub(crate) attempt: RunAttempt,
    pub(crate) call_id: String,
    pub(crate) tool: String,
    /// The question's number within the call, from 0.
    pub(crate) ordinal: u32,
    pub(crate) asker: Asker,
    pub(crate) question: Question,
    /// Receives the question's end, or why the question cannot be asked.
    pub(crate) reply: ReplyTo<Result<QuestionEnd, AskError>>,
}

/// A call that was pending when its run was resumed.
#[derive(Debug, Clone)]
pub(crate) struct PendingCall {
    pub(crate) call: ToolCall,
    /// Whether its tool may have started; false if only hooks before it had asked.
    pub(crate) may_have_begun: bool,
}

/// The options of a prompt.
#[derive(Debug, Clone, Default)]
pub(crate) struct PromptOptions {
    pub(crate) ticket: u64,
    /// The caller's own agent, which answers; `None` means the session's.
    pub(crate) agent: Option<Arc<Agent>>,
    pub(crate) key: Option<String>,
    /// The required form of the answer.
    pub(crate) form: Option<OutputForm>,
    /// The request's own validators.
    pub(crate) validators: Validators,
    /// The agent's validators for this request.
    pub(crate) validated_by: Vec<String>,
    /// The request's model settings, which take precedence.
    pub(crate) settings: ModelSettings,
    /// The limit of the run's cost, in micro-dollars.
    pub(crate) cost_limit: Option<u64>,
    /// How long the caller waits; the caller enforces this.
    pub(crate) timeout: Option<Duration>,
    /// The time limit of a run whose caller does not enforce one.
    pub(crate) time_limit: Option<Duration>,
    /// Whether an earlier process left the prompt, and no caller waits for it.
    pub(crate) is_left: bool,
    /// The first entry of the prompt that this one repeats by its key.
    pub(crate) again: Option<EntryId>,
    /// Learns which run the prompt became, and knows whether the caller has room for more events.
    pub(crate) link: Arc<RunLink>,
    /// Set to the prompt's entry when it is durable: the message's, or the inbox item's.
    pub(crate) recorded: Arc<SetOnce<EntryId>>,
    /// Cancels the run.
    pub(crate) cancel: CancellationToken,
    /// The sessions that wait for the run.
    pub(crate) waiting: Chain,
    /// The number of early aborts when the prompt was handed over: a later one aborts it.
    pub(crate) early_aborts: u64,
    /// The caller's own trace.
    pub(crate) from: CalledFrom,
}

/// Input that was accepted.
pub(crate) struct QueuedInput {
    /// The entry of its message, or of the inbox item.
    pub(crate) entry: EntryId,
    /// Whether it waits for the end of the run, which belongs to another agent.
    pub(crate) waits: bool,
    /// The reply of the run that receives it.
    pub(crate) reply: oneshot::Receiver<Result<Reply>>,
}

/// The purpose of a measured size.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum MeasureFor {
    /// The record of the run's end.
    RunEnd,
    /// A compaction that waits for the size, by the number of its request.
    Compaction(u64),
}

/// The context's size, and the basis of the measurement.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measurement {
    pub(crate) size: Size,
    pub(crate) usage: ContextUsage,
    pub(crate) ratio: Ratio,
    /// The tokens that the server adds to each request without showing them.
    pub(crate) hidden: u64,
}

/// Messages to an agent, which performs the run in progress.
pub(crate) enum AgentMessage {
    /// From the session: perform this run.
    Begin(Box<BeginRun>),
    /// From the session: hand the run over if it waits only for its tools.
    Suspend { attempt: RunAttempt },
    /// From the session: continue a run that was handed over.
    Continue { running: Box<Running>, tracker: ractor::ActorRef<Mail<TrackerMessage>> },
    /// From the session: a record is durable. `answer` is the model's newest answer; `is_measuring` says that
    /// the tracker was already asked for the size that the next step starts with.
    Recorded { attempt: RunAttempt, delivered: u32, answer: Option<EntryId>, is_measuring: bool },
    /// From the session: the context to send to the model.
    Context { attempt: RunAttempt, messages: Messages },
    /// From the session: a compaction for which the run waits is over.
    Compacted { attempt: RunAttempt, installed: bool, floor: Option<Box<Failure>>, why: Option<String> },
    /// From the session: the run continues with this model of this provider, because the previous one failed.
    FellBack {
        attempt: RunAttempt,
        agent: Arc<Agent>,
        provider: String,
        settings: Box<ModelSettings>,
        failure: Box<Failure>,
    },
    /// From the session: publish these events of durable entries, then end the run and send its reply.
    Broadcast { events: Vec<Due>, then: Option<RunCompletion> },
    /// From the session: it is about to end; confirm when everything before this was published.
    FlushEvents,
    /// From the usage tracker: the size, and the context to send to the model if no compaction is needed.
    Sized { attempt: RunAttempt, measured: Box<Measurement>, context: Option<Messages> },
    /// From the session: the usage tracker is a new one; ask it again.
    TrackerRestarted { tracker: ractor::ActorRef<Mail<TrackerMessage>> },
    /// From the run's watcher: the run is cancelled, or its time is up.
    Abort { attempt: RunAttempt, cause: AbortCause },
    /// From the task that asks for a count: the tokens of the next request by the provider; `None` if there is no
    /// count.
    Counted { attempt: RunAttempt, call: u64, tokens: Option<u64> },
    /// From the model task: the call is over.
    ModelOver { attempt: RunAttempt, call: u64, outcome: ModelOutcome },
    /// From the tool task: a call is over.
    ToolOver { attempt: RunAttempt, result: Box<ToolResult> },
    /// From the tool task: all calls are over.
    ToolsOver {
        attempt: RunAttempt,
        /// The ids of the calls that never began.
        not_begun: Vec<String>,
    },
    /// From the validators' task: their verdict on the answer.
    Validated { attempt: RunAttempt, verdict: Verdict },
    /// From the task of a wait: the wait is over.
    Waited { attempt: RunAttempt, call: u64 },
}

impl AgentMessage {
    /// Returns the message's name: the point at which a probe is called.
    pub(crate) fn point(&self) -> &'static str {
        match self {
            Self::Begin(..) => "agent/begin",
            Self::Suspend { .. } => "agent/suspend",
            Self::Continue { .. } => "agent/continue",
            Self::Recorded { .. } => "agent/recorded",
            Self::Context { .. } => "agent/context",
            Self::Compacted { .. } => "agent/compacted",
            Self::FellBack { .. } => "agent/fell_back",
            Self::Broadcast { .. } => "agent/broadcast",
            Self::FlushEvents => "agent/flush_events",
            Self::Sized { .. } => "agent/sized",
            Self::TrackerRestarted { .. } => "agent/tracker_restarted",
            Self::Abort { .. } => "agent/abort",
            Self::Counted { .. } => "agent/counted",
            Self::ModelOver { .. } => "agent/model_over",
            Self::ToolOver { .. } => "agent/tool_over",
            Self::ToolsOver { .. } => "agent/tools_over",
            Self::Validated { .. } => "agent/validated",
            Self::Waited { .. } => "agent/waited",
        }
    }
}

/// The result of a model call.
pub(crate) enum ModelOutcome {
    /// The complete answer.
    Answered(Box<AssistantMessage>),
    /// The call failed, perhaps after a partial answer.
    Failed {
        error: Box<ProviderError>,
        /// The output limit of the request, in tokens, if it was sent with one.
        output_tokens_max: Option<u64>,
    },
    /// A hook refused the call, for this reason.
    Refused(String),
    /// The call was cancelled, with this partial answer.
    Cancelled(Box<AssistantMessage>),
}

/// The basis of a session's measurements.
#[derive(Debug, Clone)]
pub(crate) struct TrackerConfig {
    /// The server to which learned facts about the model belong.
    pub(crate) origin: String,
    pub(crate) model: String,
    /// The fixed part of every request, in estimated tokens.
    pub(crate) overhead: u64,
    /// Which reasoning of earlier answers the next request contains.
    pub(crate) resent: ResentReasoning,
    /// The limits by which the kernel decides whether a compaction is due.
    pub(crate) limits: ContextLimits,
}

impl TrackerConfig {
    /// Returns the parts that all requests have in common.
    pub(crate) fn frame(&self) -> RequestFrame {
        let Self { overhead, resent, limits, .. } = self;
        RequestFrame { overhead: *overhead, resent: resent.clone(), window: limits.window.tokens }
    }
}

/// Messages to a usage tracker, which keeps the ledger, the learned ratio and the context's size.
pub(crate) enum TrackerMessage {
    /// From the session: an entry was added to the context. It is durable, except for the answer that ends a
    /// run, which is recorded together with the end.
    Appended(Arc<Entry>),
    /// From the session: the context was rewritten.
    Rewritten(Vec<Arc<Entry>>),
    /// From the session: the model, window, fixed part or (with the path) resent reasoning has changed.
    Configure { config: Box<TrackerConfig>, path: Option<Vec<Arc<Entry>>> },
    /// From the session: an entry changed the bill.
    Billed(Bill),
    /// From the session, for the agent: measure the context. The answer includes the context.
    Measure { attempt: RunAttempt, context: Option<Messages>, reply_to: ractor::ActorRef<Mail<AgentMessage>> },
    /// From the agent: the provider's count of a request that had this size by our count, in tokens; `None` if there is
    /// none.
    Counted { counted: u64, tokens: Option<u64> },
    /// From the session: measure the context.
    MeasureFor(MeasureFor),
}

impl TrackerMessage {
    /// Returns the message's name: the point at which a probe is called.
    pub(crate) fn point(&self) -> &'static str {
        match self {
            Self::Appended(..) => "usage_tracker/appended",
            Self::Rewritten(..) => "usage_tracker/rewritten",
            Self::Configure { .. } => "usage_tracker/configure",
            Self::Billed(..) => "usage_tracker/billed",
            Self::Measure { .. } => "usage_tracker/measure",
            Self::Counted { .. } => "usage_tracker/counted",
            Self::MeasureFor(..) => "usage_tracker/measure_for",
        }
    }
}

/// Messages to a compactor. Each names the work that it is about.
pub(crate) enum CompactorMessage {
    /// From the session: compact, or prepare to.
    Begin(Box<CompactionOrder>),
    /// From the hooks' task: their decision.
    HooksDecided { work: WorkId, decision: HookDecision },
    /// From a summary child: its answer.
    Answered { work: WorkId, id: u32, answer: Result<Summarised, Failure> },
    /// From the task of a wait: send the request now.
    AskNow { work: WorkId, id: u32 },
    /// From the session: whether the segment was replaced.
    Installed { work: WorkId, installed: bool },
    /// From the session: stop; no run or caller waits for the compaction.
    Cancel { work: WorkId, reason: String },
}

impl CompactorMessage {
    /// Returns the message's name: the point at which a probe is called.
    pub(crate) fn point(&self) -> &'static str {
        match self {
            Self::Begin(..) => "compactor/begin",
            Self::HooksDecided { .. } => "compactor/hooks_decided",
            Self::Answered { .. } => "compactor/answered",
            Self::AskNow { .. } => "compactor/ask_now",
            Self::Installed { .. } => "compactor/installed",
            Self::Cancel { .. } => "compactor/cancel",
        }
    }
}

#[cfg(test)]
mod tests;
