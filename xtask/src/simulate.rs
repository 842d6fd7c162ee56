//! Longer versions of random tests: `cargo xtask simulate`, `kills`, `sleeps` and `mutations`.
//!
//! Invariants: they run the tests' own code, optimised; the environment selects what to run.

use anyhow::{Context, Result, bail};

use crate::run::Cargo;

/// Runs simulated lives: one seed with its trace, or many.
pub(crate) fn simulate(mut flags: impl Iterator<Item = String>) -> Result<()> {
    let mut cargo = in_tests("simulation::manual");
    while let Some(flag) = flags.next() {
        let name = match flag.as_str() {
            "--seed" => "GREENROOM_SEED",
            "--runs" => "GREENROOM_RUNS",
            "--from" => "GREENROOM_FIRST_SEED",
            other => bail!("unknown flag `{other}`; simulate takes --seed N, or --runs N and --from N"),
        };
        cargo = cargo.env(name, &number(&flag, flags.next())?.to_string());
    }
    cargo.run().map(drop)
}

/// Kills a real process many times.
pub(crate) fn kills(flags: impl Iterator<Item = String>) -> Result<()> {
    let kills = runs("kills", flags, 2_000)?;
    in_tests("deaths::processes::kills_on_request").env("GREENROOM_KILLS", &kills.to_string()).run().map(drop)
}

/// Puts sessions to sleep while everybody sends them messages, many times.
pub(crate) fn sleeps(flags: impl Iterator<Item = String>) -> Result<()> {
    let rounds = runs("sleeps", flags, 10)?;
    in_tests("sleep::manual").env("GREENROOM_ROUNDS", &rounds.to_string()).run().map(drop)
}

/// Damages a store many times.
pub(crate) fn mutations(flags: impl Iterator<Item = String>) -> Result<()> {
    let mutations = runs("mutations", flags, 10_000)?;
    let cargo = optimised(&["--package", "greenroom-store", "--lib"], "tests::damage::manual");
    cargo.env("GREENROOM_MUTATIONS", &mutations.to_string()).run().map(drop)
}

/// Returns the number of runs in the flags.
fn runs(command: &str, mut flags: impl Iterator<Item = String>, unless_said: u64) -> Result<u64> {
    match flags.next().as_deref() {
        None => Ok(unless_said),
        Some("--runs") => number("--runs", flags.next()),
        Some(other) => bail!("unknown flag `{other}`; {command} takes --runs N"),
    }
}

fn in_tests(test: &str) -> Cargo {
    optimised(&["--package", "greenroom-tests", "--test", "it"], test)
}

fn optimised(target: &[&str], test: &str) -> Cargo {
    let (build, run) =
        (["test", "--quiet", "--release"], [test, "--", "--exact", "--ignored", "--nocapture"]);
    Cargo::new(&[&build[..], target, &run[..]].concat()).env("RUST_BACKTRACE", "0")
}

fn number(flag: &str, text: Option<String>) -> Result<u64> {
    let text = text.with_context(|| format!("{flag} needs a number"))?;
    text.parse().with_context(|| format!("{flag} needs a number, but got {text:?}"))
}
