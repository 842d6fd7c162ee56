//! `bash`: runs a command in the workspace.
//!
//! Invariants: the command has no input and no terminal, sees only the allowed part of the environment (no
//! keys), and leaves no process behind, whether it exits, times out, is cancelled, or is dropped. Its output
//! takes bounded memory. Files that tools had touched before and that changed while it ran are declared as
//! modified; no other file is examined.
//!
//! This tool is not confined to the workspace. Approvals are decided before the registry runs a call;
//! [`Options::sandbox`] restricts what a command can reach.

use std::ffi::OsString;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use greenroom_kernel::{Block, ToolStatus};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt};

pub use crate::helper::Helper;
use crate::output::{BODY_BYTES_MAX, BODY_LINES_MAX, Clip, cap_line};
use crate::privacy::variable;
pub use crate::process::Containment;
use crate::process::{Launch, Running};
use crate::rewind::CommandFiles;
use crate::{FunctionTool, Progress, ToolContext, ToolError, ToolOutput, ToolsError, Workspace};

/// The variables that commands inherit.
const INHERITED: [&str; 6] = ["PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER"];
/// The longest time limit that a call may request, in milliseconds.
const TIMEOUT_MS_MAX: u64 = 60 * 60 * 1000;
/// How long ending all processes may take on a busy machine before the model is told that the outcome is
/// unknown.
const GRACE: Duration = Duration::from_secs(5);
/// How long to wait for the rest of the output after all processes have ended.
const DRAIN: Duration = Duration::from_millis(200);

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
    /// A program and its arguments that run the shell, appended after them, inside a sandbox. Empty: no
    /// sandbox.
    pub sandbox: Vec<OsString>,
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
            sandbox: Vec::new(),
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

pub(super) fn tool(workspace: Workspace, options: Options) -> FunctionTool {
    crate::tool("bash", move |arguments: Bash, context: ToolContext| {
        let (workspace, options) = (workspace.clone(), options.clone());
        async move { run(&workspace, &options, &arguments, &context).await }
    })
    .grace(GRACE)
}

/// How a command ended.
enum End {
    Exited(std::io::Result<ExitStatus>),
    TimedOut,
    Cancelled,
}

async fn run(
    workspace: &Workspace,
    options: &Options,
    arguments: &Bash,
    context: &ToolContext,
) -> Result<ToolOutput, ToolError> {
    if arguments.timeout_ms.is_some_and(|timeout_ms| !(1..=TIMEOUT_MS_MAX).contains(&timeout_ms)) {
        return Err(ToolsError::Refused(format!("`timeout_ms` is from 1 to {TIMEOUT_MS_MAX}")).into());
    }
    let timeout = arguments.timeout_ms.map_or(options.timeout, Duration::from_millis);
    if arguments.command.contains('\0') {
        return Err(ToolsError::Refused("a command has no NUL bytes".to_owned()).into());
    }
    if context.cancel.is_cancelled() {
        return Ok(ToolOutput::interrupted("cancelled; it took no effect"));
    }
    let containment = match options.containment {
        Some(containment) => containment,
        None => tokio::task::spawn_blocking(Containment::detect).await?,
    };
    let files = context.files.clone();
    let before = off_thread(workspace, move |workspace| {
        let snapshot = workspace.snapshot();
        CommandFiles::before(workspace, &snapshot, &files).map(|files| (snapshot, files))
    });
    let (before, files) = before.await?.map_err(|error| {
        ToolError::new(format!("the command was not run: files could not be kept for rewinding: {error}"))
    })?;
    let launch = Launch {
        argv: argv(options, &arguments.command),
        directory: workspace.root().to_owned(),
        environment: environment(options),
        umask: options.umask,
        containment,
        helper: options.helper.clone(),
    };
    let (mut running, mut output) = Running::start(launch)
        .map_err(|error| ToolError::new(format!("cannot start the command: {error}")))?;
    let mut collector = Collector::new(&context.progress);
    let end = tokio::select! {
        biased;
        () = context.cancel.cancelled() => End::Cancelled,
        () = tokio::time::sleep(timeout) => End::TimedOut,
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
        End::TimedOut | End::Cancelled => {
            // Reads only what is there already; later output is about processes being ended.
            let mut there = (&mut output).take(PIPE_BYTES);
            let _ = collector.read_all(&mut there).now_or_never();
            running.end().await;
        }
    }
    let output = report(end, timeout, collector.finish());
    off_thread(workspace, move |workspace| {
        if let Err(error) = files.after(workspace, &before) {
            tracing::warn!(%error, "what a command changed could not be recorded for rewinding");
        }
        workspace.changed_since(&before, output)
    })
    .await
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

/// Returns the shell and the command, preceded by the sandbox program.
fn argv(options: &Options, command: &str) -> Vec<OsString> {
    let bash = std::path::Path::new("/bin/bash");
    let shell = if bash.exists() { "/bin/bash" } else { "/bin/sh" };
    let mut argv = options.sandbox.clone();
    argv.extend([shell, "-c", command].map(OsString::from));
    argv
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
        End::Exited(Ok(status)) if status.success() => (ToolStatus::Ok, String::new()),
        End::Exited(Ok(status)) => (ToolStatus::Error, exit(status)),
        End::Exited(Err(error)) => (ToolStatus::Error, format!("how it ended is not known: {error}")),
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

/// Collects the output: head and tail for the model, lines for people.
struct Collector<'a> {
    clip: Clip,
    progress: &'a Progress,
    /// The current incomplete line, up to the length that is shown.
    line: Vec<u8>,
    /// How many lines were shown to people, and since when.
    shown: (usize, Instant),
}

impl<'a> Collector<'a> {
    /// The longest part of a line that is shown to people, in bytes.
    const LINE_BYTES_MAX: usize = 500;
    /// The most lines shown to people in [`Self::PERIOD`]: nobody reads more, and the consumer needs time for
    /// other work, such as handling interrupts.
    const LINES_MAX: usize = 50;
    const PERIOD: Duration = Duration::from_millis(250);

    fn new(progress: &'a Progress) -> Self {
        Self {
            clip: Clip::new(BODY_BYTES_MAX, BODY_LINES_MAX),
            progress,
            line: Vec::new(),
            shown: (0, Instant::now()),
        }
    }

    /// Reads to the end of the stream. Dropping the future loses nothing.
    async fn read_all(&mut self, output: &mut (impl AsyncRead + Unpin)) {
        let mut buffer = vec![0; 32 * 1024];
        while let Ok(count @ 1..) = output.read(&mut buffer).await {
            self.take(&buffer[..count]);
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.clip.push(bytes);
        if self.shown.1.elapsed() >= Self::PERIOD {
            self.shown = (0, Instant::now());
        }
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = (2 * Self::LINE_BYTES_MAX).saturating_sub(self.line.len()).min(piece.len());
            self.line.extend_from_slice(&piece[..room]);
            if piece.ends_with(b"\n") {
                if self.shown.0 < Self::LINES_MAX {
                    self.shown.0 += 1;
                    self.report_line();
                }
                self.line.clear();
            }
        }
    }

    fn report_line(&self) {
        let line = String::from_utf8_lossy(&self.line);
        self.progress.report(cap_line(line.trim_end_matches(['\n', '\r']), Self::LINE_BYTES_MAX));
    }

    fn finish(self) -> String {
        if !self.line.is_empty() {
            self.report_line();
        }
        self.clip.finish("write the output to a file, or filter it, to see the rest")
    }
}

#[cfg(test)]
mod tests;
