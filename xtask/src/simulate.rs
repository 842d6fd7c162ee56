//! Long runs of what the tests do a little of: `cargo xtask simulate` and `cargo xtask kills`.
//!
//! Always true: they run the integration tests' own code, optimised; what to run is told by the environment.

use anyhow::{Context, Result, bail};

use crate::run::Cargo;

/// Simulated lives: one seed with its trace, or many.
pub(crate) fn simulate(mut flags: impl Iterator<Item = String>) -> Result<()> {
    let mut cargo = in_tests("simulation::by_hand");
    while let Some(flag) = flags.next() {
        let name = match flag.as_str() {
            "--seed" => "GREENROOM_SEED",
            "--runs" => "GREENROOM_RUNS",
            "--from" => "GREENROOM_FIRST_SEED",
            other => bail!("simulate has no flag `{other}`; it has --seed N, or --runs N and --from N"),
        };
        cargo = cargo.env(name, &number(&flag, flags.next())?.to_string());
    }
    cargo.run().map(drop)
}

/// A real process, killed so many times.
pub(crate) fn kills(mut flags: impl Iterator<Item = String>) -> Result<()> {
    let kills = match flags.next().as_deref() {
        None => 2_000,
        Some("--runs") => number("--runs", flags.next())?,
        Some(other) => bail!("kills has no flag `{other}`; it has --runs N"),
    };
    in_tests("crashes::kills_by_hand").env("GREENROOM_KILLS", &kills.to_string()).run().map(drop)
}

fn in_tests(test: &str) -> Cargo {
    let build = ["test", "--quiet", "--release", "--package", "greenroom-tests", "--test", "it"];
    Cargo::new(&[&build[..], &[test, "--", "--exact", "--ignored", "--nocapture"]].concat())
        .env("RUST_BACKTRACE", "0")
}

fn number(flag: &str, text: Option<String>) -> Result<u64> {
    let text = text.with_context(|| format!("{flag} needs a number"))?;
    text.parse().with_context(|| format!("{flag} needs a number, and {text:?} is none"))
}
