//! What a server may ask of its client, and what it reports.
//!
//! Invariants: nothing that a server asks for reaches a model or a person: no sampling, no questions. Reports of progress
//! go to the call that they belong to, log lines to the log.
#![expect(deprecated, reason = "servers of before July 2026 ask for roots and send log lines")]

use std::path::PathBuf;
use std::sync::Arc;

use rmcp::ClientHandler;
use rmcp::handler::client::progress::ProgressDispatcher;
use rmcp::model::{
    ClientCapabilities, ClientConfig, Implementation, ListRootsResult, LoggingMessageNotificationParam,
    ProgressNotificationParam, Root, RootsCapabilities,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient};

/// The maximum length of a report of progress, in bytes.
const PROGRESS_BYTES_MAX: usize = 300;

/// The client's side of a connection.
#[derive(Clone)]
pub(crate) struct Handler {
    pub(crate) server: Arc<str>,
    pub(crate) root: Option<PathBuf>,
    pub(crate) progress: ProgressDispatcher,
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        capabilities.roots = self.root.is_some().then(RootsCapabilities::default);
        ClientConfig::new(capabilities, Implementation::new("greenroom", env!("CARGO_PKG_VERSION")))
    }

    async fn list_roots(
        &self,
        _context: RequestContext<RoleClient>,
    ) -> Result<ListRootsResult, rmcp::ErrorData> {
        let roots = self.root.iter().map(|folder| Root::new(file_url(folder))).collect();
        Ok(ListRootsResult::new(roots))
    }

    async fn on_progress(
        &self,
        report: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        self.progress.handle_notification(report).await;
    }

    async fn on_logging_message(
        &self,
        line: LoggingMessageNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        tracing::debug!(server = &*self.server, level = ?line.level, "{}", line.data);
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        tracing::info!(server = &*self.server, "the server's tools have changed; new agents get them");
    }
}

/// Returns the URL of a folder.
fn file_url(folder: &std::path::Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let mut url = "file://".to_owned();
    for byte in folder.as_os_str().as_bytes() {
        match byte {
            b'/' | b'-' | b'_' | b'.' | b'~' => url.push(char::from(*byte)),
            _ if byte.is_ascii_alphanumeric() => url.push(char::from(*byte)),
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url
}

/// Returns a report of progress as a line for people.
pub(crate) fn progress_line(report: &ProgressNotificationParam) -> String {
    let amount = match report.total {
        Some(total) => format!("{} of {total}", report.progress),
        None => report.progress.to_string(),
    };
    match &report.message {
        Some(message) => {
            let end = message.floor_char_boundary(PROGRESS_BYTES_MAX);
            let mark = if end < message.len() { "…" } else { "" };
            format!("{}{mark} ({amount})", &message[..end])
        }
        None => amount,
    }
}

#[cfg(test)]
mod tests;
