//! JSON-RPC 2.0 over two byte streams, one message a line.
//!
//! Methods: `session/start`, `session/prompt`, `session/compact`, `session/list`, `session/branch`,
//! `session/delete`, `session/questions`, `session/answer`, `agent/state`, `agent/abort`. A request for work is answered when the work is taken on (a prompt: when it is
//! durable); what comes of it arrives as notifications: `event` for every event of the started sessions,
//! `session/prompt_result` and `session/compact_result`, which name their request.
//!
//! Invariants: every request has exactly one answer, and a notification none; what cannot be understood gets an error,
//! ends nothing and harms no other; a result follows the answer to its request, and the events of its run or compaction
//! (`teller`); requests for one session are taken on in the order in which they came; looking at a
//! session starts nothing; when the input ends, runs and compactions are interrupted in order.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use greenroom::kernel::EntryId;
use greenroom::{
    Agent, Answer, CompactOptions, Error, Filter, ModelSettings, Runtime, SessionHandle, State, Status,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use self::teller::{Teller, Telling};
pub use self::wire::LINE_BYTES_MAX;
use self::wire::{Call, Incoming, Line, Message, Refusal, error_data};
use crate::list::{List, Refused};

mod teller;
#[cfg(test)]
mod tests;
mod wire;

/// How many lines may wait for a slow reader.
const OUT_LINES_MAX: usize = 1_024;

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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Questions {
    /// The session; without it, all sessions.
    session_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GivenAnswer {
    session_id: String,
    question_id: EntryId,
    value: Value,
    /// Who answers: a name for the log.
    by: Option<String>,
}

/// What a request is answered with.
enum Reply {
    /// It is known now.
    Now(Value),
    /// It is known later: other requests do not wait for it.
    Later(Task<Outcome>),
}

/// The answer to a request for work, and what is told after it.
struct Outcome {
    result: Result<Value, Refusal>,
    then: Option<Task<()>>,
}

type Task<T> = Pin<Box<dyn Future<Output = T> + Send>>;

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
        match wire::next_line(&mut input, &mut line).await? {
            Line::End => break,
            Line::Read if line.trim_ascii().is_empty() => {}
            Line::Read => server.line(&line).await,
            Line::TooLong => {
                let reason = format!("the line has more than {LINE_BYTES_MAX} bytes");
                server.refuse(Refusal::new(Refusal::INVALID_REQUEST, reason)).await;
            }
        }
    }
    // All at once: each interrupts its run or its compaction, and begins nothing that waits.
    let mut closing = JoinSet::new();
    for id in server.sessions.keys() {
        let (runtime, id) = (runtime.clone(), id.clone());
        // A session that is gone already needs no closing.
        closing.spawn(async move { drop(runtime.close(&id).await) });
    }
    closing.join_all().await;
    // They end when the results are told that were promised.
    let Server { sessions, tellers, out, .. } = server;
    drop((sessions, out));
    tellers.join_all().await;
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
    /// Those that were started here.
    sessions: HashMap<String, Started>,
    /// One a session: tells its events and results.
    tellers: JoinSet<()>,
    out: mpsc::Sender<String>,
}

/// A session that was started here.
#[derive(Clone)]
struct Started {
    handle: SessionHandle,
    /// To its teller.
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

    /// The messages are taken on one after another, and answered together.
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
        let result = match call.method.as_str() {
            "session/start" => {
                let Start { session_id } = call.params()?;
                self.session(&session_id).await?;
                json!({ "session_id": session_id })
            }
            "session/prompt" => return self.prompt(id, call.params()?).await,
            "session/compact" => return self.compact(id, call.params()?).await,
            "session/branch" => {
                let Branch { session_id, entry_id } = call.params()?;
                self.known(&session_id).await?.handle.branch(entry_id).await?;
                json!({ "session_id": session_id })
            }
            "session/questions" => {
                let Questions { session_id } = call.params()?;
                let questions = match session_id {
                    Some(id) => self.runtime.session(&id).await?.questions().await?,
                    None => self.runtime.questions().await?,
                };
                json!({ "questions": questions })
            }
            "session/answer" => {
                let GivenAnswer { session_id, question_id, value, by } = call.params()?;
                let mut answer = Answer::from(value);
                answer.by = by;
                // The run that waits goes on with this agent.
                self.known(&session_id).await?.handle.answer(question_id, answer).await?;
                json!({ "session_id": session_id, "question_id": question_id })
            }
            "session/delete" => {
                let Named { session_id } = call.params()?;
                self.runtime.delete(&session_id).await?;
                if let Some(started) = self.sessions.remove(&session_id) {
                    // A session that begins anew under this name has another teller.
                    let _ = started.telling.send(Telling::NoMoreEvents).await;
                }
                let runtime = self.runtime.clone();
                return Ok(Reply::Later(Box::pin(async move {
                    let erased = runtime.store().reclaim().await.map_err(Error::from);
                    let result = erased.map(|_| json!({ "session_id": session_id }));
                    Outcome { result: result.map_err(Refusal::from), then: None }
                })));
            }
            "session/list" => {
                let list: List = call.params()?;
                list.page(&self.runtime).await.map_err(|refused| match refused {
                    Refused::Parameters(reason) => Refusal::new(Refusal::INVALID_PARAMS, reason),
                    Refused::Failed(error) => error.into(),
                })?
            }
            "agent/state" => {
                let Named { session_id } = call.params()?;
                json!(self.state(&session_id).await?)
            }
            "agent/abort" => {
                let Named { session_id } = call.params()?;
                self.abort(&session_id).await?;
                json!({ "session_id": session_id })
            }
            unknown => {
                let reason = format!("there is no method {unknown:?}");
                return Err(Refusal::new(Refusal::METHOD_NOT_FOUND, reason));
            }
        };
        Ok(Reply::Now(result))
    }

    async fn prompt(&mut self, id: Option<&Value>, params: Prompt) -> Result<Reply, Refusal> {
        let Prompt { session_id, text, key, settings } = params;
        settings.check().map_err(Error::from)?;
        let Started { handle, telling } = self.session(&session_id).await?;
        let mut prompt = handle.prompt(text).settings(settings);
        if let Some(key) = key {
            prompt = prompt.once(key);
        }
        let mut run = prompt.start().await?;
        let id = id.cloned();
        Ok(Reply::Later(Box::pin(async move {
            let entry = match run.recorded().await {
                Ok(entry) => entry,
                Err(error) => return Outcome { result: Err(error.into()), then: None },
            };
            let then = async move {
                let mut params = match run.reply().await {
                    Ok(reply) => json!(reply),
                    Err(error) => json!({ "error": error_data(&error) }),
                };
                params["session_id"] = session_id.into();
                params["entry_id"] = json!(entry);
                let line = wire::result("session/prompt_result", id, params);
                // A teller ends with the output alone.
                let _ = telling.send(Telling::Result { line, compaction: None }).await;
            };
            let result = Ok(json!({ "accepted": true, "entry_id": entry }));
            Outcome { result, then: Some(Box::pin(then)) }
        })))
    }

    async fn compact(&mut self, id: Option<&Value>, params: Compact) -> Result<Reply, Refusal> {
        let Compact { session_id, keep_recent, focus, force } = params;
        let Started { handle: session, telling } = self.known(&session_id).await?;
        if session.state().await?.status != Status::Idle {
            return Err(Error::NotIdle { session: session_id, what: "compact it" }.into());
        }
        let options = CompactOptions { focus, keep_recent, force };
        let mut compacting = Box::pin(async move { session.compact(options).await });
        // It is in the session's mailbox before the next request is.
        let ended = tokio::select! {
            biased;
            ended = &mut compacting => Some(ended),
            () = std::future::ready(()) => None,
        };
        let id = id.cloned();
        let then = async move {
            let ended = match ended {
                Some(ended) => ended,
                None => compacting.await,
            };
            let (params, compaction) = match ended {
                Ok(compacted) => {
                    let installed = compacted.is_installed();
                    let params =
                        json!({ "session_id": session_id, "installed": installed, "compacted": compacted });
                    (params, compacted.started)
                }
                Err(error) => (json!({ "session_id": session_id, "error": error_data(&error) }), None),
            };
            let line = wire::result("session/compact_result", id, params);
            let _ = telling.send(Telling::Result { line, compaction }).await;
        };
        let outcome = Outcome { result: Ok(json!({ "accepted": true })), then: Some(Box::pin(then)) };
        Ok(Reply::Later(Box::pin(std::future::ready(outcome))))
    }

    /// How a session stands. One that is not live is not woken.
    async fn state(&self, id: &str) -> Result<State, Refusal> {
        Ok(self.runtime.session(id).await?.state().await?)
    }

    async fn abort(&self, id: &str) -> Result<(), Refusal> {
        self.runtime.session(id).await?.abort();
        Ok(())
    }

    /// As [`Self::session`], of a session that is there.
    async fn known(&mut self, id: &str) -> Result<Started, Refusal> {
        self.runtime.session(id).await?;
        self.session(id).await
    }

    /// The session, opened when it is first named; from then on its events are told.
    async fn session(&mut self, id: &str) -> Result<Started, Refusal> {
        if let Some(session) = self.sessions.get(id) {
            return Ok(session.clone());
        }
        let events = self.runtime.subscribe(Filter::session(id));
        let handle = self.runtime.open(id, Arc::clone(&self.agent)).await?;
        let (telling, told) = mpsc::channel(OUT_LINES_MAX);
        self.tellers.spawn(Teller::new(id, events, told, self.out.clone()).run());
        let started = Started { handle, telling };
        self.sessions.insert(id.to_owned(), started.clone());
        Ok(started)
    }

    async fn refuse(&self, refusal: Refusal) {
        send(&self.out, wire::answer(&Value::Null, Err(refusal))).await;
    }
}

/// Answers the requests of a batch together, when the last of their answers is known.
async fn answer_batch(out: mpsc::Sender<String>, replies: Vec<(Option<Value>, Result<Reply, Refusal>)>) {
    let (mut answers, mut tasks) = (Vec::new(), Vec::new());
    for (id, reply) in replies {
        let result = match reply {
            Ok(Reply::Now(value)) => Ok(value),
            Err(refusal) => Err(refusal),
            Ok(Reply::Later(task)) => {
                let Outcome { result, then } = task.await;
                // It begins when the batch is answered: none of it is told before.
                tasks.extend(then);
                result
            }
        };
        answers.extend(id.map(|id| wire::answer(&id, result)));
    }
    if !answers.is_empty() {
        send(&out, format!("[{}]", answers.join(","))).await;
    }
    tasks.into_iter().collect::<JoinSet<()>>().join_all().await;
}

async fn send(out: &mpsc::Sender<String>, line: String) {
    // A reader that is gone ends the input too.
    let _ = out.send(line).await;
}
