//! One session over four APIs: each vendor gets the whole conversation, and for its own answers also the data that it
//! requires back as it came. The simulator stands for all four; with real ones, the options need only a key:
//! `ServerOptions::anthropic(key)`, `::responses(key)`, `::gemini(key)`.
#![expect(clippy::print_stdout, reason = "an example shows its result")]

use std::sync::Arc;

use greenroom::prelude::*;
use greenroom::provider::{HttpProvider, ServerOptions};
use greenroom_simulator::{Answer, Function, SeenRequest, Simulator, SimulatorOptions};

#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    let vendors = [
        ("openai", ServerOptions::default()),
        ("openai-responses", ServerOptions::responses("key")),
        ("anthropic", ServerOptions::anthropic("key")),
        ("google", ServerOptions::gemini("key")),
    ];
    let mut runtime = Runtime::builder().in_memory();
    let mut running = Vec::new();
    for (name, options) in vendors {
        let script = |request: &SeenRequest, _| {
            Answer::text(format!("I see {} messages.", request.messages.len())).with_reasoning("I count.")
        };
        let simulator = Simulator::new(SimulatorOptions::new(Function(script)));
        let server = simulator.serve().await?;
        let options = ServerOptions { name: name.to_owned(), base_url: server.base_url(), ..options };
        runtime = runtime.provider(Arc::new(HttpProvider::new(options)?));
        running.push((simulator, server));
    }
    let runtime = runtime.start().await?;

    for name in ["anthropic", "google", "openai-responses", "openai", "anthropic"] {
        let agent = Agent::new("any-model").provider(name).context_window(32_000);
        let session = runtime.open("travels", &agent).await?;
        let reply = session.prompt("How much do you see?").await?;
        println!("{name}: {}", reply.text);
        runtime.close("travels").await?;
    }
    for (simulator, _) in &running {
        simulator.assert_clean();
    }
    runtime.shutdown().await?;
    Ok(())
}
