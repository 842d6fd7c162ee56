//! Error messages, and their exit codes.
//!
//! This is the lowest room: it uses no other. Every room creates a [`CliError`] where something fails, so no
//! room needs a code from above.
//!
//! Invariants: one line on standard error that says what to do, and the same failure has the same code in
//! every command. A closed reader is not a failure. No message contains a secret that this process knows.

pub(crate) mod secrets;

use std::path::Path;
use std::{fmt, io};

use greenroom_kernel::FailureClass;
use greenroom_kernel::text::joined_words;
use greenroom_server::{ClientError, ProblemKind};
use greenroom_store::StoreError;
use greenroom_terminal::screen::harmless;
use greenroom_terminal::text;
use greenroom_tools::ToolsError;
use serde_json::{Map, Value};

/// Advice if a session is not found.
const LIST: &str = "`greenroom sessions` lists them";

/// Advice if a session is damaged.
pub(crate) const DAMAGED: &str = "`greenroom show` prints what is intact, `greenroom store check` lists what is lost, and `greenroom \
                       store accept-loss` lets the session continue without it";

/// Advice if a run waits for an answer.
const ANSWER: &str = "`greenroom questions` shows it, and `greenroom answer` answers it";

/// The model could not be called, or gave no usable answer.
pub(crate) const FAILED: u8 = 1;
/// The command line, the configuration or the workspace is invalid.
pub(crate) const USAGE: u8 = 2;
/// The store cannot be used.
pub(crate) const STORE: u8 = 3;
/// A guard, a budget or a time limit ended the run.
pub(crate) const STOPPED: u8 = 4;
/// A tool has asked a person, and the run waits for the answer.
pub(crate) const WAITING: u8 = 5;
/// The user interrupted the command.
pub(crate) const INTERRUPTED: u8 = greenroom_terminal::interrupt::INTERRUPTED;

/// A failure with its exit code, created where it happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CliError {
    /// The exit code.
    pub(crate) code: u8,
    /// The message.
    pub(crate) text: String,
}

impl CliError {
    /// Creates a failure that ends the program with this code.
    pub(crate) fn new(code: u8, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for CliError {}

/// Creates an error in the user's request.
pub(crate) fn usage(text: impl Into<String>) -> anyhow::Error {
    CliError::new(USAGE, text).into()
}

/// Creates an error of the system about a path in the store's directory. `action` is a verb.
pub(crate) fn of_store(action: &'static str, path: &Path, error: &io::Error) -> CliError {
    let text = if matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
    {
        StoreError::NotPermitted { action, path: path.to_owned() }.to_string()
    } else {
        format!("cannot {action} {}: {error}", path.display())
    };
    CliError::new(STORE, text)
}

/// Returns the exit code of a failure.
#[expect(clippy::wildcard_enum_match_arm, reason = "the library's errors are open-ended")]
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<greenroom::Error>() {
            return match error {
                greenroom::Error::NoSession { .. } | greenroom::Error::Deleted { .. } => STORE,
                error if error.is_invalid_request() => USAGE,
                greenroom::Error::Store(store) => store_code(store),
                greenroom::Error::Stopped { .. } | greenroom::Error::TimedOut { .. } => STOPPED,
                greenroom::Error::Waiting { .. } => WAITING,
                greenroom::Error::Aborted => INTERRUPTED,
                _ => FAILED,
            };
        }
        if let Some(error) = cause.downcast_ref::<StoreError>() {
            return store_code(error);
        }
        if let Some(error) = cause.downcast_ref::<ClientError>() {
            return client_code(error);
        }
        if let Some(failure) = cause.downcast_ref::<CliError>() {
            return failure.code;
        }
        if cause.is::<ToolsError>() {
            return USAGE;
        }
    }
    FAILED
}

/// Returns the exit code of another process's refusal or silence.
fn client_code(error: &ClientError) -> u8 {
    if matches!(error, ClientError::Parameters(_) | ClientError::TooLong { .. }) {
        return USAGE;
    }
    if matches!(error, ClientError::Silent(_)) {
        return STORE;
    }
    match error.kind() {
        Some(
            ProblemKind::Invalid
            | ProblemKind::SessionId
            | ProblemKind::NothingToCompact
            | ProblemKind::Version,
        ) => USAGE,
        Some(
            ProblemKind::NoSession | ProblemKind::Damaged | ProblemKind::StoreInUse | ProblemKind::Store,
        ) => STORE,
        Some(ProblemKind::Stopped | ProblemKind::TimedOut) => STOPPED,
        Some(ProblemKind::Waiting) => WAITING,
        Some(ProblemKind::Aborted) => INTERRUPTED,
        Some(
            ProblemKind::Model
            | ProblemKind::BranchSummary
            | ProblemKind::Busy
            | ProblemKind::Limited
            | ProblemKind::Interrupted
            | ProblemKind::Closed
            | ProblemKind::Other
            | _,
        )
        | None => FAILED,
    }
}

fn store_code(error: &StoreError) -> u8 {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the store's errors are open-ended")]
    match error {
        // Errors on the command line.
        StoreError::SessionId { .. } | StoreError::Backup { .. } => USAGE,
        StoreError::Cancelled => INTERRUPTED,
        _ => STORE,
    }
}

/// Whether the reader of our output has gone: `greenroom … | head`.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// Whether another process has the store open.
pub(crate) fn is_store_in_use(error: &anyhow::Error) -> bool {
    let in_use = |error: &StoreError| matches!(error, StoreError::InUse { .. });
    error.chain().any(|cause| {
        cause.downcast_ref::<StoreError>().is_some_and(in_use)
            || matches!(cause.downcast_ref::<greenroom::Error>(), Some(greenroom::Error::Store(error)) if in_use(error))
    })
}

/// What stands before each item of a list in a message.
pub(crate) const ITEM: &str = "\n  ";

/// Returns the failure in one line, or in several if its message is a list of our own, with advice.
pub(crate) fn line(error: &anyhow::Error) -> String {
    let text = error.chain().map(ToString::to_string).fold(String::new(), |mut text, cause| {
        // Most of our errors include their cause already.
        if !text.contains(&cause) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&cause);
        }
        text
    });
    let squeezed = |text: &str| harmless(&joined_words(text)).into_owned();
    // Only our own lists have lines of their own; a host reports the same error.
    let is_own = error.is::<CliError>() || error.is::<ClientError>();
    let lines = text.split(ITEM).filter(|_| is_own);
    let text = match lines.map(squeezed).collect::<Vec<_>>().join(ITEM) {
        of_others if of_others.is_empty() => squeezed(&text),
        own => own,
    };
    let text = secrets::redactor().all(&text).into_owned();
    match advice(error) {
        Some(advice) if !text.contains(advice) => format!("{text}; {advice}"),
        Some(_) | None => text,
    }
}

fn advice(error: &anyhow::Error) -> Option<&'static str> {
    for cause in error.chain() {
        if let Some(error) = cause.downcast_ref::<ClientError>() {
            return advice_of_client(error);
        }
        match cause.downcast_ref() {
            Some(greenroom::Error::Model(failure)) => return advice_for(failure.class),
            Some(greenroom::Error::NoSession { .. }) => return Some(LIST),
            Some(greenroom::Error::Waiting { .. }) => return Some(ANSWER),
            Some(_) | None => {}
        }
        let store = match cause.downcast_ref::<greenroom::Error>() {
            Some(greenroom::Error::Store(store)) => Some(&**store),
            _ => cause.downcast_ref::<StoreError>(),
        };
        if let Some(store) = store {
            #[expect(clippy::wildcard_enum_match_arm, reason = "the store's errors are open-ended")]
            return match store {
                StoreError::NotFound { .. } => Some(LIST),
                StoreError::InUse { .. } => Some("or name another store with --data-dir"),
                StoreError::Quarantined { .. } | StoreError::Damaged { .. } => Some(DAMAGED),
                _ => None,
            };
        }
    }
    None
}

fn advice_of_client(error: &ClientError) -> Option<&'static str> {
    let ClientError::Refused(problem) = error else {
        return matches!(error, ClientError::Disconnected).then_some(
            "nothing that was acknowledged is lost; `greenroom sessions` shows the session's state, and `greenroom \
            resume` continues it",
        );
    };
    #[expect(clippy::wildcard_enum_match_arm, reason = "the texts of the others say what to do")]
    match problem.kind {
        ProblemKind::Model => problem.failure.as_ref().and_then(|failure| advice_for(failure.class)),
        ProblemKind::NoSession => Some(LIST),
        ProblemKind::Waiting => Some(ANSWER),
        ProblemKind::Damaged => Some(DAMAGED),
        _ => None,
    }
}

fn advice_for(class: FailureClass) -> Option<&'static str> {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the texts of the others say what to do")]
    match class {
        FailureClass::Auth => Some(
            "it is read from the variable that --api-key-env or the provider's api_key_env names, or without a named provider \
             from OPENAI_API_KEY: `greenroom config set providers.NAME.api_key_env VARIABLE`",
        ),
        FailureClass::Timeout => Some(text::UNREACHED),
        FailureClass::Quota => Some("or use another model or server"),
        FailureClass::RateLimited | FailureClass::Overloaded => Some("try again later"),
        FailureClass::Loading => {
            Some("see the server's log; limits.loading_timeout_s sets how long to wait for it")
        }
        FailureClass::RequestTooLargeForRateLimit => Some("use a shorter prompt, or another model or server"),
        _ => None,
    }
}

/// Returns the failure as the last line of `run --json`.
pub(crate) fn json(error: &anyhow::Error, session: Option<&str>) -> Value {
    let mut object = Map::new();
    object.insert("type".into(), "error".into());
    if let Some(session) = session {
        object.insert("session_id".into(), session.into());
    }
    let known = error.chain().find_map(|cause| cause.downcast_ref::<greenroom::Error>());
    let refused = error.chain().find_map(|cause| match cause.downcast_ref() {
        Some(ClientError::Refused(problem)) => Some(&**problem),
        Some(_) | None => None,
    });
    let failure = match known {
        Some(greenroom::Error::Model(failure)) => Some(failure),
        Some(_) | None => refused.and_then(|problem| problem.failure.as_ref()),
    };
    if let Some(failure) = failure {
        object.insert("class".into(), failure.class.as_str().into());
        let mut add = |key: &str, value: Option<u64>| {
            if let Some(value) = value {
                object.insert(key.into(), value.into());
            }
        };
        add("status", failure.status.map(u64::from));
        add("limit", failure.limit);
        add("requested", failure.requested);
    } else {
        object.insert("class".into(), "other".into());
    }
    object.insert("message".into(), line(error).into());
    let retryable = known.map_or_else(
        || {
            refused.is_some_and(|problem| problem.retryable)
                || error.chain().any(|cause| cause.downcast_ref().is_some_and(StoreError::is_retryable))
        },
        greenroom::Error::is_retryable,
    );
    object.insert("retryable".into(), retryable.into());
    Value::Object(object)
}
