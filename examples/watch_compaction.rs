//! A session whose window fills: each compaction is shown as it happens, and the conversation goes on.
//!
//! The model's context shrinks; the log keeps every entry.
#![expect(clippy::print_stdout, reason = "an example shows its result")]
#![expect(clippy::wildcard_enum_match_arm, reason = "a program shows the events that it cares about")]

use greenroom::prelude::*;
use greenroom_simulator::{
    Answer as Said, ByPurpose, CallInfo, Function, SeenRequest, Simulator, SimulatorOptions, Summariser,
};

const WINDOW: u64 = 8_000;

#[tokio::main]
async fn main() -> Result<()> {
    let talk = Function(|request: &SeenRequest, _: CallInfo| {
        let asked = request.last_user_text();
        Said::text(format!("{} is settled. {}", asked, "And more detail. ".repeat(60)))
    });
    let script = ByPurpose::new(talk, Summariser::Obedient);
    let model = Simulator::new(SimulatorOptions { window: WINDOW, ..SimulatorOptions::new(script) });
    let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    let agent = Agent::new("simulated").instructions("Plan the voyage.").context_window(WINDOW);
    let session = runtime.open("voyage", &agent).await?;

    let mut events = session.subscribe();
    for day in 1..=40 {
        let reply = session.prompt(format!("Day {day} of the voyage")).await?;
        println!("day {day:>2}: {}", reply.context);
        while let Some(delivery) = events.try_next() {
            let Delivery::Event(event) = delivery else { continue };
            let name = event.kind.name();
            match &event.kind {
                EventKind::CompactionStart { trigger, tokens_before, messages_before, .. } => {
                    println!("  {name} ({trigger:?}): {tokens_before} tokens in {messages_before} messages")
                }
                EventKind::CompactionEnd(end) => println!(
                    "  {name} ({}): {} → {} tokens, {} messages replaced",
                    end.outcome, end.tokens_before, end.tokens_after, end.messages_removed
                ),
                EventKind::SessionCompacted { tokens_saved, .. } => {
                    println!("  {name}: {tokens_saved} tokens saved");
                }
                _ => {}
            }
        }
    }
    let state = session.state().await?;
    let sent = session.context().await?.len();
    println!("{} entries in the log, {} compactions, {sent} messages sent", state.entries, state.compactions);
    model.assert_clean();
    runtime.shutdown().await
}
