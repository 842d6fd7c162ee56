//! The runtime that commands use: that of the host that holds the store for all terminals, or one in this
//! process; and read-only access to the store.
//!
//! May use `agent` and the rooms below it. No command is known here.
//!
//! - Ways to a runtime: a `connection` to that of a host (`connect`) or to one in this process (`own`); with an agent
//!   it is a `link`, and for reading a `source`. `stored` opens the store itself.
//! - A host: `spawn`, `socket`, `peer` (who is at the other end), `agents` and `named` (of its clients), `watchdog`, `cluster`.
//! - Output: `log`, `traces`, `short` (ids), `error`. `tests::played` is a host.
//!
//! Invariants: the socket exists as long as the store's lock is held, and clients that connect while the host
//! ends are told to try again; the host ends by itself when no client is connected and no work is in
//! progress, and when its store has been moved, because another store may be in its place; if two hosts start
//! at the same time, one ends at once, and its client finds the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use greenroom::Runtime;
use greenroom_server::Host;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Notify;
use tokio::time::Instant;

use self::agents::Agents;
use self::peer::Stranger;
use self::socket::{HeldLock, HostSocket};
use crate::agent;
use crate::args::Global;

pub(crate) use self::agents::Nobody;
pub(crate) use self::connect::{
    RawConnection, Reached, Who, fingerprint, make_room, reach, reach_or_free, reach_or_start, reach_raw,
    reach_to_look, still_silent, stop,
};
pub(crate) use self::connection::{ATTEMPTS, Changes, not_found, resolve_known};
pub(crate) use self::error::{Unreached, is_gone, is_silent, is_silent_client};
pub(crate) use self::named::named_agents;
pub(crate) use self::own::Setup;
pub(crate) use self::peer::check_possible;
pub(crate) use self::spawn::Terms;
pub(crate) use self::watchdog::{Patience, Silence};

mod agents;
pub(crate) mod cluster;
mod connect;
mod connection;
mod error;
pub(crate) mod link;
pub(crate) mod log;
mod named;
pub(crate) mod own;
mod peer;
pub(crate) mod short;
mod socket;
pub(crate) mod source;
mod spawn;
pub(crate) mod stored;
#[cfg(feature = "otlp")]
pub(crate) mod traces;
mod watchdog;

#[cfg(test)]
mod tests;

/// The log file in the store's folder.
pub(crate) const LOG_FILE: &str = "host.log";
/// The message of a host that can be reached.
pub(crate) const READY: &str = "ready";
/// The pause before a host accepts again after an error, and before a client tries again.
const AGAIN_AFTER: Duration = Duration::from_millis(20);
/// How often a host checks that its store and its socket still exist.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Serves other commands on the store's socket until it is dropped.
pub(crate) struct Answering {
    pub(crate) host: Host,
    accepting: tokio::task::JoinHandle<()>,
    /// Whether new clients are refused.
    is_ending: Arc<AtomicBool>,
    /// Notified when the store has been moved.
    pub(crate) gone: Arc<Notify>,
    /// `None` if no clients are served.
    socket: Option<Arc<HostSocket>>,
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.accepting.abort();
        if let Some(socket) = &self.socket {
            socket.leave();
        }
    }
}

impl Answering {
    /// Starts serving. `runtime` holds the lock of the store. If this process cannot be a host, no clients
    /// are served.
    ///
    /// # Errors
    /// No socket can be created.
    pub(crate) fn begin(global: &Global, runtime: &Runtime) -> Result<Self> {
        let dir = agent::data_dir(global)?;
        let dir = dir.canonicalize().with_context(|| format!("find {}", dir.display()))?;
        let lock = HeldLock::of(&dir)?;
        let listening = match peer::check_possible() {
            Ok(()) => Some(socket::listen(&dir)?),
            Err(reason) => {
                tracing::info!("this process cannot serve other commands: {reason}");
                None
            }
        };
        let global = Global { data_dir: Some(dir), config: None, settings: Vec::new(), ..global.clone() };
        let host = Host::new(runtime, Agents::new(&global), env!("CARGO_PKG_VERSION"));
        let (is_ending, gone) = (Arc::<AtomicBool>::default(), Arc::<Notify>::default());
        let door = |socket: &Arc<HostSocket>| Door {
            host: host.clone(),
            socket: Arc::clone(socket),
            lock,
            is_ending: Arc::clone(&is_ending),
            gone: Arc::clone(&gone),
        };
        let (socket, accepting) = match listening {
            Some((listener, socket)) => {
                let socket = Arc::new(socket);
                let accepting = tokio::spawn(door(&socket).accept(listener));
                (Some(socket), accepting)
            }
            None => (None, tokio::spawn(async {})),
        };
        Ok(Self { host, accepting, is_ending, gone, socket })
    }

    /// Makes this a part of a program that does not end without clients.
    pub(crate) fn part_of(self, program: &str) -> Self {
        // The host is shared, so this names the program for all who ask.
        drop(self.host.clone().part_of(program));
        self
    }

    /// Waits until the host is told to end, or its store has been moved.
    pub(crate) async fn must_end(&self) {
        tokio::select! {
            () = self.gone.notified() => {}
            () = self.host.stopped() => {}
        }
    }

    /// Ends the runtime, and the server `beside` it. Clients that connect in the meantime are refused, and
    /// try again until the store is free.
    pub(crate) async fn end(self, runtime: Runtime, beside: impl Future<Output = ()>) -> Result<()> {
        self.is_ending.store(true, Ordering::Relaxed);
        own::end(runtime, beside).await
    }

    /// Like [`Self::end`], by this moment.
    pub(crate) async fn end_by(self, runtime: Runtime, until: Instant) -> Result<()> {
        self.is_ending.store(true, Ordering::Relaxed);
        own::end_by(runtime, until, async {}).await
    }
}

/// Accepts connections.
struct Door {
    host: Host,
    socket: Arc<HostSocket>,
    lock: HeldLock,
    is_ending: Arc<AtomicBool>,
    gone: Arc<Notify>,
}

impl Door {
    async fn accept(self, mut listener: UnixListener) {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        loop {
            let accepted = tokio::select! {
                biased;
                _ = looks.tick() => None,
                accepted = async {
                    self.host.room().await;
                    listener.accept().await
                } => Some(accepted),
            };
            // A store that was moved or replaced has another host, or will have one.
            if !self.lock.is_in_place() && !self.is_ending.swap(true, Ordering::Relaxed) {
                tracing::error!("the store was moved, removed or replaced, so this host ends");
                self.gone.notify_one();
            }
            let is_ending = self.is_ending.load(Ordering::Relaxed);
            match accepted {
                None if is_ending => {}
                // The socket may have been removed.
                None => match self.socket.renewed() {
                    Ok(None) => {}
                    Ok(Some(renewed)) => listener = renewed,
                    Err(error) => {
                        tracing::warn!("the socket is gone, and cannot be created again: {error:#}")
                    }
                },
                Some(Ok(_)) if is_ending => {}
                Some(Ok((stream, _))) => self.admit(stream),
                Some(Err(error)) => {
                    // Too many files are open, for example; some may be closed soon.
                    tracing::warn!("a connection was not accepted: {error}");
                    tokio::time::sleep(AGAIN_AFTER).await;
                }
            }
        }
    }

    /// Serves a connection, or says why not.
    fn admit(&self, stream: UnixStream) {
        let refused = match peer::process(&stream) {
            Ok(_) => {
                let (input, output) = stream.into_split();
                tokio::spawn(self.host.serve(input, output));
                return;
            }
            Err(Stranger::Gone) => return,
            Err(refused) => refused,
        };
        tracing::warn!("a connection was refused: {refused}");
        match &refused {
            // The reason is not sent to another user.
            Stranger::OtherUser | Stranger::Gone => {}
            Stranger::OfCommand(_) => drop(stream.try_write(peer::refusal(&peer::OF_COMMAND).as_bytes())),
            Stranger::Unknown(_) => drop(stream.try_write(peer::refusal(&refused).as_bytes())),
        }
    }
}
