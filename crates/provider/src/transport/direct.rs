//! The connections to a server that is reached without a proxy.
//!
//! Each call drives its connection itself, in its own task: an answer is read where it is used, and no other task is woken
//! for each of its pieces.
//!
//! Invariants: a request is sent a second time only if it went out on a connection that was free before, which broke at once
//! and before the head of an answer; the second time uses a new connection, and there is no third time. A connection is free
//! only after its answer was read to the end; it is kept for the next call, however many there are, until it was free for a
//! while, and is not used if the server has closed it meanwhile.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{Stream, StreamExt};
use http::{Request, Uri};
use hyper::body::{Body as _, Incoming};
use hyper::client::conn::http1::{Connection, SendRequest, handshake};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tower::Service;

use super::ServerOptions;
use super::connection::{FREE_FOR, broke_off, is_stale};
use super::send::{Answer, Pieces, Unsent};

/// How often a silent connection is probed, as the HTTP client does it for others.
const PROBED_EVERY: Duration = Duration::from_secs(15);

/// The connections to one server.
pub(super) struct Direct {
    connector: HttpsConnector<HttpConnector>,
    connect_timeout: Duration,
    free: Arc<Free>,
}

impl fmt::Debug for Direct {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Direct")
    }
}

/// The connections that no call uses, the one that was used last at the end.
#[derive(Default)]
struct Free {
    connections: Mutex<Vec<(Instant, Box<Live>)>>,
    /// Whether a task closes those that nobody needs.
    is_watched: AtomicBool,
}

/// An open connection.
struct Live {
    sender: SendRequest<Pieces>,
    /// `None` once it has ended.
    connection: Option<Connection<MaybeHttpsStream<TokioIo<TcpStream>>, Pieces>>,
}

impl Direct {
    /// Returns the connections to the server of these options; `None` if it is reached through a proxy.
    pub(super) fn new(options: &ServerOptions, tls: rustls::ClientConfig) -> Option<Self> {
        let to: Uri = options.base_url.to_string().parse().ok()?;
        let is_proxied = match &options.proxies {
            Some(proxies) => [&proxies.http, &proxies.https, &proxies.all].into_iter().any(Option::is_some),
            None => Matcher::from_system().intercept(&to).is_some(),
        };
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(PROBED_EVERY));
        tcp.set_keepalive_interval(Some(PROBED_EVERY));
        tcp.set_keepalive_retries(Some(3));
        #[cfg(target_os = "linux")]
        tcp.set_tcp_user_timeout(Some(2 * PROBED_EVERY));
        let connector = HttpsConnector::from((tcp, tls));
        let connect_timeout = options.connect_timeout;
        (!is_proxied).then(|| Self { connector, connect_timeout, free: Arc::default() })
    }

    /// Sends a request to this address and waits for the head of the answer.
    ///
    /// # Errors
    /// No connection, or it broke before the answer began.
    pub(super) async fn execute(
        &self,
        to: &Uri,
        request: impl Fn() -> Request<Pieces>,
    ) -> Result<Answer, Unsent> {
        let mut free = self.free.take();
        loop {
            let is_reused = free.is_some();
            let live = match free.take() {
                Some(live) => live,
                // Boxed, because few calls open a connection.
                None => Box::pin(self.connect(to)).await?,
            };
            let started = Instant::now();
            match self.send(live, &request).await {
                Err(error) if broke_off(&error) && is_stale(!is_reused, started.elapsed()) => {
                    tracing::debug!(
                        host = to.host(),
                        "a reused connection was closed; the request is sent on a new one"
                    );
                }
                sent => return sent.map_err(Unsent::broken),
            }
        }
    }

    async fn connect(&self, to: &Uri) -> Result<Box<Live>, Unsent> {
        let connected = tokio::time::timeout(self.connect_timeout, self.connector.clone().call(to.clone()));
        let stream = connected.await.map_err(Unsent::late)?.map_err(Unsent::unconnected)?;
        let (sender, connection) = handshake(stream).await.map_err(Unsent::broken)?;
        Ok(Box::new(Live { sender, connection: Some(connection) }))
    }

    async fn send(
        &self,
        mut live: Box<Live>,
        request: &impl Fn() -> Request<Pieces>,
    ) -> hyper::Result<Answer> {
        let mut sent = pin!(live.sender.send_request(request()));
        let response = poll_fn(|context| match sent.as_mut().poll(context) {
            Poll::Pending => {
                live.drive(context);
                sent.as_mut().poll(context)
            }
            response => response,
        });
        let (head, incoming) = response.await?.into_parts();
        let chunks = Chunks { incoming: Some(incoming), live: Some(live), free: Arc::clone(&self.free) };
        Ok(Answer { status: head.status, headers: head.headers, chunks: chunks.boxed() })
    }
}

impl Live {
    /// Lets the connection read and write what it can.
    fn drive(&mut self, context: &mut Context<'_>) {
        if let Some(connection) = &mut self.connection
            && Pin::new(connection).poll(context).is_ready()
        {
            self.connection = None;
        }
    }

    /// Whether the connection can take a request.
    fn is_free(&mut self) -> bool {
        self.drive(&mut Context::from_waker(Waker::noop()));
        self.connection.is_some() && self.sender.is_ready()
    }
}

impl Free {
    fn take(&self) -> Option<Box<Live>> {
        loop {
            let (since, mut live) = self.connections.lock().pop()?;
            if since.elapsed() < FREE_FOR && live.is_free() {
                return Some(live);
            }
        }
    }

    fn put(self: &Arc<Self>, live: Box<Live>) {
        self.connections.lock().push((Instant::now(), live));
        if !self.is_watched.load(Ordering::Relaxed)
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
            && !self.is_watched.swap(true, Ordering::Relaxed)
        {
            let watch = Watch(Arc::downgrade(self));
            runtime.spawn(async move { while watch.close_unneeded().await {} });
        }
    }
}

/// Closes free connections that were not used for a while, until none is left or its runtime ends.
struct Watch(Weak<Free>);

impl Watch {
    /// Waits for a while, and closes the connections that were free all the time. Returns whether others are left.
    async fn close_unneeded(&self) -> bool {
        tokio::time::sleep(FREE_FOR).await;
        let Some(free) = self.0.upgrade() else { return false };
        let mut connections = free.connections.lock();
        let needed = connections.partition_point(|(since, _)| since.elapsed() >= FREE_FOR);
        let unneeded: Vec<_> = connections.drain(..needed).collect();
        let has_others = !connections.is_empty();
        // Under the lock: the call that adds the next connection starts another watch.
        free.is_watched.store(has_others, Ordering::Relaxed);
        drop(connections);
        drop(unneeded);
        has_others
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(free) = self.0.upgrade() {
            free.is_watched.store(false, Ordering::Relaxed);
        }
    }
}

/// The body of an answer, which drives its connection.
struct Chunks {
    incoming: Option<Incoming>,
    live: Option<Box<Live>>,
    free: Arc<Free>,
}

impl Stream for Chunks {
    type Item = Result<Bytes, Unsent>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { incoming: Some(incoming), live: Some(live), .. } = self.get_mut() else {
            return Poll::Ready(None);
        };
        loop {
            let frame = match Pin::new(&mut *incoming).poll_frame(context) {
                Poll::Pending => {
                    live.drive(context);
                    ready!(Pin::new(&mut *incoming).poll_frame(context))
                }
                Poll::Ready(frame) => frame,
            };
            match frame.transpose().map_err(Unsent::broken)?.map(hyper::body::Frame::into_data) {
                Some(Ok(chunk)) => return Poll::Ready(Some(Ok(chunk))),
                // Trailers.
                Some(Err(_)) => {}
                None => return Poll::Ready(None),
            }
        }
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        // What is left of the answer is skipped if it has come already; otherwise the connection closes.
        self.incoming = None;
        if let Some(mut live) = self.live.take()
            && live.is_free()
        {
            self.free.put(live);
        }
    }
}

#[cfg(test)]
mod tests;
