//! Questions of calls to people, and their answers: valid answers, the end of a question, and the result of
//! an interrupted call.
//!
//! Invariants: a question has exactly one end; it ends with its call at the latest, and a call with its run.
//! The questions held are those of calls without a result.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::entry::{Entry, EntryId, EntryKind, RunId};
use crate::message::{Message, ToolCall, ToolResult, ToolStatus};

mod approval;
#[cfg(test)]
mod tests;

pub use approval::{Approval, Approved};

/// The maximum size of a question, and of an answer, as JSON text in bytes. An approval, which shows a whole call, may
/// have [`Approval::BYTES_MAX`].
pub(crate) const BYTES_MAX: usize = 64 * 1024;
/// The maximum number of choices.
const CHOICES_MAX: usize = 100;

/// A question for a person.
///
/// ```
/// use greenroom_kernel::question::Question;
///
/// let approval = Question::choice("Refund 120 EUR?", ["yes", "no"])
///     .details("Order 7, paid on 3 May; the parcel came back.")
///     .expires_in(std::time::Duration::from_secs(24 * 3600));
/// assert_eq!(approval.text, "Refund 120 EUR?");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
#[must_use]
pub struct Question {
    /// The question, in one line or a few.
    pub text: String,
    /// Information for the person who answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
    /// The valid answers.
    #[serde(flatten)]
    pub kind: QuestionKind,
    /// How long the question may stay open; `None`: as long as its call. It is recorded as the time at which it
    /// expires.
    #[serde(skip)]
    pub expires_in: Option<Duration>,
}

/// The valid answers of a question. In JSON: `kind`, and the fields of the kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum QuestionKind {
    /// Any text.
    Text,
    /// One of these, or several.
    Choice {
        /// The choices.
        choices: Vec<String>,
        /// Whether an answer is a list of choices, at least one; else it is one choice.
        several: bool,
    },
    /// A value that a JSON schema describes.
    Form {
        /// The schema.
        schema: Value,
    },
    /// Whether a call may run. An answer is `yes`, `always`, `no`, or an object with the person's words as `no`; a
    /// text that begins with `no` is understood too.
    Approval {
        /// The call.
        approval: Box<Approval>,
    },
    /// A value that this version does not know: a newer program wrote it. It is read, and never asked.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

impl Question {
    /// Creates a question with a free-text answer.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), details: None, kind: QuestionKind::Text, expires_in: None }
    }

    /// Creates a question with these choices.
    pub fn choice(text: impl Into<String>, choices: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::text(text).of_kind(QuestionKind::Choice {
            choices: choices.into_iter().map(Into::into).collect(),
            several: false,
        })
    }

    /// Creates a question with these choices, of which several may be chosen.
    pub fn choices(text: impl Into<String>, choices: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::text(text).of_kind(QuestionKind::Choice {
            choices: choices.into_iter().map(Into::into).collect(),
            several: true,
        })
    }

    /// Creates a question for a value of this type. Its schema describes the form.
    pub fn form<T: JsonSchema>(text: impl Into<String>) -> Self {
        Self::text(text).of_kind(QuestionKind::Form { schema: schemars::schema_for!(T).to_value() })
    }

    /// Adds details that help a person to answer.
    pub fn details(mut self, details: impl Into<String>) -> Self {
        self.details = Some(details.into());
        self
    }

    /// Sets how long the question may stay open. After that it expires, even if the program was not running
    /// meanwhile.
    pub fn expires_in(mut self, time: Duration) -> Self {
        self.expires_in = Some(time);
        self
    }

    /// Changes the kind of answer.
    pub fn of_kind(mut self, kind: QuestionKind) -> Self {
        self.kind = kind;
        self
    }

    /// Checks that the question is valid.
    ///
    /// # Errors
    /// The reason, as a clause.
    pub fn check(&self) -> Result<(), String> {
        if self.text.trim().is_empty() {
            return Err("it has no text".to_owned());
        }
        if self.kind == QuestionKind::Unknown {
            return Err("this version does not know its kind".to_owned());
        }
        if let QuestionKind::Choice { choices, .. } = &self.kind {
            if choices.is_empty() || choices.len() > CHOICES_MAX {
                return Err(format!(
                    "it must offer 1 to {CHOICES_MAX} choices, and offers {}",
                    choices.len()
                ));
            }
            if let Some(blank) = choices.iter().find(|choice| choice.trim().is_empty()) {
                return Err(format!("{blank:?} is not one of the choices"));
            }
            let twice = |choice: &&String| choices.iter().filter(|other| other == choice).count() > 1;
            if let Some(choice) = choices.iter().find(twice) {
                return Err(format!("it offers {choice:?} twice"));
            }
        }
        let bytes = serde_json::to_string(self).map_or(usize::MAX, |text| text.len());
        let bytes_max = match &self.kind {
            QuestionKind::Approval { .. } => Approval::BYTES_MAX,
            QuestionKind::Text
            | QuestionKind::Choice { .. }
            | QuestionKind::Form { .. }
            | QuestionKind::Unknown => BYTES_MAX,
        };
        if bytes > bytes_max {
            return Err(format!("it has {bytes} bytes, and may have {bytes_max}"));
        }
        Ok(())
    }

    /// Returns its approximate size in bytes.
    pub fn weight(&self) -> usize {
        let kind = match &self.kind {
            QuestionKind::Text | QuestionKind::Unknown => 0,
            QuestionKind::Choice { choices, .. } => choices.iter().map(String::len).sum(),
            QuestionKind::Form { schema } => schema.to_string().len(),
            QuestionKind::Approval { approval } => approval.weight(),
        };
        self.text.len() + self.details.as_ref().map_or(0, String::len) + kind
    }

    /// Whether it asks the same, apart from its time limit.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.text, &self.details, &self.kind) == (&other.text, &other.details, &other.kind)
    }

    /// Converts the answer to the recorded form. `fits` checks a value against a JSON schema, and returns why
    /// it does not fit.
    ///
    /// # Errors
    /// The problem with the answer, as a clause that says what is expected.
    fn accept(
        &self,
        value: Value,
        fits: impl FnOnce(&Value, &Value) -> Result<(), String>,
    ) -> Result<Value, String> {
        let bytes = value.to_string();
        if bytes.len() > BYTES_MAX {
            return Err(format!("it has {} bytes, and may have {BYTES_MAX}", bytes.len()));
        }
        // A value that is nested too deeply could not be read back.
        serde_json::from_str::<Value>(&bytes).map_err(|error| format!("it cannot be recorded: {error}"))?;
        match &self.kind {
            QuestionKind::Text => match value {
                Value::String(_) => Ok(value),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                    Err("it must be a text".to_owned())
                }
            },
            QuestionKind::Choice { choices, several } => {
                let offered = || format!("the choices are {}", quoted(choices));
                let chosen: Vec<String> = match (value, several) {
                    (Value::String(one), _) => vec![one],
                    (Value::Array(chosen), true) => {
                        let text = |value: Value| value.as_str().map(str::to_owned);
                        let chosen: Option<Vec<String>> = chosen.into_iter().map(text).collect();
                        chosen.ok_or_else(|| format!("it must be a list of choices; {}", offered()))?
                    }
                    (_, true) => return Err(format!("it must be a list of choices; {}", offered())),
                    (_, false) => return Err(format!("it must be one of the choices; {}", offered())),
                };
                if let Some(unknown) = chosen.iter().find(|chosen| !choices.contains(chosen)) {
                    return Err(format!("{unknown:?} is not one of the choices; {}", offered()));
                }
                if chosen.is_empty() {
                    return Err(format!("nothing is chosen; {}", offered()));
                }
                if let Some(twice) =
                    chosen.iter().find(|one| chosen.iter().filter(|other| other == one).count() > 1)
                {
                    return Err(format!("{twice:?} is chosen twice"));
                }
                Ok(if *several { Value::from(chosen) } else { Value::from(chosen.into_iter().next()) })
            }
            QuestionKind::Form { schema } => fits(schema, &value).map(|()| value),
            QuestionKind::Approval { approval } => approval.accept(&value),
            QuestionKind::Unknown => Err("this version does not know what may be answered".to_owned()),
        }
    }
}

impl<T: Into<String>> From<T> for Question {
    fn from(text: T) -> Self {
        Self::text(text)
    }
}

fn quoted(choices: &[String]) -> String {
    choices.iter().map(|choice| format!("{choice:?}")).collect::<Vec<_>>().join(", ")
}

/// A person's answer.
///
/// ```
/// use greenroom_kernel::question::GivenAnswer;
///
/// let answer = GivenAnswer::from("yes").by("ada@example.org");
/// assert!(answer.is("yes"));
/// assert_eq!(answer.to_string(), "yes");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Answer")]
#[non_exhaustive]
pub struct GivenAnswer {
    /// The value: a string for a text or a choice, a list of strings for several choices, what the schema says for a
    /// form.
    pub value: Value,
    /// The person who answered, according to the program that took the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl GivenAnswer {
    /// Sets who answered: a name for the log, which is not verified.
    #[must_use]
    pub fn by(mut self, who: impl Into<String>) -> Self {
        self.by = Some(who.into());
        self
    }

    /// Returns its approximate size in bytes.
    pub fn weight(&self) -> usize {
        self.value.to_string().len() + self.by.as_ref().map_or(0, String::len)
    }

    /// Whether it is this text, or this single choice.
    pub fn is(&self, text: &str) -> bool {
        match &self.value {
            Value::Array(chosen) => matches!(chosen.as_slice(), [only] if only.as_str() == Some(text)),
            Value::String(value) => value == text,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => false,
        }
    }

    /// Returns the text, or the one choice; `None` for several choices and forms.
    pub fn as_text(&self) -> Option<&str> {
        self.value.as_str()
    }

    /// Returns the choices: one for a text or a single choice.
    pub fn choices(&self) -> Vec<&str> {
        match &self.value {
            Value::Array(chosen) => chosen.iter().filter_map(Value::as_str).collect(),
            Value::String(chosen) => vec![chosen],
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => Vec::new(),
        }
    }

    /// Parses the value, for forms.
    ///
    /// # Errors
    /// If the value is not of this type.
    pub fn parse<T: serde::de::DeserializeOwned>(&self) -> serde_json::Result<T> {
        T::deserialize(&self.value)
    }
}

/// The text itself, or JSON.
impl std::fmt::Display for GivenAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.as_text() {
            Some(text) => f.write_str(text),
            None => self.value.fmt(f),
        }
    }
}

impl From<Value> for GivenAnswer {
    fn from(value: Value) -> Self {
        Self { value, by: None }
    }
}

impl From<&str> for GivenAnswer {
    fn from(text: &str) -> Self {
        Value::from(text).into()
    }
}

impl From<String> for GivenAnswer {
    fn from(text: String) -> Self {
        Value::from(text).into()
    }
}

/// The source of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Asker {
    /// The tool, in its call.
    Tool,
    /// A hook before the call, which has not begun.
    Hook,
    /// A value that this version does not know: a newer program wrote it.
    #[serde(other)]
    #[schemars(skip)]
    Unknown,
}

/// A recorded question.
#[derive(Debug, Clone, PartialEq)]
pub struct AskedQuestion {
    /// The run.
    pub run: RunId,
    /// The call in which it is asked.
    pub call_id: String,
    /// The name of the called tool.
    pub tool: String,
    /// The index of the question within the call, from 0.
    pub ordinal: u32,
    /// The asker.
    pub asker: Asker,
    /// The question.
    pub question: Question,
    /// The expiry time, in Unix milliseconds; `None`: with its call.
    pub expires_at_ms: Option<u64>,
}

/// How a question ended. In JSON: `outcome`, and the answer's fields where there is one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "snake_case")]
#[non_exhaustive]
pub enum QuestionEnd {
    /// A person answered.
    Answered(GivenAnswer),
    /// No answer in time.
    Expired,
    /// Its call ended without an answer: its run was aborted, or it asks no more.
    Withdrawn,
}

impl QuestionEnd {
    /// Returns the outcome in snake case.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Answered(_) => "answered",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
        }
    }
}

/// A question of a call that has no result yet.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownQuestion {
    /// Its id: that of its entry.
    pub id: EntryId,
    /// The question.
    pub asked: Arc<AskedQuestion>,
    /// Its end; `None` while it is open.
    pub end: Option<QuestionEnd>,
}

/// Why an answer is rejected.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum AnswerError {
    /// No call without a result has asked this.
    #[error("the question does not exist")]
    Unknown,
    /// The question has ended.
    #[error("the question is {}", .0.as_str())]
    Closed(QuestionEnd),
    /// The answer does not fit; the question stays open.
    #[error("invalid answer: {0}")]
    Misfit(String),
}

/// The questions of the calls without a result, folded from the log's entries.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Questions {
    known: Vec<KnownQuestion>,
    /// The calls whose tool has begun after a hook asked.
    started: Vec<String>,
}

impl Questions {
    /// Processes the session's next entry.
    #[expect(clippy::wildcard_enum_match_arm, reason = "all other records say nothing of questions")]
    pub fn follow(&mut self, entry: &Entry) {
        match &entry.kind {
            EntryKind::Question(asked) => {
                self.known.push(KnownQuestion { id: entry.id, asked: Arc::clone(asked), end: None });
            }
            EntryKind::QuestionEnded { question, end } => {
                if let Some(known) = self.known.iter_mut().find(|known| known.id == *question) {
                    known.end.get_or_insert_with(|| end.clone());
                }
            }
            EntryKind::CallStarted { call_id } => self.started.push(call_id.clone()),
            EntryKind::RunEnded { .. } => (self.known, self.started) = (Vec::new(), Vec::new()),
            EntryKind::Message { message, .. } => {
                if let Message::ToolResult(result) = &**message {
                    self.known.retain(|known| known.asked.call_id != result.call_id);
                    self.started.retain(|started| *started != result.call_id);
                }
            }
            _ => {}
        }
    }

    /// Returns the open questions that end as withdrawn before this entry is recorded.
    #[expect(clippy::wildcard_enum_match_arm, reason = "no other record ends a call or a run")]
    pub(crate) fn withdrawn_by(&self, kind: &EntryKind) -> Vec<EntryId> {
        let ends = |known: &&KnownQuestion| match kind {
            EntryKind::RunEnded { .. } => true,
            EntryKind::Message { message, .. } => {
                matches!(&**message, Message::ToolResult(result) if result.call_id == known.asked.call_id)
            }
            _ => false,
        };
        self.open().filter(ends).map(|known| known.id).collect()
    }

    /// Returns the open questions, in the order in which they were asked.
    pub fn open(&self) -> impl Iterator<Item = &KnownQuestion> {
        self.known.iter().filter(|known| known.end.is_none())
    }

    /// Whether no call without a result has asked anything.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Returns the questions of one call, in the order in which they were asked.
    pub fn of_call(&self, call_id: &str) -> impl Iterator<Item = &KnownQuestion> {
        self.known.iter().filter(move |known| known.asked.call_id == call_id)
    }

    /// Whether a call has asked something: such a call outlives its process.
    pub fn has_asked(&self, call_id: &str) -> bool {
        self.of_call(call_id).next().is_some()
    }

    /// Whether the tool of a call may have begun.
    pub fn may_have_begun(&self, call_id: &str) -> bool {
        let is_by_tool = |known: &KnownQuestion| known.asked.asker == Asker::Tool;
        self.started.iter().any(|started| started == call_id) || self.of_call(call_id).any(is_by_tool)
    }

    /// Returns the question with this id.
    pub fn find(&self, id: EntryId) -> Option<&KnownQuestion> {
        self.known.iter().find(|known| known.id == id)
    }

    /// Returns the end that an answer gives a question. `fits` checks a value against a JSON schema, and
    /// returns why it does not fit.
    ///
    /// # Errors
    /// The reason for rejecting the answer. Nothing is changed.
    pub fn answer(
        &self,
        id: EntryId,
        answer: GivenAnswer,
        now_ms: u64,
        fits: impl FnOnce(&Value, &Value) -> Result<(), String>,
    ) -> Result<QuestionEnd, AnswerError> {
        let known = self.find(id).ok_or(AnswerError::Unknown)?;
        match &known.end {
            Some(end) => Err(AnswerError::Closed(end.clone())),
            None if known.has_expired(now_ms) => Err(AnswerError::Closed(QuestionEnd::Expired)),
            None => {
                let GivenAnswer { value, by } = answer;
                let value = known.asked.question.accept(value, fits).map_err(AnswerError::Misfit)?;
                Ok(QuestionEnd::Answered(GivenAnswer { value, by }))
            }
        }
    }

    /// Returns the open questions that have expired.
    pub(crate) fn expired(&self, now_ms: u64) -> Vec<EntryId> {
        self.open().filter(|known| known.has_expired(now_ms)).map(|known| known.id).collect()
    }

    /// Returns when the next open question expires, in Unix milliseconds.
    pub fn next_expiry_ms(&self) -> Option<u64> {
        self.open().filter_map(|known| known.asked.expires_at_ms).min()
    }
}

impl KnownQuestion {
    fn has_expired(&self, now_ms: u64) -> bool {
        self.asked.expires_at_ms.is_some_and(|at_ms| at_ms <= now_ms)
    }
}

/// Returns the result of a call that was interrupted by a restart after it had asked something, and that must
/// not be run again.
pub fn cut_off<'a>(call: &ToolCall, asked: impl IntoIterator<Item = &'a KnownQuestion>) -> ToolResult {
    let mut text = String::from(
        "The call was cut off by a restart after it had asked a person, and was not run again. \
         Whether it took any effect before or after the question is not known.",
    );
    for known in asked {
        let question = &known.asked.question.text;
        let end = match &known.end {
            Some(QuestionEnd::Answered(answer)) => format!("The answer was: {answer}"),
            Some(QuestionEnd::Expired) => "No answer in time.".to_owned(),
            Some(QuestionEnd::Withdrawn) | None => "Nobody answered.".to_owned(),
        };
        text = format!("{text}\nThe question was: {question}\n{end}");
    }
    ToolResult::synthetic(call, ToolStatus::Interrupted, text)
}
