//! The tables, and how they become those of this version.
//!
//! Invariants: migrations go forward only, one file a version, each entirely or not at all, by one node at a time. Tables of
//! a newer version are refused. A node of the version before continues to work beside one of this version. A migration that
//! makes that impossible is marked, and refused while any node has a lease.

use greenroom_store::StoreError;

use crate::link::Link;
use crate::options::{PostgresOptions, Server, unsuitable};

/// A migration, which makes the tables of one version those of the next.
struct Migration {
    statements: &'static str,
    /// Whether nodes of the version before cannot work with the tables after it.
    is_alone: bool,
}

/// The migrations, oldest first.
const MIGRATIONS: &[Migration] = &[
    Migration { statements: include_str!("migrations/001.sql"), is_alone: false },
    Migration { statements: include_str!("migrations/002.sql"), is_alone: true },
];

/// Brings the tables to this version. Does nothing if they are, without any permission to create something.
pub(crate) async fn migrate(options: &PostgresOptions, server: &Server) -> Result<(), StoreError> {
    let link = Link::open_bare(options, server).await?;
    let schema = &options.schema;
    if version(&link, schema).await? == MIGRATIONS.len() {
        return Ok(());
    }
    // The lock belongs to the connection, which ends with this function.
    link.batch(&format!("select pg_advisory_lock(hashtextextended('greenroom {schema}', 0))")).await?;
    let found = version(&link, schema).await?;
    for (number, migration) in MIGRATIONS.iter().enumerate().skip(found) {
        if migration.is_alone && found > 0 {
            check_alone(&link, schema).await?;
        }
        // Statements that are sent together are one transaction.
        let create =
            if number == 0 { format!("create schema if not exists {schema};\n") } else { String::new() };
        let statements = migration.statements.replace("{s}", schema);
        link.batch(&format!("{create}{statements}")).await?;
        tracing::info!(schema, version = number + 1, "the tables in PostgreSQL were migrated");
    }
    Ok(())
}

/// Refuses a migration while nodes of the version before run.
async fn check_alone(link: &Link, schema: &str) -> Result<(), StoreError> {
    let running = format!("select name from {schema}.node where expires > clock_timestamp() order by name");
    let names: Vec<String> = link.rows(&running).await?.iter().map(|row| row.get(0)).collect();
    if names.is_empty() {
        return Ok(());
    }
    Err(unsuitable(format!(
        "this version changes the tables in a way that running nodes of the version before do not know ({}): stop them first; \
         after a crash, wait until their leases have run out",
        names.join(", ")
    )))
}

/// Returns the version of the tables; 0 if there are none.
pub(crate) async fn version(link: &Link, schema: &str) -> Result<usize, StoreError> {
    if link.number(&format!("select 1 where to_regclass('{schema}.version') is not null")).await?.is_none() {
        return Ok(0);
    }
    let found = link.number(&format!("select version from {schema}.version")).await?.unwrap_or(0);
    let found = usize::try_from(found).unwrap_or(0);
    if found > MIGRATIONS.len() {
        let number = |version: usize| u32::try_from(version).unwrap_or(u32::MAX);
        let (found, supported) = (number(found), number(MIGRATIONS.len()));
        return Err(StoreError::Version { what: "the schema in PostgreSQL", found, supported });
    }
    Ok(found)
}
