//! The simulated model over HTTP, on the loopback interface.
//!
//! Invariants: `answer` decides the behaviour; this file only writes it as bytes, in the given order and at
//! the given times. If the client disconnects, its answer ends at once.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use greenroom_provider::BaseUrl;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::SimulatorError;
use crate::answer::{Piece, Raw, SERVER_ERROR, Step, Transmission};
use crate::protocol::{Parsed, Protocol, Writer, chat};
use crate::simulator::{InFlight, Simulator};

/// The largest request that is read: more than any simulated window.
const BODY_BYTES_MAX: usize = 64 << 20;

/// Breaks the connection: the only error of the service.
#[derive(Debug, thiserror::Error)]
#[error("the simulated connection was reset")]
struct Broken;

type Body = UnsyncBoxBody<Bytes, Broken>;

/// A running server. Dropping it closes the port and every connection.
pub struct SimulatorServer {
    address: SocketAddr,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl SimulatorServer {
    pub(crate) async fn bind(simulator: Simulator, at: SocketAddr) -> Result<Self, SimulatorError> {
        let listener = TcpListener::bind(at).await.map_err(SimulatorError::Bind)?;
        let address = listener.local_addr().map_err(SimulatorError::Bind)?;
        let server = Self { address, stop: CancellationToken::new(), tasks: TaskTracker::new() };
        let (stop, tasks) = (server.stop.clone(), server.tasks.clone());
        server.tasks.spawn(async move {
            let accepting = accept(listener, simulator, &stop, &tasks);
            let _ = stop.run_until_cancelled(accepting).await;
        });
        Ok(server)
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the base URL for OpenAI clients: `http://127.0.0.1:PORT/v1`.
    pub fn base_url(&self) -> BaseUrl {
        format!("http://{}/v1", self.address).parse().expect("an address is a host and a port")
    }

    /// Closes the port and every connection, and waits until all are gone.
    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for SimulatorServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn accept(listener: TcpListener, simulator: Simulator, stop: &CancellationToken, tasks: &TaskTracker) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let serving = serve_connection(stream, simulator.clone());
                let stop = stop.clone();
                tasks.spawn(async move {
                    let _ = stop.run_until_cancelled(serving).await;
                });
            }
            Err(error) => {
                // Usually out of file descriptors; others will be closed.
                tracing::warn!(%error, "the simulator could not accept a connection");
                sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

async fn serve_connection(stream: TcpStream, simulator: Simulator) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "no TCP_NODELAY");
    }
    let closes_after_ms = simulator.options().closes_after_ms;
    let answered = Arc::new(Notify::new());
    let over = Arc::clone(&answered);
    let service = service_fn(move |request| {
        let (handling, over) = (handle(simulator.clone(), request), Arc::clone(&over));
        async move {
            let response = handling.await?;
            Ok::<_, Broken>(match closes_after_ms {
                Some(_) => response.map(|body| notifying(body, over)),
                None => response,
            })
        }
    });
    let connection =
        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
    let closed = async {
        let Some(ms) = closes_after_ms else { return std::future::pending().await };
        answered.notified().await;
        sleep(Duration::from_millis(ms)).await;
    };
    tokio::select! {
        ended = connection => if let Err(error) = ended {
            tracing::debug!(%error, "a simulated connection ended");
        },
        () = closed => {}
    }
}

/// Wraps the body so that it signals when its end was taken.
fn notifying(body: Body, over: Arc<Notify>) -> Body {
    let frames = futures_util::stream::unfold((body, over), |(mut body, over)| async move {
        let frame = body.frame().await;
        if frame.is_none() {
            over.notify_one();
        }
        Some((frame?, (body, over)))
    });
    StreamBody::new(frames).boxed_unsync()
}

async fn handle(simulator: Simulator, request: Request<Incoming>) -> Result<Response<Body>, Broken> {
    let counting = Protocol::counting(request.uri().path());
    let protocol = Protocol::of(request.uri().path()).or(counting);
    if let Some(key) = &simulator.options().require_key
        && protocol.unwrap_or(Protocol::Chat).key(request.headers()) != Some(key)
        && Protocol::Chat.key(request.headers()) != Some(key)
    {
        let message = "Incorrect API key provided. Check the key that this simulator was started with.";
        let body = chat::error_body(message, "invalid_request_error", Some("invalid_api_key"));
        return Ok(json(401, protocol.unwrap_or(Protocol::Chat).error(401, body)));
    }
    if let (&Method::POST, Some(protocol)) = (request.method(), counting) {
        return Ok(count(&simulator, protocol, request).await);
    }
    match (request.method(), protocol) {
        (&Method::POST, Some(protocol)) => complete(simulator, protocol, request).await,
        (&Method::GET, None) if request.uri().path() == "/v1/models" => {
            let options = simulator.options();
            Ok(match options.list.list(&options.model, options.window) {
                Some(list) => json(200, list.to_string()),
                None => json(404, chat::error_body("Not Found", "invalid_request_error", None)),
            })
        }
        (method, _) => {
            let (options, path) = (simulator.options(), request.uri().path());
            if let Some(page) = options.list.page(path, &options.model, options.window) {
                return Ok(json(200, page.to_string()));
            }
            let message = format!("Unknown request URL: {method} {path}.");
            Ok(json(404, chat::error_body(&message, "invalid_request_error", Some("unknown_url"))))
        }
    }
}

/// Answers a request to count tokens.
async fn count(simulator: &Simulator, protocol: Protocol, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, BODY_BYTES_MAX).collect().await else {
        let body = chat::error_body("The request is too large.", "invalid_request_error", None);
        return json(413, protocol.error(413, body));
    };
    let Parsed { seen, broken, .. } = protocol.parse_count(head.uri.path(), &head.headers, &body.to_bytes());
    match simulator.count(seen, broken) {
        Ok(tokens) => json(200, protocol.count(tokens).to_string()),
        Err(status) => json(status.status, protocol.error(status.status, status.body)),
    }
}

async fn complete(
    simulator: Simulator,
    protocol: Protocol,
    request: Request<Incoming>,
) -> Result<Response<Body>, Broken> {
    let (head, body) = request.into_parts();
    let Ok(body) = Limited::new(body, BODY_BYTES_MAX).collect().await else {
        let body = chat::error_body("The request is too large.", "invalid_request_error", None);
        return Ok(json(413, protocol.error(413, body)));
    };
    let Parsed { seen, broken, mut writer } =
        protocol.parse(head.uri.path(), &head.headers, &body.to_bytes());
    let streamed = seen.streamed;
    let (answer, flight) = simulator.begin(seen, broken);
    let steps = match answer {
        Transmission::Status(status) => {
            flight.wait_and_fire(&status).await;
            let mut response = json(status.status, protocol.error(status.status, status.body));
            for (name, value) in status.headers {
                if let (Ok(name), Ok(value)) =
                    (header::HeaderName::try_from(name), header::HeaderValue::try_from(value))
                {
                    response.headers_mut().insert(name, value);
                }
            }
            return Ok(response);
        }
        Transmission::Stream(steps) => steps,
    };
    writer.begin(flight.call());
    let mut performance = Performance { steps, protocol, writer, flight, pinged_ms: 0 };
    performance.until_headers().await?;
    if streamed {
        let frames = futures_util::stream::unfold(performance, |mut performance| async move {
            let next = performance.next_bytes().await?;
            Some((next.map(Frame::data), performance))
        });
        let response = Response::builder()
            .header(header::CONTENT_TYPE, "text/event-stream")
            .header(header::CACHE_CONTROL, "no-cache")
            .body(StreamBody::new(frames).boxed_unsync());
        Ok(response.expect("fixed headers are valid"))
    } else {
        performance.whole().await
    }
}

fn json(status: u16, body: String) -> Response<Body> {
    let mut response = Response::new(full(body));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    response
}

fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// An answer in progress.
struct Performance {
    steps: VecDeque<Step>,
    protocol: Protocol,
    writer: Box<dyn Writer>,
    flight: InFlight,
    /// How much of the initial stall has passed.
    pinged_ms: u64,
}

impl Performance {
    /// Performs the steps before the status is sent.
    async fn until_headers(&mut self) -> Result<(), Broken> {
        while let Some(step) = self.steps.pop_front() {
            match step {
                Step::Headers => return Ok(()),
                Step::Wait(ms) => sleep(Duration::from_millis(ms)).await,
                // No pings can be sent before the headers.
                Step::Stall { for_ms: Some(ms), .. } => sleep(Duration::from_millis(ms)).await,
                Step::Stall { for_ms: None, .. } => std::future::pending().await,
                Step::Fired(fault) => self.flight.fired(fault),
                Step::Reset | Step::Refuse | Step::Piece(_) | Step::Raw(_) => return Err(Broken),
            }
        }
        Err(Broken)
    }

    /// Returns the next bytes of the stream: everything up to the next pause, since one write costs less than
    /// many.
    async fn next_bytes(&mut self) -> Option<Result<Bytes, Broken>> {
        let mut bytes = Vec::new();
        while let Some(step) = self.steps.front() {
            let pauses = match step {
                Step::Wait(_) | Step::Stall { .. } | Step::Reset | Step::Refuse => true,
                Step::Headers | Step::Piece(_) | Step::Raw(_) | Step::Fired(_) => false,
            };
            if pauses && !bytes.is_empty() {
                break;
            }
            match self.steps.pop_front()? {
                Step::Wait(ms) => sleep(Duration::from_millis(ms)).await,
                Step::Stall { ping_every_ms, for_ms } => {
                    let left = for_ms.map(|ms| ms.saturating_sub(self.pinged_ms));
                    let Some(every) = ping_every_ms.filter(|every| left.is_none_or(|left| left > *every))
                    else {
                        match left {
                            Some(ms) => sleep(Duration::from_millis(ms)).await,
                            None => std::future::pending().await,
                        }
                        self.pinged_ms = 0;
                        continue;
                    };
                    sleep(Duration::from_millis(every)).await;
                    self.pinged_ms += every;
                    self.steps.push_front(Step::Stall { ping_every_ms, for_ms });
                    self.flight.pinged();
                    return Some(Ok(Bytes::from_static(b": ping\n\n")));
                }
                Step::Reset | Step::Refuse => {
                    // The connection flushes only when this body has nothing more for now.
                    sleep(Duration::from_millis(1)).await;
                    return Some(Err(Broken));
                }
                Step::Fired(fault) => self.flight.fired(fault),
                Step::Piece(piece) => self.writer.piece(&piece, &mut bytes),
                Step::Raw(raw) => self.writer.raw(&raw, &mut bytes),
                Step::Headers => {}
            }
        }
        (!bytes.is_empty()).then(|| Ok(bytes.into()))
    }

    /// Returns the whole answer as one JSON object, for a client that does not request a stream.
    async fn whole(mut self) -> Result<Response<Body>, Broken> {
        let (mut pieces, mut is_broken, mut has_bad_utf8) = (Vec::new(), false, false);
        while let Some(step) = self.steps.pop_front() {
            match step {
                Step::Wait(ms) | Step::Stall { for_ms: Some(ms), .. } => {
                    sleep(Duration::from_millis(ms)).await
                }
                Step::Stall { for_ms: None, .. } => std::future::pending().await,
                Step::Reset | Step::Refuse => return Err(Broken),
                Step::Fired(fault) => self.flight.fired(fault),
                Step::Headers => {}
                Step::Piece(piece) => pieces.push(piece),
                Step::Raw(Raw::ErrorEvent) => {
                    let body = chat::error_body(SERVER_ERROR, "server_error", None);
                    return Ok(json(200, self.protocol.error(500, body)));
                }
                Step::Raw(Raw::BrokenJson) => is_broken = true,
                Step::Raw(Raw::BadUtf8) => has_bad_utf8 = true,
                Step::Raw(Raw::PlainText(text)) => return Ok(json(200, text)),
            }
        }
        // A stream that ends early has no counterpart here but a body that ends early.
        is_broken |= !pieces.iter().any(|piece| matches!(piece, Piece::Finish(_)));
        let mut bytes = self.writer.whole(pieces).to_string().into_bytes();
        if is_broken {
            bytes.truncate(bytes.len() / 2);
        }
        if has_bad_utf8 {
            bytes.insert(bytes.len() / 2, 0xff);
        }
        let mut response = json(200, String::new());
        *response.body_mut() = full(bytes);
        Ok(response)
    }
}

#[cfg(test)]
mod tests;
