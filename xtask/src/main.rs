//! The workspace's own commands: `cargo xtask ci` runs everything that must hold before a change is merged.
//!
//! Invariants: continuous integration runs this and nothing else, so what passes here passes there; a step
//! that fails ends the run with its output, and its time is still shown.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command line tool shows what it does")]

mod bench;
mod clients;
mod mutants;
mod record;
mod run;
mod simulate;
mod steps;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use steps::{Outcome, STEPS, Step};

const HELP: &str = "\
cargo xtask ci [--only STEP]... [--skip STEP]...   run all checks, or some of them
cargo xtask steps                                  list the checks
cargo xtask clients                                write the generated part of clients/ from docs/schema/openapi.json
cargo xtask fuzz-http [--seconds N]                send random requests to all routes (120), with schemathesis
cargo xtask simulate --seed N                      run one simulated life and print its trace
cargo xtask simulate --runs N [--from N]           run many simulated lives
cargo xtask postgres [NEXTEST ARGUMENT]...          run tests/it with PostgreSQL as the store
cargo xtask kills [--runs N]                       kill a real process N times (2,000)
cargo xtask sleeps [--runs N]                      send 100,000 prompts to sessions that fall asleep, N times (10)
cargo xtask mutations [--runs N]                   damage a store N times (10,000)
cargo xtask bench [NAME]... [--quick]              run benchmarks and update docs/performance.md; `--list` lists the
                                                   benchmarks, `--page` only updates the page
cargo xtask record                                 record a chat in tmux: docs/chat.svg and docs/chat-short.svg
cargo xtask mutants [FILE]...                      test mutations of these files; run by hand, since it takes hours;
                                                   needs `cargo install cargo-mutants --locked`";

fn main() -> ExitCode {
    match dispatch(std::env::args().skip(1).collect()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: Vec<String>) -> Result<()> {
    let mut arguments = arguments.into_iter();
    match arguments.next().as_deref() {
        Some("ci") => ci(&selection(arguments)?),
        Some("simulate") => simulate::simulate(arguments),
        Some("kills") => simulate::kills(arguments),
        Some("sleeps") => simulate::sleeps(arguments),
        Some("mutations") => simulate::mutations(arguments),
        Some("postgres") => {
            let arguments: Vec<String> = arguments.collect();
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            steps::on_postgres(&arguments).map(drop)
        }
        Some("bench") => bench::bench(arguments),
        Some("clients") => clients::write(),
        Some("fuzz-http") => clients::fuzz(arguments),
        Some("record") => record::record(arguments),
        Some("mutants") => mutants::mutants(arguments),
        Some("steps") => {
            for step in STEPS {
                println!("{:<9} {}", step.name, step.about);
            }
            Ok(())
        }
        None | Some("help" | "--help" | "-h") => {
            println!("{HELP}");
            Ok(())
        }
        Some(other) => bail!("unknown command `{other}`\n{HELP}"),
    }
}

/// Returns the steps selected by the flags, in their order.
fn selection(mut flags: impl Iterator<Item = String>) -> Result<Vec<&'static Step>> {
    let (mut only, mut skip) = (Vec::new(), Vec::new());
    while let Some(flag) = flags.next() {
        let list = match flag.as_str() {
            "--only" => &mut only,
            "--skip" => &mut skip,
            other => bail!("unknown flag `{other}`\n{HELP}"),
        };
        let names = flags.next().unwrap_or_default();
        for name in names.split(',') {
            match STEPS.iter().find(|step| step.name == name) {
                Some(step) => list.push(step.name),
                None => bail!("unknown step `{name}`; `cargo xtask steps` lists them"),
            }
        }
    }
    let is_wanted =
        |step: &&Step| (only.is_empty() || only.contains(&step.name)) && !skip.contains(&step.name);
    Ok(STEPS.iter().filter(is_wanted).collect())
}

fn ci(steps: &[&'static Step]) -> Result<()> {
    let started = Instant::now();
    let mut lines = Vec::new();
    let mut closing = Vec::new();
    let mut failure = None;
    for step in steps {
        println!("\n== {} ({})", step.name, step.about);
        let began = Instant::now();
        let result = (step.run)();
        let took = seconds(began.elapsed());
        match result {
            Ok(Outcome::Passed(flush_events)) => {
                lines.push(format!("{:<9} {took:>8}  ok", step.name));
                closing.extend(flush_events);
            }
            Ok(Outcome::Skipped(why)) => lines.push(format!("{:<9} {took:>8}  skipped: {why}", step.name)),
            Err(error) => {
                lines.push(format!("{:<9} {took:>8}  FAILED", step.name));
                failure = Some(error.context(format!("step `{}` failed", step.name)));
                break;
            }
        }
    }
    println!("\n== summary");
    for line in &lines {
        println!("{line}");
    }
    println!("{:<9} {:>8}", "total", seconds(started.elapsed()));
    // The test runner's summary, repeated at the end, where people look for it.
    for line in &closing {
        println!("{}", line.trim());
    }
    failure.map_or(Ok(()), Err)
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
