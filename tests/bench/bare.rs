//! A bare HTTP client: the baseline of what a provider costs.

use rustls::{ClientConfig, RootCertStore};

/// A client that keeps so many connections. It cannot reach servers over TLS.
pub(crate) fn client(connections: usize) -> reqwest::Client {
    let cryptography = rustls::crypto::ring::default_provider().into();
    let tls = ClientConfig::builder_with_provider(cryptography)
        .with_safe_default_protocol_versions()
        .expect("versions that it knows")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    reqwest::Client::builder()
        .pool_max_idle_per_host(connections)
        .tls_backend_preconfigured(tls)
        .build()
        .expect("a client")
}
