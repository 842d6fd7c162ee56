//! The errors of the runtime for programs.

use std::sync::Arc;

use greenroom_kernel::entry::EntryId;
use greenroom_kernel::plan::NothingToCompact;
use greenroom_kernel::question::QuestionEnd;
use greenroom_kernel::settings::SettingsError;
use greenroom_kernel::{Failure, FailureClass};
#[cfg(feature = "http")]
use greenroom_provider::OptionsError;
use greenroom_provider::SettingError;
use greenroom_store::StoreError;

pub(crate) use reasons::MetadataError;
pub(crate) use reasons::{BranchPointError, PinError, UnknownName};

mod reasons;
mod redacted;

/// A failed request to the runtime.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model call failed, and recovery did not help. The session remains usable.
    #[error("{0}")]
    Model(Failure),
    /// The run was aborted. Partial output is kept.
    #[error("the run was aborted")]
    Aborted,
    /// The abandoned branch could not be summarised. Nothing was changed.
    #[error("the branch was not summarised, so nothing was changed: {reason}")]
    BranchSummary {
        /// The reason.
        reason: String,
    },
    /// A guard, a hook or a budget ended the run.
    #[error("the run was stopped: {reason}")]
    Stopped {
        /// The guard, hook or budget, and its limit.
        reason: String,
    },
    /// The reply did not arrive within the time limit. The run was aborted; partial output is kept.
    #[error("no reply came within {}; the run was aborted", in_seconds(.timeout))]
    TimedOut {
        /// The time limit.
        timeout: std::time::Duration,
    },
    /// The agent or the session crashed or was closed during the work, which can be resumed.
    #[error("session {session} was interrupted; resume it, or prompt it again, to continue")]
    Interrupted {
        /// The session's id.
        session: String,
    },
    /// Too much input is waiting for this session.
    #[error("session {session} is busy: {waiting} inputs are already waiting")]
    Busy {
        /// The session's id.
        session: String,
        /// The number of waiting inputs.
        waiting: usize,
    },
    /// The runtime has accepted as much input as it may (`RuntimeBuilder::inputs_max`): try again when some
    /// of it is done.
    #[error("the runtime is busy: {waiting} inputs are in progress or waiting; try again later")]
    RuntimeBusy {
        /// The number of inputs in progress or waiting, in all sessions together.
        waiting: usize,
    },
    /// The sessions with this label got as many messages as they may within a minute
    /// ([`LabelLimit::messages_per_minute`](crate::LabelLimit::messages_per_minute)). Nothing was recorded.
    #[error(
        "sessions with the label {name}={value} take {messages_per_minute} messages a minute; try again in {} s",
        retry_after.as_secs_f64().ceil()
    )]
    LabelLimit {
        /// The label's name.
        name: String,
        /// The label's value.
        value: String,
        /// The limit.
        messages_per_minute: u64,
        /// When there is room for the next message.
        retry_after: std::time::Duration,
    },
    /// The request needs an idle session.
    #[error(
        "session {session} is working; wait until its run or its compaction has ended, or abort it, before you {what}"
    )]
    NotIdle {
        /// The session's id.
        session: String,
        /// The request.
        what: &'static str,
    },
    /// A tool or a hook was about to wait for a run of a session that itself waits for the tool or hook.
    /// Nothing was changed.
    #[error(
        "session {session} waits for this call to end, so its reply would never arrive; use `steer` or `follow_up`, \
         which do not wait, or prompt another session"
    )]
    Deadlock {
        /// The session's id.
        session: String,
    },
    /// The idempotency key was used before, and the log no longer has the prompt. Nothing was changed.
    #[error(
        "this idempotency key was used before, in session {session}, by entry {first}, which is lost; use another key"
    )]
    DuplicateKey {
        /// The session's id.
        session: String,
        /// The first entry that was recorded for the prompt with this key.
        first: EntryId,
    },
    /// A guard of the agent refused the input, which was not recorded.
    #[error("session {session} refused the input: {reason}")]
    InputRefused {
        /// The session's id.
        session: String,
        /// The reason.
        reason: String,
    },
    /// The prompt has neither text nor an image.
    #[error("a prompt must not be empty")]
    EmptyPrompt,
    /// An idempotency key has no characters, or blanks alone: prompts that have nothing in common would share it.
    #[error("an idempotency key must not be empty")]
    EmptyKey,
    /// The newest prompt was already answered.
    #[error("session {session} has nothing to resume: its newest prompt was answered")]
    NothingToResume {
        /// The session's id.
        session: String,
    },
    /// The interrupted run and the queued input of the session are from an earlier process, for an agent with
    /// another [fingerprint](crate::Agent::fingerprint).
    #[error("{}", held_back(session, *waiting))]
    HeldBack {
        /// The session's id.
        session: String,
        /// The number of inputs that are held back; 0 if it is only the run.
        waiting: usize,
    },
    /// Required validators for the answer to an interrupted prompt are missing. Nothing was changed, and the
    /// prompt still waits.
    #[error("{}", no_validator(session, names, *unnamed))]
    NoValidator {
        /// The session's id.
        session: String,
        /// The names of those that the agent does not have.
        names: Vec<String>,
        /// The number of unnamed ones: those that were passed to
        /// [`RunRequest::validate`](crate::RunRequest::validate).
        unnamed: u32,
    },
    /// A compaction would change nothing.
    #[error("no compaction needed: {0}")]
    NothingToCompact(NothingToCompact),
    /// No compaction is active.
    #[error("there is no compaction to undo in session {session}")]
    NothingToUndo {
        /// The session's id.
        session: String,
    },
    /// Without its newest compaction, the context would be larger than the window.
    #[error(
        "the compaction cannot be undone: without it the context would have {tokens} tokens, and the window has {window}; use a model with a larger window"
    )]
    UndoTooLarge {
        /// The context's size without it, in tokens.
        tokens: u64,
        /// The model's window, in tokens.
        window: u64,
    },
    /// The log has no such entry.
    #[error("there is no entry {entry}; the session has {entries} entries, numbered from 0")]
    NoEntry {
        /// The requested id.
        entry: EntryId,
        /// The number of entries; their ids count from 0.
        entries: u64,
    },
    /// No branch can start at this entry.
    #[error("{0}")]
    BranchPoint(BranchPointError),
    /// This entry cannot be pinned.
    #[error("{0}")]
    Pin(PinError),
    /// There is a session with the id of a new one: of a copy, or of one that is imported.
    #[error("there is already a session {session}; choose another name for the new one")]
    NotEmpty {
        /// The session's id.
        session: String,
    },
    /// The store has no such session.
    #[error("there is no session {session:?}")]
    NoSession {
        /// The session's id.
        session: String,
    },
    /// The session was deleted. Its handles do not recreate it; opening its id creates a new session.
    #[error("session {session} was deleted; open it to create a new one")]
    Deleted {
        /// The session's id.
        session: String,
    },
    /// No program has given this session an agent in this process.
    #[error("session {session} has no agent in this process; give it one with `set_agent`, or `open` it")]
    NoAgent {
        /// The session's id.
        session: String,
    },
    /// The input was withdrawn from the session's inbox before its run started.
    #[error("the input was withdrawn from the inbox of session {session} before its run started")]
    Withdrawn {
        /// The session's id.
        session: String,
    },
    /// This title or label cannot be set.
    #[error("{0}")]
    Metadata(#[from] MetadataError),
    /// The run has called as many sub-agents as it may.
    #[error(
        "the run has called {max} agents, including those called by its sub-agents; one run may call no more"
    )]
    TooManySubAgents {
        /// The limit for one run.
        max: u32,
    },
    /// The session's team has no agent with this name.
    #[error("the session's team has no agent named {name:?}")]
    NoMember {
        /// The requested name.
        name: String,
    },
    /// The conversation was not handed over, because the summary for the other agent could not be made.
    #[error("the conversation was not handed to {to:?}, because it could not be summarised: {reason}")]
    NotSummarised {
        /// The other agent.
        to: String,
        /// Why there is no summary.
        reason: String,
    },
    /// The sub-agent's work has ended.
    #[error("the work in session {session} has ended")]
    ChildEnded {
        /// The sub-agent's session.
        session: String,
    },
    /// The session's run waits for a person's answer. It continues when the question is answered or expires;
    /// after a restart of the program, once the session is open.
    #[error("session {session} waits for the answer to a question; `questions` lists it")]
    Waiting {
        /// The session's id.
        session: String,
    },
    /// The session has no question with this id.
    #[error("session {session} has no question {question}; `questions` lists the open ones")]
    NoQuestion {
        /// The session's id.
        session: String,
        /// The requested id.
        question: EntryId,
    },
    /// The question has ended: it was answered, expired or was withdrawn. Nothing was changed. A question is
    /// answered once: repeating the same answer gives this error too, with the recorded answer.
    #[error("question {question} of session {session} is closed: {}", how_ended(.end.as_deref()))]
    QuestionClosed {
        /// The session's id.
        session: String,
        /// The question's id.
        question: EntryId,
        /// The question's end; `None` if the log has lost it.
        end: Option<Box<QuestionEnd>>,
    },
    /// The answer does not fit the question, which stays open.
    #[error("invalid answer to question {question} of session {session}: {reason}")]
    AnswerMisfit {
        /// The session's id.
        session: String,
        /// The question's id.
        question: EntryId,
        /// The problem with the answer, and what would fit.
        reason: String,
    },
    /// Sub-agents would be nested too deeply.
    #[error(
        "sub-agents may be nested at most {depth_max} levels deep; do this work without another sub-agent"
    )]
    TooDeep {
        /// The maximum depth.
        depth_max: usize,
    },
    /// The answer does not have the required form.
    #[error("the answer does not fit the schema {wanted:?}: {reason}")]
    Output {
        /// The type's name.
        wanted: String,
        /// The problem with it.
        reason: String,
        /// The answer's text.
        text: String,
    },
    /// Validators rejected all answers, or one ended the run. The answers are in the conversation.
    #[error("the answer was rejected: {reason}")]
    Rejected {
        /// Why the last answer was rejected.
        reason: String,
        /// The last answer's text.
        text: String,
    },
    /// The session crashed too often.
    #[error("session {session} failed and was stopped: {reason}; open it again to resume it")]
    SessionFailed {
        /// The session's id.
        session: String,
        /// The last failure.
        reason: String,
    },
    /// Reading or writing the store failed.
    #[error("{0}")]
    Store(Arc<StoreError>),
    /// The runtime, the agent or a setting is invalid.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The runtime itself failed: because of a bug, or because the machine is out of threads or memory.
    /// Nothing acknowledged is lost.
    #[error("{what} failed inside the runtime: {reason}")]
    Internal {
        /// The part that failed.
        what: &'static str,
        /// The failure.
        reason: String,
    },
    /// The runtime drains and accepts no more input, or was shut down.
    #[error("the runtime is shutting down, or was shut down")]
    Closed,
}

/// An error in a runtime's parts, an agent's definition or a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No provider was given.
    #[error("the runtime has no provider; call `provider(…)`, or use `from_env`")]
    NoProvider,
    /// Two providers have the same name.
    #[error("two providers are named {name:?}; give one of them another name")]
    DuplicateProvider {
        /// The name.
        name: String,
    },
    /// An agent names a provider that the runtime does not have.
    #[error("the runtime has no provider named {wanted:?}; it has {}", .known.join(", "))]
    UnknownProvider {
        /// The requested name.
        wanted: String,
        /// The names of the runtime's providers.
        known: Vec<String>,
    },
    /// A team's agents cannot hand over the conversation as defined.
    #[error("the team is invalid: {reason}")]
    Team {
        /// The reason.
        reason: String,
    },
    /// A sub-agent is unusable.
    #[error("the sub-agent {name} is invalid: {reason}")]
    SubAgent {
        /// The name of its tool.
        name: String,
        /// The reason.
        reason: String,
    },
    /// An answer's schema is not a valid JSON schema, or refers to anything outside it.
    #[error("the output schema is invalid: {reason}")]
    OutputSchema {
        /// The problem with it, and its place.
        reason: String,
    },
    /// A prompt names a validator that the agent does not have.
    #[error("the agent has no validator named {wanted:?}; {}", known_validators(.known))]
    UnknownValidator {
        /// The requested name.
        wanted: String,
        /// The names of the agent's validators.
        known: Vec<String>,
    },
    /// A cost limit is negative or not a number.
    #[error("the cost limit of {usd} dollars is invalid; use a number of at least 0")]
    CostLimit {
        /// The given value.
        usd: String,
    },
    /// A limit by label cannot work, or no session can have the label.
    #[error("the limit for the label {label:?} is invalid: {reason}")]
    LabelLimit {
        /// The label.
        label: String,
        /// The problem.
        reason: String,
    },
    /// A price cannot be used.
    #[error("the price of {model} is invalid: {error}")]
    Price {
        /// The model.
        model: String,
        /// The wrong amount.
        error: SettingError,
    },
    /// Spending is not summed up by this label.
    #[error("{}", not_counted(label.as_deref()))]
    NotCounted {
        /// The label's name; `None` if it is not summed up at all.
        label: Option<String>,
    },
    /// A consumer's name cannot be used.
    #[error("{name:?} is not a valid consumer name: it must have 1 to 128 bytes")]
    ConsumerName {
        /// The name.
        name: String,
    },
    /// A consumer of this name is open already.
    #[error("the consumer {name:?} is already open; close it first, or use another name")]
    ConsumerInUse {
        /// The name.
        name: String,
    },
    /// The sessions are not stored in files of this machine.
    #[error(
        "the sessions are not stored in files of this machine, so they cannot be {operation}; use the tools of their database"
    )]
    NotInFiles {
        /// The operation that is impossible, as a participle.
        operation: &'static str,
    },
    /// A fallback is unusable.
    #[error("the fallback {model} is invalid: {reason}")]
    Fallback {
        /// The model.
        model: String,
        /// The reason.
        reason: String,
    },
    /// No store was chosen.
    #[error(
        "a runtime needs a store: call `data_dir(…)`, or `in_memory()` for sessions that end with the process"
    )]
    NoStore,
    /// An environment variable is invalid.
    #[error("{name}: {reason}")]
    Variable {
        /// The variable's name.
        name: &'static str,
        /// The problem with it.
        reason: String,
    },
    /// The user's data directory is unknown.
    #[error("there is no home directory: set GREENROOM_DATA_DIR to the folder for sessions")]
    NoDataDir,
    /// A tool that no provider would accept.
    #[error("{reason}")]
    Tool {
        /// The problem with it.
        reason: String,
    },
    /// An agent's model has no name.
    #[error("the agent has no model; pass a model name to `Agent::new`")]
    NoModel,
    /// Two tools of an agent have the same name.
    #[error("the agent has two tools named {name:?}; give one of them another name")]
    DuplicateTool {
        /// The name.
        name: String,
    },
    /// Invalid compaction settings.
    #[error("{0}")]
    Compaction(SettingsError),
    /// Model settings that no server accepts, or that name an unknown tool.
    #[error("the model settings are invalid: {0}")]
    ModelSettings(SettingError),
    /// The function that writes an agent's instructions panicked.
    #[error("the agent's instructions could not be written: {reason}")]
    Instructions {
        /// The panic's message.
        reason: String,
    },
    /// Invalid options of a provider.
    #[cfg(feature = "http")]
    #[error("{0}")]
    Provider(OptionsError),
}

impl ConfigError {
    #[cfg(all(feature = "http", feature = "disk"))]
    pub(crate) fn variable(name: &'static str, error: &impl ToString) -> Self {
        Self::Variable { name, reason: error.to_string() }
    }

    pub(crate) fn tool(error: &impl ToString) -> Self {
        Self::Tool { reason: error.to_string() }
    }
}

/// The result of a request to the runtime.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What helps against an error.
#[derive(Debug, PartialEq, Eq)]
enum Remedy {
    /// The same request may succeed later.
    Repeat,
    /// The request is invalid, and had no effect.
    Change,
    None,
}

impl Error {
    /// Whether the same request may succeed later, unchanged. With a key ([`once`](crate::RunRequest::once)),
    /// it continues the work that it started, however that ended.
    pub fn is_retryable(&self) -> bool {
        self.remedy() == Remedy::Repeat
    }

    /// Whether the request itself is invalid: it can never succeed unchanged, and had no effect.
    pub fn is_invalid_request(&self) -> bool {
        self.remedy() == Remedy::Change
    }

    /// Returns what helps against the error.
    fn remedy(&self) -> Remedy {
        match self {
            Self::Interrupted { .. }
            | Self::TimedOut { .. }
            | Self::Busy { .. }
            | Self::RuntimeBusy { .. }
            | Self::LabelLimit { .. }
            | Self::NotIdle { .. } => Remedy::Repeat,
            Self::Model(failure) if failure.class.is_retryable() => Remedy::Repeat,
            Self::Store(error) if error.is_retryable() => Remedy::Repeat,
            Self::EmptyPrompt
            | Self::EmptyKey
            | Self::InputRefused { .. }
            | Self::HeldBack { .. }
            | Self::NoValidator { .. }
            | Self::NothingToResume { .. }
            | Self::NothingToCompact(_)
            | Self::NothingToUndo { .. }
            | Self::UndoTooLarge { .. }
            | Self::NoEntry { .. }
            | Self::BranchPoint(_)
            | Self::Pin(_)
            | Self::NotEmpty { .. }
            | Self::NoSession { .. }
            | Self::DuplicateKey { .. }
            | Self::Deleted { .. }
            | Self::NoAgent { .. }
            | Self::Metadata(_)
            | Self::NoQuestion { .. }
            | Self::QuestionClosed { .. }
            | Self::AnswerMisfit { .. }
            | Self::TooDeep { .. }
            | Self::TooManySubAgents { .. }
            | Self::NoMember { .. }
            | Self::ChildEnded { .. }
            | Self::Deadlock { .. }
            | Self::Config(_) => Remedy::Change,
            Self::Model(_)
            | Self::Store(_)
            | Self::NotSummarised { .. }
            | Self::Aborted
            | Self::Withdrawn { .. }
            | Self::BranchSummary { .. }
            | Self::Stopped { .. }
            | Self::Waiting { .. }
            | Self::Output { .. }
            | Self::Rejected { .. }
            | Self::SessionFailed { .. }
            | Self::Internal { .. }
            | Self::Closed => Remedy::None,
        }
    }

    /// Whether the context is too large for the model's window, and could not be made small enough.
    pub fn is_context_overflow(&self) -> bool {
        matches!(
            self,
            Self::Model(Failure { class: FailureClass::ContextOverflow | FailureClass::ContextFloor, .. })
        )
    }

    pub(crate) fn internal(what: &'static str, reason: &impl ToString) -> Self {
        Self::Internal { what, reason: reason.to_string() }
    }
}

fn not_counted(label: Option<&str>) -> String {
    let how = "limits.spending_by of the configuration (in a program: RuntimeBuilder::spending_by)";
    match label {
        Some(label) => format!("spending is not counted by the label {label:?}: name it in {how}"),
        None => format!("spending is not counted: name the labels, if any, in {how}"),
    }
}

fn held_back(session: &str, waiting: usize) -> String {
    let others = "an agent with other tools, another folder or another key";
    match waiting {
        0 => format!(
            "the unfinished run of session {session} was started by {others}: only such an agent continues it; a new \
             prompt is answered with yours"
        ),
        waiting => format!(
            "{waiting} queued inputs of session {session} were sent to {others}: they start only with such an agent, or \
             can be withdrawn"
        ),
    }
}

fn no_validator(session: &str, names: &[String], unnamed: u32) -> String {
    let mut lacking = Vec::new();
    if !names.is_empty() {
        lacking.push(format!(
            "the validators {} (give them to the agent with `Agent::validator`)",
            names.join(", ")
        ));
    }
    if unnamed > 0 {
        lacking.push(format!(
            "{unnamed} validators without a name (repeat the prompt with its key, or `resume` it, with `validate`)"
        ));
    }
    format!("an unfinished prompt in session {session} requires {}", lacking.join(" and "))
}

fn known_validators(known: &[String]) -> String {
    match known {
        [] => "it has none: give it one with `Agent::validator`".to_owned(),
        known => format!("it has {}", known.join(", ")),
    }
}

/// Formats a time limit: a limit of zero is `0s`, not `0ns`.
fn in_seconds(timeout: &std::time::Duration) -> String {
    if timeout.is_zero() { "0s".to_owned() } else { format!("{timeout:?}") }
}

fn how_ended(end: Option<&QuestionEnd>) -> String {
    match end {
        None => "its call has ended".to_owned(),
        Some(QuestionEnd::Answered(answer)) => format!("it was answered with {:?}", answer.to_string()),
        Some(QuestionEnd::Expired) => "it has expired".to_owned(),
        Some(QuestionEnd::Withdrawn | _) => "it was withdrawn".to_owned(),
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

impl From<SettingsError> for Error {
    fn from(error: SettingsError) -> Self {
        Self::Config(ConfigError::Compaction(error))
    }
}

impl From<SettingError> for Error {
    fn from(error: SettingError) -> Self {
        Self::Config(ConfigError::ModelSettings(error))
    }
}

#[cfg(feature = "http")]
impl From<OptionsError> for Error {
    fn from(error: OptionsError) -> Self {
        Self::Config(ConfigError::Provider(error))
    }
}
