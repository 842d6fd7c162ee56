//! This program, started once more in the background.
//!
//! Invariants: what is started holds neither the terminal nor a stream of this process, and gets no variable with a secret.

use std::ffi::OsString;
use std::io::Read as _;
use std::process::{Command, Stdio};

use crate::privacy::HANDED_OVER;

/// The most that is read of what a program says as it starts, in bytes.
const WORDS_BYTES_MAX: u64 = 16 * 1024;

/// Closes every file of this process but its standard streams, for a program that goes on in the background: a lock or a
/// pipe of whoever started it would be held as long as it lives. To be called before this process opens files of its own.
#[cfg(target_os = "linux")]
pub fn close_inherited() -> std::io::Result<()> {
    let names =
        std::fs::read_dir("/proc/self/fd")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let open: Vec<std::os::fd::RawFd> = names.filter_map(|name| name.parse().ok()).collect();
    for number in open.into_iter().filter(|number| *number > 2) {
        // The one that listed them is closed already.
        let _ = nix::unistd::close(number);
    }
    Ok(())
}

/// Closes nothing: what other systems hand on is closed by whoever starts the program.
#[cfg(not(target_os = "linux"))]
pub fn close_inherited() -> std::io::Result<()> {
    Ok(())
}

/// Starts this program with these arguments in the background, in the root folder, and waits until it closes its standard
/// output. Gives what it wrote there. The call blocks; the program goes on when this process has ended.
///
/// # Errors
/// When it cannot be started.
pub fn start(arguments: &[OsString]) -> std::io::Result<String> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(arguments)
        // The file that it names is not handed on.
        .env_remove(HANDED_OVER)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut words = Vec::new();
    if let Some(said) = child.stdout.take() {
        said.take(WORDS_BYTES_MAX).read_to_end(&mut words)?;
    }
    // Else what is left of it when it has ended would stay as long as this process does.
    std::thread::spawn(move || child.wait());
    Ok(String::from_utf8_lossy(&words).into_owned())
}
