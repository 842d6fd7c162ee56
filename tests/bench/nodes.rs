//! Runs a second of one, two and three nodes that share a PostgreSQL, beside one runtime with its store in files.
//!
//! Sessions are spread over the nodes, and each prompts as soon as it has its answer; the provider answers at once, so
//! nothing but the runtime and the store is measured. Server, nodes and clients share this machine: more nodes mean more
//! writers to the same database, not more processors. All variants take turns.

mod canned;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greenroom::RuntimeBuilder;
use greenroom::prelude::*;
use greenroom_conformance::server::Server;
use greenroom_postgres::{Postgres, PostgresOptions};
use greenroom_store::{Store, StoreOptions};
use greenroom_tests::measure::{cpu_s, figure, middle, ratio, scaled, title};

const SESSIONS: usize = 64;
const ROUNDS: usize = 5;
const NODES: [usize; 3] = [1, 2, 3];

#[tokio::main]
async fn main() {
    let Some(server) = Server::start() else { return };
    title("runs/s of nodes that share a PostgreSQL, 64 sessions at work", "one runtime, its store in files");
    let folder = tempfile::tempdir().expect("a folder");
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let mut of_round = vec![on_disk(&folder.path().join(round.to_string())).await];
        for nodes in NODES {
            of_round.push(on_postgres(&server, round, nodes).await);
        }
        rounds.push(of_round);
    }
    println!("| store         | runs/s | ratio | CPU µs a run, without the server |");
    println!("|---------------|--------|-------|----------------------------------|");
    for (at, nodes) in [0].into_iter().chain(NODES).enumerate() {
        let of = |column: usize| middle(&rounds.iter().map(|of| of[at][column]).collect::<Vec<_>>());
        let ratio = middle(&rounds.iter().map(|of| ratio(of[at][0], of[0][0])).collect::<Vec<_>>());
        let name = match nodes {
            0 => "files".to_owned(),
            1 => "1 node".to_owned(),
            _ => format!("{nodes} nodes"),
        };
        println!("| {name:<13} | {:>6.0} | {ratio:>5.2} | {:>32.0} |", of(0), of(1));
        figure(&format!("nodes/{nodes}"), of(0), "runs/s", Some(ratio));
    }
}

async fn on_disk(folder: &Path) -> [f64; 2] {
    let (store, _) = Store::open(&StoreOptions::new(folder)).expect("a store");
    measured(vec![builder().store(store).start().await.expect("a runtime")]).await
}

async fn on_postgres(server: &Server, round: usize, nodes: usize) -> [f64; 2] {
    let mut runtimes = Vec::new();
    for node in 0..nodes {
        let mut options = PostgresOptions::new(server.url(), format!("node{node}"));
        options.schema = format!("nodes_{round}_{nodes}");
        let engine = Postgres::connect(&options).await.expect("the server is there");
        runtimes.push(builder().engine(Arc::new(engine)).start().await.expect("a runtime"));
    }
    measured(runtimes).await
}

fn builder() -> RuntimeBuilder {
    Runtime::builder().provider(Arc::new(canned::Canned)).idle_after(Duration::ZERO)
}

/// Returns the runs a second, and the CPU time of one in this process in µs.
async fn measured(runtimes: Vec<Runtime>) -> [f64; 2] {
    let agent = Agent::new("bench").instructions("Be brief.").context_window(1_000_000);
    let each = scaled(1_500).div_ceil(ROUNDS);
    let mut sessions = Vec::new();
    for number in 0..SESSIONS {
        let runtime = &runtimes[number % runtimes.len()];
        let session = runtime.open(&format!("s{number}"), &agent).await.expect("a session");
        session.prompt("warm up").await.expect("an answer");
        sessions.push(session);
    }
    let (began, cpu) = (Instant::now(), cpu_s());
    let prompting = sessions.into_iter().map(|session| {
        tokio::spawn(async move {
            for _ in 0..each {
                session.prompt("continue").await.expect("an answer");
            }
        })
    });
    for prompting in prompting.collect::<Vec<_>>() {
        prompting.await.expect("no session panics");
    }
    #[expect(clippy::cast_precision_loss, reason = "counts are small")]
    let runs = (SESSIONS * each) as f64;
    let figures = [runs / began.elapsed().as_secs_f64(), (cpu_s() - cpu) * 1e6 / runs];
    for runtime in runtimes {
        runtime.shutdown().await.expect("an orderly end");
    }
    figures
}
