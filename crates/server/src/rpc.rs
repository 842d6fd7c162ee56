//! JSON-RPC 2.0 over two byte streams, one message a line.
//!
//! Methods: `session/start`, `session/prompt`, `session/compact`, `session/list`, `session/branch`,
//! `agent/state`, `agent/abort`. A request for work answers at once; what comes of it arrives as notifications:
//! `event` for every event of the started sessions, `session/prompt_result` and `session/compact_result`.
//!
//! Invariants: every request has exactly one answer; one that cannot be understood gets an error and harms no
//! other; a line has at most [`LINE_BYTES_MAX`]; when the input ends, running runs are interrupted in order.

use std::collections::HashMap;
use std::sync::Arc;

use greenroom::kernel::EntryId;
use greenroom::{
    Agent, CompactOptions, Delivery, Error, Filter, ModelSettings, Runtime, SessionHandle, Status,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

#[cfg(test)]
mod tests;

/// The longest line that is read.
pub const LINE_BYTES_MAX: u64 = 4 * 1024 * 1024;
/// How many lines may wait for a slow reader.
const OUT_LINES_MAX: usize = 1_024;

const PARSE_ERROR: i64 = -32_700;
const INVALID_REQUEST: i64 = -32_600;
const METHOD_NOT_FOUND: i64 = -32_601;
const INVALID_PARAMS: i64 = -32_602;
const SERVER_ERROR: i64 = -32_000;

/// One request as it is read.
#[derive(Deserialize)]
struct Request {
    jsonrpc: String,
    #[serde(default)]
    id: Option<Value>,
    method: String,
    #[serde(default)]
    params: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Start {
    session_id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Prompt {
    session_id: String,
    text: String,
    /// A second prompt with the same key is not said again.
    key: Option<String>,
    /// How the model is to answer this one.
    #[serde(default)]
    settings: ModelSettings,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Compact {
    session_id: String,
    /// How much to keep, in tokens.
    keep_recent: Option<u64>,
    focus: Option<String>,
    #[serde(default)]
    force: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Branch {
    session_id: String,
    /// The entry to go on from; `null` for the empty conversation.
    entry_id: Option<EntryId>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    session_id: String,
}

/// A refused request: code, text, and what a program may want to know.
struct Refusal {
    code: i64,
    message: String,
    data: Option<Value>,
}

impl Refusal {
    fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self { code: SERVER_ERROR, message: error.to_string(), data: Some(error_data(&error)) }
    }
}

fn error_data(error: &Error) -> Value {
    let class = if let Error::Model(failure) = error { failure.class.as_str() } else { "other" };
    json!({ "class": class, "message": error.to_string(), "retryable": error.is_retryable() })
}

/// Serves requests until the input ends. `agent` is what sessions are started with.
///
/// # Errors
/// When reading or writing the streams fails.
pub async fn serve(
    runtime: &Runtime,
    agent: Arc<Agent>,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin + Send + 'static,
) -> std::io::Result<()> {
    let (out, lines) = mpsc::channel(OUT_LINES_MAX);
    let writer = tokio::spawn(write_lines(output, lines));
    let mut server =
        Server { runtime: runtime.clone(), agent, sessions: HashMap::new(), tellers: JoinSet::new(), out };
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut input).take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line).await?;
        if read == 0 {
            break;
        }
        if line.len() as u64 > LINE_BYTES_MAX {
            server.refuse(Value::Null, Refusal::new(INVALID_REQUEST, "the line is longer than 4 MiB")).await;
            // What is left of it cannot be told from the next request.
            break;
        }
        if !line.trim_ascii().is_empty() {
            server.line(&line).await;
        }
    }
    for session in server.sessions.values() {
        session.abort();
    }
    for id in server.sessions.keys() {
        // A session that is gone already needs no closing.
        let _ = runtime.close(id).await;
    }
    drop(server);
    writer.await.unwrap_or(Ok(()))
}

async fn write_lines(
    mut output: impl AsyncWrite + Unpin,
    mut lines: mpsc::Receiver<String>,
) -> std::io::Result<()> {
    while let Some(mut line) = lines.recv().await {
        line.push('\n');
        output.write_all(line.as_bytes()).await?;
        if lines.is_empty() {
            output.flush().await?;
        }
    }
    output.flush().await
}

struct Server {
    runtime: Runtime,
    agent: Arc<Agent>,
    sessions: HashMap<String, SessionHandle>,
    /// One a session: tells its events. They end with the server.
    tellers: JoinSet<()>,
    out: mpsc::Sender<String>,
}

impl Server {
    async fn line(&mut self, line: &[u8]) {
        let value: Value = match serde_json::from_slice(line) {
            Ok(value) => value,
            Err(error) => {
                return self
                    .refuse(Value::Null, Refusal::new(PARSE_ERROR, format!("not JSON: {error}")))
                    .await;
            }
        };
        let id = value.get("id").cloned().unwrap_or(Value::Null);
        let request = match Request::deserialize(value) {
            Ok(request) if request.jsonrpc == "2.0" => request,
            Ok(_) => {
                return self.refuse(id, Refusal::new(INVALID_REQUEST, "`jsonrpc` must be \"2.0\"")).await;
            }
            Err(error) => return self.refuse(id, Refusal::new(INVALID_REQUEST, error.to_string())).await,
        };
        let is_notification = request.id.is_none();
        match self.call(&request.method, request.params).await {
            Ok(result) if !is_notification => {
                self.send(json!({ "jsonrpc": "2.0", "id": id, "result": result })).await;
            }
            Ok(_) => {}
            Err(refusal) => self.refuse(id, refusal).await,
        }
    }

    async fn call(&mut self, method: &str, params: Value) -> Result<Value, Refusal> {
        match method {
            "session/start" => {
                let Start { session_id } = read(params)?;
                self.session(&session_id).await?;
                Ok(json!({ "session_id": session_id }))
            }
            "session/prompt" => {
                let Prompt { session_id, text, key, settings } = read(params)?;
                settings.check().map_err(Error::from)?;
                let session = self.session(&session_id).await?;
                let out = self.out.clone();
                tokio::spawn(async move {
                    let mut prompt = session.prompt(text).settings(settings);
                    if let Some(key) = key {
                        prompt = prompt.once(key);
                    }
                    let params = match prompt.await {
                        Ok(reply) => {
                            let mut told = json!(reply);
                            told["session_id"] = session_id.into();
                            told
                        }
                        Err(error) => json!({ "session_id": session_id, "error": error_data(&error) }),
                    };
                    notify(&out, "session/prompt_result", &params).await;
                });
                Ok(json!({ "accepted": true }))
            }
            "session/compact" => {
                let Compact { session_id, keep_recent, focus, force } = read(params)?;
                let session = self.session(&session_id).await?;
                if session.state().await?.status != Status::Idle {
                    return Err(Error::NotIdle { session: session_id, what: "compact it" }.into());
                }
                let out = self.out.clone();
                tokio::spawn(async move {
                    let options = CompactOptions { focus, keep_recent, force };
                    let params = match session.compact(options).await {
                        Ok(compacted) => json!({ "session_id": session_id, "compacted": compacted }),
                        Err(error) => json!({ "session_id": session_id, "error": error_data(&error) }),
                    };
                    notify(&out, "session/compact_result", &params).await;
                });
                Ok(json!({ "accepted": true }))
            }
            "session/branch" => {
                let Branch { session_id, entry_id } = read(params)?;
                self.session(&session_id).await?.branch(entry_id).await?;
                Ok(json!({ "session_id": session_id }))
            }
            "session/list" => {
                let sessions = self.runtime.sessions().await?;
                Ok(json!({ "sessions": sessions }))
            }
            "agent/state" => {
                let Named { session_id } = read(params)?;
                let state = self.session(&session_id).await?.state().await?;
                Ok(json!(state))
            }
            "agent/abort" => {
                let Named { session_id } = read(params)?;
                self.session(&session_id).await?.abort();
                Ok(json!({ "session_id": session_id }))
            }
            unknown => Err(Refusal::new(METHOD_NOT_FOUND, format!("there is no method {unknown:?}"))),
        }
    }

    /// The session, opened when it is first named; from then on its events are told.
    async fn session(&mut self, id: &str) -> Result<SessionHandle, Refusal> {
        if let Some(session) = self.sessions.get(id) {
            return Ok(session.clone());
        }
        let mut events = self.runtime.subscribe(Filter::session(id));
        let session = self.runtime.open(id, Arc::clone(&self.agent)).await?;
        let out = self.out.clone();
        let session_id = id.to_owned();
        self.tellers.spawn(async move {
            loop {
                match events.next().await {
                    Some(Delivery::Event(event)) => notify(&out, "event", &json!(*event)).await,
                    Some(Delivery::Gap { from, to, .. }) => {
                        let params =
                            json!({ "type": "gap", "session_id": session_id, "from": from, "to": to });
                        notify(&out, "event", &params).await;
                    }
                    None => return,
                }
            }
        });
        self.sessions.insert(id.to_owned(), session.clone());
        Ok(session)
    }

    async fn refuse(&self, id: Value, refusal: Refusal) {
        let mut error = json!({ "code": refusal.code, "message": refusal.message });
        if let Some(data) = refusal.data {
            error["data"] = data;
        }
        self.send(json!({ "jsonrpc": "2.0", "id": id, "error": error })).await;
    }

    async fn send(&self, message: Value) {
        // A reader that is gone ends the input too.
        let _ = self.out.send(message.to_string()).await;
    }
}

async fn notify(out: &mpsc::Sender<String>, method: &str, params: &Value) {
    let message = json!({ "jsonrpc": "2.0", "method": method, "params": params });
    let _ = out.send(message.to_string()).await;
}

fn read<T: serde::de::DeserializeOwned>(params: Value) -> Result<T, Refusal> {
    serde_json::from_value(params).map_err(|error| Refusal::new(INVALID_PARAMS, error.to_string()))
}
