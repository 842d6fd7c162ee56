//! JSON-RPC 2.0 as it stands on the wire: lines, requests, notifications, batches and errors. What the methods do is not
//! known here.
//!
//! Invariants: a line that is too long costs no more memory than one that is not, and the next line is read as if it had
//! not been there; what is not a request says what is wrong with it and which id it is answered with.

use crate::operations::Refused;
use crate::problem::Problem;
use greenroom::Error;
use serde_json::{Value, json};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt};

#[cfg(test)]
mod tests;

/// The longest line that is read, in bytes.
pub const LINE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// The most messages that one batch may have.
pub(super) const BATCH_MAX: usize = 1_024;

/// A refused request: code, text, and what a program may want to know.
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

/// What the input gives next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A line is in the buffer.
    Read,
    /// There was one that was too long; it is gone.
    TooLong,
    /// There is no more.
    End,
}

/// Reads the next line into `line`, if it has at most so many bytes.
pub(crate) async fn next_line(
    input: &mut (impl AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
    bytes_max: u64,
) -> std::io::Result<Line> {
    line.clear();
    (&mut *input).take(bytes_max + 1).read_until(b'\n', line).await?;
    if line.is_empty() {
        return Ok(Line::End);
    }
    if line.len() as u64 <= bytes_max {
        return Ok(Line::Read);
    }
    while !line.ends_with(b"\n") {
        line.clear();
        if (&mut *input).take(LINE_BYTES_MAX.min(bytes_max)).read_until(b'\n', line).await? == 0 {
            break;
        }
    }
    line.clear();
    Ok(Line::TooLong)
}

/// What a line holds.
#[derive(Debug)]
pub(super) enum Incoming {
    One(Message),
    /// At least one, and at most [`BATCH_MAX`].
    Batch(Vec<Message>),
}

/// One message.
#[derive(Debug)]
pub(super) enum Message {
    /// It is answered, with this id.
    Request { id: Value, call: Call },
    /// It is not answered, whatever becomes of it.
    Notification(Call),
    /// It is neither, and is answered with the reason.
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
        // Many clients send null for none.
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

/// The result of work that was taken on, as it is sent: a notification that names its request, if that had an id.
pub(super) fn result(method: &str, request: Option<Value>, mut params: Value) -> String {
    if let Some(id) = request {
        params["request_id"] = id;
    }
    notification(method, &params)
}

/// A notification, as it is sent.
pub(crate) fn notification(method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string()
}
