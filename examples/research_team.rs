//! A research team at work: a live tree in the terminal, or plain lines without a terminal. The slowest member is
//! aborted as soon as the others have answered.
//!
//! The model is a scripted one: the boss asks all three at once, and one of them takes very long.
#![expect(clippy::print_stdout, reason = "an example shows its result")]
#![expect(clippy::wildcard_enum_match_arm, reason = "a program shows the events that it cares about")]

use std::collections::BTreeMap;
use std::io::IsTerminal;

use greenroom::prelude::*;
use greenroom_simulator::{
    Answer as Said, CallInfo, Function, ScriptedCall, SeenRequest, Simulator, SimulatorOptions,
};

/// Looks for something.
#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "the models read and write it")]
struct Query {
    topic: String,
}

#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "the models read and write it")]
struct Findings {
    sources: Vec<String>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let model = Simulator::new(SimulatorOptions::new(Function(script)));
    let runtime = Runtime::builder().provider(model.provider()).in_memory().start().await?;
    let agent =
        |instructions: &str| Agent::new("simulated").context_window(128_000).instructions(instructions);
    let team = ["web", "papers", "gossip"].into_iter().fold(
        agent("Ask your team, and sum up what it found.").cost_limit_usd(0.5),
        |team, name| {
            team.sub_agent(sub_agent(name, agent(name)).parallel(4).input::<Query>().output::<Findings>())
        },
    );
    let session = runtime.open("team", &team).await?;
    let mut events = runtime.subscribe(Filter::tree("team"));
    let run = session.prompt("What is new in rust actors?").start().await?;
    let mut tree = Tree::default();
    while let Some(event) = events.next_event().await {
        match &event.kind {
            EventKind::ChildStart { name, child, .. } => tree.set(child, name, "begins"),
            EventKind::MessageDelta { .. } if event.parent.is_some() => {
                tree.set(&event.session, "", "writes")
            }
            EventKind::ChildEnd { child, outcome, .. } => {
                tree.set(child, "", outcome.as_str());
                let mut working = run.children().into_iter().filter(Child::is_working);
                if let (Some(last), None) = (working.next(), working.next()) {
                    last.abort();
                }
            }
            EventKind::RunEnd { .. } if event.parent.is_none() => break,
            _ => {}
        }
    }
    println!("{}", run.reply().await?);
    let spent: u64 =
        runtime.sessions().tree("team").await?.iter().map(|session| session.usage.total_tokens()).sum();
    println!("{} members, {spent} tokens", tree.lines.len());
    runtime.shutdown().await
}

/// What each member does.
#[derive(Default)]
struct Tree {
    lines: BTreeMap<String, (String, String)>,
    drawn: usize,
}

impl Tree {
    fn set(&mut self, session: &str, name: &str, does: &str) {
        let line = self.lines.entry(session.to_owned()).or_insert_with(|| (name.to_owned(), String::new()));
        if line.1 == does {
            return;
        }
        does.clone_into(&mut line.1);
        if !std::io::stdout().is_terminal() {
            return println!("  {:<8} {does}", line.0);
        }
        if self.drawn > 0 {
            print!("\x1b[{}A", self.drawn);
        }
        self.drawn = self.lines.len();
        self.lines.values().for_each(|(name, does)| println!("\x1b[2K  └ {name:<8} {does}"));
    }
}

fn script(request: &SeenRequest, _: CallInfo) -> Said {
    let is_boss = request.session.as_deref() == Some("team");
    match (is_boss, request.messages.len()) {
        (true, 1) => {
            let call = |name: &str| ScriptedCall {
                id: Some(name.into()),
                name: name.into(),
                arguments: r#"{"topic":"rust actors"}"#.into(),
            };
            Said { calls: ["web", "papers", "gossip"].map(call).into(), ..Said::default() }
        }
        (true, _) => Said::text("Two of three found something: see the sources."),
        (false, _) => {
            let wait_ms = match request.system.as_deref() {
                Some("web") => 200,
                Some("papers") => 500,
                _ => 3_600_000,
            };
            Said::text(r#"{"sources":["a","b"]}"#).after_ms(wait_ms)
        }
    }
}
