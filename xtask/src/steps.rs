//! The steps of `cargo xtask ci`, in order: quick steps that fail often come first.
//!
//! Invariants: once the dependencies are there, no step needs the network, a key, a terminal or input; a tool
//! that is not installed is either replaced (nextest) or its step is skipped with a message (deny, clients).

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
    /// It passed; the part of its output that is worth repeating.
    Passed(Vec<String>),
    /// It could not run on this machine, for this reason.
    Skipped(String),
}

/// All steps, in the order in which they run.
pub(crate) const STEPS: &[Step] = &[
    Step { name: "fmt", about: "the code is formatted", run: fmt },
    Step { name: "clippy", about: "no warnings in any target", run: clippy },
    Step { name: "doc", about: "the documentation builds without warnings", run: doc },
    Step {
        name: "features",
        about: "the library builds without its optional parts, and with each alone",
        run: features,
    },
    Step { name: "test", about: "unit and integration tests", run: test },
    Step { name: "postgres", about: "behaviour with PostgreSQL as the store", run: postgres },
    Step { name: "doctest", about: "the examples in the documentation", run: doctest },
    Step { name: "examples", about: "every example runs, offline", run: examples },
    Step {
        name: "readme",
        about: "the first programs build with the dependencies that they name",
        run: readme,
    },
    Step {
        name: "clients",
        about: "the Python and TypeScript clients against a server",
        run: crate::clients::clients,
    },
    Step { name: "deny", about: "licences, advisories, sources and bans of all dependencies", run: deny },
];

fn fmt() -> Result<Outcome> {
    Cargo::new(&["fmt", "--all", "--check"]).run()?;
    passed()
}

fn features() -> Result<Outcome> {
    for features in ["", "command-tools", "disk", "http", "metrics", "permissions", "postgres"] {
        println!("-- features {features:?}");
        let choice = ["--no-default-features", "--features", features];
        Cargo::new(
            &[&["clippy", "--locked", "-p", "greenroom"], &choice[..], &["--", "-D", "warnings"]].concat(),
        )
        .run()?;
    }
    println!("-- the binary without features");
    let choice =
        ["clippy", "--locked", "-p", "greenroom-cli", "--no-default-features", "--", "-D", "warnings"];
    Cargo::new(&choice).run()?;
    passed()
}

fn clippy() -> Result<Outcome> {
    Cargo::new(&["clippy", "--locked", "--workspace", "--all-targets", "--", "-D", "warnings"]).run()?;
    passed()
}

fn test() -> Result<Outcome> {
    let output = if Cargo::new(&["nextest", "--version"]).succeeds() {
        // Many tests wait for processes and terminals, and leave the processor idle: on two cores, three tests at a time used
        // 74 % of it, five 81 %.
        let threads = (2 * std::thread::available_parallelism().map_or(1, usize::from)).to_string();
        let tests =
            ["nextest", "run", "--locked", "--workspace", "--no-fail-fast", "--test-threads", &threads];
        Cargo::new(&tests).run()?
    } else {
        Cargo::new(&["test", "--locked", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"])
            .run()?
    };
    Ok(Outcome::Passed(closing_lines(&output)))
}

/// The tests of behaviour that depend most on the store, without one that creates hundreds of databases; `cargo xtask
/// postgres` runs all.
const ON_POSTGRES: &str = "test(/^(follow|hand_offs|keys|questions::restarts|runs|teams|unfinished)::/) \
     - test(=teams::a_depth_holds_for_ids_of_every_length)";

fn postgres() -> Result<Outcome> {
    on_postgres(&["-E", ON_POSTGRES])
}

/// Runs tests of `tests/it` with a PostgreSQL server that starts for them.
pub(crate) fn on_postgres(selection: &[&str]) -> Result<Outcome> {
    if !Cargo::new(&["nextest", "--version"]).succeeds() {
        return Ok(Outcome::Skipped("cargo-nextest is not installed".to_owned()));
    }
    // No `--package`: what the step before has built is used.
    let with_server = ["run", "--locked", "--quiet", "--bin", "with_postgres", "--"];
    let tests = ["cargo", "nextest", "run", "--locked", "--workspace", "--test", "it", "--no-fail-fast"];
    let output = Cargo::new(&[&with_server[..], &tests[..], selection].concat()).run()?;
    if output.contains("SKIPPED: there is no PostgreSQL") {
        return Ok(Outcome::Skipped("there is no PostgreSQL server".to_owned()));
    }
    Ok(Outcome::Passed(closing_lines(&output)))
}

fn doctest() -> Result<Outcome> {
    Cargo::new(&["test", "--locked", "--workspace", "--doc"]).run()?;
    passed()
}

fn doc() -> Result<Outcome> {
    // Libraries alone: the binary has the same name as its library, and would overwrite its pages.
    let doc = ["doc", "--locked", "--workspace", "--no-deps", "--lib"];
    Cargo::new(&doc).env("RUSTDOCFLAGS", "-D warnings").run()?;
    passed()
}

fn examples() -> Result<Outcome> {
    // No `--package`: with another choice of packages, dependencies get other features and are rebuilt.
    for name in example_names()? {
        println!("-- example {name}");
        let output = Cargo::new(&["run", "--locked", "--quiet", "--example", &name]).without_keys().run()?;
        ensure!(!output.trim().is_empty(), "example `{name}` printed nothing");
    }
    passed()
}

/// Builds the README's program, and that of the first agent in the guide, as their reader would: a new crate
/// outside the workspace with exactly the README's dependencies.
fn readme() -> Result<Outcome> {
    let root = workspace_root();
    let read = |name: &str| {
        let path = root.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    let text = read("README.md")?;
    let dependencies =
        block(&text, "```toml\n[dependencies]\n").context("the README names no dependencies")?;
    let program = block(&text, "```rust\n").context("the README has no program")?;
    ensure!(program.contains("fn main()"), "the README's first program has no `main`");
    let library = format!("{:?}", root.join("crates/greenroom"));
    let ours = |line: &&str| line.starts_with("greenroom = ");
    ensure!(dependencies.lines().any(|line| ours(&line)), "the README's dependencies lack greenroom");
    let mut manifest = String::from(
        "[package]\nname = \"readme-program\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n[dependencies]\n",
    );
    for line in dependencies.lines().map(|line| if ours(&line) { "" } else { line }) {
        manifest.push_str(line);
        manifest.push('\n');
    }
    manifest.push_str(&format!("greenroom = {{ path = {library} }}\n\n"));
    // With the workspace's profile, the workspace's build artifacts are reused.
    let workspace = read("Cargo.toml")?;
    let profile = workspace.find("[profile.dev]").context("the workspace has no development profile")?;
    manifest.push_str(&workspace[profile..]);
    let dir = root.join("target/readme-program");
    std::fs::create_dir_all(dir.join("src/bin"))?;
    let guide = read("docs/guide/first-agent.md")?;
    let first_agent = block(&guide, "```rs\n").context("the first agent has no program")?;
    std::fs::write(dir.join("src/bin/first_agent.rs"), first_agent)?;
    std::fs::write(dir.join("Cargo.toml"), manifest)?;
    std::fs::write(dir.join("src/main.rs"), program)?;
    // The versions that this workspace was tested with, which are already downloaded.
    std::fs::copy(root.join("Cargo.lock"), dir.join("Cargo.lock"))?;
    let manifest = dir.join("Cargo.toml").display().to_string();
    let target = root.join("target").display().to_string();
    Cargo::new(&["check", "--offline", "--manifest-path", &manifest, "--target-dir", &target]).run()?;
    passed()
}

/// Returns the content of a fenced block of a page, after its opening.
fn block<'a>(page: &'a str, opening: &str) -> Option<&'a str> {
    page.split_once(opening)?.1.split_once("```").map(|(block, _)| block)
}

fn deny() -> Result<Outcome> {
    if !Cargo::new(&["deny", "--version"]).succeeds() {
        return Ok(Outcome::Skipped("cargo-deny is not installed".into()));
    }
    Cargo::new(&["deny", "--locked", "check"]).run()?;
    passed()
}

/// Returns every file of `examples/` except the library's.
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

/// Returns the summary lines of a test runner: nextest's `Summary`, or each binary's `test result`.
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
