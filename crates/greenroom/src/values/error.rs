//! What can go wrong for a program that uses the runtime.

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

pub use reasons::MetadataError;
pub(crate) use reasons::{BranchPointError, PinError, UnknownName};

mod reasons;

/// A failed request to the runtime.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model call failed, and recovery did not help. The session stays usable.
    #[error("{0}")]
    Model(Failure),
    /// The run was interrupted. What had come is kept.
    #[error("the run was aborted")]
    Aborted,
    /// The branch that was to be left could not be summarised. Nothing was changed.
    #[error("the branch was not summarised, so nothing was changed: {reason}")]
    BranchSummary {
        /// Why.
        reason: String,
    },
    /// A guard, a hook or a budget ended the run.
    #[error("the run was stopped: {reason}")]
    Stopped {
        /// Which, and its limit.
        reason: String,
    },
    /// The reply did not come in the time that was set. The run was aborted; what had come is kept.
    #[error("no reply came within {timeout:?}; the run was aborted")]
    TimedOut {
        /// The time that was set.
        timeout: std::time::Duration,
    },
    /// The agent or the session died while it worked; it can be resumed.
    #[error("session {session} was interrupted; prompt it again to continue")]
    Interrupted {
        /// The session's id.
        session: String,
    },
    /// Too much input waits for this session already.
    #[error("session {session} is busy: {waiting} inputs are already waiting")]
    Busy {
        /// The session's id.
        session: String,
        /// How many inputs wait already.
        waiting: usize,
    },
    /// The runtime has taken on as much input as it may (`RuntimeBuilder::inputs_max`): try again when some of it is done.
    #[error("the runtime is busy: {waiting} inputs are in progress or waiting; try again later")]
    RuntimeBusy {
        /// How many inputs are under way or wait already, in all sessions together.
        waiting: usize,
    },
    /// What was asked for needs an idle session.
    #[error(
        "session {session} is at work; wait until its run or its compaction has ended, or abort it, before you {what}"
    )]
    NotIdle {
        /// The session's id.
        session: String,
        /// What was asked for.
        what: &'static str,
    },
    /// A tool or a hook was about to wait for a run of a session that itself waits for it. Nothing was changed.
    #[error(
        "session {session} waits for this call to end, so a reply of it would never come; use `steer` or `follow_up`, \
         which do not wait, or prompt another session"
    )]
    Deadlock {
        /// The session's id.
        session: String,
    },
    /// The idempotency key was used before, and the log no longer has the prompt. Nothing was changed.
    #[error(
        "this idempotency key was used before, by entry {first} of session {session}, which is lost; use another key"
    )]
    DuplicateKey {
        /// The session's id.
        session: String,
        /// The first entry that was recorded for the prompt with this key.
        first: EntryId,
    },
    /// A guard of the agent refused the input. Nothing of it is kept.
    #[error("session {session} does not take this: {reason}")]
    InputRefused {
        /// The session's id.
        session: String,
        /// Why.
        reason: String,
    },
    /// A prompt without text and without an image.
    #[error("a prompt must not be empty")]
    EmptyPrompt,
    /// The newest prompt was answered.
    #[error("there is nothing to resume in session {session}: its newest prompt was answered")]
    NothingToResume {
        /// The session's id.
        session: String,
    },
    /// What was cut off, and all that waits in the session, is of an earlier process, and was said to an agent of another
    /// [fingerprint](crate::Agent::fingerprint).
    #[error("{}", held_back(session, *waiting))]
    HeldBack {
        /// The session's id.
        session: String,
        /// How many inputs are held back; 0 where it is the run alone.
        waiting: usize,
    },
    /// The answer to a prompt that was left is to be judged by validators that are not there. Nothing was changed, and the
    /// prompt still waits.
    #[error("{}", no_validator(session, names, *unnamed))]
    NoValidator {
        /// The session's id.
        session: String,
        /// The names of those that the agent lacks.
        names: Vec<String>,
        /// How many have no name: those that were given to [`RunRequest::validate`](crate::RunRequest::validate).
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
    /// Without its newest compaction the context would be larger than the window.
    #[error("the context would have {tokens} tokens without this compaction, and the window has {window}")]
    UndoTooLarge {
        /// The context then, in tokens.
        tokens: u64,
        /// The model's window, in tokens.
        window: u64,
    },
    /// The log has no such entry.
    #[error("there is no entry {entry}; the session has {entries}")]
    NoEntry {
        /// The id that was asked for.
        entry: EntryId,
        /// How many there are; their ids count from 0.
        entries: u64,
    },
    /// No branch can begin at this entry.
    #[error("{0}")]
    BranchPoint(BranchPointError),
    /// This entry cannot be pinned.
    #[error("{0}")]
    Pin(PinError),
    /// Only an empty session can take over another's entries.
    #[error("session {session} has entries of its own; only an empty one can take over another's")]
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
    /// The session was deleted. A handle of it does not make it again; opening it begins another one of the same id.
    #[error("session {session} was deleted; open it to begin it anew")]
    Deleted {
        /// The session's id.
        session: String,
    },
    /// No program said yet which agent answers in this session.
    #[error("session {session} has no agent in this process; give it one with `set_agent`, or `open` it")]
    NoAgent {
        /// The session's id.
        session: String,
    },
    /// The input was taken out of the session's inbox before its run began.
    #[error("the input was taken out of the inbox of session {session} before it began")]
    Withdrawn {
        /// The session's id.
        session: String,
    },
    /// This title or label cannot be set.
    #[error("{0}")]
    Metadata(#[from] MetadataError),
    /// A run called as many agents as it may.
    #[error("one run may call {max} agents in all, those that they call included, and has called them")]
    TooManySubAgents {
        /// The most that one run may call.
        max: u32,
    },
    /// The session's team has no agent of this name.
    #[error("the session's team has no agent named {name:?}")]
    NoMember {
        /// The name that was asked for.
        name: String,
    },
    /// The conversation was not handed on: the summary that the other agent was to see could not be made.
    #[error("the conversation was not handed to {to:?}, since no summary of it could be made: {reason}")]
    NotSummarised {
        /// The agent that was to get it.
        to: String,
        /// Why there is no summary.
        reason: String,
    },
    /// An agent that was called as a tool has ended its work.
    #[error("the work in session {session} is over")]
    ChildEnded {
        /// The agent's session.
        session: String,
    },
    /// The session's run waits for a person's answer. It goes on when the question is answered, or expires; after the
    /// program was started again, as soon as the session is open.
    #[error("session {session} waits for the answer to a question; `questions` lists it")]
    Waiting {
        /// The session's id.
        session: String,
    },
    /// The session asks nothing under this id.
    #[error("session {session} has no question {question}; `questions` lists the open ones")]
    NoQuestion {
        /// The session's id.
        session: String,
        /// The id that was named.
        question: EntryId,
    },
    /// The question has ended: it was answered, expired or was withdrawn. Nothing was changed. A question is answered
    /// once: the same answer, given again, gets this too, with the answer that counts.
    #[error("question {question} of session {session} is closed: {}", how_ended(.end.as_deref()))]
    QuestionClosed {
        /// The session's id.
        session: String,
        /// The question's id.
        question: EntryId,
        /// How it ended; `None` where the log has lost that.
        end: Option<Box<QuestionEnd>>,
    },
    /// The answer does not fit the question, which stays open.
    #[error("invalid answer to question {question} of session {session}: {reason}")]
    AnswerMisfit {
        /// The session's id.
        session: String,
        /// The question's id.
        question: EntryId,
        /// What is wrong with the answer, and what would fit.
        reason: String,
    },
    /// Agents called agents too deep.
    #[error("agents may call agents at most {depth_max} deep")]
    TooDeep {
        /// The deepest level at which an agent may call another.
        depth_max: usize,
    },
    /// The answer does not have the form that was asked for.
    #[error("the answer does not fit the schema {wanted:?}: {reason}")]
    Output {
        /// The type's name.
        wanted: String,
        /// What is wrong with it.
        reason: String,
        /// The answer's text.
        text: String,
    },
    /// The program's validators accepted no answer, or one ended the run. The answers are in the conversation.
    #[error("no answer was accepted: {reason}")]
    Rejected {
        /// What is wrong with the last one.
        reason: String,
        /// The last answer's text.
        text: String,
    },
    /// The session crashed too often and was given up.
    #[error("session {session} failed and was stopped: {reason}; open it again to resume it")]
    SessionFailed {
        /// The session's id.
        session: String,
        /// What the failure was.
        reason: String,
    },
    /// Reading or writing the store failed.
    #[error("{0}")]
    Store(Arc<StoreError>),
    /// The runtime, the agent or a setting is not usable as it is.
    #[error("{0}")]
    Config(#[from] ConfigError),
    /// The runtime itself failed: a bug, or a machine without threads or memory. Nothing acknowledged is lost.
    #[error("{what} failed inside the runtime: {reason}")]
    Internal {
        /// The part that failed.
        what: &'static str,
        /// What the failure was.
        reason: String,
    },
    /// The runtime was shut down.
    #[error("the runtime is shut down")]
    Closed,
}

/// What is wrong with a runtime's parts, an agent's definition or a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// No provider was given.
    #[error("a runtime needs a provider: call `provider(…)`, or use `from_env`")]
    NoProvider,
    /// Two providers have the same name, so that an agent could not choose.
    #[error("two providers are named {name:?}; give one of them another name")]
    DuplicateProvider {
        /// The name.
        name: String,
    },
    /// An agent names a provider that the runtime does not have.
    #[error("the runtime has no provider named {wanted:?}; it has {}", .known.join(", "))]
    UnknownProvider {
        /// The name that was asked for.
        wanted: String,
        /// The names of those it has.
        known: Vec<String>,
    },
    /// A team in which a conversation could not be handed on.
    #[error("the team: {reason}")]
    Team {
        /// Why not.
        reason: String,
    },
    /// An agent that another one calls, and that could not work.
    #[error("the sub-agent {name}: {reason}")]
    SubAgent {
        /// The name of its tool.
        name: String,
        /// Why not.
        reason: String,
    },
    /// A schema of an answer that is no JSON schema, or refers to something outside of it.
    #[error("the output schema: {reason}")]
    OutputSchema {
        /// What is wrong with it and where.
        reason: String,
    },
    /// A prompt names a validator that the agent does not have.
    #[error("the agent has no validator named {wanted:?}; {}", known_validators(.known))]
    UnknownValidator {
        /// The name that was asked for.
        wanted: String,
        /// The names of those it has.
        known: Vec<String>,
    },
    /// A limit of costs that is no sum.
    #[error("a cost limit of {usd} dollars: it must be a number of at least 0")]
    CostLimit {
        /// What was given.
        usd: String,
    },
    /// A model that an agent falls back to, with which the session could not go on.
    #[error("the fallback {model}: {reason}")]
    Fallback {
        /// The model.
        model: String,
        /// Why it could not.
        reason: String,
    },
    /// No store was chosen.
    #[error(
        "a runtime needs a store: call `data_dir(…)`, or `in_memory()` for sessions that end with the process"
    )]
    NoStore,
    /// A variable of the environment that cannot be used as it is.
    #[error("{name}: {reason}")]
    Variable {
        /// The variable's name.
        name: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// Nothing says where the user's data is.
    #[error("there is no home directory: set GREENROOM_DATA_DIR to the folder for sessions")]
    NoDataDir,
    /// A tool that no provider would take.
    #[error("{reason}")]
    Tool {
        /// What is wrong with it.
        reason: String,
    },
    /// An agent's model has no name.
    #[error("the agent has no model: give `Agent::new` the name of one")]
    NoModel,
    /// Two tools of an agent have the same name, so that the model could not choose.
    #[error("the agent has two tools named {name:?}; give one of them another name")]
    DuplicateTool {
        /// The name.
        name: String,
    },
    /// Settings of compactions that cannot work.
    #[error("{0}")]
    Compaction(SettingsError),
    /// Settings of a model that no server takes, or that name a tool which the agent does not have.
    #[error("model settings: {0}")]
    ModelSettings(SettingError),
    /// The function that writes an agent's instructions panicked.
    #[error("the agent's instructions could not be written: {reason}")]
    Instructions {
        /// What the panic said.
        reason: String,
    },
    /// Options that no provider can be made with.
    #[cfg(feature = "http")]
    #[error("{0}")]
    Provider(OptionsError),
}

impl ConfigError {
    #[cfg(feature = "http")]
    pub(crate) fn variable(name: &'static str, error: &impl ToString) -> Self {
        Self::Variable { name, reason: error.to_string() }
    }

    pub(crate) fn tool(error: &impl ToString) -> Self {
        Self::Tool { reason: error.to_string() }
    }
}

/// The result of a request to the runtime.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Whether the same request may succeed later, unchanged. With a key ([`once`](crate::RunRequest::once)) it goes on with
    /// what it began, whichever way that ended.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Model(failure) => failure.class.is_retryable(),
            Self::Interrupted { .. }
            | Self::TimedOut { .. }
            | Self::Busy { .. }
            | Self::RuntimeBusy { .. }
            | Self::NotIdle { .. } => true,
            Self::Store(error) => error.is_retryable(),
            Self::Aborted
            | Self::DuplicateKey { .. }
            | Self::BranchSummary { .. }
            | Self::Stopped { .. }
            | Self::InputRefused { .. }
            | Self::EmptyPrompt
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
            | Self::Deleted { .. }
            | Self::NoAgent { .. }
            | Self::Withdrawn { .. }
            | Self::Metadata(_)
            | Self::Waiting { .. }
            | Self::NoQuestion { .. }
            | Self::QuestionClosed { .. }
            | Self::AnswerMisfit { .. }
            | Self::TooDeep { .. }
            | Self::TooManySubAgents { .. }
            | Self::NoMember { .. }
            | Self::NotSummarised { .. }
            | Self::ChildEnded { .. }
            | Self::Deadlock { .. }
            | Self::Output { .. }
            | Self::Rejected { .. }
            | Self::SessionFailed { .. }
            | Self::Config(_)
            | Self::Internal { .. }
            | Self::Closed => false,
        }
    }

    /// Whether the request itself is at fault: it can never succeed as it is, and nothing was changed by it.
    pub fn is_invalid_request(&self) -> bool {
        match self {
            Self::EmptyPrompt
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
            | Self::Config(_) => true,
            Self::Model(_)
            | Self::NotSummarised { .. }
            | Self::Aborted
            | Self::Withdrawn { .. }
            | Self::BranchSummary { .. }
            | Self::Stopped { .. }
            | Self::TimedOut { .. }
            | Self::Interrupted { .. }
            | Self::Busy { .. }
            | Self::RuntimeBusy { .. }
            | Self::NotIdle { .. }
            | Self::Waiting { .. }
            | Self::Output { .. }
            | Self::Rejected { .. }
            | Self::SessionFailed { .. }
            | Self::Store(_)
            | Self::Internal { .. }
            | Self::Closed => false,
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

fn held_back(session: &str, waiting: usize) -> String {
    let others = "an agent with other tools, another folder or another key";
    match waiting {
        0 => format!(
            "the run that was left in session {session} was begun by {others}: it goes on with such an agent only; a new \
             prompt is answered with yours"
        ),
        waiting => format!(
            "{waiting} inputs that wait in session {session} were said to {others}: they begin with such an agent only, or \
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
            "{unnamed} validators without a name (say the prompt again with its key, or `resume`, and `validate`)"
        ));
    }
    format!("a prompt that was left in session {session} is not answered without {}", lacking.join(" and "))
}

fn known_validators(known: &[String]) -> String {
    match known {
        [] => "it has none: give it one with `Agent::validator`".to_owned(),
        known => format!("it has {}", known.join(", ")),
    }
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
