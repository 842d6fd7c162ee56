//! Durable appends a second in PostgreSQL, and how long a takeover takes.
//!
//! The baseline is the least that a shared log needs: `INSERT` of the same bytes into a table with the same key, in groups of
//! what waits, over as many connections, to the same server. It compares no owner, moves no head and keeps no key. Both are
//! measured in turns: a disk's speed depends on its other load.
#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]

#[path = "../../../tests/bench/measure.rs"]
#[expect(dead_code, unreachable_pub, reason = "other benchmarks use the rest, from a library")]
mod measure;

use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom_conformance::kit::{append, batch, entry};
use greenroom_conformance::server::Server;
use greenroom_postgres::{Postgres, PostgresOptions};
use greenroom_store::{Claim, Engine, Placement, encode_entry};
use measure::{cpu_s, figure, middle, ratio, scaled, title};
use tokio::sync::{Mutex, mpsc, oneshot};

/// The text of one entry, in bytes.
const BYTES: usize = 1_024;
const ROUNDS: usize = 7;
/// The connections for appends, as many as the engine uses by default.
const WRITERS: usize = 2;
/// The maximum number of rows of a statement, as in the engine.
const GROUP_MAX: usize = 256;

/// A row to insert, and the writer that waits for it.
type Waiting = (String, i64, Arc<Vec<u8>>, oneshot::Sender<()>);

#[tokio::main]
async fn main() {
    let Some(server) = Server::start() else { return };
    title(
        "durable appends of 1 KiB a second in PostgreSQL",
        "a plain INSERT of the same bytes, grouped in the same way",
    );
    let plain = plain(&server).await;
    let engine: Arc<dyn Engine> = Arc::new(connect(&server, "bench", Duration::from_secs(10)).await);
    println!(
        "| sessions | plain, appends/s | engine, appends/s | ratio | client CPU µs, plain | client CPU µs, engine |"
    );
    println!(
        "|----------|------------------|-------------------|-------|----------------------|-----------------------|"
    );
    for (sessions, each) in [(1, 3_000), (64, 500), (1_000, 70)] {
        let each = scaled(each).div_ceil(ROUNDS);
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            let name = |kind: &str, session: usize| format!("{kind}-{sessions}-{round}-{session}");
            let plain_round =
                measured(sessions, each, |session| append_plain(plain.clone(), name("plain", session), each));
            let plain_round = plain_round.await;
            // The first append of a session creates it, in a statement of its own.
            for session in 0..sessions {
                append(engine.as_ref(), &name("engine", session), batch(0, 0, "", None)).await;
            }
            let engine_round = measured(sessions, each, |session| {
                append_engine(Arc::clone(&engine), name("engine", session), each)
            });
            rounds.push([plain_round, engine_round.await]);
        }
        let of = |way: usize, column: usize| {
            middle(&rounds.iter().map(|round| round[way][column]).collect::<Vec<_>>())
        };
        let ratio =
            middle(&rounds.iter().map(|[plain, engine]| ratio(engine[0], plain[0])).collect::<Vec<_>>());
        println!(
            "| {sessions:>8} | {:>16.0} | {:>17.0} | {ratio:>5.2} | {:>20.1} | {:>21.1} |",
            of(0, 0),
            of(1, 0),
            of(0, 1),
            of(1, 1)
        );
        figure(&format!("postgres/append_{sessions}"), of(1, 0), "appends/s", Some(ratio));
    }
    engine.close().await.expect("it closes");
    takeover(&server).await;
}

async fn connect(server: &Server, node: &str, lease: Duration) -> Postgres {
    let mut options = PostgresOptions::new(server.url(), node);
    (options.lease, options.writers) = (lease, WRITERS);
    Postgres::connect(&options).await.expect("the server is there")
}

/// Measures the time from a node's sudden end until another one owns all of its 1,000 sessions.
async fn takeover(server: &Server) {
    const SESSIONS: usize = 1_000;
    let lease = Duration::from_secs(1);
    let (mut all, mut claiming) = (Vec::new(), Vec::new());
    for round in 0..scaled(20).min(5) {
        let old = connect(server, &format!("old-{round}"), lease).await;
        let new = Arc::new(connect(server, &format!("new-{round}"), lease).await);
        let name = |session: usize| format!("takeover-{round}-{session}");
        let begun = (0..SESSIONS).map(|session| {
            let (old, session) = (old.clone(), name(session));
            tokio::spawn(async move { append(&old, &session, batch(0, 1, "x", None)).await })
        });
        for begun in begun.collect::<Vec<_>>() {
            begun.await.expect("it is appended");
        }
        let began = Instant::now();
        drop(old);
        while matches!(new.claim(&name(0)).await.expect("an answer"), Claim::Theirs(_)) {}
        let first = Instant::now();
        let claims = (1..SESSIONS).map(|session| {
            let (new, session) = (Arc::clone(&new), name(session));
            tokio::spawn(async move { new.claim(&session).await.expect("an answer") })
        });
        for claim in claims.collect::<Vec<_>>() {
            assert!(matches!(claim.await.expect("it is claimed"), Claim::Mine { .. }));
        }
        all.push(began.elapsed().as_secs_f64() * 1e3);
        claiming.push(first.elapsed().as_secs_f64() * 1e3);
        new.close().await.expect("it closes");
    }
    println!("\nA node of 1,000 sessions ends without a word; its lease is 1,000 ms.");
    println!(
        "Another node owns all of them after {:.0} ms, {:.0} ms of it for the claims.",
        middle(&all),
        middle(&claiming)
    );
    figure("postgres/takeover_1000", middle(&all), "ms", Some(middle(&all) / 1_000.0));
    figure("postgres/claim_1000", middle(&claiming), "ms", None);
}

/// Returns the appends per second, and the CPU time of one in this process in µs.
async fn measured<F>(sessions: usize, each: usize, session: impl Fn(usize) -> F) -> [f64; 2]
where
    F: Future<Output = ()> + Send + 'static,
{
    let (began, cpu) = (Instant::now(), cpu_s());
    let work = (0..sessions).map(|number| tokio::spawn(session(number)));
    for session in work.collect::<Vec<_>>() {
        session.await.expect("no writer panics");
    }
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    let appends = (sessions * each) as f64;
    [appends / began.elapsed().as_secs_f64(), (cpu_s() - cpu) * 1e6 / appends]
}

/// Starts the writers of the baseline.
async fn plain(server: &Server) -> mpsc::Sender<Waiting> {
    server.sql(
        "create table plain (session text collate \"C\", id bigint, body bytea, primary key (session, id))",
    );
    let (rows, queue) = mpsc::channel(4_096);
    let queue = Arc::new(Mutex::new(queue));
    for _ in 0..WRITERS {
        let connected = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls).await;
        let (client, connection) = connected.expect("the server is there");
        drop(tokio::spawn(connection));
        let insert = "insert into plain select * from unnest($1::text[], $2::int8[], $3::bytea[])";
        let insert = client.prepare(insert).await.expect("it is a statement");
        let queue: Arc<Mutex<mpsc::Receiver<Waiting>>> = Arc::clone(&queue);
        drop(tokio::spawn(async move {
            loop {
                let mut group = Vec::new();
                if queue.lock().await.recv_many(&mut group, GROUP_MAX).await == 0 {
                    return;
                }
                let sessions: Vec<&str> = group.iter().map(|(session, ..)| session.as_str()).collect();
                let ids: Vec<i64> = group.iter().map(|(_, id, ..)| *id).collect();
                let bodies: Vec<&[u8]> = group.iter().map(|(_, _, body, _)| body.as_slice()).collect();
                client.execute(&insert, &[&sessions, &ids, &bodies]).await.expect("they are inserted");
                for (.., done) in group {
                    done.send(()).expect("the writer waits");
                }
            }
        }));
    }
    rows
}

async fn append_plain(rows: mpsc::Sender<Waiting>, session: String, count: usize) {
    for id in 0..count {
        let body = encode_entry(&entry(id as u64, &"x".repeat(BYTES))).expect("it is an entry");
        let (done, written) = oneshot::channel();
        let id = i64::try_from(id).expect("a small number");
        rows.send((session.clone(), id, Arc::new(body), done)).await.expect("a writer lives");
        written.await.expect("it is written");
    }
}

async fn append_engine(engine: Arc<dyn Engine>, session: String, count: usize) {
    for id in 0..count as u64 {
        append(engine.as_ref(), &session, batch(id, 1, &"x".repeat(BYTES), None)).await;
    }
}
