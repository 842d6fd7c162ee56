//! Asks a server how many input tokens a request has.
//!
//! Invariants: one request, bounded in time and size; a server without this operation is asked once.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use greenroom_kernel::{Failure, FailureClass};
use http::header::{ACCEPT, HeaderValue};
use serde_json::Value;

use super::Server;
use super::body::Data;
use super::reader::{timed_out, transport_error};
use super::send::TransportError;
use crate::dialect::{Encoded, error_in_stream};
use crate::{ProviderError, Request};

/// How long the answer may take. The model call waits for it.
const COUNT_TIMEOUT: Duration = Duration::from_secs(5);

/// Returns the number of input tokens of a request; `None` if the server does not count.
///
/// # Errors
/// The server could not be reached, or refused to count.
pub(super) async fn count(server: Arc<Server>, request: Request) -> Result<Option<u64>, ProviderError> {
    if server.no_count.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let base = &server.endpoint.base;
    let encoded = match server.dialect.encode_count(&request, &server.options) {
        Ok(None) => return Ok(None),
        Ok(Some(encoded)) => encoded,
        Err(reason) => return Err(transport_error(base, TransportError::Make(reason))),
    };
    let asked = tokio::time::timeout(COUNT_TIMEOUT, ask(&server, encoded)).await;
    match asked.unwrap_or_else(|_| Err(timed_out(format!("{base} did not count the tokens in time")))) {
        Ok(tokens) => Ok(Some(tokens)),
        Err(error) if matches!(error.failure.status, Some(404 | 405 | 501)) => {
            tracing::debug!(base, %error, "the server does not count tokens, and is not asked again");
            server.no_count.store(true, Ordering::Relaxed);
            Ok(None)
        }
        Err(error) => Err(server.without_key(error)),
    }
}

async fn ask(server: &Server, mut encoded: Encoded) -> Result<u64, ProviderError> {
    encoded.headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
    let base = &server.endpoint.base;
    let mut body = server.send(&mut encoded).await.map_err(|error| transport_error(base, error))?;
    let answer = match poll_fn(|context| body.poll_next(context)).await {
        Some(Ok(answer)) => answer,
        Some(Err(_)) | None => Data::Own(String::new()),
    };
    let tokens = serde_json::from_str::<Value>(&answer)
        .ok()
        .and_then(|answer| answer.get(server.dialect.count_field())?.as_u64());
    tokens.ok_or_else(|| {
        if answer.is_empty() {
            let message = format!("{base} sent nothing in place of the number of tokens");
            return ProviderError::new(Failure::new(FailureClass::Malformed, message), "");
        }
        error_in_stream(&answer)
    })
}
