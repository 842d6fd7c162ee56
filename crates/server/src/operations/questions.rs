//! Operations on the questions that tools ask people.

use greenroom::{GivenAnswer, PendingQuestion};
use greenroom_kernel::EntryId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Answer, CallScope, Operation, Performed, Reach, Route, Verb};

/// The questions that wait for a person.
#[derive(Debug, Clone, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ListQuestions {
    /// The session; without it, all sessions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
}

/// Questions that wait.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct QuestionsListed {
    /// The questions, oldest first in each session.
    pub questions: Vec<PendingQuestion>,
}

impl Operation for ListQuestions {
    operation!("session/questions", Route::read_within(Reach::Label, "/questions"), QuestionsListed);

    fn session_id(&self) -> Option<&str> {
        self.session_id.as_deref()
    }

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let questions = match &self.session_id {
            Some(id) => scope.runtime.session(id).await?.questions().await?,
            None => scope.seen(scope.runtime.questions().await?, |question| &question.session).await?,
        };
        Ok(Answer::Now(QuestionsListed { questions }))
    }
}

/// Answers a question, once. The run that waits continues: at once if the session is live, else when it is opened. The
/// answer does not open it, since its tools may be another program's.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AnswerQuestion {
    /// The session.
    pub session_id: String,
    /// The question.
    pub question_id: EntryId,
    /// The answer: a text, a choice, several choices, or a form's object.
    pub value: Value,
    /// The person who answers: a name for the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// The answer is durable.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Answered {
    /// The session.
    pub session_id: String,
    /// The question.
    pub question_id: EntryId,
}

impl Operation for AnswerQuestion {
    of_session!(
        "session/answer",
        Modify,
        Route::prompt(Verb::Post, "/sessions/{session_id}/answer"),
        Answered
    );

    async fn perform(self, scope: CallScope) -> Performed<Self> {
        let mut answer = GivenAnswer::from(self.value);
        answer.by = self.by;
        scope.runtime.session(&self.session_id).await?.answer(self.question_id, answer).await?;
        Ok(Answer::Now(Answered { session_id: self.session_id, question_id: self.question_id }))
    }
}
