//! The connection to a server, and the calls over it.
//!
//! Invariants: at most one connection to a server at a time, and one attempt to connect. A connection that ended is
//! replaced by the next call. A call that was sent is not sent again. What was started ends with its [`Link`].

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use greenroom_tools::server_process::ServerProcess;
use greenroom_tools::{ToolContext, ToolOutput};
use parking_lot::Mutex;
use rmcp::ClientLifecycleMode;
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, ClientRequest, JsonObject, ProtocolVersion, ServerResult, Tool,
};
use rmcp::service::{
    ClientInitializeError, Peer, PeerRequestOptions, RequestHandle, RoleClient, RunningService, ServiceError,
    serve_client_with_lifecycle,
};
use rmcp::transport::IntoTransport;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClient, StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
};
use tokio::io::AsyncBufReadExt as _;
use tokio::process::ChildStderr;
use tokio::task::JoinHandle;

use crate::About;
use crate::content;
use crate::error::{McpError, root_cause};
use crate::handler::{Handler, progress_line};
use crate::server::{Http, Server, Transport};

/// How long a server may take to end after its input was closed.
const END_MAX: Duration = Duration::from_secs(2);
/// How long the last lines of a server that ended are awaited.
const LAST_WORDS_MAX: Duration = Duration::from_millis(500);
/// The number of lines of a server's error output that are kept.
const LAST_LINES: usize = 5;
/// The maximum number of bytes of such a line that are kept.
const LINE_BYTES_MAX: usize = 500;
/// The maximum number of tools that are read from a server.
const TOOLS_MAX: usize = 1_000;

/// The connection to a server.
pub(crate) struct Link {
    server: Server,
    connected: tokio::sync::Mutex<Option<Connected>>,
}

/// A connection. When it is dropped, it is closed and the server ends.
struct Connected {
    /// `None` once it is being closed.
    open: Option<Open>,
    line: Line,
}

/// What a call needs of a connection.
#[derive(Clone)]
struct Line {
    peer: Peer<RoleClient>,
    handler: Handler,
    last_lines: LastLines,
    /// Whether a call has found that the server ended.
    ended: Arc<AtomicBool>,
}

struct Open {
    service: RunningService<RoleClient, Handler>,
    process: Option<ServerProcess>,
}

impl Link {
    /// Connects to a server, and reads its tools and what it says about itself.
    pub(crate) async fn connect(server: Server) -> Result<(Self, Vec<Tool>, About), McpError> {
        server.check()?;
        let (connected, tools) = Connected::open(server.clone()).await?;
        let said = connected.line.peer.peer_info();
        let title = said.as_ref().and_then(|said| said.server_info.as_ref()).map(|named| {
            let title = named.title.as_ref().unwrap_or(&named.name);
            format!("{title} {}", named.version)
        });
        let about = About { title, instructions: said.and_then(|said| said.instructions.clone()) };
        Ok((Self { server, connected: tokio::sync::Mutex::new(Some(connected)) }, tools, about))
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Calls a tool of the server.
    pub(crate) async fn call(&self, tool: &str, arguments: JsonObject, context: &ToolContext) -> ToolOutput {
        let line = tokio::select! {
            biased;
            () = context.cancel.cancelled() => return ToolOutput::interrupted("cancelled before the call was sent"),
            line = self.line() => line,
        };
        let line = match line {
            Ok(line) => line,
            Err(error) => return ToolOutput::error(error.to_string()),
        };
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        match line.peer.send_request_with_option(request, PeerRequestOptions::no_options()).await {
            Ok(request) => self.answer(request, &line, context).await,
            Err(error) => self.failed(error, &line).await,
        }
    }

    async fn answer(
        &self,
        mut request: RequestHandle<RoleClient>,
        line: &Line,
        context: &ToolContext,
    ) -> ToolOutput {
        let mut progress = line.handler.progress.subscribe(request.progress_token.clone()).await;
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut request.rx => break answer.unwrap_or(Err(ServiceError::TransportClosed)),
                () = context.cancel.cancelled() => {
                    // The server is told; it may still complete the call.
                    let _ = request.cancel(Some("the call was cancelled".to_owned())).await;
                    return ToolOutput::interrupted("cancelled; whether the call took effect is not known");
                }
                Some(report) = progress.next() => context.progress.report(progress_line(&report)),
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
            Err(error) => self.failed(error, line).await,
        }
    }

    /// Returns the result of a call that failed.
    async fn failed(&self, error: ServiceError, line: &Line) -> ToolOutput {
        let name = self.server.name();
        let unknown = "whether the call took effect is not known";
        let text = if let ServiceError::McpError(error) = error {
            error.message.into_owned()
        } else if let ServiceError::TransportClosed = error {
            line.ended.store(true, Ordering::Relaxed);
            let words = line.last_lines.read().await;
            format!(
                "the MCP server `{name}` ended during the call{words}; {unknown}. The next call starts it again"
            )
        } else {
            format!("the MCP server `{name}` did not complete the call: {}; {unknown}", shown(&error))
        };
        ToolOutput::error(text)
    }

    /// Returns the connection, made anew if the server has ended.
    async fn line(&self) -> Result<Line, McpError> {
        let mut connected = self.connected.lock().await;
        if let Some(now) = connected.as_ref().filter(|now| !now.line.has_ended()) {
            return Ok(now.line.clone());
        }
        // The old one ends first: it may hold a file or a port.
        if let Some(open) = connected.take().and_then(|mut ended| ended.open.take()) {
            open.close().await;
        }
        let (now, _tools) = Connected::open(self.server.clone()).await?;
        tracing::info!(server = self.server.name(), "the MCP server was connected again");
        Ok(connected.insert(now).line.clone())
    }
}

impl Line {
    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed) || self.peer.is_transport_closed()
    }
}

impl Connected {
    /// Connects within the server's time limit.
    fn open(server: Server) -> BoxFuture<'static, Result<(Self, Vec<Tool>), McpError>> {
        Box::pin(async move {
            let limit = server.start_max;
            let opened = tokio::time::timeout(limit, Self::negotiate(&server)).await;
            opened.unwrap_or_else(|_| {
                Err(McpError::new(server.name(), format!("did not answer within {} s", limit.as_secs_f64())))
            })
        })
    }

    /// Connects. A server that knows only the newest version of the protocol has no handshake: it is asked without one.
    async fn negotiate(server: &Server) -> Result<(Self, Vec<Tool>), McpError> {
        let newest = ClientLifecycleMode::Discover { preferred_versions: vec![ProtocolVersion::LATEST] };
        match Self::attempt(server, ClientLifecycleMode::Initialize).await {
            Err(Refused { has_answered: true, error }) => {
                Self::attempt(server, newest).await.map_err(|_of_the_second| error)
            }
            opened => opened.map_err(|refused| refused.error),
        }
    }

    async fn attempt(server: &Server, lifecycle: ClientLifecycleMode) -> Result<(Self, Vec<Tool>), Refused> {
        let handler = Handler {
            server: server.name().into(),
            root: server.root.clone(),
            progress: rmcp::handler::client::progress::ProgressDispatcher::new(),
        };
        let refused =
            |reason: String| Refused { has_answered: false, error: McpError::new(server.name(), reason) };
        let (process, last_lines, served) = match &server.transport {
            Transport::Program(program) => {
                let (process, streams) = ServerProcess::start(program)
                    .map_err(|error| refused(format!("cannot be started: {error}")))?;
                let last_lines = LastLines::of(streams.errors, server.name());
                let served = serve(handler, (streams.output, streams.input), lifecycle).await;
                (Some(process), last_lines, served)
            }
            Transport::Http(http) => {
                let transport = transport(http).map_err(refused)?;
                (None, LastLines::default(), serve(handler, transport, lifecycle).await)
            }
        };
        let service = match served {
            Ok(service) => service,
            Err(error) => {
                let has_answered = matches!(*error, ClientInitializeError::JsonRpcError(_));
                // It has ended, or its streams are closed: its last words come at once.
                let words = last_lines.read().await;
                if let Some(process) = process {
                    process.end(Duration::ZERO).await;
                }
                let error = McpError::new(server.name(), format!("{}{words}", why(&error)));
                return Err(Refused { has_answered, error });
            }
        };
        let line = Line {
            peer: service.peer().clone(),
            handler: service.service().clone(),
            last_lines: last_lines.clone(),
            ended: Arc::default(),
        };
        let open = Open { service, process };
        match list_tools(&line.peer).await {
            Ok(tools) => Ok((Self { open: Some(open), line }, tools)),
            Err(error) => {
                let words = last_lines.read().await;
                open.close().await;
                Err(refused(format!("did not list its tools: {}{words}", shown(&error))))
            }
        }
    }
}

async fn list_tools(peer: &Peer<RoleClient>) -> Result<Vec<Tool>, ServiceError> {
    if peer.peer_info().is_some_and(|about| about.capabilities.tools.is_none()) {
        return Ok(Vec::new());
    }
    let mut tools = peer.list_all_tools().await?;
    tools.truncate(TOOLS_MAX);
    Ok(tools)
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
            runtime.spawn(open.close());
        }
    }
}

/// Why an attempt to connect failed.
struct Refused {
    /// Whether the server answered, but not to this kind of handshake.
    has_answered: bool,
    error: McpError,
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

/// The last lines that a program wrote to its error output.
#[derive(Clone, Default)]
struct LastLines {
    lines: Arc<Mutex<VecDeque<String>>>,
    reading: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl LastLines {
    /// Reads the lines of a program until it ends. They go to the log as well.
    fn of(errors: ChildStderr, server: &str) -> Self {
        let (lines, server) = (Arc::<Mutex<VecDeque<String>>>::default(), server.to_owned());
        let kept = Arc::clone(&lines);
        let reading = tokio::spawn(async move {
            let mut read = tokio::io::BufReader::new(errors);
            let mut line = Vec::new();
            // A line may be of any length: it is read in pieces, and its beginning is kept.
            loop {
                let Ok(piece) = read.fill_buf().await else { return };
                if piece.is_empty() {
                    return;
                }
                let end = piece.iter().position(|byte| *byte == b'\n');
                let taken = end.map_or(piece.len(), |end| end + 1);
                let room = LINE_BYTES_MAX.saturating_sub(line.len());
                line.extend_from_slice(&piece[..end.unwrap_or(taken).min(room)]);
                read.consume(taken);
                if end.is_some() {
                    let text = String::from_utf8_lossy(&line).trim().to_owned();
                    line.clear();
                    tracing::debug!(server, "{text}");
                    let mut lines = kept.lock();
                    if !text.is_empty() {
                        lines.push_back(text);
                    }
                    if lines.len() > LAST_LINES {
                        lines.pop_front();
                    }
                }
            }
        });
        Self { lines, reading: Arc::new(Mutex::new(Some(reading))) }
    }

    /// Returns the lines of a program that has ended, behind a colon; empty if there are none.
    async fn read(&self) -> String {
        let reading = self.reading.lock().take();
        if let Some(reading) = reading {
            let _ = tokio::time::timeout(LAST_WORDS_MAX, reading).await;
        }
        let lines = self.lines.lock();
        if lines.is_empty() {
            String::new()
        } else {
            format!(" ({})", lines.iter().cloned().collect::<Vec<_>>().join(" / "))
        }
    }
}
