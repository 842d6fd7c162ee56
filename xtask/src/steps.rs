//! The steps of `cargo xtask ci`, in the order in which they run: what is quick and fails often comes first.
//!
//! Invariants: no step needs the network once the dependencies are there, a key, a terminal or input; a tool
//! that is not installed is either replaced (nextest) or its step is skipped aloud (deny).

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::run::{Cargo, workspace_root};

/// One step of `cargo xtask ci`.
pub(crate) struct Step {
    /// Its name, for `--only`.
    pub(crate) name: &'static str,
    /// What it checks, in a few words.
    pub(crate) about: &'static str,
    /// Runs the step.
    pub(crate) run: fn() -> Result<Outcome>,
}

/// How a step that did not fail ended.
pub(crate) enum Outcome {
    /// It passed; what is worth repeating of its output.
    Passed(Vec<String>),
    /// It could not run on this machine, for this reason.
    Skipped(String),
}

/// All steps, in the order in which they run.
pub(crate) const STEPS: &[Step] = &[
    Step { name: "fmt", about: "the code is formatted", run: fmt },
    Step { name: "clippy", about: "no warnings in any target", run: clippy },
    Step { name: "test", about: "unit and integration tests", run: test },
    Step { name: "doctest", about: "the examples in the documentation", run: doctest },
    Step { name: "doc", about: "the documentation builds without warnings", run: doc },
    Step { name: "examples", about: "every example runs, offline", run: examples },
    Step { name: "deny", about: "licences, advisories, sources and bans of all dependencies", run: deny },
];

fn fmt() -> Result<Outcome> {
    Cargo::new(&["fmt", "--all", "--check"]).run()?;
    passed()
}

fn clippy() -> Result<Outcome> {
    Cargo::new(&["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"]).run()?;
    passed()
}

fn test() -> Result<Outcome> {
    let output = if Cargo::new(&["nextest", "--version"]).succeeds() {
        Cargo::new(&["nextest", "run", "--locked", "--workspace", "--no-fail-fast"]).run()?
    } else {
        Cargo::new(&["test", "--locked", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"])
            .run()?
    };
    Ok(Outcome::Passed(closing_lines(&output)))
}

fn doctest() -> Result<Outcome> {
    Cargo::new(&["test", "--locked", "--workspace", "--doc"]).run()?;
    passed()
}

fn doc() -> Result<Outcome> {
    // Libraries alone: the binary has the name of the library that it is made of, and would write over its pages.
    let doc = ["doc", "--locked", "--workspace", "--no-deps", "--lib"];
    Cargo::new(&doc).env("RUSTDOCFLAGS", "-D warnings").run()?;
    passed()
}

fn examples() -> Result<Outcome> {
    // No `--package`: with another choice of packages, dependencies get other features and are built again.
    for name in example_names()? {
        println!("-- example {name}");
        let output = Cargo::new(&["run", "--locked", "--quiet", "--example", &name]).without_keys().run()?;
        ensure!(!output.trim().is_empty(), "example `{name}` printed nothing");
    }
    passed()
}

fn deny() -> Result<Outcome> {
    if !Cargo::new(&["deny", "--version"]).succeeds() {
        return Ok(Outcome::Skipped("cargo-deny is not installed".into()));
    }
    Cargo::new(&["deny", "--locked", "check"]).run()?;
    passed()
}

/// Every file of `examples/` but the library's.
fn example_names() -> Result<Vec<String>> {
    let dir = workspace_root().join("examples");
    let mut names = Vec::new();
    for file in dir.read_dir().with_context(|| format!("list {}", dir.display()))? {
        let path: PathBuf = file?.path();
        let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        if path.extension().is_some_and(|extension| extension == "rs") && name != "lib" {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// The lines in which a test runner sums up: nextest's `Summary`, or each binary's `test result`.
fn closing_lines(output: &str) -> Vec<String> {
    let is_closing = |line: &&str| {
        let line = line.trim_start();
        line.starts_with("Summary [") || line.starts_with("test result:")
    };
    output.lines().filter(is_closing).map(str::to_owned).collect()
}

fn passed() -> Result<Outcome> {
    Ok(Outcome::Passed(Vec::new()))
}
