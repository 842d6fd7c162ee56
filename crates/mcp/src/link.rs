//! The connection to a server, and the calls over it.
//!
//! Invariants: at most one connection to a server at a time, and one attempt to connect. A connection that ended is
//! replaced by the next call. A call that was sent is not sent again. A server that was started ends with its [`Link`].

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use greenroom_tools::server_process::ServerProcess;
use greenroom_tools::{ToolContext, ToolOutput};
use parking_lot::Mutex;
use rmcp::ClientLifecycleMode;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientRequest, CustomResult, ErrorCode, JsonObject,
    ListToolsRequest, PaginatedRequestParams, ProtocolVersion, ServerResult, Tool,
};
use rmcp::service::{
    ClientInitializeError, Peer, PeerRequestOptions, RequestHandle, RoleClient, RunningService, ServiceError,
    serve_client_with_lifecycle,
};
use rmcp::transport::IntoTransport;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, ReadBuf};
use tokio::process::{ChildStderr, ChildStdout};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::About;
use crate::content;
use crate::error::{McpError, root_cause};
use crate::handler::{Handler, progress_line};
use crate::server::{Http, Server, Transport};

/// How long a server may take to end after its input was closed.
const END_MAX: Duration = Duration::from_secs(2);
/// How long the last lines of a server that ended are awaited.
const LAST_WORDS_MAX: Duration = Duration::from_millis(500);
/// How long a server may take to read that a call was cancelled: less than the grace period of a call.
const TELL_MAX: Duration = Duration::from_millis(100);
/// The number of lines of a server's error output that are kept.
const LAST_LINES: usize = 3;
/// The maximum number of bytes of such a line that are kept.
const LINE_BYTES_MAX: usize = 200;
/// The maximum size of a message of a program, in bytes.
const MESSAGE_BYTES_MAX: usize = rmcp::transport::async_rw::DEFAULT_MAX_LINE_LENGTH;
/// The maximum number of tools that are read from a server.
pub(crate) const TOOLS_MAX: usize = 1_000;
/// The maximum size of all descriptions and schemas that are read, in bytes.
const LIST_BYTES_MAX: usize = 8 * 1024 * 1024;
/// The maximum number of pages of them.
const PAGES_MAX: usize = 200;
/// The maximum number of reports of progress in a second.
const REPORTS_MAX: u32 = 10;

/// The connection to a server.
pub(crate) struct Link {
    server: Server,
    connected: tokio::sync::Mutex<Option<Connected>>,
}

/// A connection. When it is dropped, it is closed and the server ends.
struct Connected {
    /// `None` once it is being closed.
    open: Option<Open>,
    channel: Channel,
}

/// What a call needs of a connection.
#[derive(Clone)]
struct Channel {
    peer: Peer<RoleClient>,
    handler: Handler,
    last_lines: LastLines,
    /// Whether a call has found the connection unusable.
    ended: Arc<AtomicBool>,
}

struct Open {
    service: RunningService<RoleClient, Handler>,
    process: Option<ServerProcess>,
}

impl Link {
    /// Connects to a server, and reads its tools and what it says about itself.
    pub(crate) async fn connect(server: Server) -> Result<(Self, Listed, About), McpError> {
        server.check()?;
        let (connected, listed) = Connected::open(server.clone()).await?;
        let said = connected.channel.peer.peer_info();
        let title = said.as_ref().and_then(|said| said.server_info.as_ref()).map(|named| {
            let title = named.title.as_ref().unwrap_or(&named.name);
            format!("{title} {}", named.version)
        });
        let about = About { title, instructions: said.and_then(|said| said.instructions.clone()) };
        Ok((Self { server, connected: tokio::sync::Mutex::new(Some(connected)) }, listed, about))
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Calls a tool of the server.
    pub(crate) async fn call(
        self: Arc<Self>,
        tool: &str,
        arguments: JsonObject,
        context: &ToolContext,
    ) -> ToolOutput {
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        for attempt in 1.. {
            let channel = tokio::select! {
                biased;
                () = context.cancel.cancelled() => {
                    return ToolOutput::interrupted("cancelled before the call was sent");
                }
                channel = self.channel() => channel,
            };
            let channel = match channel {
                Ok(channel) => channel,
                Err(error) => return ToolOutput::error(error.to_string()),
            };
            match channel
                .peer
                .send_request_with_option(request.clone(), PeerRequestOptions::no_options())
                .await
            {
                Ok(request) => return self.answer(request, &channel, context).await,
                // The server has just ended, and has not got the call.
                Err(ServiceError::TransportClosed) if attempt == 1 => {
                    channel.ended.store(true, Ordering::Relaxed)
                }
                Err(error) => return self.failed(error, &channel).await,
            }
        }
        unreachable!("the second attempt returns")
    }

    async fn answer(
        &self,
        mut request: RequestHandle<RoleClient>,
        channel: &Channel,
        context: &ToolContext,
    ) -> ToolOutput {
        let mut progress = channel.handler.progress.subscribe(request.progress_token.clone()).await;
        let (mut since, mut reported) = (Instant::now(), 0);
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut request.rx => break answer.unwrap_or(Err(ServiceError::TransportClosed)),
                () = context.cancel.cancelled() => {
                    // The server is told; it may still complete the call. One that reads nothing is not waited for.
                    let telling = request.cancel(Some("the call was cancelled".to_owned()));
                    let _ = tokio::time::timeout(TELL_MAX, telling).await;
                    return ToolOutput::interrupted("cancelled; whether the call took effect is not known");
                }
                Some(report) = progress.next() => {
                    if since.elapsed() > Duration::from_secs(1) {
                        (since, reported) = (Instant::now(), 0);
                    }
                    reported += 1;
                    if reported <= REPORTS_MAX {
                        context.progress.report(progress_line(&report));
                    }
                }
            }
        };
        match answer {
            Ok(ServerResult::CallToolResult(result)) => content::output(result),
            // A result with content of a newer version of the protocol.
            Ok(ServerResult::CustomResult(result)) => ToolOutput::text(result.0.to_string()),
            Ok(ServerResult::InputRequiredResult(_)) => ToolOutput::error(
                "the server asks for further input before it completes the call, which is not supported",
            ),
            Ok(_) => ToolOutput::error("the server's answer is not the result of a call"),
            Err(error) => self.failed(error, channel).await,
        }
    }

    /// Returns the result of a call that failed.
    async fn failed(&self, error: ServiceError, channel: &Channel) -> ToolOutput {
        if let ServiceError::McpError(error) = error {
            return ToolOutput::error(error.message.into_owned());
        }
        // The next call connects anew: a service may have forgotten this session.
        channel.ended.store(true, Ordering::Relaxed);
        let name = self.server.name();
        let what = if let ServiceError::TransportClosed = error {
            format!("ended during the call{}", channel.last_lines.read().await)
        } else {
            format!("did not complete the call: {}", shown(&error))
        };
        ToolOutput::error(format!(
            "the MCP server `{name}` {what}; whether the call took effect is not known"
        ))
    }

    /// Returns the connection, made anew if it has ended. The attempt to connect continues if the caller is cancelled: the start of
    /// a server may take longer than the time limit of a call.
    async fn channel(self: &Arc<Self>) -> Result<Channel, McpError> {
        if let Some(now) = self.connected.lock().await.as_ref().filter(|now| !now.channel.has_ended()) {
            return Ok(now.channel.clone());
        }
        let connecting = tokio::spawn(Arc::clone(self).reconnect());
        connecting.await.unwrap_or_else(|_| Err(McpError::new(self.server.name(), "could not be connected")))
    }

    async fn reconnect(self: Arc<Self>) -> Result<Channel, McpError> {
        let mut connected = self.connected.lock().await;
        // Another call may have been faster.
        if let Some(now) = connected.as_ref().filter(|now| !now.channel.has_ended()) {
            return Ok(now.channel.clone());
        }
        // The old one ends first: it may hold a file or a port.
        if let Some(open) = connected.take().and_then(|mut ended| ended.open.take()) {
            open.close().await;
        }
        let (now, _listed) = Connected::open(self.server.clone()).await?;
        tracing::info!(server = self.server.name(), "the MCP server was connected again");
        Ok(connected.insert(now).channel.clone())
    }
}

impl Channel {
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed) || self.peer.is_transport_closed()
    }
}

impl Connected {
    /// Connects within the server's time limit. A server that knows only the newest version of the protocol has no
    /// handshake: it is asked without one.
    fn open(server: Server) -> BoxFuture<'static, Result<(Self, Listed), McpError>> {
        Box::pin(async move {
            let deadline = Instant::now() + server.start_max;
            let newest = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] };
            match Self::attempt(&server, ClientLifecycleMode::Initialize, deadline).await {
                Err(Refused { knows_no_handshake: true, error }) => {
                    Self::attempt(&server, newest, deadline).await.map_err(|_of_the_second| error)
                }
                opened => opened.map_err(|refused| refused.error),
            }
        })
    }

    async fn attempt(
        server: &Server,
        lifecycle: ClientLifecycleMode,
        deadline: Instant,
    ) -> Result<(Self, Listed), Refused> {
        let handler = Handler {
            server: server.name().into(),
            root: server.root.clone(),
            progress: rmcp::handler::client::progress::ProgressDispatcher::new(),
        };
        let refused = |reason: String| Refused {
            knows_no_handshake: false,
            error: McpError::new(server.name(), reason),
        };
        let late = || format!("did not answer within {} s", server.start_max.as_secs_f64());
        let (process, last_lines, served) = match &server.transport {
            Transport::Program(program) => {
                let (process, streams) = ServerProcess::start(program)
                    .map_err(|error| refused(format!("cannot be started: {error}")))?;
                let last_lines = LastLines::of(streams.errors, server.name());
                let output = BoundedOutput::new(streams.output, last_lines.clone());
                let served = serve(handler, (output, streams.input), lifecycle);
                (Some(process), last_lines, timeout_at(deadline, served).await)
            }
            Transport::Http(http) => {
                let served = serve(handler, transport(http).map_err(refused)?, lifecycle);
                (None, LastLines::default(), timeout_at(deadline, served).await)
            }
        };
        let service = match served {
            Ok(Ok(service)) => service,
            failed => {
                let (knows_no_handshake, reason) = match failed {
                    Ok(Err(error)) => (knows_no_handshake(&error), why(&error)),
                    Ok(Ok(_)) | Err(_) => (false, late()),
                };
                if let Some(process) = process {
                    process.end(Duration::ZERO).await;
                }
                let reason = format!("{reason}{}", last_lines.read().await);
                return Err(Refused { knows_no_handshake, ..refused(reason) });
            }
        };
        let channel = Channel {
            peer: service.peer().clone(),
            handler: service.service().clone(),
            last_lines,
            ended: Arc::default(),
        };
        let open = Open { service, process };
        let reason = match timeout_at(deadline, Listed::read(&channel.peer)).await {
            Ok(Ok(listed)) => return Ok((Self { open: Some(open), channel }, listed)),
            Ok(Err(error)) => format!("did not list its tools: {}", shown(&error)),
            Err(_) => late(),
        };
        open.close().await;
        Err(refused(format!("{reason}{}", channel.last_lines.read().await)))
    }
}

/// The tools that a server lists.
#[derive(Default)]
pub(crate) struct Listed {
    pub(crate) tools: Vec<Tool>,
    /// Whether there are more of them than are read.
    pub(crate) is_cut: bool,
    /// Why some are left out, a clause each.
    pub(crate) left_out: Vec<String>,
}

/// Returns the size of a tool's description and schema, in bytes.
pub(crate) fn tool_bytes(tool: &Tool) -> usize {
    let schema = serde_json::to_string(&*tool.input_schema).map_or(0, |schema| schema.len());
    schema + tool.description.as_ref().map_or(0, |text| text.len())
}

impl Listed {
    /// Reads the pages of the list, as far as the limits permit.
    async fn read(peer: &Peer<RoleClient>) -> Result<Self, ServiceError> {
        let mut listed = Self::default();
        if peer.peer_info().is_some_and(|about| about.capabilities.tools.is_none()) {
            return Ok(listed);
        }
        let (mut cursor, mut bytes) = (None, 0);
        for _page in 0..PAGES_MAX {
            let params = PaginatedRequestParams::default().with_cursor(cursor);
            let request = ClientRequest::ListToolsRequest(ListToolsRequest::with_param(params));
            let answer = peer.send_request(request).await?;
            let (tools, next) = if let ServerResult::ListToolsResult(page) = answer {
                (page.tools, page.next_cursor)
            } else if let ServerResult::CustomResult(CustomResult(page)) = answer {
                // One tool that is not as the protocol has it would lose all of them.
                listed.readable(page)?
            } else {
                return Err(ServiceError::UnexpectedResponse);
            };
            bytes += tools.iter().map(tool_bytes).sum::<usize>();
            listed.tools.extend(tools);
            cursor = next;
            if cursor.is_none() && listed.tools.len() <= TOOLS_MAX {
                return Ok(listed);
            }
            if listed.tools.len() >= TOOLS_MAX || bytes > LIST_BYTES_MAX {
                break;
            }
        }
        listed.tools.truncate(TOOLS_MAX);
        listed.is_cut = true;
        Ok(listed)
    }

    /// Returns the tools of a page that can be read, and the next page's cursor.
    fn readable(&mut self, mut page: Value) -> Result<(Vec<Tool>, Option<String>), ServiceError> {
        let Some(Value::Array(tools)) = page.get_mut("tools").map(Value::take) else {
            return Err(ServiceError::UnexpectedResponse);
        };
        let mut readable = Vec::new();
        for tool in tools {
            let name = tool.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
            match serde_json::from_value(tool) {
                Ok(tool) => readable.push(tool),
                Err(error) => self.left_out.push(format!("its tool `{name}` is not offered: {error}")),
            }
        }
        Ok((readable, page.get("nextCursor").and_then(Value::as_str).map(str::to_owned)))
    }
}

impl Open {
    /// Closes the connection, and waits until the server has ended.
    async fn close(self) {
        let _ = tokio::time::timeout(END_MAX, self.service.cancel()).await;
        if let Some(process) = self.process {
            process.end(END_MAX).await;
        }
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        // Without a runtime, the server is ended at once.
        if let (Some(open), Ok(runtime)) = (self.open.take(), tokio::runtime::Handle::try_current()) {
            let closing = Closing::new();
            runtime.spawn(async move {
                open.close().await;
                drop(closing);
            });
        }
    }
}

/// The number of connections that are being closed.
static CLOSING: LazyLock<watch::Sender<usize>> = LazyLock::new(|| watch::Sender::new(0));

/// A connection that is being closed.
struct Closing;

impl Closing {
    fn new() -> Self {
        CLOSING.send_modify(|count| *count += 1);
        Self
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        CLOSING.send_modify(|count| *count -= 1);
    }
}

/// Waits until the servers whose connections were dropped have ended, each of which takes 4 s at most. A program calls it
/// before it ends its runtime, so that its servers can end by themselves.
pub async fn closed() {
    // The sender lives as long as the process.
    let _ = CLOSING.subscribe().wait_for(|count| *count == 0).await;
}

/// Why an attempt to connect failed.
struct Refused {
    /// Whether the server seems to know only the version of the protocol that has no handshake.
    knows_no_handshake: bool,
    error: McpError,
}

fn knows_no_handshake(error: &ClientInitializeError) -> bool {
    let codes = [
        ErrorCode::METHOD_NOT_FOUND,
        ErrorCode::INVALID_REQUEST,
        ErrorCode::INVALID_PARAMS,
        ErrorCode::UNSUPPORTED_PROTOCOL_VERSION,
    ];
    matches!(error, ClientInitializeError::JsonRpcError(error) if codes.contains(&error.code))
}

async fn serve<T, E, A>(
    handler: Handler,
    transport: T,
    lifecycle: ClientLifecycleMode,
) -> Result<RunningService<RoleClient, Handler>, Box<ClientInitializeError>>
where
    T: IntoTransport<RoleClient, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    serve_client_with_lifecycle(handler, transport, lifecycle).await.map_err(Box::new)
}

/// Returns the transport to a service.
fn transport(
    http: &Http,
) -> Result<StreamableHttpClientTransport<impl StreamableHttpClient + use<>>, String> {
    let client = greenroom_provider::service_client(&http.url, http.proxies.clone())
        .map_err(|error| format!("cannot be reached: {error}"))?;
    let headers: HashMap<_, _> = http.headers.iter().cloned().collect();
    let config = StreamableHttpClientTransportConfig::with_uri(http.url.with_query()).custom_headers(headers);
    Ok(StreamableHttpClientTransport::with_client(client, config))
}

/// Returns why a connection was not established, as a clause about the server.
fn why(error: &ClientInitializeError) -> String {
    if error.is_authorization_required() {
        return "refuses access: it needs a token, or another one".to_owned();
    }
    if let ClientInitializeError::ConnectionClosed(_) = error {
        "ended before it answered".to_owned()
    } else if let ClientInitializeError::JsonRpcError(error) = error {
        format!("refused the connection: {}", error.message)
    } else if let ClientInitializeError::TransportError { error, .. } = error {
        format!("cannot be reached: {}", root_cause(&*error.error))
    } else {
        format!("did not answer as an MCP server does: {error}")
    }
}

fn shown(error: &ServiceError) -> String {
    if let ServiceError::McpError(error) = error {
        error.message.to_string()
    } else if let ServiceError::TransportSend(error) = error {
        root_cause(&*error.error)
    } else {
        error.to_string()
    }
}

/// The output of a program, which ends at a message that is too large: `rmcp` would drop the message, and the call would wait
/// forever.
struct BoundedOutput {
    output: ChildStdout,
    line: LineLength,
    last_lines: LastLines,
}

/// The length of the line that is read, in bytes.
#[derive(Default)]
struct LineLength(usize);

impl LineLength {
    /// Adds a piece of the output. Returns whether it completes or continues a line that, with its line break, is longer
    /// than a message may be.
    fn is_exceeded_by(&mut self, read: &[u8]) -> bool {
        let mut is_exceeded = false;
        for piece in read.split_inclusive(|byte| *byte == b'\n') {
            self.0 += piece.len();
            is_exceeded |= self.0 > MESSAGE_BYTES_MAX;
            if piece.ends_with(b"\n") {
                self.0 = 0;
            }
        }
        is_exceeded
    }
}

impl BoundedOutput {
    fn new(output: ChildStdout, last_lines: LastLines) -> Self {
        Self { output, line: LineLength::default(), last_lines }
    }
}

impl AsyncRead for BoundedOutput {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let start = into.filled().len();
        ready!(Pin::new(&mut self.output).poll_read(context, into))?;
        if self.line.is_exceeded_by(&into.filled()[start..]) {
            let text = format!("a message of more than {} MiB is not read", MESSAGE_BYTES_MAX / 1024 / 1024);
            self.last_lines.lines.lock().push_back(text.clone());
            return Poll::Ready(Err(std::io::Error::other(text)));
        }
        Poll::Ready(Ok(()))
    }
}

/// The last lines that a program wrote to its error output.
#[derive(Clone, Default)]
struct LastLines {
    lines: Arc<Mutex<VecDeque<String>>>,
    /// Whether the output has ended; `None` for a service, which has none.
    has_ended: Option<watch::Receiver<bool>>,
}

impl LastLines {
    /// Reads the lines of a program until it ends. They go to the log as well.
    fn of(errors: ChildStderr, server: &str) -> Self {
        let (end, has_ended) = watch::channel(false);
        let these = Self { lines: Arc::default(), has_ended: Some(has_ended) };
        let (kept, server) = (these.clone(), server.to_owned());
        tokio::spawn(async move {
            let mut read = tokio::io::BufReader::new(errors);
            let mut line = Vec::new();
            // A line may be of any length: it is read in pieces, and its beginning is kept.
            loop {
                let piece = read.fill_buf().await.unwrap_or_default();
                let taken = piece.iter().position(|byte| *byte == b'\n').map_or(piece.len(), |end| end + 1);
                let is_whole = piece.is_empty() || piece[taken - 1] == b'\n';
                let room = LINE_BYTES_MAX.saturating_sub(line.len());
                line.extend_from_slice(&piece[..taken.min(room)]);
                let is_end = piece.is_empty();
                read.consume(taken);
                if is_whole {
                    kept.push(&server, &line);
                    line.clear();
                }
                if is_end {
                    break;
                }
            }
            let _ = end.send(true);
        });
        these
    }

    fn push(&self, server: &str, line: &[u8]) {
        let text = String::from_utf8_lossy(line).trim().to_owned();
        if text.is_empty() {
            return;
        }
        tracing::debug!(server, "{text}");
        let mut lines = self.lines.lock();
        lines.push_back(text);
        if lines.len() > LAST_LINES {
            lines.pop_front();
        }
    }

    /// Returns the lines of a program that has ended, in parentheses; empty if there are none.
    async fn read(&self) -> String {
        if let Some(mut has_ended) = self.has_ended.clone() {
            let _ = tokio::time::timeout(LAST_WORDS_MAX, has_ended.wait_for(|ended| *ended)).await;
        }
        let lines = self.lines.lock().iter().cloned().collect::<Vec<_>>();
        if lines.is_empty() { String::new() } else { format!(" ({})", lines.join(" / ")) }
    }
}

#[cfg(test)]
mod tests;
