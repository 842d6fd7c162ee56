//! The commands of a model: what they can read of the program that runs them, and that none outlives it.
//!
//! Each test runs in every way in which commands are held together here. A user who is not `root`, and a system that
//! grants no namespace, are tried as well where the tests run as `root`.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use greenroom_simulator::{Answer, CallInfo, Function, Pace, SeenRequest};
use rustix::process::{Pid, Signal, geteuid, kill_process};

use super::support::{Model, Place, Running, Says, ran};

/// How long it may take until all processes of a command have ended.
const PATIENCE: Duration = Duration::from_secs(10);
/// The id of the user `nobody` on every system.
pub(crate) const NOBODY: u32 = 65_534;

/// How the binary is run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Circumstances {
    /// As `nobody`, though the tests run as `root`.
    pub(crate) is_nobody: bool,
    /// Whether `unshare` works.
    pub(crate) has_namespaces: bool,
}

pub(crate) fn circumstances() -> Vec<Circumstances> {
    let keeps_mounts = || {
        let mut probe = Command::new("/usr/bin/unshare");
        let probe =
            probe.args(["--mount", "--propagation", "private", "--", "readlink", "/proc/self/ns/mnt"]);
        let inner = probe.output().is_ok_and(|output| {
            let own = std::fs::read_link("/proc/self/ns/mnt").unwrap();
            output.status.success() && String::from_utf8_lossy(&output.stdout).trim() != own.to_string_lossy()
        });
        assert!(inner, "as root these tests need a mount namespace of their own");
    };
    if geteuid().is_root() {
        keeps_mounts();
    }
    let users: &[bool] = if geteuid().is_root() { &[false, true] } else { &[false] };
    let pairs = users.iter().flat_map(|is_nobody| [true, false].map(|has| (*is_nobody, has)));
    pairs.map(|(is_nobody, has_namespaces)| Circumstances { is_nobody, has_namespaces }).collect()
}

impl Circumstances {
    /// The binary with these arguments, in these circumstances.
    pub(crate) fn command(self, place: &Place, arguments: &[&str]) -> Command {
        let mut command = if self.is_nobody {
            // Where the tests were built may be closed to others.
            let binary = place.work().parent().unwrap().join("greenroom");
            if std::fs::hard_link(env!("CARGO_BIN_EXE_greenroom"), &binary).is_err() && !binary.exists() {
                std::fs::copy(env!("CARGO_BIN_EXE_greenroom"), &binary).unwrap();
            }
            for folder in [place.work().parent().unwrap().to_owned(), place.work()] {
                chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
            }
            place.command_of(binary, arguments)
        } else if geteuid().is_root() {
            // A command of `root` could take the system's own /proc away. Without a mount namespace around the whole
            // test nothing here is tried as `root`.
            let binary = env!("CARGO_BIN_EXE_greenroom");
            let within = ["--mount", "--propagation", "private", "--", binary];
            place.command_of("/usr/bin/unshare".into(), &[&within, arguments].concat())
        } else {
            place.command(arguments)
        };
        if self.is_nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        // What these tests are about is what holds without a sandbox.
        command.env("GREENROOM_SANDBOX_MODE", "off");
        if !self.has_namespaces {
            let folder = place.work().parent().unwrap().join("bin");
            std::fs::create_dir_all(&folder).unwrap();
            let unshare = folder.join("unshare");
            std::fs::write(&unshare, "#!/bin/sh\nexit 1\n").unwrap();
            std::fs::set_permissions(&unshare, std::fs::Permissions::from_mode(0o755)).unwrap();
            command.env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin", folder.display()));
        }
        command
    }

    pub(crate) fn start(self, place: &Place, arguments: &[&str]) -> Running {
        Running::start(&mut self.command(place, arguments))
    }
}

/// A model that runs one command and then says that it is done.
pub(crate) fn runs(command: &str) -> Model {
    let arguments = serde_json::json!({ "command": command });
    let script = Function(move |request: &SeenRequest, _: CallInfo| {
        if request.messages.last().is_some_and(|message| message.role() == "tool") {
            Answer::text("done")
        } else {
            Answer::call("bash", &arguments)
        }
    });
    Model::new(script, |_| {})
}

/// What the model was given as the result of its command.
pub(crate) fn result(model: &Model) -> String {
    let requests = model.simulator.requests();
    requests.last().unwrap().request.messages.last().unwrap().text()
}

/// Looks into the memory of each process of ours that it can see.
const READS_MEMORY: &str = r#"
for p in $(grep -slx greenroom /proc/[0-9]*/comm); do
  p=${p%/comm}
  while read -r range permissions _; do
    case $permissions in rw*)
      start=$((16#${range%-*} / 4096)); count=$((16#${range#*-} / 4096 - start))
      dd if=$p/mem bs=4096 skip=$start count=$((count > 2048 ? 2048 : count)) 2>/dev/null;;
    esac
  done <$p/maps
done 2>/dev/null | grep -ao 'sk-CAN[A]RY-[a-z0-9-]*' | sort | uniq -c"#;

#[test]
fn commands_cannot_read_our_secrets() {
    let environments = "cat /proc/[0-9]*/environ | tr '\\0' '\\n'";
    let attacks = [
        environments.to_owned(),
        format!("umount /proc; umount -l /proc; {environments}"),
        format!("unshare --user --map-root-user --mount sh -c 'umount -l /proc; {environments}'"),
        format!(
            "unshare --user --map-root-user --mount --pid --fork --mount-proc sh -c 'umount /proc; {environments}'"
        ),
        format!("nsenter --target $PPID --mount --pid {environments}"),
        format!("umount -l /proc; {READS_MEMORY}"),
    ];
    let (mut seen, mut leaks) = (0, Vec::new());
    for (number, attack) in attacks.iter().enumerate() {
        for circumstances in circumstances() {
            let place = Place::new();
            let model = runs(&format!("{{ {attack}; }} 2>&1 | grep -a -e CANARY -e greenroom; echo over"));
            let canary = format!("sk-CANARY-{number}-{}", std::process::id());
            let mut command = circumstances
                .command(&place, &["run", "-p", "Look.", "--allow-shell", "--base-url", &model.url()]);
            command.env("OPENAI_API_KEY", &canary).env("MY_SECRET", format!("{canary}-mine"));
            let ran = ran(command.output().unwrap());
            assert_eq!(
                (ran.code, ran.stdout.as_str()),
                (Some(0), "done\n"),
                "{circumstances:?} {attack}: {ran:?}"
            );
            let result = result(&model);
            assert!(result.contains("over"), "{circumstances:?} {attack}: {result}");
            if result.contains(&canary) {
                leaks.push(format!("{circumstances:?} {attack}"));
            }
            seen += 1;
        }
    }
    assert!(leaks.is_empty(), "{leaks:#?}");
    assert!(seen >= 12, "{seen}");
}

/// The key is used all the same, and the address in a variable too.
#[test]
fn what_is_hidden_is_used() {
    let place = Place::new();
    let model = Model::new(Says(Answer::text("done")), |options| {
        options.require_key = Some("sk-CANARY-used".to_owned());
    });
    let mut command = place.command(&["run", "-p", "Hello."]);
    command.env("OPENAI_API_KEY", "sk-CANARY-used").env("OPENAI_BASE_URL", model.url());
    let ran = ran(command.output().unwrap());
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "done\n"), "{ran:?}");
}

/// The address of a proxy is hidden too, since it may hold a password.
#[test]
fn a_hidden_proxy_is_used() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let proxy = std::thread::spawn(move || {
        // The model's window may be asked for first.
        loop {
            let mut connection = BufReader::new(listener.accept().unwrap().0);
            let mut head = String::new();
            while !head.ends_with("\r\n\r\n") {
                assert!(connection.read_line(&mut head).unwrap() > 0, "{head}");
            }
            let answer = "HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            connection.get_mut().write_all(answer.as_bytes()).unwrap();
            if head.starts_with("POST ") {
                return head;
            }
        }
    });
    let mut command = place.command(&["run", "-p", "Hello.", "--base-url", "http://model.invalid/v1"]);
    command.env("http_proxy", format!("http://user:CANARY@{address}"));
    let ran = ran(command.output().unwrap());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    // If nobody came, it waits no longer.
    drop(TcpStream::connect(address));
    let head = proxy.join().unwrap().to_lowercase();
    assert!(head.starts_with("post http://model.invalid/v1/chat/completions"), "{head}");
    assert!(head.contains("proxy-authorization: basic dxnlcjpdqu5bulk="), "{head}");
}

/// Nothing that is not known to be harmless stands where `ps` and other programs read a process's environment.
#[test]
fn our_environment_block_holds_no_secret() {
    let place = Place::new();
    let pace = Pace { chunks: 2_000, first_ms: 0, between_ms: 1_000 };
    let text: String = (0..2_000).map(|line| format!("line {line}\n")).collect();
    let model = Model::new(Says(Answer::text(text).with_pace(pace)), |_| {});
    let mut command = place.command(&["run", "--json", "-p", "Count.", "--base-url", &model.url()]);
    let secrets =
        ["OPENAI_API_KEY", "MY_SECRET", "DATABASE_URL", "HTTPS_PROXY", "OPENAI_BASE_URL", "GREENROOM_KEY"];
    for name in secrets {
        command.env(name, "http://user:sk-CANARY@localhost");
    }
    command.env("LANG", "C.UTF-8").env("NO_PROXY", "127.0.0.1");
    let mut run = Running::start(&mut command);
    run.wait_for("line 1");
    let block = std::fs::read(format!("/proc/{}/environ", run.id())).unwrap_or_default();
    let block = String::from_utf8(block).unwrap();
    assert!(!block.contains("CANARY"), "{block}");
    if geteuid().is_root() {
        assert!(block.contains("LANG=C.UTF-8"), "{block}");
    }
    let name = std::fs::read_to_string(format!("/proc/{}/comm", run.id())).unwrap();
    assert_eq!(name, "greenroom\n");
}

/// The processes whose command line holds `text`, with their names.
fn processes(text: &str) -> BTreeMap<i32, String> {
    let entries = std::fs::read_dir("/proc").unwrap();
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    let found = pids.filter_map(|pid| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        String::from_utf8_lossy(&line).contains(text).then(|| (pid, name.trim().to_owned()))
    });
    found.collect()
}

/// Ends what is left when a test fails.
struct Leftovers(String);

impl Drop for Leftovers {
    fn drop(&mut self) {
        for pid in processes(&self.0).into_keys().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Starts a `run` whose model starts `sleeps` sleeping processes, and waits until all of them are there.
fn with_sleepers(
    circumstances: Circumstances,
    place: &Place,
    command: &str,
    sleeps: usize,
    mark: &str,
) -> (Model, Running, Leftovers) {
    let model = runs(&command.replace("SLEEP", &format!("sleep {mark}")));
    let leftovers = Leftovers(format!("sleep\0{mark}"));
    let run =
        circumstances.start(place, &["run", "-p", "Sleep.", "--allow-shell", "--base-url", &model.url()]);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let found = processes(&leftovers.0);
        if found.values().filter(|name| *name == "sleep").count() == sleeps {
            break;
        }
        assert!(Instant::now() < deadline, "{circumstances:?} {command}: {found:?}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    (model, run, leftovers)
}

/// Those that are still there when the patience has ended.
fn left_after(leftovers: &Leftovers, patience: Duration) -> BTreeMap<i32, String> {
    let deadline = Instant::now() + patience;
    loop {
        let found = processes(&leftovers.0);
        if found.is_empty() || Instant::now() > deadline {
            return found;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[test]
fn no_command_survives_us() {
    let commands = [
        ("SLEEP", 1),
        // Ignoring, in a session of its own, an orphan, without the marker in its environment.
        ("trap '' HUP QUIT TERM; (env -i setsid SLEEP &) ; nohup SLEEP >/dev/null & SLEEP", 3),
    ];
    let (mut number, mut wrong) = (0, Vec::new());
    for signal in [Signal::HUP, Signal::QUIT, Signal::KILL] {
        for circumstances in circumstances() {
            for (command, sleeps) in commands {
                number += 1;
                let context = format!("{signal:?} {circumstances:?} {command}");
                // Seconds that nobody else sleeps.
                let mark = format!("{}.{number}", 1_000_000 + std::process::id());
                let place = Place::new();
                let (_model, run, leftovers) = with_sleepers(circumstances, &place, command, sleeps, &mark);
                run.signal(signal);
                let ran = run.end();
                let code = if signal == Signal::KILL { None } else { Some(130) };
                if ran.code != code {
                    wrong.push(format!("{context}: {ran:?}"));
                }
                let left = left_after(&leftovers, PATIENCE);
                if !left.is_empty() {
                    wrong.push(format!("{context}: {left:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(number >= 12, "{number}");
}

/// What a command prints, how it ends, and what it leaves behind, whatever starts it.
#[test]
fn commands_end_as_they_should() {
    let alone = "sleep MARK";
    let cases = [
        ("echo out; echo err >&2; echo out", "out\nerr\nout\n".to_owned()),
        ("cat; echo $?", "0\n".to_owned()),
        ("printf x; exit 3", "x\n[exit code 3]\n".to_owned()),
        ("kill -9 $$", "[exit code 137: signal 9, SIGKILL]\n".to_owned()),
        ("kill 0", "[exit code 143: signal 15, SIGTERM]\n".to_owned()),
        // Of ours, a command inherits nothing but its input and its output.
        ("cd /proc/self/fd; echo *", "0 1 2 3\n".to_owned()),
        ("cat <&- /dev/tty 2>/dev/null; echo $?", "1\n".to_owned()),
        // What it leaves in the background is ended: an orphan in a session of its own, without our marker.
        (
            "(env -i setsid sleep MARK &); until pgrep -fx 'sleep MARK' >/dev/null; do :; done; echo bye",
            "bye\n".to_owned(),
        ),
        (alone, "timed out".to_owned()),
        (
            "grep -E '^(NoNewPrivs|CapAmb|CapInh)' /proc/self/status",
            "CapInh:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n".to_owned(),
        ),
        // Chown, override and fowner, fsetid and kill, setgid and setuid, low ports: nothing else.
        (
            "mask=$(sed -n 's/^CapPrm:[[:space:]]*/0x/p' /proc/self/status); echo $((mask & ~0x4fb))",
            "0\n".to_owned(),
        ),
    ];
    let mut number = 0;
    for circumstances in circumstances() {
        for (command, expect) in &cases {
            number += 1;
            let mark = format!("{}.{number}", 2_000_000 + std::process::id());
            let arguments = serde_json::json!({
                "command": command.replace("MARK", &mark),
                "timeout_ms": if *command == alone { 700 } else { 30_000 },
            });
            let leftovers = Leftovers(format!("sleep\0{mark}"));
            let sleeping = leftovers.0.clone();
            let script = Function(move |request: &SeenRequest, _: CallInfo| {
                let Some(message) = request.messages.last().filter(|message| message.role() == "tool") else {
                    return Answer::call("bash", &arguments);
                };
                // The command has ended now, and greenroom has not.
                Answer::text(format!("{}{:?}", message.text(), processes(&sleeping)))
            });
            let model = Model::new(script, |_| {});
            let place = Place::new();
            let arguments = ["run", "-p", "Do it.", "--allow-shell", "--base-url", &model.url()];
            let ran = ran(circumstances.command(&place, &arguments).output().unwrap());
            let context = format!("{circumstances:?} {command}: {ran:?}");
            assert_eq!(ran.code, Some(0), "{context}");
            let found = ran.stdout.strip_suffix("{}\n").unwrap_or_else(|| panic!("left behind: {context}"));
            if *command == alone {
                assert!(found.contains(expect.as_str()), "{context}");
            } else {
                assert!(found.ends_with(expect.as_str()), "{context}");
            }
        }
    }
    assert!(number >= 22, "{number}");
}

/// A command that multiplies is bounded where its processes are counted by themselves.
#[test]
fn processes_are_counted() {
    for circumstances in circumstances() {
        let (place, model) = (Place::new(), runs("ulimit -u"));
        let arguments = ["run", "-p", "Count.", "--allow-shell", "--base-url", &model.url()];
        let ran = ran(circumstances.command(&place, &arguments).output().unwrap());
        assert_eq!(ran.code, Some(0), "{circumstances:?} {ran:?}");
        let is_root = geteuid().is_root() && !circumstances.is_nobody;
        if circumstances.has_namespaces && !is_root {
            let limit: u64 = result(&model).trim().parse().unwrap();
            assert!(limit <= 8_192, "{circumstances:?} {limit}");
        }
    }
}

/// If commands can see the user's other programs, a warning is printed before a command runs.
#[test]
fn what_does_not_protect_here_is_said() {
    for circumstances in circumstances() {
        let (place, model) = (Place::new(), Model::new(Says(Answer::text("done")), |_| {}));
        let url = model.url();
        for (flag, may_warn) in [("--allow-shell", true), ("--allow-write", false)] {
            let arguments = ["run", "-p", "Hello.", flag, "--base-url", &url];
            let ran = ran(circumstances.command(&place, &arguments).output().unwrap());
            let warns = ran.stderr.contains("greenroom: warning: this system grants no PID namespace");
            assert_eq!(warns, may_warn && !circumstances.has_namespaces, "{circumstances:?} {ran:?}");
        }
    }
}

/// `nohup greenroom …` goes on when its terminal is closed.
#[test]
fn a_hangup_that_is_ignored_is_ignored() {
    let place = Place::new();
    let pace = Pace { chunks: 2_000, first_ms: 0, between_ms: 100 };
    let text: String = (0..2_000).map(|line| format!("line {line}\n")).collect();
    let model = Model::new(Says(Answer::text(text).with_pace(pace)), |_| {});
    let binary = env!("CARGO_BIN_EXE_greenroom");
    let mut command = place.command_of(
        PathBuf::from("/usr/bin/nohup"),
        &[binary, "run", "--json", "-p", "Count.", "--base-url", &model.url()],
    );
    let mut run = Running::start(&mut command);
    run.wait_for("line 1");
    run.signal(Signal::HUP);
    run.wait_for("line 30");
    run.signal(Signal::TERM);
    assert_eq!(run.end().code, Some(130));
}
