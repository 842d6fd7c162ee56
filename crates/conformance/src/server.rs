//! A PostgreSQL server for tests, in a folder of its own.
//!
//! Invariants: it listens on a socket in its folder only. It ends, and its folder is removed, when the test process ends,
//! however that ends: a shell waits for that. It keeps its promises as a real one does: `fsync` is on.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

/// A running server.
#[derive(Debug)]
pub struct Server {
    programs: PathBuf,
    folder: PathBuf,
    /// The user and group of the server, if this process is root, as whom PostgreSQL refuses to run.
    user: Option<(u32, u32)>,
    schemas: AtomicU64,
    /// Ends the server once this process has ended.
    watch: std::process::Child,
}

const SETTINGS: &[&str] = &[
    "listen_addresses=''", "max_connections=1000", "shared_buffers=64MB", "autovacuum_naptime=5s",
    "log_min_messages=warning",
];

impl Server {
    /// Starts a server, or says that there is none and returns `None`.
    ///
    /// # Panics
    /// If there is none and the variable `GREENROOM_REQUIRE_POSTGRES` is set to `1`; if it cannot be started.
    pub fn start() -> Option<Self> {
        Self::start_on(None)
    }

    /// As [`Self::start`], with the data in a new folder of this file system.
    ///
    /// # Panics
    /// As [`Self::start`].
    #[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
    #[expect(clippy::disallowed_methods, reason = "whether a server is required is said by the environment")]
    pub fn start_on(disk: Option<&Path>) -> Option<Self> {
        let Some(programs) = programs() else {
            let required = std::env::var("GREENROOM_REQUIRE_POSTGRES").is_ok_and(|value| value == "1");
            assert!(
                !required,
                "there is no PostgreSQL server: install Debian's `postgresql`, or another with `initdb`"
            );
            eprintln!("SKIPPED: there is no PostgreSQL server (`initdb`); install Debian's `postgresql`");
            return None;
        };
        // In a folder that other users can reach, with a short path, as a socket needs it.
        let folder = tempfile::Builder::new().prefix("gr").tempdir().expect("a temporary folder").keep();
        let user = (output("id", &["-u"]) == "0").then(|| {
            let id = |flag| output("id", &[flag, "nobody"]).parse().expect("there is a user `nobody`");
            (id("-u"), id("-g"))
        });
        if let Some((user, group)) = user {
            std::os::unix::fs::chown(&folder, Some(user), Some(group)).expect("root may do that");
        }
        if let Some(disk) = disk {
            let data = disk.join("data");
            std::fs::create_dir(&data).expect("the disk can be written");
            std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o700))
                .expect("the folder is ours");
            if let Some((user, group)) = user {
                std::os::unix::fs::chown(&data, Some(user), Some(group)).expect("root may do that");
            }
            std::os::unix::fs::symlink(&data, folder.join("data")).expect("a link");
        }
        let watch = Command::new("sh")
            .args(["-c", WATCH, "watch"])
            .args([&programs.join("pg_ctl"), &folder])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("there is a shell");
        let server = Self { programs, folder, user, schemas: AtomicU64::new(0), watch };
        server.run(
            "initdb",
            &["-D", "data", "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
        );
        server.start_again();
        Some(server)
    }

    /// Starts it again after [`Self::stop`].
    pub fn start_again(&self) {
        self.start_with(&[]);
    }

    /// Starts it with other settings, `name=value` each.
    pub fn start_with(&self, settings: &[&str]) {
        let mut options = format!("-k {}", self.folder.display());
        for setting in SETTINGS.iter().chain(settings) {
            options.push_str(" -c ");
            options.push_str(setting);
        }
        self.run("pg_ctl", &["-D", "data", "-l", "log", "-w", "-s", "-o", &options, "start"]);
    }

    /// Starts it as a standby that only reads, of a primary that is gone. It stays one.
    ///
    /// # Panics
    /// If that fails.
    pub fn start_as_standby(&self) {
        std::fs::write(self.folder.join("data/standby.signal"), "").expect("the folder is there");
        self.start_again();
    }

    /// Starts it again so that it takes connections on a port, of clients with TLS only. Returns the port and the file of the
    /// authority that signed its certificate, which is for `localhost`; or says that there is no `openssl`, and returns
    /// `None`.
    ///
    /// # Panics
    /// If that fails.
    #[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
    pub fn start_with_tls(&self) -> Option<(u16, PathBuf)> {
        if try_output("openssl", &["version"]).is_err() {
            eprintln!("SKIPPED: there is no `openssl`, which makes certificates for the test");
            return None;
        }
        let make = "cd data && openssl req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -subj /CN=ca -days 2 \
                    && openssl req -newkey rsa:2048 -nodes -keyout server.key -out server.csr -subj /CN=localhost \
                    && echo subjectAltName=DNS:localhost > names \
                    && openssl x509 -req -in server.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names -days 2 \
                       -out server.crt && chmod 600 server.key \
                    && echo 'hostssl all all 127.0.0.1/32 trust' > pg_hba.conf && echo 'local all all trust' >> pg_hba.conf";
        self.stop();
        self.run_program(Path::new("sh"), &["-c", make]);
        let port = std::net::TcpListener::bind("127.0.0.1:0")
            .and_then(|free| free.local_addr())
            .expect("a port")
            .port();
        // Several sockets: the one of the port, and the one that everything else uses.
        self.start_with(&["ssl=on", "listen_addresses=127.0.0.1", &format!("port={port}")]);
        let socket = self.folder.join(format!(".s.PGSQL.{port}"));
        std::os::unix::fs::symlink(socket, self.socket()).expect("a link");
        let authority = self.folder.join("ca.pem");
        std::fs::copy(self.folder.join("data/ca.pem"), &authority).expect("it can be copied");
        Some((port, authority))
    }

    /// Kills all its processes, whose disk is gone. Its own process number must have been asked for before: see
    /// [`Self::process`].
    pub fn kill(process: u32) {
        let process = process.to_string();
        // The parent would start its children again.
        let _ = try_output("kill", &["-STOP", &process]);
        let _ = try_output("pkill", &["-KILL", "-P", &process]);
        let _ = try_output("kill", &["-KILL", &process]);
    }

    /// Returns the number of its first process.
    ///
    /// # Panics
    /// If it does not run.
    pub fn process(&self) -> u32 {
        let file = std::fs::read_to_string(self.folder.join("data/postmaster.pid")).expect("the server runs");
        file.lines().next().and_then(|line| line.parse().ok()).expect("a process number")
    }

    /// Starts it again after its disk was cut off, and came back.
    pub fn start_after_cut(&self) {
        let _ = std::fs::remove_file(self.folder.join("data/postmaster.pid"));
        self.start_again();
    }

    /// Stops it as a crash does: connections break, and it recovers from its log at the next start.
    pub fn stop(&self) {
        self.run("pg_ctl", &["-D", "data", "-m", "immediate", "-w", "-s", "stop"]);
    }

    /// Returns a connection string, in the form of a list.
    pub fn url(&self) -> String {
        format!("host={} user=postgres dbname=postgres sslmode=disable", self.folder.display())
    }

    /// Returns the path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join(".s.PGSQL.5432")
    }

    /// Returns a name for a schema that no other test uses.
    pub fn new_schema(&self) -> String {
        format!("s{}", self.schemas.fetch_add(1, Ordering::Relaxed))
    }

    /// Runs a statement with `psql`, and returns what it prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn sql(&self, statement: &str) -> String {
        let folder = self.folder.to_string_lossy();
        self.run(
            "psql",
            &[
                "-h", &folder, "-U", "postgres", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c",
                statement,
            ],
        )
    }

    /// Breaks all connections of other clients, on the server's side.
    pub fn terminate_all(&self) {
        self.sql("select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'greenroom %'");
    }

    /// Stops the server, keeps a copy of its data, and starts it again.
    ///
    /// # Panics
    /// If the data cannot be copied.
    pub fn copy(&self) -> Copy {
        self.stop();
        let number = self.schemas.fetch_add(1, Ordering::Relaxed);
        let copy = Copy(self.folder.join(format!("copy{number}")));
        output("cp", &["-a", &self.folder.join("data").to_string_lossy(), &copy.0.to_string_lossy()]);
        self.start_again();
        copy
    }

    /// Stops the server, puts a copy of its data back, and starts it again: all that happened in between is forgotten.
    ///
    /// # Panics
    /// If the data cannot be replaced.
    #[expect(clippy::needless_pass_by_value, reason = "a copy is used up")]
    pub fn put_back(&self, copy: Copy) {
        self.stop();
        std::fs::remove_dir_all(self.folder.join("data")).expect("it can be removed");
        std::fs::rename(&copy.0, self.folder.join("data")).expect("it can be renamed");
        self.start_again();
    }

    /// Runs one of the server's programs in its folder, as its user.
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        self.run_program(&self.programs.join(program), arguments)
    }

    fn run_program(&self, program: &Path, arguments: &[&str]) -> String {
        let mut command = Command::new(program);
        command.args(arguments).current_dir(&self.folder).stdin(Stdio::null());
        command.env("LC_ALL", "C").env_remove("PGDATA").env_remove("PGHOST").env_remove("PGPORT");
        if let Some((user, group)) = self.user {
            command.uid(user).gid(group);
        }
        let output = command.output().unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if !output.status.success() {
            let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            panic!("{} {arguments:?} failed: {}\n{log}", program.display(), text(&output.stderr));
        }
        text(&output.stdout)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The end of its input lets the shell stop the server and remove the folder.
        drop(self.watch.stdin.take());
        drop(self.watch.wait());
    }
}

/// The data of a server at a moment.
#[derive(Debug)]
pub struct Copy(PathBuf);

/// Waits for the end of its input, which comes with the end of the process that started it, then cleans up.
const WATCH: &str = "trap '' INT TERM HUP; cat >/dev/null; cd \"$2\" || exit
    if [ -f data/postmaster.pid ]; then kill -QUIT \"$(head -n 1 data/postmaster.pid)\"; fi
    tries=0; while [ -f data/postmaster.pid ] && [ $tries -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
    cd / && rm -rf \"$2\"";

/// Returns the folder of the server's programs: what `pg_config` names, the newest of Debian's, or the one in `PATH`.
fn programs() -> Option<PathBuf> {
    let has_server = |folder: &Path| folder.join("initdb").is_file() && folder.join("pg_ctl").is_file();
    let named =
        try_output("pg_config", &["--bindir"]).map(PathBuf::from).ok().filter(|folder| has_server(folder));
    named.or_else(|| newest(Path::new("/usr/lib/postgresql"), has_server)).or_else(|| {
        let found = PathBuf::from(try_output("which", &["initdb"]).ok()?);
        found.parent().filter(|folder| has_server(folder)).map(Path::to_owned)
    })
}

fn newest(folder: &Path, has_server: impl Fn(&Path) -> bool) -> Option<PathBuf> {
    let versions = folder.read_dir().ok()?.filter_map(Result::ok);
    let numbered = versions.filter_map(|entry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        Some((number, entry.path().join("bin")))
    });
    numbered.filter(|(_, folder)| has_server(folder)).max().map(|(_, folder)| folder)
}

fn output(program: &str, arguments: &[&str]) -> String {
    try_output(program, arguments).unwrap_or_else(|error| panic!("{program} {arguments:?}: {error}"))
}

fn try_output(program: &str, arguments: &[&str]) -> io::Result<String> {
    let output = Command::new(program).args(arguments).stderr(Stdio::null()).output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{}", output.status)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
