//! Changes to a session that start no work.
//!
//! Invariants: after a refused change, the draft must not be appended.

use serde_json::Value;

use super::Draft;
use crate::entry::{EntryId, EntryKind, Metadata, RunId};
use crate::question::{AnswerError, GivenAnswer};

/// The maximum number of labels of a session. A head is stored with every append, so its size is limited.
pub const LABELS_MAX: usize = 16;

/// A change to a session.
#[derive(Debug, Clone)]
pub enum Amendment {
    /// Withdraw the input in the inbox.
    ClearInbox {
        /// Only this input, if it still waits; `None` for all.
        only: Option<EntryId>,
    },
    /// Set the title or labels.
    Set(Metadata),
    /// Withdraw the open questions, because nobody waits for the session's work any more.
    WithdrawQuestions,
    /// End the run that waits for people, as aborted, if nothing has continued it since it was left. The draft is
    /// [`Log::abort_of_waiting`](super::Log::abort_of_waiting).
    AbortWaiting {
        /// The run.
        run: RunId,
    },
    /// Record a person's answer to a question. The run continues when the session is opened.
    Answer {
        /// The question's entry.
        question: EntryId,
        /// The person's answer.
        answer: GivenAnswer,
    },
}

impl Amendment {
    /// Whether the change withdraws this input, which waits.
    pub fn withdraws(&self, item: EntryId) -> bool {
        match self {
            Self::ClearInbox { only } => only.is_none_or(|only| only == item),
            Self::Set(_) | Self::WithdrawQuestions | Self::AbortWaiting { .. } | Self::Answer { .. } => false,
        }
    }
}

/// Why a change is refused.
#[derive(Debug, Clone, PartialEq)]
pub enum AmendError {
    /// The session would have more than [`LABELS_MAX`] labels.
    TooManyLabels,
    /// The answer to this question is refused.
    Answer(EntryId, AnswerError),
}

impl Draft {
    /// Applies a change. `waiting` is the input that the change [withdraws](Amendment::withdraws); returns how many
    /// items were withdrawn.
    /// `fits` checks a value against a JSON schema.
    ///
    /// # Errors
    /// The session would have too many labels, or the answer is refused.
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
            Amendment::AbortWaiting { .. } => {}
            Amendment::ClearInbox { .. } if waiting.is_empty() => {}
            Amendment::ClearInbox { .. } => {
                let withdrawn = waiting.len();
                self.push(EntryKind::InboxCleared { items: waiting });
                return Ok(withdrawn);
            }
        }
        Ok(0)
    }
}
