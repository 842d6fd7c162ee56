//! Detects a host that has served a client and stops answering.
//!
//! Invariants: the host is asked on separate connections, so long work on the client's own connection is not
//! silence; a host that answers these requests, but not one that should be answered promptly, is awaited for
//! [`UNANSWERED_MAX`], not counting the time in which it was silent; on a silent host, the command gives up,
//! or reports it and waits, as it chose; after an interruption, until that is settled, no command waits for a
//! silent host.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use greenroom::futures_util::FutureExt as _;
use greenroom::futures_util::future::BoxFuture;
use greenroom_server::operations::PingHost;
use greenroom_server::{Client, WeakClient};
use greenroom_terminal::{Interrupts, Screen};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::error::{GIVEN_UP, holder, silent_text};
use super::socket::{self, Connected};
use crate::args::Global;

#[cfg(test)]
mod tests;

/// How often a host is asked.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// How long it may take to answer: then it has been silent for 15 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// How long it may take after the user has interrupted the command, and how often it is asked then.
const INTERRUPTED_WITHIN: Duration = Duration::from_millis(1_500);
/// How long a living host may take to answer a request without work: a list, a state.
const UNANSWERED_MAX: Duration = Duration::from_secs(60);
/// The pause before a host is asked again after a failed connection.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// A change of the host's responsiveness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Silence {
    /// It does not answer: the message for the user.
    Begins(String),
    /// It answers again.
    Ends,
}

impl Silence {
    /// Returns the message for the user.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Begins(text) => text,
            Self::Ends => "the host answers again",
        }
    }
}

/// How a command waits for a silent host.
#[derive(Clone)]
pub(crate) struct Patience {
    /// After an interruption, it no longer waits.
    interrupts: Option<Interrupts>,
    tell: Arc<dyn Fn(Silence) + Send + Sync>,
}

impl Patience {
    /// Reports the wait on standard error.
    pub(crate) fn new(global: &Global, interrupts: &Interrupts) -> Self {
        Self { interrupts: Some(interrupts.clone()), ..Self::to_the_end(global) }
    }

    /// Like [`Self::new`], for a command that ends with the first interruption, whatever its host does.
    pub(crate) fn to_the_end(global: &Global) -> Self {
        let color = global.color;
        Self::telling(move |silence: Silence| {
            // If standard error is closed, nobody needs the message.
            let _ = Screen::stderr(color).line(format!("greenroom: {}", silence.text()));
        })
    }

    /// Reports the wait to `tell`, which also says when to leave.
    pub(crate) fn telling(tell: impl Fn(Silence) + Send + Sync + 'static) -> Self {
        Self { interrupts: None, tell: Arc::new(tell) }
    }
}

/// A host that serves a client.
pub(super) struct Serving {
    /// The store's directory.
    pub(super) dir: PathBuf,
    pub(super) socket: PathBuf,
    /// The process that greeted the client.
    pub(super) pid: u32,
}

/// Starts asking whether the host answers, as long as the client has its connection. Without patience, the
/// client gives up on a silent host.
pub(super) fn watch_over(client: &Client, host: Serving, patience: Option<Patience>) {
    tokio::spawn(Watching::over(Some(client.downgrade()), host, patience).run());
}

/// Like [`watch_over`], for a connection without a client, until the result is dropped.
pub(super) fn watch_over_raw(host: Serving, patience: Option<Patience>) -> RawWatch {
    RawWatch(tokio::spawn(Watching::over(None, host, patience).run()).abort_handle())
}

/// A host is watched until this is dropped.
pub(crate) struct RawWatch(AbortHandle);

impl Drop for RawWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Watching {
    /// `None`: no client can give up.
    client: Option<WeakClient>,
    /// The store's directory.
    dir: PathBuf,
    /// Completes when the host has answered.
    answers: Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
    patience: Option<Patience>,
    /// How often the user has interrupted the command.
    interruptions: Option<watch::Receiver<u64>>,
}

impl Watching {
    fn over(client: Option<WeakClient>, host: Serving, patience: Option<Patience>) -> Self {
        let (dir, host) = (host.dir.clone(), Arc::new(host));
        Self::new(client, dir, patience, move || {
            let host = Arc::clone(&host);
            async move { answers(&host).await }.boxed()
        })
    }

    fn new(
        client: Option<WeakClient>,
        dir: PathBuf,
        patience: Option<Patience>,
        answers: impl Fn() -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        let interruptions =
            patience.as_ref().and_then(|patience| Some(patience.interrupts.as_ref()?.count()));
        Self { client, dir, answers: Box::new(answers), patience, interruptions }
    }

    async fn run(mut self) {
        loop {
            let every = if self.is_interrupted() { INTERRUPTED_WITHIN } else { ASK_EVERY };
            let began = Instant::now();
            let is_interrupted = tokio::select! {
                biased;
                () = closed(&self.client) => return,
                () = interrupted(&mut self.interruptions) => true,
                () = sleep(every) => self.is_interrupted(),
            };
            let alive = began.elapsed();
            if !self.ask(is_interrupted).await {
                return;
            }
            if let Some(client) = self.client.as_ref().and_then(WeakClient::upgrade) {
                client.is_alive(alive, UNANSWERED_MAX, |method| unanswered_text(&self.dir, method));
            }
        }
    }

    /// Whether the user has interrupted the command's current work.
    fn is_interrupted(&self) -> bool {
        let interrupts = self.patience.as_ref().and_then(|patience| patience.interrupts.as_ref());
        interrupts.is_some_and(Interrupts::is_pending)
    }

    /// Asks once, and waits for the answer. Returns false if the connection is over.
    async fn ask(&mut self, is_interrupted: bool) -> bool {
        let mut wait = Wait::new(Instant::now(), is_interrupted);
        let mut answering = pin!((self.answers)());
        loop {
            tokio::select! {
                biased;
                () = closed(&self.client) => return false,
                () = &mut answering => break,
                () = interrupted(&mut self.interruptions) => wait.interrupted(Instant::now()),
                () = sleep_until(wait.deadline), if !wait.is_said => {
                    let Some(patience) = self.patience.as_ref().filter(|_| wait.goes_on()) else {
                        if let Some(client) = self.client.as_ref().and_then(WeakClient::upgrade) {
                            client.give_up(silent_text(&self.dir, GIVEN_UP));
                        }
                        return false;
                    };
                    (patience.tell)(Silence::Begins(silent_text(&self.dir, WAITS)));
                }
            }
        }
        if let Some(patience) = self.patience.as_ref().filter(|_| wait.is_said) {
            (patience.tell)(Silence::Ends);
        }
        true
    }
}

/// The wait for one answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Wait {
    /// The time for the next action, unless the user was told that the host is silent.
    deadline: Instant,
    /// Whether the user was told.
    is_said: bool,
    is_interrupted: bool,
}

impl Wait {
    fn new(now: Instant, is_interrupted: bool) -> Self {
        let within = if is_interrupted { INTERRUPTED_WITHIN } else { ANSWER_WITHIN };
        Self { deadline: now + within, is_said: false, is_interrupted }
    }

    /// Handles an interruption. If the user was told before, the host has had its time.
    fn interrupted(&mut self, now: Instant) {
        let within = if self.is_said { Duration::ZERO } else { INTERRUPTED_WITHIN };
        *self = Self { deadline: self.deadline.min(now + within), is_said: false, is_interrupted: true };
    }

    /// Handles the deadline in a command with patience. Returns whether the command continues to wait, after
    /// the user was told.
    fn goes_on(&mut self) -> bool {
        self.is_said = !self.is_interrupted;
        self.is_said
    }
}

/// The advice while a silent host is awaited.
const WAITS: &str = "waiting for it; Ctrl-C exits, and `greenroom host --stop --force` kills the host";

/// Returns the message that a host is alive and does not answer a request.
fn unanswered_text(dir: &Path, method: &str) -> String {
    let process = holder(dir).map(|pid| format!(" (process {pid})")).unwrap_or_default();
    format!(
        "the host of this store{process} is alive, but has not answered `{method}` for {} s; try again, or end it with \
         `greenroom host --stop --force`: nothing that was acknowledged is lost",
        UNANSWERED_MAX.as_secs()
    )
}

/// Waits for the end of a client's connection, if there is one.
async fn closed(client: &Option<WeakClient>) {
    match client {
        Some(client) => client.closed().await,
        None => std::future::pending().await,
    }
}

/// Waits for the next interruption; forever if none are received.
async fn interrupted(interruptions: &mut Option<watch::Receiver<u64>>) {
    let has_come = match interruptions {
        Some(interruptions) => interruptions.changed().await.is_ok(),
        None => false,
    };
    if !has_come {
        std::future::pending().await
    }
}

/// Waits until the host answers.
async fn answers(host: &Serving) {
    loop {
        if let Ok(Connected::Host(stream, _)) = socket::connect(&host.dir, &host.socket).await {
            let (input, output) = stream.into_split();
            match Client::new(input, output).call(PingHost {}).await {
                Ok(pong) if pong.pid == host.pid => return,
                // Another host has its place, or it is about to end.
                Ok(_) => {}
                Err(error) if error.is_gone() => {}
                // A host that refuses the request answers.
                Err(_) => return,
            }
        }
        sleep(AGAIN_AFTER).await;
    }
}
