//! Traces: the spans of runs, sent to a collector by OpenTelemetry's protocol.
//!
//! Invariants: nothing is sent unless an address is configured, and never a log line, which could have text in it; a
//! collector that cannot be reached delays nothing and is reported once; the end of the program waits for the last spans
//! for [`FLUSH_MAX`] at most.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use greenroom::internal::Poster;
use greenroom::provider::BaseUrl;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::FilterFn;
use tracing_subscriber::{Layer, Registry};

use crate::agent;
use crate::args::{Command, Options};
use crate::config::shown_url;
use crate::config::surroundings::Surroundings;
use crate::error::usage;

/// How long the end of the program waits for the last spans.
const FLUSH_MAX: Duration = Duration::from_secs(2);
/// How long one request may take.
const SEND_MAX: Duration = Duration::from_secs(10);
/// The path of traces below a collector's address.
const PATH: &str = "/v1/traces";
/// The variables that OpenTelemetry defines.
const ENDPOINT: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const HEADERS: &str = "OTEL_EXPORTER_OTLP_HEADERS";
const SERVICE: &str = "OTEL_SERVICE_NAME";

/// The traces of this process.
pub(crate) struct Traces {
    provider: SdkTracerProvider,
    /// Why the newest request failed; `None` if none did since one succeeded.
    failure: Arc<Mutex<Option<String>>>,
    collector: String,
}

/// Starts to send traces, if a collector is configured and the command may start runs.
///
/// # Errors
/// The address or the proxies are unusable.
pub(crate) fn start(options: &Options, handle: &Handle) -> anyhow::Result<Option<Traces>> {
    if !has_runs(&options.command) {
        return Ok(None);
    }
    let surroundings = Surroundings::here();
    let variable = |name: &str| surroundings.variable(name).filter(|value| !value.trim().is_empty());
    let address = match variable(ENDPOINT) {
        Some(text) => Some(text.trim().parse().map_err(|error| usage(format!("{ENDPOINT}: {error}")))?),
        // An unusable configuration is reported by the command.
        None => agent::load_config(&options.global, &surroundings)
            .ok()
            .and_then(|loaded| loaded.config.telemetry.otlp_endpoint),
    };
    let Some(address) = address else { return Ok(None) };
    let service = variable(SERVICE).unwrap_or_else(|| env!("CARGO_BIN_NAME").to_owned());
    let headers = variable(HEADERS).map(|text| headers(&text)).unwrap_or_default();
    Traces::new(&address, headers, service, &surroundings, handle).map(Some)
}

/// Whether a command may start runs in its process.
fn has_runs(command: &Command) -> bool {
    match command {
        Command::Demo(_)
        | Command::Chat(_)
        | Command::Run(_)
        | Command::Resume(_)
        | Command::Init(_)
        | Command::Compact(_)
        | Command::Undo(_)
        | Command::Fork(_)
        | Command::Serve(_)
        | Command::Rpc(_)
        | Command::Acp(_) => true,
        Command::Host(args) => !args.stop,
        Command::Sessions(_)
        | Command::Top(_)
        | Command::Show(_)
        | Command::Recall(_)
        | Command::Eval(_)
        | Command::Import(_)
        | Command::Questions(_)
        | Command::Answer(_)
        | Command::Export(_)
        | Command::Delete(_)
        | Command::Prune(_)
        | Command::Store(_)
        | Command::Simulate(_)
        | Command::Usage(_)
        | Command::Models(_)
        | Command::Config(_)
        | Command::Login(_)
        | Command::Doctor(_)
        | Command::Mcp(_)
        | Command::Completions(_) => false,
    }
}

/// Reads `name=value,name=value`; the exporter decodes the values.
fn headers(text: &str) -> HashMap<String, String> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())).collect()
}

impl Traces {
    fn new(
        address: &BaseUrl,
        headers: HashMap<String, String>,
        service: String,
        surroundings: &Surroundings,
        handle: &Handle,
    ) -> anyhow::Result<Self> {
        let (failure, collector) = (Arc::default(), shown_url(address));
        let client = Client {
            poster: Poster::new(address, agent::proxies(surroundings))?,
            handle: handle.clone(),
            collector: collector.clone(),
            failure: Arc::clone(&failure),
        };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_endpoint(format!("{}{PATH}", address.to_string().trim_end_matches('/')))
            .with_headers(headers)
            .build()?;
        let resource = Resource::builder()
            .with_service_name(service)
            .with_attribute(opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        Ok(Self { provider, failure, collector })
    }

    /// Returns the layer that takes the spans of runs.
    pub(crate) fn layer(&self) -> impl Layer<Registry> + Send + Sync + use<> {
        tracing_opentelemetry::layer()
            .with_tracer(self.provider.tracer(env!("CARGO_BIN_NAME")))
            .with_location(false)
            .with_threads(false)
            .with_tracked_inactivity(false)
            .with_target(false)
            .with_level(false)
            .with_filter(FilterFn::new(is_ours).with_max_level_hint(LevelFilter::INFO))
    }

    /// Sends the last spans. Returns a warning if the collector could not be reached.
    pub(crate) fn end(self) -> Option<String> {
        let sent = self.provider.shutdown_with_timeout(FLUSH_MAX);
        let failure = self.failure.lock().take();
        let reason = failure.or_else(|| sent.is_err().then(|| "it does not answer".to_owned()))?;
        Some(format!("traces could not be sent to {}: {reason}", self.collector))
    }
}

/// Whether a span is one of ours. Log lines are not sent.
fn is_ours(of: &Metadata<'_>) -> bool {
    of.is_span() && *of.level() <= Level::INFO && of.target().starts_with("greenroom")
}

/// Sends the exporter's requests by our own client, on our own threads.
#[derive(Debug)]
struct Client {
    poster: Poster,
    handle: Handle,
    collector: String,
    failure: Arc<Mutex<Option<String>>>,
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let poster = self.poster.clone();
        // The exporter's thread has no reactor.
        let sent = self
            .handle
            .spawn(async move { poster.post(&parts.uri.to_string(), parts.headers, body, SEND_MAX).await });
        let sent = sent.await.map_err(|ended| ended.to_string()).and_then(|sent| sent);
        let failed = match &sent {
            Ok((200..300, _)) => None,
            Ok((status, _)) => Some(format!("it answers with status {status}")),
            Err(reason) => Some(reason.clone()),
        };
        let was_well = std::mem::replace(&mut *self.failure.lock(), failed.clone()).is_none();
        if let Some(reason) = failed.filter(|_| was_well) {
            tracing::warn!("traces could not be sent to {}: {reason}", self.collector);
        }
        let (status, headers) = sent?;
        let mut response = Response::builder().status(status).body(Bytes::new())?;
        *response.headers_mut() = headers;
        Ok(response)
    }
}
