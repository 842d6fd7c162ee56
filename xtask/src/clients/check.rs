//! Runs the clients of `clients/` against the binary: types, tests, examples, and the packages in their published form. And by
//! hand, random requests to all routes.
//!
//! Invariants: what cannot run for lack of Python, Node or the network is named; everything else that fails, fails the step.
//! What is downloaded once is used again: mypy below `target/`, and `node_modules`.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::run::{Cargo, workspace_root};
use crate::steps::Outcome;

const MYPY: &str = "mypy==2.4.1";
const SCHEMATHESIS: &str = "schemathesis==4.32.5";
/// What pip says without a network, and Python without pip.
const OFFLINE: [&str; 3] =
    ["Failed to establish a new connection", "Could not find a version", "No module named pip"];
/// So that an unreachable network is found out soon.
const PATIENCE: [(&str, &str); 4] = [
    ("PIP_RETRIES", "1"),
    ("PIP_DEFAULT_TIMEOUT", "15"),
    ("npm_config_fetch_retries", "1"),
    ("npm_config_fetch_timeout", "30000"),
];

/// The step `clients`.
pub(crate) fn clients() -> Result<Outcome> {
    let binary = binary()?;
    let (python, typescript) = std::thread::scope(|scope| {
        let python = scope.spawn(|| python(&binary));
        let typescript = typescript(&binary);
        (python.join(), typescript)
    });
    let python = python.map_err(|_| anyhow::anyhow!("the thread of the Python client panicked"))??;
    let skipped = [python, typescript?].concat();
    if skipped.len() == 2 && skipped.iter().all(|what| what.ends_with("is not installed")) {
        return Ok(Outcome::Skipped(skipped.join(", ")));
    }
    Ok(Outcome::Passed(skipped.iter().map(|what| format!("clients: skipped: {what}")).collect()))
}

/// Random requests to every route of a server with a simulated model, for so many seconds.
pub(crate) fn fuzz(mut arguments: impl Iterator<Item = String>) -> Result<()> {
    let seconds = match (arguments.next().as_deref(), arguments.next()) {
        (None, _) => "120".to_owned(),
        (Some("--seconds"), Some(seconds)) => seconds,
        _ => bail!("usage: cargo xtask fuzz-http [--seconds N]"),
    };
    let root = work_dir()?;
    let Some(packages) = installed(SCHEMATHESIS, &root)? else {
        println!("skipped: {SCHEMATHESIS} cannot be installed here");
        return Ok(());
    };
    let data = root.join("fuzzed");
    if data.exists() {
        std::fs::remove_dir_all(&data)?;
    }
    let serving = Serving::start(&binary()?, &data)?;
    let token = std::fs::read_to_string(data.join("token"))?;
    let checks = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
                  response_schema_conformance,ignored_auth,unsupported_method";
    let mut command = Command::new("python3");
    command.arg(packages.join("bin/schemathesis")).env("PYTHONPATH", &packages).current_dir(&root);
    command.args(["run", &format!("http://{}/openapi.json", serving.address), "--checks", checks]);
    command.args([
        "--header",
        &format!("Authorization: Bearer {token}"),
        "--max-time",
        &seconds,
        "--workers",
        "2",
    ]);
    command.args(["--continue-on-failure", "--request-timeout", "65"]);
    // Streams that do not end.
    command.args(["--exclude-operation-id", "events", "--exclude-operation-id", "session_events"]);
    let status = command.status().context("start schemathesis")?;
    ensure!(status.success(), "schemathesis found something, or could not run");
    Ok(())
}

/// A server that ends with this value.
struct Serving {
    child: Child,
    address: String,
}

impl Serving {
    fn start(binary: &Path, data: &Path) -> Result<Self> {
        let workspace = data.with_extension("workspace");
        std::fs::create_dir_all(&workspace)?;
        let mut command = Command::new(binary);
        command
            .args(["serve", "--simulate", "--no-tools", "--listen", "127.0.0.1:0", "--data-dir"])
            .arg(data);
        let mut child = command.current_dir(workspace).stderr(Stdio::piped()).spawn()?;
        let output = child.stderr.take().context("the server has an output")?;
        let mut serving = Self { child, address: String::new() };
        let mut lines = BufReader::new(output).lines();
        let mut said = Vec::new();
        for line in lines.by_ref() {
            let line = line?;
            if let Some((_, rest)) = line.split_once("serves http://") {
                serving.address = rest.split(';').next().unwrap_or_default().to_owned();
                // A server whose warnings nobody reads would stop at a full pipe.
                std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
                return Ok(serving);
            }
            said.push(line);
        }
        bail!("the server did not start: {}", said.join("; "))
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // It has nothing to lose.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Checks the Python client, and returns what was skipped.
fn python(binary: &Path) -> Result<Vec<String>> {
    if !has("python3") {
        return Ok(vec!["the Python client: python3 is not installed".into()]);
    }
    let dir = workspace_root().join("clients/python");
    let mut tests = Command::new("python3");
    tests.args(["-W", "error::ResourceWarning", "-m", "unittest", "discover", "-s", "tests"]);
    run(tests.env("PYTHONPATH", "src").env("GREENROOM_BINARY", binary), &dir)?;
    let mut skipped = Vec::new();
    let root = work_dir()?;
    match installed(MYPY, &root)? {
        Some(packages) => {
            let mut mypy = Command::new("python3");
            mypy.args(["-m", "mypy", "--cache-dir"]).arg(root.join("mypy-cache")).args(["src", "examples"]);
            run(mypy.env("PYTHONPATH", packages), &dir)?;
        }
        None => skipped.push(format!("the types of the Python client: {MYPY} cannot be installed")),
    }
    let mut wheel = Command::new("python3");
    wheel
        .args(["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir"])
        .arg(root.join("wheel"))
        .arg(".");
    if !run_online(&mut wheel, &dir)? {
        skipped.push("the Python wheel: its build needs pip and the network".into());
    }
    Ok(skipped)
}

/// Checks the TypeScript client, and returns what was skipped.
fn typescript(binary: &Path) -> Result<Vec<String>> {
    if !(has("node") && has("npm")) {
        return Ok(vec!["the TypeScript client: node or npm is not installed".into()]);
    }
    let dir = workspace_root().join("clients/typescript");
    let npm = |arguments: &[&str]| {
        let mut command = Command::new("npm");
        command.args(arguments);
        command
    };
    let install = &mut npm(&["ci", "--no-audit", "--no-fund"]);
    if !dir.join("node_modules/.package-lock.json").exists() && !is_installed(install, &dir)? {
        return Ok(vec!["the TypeScript client: its compiler cannot be installed".into()]);
    }
    run(&mut npm(&["run", "--silent", "build"]), &dir)?;
    run(npm(&["run", "--silent", "test"]).env("GREENROOM_BINARY", binary), &dir)?;
    // The package, as a new project uses it.
    let project = work_dir()?.join("project");
    std::fs::create_dir_all(&project)?;
    std::fs::copy(dir.join("examples/ten-lines.ts"), project.join("program.ts"))?;
    std::fs::write(project.join("package.json"), "{ \"type\": \"module\", \"private\": true }\n")?;
    run(npm(&["pack", "--silent", "--pack-destination"]).arg(&project), &dir)?;
    let package = "./greenroom-client-0.1.0.tgz";
    run(
        &mut npm(&["install", "--offline", "--no-audit", "--no-fund", "--no-package-lock", package]),
        &project,
    )?;
    let mut compile = Command::new(dir.join("node_modules/.bin/tsc"));
    let types = dir.join("node_modules/@types").display().to_string();
    compile.args([
        "--strict", "--module", "NodeNext", "--target", "ES2022", "--types", "node", "--typeRoots", &types,
    ]);
    run(compile.arg("program.ts"), &project)?;
    Ok(Vec::new())
}

/// Builds the binary, and returns its path: beside this one.
fn binary() -> Result<PathBuf> {
    // No `--package`: with another choice of packages, dependencies get other features and are rebuilt.
    Cargo::new(&["build", "--locked", "--bin", "greenroom"]).run()?;
    Ok(std::env::current_exe()?.with_file_name("greenroom"))
}

fn work_dir() -> Result<PathBuf> {
    let dir = workspace_root().join("target/clients");
    std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    Ok(dir)
}

/// The folder of a Python package that is installed below `root`, if it can be.
fn installed(package: &str, root: &Path) -> Result<Option<PathBuf>> {
    let dir = root.join(package);
    if !dir.exists() {
        let mut install = Command::new("python3");
        let partial = root.join(format!("{package}.partial"));
        install.args(["-m", "pip", "install", "--quiet", "--upgrade", "--target"]).arg(&partial).arg(package);
        if !is_installed(&mut install, root)? {
            return Ok(None);
        }
        std::fs::rename(partial, &dir)?;
    }
    Ok(Some(dir))
}

fn has(program: &str) -> bool {
    let status = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn run(command: &mut Command, dir: &Path) -> Result<()> {
    ensure!(attempt(command, dir)?.is_ok(), "it failed: {command:?}");
    Ok(())
}

/// Runs a command that installs what others have published. Whatever keeps it from that is not in this project.
fn is_installed(command: &mut Command, dir: &Path) -> Result<bool> {
    Ok(attempt(command.envs(PATIENCE), dir)?.is_ok())
}

/// Runs a command that may need the network; false if that is missing.
fn run_online(command: &mut Command, dir: &Path) -> Result<bool> {
    match attempt(command.envs(PATIENCE), dir)? {
        Ok(()) => Ok(true),
        Err(said) if OFFLINE.iter().any(|sign| said.contains(sign)) => Ok(false),
        Err(_) => bail!("it failed: {command:?}"),
    }
}

/// Runs a command, and shows its output when it has ended, because two run at a time; the output is the error.
fn attempt(command: &mut Command, dir: &Path) -> Result<Result<(), String>> {
    let output = command.current_dir(dir).stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("start {command:?}"))?;
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    println!("$ {command:?}\n{}", said.trim_end());
    Ok(if output.status.success() { Ok(()) } else { Err(said) })
}
