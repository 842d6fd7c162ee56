//! The connections for appends: whatever waits is written together.
//!
//! Invariants: a statement has at most one batch of a session, and at most [`GROUP_MAX`] batches. A job is taken only by a
//! writer that has a connection; one that was not taken can be withdrawn, and then nothing of it was sent. Each job that was
//! taken gets exactly one outcome.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio_postgres::types::ToSql;

use crate::backoff::Backoff;
use crate::batch::Work;
use crate::link::{Fault, Link};
use crate::options::{PostgresOptions, Server};
use crate::slots::Owned;
use crate::statements::Sql;

/// The most batches of a statement.
const GROUP_MAX: usize = 256;
/// The most bytes of a statement with more than one batch.
const GROUP_BYTES_MAX: usize = 8 << 20;

/// What became of a job.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is durable.
    Written,
    /// The session is not as expected; the batch was not written.
    Unexpected,
    /// There is no answer, or a refusal of the whole statement.
    Failed(Fault),
}

/// A batch to write, if the session is this owner's.
struct Job {
    number: u64,
    work: Arc<Work>,
    owned: Owned,
    reply: oneshot::Sender<Outcome>,
}

/// The jobs that wait for a writer.
#[derive(Default)]
pub(crate) struct Queue {
    waiting: Mutex<(u64, VecDeque<Job>)>,
    news: Notify,
}

impl Queue {
    /// Has a batch written, and returns what became of it.
    pub(crate) async fn write(&self, work: &Arc<Work>, owned: Owned, until: Instant) -> Outcome {
        let (reply, mut answer) = oneshot::channel();
        let number = {
            let mut waiting = self.waiting.lock();
            waiting.0 += 1;
            let number = waiting.0;
            waiting.1.push_back(Job { number, work: Arc::clone(work), owned, reply });
            number
        };
        self.news.notify_one();
        let ended = || Outcome::Failed(Fault::Unsent("the engine was closed".to_owned()));
        if let Ok(outcome) = tokio::time::timeout_at(until.into(), &mut answer).await {
            return outcome.unwrap_or_else(|_| ended());
        }
        let withdrawn = {
            let mut waiting = self.waiting.lock();
            let at = waiting.1.iter().position(|job| job.number == number);
            at.map(|at| waiting.1.remove(at)).is_some()
        };
        if withdrawn {
            return Outcome::Failed(Fault::Unsent("there is no connection to the database".to_owned()));
        }
        // It was sent, and the statement has a limit of its own.
        answer.await.unwrap_or_else(|_| ended())
    }

    /// Takes what waits, as much as fits into a statement; nothing if nothing waits.
    fn take(&self) -> Vec<Job> {
        let mut waiting = self.waiting.lock();
        let mut room = GROUP_BYTES_MAX;
        let mut group: Vec<Job> = Vec::new();
        while let Some(next) = waiting.1.front() {
            let is_last = group.len() >= GROUP_MAX || (!group.is_empty() && next.work.bytes > room);
            if is_last {
                self.news.notify_one();
                break;
            }
            room = room.saturating_sub(next.work.bytes);
            group.extend(waiting.1.pop_front());
        }
        group
    }

    /// Puts jobs back that were not sent.
    fn put_back(&self, group: Vec<Job>) {
        let mut waiting = self.waiting.lock();
        group.into_iter().rev().for_each(|job| waiting.1.push_front(job));
        self.news.notify_one();
    }
}

/// Writes what waits in the queue, for ever.
pub(crate) async fn write_groups(queue: &Queue, options: PostgresOptions, server: Server) {
    let mut backoff = Backoff::new();
    loop {
        let link = match Link::open(&options, &server, &[Sql::Append]).await {
            Ok(link) => link,
            Err(error) => {
                tracing::debug!(%error, "no connection for appends");
                tokio::time::sleep(backoff.next()).await;
                continue;
            }
        };
        backoff = Backoff::new();
        use_link(queue, &link, options.patience / 2).await;
    }
}

/// Writes over this connection until it fails.
async fn use_link(queue: &Queue, link: &Link, patience: Duration) {
    loop {
        let group = queue.take();
        if group.is_empty() {
            queue.news.notified().await;
            continue;
        }
        if link.is_closed() {
            return queue.put_back(group);
        }
        let outcome = append(link, &group, patience).await;
        match outcome {
            Ok(written) => {
                for job in group {
                    let outcome = match written.contains(&job.work.session) {
                        true => Outcome::Written,
                        false => Outcome::Unexpected,
                    };
                    job.answer(outcome);
                }
            }
            // One of them is at fault, and the others need not suffer from it.
            Err(Fault::Refused(_)) if group.len() > 1 => {
                for job in group {
                    let outcome = match append(link, std::slice::from_ref(&job), patience).await {
                        Ok(written) if written.is_empty() => Outcome::Unexpected,
                        Ok(_) => Outcome::Written,
                        Err(fault) => Outcome::Failed(fault),
                    };
                    job.answer(outcome);
                }
            }
            Err(fault) => {
                let is_over = !matches!(fault, Fault::Refused(_));
                group.into_iter().for_each(|job| job.answer(Outcome::Failed(fault.clone())));
                if is_over {
                    return;
                }
            }
        }
    }
}

impl Job {
    fn answer(self, outcome: Outcome) {
        // Nobody waits any more if the runtime ends.
        drop(self.reply.send(outcome));
    }
}

/// Appends a group, and returns the sessions whose batches were written.
async fn append(
    link: &Link,
    group: &[Job],
    patience: Duration,
) -> Result<std::collections::HashSet<String>, Fault> {
    let works = || group.iter().map(|job| job.work.as_ref());
    let sessions: Vec<&str> = works().map(|work| work.session.as_str()).collect();
    let owners: Vec<i64> = group.iter().map(|job| job.owned.incarnation).collect();
    let epochs: Vec<i64> = group.iter().map(|job| job.owned.epoch).collect();
    let firsts: Vec<i64> = works().map(|work| work.first).collect();
    let nexts: Vec<i64> = works().map(|work| work.next).collect();
    let keys: Vec<Option<&[u8]>> = works().map(|work| work.key.as_deref()).collect();
    let heads: Vec<&[u8]> = works().map(|work| work.head.as_slice()).collect();
    let titles: Vec<Option<&str>> = works().map(|work| work.columns.title.as_deref()).collect();
    let labels: Vec<&str> = works().map(|work| work.columns.labels.as_str()).collect();
    let created: Vec<i64> = works().map(|work| work.columns.created_at_ms).collect();
    let updated: Vec<i64> = works().map(|work| work.columns.updated_at_ms).collect();
    let unfinished: Vec<bool> = works().map(|work| work.columns.is_unfinished).collect();
    let parents: Vec<Option<&str>> = works().map(|work| work.columns.parent.as_deref()).collect();
    let active: Vec<i64> = works().map(|work| work.columns.active_from).collect();
    let entries =
        || works().flat_map(|work| (work.first..).zip(&work.entries).map(move |(id, body)| (work, id, body)));
    let entry_sessions: Vec<&str> = entries().map(|(work, ..)| work.session.as_str()).collect();
    let entry_ids: Vec<i64> = entries().map(|(_, id, _)| id).collect();
    let bodies: Vec<&[u8]> = entries().map(|(.., body)| body.as_slice()).collect();
    let parameters: [&(dyn ToSql + Sync); 17] = [
        &sessions,
        &owners,
        &epochs,
        &firsts,
        &nexts,
        &keys,
        &heads,
        &titles,
        &labels,
        &created,
        &updated,
        &unfinished,
        &parents,
        &active,
        &entry_sessions,
        &entry_ids,
        &bodies,
    ];
    let rows = link.run(Sql::Append, &parameters, patience).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}
