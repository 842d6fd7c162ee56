//! Appends, claims and deletions: the owner of the session is determined first, then the statement is repeated until
//! its outcome is known or patience has run out.
//!
//! Invariants: a batch is written at most once, however often its statement is repeated, because each entry has a place of
//! its own, and tells in which epoch it was written. What stays in doubt when patience runs out cannot happen later
//! unnoticed: the session is claimed again, in a new epoch, before anything else is written, and the claim waits for what is
//! still on its way. What this node knows is compared with the tables after each new connection, since the server may have
//! been set back to an older state; then nothing is written.

use std::sync::Arc;
use std::time::Instant;

use greenroom_kernel::EntryId;
use greenroom_store::{Appended, Batch, Owner, StoreError, check_session};

use crate::Shared;
use crate::backoff::{Attempts, random};
use crate::batch::{Work, column, number};
use crate::link::{Fault, Parameters, opened};
use crate::pool::Kind;
use crate::slots::{Owned, Slot, State};
use crate::statements::Sql;
use crate::writer::{Append, Appending, Claim, Claiming};

/// The maximum number of bytes of a statement that adds entries to a large batch.
const PART_BYTES_MAX: usize = 8 << 20;

/// What a claim found.
pub(crate) enum Claimed {
    Mine(Owned),
    Theirs(Owner),
    /// There is no such session, and none was to be created.
    Absent,
}

/// A session in the tables.
struct Found {
    /// The incarnation that owns it; -1 if none does.
    incarnation: i64,
    epoch: i64,
    entries: i64,
    /// The entries that its row counts.
    before: i64,
    is_there: bool,
    /// The first entry of the batch with this key, if one was asked for.
    key: Option<i64>,
    /// The epoch in which the entry that was asked for was written.
    entry_epoch: Option<i64>,
}

/// What the tables say of a batch that was not written as expected.
enum Finding {
    Appended(Appended),
    /// The same statement may succeed, with this knowledge.
    Again(Owned),
}

impl Shared {
    /// Writes to a session when it is its turn. After a write in doubt, and one whose caller stopped waiting, the session is
    /// claimed again before anything else: the claim waits for what is still on its way.
    async fn write<T>(
        &self,
        session: &str,
        write: impl AsyncFnOnce(&Slot) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let _counted = self.writes.token();
        let slot = self.slots.of(session);
        let turn = slot.turn().await;
        let doubt = slot.doubt_unless_ended();
        let result = write(&slot).await;
        // Before the next one's turn.
        match &result {
            Err(StoreError::InDoubt { .. }) => drop(doubt),
            Ok(_) | Err(_) => doubt.end(),
        }
        drop(turn);
        self.slots.done(session, slot);
        result
    }

    pub(crate) async fn append(&self, session: &str, batch: Batch) -> Result<Appended, StoreError> {
        let work = Arc::new(Work::new(session, batch, &self.hashes)?);
        self.write(session, async |slot| self.append_in_turn(slot, &work).await).await
    }

    async fn append_in_turn(&self, slot: &Slot, work: &Arc<Work>) -> Result<Appended, StoreError> {
        let until = Instant::now() + self.options.patience;
        let mut owned = match self.own(slot, &work.session, true, until).await? {
            Claimed::Mine(owned) => owned,
            Claimed::Theirs(owner) => return Err(elsewhere(&work.session, owner)),
            Claimed::Absent => return Err(StoreError::NotFound { session: work.session.clone() }),
        };
        let mut attempts = Attempts::new(until);
        loop {
            let outcome = self.try_append(work, owned, until).await;
            let fault = match outcome {
                Ok(Appending::Written) => {
                    slot.set(State::Owned(after(work, owned)));
                    return Ok(written(work));
                }
                Ok(Appending::Unchecked) => {
                    match Box::pin(self.check(slot, &work.session, owned, until)).await {
                        Ok(checked) => {
                            owned = checked;
                            continue;
                        }
                        Err(StoreError::Unavailable { detail }) => Fault::Later(detail),
                        Err(error) => return Err(error),
                    }
                }
                Ok(Appending::NoLease) => {
                    self.lease.end(owned.incarnation);
                    slot.set(State::Lost);
                    if !attempts.is_in_doubt {
                        return Err(fenced(&work.session));
                    }
                    // An earlier attempt may have been written before.
                    return match Box::pin(self.find_out(slot, work, owned, true, until)).await {
                        Ok(Finding::Appended(appended)) => Ok(appended),
                        Ok(Finding::Again(_)) | Err(StoreError::Sequence { .. }) => {
                            let detail = "the lease ran out before the answer".to_owned();
                            Err(StoreError::InDoubt { detail })
                        }
                        Err(error) => Err(error),
                    };
                }
                Ok(Appending::Refused) => {
                    match Box::pin(self.find_out(slot, work, owned, attempts.is_in_doubt, until)).await {
                        Ok(Finding::Appended(appended)) => return Ok(appended),
                        Ok(Finding::Again(found)) => {
                            owned = found;
                            busy()
                        }
                        Err(StoreError::Unavailable { detail }) => Fault::Later(detail),
                        Err(error) => return Err(error),
                    }
                }
                Err(fault) => fault,
            };
            attempts.after(fault).await?;
        }
    }

    /// Writes the batch, if it follows what this node knows of the session.
    async fn try_append(&self, work: &Arc<Work>, owned: Owned, until: Instant) -> Result<Appending, Fault> {
        if work.first != owned.entries {
            return Ok(Appending::Refused);
        }
        if work.is_large() {
            return Box::pin(self.write_large(work, owned, until)).await;
        }
        // A statement to few partitions is faster, so those of a partition share a connection.
        let queue = usize::try_from(owned.part).unwrap_or(0) % self.appends.len();
        self.appends[queue].ask(Append { work: Arc::clone(work), owned }, until).await
    }

    /// Says whose the session is, and claims it if this node has not asked yet.
    pub(crate) async fn own(
        &self,
        slot: &Slot,
        session: &str,
        creates: bool,
        until: Instant,
    ) -> Result<Claimed, StoreError> {
        match (slot.state(), self.lease.incarnation()) {
            (State::Owned(owned), Ok(incarnation)) if owned.incarnation == incarnation => {
                Ok(Claimed::Mine(owned))
            }
            (State::Owned(_), _) => {
                slot.set(State::Lost);
                Err(fenced(session))
            }
            (State::Lost, _) => Err(fenced(session)),
            (State::Unknown | State::Doubt, Err(error)) => Err(error),
            (State::Unknown | State::Doubt, Ok(incarnation)) => {
                let claimed = Box::pin(self.claim(session, incarnation, creates, until)).await?;
                if let Claimed::Mine(owned) = &claimed {
                    slot.set(State::Owned(*owned));
                }
                Ok(claimed)
            }
        }
    }

    /// Asks for the session.
    async fn claim(
        &self,
        session: &str,
        incarnation: i64,
        creates: bool,
        until: Instant,
    ) -> Result<Claimed, StoreError> {
        let mut attempts = Attempts::new(until);
        let claimed = loop {
            let claim = Claim { session: session.to_owned(), incarnation, creates };
            let checked = opened();
            let fault = match self.claims.ask(claim, until).await {
                Ok(Claiming::Mine { epoch, entries, before, part }) => {
                    let shown = None;
                    break Claimed::Mine(Owned { incarnation, epoch, entries, before, shown, part, checked });
                }
                Ok(Claiming::Theirs(owner)) => break Claimed::Theirs(owner),
                Ok(Claiming::NoLease) => {
                    self.lease.end(incarnation);
                    return Err(StoreError::LeaseLost);
                }
                Ok(Claiming::Absent) if !creates => break Claimed::Absent,
                // Its owner changed meanwhile, or another node created it just now.
                Ok(Claiming::Moved | Claiming::Absent) => busy(),
                // Nothing that anybody reads changes.
                Err(fault) => fault.of_repeatable(),
            };
            attempts.after(fault).await?;
        };
        // Others may have taken over what was granted to a lease that has run out meanwhile.
        if self.lease.incarnation()? != incarnation {
            return Err(StoreError::LeaseLost);
        }
        Ok(claimed)
    }

    /// Reads the session's state, the batch of a key, and the epoch of an entry.
    async fn look(
        &self,
        session: &str,
        key: Option<&[u8]>,
        entry: Option<i64>,
        until: Instant,
    ) -> Result<Option<Found>, StoreError> {
        let asked: Parameters<'_> = &[&session, &key, &entry.unwrap_or(-1)];
        let rows = self.pool.run_until(until, Kind::Read, Sql::Diagnosis, asked).await?;
        Ok(rows.first().map(|row| Found {
            incarnation: row.get::<_, Option<i64>>(0).unwrap_or(-1),
            epoch: row.get(1),
            entries: row.get(2),
            before: row.get(3),
            is_there: row.get(4),
            key: row.get(5),
            entry_epoch: row.get(6),
        }))
    }

    /// Compares what this node knows of its session with the tables.
    ///
    /// # Errors
    /// [`StoreError::SetBack`] if they have less, [`StoreError::Fenced`] if the session is another node's.
    async fn check(
        &self,
        slot: &Slot,
        session: &str,
        owned: Owned,
        until: Instant,
    ) -> Result<Owned, StoreError> {
        let checked = opened();
        let found = self.look(session, None, None, until).await?;
        let found = found.ok_or_else(|| set_back(session, 0))?;
        Self::compare(slot, session, owned, &found)?;
        // An attempt without an answer may have written the row.
        let shown = owned.shown.filter(|_| found.before == owned.before);
        let owned = Owned { before: found.before, shown, checked, ..owned };
        slot.set(State::Owned(owned));
        Ok(owned)
    }

    /// Checks that the tables have what this node knows, and that the session is still its own.
    fn compare(slot: &Slot, session: &str, owned: Owned, found: &Found) -> Result<(), StoreError> {
        let is_older = found.epoch < owned.epoch
            || found.epoch == owned.epoch
                && (found.incarnation >= 0 && found.incarnation != owned.incarnation
                    || found.entries < owned.entries);
        if is_older {
            return Err(set_back(session, found.entries));
        }
        if (found.epoch, found.incarnation) != (owned.epoch, owned.incarnation) {
            slot.set(State::Lost);
            return Err(fenced(session));
        }
        Ok(())
    }

    /// Finds out why a batch was not written.
    async fn find_out(
        &self,
        slot: &Slot,
        work: &Work,
        owned: Owned,
        doubt: bool,
        until: Instant,
    ) -> Result<Finding, StoreError> {
        let checked = opened();
        let entry = (!work.entries.is_empty()).then_some(work.first);
        let found = self.look(&work.session, work.key.as_deref(), entry, until).await?;
        let found = found.ok_or_else(|| set_back(&work.session, 0))?;
        // The owner of an epoch writes one batch after the other, so its entry in the next place is that of this batch.
        let is_ours =
            found.entry_epoch == Some(owned.epoch) || entry.is_none() && found.key == Some(work.first);
        let known = Owned { before: found.before, shown: None, checked, ..owned };
        if doubt && is_ours && work.first == owned.entries {
            slot.set(State::Owned(Owned { entries: work.next, ..known }));
            return Ok(Finding::Appended(written(work)));
        }
        Self::compare(slot, &work.session, owned, &found)?;
        if let Some(first) = found.key {
            return Ok(Finding::Appended(Appended::Duplicate { first: EntryId(number(first)) }));
        }
        if found.entries == work.first {
            return Ok(Finding::Again(Owned { entries: found.entries, ..known }));
        }
        let (expected, got) = (EntryId(number(found.entries)), EntryId(number(work.first)));
        Err(StoreError::Sequence { session: work.session.clone(), expected, got })
    }

    /// Writes a batch that is too large for one statement: its entries wait in a table of their own, and then count all at
    /// once.
    async fn write_large(&self, work: &Work, owned: Owned, until: Instant) -> Result<Appending, Fault> {
        let name = [random().to_be_bytes(), random().to_be_bytes()].concat();
        let mut rest = work.entries.as_slice();
        let mut id = work.first;
        while !rest.is_empty() {
            let mut room = PART_BYTES_MAX;
            let fits = |entry: &&Vec<u8>| {
                let fits = entry.len() <= room;
                room = room.saturating_sub(entry.len());
                fits
            };
            let count = rest.iter().take_while(fits).count().max(1);
            let (part, after) = rest.split_at(count);
            let ids: Vec<i64> = (id..).take(count).collect();
            let bodies: Vec<&[u8]> = part.iter().map(Vec::as_slice).collect();
            // As long as parts arrive, patience is not lost.
            let parted = self.pool.run(Kind::Write, Sql::Part, &[&name, &ids, &bodies]).await;
            if let Err(error) = parted {
                return Err(Fault::Unsent(error.to_string()));
            }
            (rest, id) = (after, id + column(count as u64));
        }
        let until = until.max(Instant::now() + self.options.patience);
        let columns = &work.columns;
        let parameters: Parameters<'_> = &[
            &work.session, &owned.incarnation, &owned.epoch, &work.first, &work.next, &work.key, &work.head,
            &columns.title, &columns.labels, &columns.created_at_ms, &work.updated_at_ms,
            &columns.is_unfinished, &columns.parent, &columns.active_from, &name, &owned.before,
        ];
        let appended = self.pool.run_once(until, Sql::AppendParts, parameters).await;
        // What is left over goes with the next large batch.
        drop(self.pool.run_once(until, Sql::PartsDropped, &[&name]).await);
        match appended {
            Ok(rows) if !rows.is_empty() => Ok(Appending::Written),
            Ok(_) | Err(Fault::Taken(_)) => Ok(Appending::Refused),
            Err(fault) => Err(fault),
        }
    }

    pub(crate) async fn delete(&self, session: &str) -> Result<(), StoreError> {
        self.write(session, async |slot| self.delete_in_turn(slot, session).await).await
    }

    async fn delete_in_turn(&self, slot: &Slot, session: &str) -> Result<(), StoreError> {
        let until = Instant::now() + self.options.patience;
        let not_found = || StoreError::NotFound { session: session.to_owned() };
        let owned = match self.own(slot, session, false, until).await? {
            Claimed::Mine(owned) => owned,
            Claimed::Theirs(owner) => return Err(elsewhere(session, owner)),
            Claimed::Absent => return Err(not_found()),
        };
        let (incarnation, epoch) = (owned.incarnation, owned.epoch);
        let mut attempts = Attempts::new(until);
        loop {
            let fault = match self.pool.run_once(until, Sql::Delete, &[&session, &incarnation, &epoch]).await
            {
                Ok(rows) if !rows.is_empty() => {
                    slot.set(State::Unknown);
                    return Ok(());
                }
                Ok(_) => match self.look(session, None, None, until).await {
                    Ok(found) => {
                        let found = found.ok_or_else(|| set_back(session, 0))?;
                        if !found.is_there && found.epoch == epoch + 1 && attempts.is_in_doubt {
                            slot.set(State::Unknown);
                            return Ok(());
                        }
                        if found.epoch < epoch {
                            return Err(set_back(session, found.entries));
                        }
                        if (found.epoch, found.incarnation) != (epoch, incarnation) {
                            slot.set(State::Lost);
                            return Err(fenced(session));
                        }
                        if !found.is_there {
                            return Err(not_found());
                        }
                        busy()
                    }
                    Err(error) => Fault::Later(error.to_string()),
                },
                Err(fault) => fault,
            };
            attempts.after(fault).await?;
        }
    }

    /// Claims the session for [`greenroom_store::Placement`].
    pub(crate) async fn claim_for_good(&self, session: &str) -> Result<Claimed, StoreError> {
        self.check_open()?;
        check_session(session)?;
        let slot = self.slots.of(session);
        let turn = slot.turn().await;
        let is_held = matches!(
            (slot.state(), self.lease.incarnation()?),
            (State::Owned(owned), incarnation) if owned.incarnation == incarnation
        );
        if !is_held && slot.state() != State::Doubt {
            slot.set(State::Unknown);
        }
        let result = self.own(&slot, session, true, Instant::now() + self.options.patience).await;
        drop(turn);
        self.slots.done(session, slot);
        result
    }

    /// Gives the session back.
    pub(crate) async fn give_back(&self, session: &str, to: Option<&str>) -> Result<(), StoreError> {
        check_session(session)?;
        let slot = self.slots.of(session);
        let turn = slot.turn().await;
        if slot.state() == State::Doubt {
            // What is still on its way ends before the claim does.
            let until = Instant::now() + self.options.patience;
            let claimed = self.own(&slot, session, false, until).await;
            if !matches!(claimed, Ok(Claimed::Mine(_))) {
                drop(turn);
                return claimed.map(drop);
            }
        }
        let result = match slot.state() {
            State::Lost | State::Doubt => Ok(()),
            State::Owned(Owned { incarnation, epoch, .. }) => {
                let parameters: Parameters<'_> = &[&session, &incarnation, &Some(epoch), &to];
                self.pool.run(Kind::Write, Sql::Release, parameters).await.map(drop).map_err(undoubted)
            }
            // After a claim without an answer, it may be this node's.
            State::Unknown => match self.lease.incarnation() {
                Ok(incarnation) => {
                    let parameters: Parameters<'_> = &[&session, &incarnation, &None::<i64>, &to];
                    self.pool.run(Kind::Write, Sql::Release, parameters).await.map(drop).map_err(undoubted)
                }
                Err(_) => Ok(()),
            },
        };
        if result.is_ok() {
            slot.set(State::Unknown);
        }
        drop(turn);
        self.slots.done(session, slot);
        result
    }
}

/// What this node knows of a session after this batch.
fn after(work: &Arc<Work>, owned: Owned) -> Owned {
    let job = Append { work: Arc::clone(work), owned };
    let entries = work.next;
    match job.writes_row() || work.is_large() {
        true => Owned { entries, before: entries, shown: Some(work.shown), ..owned },
        false => Owned { entries, ..owned },
    }
}

fn written(work: &Work) -> Appended {
    Appended::Written { first: EntryId(number(work.first)), next: EntryId(number(work.next)) }
}

/// The fault of a statement that found the session's row changed, and may succeed the next time.
fn busy() -> Fault {
    Fault::Later("the session was busy".to_owned())
}

fn fenced(session: &str) -> StoreError {
    StoreError::Fenced { session: session.to_owned() }
}

fn elsewhere(session: &str, owner: Owner) -> StoreError {
    StoreError::Elsewhere { session: session.to_owned(), owner }
}

/// Creates the error that the database has less than it acknowledged.
pub(crate) fn set_back(session: &str, entries: i64) -> StoreError {
    StoreError::SetBack { session: session.to_owned(), from: EntryId(number(entries)) }
}

/// Giving a session back may be repeated at any time, so that is never in doubt.
fn undoubted(error: StoreError) -> StoreError {
    if let StoreError::InDoubt { detail } = error { StoreError::Unavailable { detail } } else { error }
}
