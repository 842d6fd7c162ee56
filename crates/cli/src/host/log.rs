//! What is logged, and where: to standard error, or in a host to a file of a limited size.
//!
//! Invariants: a host writes nothing to standard error, and its file does not grow beyond its limit.

use std::io::Write as _;
use std::sync::Mutex;
use std::time::Instant;

use greenroom_terminal::screen::{LogWriter, variable};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use self::lines::Lines;
use crate::args::Global;

mod lines;

/// A part of what takes spans and log lines.
pub(crate) type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// The process that logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Logger {
    /// One whose user reads its output: without `-v` it logs nothing.
    Command,
    /// A server in the foreground, whose log somebody collects: without `-v` it logs errors, and what happens to its store, its
    /// requests and its cluster. Warnings of sessions are events.
    Server,
    /// A host: it logs to a file in its store's folder.
    Host,
}

/// Starts logging: by default what [`Logger`] says, the steps of each run with `-v`, the decisions with `-vv`, or the filter
/// in `RUST_LOG`. `rmcp` is left out, because its errors contain addresses with their keys.
///
/// `traces` takes the spans.
pub(crate) fn start(global: &Global, logger: Logger, traces: Option<BoxedLayer>) {
    let filter = match (variable("RUST_LOG"), global.verbose, logger) {
        (Some(filter), ..) => filter,
        (None, 0, Logger::Command) => "off".to_owned(),
        (None, 0, Logger::Server) => "error,rmcp=off,greenroom::core=warn,greenroom::api::take_over=info,greenroom_postgres=info,greenroom_server=warn"
                .to_owned(),
        (None, 0 | 1, _) => {
            "warn,rmcp=off,greenroom=info,greenroom_postgres=info,greenroom_store=info,greenroom_server=info"
                .to_owned()
        }
        (None, 2, _) => "info,rmcp=off,greenroom=debug,greenroom_postgres=debug,greenroom_store=debug,\
                         greenroom_provider=debug,greenroom_server=debug,greenroom_tools=debug"
            .to_owned(),
        (None, ..) => "debug".to_owned(),
    };
    let filter = EnvFilter::new(filter);
    let lines = match logger {
        Logger::Server => Lines::Utc,
        Logger::Command | Logger::Host => Lines::Since(Instant::now()),
    };
    let log = tracing_subscriber::fmt::layer().event_format(lines);
    let log: Option<BoxedLayer> = match (logger == Logger::Host).then(|| host_log(global)) {
        // Without a file, the log has no readers.
        Some(None) => None,
        Some(Some(file)) => Some(log.with_writer(Mutex::new(file)).with_filter(filter).boxed()),
        None => Some(log.with_writer(|| LogWriter).with_filter(filter).boxed()),
    };
    let layers: Vec<BoxedLayer> = log.into_iter().chain(traces).collect();
    if !layers.is_empty() {
        tracing_subscriber::registry().with(layers).init();
    }
}

/// The largest size of a host's log, in bytes. Later lines are dropped.
pub(crate) const HOST_LOG_BYTES_MAX: u64 = 4 << 20;
/// The text before the process id where a host starts to write.
pub(crate) const PROCESS: &str = "--- process";

/// Opens the file of a host's log. The file is emptied when it has reached half of its limit.
fn host_log(global: &Global) -> Option<Bounded> {
    let path = crate::agent::data_dir(global).ok()?.join(crate::host::LOG_FILE);
    let mut file = greenroom_files::private::append(&path).ok()?;
    let length = file.metadata().ok()?.len();
    if length > HOST_LOG_BYTES_MAX / 2 {
        file.set_len(0).ok()?;
    }
    let _ = writeln!(file, "{PROCESS} {}", std::process::id());
    let left = HOST_LOG_BYTES_MAX.saturating_sub(file.metadata().ok()?.len());
    Some(Bounded { file, left })
}

/// A file that accepts this many more bytes.
struct Bounded {
    file: std::fs::File,
    left: u64,
}

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        // An escaped character takes more room.
        let text = greenroom_terminal::screen::harmless(&text);
        if let Some(left) = self.left.checked_sub(text.len() as u64) {
            self.left = left;
            self.file.write_all(text.as_bytes())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests;
