//! A command of a model has the user's rights, and would be the host, or a client: it is neither.
//!
//! Each attack runs in every way in which commands are held together here, as `root` and as an ordinary user. The attacker
//! is this test program once more, begun by a command of a model. `GREENROOM_PEER_VICTIMS=200` has so many victims for
//! each attack.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use greenroom_simulator::Answer;
use rustix::process::{Signal, geteuid, kill_process};
use serde_json::json;

use super::{Guard, PATIENCE, lock_of, wait_until};
use crate::cli::commands::{Circumstances, NOBODY, circumstances, runs};
use crate::cli::support::{Model, Place, Ran, Running, Says, ran};

/// How many victims there are for each attack.
const VICTIMS: usize = 2;
/// How many of them come at a time.
const AT_A_TIME: usize = 6;
/// The variable that says how many there are.
const VICTIMS_VARIABLE: &str = "GREENROOM_PEER_VICTIMS";
/// The variable that makes this program an attacker: the form of the attack.
const FORM: &str = "ATTACK_FORM";
/// The variable that names the folder of the attack's store.
const STORE: &str = "ATTACK_STORE";
/// What no attacker must hear.
const KEY: &str = "sk-VICTIM";
/// What a command says that is refused.
const NOT_TRUSTED: &str = "is not trusted";
/// An attacker that nobody ends.
const ATTACK_MAX: Duration = Duration::from_secs(600);

#[expect(clippy::disallowed_methods, reason = "the attacker is told by variables what it is to do")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn victims() -> usize {
    variable(VICTIMS_VARIABLE).and_then(|count| count.parse().ok()).unwrap_or(VICTIMS)
}

/// What an attacker does. It is no test: without its variables it does nothing.
#[test]
fn attacker() {
    let (Some(form), Some(store)) = (variable(FORM), variable(STORE)) else { return };
    let attacker = Attacker { store: store.into(), began: Instant::now() };
    match form.as_str() {
        "replaces" => attacker.replaces(),
        "locks" => {
            let lock = lock_of(&attacker.store).expect("nobody has the lock");
            std::fs::write(attacker.store.join("lock"), std::process::id().to_string()).unwrap();
            attacker.replaces();
            drop(lock);
        }
        // The process that listened is gone when somebody comes.
        "hands-on" => {
            let listener = attacker.bind();
            attacker.hand_on("has", listener.into());
        }
        "has" => attacker.serve(&own_input().into()),
        "speaks" => speak(&attacker, UnixStream::connect(attacker.store.join("host.sock")).unwrap()),
        // The process that connected is gone when something is said.
        "connects" => {
            let stream = UnixStream::connect(attacker.store.join("host.sock")).unwrap();
            attacker.hand_on("says", stream.into());
        }
        "says" => {
            std::thread::park_timeout(Duration::from_millis(200));
            speak(&attacker, own_input().into());
        }
        other => panic!("there is no attack {other}"),
    }
}

/// What the attacker's standard input is: a socket.
fn own_input() -> std::os::fd::OwnedFd {
    std::io::stdin().as_fd().try_clone_to_owned().unwrap()
}

struct Attacker {
    store: PathBuf,
    began: Instant,
}

impl Attacker {
    fn is_over(&self) -> bool {
        self.store.join("over").exists() || self.began.elapsed() > ATTACK_MAX
    }

    /// Notes what it got.
    fn note(&self, what: &[u8]) {
        let mut file =
            std::fs::File::options().append(true).create(true).open(self.store.join("loot")).unwrap();
        file.write_all(&[what, b"\n"].concat()).unwrap();
    }

    /// Listens in the place of the host.
    fn bind(&self) -> UnixListener {
        let aside = self.store.join(format!("x-{}", std::process::id()));
        let _ = std::fs::remove_file(&aside);
        let listener = UnixListener::bind(&aside).unwrap();
        std::fs::rename(&aside, self.store.join("host.sock")).unwrap();
        listener
    }

    /// Puts its own socket into the place of the host's, as fast as it can, and listens.
    fn replaces(&self) {
        let place = self.store.join("host.sock");
        let number = || place.symlink_metadata().map(|metadata| metadata.ino()).ok();
        while !self.is_over() {
            let listener = self.bind();
            let own = number();
            listener.set_nonblocking(true).unwrap();
            while number() == own && !self.is_over() {
                while let Ok((stream, _)) = listener.accept() {
                    self.hear(&stream);
                }
                std::thread::park_timeout(Duration::from_micros(200));
            }
        }
    }

    fn serve(&self, listener: &UnixListener) {
        listener.set_nonblocking(true).unwrap();
        while !self.is_over() {
            while let Ok((stream, _)) = listener.accept() {
                self.hear(&stream);
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// Hears one client, and greets it as a host would.
    fn hear(&self, stream: &UnixStream) {
        self.note(b"met");
        stream.set_nonblocking(false).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let mut line = Vec::new();
        let _ = BufReader::new(stream).read_until(b'\n', &mut line);
        if line.is_empty() {
            return;
        }
        self.note(&line);
        let mut stream = stream;
        let greeting =
            json!({ "jsonrpc": "2.0", "id": 1, "result": { "protocol": 1, "version": "0.1.0", "pid": 1 } });
        let _ = writeln!(stream, "{greeting}");
        let mut rest = Vec::new();
        let _ = stream.take(1 << 20).read_to_end(&mut rest);
        self.note(&rest);
    }

    /// Goes on in another process, which has this as its input, and ends.
    fn hand_on(&self, form: &str, input: std::os::fd::OwnedFd) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(std::env::args().skip(1)).env(FORM, form).env(STORE, &self.store);
        command.stdin(Stdio::from(input)).stdout(Stdio::null()).stderr(Stdio::null());
        drop(command.spawn().unwrap());
        std::process::exit(0);
    }
}

/// Says to the host whatever a client may say, and notes the answers.
fn speak(attacker: &Attacker, mut stream: UnixStream) {
    stream.set_read_timeout(Some(Duration::from_secs(3))).unwrap();
    let hello = json!({ "protocol": 1, "version": "x", "kind": "run" });
    for (id, (method, params)) in [
        ("host/status", json!({})),
        ("client/hello", hello),
        ("session/list", json!({})),
        ("session/delete", json!({ "session_id": "kept" })),
        ("host/stop", json!({ "force": true })),
    ]
    .into_iter()
    .enumerate()
    {
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        let _ = writeln!(stream, "{line}");
    }
    let mut answers = Vec::new();
    let _ = stream.take(1 << 20).read_to_end(&mut answers);
    attacker.note(&answers);
    attacker.note(b"said");
}

/// A store that is attacked, in one of the ways in which commands are held together.
struct Attacked {
    circumstances: Circumstances,
    place: Place,
    model: Model,
    guard: Guard,
}

impl Attacked {
    fn new(circumstances: Circumstances) -> Self {
        let place = Place::new();
        let model = Model::new(Says(Answer::text("word")), |_| {});
        let guard = Guard::of(&place);
        let attacked = Self { circumstances, place, model, guard };
        std::fs::create_dir(attacked.store()).unwrap();
        // Where this program was built may be closed to others.
        let program = std::env::current_exe().unwrap();
        if std::fs::hard_link(&program, attacked.attacker()).is_err() {
            std::fs::copy(&program, attacked.attacker()).unwrap();
        }
        if circumstances.is_nobody {
            chown(attacked.store(), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        attacked
    }

    fn store(&self) -> PathBuf {
        self.place.store()
    }

    fn attacker(&self) -> PathBuf {
        self.place.work().parent().unwrap().join("attacker")
    }

    /// The shell's words for an attack of this form.
    fn attack(&self, form: &str) -> String {
        let (attacker, store) = (self.attacker(), self.store());
        format!(
            "env {FORM}={form} {STORE}={} {} --exact cli::host::peers::attacker",
            store.display(),
            attacker.display()
        )
    }

    fn with_model(&self, mut command: Command, url: &str) -> Command {
        command.env("GREENROOM_HOST_START", "true").env("OPENAI_BASE_URL", url);
        command
    }

    /// A `run` whose model runs this command: on the host of the store that is attacked, or beside it.
    fn begin(&self, command: &str, is_hosted: bool) -> (Model, Running) {
        let model = runs(command);
        let mut arguments = vec!["run", "-p", "Attack.", "--allow-shell", "--window", "100000"];
        if !is_hosted {
            arguments.push("--no-host");
        }
        let mut command = self.with_model(self.circumstances.command(&self.place, &arguments), &model.url());
        if !is_hosted {
            command.env("GREENROOM_DATA_DIR", self.place.work().join("its-own-store"));
        }
        (model, Running::start(&mut command))
    }

    /// A command of the user, with a key.
    fn victim(&self, arguments: &[&str]) -> Ran {
        let mut command =
            self.with_model(self.circumstances.command(&self.place, arguments), &self.model.url());
        command.env("OPENAI_API_KEY", format!("{KEY}-key"));
        ran(command.output().unwrap())
    }

    fn say(&self) -> Ran {
        self.victim(&["run", "--window", "100000", "-p", "x"])
    }

    fn loot(&self) -> String {
        std::fs::read(self.store().join("loot"))
            .map(|loot| String::from_utf8_lossy(&loot).into_owned())
            .unwrap_or_default()
    }

    /// Victims come, and none loses its key. Gives how many were served, and how many refused.
    fn victims(&self, what: &str) -> (usize, usize) {
        let (count, next) = (victims(), AtomicUsize::new(0));
        let all = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for _ in 0..AT_A_TIME.min(count) {
                scope.spawn(|| {
                    while next.fetch_add(1, Ordering::Relaxed) < count {
                        let ended = self.say();
                        all.lock().unwrap().push(ended);
                    }
                });
            }
        });
        let all = all.into_inner().unwrap();
        let is_refused = |ended: &Ran| {
            let said = [NOT_TRUSTED, "is in use", "does not answer"];
            ended.code == Some(3) && said.iter().any(|words| ended.stderr.contains(words))
        };
        for ended in &all {
            let is_served = ended.code == Some(0) && ended.stdout.trim() == "word";
            assert!(is_served || is_refused(ended), "{:?}, {what}: {ended:?}", self.circumstances);
        }
        let refused = all.iter().filter(|ended| is_refused(ended)).count();
        let loot = self.loot();
        assert!(!loot.contains(KEY) && !loot.contains("jsonrpc"), "{:?}, {what}: {loot}", self.circumstances);
        (all.len() - refused, refused)
    }

    /// The attack is over; what it had in its place is removed.
    fn end(&self, running: Running) -> Ran {
        std::fs::write(self.store().join("over"), "").unwrap();
        let ended = running.end();
        std::thread::park_timeout(Duration::from_millis(50));
        let _ = std::fs::remove_file(self.store().join("over"));
        ended
    }
}

impl Drop for Attacked {
    fn drop(&mut self) {
        let _ = std::fs::write(self.store().join("over"), "");
        let _ = std::fs::remove_file(self.store().join("host.sock"));
        let left = super::hosts_of(&self.place);
        left.iter().for_each(|pid| _ = kill_process(*pid, Signal::KILL));
        self.guard.dismiss();
    }
}

/// Says what came of an attack, for those who count.
#[expect(clippy::print_stderr, reason = "who asks for many victims wants to know")]
fn tell(attacked: &Attacked, what: &str, (served, refused): (usize, usize)) {
    let met = attacked.loot().matches("met").count();
    eprintln!(
        "{:?}, {what}: {served} served, {refused} refused; the attacker was met {met} times",
        attacked.circumstances
    );
}

/// Whether a command reaches the store that is attacked: that of its own run is hidden from it where the system has
/// namespaces.
fn reaches(circumstances: Circumstances, is_hosted: bool) -> bool {
    !is_hosted || !circumstances.has_namespaces
}

/// A command puts its own socket into the place of a host's that lives, as fast as it can.
fn check_replaced(is_hosted: bool, wrap: impl Fn(&Attacked, String) -> String) {
    for circumstances in
        circumstances().into_iter().filter(|circumstances| reaches(*circumstances, is_hosted))
    {
        let attacked = Attacked::new(circumstances);
        assert_eq!(attacked.say().code, Some(0), "{circumstances:?}");
        let attack = wrap(&attacked, attacked.attack("replaces"));
        let (_model, running) = attacked.begin(&attack, is_hosted);
        let host = attacked.store().join("host.sock").symlink_metadata().unwrap().ino();
        let socket = attacked.store().join("host.sock");
        wait_until("the socket is replaced", || {
            socket.symlink_metadata().is_ok_and(|there| there.ino() != host)
        });
        let mut counts = attacked.victims(&attack);
        // The host makes its own again: an attacker must have been met for this to say anything.
        let began = Instant::now();
        while !attacked.loot().contains("met") && began.elapsed() < PATIENCE {
            let more = attacked.victims(&attack);
            counts = (counts.0 + more.0, counts.1 + more.1);
        }
        tell(&attacked, &format!("replaced, hosted: {is_hosted}"), counts);
        assert!(attacked.loot().contains("met"), "{circumstances:?}: the attacker was never met");
        attacked.end(running);
    }
}

#[test]
fn a_command_beside_the_host_that_replaces_its_socket_hears_nothing() {
    check_replaced(false, |_, attack| attack);
}

#[test]
fn a_command_of_the_host_that_replaces_its_socket_hears_nothing() {
    check_replaced(true, |_, attack| attack);
}

#[test]
fn one_that_left_its_parent_session_and_environment_hears_nothing() {
    check_replaced(false, |attacked, attack| {
        let over = attacked.store().join("over");
        let attack = attack.replacen("env ", "env -i ", 1);
        format!("(setsid {attack} >/dev/null 2>&1 &); while [ ! -e {} ]; do sleep 0.1; done", over.display())
    });
}

/// One that ended the helper above it is an orphan, and nobody knows of it any more.
#[test]
fn one_that_ended_its_helper_hears_nothing() {
    for circumstances in circumstances().into_iter().filter(|circumstances| !circumstances.has_namespaces) {
        let attacked = Attacked::new(circumstances);
        assert_eq!(attacked.say().code, Some(0), "{circumstances:?}");
        let attack = attacked.attack("replaces").replacen("env ", "env -i ", 1);
        let host = attacked.store().join("host.sock");
        let number = host.symlink_metadata().unwrap().ino();
        let command = format!("(setsid {attack} >/dev/null 2>&1 &); sleep 0.5; kill -9 $PPID; sleep 600");
        let (_model, running) = attacked.begin(&command, false);
        wait_until("the socket is replaced", || {
            host.symlink_metadata().is_ok_and(|there| there.ino() != number)
        });
        let ended = running.end();
        assert_eq!(ended.code, Some(0), "{circumstances:?}: {ended:?}");
        let counts = attacked.victims("helper ended");
        tell(&attacked, "the helper was ended", counts);
    }
}

/// A command of another run takes the lock of a store whose host has ended, and listens in its place.
#[test]
fn a_command_that_took_the_lock_first_hears_nothing() {
    for circumstances in circumstances() {
        let attacked = Attacked::new(circumstances);
        let attack = attacked.attack("locks");
        let (_model, running) = attacked.begin(&attack, false);
        let socket = attacked.store().join("host.sock");
        wait_until("it listens", || socket.exists());
        let (served, refused) = attacked.victims(&attack);
        tell(&attacked, "locked", (served, refused));
        assert_eq!(served, 0, "{circumstances:?}");
        assert!(attacked.loot().contains("met"), "{circumstances:?}: the attacker was never met");
        let refused = attacked.say();
        assert!(refused.stderr.contains("a command of a tool started it"), "{circumstances:?}: {refused:?}");
        attacked.end(running);
        std::fs::remove_file(socket).unwrap();
        assert_eq!(attacked.say().code, Some(0), "{circumstances:?}");
    }
}

/// The process that listened has ended, and its child has the socket: its number may be anybody's later.
#[test]
fn a_socket_whose_maker_has_ended_is_told_nothing() {
    for circumstances in circumstances() {
        let attacked = Attacked::new(circumstances);
        let attack = format!(
            "{}; while [ ! -e {}/over ]; do sleep 0.05; done",
            attacked.attack("hands-on"),
            attacked.store().display()
        );
        let (_model, running) = attacked.begin(&attack, false);
        let socket = attacked.store().join("host.sock");
        wait_until("it listens", || socket.exists());
        let (served, refused) = attacked.victims(&attack);
        tell(&attacked, "handed on", (served, refused));
        assert_eq!(served, 0, "{circumstances:?}");
        attacked.end(running);
    }
}

/// A command starts a host, and whatever else would answer others.
#[test]
fn a_command_starts_no_host() {
    for circumstances in circumstances() {
        let attacked = Attacked::new(circumstances);
        let binary = match circumstances.is_nobody {
            true => attacked.place.work().parent().unwrap().join("greenroom"),
            false => env!("CARGO_BIN_EXE_greenroom").into(),
        };
        let store = attacked.store();
        let (greenroom, store) =
            (format!("{} --data-dir {}", binary.display(), store.display()), store.display());
        let command = format!(
            "{greenroom} host; echo host: $?; GREENROOM_HOST_START=true {greenroom} run --window 100000 --base-url {url} -p x; \
             echo run: $?; (sleep 1; [ -e {store}/host.sock ] && echo listens >&2) | {greenroom} rpc --base-url {url}; echo rpc: $?; \
             touch {store}/tried; while [ ! -e {store}/over ]; do sleep 0.05; done",
            url = attacked.model.url()
        );
        let (model, running) = attacked.begin(&command, false);
        wait_until("it has tried", || attacked.store().join("tried").exists());
        let counts = attacked.victims(&command);
        tell(&attacked, "started", counts);
        assert_eq!(counts.1, 0, "{circumstances:?}");
        let ended = attacked.end(running);
        assert_eq!(ended.code, Some(0), "{circumstances:?}: {ended:?}");
        let said = crate::cli::commands::result(&model);
        assert!(said.contains("there is no host here: a command of a tool"), "{circumstances:?}: {said}");
        for line in ["host: 2", "run: 0", "rpc: 0", "word"] {
            assert!(said.contains(line), "{circumstances:?}, {line}: {said}");
        }
        assert!(!said.contains("listens"), "{circumstances:?}: {said}");
    }
}

/// A command speaks to the host: by itself, through a process that has ended, and through the binary.
#[test]
fn a_host_serves_no_command() {
    for circumstances in circumstances() {
        let attacked = Attacked::new(circumstances);
        assert_eq!(
            attacked.victim(&["run", "--window", "100000", "--session", "kept", "-p", "x"]).code,
            Some(0)
        );
        let host = std::fs::read_to_string(attacked.store().join("lock")).unwrap();
        let binary = match circumstances.is_nobody {
            true => attacked.place.work().parent().unwrap().join("greenroom"),
            false => env!("CARGO_BIN_EXE_greenroom").into(),
        };
        let greenroom = format!("{} --data-dir {}", binary.display(), attacked.store().display());
        let left = attacked.attack("speaks").replacen("env ", "env -i ", 1);
        let command = format!(
            "{speaks} >/dev/null; {connects} >/dev/null; (setsid {left} >/dev/null 2>&1 &); \
             for c in 'delete kept --yes' 'host --stop --force' 'top' \
             'run --window 100000 -p x --base-url http://127.0.0.1:9' 'answer kept 1 yes'; do \
             {greenroom} $c; echo code: $?; done; sleep 1.5",
            speaks = attacked.attack("speaks"),
            connects = attacked.attack("connects"),
        );
        let ways: Vec<bool> =
            [false, true].into_iter().filter(|is_hosted| reaches(circumstances, *is_hosted)).collect();
        for is_hosted in ways.iter().copied() {
            let (model, running) = attacked.begin(&command, is_hosted);
            let ended = running.end();
            assert_eq!(ended.code, Some(0), "{circumstances:?}: {ended:?}");
            let said = crate::cli::commands::result(&model);
            assert_eq!(said.matches("code: 3").count(), 5, "{circumstances:?}: {said}");
            assert_eq!(said.matches("hosts serve no such processes").count(), 5, "{circumstances:?}: {said}");
            assert_eq!(
                std::fs::read_to_string(attacked.store().join("lock")).unwrap(),
                host,
                "{circumstances:?}"
            );
        }
        let loot = attacked.loot();
        assert_eq!(loot.matches("said").count(), 3 * ways.len(), "{circumstances:?}: {loot}");
        // The one whose maker has ended is told nothing; the others are told why.
        assert!(
            loot.matches("this host rejects this process").count() >= 2 * ways.len(),
            "{circumstances:?}: {loot}"
        );
        assert!(!loot.contains("result"), "{circumstances:?}: {loot}");
        let kept = attacked.victim(&["show", "kept"]);
        assert!(kept.code == Some(0) && kept.stdout.contains("word"), "{circumstances:?}: {kept:?}");
    }
}

/// The number of a process that listened is given to the host itself. Only `root` can have that done.
#[test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn a_number_that_was_given_anew_leads_to_nobody() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root can choose the number of a process");
        return;
    }
    let circumstances = circumstances().into_iter().find(|circumstances| !circumstances.is_nobody).unwrap();
    let attacked = Attacked::new(circumstances);
    let socket = attacked.store().join("host.sock");
    // It is no command that listens here, so that nothing but its end tells it from the host.
    let mut hands_on = Command::new(attacked.attacker());
    hands_on.args(["--exact", "cli::host::peers::attacker"]);
    hands_on.env(FORM, "hands-on").env(STORE, attacked.store());
    hands_on.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut listener = hands_on.spawn().unwrap();
    let number = listener.id();
    listener.wait().unwrap();
    wait_until("it listens", || socket.exists());
    let aside = attacked.store().join("aside");
    std::fs::rename(&socket, &aside).unwrap();
    let mut hosts = Vec::new();
    let is_given = (0..200).any(|_| {
        std::fs::write("/proc/sys/kernel/ns_last_pid", (number - 1).to_string()).unwrap();
        let mut command = attacked.place.command(&["host", "--idle", "60"]);
        let mut host = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        if host.id() == number {
            let mut said = String::new();
            host.stdout.as_mut().unwrap().read_to_string(&mut said).unwrap();
            assert_eq!(said, "ready\n");
            hosts.push(host);
            return true;
        }
        host.kill().unwrap();
        host.wait().unwrap();
        // What was killed may have left these.
        let _ = std::fs::remove_file(&socket);
        false
    });
    assert!(is_given, "the number {number} was never given anew");
    assert_eq!(std::fs::read_to_string(attacked.store().join("lock")).unwrap(), number.to_string());
    // It is the number of the process that has the lock, and yet not the host, which makes its own socket again and again.
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let next = attacked.store().join("next");
            while !is_over.load(Ordering::Relaxed) {
                // Where it is there already, this changes nothing.
                let _ = std::fs::hard_link(&aside, &next);
                std::fs::rename(&next, &socket).unwrap();
                std::thread::park_timeout(Duration::from_micros(200));
                let _ = std::fs::remove_file(&next);
            }
        });
        let counts = attacked.victims("a number given anew");
        is_over.store(true, Ordering::Relaxed);
        tell(&attacked, "a number given anew", counts);
    });
    assert!(attacked.loot().contains("met"), "the attacker was never met");
    for mut host in hosts {
        host.kill().unwrap();
        host.wait().unwrap();
    }
}
