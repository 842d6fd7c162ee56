//! JSON-RPC 2.0 over two byte streams, one message a line: the methods are the [`operations`].
//!
//! A request for work is answered when the work is accepted (a prompt: when it is durable); its results arrive as
//! notifications: `event` for every event of the opened sessions, and the outcome, which names its request.
//!
//! A connection belongs to a program with exclusive use of the runtime, or to one of several clients of a host
//! (`host`).
//!
//! Invariants: every request has exactly one answer, and a notification none; an invalid message gets an error, ends
//! nothing and harms no other; an outcome follows the answer to its request, and the events of its run or compaction
//! (`teller`); requests for one session are accepted in the order in which they came; reading a session starts nothing;
//! when the input of a program with exclusive use ends, runs and compactions are interrupted cleanly.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use greenroom::{Agent, Filter, Runtime, SessionHandle};
use greenroom_kernel::EntryId;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

pub use self::handed_on::Unanswered;
use self::teller::{Teller, Telling};
pub use self::wire::LINE_BYTES_MAX;
use self::wire::{Call, Incoming, Line, Message, Refusal};
use crate::host::{NO_HELLO, Seat};
use crate::operations::{
    self, Access, Answer, CallScope, ClientKind, CompactSession, Ended, OpenConsumers, Operation as _, Runs,
    StartSession, Task, Work, is_first,
};
use crate::problem::Problem;

mod handed_on;
mod teller;
#[cfg(test)]
mod tests;
pub(crate) mod wire;

/// How many lines may wait for a slow reader.
pub(crate) const OUT_LINES_MAX: usize = 1_024;
/// How long the outcomes of aborted runs are still sent after the client's input has ended.
const REST_MAX: Duration = Duration::from_secs(5);
/// The error for a read-only client.
pub(crate) const NO_DEFINITION: &str =
    "this client is read-only, as its `client/hello` had no agent definition: it can read, abort and compact";

/// The answer to a request.
pub(crate) enum Reply {
    /// The answer is known now.
    Now(Value),
    /// The answer is known later: other requests do not wait for it.
    Later(Task<Outcome>),
}

/// The answer to a request for work, and the work whose outcome follows.
pub(crate) struct Outcome {
    result: Result<Value, Refusal>,
    then: Option<Task<()>>,
}

/// Serves requests until the input ends. `agent` is the agent of the sessions.
///
/// # Errors
/// When reading or writing the streams fails.
pub async fn serve(
    runtime: &Runtime,
    agent: Arc<Agent>,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin + Send + 'static,
) -> std::io::Result<()> {
    serve_connection(runtime, Side::Alone(agent), LINE_BYTES_MAX, input, output).await
}

/// The owner of a connection.
pub(crate) enum Side {
    /// A program with exclusive use of the runtime, with the agent of its sessions.
    Alone(Arc<Agent>),
    /// A client of a host.
    Host(Seat),
}

/// Serves requests until the input ends.
///
/// # Errors
/// When reading or writing the streams fails.
pub(crate) async fn serve_connection(
    runtime: &Runtime,
    side: Side,
    line_bytes_max: u64,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin + Send + 'static,
) -> std::io::Result<()> {
    let (out, lines) = mpsc::channel(OUT_LINES_MAX);
    let writer = tokio::spawn(write_lines(output, lines));
    let ended = CancellationToken::new();
    let mut server = Server {
        runtime: runtime.clone(),
        side,
        runs: Runs::default(),
        consumers: OpenConsumers::new(ended.clone()),
        sessions: HashMap::new(),
        watched: HashMap::new(),
        tellers: JoinSet::new(),
        out,
    };
    let is_shared = matches!(server.side, Side::Host(_));
    let read = server.read(input, line_bytes_max).await;
    // Nobody reads the events that a consumer waits for.
    ended.cancel();
    let hears_rest = server.end().await;
    if is_shared {
        // Nobody receives the rest, and work in progress may take long.
        let rest = if hears_rest { REST_MAX } else { Duration::ZERO };
        let aborting = writer.abort_handle();
        if tokio::time::timeout(rest, writer).await.is_err() {
            aborting.abort();
        }
        return read;
    }
    let written = writer.await.unwrap_or(Ok(()));
    read.and(written)
}

impl Server {
    async fn read(&mut self, input: impl AsyncRead + Unpin, line_bytes_max: u64) -> std::io::Result<()> {
        let server = self;
        let mut input = BufReader::new(input);
        let mut line = Vec::new();
        loop {
            let (line_bytes_max, until) = match &server.side {
                Side::Host(seat) => seat.patience(line_bytes_max),
                Side::Alone(_) => (line_bytes_max, None),
            };
            let read = tokio::select! {
                biased;
                read = wire::next_line(&mut input, &mut line, line_bytes_max) => read?,
                () = passed(until) => {
                    server.refuse(Refusal::new(Refusal::INVALID_REQUEST, NO_HELLO)).await;
                    break;
                }
            };
            match read {
                Line::End => break,
                Line::Read if line.trim_ascii().is_empty() => {}
                Line::Read => server.line(&line).await,
                Line::TooLong => {
                    let advice = match until {
                        Some(_) => " before `client/hello` has been answered; say less in it",
                        None => "; say less at once",
                    };
                    let reason = format!(
                        "the line has more than {line_bytes_max} bytes, the most that a line may have{advice}"
                    );
                    let refusal = Refusal::new(Refusal::INVALID_REQUEST, reason);
                    send(&server.out, wire::answer(&wire::id_of(&line), Err(refusal))).await;
                }
            }
        }
        Ok(())
    }

    /// The input has ended. Returns whether the outcomes of aborted runs may still be sent.
    async fn end(self) -> bool {
        let Self { runtime, side, runs, consumers, sessions, watched, tellers, out } = self;
        consumers.close();
        match side {
            // All at once: each interrupts its run or its compaction, and begins no input that waits.
            Side::Alone(_) => {
                let mut closing = JoinSet::new();
                for id in sessions.keys() {
                    let (runtime, id) = (runtime.clone(), id.clone());
                    // A session that is gone needs no closing.
                    closing.spawn(async move { drop(runtime.close(&id).await) });
                }
                closing.join_all().await;
                // The tellers end when they have sent the promised outcomes.
                drop((sessions, watched, out));
                tellers.join_all().await;
                true
            }
            Side::Host(seat) => {
                let kind = seat.kind();
                if kind == Some(ClientKind::Run) {
                    runs.abort_all();
                    drop((seat, sessions, watched, out));
                    let _ = tokio::time::timeout(REST_MAX, tellers.join_all()).await;
                } else {
                    // Nobody receives the rest. Work in progress needs no teller.
                    drop(tellers);
                }
                // A client that never identified itself is told why the connection ends.
                kind.is_none_or(|kind| kind == ClientKind::Run)
            }
        }
    }
}

/// Waits for this moment; for ever if there is none.
async fn passed(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Writes a line for each message, until no more can come.
pub(crate) async fn write_lines(
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
    side: Side,
    /// The work that the client began.
    runs: Runs,
    /// The consumers that it has open.
    consumers: OpenConsumers,
    /// The sessions that it opened.
    sessions: HashMap<String, Started>,
    /// The sessions that it only watches, with their tellers.
    watched: HashMap<String, mpsc::Sender<Telling>>,
    /// The tellers: one for each session sends its events and outcomes.
    tellers: JoinSet<()>,
    out: mpsc::Sender<String>,
}

/// A session that the client opened.
#[derive(Clone)]
struct Started {
    handle: SessionHandle,
    /// The channel to its teller.
    telling: mpsc::Sender<Telling>,
}

impl Server {
    async fn line(&mut self, line: &[u8]) {
        match Incoming::read(line) {
            Ok(Incoming::One(message)) => self.one(message).await,
            Ok(Incoming::Batch(messages)) => self.batch(messages).await,
            Err(refusal) => self.refuse(refusal).await,
        }
    }

    async fn one(&mut self, message: Message) {
        let (id, call) = match message {
            Message::Request { id, call } => (Some(id), call),
            Message::Notification(call) => (None, call),
            Message::Invalid { id, refusal } => {
                return send(&self.out, wire::answer(&id, Err(refusal))).await;
            }
        };
        let result = match self.call(id.as_ref(), call).await {
            Ok(Reply::Now(value)) => Ok(value),
            Err(refusal) => Err(refusal),
            Ok(Reply::Later(task)) => {
                let out = self.out.clone();
                tokio::spawn(async move {
                    let Outcome { result, then } = task.await;
                    if let Some(id) = id {
                        send(&out, wire::answer(&id, result)).await;
                    }
                    if let Some(then) = then {
                        then.await;
                    }
                });
                return;
            }
        };
        if let Some(id) = id {
            send(&self.out, wire::answer(&id, result)).await;
        }
    }

    /// The messages of a batch are executed one after another, and answered together.
    async fn batch(&mut self, messages: Vec<Message>) {
        let mut replies = Vec::new();
        for message in messages {
            match message {
                Message::Request { id, call } => {
                    let reply = self.call(Some(&id), call).await;
                    replies.push((Some(id), reply));
                }
                Message::Notification(call) => replies.push((None, self.call(None, call).await)),
                Message::Invalid { id, refusal } => replies.push((Some(id), Err(refusal))),
            }
        }
        let is_known = replies.iter().all(|(_, reply)| !matches!(reply, Ok(Reply::Later(_))));
        let answering = answer_batch(self.out.clone(), replies);
        if is_known {
            answering.await;
        } else {
            tokio::spawn(answering);
        }
    }

    /// `id` is the request's; a notification has none.
    async fn call(&mut self, id: Option<&Value>, call: Call) -> Result<Reply, Refusal> {
        let agent = match &mut self.side {
            Side::Alone(agent) => Some(Arc::clone(agent)),
            Side::Host(seat) => {
                if is_first(&call.method) {
                    return seat.call(&call.method, call.params()?, &self.out).await;
                }
                seat.agent()?
            }
        };
        let is_start = call.method == StartSession::METHOD;
        let call = operations::call(&call.method, call.params()?)?;
        let has_agent = agent.is_some();
        // A read-only client may have a live session compacted by the session's own agent.
        let is_with_own_agent = agent.is_none() && call.outcome() == CompactSession::OUTCOME;
        let agent = match agent {
            Some(agent) => agent,
            None if is_with_own_agent => Arc::new(Agent::new("")),
            // Read operations need no label.
            None if matches!(call.access(), Access::Read | Access::Subscribe) => Arc::new(Agent::new("")),
            None if call.access() == Access::Modify && !self.only_looks() => Arc::new(Agent::new("")),
            None => return Err(Refusal::new(Refusal::INVALID_PARAMS, NO_DEFINITION)),
        };
        let (outcome, access) = (call.outcome(), call.access());
        let session_id = call.session_id().map(str::to_owned);
        let started = match &session_id {
            Some(id) if is_with_own_agent => Some(self.live(id).await?),
            Some(id) if access == Access::Create => {
                if is_start {
                    self.forget_if_deleted(id);
                }
                Some(self.session(id, &agent).await?)
            }
            Some(id) if access == Access::Open => Some(self.known(id, &agent).await?),
            Some(id) if access == Access::Subscribe => {
                self.watch(id).await?;
                None
            }
            Some(_) | None => None,
        };
        let scope = CallScope {
            runtime: self.runtime.clone(),
            agent,
            has_agent,
            session: started.as_ref().map(|started| started.handle.clone()),
            runs: self.runs.clone(),
            consumers: self.consumers.clone(),
            within: None,
            choice: None,
        };
        let is_deletion = call.deletes();
        let answer = call.perform(scope).await?;
        if is_deletion && let Some(id) = &session_id {
            // A new session with this name has a new teller.
            let of_started = self.sessions.remove(id).map(|started| started.telling);
            for telling in of_started.into_iter().chain(self.watched.remove(id)) {
                let _ = telling.send(Telling::NoMoreEvents).await;
            }
        }
        Ok(match answer {
            Answer::Now(value) => Reply::Now(value),
            Answer::Later(task) => Reply::Later(Box::pin(async move {
                Outcome { result: task.await.map_err(Refusal::from), then: None }
            })),
            Answer::Work(Work { accepted, outcome: ended, abort }) => {
                let labels = match &self.side {
                    Side::Host(seat) => seat.labels(),
                    Side::Alone(_) => Arc::default(),
                };
                let runtime = self.runtime.clone();
                let id = id.cloned();
                let runs = self.runs.clone();
                let run = abort.map(|abort| runs.begin(session_id.as_deref().unwrap_or_default(), abort));
                Reply::Later(Box::pin(async move {
                    let accepted = match accepted.await {
                        Ok(accepted) => accepted,
                        Err(refused) => {
                            run.into_iter().for_each(|run| runs.ended(run));
                            return Outcome { result: Err(refused.into()), then: None };
                        }
                    };
                    let entry_id = accepted.get("entry_id").cloned();
                    if let Some(started) = &started {
                        label_new(&runtime, &started.handle, &labels).await;
                    }
                    if let Some(run) = run {
                        runs.accepted(run, entry_id.as_ref().and_then(Value::as_u64).map(EntryId));
                    }
                    let then = async move {
                        let Ended { result, compaction } = ended.await;
                        run.into_iter().for_each(|run| runs.ended(run));
                        let mut params = match result {
                            Ok(outcome) => outcome,
                            Err(error) => json!({ "error": Problem::from(&error), "session_id": session_id }),
                        };
                        if let Some(entry_id) = entry_id {
                            params["entry_id"] = entry_id;
                        }
                        let line = wire::result(outcome, id, params);
                        if let Some(started) = started {
                            // A teller ends only with the output.
                            let _ = started.telling.send(Telling::Result { line, compaction }).await;
                        }
                    };
                    Outcome { result: Ok(accepted), then: Some(Box::pin(then)) }
                }))
            }
        })
    }

    /// Whether the client declared itself read-only.
    fn only_looks(&self) -> bool {
        matches!(&self.side, Side::Host(seat) if seat.only_looks())
    }

    /// As [`Self::session`], for a session that must exist.
    async fn known(&mut self, id: &str, agent: &Arc<Agent>) -> Result<Started, Refusal> {
        self.runtime.session(id).await?;
        self.session(id, agent).await
    }

    /// A live session, with the agent that it has. Its events are sent from now on.
    async fn live(&mut self, id: &str) -> Result<Started, Refusal> {
        let handle = self.runtime.session(id).await?;
        if !handle.is_live() {
            return Err(Refusal::new(Refusal::INVALID_PARAMS, NO_DEFINITION));
        }
        self.watch(id).await?;
        let telling = match (self.watched.get(id), self.sessions.get(id)) {
            (Some(telling), _) => telling.clone(),
            (None, Some(started)) => started.telling.clone(),
            (None, None) => return Err(Refusal::new(Refusal::INVALID_PARAMS, NO_DEFINITION)),
        };
        Ok(Started { handle, telling })
    }

    /// Sends the events of an existing session from now on, without opening it.
    async fn watch(&mut self, id: &str) -> Result<(), Refusal> {
        self.runtime.session(id).await?;
        if !self.sessions.contains_key(id) && !self.watched.contains_key(id) {
            let telling = self.teller(id);
            self.watched.insert(id.to_owned(), telling);
        }
        Ok(())
    }

    /// Starts a teller for a session's events.
    fn teller(&mut self, id: &str) -> mpsc::Sender<Telling> {
        let events = self.runtime.subscribe(Filter::session(id));
        let (telling, told) = mpsc::channel(OUT_LINES_MAX);
        self.tellers.spawn(Teller::new(id, events, told, self.out.clone()).run());
        telling
    }

    /// Closes a session that was deleted, so that another one of its id can be opened. Its events are still sent.
    fn forget_if_deleted(&mut self, id: &str) {
        if let Entry::Occupied(session) = self.sessions.entry(id.to_owned())
            && session.get().handle.is_deleted()
        {
            self.watched.insert(id.to_owned(), session.remove().telling);
        }
    }

    /// The session, opened when it is first named; from then on its events are sent.
    async fn session(&mut self, id: &str, agent: &Arc<Agent>) -> Result<Started, Refusal> {
        if let Some(session) = self.sessions.get(id) {
            return Ok(session.clone());
        }
        let watching = self.watched.remove(id);
        let is_watched = watching.is_some();
        let telling = watching.unwrap_or_else(|| self.teller(id));
        let handle = match self.runtime.join(id, Arc::clone(agent)).await {
            Ok(handle) => handle,
            Err(error) => {
                if is_watched {
                    self.watched.insert(id.to_owned(), telling);
                } else {
                    let _ = telling.send(Telling::NoMoreEvents).await;
                }
                return Err(error.into());
            }
        };
        let started = Started { handle, telling };
        self.sessions.insert(id.to_owned(), started.clone());
        if let Side::Host(seat) = &self.side {
            seat.started(id);
        }
        Ok(started)
    }

    async fn refuse(&self, refusal: Refusal) {
        send(&self.out, wire::answer(&Value::Null, Err(refusal))).await;
    }
}

/// Labels a session that has no messages yet.
async fn label_new(runtime: &Runtime, session: &SessionHandle, labels: &BTreeMap<String, String>) {
    if labels.is_empty() {
        return;
    }
    let Ok(Some(known)) = runtime.summary(session.id()).await else { return };
    for (name, value) in labels.iter().filter(|(name, _)| !known.labels.contains_key(*name)) {
        // A path that no label can hold cannot be searched for.
        let _ = session.set_label(name.clone(), value.clone()).await;
    }
}

/// Answers the requests of a batch together, when the last of the answers is known.
async fn answer_batch(out: mpsc::Sender<String>, replies: Vec<(Option<Value>, Result<Reply, Refusal>)>) {
    let (mut answers, mut tasks) = (Vec::new(), Vec::new());
    for (id, reply) in replies {
        let result = match reply {
            Ok(Reply::Now(value)) => Ok(value),
            Err(refusal) => Err(refusal),
            Ok(Reply::Later(task)) => {
                let Outcome { result, then } = task.await;
                // Starts when the batch is answered, so that its notifications follow the answers.
                tasks.extend(then);
                result
            }
        };
        answers.extend(id.map(|id| (id, result)));
    }
    if !answers.is_empty() {
        send(&out, wire::batch_answer(answers)).await;
    }
    tasks.into_iter().collect::<JoinSet<()>>().join_all().await;
}

pub(crate) async fn send(out: &mpsc::Sender<String>, line: String) {
    // If the reader is gone, the input ends too.
    let _ = out.send(line).await;
}
