//! The lines of a log.
//!
//! Invariants: a line starts with the time, and names its session; spans are not shown,
//! because each line is self-contained. No line contains a secret that this process knows, nor what looks like one.

use std::fmt::{self, Write as _};
use std::time::Instant;

use greenroom_terminal::time;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::error::secrets;

/// The format of the lines, by the time that each begins with.
pub(super) enum Lines {
    /// The seconds since this process started.
    Since(Instant),
    /// The time of day, in UTC: logs of several servers are compared.
    Utc,
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut line = Line::default();
        event.record(&mut line);
        let level = match *event.metadata().level() {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            _ => "",
        };
        let Line { session, message, fields } = line;
        let session = if session.is_empty() { session } else { format!("[{session}] ") };
        let text = format!("{level}{session}{message}{fields}");
        let text = secrets::redactor().all(&text);
        match self {
            Self::Since(started) => writeln!(writer, "{:>9.3} {text}", started.elapsed().as_secs_f64()),
            Self::Utc => writeln!(writer, "{} {text}", time::rfc3339(time::now_ms())),
        }
    }
}

/// One line, in parts.
#[derive(Default)]
struct Line {
    session: String,
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "session" => value.clone_into(&mut self.session),
            name if !value.is_empty() => _ = write!(self.fields, " {name}={value}"),
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "session" => self.session = format!("{value:?}"),
            name => _ = write!(self.fields, " {name}={value:?}"),
        }
    }
}
