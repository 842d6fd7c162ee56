//! One process holds the store for many terminals: it is found, started, shared, killed and replaced.

use std::io::Write as _;
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use greenroom_server::operations::{ClientKind, Hello, PROTOCOL};
use greenroom_server::{Client, ClientError};
use greenroom_simulator::{
    Answer, CallInfo, Function, ListForm, Pace, Script, SeenRequest, Simulator, SimulatorOptions,
    SimulatorServer,
};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};

use super::support::{Place, Ran, ran};

mod configured;
mod deaths;
mod definitions;
mod dying;
mod elsewhere;
mod forms;
mod handed_on;
mod held_back;
mod looking;
mod moved;
mod others;
mod peers;
mod piped;
mod serving;
mod sharing;
mod silence;
mod starts;
mod states;

/// Nothing here takes longer, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A store with a host, and a model over HTTP. Dropping it ends the host, and fails the test where one is left.
pub(crate) struct Hosted {
    pub(crate) place: Place,
    pub(crate) simulator: Simulator,
    server: SimulatorServer,
    guard: Guard,
}

impl Hosted {
    /// The model says so many words, one each so many milliseconds.
    pub(crate) async fn new(words: usize, between_ms: u64) -> Self {
        let pace = Pace { chunks: words, first_ms: 0, between_ms };
        let script =
            Function(move |_: &SeenRequest, _: CallInfo| Answer::text("word ".repeat(words)).with_pace(pace));
        Self::of(script).await
    }

    /// With a model that answers so.
    pub(crate) async fn of(script: impl Script) -> Self {
        Self::with(SimulatorOptions::new(script)).await
    }

    /// With a model that says this to those who have this key.
    pub(crate) async fn requiring_key(key: &str, said: &'static str) -> Self {
        let script = Function(move |_: &SeenRequest, _: CallInfo| Answer::text(said));
        Self::with(SimulatorOptions { require_key: Some(key.to_owned()), ..SimulatorOptions::new(script) })
            .await
    }

    async fn with(options: SimulatorOptions) -> Self {
        let simulator = Simulator::new(SimulatorOptions { list: ListForm::Vllm, ..options });
        let server = simulator.serve().await.unwrap();
        let place = Place::new();
        let guard = Guard::of(&place);
        Self { place, simulator, server, guard }
    }

    /// The address of the model.
    pub(crate) fn url(&self) -> String {
        self.server.base_url().to_string()
    }

    /// The binary with these arguments; it may start a host.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        self.with_host(self.place.command(arguments))
    }

    pub(crate) fn with_host(&self, mut command: Command) -> Command {
        command
            .env("GREENROOM_HOST_START", "true")
            .env("OPENAI_BASE_URL", self.server.base_url().to_string())
            .env("OPENAI_API_KEY", "a-key");
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Ran {
        ran(self.command(arguments).output().unwrap())
    }

    pub(crate) fn say(&self, session: &str, text: &str) -> Ran {
        self.run(&["run", "--window", "100000", "--session", session, "-p", text])
    }

    /// The process that holds the store, if it lives.
    pub(crate) fn host(&self) -> Option<Pid> {
        let text = std::fs::read_to_string(self.place.store().join("lock")).ok()?;
        let pid = Pid::from_raw(text.trim().parse().ok()?)?;
        test_kill_process(pid).is_ok().then_some(pid).filter(|pid| is_greenroom(*pid))
    }

    /// Kills the host as a crash would.
    pub(crate) fn kill_host(&self) {
        let pid = self.host().expect("a host is there");
        kill_process(pid, Signal::KILL).unwrap();
        // The lock goes a moment after the rest; a client may have started the next host by then, which has it.
        let lock = std::fs::File::open(self.place.store().join("lock")).unwrap();
        let is_next = || self.host().is_some_and(|host| host != pid);
        wait_until("the host is dead", || !is_greenroom(pid) && (lock.try_lock().is_ok() || is_next()));
    }

    /// Starts a host as a client would.
    pub(crate) fn start_host(&self) {
        let store = self.place.store();
        let mut command =
            self.place.command(&["host", "--data-dir", store.to_str().unwrap(), "--idle", "30"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut said = String::new();
        std::io::Read::read_to_string(child.stdout.as_mut().unwrap(), &mut said).unwrap();
        assert_eq!(said, "ready\n");
        std::thread::spawn(move || child.wait());
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.place.store().join("host.sock")
    }

    /// The store's lock, for a test that plays a host: who does not have it is none. `None` where another process has it.
    pub(crate) fn lock(&self) -> Option<std::fs::File> {
        lock_of(&self.place.store())
    }

    /// A client of the host, of this kind, with what `flags` change of its definition.
    pub(crate) async fn client(&self, kind: ClientKind, flags: Value) -> Client {
        let stream = tokio::net::UnixStream::connect(self.socket()).await.unwrap();
        let (input, output) = stream.into_split();
        let client = Client::new(input, output);
        client.call(self.hello(kind, flags)).await.unwrap();
        client
    }

    pub(crate) fn hello(&self, kind: ClientKind, flags: Value) -> Hello {
        let mut definition = json!({
            "surroundings": {
                "folder": self.place.work(),
                "variables": {
                    "HOME": self.place.work().parent().unwrap(),
                    "OPENAI_BASE_URL": self.server.base_url().to_string(),
                    "OPENAI_API_KEY": "a-key",
                },
                "umask": 0o022,
            },
            "config": null,
            "settings": [],
            "model": {
                "server": {}, "stop": [], "window": 100_000, "workspace": ".",
                "no_tools": false, "allow_write": false, "allow_shell": false, "simulate": false,
            },
            "checks_server": false,
        });
        merge(&mut definition, flags);
        let version = "test".to_owned();
        Hello { protocol: PROTOCOL, version, kind, definition: Some(definition) }
    }
}

impl Drop for Hosted {
    fn drop(&mut self) {
        if let Some(pid) = self.host() {
            let _ = ran(self.place.command(&["host", "--stop", "--force"]).output().unwrap());
            let began = Instant::now();
            while is_greenroom(pid) && began.elapsed() < PATIENCE {
                std::thread::park_timeout(Duration::from_millis(5));
            }
        }
        let left = hosts_of(&self.place);
        left.iter().for_each(|pid| _ = kill_process(*pid, Signal::KILL));
        self.guard.dismiss();
        assert!(left.is_empty() || std::thread::panicking(), "hosts were left behind: {left:?}");
    }
}

/// A process that outlives its test where that is killed, and then kills what still works in its place: hosts, stopped ones
/// too, and terminals.
struct Guard(Child);

impl Guard {
    /// It waits for a word. Where its input ends without one the test is dead.
    const SCRIPT: &str = r#"read -r place; read -r word && exit
        for file in $(grep -lsF "$place" /proc/[0-9]*/cmdline); do
            file=${file#/proc/}; kill -KILL "${file%/cmdline}"
        done"#;

    fn of(place: &Place) -> Self {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", Self::SCRIPT]).process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let folder = place.store().parent().unwrap().display().to_string();
        writeln!(child.stdin.as_mut().unwrap(), "{folder}/").unwrap();
        Self(child)
    }

    fn dismiss(&mut self) {
        if let Some(input) = &mut self.0.stdin {
            // One that is dead already does no harm either.
            let _ = writeln!(input, "done");
        }
        let _ = self.0.wait();
    }
}

/// The processes that serve this place's store as hosts.
fn hosts_of(place: &Place) -> Vec<Pid> {
    let store = place.store().display().to_string();
    let pids = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let pid = Pid::from_raw(entry.ok()?.file_name().to_str()?.parse().ok()?)?;
        let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).ok()?;
        let line = String::from_utf8_lossy(&line).into_owned();
        (line.contains("\0host\0") && line.contains(&store)).then_some(pid)
    });
    pids.collect()
}

/// How many hosts have begun to write their log.
fn hosts_begun(hosted: &Hosted) -> usize {
    let log = std::fs::read_to_string(hosted.place.store().join("host.log")).unwrap();
    log.lines().filter(|line| line.starts_with("--- process ")).count()
}

/// The lock of the store in this directory, where nobody has it.
fn lock_of(store: &std::path::Path) -> Option<std::fs::File> {
    let mut options = std::fs::File::options();
    let lock = options.read(true).write(true).create(true).truncate(false).open(store.join("lock")).unwrap();
    lock.try_lock().is_ok().then_some(lock)
}

/// Whether this process lives, and is ours.
fn is_greenroom(pid: Pid) -> bool {
    let line = std::fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    String::from_utf8_lossy(&line).contains("greenroom")
}

pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it does not come: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// Stops a process. That takes a while: each of its threads goes on until it is its turn to stop.
pub(crate) fn stop(process: Pid) {
    kill_process(process, Signal::STOP).unwrap();
    let tasks = format!("/proc/{}/task", process.as_raw_nonzero());
    let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
        let status = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
        status.rsplit(')').next().is_some_and(|after| after.trim_start().starts_with('T'))
    };
    wait_until("it is stopped", || std::fs::read_dir(&tasks).unwrap().all(is_stopped));
}

fn merge(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            over.into_iter().for_each(|(name, value)| merge(base.entry(name).or_insert(Value::Null), value));
        }
        (base, over) => *base = over,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_starts_a_host_which_the_next_one_finds_and_which_ends_when_told() {
    let hosted = Hosted::new(3, 0).await;
    let first = hosted.run(&["run", "--window", "100000", "-p", "one"]);
    assert_eq!((first.code, first.stdout.trim(), first.stderr.as_str()), (Some(0), "word word word", ""));
    let host = hosted.host().expect("a host is there");
    let session = hosted.place.only_session();
    let went_on = hosted.run(&["run", "--window", "100000", "-c", "-p", "two"]);
    assert_eq!(went_on.code, Some(0), "{went_on:?}");
    assert_eq!(hosted.host(), Some(host));
    assert_eq!(hosted.place.only_session(), session, "it went on with the session of this folder");
    let mode = std::fs::symlink_metadata(hosted.socket()).unwrap();
    assert!(mode.file_type().is_socket());
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&mode) & 0o777, 0o600);
    // One that is idle makes room for who wants the store alone, and one that is in use does not.
    let chat = hosted.client(ClientKind::Chat, json!({})).await;
    let alone = hosted.run(&["run", "--no-host", "--window", "100000", "-p", "x"]);
    assert_eq!(alone.code, Some(3), "{alone:?}");
    chat.close().await;
    let alone = hosted.run(&["run", "--no-host", "--window", "100000", "--session", &session, "-p", "three"]);
    assert_eq!(alone.code, Some(0), "{alone:?}");
    assert!(!is_greenroom(host));
    assert_eq!(hosted.run(&["run", "--window", "100000", "-c", "-p", "four"]).code, Some(0));
    let host = hosted.host().expect("a host is there");
    let stopped = hosted.run(&["host", "--stop"]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert_eq!(stopped.stdout, format!("The host (process {}) has ended.\n", host.as_raw_nonzero()));
    wait_until("the host has ended", || !is_greenroom(host));
    assert!(!hosted.socket().exists());
    let again = hosted.run(&["host", "--stop"]);
    assert_eq!((again.code, again.stdout.as_str()), (Some(3), ""), "{again:?}");
    assert!(again.stderr.contains("no host answers"), "{again:?}");
    hosted.simulator.assert_clean();
}

/// A test that is killed leaves no host behind: what it would have ended is killed when its own process is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_host_does_not_outlive_a_test_that_is_killed() {
    let mut hosted = Hosted::new(3, 0).await;
    hosted.start_host();
    let by_hand = hosted.host().expect("a host is there");
    stop(by_hand);
    drop(hosted.guard.0.stdin.take());
    wait_until("it is dead", || !is_greenroom(by_hand));
    hosted.guard = Guard::of(&hosted.place);
    assert_eq!(hosted.say("a", "one").code, Some(0));
    let in_the_background = hosted.host().expect("a host is there");
    stop(in_the_background);
    drop(hosted.guard.0.stdin.take());
    wait_until("it is dead", || !is_greenroom(in_the_background));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_in_the_background_holds_nothing_of_whoever_started_it() {
    let hosted = Hosted::new(3, 0).await;
    let greenroom = env!("CARGO_BIN_EXE_greenroom");
    // Whoever has a copy of the output holds up those who read it to its end.
    let arguments = ["-c", "exec \"$0\" \"$@\" 7>&1", greenroom, "run", "--window", "100000", "-p", "one"];
    let mut command = hosted.with_host(hosted.place.command_of("sh".into(), &arguments));
    command.env("GREENROOM_HOST_IDLE_S", "3").env("PATH", "/usr/bin:/bin");
    let ended = ran(command.output().unwrap());
    assert_eq!((ended.code, ended.stdout.trim()), (Some(0), "word word word"), "{ended:?}");
    assert!(hosted.host().is_some(), "the output ended before the host did");
    let store = std::fs::metadata(hosted.place.store()).unwrap();
    assert_eq!(std::os::unix::fs::MetadataExt::mode(&store) & 0o777, 0o700);
}

#[tokio::test(flavor = "multi_thread")]
async fn it_ends_by_itself() {
    let hosted = Hosted::new(3, 0).await;
    let mut command = hosted.command(&["run", "--window", "100000", "-p", "one"]);
    command.env("GREENROOM_HOST_IDLE_S", "1");
    assert_eq!(ran(command.output().unwrap()).code, Some(0));
    let host = hosted.host().expect("a host is there");
    wait_until("the host has ended", || !is_greenroom(host));
    let log = std::fs::read_to_string(hosted.place.store().join("host.log")).unwrap();
    assert!(log.contains("the host has ended"), "{log}");
    assert!(!log.contains("a-key"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_ends_with_its_last_client_serves_each_command() {
    let hosted = Hosted::new(3, 0).await;
    for arguments in [&["run", "--window", "100000", "-p", "one"][..], &["chat", "--window", "100000"]] {
        let mut command = hosted.command(arguments);
        command.env("GREENROOM_HOST_IDLE_S", "0");
        let mut running = hosted.place.start_command(command);
        if arguments[0] == "chat" {
            running.say("one");
        }
        running.close_input();
        let ended = running.end();
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stdout.contains("word word word"), "{ended:?}");
        wait_until("the host has ended", || hosts_of(&hosted.place).is_empty());
    }
    assert_eq!(hosts_begun(&hosted), 2, "one for each command");
}

/// The hosts here wait for a reader of their log before they do anything else, and are killed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn hosts_that_die_as_they_start_are_replaced_a_few_times_and_that_is_said() {
    let hosted = Hosted::new(1, 0).await;
    std::fs::create_dir_all(hosted.place.store()).unwrap();
    let log = hosted.place.store().join("host.log");
    assert!(Command::new("mkfifo").arg(log).status().unwrap().success());
    let mut running = hosted.place.start_command(hosted.command(&["run", "-p", "one"]));
    running.close_input();
    let mut killed = std::collections::BTreeSet::new();
    while !running.has_ended() {
        for pid in hosts_of(&hosted.place) {
            let _ = kill_process(pid, Signal::KILL);
            killed.insert(pid.as_raw_nonzero());
        }
        std::thread::park_timeout(Duration::from_millis(1));
    }
    let ended = running.end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("exited on startup") && ended.stderr.contains("host.log"), "{ended:?}");
    assert_eq!(killed.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_who_start_one_at_the_same_time_both_are_served_by_one() {
    let hosted = Hosted::new(1, 0).await;
    for pair in 0..20 {
        let start = |name: &str| {
            let session = format!("{name}{pair}");
            let arguments = ["run", "--window", "100000", "--session", &session, "-p", "x"];
            hosted.command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let both = [start("a"), start("b")];
        for child in both {
            let ended = ran(child.wait_with_output().unwrap());
            assert_eq!((ended.code, ended.stdout.trim()), (Some(0), "word"), "pair {pair}: {ended:?}");
        }
        assert_eq!(hosts_of(&hosted.place).len(), 1, "pair {pair}");
        hosted.kill_host();
    }
    assert_eq!(hosted.place.json(&["sessions", "--json"]).as_array().unwrap().len(), 40);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_nobody_answers_is_replaced_and_a_long_path_leads_elsewhere() {
    let hosted = Hosted::new(1, 0).await;
    std::fs::create_dir_all(hosted.place.store()).unwrap();
    drop(UnixListener::bind(hosted.socket()).unwrap());
    assert!(hosted.socket().exists(), "nobody listens, and the file is there");
    assert_eq!(hosted.say("a", "one").code, Some(0));
    assert!(hosted.host().is_some());
    // A folder whose path no socket can have.
    let deep = hosted.place.work().join("long-name-".repeat(10));
    let command = |arguments: &[&str]| {
        let mut command = hosted.command(arguments);
        command.env("GREENROOM_DATA_DIR", &deep);
        ran(command.output().unwrap())
    };
    for text in ["one", "two"] {
        let ended = command(&["run", "--window", "100000", "--session", "a", "-p", text]);
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    let link = deep.join("host.sock");
    assert!(link.is_symlink(), "the socket is elsewhere");
    let stopped = command(&["host", "--stop"]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(!link.is_symlink());
    // Whoever has another environment finds it, too.
    let runtime = tempfile::Builder::new().prefix("run").tempdir().unwrap();
    let elsewhere = |arguments: &[&str]| {
        let mut command = hosted.command(arguments);
        command.env("GREENROOM_DATA_DIR", &deep).env("XDG_RUNTIME_DIR", runtime.path());
        ran(command.output().unwrap())
    };
    let started = elsewhere(&["run", "--window", "100000", "--session", "a", "-p", "three"]);
    assert_eq!(started.code, Some(0), "{started:?}");
    assert!(std::fs::read_link(&link).unwrap().starts_with(runtime.path()));
    let found = command(&["run", "--window", "100000", "--session", "a", "-p", "four"]);
    assert_eq!(found.code, Some(0), "{found:?}");
    let stopped = command(&["host", "--stop"]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(!link.is_symlink());
}

/// A host of another version, which a test plays. It says whether it may be ended.
async fn other_version(hosted: &Hosted, is_busy: bool) -> tokio::task::JoinHandle<()> {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    std::fs::create_dir_all(hosted.place.store()).unwrap();
    let path = hosted.socket();
    let lock = hosted.lock().unwrap();
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (input, mut output) = stream.into_split();
        let mut lines = BufReader::new(input).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let call: Value = serde_json::from_str(&line).unwrap();
            let refuse = |kind: &str, text: &str| {
                let data = json!({ "kind": kind, "class": "other", "message": text, "retryable": false });
                json!({ "jsonrpc": "2.0", "id": call["id"], "error": { "code": -32000, "message": text, "data": data } })
            };
            let answer = match call["method"].as_str() {
                Some("client/hello") => {
                    refuse("version", "the host of this store is greenroom 9.9 and speaks protocol 99, not 1")
                }
                Some("host/stop") if is_busy => refuse("busy", "the host (process 1) is in use"),
                _ => json!({ "jsonrpc": "2.0", "id": call["id"], "result": { "pid": 1 } }),
            };
            output.write_all(format!("{answer}\n").as_bytes()).await.unwrap();
            if !is_busy && call["method"] == "host/stop" {
                drop((listener, lock));
                std::fs::remove_file(&path).unwrap();
                return;
            }
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_of_another_version_is_ended_when_it_is_idle_and_left_when_it_is_not() {
    let hosted = Hosted::new(1, 0).await;
    let busy = other_version(&hosted, true).await;
    let refused = hosted.say("a", "one");
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("greenroom 9.9") && refused.stderr.contains("in use"), "{refused:?}");
    busy.await.unwrap();
    std::fs::remove_file(hosted.socket()).unwrap();
    let idle = other_version(&hosted, false).await;
    let served = hosted.say("a", "one");
    assert_eq!(served.code, Some(0), "{served:?}");
    idle.await.unwrap();
    assert!(hosted.host().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_be_used_is_said_with_its_reason_and_code() {
    let hosted = Hosted::new(1, 0).await;
    // A program that answers on no socket has it.
    std::fs::create_dir_all(hosted.place.store()).unwrap();
    let lock = std::fs::File::create(hosted.place.store().join("lock")).unwrap();
    lock.try_lock().unwrap();
    let refused = hosted.say("a", "one");
    assert_eq!(refused.code, Some(3), "{refused:?}");
    assert!(refused.stderr.contains("in use"), "{refused:?}");
    drop(lock);
    assert_eq!(hosted.say("a", "one").code, Some(0));
    // What is wrong with the configuration is said as without a host.
    hosted.place.own_file("modell: x\n");
    let refused = hosted.say("a", "two");
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("greenroom.yaml, line 1"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_cannot_be_made_is_said_with_the_code_of_stores_with_a_host_and_without() {
    let hosted = Hosted::new(1, 0).await;
    let file = hosted.place.work().join("file");
    std::fs::write(&file, "").unwrap();
    for dir in
        [file.clone(), file.join("below"), "/proc/none".into(), hosted.place.work().join("x".repeat(300))]
    {
        for arguments in [&["run", "-p", "x"][..], &["chat"], &["run", "--no-host", "-p", "x"]] {
            let mut command = hosted.command(arguments);
            command.env("GREENROOM_DATA_DIR", &dir);
            let refused = ran(command.output().unwrap());
            assert_eq!(refused.code, Some(3), "{}, {arguments:?}: {refused:?}", dir.display());
            assert!(refused.stderr.contains(&*dir.to_string_lossy()), "{refused:?}");
        }
    }
    let mut listing = hosted.command(&["sessions"]);
    let refused = ran(listing.env("GREENROOM_DATA_DIR", &file).output().unwrap());
    assert_eq!(refused.code, Some(3), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_commands_go_through_the_host() {
    let hosted = Hosted::new(3, 0).await;
    assert_eq!(hosted.say("one-session", "one").code, Some(0));
    let host = hosted.host().expect("a host is there");
    assert_eq!(hosted.run(&["export", "one-session", "--output", "exported.jsonl"]).code, Some(0));
    let imported = hosted.run(&["import", "exported.jsonl", "--json"]);
    assert!(imported.code == Some(2) && imported.stderr.contains("already"), "{imported:?}");
    let shown = hosted.run(&["show", "one"]);
    assert!(shown.code == Some(0) && shown.stdout.contains("word word word"), "{shown:?}");
    let compacted = hosted.run(&["compact", "one", "--json"]);
    assert_eq!(compacted.code, Some(0), "{compacted:?}");
    let missing = hosted.run(&["compact", "none"]);
    assert!(missing.code != Some(0) && missing.stderr.contains("no session"), "{missing:?}");
    let answered = hosted.run(&["answer", "one", "7", "yes"]);
    assert_eq!(answered.code, Some(2), "{answered:?}");
    let deleted = hosted.run(&["delete", "one", "--yes"]);
    assert_eq!((deleted.code, deleted.stdout.trim()), (Some(0), "Deleted one-session."), "{deleted:?}");
    let again = hosted.run(&["import", "exported.jsonl"]);
    assert_eq!(again.code, Some(0), "{again:?}");
    assert_eq!(hosted.host(), Some(host), "all of it in one host");
    assert_eq!(hosted.place.json(&["sessions", "--json"]).as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_serves_others_answers_on_the_socket_too() {
    let hosted = Hosted::new(3, 0).await;
    let mut serving = hosted.place.start_command(hosted.command(&["rpc"]));
    wait_until("it answers", || hosted.socket().exists());
    let answered = hosted.say("a", "one");
    assert_eq!((answered.code, answered.stdout.trim()), (Some(0), "word word word"), "{answered:?}");
    assert_eq!(hosts_of(&hosted.place).len(), 0);
    serving.close_input();
    assert_eq!(serving.end().code, Some(0));
    assert!(!hosted.socket().exists());
}

/// How a call that cannot be answered ends.
fn is_lost(error: &ClientError) -> bool {
    *error == ClientError::Disconnected
}
