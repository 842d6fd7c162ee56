//! Commands that print a key, and commands that do not.

use super::*;

async fn run(command: &str) -> Result<ApiKey, String> {
    let variables = [("HOME", "/"), ("PATH", "/usr/bin:/bin"), ("GREENROOM_X", "a value")];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    within(Duration::from_secs(30), printed(command.to_owned(), variables)).await
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
        assert_eq!(run(command).await, Ok(key.into()), "{command}");
    }
}

#[tokio::test]
async fn a_command_that_fails_says_why_without_the_key() {
    for (command, reason) in [
        ("exit 3", "key_command failed (exit status: 3)"),
        ("echo no account >&2; echo more >&2; exit 1", "key_command failed (exit status: 1): no account"),
        ("echo sk-secret; echo bad sk-secret >&2; exit 1", "key_command failed (exit status: 1): bad ***"),
        ("echo; echo abc", "key_command printed no key on its first line"),
        ("true", "key_command printed no key on its first line"),
    ] {
        assert_eq!(run(command).await, Err(reason.to_owned()), "{command}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_command_that_does_not_end_is_given_up() {
    let never = within(Duration::from_secs(60), std::future::pending());
    assert_eq!(never.await, Err("key_command did not end within 60 s".to_owned()));
}
