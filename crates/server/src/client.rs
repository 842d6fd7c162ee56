//! A JSON-RPC client: calls the operations with their types, and receives the sessions' events.
//!
//! Invariants: every call ends, with its answer or with the connection; a request that does not fit into a line is
//! refused before it is sent, and no call waits for a request that the server could not read; requests are sent in the
//! order of the calls; a slow reader of events delays nothing else, and is told which events it missed; an outcome is
//! delivered after the events that the server sent before it; a silent server can be given up, after which nothing
//! waits for it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use greenroom::{Agent, Event, Runtime};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::AbortHandle;

use crate::operations::{Nothing, Operation};
use crate::problem::{Problem, ProblemKind};
use crate::rpc;
use crate::rpc::wire::{LINE_BYTES_MAX, Line, Refusal, fits, id_of, next_line};

pub use self::events::{Events, Received};

mod events;
#[cfg(test)]
mod tests;

/// How many requests may wait to be sent.
const REQUESTS_MAX: usize = 64;
/// How many bytes may be in flight between a client and a server in one process.
const PIPE_BYTES: usize = 1 << 20;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The runtime refused it, or its work failed.
    #[error("{0}")]
    Refused(Box<Problem>),
    /// The parameters cannot be understood, or contradict one another.
    #[error("{0}")]
    Parameters(String),
    /// The request does not fit into a line of the protocol. It was not sent.
    #[error(
        "the request has {bytes} bytes as a line of JSON, and a line may have {bytes_max}; shorten it, or send fewer images"
    )]
    TooLong {
        /// The request's size in bytes, escaped, with the line break.
        bytes: u64,
        /// The limit: [`LINE_BYTES_MAX`].
        bytes_max: u64,
    },
    /// The server does not have this operation.
    #[error("{0}")]
    Unsupported(String),
    /// The connection ended before the answer came. The request may have been executed.
    #[error("the connection to the host ended before it answered")]
    Disconnected,
    /// The server is silent, or did not answer this call, and was given up: the reason, and what to do. See
    /// [`Client::give_up`] and [`Client::is_alive`].
    #[error("{0}")]
    Silent(String),
    /// The answer cannot be understood.
    #[error("the host's answer is invalid: {0}")]
    Malformed(String),
}

impl ClientError {
    /// The kind of the problem, if the runtime refused the request.
    pub fn kind(&self) -> Option<ProblemKind> {
        if let Self::Refused(problem) = self { Some(problem.kind) } else { None }
    }

    /// Whether the server has ended, or is ending.
    pub fn is_gone(&self) -> bool {
        *self == Self::Disconnected || self.kind() == Some(ProblemKind::Closed)
    }
}

/// A connection to a JSON-RPC server. Clones share it; it closes with the last of them.
///
/// ```
/// use greenroom::prelude::*;
/// use greenroom_server::Client;
/// use greenroom_server::operations::{ListSessions, PromptSession};
/// # use greenroom_simulator::Simulator;
/// # #[tokio::main] async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
/// # let model = Simulator::echo();
/// # let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
/// let client = Client::in_process(&runtime, Agent::new("gpt-5.5"));
/// let mut events = client.events_of("umbrella");
/// let work = client.work(PromptSession::new("umbrella", "Umbrella in Oslo?")).await?;
/// println!("durable as entry {:?}", work.accepted.entry_id);
/// println!("{}", work.outcome().await?.reply.text);
/// while let Some(received) = events.try_next() {
///     println!("{received:?}");
/// }
/// assert_eq!(client.call(ListSessions::default()).await?.sessions.len(), 1);
/// client.close().await;
/// # runtime.shutdown().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
    /// Whether the connection has ended.
    ended: watch::Receiver<bool>,
}

/// The state that the clones of a client share.
struct Shared {
    /// To the writer, until the client closes the connection.
    out: Mutex<Option<mpsc::Sender<String>>>,
    /// The calls that the reader resolves.
    pending: Arc<Mutex<Pending>>,
    writer: AbortHandle,
    /// Ends the reader.
    given_up: Arc<Notify>,
    line_bytes_max: u64,
}

/// A reference that does not keep the connection open.
#[derive(Clone)]
pub struct WeakClient {
    shared: Weak<Shared>,
    ended: watch::Receiver<bool>,
}

impl std::fmt::Debug for WeakClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeakClient").finish_non_exhaustive()
    }
}

impl WeakClient {
    /// The client, if a clone of it is left.
    pub fn upgrade(&self) -> Option<Client> {
        Some(Client { shared: self.shared.upgrade()?, ended: self.ended.clone() })
    }

    /// Waits until the connection has ended.
    pub async fn closed(&self) {
        // Without a sender the connection has ended too.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }
}

/// The pending calls.
#[derive(Default)]
struct Pending {
    /// The newest request's id.
    newest: u64,
    is_over: bool,
    /// The reason why the server was given up, if it was.
    given_up: Option<ClientError>,
    /// The pending answers.
    answers: HashMap<u64, PendingRequest>,
    /// The pending outcomes of work.
    outcomes: HashMap<u64, Waiter>,
    listeners: events::Listeners,
}

/// A request without an answer.
struct PendingRequest {
    method: &'static str,
    waiter: Waiter,
    /// How long the server was alive without answering this request; `None` if the answer may take its time.
    unanswered: Option<Duration>,
}

type Waiter = oneshot::Sender<Result<Value, ClientError>>;
type Waiting = oneshot::Receiver<Result<Value, ClientError>>;

/// Work that the server has accepted.
#[must_use = "`outcome` gives what comes of it"]
pub struct Working<O: Operation> {
    /// The answer: the work is accepted.
    pub accepted: O::Output,
    outcome: Waiting,
    /// Keeps the connection open while the outcome is awaited.
    _client: Client,
}

impl<O: Operation> Working<O> {
    /// Waits for the outcome.
    ///
    /// # Errors
    /// [`ClientError::Refused`] with the reason why the work failed; [`ClientError::Disconnected`].
    pub async fn outcome(self) -> Result<O::Outcome, ClientError> {
        let Self { outcome, _client: client, .. } = self;
        let result = waited(outcome).await;
        drop(client);
        typed(result?)
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("is_closed", &self.is_closed()).finish_non_exhaustive()
    }
}

impl<O: Operation> std::fmt::Debug for Working<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Working").field("method", &O::METHOD).finish_non_exhaustive()
    }
}

impl Client {
    /// Creates a client over these streams. It needs a tokio runtime.
    pub fn new(
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        Self::within(LINE_BYTES_MAX, input, output)
    }

    /// As [`Self::new`], with this line limit in bytes.
    fn within(
        line_bytes_max: u64,
        input: impl AsyncRead + Send + Unpin + 'static,
        output: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        let (out, lines) = mpsc::channel(REQUESTS_MAX);
        let (end, ended) = watch::channel(false);
        let pending: Arc<Mutex<Pending>> = Arc::default();
        let writing = tokio::spawn(async move {
            let mut output = output;
            // If writing fails, the reader finds the end too.
            let _ = rpc::write_lines(&mut output, lines).await;
            let _ = output.shutdown().await;
        });
        let reading = Arc::clone(&pending);
        let given_up = Arc::<Notify>::default();
        let ends = Arc::clone(&given_up);
        tokio::spawn(async move {
            tokio::select! {
                () = read(input, line_bytes_max, &reading) => {}
                () = ends.notified() => {}
            }
            reading.lock().end();
            let _ = end.send(true);
        });
        let (out, writer) = (Mutex::new(Some(out)), writing.abort_handle());
        Self { shared: Arc::new(Shared { out, pending, writer, given_up, line_bytes_max }), ended }
    }

    /// Creates a client of a runtime in this process, with which it speaks as another process would. `agent` is the
    /// agent of its sessions.
    pub fn in_process(runtime: &Runtime, agent: impl Into<Arc<Agent>>) -> Self {
        let (near, far) = tokio::io::duplex(PIPE_BYTES);
        let (runtime, agent) = (runtime.clone(), agent.into());
        tokio::spawn(async move {
            let (input, output) = tokio::io::split(far);
            if let Err(error) = rpc::serve(&runtime, agent, input, output).await {
                tracing::debug!("the client in this process is gone: {error}");
            }
        });
        let (input, output) = tokio::io::split(near);
        Self::new(input, output)
    }

    /// Calls an operation, and waits for its answer.
    ///
    /// # Errors
    /// The runtime refused it; the connection ended.
    pub async fn call<O: Operation<Outcome = Nothing>>(
        &self,
        operation: O,
    ) -> Result<O::Output, ClientError> {
        let (answer, _) = self.send(&operation, false).await?;
        typed(waited(answer).await?)
    }

    /// Like [`Self::call`]; `None` if there is no such session.
    ///
    /// # Errors
    /// Those of [`Self::call`], except that there is no such session.
    pub async fn find<O: Operation<Outcome = Nothing>>(
        &self,
        operation: O,
    ) -> Result<Option<O::Output>, ClientError> {
        match self.call(operation).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.kind() == Some(ProblemKind::NoSession) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Starts work. The call returns when the server has accepted it: a prompt when it is durable.
    ///
    /// # Errors
    /// The runtime refused it; the connection ended.
    pub async fn work<O: Operation>(&self, operation: O) -> Result<Working<O>, ClientError> {
        let (answer, outcome) = self.send(&operation, true).await?;
        let accepted = typed(waited(answer).await?)?;
        Ok(Working { accepted, outcome, _client: self.clone() })
    }

    /// The events of all sessions that this connection opens, from now on.
    pub fn events(&self) -> Events {
        self.listen(None)
    }

    /// The events of one session, from now on. They begin when this connection opens the session.
    pub fn events_of(&self, session_id: impl Into<String>) -> Events {
        self.listen(Some(session_id.into()))
    }

    /// Waits until the connection has ended.
    pub async fn closed(&self) {
        // Without a sender the connection has ended too.
        let _ = self.ended.clone().wait_for(|ended| *ended).await;
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        *self.ended.borrow()
    }

    /// A reference to the same connection that does not keep it open.
    pub fn downgrade(&self) -> WeakClient {
        WeakClient { shared: Arc::downgrade(&self.shared), ended: self.ended.clone() }
    }

    /// Closes the connection at once, for all clones of this client, because the server is silent. Pending and later
    /// calls return this reason as [`ClientError::Silent`].
    pub fn give_up(&self, reason: impl Into<String>) {
        self.shared.pending.lock().give_up(ClientError::Silent(reason.into()));
        drop(self.shared.out.lock().take());
        self.shared.writer.abort();
        self.shared.given_up.notify_one();
    }

    /// Records that the server was alive for this long, as it answered something else. A call that should be answered
    /// promptly and has waited for `most` of such time is given up as [`ClientError::Silent`], with the reason for its
    /// method. Nothing else is affected: work, and an operation that [takes time](Operation::TAKES_TIME), may take as
    /// long as they need.
    pub fn is_alive(&self, time: Duration, most: Duration, reason: impl Fn(&str) -> String) {
        self.shared.pending.lock().is_alive(time, most, reason);
    }

    /// Closes the connection, for all clones of this client, and waits until the server has closed it too.
    pub async fn close(self) {
        drop(self.shared.out.lock().take());
        self.closed().await;
    }

    fn listen(&self, session_id: Option<String>) -> Events {
        let mut pending = self.shared.pending.lock();
        let is_over = pending.is_over;
        pending.listeners.add(session_id, is_over)
    }

    /// Sends a request. Returns the receivers of its answer and of its work's outcome.
    async fn send<O: Operation>(
        &self,
        operation: &O,
        has_outcome: bool,
    ) -> Result<(Waiting, Waiting), ClientError> {
        let out = self.shared.out.lock().clone();
        let (params, bytes_max) = (written(operation), self.shared.line_bytes_max);
        // Reserved before the id is assigned: requests are sent in the order of their ids.
        let over = || self.shared.pending.lock().why_over();
        let out = out.ok_or_else(over)?;
        let place = out.reserve().await.map_err(|_| over())?;
        let ((answer, answered), (outcome, ended)) = (oneshot::channel(), oneshot::channel());
        let mut pending = self.shared.pending.lock();
        if pending.is_over {
            return Err(pending.why_over());
        }
        pending.newest += 1;
        let id = pending.newest;
        let line = format!(r#"{{"id":{id},"jsonrpc":"2.0","method":"{}","params":{params}}}"#, O::METHOD);
        if !fits(&line, bytes_max) {
            return Err(ClientError::TooLong { bytes: line.len() as u64 + 1, bytes_max });
        }
        let unanswered = (!has_outcome && !O::TAKES_TIME).then_some(Duration::ZERO);
        pending.answers.insert(id, PendingRequest { method: O::METHOD, waiter: answer, unanswered });
        if has_outcome {
            pending.outcomes.insert(id, outcome);
        }
        place.send(line);
        Ok((answered, ended))
    }
}

impl Pending {
    /// No more messages come.
    fn end(&mut self) {
        self.is_over = true;
        // Dropping the senders resolves the pending calls.
        self.answers.clear();
        self.outcomes.clear();
        self.listeners.end();
    }

    /// Resolves all pending calls with this reason.
    fn give_up(&mut self, reason: ClientError) {
        let answers = self.answers.drain().map(|(_, request)| request.waiter);
        for waiter in answers.chain(self.outcomes.drain().map(|(_, waiter)| waiter)) {
            // The caller may have gone away.
            let _ = waiter.send(Err(reason.clone()));
        }
        self.given_up.get_or_insert(reason);
        self.end();
    }

    /// See [`Client::is_alive`].
    fn is_alive(&mut self, time: Duration, most: Duration, reason: impl Fn(&str) -> String) {
        let is_overdue = |_: &u64, request: &mut PendingRequest| {
            request.unanswered = request.unanswered.map(|before| before + time);
            request.unanswered.is_some_and(|unanswered| unanswered >= most)
        };
        for (_, request) in self.answers.extract_if(is_overdue) {
            // The caller may have gone away.
            let _ = request.waiter.send(Err(ClientError::Silent(reason(request.method))));
        }
    }

    /// The error of a call after the connection has ended.
    fn why_over(&self) -> ClientError {
        self.given_up.clone().unwrap_or(ClientError::Disconnected)
    }

    /// The server could not read a request, and does not say which one: no pending call gets its answer.
    fn unread(&mut self, error: &ClientError) {
        for (id, request) in self.answers.drain() {
            self.outcomes.remove(&id);
            // The caller may have gone away.
            let _ = request.waiter.send(Err(error.clone()));
        }
    }

    /// An answer arrived that is too long, and begins like this. Returns whether its request is known.
    fn too_long(&mut self, beginning: &[u8], bytes_max: u64) -> bool {
        let id = id_of(beginning).as_u64();
        let Some(request) = id.and_then(|id| self.answers.remove(&id)) else { return false };
        self.outcomes.retain(|outcome, _| Some(*outcome) != id);
        let reason = format!("it has more than {bytes_max} bytes, the most that a line may have");
        // The caller may have gone away.
        let _ = request.waiter.send(Err(ClientError::Malformed(reason)));
        true
    }

    /// Handles one message.
    fn take(&mut self, mut message: Value) {
        let Some(method) = message.get("method").and_then(Value::as_str).map(str::to_owned) else {
            let Some(id) = message.get("id").and_then(Value::as_u64) else {
                return match message.get_mut("error") {
                    Some(error) => self.unread(&refused(error.take())),
                    None => tracing::debug!("an answer to nothing: {message}"),
                };
            };
            let result = match message.get_mut("error") {
                Some(error) => Err(refused(error.take())),
                None => Ok(message.get_mut("result").map(Value::take).unwrap_or_default()),
            };
            if result.is_err() {
                self.outcomes.remove(&id);
            }
            if let Some(request) = self.answers.remove(&id) {
                // The caller may have gone away.
                let _ = request.waiter.send(result);
            }
            return;
        };
        let mut params = message.get_mut("params").map(Value::take).unwrap_or_default();
        if method == "event" {
            return self.heard(params);
        }
        if method == "client/warning" {
            let message = params.get("message").and_then(Value::as_str).unwrap_or_default();
            return self.listeners.warning(message);
        }
        let id = params.get("request_id").and_then(Value::as_u64);
        if let Some(waiter) = id.and_then(|id| self.outcomes.remove(&id)) {
            let result = match params.get_mut("error") {
                Some(error) => Err(problem(error.take())),
                None => Ok(params),
            };
            let _ = waiter.send(result);
        }
    }

    fn heard(&mut self, params: Value) {
        if params.get("type").and_then(Value::as_str) == Some("gap") {
            let session = params.get("session_id").and_then(Value::as_str).unwrap_or_default();
            return self.listeners.gap(session, params.get("from_seq").and_then(Value::as_u64));
        }
        match serde_json::from_value::<Event>(params) {
            Ok(event) => self.listeners.event(&Arc::new(event)),
            Err(error) => tracing::warn!("an event cannot be understood: {error}"),
        }
    }
}

/// Reads until the input ends or cannot be read.
async fn read(input: impl AsyncRead + Unpin, line_bytes_max: u64, pending: &Mutex<Pending>) {
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    loop {
        match next_line(&mut input, &mut line, line_bytes_max).await {
            Ok(Line::Read) => match serde_json::from_slice(&line) {
                Ok(Value::Array(messages)) => {
                    messages.into_iter().for_each(|message| pending.lock().take(message))
                }
                Ok(message) => pending.lock().take(message),
                Err(error) => tracing::warn!("a message cannot be understood: {error}"),
            },
            Ok(Line::TooLong) if pending.lock().too_long(&line, line_bytes_max) => {}
            // Its request is not known, and the call would wait forever.
            Ok(Line::TooLong) => return tracing::warn!("a message has more than {line_bytes_max} bytes"),
            Ok(Line::End) => return,
            Err(error) => return tracing::debug!("the connection ended: {error}"),
        }
    }
}

/// The text of a refused request's error.
fn refused(mut error: Value) -> ClientError {
    let text = error.get("message").and_then(Value::as_str).unwrap_or("no reason was given").to_owned();
    match error.get("code").and_then(Value::as_i64) {
        Some(Refusal::INVALID_PARAMS | Refusal::INVALID_REQUEST) => ClientError::Parameters(text),
        Some(Refusal::METHOD_NOT_FOUND) => ClientError::Unsupported(text),
        Some(Refusal::SERVER_ERROR | Refusal::NO_SESSION) => {
            problem(error.get_mut("data").map(Value::take).unwrap_or_default())
        }
        _ => ClientError::Malformed(text),
    }
}

fn problem(error: Value) -> ClientError {
    match serde_json::from_value(error) {
        Ok(problem) => ClientError::Refused(Box::new(problem)),
        Err(error) => ClientError::Malformed(error.to_string()),
    }
}

async fn waited(waiting: Waiting) -> Result<Value, ClientError> {
    waiting.await.unwrap_or(Err(ClientError::Disconnected))
}

/// The parameters of an operation in their wire form.
fn written(operation: &impl serde::Serialize) -> String {
    serde_json::to_string(operation).expect("an operation can be written as JSON: its keys are texts")
}

fn typed<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, ClientError> {
    serde_json::from_value(value).map_err(|error| ClientError::Malformed(error.to_string()))
}
