//! The connections for appends and claims: whatever waits is sent together.
//!
//! Invariants: a statement has at most one job of a session, and at most [`GROUP_MAX`] jobs. A job is taken only where there
//! is a connection; one that was not taken can be withdrawn, and then nothing of it was sent. Each job that was taken gets
//! exactly one answer.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom_store::Owner;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio_postgres::types::ToSql;

use crate::backoff::Backoff;
use crate::batch::{Work, number};
use crate::link::{Fault, Link, Parameters};
use crate::options::{PostgresOptions, Server};
use crate::slots::Owned;
use crate::statements::Sql;

/// The maximum number of jobs of a statement.
const GROUP_MAX: usize = 256;
/// The maximum number of bytes of a statement with more than one job.
const GROUP_BYTES_MAX: usize = 8 << 20;

/// What is sent together with others of its kind.
pub(crate) trait Job: Send + Sync + 'static {
    /// What becomes of it.
    type Answer: Send + 'static;
    /// The statements for several.
    const SQL: &'static [Sql];

    /// Its size.
    fn bytes(&self) -> usize;

    /// Runs the statement, and returns the answer of each job.
    fn run(
        link: &Link,
        group: &[&Self],
        patience: Duration,
    ) -> impl Future<Output = Result<Vec<Self::Answer>, Fault>> + Send;
}

/// A job that waits.
struct Waiting<J: Job> {
    number: u64,
    job: J,
    reply: oneshot::Sender<Result<J::Answer, Fault>>,
}

/// The jobs that wait for a connection.
pub(crate) struct Queue<J: Job> {
    waiting: Mutex<(u64, VecDeque<Waiting<J>>)>,
    news: Notify,
}

impl<J: Job> Default for Queue<J> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), news: Notify::new() }
    }
}

impl<J: Job> Queue<J> {
    /// Has a job done, and returns what became of it. A job whose caller stops waiting is withdrawn, if it was not taken.
    pub(crate) async fn ask(&self, job: J, until: Instant) -> Result<J::Answer, Fault> {
        let (reply, mut answer) = oneshot::channel();
        let number = {
            let mut waiting = self.waiting.lock();
            waiting.0 += 1;
            let number = waiting.0;
            waiting.1.push_back(Waiting { number, job, reply });
            number
        };
        self.news.notify_one();
        let mut guard = JobGuard { queue: self, number, is_answered: false };
        let ended = || Err(Fault::Unsent("the engine was closed".to_owned()));
        if let Ok(answer) = tokio::time::timeout_at(until.into(), &mut answer).await {
            guard.is_answered = true;
            return answer.unwrap_or_else(|_| ended());
        }
        if self.withdraw(number) {
            return Err(Fault::Unsent("there is no connection to the database".to_owned()));
        }
        // It was sent, and the statement has a limit of its own.
        answer.await.unwrap_or_else(|_| ended())
    }

    /// Withdraws a job. Returns whether it was not taken yet.
    fn withdraw(&self, number: u64) -> bool {
        let mut waiting = self.waiting.lock();
        let at = waiting.1.iter().position(|job| job.number == number);
        at.map(|at| waiting.1.remove(at)).is_some()
    }

    /// Takes what waits, as much as fits into a statement; nothing if nothing waits.
    fn take(&self) -> Vec<Waiting<J>> {
        let mut waiting = self.waiting.lock();
        let mut room = GROUP_BYTES_MAX;
        let mut group = Vec::new();
        while let Some(next) = waiting.1.front() {
            let bytes = next.job.bytes();
            if group.len() >= GROUP_MAX || (!group.is_empty() && bytes > room) {
                self.news.notify_one();
                break;
            }
            room = room.saturating_sub(bytes);
            group.extend(waiting.1.pop_front());
        }
        group
    }

    /// Puts jobs back that were not sent.
    fn put_back(&self, group: Vec<Waiting<J>>) {
        let mut waiting = self.waiting.lock();
        group.into_iter().rev().for_each(|job| waiting.1.push_front(job));
        self.news.notify_one();
    }

    /// Sends what waits, for ever.
    pub(crate) async fn serve(&self, options: PostgresOptions, server: Server) {
        let mut backoff = Backoff::new();
        loop {
            let link = match Link::open(&options, &server, J::SQL).await {
                Ok(link) => link,
                Err(error) => {
                    tracing::debug!(%error, "no connection for {:?}", J::SQL);
                    let pause = tokio::time::sleep(backoff.next());
                    tokio::select! {
                        () = pause => {}
                        () = server.reached.notified() => {}
                    }
                    continue;
                }
            };
            backoff = Backoff::new();
            self.use_link(&link, options.patience / 2).await;
        }
    }

    /// Sends over this connection until it fails.
    async fn use_link(&self, link: &Link, patience: Duration) {
        loop {
            let group = self.take();
            if group.is_empty() {
                self.news.notified().await;
                continue;
            }
            if link.is_closed() {
                return self.put_back(group);
            }
            let jobs: Vec<&J> = group.iter().map(|waiting| &waiting.job).collect();
            match J::run(link, &jobs, patience).await {
                Ok(answers) => {
                    group.into_iter().zip(answers).for_each(|(job, answer)| job.answer(Ok(answer)))
                }
                // One of them is at fault, and the others need not suffer from it.
                Err(Fault::Refused(_) | Fault::Taken(_)) if group.len() > 1 => {
                    let mut rest = group.into_iter();
                    while let Some(job) = rest.next() {
                        let answers = J::run(link, &[&job.job], patience).await;
                        let answer = answers.and_then(|answers| {
                            answers.into_iter().next().ok_or_else(|| Fault::Later("no answer".to_owned()))
                        });
                        let is_over = answer.as_ref().is_err_and(Fault::ends_link);
                        job.answer(answer);
                        if is_over {
                            return self.put_back(rest.collect());
                        }
                    }
                }
                Err(fault) => {
                    let is_over = fault.ends_link();
                    group.into_iter().for_each(|job| job.answer(Err(fault.clone())));
                    if is_over {
                        return;
                    }
                }
            }
        }
    }
}

/// Withdraws a job whose caller stops waiting.
struct JobGuard<'a, J: Job> {
    queue: &'a Queue<J>,
    number: u64,
    is_answered: bool,
}

impl<J: Job> Drop for JobGuard<'_, J> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.queue.withdraw(self.number);
        }
    }
}

impl<J: Job> Waiting<J> {
    fn answer(self, answer: Result<J::Answer, Fault>) {
        // Nobody waits any more if the runtime ends.
        drop(self.reply.send(answer));
    }
}

/// A session that is to be this incarnation's.
pub(crate) struct Claim {
    pub(crate) session: String,
    pub(crate) incarnation: i64,
    /// Whether its row is created.
    pub(crate) creates: bool,
}

/// What became of a claim.
#[derive(Debug)]
pub(crate) enum Claiming {
    /// The claimant's lease is not valid.
    NoLease,
    Mine {
        epoch: i64,
        entries: i64,
        /// The entries that the session's row counts.
        before: i64,
        /// The partition of the session's entries.
        part: i64,
    },
    Theirs(Owner),
    /// Its owner changed during the claim.
    Moved,
    /// It has no row, or got one just now.
    Absent,
}

impl Job for Claim {
    type Answer = Claiming;
    const SQL: &'static [Sql] = &[Sql::Claim];

    fn bytes(&self) -> usize {
        self.session.len()
    }

    async fn run(link: &Link, group: &[&Self], patience: Duration) -> Result<Vec<Claiming>, Fault> {
        // After a loss, claims of two incarnations may wait together. Those of the older one are late in any case.
        let incarnation = group.iter().map(|claim| claim.incarnation).max().unwrap_or_default();
        let sessions: Vec<&str> = group.iter().map(|claim| claim.session.as_str()).collect();
        let creates: Vec<bool> = group.iter().map(|claim| claim.creates).collect();
        let rows = link.run(Sql::Claim, &[&incarnation, &sessions, &creates], patience).await?;
        let mut found: HashMap<&str, Claiming> = HashMap::new();
        for row in &rows {
            let claiming = match (row.get(1), row.get::<_, Option<i64>>(2)) {
                (false, _) => Claiming::NoLease,
                (true, Some(epoch)) => {
                    Claiming::Mine { epoch, entries: row.get(3), before: row.get(4), part: row.get(6) }
                }
                (true, None) => match row.get(7) {
                    Some(node) => Claiming::Theirs(Owner {
                        node,
                        address: row.get(8),
                        epoch: number(row.get::<_, Option<i64>>(5).unwrap_or_default()),
                    }),
                    None => Claiming::Moved,
                },
            };
            found.insert(row.get(0), claiming);
        }
        let answer = |claim: &&Self| match found.remove(claim.session.as_str()) {
            _ if claim.incarnation != incarnation => Claiming::NoLease,
            Some(claiming) => claiming,
            None => Claiming::Absent,
        };
        Ok(group.iter().map(answer).collect())
    }
}

/// A batch to write, if the session is this owner's.
pub(crate) struct Append {
    pub(crate) work: Arc<Work>,
    pub(crate) owned: Owned,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Appending {
    Written,
    /// The session is not as its owner left it.
    Refused,
    /// The owner's lease has run out.
    NoLease,
    /// The connection is newer than the owner's knowledge.
    Unchecked,
}

impl Append {
    /// Whether the session's row is written: if lists need something new, or there is no entry for the head, or a key.
    pub(crate) fn writes_row(&self) -> bool {
        let Self { work, owned } = self;
        work.entries.is_empty() || work.key.is_some() || owned.shown != Some(work.shown)
    }
}

impl Job for Append {
    type Answer = Appending;
    const SQL: &'static [Sql] = &[Sql::AppendEntries, Sql::Append];

    fn bytes(&self) -> usize {
        self.work.bytes
    }

    async fn run(link: &Link, group: &[&Self], patience: Duration) -> Result<Vec<Appending>, Fault> {
        // After a loss, batches of two incarnations may wait together. Those of the older one are late in any case.
        let incarnation = group.iter().map(|job| job.owned.incarnation).max().unwrap_or_default();
        let is_checked = |job: &Self| job.owned.checked >= link.serial();
        let is_sent = |job: &Self| is_checked(job) && job.owned.incarnation == incarnation;
        let mut sent: Vec<&Self> = group.iter().copied().filter(|job| is_sent(job)).collect();
        let written = match append(link, incarnation, &mut sent, patience).await {
            // Which of them is at fault is found out one by one.
            Err(Fault::Taken(_)) if group.len() == 1 => return Ok(vec![Appending::Refused]),
            written => written?,
        };
        let answer = |job: &&Self| match &written {
            _ if !is_checked(job) => Appending::Unchecked,
            _ if !is_sent(job) => Appending::NoLease,
            None => Appending::NoLease,
            Some(rows) if job.writes_row() && !rows.contains(&job.work.session) => Appending::Refused,
            Some(_) => Appending::Written,
        };
        Ok(group.iter().map(answer).collect())
    }
}

/// Appends a group, and returns the sessions whose rows were written; `None` if the lease has run out.
async fn append(
    link: &Link,
    incarnation: i64,
    group: &mut [&Append],
    patience: Duration,
) -> Result<Option<HashSet<String>>, Fault> {
    if group.is_empty() {
        return Ok(Some(HashSet::new()));
    }
    // Rows are locked in this order.
    group.sort_unstable_by(|one, other| one.work.session.cmp(&other.work.session));
    let rows: Vec<&Append> = group.iter().copied().filter(|job| job.writes_row()).collect();
    let mut entries = EntryColumns::default();
    group.iter().for_each(|job| entries.add(job));
    if rows.is_empty() {
        let EntryColumns { sessions, ids, epochs, bodies, heads, .. } = &entries;
        let parameters: Parameters<'_> = &[&incarnation, sessions, ids, epochs, bodies, heads];
        let answer = link.run(Sql::AppendEntries, parameters, patience).await?;
        let is_written = answer.first().is_some_and(|row| row.get(0));
        return Ok(is_written.then(HashSet::new));
    }
    let works = || rows.iter().map(|job| job.work.as_ref());
    let sessions: Vec<&str> = works().map(|work| work.session.as_str()).collect();
    let epochs: Vec<i64> = rows.iter().map(|job| job.owned.epoch).collect();
    let befores: Vec<i64> = rows.iter().map(|job| job.owned.before).collect();
    let firsts: Vec<i64> = works().map(|work| work.first).collect();
    let nexts: Vec<i64> = works().map(|work| work.next).collect();
    let keys: Vec<Option<&[u8]>> = works().map(|work| work.key.as_deref()).collect();
    let heads: Vec<&[u8]> = works().map(|work| work.head.as_slice()).collect();
    let titles: Vec<Option<&str>> = works().map(|work| work.columns.title.as_deref()).collect();
    let labels: Vec<&str> = works().map(|work| work.columns.labels.as_str()).collect();
    let created: Vec<i64> = works().map(|work| work.columns.created_at_ms).collect();
    let updated: Vec<i64> = works().map(|work| work.updated_at_ms).collect();
    let unfinished: Vec<bool> = works().map(|work| work.columns.is_unfinished).collect();
    let parents: Vec<Option<&str>> = works().map(|work| work.columns.parent.as_deref()).collect();
    let active: Vec<i64> = works().map(|work| work.columns.active_from).collect();
    let parameters: [&(dyn ToSql + Sync); 21] = [
        &incarnation, &sessions, &epochs, &befores, &firsts, &nexts, &keys, &heads, &titles, &labels,
        &created, &updated, &unfinished, &parents, &active, &entries.sessions, &entries.ids, &entries.epochs,
        &entries.bodies, &entries.heads, &entries.of_row,
    ];
    let answer = link.run(Sql::Append, &parameters, patience).await?;
    let written: Option<Vec<String>> = answer.first().and_then(|row| row.get(0));
    Ok(written.map(HashSet::from_iter))
}

/// The entries of a group, by column.
#[derive(Default)]
struct EntryColumns<'a> {
    sessions: Vec<&'a str>,
    ids: Vec<i64>,
    epochs: Vec<i64>,
    bodies: Vec<&'a [u8]>,
    /// The head, with the last entry of a batch that writes no row.
    heads: Vec<Option<&'a [u8]>>,
    of_row: Vec<bool>,
}

impl<'a> EntryColumns<'a> {
    fn add(&mut self, job: &'a Append) {
        let (work, writes_row) = (job.work.as_ref(), job.writes_row());
        for (id, body) in (work.first..).zip(&work.entries) {
            let has_head = !writes_row && id + 1 == work.next;
            self.sessions.push(&work.session);
            self.ids.push(id);
            self.epochs.push(job.owned.epoch);
            self.bodies.push(body);
            self.heads.push(has_head.then_some(work.head.as_slice()));
            self.of_row.push(writes_row);
        }
    }
}
