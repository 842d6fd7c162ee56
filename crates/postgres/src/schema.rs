//! The tables, and how they become those of this version.
//!
//! Invariants: migrations go forward only, one file a version, each entirely or not at all, by one node at a time. Tables of
//! a newer version are refused. A node of the version before goes on working beside one of this version.

use greenroom_store::StoreError;

use crate::link::Link;
use crate::options::{PostgresOptions, Server};

/// The migrations, oldest first.
const MIGRATIONS: &[&str] = &[include_str!("migrations/001.sql")];

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
        // Statements that are sent together are one transaction.
        let create =
            if number == 0 { format!("create schema if not exists {schema};\n") } else { String::new() };
        let migration = migration.replace("{s}", schema);
        link.batch(&format!("{create}{migration}")).await?;
        tracing::info!(schema, version = number + 1, "the tables in PostgreSQL were migrated");
    }
    Ok(())
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
