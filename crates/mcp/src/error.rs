//! The error of this crate. Its texts are read by the user at the start, and by the model after a call.

use greenroom_kernel::text::joined_words;
use greenroom_provider::{ServiceFailure, service_failure};
use rmcp::transport::streamable_http_client::StreamableHttpError;

/// The maximum length of a reason, in bytes.
const REASON_BYTES_MAX: usize = 800;

/// Why a server is not available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the MCP server `{server}` {reason}")]
pub struct McpError {
    server: String,
    reason: String,
}

impl McpError {
    /// Creates an error; `reason` is a clause about the server. It may contain the server's own words, and is cut.
    pub(crate) fn new(server: &str, reason: impl Into<String>) -> Self {
        let reason: String = reason.into();
        let reason = joined_words(&reason);
        let end = reason.floor_char_boundary(REASON_BYTES_MAX);
        let mark = if end < reason.len() { " […]" } else { "" };
        Self { server: server.to_owned(), reason: format!("{}{mark}", &reason[..end]) }
    }

    /// Returns the server's name in the configuration.
    pub fn server(&self) -> &str {
        &self.server
    }
}

/// Returns the innermost cause of an error. The outer ones repeat it, and may contain an address with a key.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    loop {
        if let Some(text) = cause.downcast_ref().and_then(of_service) {
            return text;
        }
        match cause.source() {
            Some(inner) => cause = inner,
            None => return cause.to_string(),
        }
    }
}

/// Returns what a service did instead of answering, in words.
fn of_service(error: &StreamableHttpError<ServiceFailure>) -> Option<String> {
    let hint = "is `url` the address of its MCP endpoint?";
    if let StreamableHttpError::Client(error) = error {
        Some(service_failure(error))
    } else if let StreamableHttpError::UnexpectedServerResponse(answer) = error {
        let status = answer.split(':').next().unwrap_or_default();
        Some(format!("it answered with {status}; {hint}"))
    } else if let StreamableHttpError::UnexpectedContentType(kind) = error {
        Some(format!("it answered with {}; {hint}", kind.as_deref().unwrap_or("content of no type")))
    } else {
        None
    }
}
