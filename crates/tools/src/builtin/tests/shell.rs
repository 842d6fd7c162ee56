//! `bash`: its results, and that it leaves no process behind, with each kind of containment.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use greenroom_kernel::message::blocks_text;
use greenroom_kernel::{ToolStatus, Touch, Touched};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{Fixture, bare, context};
use crate::builtin::bash::{self, Containment};
use crate::{Progress, ToolContext};

/// Returns the kinds that work here; the last one works everywhere.
fn containments() -> Vec<Containment> {
    let all = [Containment::PidNamespace, Containment::UserNamespace, Containment::ProcessTree];
    all.into_iter().filter(|containment| containment.works()).collect()
}

fn fixture(containment: Containment) -> Fixture {
    let environment = vec![("EXTRA".to_owned(), "more".to_owned())];
    let bash = bash::Options { containment: Some(containment), environment, ..bare() };
    Fixture::with_shell(&[("a.txt", "hello\n")], bash)
}

#[tokio::test]
async fn output_and_exit_codes() {
    for containment in containments() {
        let fixture = fixture(containment);
        for (command, status, expect) in [
            ("cat a.txt", ToolStatus::Ok, "hello\n"),
            ("echo out; echo err >&2; echo out", ToolStatus::Ok, "out\nerr\nout\n"),
            ("true", ToolStatus::Ok, "(no output)\n"),
            ("printf x; exit 3", ToolStatus::Error, "x\n[exit code 3]\n"),
            ("[[ a == a ]] && echo bash", ToolStatus::Ok, "bash\n"),
            ("cat", ToolStatus::Ok, "(no output)\n"),
            ("echo $EXTRA", ToolStatus::Ok, "more\n"),
            ("cat <&- /dev/tty 2>/dev/null", ToolStatus::Error, "(no output)\n[exit code 1]\n"),
            ("sh -c 'kill -TERM $$'; echo $?", ToolStatus::Ok, "143\n"),
        ] {
            let result = fixture.call("bash", json!({"command": command})).await;
            let found = blocks_text(&result.content);
            assert!(
                found.ends_with(expect) && (found == expect || command.contains("TERM")),
                "{containment:?} {command}: {found}"
            );
            assert_eq!((result.status, result.touched.len()), (status, 0), "{containment:?} {command}");
        }
        let killed = fixture.call("bash", json!({"command": "kill -9 $$"})).await;
        assert!(blocks_text(&killed.content).contains("signal 9, SIGKILL]"), "{killed:?}");
        fixture
            .check_error("bash", json!({"command": "true", "timeout_ms": 0}), "`timeout_ms` must be from 1")
            .await;
        fixture.check_error("bash", json!({"command": "a\0b"}), "no NUL bytes").await;
        fixture
            .check_error("bash", json!({"command": "x".repeat(200_000)}), "cannot start the command")
            .await;
    }
}

#[tokio::test]
async fn a_command_may_have_the_permissions_and_the_environment_of_somebody_else() {
    for containment in containments() {
        for (umask, of_file, of_folder) in [(0o077, "600", "700"), (0o002, "664", "775")] {
            let environment = vec![("HOME".to_owned(), "/home/ada".to_owned())];
            let bash = bash::Options {
                containment: Some(containment),
                environment,
                inherits_environment: false,
                umask: Some(umask),
                ..bare()
            };
            let fixture = Fixture::with_shell(&[], bash);
            let command = "touch made; mkdir folder; stat -c %a made folder; echo $HOME; env | grep -cE '^(USER|TMPDIR|TERM|LANG)='; true";
            let expect = format!("{of_file}\n{of_folder}\n/home/ada\n0\n");
            fixture.check("bash", json!({ "command": command }), &expect).await;
        }
    }
}

#[tokio::test]
async fn the_environment_has_no_keys() {
    // The test runner sets CARGO_MANIFEST_DIR, as a user may set a key.
    #[expect(clippy::disallowed_methods, reason = "the test is about the environment")]
    let is_set = std::env::var_os("CARGO_MANIFEST_DIR").is_some();
    assert!(is_set);
    let allowed = [
        "PATH", "HOME", "LANG", "TERM", "TMPDIR", "USER", "EXTRA", "GREENROOM_COMMAND_ID", "PWD", "OLDPWD",
        "SHLVL", "_",
    ];
    for containment in containments() {
        let result = fixture(containment).call("bash", json!({"command": "env"})).await;
        for line in blocks_text(&result.content).lines() {
            let name = line.split('=').next().expect("split gives one at least");
            assert!(allowed.contains(&name), "{line}");
        }
    }
}

#[tokio::test]
async fn a_flood_takes_bounded_memory_and_shows_both_ends() {
    let fixture = fixture(Containment::detect());
    let result = fixture.call("bash", json!({"command": "seq 1 3000000"})).await;
    let text = blocks_text(&result.content);
    assert!(text.len() < 50 * 1024, "{}", text.len());
    assert!(text.starts_with("1\n2\n3\n") && text.ends_with("2999999\n3000000\n"), "{text}");
    assert!(text.contains("left out here; all of it is in "), "{text}");
    let binary = fixture.call("bash", json!({"command": "head -c 3000000 /dev/zero"})).await;
    assert!(blocks_text(&binary.content).len() < 50 * 1024);
}

#[tokio::test]
async fn lines_are_reported_as_they_come() {
    let lines = Arc::new(Mutex::new(Vec::new()));
    let sink = lines.clone();
    let cancel = CancellationToken::new();
    let seen = cancel.clone();
    let progress = Progress::new(move |line| {
        // The command never ends by itself: the line must come while it runs.
        if line == "second" {
            seen.cancel();
        }
        sink.lock().expect("no panic while it was held").push(line);
    });
    let context = ToolContext { cancel, progress, ..context() };
    let fixture = fixture(Containment::detect());
    let result =
        fixture.call_with("bash", json!({"command": "echo first; echo second; sleep 1000"}), context).await;
    assert_eq!(*lines.lock().expect("no panic while it was held"), ["first", "second"]);
    assert_eq!(result.status, ToolStatus::Interrupted);
    assert_eq!(
        blocks_text(&result.content),
        "first\nsecond\n[cancelled; the command and all its processes were ended]\n"
    );
}

/// Starts processes of each kind that is hard to end, and prints `ready` when they run. Each carries `mark`
/// in its arguments.
fn unruly(mark: &str) -> String {
    format!(
        "sleep 1000.{mark} &\n\
         setsid sh -c 'sleep 1001.{mark} & sleep 1002.{mark} & wait' > /dev/null 2>&1 < /dev/null &\n\
         (setsid sh -c '(trap \"\" HUP TERM INT; setsid sleep 1003.{mark} > /dev/null 2>&1 &) &' &)\n\
         nohup sh -c 'while true; do sleep 1004.{mark}; done' > /dev/null 2>&1 &\n\
         (sh -c 'while true; do sh -c \"sleep 0.001\"; done #{mark}' &)\n\
         while [ $(grep -lsz {mark} /proc/[0-9]*/cmdline | wc -l) -lt 8 ]; do sleep 0.01; done\n\
         echo ready\n"
    )
}

/// Returns the processes with `mark` in their arguments.
fn left(mark: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("a Linux system").filter_map(Result::ok);
    let lines = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(mark)).collect()
}

/// How a command is ended.
#[derive(Debug, Clone, Copy)]
enum Way {
    ByItself,
    Timeout,
    Cancel,
    Drop,
}

/// Returns whether the processes were there before the time was over: only then did it show anything.
async fn is_nothing_left(containment: Containment, way: Way, number: usize, limit_s: u64) -> bool {
    let mark = format!("7{}{number}{limit_s}", std::process::id());
    let fixture = fixture(containment);
    let ready = CancellationToken::new();
    let cancel = CancellationToken::new();
    let (is_ready, to_cancel) = (ready.clone(), cancel.clone());
    let progress = Progress::new(move |line| {
        assert_eq!(line, "ready");
        is_ready.cancel();
        if let Way::Cancel = way {
            to_cancel.cancel();
        }
    });
    let end = match way {
        Way::ByItself => "",
        Way::Timeout | Way::Cancel | Way::Drop => "sleep 1005",
    };
    let arguments = json!({"command": unruly(&mark) + end, "timeout_ms": limit_s * 1_000});
    let context = ToolContext { cancel, progress, ..context() };
    let call = fixture.call_with("bash", arguments, context);
    let result = match way {
        Way::Drop => tokio::select! {
            result = call => Some(result),
            () = ready.cancelled() => None,
        },
        Way::ByItself | Way::Timeout | Way::Cancel => Some(call.await),
    };
    assert_eq!(left(&mark), Vec::<String>::new(), "{containment:?} {way:?}");
    if !ready.is_cancelled() {
        return false;
    }
    let ended = result.map(|result| (result.status, blocks_text(&result.content)));
    let all_ended = "the command and all its processes were ended]\n";
    match way {
        Way::ByItself => assert_eq!(ended, Some((ToolStatus::Ok, "ready\n".to_owned()))),
        Way::Timeout => {
            let text = format!("ready\n[timed out after {limit_s}s; {all_ended}");
            assert_eq!(ended, Some((ToolStatus::Error, text)));
        }
        Way::Cancel => {
            assert_eq!(ended, Some((ToolStatus::Interrupted, format!("ready\n[cancelled; {all_ended}"))))
        }
        Way::Drop => assert_eq!(ended, None),
    }
    true
}

async fn check_nothing_is_left(containment: Containment, way: Way, number: usize) {
    // A time limit must leave the processes time to start, however busy the machine is.
    let limits_s: &[u64] = if let Way::Timeout = way { &[3, 12, 50] } else { &[60] };
    for &limit_s in limits_s {
        if is_nothing_left(containment, way, number, limit_s).await {
            return;
        }
    }
    panic!("{containment:?} {way:?}: the processes were not there in time");
}

#[tokio::test]
async fn no_process_is_left_behind() {
    for (place, containment) in containments().into_iter().enumerate() {
        for (number, way) in [Way::ByItself, Way::Timeout, Way::Cancel, Way::Drop].into_iter().enumerate() {
            check_nothing_is_left(containment, way, 10 * place + number).await;
        }
    }
}

/// Dropped at any moment, even while the first processes are being started.
#[tokio::test]
async fn no_process_is_left_behind_by_an_early_end() {
    for (place, containment) in containments().into_iter().enumerate() {
        let fixture = fixture(containment);
        for delay_us in (0..20_u64).map(|step| step * 300) {
            let mark = format!("8{}{place}{delay_us}", std::process::id());
            let command =
                format!("setsid sleep 1000.{mark} & setsid sh -c 'sleep 1001.{mark} &' ; sleep 1002.{mark}");
            let call = fixture.call("bash", json!({"command": command}));
            let ended = tokio::time::timeout(Duration::from_micros(delay_us), call).await;
            assert!(ended.is_err(), "it was dropped: {ended:?}");
            assert_eq!(left(&mark), Vec::<String>::new(), "{containment:?} after {delay_us} µs");
        }
    }
}

/// Changes by a command to files that tools had touched are declared, however it ended. Changes to others are
/// not.
#[tokio::test]
async fn a_command_declares_what_it_did_to_known_files() {
    let files = ["read.txt", "same.txt", "gone.txt", "deep/moved.txt"].map(|path| (path, "hello\n"));
    let fixture = Fixture::new(&[&files[..], &[("unknown.txt", "hello\n")]].concat());
    for (path, _) in files {
        fixture.call("read", json!({ "path": path })).await;
    }
    fixture.call("write", json!({ "path": "made.txt", "content": "1" })).await;
    let modified = |paths: &[&str]| {
        paths.iter().map(|path| Touched { path: (*path).into(), touch: Touch::Modified }).collect::<Vec<_>>()
    };
    for (command, status, touched) in [
        ("cat read.txt; echo x > new.txt; echo x >> unknown.txt", ToolStatus::Ok, &[][..]),
        ("echo more >> read.txt", ToolStatus::Ok, &["read.txt"]),
        ("rm gone.txt; exit 3", ToolStatus::Error, &["gone.txt"]),
        ("true", ToolStatus::Ok, &[]),
        ("mv deep elsewhere; rm made.txt", ToolStatus::Ok, &["deep/moved.txt", "made.txt"]),
        ("echo back > gone.txt", ToolStatus::Ok, &["gone.txt"]),
        ("rm -f same.txt; sleep 600", ToolStatus::Error, &["same.txt"]),
    ] {
        let timeout_ms = if command.ends_with("600") { 1_000 } else { 60_000 };
        let result = fixture.call("bash", json!({ "command": command, "timeout_ms": timeout_ms })).await;
        assert_eq!((result.status, result.touched), (status, modified(touched)), "{command}");
    }
}

/// A change by another tool while a command runs belongs to that tool.
#[tokio::test]
async fn a_command_declares_nothing_that_a_tool_changed_meanwhile() {
    let fixture = Fixture::new(&[("a.txt", "1"), ("b.txt", "1")]);
    for path in ["a.txt", "b.txt"] {
        fixture.call("read", json!({ "path": path })).await;
    }
    let waits = "touch begun; while [ ! -e go ]; do :; done; echo 3 > b.txt";
    let (result, ()) = tokio::join!(fixture.call("bash", json!({ "command": waits })), async {
        while !fixture.path().join("begun").exists() {
            tokio::task::yield_now().await;
        }
        fixture.call("write", json!({ "path": "a.txt", "content": "22" })).await;
        fixture.call("write", json!({ "path": "go", "content": "" })).await;
    });
    assert_eq!(result.touched, [Touched { path: "b.txt".into(), touch: Touch::Modified }]);
}
