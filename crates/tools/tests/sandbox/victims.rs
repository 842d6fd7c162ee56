//! Things that commands must not reach, and whether one did.
//!
//! Invariants: each kind of harm is seen from outside: secrets in the output, changed files, connections, signals,
//! bytes at a terminal. After each look, everything is as before.

use std::collections::BTreeMap;
use std::io::Read;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::pty::OpenptFlags;

/// What every secret contains.
pub(crate) const SECRET: &str = "SECRET-7c1f";

/// The victims, in a folder of their own.
pub(crate) struct Victims {
    pub(crate) base: PathBuf,
    process: Child,
    tcp: TcpListener,
    udp: UdpSocket,
    sockets: Vec<(&'static str, UnixListener)>,
    terminal: std::fs::File,
    terminal_path: String,
    abstract_name: String,
    /// What the arguments of a command's processes end with.
    mark: String,
}

impl Victims {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let base = folder().join(format!("v{number}"));
        let _ = std::fs::remove_dir_all(&base);
        restore(&base);
        let store = base.join("store");
        let process = Command::new("sleep")
            .arg0(format!("sleep of {SECRET}"))
            .args(["1000"])
            .env_clear()
            .env("KEY", SECRET)
            .current_dir(&store)
            .stdin(std::fs::File::open(store.join("token")).expect("the token exists"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("sleep is everywhere");
        let abstract_name = format!("greenroom-probe-{number}");
        let address = SocketAddr::from_abstract_name(&abstract_name).expect("a short name");
        let sockets = vec![
            ("the abstract socket", UnixListener::bind_addr(&address).expect("it is free")),
            ("the host's socket", bound(&base, "store/host.sock")),
            ("the service's socket", bound(&base, "outside/service.sock")),
        ];
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a port");
        for (_, socket) in &sockets {
            socket.set_nonblocking(true).expect("sockets can");
        }
        tcp.set_nonblocking(true).expect("sockets can");
        udp.set_nonblocking(true).expect("sockets can");
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let terminal = rustix::pty::openpt(flags).expect("a terminal");
        rustix::pty::grantpt(&terminal).expect("a terminal");
        rustix::pty::unlockpt(&terminal).expect("a terminal");
        rustix::io::ioctl_fionbio(&terminal, true).expect("terminals can");
        let terminal_path = rustix::pty::ptsname(&terminal, Vec::new()).expect("it has a name");
        let terminal_path = terminal_path.into_string().expect("text");
        let mark = number.replace('-', "");
        let terminal = std::fs::File::from(terminal);
        Self { base, process, tcp, udp, sockets, terminal, terminal_path, abstract_name, mark }
    }

    /// Returns what the arguments of processes end with that must not be left.
    pub(crate) fn mark(&self) -> &str {
        &self.mark
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.base.join("ws")
    }

    /// The variables with which commands find the victims.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let at = |part: &str| self.base.join(part).display().to_string();
        let port =
            |address: std::io::Result<std::net::SocketAddr>| address.expect("it is bound").port().to_string();
        [
            ("BASE", self.base.display().to_string()),
            ("WS", at("ws")),
            ("STORE", at("store")),
            ("CONFIG", at("config")),
            ("OUTSIDE", at("outside")),
            ("VICTIM", self.process.id().to_string()),
            ("OWNER", std::process::id().to_string()),
            ("PORT", port(self.tcp.local_addr())),
            ("UDP_PORT", port(self.udp.local_addr())),
            ("ABSTRACT", self.abstract_name.clone()),
            ("TERMINAL", self.terminal_path.clone()),
            ("MARK", self.mark.clone()),
            ("HOME", at("home")),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// Returns the harm that was done, and makes everything as before.
    pub(crate) fn harm(&mut self, output: &str) -> Vec<String> {
        let mut harm = Vec::new();
        for secret in [SECRET, "ESCAPED"] {
            if output.contains(secret) {
                harm.push(format!("the output has {secret}"));
            }
        }
        let (before, now) = (expected(&self.base), tree(&self.base));
        for (path, state) in &now {
            if before.get(path) != Some(state) {
                harm.push(format!("{path} is {state}, and was {:?}", before.get(path)));
            }
        }
        for path in before.keys().filter(|path| !now.contains_key(*path)) {
            harm.push(format!("{path} is gone"));
        }
        for (name, socket) in &self.sockets {
            while socket.accept().is_ok() {
                harm.push(format!("a connection to {name}"));
            }
        }
        while self.tcp.accept().is_ok() {
            harm.push("a connection to the port".to_owned());
        }
        let mut bytes = [0; 64];
        while self.udp.recv(&mut bytes).is_ok() {
            harm.push("a datagram".to_owned());
        }
        while let Ok(count @ 1..) = self.terminal.read(&mut bytes) {
            harm.push(format!("bytes at the terminal: {:?}", String::from_utf8_lossy(&bytes[..count])));
        }
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap_or_default();
        if !stat.contains(") S ") && !stat.contains(") D ") {
            harm.push(format!("the process is not as before: {stat}"));
        }
        harm.extend(left(&self.mark).into_iter().map(|line| format!("left behind: {line}")));
        if !harm.is_empty() {
            self.renew();
        }
        harm
    }

    fn renew(&mut self) {
        for line in left(&self.mark) {
            let pid = line.split(' ').next().unwrap_or_default().to_owned();
            let _ = Command::new("kill").args(["-9", &pid]).status();
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
        // Commands of the old ones may still hold their files.
        *self = Self::new();
    }
}

impl Drop for Victims {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.base);
    }
}

fn bound(base: &Path, path: &str) -> UnixListener {
    let path = base.join(path);
    let _ = std::fs::remove_file(&path);
    UnixListener::bind(path).expect("a short path")
}

/// The folder for victims: not in `/tmp`, which a sandbox replaces.
fn folder() -> PathBuf {
    greenroom_tools::privacy::variable(crate::environments::FOLDER)
        .map_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")), PathBuf::from)
        .canonicalize()
        .expect("the folder exists")
}

/// The files of the victims, with their content.
const FILES: [(&str, &str); 27] = [
    ("store/token", SECRET),
    ("store/journal", "entries"),
    ("config/greenroom.yaml", SECRET),
    ("outside/file.txt", "hello"),
    ("home/.ssh/id_ed25519", SECRET),
    ("home/.gitconfig", "[core]\n\tattributesFile = x\n"),
    ("ws/a.txt", "hello"),
    ("ws/.git/HEAD", "ref: refs/heads/main\n"),
    ("ws/.git/config", "[core]\n\trepositoryformatversion = 0\n\thooksPath = .husky\n"),
    ("ws/.git/hooks/pre-commit", "exit 0\n"),
    ("ws/.git/objects/info/x", ""),
    ("ws/.git/refs/heads/x", ""),
    ("ws/.git/modules/part/HEAD", "ref: refs/heads/main\n"),
    ("ws/.git/modules/part/config", "[core]\n"),
    ("ws/.git/modules/part/hooks/x", ""),
    ("ws/.git/modules/part/objects/info/x", ""),
    ("ws/.git/modules/part/refs/heads/x", ""),
    ("ws/deep/nested/.git/HEAD", "ref: refs/heads/main\n"),
    ("ws/deep/nested/.git/config", "[core]\n"),
    ("ws/deep/nested/b.txt", "hello"),
    ("ws/bare/HEAD", "ref: refs/heads/main\n"),
    ("ws/bare/config", "[core]\n\tbare = true\n"),
    ("ws/bare/hooks/x", ""),
    ("ws/bare/objects/info/x", ""),
    ("ws/bare/refs/heads/x", ""),
    ("ws/.husky/commit-msg", "exit 0\n"),
    ("ws/sub/c.txt", "hello"),
];

fn restore(base: &Path) {
    for (path, content) in FILES {
        let path = base.join(path);
        std::fs::create_dir_all(path.parent().expect("in a folder")).expect("folders can be made");
        std::fs::write(&path, content).expect("files can be made");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("they are ours");
    }
}

fn expected(base: &Path) -> BTreeMap<String, String> {
    let mut expected: BTreeMap<String, String> =
        FILES.iter().map(|(path, content)| ((*path).to_owned(), format!("644 {content:?}"))).collect();
    for (path, _) in FILES {
        for folder in Path::new(path).ancestors().skip(1).filter(|path| !path.as_os_str().is_empty()) {
            expected.insert(folder.display().to_string(), "a folder".to_owned());
        }
    }
    for socket in ["store/host.sock", "outside/service.sock"] {
        expected.insert(socket.to_owned(), "a socket".to_owned());
    }
    assert!(base.exists());
    expected
}

/// Returns everything in the folder.
fn tree(base: &Path) -> BTreeMap<String, String> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![base.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok) {
            let path = entry.path();
            let metadata = path.symlink_metadata().expect("it is there");
            let state = if metadata.is_dir() {
                folders.push(path.clone());
                "a folder".to_owned()
            } else if metadata.is_file() {
                let content = std::fs::read(&path).unwrap_or_default();
                let old = metadata
                    .modified()
                    .is_ok_and(|time| time.elapsed().is_ok_and(|age| age.as_secs() > 10 * 24 * 3_600));
                let mode = metadata.permissions().mode() & 0o7777;
                let age = if old { " old" } else { "" };
                format!("{mode:o}{age} {:?}", String::from_utf8_lossy(&content))
            } else if metadata.file_type().is_socket() {
                "a socket".to_owned()
            } else {
                "a link or a device".to_owned()
            };
            found.insert(path.strip_prefix(base).expect("it is in it").display().to_string(), state);
        }
    }
    found
}

/// Returns the processes that a command left behind.
pub(crate) fn left(mark: &str) -> Vec<String> {
    let mark = format!(".{mark}");
    let entries = std::fs::read_dir("/proc").expect("a Linux system").filter_map(Result::ok);
    entries
        .filter_map(|entry| {
            let line = std::fs::read_to_string(entry.path().join("cmdline")).ok()?;
            let line = line.replace('\0', " ");
            line.trim_end()
                .ends_with(&mark)
                .then(|| format!("{} {line}", entry.file_name().to_string_lossy()))
        })
        .collect()
}
