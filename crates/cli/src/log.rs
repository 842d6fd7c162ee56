//! What `-v` and `-vv` tell on standard error: a line for each thing that happened, with its numbers.
//!
//! Invariants: a line begins with the seconds since the start, and names the session that it is about; spans are not
//! shown, since each line says itself what it is about.

use std::fmt::{self, Write as _};
use std::time::Instant;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::options::Global;
use crate::terminal::{LogWriter, variable};

/// Begins to tell what happens inside: nothing by default, the story of each run with `-v`, the decisions with `-vv`, or
/// what `RUST_LOG` asks for.
pub(crate) fn start(global: &Global) {
    let filter = match (variable("RUST_LOG"), global.verbose) {
        (Some(filter), _) => filter,
        (None, 0) => "off".to_owned(),
        (None, 1) => "warn,greenroom=info,greenroom_store=info,greenroom_server=info".to_owned(),
        (None, 2) => {
            "info,greenroom=debug,greenroom_store=debug,greenroom_provider=debug,greenroom_server=debug,\
                      greenroom_tools=debug"
                .to_owned()
        }
        (None, _) => "debug".to_owned(),
    };
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(filter))
        .with_writer(|| LogWriter)
        .event_format(Lines { started: Instant::now() })
        .init();
}

/// The form of the lines.
struct Lines {
    started: Instant,
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
        write!(writer, "{:>9.3} ", self.started.elapsed().as_secs_f64())?;
        match *event.metadata().level() {
            Level::ERROR => writer.write_str("error: ")?,
            Level::WARN => writer.write_str("warning: ")?,
            _ => {}
        }
        let Line { session, message, fields } = line;
        if !session.is_empty() {
            write!(writer, "[{session}] ")?;
        }
        writeln!(writer, "{message}{fields}")
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
