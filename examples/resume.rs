//! A process that ends in the middle of an answer, and a second process that continues its work.
//!
//! The first half ends without a shutdown, as in a crash: all its tasks are gone. Everything
//! acknowledged is in the log, so the second half finds the whole conversation and the open question.
#![expect(clippy::print_stdout, reason = "an example shows its result")]

use std::path::Path;

use greenroom::prelude::*;
use greenroom_simulator::{Answer as Said, CallInfo, Function, SeenRequest, Simulator, SimulatorOptions};

/// A model that repeats the prompts so far; in the first half, it never answers the third prompt.
fn model(hangs: bool) -> Simulator {
    Simulator::new(SimulatorOptions::new(Function(move |request: &SeenRequest, _: CallInfo| {
        let told: Vec<String> =
            request.messages.iter().filter(|message| message.role() == "user").map(|m| m.text()).collect();
        let delay_ms = if hangs && told.len() == 3 { 3_600_000 } else { 0 };
        Said::text(format!("so far: {}", told.join(", "))).after_ms(delay_ms)
    })))
}

async fn start(dir: &Path, hangs: bool) -> Result<Runtime> {
    Runtime::builder().provider(model(hangs).provider()).data_dir(dir).start().await
}

fn agent() -> Agent {
    Agent::new("simulated").context_window(128_000)
}

fn main() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let first_half = tokio::runtime::Runtime::new()?;
    first_half.block_on(async {
        let runtime = start(dir.path(), true).await?;
        let session = runtime.open("list", &agent()).await?;
        println!("{}", session.prompt("apples").await?);
        println!("{}", session.prompt("bread").await?);
        // This one is never answered: the "process" ends while the model thinks.
        let mut run = session.prompt("cheese").start().await?;
        run.recorded().await?;
        run.detach();
        anyhow::Ok(())
    })?;
    drop(first_half);
    println!("-- everything is gone but the store --");

    tokio::runtime::Runtime::new()?.block_on(async {
        let runtime = start(dir.path(), false).await?;
        for left in runtime.unfinished().await? {
            println!("{:?} is unfinished: {} entries", left.shown_title().unwrap_or(&left.id), left.entries);
        }
        for resumed in runtime.resume_all(|_session| Some(agent())).await? {
            println!("{}", resumed.result?);
        }
        println!("{}", runtime.session("list").await?.prompt("dates").await?);
        runtime.shutdown().await?;
        Ok(())
    })
}
