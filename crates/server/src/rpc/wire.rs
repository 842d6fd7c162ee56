//! The wire form of JSON-RPC 2.0: lines, requests, notifications, batches and errors. The methods are not known here.
//!
//! Invariants: a line that is too long costs no more memory than any other, no line keeps memory after it, and the next
//! line is read as if the long one had not been there; an invalid message is answered with what is wrong, and with its
//! id if that is known; no line that is written here is longer than the lines that are read: a longer answer becomes an
//! error with the same id.

use std::cell::Cell;
use std::fmt;

use crate::operations::Refused;
use crate::problem::{Problem, ProblemKind};
use greenroom::Error;
use serde::Deserializer as _;
use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde_json::{Value, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

#[cfg(test)]
mod tests;

/// The longest line in either direction, in bytes, with its line break: of every client and every server. A byte of text
/// can take six in JSON (`\u0000`), so the largest file to import (64 MiB) takes 384 MiB at worst, and the longest
/// standard input of a run (32 MiB) 192 MiB, which leaves room for pictures.
pub const LINE_BYTES_MAX: u64 = 512 << 20;
/// How much memory a line may leave for the next one, in bytes.
const KEPT_BYTES: usize = 1 << 20;
/// How much of a line that is too long is searched for its id, in bytes.
const BEGINNING_BYTES: usize = 4 * 1024;
/// How much of a line that is too long is read at a time, in bytes.
const SKIPPED_BYTES: u64 = 1 << 20;
/// The maximum number of messages that one batch may have.
pub(super) const BATCH_MAX: usize = 1_024;

/// An error: its code, its text, and data for programs.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(super) code: i64,
    message: String,
    data: Option<Value>,
}

impl Refusal {
    pub(crate) const PARSE_ERROR: i64 = -32_700;
    pub(crate) const INVALID_REQUEST: i64 = -32_600;
    pub(crate) const METHOD_NOT_FOUND: i64 = -32_601;
    pub(crate) const INVALID_PARAMS: i64 = -32_602;
    pub(crate) const SERVER_ERROR: i64 = -32_000;
    pub(crate) const NO_SESSION: i64 = -32_001;

    pub(crate) fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::UnknownMethod(name) => {
                Self::new(Self::METHOD_NOT_FOUND, format!("there is no method {name:?}"))
            }
            Refused::Parameters(reason) => Self::new(Self::INVALID_PARAMS, reason),
            Refused::Failed(error) => error.into(),
            Refused::Problem(problem) => Self {
                code: Self::SERVER_ERROR,
                message: problem.message.clone(),
                data: Some(json!(problem)),
            },
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let is_unknown = matches!(error, Error::NoSession { .. } | Error::Deleted { .. });
        Self {
            code: if is_unknown { Self::NO_SESSION } else { Self::SERVER_ERROR },
            message: error.to_string(),
            data: Some(json!(Problem::from(&error))),
        }
    }
}

/// The next piece of the input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A line is in the buffer.
    Read,
    /// A line that is too long. Its beginning is in the buffer, and the rest is discarded.
    TooLong,
    /// The end of the input.
    End,
}

/// Reads the next line into `line`, if it is within the limit. Releases the memory of a long line first: the next one
/// may be hours away.
pub(crate) async fn next_line(
    input: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
    bytes_max: u64,
) -> std::io::Result<Line> {
    line.clear();
    line.shrink_to(KEPT_BYTES);
    (&mut *input).take(bytes_max + 1).read_until(b'\n', line).await?;
    if line.is_empty() {
        return Ok(Line::End);
    }
    if line.len() as u64 <= bytes_max {
        return Ok(Line::Read);
    }
    let mut is_over = line.ends_with(b"\n");
    line.truncate(BEGINNING_BYTES);
    line.shrink_to_fit();
    let mut skipped = Vec::new();
    while !is_over {
        skipped.clear();
        let count = (&mut *input).take(SKIPPED_BYTES).read_until(b'\n', &mut skipped).await?;
        is_over = count == 0 || skipped.ends_with(b"\n");
    }
    Ok(Line::TooLong)
}

/// The id of the message that begins like this, as far as it can be known: null if it cannot, as in a batch, or if long
/// parameters come before the id.
pub(crate) fn id_of(beginning: &[u8]) -> Value {
    let found = Cell::new(Value::Null);
    let beginning = beginning.get(..BEGINNING_BYTES).unwrap_or(beginning);
    // Parsing a fragment ends with an error in any case.
    let _ = serde_json::Deserializer::from_slice(beginning).deserialize_map(FindId(&found));
    found.into_inner()
}

/// Finds the id among the members of an object.
struct FindId<'a>(&'a Cell<Value>);

impl<'de> Visitor<'de> for FindId<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a request")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut key = members.next_key::<String>()?;
        while let Some(name) = key {
            if name != "id" {
                members.next_value::<IgnoredAny>()?;
                key = members.next_key()?;
                continue;
            }
            let id: Value = members.next_value()?;
            // Only a following character shows that a number is complete.
            key = members.next_key()?;
            if matches!(id, Value::String(_) | Value::Number(_)) {
                self.0.set(id);
            }
        }
        Ok(())
    }
}

/// Whether a line fits, without its line break.
pub(crate) fn fits(line: &str, bytes_max: u64) -> bool {
    (line.len() as u64) < bytes_max
}

/// The content of a line.
#[derive(Debug)]
pub(super) enum Incoming {
    One(Message),
    /// At least one, and at most [`BATCH_MAX`].
    Batch(Vec<Message>),
}

/// One message.
#[derive(Debug)]
pub(super) enum Message {
    /// A request, which is answered with this id.
    Request { id: Value, call: Call },
    /// A notification, which is never answered.
    Notification(Call),
    /// An invalid message, which is answered with the reason.
    Invalid { id: Value, refusal: Refusal },
}

/// A method and its parameters: by name, or none.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) method: String,
    pub(super) params: Value,
}

impl Incoming {
    /// Reads a line.
    pub(super) fn read(line: &[u8]) -> Result<Self, Refusal> {
        let value = serde_json::from_slice(line)
            .map_err(|error| Refusal::new(Refusal::PARSE_ERROR, format!("not JSON: {error}")))?;
        let Value::Array(batch) = value else { return Ok(Self::One(Message::read(value))) };
        let refuse = |reason: String| Err(Refusal::new(Refusal::INVALID_REQUEST, reason));
        match batch.len() {
            0 => refuse("a batch must not be empty".to_owned()),
            1..=BATCH_MAX => Ok(Self::Batch(batch.into_iter().map(Message::read).collect())),
            more => refuse(format!("a batch has at most {BATCH_MAX} messages, and this one has {more}")),
        }
    }
}

impl Message {
    fn read(value: Value) -> Self {
        let Value::Object(mut object) = value else {
            return Self::invalid(Value::Null, "a request must be an object");
        };
        let id = object.remove("id");
        let has_id = id.is_some();
        let id = id.unwrap_or(Value::Null);
        if !matches!(id, Value::Null | Value::String(_) | Value::Number(_)) {
            return Self::invalid(Value::Null, "`id` must be a string, a number or null");
        }
        if object.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
            return Self::invalid(id, "`jsonrpc` must be \"2.0\"");
        }
        let Some(Value::String(method)) = object.remove("method") else {
            return Self::invalid(id, "`method` must be a string");
        };
        // Many clients send null for no parameters.
        let params = object.remove("params").unwrap_or_default();
        if !matches!(params, Value::Null | Value::Object(_) | Value::Array(_)) {
            return Self::invalid(id, "`params` must be an object");
        }
        let call = Call { method, params };
        if has_id { Self::Request { id, call } } else { Self::Notification(call) }
    }

    fn invalid(id: Value, reason: &str) -> Self {
        Self::Invalid { id, refusal: Refusal::new(Refusal::INVALID_REQUEST, reason) }
    }
}

impl Call {
    /// The parameters: those by name, or null for none.
    pub(super) fn params(&self) -> Result<Value, Refusal> {
        if self.params.is_array() {
            let reason = "parameters are given by name: `params` must be an object";
            return Err(Refusal::new(Refusal::INVALID_PARAMS, reason));
        }
        Ok(self.params.clone())
    }
}

/// The answer to a request, as it is sent.
pub(super) fn answer(id: &Value, result: Result<Value, Refusal>) -> String {
    answer_within(id, result, LINE_BYTES_MAX)
}

/// As [`answer`], within a limit in bytes.
fn answer_within(id: &Value, result: Result<Value, Refusal>, bytes_max: u64) -> String {
    let line = written(id, result);
    if fits(&line, bytes_max) { line } else { written(id, Err(unsaid(&line, bytes_max).into())) }
}

/// The answers to a batch in their wire form. If they are too long together, those that exceed their share of the line
/// become errors.
pub(super) fn batch_answer(answers: Vec<(Value, Result<Value, Refusal>)>) -> String {
    batch_answer_within(answers, LINE_BYTES_MAX)
}

fn batch_answer_within(answers: Vec<(Value, Result<Value, Refusal>)>, bytes_max: u64) -> String {
    let share_max = (bytes_max / answers.len().max(1) as u64).saturating_sub(2);
    let answers: Vec<_> = answers.into_iter().map(|(id, result)| (written(&id, result), id)).collect();
    let line = |answers: &[String]| format!("[{}]", answers.join(","));
    let bytes: usize = answers.iter().map(|(answer, _)| answer.len() + 1).sum();
    if (bytes as u64) + 2 <= bytes_max {
        return line(&answers.into_iter().map(|(answer, _)| answer).collect::<Vec<_>>());
    }
    let shorten = |(answer, id): (String, Value)| {
        if fits(&answer, share_max) { answer } else { written(&id, Err(unsaid(&answer, share_max).into())) }
    };
    line(&answers.into_iter().map(shorten).collect::<Vec<_>>())
}

/// The error instead of an answer that would be too long for a line.
fn unsaid(line: &str, bytes_max: u64) -> Refused {
    let text = format!(
        "what there is to say has {} bytes as a line of JSON, and {bytes_max} are the most here; ask for less at once",
        line.len()
    );
    Refused::Problem(Box::new(Problem::new(ProblemKind::Other, text)))
}

fn written(id: &Value, result: Result<Value, Refusal>) -> String {
    match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(Refusal { code, message, data }) => {
            let mut error = json!({ "code": code, "message": message });
            if let Some(data) = data {
                error["data"] = data;
            }
            json!({ "jsonrpc": "2.0", "id": id, "error": error })
        }
    }
    .to_string()
}

/// The outcome of accepted work in its wire form: a notification that names its request, if that had an id.
pub(super) fn result(method: &str, request: Option<Value>, mut params: Value) -> String {
    if let Some(id) = request {
        params["request_id"] = id;
    }
    let line = notification(method, &params);
    if fits(&line, LINE_BYTES_MAX) {
        return line;
    }
    let kept = ["request_id", "session_id", "entry_id"].map(|name| (name.to_owned(), params[name].take()));
    let mut shorter = Value::Object(kept.into_iter().filter(|(_, value)| !value.is_null()).collect());
    if let Refused::Problem(problem) = unsaid(&line, LINE_BYTES_MAX) {
        shorter["error"] = json!(problem);
    }
    notification(method, &shorter)
}

/// A notification, as it is sent.
pub(crate) fn notification(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
}
