//! The error of this crate. Its texts are read by the user at the start, and by the model after a call.

use greenroom_provider::{ServiceFailure, service_failure};
use rmcp::transport::streamable_http_client::StreamableHttpError;

/// Why a server is not available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the MCP server `{server}` {reason}")]
pub struct McpError {
    server: String,
    reason: String,
}

impl McpError {
    /// Creates an error; `reason` is a clause about the server.
    pub(crate) fn new(server: &str, reason: impl Into<String>) -> Self {
        Self { server: server.to_owned(), reason: reason.into() }
    }

    /// Returns the server's name in the configuration.
    pub fn server(&self) -> &str {
        &self.server
    }
}

/// Returns the innermost cause of an error. The outer ones repeat it, and may contain an address with a key.
pub(crate) fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(StreamableHttpError::Client(error)) =
        error.downcast_ref::<StreamableHttpError<ServiceFailure>>()
    {
        return service_failure(error);
    }
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
