//! Programs that talk, that end, and that stay. The helper is tested with the binary (`crates/cli/tests/cli/mcp.rs`).

use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};

use super::*;

fn shell(script: &str) -> Program {
    Program {
        program: "sh".into(),
        arguments: vec!["-c".into(), script.into()],
        folder: "/".into(),
        environment: vec![("PATH".into(), "/usr/bin:/bin".into()), ("A".into(), "b".into())],
        helper: None,
    }
}

/// Whether a process runs. One that has ended may not be reaped yet.
fn exists(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}

#[tokio::test]
async fn a_program_gets_its_environment_and_its_folder_and_talks() {
    let (process, streams) =
        ServerProcess::start(&shell("pwd; echo $A ${HOME:-none}; cat; echo words >&2")).expect("starts");
    let Streams { mut input, mut output, mut errors } = streams;
    input.write_all(b"hello\n").await.expect("is read");
    drop(input);
    let (mut said, mut words) = (String::new(), String::new());
    output.read_to_string(&mut said).await.expect("text");
    errors.read_to_string(&mut words).await.expect("text");
    assert_eq!((&*said, &*words), ("/\nb none\nhello\n", "words\n"));
    process.end(Duration::from_secs(10)).await;
}

#[tokio::test]
async fn all_processes_end_with_the_program() {
    // Ended before its grace period, and dropped.
    for is_dropped in [false, true] {
        let (process, streams) =
            ServerProcess::start(&shell("sleep 1000 & echo $!; exec sleep 1000")).expect("starts");
        let mut line = String::new();
        BufReader::new(streams.output).read_line(&mut line).await.expect("a line");
        let child = line.trim().to_owned();
        assert!(exists(&child), "{child} runs");
        match is_dropped {
            true => drop(process),
            false => process.end(Duration::from_millis(1)).await,
        }
        assert!(!exists(&child), "{child} has ended");
    }
}

#[tokio::test]
async fn a_program_that_does_not_exist_is_named() {
    for (program, reason) in [
        ("no-such-program", "there is no program no-such-program in PATH"),
        ("./no-such", "./no-such is not a program"),
        ("/etc", "/etc is not a program"),
    ] {
        let program = Program { program: program.into(), ..shell("") };
        let error = ServerProcess::start(&program).map(|_| ()).expect_err("it does not exist");
        assert_eq!(error.to_string(), reason);
    }
}
