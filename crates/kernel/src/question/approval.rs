//! Approvals: the question whether one call may run, and its answer.
//!
//! Invariants: an approval is about exactly one call with the arguments and the folder that it shows; its answer
//! is recorded in one form, whatever the person wrote.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{GivenAnswer, Question, QuestionKind};

/// The call that a person is asked to approve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[non_exhaustive]
pub struct Approval {
    /// The tool's name.
    pub tool: String,
    /// The arguments with which the call would run. Long ones are shortened to a text.
    pub arguments: Value,
    /// The folder in which the call would run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// Why the call needs an approval, as a clause; absent if calls of its kind always do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The parts that need the approval: the commands of a command line, the files of redirections.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<String>,
    /// The rules that the answer `always` adds; without any, `always` is no answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<String>,
    /// The change that the call would make: lines that begin with `+`, `-` or a blank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preview: Option<String>,
}

/// The answer to an approval.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Approved {
    /// The call runs.
    Once,
    /// The call runs, and the offered rules are added.
    Always,
    /// The call does not run. The model reads the person's words, if there are any.
    No(Option<String>),
}

impl Approval {
    /// The size up to which arguments, and a preview, are shown whole; in bytes of their JSON. A call that cannot be
    /// shown whole cannot be approved ([`Self::is_whole`]).
    pub const SHOWN_BYTES_MAX: usize = 192 * 1024;
    /// The maximum size of the whole question, as JSON text in bytes.
    pub(crate) const BYTES_MAX: usize = 768 * 1024;

    /// Creates the approval of a call.
    pub fn new(tool: impl Into<String>, arguments: Value) -> Self {
        let text = arguments.to_string();
        let arguments = match text.len() <= Self::SHOWN_BYTES_MAX {
            true => arguments,
            false => {
                let end = text.floor_char_boundary(Self::SHOWN_BYTES_MAX);
                Value::from(format!("{} … ({} bytes in all)", &text[..end], text.len()))
            }
        };
        Self {
            tool: tool.into(),
            arguments,
            folder: None,
            why: None,
            parts: Vec::new(),
            rules: Vec::new(),
            preview: None,
        }
    }

    /// Sets what the call would change. A preview that is too large is left out.
    pub fn set_preview(&mut self, preview: Option<String>) {
        self.preview = preview.filter(|preview| json_bytes(preview) <= Self::SHOWN_BYTES_MAX);
    }

    /// Whether a person can read all that the call would do: its arguments are whole, or its changes are.
    pub fn is_whole(&self) -> bool {
        self.preview.is_some() || !self.arguments.is_string()
    }

    /// Returns what may be answered, for people.
    pub fn answers(&self) -> &'static str {
        match self.rules.is_empty() {
            true => "yes, no, or no with words for the model",
            false => "yes, always, no, or no with words for the model",
        }
    }

    /// Converts an answer to the recorded form.
    pub(super) fn accept(&self, value: &Value) -> Result<Value, String> {
        let answers = self.answers();
        let misfit = || Err(format!("the answers are: {answers}"));
        match read(value) {
            Some(Approved::Always) if self.rules.is_empty() => {
                Err(format!("no rule would allow only such calls; the answers are: {answers}"))
            }
            Some(Approved::Once) => Ok(Value::from("yes")),
            Some(Approved::Always) => Ok(Value::from("always")),
            Some(Approved::No(None)) => Ok(Value::from("no")),
            Some(Approved::No(Some(words))) => Ok(json!({ "no": words })),
            None => misfit(),
        }
    }

    pub(super) fn weight(&self) -> usize {
        let texts =
            self.parts.iter().chain(&self.rules).chain(&self.preview).chain(&self.folder).chain(&self.why);
        self.tool.len() + self.arguments.to_string().len() + texts.map(String::len).sum::<usize>()
    }
}

/// Returns the size of a text in JSON.
fn json_bytes(text: &str) -> usize {
    serde_json::to_string(text).map_or(usize::MAX, |json| json.len())
}

/// Reads an answer in any form that a person may use.
fn read(value: &Value) -> Option<Approved> {
    let words = |text: &str| {
        let text =
            text.trim_start_matches(|c: char| c.is_whitespace() || matches!(c, ',' | ':' | ';' | '.' | '-'));
        Some(text.trim_end().to_owned()).filter(|text| !text.is_empty())
    };
    let text = match value {
        Value::String(text) => text.trim(),
        Value::Object(object) if object.len() == 1 => {
            return object.get("no").and_then(Value::as_str).map(|text| Approved::No(words(text)));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    let lower = text.to_ascii_lowercase();
    match lower.as_str() {
        "yes" | "y" | "once" => return Some(Approved::Once),
        "always" | "a" => return Some(Approved::Always),
        "no" | "n" => return Some(Approved::No(None)),
        _ => {}
    }
    let is_no = lower.strip_prefix("no").is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric()));
    is_no.then(|| Approved::No(words(&text[2..])))
}

impl Question {
    /// Creates the question whether a call may run.
    ///
    /// ```
    /// use greenroom_kernel::question::{Approval, Approved, GivenAnswer, Question};
    ///
    /// let question = Question::approval("Refund 120 EUR?", Approval::new("refund", serde_json::json!({ "euros": 120 })));
    /// assert_eq!(question.check(), Ok(()));
    /// assert_eq!(GivenAnswer::from("no, ask Ada first").approved(), Some(Approved::No(Some("ask Ada first".into()))));
    /// ```
    pub fn approval(text: impl Into<String>, approval: Approval) -> Self {
        Self::text(text).of_kind(QuestionKind::Approval { approval: Box::new(approval) })
    }
}

impl GivenAnswer {
    /// Returns the answer to an approval; `None` if it is none.
    pub fn approved(&self) -> Option<Approved> {
        read(&self.value)
    }
}
