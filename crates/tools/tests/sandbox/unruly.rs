//! Commands that do not end, or take everything: they are bounded, and nothing is left.
//!
//! Invariants: no test waits for a fixed time; each command is ended by its own time limit or by itself.

use std::os::unix::net::UnixListener;

use greenroom_kernel::ToolStatus;
use greenroom_tools::builtin::bash;
use greenroom_tools::sandbox::{Limits, Sandbox};
use serde_json::json;

use crate::environments::{Environment, block_on, call, call_tool, is_root, registry, sandbox};
use crate::victims::{Victims, left};

const ENVIRONMENTS: [Environment; 4] =
    [Environment::Bubblewrap, Environment::Landlock, Environment::LandlockAlone, Environment::Off];

/// How a command ends.
enum End {
    /// Its output contains this.
    Says(&'static str),
    TimesOut,
    /// In one way or the other.
    Anyhow,
}

const GIGABYTE: &str = "it writes a gigabyte";

const UNRULY: &[(&str, &str, End)] = &[
    ("it ignores every signal", "trap '' $(seq 1 64); exec -a s.$MARK sleep 1000.$MARK", End::TimesOut),
    (
        "its children ignore every signal",
        "for i in 1 2 3; do (trap '' HUP INT TERM QUIT PIPE; sleep 1000.$MARK) & done; wait",
        End::TimesOut,
    ),
    ("it stops itself", "kill -STOP $$; sleep 1000.$MARK", End::TimesOut),
    (
        "it leaves its session",
        "setsid sh -c 'setsid sleep 1001.$MARK & sleep 1002.$MARK' > /dev/null 2>&1 & echo started",
        End::Says("started"),
    ),
    (
        "it is an orphan without our marker",
        "(env -i setsid sleep 1003.$MARK > /dev/null 2>&1 &); echo started",
        End::Says("started"),
    ),
    ("it forks while it is ended", "f() { sleep 1000.$MARK & sleep 0.01; f; }; f", End::TimesOut),
    ("its input is closed", "exec 0<&-; cat; echo code $?", End::Says("code 1")),
    ("its input is empty", "cat; echo code $?", End::Says("code 0")),
    ("its output is closed", "exec 1>&- 2>&-; sleep 1000.$MARK", End::TimesOut),
    ("it keeps the output open", "sleep 1000.$MARK & echo started", End::Says("started")),
    ("it ends its helper", "kill -9 $PPID; kill -9 -1; sleep 1000.$MARK; sleep 1000.$MARK", End::Anyhow),
    (
        GIGABYTE,
        "yes 0123456789012345678901234567890123456789012345678901234567890 | head -c 1073741824; echo; echo over",
        End::Says("over"),
    ),
];

pub(crate) fn commands() {
    for environment in ENVIRONMENTS {
        let mut victims = Victims::new();
        let Some(options) = environment.options(sandbox(&victims)) else { continue };
        block_on(async {
            let registry = registry(&victims, options);
            let mark = victims.mark().to_owned();
            for (name, command, end) in UNRULY {
                let timeout_ms = match end {
                    End::TimesOut | End::Anyhow => 400,
                    End::Says(_) => 120_000,
                };
                // Once is enough for what does not depend on the protection, and takes long in a debug build.
                if *name == GIGABYTE && environment != Environment::Bubblewrap {
                    continue;
                }
                let (_, output) = call(&registry, &command.replace("$MARK", &mark), timeout_ms).await;
                match end {
                    End::TimesOut => {
                        assert!(output.contains("timed out"), "{environment:?} {name}: {output}")
                    }
                    End::Anyhow => {}
                    End::Says(text) => assert!(output.contains(text), "{environment:?} {name}: {output}"),
                }
                assert!(output.len() < 60_000, "{environment:?} {name}: {}", output.len());
                assert_eq!(left(&mark), Vec::<String>::new(), "{environment:?} {name}");
            }
            assert_eq!(victims.harm(""), Vec::<String>::new(), "{environment:?}");
        });
    }
}

/// A fork bomb: it reaches its limit where the system counts, and ends where it does not.
pub(crate) fn processes_are_limited() {
    for environment in ENVIRONMENTS {
        let is_counted = !is_root() && environment != Environment::LandlockAlone;
        let expect = if is_counted { "fork" } else { "it had more than 60 processes" };
        let victims = Victims::new();
        let limits = Limits { processes_max: 60, ..Limits::default() };
        let Some(options) = environment.options(Sandbox { limits, ..sandbox(&victims) }) else { continue };
        block_on(async {
            let registry = registry(&victims, options);
            let mark = victims.mark().to_owned();
            // So many that a system without the limit bears them.
            let many = format!("for i in $(seq 150); do sleep 900.{mark} & done; sleep 1000.{mark}");
            let bomb = format!(
                "b() {{ [ $1 = 0 ] || {{ b $(($1 - 1)) & b $(($1 - 1)) & }}; sleep 900.{mark}; }}; b 8"
            );
            for command in [many, bomb] {
                let (result, output) = call(&registry, &command, 10_000).await;
                assert_eq!(result.status, ToolStatus::Error, "{environment:?}: {output}");
                assert!(output.contains(expect), "{environment:?}: {output}");
                assert_eq!(left(&mark), Vec::<String>::new(), "{environment:?}");
            }
            // Fewer are no bomb.
            let (_, output) =
                call(&registry, "for i in $(seq 20); do sleep 0.3 & done; wait; echo over", 10_000).await;
            assert!(output.contains("over"), "{environment:?}: {output}");
        });
    }
}

/// The rest of a long output is in a file that commands and `read` can read, and nobody can change; it is gone with the
/// tools.
pub(crate) fn long_output() {
    for environment in ENVIRONMENTS {
        let victims = Victims::new();
        let Some(options) = environment.options(sandbox(&victims)) else { continue };
        let path = block_on(async {
            let registry = registry(&victims, options);
            let (_, output) = call(&registry, "seq 1 20000", 60_000).await;
            let path = output.split("all of it is in ").nth(1).and_then(|rest| rest.split("; ").next());
            let path = path.unwrap_or_else(|| panic!("{environment:?}: {output}")).to_owned();
            let read = json!({ "path": path, "offset": 10_000, "limit": 1 }).to_string();
            let (result, text) = call_tool(&registry, "read", read).await;
            assert!(text.starts_with("10000\t10000\n"), "{environment:?}: {text}");
            assert_eq!(result.touched, [], "it is no file of the workspace");
            let (_, text) = call(&registry, &format!("sed -n 15000p {path}"), 60_000).await;
            assert_eq!(text, "15000\n", "{environment:?}");
            let (_, text) =
                call(&registry, &format!("echo x > {path}; rm -f {path}; wc -l < {path}"), 60_000).await;
            if environment != Environment::Off {
                assert!(text.contains("20000\n"), "{environment:?}: {text}");
            }
            // Only the folder itself is open to `read`.
            let other = path.replace("output/0.txt", "output/../proxy/x");
            let (result, text) = call_tool(&registry, "read", json!({ "path": other }).to_string()).await;
            assert_eq!(result.status, ToolStatus::Error, "{text}");
            path
        });
        assert!(!std::path::Path::new(&path).exists(), "{environment:?}: {path} is left");
    }
}

/// Limits that the system keeps, each with what says so.
pub(crate) fn limits() {
    let limits = Limits {
        memory_bytes_max: Some(256 << 20),
        file_bytes_max: Some(1 << 20),
        files_max: Some(64),
        cpu_s_max: Some(1),
        ..Limits::default()
    };
    for environment in ENVIRONMENTS {
        let victims = Victims::new();
        let Some(options) = environment.options(Sandbox { limits, ..sandbox(&victims) }) else { continue };
        let options = bash::Options { ..options };
        block_on(async {
            let registry = registry(&victims, options);
            for (command, expect) in [
                ("ulimit -c unlimited 2> /dev/null; ulimit -c; ulimit -n; ulimit -t", "0\n64\n1\n"),
                ("head -c 2000000 /dev/zero > $WS/big; stat -c %s $WS/big; rm $WS/big", "1048576\n"),
                (
                    "head -c 400000000 /dev/zero | tail -c 400000000 | wc -c | grep -qx 0 && echo none",
                    "none\n",
                ),
                ("while :; do :; done", "signal"),
            ] {
                let (_, output) = call(&registry, command, 60_000).await;
                assert!(output.contains(expect), "{environment:?} {command}: {output}");
            }
        });
    }
}

/// A program ends, and its socket with it, between the search for sockets and the mounts of bubblewrap. The many sockets
/// before it make that time longer.
pub(crate) fn a_socket_vanishes() {
    let victims = Victims::new();
    let Some(options) = Environment::Bubblewrap.options(sandbox(&victims)) else { return };
    let folder = victims.base.join("outside/sockets");
    std::fs::create_dir(&folder).expect("it is new");
    let bind = |name: String| UnixListener::bind(folder.join(name)).expect("a short path");
    let _others: Vec<UnixListener> = (0..150).map(|number| bind(format!("{number:03}"))).collect();
    let last = folder.join("z");
    block_on(async {
        let registry = registry(&victims, options);
        for round in 0..20 {
            let _one = bind("z".to_owned());
            let (watched, vanishing) = (victims.base.display().to_string(), last.clone());
            let ending = std::thread::spawn(move || {
                while !is_started(&watched) {
                    std::thread::yield_now();
                }
                std::fs::remove_file(vanishing).expect("it is there");
            });
            let (_, output) = call(&registry, "echo fine", 20_000).await;
            ending.join().expect("it ends");
            assert_eq!(output, "fine\n", "round {round}");
        }
    });
}

/// Whether bubblewrap is being started for this folder.
fn is_started(folder: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("a Linux system").filter_map(Result::ok);
    processes.into_iter().any(|process| {
        let is_it =
            std::fs::read_to_string(process.path().join("comm")).is_ok_and(|comm| comm.trim() == "bwrap");
        is_it
            && std::fs::read_to_string(process.path().join("cmdline")).is_ok_and(|line| line.contains(folder))
    })
}
