//! Changes of a session that begin nothing in it.
//!
//! Invariants: one that is refused leaves a draft that must not be appended.

use serde_json::Value;

use super::Draft;
use crate::entry::{EntryId, EntryKind, Metadata};
use crate::question::{AnswerError, GivenAnswer};

/// The most labels of a session. A head is stored with every append, so its size is limited.
pub const LABELS_MAX: usize = 16;

/// What is changed of a session.
#[derive(Debug, Clone)]
pub enum Amendment {
    /// Everything that waits is withdrawn.
    ClearInbox,
    /// Its title or its labels.
    Set(Metadata),
    /// Nobody waits for its work any more: what it asks people is withdrawn.
    WithdrawQuestions,
    /// A person answers one of its questions. Its run goes on when the session is opened.
    Answer {
        /// The question's entry.
        question: EntryId,
        /// What the person answers.
        answer: GivenAnswer,
    },
}

/// Why a session is not changed.
#[derive(Debug, Clone, PartialEq)]
pub enum AmendError {
    /// It would have more than [`LABELS_MAX`] labels.
    TooManyLabels,
    /// The answer to this question is not taken.
    Answer(EntryId, AnswerError),
}

impl Draft {
    /// Changes the session, in whose inbox these items wait. Gives how many of them are withdrawn. `fits` says whether a
    /// value fits a JSON schema, and why not.
    ///
    /// # Errors
    /// The session would have too many labels, or the answer is not taken.
    pub fn amend(
        &mut self,
        amendment: Amendment,
        waiting: Vec<EntryId>,
        fits: impl FnOnce(&Value, &Value) -> Result<(), String>,
    ) -> Result<usize, AmendError> {
        match amendment {
            Amendment::Answer { question, answer } => {
                let end = self.questions.answer(question, answer, self.at_ms, fits);
                let end = end.map_err(|error| AmendError::Answer(question, error))?;
                self.end_question(question, end);
            }
            Amendment::WithdrawQuestions => self.withdraw_questions(),
            Amendment::Set(metadata) => {
                self.push(EntryKind::Metadata(metadata));
                if self.head.labels.len() > LABELS_MAX {
                    return Err(AmendError::TooManyLabels);
                }
            }
            Amendment::ClearInbox if waiting.is_empty() => {}
            Amendment::ClearInbox => {
                let withdrawn = waiting.len();
                self.push(EntryKind::InboxCleared { items: waiting });
                return Ok(withdrawn);
            }
        }
        Ok(0)
    }
}
