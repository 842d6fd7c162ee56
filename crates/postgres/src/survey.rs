//! An overview of the database of a cluster, for its operators.
//!
//! Invariants: nothing is changed or created, and no node is registered.

use greenroom_store::StoreError;

use crate::Postgres;
use crate::batch::number;
use crate::link::Link;
use crate::options::PostgresOptions;
use crate::schema;

/// A cluster as its database shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct Survey {
    /// The server's version, as `15.18`.
    pub server: String,
    /// The version of the tables; 0 if there are none.
    pub tables: usize,
    /// All nodes that are registered, ordered by name: also those whose leases have run out.
    pub nodes: Vec<SurveyedNode>,
    /// The number of sessions.
    pub sessions: u64,
    /// The number of sessions with an unfinished run that no node with a valid lease owns.
    pub abandoned: u64,
    /// The connections that the server still allows.
    pub connections_left: u64,
}

/// A node as the database shows it.
#[derive(Debug, Clone, PartialEq)]
pub struct SurveyedNode {
    /// The node's name.
    pub name: String,
    /// The URL at which other nodes reach it; `None` for a program that serves nothing.
    pub address: Option<String>,
    /// Whether it takes no more sessions.
    pub is_draining: bool,
    /// How long its lease is valid, in seconds. Negative: how long ago it ran out.
    pub lease_seconds: f64,
    /// The number of sessions that it owns.
    pub sessions: u64,
}

impl Postgres {
    /// Looks at a cluster without joining it. The node's name in the options is used for the connection only.
    ///
    /// # Errors
    /// Those of [`Postgres::connect`].
    pub async fn survey(options: &PostgresOptions) -> Result<Survey, StoreError> {
        let link = Link::open_bare(options, &options.server()?).await?;
        let tables = schema::version(&link, &options.schema).await?;
        let of_server = "select split_part(current_setting('server_version'), ' ', 1), \
                         current_setting('max_connections')::int8 - current_setting('superuser_reserved_connections')::int8 \
                         - (select count(*) from pg_stat_activity where backend_type = 'client backend')";
        let server = link.rows(of_server).await?;
        let server = server.first().map(|row| (row.get(0), row.get::<_, i64>(1)));
        let (server, left) = server.unwrap_or_default();
        let mut survey = Survey {
            server,
            tables,
            nodes: Vec::new(),
            sessions: 0,
            abandoned: 0,
            connections_left: number(left.max(0)),
        };
        if tables == 0 {
            return Ok(survey);
        }
        let schema = &options.schema;
        let nodes = format!(
            "select n.name, n.address, n.is_draining, \
                 extract(epoch from n.expires - clock_timestamp())::float8, \
                 (select count(*) from {schema}.session s where s.owner = n.incarnation and s.is_there) \
             from {schema}.node n order by n.name"
        );
        for row in link.rows(&nodes).await? {
            survey.nodes.push(SurveyedNode {
                name: row.get(0),
                address: row.get(1),
                is_draining: row.get(2),
                lease_seconds: row.get(3),
                sessions: number(row.get(4)),
            });
        }
        let counts = format!(
            "select (select count(*) from {schema}.session s where s.is_there), \
                 (select count(*) from {schema}.session s where s.is_unfinished and s.is_there and not exists ( \
                     select from {schema}.node n where n.incarnation = s.owner and n.expires > clock_timestamp()))"
        );
        if let Some(row) = link.rows(&counts).await?.first() {
            (survey.sessions, survey.abandoned) = (number(row.get(0)), number(row.get(1)));
        }
        Ok(survey)
    }
}
