//! A service: many sessions of one agent over a shared pool, events as JSON lines, an orderly shutdown at Ctrl-C, and
//! at the next start the completion of work that the previous process left unfinished.
//!
//! `cargo run --example service` runs to completion with a temporary store; with a folder as its argument, it can be
//! killed and started again.
#![expect(clippy::print_stdout, reason = "an example shows its result")]

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use futures_util::future::join_all;
use greenroom::prelude::*;
use greenroom_simulator::{Answer, Function, SeenRequest, Simulator, SimulatorOptions};

const SESSIONS: usize = 200;

/// What all sessions share: a database's pool, in a real service.
#[derive(Default)]
struct Pool {
    rows: AtomicU64,
}

/// Adds a row.
#[derive(Deserialize, JsonSchema)]
struct AddRow {
    text: String,
}

async fn add_row(row: AddRow, context: ToolContext) -> Result<String, ToolError> {
    let rows = context.state::<Pool>()?.rows.fetch_add(1, Ordering::Relaxed) + 1;
    Ok(format!("row {rows}: {}", row.text))
}

#[tokio::main]
async fn main() -> Result<()> {
    let (place, temporary) = (std::env::args().nth(1), tempfile::tempdir()?);
    let place = place.map_or_else(|| temporary.path().to_owned(), PathBuf::from);
    let model = Simulator::new(SimulatorOptions::new(Function(|request: &SeenRequest, _: _| match request
        .messages
        .last()
        .map(|message| message.role())
    {
        Some("tool") => Answer::text("It is written down."),
        _ => Answer::call("add_row", &serde_json::json!({ "text": request.last_user_text() })).after_ms(20),
    })));
    let runtime = Runtime::builder().provider(model.provider()).data_dir(&place).start().await?;
    let agent = Agent::new("simulated").context_window(128_000).state(Pool::default());
    let agent = Arc::new(agent.add_tool(tool("add_row", add_row)));

    // A line for each durable event that this reader is fast enough for. A consumer misses none: see the guide's page on
    // following events.
    let mut events = runtime.subscribe(Filter::all().durable());
    let mut lines = std::io::BufWriter::new(std::fs::File::create(place.join("events.jsonl"))?);
    let writer = tokio::spawn(async move {
        while let Some(event) = events.next_event().await {
            serde_json::to_writer(&mut lines, &event)?;
            std::io::Write::write_all(&mut lines, b"\n")?;
        }
        std::io::Write::flush(&mut lines)
    });

    let of_all = Arc::clone(&agent);
    let resumed = runtime.resume_all(move |_| Some(Arc::clone(&of_all))).at_once(32).await?;
    println!("{} unfinished sessions were finished", resumed.len());
    let work = join_all((0..SESSIONS).map(async |number| {
        let session = runtime.open(&format!("user:{number}"), Arc::clone(&agent)).await?;
        session.prompt(format!("Note {number}.")).await
    }));
    tokio::select! {
        answers = work => println!("{} of {SESSIONS} answered", answers.iter().filter(|answer| answer.is_ok()).count()),
        _ = tokio::signal::ctrl_c() => println!("ends in order; what is unfinished goes on at the next start"),
    }
    runtime.shutdown().await?;
    writer.await??;
    Ok(())
}
