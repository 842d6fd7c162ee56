//! A proxy before the server that cuts and holds connections at a chosen step.
//!
//! Invariants: what it forwards it does not change. A request that was forwarded before a cut is executed by the server, so
//! the client is in doubt about it; one that was not forwarded never arrives.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What is forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Everything.
    Pass,
    /// Nothing, in either direction; connections stay open.
    Hold,
    /// Requests, but no answers.
    HoldAnswers,
    /// Nothing, and new connections are refused.
    Refuse,
}

/// Where a connection is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Instead of a request.
    BeforeRequest,
    /// After a request, before its answer.
    AfterRequest,
    /// Instead of an answer: the server has done its work.
    BeforeAnswer,
    /// After an answer.
    AfterAnswer,
}

/// A proxy in front of a server's socket.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    mode: watch::Sender<Mode>,
    /// Changes when all connections are to be cut.
    cut_all: watch::Sender<u64>,
    /// The step at which a connection is cut, and how many of its kind pass before.
    plan: Mutex<Option<(Step, u64)>>,
    cuts: AtomicU64,
}

impl Proxy {
    /// Starts a proxy to the server with this socket.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn start(socket: PathBuf) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port is free");
        let address = listener.local_addr().expect("it has an address");
        let shared = Arc::new(Shared {
            mode: watch::channel(Mode::Pass).0,
            cut_all: watch::channel(0).0,
            plan: Mutex::new(None),
            cuts: AtomicU64::new(0),
        });
        let accepting = tokio::spawn(accept(listener, socket, Arc::clone(&shared)));
        Self { address, shared, accepting }
    }

    /// Returns a connection string, in the form of a list.
    pub fn url(&self) -> String {
        let (host, port) = (self.address.ip(), self.address.port());
        format!("host={host} port={port} user=postgres dbname=postgres sslmode=disable")
    }

    /// Sets what is forwarded.
    pub fn set(&self, mode: Mode) {
        self.shared.mode.send_replace(mode);
        if mode == Mode::Refuse {
            self.cut_all();
        }
    }

    /// Cuts all connections.
    pub(crate) fn cut_all(&self) {
        self.shared.cut_all.send_modify(|times| *times += 1);
    }

    /// Cuts the connection that comes to this step after `passing` others did, once.
    pub fn plan(&self, step: Step, passing: u64) {
        *self.shared.plan.lock() = Some((step, passing));
    }

    /// Forgets the plan. Returns whether it was still to be carried out.
    pub fn forget(&self) -> bool {
        self.shared.plan.lock().take().is_some()
    }

    /// Returns how many connections were cut by plan.
    pub fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut_all();
    }
}

impl Shared {
    /// Whether a connection that is at this step is to be cut.
    fn is_due(&self, step: Step) -> bool {
        let mut plan = self.plan.lock();
        match &mut *plan {
            Some((planned, 0)) if *planned == step => {
                *plan = None;
                self.cuts.fetch_add(1, Ordering::Relaxed);
                true
            }
            Some((planned, passing)) if *planned == step => {
                *passing -= 1;
                false
            }
            Some(_) | None => false,
        }
    }
}

async fn accept(listener: TcpListener, socket: PathBuf, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { return };
        if *shared.mode.borrow() == Mode::Refuse {
            continue;
        }
        let (socket, shared) = (socket.clone(), Arc::clone(&shared));
        drop(tokio::spawn(async move {
            if let Ok(server) = UnixStream::connect(socket).await {
                // However it ends, both sides are closed.
                drop(forward(client, server, &shared).await);
            }
        }));
    }
}

/// Forwards until one side ends or the connection is to be cut.
async fn forward(mut client: TcpStream, mut server: UnixStream, shared: &Shared) -> std::io::Result<()> {
    let mut modes = shared.mode.subscribe();
    let mut cuts = shared.cut_all.subscribe();
    client.set_nodelay(true)?;
    let (mut requests, mut answers) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    loop {
        let mode = *modes.borrow_and_update();
        let (takes_requests, takes_answers) = match mode {
            Mode::Pass => (true, true),
            Mode::Hold | Mode::Refuse => (false, false),
            Mode::HoldAnswers => (true, false),
        };
        tokio::select! {
            count = client.read(&mut requests), if takes_requests => {
                let count = count?;
                if count == 0 || shared.is_due(Step::BeforeRequest) {
                    return Ok(());
                }
                server.write_all(&requests[..count]).await?;
                if shared.is_due(Step::AfterRequest) {
                    return Ok(());
                }
            }
            count = server.read(&mut answers), if takes_answers => {
                let count = count?;
                if count == 0 || shared.is_due(Step::BeforeAnswer) {
                    return Ok(());
                }
                client.write_all(&answers[..count]).await?;
                if shared.is_due(Step::AfterAnswer) {
                    return Ok(());
                }
            }
            _ = modes.changed() => {}
            _ = cuts.changed() => return Ok(()),
        }
    }
}
