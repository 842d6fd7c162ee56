//! `bash`: runs a command in the workspace.
//!
//! Invariants: the command has no input and no terminal, sees only the allowed part of the environment (no
//! keys), and leaves no process behind, whether it exits, times out, is cancelled, or is dropped. Its output
//! takes bounded memory; what exceeds a result goes to a file. Files that tools had touched before and that changed
//! while it ran are declared as modified; no other file is examined.
//!
//! Approvals are decided before the registry runs a call; [`Options::sandbox`] restricts what a command can reach.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use greenroom_kernel::{Block, ToolStatus};
use parking_lot::Mutex;
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::io::AsyncReadExt;

pub use crate::helper::Helper;
use crate::privacy::variable;
pub use crate::process::Containment;
use crate::process::{Launch, Running};
use crate::rewind::CommandFiles;
use crate::sandbox::confinement::Forward;
use crate::sandbox::places::{Ready, prepare};
use crate::sandbox::private::PrivateFolder;
use crate::sandbox::proxy::Proxy;
use crate::sandbox::{Found, Protection, Way, bubblewrap, hint};
pub use crate::sandbox::{HostPattern, Limits, Network, Sandbox, SandboxMode};
use crate::{FunctionTool, ToolContext, ToolError, ToolOutput, ToolsError, Workspace};

use self::collector::{Collector, Spill};

mod collector;

/// The variables that commands inherit.
const INHERITED: [&str; 6] = ["PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER"];
/// The longest time limit that a call may request, in milliseconds.
const TIMEOUT_MS_MAX: u64 = 60 * 60 * 1000;
/// How long ending all processes may take on a busy machine before the model is told that the outcome is
/// unknown.
const GRACE: Duration = Duration::from_secs(5);
/// How long to wait for the rest of the output after all processes have ended.
const DRAIN: Duration = Duration::from_millis(200);

/// How often a command is started again that another program outran: a socket of it vanished while it was to be hidden.
const OUTRUN_MAX: usize = 5;

/// The maximum output read from a cancelled command, in bytes: the capacity of a pipe. A command that writes
/// without end must not delay its cancellation.
const PIPE_BYTES: u64 = 64 * 1024;

/// How commands are run: limits, environment, sandbox.
#[derive(Debug, Clone)]
pub struct Options {
    /// The time limit for calls that specify none.
    pub timeout: Duration,
    /// Whether commands see this process's `PATH`, `HOME`, `LANG`, `TERM`, `TMPDIR` and `USER`.
    pub inherits_environment: bool,
    /// Additional environment variables; they override inherited ones.
    pub environment: Vec<(String, String)>,
    /// The permission bits that files created by commands do not get (`umask`). `None`: the `umask` of this
    /// process.
    pub umask: Option<u32>,
    /// What commands can reach. If the system cannot enforce it, commands are refused.
    pub sandbox: Sandbox,
    /// How the command's processes are contained. `None`: the best way available on this system.
    pub containment: Option<Containment>,
    /// The program that starts commands, drops their privileges and ends them together with this process.
    /// `None`: commands keep the privileges of this process, and keep running if it is killed.
    pub helper: Option<Helper>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(120),
            inherits_environment: true,
            environment: Vec::new(),
            umask: None,
            sandbox: Sandbox::default(),
            containment: None,
            helper: None,
        }
    }
}

/// Runs a command with bash in the workspace and returns its output and exit code. It has no input and no terminal.
/// Processes that it leaves in the background are ended with it.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Bash {
    /// The command.
    command: String,
    /// The time limit in milliseconds. Default: 120000, unless set otherwise.
    timeout_ms: Option<u64>,
}

/// What the commands of one agent share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    // Dropped before the folder with its socket.
    proxy: Mutex<Option<Proxy>>,
    private: OnceLock<PrivateFolder>,
}

impl Shared {
    /// Returns the private folder, which is created when it is needed.
    fn private(&self) -> std::io::Result<&PrivateFolder> {
        if self.private.get().is_none() {
            // Of two that were created at once, one is removed.
            let _ = self.private.set(PrivateFolder::create()?);
        }
        Ok(self.private.get().expect("it was set"))
    }

    /// Returns the folder with output that was too long for results, if there is some.
    pub(super) fn output(&self) -> Option<PathBuf> {
        self.private.get().map(PrivateFolder::output)
    }

    /// Starts the proxy for these hosts, if it does not run.
    fn start_proxy(&self, socket: &Path, hosts: &[HostPattern]) -> std::io::Result<()> {
        let mut proxy = self.proxy.lock();
        if proxy.is_none() {
            *proxy = Some(Proxy::start(socket, hosts.to_vec())?);
        }
        Ok(())
    }
}

pub(super) fn tool(workspace: Workspace, options: Options, shared: Arc<Shared>) -> FunctionTool {
    let bounds = options.sandbox.summary();
    let tool = crate::tool("bash", move |arguments: Bash, context: ToolContext| {
        let (workspace, options, shared) = (workspace.clone(), options.clone(), Arc::clone(&shared));
        async move { run(&workspace, &options, &shared, &arguments, &context).await }
    })
    .grace(GRACE)
    .needs_exact_arguments();
    match bounds {
        Some(bounds) => {
            let description = format!("{} {bounds}", crate::Tool::spec(&tool).description);
            tool.describe(description)
        }
        None => tool,
    }
}

/// How a command ended.
enum End {
    Exited(std::io::Result<ExitStatus>),
    TimedOut,
    /// It had more processes than it may.
    Outgrown {
        processes_max: u64,
    },
    Cancelled,
}

async fn run(
    workspace: &Workspace,
    options: &Options,
    shared: &Arc<Shared>,
    arguments: &Bash,
    context: &ToolContext,
) -> Result<ToolOutput, ToolError> {
    if arguments.timeout_ms.is_some_and(|timeout_ms| !(1..=TIMEOUT_MS_MAX).contains(&timeout_ms)) {
        return Err(ToolsError::Refused(format!("`timeout_ms` must be from 1 to {TIMEOUT_MS_MAX}")).into());
    }
    let timeout = arguments.timeout_ms.map_or(options.timeout, Duration::from_millis);
    if arguments.command.contains('\0') {
        return Err(ToolsError::Refused("a command has no NUL bytes".to_owned()).into());
    }
    if context.cancel.is_cancelled() {
        return Ok(ToolOutput::interrupted("cancelled; it took no effect"));
    }
    let protection = protection(options).await?;
    let files = context.files.clone();
    let before = off_thread(workspace, move |workspace| {
        let snapshot = workspace.snapshot();
        CommandFiles::before(workspace, &snapshot, &files).map(|files| (snapshot, files))
    });
    let (before, files) = before.await?.map_err(|error| {
        ToolError::new(format!("the command was not run: files could not be kept for rewinding: {error}"))
    })?;
    let deadline = tokio::time::Instant::now() + timeout;
    let mut outrun = 0;
    let (end, text, ready) = loop {
        let (launch, ready) = launch(workspace, options, shared, &protection, &arguments.command).await?;
        let (end, text) = performed(launch, shared, deadline, context).await?;
        // It has not begun: the sockets of other programs are looked up again.
        if outrun < OUTRUN_MAX && matches!(end, End::Exited(_)) && ready.was_outrun(&text) {
            outrun += 1;
            tokio::task::spawn_blocking(|| ready.end()).await?;
            continue;
        }
        break (end, text, ready);
    };
    // Removes files, and all processes that could see them have ended.
    let removed = tokio::task::spawn_blocking(|| ready.end()).await?;
    let mut output = report(end, timeout, text);
    remark(&mut output, options, &protection, &removed);
    off_thread(workspace, move |workspace| {
        if let Err(error) = files.after(workspace, &before) {
            tracing::warn!(%error, "what a command changed could not be recorded for rewinding");
        }
        workspace.changed_since(&before, output)
    })
    .await
}

/// Runs the command to its end, and ends all its processes. Returns its output.
async fn performed(
    launch: Launch,
    shared: &Arc<Shared>,
    deadline: tokio::time::Instant,
    context: &ToolContext,
) -> Result<(End, String), ToolError> {
    let processes_max = launch.confinement.limits.processes_max;
    let (mut running, mut output) = Running::start(launch)
        .map_err(|error| ToolError::new(format!("cannot start the command: {error}")))?;
    let mut collector =
        Collector::new(&context.progress, &context.redactor, Some(Spill::new(Arc::clone(shared))));
    let outgrown = running.outgrows(processes_max);
    let end = tokio::select! {
        biased;
        () = context.cancel.cancelled() => End::Cancelled,
        () = tokio::time::sleep_until(deadline) => End::TimedOut,
        () = outgrown => End::Outgrown { processes_max },
        status = async {
            // The output may end before the command, and the command before its output.
            tokio::select! {
                biased;
                () = collector.read_all(&mut output) => running.wait().await,
                status = running.wait() => status,
            }
        } => End::Exited(status),
    };
    match end {
        End::Exited(_) => {
            running.end().await;
            // Reads what is still in the pipe; a process that could not be ended might hold it open for ever.
            let _ = tokio::time::timeout(DRAIN, collector.read_all(&mut output)).await;
        }
        End::TimedOut | End::Cancelled | End::Outgrown { .. } => {
            // Reads only what is there already; later output is about processes being ended.
            let mut there = (&mut output).take(PIPE_BYTES);
            let _ = collector.read_all(&mut there).now_or_never();
            running.end().await;
        }
    }
    Ok((end, collector.finish()))
}

/// Returns what protects the command, or why it is refused.
async fn protection(options: &Options) -> Result<(Protection, Containment), ToolError> {
    let given = options.containment;
    let found =
        tokio::task::spawn_blocking(move || (Found::detect(), given.unwrap_or_else(Containment::detect)));
    let (found, containment) = found.await?;
    let protection = options.sandbox.choose(found, containment, options.helper.is_some());
    Ok((protection.map_err(ToolsError::Refused)?, containment))
}

/// Prepares the sandbox and the command line.
async fn launch(
    workspace: &Workspace,
    options: &Options,
    shared: &Arc<Shared>,
    (protection, containment): &(Protection, Containment),
    command: &str,
) -> Result<(Launch, Ready), ToolError> {
    let (root, sandbox) = (workspace.root().to_owned(), options.sandbox.clone());
    let mut environment = environment(options);
    let home = environment.iter().rev().find(|(name, _)| name == "HOME").map(|(_, home)| PathBuf::from(home));
    let (protection, shared) = (protection.clone(), Arc::clone(shared));
    let way = protection.way.clone();
    let prepared = tokio::task::spawn_blocking(move || {
        let private = shared.private()?;
        let ready = prepare(&sandbox, &protection, &root, private, home.as_deref())?;
        Ok::<_, std::io::Error>((ready, private.proxy().join("http.sock"), shared))
    });
    let wrong = |error: std::io::Error| ToolError::new(format!("cannot prepare the sandbox: {error}"));
    let (mut ready, socket, shared) = prepared.await?.map_err(wrong)?;
    if let Some(tmp) = ready.tmp.take() {
        environment.push(("TMPDIR".into(), tmp.into()));
    }
    let mut confinement = std::mem::take(&mut ready.confinement);
    if let Network::Hosts(hosts) = &options.sandbox.network {
        shared.start_proxy(&socket, hosts).map_err(wrong)?;
        confinement.forward = Some(Forward { socket, port: PROXY_PORT });
        environment.extend(proxy_variables());
    }
    let bubblewrap = match way {
        Way::Bubblewrap(program) => {
            let mounts = std::mem::take(&mut confinement.mounts);
            let arguments = bubblewrap::arguments(&mounts, &options.sandbox.network, workspace.root());
            Some((program, arguments))
        }
        Way::Landlock | Way::Off => None,
    };
    let launch = Launch {
        argv: argv(command),
        directory: workspace.root().to_owned(),
        environment,
        umask: options.umask,
        containment: *containment,
        helper: options.helper.clone(),
        bubblewrap,
        confinement,
    };
    Ok((launch, ready))
}

/// The port of the proxy in a sandbox, whose ports are its own.
const PROXY_PORT: u16 = 3_128;

/// Returns the variables that name the proxy; programs differ in which ones they read.
fn proxy_variables() -> impl Iterator<Item = (OsString, OsString)> {
    let address = format!("http://127.0.0.1:{PROXY_PORT}");
    let names = ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
    let direct = ["no_proxy", "NO_PROXY"].map(|name| (name.into(), "localhost,127.0.0.1,::1".into()));
    names.into_iter().map(move |name| (name.into(), address.clone().into())).chain(direct)
}

/// Appends what the model should know about the sandbox.
fn remark(
    output: &mut ToolOutput,
    options: &Options,
    protection: &(Protection, Containment),
    done: &[String],
) {
    let mut remarks = done.to_vec();
    let has_failed = output.status == ToolStatus::Error;
    remarks.extend(hint::hint(&options.sandbox, &protection.0, has_failed, &output.content_text()));
    if let Some(Block::Text(text)) = output.content.last_mut() {
        text.extend(remarks.into_iter().map(|remark| format!("[{remark}]\n")));
    }
}

/// Examines files outside the asynchronous threads. It does not wait for a slot, and completes even if the
/// call is cancelled.
async fn off_thread<T: Send + 'static>(
    workspace: &Workspace,
    work: impl FnOnce(&Workspace) -> T + Send + 'static,
) -> Result<T, ToolError> {
    let workspace = workspace.clone();
    Ok(tokio::task::spawn_blocking(move || work(&workspace)).await?)
}

/// Returns the shell and the command.
fn argv(command: &str) -> Vec<OsString> {
    let shell = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    [shell, "-c", command].map(OsString::from).to_vec()
}

fn environment(options: &Options) -> Vec<(OsString, OsString)> {
    let mut environment = vec![("PATH".into(), "/usr/local/bin:/usr/bin:/bin".into())];
    // A command gets these variables of this process and no others.
    if options.inherits_environment {
        let inherited = INHERITED.iter().filter_map(|name| Some((OsString::from(name), variable(name)?)));
        environment.extend(inherited);
    }
    environment.extend(options.environment.iter().map(|(name, value)| (name.into(), value.into())));
    environment
}

fn report(end: End, timeout: Duration, text: String) -> ToolOutput {
    let (status, remark) = match end {
        End::Cancelled => {
            (ToolStatus::Interrupted, "cancelled; the command and all its processes were ended".to_owned())
        }
        End::TimedOut => (
            ToolStatus::Error,
            format!("timed out after {timeout:?}; the command and all its processes were ended"),
        ),
        End::Outgrown { processes_max } => (
            ToolStatus::Error,
            format!(
                "it had more than {processes_max} processes and threads (`sandbox.processes_max`); the command and all its \
                 processes were ended"
            ),
        ),
        End::Exited(Ok(status)) if status.success() => (ToolStatus::Ok, String::new()),
        End::Exited(Ok(status)) => (ToolStatus::Error, exit(status)),
        End::Exited(Err(error)) => {
            (ToolStatus::Error, format!("it is not known how the command ended: {error}"))
        }
    };
    let mut text = if text.is_empty() { "(no output)\n".to_owned() } else { text };
    if !remark.is_empty() {
        if !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(&format!("[{remark}]\n"));
    }
    ToolOutput { content: vec![Block::Text(text)], status, touched: Vec::new() }
}

fn exit(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) if code > 128 && code <= 128 + 64 => {
            format!("exit code {code}: signal {}", signal(code - 128))
        }
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(number)) => format!("ended by signal {}", signal(number)),
        (None, None) => "ended without an exit code".to_owned(),
    }
}

fn signal(number: i32) -> String {
    let name = match number {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        _ => return number.to_string(),
    };
    format!("{number}, {name}")
}
