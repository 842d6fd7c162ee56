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
    let never = within(Duration::from_secs(60), std::future::pending());
    assert_eq!(never.await, Err("did not end within 60 s".to_owned()));
}
