//! A connection to the server: opened, checked, and used with prepared statements.
//!
//! Invariants: a connection is used only after its server was found suitable, so a failover to a standby, or a restart with
//! other settings, is noticed. One that failed once is never used again. As long as one is open, the server was not set back
//! to an older state. A statement that was not sent changed nothing; one that the server refused neither; of one that was not
//! answered nobody knows.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use greenroom_store::StoreError;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};
use tokio_util::task::AbortOnDropHandle;

use crate::options::{PostgresOptions, Server, unsuitable};
use crate::statements::Sql;

/// The parameters of a statement.
pub(crate) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// Why a statement has no result.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// It was not sent: there is no connection.
    Unsent(String),
    /// The server refused it for now. It changed nothing.
    Later(String),
    /// The server refused it for good. It changed nothing.
    Refused(String),
    /// A row with the same key is there. It changed nothing.
    Taken(String),
    /// The connection failed before the answer. It may have been executed.
    Unanswered(String),
}

impl Fault {
    /// The fault of a statement for which no connection could be opened.
    pub(crate) fn without_link(error: StoreError) -> Self {
        if let StoreError::Unavailable { detail } = error {
            return Self::Unsent(detail);
        }
        Self::Refused(error.to_string())
    }

    /// Whether the connection is not used again after it.
    pub(crate) fn ends_link(&self) -> bool {
        match self {
            Self::Refused(_) | Self::Taken(_) => false,
            Self::Unsent(_) | Self::Later(_) | Self::Unanswered(_) => true,
        }
    }

    /// What the server or the connection said.
    pub(crate) fn detail(&self) -> &str {
        match self {
            Self::Unsent(detail)
            | Self::Later(detail)
            | Self::Refused(detail)
            | Self::Taken(detail)
            | Self::Unanswered(detail) => detail,
        }
    }

    /// The fault of a statement that may be executed any number of times: nothing is in doubt.
    pub(crate) fn of_repeatable(self) -> Self {
        match self {
            Self::Unanswered(detail) => Self::Later(detail),
            Self::Unsent(_) | Self::Later(_) | Self::Refused(_) | Self::Taken(_) => self,
        }
    }
}

/// The number of connections that this process has opened.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// Returns the serial number of the newest connection. One with this number or a smaller one was opened before what is read
/// from now on: as long as it is open, the server was not set back since.
pub(crate) fn opened() -> u64 {
    OPENED.load(Ordering::SeqCst)
}

/// An open connection.
pub(crate) struct Link {
    client: Client,
    /// It grows with each connection.
    serial: u64,
    statements: Vec<(Sql, Statement)>,
    _connection: AbortOnDropHandle<()>,
}

/// The oldest server that has everything that is used.
const SERVER_VERSION_MIN: i32 = 130_000;

/// Every statement has an index, and tables that were never analysed mislead the planner. It plans each statement once: by
/// itself it would do that at each execution, because it knows the lengths of lists only then.
const SETTINGS: &str = "set jit = off; set plan_cache_mode = force_generic_plan; set random_page_cost = 0.1; \
                        set enable_seqscan = off; set enable_mergejoin = off; set lock_timeout = 0; \
                        set idle_in_transaction_session_timeout = 0; set statement_timeout = 0";

impl Link {
    /// Connects, checks the server, and prepares these statements.
    pub(crate) async fn open(
        options: &PostgresOptions,
        server: &Server,
        wanted: &[Sql],
    ) -> Result<Self, StoreError> {
        let link = Self::open_bare(options, server).await?;
        let link = link.prepare(options, wanted).await?;
        server.reached.notify_waiters();
        Ok(link)
    }

    /// Connects and checks the server. The tables may not exist yet.
    pub(crate) async fn open_bare(options: &PostgresOptions, server: &Server) -> Result<Self, StoreError> {
        let opening = async {
            let connected = server.config.connect(server.tls.clone()).await;
            let (client, connection) = connected.map_err(|error| not_connected(&error))?;
            let connection: JoinHandle<()> = tokio::spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!(error = %shown(&error), "a connection to PostgreSQL ended");
                }
            });
            let serial = OPENED.fetch_add(1, Ordering::SeqCst) + 1;
            let connection = AbortOnDropHandle::new(connection);
            let link = Self { client, serial, statements: Vec::new(), _connection: connection };
            link.client.batch_execute(SETTINGS).await.map_err(|error| not_connected(&error))?;
            link.check_server(options).await?;
            Ok(link)
        };
        in_time(options.patience, opening).await
    }

    async fn prepare(mut self, options: &PostgresOptions, wanted: &[Sql]) -> Result<Self, StoreError> {
        let preparing = async {
            for sql in wanted {
                let statement = self.client.prepare(&sql.text(&options.schema)).await;
                self.statements.push((*sql, statement.map_err(|error| not_connected(&error))?));
            }
            Ok(())
        };
        in_time(options.patience, preparing).await?;
        Ok(self)
    }

    /// Refuses a server that cannot hold sessions, or may lose them.
    async fn check_server(&self, options: &PostgresOptions) -> Result<(), StoreError> {
        let asked = "select current_setting('server_version_num')::int, pg_is_in_recovery(), \
                     current_setting('transaction_read_only'), current_setting('server_encoding'), \
                     current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit')";
        let row = self.client.query_one(asked, &[]).await.map_err(|error| not_connected(&error))?;
        let version: i32 = row.get(0);
        if version < SERVER_VERSION_MIN {
            return Err(unsuitable(format!(
                "PostgreSQL {} is too old; use version 13 or newer",
                version / 10_000
            )));
        }
        if row.get(1) {
            return Err(unsuitable(
                "the server is a standby, which only reads; name the primary in the URL, or add \
                 `target_session_attrs=read-write` and all hosts",
            ));
        }
        if row.get::<_, String>(2) == "on" {
            return Err(unsuitable(
                "the server only reads (`default_transaction_read_only` is on for this user or database)",
            ));
        }
        let encoding: String = row.get(3);
        if encoding != "UTF8" {
            return Err(unsuitable(format!(
                "the database has the encoding {encoding}; create one with UTF8"
            )));
        }
        let off: Vec<&str> = [(4, "fsync"), (5, "full_page_writes"), (6, "synchronous_commit")]
            .into_iter()
            .filter(|(column, _)| row.get::<_, String>(*column) == "off")
            .map(|(_, name)| name)
            .collect();
        if !off.is_empty() && !options.allows_loss {
            return Err(unsuitable(format!(
                "the server may lose acknowledged data: {} is off; switch it on",
                off.join(", ")
            )));
        }
        Ok(())
    }

    /// The connection's serial number, to compare with [`opened`].
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// Whether the connection is known to be gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Runs a prepared statement, and waits at most this long for its answer.
    pub(crate) async fn run(
        &self,
        sql: Sql,
        parameters: Parameters<'_>,
        patience: Duration,
    ) -> Result<Vec<Row>, Fault> {
        let statement = self.statements.iter().find(|(prepared, _)| *prepared == sql);
        let Some((_, statement)) = statement else {
            return Err(Fault::Refused(format!("the statement {sql:?} was not prepared")));
        };
        if self.is_closed() {
            return Err(Fault::Unsent("the connection was closed".to_owned()));
        }
        match timeout(patience, self.client.query(statement, parameters)).await {
            Ok(rows) => rows.map_err(|error| fault(&error)),
            Err(_) => Err(Fault::Unanswered(format!("no answer within {} ms", patience.as_millis()))),
        }
    }

    /// Runs statements of a migration: all of them or none.
    pub(crate) async fn batch(&self, text: &str) -> Result<(), StoreError> {
        self.client.batch_execute(text).await.map_err(|error| not_connected(&error))
    }

    /// Returns the rows of a query.
    pub(crate) async fn rows(&self, text: &str) -> Result<Vec<Row>, StoreError> {
        self.client.query(text, &[]).await.map_err(|error| not_connected(&error))
    }

    /// Returns the first column of the first row.
    pub(crate) async fn number(&self, text: &str) -> Result<Option<i32>, StoreError> {
        let row = self.client.query_opt(text, &[]).await.map_err(|error| not_connected(&error))?;
        Ok(row.and_then(|row| row.get(0)))
    }
}

async fn in_time<T>(
    patience: Duration,
    work: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match timeout(patience, work).await {
        Ok(result) => result,
        Err(_) => {
            let detail = format!("the database did not answer within {} ms", patience.as_millis());
            Err(StoreError::Unavailable { detail })
        }
    }
}

/// Says what went wrong. Details, which may quote rows, are left out.
fn shown(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(refusal) => format!("{} ({})", refusal.message(), refusal.code().code()),
        None => {
            let mut text = error.to_string();
            let mut source = std::error::Error::source(error);
            while let Some(cause) = source {
                let cause_text = cause.to_string();
                if !text.ends_with(&cause_text) {
                    text.push_str(": ");
                    text.push_str(&cause_text);
                }
                source = cause.source();
            }
            text
        }
    }
}

/// Translates an error of a statement.
fn fault(error: &tokio_postgres::Error) -> Fault {
    let text = shown(error);
    let Some(refusal) = error.as_db_error() else {
        // What cannot be encoded was not sent; an answer that cannot be decoded is a mistake of ours.
        return if error.is_closed()
            || std::error::Error::source(error).is_none_or(|source| source.is::<std::io::Error>())
        {
            Fault::Unanswered(text)
        } else {
            Fault::Refused(text)
        };
    };
    // After an error of this severity there is no connection, and the statement may have been committed before.
    let is_end = matches!(refusal.parsed_severity(), Some(Severity::Fatal | Severity::Panic));
    if is_end {
        Fault::Unanswered(text)
    } else if is_passing(refusal.code()) {
        Fault::Later(text)
    } else if *refusal.code() == SqlState::UNIQUE_VIOLATION {
        Fault::Taken(text)
    } else {
        Fault::Refused(text)
    }
}

/// Whether the same statement may succeed later.
fn is_passing(code: &SqlState) -> bool {
    // 08: connection; 25: read-only, while a failover goes on; 40: deadlock; 53: resources; 55: locks; 57: operators; 58: I/O.
    let class = code.code().get(..2).unwrap_or_default();
    matches!(class, "08" | "25" | "40" | "53" | "55" | "57" | "58")
}

/// Translates an error before there is a connection that can be used.
fn not_connected(error: &tokio_postgres::Error) -> StoreError {
    let mut detail = shown(error);
    let without_tls = "server does not support TLS";
    match error.code() {
        Some(code) if !is_passing(code) => {
            let remedy = match code.code() {
                "28P01" | "28000" => "; check the user and the password in the database's URL",
                "3D000" => "; check the database's name in its URL, or create the database",
                "42501" => "; grant the user what docs/scale_out.md lists",
                _ => "",
            };
            detail.push_str(remedy);
            unsuitable(detail)
        }
        None if detail.contains("invalid configuration") => {
            unsuitable(format!("{detail}; check the database's URL"))
        }
        None if detail.contains(without_tls) => unsuitable(format!(
            "the {without_tls}, and the database's URL requires it: switch it on (`ssl = on`), or, in a network that you \
             trust, use `sslmode=prefer`"
        )),
        Some(_) | None => StoreError::Unavailable { detail },
    }
}
