//! `cargo xtask bench`: runs the benchmarks, keeps their figures, and writes the table and the charts of
//! `docs/performance.md` from them.
//!
//! Invariants: every figure on the page was reported by a benchmark; a quick run changes no file; a figure
//! that was not measured again keeps its date.

mod chart;
mod figures;
mod page;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::run::{Cargo, workspace_root};
use figures::{Figures, Run};

/// The benchmarks, with descriptions.
const BENCHES: &[(&str, &str)] = &[
    ("allocations", "how often a call and a run allocate"),
    ("cancel", "how long a cancel takes"),
    ("crowd", "many subscribers, streams, and compactions at once"),
    ("digest", "digests, by the length of what they replace"),
    ("redact", "redaction, by the length of the text"),
    ("dialects", "a run over each vendor's API"),
    ("estimate", "estimating sizes"),
    ("files", "what file tools cost, and keeping what they replace"),
    ("fleet", "1,000 agents at work"),
    ("fleet_mimalloc", "the same with mimalloc"),
    ("host", "short commands and starts of a chat, with a host and without"),
    ("keys", "from a key to the screen of a chat, while an answer streams"),
    ("memory", "live and sleeping sessions in memory"),
    ("pieces", "one streamed piece"),
    ("plan_cost", "planning and opening, by the length of the history"),
    ("recall", "searches in a session, by its length"),
    ("run_cost", "one run, by the length of the history"),
    ("sandbox", "a command in the sandbox, and without"),
    ("spans", "spans and log lines"),
    ("start", "opening a store of 100,000 sessions"),
    ("store", "durable appends"),
    ("subscribers", "sessions with a subscriber each, over HTTP"),
];
/// The benchmarks of the binary.
const BINARY: &[&str] = &["host", "keys"];
/// The benchmarks that run only when they are named.
const LONG: &[(&str, &str)] = &[
    ("growth", "growth under load; 30 minutes by default (--minutes)"),
    (
        "postgres",
        "durable appends in PostgreSQL, and takeovers; starts a server, whose programs must be there",
    ),
    ("nodes", "runs of one, two and three nodes that share a PostgreSQL; starts a server"),
    ("peers", "fleets of rig and autoagents, and tiktoken-rs; builds tests/peers"),
];

/// Runs the named benchmarks, or all that are not long.
pub(crate) fn bench(arguments: impl Iterator<Item = String>) -> Result<()> {
    let asked = Options::read(arguments)?;
    if asked.lists {
        for (name, about) in BENCHES.iter().chain(LONG) {
            println!("{name:<14} {about}");
        }
        return Ok(());
    }
    let mut kept = Figures::read(&figures_path())?;
    for name in &asked.names {
        if BINARY.contains(&name.as_str()) {
            // They measure the binary, which is not a dependency of any benchmark.
            Cargo::new(&["build", "--quiet", "--release", "-p", "greenroom-cli"]).run()?;
        }
        let run = Run { date: date()?, machine: machine(), load: load() };
        let mut said = cargo(name, &asked).run()?;
        if name == "peers" {
            said.push_str(&beside_peers(&asked)?);
        }
        let news = figures::of_output(&said)?;
        if news.is_empty() {
            bail!("the benchmark `{name}` printed no figure");
        }
        if asked.is_quick {
            continue;
        }
        kept.replace(name, news, &run);
        kept.write(&figures_path())?;
        let samples = figures::samples(&said)?;
        if !samples.is_empty() {
            write(&docs().join("performance/growth.svg"), &chart::growth(&samples))?;
        }
    }
    if asked.is_quick {
        println!("\nA quick run: docs/performance.md is unchanged.");
        return Ok(());
    }
    let path = docs().join("performance.md");
    let text = std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
    write(&path, &page::with_table(&text, &kept)?)?;
    write(&docs().join("performance/goals.svg"), &chart::goals(&page::reached(&kept)))
}

/// The options on the command line.
struct Options {
    names: Vec<String>,
    is_quick: bool,
    minutes: Option<String>,
    lists: bool,
}

impl Options {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self> {
        let mut asked = Self { names: Vec::new(), is_quick: false, minutes: None, lists: false };
        let mut only_page = false;
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--quick" => asked.is_quick = true,
                "--list" => asked.lists = true,
                "--page" => only_page = true,
                "--minutes" => {
                    let minutes = arguments.next().filter(|text| text.parse::<f64>().is_ok_and(|n| n > 0.0));
                    asked.minutes = Some(minutes.context("--minutes needs a number")?);
                }
                flag if flag.starts_with('-') => {
                    bail!("unknown flag `{flag}`; bench takes --quick, --minutes N, --page and --list")
                }
                name if BENCHES.iter().chain(LONG).any(|(known, _)| *known == name) => {
                    asked.names.push(argument);
                }
                name => bail!("unknown benchmark `{name}`; `cargo xtask bench --list` lists them"),
            }
        }
        if asked.names.is_empty() && !only_page {
            asked.names = BENCHES.iter().map(|(name, _)| (*name).to_owned()).collect();
        }
        Ok(asked)
    }
}

/// Runs the fleet of the benchmark `fleet` together with those of other frameworks.
fn beside_peers(asked: &Options) -> Result<String> {
    let manifest = ["--manifest-path", "tests/peers/Cargo.toml", "--target-dir", "target"];
    let build = ["build", "--quiet", "--release", "-p", "rig-fleet", "-p", "autoagents-fleet"];
    Cargo::new(&[&build[..], &manifest[..]].concat()).run()?;
    let programs = format!("peers={}", workspace_root().join("target/release").display());
    let mut line = vec!["bench", "--quiet", "-p", "greenroom-tests", "--bench", "fleet", "--", &programs];
    if asked.is_quick {
        line.push("--quick");
    }
    Cargo::new(&line).without_keys().run()
}

fn cargo(name: &str, asked: &Options) -> Cargo {
    let mut line = match name {
        "peers" => vec![
            "run", "--quiet", "--release", "--manifest-path", "tests/peers/Cargo.toml", "--target-dir",
            "target", "--", "--bench",
        ],
        "postgres" => vec!["bench", "--quiet", "-p", "greenroom-conformance", "--bench", name, "--"],
        _ => vec!["bench", "--quiet", "-p", "greenroom-tests", "--bench", name, "--"],
    };
    if asked.is_quick {
        line.push("--quick");
    }
    let unless_said = if asked.is_quick { "1" } else { "30" };
    let minutes = format!("minutes={}", asked.minutes.as_deref().unwrap_or(unless_said));
    if name == "growth" {
        line.push(&minutes);
    }
    as_users_build(Cargo::new(&line)).without_keys()
}

/// Builds as a user's program is built: with the release profile of a new package, not with ours.
fn as_users_build(cargo: Cargo) -> Cargo {
    cargo.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16").env("CARGO_PROFILE_RELEASE_LTO", "false")
}

fn docs() -> PathBuf {
    workspace_root().join("docs")
}

fn figures_path() -> PathBuf {
    docs().join("performance/figures.tsv")
}

fn write(path: &std::path::Path, text: &str) -> Result<()> {
    std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
}

/// Returns today's date, as `2026-11-22`.
fn date() -> Result<String> {
    let output = Command::new("date").args(["-u", "+%F"]).output().context("run `date`")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Returns how many tasks were ready to run on the machine during the last minute.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

/// Describes the processors and the memory of this machine.
fn machine() -> String {
    let cpus = std::thread::available_parallelism().map_or(0, usize::from);
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model =
        cpuinfo.lines().find_map(|line| Some(line.strip_prefix("model name")?.split_once(':')?.1.trim()));
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")?.split_whitespace().next());
    let gib = kib.and_then(|kib| kib.parse::<u64>().ok()).map_or(0, |kib| (kib + (1 << 19)) >> 20);
    format!("{cpus} × {}, {gib} GiB, {}", model.unwrap_or(std::env::consts::ARCH), std::env::consts::OS)
}
