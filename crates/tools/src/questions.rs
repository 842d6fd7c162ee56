//! How a tool or a hook asks people.
//!
//! Invariants: each question of a call has an index in the order of the call's questions, which identifies it
//! after a restart; the call's time limit is paused while a person is asked; after a call has ended, nothing
//! is asked in its name.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::question::{Asker, GivenAnswer, Question, QuestionKind};
use parking_lot::Mutex;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::{Pauses, ValueSchema};

#[cfg(test)]
mod tests;

/// Why a question has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// No answer in time.
    #[error("the question expired without an answer")]
    Expired,
    /// The run was aborted, or the call is over.
    #[error("the question was withdrawn because its run or its call ended")]
    Withdrawn,
    /// The question is not valid.
    #[error("the question cannot be asked: {0}")]
    Invalid(String),
    /// The call was interrupted by a restart and run again, and asked a different question than before.
    #[error(
        "the call asked {recorded:?} before a restart, but asks {asked:?} now; a resumable tool must ask the same \
         questions again"
    )]
    Changed {
        /// The question before the restart.
        recorded: String,
        /// The question now.
        asked: String,
    },
    /// The answer is not of the type that the tool expects.
    #[error("the answer cannot be read: {0}")]
    Unreadable(String),
    /// No person can be asked: the context was made for a test, without answers.
    #[error("nobody can be asked here; in tests, use `ToolContext::with_answers`")]
    Nobody,
    /// The question could not be recorded.
    #[error("the question could not be recorded: {0}")]
    NotRecorded(String),
}

/// Takes a question: the asker, the index of the question within the call (from 0), and the question.
type Sink = dyn Fn(Asker, u32, Question) -> BoxFuture<'static, Result<GivenAnswer, AskError>> + Send + Sync;

/// Asks people on behalf of a call. Clones share the count of questions.
#[derive(Clone)]
#[must_use]
pub struct Questions {
    sink: Option<Arc<Sink>>,
    next: Arc<AtomicU32>,
    asker: Asker,
    pauses: Pauses,
    over: CancellationToken,
}

impl Default for Questions {
    fn default() -> Self {
        Self {
            sink: None,
            next: Arc::default(),
            asker: Asker::Tool,
            pauses: Pauses::default(),
            over: CancellationToken::new(),
        }
    }
}

impl Questions {
    /// Creates questions that go to `sink`.
    pub fn new(
        sink: impl Fn(Asker, u32, Question) -> BoxFuture<'static, Result<GivenAnswer, AskError>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self { sink: Some(Arc::new(sink)), ..Self::default() }
    }

    /// Creates questions that get these answers in order: for tests of tools.
    pub fn answered(answers: impl IntoIterator<Item = impl Into<GivenAnswer>>) -> Self {
        let answers: VecDeque<GivenAnswer> = answers.into_iter().map(Into::into).collect();
        let answers = Mutex::new(answers);
        Self::new(move |_, _, _| {
            let answer = answers.lock().pop_front();
            std::future::ready(answer.ok_or(AskError::Nobody)).boxed()
        })
    }

    /// Returns the same questions for the hooks before the call.
    pub fn of_hooks(&self) -> Self {
        Self { asker: Asker::Hook, ..self.clone() }
    }

    /// Returns the same questions with time limits that also pause `outer` while a question is open.
    pub fn pausing(self, outer: &Pauses) -> Self {
        Self { pauses: self.pauses.and(outer), ..self }
    }

    /// Returns the time limits that are paused while a question is open.
    pub fn pauses(&self) -> &Pauses {
        &self.pauses
    }

    /// Returns the number of questions asked.
    pub fn asked(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// Ends the call: questions that are still open in its name are reported as withdrawn.
    pub fn end(&self) {
        self.over.cancel();
    }

    /// Asks a question and waits for the answer.
    ///
    /// # Errors
    /// The reason why there is no answer.
    pub async fn ask(&self, question: Question) -> Result<GivenAnswer, AskError> {
        question.check().map_err(AskError::Invalid)?;
        if let QuestionKind::Form { schema } = &question.kind {
            check_form(schema).map_err(AskError::Invalid)?;
        }
        let sink = self.sink.as_ref().ok_or(AskError::Nobody)?;
        let ordinal = self.next.fetch_add(1, Ordering::Relaxed);
        let _pause = self.pauses.pause();
        tokio::select! {
            biased;
            () = self.over.cancelled() => Err(AskError::Withdrawn),
            answer = sink(self.asker, ordinal, question) => answer,
        }
    }
}

impl fmt::Debug for Questions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Questions").field("asked", &self.asked()).finish_non_exhaustive()
    }
}

/// Checks that a form's schema is a JSON schema without references to anything outside of it.
///
/// # Errors
/// The reason, in one line.
pub(crate) fn check_form(schema: &Value) -> Result<(), String> {
    form(schema).map(drop)
}

/// Checks that a value fits the schema of a form.
///
/// # Errors
/// The reason, in one line for a person.
pub fn fits(schema: &Value, value: &Value) -> Result<(), String> {
    form(schema)?.check(value)
}

fn form(schema: &Value) -> Result<ValueSchema, String> {
    ValueSchema::new(schema).map_err(|error| format!("the form's schema is broken: {error}"))
}
