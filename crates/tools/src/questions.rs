//! How a tool or a hook asks people.
//!
//! Invariants: each question of a call has its place in the order of the call's questions, by which it is found again
//! after a restart; while a person is asked, the call's time limit stands still; once a call is over, nothing is asked in
//! its name.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use greenroom_kernel::question::{Answer, Asker, Question, QuestionKind};
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
    /// Nobody answered in time.
    #[error("nobody answered in time")]
    Expired,
    /// The run was aborted, or the call is over.
    #[error("the question was withdrawn, since its run or its call ended")]
    Withdrawn,
    /// It is no question that can be asked.
    #[error("the question cannot be asked: {0}")]
    Invalid(String),
    /// The call was cut off by a restart and run again, and asked something else than it had asked before.
    #[error(
        "the call asked {recorded:?} before a restart, and asks {asked:?} now; a resumable tool must ask the same \
         questions again"
    )]
    Changed {
        /// What it had asked.
        recorded: String,
        /// What it asks now.
        asked: String,
    },
    /// The answer is not of the type that the tool wants.
    #[error("the answer cannot be read: {0}")]
    Unreadable(String),
    /// There is nobody to ask: the context was made for a test, without answers.
    #[error("there is nobody to ask; `ToolContext::with_answers` answers in tests")]
    Nobody,
    /// The question could not be recorded.
    #[error("the question could not be recorded: {0}")]
    NotRecorded(String),
}

/// Takes a question: who asks, which question of the call it is from 0, and what is asked.
type Sink = dyn Fn(Asker, u32, Question) -> BoxFuture<'static, Result<Answer, AskError>> + Send + Sync;

/// How a call asks people. Clones count the questions together.
#[derive(Clone)]
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
    /// Questions that `sink` takes.
    pub fn new(
        sink: impl Fn(Asker, u32, Question) -> BoxFuture<'static, Result<Answer, AskError>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self { sink: Some(Arc::new(sink)), ..Self::default() }
    }

    /// Questions that get these answers, one after the other: for tests of tools.
    pub fn answered(answers: impl IntoIterator<Item = impl Into<Answer>>) -> Self {
        let answers: VecDeque<Answer> = answers.into_iter().map(Into::into).collect();
        let answers = Mutex::new(answers);
        Self::new(move |_, _, _| {
            let answer = answers.lock().pop_front();
            std::future::ready(answer.ok_or(AskError::Nobody)).boxed()
        })
    }

    /// The same, for the hooks before the call.
    #[must_use]
    pub fn of_hooks(&self) -> Self {
        Self { asker: Asker::Hook, ..self.clone() }
    }

    /// The same, with time limits that pause `outer` too while somebody is asked.
    #[must_use]
    pub fn pausing(self, outer: &Pauses) -> Self {
        Self { pauses: Pauses::within(outer), ..self }
    }

    /// What stands still while somebody is asked.
    pub fn pauses(&self) -> &Pauses {
        &self.pauses
    }

    /// How many questions were asked.
    pub fn asked(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    /// The call is over: whoever still asks in its name hears that the question was withdrawn.
    pub fn end(&self) {
        self.over.cancel();
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// Why there is none.
    pub async fn ask(&self, question: Question) -> Result<Answer, AskError> {
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

/// Whether a form's schema can be asked with: it is a JSON schema that refers to nothing outside of it.
///
/// # Errors
/// Why it cannot, in one line.
pub(crate) fn check_form(schema: &Value) -> Result<(), String> {
    form(schema).map(drop)
}

/// Whether a value fits the schema of a form.
///
/// # Errors
/// Why it does not, in one line for a person.
pub fn fits(schema: &Value, value: &Value) -> Result<(), String> {
    form(schema)?.check(value)
}

fn form(schema: &Value) -> Result<ValueSchema, String> {
    ValueSchema::new(schema).map_err(|error| format!("the form's schema is broken: {error}"))
}
