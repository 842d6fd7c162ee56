//! A host: one runtime that several clients share over a socket, each with its own agent. The process
//! around it (socket, start, log) is in `cli/host`.
//!
//! Invariants: a client identifies itself before anything is done for it, and speaks this protocol version; its
//! requests use its own agent; clients that have not identified themselves are limited in number, memory and time. The
//! runs of a client of kind `run` end when it disconnects; those of other clients continue. The host exits automatically
//! only when no client is connected and no work is in progress, or when it is asked to.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use greenroom::{Agent, Runtime};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{broadcast, mpsc, watch};
use tokio::time::Instant;

use self::unused::Unused;
use crate::operations::{
    self, ClientKind, ClientSummary, Hello, HelloAnswer, HostState, HostStatus, Operation as _, PROTOCOL,
    PingHost, Pong, Refused, StopHost, Stopping, Task,
};
use crate::problem::{Problem, ProblemKind};
use crate::rpc::wire::{self, Refusal};
use crate::rpc::{self, Reply, Side};

mod unused;

#[cfg(test)]
mod tests;

/// How many connections may be open at once before their `client/hello`.
const STRANGERS_MAX: usize = 64;
/// The longest line before `client/hello` has been answered, in bytes, with its line break. A definition has at most two
/// configurations of 64 KiB, and variables.
const HELLO_BYTES_MAX: u64 = 1 << 20;
/// How long a client may take to send `client/hello`.
const HELLO_WITHIN: Duration = Duration::from_secs(30);
/// The error for a client that takes longer.
pub(crate) const NO_HELLO: &str =
    "no `client/hello` came within 30 s, so this connection is closed; send it first";

/// Resolves clients' definitions to agents.
pub trait Definer: Send + Sync + 'static {
    /// The agent of a client with this definition: the same `Arc` for clients whose definitions are the same.
    fn define(&self, definition: Value) -> Task<Result<Defined, Problem>>;
}

/// A client's agent.
pub struct Defined {
    /// The agent with which its sessions are opened.
    pub agent: Arc<Agent>,
    /// The labels of sessions in which it sends the first prompt.
    pub labels: BTreeMap<String, String>,
    /// Notes for its user, a line each.
    pub warnings: Vec<String>,
    /// Later notes for its user.
    pub news: Option<broadcast::Receiver<String>>,
}

/// A runtime that several clients share. Clones are the same host.
#[derive(Clone)]
pub struct Host(Arc<Shared>);

struct Shared {
    runtime: Runtime,
    definer: Box<dyn Definer>,
    version: String,
    since_ms: u64,
    clients: Mutex<Clients>,
    /// How many clients are connected.
    connected: watch::Sender<usize>,
    /// How many of them have not identified themselves.
    strangers: watch::Sender<usize>,
    /// Whether it was asked to exit.
    stopping: watch::Sender<bool>,
    /// The name of the program that it is part of, if that does not exit for other clients.
    program: OnceLock<String>,
}

#[derive(Default)]
struct Clients {
    newest: u64,
    known: BTreeMap<u64, ClientSummary>,
    /// The clients that may begin runs.
    beginning: BTreeSet<u64>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("clients", &*self.0.connected.borrow()).finish_non_exhaustive()
    }
}

impl Host {
    /// A host of this runtime. `version` is its program's, for people.
    pub fn new(runtime: &Runtime, definer: impl Definer, version: impl Into<String>) -> Self {
        Self(Arc::new(Shared {
            runtime: runtime.clone(),
            definer: Box::new(definer),
            version: version.into(),
            since_ms: now_ms(),
            clients: Mutex::default(),
            connected: watch::channel(0).0,
            strangers: watch::channel(0).0,
            stopping: watch::channel(false).0,
            program: OnceLock::new(),
        }))
    }

    /// Makes it part of a program, such as `greenroom serve`, that stays up without clients: clients that want
    /// exclusive use of the store are refused with this name, unless they force it.
    #[must_use]
    pub fn part_of(self, program: impl Into<String>) -> Self {
        // The first name is kept.
        let _ = self.0.program.set(program.into());
        self
    }

    /// Waits until there is room for a client that has not identified itself: at most 64 of them. Call it before a
    /// connection is accepted, so that further connections wait where they cost nothing.
    pub async fn room(&self) {
        // It lives as long as this future is polled.
        let _ = self.0.strangers.subscribe().wait_for(|count| *count < STRANGERS_MAX).await;
    }

    /// Serves one client until it goes away. It counts as connected from the call on.
    ///
    /// Before the client has said `client/hello`, its lines have at most 1 MiB, and 30 s after the call it is refused.
    pub fn serve<I, O>(&self, input: I, output: O) -> impl Future<Output = ()> + use<I, O>
    where
        I: AsyncRead + Unpin,
        O: AsyncWrite + Unpin + Send + 'static,
    {
        let runtime = self.0.runtime.clone();
        let side = Side::Host(Seat::new(Arc::clone(&self.0)));
        async move {
            let served = rpc::serve_connection(&runtime, side, rpc::LINE_BYTES_MAX, input, output).await;
            if let Err(error) = served {
                tracing::debug!("a client is gone: {error}");
            }
        }
    }

    /// Waits until the host is asked to exit, or had no client and no work for this long. Before its first client it
    /// waits at least ten seconds, as the process that started it is about to connect.
    pub async fn idle(&self, after: Duration) {
        tokio::select! {
            biased;
            () = self.stopped() => {}
            () = self.unused(after) => {}
        }
    }

    /// Waits until the host is asked to exit.
    pub async fn stopped(&self) {
        // It lives as long as this future is polled.
        let _ = self.0.stopping.subscribe().wait_for(|stopping| *stopping).await;
    }

    async fn unused(&self, after: Duration) {
        let mut connected = self.0.connected.subscribe();
        loop {
            let _ = connected.wait_for(|count| *count == 0).await;
            let mut unused = Unused::new(after, self.0.clients.lock().newest > 0);
            while *connected.borrow_and_update() == 0 {
                let is_working = match self.0.runtime.working().await {
                    Ok(working) => !working.is_empty(),
                    // The runtime has ended.
                    Err(_) => return,
                };
                let Some(pause) = unused.look(is_working) else { return };
                tokio::select! {
                    biased;
                    _ = connected.changed() => break,
                    () = tokio::time::sleep(pause) => unused.passed(pause),
                }
            }
        }
    }
}

impl Shared {
    fn add(&self) -> u64 {
        let mut clients = self.clients.lock();
        clients.newest += 1;
        let number = clients.newest;
        clients.known.insert(number, ClientSummary { kind: None, since_ms: now_ms(), sessions: Vec::new() });
        let count = clients.known.len();
        drop(clients);
        self.connected.send_replace(count);
        number
    }

    fn remove(&self, number: u64) {
        let mut clients = self.clients.lock();
        clients.known.remove(&number);
        clients.beginning.remove(&number);
        let count = clients.known.len();
        drop(clients);
        self.connected.send_replace(count);
    }
}

/// A client's place at its host. Dropping it frees the place.
pub(crate) struct Seat {
    host: Arc<Shared>,
    number: u64,
    /// The deadline for its identification.
    until: Instant,
    /// The client's identity, once it is known.
    client: Option<Known>,
}

struct Known {
    kind: ClientKind,
    agent: Option<Arc<Agent>>,
    labels: Arc<BTreeMap<String, String>>,
    /// Sends a note for the client's user.
    _news: Option<News>,
}

/// A task that ends with its client.
struct News(tokio::task::AbortHandle);

impl Drop for News {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.client.is_none() {
            self.host.strangers.send_modify(|count| *count -= 1);
        }
        self.host.remove(self.number);
    }
}

impl Seat {
    fn new(host: Arc<Shared>) -> Self {
        let number = host.add();
        host.strangers.send_modify(|count| *count += 1);
        Self { host, number, until: Instant::now() + HELLO_WITHIN, client: None }
    }

    /// The line limit and the deadline: both are lower until the client has identified itself.
    pub(crate) fn patience(&self, line_bytes_max: u64) -> (u64, Option<Instant>) {
        match &self.client {
            Some(_) => (line_bytes_max, None),
            None => (line_bytes_max.min(HELLO_BYTES_MAX), Some(self.until)),
        }
    }

    /// The client's kind, once it has identified itself.
    pub(crate) fn kind(&self) -> Option<ClientKind> {
        self.client.as_ref().map(|client| client.kind)
    }

    /// The client's agent, if it has one.
    ///
    /// # Errors
    /// The client has not identified itself.
    pub(crate) fn agent(&self) -> Result<Option<Arc<Agent>>, Refusal> {
        match &self.client {
            Some(client) => Ok(client.agent.clone()),
            None => Err(Refusal::new(Refusal::INVALID_REQUEST, "`client/hello` must come first")),
        }
    }

    /// Whether the client declared itself read-only.
    pub(crate) fn only_looks(&self) -> bool {
        self.client.as_ref().is_some_and(|client| client.kind == ClientKind::Watch && client.agent.is_none())
    }

    /// The labels of sessions in which the client sends the first prompt.
    pub(crate) fn labels(&self) -> Arc<BTreeMap<String, String>> {
        self.client.as_ref().map(|client| Arc::clone(&client.labels)).unwrap_or_default()
    }

    /// The client has started a session.
    pub(crate) fn started(&self, session_id: &str) {
        if let Some(client) = self.host.clients.lock().known.get_mut(&self.number) {
            client.sessions.push(session_id.to_owned());
        }
    }

    /// An operation between the client and the host.
    pub(crate) async fn call(
        &mut self,
        method: &str,
        params: Value,
        out: &mpsc::Sender<String>,
    ) -> Result<Reply, Refusal> {
        let params = if params.is_null() { json!({}) } else { params };
        let answer = match method {
            Hello::METHOD => {
                // The protocol version is checked before anything else, which another version may express differently.
                let protocol = params.get("protocol").and_then(Value::as_u64);
                if let Some(protocol) = protocol.filter(|protocol| *protocol != u64::from(PROTOCOL)) {
                    return Err(self.other_protocol(protocol).into());
                }
                let hello: Hello = operations::parameters(params)?;
                json!(self.hello(hello, out).await?)
            }
            PingHost::METHOD => json!(Pong { pid: std::process::id() }),
            HostStatus::METHOD => json!(self.status().await?),
            StopHost::METHOD => {
                let stop: StopHost = operations::parameters(params)?;
                json!(self.stop(stop.force).await?)
            }
            _ => return Err(Refused::UnknownMethod(method.to_owned()).into()),
        };
        Ok(Reply::Now(answer))
    }

    fn other_protocol(&self, theirs: u64) -> Refused {
        let version = &self.host.version;
        Refused::Problem(Box::new(Problem::new(
            ProblemKind::Version,
            format!(
                "the host of this store is greenroom {version} and speaks protocol {PROTOCOL}, not {theirs}"
            ),
        )))
    }

    async fn hello(&mut self, hello: Hello, out: &mpsc::Sender<String>) -> Result<HelloAnswer, Refused> {
        if self.client.is_some() {
            return Err(Refused::Parameters("`client/hello` was already sent".to_owned()));
        }
        let Hello { kind, definition, .. } = hello;
        let (mut warnings, mut agent, mut news) = (Vec::new(), None, None);
        let mut labels = BTreeMap::new();
        if let Some(definition) = definition {
            // The host is not idle while it makes the agent, which may take a while.
            if kind != ClientKind::Watch {
                self.host.clients.lock().beginning.insert(self.number);
            }
            let defined = self.host.definer.define(definition).await;
            if defined.is_err() {
                self.host.clients.lock().beginning.remove(&self.number);
            }
            let defined = defined.map_err(|problem| Refused::Problem(Box::new(problem)))?;
            (warnings, agent, labels) = (defined.warnings, Some(defined.agent), defined.labels);
            news = defined.news.map(|news| tell_news(news, out.clone()));
        }
        let mut clients = self.host.clients.lock();
        if let Some(client) = clients.known.get_mut(&self.number) {
            client.kind = Some(kind);
        }
        drop(clients);
        self.host.strangers.send_modify(|count| *count -= 1);
        self.client = Some(Known { kind, agent, labels: Arc::new(labels), _news: news });
        let (version, pid) = (self.host.version.clone(), std::process::id());
        Ok(HelloAnswer { protocol: PROTOCOL, version, pid, warnings })
    }

    async fn status(&self) -> Result<HostState, Refused> {
        let at_work = self.host.runtime.working().await?;
        Ok(HostState {
            pid: std::process::id(),
            version: self.host.version.clone(),
            since_ms: self.host.since_ms,
            clients: self.host.clients.lock().known.values().cloned().collect(),
            at_work,
        })
    }

    async fn stop(&self, force: bool) -> Result<Stopping, Refused> {
        if self.only_looks() {
            return Err(Refused::Parameters(rpc::NO_DEFINITION.to_owned()));
        }
        let busy =
            |message: String| Err(Refused::Problem(Box::new(Problem::new(ProblemKind::Busy, message))));
        let pid = std::process::id();
        if let Some(program) = self.host.program.get().filter(|_| !force) {
            return busy(format!("`{program}` (process {pid}) has the store until it is ended"));
        }
        let at_work = self.host.runtime.working().await?;
        let others =
            self.host.clients.lock().beginning.iter().filter(|number| **number != self.number).count();
        if !force && (others > 0 || !at_work.is_empty()) {
            let count = |count: usize, one: &str, are: [&str; 2]| match count {
                1 => format!("1 {one} {}", are[0]),
                count => format!("{count} {one}s {}", are[1]),
            };
            let connected = count(others, "client", ["is connected", "are connected"]);
            let working = count(at_work.len(), "session", ["is working", "are working"]);
            return busy(format!("the host (process {pid}) is in use: {connected}, and {working}"));
        }
        self.host.stopping.send_replace(true);
        Ok(Stopping { pid: std::process::id() })
    }
}

/// Sends a client the notes for its user as they come.
fn tell_news(mut news: broadcast::Receiver<String>, out: mpsc::Sender<String>) -> News {
    let task = tokio::spawn(async move {
        loop {
            match news.recv().await {
                Ok(message) => {
                    let line = wire::notification("client/warning", &json!({ "message": message }));
                    rpc::send(&out, line).await;
                }
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return,
            }
        }
    });
    News(task.abort_handle())
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
