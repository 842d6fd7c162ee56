//! Requests to a service beside the models, such as a collector of traces.
//!
//! Invariants: connections are made as those to models are, with the same TLS and proxies; redirects are not followed; no
//! error shows an address or a header.

use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;

use super::{OptionsError, Proxies, ServerOptions, connection, send};
use crate::BaseUrl;

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns an HTTP client for a service beside the models, whose connections are kept for the next request.
///
/// # Errors
/// The certificates of the system or the proxies are unusable.
pub fn service_client(address: &BaseUrl, proxies: Option<Proxies>) -> Result<reqwest::Client, OptionsError> {
    connection::client(&options(address, proxies), true)
}

/// Why a request of a [`service_client`] failed.
pub type ServiceFailure = reqwest::Error;

/// Returns the cause of a failure in words, without the address.
pub fn service_failure(failure: &ServiceFailure) -> String {
    match std::error::Error::source(failure) {
        Some(_) => send::root_cause(failure),
        None if failure.is_timeout() => "no answer in time".to_owned(),
        None => "the request failed".to_owned(),
    }
}

fn options(address: &BaseUrl, proxies: Option<Proxies>) -> ServerOptions {
    let base_url = address.clone();
    ServerOptions { base_url, proxies, connect_timeout: CONNECT_TIMEOUT, ..ServerOptions::default() }
}

/// A client for one service.
#[derive(Debug, Clone)]
pub struct Poster {
    client: reqwest::Client,
}

impl Poster {
    /// Creates a client for the service at this address.
    ///
    /// # Errors
    /// The certificates of the system or the proxies are unusable.
    pub fn new(address: &BaseUrl, proxies: Proxies) -> Result<Self, OptionsError> {
        Ok(Self { client: connection::client(&options(address, Some(proxies)), false)? })
    }

    /// Sends a body, and returns the status and the head of the answer, whose body is not read.
    ///
    /// # Errors
    /// The service was not reached, or did not answer in time: the cause, in words.
    pub async fn post(
        &self,
        url: &str,
        headers: HeaderMap,
        body: Bytes,
        timeout: Duration,
    ) -> Result<(u16, HeaderMap), String> {
        let request = self.client.post(url).headers(headers).body(body).timeout(timeout);
        let response = request.send().await.map_err(|error| send::root_cause(&error.without_url()))?;
        Ok((response.status().as_u16(), response.headers().clone()))
    }
}
