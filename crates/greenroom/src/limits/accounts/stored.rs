//! The accounts in the store, and what the logs have that the accounts lack.
//!
//! Invariants: an account is written with the positions up to which recent sessions are counted in it, in one value.
//! All that was recorded before the mark is in the stored accounts, provided that no write took longer than
//! [`SLACK_MS`]; entries after it are counted at the start if an account has not counted them. After an orderly end, no
//! log is read.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use greenroom_kernel::bill::{Tally, spent_tokens};
use greenroom_kernel::{Entry, EntryId, Head};
use greenroom_store::{Engine, Heads, Store, StoreError};
use parking_lot::MutexGuard;
use serde::{Deserialize, Serialize};

use super::sums::{Rows, Sums};
use super::{Account, Accounts, Inner, Name, names};
use crate::limits::labels::{Label, named};
use crate::limits::spending::window::Spent;
use crate::values::family;

/// How long after a change the accounts are written: many changes are one write.
const WRITE_AFTER: Duration = Duration::from_secs(1);
/// How long an entry may take from its time to its count.
const SLACK_MS: u64 = 10_000;
/// How many heads and entries are read at once.
const PAGE: usize = 256;

/// The prefix of an account's key: its sums by hour, its limits, its positions. A tab is in no label.
const ACCOUNT: &str = "spending\t";
/// The prefix of an account's key: its sums by day.
const ACCOUNT_DAYS: &str = "spending days\t";
const MARK: &str = "spending mark";

/// The stored form of an account, without its days.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct StoredAccount {
    pub(super) hours: Rows,
    pub(super) windows: BTreeMap<String, Spent>,
    pub(super) recent: Recent,
    #[serde(skip)]
    pub(super) days: Rows,
}

/// How far the sessions that spent recently were counted: below which entry, and the time of the newest one.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Recent(HashMap<Arc<str>, (u64, u64)>);

impl Recent {
    pub(super) fn note(&mut self, session: &Arc<str>, below: u64, at_ms: u64) {
        let known = self.0.entry(Arc::clone(session)).or_default();
        *known = (below.max(known.0), at_ms.max(known.1));
    }

    fn has_counted(&self, session: &str, entry: EntryId) -> bool {
        self.0.get(session).is_some_and(|(below, _)| entry.0 < *below)
    }

    /// Forgets what was recorded before the mark.
    fn forget(&mut self, before_ms: u64) {
        self.0.retain(|_, (_, at_ms)| *at_ms >= before_ms);
    }
}

/// Up to where the stored accounts are complete.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Mark {
    /// In Unix milliseconds.
    counted_before_ms: u64,
    /// Whether they are complete: the runtime ended cleanly.
    is_complete: bool,
    /// The labels by which the runtime counts that writes it.
    names: Vec<Arc<str>>,
}

/// What is missing or damaged counts as nothing.
fn decoded<T: for<'de> Deserialize<'de> + Default>(bytes: Result<Option<Vec<u8>>, StoreError>) -> T {
    serde_json::from_slice(&bytes.ok().flatten().unwrap_or_default()).unwrap_or_default()
}

/// Reads an account where the store answers at once.
pub(super) fn read_now(store: &Store, name: &Name) -> StoredAccount {
    let days = decoded(store.fact_get(&key(ACCOUNT_DAYS, name)));
    StoredAccount { days, ..decoded(store.fact_get(&key(ACCOUNT, name))) }
}

/// Reads an account.
async fn read(store: &dyn Engine, name: &Name) -> StoredAccount {
    let value = async |prefix| store.fact_get(&own(store, &key(prefix, name))).await;
    let days = decoded(value(ACCOUNT_DAYS).await);
    StoredAccount { days, ..decoded(value(ACCOUNT).await) }
}

/// The name of a value, which is a node's own: its accounts are of the sessions that it ran.
fn own(store: &dyn Engine, key: &str) -> String {
    match store.node() {
        "" => key.to_owned(),
        node => format!("node\t{node}\t{key}"),
    }
}

fn key(prefix: &str, name: &Name) -> String {
    match name {
        Some(Label { name, value }) => format!("{prefix}{name}\t{value}"),
        None => format!("{prefix}\t"),
    }
}

impl Account {
    fn stored(&self) -> StoredAccount {
        let window = |window: &super::Window| (window.period.as_str().to_owned(), window.stored());
        let (hours, days) = self.sums.stored();
        let windows = self.windows.iter().map(window).collect();
        StoredAccount { hours, windows, recent: self.recent.clone(), days }
    }
}

impl Accounts {
    /// Returns an account as it is stored.
    pub(super) fn stored(&self, name: &Name) -> StoredAccount {
        match self.store.as_store() {
            Some(store) => read_now(store, name),
            None => self.unread.lock().remove(name).unwrap_or_default(),
        }
    }

    /// The name of a value, which is this node's own.
    fn own(&self, key: &str) -> String {
        own(&*self.store, key)
    }

    /// Reads all accounts, for an engine that answers only to those who wait.
    async fn read_all(&self) -> Result<(), StoreError> {
        let prefix = self.own(ACCOUNT);
        for key in self.store.fact_keys(&prefix).await? {
            let Some((name, value)) = key[prefix.len()..].split_once('\t') else { continue };
            let label = Label { name: name.into(), value: value.into() };
            let name = Some(label).filter(|label| !label.name.is_empty());
            let stored = read(&*self.store, &name).await;
            self.unread.lock().insert(name, stored);
        }
        Ok(())
    }

    /// Counts what a crash left uncounted, forgets accounts that have expired, and begins a new life of the accounts.
    ///
    /// # Errors
    /// The store cannot be read. That it cannot be written is not an error: then nothing is appended either.
    pub(crate) async fn begin(self: &Arc<Self>, now_ms: u64) -> Result<(), StoreError> {
        if !self.is_on {
            return Ok(());
        }
        if self.store.as_store().is_none() {
            self.read_all().await?;
        }
        let mark = self.store.fact_get(&self.own(MARK)).await?;
        let mark = mark.and_then(|bytes| serde_json::from_slice::<Mark>(&bytes).ok());
        if let Some(mark) = mark.filter(|mark| !mark.is_complete) {
            self.inner.lock().counted_before_ms = mark.counted_before_ms;
            self.count_missed(&mark).await?;
        } else {
            self.inner.lock().counted_before_ms = now_ms.saturating_sub(SLACK_MS);
        }
        self.forget_expired(now_ms).await?;
        self.write(Next::Begins).await;
        Ok(())
    }

    /// Whether there is an account of all sessions.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) async fn has_sums(&self) -> Result<bool, StoreError> {
        Ok(self.is_on || self.store.fact_get(&self.own(&key(ACCOUNT, &None))).await?.is_some())
    }

    /// Returns the values of a label that have an account in the store or in memory.
    ///
    /// # Errors
    /// The store cannot be read.
    pub(crate) async fn values(&self, name: &str) -> Result<Vec<Label>, StoreError> {
        let of_name = self.own(&format!("{ACCOUNT}{name}\t"));
        let mut values: Vec<String> = Vec::new();
        for key in self.store.fact_keys(&of_name).await? {
            // Expired accounts are empty.
            if self.store.fact_get(&key).await?.is_some_and(|bytes| !bytes.is_empty()) {
                values.push(key[of_name.len()..].to_owned());
            }
        }
        let inner = self.inner.lock();
        let live = inner.accounts.keys().flatten().filter(|label| *label.name == *name);
        values.extend(live.map(|label| label.value.to_string()));
        drop(inner);
        values.sort_unstable();
        values.dedup();
        Ok(values.into_iter().map(|value| Label { name: name.into(), value: value.into() }).collect())
    }

    /// Counts the entries since the mark that accounts have not counted.
    async fn count_missed(self: &Arc<Self>, mark: &Mark) -> Result<(), StoreError> {
        // The runtime that crashed may have counted by other labels.
        let names: BTreeSet<Arc<str>> = mark.names.iter().cloned().chain(self.table.names()).collect();
        let from_ms = mark.counted_before_ms;
        let mut heads = Heads::new(&*self.store, None, PAGE);
        while let Some(page) = heads.next().await? {
            for (id, head) in page.into_iter().filter(|(_, head)| head.updated_at_ms >= from_ms) {
                // A damaged session must not keep the runtime from starting.
                if let Err(error) = self.count_session(&id, &head, &names, from_ms).await {
                    tracing::warn!(session = id, %error, "what it spent before a crash could not be counted");
                }
            }
        }
        Ok(())
    }

    async fn count_session(
        self: &Arc<Self>,
        id: &str,
        head: &Head,
        names_counted: &BTreeSet<Arc<str>>,
        from_ms: u64,
    ) -> Result<(), StoreError> {
        let labels = family::top_labels(&*self.store, head.parent_session.clone(), &head.labels).await?;
        let (tenants, session) = (named(names_counted, &labels), Arc::from(id));
        let newer = recorded_since(&*self.store, id, head, from_ms).await?;
        let (mut inner, now_ms) = (self.inner.lock(), self.clock.now_ms());
        for entry in &newer {
            let tally = Tally::of([entry], head.parent_session.is_some());
            for name in names(&tenants).filter(|_| !tally.is_empty()) {
                let account = self.account(&mut inner, &name);
                if !account.recent.has_counted(id, entry.id) {
                    account.count(&session, entry.id.0 + 1, entry.at_ms, now_ms, &tally);
                }
            }
        }
        Ok(())
    }

    /// Empties the accounts that have nothing new enough. Their keys stay, which the store cannot remove.
    async fn forget_expired(&self, now_ms: u64) -> Result<(), StoreError> {
        let prefix = self.own(ACCOUNT);
        for key in self.store.fact_keys(&prefix).await? {
            let Some((name, value)) =
                key[prefix.len()..].split_once('\t').filter(|(name, _)| !name.is_empty())
            else {
                continue;
            };
            let label = Some(Label { name: name.into(), value: value.into() });
            let stored = read(&*self.store, &label).await;
            let is_empty = stored.hours == Rows::default() && stored.days == Rows::default();
            if !is_empty && Sums::new(&stored.hours, &stored.days).is_expired(now_ms) {
                for prefix in [ACCOUNT_DAYS, ACCOUNT] {
                    self.put(self::key(prefix, &label), Vec::new()).await;
                }
            }
        }
        Ok(())
    }

    /// Lets a task write the changed accounts, unless one is about to. A task does not keep the store open.
    pub(super) fn write_soon(self: &Arc<Self>, inner: &mut MutexGuard<'_, Inner>) {
        if std::mem::replace(&mut inner.is_writing, true) {
            return;
        }
        let accounts = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(WRITE_AFTER).await;
            let Some(accounts) = accounts.upgrade() else { return };
            accounts.inner.lock().is_writing = false;
            accounts.write(Next::GoesOn).await;
        });
    }

    /// Stores all accounts, before a session is deleted.
    pub(crate) async fn flush(&self) {
        if self.is_on {
            self.write(Next::GoesOn).await;
        }
    }

    /// Stores all accounts, when the runtime ends.
    pub(crate) async fn end(&self) {
        if self.is_on {
            self.write(Next::Ends).await;
        }
    }

    async fn write(&self, next: Next) {
        let _turn = self.writing.lock().await;
        let now_ms = self.clock.now_ms();
        let (rows, counted_before_ms) = {
            let mut inner = self.inner.lock();
            let rows: Vec<Row> = inner.accounts.iter_mut().filter_map(Row::of_changed).collect();
            (rows, inner.counted_before_ms.max(now_ms.saturating_sub(SLACK_MS)))
        };
        if rows.is_empty() && matches!(next, Next::GoesOn) {
            return;
        }
        let puts = rows.iter().map(async |row| {
            let has_days = match &row.days {
                Some(days) => self.put(key(ACCOUNT_DAYS, &row.name), days.clone()).await,
                None => true,
            };
            has_days && self.put(key(ACCOUNT, &row.name), row.account.clone()).await
        });
        let are_stored = join_all(puts).await;
        let names = self.table.names().collect();
        let mark = Mark { counted_before_ms, is_complete: matches!(next, Next::Ends), names };
        let mark = serde_json::to_vec(&mark).unwrap_or_default();
        let is_whole = are_stored.iter().all(|is_stored| *is_stored) && self.put(MARK.to_owned(), mark).await;
        let mut inner = self.inner.lock();
        for (row, _) in rows.iter().zip(are_stored).filter(|(_, is_stored)| !is_stored) {
            if let Some(account) = inner.accounts.get_mut(&row.name) {
                (account.has_changed, account.has_changed_days) = (true, true);
            }
        }
        if is_whole {
            inner.counted_before_ms = counted_before_ms;
            inner.accounts.values_mut().for_each(|account| account.recent.forget(counted_before_ms));
        }
    }

    /// Stores a value. Returns whether it is durable.
    async fn put(&self, key: String, value: Vec<u8>) -> bool {
        let done = self.store.fact_put(&self.own(&key), &value).await;
        if let Err(error) = &done {
            tracing::warn!(%error, "spending could not be stored; it is counted from the logs at the next start");
        }
        done.is_ok()
    }
}

/// What follows a write.
enum Next {
    /// The runtime has begun.
    Begins,
    /// More is counted.
    GoesOn,
    /// The runtime ends.
    Ends,
}

/// A changed account, encoded.
struct Row {
    name: Name,
    account: Vec<u8>,
    /// Its days, if they have changed.
    days: Option<Vec<u8>>,
}

impl Row {
    fn of_changed((name, account): (&Name, &mut Account)) -> Option<Self> {
        if !std::mem::take(&mut account.has_changed) {
            return None;
        }
        let stored = account.stored();
        let bytes =
            |value: Result<Vec<u8>, serde_json::Error>| value.expect("numbers and texts can be encoded");
        let days = std::mem::take(&mut account.has_changed_days);
        let days = days.then(|| bytes(serde_json::to_vec(&stored.days)));
        Some(Self { name: name.clone(), account: bytes(serde_json::to_vec(&stored)), days })
    }
}

/// Returns the entries since a time that their own session has billed, oldest first. Imported ones, which are the first
/// of a log, are not on its bill.
async fn recorded_since(
    store: &dyn Engine,
    id: &str,
    head: &Head,
    from_ms: u64,
) -> Result<Vec<Entry>, StoreError> {
    let mut newer: Vec<Entry> = Vec::new();
    let mut billed = head.total_usage.total_tokens();
    let mut end = head.entries;
    'pages: while end > 0 {
        let begin = end.saturating_sub(PAGE as u64);
        let ids: Vec<EntryId> = (begin..end).map(EntryId).collect();
        let mut page = store.get(id, &ids).await?;
        page.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.id));
        for entry in page {
            let tokens = spent_tokens(&entry);
            if entry.at_ms < from_ms || tokens > billed {
                break 'pages;
            }
            billed -= tokens;
            newer.push(entry);
        }
        end = begin;
    }
    newer.reverse();
    Ok(newer)
}
