//! Commands that print a line, and commands that do not.

use super::*;

async fn printed(command: &str) -> Result<String, String> {
    let variables = [("HOME", "/"), ("PATH", "/usr/bin:/bin"), ("GREENROOM_X", "a value")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    first_line(command, Path::new("/"), &variables, Duration::from_secs(30)).await
}

#[tokio::test]
async fn the_key_is_the_first_line_that_is_printed() {
    for (command, key) in [
        ("echo abc", "abc"),
        ("printf ' abc \\r\\nmore\\n'", "abc"),
        ("echo abc; echo noise >&2", "abc"),
        ("echo \"$GREENROOM_X\"", "a value"),
        ("pwd", "/"),
        ("echo \"${CARGO_MANIFEST_DIR:-none}\"", "none"),
        // More than is read, and more than a pipe holds.
        ("echo abc; head -c 300000 /dev/zero || true", "abc"),
    ] {
        assert_eq!(printed(command).await, Ok(key.to_owned()), "{command}");
    }
}

#[tokio::test]
async fn a_command_that_fails_says_why_without_the_key() {
    for (command, reason) in [
        ("exit 3", "failed (exit status: 3)"),
        ("echo no account >&2; echo more >&2; exit 1", "failed (exit status: 1): no account"),
        ("echo sk-secret; echo bad sk-secret >&2; exit 1", "failed (exit status: 1): bad ***"),
        ("echo; echo abc", "printed nothing on its first line"),
        ("true", "printed nothing on its first line"),
    ] {
        assert_eq!(printed(command).await, Err(reason.to_owned()), "{command}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_that_does_not_end_is_given_up() {
    let (limit, before) = (Duration::from_secs(60), tokio::time::Instant::now());
    let never = within(limit, std::future::pending());
    assert_eq!(never.await, Err::<Vec<u8>, _>("did not end within 60 s".to_owned()));
    assert_eq!(before.elapsed(), limit);
}

/// What a command started ends with it if it is given up, also where the shell waits for it.
#[tokio::test]
async fn a_command_that_is_given_up_leaves_nothing_running() {
    let folder = tempfile::tempdir().expect("a folder");
    let variables = [("PATH".to_owned(), "/usr/bin:/bin".to_owned())];
    let command = "sleep 600 & echo $! > child; wait; true";
    let limit = Duration::from_secs(2);
    let answered = answer(command, folder.path(), &variables, b"x", 100, limit).await;
    assert_eq!(answered, Err("did not end within 2 s".to_owned()));
    let child = std::fs::read_to_string(folder.path().join("child")).expect("it was written");
    let status = std::path::PathBuf::from(format!("/proc/{}/stat", child.trim()));
    // It is gone, or a zombie for a moment.
    let is_over = || std::fs::read_to_string(&status).map_or(true, |stat| stat.contains(") Z "));
    let until = std::time::Instant::now() + Duration::from_secs(10);
    while !is_over() && std::time::Instant::now() < until {
        tokio::task::yield_now().await;
    }
    assert!(is_over(), "{child} lives on");
}

/// A command gets its input, however large, and need not read it.
#[tokio::test]
async fn a_command_answers_its_input() {
    let answered = |command: &'static str, input: String| async move {
        let variables = [("PATH".to_owned(), "/usr/bin:/bin".to_owned())];
        answer(command, Path::new("/"), &variables, input.as_bytes(), 1_000_000, Duration::from_secs(30))
            .await
    };
    let large = "line\n".repeat(100_000);
    for (command, input, expected) in [
        ("cat", "one\ntwo\n", Ok("one\ntwo\n")),
        ("cat", &large, Ok(large.as_str())),
        ("echo decided", &large, Ok("decided\n")),
        ("true", "one", Ok("")),
        ("cat >&2; exit 2", "one\ntwo", Err("failed (exit status: 2): one")),
        ("cat; cat /dev/zero | head -c 1000000", "one", Err("printed more than 1000000 bytes")),
        ("printf '\\377'", "one", Err("printed something that is not UTF-8")),
    ] {
        let expected = expected.map(str::to_owned).map_err(str::to_owned);
        assert!(answered(command, input.to_owned()).await == expected, "{command}");
    }
}
