//! What the sandbox costs: a command in it beside one without.
//!
//! Each row is a call of the `bash` tool from its start until nothing of the command is left. The baseline is the same
//! command without a sandbox, which has a PID namespace where the system grants one.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use greenroom_kernel::{ToolCall, ToolStatus};
use greenroom_tests::measure::{figure, median, micros, percentile, ratio, scaled, title};
use greenroom_tools::builtin::bash::{self, Containment, Helper};
use greenroom_tools::sandbox::{Network, Sandbox, SandboxMode};
use greenroom_tools::{Registry, ToolContext, Workspace, builtin, helper};
use serde_json::json;

/// The commands: one that does nothing, and one that starts processes and reads files.
const COMMANDS: [(&str, &str); 2] =
    [("true", "true"), ("100 processes", "for i in $(seq 100); do cat a.txt > /dev/null; done")];

fn main() -> ExitCode {
    // This program is the helper, too.
    if let Some(code) = helper::run_if_requested() {
        return code;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("threads");
    runtime.block_on(measure());
    ExitCode::SUCCESS
}

async fn measure() {
    let calls = scaled(60);
    title(&format!("a command, {calls} calls each"), "the same command without a sandbox");
    println!("| command       | sandbox                     | median ms | p99 ms | median's ratio |");
    println!("|---------------|-----------------------------|-----------|--------|----------------|");
    let dir = tempfile::tempdir().expect("a folder");
    for folder in ["hooks", "objects", "refs"] {
        std::fs::create_dir_all(dir.path().join(".git").join(folder)).expect("folders are made");
    }
    for file in [".git/HEAD", ".git/config", "a.txt"] {
        std::fs::write(dir.path().join(file), "").expect("files are made");
    }
    let hosts = || Network::Hosts(vec!["crates.io".parse().expect("a host")]);
    for (name, command) in COMMANDS {
        let mut baseline = 0.0;
        for (sandbox, mode, network) in [
            ("none", SandboxMode::Off, Network::All),
            ("bubblewrap", SandboxMode::Bubblewrap, Network::None),
            ("bubblewrap, hosts by proxy", SandboxMode::Bubblewrap, hosts()),
            ("Landlock and namespaces", SandboxMode::Landlock, Network::None),
        ] {
            let helper = Helper::this_program().ok();
            let options = Sandbox { mode, network, ..Sandbox::default() };
            if let Err(reason) = options.check(helper.is_some()) {
                println!("| {name:<13} | {sandbox:<27} | not available: {reason}");
                continue;
            }
            let options = bash::Options {
                sandbox: options,
                helper,
                containment: Some(Containment::detect()),
                ..bash::Options::default()
            };
            let workspace = Workspace::open(dir.path()).expect("it exists");
            let registry = builtin::files_and_shell(workspace, options);
            let mut times = Vec::new();
            for _ in 0..calls {
                times.push(call(&registry, command).await);
            }
            let (half, most) = (micros(median(&mut times)) / 1e3, micros(percentile(&mut times, 99)) / 1e3);
            if mode == SandboxMode::Off {
                baseline = half;
            }
            let ratio = ratio(half, baseline);
            println!("| {name:<13} | {sandbox:<27} | {half:>9.2} | {most:>6.2} | {ratio:>14.2} |");
            let name = format!("sandbox/{name}/{sandbox}").replace([' ', ','], "_");
            figure(&name, half, "ms", Some(ratio));
        }
    }
}

async fn call(registry: &Registry, command: &str) -> Duration {
    let arguments = json!({ "command": command }).to_string();
    let call = ToolCall { id: "c".into(), name: "bash".into(), arguments };
    let began = Instant::now();
    let result = registry.run(&call, ToolContext::new("s", "c"), None).await;
    assert_eq!(result.status, ToolStatus::Ok, "{result:?}");
    began.elapsed()
}
