//! The command that prints a provider's key.
//!
//! Invariants: the command is only the user's own, because no project's file may set it; it gets the user's variables and
//! nothing of a request; what it prints is never shown, except the first line of its error output when it fails.

use std::future::Future;
use std::process::Stdio;
use std::time::Duration;

use greenroom::provider::{ApiKey, KeySource};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;

/// How long the command may take. It may have to ask the user for a fingerprint.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The most bytes that are read of its output.
const OUTPUT_BYTES_MAX: u64 = 64 * 1024;
/// The most characters of its error output that are shown.
const SHOWN_CHARS_MAX: usize = 200;

/// Returns the keys that a shell command prints, with these variables as its environment.
pub(super) fn source(command: String, variables: Vec<(String, String)>) -> KeySource {
    KeySource::new(move || within(TIMEOUT, printed(command.clone(), variables.clone())))
}

async fn within(
    limit: Duration,
    printed: impl Future<Output = Result<ApiKey, String>>,
) -> Result<ApiKey, String> {
    let in_time = tokio::time::timeout(limit, printed).await;
    in_time.unwrap_or_else(|_| Err(format!("key_command did not end within {} s", limit.as_secs())))
}

async fn printed(command: String, variables: Vec<(String, String)>) -> Result<ApiKey, String> {
    // Not the working folder: a project could change what the command does there.
    let home = variables.iter().find(|(name, _)| name == "HOME").map_or("/", |(_, home)| home);
    let mut child = Command::new("/bin/sh")
        .args(["-c", &command])
        .current_dir(home)
        .env_clear()
        .envs(variables.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("key_command could not be started: {error}"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (key, told, status) = tokio::join!(first_line(out), first_line(err), child.wait());
    let status = status.map_err(|error| format!("key_command: {error}"))?;
    if !status.success() {
        let told: String = told.chars().take(SHOWN_CHARS_MAX).collect();
        let told = if key.is_empty() { told } else { told.replace(&key, "***") };
        let told = if told.is_empty() { told } else { format!(": {told}") };
        return Err(format!("key_command failed ({status}){told}"));
    }
    match key.is_empty() {
        true => Err("key_command printed no key on its first line".to_owned()),
        false => Ok(key.into()),
    }
}

/// Returns the first line of an output, without the spaces around it. All of it is read, so that the command can end.
async fn first_line(output: Option<impl AsyncRead + Unpin>) -> String {
    let Some(output) = output else { return String::new() };
    let mut bytes = Vec::new();
    // What came before an error counts.
    let _complete = output.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).lines().next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests;
