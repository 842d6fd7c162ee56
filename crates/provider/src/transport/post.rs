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
        let options = ServerOptions {
            base_url: address.clone(),
            proxies: Some(proxies),
            connect_timeout: CONNECT_TIMEOUT,
            ..ServerOptions::default()
        };
        Ok(Self { client: connection::client(&options, false)? })
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
