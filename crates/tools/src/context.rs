//! The context of a tool's call: the session, cancellation, progress, and the application's state.
//!
//! Invariants: nothing here blocks; reports and requests go to a sink that must not block.

use std::sync::Arc;

use greenroom_kernel::question::{GivenAnswer, Question};
use greenroom_kernel::redact::Redactor;
use greenroom_kernel::settings::CompactOptions;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use crate::questions::{AskError, Questions};
use crate::state::{AppState, MissingState};

/// The context that a tool receives with its call. A test of a tool makes one with [`ToolContext::new`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
#[must_use]
pub struct ToolContext {
    /// The id of the calling session.
    pub session: String,
    /// The call's id, as given by the model.
    pub call_id: String,
    /// Fires when the run is aborted or the call has exceeded its time limit.
    pub cancel: CancellationToken,
    /// Receives progress: lines for people, best effort, never sent to the model.
    pub progress: Progress,
    /// Requests a compaction of the session after the run.
    pub compaction: CompactionRequests,
    /// The application state that the program gave the agent.
    pub app_state: AppState,
    /// Asks people: see [`Self::ask`].
    pub questions: Questions,
    /// Knows the secrets that are replaced in the result. A tool that shortens a text asks it where
    /// ([`Redactor::cut`]), since half of a secret is not recognised.
    pub redactor: Redactor,
    /// See [`Self::call_key`].
    pub key: String,
    /// Keeps the files that the call changes, so that they can be brought back.
    #[cfg(feature = "command-tools")]
    pub files: crate::rewind::CallFiles,
}

impl ToolContext {
    /// Creates the context of a call that is never cancelled, without state.
    pub fn new(session: impl Into<String>, call_id: impl Into<String>) -> Self {
        let (session, call_id) = (session.into(), call_id.into());
        let key = format!("{session}/{call_id}");
        Self { session, call_id, key, ..Self::default() }
    }

    /// Creates the context of a call of an agent, without progress and state.
    pub fn of_call(
        session: impl Into<String>,
        call_id: impl Into<String>,
        key: String,
        cancel: CancellationToken,
        questions: Questions,
        redactor: Redactor,
    ) -> Self {
        Self {
            session: session.into(),
            call_id: call_id.into(),
            cancel,
            progress: Progress::default(),
            compaction: CompactionRequests::default(),
            app_state: AppState::default(),
            questions,
            redactor,
            key,
            #[cfg(feature = "command-tools")]
            files: crate::rewind::CallFiles::default(),
        }
    }

    /// Adds a value that [`Self::state`] returns, for tests of tools.
    pub fn with_state<T: Send + Sync + 'static>(mut self, value: T) -> Self {
        self.app_state = self.app_state.with(value);
        self
    }

    /// Sets the answers that questions get, in order: for tests of tools.
    pub fn with_answers(mut self, answers: impl IntoIterator<Item = impl Into<GivenAnswer>>) -> Self {
        self.questions = Questions::answered(answers);
        self
    }

    /// Asks a person, and waits for the answer: minutes, or days. The question is recorded before anybody
    /// sees it. It survives a restart of the program; see
    /// [`FunctionTool::resumable`](crate::FunctionTool::resumable) for what then happens to the call. The
    /// time limits of the call and of its run are paused meanwhile.
    ///
    /// A question stays open until it is answered or expires, at the latest until the call ends. To stop
    /// waiting, let it expire ([`Question::expires_in`]): dropping the future leaves the question open.
    ///
    /// ```
    /// use greenroom_kernel::question::Question;
    /// use greenroom_tools::{ToolContext, ToolError, tool};
    ///
    /// /// Pays an order back.
    /// #[derive(serde::Deserialize, schemars::JsonSchema)]
    /// struct Refund {
    ///     euros: u32,
    /// }
    ///
    /// async fn refund(refund: Refund, cx: ToolContext) -> Result<String, ToolError> {
    ///     let question = Question::choice(format!("Refund {} EUR?", refund.euros), ["yes", "no"]);
    ///     if !cx.ask(question).await?.is("yes") {
    ///         return Ok("The refund was not approved.".to_owned());
    ///     }
    ///     // The effect comes after the last question, and is keyed: see `call_key`.
    ///     Ok(format!("refunded as {}", cx.call_key()))
    /// }
    ///
    /// # #[tokio::main] async fn main() {
    /// let refund_tool = tool("refund", refund).resumable();
    /// // A test of the tool answers for the person.
    /// let cx = ToolContext::new("s", "c").with_answers(["no"]);
    /// assert_eq!(refund(Refund { euros: 120 }, cx).await, Ok("The refund was not approved.".to_owned()));
    /// # drop(refund_tool);
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`AskError`]: no answer in time, the run was aborted, or the question cannot be asked.
    pub async fn ask(&self, question: impl Into<Question>) -> Result<GivenAnswer, AskError> {
        self.questions.ask(question.into()).await
    }

    /// Asks a person to fill in a form for a value of this type. An answer that does not fit its schema is
    /// rejected, and the question stays open.
    ///
    /// # Errors
    /// As [`Self::ask`]; [`AskError::Unreadable`] if an answer fits the schema but cannot be read as the
    /// type.
    pub async fn ask_as<T: DeserializeOwned + JsonSchema>(
        &self,
        question: impl Into<Question>,
    ) -> Result<T, AskError> {
        let form = Question::form::<T>("").kind;
        let answer = self.ask(question.into().of_kind(form)).await?;
        answer.parse().map_err(|error| AskError::Unreadable(error.to_string()))
    }

    /// Returns a key unique to this call that stays the same when the call is run again after a restart:
    /// derived from the session, the model's answer and the call. Use it as an idempotency key to recognise
    /// effects that already happened.
    pub fn call_key(&self) -> &str {
        &self.key
    }

    /// Returns the agent's state of this type.
    ///
    /// # Errors
    /// [`MissingState`] if the agent has none. The text names the type, for the reader of the call's result.
    pub fn state<T: Send + Sync + 'static>(&self) -> Result<Arc<T>, MissingState> {
        self.app_state.get()
    }
}

/// Lets a tool or a hook request a compaction of its session. Requests never block.
#[derive(Clone, Default)]
pub struct CompactionRequests(Option<Arc<dyn Fn(CompactOptions) + Send + Sync>>);

impl CompactionRequests {
    /// Creates requests that go to `sink`. The sink must not block.
    pub fn new(sink: impl Fn(CompactOptions) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(sink)))
    }

    /// Requests a compaction after the current run, or now if none is running. Of several requests the last
    /// one counts; a request is dropped if no message arrived since the last compaction.
    pub fn request(&self, options: CompactOptions) {
        if let Some(sink) = &self.0 {
            sink(options);
        }
    }
}

impl std::fmt::Debug for CompactionRequests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CompactionRequests")
    }
}

/// The sink for a tool's progress.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<dyn Fn(String) + Send + Sync>>);

impl Progress {
    /// Creates progress that calls `sink` for each line. The sink must not block.
    pub fn new(sink: impl Fn(String) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(sink)))
    }

    /// Reports one line of progress, for people.
    pub fn report(&self, line: impl Into<String>) {
        if let Some(sink) = &self.0 {
            sink(line.into());
        }
    }
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}
