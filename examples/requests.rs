//! The options of a prompt: a typed answer, an idempotency key, a timeout, a validator, and streaming.
//!
//! The model is a scripted one that makes mistakes: its first answer is no JSON, its second one too dry.
#![expect(clippy::print_stdout, reason = "an example shows its result")]
#![expect(clippy::wildcard_enum_match_arm, reason = "a program shows the items that it cares about")]

use std::time::Duration;

use greenroom::prelude::*;
use greenroom_simulator::{Answer as Said, Pace, Sequence, Simulator, SimulatorOptions};

#[derive(Debug, Deserialize, JsonSchema)]
struct Forecast {
    city: String,
    rain_mm: u32,
}

#[tokio::main]
async fn main() -> Result<()> {
    let script = Sequence(vec![
        Said::text("Rain, I think."),
        Said::text(r#"{"city":"Bergen","rain_mm":0}"#),
        Said::text(r#"{"city":"Bergen","rain_mm":12}"#),
        Said::text("Take the large umbrella.").with_pace(Pace { chunks: 6, first_ms: 50, between_ms: 50 }),
    ]);
    let model = Simulator::new(SimulatorOptions::new(script));
    let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    let agent = Agent::new("simulated")
        .context_window(128_000)
        .instructions_from(|to| format!("You forecast rain. This is conversation {}.", to.session))
        .settings(ModelSettings::new().temperature(0.7));
    let session = runtime.open("weather", &agent).await?;

    let request = || {
        let never_dry = async |answer: greenroom::ProposedAnswer| match answer.text.contains("\"rain_mm\":0")
        {
            true => Err("it always rains in Bergen."),
            false => Ok(()),
        };
        let request = session.prompt("Tomorrow in Bergen?").once("question-1").validate(never_dry);
        let exact = ModelSettings::new().temperature(0.0).seed(7);
        request.output::<Forecast>().settings(exact).timeout(Duration::from_secs(60))
    };
    let typed = request().await?;
    println!("{}: {} mm, after {} steps", typed.value.city, typed.value.rain_mm, typed.reply.steps);
    println!("the same again: {} mm, {} calls in all", request().await?.value.rain_mm, model.calls());

    let mut run = session.prompt("So?").stream();
    while let Some(item) = run.next().await {
        match item? {
            RunItem::Text(text) => print!("{text}|"),
            RunItem::Reply(reply) => println!("\n{} tokens in the context", reply.context.tokens),
            _ => {}
        }
    }
    for message in session.context().await? {
        println!("  {:<9} {}", message.role(), message.text().replace('\n', " "));
    }
    runtime.shutdown().await
}
