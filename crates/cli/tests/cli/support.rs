//! A folder with some files, a store of its own, the binary, and a simulated model.

use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use greenroom_simulator::{
    Answer, CallInfo, ListForm, Script, SeenRequest, Simulator, SimulatorOptions, SimulatorServer,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

/// Nothing here takes longer, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// A command that runs for so long is killed: its test fails then and says what was printed, before it is killed itself.
const RUNNING_MAX: Duration = Duration::from_secs(150);

/// A place of its own for one test.
pub(crate) struct Place {
    dir: tempfile::TempDir,
}

/// What a command printed, and how it ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Place {
    /// An empty workspace and no store yet.
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("work")).unwrap();
        Self { dir }
    }

    /// A workspace with so many source files.
    pub(crate) fn with_files(count: usize) -> Self {
        let place = Self::new();
        let folder = place.work().join("src");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(place.work().join("README.md"), "# A made-up project\n\nIt counts things.\n").unwrap();
        for number in 0..count {
            let mut text = format!("//! Part {number} of the made-up project.\n\n");
            for function in 0..60 {
                text.push_str(&format!(
                    "/// Counts the things of kind {function}.\npub fn count_{number}_{function}(things: &[u32]) -> usize {{\n    \
                     things.iter().filter(|thing| **thing == {function}).count()\n}}\n\n"
                ));
            }
            std::fs::write(folder.join(format!("part_{number}.rs")), text).unwrap();
        }
        place
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Writes the project's `greenroom.yaml`, and gives its path.
    pub(crate) fn project_file(&self, text: &str) -> PathBuf {
        let path = self.work().join("greenroom.yaml");
        write_own(&path, text);
        path
    }

    /// Writes the user's own `greenroom.yaml`, and gives its path.
    pub(crate) fn own_file(&self, text: &str) -> PathBuf {
        let path = self.own_file_path();
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        write_own(&path, text);
        path
    }

    /// The path of the user's own `greenroom.yaml`.
    pub(crate) fn own_file_path(&self) -> PathBuf {
        self.dir.path().join(".config/greenroom/greenroom.yaml")
    }

    /// The binary with these arguments, in the workspace, with nothing from the outer environment.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.command_of(env!("CARGO_BIN_EXE_greenroom").into(), arguments)
    }

    /// As [`Self::command`], of another program.
    pub(crate) fn command_of(&self, program: PathBuf, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        command
            .args(arguments)
            .current_dir(self.work())
            .env_clear()
            .env("HOME", self.dir.path())
            .env("GREENROOM_DATA_DIR", self.store())
            .env("GREENROOM_HOST_START", "false")
            .stdin(Stdio::null());
        command
    }

    /// The configuration that holds here, without where it comes from.
    pub(crate) fn config(&self) -> String {
        let ran = self.run(&["config"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        without_sources(&ran.stdout)
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        ran(self.command(arguments).output().unwrap())
    }

    /// Runs it with this on its standard input.
    pub(crate) fn run_with(&self, arguments: &[&str], input: &str) -> Ran {
        let path = self.dir.path().join("input");
        std::fs::write(&path, input).unwrap();
        let input = std::fs::File::open(&path).unwrap();
        ran(self.command(arguments).stdin(input).output().unwrap())
    }

    /// Runs it at a terminal of this kind, with this on its standard input, and gives all that the terminal got.
    pub(crate) fn run_at_terminal(&self, term: &str, arguments: &[&str], input: &str) -> String {
        use std::io::Read as _;
        let path = self.dir.path().join("input");
        std::fs::write(&path, input).unwrap();
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let name = std::ffi::OsString::from_vec(name.into_bytes());
        let terminal = std::fs::File::options().read(true).write(true).open(name).unwrap();
        let mut command = self.command(arguments);
        command
            .env("TERM", term)
            .stdin(std::fs::File::open(&path).unwrap())
            .stdout(terminal.try_clone().unwrap())
            .stderr(terminal);
        let mut child = command.spawn().unwrap();
        // The command holds the terminal's other ends; with the child's they are closed.
        drop(command);
        let (mut master, mut bytes) = (std::fs::File::from(master), Vec::new());
        // Linux ends it with an error where the last one that held it is gone.
        let _ = master.read_to_end(&mut bytes);
        child.wait().unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// Runs it, and reads what it prints as JSON.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let ran = self.run(arguments);
        assert_eq!(ran.code, Some(0), "{arguments:?}: {ran:?}");
        serde_json::from_str(&ran.stdout).unwrap()
    }

    /// What a command printed, as JSON, whatever its exit code is.
    pub(crate) fn json_of(&self, ran: &Ran) -> Value {
        serde_json::from_str(&ran.stdout).unwrap()
    }

    /// The only session's id.
    pub(crate) fn only_session(&self) -> String {
        let sessions = self.json(&["sessions", "--json"]);
        let sessions = sessions.as_array().unwrap();
        assert_eq!(sessions.len(), 1, "{sessions:?}");
        sessions[0]["id"].as_str().unwrap().to_owned()
    }

    /// Starts it, with its output to be read as it comes, and with an input that stays open.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        self.start_command(self.command(arguments))
    }

    /// As [`Self::start`], with a command of the test's own.
    pub(crate) fn start_command(&self, mut command: Command) -> Running {
        Running::start(command.stdin(Stdio::piped()))
    }

    /// As [`Self::start`], without an input.
    pub(crate) fn start_alone(&self, arguments: &[&str]) -> Running {
        let mut running = self.start(arguments);
        running.child.stdin = None;
        running
    }
}

/// Writes a file that nobody else can write, whatever the test's own umask is.
fn write_own(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    let _ = std::fs::remove_file(path);
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o644)).unwrap();
}

/// What a command printed, and how it ended.
pub(crate) fn ran(output: Output) -> Ran {
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A command that is running. Dropping it kills it.
pub(crate) struct Running {
    child: Child,
    /// Whoever kills it where it hangs is told by the end of this that it is over.
    _over: mpsc::Sender<()>,
    output: Option<BufReader<std::process::ChildStdout>>,
}

impl Running {
    /// Starts it, with its output to be read as it comes.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let ((over, is_over), id) = (mpsc::channel(), Pid::from_child(&child));
        std::thread::spawn(move || {
            if is_over.recv_timeout(RUNNING_MAX) == Err(mpsc::RecvTimeoutError::Timeout) {
                let _ = kill_process(id, Signal::KILL);
            }
        });
        Self { child, _over: over, output: Some(output) }
    }

    /// Reads its output until a line holds `text`, and gives that line.
    pub(crate) fn wait_for(&mut self, text: &str) -> String {
        let output = self.output.as_mut().unwrap();
        let mut seen = String::new();
        loop {
            let mut line = String::new();
            assert!(output.read_line(&mut line).unwrap() > 0, "it ended before {text:?} came: {seen}");
            if line.contains(text) {
                return line;
            }
            seen.push_str(&line);
        }
    }

    /// Reads what it says on standard error until a line holds `text`, and gives that line.
    pub(crate) fn wait_for_word(&mut self, text: &str) -> String {
        // Byte by byte: what comes later is read by somebody else.
        let error = self.child.stderr.as_mut().unwrap();
        let (mut line, mut before) = (Vec::new(), String::new());
        for byte in std::io::Read::bytes(error) {
            match byte.unwrap() {
                b'\n' if String::from_utf8_lossy(&line).contains(text) => break,
                b'\n' => {
                    before.push_str(&String::from_utf8_lossy(&line));
                    before.push('\n');
                    line.clear();
                }
                byte => line.push(byte),
            }
        }
        let line = String::from_utf8(line).unwrap();
        assert!(line.contains(text), "it ended before {text:?} came: {before}{line}");
        line
    }

    /// What it says on standard error from now on is thrown away, and never fills the pipe.
    pub(crate) fn ignore_errors(&mut self) {
        let mut error = self.child.stderr.take().unwrap();
        std::thread::spawn(move || std::io::copy(&mut error, &mut std::io::sink()));
    }

    /// Writes a line to its input.
    pub(crate) fn say(&mut self, line: &str) {
        use std::io::Write as _;
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// How many files it may have open.
    pub(crate) fn limit_files(&self, current: u64) {
        let id = Some(Pid::from_child(&self.child));
        let maximum = Some(1_024);
        let limit = Rlimit { current: Some(current), maximum };
        prlimit(id, Resource::Nofile, limit).unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let id = Pid::from_child(&self.child);
        kill_process(id, signal).unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Its input ends.
    pub(crate) fn close_input(&mut self) {
        self.child.stdin = None;
    }

    /// Its output is read no more.
    pub(crate) fn close_output(&mut self) {
        self.output = None;
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end, and kills it where that does not come within `patience`. For commands that print less
    /// than a pipe holds.
    pub(crate) fn end_within(mut self, patience: Duration) -> Ran {
        let started = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(started.elapsed() < patience, "it does not end within {patience:?}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
        self.end()
    }

    /// Waits for its end; gives what it still printed, too.
    pub(crate) fn end(mut self) -> Ran {
        let mut stdout = String::new();
        if let Some(output) = &mut self.output {
            std::io::Read::read_to_string(output, &mut stdout).unwrap();
        }
        let status = self.wait();
        let mut stderr = String::new();
        if let Some(error) = &mut self.child.stderr.take() {
            std::io::Read::read_to_string(error, &mut stderr).unwrap();
        }
        Ran { code: status.code(), stdout, stderr }
    }

    fn wait(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(started.elapsed() < PATIENCE, "it does not end");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A model that always says the same.
pub(crate) struct Says(pub(crate) Answer);

impl Script for Says {
    fn reply(&self, _: &SeenRequest, _: CallInfo) -> Answer {
        self.0.clone()
    }
}

/// A simulated model that is reached over HTTP.
pub(crate) struct Model {
    pub(crate) simulator: Simulator,
    server: SimulatorServer,
    _runtime: tokio::runtime::Runtime,
}

impl Model {
    pub(crate) fn new(script: impl Script, change: impl FnOnce(&mut SimulatorOptions)) -> Self {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        // As local servers do, it says how long a request may be.
        let mut options = SimulatorOptions { list: ListForm::Vllm, ..SimulatorOptions::new(script) };
        change(&mut options);
        let simulator = Simulator::new(options);
        let server = runtime.block_on(simulator.serve()).unwrap();
        Self { simulator, server, _runtime: runtime }
    }

    pub(crate) fn url(&self) -> String {
        self.server.base_url().to_string()
    }
}

/// The lines of `run --json`: each an event of the right form.
pub(crate) fn events(ran: &Ran) -> Vec<Value> {
    let events: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for event in &events {
        assert!(event["type"].is_string(), "{event}");
        if event["type"] != "error" {
            assert!(event["seq"].is_u64() && event["session_id"].is_string(), "{event}");
        }
    }
    events
}

/// What `config` prints, without where it comes from.
pub(crate) fn without_sources(text: &str) -> String {
    text.lines()
        .map(|line| format!("{}\n", line.split("  # ").next().unwrap_or_default().trim_end()))
        .collect()
}

/// All files below a folder.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { files.extend(self::files(&path)) } else { files.push(path) }
    }
    files.sort();
    files
}
