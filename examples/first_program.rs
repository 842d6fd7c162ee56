//! A first program: an agent with one tool, asked one question.
//!
//! The model is a scripted one, so that it runs anywhere. With a real one, everything down to the agent is
//! `let runtime = Runtime::from_env().await?;`.
#![expect(clippy::print_stdout, reason = "an example shows its result")]

use greenroom::prelude::*;
use greenroom_simulator::{Answer as Said, Sequence, Simulator, SimulatorOptions};

/// Current weather for one city.
#[derive(Deserialize, JsonSchema)]
struct Weather {
    /// City name, e.g. "Oslo"
    city: String,
}

#[tokio::main]
async fn main() -> Result<()> {
    let script = Sequence(vec![
        Said::call("weather", &serde_json::json!({ "city": "Oslo" })),
        Said::text("Yes, take one: it rains in Oslo, at 12 °C."),
    ]);
    let model = Simulator::new(SimulatorOptions::new(script));
    let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;

    let agent = Agent::new("simulated")
        .instructions("Be brief.")
        .context_window(128_000)
        .tool("weather", |asked: Weather| async move { Ok(format!("{}: 12 °C, rain", asked.city)) });
    let session = runtime.open("umbrella", &agent).await?;
    let reply = session.prompt("Umbrella in Oslo?").await?;
    println!("{reply}  [{}]", reply.context);

    for message in session.context().await? {
        println!("  {:<9} {}", message.role(), message.text());
    }
    runtime.shutdown().await
}
