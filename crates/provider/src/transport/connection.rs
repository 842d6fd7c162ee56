//! Sends a request, and once more where the connection that it went out on was already dead. Without a proxy, `direct` sends
//! it.
//!
//! Some servers close a connection right after an answer, and a request that leaves at that moment meets a closed
//! connection: nothing was wrong with it, and nobody read it.
//!
//! Invariants: a request is sent a second time only if it went out on a connection that was not opened for it, which
//! broke at once and before the head of an answer; the second time uses a new connection, and there is no third time.
//! A connection that is free is kept for the next call, however many there are, until it was free for a while.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::HeaderMap;
use rustls::crypto::CryptoProvider;
use rustls_platform_verifier::BuilderVerifierExt;
use tower::util::Oneshot;

use super::send::{self, Answer, Template, TransportError, Unsent};
use super::{OptionsError, Server, ServerOptions};

/// How soon a dead connection shows. After a longer time the server may have worked on the request.
const BREAKS_WITHIN: Duration = Duration::from_secs(1);

/// How long a connection is kept that no call uses.
pub(super) const FREE_FOR: Duration = Duration::from_secs(90);

tokio::task_local! {
    /// Whether a connection was opened for the request that this task sends.
    static OPENED: Arc<AtomicBool>;
}

/// The `User-Agent` of requests.
pub(super) const AGENT: &str = concat!("greenroom/", env!("CARGO_PKG_VERSION"));

/// The HTTP client for a server. A client with `keeps_connections` reuses connections and notes each that it opens.
pub(super) fn client(
    options: &ServerOptions,
    keeps_connections: bool,
) -> Result<reqwest::Client, OptionsError> {
    let tls = tls_for(options)?;
    let mut client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .connect_timeout(options.connect_timeout)
        // There are never more of them than calls were under way at once, and each is closed when nobody has needed it
        // for `FREE_FOR`. With a lower limit many calls would make connections, and close them, again and again.
        .pool_max_idle_per_host(if keeps_connections { usize::MAX } else { 0 })
        .pool_idle_timeout(FREE_FOR)
        .user_agent(AGENT);
    if let Some(proxies) = &options.proxies {
        client = proxies.client(client)?;
    }
    if keeps_connections {
        client = client.connector_layer(NoteOpened);
    }
    client.build().map_err(|error| OptionsError::Client { reason: send::root_cause(&error) })
}

/// How the connections to a server are encrypted.
pub(super) fn tls_for(options: &ServerOptions) -> Result<rustls::ClientConfig, OptionsError> {
    tls(options.base_url.is_encrypted()).map_err(|error| OptionsError::Client { reason: error.to_string() })
}

/// How connections are encrypted: with the cryptography that the program has chosen for all of rustls, else with `ring`.
fn tls(is_encrypted: bool) -> Result<rustls::ClientConfig, rustls::Error> {
    let chosen = CryptoProvider::get_default().cloned();
    let cryptography = chosen.unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()));
    let tls =
        rustls::ClientConfig::builder_with_provider(cryptography).with_safe_default_protocol_versions()?;
    let tls = if is_encrypted {
        tls.with_platform_verifier()?
    } else {
        // Without TLS no certificate is needed, so a machine that has none installed reaches a local server.
        tls.with_root_certificates(rustls::RootCertStore::empty())
    };
    let mut tls = tls.with_no_client_auth();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(tls)
}

impl Server {
    /// Sends a request and waits for the head of the answer.
    pub(super) async fn execute(
        &self,
        template: &Template,
        body: &[Bytes],
        headers: &HeaderMap,
    ) -> Result<Answer, TransportError> {
        let sent = match &self.direct {
            Some(direct) => direct.execute(&template.to, || template.with(body, headers)).await,
            None => Box::pin(self.execute_proxied(|| template.for_client(body, headers))).await,
        };
        sent.map_err(TransportError::Send)
    }

    /// Sends a request through the HTTP client, which supports proxies.
    async fn execute_proxied(&self, request: impl Fn() -> reqwest::Request) -> Result<Answer, Unsent> {
        let opened = Arc::new(AtomicBool::new(false));
        let started = Instant::now();
        let mut sent = OPENED.scope(Arc::clone(&opened), self.client.execute(request())).await;
        if sent.as_ref().is_err_and(|error| broke_off(error))
            && is_stale(opened.load(Ordering::Relaxed), started.elapsed())
            && let Some(client) = self.without_pool.get_or_init(|| client(&self.options, false).ok())
        {
            tracing::debug!(
                base = self.endpoint.base,
                "a reused connection was closed; the request is sent on a new one"
            );
            sent = client.execute(request()).await;
        }
        Ok(sent?.into())
    }
}

/// Whether a connection that broke was dead before the request went out: it was not opened for the request, and it
/// broke at once.
pub(super) fn is_stale(was_opened: bool, after: Duration) -> bool {
    !was_opened && after < BREAKS_WITHIN
}

/// Whether the connection was closed or reset, as opposed to an answer that makes no sense or does not come in time.
pub(super) fn broke_off(error: &(dyn std::error::Error + 'static)) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected, UnexpectedEof};
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<hyper::Error>()
            && (error.is_incomplete_message() || error.is_closed() || error.is_canceled())
        {
            return true;
        }
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return matches!(
                error.kind(),
                BrokenPipe | ConnectionAborted | ConnectionReset | NotConnected | UnexpectedEof
            );
        }
        cause = error.source();
    }
    false
}

/// Notes in [`OPENED`] that a connection is opened. The client opens it within the future that sends the request.
#[derive(Debug, Clone)]
struct NoteOpened;

impl<S> tower::Layer<S> for NoteOpened {
    type Service = NotingOpened<S>;

    fn layer(&self, connector: S) -> NotingOpened<S> {
        NotingOpened { connector: Arc::new(connector) }
    }
}

/// A connector under [`NoteOpened`]. The client copies its connector several times a request; the one below is copied only
/// where a connection is opened.
#[derive(Debug)]
struct NotingOpened<S> {
    connector: Arc<S>,
}

impl<S> Clone for NotingOpened<S> {
    fn clone(&self) -> Self {
        Self { connector: Arc::clone(&self.connector) }
    }
}

impl<S: tower::Service<R> + Clone, R> tower::Service<R> for NotingOpened<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = Oneshot<S, R>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, to: R) -> Oneshot<S, R> {
        // Requests for the list of models are sent without the note: they are never sent twice.
        let _not_noted = OPENED.try_with(|opened| opened.store(true, Ordering::Relaxed));
        Oneshot::new(S::clone(&self.connector), to)
    }
}

#[cfg(test)]
mod tests;
