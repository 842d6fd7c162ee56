//! Runs a command of the user's own, such as one that prints a key, for the first line that it prints.
//!
//! Invariants: the command is the user's and never a model's; it gets the given environment and no input; what it prints
//! is returned and never part of an error, except the first line of its error output.

use std::future::Future;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::process::Command;

/// The most bytes that are read of each output.
const OUTPUT_BYTES_MAX: u64 = 64 * 1024;
/// The most characters of its error output that are shown.
const SHOWN_CHARS_MAX: usize = 200;

/// Returns the first line that a shell command prints, without the spaces around it. Dropping the future ends the
/// command.
///
/// # Errors
/// Why there is none, as a clause that follows the name of the setting with the command.
pub async fn first_line(
    command: &str,
    folder: &Path,
    environment: &[(String, String)],
    time_limit: Duration,
) -> Result<String, String> {
    within(time_limit, run(command, folder, environment)).await
}

async fn within(
    limit: Duration,
    run: impl Future<Output = Result<String, String>>,
) -> Result<String, String> {
    let in_time = tokio::time::timeout(limit, run).await;
    in_time.unwrap_or_else(|_| Err(format!("did not end within {} s", limit.as_secs())))
}

async fn run(command: &str, folder: &Path, environment: &[(String, String)]) -> Result<String, String> {
    let mut child = Command::new("/bin/sh")
        .args(["-c", command])
        .current_dir(folder)
        .env_clear()
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("could not be started: {error}"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let (line, told, status) = tokio::join!(first_line_of(out), first_line_of(err), child.wait());
    let status = status.map_err(|error| format!("failed: {error}"))?;
    if !status.success() {
        let told: String = told.chars().take(SHOWN_CHARS_MAX).collect();
        let told = if line.is_empty() { told } else { told.replace(&line, "***") };
        let told = if told.is_empty() { told } else { format!(": {told}") };
        return Err(format!("failed ({status}){told}"));
    }
    if line.is_empty() { Err("printed nothing on its first line".to_owned()) } else { Ok(line) }
}

/// Returns the first line of an output, without the spaces around it.
async fn first_line_of(output: Option<impl AsyncRead + Unpin>) -> String {
    let Some(output) = output else { return String::new() };
    let mut bytes = Vec::new();
    // What came before an error counts.
    let _complete = output.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes).await;
    String::from_utf8_lossy(&bytes).lines().next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests;
