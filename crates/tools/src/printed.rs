//! Runs a command of the user's own for what it prints: one that prints a key, or one that decides as a hook.
//!
//! Invariants: the command is the user's and never a model's; it gets the given environment and input; what it prints
//! is returned and never part of an error, except the first line of its error output.

use std::future::Future;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Command;

/// The maximum number of bytes that are read of each output.
const OUTPUT_BYTES_MAX: u64 = 64 * 1024;
/// The maximum number of characters of its error output that are shown.
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
    let run = run(command, folder, environment, b"", OUTPUT_BYTES_MAX, Group::OfProgram);
    let line = within(time_limit, run).await.map(|output| first_line_of(&output))?;
    if line.is_empty() { Err("printed nothing on its first line".to_owned()) } else { Ok(line) }
}

/// Returns all that a shell command prints for this input, at most `bytes_max` bytes. Dropping the future ends the
/// command with all that it started, and it need not read its input.
///
/// # Errors
/// As for [`first_line`]; or it printed more, or something that is not UTF-8.
pub async fn answer(
    command: &str,
    folder: &Path,
    environment: &[(String, String)],
    input: &[u8],
    bytes_max: u64,
    time_limit: Duration,
) -> Result<String, String> {
    let output =
        within(time_limit, run(command, folder, environment, input, bytes_max + 1, Group::Own)).await?;
    if output.len() as u64 > bytes_max {
        return Err(format!("printed more than {bytes_max} bytes"));
    }
    String::from_utf8(output).map_err(|_| "printed something that is not UTF-8".to_owned())
}

/// The process group of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Group {
    /// The program's: the command may ask at its terminal.
    OfProgram,
    /// One of its own, which ends as a whole.
    Own,
}

/// Ends a process group when it is dropped.
struct EndOfGroup(u32);

impl Drop for EndOfGroup {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.0).ok().and_then(Pid::from_raw) {
            // It fails when all have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

async fn within(
    limit: Duration,
    run: impl Future<Output = Result<Vec<u8>, String>>,
) -> Result<Vec<u8>, String> {
    let in_time = tokio::time::timeout(limit, run).await;
    in_time.unwrap_or_else(|_| Err(format!("did not end within {} s", limit.as_secs())))
}

/// Returns what a command prints, as far as `bytes_max`.
async fn run(
    command: &str,
    folder: &Path,
    environment: &[(String, String)],
    input: &[u8],
    bytes_max: u64,
    group: Group,
) -> Result<Vec<u8>, String> {
    let mut shell = Command::new("/bin/sh");
    if group == Group::Own {
        shell.process_group(0);
    }
    let mut child = shell
        .args(["-c", command])
        .current_dir(folder)
        .env_clear()
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .stdin(if input.is_empty() { Stdio::null() } else { Stdio::piped() })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| format!("could not be started: {error}"))?;
    let end = child.id().filter(|_| group == Group::Own).map(EndOfGroup);
    let (out, err, into) = (child.stdout.take(), child.stderr.take(), child.stdin.take());
    let writing = async {
        if let Some(mut into) = into {
            // A command that does not read all of its input has its reasons.
            let _ = into.write_all(input).await;
        }
    };
    let (output, told, (), status) =
        tokio::join!(read(out, bytes_max), read(err, OUTPUT_BYTES_MAX), writing, child.wait());
    // What it left running is the user's.
    std::mem::forget(end);
    let status = status.map_err(|error| format!("failed: {error}"))?;
    if !status.success() {
        let line = first_line_of(&output);
        let told: String = first_line_of(&told).chars().take(SHOWN_CHARS_MAX).collect();
        let told = if line.is_empty() { told } else { told.replace(&line, "***") };
        let told = if told.is_empty() { told } else { format!(": {told}") };
        return Err(format!("failed ({status}){told}"));
    }
    Ok(output)
}

/// Returns an output as far as `bytes_max`. The rest is read, so that the command can end, and dropped.
async fn read(output: Option<impl AsyncRead + Unpin>, bytes_max: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(mut output) = output {
        // Output before an error counts.
        let _complete = (&mut output).take(bytes_max).read_to_end(&mut bytes).await;
        let _rest = tokio::io::copy(&mut output, &mut tokio::io::sink()).await;
    }
    bytes
}

/// Returns the first line of an output, without the spaces around it.
fn first_line_of(output: &[u8]) -> String {
    String::from_utf8_lossy(output).lines().next().unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests;
