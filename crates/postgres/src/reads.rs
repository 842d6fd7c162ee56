//! Reads: heads, entries, keys, pages.
//!
//! Invariants: a read is one statement, so it sees one state. One that has less of a session than this node was told is
//! durable fails with [`StoreError::SetBack`]; an entry that is missing or cannot be decoded, with [`StoreError::Damaged`].

use std::collections::HashMap;

use greenroom_kernel::{Entry, EntryId, Head};
use greenroom_store::{Opened, Salvaged, StoreError, check_session, decode_entry, decode_head};
use tokio_postgres::Row;

use crate::Shared;
use crate::append::set_back;
use crate::batch::{column, number};
use crate::link::Parameters;
use crate::pool::Kind;
use crate::slots::State;
use crate::statements::Sql;

impl Shared {
    async fn read(&self, sql: Sql, parameters: Parameters<'_>) -> Result<Vec<Row>, StoreError> {
        self.check_open()?;
        self.pool.run(Kind::Read, sql, parameters).await
    }

    pub(crate) async fn head(&self, session: &str) -> Result<Option<Head>, StoreError> {
        check_session(session)?;
        let before = self.slots.state(session);
        let rows = self.read(Sql::Head, &[&session]).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        check_not_set_back(session, before, row.get(2), row.get(1))?;
        decode_head(row.get(0)).map(Some)
    }

    pub(crate) async fn used_key(&self, session: &str, key: &str) -> Result<Option<EntryId>, StoreError> {
        check_session(session)?;
        let rows = self.read(Sql::UsedKey, &[&session, &key.as_bytes()]).await?;
        Ok(rows.first().map(|row| EntryId(number(row.get(0)))))
    }

    pub(crate) async fn used_keys(&self, session: &str) -> Result<Vec<(String, EntryId)>, StoreError> {
        check_session(session)?;
        let rows = self.read(Sql::UsedKeys, &[&session]).await?;
        let key = |row: &Row| (String::from_utf8_lossy(row.get(0)).into_owned(), EntryId(number(row.get(1))));
        Ok(rows.iter().map(key).collect())
    }

    pub(crate) async fn load(&self, session: &str, from: EntryId) -> Result<Vec<Entry>, StoreError> {
        check_session(session)?;
        let before = self.slots.state(session);
        let rows = self.read(Sql::Load, &[&session, &column(from.0)]).await?;
        let Some(row) = rows.first() else {
            return Err(StoreError::NotFound { session: session.to_owned() });
        };
        let entries: i64 = row.get(0);
        check_not_set_back(session, before, row.get(1), entries)?;
        all_from(session, from, entries, &rows)
    }

    pub(crate) async fn open(&self, session: &str) -> Result<Option<Opened>, StoreError> {
        check_session(session)?;
        let before = self.slots.state(session);
        let rows = self.read(Sql::Open, &[&session]).await?;
        let Some(first) = rows.first() else { return Ok(None) };
        let entries: i64 = first.get(0);
        check_not_set_back(session, before, first.get(1), entries)?;
        let head = decode_head(first.get(3))?;
        let active = all_from(session, head.active_from, entries, &rows)?;
        let older = self.get(session, &Opened::older(&head)).await?;
        Ok(Some(Opened { head, active, older }))
    }

    pub(crate) async fn get(&self, session: &str, wanted: &[EntryId]) -> Result<Vec<Entry>, StoreError> {
        check_session(session)?;
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let ids: Vec<i64> = wanted.iter().map(|id| column(id.0)).collect();
        let rows = self.read(Sql::Get, &[&session, &ids]).await?;
        if rows.is_empty() {
            return Err(StoreError::NotFound { session: session.to_owned() });
        }
        let found: HashMap<u64, Entry> =
            rows.iter().filter_map(entry_of).map(|entry| (entry.id.0, entry)).collect();
        let one = |id: &EntryId| found.get(&id.0).cloned().ok_or_else(|| damaged(session, column(id.0)));
        wanted.iter().map(one).collect()
    }

    pub(crate) async fn page(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, Head)>, StoreError> {
        let rows = self.read(Sql::Page, &[&after.unwrap_or_default(), &column(limit as u64)]).await?;
        rows.iter().map(|row| Ok((row.get(0), decode_head(row.get(1))?))).collect()
    }

    pub(crate) async fn salvage(&self, session: &str) -> Result<Salvaged, StoreError> {
        check_session(session)?;
        let rows = self.read(Sql::Load, &[&session, &0_i64]).await?;
        let Some(row) = rows.first() else {
            return Err(StoreError::NotFound { session: session.to_owned() });
        };
        let mut found: HashMap<u64, Entry> =
            rows.iter().filter_map(entry_of).map(|entry| (entry.id.0, entry)).collect();
        let (mut entries, mut lost) = (Vec::new(), Vec::<(EntryId, EntryId)>::new());
        for id in 0..number(row.get(0)) {
            match (found.remove(&id), lost.last_mut()) {
                (Some(entry), _) => entries.push(entry),
                (None, Some((_, end))) if end.0 == id => *end = EntryId(id + 1),
                (None, _) => lost.push((EntryId(id), EntryId(id + 1))),
            }
        }
        Ok(Salvaged { entries, lost })
    }
}

/// Returns the entries of the rows that have one, which must be all from `from` on.
fn all_from(session: &str, from: EntryId, entries: i64, rows: &[Row]) -> Result<Vec<Entry>, StoreError> {
    let mut found = Vec::with_capacity(rows.len());
    let mut next = column(from.0);
    for row in rows.iter().filter(|row| row.get::<_, Option<i64>>(2).is_some()) {
        let entry = entry_of(row).filter(|entry| column(entry.id.0) == next);
        found.push(entry.ok_or_else(|| damaged(session, next))?);
        next += 1;
    }
    if next < entries { Err(damaged(session, next)) } else { Ok(found) }
}

/// Returns the entry of a row with its id and its bytes; `None` if they are not those of that entry.
fn entry_of(row: &Row) -> Option<Entry> {
    let id: i64 = row.get::<_, Option<i64>>(2)?;
    let entry = decode_entry(row.get::<_, Option<&[u8]>>(3)?).ok()?;
    (entry.id.0 == number(id)).then_some(entry)
}

/// Checks that what was read is not older than what was acknowledged to this node before.
fn check_not_set_back(session: &str, before: State, epoch: i64, entries: i64) -> Result<(), StoreError> {
    match before {
        State::Owned(owned) if epoch < owned.epoch || epoch == owned.epoch && entries < owned.entries => {
            Err(set_back(session, entries))
        }
        State::Owned(_) | State::Unknown | State::Doubt | State::Lost => Ok(()),
    }
}

fn damaged(session: &str, entry: i64) -> StoreError {
    StoreError::Damaged { session: session.to_owned(), entry: EntryId(number(entry)) }
}
