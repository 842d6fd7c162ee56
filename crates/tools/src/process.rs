//! Runs commands without leaving any process behind.
//!
//! Invariants: when a [`Running`] command has ended or was dropped, every process it started has been ended
//! too. All commands are started by one thread, which lasts as long as this process: a parent-death signal is
//! sent when the *thread* that started the child ends.
//!
//! Ending the process group is not enough, as a child that calls `setsid` leaves it. The methods, best first:
//! - a PID namespace, where the system grants one: when its first process dies, the kernel ends all others;
//! - otherwise the process tree. With a [`Helper`] all descendants stay descendants of the helper, which ends
//!   them. Without one, all descendants, all processes of the command's session, and all processes that
//!   inherited its marker in their environment are looked up and ended until none is left. This misses only a
//!   process that left the session, outlived its parent and cleared its environment.
//!
//! A helper also ties the command to this process, so that the command ends even if this process is killed,
//! and drops the command's privileges.

mod tree;

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::process::{Child, ChildStdout, Command};

use crate::helper::{Helper, Role};
use crate::sandbox::confinement::Confinement;

/// Ends all descendants of this process: for the helper, whose descendants are those of a command.
#[cfg(target_os = "linux")]
pub(crate) fn end_descendants() {
    tree::end_descendants();
}

/// How a command's processes are contained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Containment {
    /// Its own PID namespace; this process has the privilege for it.
    PidNamespace,
    /// A PID namespace inside a user namespace, which needs no privilege: files of other users appear to
    /// belong to nobody.
    UserNamespace,
    /// Searching the process tree.
    ProcessTree,
}

impl Containment {
    /// Returns the command line prefix of the shell that starts the command.
    fn prefix(self) -> &'static [&'static str] {
        match self {
            Self::PidNamespace => &["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--"],
            Self::UserNamespace => &[
                "unshare", "--user", "--map-current-user", "--pid", "--fork", "--kill-child", "--mount-proc",
                "--",
            ],
            Self::ProcessTree => &[],
        }
    }

    /// Returns the best method that works here, found by trying; blocks for some milliseconds the first time.
    pub fn detect() -> Self {
        static BEST: OnceLock<Containment> = OnceLock::new();
        *BEST.get_or_init(|| {
            let best =
                [Self::PidNamespace, Self::UserNamespace].into_iter().find(|containment| containment.works());
            let best = best.unwrap_or(Self::ProcessTree);
            tracing::debug!(?best, "containment of command processes");
            best
        })
    }

    pub(crate) fn is_namespace(self) -> bool {
        match self {
            Self::PidNamespace | Self::UserNamespace => true,
            Self::ProcessTree => false,
        }
    }

    pub(crate) fn works(self) -> bool {
        let Some((program, arguments)) = self.prefix().split_first() else { return true };
        let mut probe = std::process::Command::new(program);
        probe.args(arguments).args(["/bin/sh", "-c", "exit 0"]);
        probe.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        probe.status().is_ok_and(|status| status.success())
    }
}

/// A command to start: program, folder and environment.
pub(crate) struct Launch {
    /// The program and its arguments.
    pub(crate) argv: Vec<OsString>,
    pub(crate) directory: PathBuf,
    /// The complete environment.
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// `None`: the `umask` of this process.
    pub(crate) umask: Option<u32>,
    pub(crate) containment: Containment,
    pub(crate) helper: Option<Helper>,
    /// bubblewrap and its arguments, in place of the containment's own namespace.
    pub(crate) bubblewrap: Option<(PathBuf, Vec<OsString>)>,
    /// What the helper applies.
    pub(crate) confinement: Confinement,
}

impl Launch {
    /// Whether the first process ends all others of the command by its own end.
    fn has_namespace(&self) -> bool {
        self.bubblewrap.is_some() || self.containment.is_namespace()
    }

    /// Returns the program that makes the namespaces, with its arguments.
    fn prefix(&self) -> Vec<OsString> {
        if let Some((program, arguments)) = &self.bubblewrap {
            return [program.as_os_str().to_owned()].into_iter().chain(arguments.iter().cloned()).collect();
        }
        let mut prefix: Vec<OsString> = self.containment.prefix().iter().map(OsString::from).collect();
        let mut options: Vec<&str> = Vec::new();
        if self.confinement.has_own_loopback {
            options.extend(["--net", "--ipc", "--uts"]);
        }
        if self.containment == Containment::UserNamespace && self.helper.is_some() {
            // The helper makes mounts, and then drops them.
            options.push("--keep-caps");
        }
        if let Some(program) = prefix.first_mut().filter(|_| !options.is_empty()) {
            let rest: Vec<OsString> = options.into_iter().map(OsString::from).collect();
            let program = std::mem::take(program);
            prefix.splice(..1, [program].into_iter().chain(rest));
        }
        prefix
    }

    /// Returns the whole command line, and whether its first process detaches from the terminal itself.
    fn command_line(&self) -> std::io::Result<(Vec<OsString>, bool)> {
        let mut line: Vec<OsString> = Vec::new();
        let leaves = match (&self.helper, self.has_namespace()) {
            (Some(_), true) => {
                line.extend(Role::Lead.command_line(std::process::id()));
                line.extend(self.prefix());
                line.extend(Role::Confine.command_line(0));
                line.push(self.confinement.to_argument()?);
                true
            }
            (Some(_), false) => {
                line.extend(Role::Guard.command_line(std::process::id()));
                line.push(self.confinement.to_argument()?);
                true
            }
            (None, _) => {
                // In its own session it cannot ask questions on the user's terminal.
                line.extend(setsid().map(|path| path.as_os_str().to_owned()));
                let leaves = !line.is_empty();
                line.extend(self.prefix());
                leaves
            }
        };
        let umask = self.umask.map(|umask| format!("umask {:03o}; ", umask & 0o777)).unwrap_or_default();
        let script = umask + if self.has_namespace() { IN_NAMESPACE } else { IN_TREE };
        line.extend(["/bin/sh", "-c", &script, "greenroom"].map(OsString::from));
        line.extend(self.argv.iter().cloned());
        Ok((line, leaves))
    }
}

/// Runs its arguments with both outputs merged into one. The first process of a namespace ignores signals and
/// must reap orphans: this shell is that process.
const IN_NAMESPACE: &str = r#""$@" 2>&1; exit $?"#;
/// Becomes its arguments, with both outputs merged into one.
const IN_TREE: &str = r#"exec "$@" 2>&1"#;

/// A running command. It has no input; standard output and standard error are one stream.
pub(crate) struct Running {
    // Dropped before the child, which would end the guard first.
    processes: EndOfTree,
    child: Child,
}

/// The processes of a child. When it is dropped, they are ended.
#[derive(Debug)]
pub(crate) struct EndOfTree {
    root: i32,
    marker: String,
    /// When the root process started, in clock ticks since system start.
    since: u64,
    /// Whether the root process ends by itself after all others have ended.
    root_is_guard: bool,
    /// Whether all processes are known to have ended.
    ended: bool,
}

impl EndOfTree {
    /// Returns the processes of a child that has not been waited for, and whose environment has the id in [`MARKER`].
    pub(crate) fn of(child: &Child, id: &str, root_is_guard: bool) -> Self {
        let pid = child.id().expect("it was not waited for yet");
        let root = i32::try_from(pid).expect("process ids are positive and fit");
        // It has not been reaped, so it is in the process table even if it has ended; no descendant is older.
        let since = tree::started(root);
        Self { root, marker: format!("{MARKER}={id}"), since, root_is_guard, ended: false }
    }

    /// Notes that the root has ended by itself. Then a guard has ended all others.
    pub(crate) fn root_has_ended(&mut self) {
        self.ended = self.root_is_guard;
    }
}

impl Drop for EndOfTree {
    fn drop(&mut self) {
        if !self.ended {
            tree::end_all(self.root, self.since, &self.marker, self.root_is_guard);
        }
    }
}

/// How often the threads of a command are counted.
const COUNTED_EVERY: Duration = Duration::from_millis(50);

/// The environment variable that identifies a command's processes.
pub(crate) const MARKER: &str = "GREENROOM_COMMAND_ID";

impl Running {
    /// Starts the command; its output, including standard error, comes from the stream. Blocks for about a
    /// millisecond, so that a call dropped meanwhile ends after the command has begun, and can end it.
    pub(crate) fn start(launch: Launch) -> std::io::Result<(Self, ChildStdout)> {
        on_lasting_thread(move || Self::start_here(&launch))?
    }

    fn start_here(launch: &Launch) -> std::io::Result<(Self, ChildStdout)> {
        let id = command_id();
        let (argv, leaves_terminal) = launch.command_line()?;
        let mut command = Command::new(&argv[0]);
        command.args(&argv[1..]).current_dir(&launch.directory).env_clear();
        command.envs(launch.environment.iter().cloned()).env(MARKER, &id).kill_on_drop(true);
        let input = launch.helper.as_ref().map_or_else(|| Ok(Stdio::null()), Helper::input)?;
        // What the programs before the command say is output, too: why a sandbox could not be made.
        let (output, end) = std::io::pipe()?;
        command.stdin(input).stdout(end.try_clone()?).stderr(end);
        if !leaves_terminal {
            command.process_group(0);
        }
        let child = command.spawn()?;
        // Only the command itself keeps the other end open.
        drop(command);
        let output = ChildStdout::from_std(std::process::ChildStdout::from(OwnedFd::from(output)))?;
        let processes = EndOfTree::of(&child, &id, launch.helper.is_some() || launch.has_namespace());
        Ok((Self { processes, child }, output))
    }

    /// Returns when the command has more threads than this; never on a system that does not tell. The system itself
    /// counts those of ordinary users in a namespace only.
    pub(crate) fn outgrows(&self, threads_max: u64) -> impl Future<Output = ()> + use<> {
        let (root, since) = (self.processes.root, self.processes.since);
        async move {
            let Some(first) = tree::threads_of_system() else { return std::future::pending().await };
            loop {
                tokio::time::sleep(COUNTED_EVERY).await;
                let now = tree::threads_of_system().unwrap_or_default();
                // Searching all processes takes milliseconds.
                if now.saturating_sub(first) < threads_max / 2 {
                    continue;
                }
                let count = tokio::task::spawn_blocking(move || tree::count_threads(root, since));
                if count.await.is_ok_and(|count| count > threads_max) {
                    return;
                }
            }
        }
    }

    /// Waits until the command itself has ended; its child processes may continue.
    pub(crate) async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        let status = self.child.wait().await?;
        // `unshare` reports the end of the namespace's first process, after which the kernel has ended the
        // others, and the helper ends them itself, unless either was killed.
        if status.code().is_some() {
            self.processes.root_has_ended();
        }
        Ok(status)
    }

    /// Ends all remaining processes. Dropping this future ends them too.
    pub(crate) async fn end(self) {
        // Searching all processes blocks for some milliseconds. It fails only if the runtime stops; then the
        // closure was dropped, and with it the command.
        let _ = tokio::task::spawn_blocking(move || drop(self)).await;
    }
}

type Task = Box<dyn FnOnce() + Send>;

/// Runs `work` in this runtime, on the thread that starts commands, and waits for it. Threads of a runtime may end at any
/// time.
pub(crate) fn on_lasting_thread<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<T> {
    let (tell, told) = mpsc::sync_channel(1);
    let runtime = tokio::runtime::Handle::current();
    give_to_lasting_thread(Box::new(move || {
        let _context = runtime.enter();
        // The receiver is waiting.
        let _ = tell.send(work());
    }))?;
    told.recv().map_err(|_| std::io::Error::other("the thread that starts commands failed"))
}

fn give_to_lasting_thread(task: Task) -> std::io::Result<()> {
    static TASKS: Mutex<Option<mpsc::Sender<Task>>> = Mutex::new(None);
    let mut tasks = TASKS.lock();
    let sender = match &*tasks {
        Some(sender) => sender,
        None => {
            let (sender, receiver) = mpsc::channel::<Task>();
            let run = move || receiver.into_iter().for_each(|task| task());
            std::thread::Builder::new().name("commands".to_owned()).spawn(run)?;
            tasks.insert(sender)
        }
    };
    let sent = sender.send(task);
    if sent.is_err() {
        // The thread panicked; the next command gets a new one.
        *tasks = None;
    }
    sent.map_err(|_| std::io::Error::other("the thread that starts commands has ended"))
}

/// Returns an identifier that is unique across processes.
pub(crate) fn command_id() -> String {
    use std::hash::{BuildHasher, Hasher};
    let random = || std::hash::RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", random(), random())
}

/// Returns the path of the `setsid` program, if there is one.
fn setsid() -> Option<&'static PathBuf> {
    static PLACE: OnceLock<Option<PathBuf>> = OnceLock::new();
    let look =
        || ["/usr/bin/setsid", "/bin/setsid"].into_iter().map(PathBuf::from).find(|path| path.exists());
    PLACE.get_or_init(look).as_ref()
}
