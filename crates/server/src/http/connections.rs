//! Connections: how many there may be, how long each may take, and how they end.
//!
//! Invariants: at most `connections_max` are open, besides one that is being accepted. A connection without an
//! authorized request in progress is closed when nothing was written to it for `request_timeout`; received bytes do not
//! keep it open, so a request must arrive whole in that time. If there is no room for a new connection, one without
//! work is closed: first those that never sent the token, the oldest of these first. All have ended [`STOP_MAX`] after
//! the server was asked to stop.

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

/// How long a stop waits for the requests under way.
pub(super) const STOP_MAX: Duration = Duration::from_secs(8);
/// How long a connection without work may stay open after the server was asked to stop, so that the client can read the
/// last response.
const STOP_QUIET_MAX: Duration = Duration::from_secs(1);
/// The wait after a connection could not be accepted.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// One connection, as the handlers of its requests see it.
#[derive(Debug)]
pub(super) struct Connection {
    /// The local address that the client connected to.
    pub(super) local: SocketAddr,
    accepted: Instant,
    /// Whether one of its requests had the token.
    is_owners: AtomicBool,
    /// The number of its authorized requests in progress.
    working: AtomicUsize,
    /// The number of streams of events on it.
    streaming: AtomicUsize,
    /// When it last wrote something, or finished its work.
    quiet_since: Mutex<Instant>,
    /// Closes it: its place is needed.
    closed: CancellationToken,
    /// Notified when this connection may make room.
    may_go: Arc<Notify>,
}

impl Connection {
    /// Marks an authorized request as in progress until the returned guard is dropped.
    pub(super) fn work(self: &Arc<Self>) -> Work {
        self.is_owners.store(true, Ordering::Relaxed);
        self.working.fetch_add(1, Ordering::Relaxed);
        Work { connection: Arc::clone(self) }
    }

    /// Marks a stream of events as open until the returned guard is dropped: the connection makes room for no other,
    /// and is closed when nothing was written to it for as long as any other.
    pub(super) fn stream(self: &Arc<Self>) -> Streaming {
        self.streaming.fetch_add(1, Ordering::Relaxed);
        Streaming { connection: Arc::clone(self) }
    }

    fn is_working(&self) -> bool {
        self.working.load(Ordering::Relaxed) > 0
    }

    fn is_streaming(&self) -> bool {
        self.streaming.load(Ordering::Relaxed) > 0
    }

    fn wrote(&self) {
        *self.quiet_since.lock() = Instant::now();
    }

    /// The time left until it is closed, given the time for which it may be quiet. While the server stops, a stream that is
    /// still open waits for the outcome of its work, and is not closed before the stop is over.
    fn remaining(&self, request_timeout: Duration, is_stopping: bool) -> Duration {
        let has_work = self.is_working() || self.is_streaming();
        let quiet_max = match is_stopping {
            true if !has_work => STOP_QUIET_MAX.min(request_timeout),
            true | false => request_timeout,
        };
        if self.is_working() {
            return quiet_max;
        }
        let since = *self.quiet_since.lock();
        quiet_max.saturating_sub(since.elapsed())
    }
}

/// An authorized request in progress.
#[derive(Debug)]
pub(super) struct Work {
    connection: Arc<Connection>,
}

impl Drop for Work {
    fn drop(&mut self) {
        self.connection.wrote();
        self.connection.working.fetch_sub(1, Ordering::Relaxed);
        self.connection.may_go.notify_one();
    }
}

/// An open stream of events.
#[derive(Debug)]
pub(super) struct Streaming {
    connection: Arc<Connection>,
}

impl Drop for Streaming {
    fn drop(&mut self) {
        self.connection.streaming.fetch_sub(1, Ordering::Relaxed);
        self.connection.may_go.notify_one();
    }
}

/// All connections of a server.
pub(super) struct Connections {
    request_timeout: Duration,
    places: Arc<Semaphore>,
    open: Mutex<Vec<Weak<Connection>>>,
    may_go: Arc<Notify>,
}

impl Connections {
    pub(super) fn new(connections_max: usize, request_timeout: Duration) -> Self {
        Self {
            request_timeout,
            places: Arc::new(Semaphore::new(connections_max.min(Semaphore::MAX_PERMITS))),
            open: Mutex::default(),
            may_go: Arc::default(),
        }
    }

    /// Serves connections until `stop` fires; returns when all have ended.
    pub(super) async fn serve(self, listener: TcpListener, router: Router, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        {
            // Accepting is not cancelled: it may hold a connection for which there is no room yet.
            let mut next = pin!(self.next(&listener));
            loop {
                let (stream, local, place) = tokio::select! {
                    biased;
                    () = stop.cancelled() => break,
                    // A connection that panicked has ended too.
                    Some(_) = tasks.join_next() => continue,
                    accepted = &mut next => accepted,
                };
                next.set(self.next(&listener));
                let accepted = Accepted { stream, connection: self.register(local), _place: place };
                tasks.spawn(serve_one(accepted, router.clone(), self.request_timeout, stop.clone()));
            }
        }
        drop(listener);
        let ended = async { while tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_MAX, ended).await.is_err() {
            tracing::warn!("connections were still open when the server stopped; they are closed");
        }
    }

    /// The next connection, and its place.
    async fn next(&self, listener: &TcpListener) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
        loop {
            match listener.accept().await.and_then(|(stream, _)| Ok((stream.local_addr()?, stream))) {
                Ok((local, stream)) => return (stream, local, self.place().await),
                Err(error) => {
                    // Most likely there are no file descriptors left.
                    tracing::warn!(%error, "a connection could not be accepted");
                    self.make_room();
                    tokio::time::sleep(ACCEPT_AGAIN).await;
                }
            }
        }
    }

    async fn place(&self) -> OwnedSemaphorePermit {
        loop {
            let place = Arc::clone(&self.places);
            if let Ok(place) = place.try_acquire_owned() {
                return place;
            }
            // A connection that is told to close frees its place; if all have work, the first to finish makes room.
            let is_made = self.make_room();
            tokio::select! {
                Ok(place) = Arc::clone(&self.places).acquire_owned() => return place,
                () = self.may_go.notified(), if !is_made => {}
            }
        }
    }

    /// Closes one connection without work; returns whether there is one.
    fn make_room(&self) -> bool {
        let open = self.open.lock();
        let quiet = open
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|open| !open.is_working() && !open.is_streaming() && !open.closed.is_cancelled());
        let first = quiet
            .min_by_key(|connection| (connection.is_owners.load(Ordering::Relaxed), connection.accepted));
        if let Some(connection) = &first {
            connection.closed.cancel();
        }
        first.is_some()
    }

    fn register(&self, local: SocketAddr) -> Arc<Connection> {
        let now = Instant::now();
        let connection = Arc::new(Connection {
            local,
            accepted: now,
            is_owners: AtomicBool::new(false),
            working: AtomicUsize::new(0),
            streaming: AtomicUsize::new(0),
            quiet_since: Mutex::new(now),
            closed: CancellationToken::new(),
            may_go: Arc::clone(&self.may_go),
        });
        let mut open = self.open.lock();
        // Closed connections are removed when the list would grow.
        if open.len() == open.capacity() {
            open.retain(|known| known.strong_count() > 0);
        }
        open.push(Arc::downgrade(&connection));
        connection
    }
}

/// A connection to serve. Its place is free when its socket is closed.
struct Accepted {
    stream: TcpStream,
    connection: Arc<Connection>,
    _place: OwnedSemaphorePermit,
}

/// Serves one connection, until its end.
async fn serve_one(accepted: Accepted, router: Router, request_timeout: Duration, stop: CancellationToken) {
    let Accepted { stream, connection, _place } = accepted;
    let known = Arc::clone(&connection);
    let service = hyper::service::service_fn(move |request: hyper::Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(Arc::clone(&known));
        router.clone().oneshot(request)
    });
    let watched = Watched { stream, connection: Arc::clone(&connection) };
    let mut served = pin!(
        // The times are kept here for every way in which a connection can be slow.
        http1::Builder::new().header_read_timeout(None).serve_connection(TokioIo::new(watched), service)
    );
    let mut is_stopping = false;
    loop {
        let remaining = connection.remaining(request_timeout, is_stopping);
        if remaining.is_zero() {
            return;
        }
        tokio::select! {
            biased;
            () = connection.closed.cancelled() => return,
            // An error from a client that disconnected is not ours.
            _ = served.as_mut() => return,
            () = stop.cancelled(), if !is_stopping => {
                is_stopping = true;
                served.as_mut().graceful_shutdown();
            }
            () = tokio::time::sleep(remaining) => {}
        }
    }
}

/// A socket that notes the time of each write.
struct Watched {
    stream: TcpStream,
    connection: Arc<Connection>,
}

impl Watched {
    fn note(&self, written: Poll<std::io::Result<usize>>) -> Poll<std::io::Result<usize>> {
        if matches!(written, Poll::Ready(Ok(1..))) {
            self.connection.wrote();
        }
        written
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.note(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, pieces);
        self.note(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
