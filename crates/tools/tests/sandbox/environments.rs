//! The environments: what a machine offers, and as which user.
//!
//! Invariants: each probe runs in each environment; one that is expected to be stopped there does no harm. Without any
//! protection, the probes do the harm that they say.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use greenroom_kernel::message::blocks_text;
use greenroom_kernel::{ToolCall, ToolResult};
use greenroom_tools::builtin::bash::{self, Containment, Helper};
use greenroom_tools::sandbox::{Found, Network, Sandbox, SandboxMode};
use greenroom_tools::{Registry, ToolContext, Workspace, builtin};
use serde_json::json;

use crate::probes::{Harm, PROBES, Stopped};
use crate::victims::Victims;
use crate::{git, network, say, unruly};

/// The variable with the folder for the files of tests.
pub(crate) const FOLDER: &str = "GREENROOM_TEST_FOLDER";
/// The user that tests run as besides `root`.
const NOBODY: u32 = 65_534;

/// A test of this program.
pub(crate) struct Test {
    pub(crate) name: &'static str,
    pub(crate) run: fn(),
}

/// All tests.
pub(crate) fn tests() -> Vec<Test> {
    let test = |name, run| Test { name, run };
    vec![
        test("probes_with_bubblewrap", || probes(Environment::Bubblewrap)),
        test("probes_with_bubblewrap_as_a_user", || as_nobody("probes_with_bubblewrap")),
        test("probes_with_landlock", || probes(Environment::Landlock)),
        test("probes_with_landlock_as_a_user", || as_nobody("probes_with_landlock")),
        test("probes_with_landlock_alone", || probes(Environment::LandlockAlone)),
        test("probes_with_landlock_alone_as_a_user", || as_nobody("probes_with_landlock_alone")),
        test("probes_without_a_sandbox", || probes(Environment::Off)),
        test("probes_without_a_sandbox_as_a_user", || as_nobody("probes_without_a_sandbox")),
        test("probes_do_harm", || probes(Environment::Unprotected)),
        test("probes_do_harm_as_a_user", || as_nobody("probes_do_harm")),
        test("work_goes_on", work_goes_on),
        test("work_goes_on_as_a_user", || as_nobody("work_goes_on")),
        test("git_runs_nothing_of_a_command", git::runs_nothing_of_a_command),
        test("git_runs_nothing_of_a_command_as_a_user", || as_nobody("git_runs_nothing_of_a_command")),
        test("work_with_git_goes_on", git::work_goes_on),
        test("work_with_git_goes_on_as_a_user", || as_nobody("work_with_git_goes_on")),
        test("refusals", refusals),
        test("unruly_commands", unruly::commands),
        test("unruly_commands_as_a_user", || as_nobody("unruly_commands")),
        test("processes_are_limited_as_a_user", || as_nobody("processes_are_limited")),
        test("processes_are_limited", unruly::processes_are_limited),
        test("long_output_goes_to_a_file", unruly::long_output),
        test("limits", unruly::limits),
        test("a_socket_that_vanishes_starts_the_command_again", unruly::a_socket_vanishes),
        test("hosts_by_proxy", network::hosts_by_proxy),
        test("hosts_by_proxy_as_a_user", || as_nobody("hosts_by_proxy")),
    ]
}

/// What protects commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Environment {
    Bubblewrap,
    /// Landlock, with namespaces.
    Landlock,
    /// Landlock on a system that grants no namespaces.
    LandlockAlone,
    /// The sandbox is off.
    Off,
    /// Not even a namespace.
    Unprotected,
}

impl Environment {
    pub(crate) const SANDBOXES: [Self; 3] = [Self::Bubblewrap, Self::Landlock, Self::LandlockAlone];

    /// Returns the options; `None` if this machine does not offer it, which is said.
    pub(crate) fn options(self, sandbox: Sandbox) -> Option<bash::Options> {
        let best = Containment::detect();
        let (mode, containment) = match self {
            Self::Bubblewrap => (SandboxMode::Bubblewrap, best),
            Self::Landlock => (SandboxMode::Landlock, best),
            Self::LandlockAlone => (SandboxMode::Landlock, Containment::ProcessTree),
            Self::Off => (SandboxMode::Off, best),
            Self::Unprotected => (SandboxMode::Off, Containment::ProcessTree),
        };
        let has_helper = self != Self::Unprotected;
        let needs_namespace = matches!(self, Self::Landlock | Self::Off);
        let sandbox = Sandbox { mode, ..sandbox };
        let reason = match sandbox.choose(Found::detect(), containment, has_helper) {
            Err(reason) => Some(reason),
            Ok(_) if needs_namespace && best == Containment::ProcessTree => Some("no namespaces".to_owned()),
            Ok(_) => None,
        };
        if let Some(reason) = reason {
            say(&format!("SKIPPED: {self:?}: {reason}"));
            return None;
        }
        Some(bash::Options {
            sandbox,
            containment: Some(containment),
            helper: has_helper.then(|| Helper::this_program().expect("a Linux system")),
            ..bash::Options::default()
        })
    }

    /// Whether a probe is stopped here.
    fn stops(self, from: Stopped) -> bool {
        match self {
            Self::Bubblewrap | Self::Landlock => true,
            Self::LandlockAlone => from <= Stopped::Sandbox,
            Self::Off => from == Stopped::Always,
            Self::Unprotected => false,
        }
    }
}

/// Runs something with a runtime as that of the program.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("threads")
        .block_on(future)
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs a test of this program as an ordinary user.
fn as_nobody(test: &str) {
    if !is_root() {
        say("the tests run as an ordinary user anyway");
        return;
    }
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("u{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("folders can be made");
    std::os::unix::fs::chown(&folder, Some(NOBODY), Some(NOBODY)).expect("root may");
    let id = NOBODY.to_string();
    let status = Command::new("setpriv")
        .args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"])
        .arg(std::env::current_exe().expect("it runs"))
        .args([test, "--exact"])
        .env(FOLDER, &folder)
        .env("HOME", &folder)
        .status();
    match status {
        Err(error) => say(&format!("SKIPPED: setpriv: {error}")),
        Ok(status) => assert!(status.success(), "{test} as an ordinary user"),
    }
    let _ = std::fs::remove_dir_all(&folder);
}

/// The sandbox for the victims.
pub(crate) fn sandbox(victims: &Victims) -> Sandbox {
    Sandbox {
        closed: vec![victims.base.join("store"), victims.base.join("config")],
        hidden: vec![victims.base.join("home/.ssh")],
        ..Sandbox::default()
    }
}

pub(crate) fn registry(victims: &Victims, options: bash::Options) -> Registry {
    let options = bash::Options { environment: victims.variables(), ..options };
    let workspace = Workspace::open(victims.workspace()).expect("it exists");
    builtin::files_and_shell(workspace, options)
}

pub(crate) async fn call(registry: &Registry, command: &str, timeout_ms: u64) -> (ToolResult, String) {
    let arguments = json!({ "command": command, "timeout_ms": timeout_ms }).to_string();
    call_tool(registry, "bash", arguments).await
}

pub(crate) async fn call_tool(registry: &Registry, tool: &str, arguments: String) -> (ToolResult, String) {
    let call = ToolCall { id: "c".into(), name: tool.into(), arguments };
    let result = registry.run(&call, ToolContext::new("s", "c"), None).await;
    let text = blocks_text(&result.content);
    (result, text)
}

fn probes(environment: Environment) {
    let mut victims = Victims::new();
    let Some(options) = environment.options(sandbox(&victims)) else { return };
    block_on(async {
        let mut registry = registry(&victims, options.clone());
        let (mut stopped, mut harmful, mut wrong) = (0, 0, Vec::new());
        for probe in PROBES {
            let (_, output) = call(&registry, probe.command, 20_000).await;
            let harm = victims.harm(&output);
            if !harm.is_empty() {
                let options = bash::Options {
                    sandbox: Sandbox { mode: options.sandbox.mode, ..sandbox(&victims) },
                    ..options.clone()
                };
                registry = self::registry(&victims, options);
            }
            match (environment, harm.is_empty()) {
                (Environment::Unprotected, true) => {
                    let must = probe.harm == Harm::Yes || (probe.harm == Harm::AsRoot && is_root());
                    if must {
                        wrong.push(format!("{}: no harm at all: {output}", probe.name));
                    }
                }
                (Environment::Unprotected, false) => harmful += 1,
                (_, true) => stopped += 1,
                (_, false) if environment.stops(probe.from) => {
                    wrong.push(format!("{}: {}; {output}", probe.name, harm.join("; ")));
                }
                (_, false) => say(&format!("not stopped here: {}: {}", probe.name, harm.join("; "))),
            }
        }
        say(&format!("{environment:?}: {} probes, {stopped} stopped, {harmful} did harm", PROBES.len()));
        assert!(PROBES.len() >= 40, "{}", PROBES.len());
        assert!(wrong.is_empty(), "{environment:?}: {}\n{}", wrong.len(), wrong.join("\n"));
    });
}

/// What a sandbox must not prevent.
fn work_goes_on() {
    const WORK: [(&str, &str); 13] = [
        ("cat a.txt", "hello"),
        ("echo new > made.txt && cat made.txt && rm made.txt", "new"),
        ("mkdir -p x/y && mv x z && rmdir z/y z && echo ok", "ok"),
        ("echo x > $TMPDIR/kept && cat $TMPDIR/kept", "x"),
        ("cat $TMPDIR/kept", "x"),
        ("echo $TMPDIR", "/tmp"),
        (
            // Nothing of ours is in the way of git.
            "git --version > /dev/null 2>&1 || { echo ok; exit; }; export GIT_INDEX_FILE=$TMPDIR/i; \
             git -c safe.directory='*' add -A -n -- . ':!deep' > /dev/null && echo ok",
            "ok",
        ),
        ("(sleep 0.01 & wait) && echo ok", "ok"),
        ("echo a | tr a b", "b"),
        ("head -c 8 /dev/urandom | wc -c; echo > /dev/null", "8"),
        (
            "python3 -c 'import socket; a,b=socket.socketpair(); a.send(b\"k\"); print(b.recv(1).decode())' 2>&1 || echo k",
            "k",
        ),
        ("mkdir g && chmod 2775 g && touch g/x && chmod 755 g/x && rm -r g && echo ok", "ok"),
        ("ls / > /dev/null && bash --version > /dev/null && echo ok", "ok"),
    ];
    for environment in Environment::SANDBOXES {
        let mut victims = Victims::new();
        let Some(options) = environment.options(sandbox(&victims)) else { continue };
        block_on(async {
            let registry = Arc::new(registry(&victims, options));
            for (command, expect) in WORK {
                let (_, output) = call(&registry, command, 20_000).await;
                assert!(output.trim_end().ends_with(expect), "{environment:?} {command}: {output}");
            }
            // Several at once: what the last one needs is there until it ends.
            let many =
                (0..8).map(|_| call(&registry, "sleep 0.05; echo x > greenroom.yaml; ls .git/hooks", 20_000));
            for (_, output) in futures_util::future::join_all(many).await {
                assert!(output.contains("pre-commit"), "{output}");
            }
            if environment != Environment::LandlockAlone {
                assert_eq!(victims.harm(""), Vec::<String>::new(), "{environment:?}");
            }
        });
    }
}

/// If no sandbox works, commands are refused with a remedy.
fn refusals() {
    let none = Found { bubblewrap: Err("bubblewrap is not installed".to_owned()), landlock: None };
    let victims = Victims::new();
    let hosts = Network::Hosts(vec!["crates.io".parse().expect("a host")]);
    for (mode, network, expect) in [
        (SandboxMode::Auto, Network::None, Some("no Landlock")),
        (SandboxMode::Bubblewrap, Network::None, Some("bubblewrap is not installed")),
        (SandboxMode::Landlock, Network::None, Some("no Landlock")),
        (SandboxMode::Off, Network::All, None),
        (SandboxMode::Off, hosts, Some("needs bubblewrap")),
    ] {
        let sandbox = Sandbox { mode, network, ..sandbox(&victims) };
        let chosen = sandbox.choose(&none, Containment::ProcessTree, true);
        match (chosen, expect) {
            (Ok(protection), None) => assert!(!protection.gaps().is_empty()),
            (Err(text), Some(expect)) => {
                assert!(text.contains(expect) && text.contains("off") || text.contains("none"), "{text}")
            }
            (other, _) => panic!("{mode:?}: {other:?}"),
        }
    }
}
