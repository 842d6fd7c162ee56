//! Asks a server for the models that it serves.
//!
//! Invariants: at most two requests, to this server only, each bounded in time and size; what the second one does not
//! say leaves the first one's answer as it is.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use greenroom_kernel::{Failure, FailureClass};
use serde_json::Value;

use super::Server;
use super::reader::transport_error;
use super::send::{TransportError, root_cause};
use crate::ProviderError;
use crate::classify::{classify, one_line};
use crate::served::Served;
use crate::served::list::read_list;

/// How long each page may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// The largest page, in bytes. OpenRouter's list has about a megabyte.
const PAGE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The models of the server.
///
/// # Errors
/// The server could not be reached, or has no list.
pub(super) async fn served(server: Arc<Server>) -> Result<Served, ProviderError> {
    let base = &server.endpoint.base;
    let list = page(&server, &format!("{base}/{}", server.dialect.models_path())).await?;
    let (mut served, more) = read_list(&list);
    if let Some(more) = more {
        let root = base.strip_suffix("/v1").unwrap_or(base);
        match page(&server, &format!("{root}{}", more.path())).await {
            Ok(page) => more.add(&page, &mut served),
            Err(error) => {
                tracing::debug!(%error, page = more.path(), "the server says no more of its models")
            }
        }
    }
    Ok(served)
}

async fn page(server: &Server, url: &str) -> Result<Value, ProviderError> {
    let mut headers = server.endpoint.headers.clone();
    // A source of keys may take longer than a page.
    if let Some(key) = server.keys.current().await.map_err(|reason| no_key(&reason))? {
        server.add_key(&key, &mut headers).map_err(|reason| no_key(&reason))?;
    }
    let asked = async {
        let mut whole = reqwest::Url::parse(url).map_err(|error| failed(url, &error.to_string()))?;
        if !server.endpoint.query.is_empty() {
            whole.query_pairs_mut().extend_pairs(&server.endpoint.query);
        }
        let request = server.client.get(whole).headers(headers);
        let response = request.send().await.map_err(|error| failed(url, &root_cause(&error)))?;
        let status = response.status();
        let mut body = Vec::new();
        let mut pieces = response.bytes_stream();
        while let Some(piece) = pieces.next().await {
            body.extend_from_slice(&piece.map_err(|error| failed(url, &root_cause(&error)))?);
            if body.len() > PAGE_BYTES_MAX {
                return Err(failed(url, "the answer is too large"));
            }
        }
        if !status.is_success() {
            let body = String::from_utf8_lossy(&body).into_owned();
            return Err(ProviderError::new(classify(Some(status.as_u16()), &body, None), body));
        }
        serde_json::from_slice(&body).map_err(|_| failed(url, "the answer is not JSON"))
    };
    let result = tokio::time::timeout(PAGE_TIMEOUT, asked).await;
    result
        .unwrap_or_else(|_| Err(failed(url, "no answer in time")))
        .map_err(|error| server.without_key(error))
}

fn no_key(reason: &str) -> ProviderError {
    transport_error("", TransportError::NoKey(reason.to_owned()))
}

fn failed(url: &str, reason: &str) -> ProviderError {
    let message = format!("{url}: {}", one_line(reason));
    ProviderError::new(Failure::new(FailureClass::Timeout, message), "")
}
