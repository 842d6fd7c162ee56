//! Every message between the actors, on one page. These may change daily; the public events ([`crate::events::event`])
//! may not.
//!
//! Invariants: a handler decides and returns; an answer to a message comes as another message. Everything about
//! a run carries its [`RunAttempt`], and late news is dropped in one place: where the stamp is compared.

use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::bill::Bill;
use greenroom_kernel::compacting::branch::{BranchRecord, BranchSummary};
use greenroom_kernel::compacting::{Compacting, Effect, End, HookDecision, PruneSegment, Segment};
use greenroom_kernel::due::ContextLimits;
use greenroom_kernel::entry::{ChildRecord, Delivery, EntryId, RunId, RunOutcome, Sees, Trigger};
use greenroom_kernel::log::Amendment;
use greenroom_kernel::message::{AssistantMessage, Block, Message, ToolCall, ToolResult};
use greenroom_kernel::plan::Plan;
use greenroom_kernel::question::{Asker, GivenAnswer, KnownQuestion, Question, QuestionEnd};
use greenroom_kernel::run::{AbortCause, Boundary, Fallbacks, Size, Verdict};
use greenroom_kernel::settings::{CompactOptions, CompactionSettings};
use greenroom_kernel::usage::{ContextUsage, Ratio, RequestFrame};
use greenroom_kernel::{Entry, Failure, Usage};
use greenroom_provider::{ModelSettings, OutputSchema, ProviderError, ResentReasoning};
use greenroom_tools::AskError;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, SetOnce, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::Span;

use crate::agent::Agent;
use crate::agent::output::OutputForm;
use crate::agent::validate::Validators;
use crate::core::mail::Mail;
use crate::core::running::Running;
use crate::core::shared::{KeptAwake, Parking, SessionShared};
use crate::core::trace::CalledFrom;
use crate::events::event::Event;
use crate::events::run_link::RunLink;
use crate::lane::Lane;
use crate::limits::admission::Admitted;
use crate::limits::waits::Chain;
use crate::values::compaction::Compacted;
use crate::values::error::{Error, Result};
use crate::values::prompt::Reply;
use crate::values::state::State;

/// Which run, and which attempt at it: a run that goes on after its agent died is the next attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunAttempt {
    pub(crate) run: RunId,
    pub(crate) attempt: u32,
}

/// The way back to whoever asked from outside.
pub(crate) type ReplyTo<T> = oneshot::Sender<Result<T>>;

/// Tells everyone who waits for the same result.
pub(crate) fn tell_all<T>(waiting: Vec<ReplyTo<T>>, result: impl Fn() -> Result<T>) {
    for reply in waiting {
        let _ = reply.send(result());
    }
}

/// To the supervisor.
pub(crate) enum SupervisorMessage {
    /// From a task: a session that sleeps in its run cannot be woken. Callers that wait for this run are told why.
    GiveUp { id: Arc<str>, parking: Parking, error: Error },
    /// Open or resume a session, once.
    Open(OpenRequest),
    /// A session actor is up, or could not be started.
    Opened { id: Arc<str>, generation: u64, result: Result<ractor::ActorRef<SessionMail>> },
    /// The wait before a restart is over.
    Restart { id: Arc<str>, generation: u64 },
    /// A session has nothing to do for a while and may sleep.
    Idle { id: Arc<str> },
    /// A session that was told to fall asleep has something to do, and stays awake.
    StaysAwake { id: Arc<str> },
    /// Stop a session's actors, and say when they are gone; one that is just being opened is stopped when it is up.
    Close { id: Arc<str>, done: oneshot::Sender<()> },
    /// Stop a session's actors, and delete it from the store.
    Delete { id: Arc<str>, reply: ReplyTo<()> },
    /// Change a session without beginning anything in it: by its actor, or in the store where it has none.
    Amend(AmendRequest),
    /// What was done in the store to a session without actors is done.
    Released { id: Arc<str>, generation: u64, done: HeldWork },
    /// The runtime's settings are to be these: ask all sessions whether they could work. Gives their answers.
    CheckSettings {
        settings: Arc<CompactionSettings>,
        reply: oneshot::Sender<Vec<oneshot::Receiver<Result<()>>>>,
    },
    /// The runtime's settings changed: tell all sessions.
    Reconfigure(oneshot::Sender<()>),
    /// What is shared of a session that has actors, or that somebody holds.
    Find { id: Arc<str>, reply: oneshot::Sender<Option<Arc<SessionShared>>> },
    /// What is shared of a session that the store has. Nothing is started.
    Attach { id: Arc<str>, parent: Option<Arc<str>>, reply: oneshot::Sender<Arc<SessionShared>> },
    /// Which sessions sleep in the middle of a run that waits for its tools.
    Suspended(oneshot::Sender<Vec<Arc<str>>>),
    /// In which sessions something is under way or waits and may begin, awake or asleep.
    Awaited(oneshot::Sender<Vec<Arc<str>>>),
    /// Which sessions are live.
    Live(oneshot::Sender<Vec<Arc<str>>>),
    /// Stop everything in order: runs are interrupted, logs are whole.
    Shutdown(oneshot::Sender<()>),
}

/// What is to be opened.
pub(crate) struct OpenRequest {
    pub(crate) id: Arc<str>,
    pub(crate) agent: Arc<Agent>,
    pub(crate) parent: Option<Arc<str>>,
    pub(crate) reason: OpenReason,
    pub(crate) reply: ReplyTo<Arc<SessionShared>>,
}

/// Why a session is opened.
#[derive(Clone)]
pub(crate) enum OpenReason {
    /// A program opens it, with this agent. One that was given up is resumed.
    Open,
    /// A program opens it beside others, who may be at work in it: those keep their agents.
    Join,
    /// A program opens it to finish what was interrupted, before anything that waits.
    Finish,
    /// A request reached a handle of a session that sleeps.
    Wake(Arc<SessionShared>),
}

/// A change of a session that begins nothing in it.
pub(crate) struct AmendRequest {
    pub(crate) shared: Arc<SessionShared>,
    pub(crate) amendment: Amendment,
    /// Told how many inputs were withdrawn.
    pub(crate) reply: ReplyTo<usize>,
}

/// What was done in the store to a session without actors, and who waits for it.
pub(crate) enum HeldWork {
    /// It was to be deleted.
    Delete { result: Result<()>, replies: Vec<ReplyTo<()>> },
    /// It was changed.
    Amend { result: Result<usize>, reply: ReplyTo<usize> },
}

/// A place in a session's mailbox.
pub(crate) struct MailPlace {
    /// The session hears what is sent before it falls asleep.
    pub(crate) _awake: KeptAwake,
    /// `None` for what is sent at once, however much waits: it takes something back.
    pub(crate) _mailbox: Option<OwnedSemaphorePermit>,
    /// Of a request that the runtime took on; a question has none.
    pub(crate) input: Option<Admitted>,
}

/// What comes into a session's mailbox: a message, and the place that it holds there until it is taken up.
pub(crate) struct SessionMail {
    pub(crate) message: SessionMessage,
    /// `None` for messages from inside, which are few by themselves.
    pub(crate) place: Option<MailPlace>,
}

impl SessionMail {
    /// A message that the session hears before it falls asleep, however much waits in its mailbox.
    pub(crate) fn heard(message: SessionMessage, awake: KeptAwake) -> Self {
        Self { message, place: Some(MailPlace { _awake: awake, _mailbox: None, input: None }) }
    }
}

impl From<SessionMessage> for SessionMail {
    fn from(message: SessionMessage) -> Self {
        Self { message, place: None }
    }
}

/// To a session: the only writer of its log.
pub(crate) enum SessionMessage {
    /// From outside: a prompt. It begins a run, or waits in the inbox.
    Prompt { content: Vec<Block>, options: Box<PromptOptions>, reply: ReplyTo<Reply> },
    /// From outside: a prompt whose key was used before, by a batch that begins with this entry.
    Repeat { first: EntryId, options: Box<PromptOptions>, reply: ReplyTo<Reply> },
    /// From outside: go on with the newest prompt.
    Resume { options: Box<PromptOptions>, reply: ReplyTo<Reply> },
    /// From outside: finish what was interrupted and what waits. Gives the reply of the last run that this takes.
    Finish(ReplyTo<Reply>),
    /// From outside: input for the current run.
    Input {
        content: Vec<Block>,
        delivery: Delivery,
        early_aborts: u64,
        /// The agent of whoever says it, if they brought one.
        agent: Option<Arc<Agent>>,
        from: CalledFrom,
        reply: ReplyTo<QueuedInput>,
    },
    /// From outside: the caller of a prompt went away, or takes it back: its run is cancelled, or it leaves the inbox.
    Withdraw { ticket: u64 },
    /// From outside: change it, and begin nothing.
    Amend { amendment: Amendment, reply: ReplyTo<usize> },
    /// From outside: a person answers a question.
    Answer { question: EntryId, answer: GivenAnswer, reply: ReplyTo<()> },
    /// From a tool or a hook: ask a person. Told how the question ended.
    Ask(Box<AskRequest>),
    /// From the tool task: tell what this call has asked, when all of it has ended.
    AwaitQuestions { stamp: RunAttempt, call_id: String, reply: ReplyTo<Vec<KnownQuestion>> },
    /// From the tool task: the tool of a call begins, after a hook had asked. Told when that is durable.
    CallStarts { stamp: RunAttempt, call_id: String, reply: ReplyTo<()> },
    /// From what a run left running while the session sleeps: go on.
    Wake,
    /// From the agent: the run waits for its tools alone and is handed over, so that the session can sleep; `None` where
    /// there is something to do.
    Suspended { stamp: RunAttempt, running: Option<Box<Running>> },
    /// From the supervisor: fall asleep, if there is still nothing to do; else say that it stays awake. Until then the
    /// supervisor says nothing else.
    Sleep,
    /// From the questions' timer: the time of a question has passed.
    ExpireQuestions,
    /// From outside: compact now, with the agent of whoever asks, if they brought one.
    CompactManually { options: CompactOptions, agent: Option<Arc<Agent>>, reply: ReplyTo<Compacted> },
    /// From outside, a tool or a hook: compact when the current run is over, or now. What asks out of a compaction's own
    /// hook needs news: one that always asks would never come to an end.
    CompactAfterRun { options: CompactOptions, needs_news: bool },
    /// From outside: what a compaction would do.
    PlanManually {
        options: CompactOptions,
        agent: Option<Arc<Agent>>,
        reply: ReplyTo<Result<Box<Plan>, greenroom_kernel::plan::NothingToCompact>>,
    },
    /// From outside: the newest compaction no longer counts.
    Undo { reply: ReplyTo<ContextUsage> },
    /// From outside: go on from another entry.
    Branch { to: Option<EntryId>, reply: ReplyTo<()> },
    /// From outside: go on with another agent of the team.
    HandOff { to: String, sees: Sees, reply: ReplyTo<()> },
    /// From outside: go on from another entry, with a summary of the branch that is left.
    BranchWithSummary { to: Option<EntryId>, agent: Option<Arc<Agent>>, reply: ReplyTo<Compacted> },
    /// From outside: pin an entry, or release it.
    Pin { entry: EntryId, pinned: bool, reply: ReplyTo<()> },
    /// From outside: append the records of an import or a fork, to an empty session.
    Import { entries: Vec<Arc<Entry>>, leaf: Option<EntryId>, reply: ReplyTo<()> },
    /// From outside: how it stands.
    State(oneshot::Sender<State>),
    /// From outside: what the model would be sent.
    Context(oneshot::Sender<Vec<Arc<Message>>>),
    /// From the supervisor: go on with this definition, or with changed settings. Whoever opened the session with it
    /// waits for the reply; one that cannot work changes nothing. Who joins others waits for it to be idle to change it.
    Configure { agent: Arc<Agent>, only_if_idle: bool, reply: Option<ReplyTo<Arc<SessionShared>>> },
    /// From the supervisor: could it work with these settings of the runtime?
    CheckSettings { settings: Arc<CompactionSettings>, reply: ReplyTo<()> },
    /// From outside: leave the compaction that no run waits for.
    AbortCompaction,
    /// From the supervisor: end in order.
    Stop,
    /// From the session's own timer: try again what the store refused.
    TryAgain,
    /// From a timer, or from the supervisor, which needs room: fall asleep if nothing has happened since there was so much
    /// activity. A timer looks `again` later where something has.
    IdleCheck { activity: u64, again: bool },

    /// From a sub-agent's call: record that the agent begins to work. Gives the entry.
    ChildStarted { record: ChildRecord, reply: ReplyTo<EntryId> },
    /// From a sub-agent's call: the agent has ended, and this is what it spent.
    ChildEnded { started: EntryId, outcome: RunOutcome, spent: Bill },

    /// From the agent: record these messages, deliver what waits at this boundary, and say so.
    Record { stamp: RunAttempt, messages: Vec<Message>, boundary: Boundary },
    /// From the agent: record these messages and the run's end.
    End {
        stamp: RunAttempt,
        messages: Vec<Message>,
        outcome: RunOutcome,
        /// Why the last answer was rejected, where that ended the run.
        rejected: Option<String>,
    },
    /// From the agent: nothing more can be had of the model; go on with the next fallback.
    FallBack { stamp: RunAttempt, failure: Box<Failure> },
    /// From the agent: how large is the context, by the settings that hold now? The tracker answers.
    Measure { stamp: RunAttempt },
    /// From the agent: what is the model to be sent?
    Project { stamp: RunAttempt },
    /// From the agent: compact.
    Compact {
        stamp: RunAttempt,
        trigger: Trigger,
        at_window: bool,
        failed_attempts: u32,
        measured: Box<Measurement>,
    },
    /// From a model call that is over: what it cost besides what the log says by its answer.
    Spent { stamp: Option<RunAttempt>, usage: Usage, cost_microdollars: Option<u64> },
    /// From the agent: everything was broadcast, and every prompt that was answered has its reply.
    EventsFlushed,
    /// From the agent or the compactor: a provider named a limit of a model when it refused `sent` tokens.
    LimitLearned { lane: Arc<Lane>, model: String, limit: u64, sent: u64 },

    /// From the usage tracker: the size that was asked for before a compaction, a run's end or a state.
    Measured { purpose: MeasureFor, measured: Box<Measurement> },

    /// From the compactor: replace the segment, if it is still what it was.
    ReplacePathSegment { compaction: EntryId, segment: Box<Segment>, cost_microdollars: Option<u64> },
    /// From the compactor: the summary of the branch that is left.
    BranchSummarised { compaction: EntryId, record: Box<BranchRecord>, cost_microdollars: Option<u64> },
    /// From the compactor: send these results shorter, if they are still what they were.
    PruneResults { compaction: EntryId, segment: Box<PruneSegment>, cost_microdollars: Option<u64> },
    /// From the compactor: it is over.
    CompactionOver { compaction: EntryId, end: Box<End>, cost_microdollars: Option<u64> },
}

impl SessionMessage {
    /// Its name: the point at which a probe is called.
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
            Self::HandOff { .. } => "session/hand_off",
            Self::BranchWithSummary { .. } => "session/branch_with_summary",
            Self::Pin { .. } => "session/pin",
            Self::Import { .. } => "session/import",
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
            Self::Spent { .. } => "session/spent",
            Self::EventsFlushed => "session/events_flushed",
            Self::LimitLearned { .. } => "session/limit_learned",
            Self::Measured { .. } => "session/measured",
            Self::ReplacePathSegment { .. } => "session/replace_path_segment",
            Self::BranchSummarised { .. } => "session/branch_summarised",
            Self::PruneResults { .. } => "session/prune_results",
            Self::CompactionOver { .. } => "session/compaction_over",
        }
    }
}

/// A question for a person, as a call asks it.
pub(crate) struct AskRequest {
    pub(crate) stamp: RunAttempt,
    pub(crate) call_id: String,
    pub(crate) tool: String,
    /// Which question of the call it is, from 0.
    pub(crate) ordinal: u32,
    pub(crate) asker: Asker,
    pub(crate) question: Question,
    /// Told how it ended, or why it cannot be asked.
    pub(crate) reply: ReplyTo<Result<QuestionEnd, AskError>>,
}

/// A call that was pending when its run was taken up again.
#[derive(Debug, Clone)]
pub(crate) struct PendingCall {
    pub(crate) call: ToolCall,
    /// Whether its tool may have begun; `false` where only hooks before it had asked.
    pub(crate) may_have_begun: bool,
}

/// How a prompt is to be answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct PromptOptions {
    pub(crate) ticket: u64,
    /// The agent of whoever prompts, if they brought one: it answers. `None`: the session's.
    pub(crate) agent: Option<Arc<Agent>>,
    pub(crate) key: Option<String>,
    /// The form of the answer.
    pub(crate) form: Option<OutputForm>,
    /// The request's own validators.
    pub(crate) validators: Validators,
    /// The validators of the agent that judge the answer too.
    pub(crate) validated_by: Vec<String>,
    /// How the model is to answer: what is set here wins.
    pub(crate) settings: ModelSettings,
    /// What the run may cost, in micro-dollars.
    pub(crate) cost_limit: Option<u64>,
    /// How long the caller waits, who looks to that.
    pub(crate) timeout: Option<Duration>,
    /// How long the run may take where no caller looks to that.
    pub(crate) time_limit: Option<Duration>,
    /// Whether it was left by an earlier process, and nobody waits for it.
    pub(crate) is_left: bool,
    /// The first entry of the prompt that this one says again under its key.
    pub(crate) again: Option<EntryId>,
    /// Told which run the prompt became, before the run's first event; says whether the caller has room for more.
    pub(crate) link: Arc<RunLink>,
    /// Set when the prompt is durable, to its entry: its message, or its place in the inbox.
    pub(crate) recorded: Arc<SetOnce<EntryId>>,
    /// Cancels the run.
    pub(crate) cancel: CancellationToken,
    /// The sessions that wait for the run.
    pub(crate) waiting: Chain,
    /// How many early aborts there had been when the prompt was handed over: a later one aborts it.
    pub(crate) early_aborts: u64,
    /// Where the caller is in a trace of their own.
    pub(crate) from: CalledFrom,
}

/// Input that was taken on.
pub(crate) struct QueuedInput {
    /// Its message, or its place in the inbox.
    pub(crate) entry: EntryId,
    /// Whether it waits for the end of the run, which is one of another agent.
    pub(crate) waits: bool,
    /// The reply of the run that takes it in.
    pub(crate) reply: oneshot::Receiver<Result<Reply>>,
}

/// What a measured size is for.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum MeasureFor {
    /// The run's end record.
    RunEnd,
    /// A compaction that waits for it, by the number of its request.
    Compaction(u64),
}

/// The context's size, and what it was measured with.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measurement {
    pub(crate) size: Size,
    pub(crate) usage: ContextUsage,
    pub(crate) ratio: Ratio,
    /// The tokens that the server adds to each request without showing them.
    pub(crate) hidden: u64,
}

/// To an agent: the run in progress.
pub(crate) enum AgentMessage {
    /// From the session: work on this run.
    Begin(Box<BeginRun>),
    /// From the session: hand the run over if it waits for its tools alone.
    Suspend { stamp: RunAttempt },
    /// From the session: go on with a run that was handed over.
    Continue { running: Box<Running>, tracker: ractor::ActorRef<Mail<TrackerMessage>> },
    /// From the session: a record is durable. `answer` is the model's newest answer. Where the next step begins with
    /// measuring the context, the tracker `is_measuring` it already.
    Recorded { stamp: RunAttempt, delivered: u32, answer: Option<EntryId>, is_measuring: bool },
    /// From the session: what the model is to be sent.
    Context { stamp: RunAttempt, messages: Vec<Arc<Message>> },
    /// From the session: a compaction that the run waits for is over.
    Compacted { stamp: RunAttempt, installed: bool, floor: Option<Box<Failure>>, why: Option<String> },
    /// From the session: the run goes on with this model of this provider, since the one before failed.
    FellBack {
        stamp: RunAttempt,
        agent: Arc<Agent>,
        provider: String,
        settings: Box<ModelSettings>,
        failure: Box<Failure>,
    },
    /// From the session: events of durable entries, to be broadcast; then the word that the run is over, and the
    /// reply to its prompt.
    Broadcast { events: Vec<Arc<Event>>, then: Option<RunCompletion> },
    /// From the session: it is about to end; say so when everything before this was broadcast.
    FlushEvents,
    /// From the usage tracker: the size, and the context as it was when the session asked for it: what the model is to
    /// be sent if nothing has to be compacted.
    Sized { stamp: RunAttempt, measured: Box<Measurement>, context: Option<Vec<Arc<Message>>> },
    /// From the session: the usage tracker is a new one; ask again.
    TrackerRestarted { tracker: ractor::ActorRef<Mail<TrackerMessage>> },
    /// From the run's watcher: it is cancelled, or out of time.
    Abort { stamp: RunAttempt, cause: AbortCause },
    /// From the model task: the call is over.
    ModelOver { stamp: RunAttempt, call: u64, outcome: ModelOutcome },
    /// From the tool task: a call is over.
    ToolOver { stamp: RunAttempt, result: Box<ToolResult> },
    /// From the tool task: all calls are over.
    ToolsOver { stamp: RunAttempt },
    /// From the validators' task: what they say of the answer.
    Validated { stamp: RunAttempt, verdict: Verdict },
    /// From the wait's task: it is over.
    Waited { stamp: RunAttempt, call: u64 },
}

impl AgentMessage {
    /// Its name: the point at which a probe is called.
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
            Self::ModelOver { .. } => "agent/model_over",
            Self::ToolOver { .. } => "agent/tool_over",
            Self::ToolsOver { .. } => "agent/tools_over",
            Self::Validated { .. } => "agent/validated",
            Self::Waited { .. } => "agent/waited",
        }
    }
}

/// The end of a run, to be said once: by the agent, or, if that dies first, by the one that takes its place.
#[derive(Clone)]
pub(crate) struct RunCompletion(Arc<Mutex<Option<Box<Answer>>>>);

impl RunCompletion {
    pub(crate) fn new(answer: Box<Answer>) -> Self {
        Self(Arc::new(Mutex::new(Some(answer))))
    }

    /// Takes it, if nobody did.
    pub(crate) fn take(&self) -> Option<Box<Answer>> {
        self.0.lock().take()
    }
}

/// The reply to a run's prompt, and who waits for it: who said the prompt, and who said what joined the run.
pub(crate) struct Answer {
    pub(crate) to: Vec<ReplyTo<Reply>>,
    pub(crate) reply: Result<Reply>,
}

/// A run to work on.
pub(crate) struct BeginRun {
    pub(crate) stamp: RunAttempt,
    /// The run, as it is traced.
    pub(crate) span: Span,
    pub(crate) agent: Arc<Agent>,
    pub(crate) model: String,
    pub(crate) tools: greenroom_tools::Registry,
    pub(crate) schema: Option<Arc<OutputSchema>>,
    pub(crate) validators: Validators,
    pub(crate) settings: ModelSettings,
    /// The models that are asked when this one fails.
    pub(crate) fallbacks: Fallbacks,
    /// The same in every request of the run.
    pub(crate) instructions: Arc<str>,
    /// Their size in estimated tokens, where they are not those of the run before.
    pub(crate) instructions_changed: Option<u64>,
    pub(crate) cancel: CancellationToken,
    /// How long the run may take, where that is less than the agent says.
    pub(crate) time_limit: Option<Duration>,
    /// To the caller who streams the run.
    pub(crate) link: Arc<RunLink>,
    /// The sessions that wait for the run's tools and hooks: this one, and those that wait for it.
    pub(crate) waiting: Chain,
    pub(crate) tracker: ractor::ActorRef<Mail<TrackerMessage>>,
    pub(crate) may_compact: bool,
    /// The calls that go on where the run is taken up again, how many answers it had, and the newest of them.
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

/// How a model call ended.
pub(crate) enum ModelOutcome {
    /// The whole answer.
    Answered(Box<AssistantMessage>),
    /// It failed; what had come is with it.
    Failed(Box<ProviderError>),
    /// A hook refused it; why.
    Refused(String),
    /// It was cancelled; what had come.
    Cancelled(Box<AssistantMessage>),
}

/// What the context of a session is measured with.
#[derive(Debug, Clone)]
pub(crate) struct TrackerConfig {
    /// The server: what is learned of the model belongs to it.
    pub(crate) origin: String,
    pub(crate) model: String,
    /// The fixed part of every request, in estimated tokens.
    pub(crate) overhead: u64,
    /// Which reasoning of earlier answers the next request carries.
    pub(crate) resent: ResentReasoning,
    /// By what the kernel decides whether a compaction is due.
    pub(crate) limits: ContextLimits,
}

impl TrackerConfig {
    /// What requests have in common.
    pub(crate) fn frame(&self) -> RequestFrame {
        let Self { overhead, resent, limits, .. } = self;
        RequestFrame { overhead: *overhead, resent: resent.clone(), window: limits.window.tokens }
    }
}

/// To a usage tracker: the ledger, the learned ratio and the context's size.
pub(crate) enum TrackerMessage {
    /// From the session: an entry is in the context. It is durable, but for the answer that ends a run: that one is
    /// recorded together with the end, which holds its size.
    Appended(Arc<Entry>),
    /// From the session: the context was rewritten.
    Rewritten(Vec<Arc<Entry>>),
    /// From the session: model, window, fixed part, or which reasoning goes back changed. With the latter comes the path,
    /// which is counted anew.
    Configure { config: Box<TrackerConfig>, path: Option<Vec<Arc<Entry>>> },
    /// From the session: an entry changed the bill.
    Billed(Bill),
    /// From the session, for the agent: how large is the context? The answer takes the context along.
    Measure {
        stamp: RunAttempt,
        context: Option<Vec<Arc<Message>>>,
        reply_to: ractor::ActorRef<Mail<AgentMessage>>,
    },
    /// From the session: how large is the context?
    MeasureFor(MeasureFor),
}

impl TrackerMessage {
    /// Its name: the point at which a probe is called.
    pub(crate) fn point(&self) -> &'static str {
        match self {
            Self::Appended(..) => "usage_tracker/appended",
            Self::Rewritten(..) => "usage_tracker/rewritten",
            Self::Configure { .. } => "usage_tracker/configure",
            Self::Billed(..) => "usage_tracker/billed",
            Self::Measure { .. } => "usage_tracker/measure",
            Self::MeasureFor(..) => "usage_tracker/measure_for",
        }
    }
}

/// To a compactor: a compaction in progress. Each message names the entry of its start.
pub(crate) enum CompactorMessage {
    /// From the session: compact.
    Begin(Box<CompactionOrder>),
    /// From the hooks' task: what they decided.
    HooksDecided { compaction: EntryId, decision: HookDecision },
    /// From a summary child: its answer.
    Answered { compaction: EntryId, id: u32, answer: Result<Box<AssistantMessage>, Failure> },
    /// From a wait's task: ask now.
    AskNow { compaction: EntryId, id: u32 },
    /// From the session: whether the segment was replaced.
    Installed { compaction: EntryId, installed: bool },
    /// From the session: stop; nobody waits for it.
    Cancel { compaction: EntryId, reason: String },
}

impl CompactorMessage {
    /// Its name: the point at which a probe is called.
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

/// A compaction that has begun.
pub(crate) struct CompactionOrder {
    /// The entry of its start.
    pub(crate) id: EntryId,
    /// As it is traced.
    pub(crate) span: Span,
    /// What is to be done.
    pub(crate) work: CompactionWork,
    /// What to do first.
    pub(crate) effects: Vec<Effect>,
    /// What the provider counts for each token that we estimate.
    pub(crate) ratio: Ratio,
    /// Whether a provider that says nothing again may mean that the request is too large, whatever the numbers say.
    pub(crate) doubts_window: bool,
    /// Who writes the summaries: the first one, and each other where the one before fails.
    pub(crate) summarisers: Vec<Summariser>,
}

/// What a compactor works on.
#[derive(Debug)]
pub(crate) enum CompactionWork {
    /// The older part of the context is replaced.
    Replace(Box<Compacting>),
    /// A branch that is left is summarised.
    Branch(Box<BranchSummary>),
}

/// A model that writes summaries, at its provider. An order names it, since the session may go on with another.
#[derive(Clone)]
pub(crate) struct Summariser {
    pub(crate) lane: Arc<Lane>,
    pub(crate) model: String,
    /// How it is to answer.
    pub(crate) settings: ModelSettings,
    /// Whose hooks see its calls.
    pub(crate) agent: Arc<Agent>,
}
